//! Charges of a remote task's restart budget, and their causes.

use lifecycle::remote::Event;
use model::Observed;

use crate::{
    scenarios::{manager, running},
    world::{Action, Config, World, node_id},
};

fn causes(w: &World) -> Vec<String> {
    w.records[&0].restart_charges.iter().map(|charge| charge.cause.to_string()).collect()
}

fn managed_by(w: &World) -> usize {
    manager(w, 0).expect("it is managed")
}

fn comes_back(w: &mut World, node: usize) {
    w.nodes[node].draining = false;
    w.come(node);
}

/// All that may happen to a task that does not fail, and each way in which it does, one after the other in one record.
#[test]
fn only_failures_of_the_task_are_charged_and_each_keeps_its_cause_over_hand_overs() {
    type Happens = fn(&mut World);
    let table: &[(&str, Happens, Option<&str>)] = &[
        (
            "its manager is lost",
            |w| {
                let lost = managed_by(w);
                w.lose(lost);
                comes_back(w, lost);
            },
            None,
        ),
        (
            "it fails",
            |w| {
                let at = w.provider.instances.iter().position(|i| i.alive).expect("it runs");
                w.exit(at, 3);
                w.run_as_is();
            },
            Some("exit code 3"),
        ),
        (
            "its manager is cut off, its lease ends",
            |w| {
                let off = managed_by(w);
                w.disconnect(off);
                w.apply(&Action::Lapse(off));
                w.apply(&Action::Expire(off));
                w.run_as_is();
                comes_back(w, off);
            },
            None,
        ),
        (
            "its manager is drained",
            |w| {
                let drained = managed_by(w);
                w.apply(&Action::Drain(drained));
                w.run_as_is();
                comes_back(w, drained);
            },
            None,
        ),
        (
            "agent and plugin are killed and come back",
            |w| {
                let killed = managed_by(w);
                w.crash(killed);
                comes_back(w, killed);
            },
            None,
        ),
        (
            "its check fails, and the manager dies before it has heard of the stop",
            |w| {
                let at = managed_by(w);
                w.apply(&Action::Unhealthy(at, 0));
                while w.records[&0].unhealthy.is_empty() {
                    w.apply(&Action::ToServers(at));
                }
                w.lose(at);
                comes_back(w, at);
            },
            Some("its check fails"),
        ),
        (
            "the provider cannot be asked for a while",
            |w| {
                w.provider.unreachable = true;
                let lost = managed_by(w);
                w.lose(lost);
                w.provider.unreachable = false;
                w.retry_all();
                comes_back(w, lost);
            },
            None,
        ),
        (
            "a person asks for a restart",
            |w| {
                w.apply(&Action::RestartOrder(0));
                w.run_as_is();
            },
            None,
        ),
        (
            "it fails while nobody manages it",
            |w| {
                for n in 0..w.nodes.len() {
                    w.kill_and_expire(n);
                }
                let at = w.provider.instances.iter().position(|i| i.alive).expect("it runs");
                w.exit(at, 4);
                w.run_as_is();
                for n in 0..w.nodes.len() {
                    comes_back(w, n);
                }
            },
            Some("exit code 4"),
        ),
    ];
    let mut w = running(Config { nodes: 3, ..Config::default() });
    let mut expected = Vec::new();
    for (name, happens, cause) in table {
        w.now += 10 * crate::world::SECOND;
        let handovers = w.records[&0].handovers;
        happens(&mut w);
        expected.extend(cause.map(str::to_owned));
        let r = &w.records[&0];
        assert_eq!(causes(&w), expected, "{name}");
        assert_eq!(usize::try_from(r.restarts_in_window), Ok(expected.len()), "{name}: the budget");
        assert!((w.alive(0).len(), &r.observed) == (1, &Observed::Running), "{name}: it goes on: {:?}", r.observed);
        assert!(
            cause.is_some()
                || r.handovers > handovers
                || *name == "a person asks for a restart"
                || name.contains("come back"),
            "{name}"
        );
    }
    let times: Vec<i64> = w.records[&0].restart_charges.iter().map(|charge| charge.time).collect();
    assert!(times.is_sorted_by(|a, b| a < b), "each has its own time: {times:?}");
    w.assert_ok();
}

/// Nobody knows how it has ended. That the provider has none is a failure; that a person says so is not.
#[test]
fn an_instance_that_has_vanished_is_charged_unless_a_person_has_said_so() {
    for declared in [false, true] {
        let mut w = running(Config::default());
        w.provider.unreachable = declared;
        w.provider.instances.clear();
        w.apply(&Action::Observe(0, 0));
        w.run_as_is();
        if declared {
            assert!(matches!(w.records[&0].observed, Observed::Unknown { .. }));
            w.server(0, &Event::DeclareGone { why: "looked at the provider".to_owned() });
            w.provider.unreachable = false;
            w.retry_all();
        }
        w.apply(&Action::Tick(0));
        w.run_as_is();
        let charged = if declared {
            vec![]
        } else {
            vec!["vanished: the provider has no such instance any more and no result of it"]
        };
        assert_eq!(
            (causes(&w), w.records[&0].restarts, w.alive(0).len()),
            (charged.into_iter().map(str::to_owned).collect(), 1, 1)
        );
    }
}

/// A new version has a new budget.
#[test]
fn the_charges_end_with_the_budget_that_they_are_of() {
    let mut w = running(Config::default());
    w.exit(0, 3);
    w.run_as_is();
    assert_eq!(causes(&w), ["exit code 3"]);
    w.apply(&Action::UpdateJob);
    w.run_as_is();
    assert_eq!((w.records[&0].job_version, causes(&w).len()), (2, 0));
    assert_eq!(w.records[&0].manager.map(|m| m.node_id), Some(node_id(managed_by(&w))));
}
