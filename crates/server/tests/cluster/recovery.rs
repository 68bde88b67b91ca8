//! Servers whose state is from the past: nothing that runs is killed, doubled or orphaned, whatever they start with.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use api::node_rpc::{Allocs, Inventory, RemoteOrders, to_json};
use model::{
    AllocId, Allocation, ClientStatus, ClusterId, IncarnationId, Job, Node, NodeStatus, RemoteOrder, SlotKey, SlotParts,
};
use server::{
    ErrorClass, Server, ServerConfig, ServerHandle, StartError, Surroundings,
    requests::{DeregisterJob, RegisterJob},
};
use uuid::Uuid;

use crate::{fake::*, identities::ask, test_store::TestStore};

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
        let alloc = *nodes[0].view().runs().first().expect("it has some");
        let unsigned = ask(&nodes[0], alloc, "t", &["default"]).await;
        assert!(unsigned.signed.is_empty() && unsigned.retry && unsigned.error.contains("began empty"), "{unsigned:?}");
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
    // An agent that stands still for longer than its lease is none that a copy throws out.
    let s = &start_patient().await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_that_another_server_has_ended_is_not_begun_again() {
    for recovered in [false, true] {
        let store = Arc::new(TestStore::with_loss(recovered));
        let lost = Some(store::Lost { found: 0, acknowledged: 5 });
        let around = Surroundings { store: Some(store.clone()), lost, ..Surroundings::default() };
        // Without the name of the cluster nothing begins on a store that has lost everything.
        let cluster_id = Some(ClusterId(Uuid::from_u128(7)));
        let server = Server::start_in(ServerConfig { cluster_id, ..ServerConfig::default() }, around).await.unwrap();
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

/// What an inventory says of one allocation.
fn says(alloc: &Allocation, job: Vec<u8>, proof: &str) -> Allocs {
    let alloc = Allocation { job: None, client_status: ClientStatus::Running, ..alloc.clone() };
    Allocs {
        allocs_json: vec![to_json(&alloc)],
        jobs_json: vec![job],
        proofs: vec![proof.to_owned()],
        ..Allocs::default()
    }
}

/// An allocation of a job that whoever has the way in of a node has made up.
fn made_up(node: &Node, job: &Job) -> Allocation {
    Allocation {
        id: AllocId(Uuid::from_u128(0xbad)),
        node_id: node.id,
        namespace: job.namespace.clone(),
        job_id: job.id.clone(),
        job_version: job.version,
        name: model::alloc::alloc_name(job.id.as_str(), "g", 0).into(),
        task_group: "g".into(),
        alloc_modify_index: 1 << 20,
        ..Allocation::default()
    }
}

/// A node that says to have acted on a later state, and to have this.
fn claims(s: &ServerHandle, number: u128, p: &Provider, said: Inventory) -> FakeNode {
    let member = Some((s.cluster_id().to_string(), Uuid::from_u128(0xbad).to_string(), 5000));
    let mut view = View::default();
    (view.member, view.mark_lost, view.forged) = (member, true, Some(said));
    FakeNode::go_on(s, node(number), Fate::Runs, p, view)
}

/// Another job of the same name, which is to run everywhere.
fn another(id: &str) -> Job {
    let mut job = Job { namespace: "default".into(), ..job(id, 20) };
    (job.version, job.create_index, job.job_modify_index, job.priority) = (1 << 20, 1 << 20, 1 << 20, 90);
    job.task_groups[0].tasks[0].identities = vec![model::task::Identity { name: "aws".into(), ..Default::default() }];
    job
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_thief_of_a_way_in_makes_up_is_not_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let p = Provider::default();
    let server = start_in(dir.path()).await;
    let s = server.handle();
    let honest = FakeNode::join_for_good(s, remote_node(1), &p).await;
    submit(s, job("payments", 2)).await;
    submit(s, remote_job("far", 1)).await;
    running(s, "payments", 2).await;
    running(s, "far", 1).await;
    let registered = s.snapshot().job(&key("payments")).unwrap().clone();
    let record = s.snapshot().remote_task(&slot("far")).unwrap().clone();
    let before = exists(std::slice::from_ref(&honest), &p);

    let (forged, stranger) = (another("payments"), Job { namespace: "stolen".into(), ..another("stranger") });
    let alloc = made_up(&node(9), &forged);
    let mut allocs = says(&alloc, to_json(&forged), "");
    let second = Allocation { id: AllocId(Uuid::from_u128(0xbad2)), ..made_up(&node(9), &stranger) };
    let second = says(&second, to_json(&stranger), &"A".repeat(96));
    allocs.allocs_json.extend(second.allocs_json);
    allocs.jobs_json.extend(second.jobs_json);
    allocs.proofs.extend(second.proofs);
    let order = RemoteOrder {
        slot: slot("far"),
        epoch: 1 << 20,
        driver: "far".into(),
        incarnation: IncarnationId(Uuid::from_u128(0xbad)),
        desired: model::DesiredRemote::Stop,
        ..RemoteOrder::default()
    };
    let orders = RemoteOrders { orders_json: vec![to_json(&order)], ..RemoteOrders::default() };
    let said = Inventory { allocs: Some(allocs), orders: Some(orders), ..Inventory::default() };
    let thief = claims(s, 9, &p, said);
    eventually("it is known who claims", || {
        let status = s.recovery_status().ok_or_else(|| "no recovery".to_owned())?;
        if status.unproven.len() == 1 && status.answered == [honest.id()] { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    // Beyond everything that it would wait for by itself.
    tokio::time::sleep(LEASE * 3).await;
    let status = s.recovery_status().expect("it does not end by itself");
    let [told] = &status.unproven[..] else { panic!("{status:?}") };
    assert_eq!((told.node, told.claims.allocs, told.claims.orders), (thief.id(), 2, 1));
    assert!(told.peer.is_some_and(|peer| peer.ip().is_loopback()), "{told:?}");
    assert!(told.claims.examples[0].contains("of job payments in namespace default"), "{told:?}");
    assert!(status.cause.contains(&thief.id().short()) && status.cause.contains("at 127.0.0.1"), "{}", status.cause);
    let waits = status.waits_for();
    assert!(waits.contains("what nothing proves") && waits.contains("127.0.0.1"), "{waits}");
    let refused = ask(&thief, alloc.id, "t", &["aws"]).await;
    assert!(refused.signed.is_empty() && refused.error.contains("does not belong to this node"), "{refused:?}");

    s.end_recovery().await.unwrap();
    until(s, "the recovery is over", |state| state.cluster().recovery.is_none()).await;
    thief.until("it follows the servers", |view| !view.holds && view.full > 0).await;
    tokio::time::sleep(LEASE).await;
    assert!(s.recovery_status().is_none(), "and begins no other recovery");
    let state = s.snapshot();
    let now = state.job(&key("payments")).unwrap();
    assert_eq!(
        (now.version, now.create_index, now.priority),
        (registered.version, registered.create_index, registered.priority)
    );
    let now = state.remote_task(&slot("far")).unwrap();
    assert_eq!((now.incarnation, now.epoch, now.desired), (record.incarnation, record.epoch, record.desired));
    assert!(state.alloc(alloc.id).is_none() && state.namespace(&"stolen".into()).is_none());
    assert_eq!(state.jobs().count(), 2);
    assert_eq!(exists(std::slice::from_ref(&honest), &p), before, "nothing has ended, moved or started");
    assert!(thief.view().runs().is_empty());
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_is_of_one_node_and_one_job() {
    let dir = tempfile::tempdir().unwrap();
    let p = Provider::default();
    let server = start_in(dir.path()).await;
    let a = FakeNode::join_for_good(server.handle(), node(1), &p).await;
    server.shutdown().await;
    let backup = copy(dir.path());
    let server = start_in(dir.path()).await;
    let nodes = moved(vec![a], server.handle(), &p);
    submit(server.handle(), job("after", 1)).await;
    running(server.handle(), "after", 1).await;
    let (alloc, (text, proof)) = {
        let view = nodes[0].view();
        let alloc = view.allocs.values().next().unwrap().clone();
        let proven = view.proofs[&alloc.id].clone();
        (alloc, proven)
    };
    server.shutdown().await;

    // Servers that have lost the job. Its node is taken, and says that the job is another one.
    let server = start_in(backup.path()).await;
    let s = server.handle();
    let mut job: Job = serde_json::from_slice(&text).unwrap();
    job.priority = 99;
    let said = says(&alloc, to_json(&job), &proof);
    nodes[0].view().forged = Some(Inventory { allocs: Some(said), ..Inventory::default() });
    let nodes = moved(nodes, s, &p);
    // Another node says to have that allocation, with the proof.
    let elsewhere = Allocation { node_id: node(2).id, ..alloc.clone() };
    let said = says(&elsewhere, text.clone(), &proof);
    let b = claims(s, 2, &p, Inventory { allocs: Some(said), ..Inventory::default() });
    eventually("neither is believed", || {
        let status = s.recovery_status().ok_or_else(|| "no recovery".to_owned())?;
        let doubted: Vec<_> = status.unproven.iter().map(|unproven| unproven.node).collect();
        if doubted == [nodes[0].id(), b.id()] { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    for unproven in s.recovery_status().unwrap().unproven {
        assert!(unproven.claims.why.iter().all(|why| why.contains("of something else")), "{unproven:?}");
    }
    assert!(s.snapshot().job(&key("after")).is_none());
    // What the servers have told is taken over by itself.
    nodes[0].view().forged = Some(Inventory { allocs: Some(says(&alloc, text, &proof)), ..Inventory::default() });
    let nodes = moved(nodes, s, &p);
    until(s, "the job is back", |state| state.job(&key("after")).is_some_and(|job| job.priority != 99)).await;
    assert!(s.recovery_status().is_some(), "the other node waits for a person");
    s.end_recovery().await.unwrap();
    running(s, "after", 1).await;
    assert_eq!(nodes[0].view().runs(), [alloc.id].into());
    server.shutdown().await;
}

/// Servers that have lost the job `after` of a node of a release without proofs.
async fn without_proofs(p: &Provider) -> (Server, tempfile::TempDir, Vec<FakeNode>) {
    let dir = tempfile::tempdir().unwrap();
    let server = start_in(dir.path()).await;
    let a = FakeNode::join_for_good(server.handle(), remote_node(1), p).await;
    server.shutdown().await;
    let backup = copy(dir.path());
    let server = start_in(dir.path()).await;
    let nodes = moved(vec![a], server.handle(), p);
    submit(server.handle(), job("after", 2)).await;
    submit(server.handle(), remote_job("far-after", 1)).await;
    running(server.handle(), "after", 2).await;
    running(server.handle(), "far-after", 1).await;
    server.shutdown().await;
    let server = start_in(backup.path()).await;
    nodes[0].view().without_proofs = true;
    let nodes = moved(nodes, server.handle(), p);
    let s = server.handle();
    eventually("it is not believed", || s.recovery_status().is_some_and(|status| status.unproven.len() == 1)).await;
    tokio::time::sleep(LEASE * 3).await;
    let claims = &s.recovery_status().expect("a person decides").unproven[0].claims;
    assert_eq!((claims.allocs, claims.orders), (3, 1), "{claims:?}");
    assert!(claims.why.iter().all(|why| why.contains("there is no proof")), "{claims:?}");
    (server, backup, nodes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_believes_is_taken_over() {
    let p = Provider::default();
    let (server, _dir, nodes) = without_proofs(&p).await;
    let s = server.handle();
    let before = exists(&nodes, &p);
    let nobody = s.accept_node(node(5).id).await.unwrap_err();
    assert!(nobody.to_string().contains("is not connected"), "{nobody}");
    s.accept_node(nodes[0].id()).await.unwrap();
    until(s, "the recovery is over", |state| state.cluster().recovery.is_none()).await;
    running(s, "after", 2).await;
    running(s, "far-after", 1).await;
    assert_eq!(exists(&nodes, &p), before, "0 killed, 0 doubled");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_that_ends_without_a_node_is_the_last_one() {
    let p = Provider::default();
    let (server, _dir, nodes) = without_proofs(&p).await;
    let s = server.handle();
    s.end_recovery().await.unwrap();
    nodes[0].until("it follows the servers", |view| !view.holds && view.runs().is_empty()).await;
    tokio::time::sleep(LEASE).await;
    assert!(s.recovery_status().is_none() && s.snapshot().jobs().next().is_none());
    server.shutdown().await;
}
