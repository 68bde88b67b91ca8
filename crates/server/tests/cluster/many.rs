//! Thousands of remote tasks on few nodes: what happens to one of them costs what it costs where there is one.

use std::time::Instant;

use model::{ClientStatus, NodeStatus, Observed};

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
