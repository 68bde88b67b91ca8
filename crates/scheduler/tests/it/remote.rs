//! Tasks that run elsewhere: slots, providers, pools.

use std::sync::Arc;

use model::{AllocId, Allocation, ClientStatus, IncarnationId, Job, Observed, RemoteTask, remote::RemoteVerdict};
use state::Change;

use crate::world::{World, batch, id_of, node_id, record, service, slot};

fn remote_job(count: i32) -> Job {
    let mut job = service(count);
    job.task_groups[0].tasks[0].driver = "ecs".into();
    job
}

/// Why a plan that was made on an older state, with one allocation more, is refused.
fn one_more(w: &mut World, differs: impl FnOnce(&mut Allocation)) -> Option<String> {
    let eval = w.eval();
    let mut plan = scheduler::schedule(&w.state, &eval, w.now, 3).expect("a service").plan;
    let mut extra = Allocation { id: AllocId(id_of("extra")), ..Allocation::clone(&w.at(0)) };
    differs(&mut extra);
    let node = extra.node_id;
    plan.placements.insert(node, vec![extra]);
    scheduler::verify_plan(&w.state, &plan).refused.remove(&node)
}

#[test]
fn a_remote_task_costs_its_node_nothing() {
    let w = World::with("n1 cpu=100 mem=100 disk=0 driver=ecs:a:1-1:0:0", &remote_job(50));
    assert_eq!(w.live().len(), 50);
    let u = w.state.usage(node_id("n1"));
    assert_eq!((u.cpu, u.memory_mb, u.disk_mb), (0, 0, 0));
    let a = w.at(0);
    assert!(a.resources.tasks["t"].remote);
    assert_eq!(a.resources.tasks["t"].cpu.cpu_shares, 500, "what it needs at the provider is on record");
}

#[test]
fn sessions_are_shared_out() {
    let w = World::with("n1 driver=ecs:a:1-1:0:0\nn2 driver=ecs:a:1-1:0:0\nn3 driver=ecs:a:1-1:0:0", &remote_job(9));
    assert_eq!(w.by_node().values().copied().collect::<Vec<_>>(), [3, 3, 3]);
}

#[test]
fn a32_local_jobs_that_fill_every_manager_neither_block_remote_tasks_nor_are_touched_by_them() {
    let mut w = World::new(
        "n1 cpu=1000 driver=ecs:a:1-1:0:0\nn2 cpu=2000 driver=ecs:a:1-1:0:0\nn3 cpu=500 driver=ecs:a:1-1:0:0",
    );
    let mut local = service(7);
    local.id = "local".into();
    local.name = "local".into();
    w.submit_as(&local);
    let full = w.by_node_of("local");
    assert_eq!(full.values().sum::<usize>(), 7, "2 + 4 + 1 of 500 MHz: every manager is full");
    // More than one job, and one after the other: what counts is how many each node manages, not which job they are of.
    for job in ["a", "b", "c"] {
        let mut remote = remote_job(3);
        remote.id = job.into();
        remote.name = job.into();
        remote.priority = 90;
        let d = w.submit_as(&remote);
        assert!(d.plan.stops.is_empty() && d.failed_groups.is_empty(), "{d:?}");
    }
    for n in ["n1", "n2", "n3"] {
        assert_eq!(w.state.usage(node_id(n)).sessions, 3, "{n}");
    }
    assert_eq!(w.by_node_of("local"), full);
    // A node that has less than its tasks take manages as before.
    w.node("n3 cpu=100 driver=ecs:a:1-1:0:0");
    let mut remote = remote_job(3);
    remote.id = "d".into();
    w.submit_as(&remote);
    assert_eq!(w.state.usage(node_id("n3")).sessions, 4);
}

#[test]
fn a_node_manages_no_more_than_its_sessions() {
    let mut w = World::new("n1 sessions=2 driver=ecs:a:1-1:0:0\nn2 sessions=3 driver=ecs:a:1-1:0:0");
    let d = w.submit(&remote_job(7));
    assert_eq!(Vec::from_iter(w.by_node()), [("n1".to_owned(), 2), ("n2".to_owned(), 3)]);
    assert_eq!(d.failed_groups["g"].dimension_exhausted.get("remote sessions"), Some(&2));
    assert_eq!(d.queued["g"], 2);
    // What lives is bound by it as well: it stays where it is, unmanaged, until somebody has a session.
    w.manage();
    w.down("n2");
    let d = w.run();
    assert_eq!(d.queued["g"], 5, "{d:?}");
    w.node("n3 driver=ecs:a:1-1:0:0");
    w.run();
    assert_eq!(Vec::from_iter(w.by_node()), [("n1".to_owned(), 2), ("n3".to_owned(), 5)], "without a limit");
    // A plan that was made on an older state is refused.
    let refused = one_more(&mut w, |extra| extra.node_id = node_id("n1"));
    assert_eq!(refused.as_deref(), Some("not enough remote sessions: 3 of 2 would be taken"));
}

#[test]
fn a_node_takes_no_more_allocations_than_its_operator_allows() {
    let mut w = World::new("n1 max_allocs=2 driver=ecs:a:1-1:0:0\nn2 max_allocs=3 driver=ecs:a:1-1:0:0");
    let d = w.submit(&remote_job(7));
    assert_eq!(Vec::from_iter(w.by_node()), [("n1".to_owned(), 2), ("n2".to_owned(), 3)]);
    assert_eq!(d.failed_groups["g"].dimension_exhausted.get("max allocation exceeded"), Some(&2));
    assert_eq!(d.queued["g"], 2);
    // A plan that was made on an older state is refused.
    let refused = one_more(&mut w, |extra| extra.node_id = node_id("n1"));
    assert_eq!(refused.as_deref(), Some("not enough room for allocations: 3 of 2 would be taken"));
}

#[test]
fn only_the_same_provider_and_schema_can_take_over() {
    let mut w = World::with("n1 driver=ecs:a:1-2:0:0", &remote_job(1));
    w.manage_with(2);
    let old = w.at(0);
    for other in ["n2 driver=ecs:b:1-2:0:0", "n3 driver=ecs:a:1-1:0:0", "n4"] {
        w.node(other);
    }
    w.down("n1");
    let d = w.run();
    assert_eq!(w.show(), "", "no capable node");
    let reasons = &d.failed_groups["g"].constraint_filtered;
    assert_eq!(
        reasons.get("remote task \"t\" runs at provider \"a\", which driver ecs does not reach"),
        Some(&1),
        "{reasons:?}"
    );
    assert_eq!(
        reasons.get("remote task \"t\" has a handle of schema 2; driver ecs reads 1 to 1"),
        Some(&1),
        "{reasons:?}"
    );
    assert_eq!(reasons.get("missing drivers: ecs"), Some(&1));
    assert!(w.blocked()[0].escaped_computed_class, "what fits depends on the instance, not on the class alone");
    w.node("n5 driver=ecs:a:2-3:0:0");
    w.run();
    let new = w.at(0);
    assert_eq!(&*new.node_name, "n5");
    assert_eq!(new.name, old.name);
    assert_eq!(new.remote.get("t"), Some(&IncarnationId(id_of("incarnation of 0"))), "the instance is carried over");
}

#[test]
fn a_drain_moves_all_remote_tasks_at_once() {
    let mut w = World::with("n1 driver=ecs:a:1-1:0:0", &remote_job(20));
    w.manage();
    w.node("n2 driver=ecs:a:1-1:0:0");
    w.drain("n1");
    let d = w.run();
    assert_eq!(d.annotations["g"].migrate, 20, "nobody has to mark them");
    assert_eq!(Vec::from_iter(w.by_node()), [("n2".to_owned(), 20)]);
    assert!(w.live().iter().all(|a| a.remote.len() == 1 && !a.previous_allocation.is_nil()));
}

#[test]
fn without_room_they_run_on_unmanaged() {
    let mut w = World::with("n1 driver=ecs:a:1-1:0:0", &remote_job(2));
    w.manage();
    w.drain("n1");
    let d = w.run();
    assert_eq!(d.plan.stops.len(), 2, "the drain completes");
    assert!(d.plan.stops[0].description.contains("unmanaged"), "{}", d.plan.stops[0].description);
    assert_eq!(d.queued["g"], 2);
    assert_eq!(w.blocked().len(), 1);
    w.node("n2 driver=ecs:a:1-1:0:0");
    w.run();
    assert_eq!(w.show(), "0:n2:v0 1:n2:v0");
    assert!(w.live().iter().all(|a| a.remote.len() == 1));
}

#[test]
fn a_batch_that_was_let_go_of_is_not_done() {
    let mut w = World::new("n1 driver=ecs:a:1-1:0:0");
    let mut job = batch(1);
    job.task_groups[0].tasks[0].driver = "ecs".into();
    w.submit(&job);
    w.manage();
    let first = w.at(0).id;
    w.drain("n1");
    w.run();
    // What a node reports of an allocation that it has let go of: its tasks are dead there, and none failed.
    w.report(first, ClientStatus::Complete, None);
    w.node("n2 driver=ecs:a:1-1:0:0");
    w.run();
    assert_eq!(w.show(), "0:n2:v0", "its instance runs on: somebody has to manage it");
    assert_eq!(w.at(0).remote.len(), 1, "the instance is carried over");
    // The next manager is lost; the first one's report must not count as the end either.
    w.manage();
    w.node("n3 driver=ecs:a:1-1:0:0");
    w.down("n2");
    w.run();
    assert_eq!(w.show(), "0:n3:v0");
    // Its good end under the last one counts once, and stays so on a drain.
    w.manage();
    let last = w.at(0).id;
    for r in w.state.clone().remote_tasks() {
        let mut r = RemoteTask::clone(r);
        r.observed = Observed::Exited { code: 0, signal: 0, oom_killed: false, reason: "".into(), at: 1 };
        r.verdict = RemoteVerdict::Complete;
        w.apply(vec![Change::PutRemoteTask(Box::new(r))]);
    }
    w.report(last, ClientStatus::Complete, None);
    w.node("n4 driver=ecs:a:1-1:0:0");
    w.drain("n3");
    let d = w.run();
    assert!(d.plan.placements.is_empty(), "{d:?}");
}

#[test]
fn a_batch_whose_node_was_lost_before_its_create_is_not_done() {
    let mut w = World::new("n1 driver=ecs:a:1-1:0:0");
    let mut job = batch(1);
    job.task_groups[0].tasks[0].driver = "ecs".into();
    w.submit(&job);
    let first = w.at(0).id;
    w.down("n1");
    w.run();
    // The node comes back and has nothing of it: dead, and not failed.
    w.report(first, ClientStatus::Complete, None);
    w.node("n2 driver=ecs:a:1-1:0:0");
    w.run();
    assert_eq!(w.show(), "0:n2:v0");
}

#[test]
fn a_slot_that_lives_is_filled_before_others() {
    let mut w = World::with("n1 driver=ecs:a:1-1:0:0", &remote_job(4));
    w.manage();
    w.down("n1");
    w.run();
    // Slot 2 lives on; the others have ended meanwhile.
    for r in w.state.clone().remote_tasks().filter(|r| r.slot.index != 2) {
        let mut r = RemoteTask::clone(r);
        r.observed = Observed::Gone;
        w.apply(vec![Change::PutRemoteTask(Box::new(r))]);
    }
    w.node("n2 driver=ecs:a:1-1:0:0");
    let mut job = remote_job(1);
    job.task_groups[0].count = Some(3);
    let d = w.submit(&job);
    let first = d.plan.placements.values().flatten().next().expect("placed");
    assert_eq!(first.index(), 2);
}

#[test]
fn providers_are_packed_when_they_say_what_they_have() {
    let pool = "driver=ecs:a:1-1:1200:100000";
    let mut w = World::new(&format!("n1 {pool}\nn2 {pool}"));
    let d = w.submit(&remote_job(3));
    assert_eq!((w.live().len(), d.queued["g"]), (2, 1), "1200 MHz for both nodes together");
    assert_eq!(d.failed_groups["g"].dimension_exhausted.get("cpu of provider a"), Some(&2));
    // An instance that is there already needs no further room.
    w.manage();
    let lost = w.at(0).node_name.clone();
    w.down(&lost);
    w.run();
    assert_eq!(w.live().len(), 2);
    // And a plan that would exceed it is refused.
    assert_eq!(one_more(&mut w, |extra| extra.remote.clear()).as_deref(), Some("not enough cpu of provider a"));
}

#[test]
fn local_and_remote_tasks_of_one_group() {
    let mut w = World::new("n1 driver=ecs:a:1-1:0:0\nn2 driver=ecs:a:1-1:0:0");
    let mut job = remote_job(1);
    let mut local = job.task_groups[0].tasks[0].clone();
    local.name = "side".into();
    local.driver = "mock".into();
    job.task_groups[0].tasks.push(local);
    w.submit(&job);
    let a = w.at(0);
    assert_eq!(w.state.usage(a.node_id).cpu, 500, "only the local one");
    assert_eq!(a.resources.shared.disk_mb, 300);
    w.manage();
    w.drain(&a.node_name);
    w.run();
    assert_ne!(w.at(0).node_name, a.node_name);
    assert!(
        Arc::ptr_eq(w.at(0).job.as_ref().expect("linked"), w.state.job(&crate::world::key()).expect("there"))
            || w.at(0).job.is_some()
    );
}

#[test]
fn a_halted_roll_out_does_not_leave_instances_unmanaged() {
    let mut w = World::with("n1 driver=ecs:a:1-1:0:0", &crate::world::rolling(remote_job(2), 1));
    w.manage();
    let id = w.state.latest_deployment(&crate::world::key()).expect("there is one").id;
    let failed =
        model::plan::DeploymentUpdate { id, status: model::DeploymentStatus::Failed, description: String::new() };
    w.apply(vec![Change::DeploymentStatus(failed)]);
    w.drain("n1");
    w.run();
    assert_eq!(w.show(), "");
    w.node("n2 driver=ecs:a:1-1:0:0");
    w.run();
    assert_eq!(w.show(), "0:n2:v0 1:n2:v0");
}

mod histories {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        Node(u8, u8),
        Down(u8),
        Drain(u8),
        Count(i32),
        Env(u8),
        Run,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (0..5_u8, 0..2_u8).prop_map(|(n, p)| Event::Node(n, p)),
            2 => (0..5_u8).prop_map(Event::Down),
            2 => (0..5_u8).prop_map(Event::Drain),
            1 => (0..6_i32).prop_map(Event::Count),
            1 => (0..2_u8).prop_map(Event::Env),
            3 => Just(Event::Run),
        ]
    }

    proptest! {
        #![proptest_config(crate::world::cases(96))]

        /// One live allocation per slot, always at the provider where its instance is; whatever can be managed is, at
        /// once.
        #[test]
        fn slots_and_their_managers(events in prop::collection::vec(event(), 1..25)) {
            let mut w = World::new("n0 driver=ecs:p0:1-1:0:0\nn1 driver=ecs:p1:1-1:0:0");
            let (mut count, mut env) = (3, 0);
            let mut job = remote_job(count);
            w.register(&job);
            for e in &events {
                match e {
                    Event::Node(n, p) => {
                        w.node(&format!("n{n} driver=ecs:p{p}:1-1:0:0"));
                        let id = node_id(&format!("n{n}"));
                        w.apply(vec![Change::NodeDrain { id, drain: None, mark_eligible: true, last_drain: None,
                            event: None }]);
                    }
                    Event::Down(n) => w.down(&format!("n{n}")),
                    Event::Drain(n) => w.drain(&format!("n{n}")),
                    Event::Count(c) => count = *c,
                    Event::Env(e) => env = *e,
                    Event::Run => {
                        for a in w.live() {
                            let node = w.state.node(a.node_id).expect("there");
                            let provider = node.drivers["ecs"].remote.as_ref().expect("remote").provider.clone();
                            let slot = slot(a.index());
                            if w.state.remote_task(&slot).is_none_or(|r| r.observed.ended()) {
                                let r = RemoteTask {
                                    provider: provider.into(),
                                    driver: "ecs".into(),
                                    observed: Observed::Running,
                                    job_version: a.job_version,
                                    ..record(slot)
                                };
                                w.apply(vec![Change::PutRemoteTask(Box::new(r))]);
                            }
                        }
                    }
                }
                job.task_groups[0].count = Some(count);
                job.task_groups[0].tasks[0].env.insert("E".into(), env.to_string());
                w.register(&job);
                let before: std::collections::BTreeSet<_> = w.live().iter().map(|a| a.id).collect();
                w.run();
                prop_assert!(w.run().plan.is_no_op(), "after {e:?}");
                let live = w.live();
                let names: std::collections::BTreeSet<_> = live.iter().map(|a| a.name.clone()).collect();
                prop_assert_eq!(names.len(), live.len());
                for a in &live {
                    let node = w.state.node(a.node_id).expect("there");
                    prop_assert!(node.drain.is_none(), "nothing remote stays on a draining node");
                    let slot = slot(a.index());
                    if let Some(r) = w.state.remote_task(&slot).filter(|_| !before.contains(&a.id)) {
                        prop_assert_eq!(&node.drivers["ecs"].remote.as_ref().expect("remote").provider, &r.provider);
                        prop_assert_eq!(a.remote.get("t"), Some(&r.incarnation));
                    }
                }
                // What is not managed has no capable node.
                let covered: std::collections::BTreeSet<_> = live.iter().map(|a| a.index()).collect();
                for r in w.state.remote_tasks().filter(|r| r.slot.index < count as u32
                    && !covered.contains(&r.slot.index)) {
                    let capable = w.state.nodes().any(|n| {
                        n.ready() && n.drivers.get("ecs").and_then(|d| d.remote.as_ref()).is_some_and(|p| p.provider ==
                            r.provider)
                    });
                    prop_assert!(!capable, "slot {} could be managed", r.slot);
                }
            }
        }
    }
}
