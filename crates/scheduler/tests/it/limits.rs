//! Limits of a namespace: what its jobs may use together.

use std::collections::BTreeSet;

use model::{
    ClientStatus, Evaluation, Job, Namespace,
    alloc::DesiredTransition,
    ids::JobId,
    plan::Decision,
    records::{NamespaceLimits, NamespaceRecord, NamespaceUse},
};
use proptest::prelude::*;
use state::Change;

use crate::world::{World, rolling, service};

fn limited(limits: NamespaceLimits) -> NamespaceRecord {
    NamespaceRecord { name: "default".into(), limits: Some(limits), ..NamespaceRecord::default() }
}

fn limit(w: &mut World, limits: NamespaceLimits) {
    w.apply(vec![Change::PutNamespace(limited(limits))]);
}

fn named(mut job: Job, name: &str) -> Job {
    job.id = JobId::from(name);
    job
}

fn in_use(w: &World) -> NamespaceUse {
    w.state.namespace_use(&Namespace::from("default"))
}

/// Counted anew.
fn counted(w: &World) -> NamespaceUse {
    let live = w.state.allocs().filter(|a| !a.terminal());
    live.fold(NamespaceUse::default(), |sum, a| sum.plus(&NamespaceUse::of(&a.resources), 1))
}

fn reasons(decision: &Decision) -> Vec<&str> {
    decision.failed_groups.values().flat_map(|m| &m.quota_exhausted).map(String::as_str).collect()
}

#[test]
fn each_limit_holds_and_is_told() {
    for (limits, placed, said) in [
        (
            NamespaceLimits { allocations: Some(2), ..NamespaceLimits::default() },
            2,
            "allocations of namespace default: 2 of 2 in use, 1 more asked for",
        ),
        (
            NamespaceLimits { cpu: Some(1700), ..NamespaceLimits::default() },
            3,
            "cpu of namespace default: 1500 of 1700 MHz in use, 500 more asked for",
        ),
        (
            NamespaceLimits { memory_mb: Some(256), ..NamespaceLimits::default() },
            1,
            "memory of namespace default: 256 of 256 MiB in use, 256 more asked for",
        ),
        (
            NamespaceLimits { cpu: Some(0), ..NamespaceLimits::default() },
            0,
            "cpu of namespace default: 0 of 0 MHz in use, 500 more asked for",
        ),
    ] {
        let mut w = World::new("n1\nn2");
        limit(&mut w, limits);
        let decision = w.submit(&service(4));
        assert_eq!((w.live().len(), reasons(&decision).as_slice()), (placed, [said].as_slice()));
        let blocked = w.blocked();
        assert_eq!((blocked.len(), blocked[0].limit_reached.as_str()), (1, "default"), "it waits for the namespace");
        assert_eq!(blocked[0].failed_groups["g"].coalesced_failures, 3 - i64::try_from(placed).expect("few"));
        assert_eq!(in_use(&w), counted(&w));
    }
    // None is hit: nothing says so, and what waits for a node waits for no limit.
    let mut w = World::new("n1 cpu=600");
    limit(&mut w, NamespaceLimits { allocations: Some(9), ..NamespaceLimits::default() });
    let decision = w.submit(&service(2));
    assert!(reasons(&decision).is_empty() && w.blocked()[0].limit_reached.is_empty());
}

#[test]
fn remote_tasks_are_counted_and_what_runs_already_is_adopted() {
    let remote = |count| {
        let mut job = service(count);
        job.task_groups[0].tasks[0].driver = "ecs".into();
        job
    };
    let mut w = World::new("n1 driver=ecs:a:1-3:0:0\nn2 driver=ecs:a:1-3:0:0");
    limit(&mut w, NamespaceLimits { remote_tasks: Some(1), ..NamespaceLimits::default() });
    let decision = w.submit(&remote(2));
    assert_eq!(
        reasons(&decision),
        ["remote_tasks of namespace default: 1 of 1 in use, 1 more asked for"],
        "{:?}",
        w.show()
    );
    assert_eq!(in_use(&w), NamespaceUse { allocations: 1, cpu: 500, memory_mb: 256, remote_tasks: 1 });
    // Its node goes, and the limit has been lowered: another node takes the instance over.
    w.manage();
    limit(&mut w, NamespaceLimits { remote_tasks: Some(0), ..NamespaceLimits::default() });
    let node = w.live()[0].node_name.clone();
    w.down(&node);
    w.run();
    let now = w.live();
    assert!(now.len() == 1 && now[0].node_name != node && !now[0].remote.is_empty(), "{}", w.show());
}

#[test]
fn a_replacement_needs_no_more_room_than_it_leaves() {
    let mut w = World::new("n1\nn2");
    limit(&mut w, NamespaceLimits { allocations: Some(2), ..NamespaceLimits::default() });
    w.submit(&service(2));
    // Somebody lowers the limit: what runs goes on, and may be replaced.
    limit(&mut w, NamespaceLimits { allocations: Some(1), ..NamespaceLimits::default() });
    let old = w.at(0);
    w.mark(old.id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    let decision = w.run();
    assert!(w.at(0).id != old.id && decision.failed_groups.is_empty(), "it was moved");
    let decision = w.submit(&service(3));
    assert_eq!((w.live().len(), reasons(&decision).len()), (2, 1), "nothing is added");
}

#[test]
fn two_plans_for_the_same_room_of_a_namespace() {
    let mut w = World::new("n1\nn2");
    limit(&mut w, NamespaceLimits { memory_mb: Some(300), ..NamespaceLimits::default() });
    w.register(&service(1));
    w.register(&named(service(1), "api"));
    let (a, b) = (w.eval(), Evaluation { job_id: "api".into(), ..w.eval() });
    let first = scheduler::schedule(&w.state, &a, w.now, 1).expect("a service").plan;
    let second = scheduler::schedule(&w.state, &b, w.now, 2).expect("a service").plan;
    w.apply(vec![Change::ApplyPlan(Box::new(first))]);
    let verified = scheduler::verify_plan(&w.state, &second);
    let why: Vec<&String> = verified.refused.values().collect();
    assert_eq!(why, ["memory of namespace default: 256 of 300 MiB in use, 256 more asked for"]);
    assert!(verified.plan.placements.is_empty());
}

#[test]
fn a_refused_replacement_takes_its_room_back() {
    let mut w = World::new("n1\nn2\nn3");
    limit(&mut w, NamespaceLimits { allocations: Some(2), ..NamespaceLimits::default() });
    w.submit(&service(1));
    let old = w.at(0);
    // The plan moves one allocation and adds another, on different nodes.
    w.mark(old.id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    w.register(&service(2));
    let eval = w.eval();
    let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a service").plan;
    let target = plan.placements.iter().find(|(_, l)| l.iter().any(|a| a.previous_allocation == old.id));
    let (target, other) = (*target.expect("it is moved").0, plan.placements.keys().copied().collect::<BTreeSet<_>>());
    assert_eq!(other.len(), 2, "on two nodes");
    // Another job takes the last place meanwhile, and the target goes.
    w.submit_as(&named(service(1), "api"));
    w.apply(vec![Change::DeleteNode(target)]);
    let verified = scheduler::verify_plan(&w.state, &plan);
    assert_eq!(verified.refused.len(), 2, "{:?}", verified.refused);
    assert!(verified.plan.is_no_op(), "the old one stays: there is no room beside it");
}

#[test]
fn what_waits_goes_on_when_there_is_room() {
    let mut w = World::new("n1\nn2");
    limit(&mut w, NamespaceLimits { cpu: Some(1000), ..NamespaceLimits::default() });
    w.submit_as(&named(service(1), "api"));
    w.submit(&service(2));
    assert_eq!(w.live().len(), 1);
    let waiting = w.blocked()[0].clone();
    let api: Vec<_> = w.state.allocs().filter(|a| a.job_id.as_str() == "api").map(|a| a.id).collect();
    w.report(api[0], ClientStatus::Complete, None);
    let decision = w.run_eval(&Evaluation { status: model::EvalStatus::Pending, ..Evaluation::clone(&waiting) });
    assert_eq!((w.live().len(), decision.failed_groups.len()), (2, 0));
    assert!(w.blocked().is_empty());
    assert!(w.state.eval(waiting.id).expect("it is kept").limit_reached.is_empty(), "it waits for nothing");
}

/// What happens to a namespace between the plans of several workers.
#[derive(Clone, Debug)]
enum Event {
    Count {
        job: u8,
        count: u8,
    },
    Change(u8),
    End(u8),
    Move(u8),
    Limit {
        allocations: Option<u8>,
        cpu: Option<u16>,
        memory: Option<u16>,
    },
    Down(u8),
    /// So many workers schedule on the same state; their plans are committed one after the other.
    Plans(Vec<u8>),
}

fn event() -> impl Strategy<Value = Event> {
    let limits = (prop::option::of(0..8_u8), prop::option::of(0..4000_u16), prop::option::of(0..2000_u16));
    prop_oneof![
        3 => (0..3_u8, 0..5_u8).prop_map(|(job, count)| Event::Count { job, count }),
        1 => (0..3_u8).prop_map(Event::Change),
        2 => any::<u8>().prop_map(Event::End),
        1 => any::<u8>().prop_map(Event::Move),
        2 => limits.prop_map(|(allocations, cpu, memory)| Event::Limit { allocations, cpu, memory }),
        1 => (0..4_u8).prop_map(Event::Down),
        5 => prop::collection::vec(0..3_u8, 1..4).prop_map(Event::Plans),
    ]
}

const NAMES: [&str; 3] = ["web", "api", "db"];

fn of(job: u8, count: u8, version: u8) -> Job {
    let mut job_of = named(service(i32::from(count)), NAMES[usize::from(job)]);
    job_of.task_groups[0].tasks[0].env.insert("V".into(), version.to_string());
    job_of.task_groups[0].tasks[0].resources.cpu = Some(300 + 200 * i64::from(job));
    if job == 1 { rolling(job_of, 1) } else { job_of }
}

proptest! {
    #![proptest_config(crate::world::cases(200))]

    #[test]
    fn no_sequence_of_plans_takes_a_namespace_beyond_its_limits(events in prop::collection::vec(event(), 1..40)) {
        let mut w = World::new("n0\nn1\nn2\nn3");
        let mut limits = NamespaceLimits { allocations: Some(4), ..NamespaceLimits::default() };
        limit(&mut w, limits);
        let mut jobs = [(2_u8, 0_u8); 3];
        let mut seed = 0;
        for job in 0..3 {
            w.register(&of(job, 2, 0));
        }
        for event in events {
            let live: Vec<_> = w.state.allocs().filter(|a| !a.terminal()).map(|a| a.id).collect();
            let pick = |n: u8| (!live.is_empty()).then(|| live[usize::from(n) % live.len()]);
            match event {
                Event::Count { job, count } => {
                    jobs[usize::from(job)].0 = count;
                    w.register(&of(job, count, jobs[usize::from(job)].1));
                }
                Event::Change(job) => {
                    let (count, version) = &mut jobs[usize::from(job)];
                    *version += 1;
                    w.register(&of(job, *count, *version));
                }
                Event::End(n) => if let Some(id) = pick(n) {
                    w.report(id, ClientStatus::Failed, None);
                },
                Event::Move(n) => if let Some(id) = pick(n) {
                    w.mark(id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
                },
                Event::Limit { allocations, cpu, memory } => {
                    limits = NamespaceLimits {
                        allocations: allocations.map(Into::into),
                        cpu: cpu.map(Into::into),
                        memory_mb: memory.map(Into::into),
                        remote_tasks: None,
                    };
                    limit(&mut w, limits);
                }
                Event::Down(n) => {
                    w.down(&format!("n{n}"));
                    w.node(&format!("n{}", (n + 1) % 4));
                }
                Event::Plans(of) => {
                    let plans: Vec<_> = of.iter().map(|job| {
                        seed += 1;
                        let eval = Evaluation { job_id: NAMES[usize::from(*job)].into(), ..w.eval() };
                        scheduler::schedule(&w.state, &eval, w.now, seed).expect("a service").plan
                    }).collect();
                    for plan in plans {
                        let before = in_use(&w);
                        let verified = scheduler::verify_plan(&w.state, &plan);
                        w.apply(vec![Change::ApplyPlan(Box::new(verified.plan))]);
                        let after = in_use(&w);
                        for (what, _, limit, (before, after)) in limits.each(&before, &after) {
                            prop_assert!(after <= limit.max(before), "{}: {} -> {} of {}", what, before, after, limit);
                        }
                    }
                }
            }
            prop_assert_eq!(in_use(&w), counted(&w));
        }
        // Nothing starves: with room each job gets all that it asks for. A job with deployments waits for its watcher,
        // which is not here.
        w.apply(vec![Change::PutNamespace(NamespaceRecord { name: "default".into(), ..NamespaceRecord::default() })]);
        for n in 0..9 {
            w.node(&format!("m{n}"));
        }
        w.now += 100_000 * crate::world::S;
        for _ in 0..8 {
            for job in NAMES {
                let eval = Evaluation { job_id: job.into(), ..w.eval() };
                w.run_eval(&eval);
            }
            let waiting: Vec<_> = w.state.allocs().filter(|a| !a.terminal()).cloned().collect();
            for a in waiting {
                w.report(a.id, ClientStatus::Running, Some(true));
            }
        }
        for (job, (count, _)) in NAMES.into_iter().zip(jobs).filter(|(job, _)| *job != "api") {
            let placed: usize = w.by_node_of(job).values().sum();
            prop_assert_eq!(placed, usize::from(count), "{}", job);
        }
    }
}

#[test]
fn a_job_that_can_never_run_whole_is_named_with_the_numbers() {
    let nowhere = |_: &str| false;
    let space = |limits| limited(limits);
    let of = |limits: NamespaceLimits, job: &Job| scheduler::limits::never_fits(&space(limits), job, nowhere);
    let cpu = |mhz| NamespaceLimits { cpu: Some(mhz), ..NamespaceLimits::default() };
    assert!(of(cpu(2000), &service(4)).is_empty());
    assert_eq!(
        of(cpu(1999), &service(4)),
        ["it asks for 2000 MHz of cpu, and namespace \"default\" is limited to 1999 MHz"]
    );
    // The allocations of a batch job may run one after the other.
    let mut batch = service(4);
    batch.kind = "batch".into();
    assert!(of(cpu(500), &batch).is_empty());
    assert_eq!(
        of(cpu(499), &batch),
        ["an allocation of group \"g\" asks for 500 MHz of cpu, and namespace \"default\" is limited to 499 MHz"]
    );
    let few = NamespaceLimits { allocations: Some(3), memory_mb: Some(10), ..NamespaceLimits::default() };
    assert_eq!(of(few, &service(4)).len(), 2, "each limit that is exceeded");
    let remote = NamespaceLimits { remote_tasks: Some(0), ..NamespaceLimits::default() };
    assert!(of(remote, &service(1)).is_empty());
    assert_eq!(
        scheduler::limits::never_fits(&space(remote), &service(1), |driver| driver == "mock"),
        ["it asks for 1 of remote_tasks, and namespace \"default\" is limited to 0"]
    );
    assert!(scheduler::limits::never_fits(&NamespaceRecord::default(), &service(9999), nowhere).is_empty());
}
