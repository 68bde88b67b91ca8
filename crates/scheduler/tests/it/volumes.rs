//! Dynamic host volumes: which placement may use which, and which group stays with which.

use model::{
    ClientStatus, DynamicVolume, Job, VolumeCapability, VolumeId, VolumeState,
    alloc::DesiredTransition,
    job::VolumeRequest,
    node::HostVolume,
    plan::Decision,
    volume::{FILE_SYSTEM, MULTI_WRITER, READER_ONLY, SINGLE_WRITER, WRITER},
};
use state::Change;

use crate::world::{World, id_of, node, node_id, service};

/// A volume on a node, which both know of.
fn volume(w: &mut World, on: &str, name: &str, access: &str) -> VolumeId {
    let id = VolumeId(id_of(&format!("{name} of {on}")));
    let mut facts = w.state.node(node_id(on)).map_or_else(|| node(on), |known| model::Node::clone(known));
    let host_volume = HostVolume { name: name.into(), path: "/v".into(), read_only: false, id };
    facts.host_volumes.insert(name.into(), host_volume);
    let capability = VolumeCapability { attachment_mode: FILE_SYSTEM.into(), access_mode: access.into() };
    let record = DynamicVolume {
        id,
        namespace: "default".into(),
        name: name.into(),
        node_id: node_id(on),
        state: VolumeState::Ready,
        requested_capabilities: vec![capability],
        ..DynamicVolume::default()
    };
    w.apply(vec![Change::RegisterNode(Box::new(facts)), Change::PutVolume(Box::new(record))]);
    id
}

fn change(w: &mut World, id: VolumeId, edit: impl FnOnce(&mut DynamicVolume)) {
    let mut record = DynamicVolume::clone(w.state.volume(id).expect("a volume"));
    edit(&mut record);
    w.apply(vec![Change::PutVolume(Box::new(record))]);
}

fn asking(count: i32, edit: impl FnOnce(&mut VolumeRequest)) -> Job {
    let mut job = service(count);
    let mut request = VolumeRequest { kind: "host".into(), source: "data".into(), ..VolumeRequest::default() };
    edit(&mut request);
    job.task_groups[0].volumes.insert("v".into(), request);
    job
}

/// Why nodes were left out.
fn reasons(decision: &Decision) -> Vec<String> {
    let failed = decision.failed_groups.get("g");
    failed.into_iter().flat_map(|m| m.constraint_filtered.keys().cloned()).collect()
}

const MISSING: &str = "missing compatible host volumes";

#[test]
fn a_volume_is_used_when_it_is_ready_and_allows_it() {
    type Edit = fn(&mut DynamicVolume);
    type Ask = fn(&mut VolumeRequest);
    let cases: &[(&str, Edit, Ask, bool)] = &[
        (WRITER, |_| {}, |_| {}, true),
        (WRITER, |v| v.state = VolumeState::Pending, |_| {}, false),
        (WRITER, |v| v.deleting = true, |_| {}, false),
        (WRITER, |v| v.namespace = "other".into(), |_| {}, false),
        (READER_ONLY, |_| {}, |_| {}, false),
        (READER_ONLY, |_| {}, |r| r.read_only = true, true),
        (WRITER, |_| {}, |r| r.access_mode = MULTI_WRITER.into(), false),
        (MULTI_WRITER, |_| {}, |r| r.access_mode = MULTI_WRITER.into(), true),
        (WRITER, |_| {}, |r| r.attachment_mode = "block-device".into(), false),
    ];
    for (at, (access, edit, ask, placed)) in cases.iter().enumerate() {
        let mut w = World::new("n1");
        let id = volume(&mut w, "n1", "data", access);
        change(&mut w, id, edit);
        let decision = w.submit(&asking(1, ask));
        assert_eq!(decision.failed_groups.is_empty(), *placed, "case {at}: {:?}", decision.failed_groups);
        if !placed {
            assert_eq!(reasons(&decision), [MISSING], "case {at}");
            // It is there now: the evaluation that waits is told by the node, not by a class.
            assert!(w.blocked()[0].escaped_computed_class, "case {at}");
        }
    }
    // A directory of the configuration has no record: another node of the class may have one.
    let mut w = World::new("n1 volume=data\nn2 volume=data");
    let id = volume(&mut w, "n2", "data", WRITER);
    change(&mut w, id, |v| v.namespace = "other".into());
    w.submit(&asking(2, |_| {}));
    assert_eq!(w.by_node(), [("n1".to_owned(), 2)].into());
}

#[test]
fn one_allocation_writes_to_a_volume_for_one_writer() {
    let mut w = World::new("n1");
    volume(&mut w, "n1", "data", SINGLE_WRITER);
    let decision = w.submit(&asking(2, |_| {}));
    assert_eq!(w.live().len(), 1);
    assert_eq!(reasons(&decision), ["another allocation writes to host volume \"data\""]);
    // Readers are no writers, and its own replacement takes its place.
    let mut readers = asking(3, |r| r.read_only = true);
    readers.id = "readers".into();
    w.submit_as(&readers);
    assert_eq!(w.by_node_of("readers"), [("n1".to_owned(), 3)].into());
    w.all_healthy();
    let mut newer = asking(1, |_| {});
    newer.task_groups[0].tasks[0].env.insert("A".into(), "1".into());
    assert!(w.submit(&newer).failed_groups.is_empty());
    assert_eq!(w.show(), "0:n1:v1");
    // Two plans of one moment: the second is refused.
    let mut w = World::new("n1");
    volume(&mut w, "n1", "data", SINGLE_WRITER);
    w.register(&asking(1, |_| {}));
    let mut other = asking(1, |_| {});
    other.id = "other".into();
    w.register(&other);
    let plans = ["web", "other"].map(|job| {
        let eval = model::Evaluation { job_id: job.into(), ..w.eval() };
        scheduler::schedule(&w.state, &eval, w.now, 1).expect("a service").plan
    });
    let [first, second] = plans;
    w.apply(vec![Change::ApplyPlan(Box::new(first))]);
    let refused = scheduler::verify_plan(&w.state, &second).refused;
    assert_eq!(refused[&node_id("n1")], "another allocation writes to host volume \"data\"");
}

#[test]
fn a_volume_that_goes_meanwhile_is_not_placed_on() {
    let mut w = World::new("n1");
    let id = volume(&mut w, "n1", "data", WRITER);
    w.register(&asking(1, |_| {}));
    let eval = w.eval();
    let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a service").plan;
    assert!(scheduler::verify_plan(&w.state, &plan).refused.is_empty());
    change(&mut w, id, |v| v.deleting = true);
    let refused = scheduler::verify_plan(&w.state, &plan).refused;
    assert_eq!(refused[&node_id("n1")], "host volume \"data\" is not there any more");
}

#[test]
fn each_allocation_has_the_volume_of_its_index() {
    let mut w = World::new("n1\nn2\nn3");
    volume(&mut w, "n1", "data[0]", WRITER);
    volume(&mut w, "n2", "data[1]", WRITER);
    let decision = w.submit(&asking(3, |r| r.per_alloc = true));
    assert_eq!(w.show(), "0:n1:v0 1:n2:v0");
    assert_eq!((decision.queued["g"], reasons(&decision)), (1, vec![MISSING.to_owned()]));
    volume(&mut w, "n3", "data[2]", WRITER);
    w.run();
    assert_eq!(w.show(), "0:n1:v0 1:n2:v0 2:n3:v0");
}

#[test]
fn a_sticky_group_goes_back_to_the_volumes_that_it_has_had() {
    let mut w = World::new("n1\nn2 cpu=8000 mem=16000");
    let on_first = volume(&mut w, "n1", "data", WRITER);
    let sticky = |count| asking(count, |r| r.sticky = true);
    w.submit(&sticky(1));
    assert_eq!(w.show(), "0:n1:v0");
    let claims = |w: &World| {
        let mut all: Vec<_> = w.state.volume_claims_onward(None, false).map(|c| (c.volume_id, c.alloc_id)).collect();
        all.sort();
        all
    };
    assert_eq!(claims(&w), [(on_first, w.at(0).id)]);
    let on_second = volume(&mut w, "n2", "data", WRITER);
    // Its node drains: the claim keeps it from any other.
    w.all_healthy();
    w.drain("n1");
    let leaving = w.at(0);
    w.mark(leaving.id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    let decision = w.run();
    assert_eq!(reasons(&decision), ["the group's claim on host volume \"data\" is on another node"]);
    w.apply(vec![Change::NodeDrain {
        id: node_id("n1"),
        drain: None,
        mark_eligible: true,
        last_drain: None,
        event: None,
    }]);
    w.run();
    assert_eq!(w.show(), "0:n1:v0");
    assert_eq!(claims(&w), [(on_first, w.at(0).id)], "the claim follows the allocation");
    // One more of the group takes a volume that it has not had.
    w.all_healthy();
    w.submit(&sticky(2));
    assert_eq!(w.by_node(), [("n1".to_owned(), 1), ("n2".to_owned(), 1)].into());
    // A third finds none, and the claims outlive a stop of the job.
    let decision = w.submit(&sticky(3));
    assert_eq!(decision.queued["g"], 1);
    let before = claims(&w);
    assert_eq!(before.iter().map(|(volume, _)| *volume).max(), Some(on_first.max(on_second)));
    for alloc in w.live() {
        w.report(alloc.id, ClientStatus::Complete, None);
    }
    w.apply(vec![Change::StopJob(crate::world::key())]);
    w.run();
    assert_eq!(claims(&w), before);
    w.apply(vec![Change::DeleteJob(crate::world::key())]);
    assert_eq!(claims(&w), [], "a purge ends them");
    // A directory of the configuration cannot be claimed.
    let mut w = World::new("n1 volume=data");
    assert_eq!(reasons(&w.submit(&sticky(1))), [MISSING]);
}
