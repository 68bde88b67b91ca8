//! Decisions on nodes, without a server.

use model::{
    AllocClientUpdate, AllocId, ClientStatus, GenerationId, GoDuration, TaskGroup, alloc::alloc_name, job::job_type,
    policy::Disconnect,
};
use state::ClusterMeta;
use uuid::Uuid;

use super::*;
use crate::fixture::counted;

const NOW: i64 = 1_000_000_000_000;

fn id() -> NodeId {
    NodeId(Uuid::from_u128(0xf001))
}

fn node() -> Node {
    Node { id: id(), secret_id: "secret".into(), pool: "default".into(), ..Node::default() }
}

struct World(State);

impl World {
    fn commit(&mut self, batch: impl Into<Batch>) {
        let index = self.0.latest_index() + 1;
        self.0.apply(index, NOW, batch.into()).unwrap();
    }

    fn stamp(&self) -> Stamp {
        Stamp { index: self.0.latest_index() + 1, now: NOW }
    }

    /// A registered node with an allocation of a service whose `disconnect` block is given.
    fn new(disconnect: Option<Disconnect>) -> Self {
        let mut world = Self(State::new());
        let registered = world.register(node()).unwrap();
        world.commit(registered);
        let group = TaskGroup { name: "g".into(), count: Some(1), disconnect, ..TaskGroup::default() };
        let job = Job {
            namespace: "default".into(),
            id: "web".into(),
            kind: "service".into(),
            task_groups: vec![group].into(),
            ..Job::default()
        };
        world.commit(Change::UpsertJob { job: Box::new(job), submission: None });
        let alloc = AllocId(Uuid::from_u128(0xa000));
        world.commit(Change::UpsertAllocs(vec![Allocation {
            id: alloc,
            namespace: "default".into(),
            job_id: "web".into(),
            name: alloc_name("web", "g", 0).into(),
            task_group: "g".into(),
            node_id: id(),
            ..Allocation::default()
        }]));
        let update =
            AllocClientUpdate { id: alloc, client_status: ClientStatus::Running, ..AllocClientUpdate::default() };
        world.commit(Change::UpdateAllocsFromClient(vec![update]));
        world
    }

    fn register(&self, node: Node) -> Result<Batch, Refused> {
        register(&self.0, node, self.stamp(), &mut counted(self.0.latest_index()))
    }

    /// Its silence: the new status, the number of evaluations, and the waits.
    fn lose(&mut self) -> (NodeStatus, usize, Vec<(NodeId, Wait)>) {
        let before = self.0.evals().count();
        let loss = lose(&self.0, &[id()], self.stamp(), &mut counted(self.0.latest_index()));
        self.commit(loss.batch);
        (self.0.node(id()).unwrap().status, self.0.evals().count() - before, loss.waits)
    }
}

#[test]
fn a_silent_node_is_down_at_once_unless_an_allocation_waits_for_it() {
    let mut w = World::new(None);
    assert_eq!(w.0.node(id()).unwrap().status, NodeStatus::Ready);
    assert_eq!(w.lose(), (NodeStatus::Down, 1, Vec::new()));
    assert_eq!(w.lose(), (NodeStatus::Down, 0, Vec::new()), "once");

    let lost_after = Some(GoDuration::from_secs(30));
    let mut w = World::new(Some(Disconnect { lost_after, replace: Some(false), ..Disconnect::default() }));
    let waits = vec![(id(), Wait::For(Duration::from_secs(30)))];
    assert_eq!(w.lose(), (NodeStatus::Disconnected, 1, waits.clone()));
    assert_eq!(w.lose(), (NodeStatus::Disconnected, 0, waits), "it is known, and waited for still");
}

#[test]
fn nothing_is_lost_while_the_servers_recover() {
    let mut w = World::new(None);
    let mut meta = ClusterMeta::clone(w.0.cluster());
    assert!(meta.enter_recovery(GenerationId(Uuid::from_u128(1)), "a test", 0, NOW));
    w.commit(Change::SetClusterMeta(Box::new(meta)));
    assert_eq!(w.lose(), (NodeStatus::Ready, 0, vec![(id(), Wait::Lease)]));
}

#[test]
fn a_node_that_only_says_hello_again_changes_nothing() {
    let mut w = World::new(None);
    assert!(w.register(node()).unwrap().is_empty());
    let refused = |node| matches!(w.register(node), Err(Refused::Invalid(_)));
    assert!(refused(Node { secret_id: "another".into(), ..node() }), "another machine");
    assert!(refused(Node { pool: ALL_NODE_POOL.into(), ..node() }), "the pool of all nodes");
    w.lose();
    let again = w.register(node()).unwrap();
    w.commit(again);
    let known = w.0.node(id()).unwrap();
    assert_eq!((known.status, &*known.events.last().unwrap().message), (NodeStatus::Ready, "Node re-registered"));
}

/// Their missing allocations elsewhere restart when any of their nodes is lost.
#[test]
fn the_loss_of_a_node_concerns_the_system_jobs_that_speak_of_it() {
    let mut w = World::new(None);
    for (name, datacenter, kind, stop) in [
        ("here", "*", job_type::SYSTEM, false),
        ("elsewhere", "elsewhere", job_type::SYSTEM, false),
        ("stopped", "*", job_type::SYSTEM, true),
        ("service", "*", "service", false),
    ] {
        let datacenters = vec![datacenter.into()];
        let job = Job {
            namespace: "default".into(),
            id: name.into(),
            kind: kind.into(),
            datacenters,
            stop,
            ..Job::default()
        };
        w.commit(Change::UpsertJob { job: Box::new(job), submission: None });
    }
    assert_eq!(w.lose().1, 2);
    let jobs: Vec<String> = w.0.evals().map(|e| e.job_id.to_string()).collect();
    assert!(["web", "here"].iter().all(|job| jobs.iter().any(|j| j == job)), "{jobs:?}");
}

#[test]
fn a_wait_without_end_is_looked_at_again() {
    let mut w = World::new(Some(Disconnect { replace: Some(false), ..Disconnect::default() }));
    let again = vec![(id(), Wait::For(ENDLESS))];
    assert_eq!(w.lose(), (NodeStatus::Disconnected, 1, again.clone()));
    assert_eq!(w.lose(), (NodeStatus::Disconnected, 0, again));
    w.commit(Change::StopJob(model::JobKey::new("default", "web")));
    let (status, _, waits) = w.lose();
    assert_eq!((status, waits.len()), (NodeStatus::Down, 0), "nobody waits for it any more");
}
