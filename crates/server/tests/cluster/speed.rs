//! Latency and throughput, with bounds that hold on a busy machine without optimisation; the benches measure properly.

use std::time::{Duration, Instant};

use model::ClientStatus;

use crate::fake::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_reaches_its_node_at_once() {
    let server = start().await;
    let s = server.handle();
    let a = FakeNode::join(s, node(1), Fate::Silent, &Provider::default()).await;
    let mut times = Vec::new();
    for n in 0..20 {
        let before = a.view().allocs.len();
        let start = Instant::now();
        submit(s, batch_job(&format!("job-{n}"), 1)).await;
        while a.view().allocs.len() == before {
            assert!(start.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        times.push(start.elapsed());
    }
    times.sort();
    println!("submit → pushed to the node: p50 {:?}, worst {:?}", times[10], times[19]);
    assert!(times[10] < Duration::from_millis(100), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_updates_becomes_few_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_with(server::ServerConfig { data_dir: Some(dir.path().to_owned()), ..Default::default() }).await;
    let s = server.handle();
    let _a = FakeNode::join(s, node(1), Fate::Completes, &Provider::default()).await;
    let before = s.stats();
    let start = Instant::now();
    let mut job = batch_job("sum", 400);
    resources(&mut job, 1, 10);
    submit(s, job).await;
    until(s, "all are complete", |state| live(state, "sum", ClientStatus::Complete).len() == 400).await;
    let after = s.stats();
    println!(
        "400 short tasks: {:?}, {} commits, {} transactions",
        start.elapsed(),
        after.commits - before.commits,
        after.syncs - before.syncs
    );
    assert!(after.syncs - before.syncs < 60);
    server.shutdown().await;
}
