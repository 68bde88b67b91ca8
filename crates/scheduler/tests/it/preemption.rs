//! Jobs of higher priority displace allocations of lower ones where no node has room.

use model::{
    Allocation, ClientStatus, DesiredStatus, Job, NodeId,
    alloc::AllocClientUpdate,
    eval::Trigger,
    ids::JobId,
    network::{Network, Port},
    policy::Migrate,
    resources::RequestedDevice,
    scheduler_config::PreemptionConfig,
};
use proptest::prelude::*;
use state::Change;

use crate::world::{World, cases, node_id, service};

/// A cluster in which everybody may displace.
fn world(nodes: &str) -> World {
    let mut w = World::new(nodes);
    let preemption_config = PreemptionConfig {
        system_scheduler_enabled: true,
        sys_batch_scheduler_enabled: true,
        batch_scheduler_enabled: true,
        service_scheduler_enabled: true,
    };
    let config = model::SchedulerConfig { preemption_config, ..model::SchedulerConfig::default() };
    w.apply(vec![Change::SetSchedulerConfig(config)]);
    w
}

fn job(id: &str, priority: i32, count: i32, cpu: i32) -> Job {
    let mut job = Job { id: JobId::from(id), priority, ..service(count) };
    job.task_groups[0].tasks[0].resources.cpu = Some(cpu.into());
    job
}

fn of<'a>(w: &'a World, id: &str) -> Vec<&'a Allocation> {
    let all = w.state.allocs().map(|a| &**a).filter(|a| a.job_id.as_str() == id);
    all.collect()
}

fn live(w: &World) -> Vec<&Allocation> {
    w.state.allocs().map(|a| &**a).filter(|a| !a.terminal()).collect()
}

fn evicted(w: &World, id: &str) -> usize {
    of(w, id).iter().filter(|a| a.desired_status == DesiredStatus::Evict).count()
}

#[test]
fn a_full_node_makes_room_for_a_higher_priority_and_the_displaced_job_is_decided_again() {
    let mut w = world("n1 cpu=1000 mem=8000");
    w.submit_as(&job("low", 20, 2, 400));
    let d = w.submit_as(&job("high", 70, 1, 500));
    assert!(d.failed_groups.is_empty() && d.new_evals.is_empty(), "{:?}", d.failed_groups);
    let (new, old) = (of(&w, "high"), of(&w, "low"));
    let gone: Vec<_> = old.iter().filter(|a| a.desired_status == DesiredStatus::Evict).collect();
    assert_eq!((new.len(), gone.len()), (1, 1), "one is enough");
    assert_eq!(new[0].preempted(), [gone[0].id]);
    assert_eq!(gone[0].preempted_by(), new[0].id);
    assert_eq!(*gone[0].desired_description, *format!("Preempted by alloc ID {}", new[0].id));
    let account = new[0].metrics.as_ref().expect("an account");
    let scores = &account.score_meta_data[0].scores;
    assert!(scores.contains_key("preemption"), "{scores:?}");
    assert_eq!(account.dimension_exhausted.iter().collect::<Vec<_>>(), [(&"cpu".to_owned(), &1)], "why one has to go");
    assert_eq!(d.annotations["g"].preemptions, 1);
    let evals = &d.displaced;
    assert_eq!(evals.len(), 1);
    assert_eq!((evals[0].job_id.as_str(), evals[0].priority, evals[0].trigger), ("low", 20, Trigger::Preemption));
    // Its own evaluation finds no room, and displaces nobody in turn.
    w.apply(vec![Change::UpsertEvals(evals.clone())]);
    let again = scheduler::schedule(&w.state, &evals[0], w.now, w.seed).expect("a service");
    assert_eq!((again.queued["g"], again.plan.stops.len()), (1, 0));
}

#[test]
fn nobody_within_ten_of_the_priority_goes_nor_where_it_is_not_switched_on() {
    for (priority, goes) in [(29, 0), (30, 1)] {
        let mut w = world("n1 cpu=1000 mem=8000");
        w.submit_as(&job("low", 20, 2, 400));
        let d = w.submit_as(&job("high", priority, 1, 500));
        assert_eq!((evicted(&w, "low"), d.failed_groups.len()), (goes, 1 - goes), "priority {priority}");
    }
    let mut w = World::new("n1 cpu=1000 mem=8000");
    w.submit_as(&job("low", 20, 2, 400));
    let d = w.submit_as(&job("high", 70, 1, 500));
    assert_eq!((evicted(&w, "low"), d.failed_groups.len()), (0, 1), "services are not switched on");
    // System jobs are, unless somebody says otherwise.
    let mut system = job("everywhere", 70, 1, 500);
    system.kind = "system".into();
    w.submit_as(&system);
    assert_eq!(evicted(&w, "low"), 1);
}

#[test]
fn a_node_with_room_comes_first() {
    let mut w = world("n1 cpu=1000 mem=8000\nn2 cpu=1000 mem=8000");
    w.submit_as(&job("low", 20, 3, 400));
    w.submit_as(&job("high", 70, 1, 500));
    assert_eq!(evicted(&w, "low"), 0);
}

#[test]
fn whoever_holds_a_port_goes_unless_it_may_not() {
    let with_port = |mut job: Job| {
        let port = Port { label: "http".into(), value: 8080, ..Port::default() };
        job.task_groups[0].networks = vec![Network { reserved_ports: vec![port], ..Network::default() }];
        job
    };
    for (priority, goes) in [(20, 1), (65, 0)] {
        let mut w = world("n1 cpu=4000 mem=8000");
        w.submit_as(&with_port(job("holder", priority, 1, 100)));
        w.submit_as(&job("other", 10, 1, 100));
        let d = w.submit_as(&with_port(job("high", 70, 1, 100)));
        assert_eq!((evicted(&w, "holder"), evicted(&w, "other")), (goes, 0), "priority {priority}");
        assert_eq!(d.failed_groups.len(), 1 - goes);
    }
}

#[test]
fn whoever_holds_a_device_goes_unless_it_may_not() {
    let with_device = |mut job: Job, name: &str| {
        let asked = RequestedDevice { name: name.into(), count: Some(1), ..RequestedDevice::default() };
        job.task_groups[0].tasks[0].resources.devices = vec![asked];
        job
    };
    for (priority, goes) in [(20, 1), (65, 0)] {
        let mut w = world("n1 cpu=4000 mem=8000 devices=nvidia/gpu/T4:a devices=amd/gpu/MI50:b");
        w.submit_as(&with_device(job("holder", priority, 1, 100), "nvidia/gpu"));
        w.submit_as(&with_device(job("neighbour", 10, 1, 100), "amd/gpu"));
        w.submit_as(&job("other", 10, 1, 100));
        let d = w.submit_as(&with_device(job("high", 70, 1, 100), "nvidia/gpu"));
        let gone = ["holder", "neighbour", "other"].map(|id| evicted(&w, id));
        assert_eq!((gone, d.failed_groups.len()), ([goes, 0, 0], 1 - goes), "priority {priority}");
        for new in of(&w, "high") {
            assert_eq!(new.resources.tasks["t"].devices[0].device_ids, ["a"]);
            assert_eq!(new.preempted(), [of(&w, "holder")[0].id]);
        }
    }
}

#[test]
fn a_group_that_migrates_one_at_a_time_loses_no_second_while_others_can_go() {
    let mut w = world("n1 cpu=1000 mem=8000\nn2 cpu=1000 mem=8000");
    let mut careful = job("careful", 20, 2, 500);
    careful.task_groups[0].migrate = Some(Migrate { max_parallel: Some(1), ..Migrate::default() });
    careful.task_groups[0].tasks[0].resources.memory_mb = Some(300);
    w.submit_as(&careful);
    w.submit_as(&job("other", 20, 2, 400));
    w.submit_as(&job("high", 70, 2, 400));
    assert_eq!((evicted(&w, "careful") <= 1, evicted(&w, "careful") + evicted(&w, "other")), (true, 2));
}

#[test]
fn what_has_ended_meanwhile_is_not_displaced() {
    let mut w = world("n1 cpu=1000 mem=8000");
    w.submit_as(&job("low", 20, 2, 400));
    w.register(&job("high", 70, 1, 500));
    let eval = model::Evaluation { job_id: JobId::from("high"), priority: 70, ..w.eval() };
    let mut d = scheduler::schedule(&w.state, &eval, w.now, w.seed).expect("a service");
    let gone = d.plan.stops[0].id;
    let ended = AllocClientUpdate { id: gone, client_status: ClientStatus::Failed, ..AllocClientUpdate::default() };
    w.apply(vec![Change::UpdateAllocsFromClient(vec![ended])]);
    scheduler::without_ended(&w.state, &mut d.plan);
    assert!(d.plan.stops.is_empty());
    let new = d.plan.placements.values().flatten().next().expect("it is placed");
    assert!(new.preempted().is_empty());
}

#[test]
fn a_refused_node_keeps_what_was_to_be_displaced() {
    let mut w = world("n1 cpu=1000 mem=8000");
    w.submit_as(&job("low", 20, 2, 400));
    w.register(&job("high", 70, 1, 500));
    let eval = model::Evaluation { job_id: JobId::from("high"), priority: 70, ..w.eval() };
    let d = scheduler::schedule(&w.state, &eval, w.now, w.seed).expect("a service");
    // Somebody else has taken what was free, and what is to be displaced too.
    w.submit_as(&job("first", 90, 1, 900));
    let verified = scheduler::verify_plan(&w.state, &d.plan);
    assert_eq!(verified.refused.keys().copied().collect::<Vec<NodeId>>(), [node_id("n1")]);
    assert!(verified.plan.stops.is_empty() && verified.plan.placements.is_empty());
}

proptest! {
    #![proptest_config(cases(60))]

    /// Whatever is displaced is of a job at least ten below, gives room that was needed, and no node is overfull.
    #[test]
    fn only_lower_priorities_go_and_only_where_they_are_needed(
        nodes in 1..5_usize,
        jobs in prop::collection::vec((1..100_i32, 1..5_i32, 1..9_i32), 1..12),
    ) {
        let lines: Vec<String> = (0..nodes).map(|n| format!("n{n} cpu=1000 mem=8000")).collect();
        let mut w = world(&lines.join("\n"));
        for (n, (priority, count, cpu)) in jobs.iter().enumerate() {
            let before: Vec<_> = live(&w).iter().map(|a| a.id).collect();
            let d = w.submit_as(&job(&format!("job{n}"), *priority, *count, cpu * 100));
            for stop in d.plan.stops.iter().filter(|stop| !stop.preempted_by.is_nil()) {
                let gone = w.state.alloc(stop.id).expect("known");
                prop_assert!(before.contains(&gone.id));
                prop_assert!(gone.job.as_ref().is_some_and(|job| job.priority <= priority - 10));
                prop_assert_eq!(gone.desired_status, DesiredStatus::Evict);
                let by = w.state.alloc(stop.preempted_by).expect("known");
                prop_assert_eq!(by.node_id, gone.node_id);
                prop_assert!(by.preempted().contains(&gone.id));
            }
            for node in 0..nodes {
                let here = live(&w);
                let used: i64 = here.iter().filter(|a| a.node_id == node_id(&format!("n{node}")))
                    .map(|a| a.resources.usage().cpu).sum();
                prop_assert!(used <= 1000, "{used} on n{node}");
            }
        }
    }
}
