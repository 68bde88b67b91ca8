//! The last check: plans made on old snapshots meet the newest state.

use model::{
    AllocId, ClientStatus, DesiredStatus, EvalId, Plan, RequestedDevice, SchedulerConfig,
    alloc::DesiredTransition,
    network::{Network, Port},
    plan::PlannedStop,
    scheduler_config::PreemptionConfig,
};
use state::Change;

use crate::world::{World, batch, changed, node_id, service};

#[test]
fn two_plans_for_the_same_room() {
    let mut w = World::new("n1 cpu=600");
    w.register(&service(1));
    let (a, b) = (w.eval(), w.eval());
    let first = scheduler::schedule(&w.state, &a, w.now, 1).expect("a service").plan;
    let mut second = scheduler::schedule(&w.state, &b, w.now, 2).expect("a service").plan;
    assert_ne!(
        first.placements[&node_id("n1")][0].id,
        second.placements[&node_id("n1")][0].id,
        "two evaluations make different ids"
    );
    w.apply(vec![Change::ApplyPlan(Box::new(first))]);
    let v = scheduler::verify_plan(&w.state, &second);
    assert_eq!(v.refused[&node_id("n1")], "not enough cpu: 1000 of 600 would be taken");
    assert!(v.plan.placements.is_empty());
    second.placements.clear();
    assert!(scheduler::verify_plan(&w.state, &second).refused.is_empty());
}

#[test]
fn nodes_that_changed_meanwhile() {
    type Happening = fn(&mut World);
    let cases: [(Happening, &str); 4] = [
        (|w| w.down("n1"), "the node is not ready"),
        (|w| w.drain("n1"), "the node is draining"),
        (|w| w.node("n1 ineligible"), "the node is not eligible"),
        (|w| drop(w.apply(vec![Change::DeleteNode(node_id("n1"))])), "the node is not registered any more"),
    ];
    for (change, expect) in cases {
        let mut w = World::new("n1");
        w.register(&service(1));
        let eval = w.eval();
        let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a service").plan;
        change(&mut w);
        assert_eq!(scheduler::verify_plan(&w.state, &plan).refused[&node_id("n1")], expect);
    }
}

#[test]
fn a_refused_replacement_does_not_stop_the_old_one() {
    let mut w = World::with("n1", &service(1));
    let old = w.at(0);
    w.node("n2");
    w.drain("n1");
    w.mark(old.id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    let eval = w.eval();
    let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a service").plan;
    assert_eq!((plan.stops.len(), plan.placements.len()), (1, 1));
    w.down("n2");
    let v = scheduler::verify_plan(&w.state, &plan);
    assert_eq!(v.refused.len(), 1);
    assert!(v.plan.is_no_op());
}

#[test]
fn ports_that_are_taken_meanwhile() {
    let mut w = World::new("n1");
    let mut job = service(1);
    let reserved_ports = vec![Port { label: "http".into(), value: 8080, ..Port::default() }];
    job.task_groups[0].networks = vec![Network { reserved_ports, ..Network::default() }];
    w.register(&job);
    let (a, b) = (w.eval(), w.eval());
    let first = scheduler::schedule(&w.state, &a, w.now, 1).expect("a service").plan;
    let second = scheduler::schedule(&w.state, &b, w.now, 2).expect("a service").plan;
    w.apply(vec![Change::ApplyPlan(Box::new(first))]);
    assert_eq!(scheduler::verify_plan(&w.state, &second).refused[&node_id("n1")], "port http=8080 is taken");
}

#[test]
fn devices_that_are_taken_meanwhile() {
    let mut w = World::new("n1 devices=nvidia/gpu/T4:a");
    let mut job = service(1);
    let asked = RequestedDevice { name: "gpu".into(), count: Some(1), ..RequestedDevice::default() };
    job.task_groups[0].tasks[0].resources.devices = vec![asked];
    w.register(&job);
    let (a, b) = (w.eval(), w.eval());
    let first = scheduler::schedule(&w.state, &a, w.now, 1).expect("a service").plan;
    let second = scheduler::schedule(&w.state, &b, w.now, 2).expect("a service").plan;
    w.apply(vec![Change::ApplyPlan(Box::new(first))]);
    let refused = scheduler::verify_plan(&w.state, &second).refused;
    assert_eq!(refused[&node_id("n1")], "device a of nvidia/gpu/T4 is taken");
}

#[test]
fn all_at_once_is_refused_as_a_whole() {
    let mut w = World::new("n1 cpu=600\nn2 cpu=600");
    let mut job = service(2);
    job.all_at_once = true;
    w.register(&job);
    let eval = w.eval();
    let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a service").plan;
    assert_eq!(plan.placements.len(), 2);
    w.down("n2");
    let v = scheduler::verify_plan(&w.state, &plan);
    assert_eq!(v.refused.len(), 1);
    assert!(v.plan.placements.is_empty());
}

/// What makes room for the rest stays as well.
#[test]
fn of_a_plan_that_is_all_or_nothing_no_stop_is_left() {
    let mut job = service(2);
    job.all_at_once = true;
    let mut w = World::with("n1 cpu=600\nn2 cpu=600", &job);
    job.task_groups[0].name = "h".into();
    w.register(&job);
    let eval = w.eval();
    let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a service").plan;
    assert_eq!((plan.stops.len(), plan.placements.len()), (2, 2));
    w.down("n2");
    let v = scheduler::verify_plan(&w.state, &plan);
    assert!(v.refused.len() == 1 && v.plan.is_no_op(), "{:?}", v.plan);
    assert_eq!(v.plan.eval_id, eval.id);
}

/// A plan has copies of what it leaves where it is. What was ordered since its snapshot is newer than these.
#[test]
fn a_plan_undoes_nothing_that_was_ordered_since_its_snapshot() {
    let marked = DesiredTransition { migrate: Some(true), ..DesiredTransition::default() };
    for evicted in [true, false] {
        let mut w = World::with("n1", &service(1));
        let old = w.at(0);
        let mut changed = service(1);
        changed.priority = 60;
        w.register(&changed);
        let eval = w.eval();
        let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a service").plan;
        assert_eq!(plan.placements[&node_id("n1")][0].id, old.id, "updated in place");
        if evicted {
            let by = AllocId(uuid::Uuid::from_u128(7));
            let stop = PlannedStop {
                id: old.id,
                node_id: old.node_id,
                preempted_by: by,
                description: String::new(),
                client_status: None,
                followup_eval_id: EvalId::NIL,
            };
            let other = Plan { stops: vec![stop], ..Plan::default() };
            w.apply(vec![Change::ApplyPlan(Box::new(other))]);
        } else {
            w.mark(old.id, marked.clone());
        }
        let plan = scheduler::verify_plan(&w.state, &plan).plan;
        w.apply(vec![Change::ApplyPlan(Box::new(plan))]);
        let now = w.state.alloc(old.id).expect("a record");
        match evicted {
            true => assert_eq!(now.desired_status, DesiredStatus::Evict),
            false => assert_eq!((now.desired_status, &now.desired_transition), (DesiredStatus::Run, &marked)),
        }
    }
}

/// A batch job of one allocation, whose node `n1` is down, and a plan to do its work on `n2`.
fn to_be_done_again(nodes: &str) -> (World, AllocId, Plan) {
    let mut w = World::with("n1", &batch(1));
    let old = w.at(0).id;
    w.report(old, ClientStatus::Running, None);
    nodes.lines().for_each(|line| w.node(line));
    w.down("n1");
    let eval = w.eval();
    let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a batch job").plan;
    assert_eq!((plan.stops.len(), plan.stops[0].client_status), (1, Some(ClientStatus::Lost)));
    (w, old, plan)
}

#[test]
fn work_that_was_done_on_a_lost_node_after_all_is_not_done_again() {
    let (mut w, old, plan) = to_be_done_again("n2");
    w.report(old, ClientStatus::Complete, None);
    let v = scheduler::verify_plan(&w.state, &plan);
    assert_eq!(v.refused[&node_id("n2")], "what is to be replaced has done its work");
    assert!(v.plan.is_no_op(), "{:?}", v.plan);
    assert!(w.run().plan.is_no_op(), "nothing is left to do");

    // Without room for another one, only its end is planned.
    let (mut w, old, plan) = to_be_done_again("");
    w.report(old, ClientStatus::Complete, None);
    let v = scheduler::verify_plan(&w.state, &plan);
    w.apply(vec![Change::ApplyPlan(Box::new(v.plan))]);
    let now = w.state.alloc(old).expect("a record");
    assert_eq!((now.client_status, now.desired_status), (ClientStatus::Complete, DesiredStatus::Run));
    w.node("n2");
    assert!(w.run().plan.is_no_op());
}

#[test]
fn a_newer_version_does_its_work_whatever_became_of_the_former_one() {
    let (mut w, old, _) = to_be_done_again("n2");
    w.register(&changed(&batch(1)));
    let eval = w.eval();
    let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a batch job").plan;
    w.report(old, ClientStatus::Complete, None);
    assert!(scheduler::verify_plan(&w.state, &plan).refused.is_empty());
}

#[test]
fn work_that_was_stopped_meanwhile_is_lost_and_done_again() {
    let (mut w, old, plan) = to_be_done_again("n2");
    let stop = PlannedStop { client_status: None, ..plan.stops[0].clone() };
    w.apply(vec![Change::ApplyPlan(Box::new(Plan { stops: vec![stop], ..Plan::default() }))]);
    w.killed(old);
    let v = scheduler::verify_plan(&w.state, &plan);
    assert!(v.refused.is_empty(), "{:?}", v.refused);
    w.apply(vec![Change::ApplyPlan(Box::new(v.plan))]);
    assert_eq!(w.show(), "0:n2:v0");
    assert!(w.run().plan.is_no_op());
}

#[test]
fn nobody_is_displaced_for_work_that_was_done_after_all() {
    let mut w = World::new("n1 cpu=600");
    let preemption_config = PreemptionConfig { batch_scheduler_enabled: true, ..PreemptionConfig::default() };
    let config = SchedulerConfig { preemption_config, ..SchedulerConfig::default() };
    w.apply(vec![Change::SetSchedulerConfig(config)]);
    let job = model::Job { priority: 70, ..batch(1) };
    w.submit(&job);
    let old = w.at(0).id;
    w.node("n2 cpu=600");
    w.submit_as(&model::Job { id: "low".into(), priority: 20, ..service(1) });
    w.down("n1");
    let eval = model::Evaluation { priority: 70, ..w.eval() };
    let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a batch job").plan;
    assert_eq!(plan.stops.iter().filter(|stop| !stop.preempted_by.is_nil()).count(), 1);
    w.report(old, ClientStatus::Complete, None);
    let v = scheduler::verify_plan(&w.state, &plan);
    assert!(v.refused.len() == 1 && v.plan.is_no_op(), "{:?}", v.plan);
}
