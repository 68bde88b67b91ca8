//! Thousands of remote tasks on few nodes: what happens to one of them costs what it costs where there is one.

use std::time::Instant;

use api::node_rpc::{
    FromNode, FromNodeMessage, Heartbeat, Hello, ToNodeMessage, node_service_client::NodeServiceClient,
};
use model::{ClientStatus, NodeStatus, Observed};
use server::ServerHandle;

use crate::fake::*;

/// A node for thousands.
fn roomy(number: u128) -> model::Node {
    let mut node = remote_node(number);
    node.resources.cpu.cpu_shares = 100_000;
    node.resources.memory.memory_mb = 100_000;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_more_remote_task_is_no_look_at_the_others() {
    const MANY: usize = 300;
    const MORE: usize = 20;
    let s = &start_patient().await;
    let p = Provider::default();
    let _node = FakeNode::join(s, roomy(1), Fate::Runs, &p).await;
    let mut job = remote_job("many", i32::try_from(MANY).unwrap());
    resources(&mut job, 1, 10);
    submit(s, job).await;
    until(s, "all run and are rolled out", |state| {
        live(state, "many", ClientStatus::Running).len() == MANY && state.deployments().all(|d| !d.status.active())
    })
    .await;
    let before = s.stats();
    for n in 0..MORE {
        let id = format!("one-{n}");
        let mut one = remote_job(&id, 1);
        resources(&mut one, 1, 10);
        submit(s, one).await;
        until(s, "one more runs and is rolled out", |state| {
            live(state, &id, ClientStatus::Running).len() == 1 && state.deployments().all(|d| !d.status.active())
        })
        .await;
    }
    let after = s.stats();
    // The life of one until then: placed, committed, created, seen to run; each may be looked at more than once. What
    // the many have left to look at when the first of these comes, is looked at once.
    let most = u64::try_from(MORE * 40 + 4 * MANY).unwrap();
    let (sessions, slots) = (after.session_looks - before.session_looks, after.slot_looks - before.slot_looks);
    assert!(
        sessions < most && slots < most,
        "for {MORE} beside {MANY}, sessions have looked at {sessions}, the supervision at {slots}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_get_going_within_a_short_lease() {
    const MANY: usize = 3000;
    let s = &start().await;
    let p = Provider::default();
    let nodes = [FakeNode::join(s, roomy(1), Fate::Runs, &p).await, FakeNode::join(s, roomy(2), Fate::Runs, &p).await];
    let start = Instant::now();
    let mut job = remote_job("many", i32::try_from(MANY).unwrap());
    resources(&mut job, 1, 10);
    submit(s, job).await;
    // A busy machine may take its time, as long as it goes on.
    let running = |state: &state::State| live(state, "many", ClientStatus::Running).len();
    let mut so_far = 0;
    while so_far < MANY {
        so_far = running(&*until(s, "more of them run", |state| running(state) > so_far).await);
    }
    until(s, "all run", |state| {
        running(state) == MANY && state.remote_tasks().all(|r| r.observed == Observed::Running)
    })
    .await;
    println!("{MANY} remote tasks ran after {:?}: {:?}", start.elapsed(), s.stats());
    let state = s.snapshot();
    for node in &nodes {
        assert_eq!(state.node(node.id()).unwrap().status, NodeStatus::Ready, "no lease was lost over it");
    }
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop), p.most_live()), (MANY, 0, 1));
}

/// A node that runs so many jobs, each with a text of so many bytes.
async fn with_large_jobs(s: &ServerHandle, p: &Provider, jobs: usize, bytes: usize) -> FakeNode {
    let runs = FakeNode::in_pieces(s, roomy(1), p);
    for n in 0..jobs {
        let id = format!("large-{n}");
        let mut large = job(&id, 1);
        resources(&mut large, 1, 10);
        large.meta = [("text".to_owned(), "x".repeat(bytes))].into_iter().collect();
        submit(s, large).await;
        until(s, "it runs", |state| live(state, &id, ClientStatus::Running).len() == 1).await;
    }
    runs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_comes_back_to_more_than_a_message_holds() {
    const JOBS: usize = 9;
    let s = &start_patient().await;
    let p = Provider::default();
    // Nearly as long as a job may be.
    drop(with_large_jobs(s, &p, JOBS, 15 << 19).await.leave());
    let again = FakeNode::in_pieces(s, roomy(1), &p);
    testkit::eventually("it hears of all", || {
        let view = again.view();
        let heard = (view.full, view.allocs.len(), view.jobs_received, view.goodbye.clone());
        if heard == (1, JOBS, JOBS, None) { Ok(()) } else { Err(format!("{heard:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_is_answered_while_a_long_set_is_told() {
    // More pieces than the queue to a node takes.
    const JOBS: usize = 30;
    let s = &start_patient().await;
    drop(with_large_jobs(s, &Provider::default(), JOBS, 5 << 18).await.leave());
    let (tx, rx) = tokio::sync::mpsc::channel::<FromNode>(2);
    let hello = Hello { takes_pieces: true, ..hello(&roomy(1)) };
    tx.send(FromNodeMessage::Hello(hello).into()).await.unwrap();
    tx.send(FromNodeMessage::Heartbeat(Heartbeat { seq: 1, ..Heartbeat::default() }).into()).await.unwrap();
    let mut client = NodeServiceClient::connect(format!("http://{}", s.rpc_addr())).await.unwrap();
    let mut session = client.session(tokio_stream::wrappers::ReceiverStream::new(rx)).await.unwrap().into_inner();
    let (mut pieces, mut answered) = (0, false);
    loop {
        match soon(session.message()).await.unwrap().expect("it goes on").message {
            Some(ToNodeMessage::HeartbeatAck(ack)) => answered = ack.seq == 1,
            Some(ToNodeMessage::Allocs(allocs)) => {
                pieces += 1;
                if !allocs.more {
                    break;
                }
            }
            _ => {}
        }
    }
    assert_eq!((pieces, answered), (JOBS, true));
}
