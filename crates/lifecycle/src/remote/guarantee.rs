//! The guarantee of a remote task: a function of its provider's abilities, with the reasons.

use std::time::Duration;

use model::{
    GoDuration,
    node::RemoteProvider,
    remote::{Guarantee, GuaranteeLevel},
};

use crate::mutation::{Mutation, mutated};

/// Server settings that bound the gaps of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long a manager may act without word from the servers.
    pub lease: Duration,
    /// How much longer the servers wait before they assign another manager.
    pub margin: Duration,
    /// Interval of the sweep over providers.
    pub sweep: Duration,
}

/// Computes the guarantee from a node's report about the provider; None = no node has reported it.
#[must_use]
pub fn guarantee(provider: Option<&RemoteProvider>) -> Guarantee {
    guarantee_within(provider, None)
}

/// As [`guarantee`], with times in its limits where the settings are known.
#[must_use]
pub fn guarantee_within(provider: Option<&RemoteProvider>, times: Option<&Times>) -> Guarantee {
    let fenced = provider.filter(|_| mutated(Mutation::GuaranteeOverstated));
    let fenced = fenced.map(|p| RemoteProvider { conditional_writes: true, plain_protocol: false, ..p.clone() });
    let Some(p) = fenced.as_ref().or(provider) else {
        return Guarantee {
            reason: "no node that reaches the provider has told what it can do".to_owned(),
            ..Guarantee::default()
        };
    };
    // Without a seal a create that was sent long ago makes an instance after its stop was confirmed, beside the next.
    let refuses_late = p.conditional_writes && p.seal;
    let (level, reason) = if p.plain_protocol {
        (
            GuaranteeLevel::HandleOnly,
            "the driver speaks the plain driver protocol only: an instance is found again by its handle and by \
                nothing else",
        )
    } else if p.keyed_create && refuses_late {
        (
            GuaranteeLevel::ExactlyOne,
            "the provider creates by key and refuses stale calls: repeating a create gives the same instance",
        )
    } else if p.keyed_create && p.conditional_writes {
        (
            GuaranteeLevel::KeyedOnly,
            "the provider creates by key: repeating a create gives the same instance; it refuses stale calls, but not \
                a create that arrives after its stop",
        )
    } else if p.keyed_create {
        (
            GuaranteeLevel::KeyedOnly,
            "the provider creates by key: repeating a create gives the same instance; it cannot refuse calls of a \
                manager that was replaced",
        )
    } else if (p.find || p.list) && refuses_late {
        (
            GuaranteeLevel::ExactlyOneBySearch,
            "the provider finds instances by their key and refuses stale calls: a lost answer is looked up before \
                anything is created",
        )
    } else if (p.find || p.list) && p.conditional_writes {
        (
            GuaranteeLevel::Unfenced,
            "the provider finds instances by their key: a lost answer is looked up before anything is created; it \
                refuses stale calls, but not a create that arrives after its stop",
        )
    } else if p.find || p.list {
        (
            GuaranteeLevel::Unfenced,
            "the provider finds instances by their key: a lost answer is looked up before anything is created; it \
                cannot refuse calls of a \
             manager that was replaced",
        )
    } else {
        (
            GuaranteeLevel::Held,
            "the provider has neither keyed create nor search: it cannot be asked what a lost create has done",
        )
    };
    Guarantee {
        level,
        exactly_one: level >= GuaranteeLevel::ExactlyOneBySearch,
        fenced: p.conditional_writes && !p.plain_protocol,
        exact_results: p.retained_exit_results && !p.plain_protocol,
        reason: reason.to_owned(),
        limits: limits(p, times),
    }
}

/// Until when a second instance may appear if the provider does not refuse late calls, and what follows: nothing ends
/// it automatically.
fn second(p: &RemoteProvider, times: Option<&Times>) -> String {
    let listed = p.list && !p.plain_protocol;
    let (bound, sweep) = match times {
        None => {
            let parts = "the lease, the servers' grace and the age of the provider's answers together".to_owned();
            (parts, "the sweep reports it".to_owned())
        }
        Some(Times { lease, margin, sweep }) => {
            let age = Duration::from_secs(p.stale_seconds);
            let mut parts =
                format!("lease {}, the servers' grace {}", GoDuration::from(*lease), GoDuration::from(*margin));
            if !age.is_zero() {
                parts = format!("{parts}, age of the provider's answers {}", GoDuration::from(age));
            }
            (
                format!("{} ({parts})", GoDuration::from(*lease + *margin + age)),
                format!("the sweep, every {}, reports it", GoDuration::from(*sweep)),
            )
        }
    };
    let seen = if listed {
        format!("{sweep}, and its slot begins no other one meanwhile")
    } else {
        "no sweep finds it".to_owned()
    };
    format!(
        "A second instance may then appear up to {bound} after that manager was heard last, and later if the manager \
            or the provider was frozen in \
         the call. It lives until it ends by itself or a person stops it; {seen}"
    )
}

/// The limits of the guarantee, for people.
fn limits(p: &RemoteProvider, times: Option<&Times>) -> Vec<String> {
    let plain = p.plain_protocol;
    let late = format!(
        "a call that was under way when its manager lost the lease may take effect late: the provider cannot \
            refuse it. {}",
        second(p, times)
    );
    let found = !plain && (p.keyed_create || p.find || p.list);
    let rules = [
        (
            !found,
            "after a create whose answer was lost the task is held as unknown, and what was created is known to \
                nobody: a person looks there and \
             decides (remote gone)",
        ),
        (
            found && !p.keyed_create,
            "after a create whose answer was lost nothing is created until the instance appears or a person says that \
                there is none (remote gone)",
        ),
        (
            plain || (!p.seal && p.list),
            "a create that arrives after its stop was confirmed leaves an instance; the sweep reports it",
        ),
        (
            !plain && !p.seal && !p.list,
            "a create that arrives after its stop was confirmed leaves an instance that no sweep finds",
        ),
        (plain || !p.conditional_writes, late.as_str()),
        (
            plain || !p.retained_exit_results,
            "the exit code of a task that ends while no node manages it may be lost; it then counts as failed",
        ),
        (plain || !p.list, "instances are not listed: what no record knows is not found by the sweep"),
    ];
    // The sweep needs a list, which the plain protocol lacks.
    let told = |text: &str| {
        if plain { text.replace("; the sweep reports it", " that no sweep finds") } else { text.to_owned() }
    };
    rules.into_iter().filter(|(holds, _)| *holds).map(|(_, text)| told(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: fn(&mut RemoteProvider)) -> Guarantee {
        let mut p = RemoteProvider::default();
        change(&mut p);
        guarantee(Some(&p))
    }

    fn fenced(seal: bool, change: fn(&mut RemoteProvider)) -> Guarantee {
        let mut p = RemoteProvider { conditional_writes: true, seal, ..RemoteProvider::default() };
        change(&mut p);
        guarantee(Some(&p))
    }

    #[test]
    fn promises_follow_from_what_the_provider_can_do() {
        for (g, level, exactly_one) in [
            (guarantee(None), GuaranteeLevel::Unknown, false),
            (with(|_| {}), GuaranteeLevel::Held, false),
            (with(|p| p.conditional_writes = true), GuaranteeLevel::Held, false),
            (with(|p| p.list = true), GuaranteeLevel::Unfenced, false),
            (with(|p| p.find = true), GuaranteeLevel::Unfenced, false),
            (with(|p| p.keyed_create = true), GuaranteeLevel::KeyedOnly, false),
            (fenced(true, |p| p.list = true), GuaranteeLevel::ExactlyOneBySearch, true),
            (fenced(true, |p| p.find = true), GuaranteeLevel::ExactlyOneBySearch, true),
            (fenced(true, |p| p.keyed_create = true), GuaranteeLevel::ExactlyOne, true),
            (fenced(false, |p| p.find = true), GuaranteeLevel::Unfenced, false),
            (fenced(false, |p| p.keyed_create = true), GuaranteeLevel::KeyedOnly, false),
            (
                with(|p| {
                    p.keyed_create = true;
                    p.plain_protocol = true;
                }),
                GuaranteeLevel::HandleOnly,
                false,
            ),
        ] {
            assert_eq!((g.level, g.exactly_one), (level, exactly_one), "{}", g.reason);
            assert!(!g.reason.is_empty());
            // The text says "exactly one" only where that holds; otherwise it says until when a second one may appear.
            let says = |text: &str| g.limits.iter().any(|limit| limit.contains(text));
            assert_eq!(g.level.to_string().starts_with("exactly one"), exactly_one, "{}", g.level);
            assert_eq!(
                says("A second instance may then appear"),
                !g.fenced && g.level != GuaranteeLevel::Unknown,
                "{:?}",
                g.limits
            );
        }
        assert!(with(|p| p.conditional_writes = true).fenced && with(|p| p.retained_exit_results = true).exact_results);
    }

    #[test]
    fn until_when_a_second_one_may_appear_follows_from_the_settings_and_that_it_stays_is_said() {
        let times =
            Times { lease: Duration::from_secs(10), margin: Duration::from_secs(1), sweep: Duration::from_secs(60) };
        let ecs = RemoteProvider {
            keyed_create: true,
            find: true,
            list: true,
            stale_seconds: 300,
            ..RemoteProvider::default()
        };
        let docker = RemoteProvider { stale_seconds: 0, seal: true, ..ecs.clone() };
        let ssh = RemoteProvider { conditional_writes: true, ..docker.clone() };
        let plain = RemoteProvider { plain_protocol: true, ..RemoteProvider::default() };
        for (name, provider, wanted) in [
            (
                "ecs",
                &ecs,
                Some(
                    "up to 5m11s (lease 10s, the servers' grace 1s, age of the provider's answers 5m0s) after that \
                        manager was heard last",
                ),
            ),
            (
                "docker_remote",
                &docker,
                Some("up to 11s (lease 10s, the servers' grace 1s) after that manager was heard last"),
            ),
            ("ssh", &ssh, None),
            ("plain", &plain, Some("up to 11s (lease 10s, the servers' grace 1s) after that manager was heard last")),
        ] {
            let said = guarantee_within(Some(provider), Some(&times))
                .limits
                .into_iter()
                .find(|limit| limit.contains("may then appear"));
            assert_eq!(said.is_some(), wanted.is_some(), "{name}: {said:?}");
            let (said, wanted) = (said.unwrap_or_default(), wanted.unwrap_or_default());
            assert!(said.contains(wanted), "{name}: {said}");
            assert_eq!(
                said.contains("It lives until it ends by itself or a person stops it"),
                !wanted.is_empty(),
                "{name}: {said}"
            );
            assert_eq!(
                said.contains("the sweep, every 1m0s, reports it"),
                provider.list && !provider.conditional_writes,
                "{name}: {said}"
            );
            assert_eq!(said.contains("no sweep finds it"), provider.plain_protocol, "{name}: {said}");
        }
    }

    #[test]
    fn what_is_missing_is_said_and_a_provider_that_has_all_has_no_limits() {
        let all = RemoteProvider {
            keyed_create: true,
            find: true,
            list: true,
            conditional_writes: true,
            retained_exit_results: true,
            seal: true,
            ..RemoteProvider::default()
        };
        assert_eq!(guarantee(Some(&all)).limits, Vec::<String>::new());
        let without = |change: fn(&mut RemoteProvider)| {
            let mut p = all.clone();
            change(&mut p);
            guarantee(Some(&p)).limits
        };
        for (limits, part) in [
            (without(|p| p.keyed_create = false), "nothing is created until"),
            (without(|p| p.seal = false), "the sweep reports it"),
            (without(|p| p.conditional_writes = false), "cannot refuse it"),
            (without(|p| p.retained_exit_results = false), "counts as failed"),
            (without(|p| p.list = false), "not found by the sweep"),
        ] {
            assert_eq!(limits.len(), 1, "{limits:?}");
            assert!(limits[0].contains(part), "{limits:?}");
        }
        let plain = without(|p| p.plain_protocol = true);
        assert_eq!(plain.len(), 5, "whatever else a plain driver claims: {plain:?}");
        assert!(plain.iter().all(|l| !l.contains("the sweep reports it")), "{plain:?}");
    }
}
