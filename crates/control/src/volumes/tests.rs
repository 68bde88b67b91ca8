//! Dynamic host volumes, without a server.

use model::{AllocId, Allocation, Constraint, Job, TaskGroup, job::VolumeRequest};

use super::*;
use crate::fixture::counted;

fn stamp(index: u64) -> Stamp {
    Stamp { index, now: 1_000_000_000 }
}

fn node_id(number: u128) -> NodeId {
    NodeId(uuid::Uuid::from_u128(number))
}

fn node(number: u128, pool: &str, plugins: &[&str]) -> Change {
    let attributes = plugins.iter().map(|plugin| (attribute(plugin).as_str().into(), "1".into())).collect();
    let status = NodeStatus::Ready;
    Change::RegisterNode(Box::new(Node {
        id: node_id(number),
        pool: pool.into(),
        attributes,
        status,
        ..Node::default()
    }))
}

/// Two nodes of the default pool, and one with a plugin of its own.
fn world() -> State {
    let mut state = State::new();
    let nodes = vec![
        node(1, "default", &[MKDIR]),
        node(2, "default", &[MKDIR]),
        node(3, "disks", &[MKDIR, "lvm"]),
        Change::NodeStatus { id: node_id(1), status: NodeStatus::Ready, description: String::new(), event: None },
        Change::NodeStatus { id: node_id(2), status: NodeStatus::Ready, description: String::new(), event: None },
        Change::NodeStatus { id: node_id(3), status: NodeStatus::Ready, description: String::new(), event: None },
    ];
    state.apply(50, 0, nodes.into()).expect("it applies");
    state
}

fn volume(name: &str) -> DynamicVolume {
    DynamicVolume { name: name.into(), plugin_id: MKDIR.into(), ..DynamicVolume::default() }
}

/// Decides and applies.
fn done<R>(state: &mut State, index: u64, decided: Result<Decided<R>, Refused>) -> Result<R, String> {
    let Decided { batch, answer } = decided.map_err(|refused| refused.to_string())?;
    if !batch.is_empty() {
        state.apply(index, 0, batch).expect("it applies");
    }
    Ok(answer)
}

fn create(state: &mut State, index: u64, asked: DynamicVolume) -> Result<Awaited, String> {
    let decided = put(state, asked, false, "global", stamp(index), &mut counted(index));
    done(state, index, decided)
}

fn reported(state: &mut State, index: u64, node: NodeId, told: VolumeReport) {
    let batch = report(state, node, &[told]);
    if !batch.is_empty() {
        state.apply(index, 0, batch).expect("it applies");
    }
}

fn made(awaited: Awaited) -> VolumeReport {
    let (id, revision) = (awaited.id, awaited.revision);
    VolumeReport { id, revision, host_path: "/v".into(), ..VolumeReport::default() }
}

#[test]
fn volumes_spread_over_the_nodes_that_can_make_them() {
    let mut state = world();
    let at = |state: &State, awaited: Awaited| state.volume(awaited.id).expect("a record").node_id;
    let first = create(&mut state, 100, DynamicVolume { node_pool: "default".into(), ..volume("a") }).expect("a node");
    let second = create(&mut state, 101, DynamicVolume { node_pool: "default".into(), ..volume("b") }).expect("a node");
    assert_ne!(at(&state, first), at(&state, second));
    let lvm = create(&mut state, 102, DynamicVolume { plugin_id: "lvm".into(), ..volume("c") }).expect("a node");
    assert_eq!(at(&state, lvm), node_id(3));
    // One name is one volume of a node.
    let why = create(&mut state, 103, DynamicVolume { node_id: node_id(3), ..volume("c") }).expect_err("taken");
    assert!(why.ends_with("is with a volume of that name"), "{why}");
    // Nor does it take the place of one that the operator offers to all.
    let offered = model::node::HostVolume { name: "pgdata".into(), path: "/srv/pg".into(), ..Default::default() };
    let mut configured = state.node(node_id(3)).expect("a node").as_ref().clone();
    configured.host_volumes.insert("pgdata".to_owned(), offered);
    state.apply(104, 0, vec![Change::RegisterNode(Box::new(configured))].into()).expect("it applies");
    for registered in [false, true] {
        let asked = DynamicVolume { node_id: node_id(3), host_path: "/evil".into(), ..volume("pgdata") };
        let why = node_for(&state, &asked, registered, "global").map(|node| node.id).expect_err("taken");
        assert!(format!("{why:?}").contains("in its configuration"), "{why:?}");
    }
    let asked = volume("pgdata");
    assert_ne!(node_for(&state, &asked, false, "global").map(|node| node.id), Ok(node_id(3)));
    let rule = Constraint { left: "${node.unique.id}".into(), right: "x".into(), operator: "=".into() };
    let why = create(&mut state, 105, DynamicVolume { constraints: vec![rule], ..volume("d") }).expect_err("nowhere");
    assert!(why.contains("of 3 nodes: 3 not meeting the constraints"), "{why}");
    let why = create(&mut state, 106, DynamicVolume { plugin_id: String::new(), ..volume("d") }).expect_err("nowhere");
    assert!(why.contains("plugin \"default\"") && why.contains("3 without the plugin"), "{why}");
}

#[test]
fn whatever_is_wrong_with_a_volume_is_said_at_once() {
    let mut state = world();
    let wrong = DynamicVolume {
        namespace: "nowhere".into(),
        requested_capacity_min_bytes: 2,
        requested_capacity_max_bytes: 1,
        requested_capabilities: vec![VolumeCapability { attachment_mode: "x".into(), access_mode: "y".into() }],
        constraints: vec![Constraint { operator: "distinct_hosts".into(), ..Constraint::default() }],
        host_path: "/v".into(),
        ..volume("")
    };
    let why = create(&mut state, 100, wrong).expect_err("refused");
    for part in [
        "7 errors",
        "name must be",
        "capacity_max (1)",
        "attachment mode \"x\"",
        "access mode \"y\"",
        "distinct_hosts",
        "the plugin chooses host_path",
        "namespace \"nowhere\"",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    let size =
        |capacity_bytes| DynamicVolume { capacity_bytes, node_id: node_id(1), host_path: "/v".into(), ..volume("own") };
    let mut registered = |index, asked| {
        let decided = put(&state, asked, true, "global", stamp(index), &mut counted(index));
        done(&mut state, index, decided).expect("registered")
    };
    let own = registered(90, size(5));
    registered(91, DynamicVolume { id: own.id, ..size(3) });
    assert_eq!(state.volume(own.id).expect("a record").capacity_bytes, 3, "who registers it knows");
    let register = |asked| put(&state, asked, true, "global", stamp(100), &mut counted(100)).map(drop);
    let said = |refused: Result<(), Refused>| refused.expect_err("refused").to_string();
    assert!(said(register(volume("a"))).contains("node ID is required"));
    let relative = DynamicVolume { node_id: node_id(1), host_path: "v".into(), ..volume("a") };
    assert!(said(register(relative)).contains("must be absolute"));
}

#[test]
fn only_the_node_that_was_asked_last_says_what_became_of_a_volume() {
    let mut state = world();
    let first = create(&mut state, 100, DynamicVolume { node_id: node_id(1), ..volume("a") }).expect("a node");
    let now = |state: &State| state.volume(first.id).map(|volume| volume.state);
    reported(&mut state, 101, node_id(2), made(first));
    assert_eq!(now(&state), Some(VolumeState::Pending), "another node said so");
    reported(&mut state, 102, node_id(1), VolumeReport { revision: 99, ..made(first) });
    assert_eq!(now(&state), Some(VolumeState::Pending), "of what was asked before");
    reported(&mut state, 103, node_id(1), made(first));
    assert_eq!(now(&state), Some(VolumeState::Ready));
    assert!(report(&state, node_id(1), &[made(first)]).is_empty(), "twice is once");
    // A node that is down keeps its volumes, and nobody may use them.
    let down = Change::NodeStatus { id: node_id(1), status: NodeStatus::Down, description: String::new(), event: None };
    state.apply(104, 0, down.into()).expect("it applies");
    let shown = state.volume(first.id).map(|volume| state.volume_state(volume));
    assert_eq!(shown, Some(VolumeState::Unavailable));
}

#[test]
fn what_a_node_could_not_do_is_taken_back() {
    let mut state = world();
    let on_first = DynamicVolume { node_id: node_id(1), ..volume("a") };
    let failed = create(&mut state, 100, on_first.clone()).expect("a node");
    let broken = |awaited: Awaited| VolumeReport { error: "no room".into(), ..made(awaited) };
    reported(&mut state, 101, node_id(1), broken(failed));
    assert_eq!(state.volume(failed.id).expect("a record").error, "no room");
    let taken_back = settle(&state, failed, stamp(102));
    done(&mut state, 102, Ok(taken_back)).expect("settled");
    assert!(state.volume(failed.id).is_none(), "it never was there");

    let there = create(&mut state, 103, on_first.clone()).expect("a node");
    reported(&mut state, 104, node_id(1), made(there));
    let larger = DynamicVolume { id: there.id, requested_capacity_max_bytes: 5, ..on_first };
    let change = create(&mut state, 105, larger).expect("a change");
    reported(&mut state, 106, node_id(1), broken(change));
    let taken_back = settle(&state, change, stamp(107));
    done(&mut state, 107, Ok(taken_back)).expect("settled");
    let volume = state.volume(there.id).expect("it is there as it was");
    assert_eq!((volume.state, &*volume.host_path), (VolumeState::Ready, "/v"));

    let namespace = Namespace::from("default");
    let decided = delete(&state, &namespace, there.id, false, stamp(108));
    let deleting = done(&mut state, 108, decided).expect("asked").expect("its node is asked");
    reported(&mut state, 109, node_id(1), broken(deleting));
    // Somebody else has asked for something meanwhile: nothing is taken back.
    assert!(settle(&state, there, stamp(110)).batch.is_empty());
    let taken_back = settle(&state, deleting, stamp(110));
    done(&mut state, 110, Ok(taken_back)).expect("settled");
    assert!(!state.volume(there.id).expect("it stays").deleting);
    reported(&mut state, 111, node_id(1), VolumeReport { removed: true, ..made(deleting) });
    assert!(state.volume(there.id).is_some(), "a late word of a removal that was taken back");
}

#[test]
fn a_volume_is_deleted_when_nobody_uses_it_and_its_node_is_there_or_it_is_forced() {
    let mut state = world();
    let asked = DynamicVolume { node_id: node_id(1), ..volume("a") };
    let there = create(&mut state, 100, asked).expect("a node");
    reported(&mut state, 101, node_id(1), made(there));
    let request = VolumeRequest { kind: "host".into(), source: "a".into(), ..VolumeRequest::default() };
    let group = TaskGroup { name: "g".into(), volumes: [("v".to_owned(), request)].into(), ..TaskGroup::default() };
    let job = Job { id: "j".into(), namespace: "default".into(), task_groups: vec![group].into(), ..Job::default() };
    let alloc = Allocation {
        id: AllocId(uuid::Uuid::from_u128(9)),
        namespace: "default".into(),
        job_id: "j".into(),
        task_group: "g".into(),
        node_id: node_id(1),
        job: Some(job.into()),
        ..Allocation::default()
    };
    state.apply(102, 0, Change::UpsertAllocs(vec![alloc.clone()]).into()).expect("it applies");
    let namespace = Namespace::from("default");
    let why = delete(&state, &namespace, there.id, true, stamp(103)).expect_err("in use").to_string();
    assert!(why.contains("in use by allocations") && why.contains(&alloc.id.to_string()), "{why}");
    let ended = Allocation { client_status: model::ClientStatus::Complete, ..alloc };
    state.apply(104, 0, Change::UpsertAllocs(vec![ended]).into()).expect("it applies");
    let other = Namespace::from("other");
    assert_eq!(
        delete(&state, &other, there.id, false, stamp(105)).expect_err("none").to_string(),
        "host volume not found"
    );
    assert!(delete(&state, &namespace, there.id, true, stamp(105)).expect("its node is asked").answer.is_some());
    let gone = Change::DeleteNode(node_id(1));
    state.apply(106, 0, gone.into()).expect("it applies");
    let why = delete(&state, &namespace, there.id, false, stamp(107)).expect_err("no node").to_string();
    assert!(why.contains("down or unknown") && why.contains("with force"), "{why}");
    let decided = delete(&state, &namespace, there.id, true, stamp(107));
    assert_eq!(done(&mut state, 107, decided), Ok(None));
    assert!(state.volume(there.id).is_none());
}

#[test]
fn a_namespace_with_volumes_stays() {
    let mut state = world();
    let team = state::NamespaceRecord { name: "team".into(), ..state::NamespaceRecord::default() };
    state.apply(90, 0, Change::PutNamespace(team).into()).expect("it applies");
    create(&mut state, 100, DynamicVolume { namespace: "team".into(), ..volume("a") }).expect("a node");
    let why = crate::spaces::delete_namespace(&state, &"team".into(), "global", stamp(101)).expect_err("in use");
    assert!(why.to_string().contains("namespace \"team\" has volumes associated with it"), "{why}");
}
