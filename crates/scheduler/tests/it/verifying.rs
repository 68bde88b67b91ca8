//! The last check: plans made on old snapshots meet the newest state.

use model::{
    AllocId, DesiredStatus, EvalId, Plan, RequestedDevice,
    alloc::DesiredTransition,
    network::{Network, Port},
    plan::PlannedStop,
};
use state::Change;

use crate::world::{World, node_id, service};

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
