//! What wakes the loop, and what it looks at: only what has changed.

use std::time::Duration;

use lifecycle::remote::{Times, guarantee_within};
use model::{
    AllocClientUpdate, AllocDeploymentStatus, AllocId, Deployment, DeploymentId, DriverInfo, Node, SlotParts,
    TaskGroup, alloc::alloc_name, deployment::DeploymentGroup, node::RemoteProvider, task::Task,
};

use super::*;
use crate::{
    admission::{undeliverable, warnings},
    fixture::counted,
    runtimes::guarantee_of,
};

fn times() -> Times {
    let second = Duration::from_secs(1);
    Times { lease: second * 10, margin: second, sweep: second * 60 }
}

fn node(n: u128) -> NodeId {
    NodeId(uuid::Uuid::from_u128(0xf000 + n))
}

fn slot(index: u32) -> SlotKey {
    SlotParts { namespace: "default".into(), job_id: "j".into(), group: "g".into(), index, task: "t".into() }.into()
}

fn alloc(index: u32) -> Allocation {
    Allocation {
        id: AllocId(uuid::Uuid::from_u128(0xa000 + u128::from(index))),
        namespace: "default".into(),
        job_id: "j".into(),
        name: alloc_name("j", "g", index).into(),
        task_group: "g".into(),
        node_id: node(0),
        deployment_id: deployment(0).id,
        ..Allocation::default()
    }
}

fn deployment(canaries: i32) -> Deployment {
    let group = DeploymentGroup { desired_total: 3, desired_canaries: canaries, ..DeploymentGroup::default() };
    Deployment {
        id: DeploymentId(uuid::Uuid::from_u128(0xd000)),
        namespace: "default".into(),
        job_id: "j".into(),
        groups: [("g".into(), group)].into(),
        ..Deployment::default()
    }
}

fn remote_node(n: u128, provider: &str) -> Node {
    let remote = Some(RemoteProvider { provider: provider.to_owned(), ..RemoteProvider::default() });
    let driver = DriverInfo { detected: true, healthy: true, remote, ..DriverInfo::default() };
    Node { id: node(n), status: NodeStatus::Ready, drivers: [("far".to_owned(), driver)].into(), ..Node::default() }
}

fn record(index: u32, manager: Option<NodeId>) -> RemoteTask {
    let manager = manager.map(|node_id| Manager { node_id, alloc_id: alloc(index).id });
    RemoteTask {
        slot: slot(index),
        driver: "far".into(),
        provider: "p".into(),
        epoch: 1,
        manager,
        ..RemoteTask::default()
    }
}

struct World(Arc<State>);

impl World {
    fn new(changes: Vec<Change>) -> Self {
        let group = TaskGroup { name: "g".into(), count: Some(3), ..TaskGroup::default() };
        let job =
            Job { namespace: "default".into(), id: "j".into(), task_groups: vec![group].into(), ..Job::default() };
        let mut this = Self(Arc::new(State::new()));
        this.commit(Change::UpsertJob { job: Box::new(job), submission: None });
        for change in changes {
            this.commit(change);
        }
        this
    }

    /// The jobs behind the slots that the loop looks at after the change.
    fn commit(&mut self, change: Change) -> BTreeSet<JobKey> {
        let before = self.0.clone();
        let mut state = State::clone(&before);
        let mut batch = Batch::default();
        batch.push(change);
        let applied = state.apply(before.latest_index() + 1, 1, batch).expect("applies");
        self.0 = Arc::new(state);
        let mut signals = Signals::default();
        signals.follow(&before, &self.0, &applied);
        signals.jobs
    }

    fn healthy(&mut self, index: u32) -> BTreeSet<JobKey> {
        let health = AllocDeploymentStatus { healthy: Some(true), ..AllocDeploymentStatus::default() };
        self.commit(Change::UpdateAllocsFromClient(vec![AllocClientUpdate {
            id: alloc(index).id,
            client_status: ClientStatus::Running,
            deployment_status: Some(health),
            ..AllocClientUpdate::default()
        }]))
    }
}

#[test]
fn the_progress_of_a_deployment_is_no_news_about_the_slots_of_its_job() {
    let world = |canaries| {
        let allocs = (0..3).map(alloc).collect();
        let records = (0..3).map(|n| Change::PutRemoteTask(Box::new(record(n, Some(node(0))))));
        World::new(
            [Change::UpsertDeployment(Box::new(deployment(canaries))), Change::UpsertAllocs(allocs)]
                .into_iter()
                .chain(records)
                .collect(),
        )
    };
    let all = BTreeSet::from([slot(0).job()]);
    let mut plain = world(0);
    let healthy = |world: &World| world.0.deployment(deployment(0).id).expect("there").groups["g"].healthy_allocs;
    assert_eq!((plain.healthy(0), healthy(&plain)), (BTreeSet::new(), 1));
    let over = model::plan::DeploymentUpdate {
        id: deployment(0).id,
        status: model::DeploymentStatus::Failed,
        description: String::new(),
    };
    assert_eq!(plain.commit(Change::DeploymentStatus(over)), all, "its end is");
    assert_eq!(world(1).healthy(0), all, "with canaries anything may be");
}

#[test]
fn stops_that_nobody_executes_are_spread_over_the_nodes_that_can() {
    let nodes = [remote_node(1, "p"), remote_node(2, "p"), remote_node(3, "another")];
    let mut changes: Vec<Change> = nodes.into_iter().map(|node| Change::RegisterNode(Box::new(node))).collect();
    // One of them manages two tasks already.
    changes.extend((0..2).map(|n| Change::PutRemoteTask(Box::new(record(n, Some(node(1)))))));
    let tombstone = |n| RemoteTask {
        desired: model::DesiredRemote::Stop,
        incarnation: IncarnationId(uuid::Uuid::from_u128(7)),
        ..record(n, None)
    };
    changes.extend((10..16).map(|n| Change::PutRemoteTask(Box::new(tombstone(n)))));
    let world = World::new(changes);
    let stamp = Stamp { index: 100, now: 1 };
    let Supervised { batch, said } =
        decide(&world.0, (10..16).map(slot).collect(), stamp, &mut counted(100), &|_| None);
    assert_eq!(said.len(), 6, "whatever is decided has a reason");
    let mut given: BTreeMap<NodeId, usize> = BTreeMap::new();
    for change in batch.changes {
        let Change::PutRemoteTask(record) = change else { continue };
        *given.entry(record.manager.expect("it is executed").node_id).or_default() += 1;
    }
    assert_eq!(given, [(node(1), 2), (node(2), 4)].into());
}

#[test]
fn what_is_said_of_a_job_follows_from_the_runtimes_that_can_be_used() {
    let job = |driver: &str| {
        let task =
            Task { name: "t".into(), driver: driver.to_owned(), kill_signal: "SIGUSR1".to_owned(), ..Task::default() };
        let group = TaskGroup { name: "g".into(), tasks: vec![task], ..TaskGroup::default() };
        Job { namespace: "default".into(), id: "j".into(), task_groups: vec![group].into(), ..Job::default() }
    };
    let with = |n, edit: fn(&mut Node)| {
        let mut node = remote_node(n, "p");
        let declared = node.drivers.get_mut("far").and_then(|d| d.remote.as_mut()).expect("remote");
        declared.no_signals = true;
        edit(&mut node);
        node
    };
    let driver = |node: &mut Node, edit: fn(&mut DriverInfo)| edit(node.drivers.get_mut("far").expect("there"));
    let said = |nodes: &[Node], name: &str| {
        let world = World::new(nodes.iter().map(|node| Change::RegisterNode(Box::new(node.clone()))).collect());
        (undeliverable(&world.0, &job(name)).len(), warnings(&world.0, &job(name), &times()).len())
    };
    let poor = with(1, |_| {});
    assert_eq!(said(&[], "far"), (0, 0), "nothing is known");
    assert_eq!(said(std::slice::from_ref(&poor), "far"), (1, 1), "no runtime sends the signal");
    assert_eq!(said(std::slice::from_ref(&poor), "here"), (0, 0), "another driver");
    assert_eq!(said(&[poor.clone(), with(2, |_| {})], "far"), (1, 1), "said once, however many nodes reach it");
    assert_eq!(said(&[with(1, |node| node.status = NodeStatus::Down)], "far"), (0, 0), "nobody reaches it now");
    let mut sick = poor.clone();
    driver(&mut sick, |d| d.healthy = false);
    assert_eq!(said(&[sick], "far"), (0, 0), "nobody reaches it now");
    let mut rich = remote_node(2, "q");
    driver(&mut rich, |d| d.remote.as_mut().expect("remote").no_signals = false);
    assert_eq!(said(&[poor.clone(), rich], "far"), (0, 2), "there is a runtime that sends it");
    let mut own = remote_node(2, "");
    driver(&mut own, |d| d.remote = None);
    assert_eq!(said(&[poor, own.clone()], "far"), (0, 1), "there is a node that runs it itself");
    own.status = NodeStatus::Down;
    assert_eq!(said(&[with(1, |_| {}), own], "far"), (1, 1), "there was one");
}

#[test]
fn the_guarantee_is_that_of_the_manager_or_else_of_any_node_that_reaches_the_provider() {
    let keyed = |n, provider| {
        let mut node = remote_node(n, provider);
        let declared = node.drivers.get_mut("far").and_then(|d| d.remote.as_mut()).expect("remote");
        (declared.keyed_create, declared.find, declared.seal) = (true, true, true);
        node
    };
    let nodes = [remote_node(1, "p"), keyed(2, "p"), keyed(3, "q")];
    let world = World::new(nodes.iter().map(|node| Change::RegisterNode(Box::new(node.clone()))).collect());
    let times = times();
    let promised = |provider| guarantee_within(provider, Some(&times));
    let declared = |n: usize| promised(nodes[n - 1].drivers.get("far").and_then(|d| d.remote.as_ref()));
    assert_ne!(declared(1), declared(2));
    let of = |manager, provider: &str| {
        guarantee_of(&world.0, &RemoteTask { provider: provider.into(), ..record(0, manager) }, &times)
    };
    assert_eq!(of(Some(node(1)), "p"), declared(1));
    assert_eq!(of(Some(node(2)), "p"), declared(2));
    assert_eq!(of(Some(node(1)), "q"), declared(3), "the manager does not reach it (any more)");
    assert_eq!(of(None, "q"), declared(3));
    assert_eq!(of(None, "gone"), promised(None));
}

#[test]
fn the_next_time_is_the_earliest_and_a_slot_has_one() {
    let mut timers = Timers::default();
    for (at, index) in [(50, 1), (20, 2), (70, 1), (30, 3)] {
        timers.set(Some(at), slot(index));
    }
    assert_eq!((timers.next(), timers.due(70).collect::<Vec<_>>()), (Some(20), vec![slot(2), slot(3), slot(1)]));
    timers.set(None, slot(2));
    assert_eq!((timers.next(), timers.due(69).collect::<Vec<_>>()), (Some(30), vec![slot(3)]));
}
