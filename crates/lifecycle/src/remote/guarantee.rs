//! What is promised of a remote task: a function of what its provider can do, with the reasons.

use model::{
    node::RemoteProvider,
    remote::{Guarantee, GuaranteeLevel},
};

/// What is promised, from what a node has said of the provider; None = no node that reaches it has said anything.
#[must_use]
pub fn guarantee(provider: Option<&RemoteProvider>) -> Guarantee {
    let Some(p) = provider else {
        return Guarantee { reason: "no node that reaches the provider has told what it can do".to_owned(), ..Guarantee::default() };
    };
    let (level, reason) = if p.plain_protocol {
        (
            GuaranteeLevel::HandleOnly,
            "the driver speaks the plain driver protocol only: an instance is found again by its handle and by nothing else",
        )
    } else if p.keyed_create {
        (GuaranteeLevel::ExactlyOne, "the provider creates by key: repeating a create gives the same instance")
    } else if p.find || p.list {
        (
            GuaranteeLevel::ExactlyOneBySearch,
            "the provider finds instances by their key: a lost answer is looked up before anything is created",
        )
    } else {
        (GuaranteeLevel::Held, "the provider has neither keyed create nor search: it cannot be asked what a lost create has done")
    };
    Guarantee {
        level,
        exactly_one: level >= GuaranteeLevel::ExactlyOneBySearch,
        fenced: p.conditional_writes && !p.plain_protocol,
        exact_results: p.retained_exit_results && !p.plain_protocol,
        reason: reason.to_owned(),
        limits: limits(p, level),
    }
}

/// What a person should know before relying on it.
fn limits(p: &RemoteProvider, level: GuaranteeLevel) -> Vec<String> {
    let plain = p.plain_protocol;
    let rules = [
        (
            level < GuaranteeLevel::ExactlyOneBySearch,
            "after a create whose answer was lost the task is held as unknown, and what was created is known to nobody: a person looks there and \
             decides (remote gone)",
        ),
        (
            level == GuaranteeLevel::ExactlyOneBySearch,
            "after a create whose answer was lost nothing is created until the instance appears or a person says that there is none (remote gone)",
        ),
        (plain || (!p.seal && p.list), "a create that arrives after its stop was confirmed leaves an instance; the sweep reports it"),
        (!plain && !p.seal && !p.list, "a create that arrives after its stop was confirmed leaves an instance that no sweep finds"),
        (
            plain || !p.conditional_writes,
            "a call that was under way when its manager lost the lease may take effect late: the provider cannot refuse it",
        ),
        (
            plain || !p.retained_exit_results,
            "the exit code of a task that ends while no node manages it may be lost; it then counts as failed",
        ),
        (plain || !p.list, "instances are not listed: what no record knows is not found by the sweep"),
    ];
    // The sweep needs a list, which the plain protocol has not.
    let told = |text: &str| if plain { text.replace("; the sweep reports it", " that no sweep finds") } else { text.to_owned() };
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

    #[test]
    fn promises_follow_from_what_the_provider_can_do() {
        for (g, level, exactly_one) in [
            (guarantee(None), GuaranteeLevel::Unknown, false),
            (with(|_| {}), GuaranteeLevel::Held, false),
            (with(|p| p.list = true), GuaranteeLevel::ExactlyOneBySearch, true),
            (with(|p| p.find = true), GuaranteeLevel::ExactlyOneBySearch, true),
            (with(|p| p.keyed_create = true), GuaranteeLevel::ExactlyOne, true),
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
        }
        assert!(with(|p| p.conditional_writes = true).fenced && with(|p| p.retained_exit_results = true).exact_results);
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
