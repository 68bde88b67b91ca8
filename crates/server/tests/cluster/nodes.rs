//! Nodes: sessions, leases, loss, drain.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use api::node_rpc::{
    FromNode, FromNodeMessage, Heartbeat, Hello, PROTOCOLS, ToNodeMessage, node_service_client::NodeServiceClient,
};
use model::{ClientStatus, DesiredStatus, DrainSpec, Eligibility, GoDuration, NodeStatus};
use server::{Server, ServerConfig, ServerHandle, Surroundings, requests::DrainNode};

use crate::{fake::*, test_store::TestStore};

pub(crate) fn drain(node: &FakeNode, deadline: GoDuration) -> DrainNode {
    let spec = DrainSpec { deadline, ignore_system_jobs: false };
    DrainNode {
        node_id: node.id(),
        spec: Some(spec),
        mark_eligible: false,
        meta: [("by".to_owned(), "a test".to_owned())].into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ran_on_a_lost_node_runs_elsewhere() {
    let s = &start().await;
    let p = Provider::default();
    let [a, b] = [FakeNode::join(s, node(1), Fate::Runs, &p).await, FakeNode::join(s, node(2), Fate::Runs, &p).await];
    submit(s, job("web", 4)).await;
    until(s, "all run", |state| live(state, "web", ClientStatus::Running).len() == 4).await;
    let (lost, survivor) = (a.id(), b.id());
    drop(a);
    let state = until(s, "all run on the survivor", |state| {
        let running = live(state, "web", ClientStatus::Running);
        running.len() == 4 && running.iter().all(|alloc| alloc.node_id == survivor)
    })
    .await;
    assert_eq!(state.node(lost).unwrap().status, NodeStatus::Down);
    assert!(state.allocs_by_node(lost).all(|alloc| alloc.client_status == ClientStatus::Lost));
    // It comes back: what it had is not its own any more.
    let a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    assert_eq!(s.snapshot().node(lost).unwrap().status, NodeStatus::Ready);
    assert!(a.view().allocs.values().all(|alloc| alloc.desired_status == DesiredStatus::Stop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_by_heartbeats() {
    let s = &start().await;
    let node = FakeNode::join(s, node(1), Fate::Runs, &Provider::default()).await;
    // Three leases long: nothing but the heartbeats keeps it ready.
    let enough = 12;
    node.until("heartbeats are acknowledged", |view| view.acks > enough).await;
    assert_eq!(s.snapshot().node(node.id()).unwrap().status, NodeStatus::Ready);
}

/// A loss that was decided meanwhile would be stored right after the registration, and the session would renew the
/// lease of a node that is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_registration_is_stored_late_is_ready_and_stays_so() {
    let store = Arc::new(TestStore::default());
    let around = Surroundings { store: Some(store.clone()), ..Surroundings::default() };
    let config = ServerConfig { workers: 1, ..ServerConfig::default().with_lease(LEASE) };
    let server = Server::start_in(config, around).await.expect("the server starts");
    let s = server.handle();
    store.stand();
    let late = FakeNode::connect(s, node(1), Fate::Runs, &Provider::default());
    eventually("its registration, which waits for the disk", || store.waits() > 0).await;
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(store.waits(), 1, "nothing else is decided of it, and of others there is nothing to decide");
    store.go_on();
    // More than have waited for the welcome.
    late.until("heartbeats are acknowledged", |view| view.acks > 12).await;
    until(s, "it is ready", |state| state.node(late.id()).is_some_and(|node| node.ready())).await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_session_replaces_the_first() {
    let s = &start_patient().await;
    let p = Provider::default();
    let first = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    let _second = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    first.until("the first is told", |view| view.goodbye.is_some()).await;
    assert_eq!(s.stats().sessions, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused() {
    let s = &start_patient().await;
    let p = Provider::default();
    let _node = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    let mut thief = node(1);
    thief.secret_id = "guessed".into();
    let thief = FakeNode::connect(s, thief, Fate::Runs, &p);
    thief
        .until("the thief is refused", |view| {
            view.goodbye.as_ref().is_some_and(|(why, retry)| why.contains("secret") && !retry)
        })
        .await;
    let mut lost = node(2);
    lost.pool = "all".to_owned();
    let lost = FakeNode::connect(s, lost, Fate::Runs, &p);
    lost.until("the built-in pool is refused", |view| {
        view.goodbye.as_ref().is_some_and(|(why, retry)| why.contains("pool") && !retry)
    })
    .await;
    assert_eq!(s.snapshot().node_count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_moves_services_in_steps() {
    let s = &start_patient().await;
    let p = Provider::default();
    let a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    submit(s, job("web", 3)).await;
    until(s, "all run", |state| live(state, "web", ClientStatus::Running).len() == 3).await;
    let b = FakeNode::join(s, node(2), Fate::Runs, &p).await;
    let watcher = {
        let (s, from) = (server::ServerHandle::clone(s), s.snapshot().latest_index());
        tokio::spawn(async move {
            // Never more than one of three away.
            let (mut index, mut fewest) = (from, usize::MAX);
            loop {
                let state = s.wait_for(index, PATIENCE, any_change, |state| state.latest_index()).await;
                index = state.latest_index();
                let wanted = state
                    .allocs()
                    .filter(|alloc| alloc.desired_status == DesiredStatus::Run && !alloc.client_terminal());
                fewest = fewest.min(wanted.filter(|alloc| alloc.client_status == ClientStatus::Running).count());
                if state.nodes().all(|node| node.drain.is_none()) {
                    return fewest;
                }
            }
        })
    };
    let started = s.drain_node(drain(&a, GoDuration::from_secs(3600))).await.unwrap();
    assert!(started.eval_ids.is_empty(), "the drainer says who leaves: {started:?}");
    let (drained, other) = (a.id(), b.id());
    let state = until(s, "the drain is complete", |state| {
        state.node(drained).is_some_and(|node| node.drain.is_none())
            && live(state, "web", ClientStatus::Running).iter().filter(|alloc| alloc.node_id == other).count() == 3
    })
    .await;
    let node = state.node(drained).unwrap();
    assert_eq!(node.eligibility, Eligibility::Ineligible);
    assert_eq!(node.last_drain.as_ref().unwrap()["Status"], "complete");
    assert_eq!(node.last_drain.as_ref().unwrap()["Meta"]["by"], "a test");
    assert!(watcher.await.unwrap() >= 2);
    assert!(s.set_node_eligibility(drained, Eligibility::Eligible).await.is_ok());
    // A drain that is over cannot be cancelled any more.
    s.drain_node(DrainNode { node_id: drained, spec: None, mark_eligible: true, meta: Default::default() })
        .await
        .unwrap();
    assert_eq!(s.snapshot().node(drained).unwrap().last_drain.as_ref().unwrap()["Status"], "complete");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_batch_jobs_finish_until_its_deadline() {
    let (s, a) = &with_node(Fate::Runs).await;
    submit(s, batch_job("sum", 1)).await;
    until(s, "it runs", |state| live(state, "sum", ClientStatus::Running).len() == 1).await;
    let begun = Instant::now();
    s.drain_node(drain(a, GoDuration::from_millis(400))).await.unwrap();
    let left = |state: &state::State| live(state, "sum", ClientStatus::Running).is_empty();
    until(s, "the deadline has come", left).await;
    assert!(begun.elapsed() >= Duration::from_millis(400), "it may finish until then: {:?}", begun.elapsed());
    drained(s, a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purged_node_is_forgotten_and_may_come_again() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    submit(s, job("web", 1)).await;
    until(s, "it runs", |state| live(state, "web", ClientStatus::Running).len() == 1).await;
    // Not while it is connected: somebody else could take its id meanwhile.
    let id = a.id();
    let refused = s.purge_node(id).await.unwrap_err();
    assert!(refused.to_string().contains("is connected"), "{refused}");
    drop(a);
    testkit::poll("its purge, once it has left", async || s.purge_node(id).await).await;
    until(s, "its allocation is lost", |state| state.allocs().any(|alloc| alloc.client_status == ClientStatus::Lost))
        .await;
    let _again = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    until(s, "it runs again", |state| live(state, "web", ClientStatus::Running).len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_does_not_hold_up_a_shutdown() {
    let server = start().await.0;
    let s = server.handle().clone();
    let node = node(1);
    let (tx, rx) = tokio::sync::mpsc::channel::<FromNode>(1);
    tx.send(FromNodeMessage::Hello(hello(&node)).into()).await.unwrap();
    let mut client = NodeServiceClient::connect(format!("http://{}", s.rpc_addr())).await.unwrap();
    // It neither reads nor closes its stream.
    let session = client.session(tokio_stream::wrappers::ReceiverStream::new(rx)).await.unwrap();
    until(&s, "the node is ready", |state| state.nodes().any(|node| node.ready())).await;
    let begun = Instant::now();
    server.shutdown().await;
    let took = begun.elapsed();
    println!("shut down in {took:?}");
    // What does not end is waited for that long.
    assert!(took < Duration::from_secs(5), "the shutdown has waited for the node: {took:?}");
    drop((session, tx));
}

/// What the server says first to a node that begins so.
async fn answer_to(s: &ServerHandle, hello: Hello) -> ToNodeMessage {
    let (tx, rx) = tokio::sync::mpsc::channel::<FromNode>(2);
    tx.send(FromNodeMessage::Hello(hello).into()).await.unwrap();
    // A message that no release knows yet is read as this one.
    tx.send(FromNode { message: None }).await.unwrap();
    let mut client = NodeServiceClient::connect(format!("http://{}", s.rpc_addr())).await.unwrap();
    let mut session = client.session(tokio_stream::wrappers::ReceiverStream::new(rx)).await.unwrap().into_inner();
    let first = soon(session.message()).await.unwrap().expect("an answer").message.expect("a known message");
    if matches!(first, ToNodeMessage::Welcome(_)) {
        // The session goes on after the unknown one.
        let heartbeat = Heartbeat { seq: 1, ..Heartbeat::default() };
        tx.send(FromNodeMessage::Heartbeat(heartbeat).into()).await.unwrap();
        while !matches!(soon(session.message()).await.unwrap().expect("it goes on").message,
            Some(ToNodeMessage::HeartbeatAck(ack)) if ack.seq == 1)
        {}
    }
    first
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_other_releases_are_taken_in_a_protocol_that_both_speak() {
    let s = &start().await;
    let (oldest, newest) = (*PROTOCOLS.start(), *PROTOCOLS.end());
    // A node of before, which names one version; one of this release; a newer one.
    for (number, newest_protocol) in [(1, 0), (2, newest), (3, newest + 5)] {
        let hello = Hello { newest_protocol, ..hello(&node(number)) };
        match answer_to(s, hello).await {
            ToNodeMessage::Welcome(welcome) => {
                assert_eq!(welcome.protocol, newest_protocol.clamp(oldest, newest), "{newest_protocol}");
            }
            other => panic!("{newest_protocol}: {other:?}"),
        }
    }
    let far = Hello { protocol: newest + 1, newest_protocol: newest + 2, ..hello(&node(4)) };
    match answer_to(s, far).await {
        ToNodeMessage::Goodbye(goodbye) => {
            let theirs = format!("speaks version {} to {} of the node protocol", newest + 1, newest + 2);
            assert!(goodbye.reason.contains(&theirs) && !goodbye.retry, "{goodbye:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(s.snapshot().nodes().count(), 3, "the last one is not registered");
}
