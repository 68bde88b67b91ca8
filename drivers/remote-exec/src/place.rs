//! On which host of a pool an instance is made: a pure choice.

use executor_client::host::HostAmount;

/// A host as the choice sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) name: String,
    /// 0 in a dimension = not limited.
    pub(crate) capacity: HostAmount,
    /// Taken by instances that have not ended.
    pub(crate) used: HostAmount,
}

/// The candidates in the order in which `key` prefers them: the same on every node, spread evenly over many keys,
/// heavier hosts more often, and mostly unchanged when a host comes or goes.
fn preference(key: &str, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    let score = |c: &Candidate| {
        let uniform = ((hash(key, &c.name) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -weight(&c.capacity) / uniform.ln()
    };
    candidates.sort_by(|a, b| score(b).total_cmp(&score(a)).then_with(|| a.name.cmp(&b.name)));
    candidates
}

/// Declared processor speed, else memory, else one for all.
fn weight(capacity: &HostAmount) -> f64 {
    match (capacity.cpu_mhz, capacity.memory_mib) {
        (0, 0) => 1.0,
        (0, memory) => memory as f64,
        (cpu, _) => cpu as f64,
    }
}

/// The host for `key`; otherwise why each has no room.
pub(crate) fn choose(key: &str, takes: &HostAmount, candidates: Vec<Candidate>) -> Result<String, String> {
    let mut full = Vec::new();
    for candidate in preference(key, candidates) {
        match short_of(&candidate, takes) {
            None => return Ok(candidate.name),
            Some(what) => full.push(format!("{}: {what}", candidate.name)),
        }
    }
    Err(full.join("; "))
}

fn short_of(host: &Candidate, takes: &HostAmount) -> Option<String> {
    let (capacity, used) = (&host.capacity, &host.used);
    let kinds = [
        ("MHz", capacity.cpu_mhz, used.cpu_mhz, takes.cpu_mhz),
        ("MiB", capacity.memory_mib, used.memory_mib, takes.memory_mib),
        ("sessions", capacity.sessions, used.sessions, takes.sessions),
    ];
    let short =
        kinds.into_iter().find(|(_, capacity, used, takes)| *capacity > 0 && used.saturating_add(*takes) > *capacity);
    short.map(|(what, capacity, used, takes)| format!("{used} of {capacity} {what} taken, {takes} more needed"))
}

/// FNV-1a with a finish that spreads short differences over all bits. It must never change: two releases must agree.
fn hash(key: &str, host: &str) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in key.bytes().chain([0]).chain(host.bytes()) {
        h = (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn host(name: &str, cpu_mhz: u64) -> Candidate {
        Candidate {
            name: name.into(),
            capacity: HostAmount { cpu_mhz, ..HostAmount::default() },
            used: HostAmount::default(),
        }
    }

    fn first(key: &str, hosts: &[Candidate]) -> String {
        choose(key, &HostAmount::default(), hosts.to_vec()).unwrap()
    }

    #[test]
    fn keys_spread_by_weight_whatever_the_order() {
        let hosts = [host("a", 1000), host("b", 1000), host("c", 2000)];
        let mut reversed = hosts.clone();
        reversed.reverse();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for n in 0..4000 {
            let key = format!("key-{n}");
            let chosen = first(&key, &hosts);
            assert_eq!(chosen, first(&key, &reversed));
            *counts.entry(chosen).or_default() += 1;
        }
        for (name, expected) in [("a", 1000), ("b", 1000), ("c", 2000)] {
            assert!(counts[name].abs_diff(expected) < 200, "{counts:?}");
        }
    }

    #[test]
    fn a_new_host_takes_only_for_itself() {
        let hosts = [host("a", 0), host("b", 0)];
        let more = [host("a", 0), host("b", 0), host("c", 0)];
        for n in 0..1000 {
            let key = format!("key-{n}");
            let now = first(&key, &more);
            assert!(now == "c" || now == first(&key, &hosts));
        }
    }

    #[test]
    fn the_choice_never_changes_between_releases() {
        let hosts: Vec<Candidate> = ["a", "b", "c", "d"].map(|n| host(n, 0)).into();
        let chosen: String = (0..12).map(|n| first(&n.to_string(), &hosts)).collect();
        assert_eq!(chosen, EXPECTED);
    }

    const EXPECTED: &str = "addadbdacadb";

    #[test]
    fn full_hosts_are_passed_over_and_named() {
        let takes = HostAmount { cpu_mhz: 100, memory_mib: 64, sessions: 1 };
        let mut small = host("small", 50);
        small.used.sessions = 3;
        let mut crowded = host("crowded", 0);
        crowded.capacity.sessions = 2;
        crowded.used.sessions = 2;
        let why = choose("k", &takes, vec![small.clone(), crowded.clone()]).unwrap_err();
        assert!(why.contains("small: 0 of 50 MHz") && why.contains("crowded: 2 of 2 sessions"), "{why}");
        assert_eq!(choose("k", &takes, vec![small, crowded, host("free", 0)]).unwrap(), "free");
    }
}
