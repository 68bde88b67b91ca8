//! Suspicion: a server that stood still, or suddenly hears no node, suspects itself before it counts nodes as lost.

use std::time::Duration;

use crate::Boot;

/// Fewer silent nodes never count as a failure of the servers: small clusters lose nodes too.
const AT_LEAST: usize = 3;

/// The servers' view at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Delay of this look beyond its due time: the process or its machine stood still.
    pub(super) gap: Duration,
    /// Nodes whose leases have run out.
    pub(super) due: usize,
    /// Nodes that have missed heartbeats, including those.
    pub(super) silent: usize,
    /// Nodes that hold a lease.
    pub(super) total: usize,
    /// Until when the servers suspected themselves before, while most of those nodes have not come back.
    pub(super) suspected_until: Option<Boot>,
    /// Now.
    pub(super) now: Boot,
}

/// The decision on expired leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// End the expired leases.
    Expire,
    /// The servers themselves stood still this long: each lease gets its full time again.
    Paused(Duration),
    /// Most nodes went silent together: each lease gets its full time again, once.
    Suspect {
        /// Nodes that have missed heartbeats.
        silent: usize,
        /// Nodes that held a lease.
        total: usize,
    },
}

/// Whether these are most nodes, and not only a few.
pub(super) fn most(silent: usize, total: usize) -> bool {
    silent >= AT_LEAST && silent * 2 > total
}

/// Decides. `longest_gap` is the longest acceptable pause: leases have enough time left after it.
pub(super) fn decide(seen: Seen, longest_gap: Duration) -> Decision {
    if seen.gap > longest_gap {
        return Decision::Paused(seen.gap);
    }
    // They already got their full time again, and it is over: the servers are not at fault.
    let asked_before = seen.suspected_until.is_some_and(|until| seen.now >= until);
    if seen.due > 0 && !asked_before && most(seen.silent, seen.total) {
        return Decision::Suspect { silent: seen.silent, total: seen.total };
    }
    Decision::Expire
}

impl Decision {
    /// The reason, for logs, health and nodes' events.
    pub(super) fn reason(&self) -> Option<String> {
        match self {
            Self::Expire => None,
            Self::Paused(gap) => Some(format!(
                "the server stood still for {:.1} s itself, every lease gets its full time again",
                gap.as_secs_f64()
            )),
            Self::Suspect { silent, total } => Some(format!(
                "{silent} of {total} nodes went silent together, the server suspects itself: every lease gets its \
                    full time again, once"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_suspected_when() {
        let now = Boot::since(Duration::from_secs(1_000));
        let [zero, second] = [0, 1].map(Duration::from_secs);
        let later = now + second;
        for (gap, due, silent, total, suspected_until, expected) in [
            (zero, 0, 0, 10, None, Decision::Expire),
            (zero, 1, 1, 10, None, Decision::Expire),
            // A gap counts even without an expired lease: heartbeats have waited in it.
            (second * 9, 0, 0, 10, None, Decision::Paused(second * 9)),
            (second * 9, 10, 10, 10, Some(now), Decision::Paused(second * 9)),
            (second, 1, 1, 10, None, Decision::Expire),
            // Half of them are not most of them, and two are not many.
            (zero, 1, 5, 10, None, Decision::Expire),
            (zero, 1, 6, 10, None, Decision::Suspect { silent: 6, total: 10 }),
            (zero, 1, 1, 1, None, Decision::Expire),
            (zero, 2, 2, 2, None, Decision::Expire),
            (zero, 1, 3, 3, None, Decision::Suspect { silent: 3, total: 3 }),
            (zero, 500, 500, 500, None, Decision::Suspect { silent: 500, total: 500 }),
            // Silent, but no lease has run out yet.
            (zero, 0, 500, 500, None, Decision::Expire),
            // They got their full time again: within it no other node is lost, and after it they are.
            (zero, 1, 9, 10, Some(later), Decision::Suspect { silent: 9, total: 10 }),
            (zero, 9, 9, 10, Some(now), Decision::Expire),
        ] {
            let seen = Seen { gap, due, silent, total, suspected_until, now };
            assert_eq!(decide(seen, second * 3), expected, "{seen:?}");
        }
    }
}
