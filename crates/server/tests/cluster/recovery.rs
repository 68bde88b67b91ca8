//! Servers whose state is from the past: nothing that runs is killed, doubled or orphaned, whatever they start with.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use model::{AllocId, ClientStatus, ClusterId, IncarnationId, NodeStatus, SlotKey, SlotParts};
use server::{
    ErrorClass, Server, ServerConfig, ServerHandle, StartError, Surroundings,
    requests::{DeregisterJob, RegisterJob},
};
use store::{Batch, Contents, Done, Fence, MemoryStore, Store, StoreError, StoreStats, Watch};
use uuid::Uuid;

use crate::fake::*;

pub(crate) fn slot(job: &str) -> SlotKey {
    SlotParts { namespace: "default".into(), job_id: job.into(), group: "g".into(), index: 0, task: "t".into() }.into()
}

pub(crate) fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    fn all(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let at = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                all(&entry.path(), &at);
            } else {
                std::fs::copy(entry.path(), at).unwrap();
            }
        }
    }
    all(from, to.path());
    to
}

/// What exists: allocations that run on nodes, instances that live at the provider.
pub(crate) fn exists(nodes: &[FakeNode], p: &Provider) -> (BTreeSet<AllocId>, BTreeSet<IncarnationId>) {
    (nodes.iter().flat_map(|node| node.view().runs()).collect(), p.live())
}

/// The nodes with all that they have, at another server.
pub(crate) fn moved(nodes: Vec<FakeNode>, s: &ServerHandle, p: &Provider) -> Vec<FakeNode> {
    nodes
        .into_iter()
        .map(|node| (node.node.clone(), node.leave()))
        .map(|(node, has)| FakeNode::go_on(s, node, Fate::Runs, p, has))
        .collect()
}

pub(crate) async fn running(s: &ServerHandle, id: &str, count: usize) {
    until(s, &format!("{count} of {id} run"), |state| {
        let allocs = live(state, id, ClientStatus::Running).len();
        let far = state
            .remote_tasks_by_job(&key(id))
            .filter(|r| r.observed == model::Observed::Running && r.manager.is_some())
            .count();
        allocs == count && (far == count || state.remote_tasks_by_job(&key(id)).next().is_none())
    })
    .await;
}

/// What the servers start with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// A backup from before a job was registered.
    Job,
    /// A backup from before an instance was replaced.
    Epoch,
    /// Nothing, under the identity of the cluster.
    Everything,
}

async fn nothing_is_lost(count: u128, lost: Lost) {
    let dir = tempfile::tempdir().unwrap();
    let p = Provider::default();
    let server = start_in(dir.path()).await;
    let mut nodes = Vec::new();
    for n in 1..=count {
        nodes.push(FakeNode::join_for_good(server.handle(), remote_node(n), &p).await);
    }
    submit(server.handle(), job("near", 3)).await;
    submit(server.handle(), remote_job("far", 3)).await;
    running(server.handle(), "near", 3).await;
    running(server.handle(), "far", 3).await;
    server.shutdown().await;
    let backup = copy(dir.path());

    let server = start_in(dir.path()).await;
    let s = server.handle();
    let cluster = s.cluster_id();
    nodes = moved(nodes, s, &p);
    for node in &nodes {
        node.until("the node is back", |view| view.welcomed && !view.holds && view.full > 1).await;
    }
    assert!(s.recovery_status().is_none(), "a restart of the same state is no recovery");
    if lost == Lost::Epoch {
        let before = s.snapshot().remote_task(&slot("far")).unwrap().incarnation;
        s.restart_remote(slot("far")).await.unwrap();
        until(s, "another instance runs", |state| {
            state
                .remote_task(&slot("far"))
                .is_some_and(|r| r.incarnation != before && r.observed == model::Observed::Running)
        })
        .await;
    } else {
        submit(s, job("near-after", 2)).await;
        submit(s, remote_job("far-after", 2)).await;
        running(s, "near-after", 2).await;
        running(s, "far-after", 2).await;
    }
    let before = exists(&nodes, &p);
    let calls = (p.calls(&Call::Create), p.calls(&Call::Stop));
    server.shutdown().await;

    let empty = tempfile::tempdir().unwrap();
    let server = if lost == Lost::Everything {
        start_with(ServerConfig {
            data_dir: Some(empty.path().to_owned()),
            cluster_id: Some(cluster),
            ..ServerConfig::default()
        })
        .await
    } else {
        start_in(backup.path()).await
    };
    let s = server.handle();
    nodes = moved(nodes, s, &p);
    for node in &nodes {
        node.until("the node tells what it has", |view| view.inventories > 0).await;
    }
    assert_eq!(exists(&nodes, &p), before, "nothing has changed");
    if lost == Lost::Everything {
        // The servers have no list of nodes: only a person knows that these are all.
        let status = s.recovery_status().expect("they recover");
        assert!(status.by_hand && status.waits_for().contains("a person"), "{}", status.waits_for());
        eventually("all have told", || s.recovery_status().is_some_and(|status| status.answered.len() == nodes.len()))
            .await;
        let refused = s.register_job(RegisterJob { job: job("new", 1), ..RegisterJob::default() }).await.unwrap_err();
        assert!(refused.class() == ErrorClass::Unavailable && refused.to_string().contains("recover"), "{refused}");
        s.end_recovery().await.unwrap();
    }
    until(s, "the recovery is over", |state| state.cluster().recovery.is_none()).await;
    let full: Vec<usize> = nodes.iter().map(|node| node.view().full).collect();
    for (node, full) in nodes.iter().zip(full) {
        node.until("the servers' word counts", |view| !view.holds && view.full >= full.max(1)).await;
    }
    let jobs: &[(&str, usize)] = if lost == Lost::Epoch {
        &[("near", 3), ("far", 3)]
    } else {
        &[("near", 3), ("far", 3), ("near-after", 2), ("far-after", 2)]
    };
    for (id, count) in jobs {
        running(s, id, *count).await;
    }
    assert_eq!(exists(&nodes, &p), before, "0 killed, 0 doubled");
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop)), calls, "nothing was created or stopped");
    assert_eq!(p.most_live(), 1);
    assert!(s.snapshot().latest_index() > 1_000_000, "indexes never go back");
    // Nobody has lost control of anything.
    for (id, _) in jobs {
        s.deregister_job(DeregisterJob { key: key(id), purge: false, eval_priority: None, no_shutdown_delay: false })
            .await
            .unwrap();
    }
    until(s, "all of it is stopped", |state| {
        state.remote_tasks().next().is_none() && state.allocs().all(|alloc| alloc.terminal())
    })
    .await;
    assert_eq!(p.live(), BTreeSet::new(), "0 orphaned");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_older_by_one_job_one_node() {
    nothing_is_lost(1, Lost::Job).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_older_by_one_job_three_nodes() {
    nothing_is_lost(3, Lost::Job).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_older_by_one_epoch_one_node() {
    nothing_is_lost(1, Lost::Epoch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_older_by_one_epoch_three_nodes() {
    nothing_is_lost(3, Lost::Epoch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_emptied_one_node() {
    nothing_is_lost(1, Lost::Everything).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_emptied_three_nodes() {
    nothing_is_lost(3, Lost::Everything).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_is_refused_by_name() {
    let p = Provider::default();
    let first = start_patient().await.0;
    let node = FakeNode::join_for_good(first.handle(), node(1), &p).await;
    submit(first.handle(), job("near", 1)).await;
    running(first.handle(), "near", 1).await;
    let (described, has) = (node.node.clone(), node.leave());
    let before = has.runs();
    let other = start_patient().await.0;
    let node = FakeNode::go_on(other.handle(), described, Fate::Runs, &p, has);
    node.until("it is refused", |view| view.goodbye.is_some()).await;
    let (why, retry) = node.view().goodbye.clone().unwrap();
    let (theirs, own) = (other.handle().cluster_id().to_string(), first.handle().cluster_id().to_string());
    assert!(!retry && why.contains(&theirs) && why.contains(&own) && why.contains("cluster_id = "), "{why}");
    assert_eq!(node.view().runs(), before);
    assert_eq!(other.handle().snapshot().node_count(), 0, "nothing of it is noted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_another_cluster_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_in(dir.path()).await;
    let found = server.handle().cluster_id();
    server.shutdown().await;
    let configured = ClusterId(Uuid::from_u128(7));
    let config =
        ServerConfig { data_dir: Some(dir.path().to_owned()), cluster_id: Some(configured), ..ServerConfig::default() };
    match Server::start(config.clone()).await {
        Err(StartError::OtherCluster { found: f, configured: c }) => assert_eq!((f, c), (found, configured)),
        other => panic!("{:?}", other.map(|_| ())),
    }
    let server = Server::start(ServerConfig { cluster_id: Some(found), ..config }).await.unwrap();
    assert_eq!(server.handle().cluster_id(), found);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_data_directory_does_not_throw_the_first_agent_out() {
    let s = &start().await;
    let p = Provider::default();
    let of = |instance: &str| {
        let mut view = View::default();
        instance.clone_into(&mut view.instance);
        view
    };
    let first = FakeNode::go_on(s, node(1), Fate::Runs, &p, of("one"));
    first.until("the first is welcome", |view| view.welcomed).await;
    let second = FakeNode::go_on(s, node(1), Fate::Runs, &p, of("two"));
    second.until("the second is refused", |view| view.goodbye.is_some()).await;
    let (why, retry) = second.view().goodbye.clone().unwrap();
    assert!(retry && why.contains("is the data directory of this agent a copy"), "{why}");
    let acks = first.view().acks;
    first.until("the first stays", |view| view.acks > acks + 1).await;
    assert!(first.view().goodbye.is_none() && !second.view().welcomed);
    // When the first is gone, whoever has the directory is the node.
    drop(first);
    testkit::poll("a third that is taken", async || {
        let third = FakeNode::go_on(s, node(1), Fate::Runs, &p, of("three"));
        third.until("an answer", |view| view.welcomed || view.goodbye.is_some()).await;
        third.view().welcomed
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_waits_for_each_node_or_until_it_is_excused() {
    let dir = tempfile::tempdir().unwrap();
    let p = Provider::default();
    let server = start_in(dir.path()).await;
    let a = FakeNode::join_for_good(server.handle(), node(1), &p).await;
    let b = FakeNode::join_for_good(server.handle(), node(2), &p).await;
    server.shutdown().await;
    let backup = copy(dir.path());
    let server = start_in(dir.path()).await;
    let mut nodes = moved(vec![a, b], server.handle(), &p);
    submit(server.handle(), job("near", 4)).await;
    running(server.handle(), "near", 4).await;
    server.shutdown().await;

    let server = start_in(backup.path()).await;
    let s = server.handle();
    let gone = nodes.pop().unwrap();
    let id = gone.id();
    drop(gone);
    let nodes = moved(nodes, s, &p);
    eventually("one has told", || s.recovery_status().is_some_and(|status| status.answered == [nodes[0].id()])).await;
    // Beyond every lease and grace the other one is neither lost nor replaced.
    tokio::time::sleep(LEASE * 3).await;
    let status = s.recovery_status().expect("it goes on");
    assert_eq!(status.waiting_for, [id]);
    let state = s.snapshot();
    assert!(state.nodes().all(|node| node.status == NodeStatus::Ready), "nothing is counted as lost");
    let collected = s.collect_garbage().await;
    assert!(collected.is_ok_and(|c| c.jobs == 0), "nothing is there to be collected");
    s.excuse_node(id).await.unwrap();
    until(s, "the recovery is over", |state| state.cluster().recovery.is_none()).await;
    running(s, "near", 4).await;
    assert_eq!(s.snapshot().node(id).unwrap().status, NodeStatus::Down);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_lost_its_mark_is_compared_before_it_is_told_anything() {
    let dir = tempfile::tempdir().unwrap();
    let p = Provider::default();
    let server = start_in(dir.path()).await;
    let mut nodes = vec![FakeNode::join_for_good(server.handle(), remote_node(1), &p).await];
    submit(server.handle(), job("near", 2)).await;
    running(server.handle(), "near", 2).await;
    server.shutdown().await;
    let backup = copy(dir.path());

    // Servers that know all that it has: they give it a new mark, and nobody else notices.
    let server = start_in(dir.path()).await;
    let s = server.handle();
    nodes[0].view().mark_lost = true;
    nodes = moved(nodes, s, &p);
    nodes[0].until("it follows", |view| view.inventories == 1 && !view.mark_lost && !view.holds && view.full > 1).await;
    assert!(s.recovery_status().is_none(), "one damaged record is no recovery");
    submit(s, job("near-after", 1)).await;
    submit(s, remote_job("far-after", 1)).await;
    running(s, "near-after", 1).await;
    running(s, "far-after", 1).await;
    let before = exists(&nodes, &p);
    server.shutdown().await;

    // Servers from the past, which its mark would have told.
    let server = start_in(backup.path()).await;
    let s = server.handle();
    nodes[0].view().mark_lost = true;
    nodes = moved(nodes, s, &p);
    until(s, "what it has is unknown to them", |state| {
        state
            .cluster()
            .recovery
            .as_ref()
            .is_some_and(|recovery| recovery.cause.contains("has lost the record of what it has acted on"))
    })
    .await;
    until(s, "the recovery is over", |state| state.cluster().recovery.is_none()).await;
    for (id, count) in [("near", 2), ("near-after", 1), ("far-after", 1)] {
        running(s, id, count).await;
    }
    assert_eq!(exists(&nodes, &p), before, "0 killed, 0 doubled");
    server.shutdown().await;
}

/// A store that several servers share, as far as recoveries are concerned.
#[derive(Debug, Default)]
struct Restored {
    store: MemoryStore,
    /// Another server has led since the loss was found, and has recovered from it.
    recovered: bool,
    noted: AtomicU64,
}

impl Store for Restored {
    fn load(&self) -> Result<Contents, StoreError> {
        self.store.load()
    }
    fn acquire(&self) -> Result<Fence, StoreError> {
        self.store.acquire()
    }
    fn submit(&self, batch: Batch, done: Done) {
        self.store.submit(batch, done);
    }
    fn watch(&self, index: u64) -> Result<Watch, StoreError> {
        self.store.watch(index)
    }
    fn still_lost(&self, _: store::Lost) -> bool {
        !self.recovered
    }
    fn note_recovery(&self, index: u64) -> Result<(), StoreError> {
        self.noted.store(index, Relaxed);
        Ok(())
    }
    fn probe(&self) -> Result<(), StoreError> {
        self.store.probe()
    }
    fn close(&self) {
        self.store.close();
    }
    fn stats(&self) -> StoreStats {
        self.store.stats()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_that_another_server_has_ended_is_not_begun_again() {
    for recovered in [false, true] {
        let store = Arc::new(Restored { recovered, ..Restored::default() });
        let lost = Some(store::Lost { found: 0, acknowledged: 5 });
        let around = Surroundings { store: Some(store.clone()), lost, ..Surroundings::default() };
        let server = Server::start_in(ServerConfig::default(), around).await.unwrap();
        let s = server.handle();
        assert_eq!(s.recovery_status().is_none(), recovered);
        if !recovered {
            s.end_recovery().await.unwrap();
            eventually("the others are told", || store.noted.load(Relaxed) > 1_000_000).await;
            assert!(s.recovery_status().is_none() && store.noted.load(Relaxed) <= s.snapshot().latest_index());
        }
        server.shutdown().await;
    }
}
