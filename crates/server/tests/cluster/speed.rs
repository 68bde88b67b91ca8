//! What a burst costs in transactions, and the measurement of placements that `cargo xtask bench placements` runs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use model::ClientStatus;

use crate::{fake::*, test_store::TestStore};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_updates_becomes_few_transactions() {
    let dir = tempfile::tempdir().unwrap();
    // With the usual margin here the node is taken for lost on a busy machine while it reports.
    let config = server::ServerConfig { data_dir: Some(dir.path().to_owned()), ..Default::default() }.with_lease(LEASE);
    let config = server::ServerConfig { lease_margin: PATIENCE, ..config };
    let server = server::Server::start(config).await.unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_told_that_a_plan_follows_the_registration_of_its_job() {
    let store = Arc::new(TestStore::default());
    let around = server::Surroundings { store: Some(store.clone()), ..Default::default() };
    let config = server::ServerConfig { workers: 1, ..Default::default() };
    let server = server::Server::start_in(config, around).await.unwrap();
    let s = server.handle();
    store.stand();
    let job = tokio::spawn({
        let s = s.clone();
        async move { submit(&s, batch_job("job", 1)).await }
    });
    eventually("the plan waits behind the registration", || store.waits() == 2).await;
    assert_eq!(store.more(), [true, false]);
    store.go_on();
    job.await.unwrap();
    // What asks for no plan: nothing follows it.
    store.stand();
    let space = state::NamespaceRecord { name: "dev".into(), ..Default::default() };
    let space = tokio::spawn({
        let s = s.clone();
        async move { s.put_namespace(space).await }
    });
    eventually("the namespace waits", || store.waits() == 1).await;
    assert_eq!(store.more(), [false]);
    store.go_on();
    space.await.unwrap().unwrap();
    server.shutdown().await;
}

/// The nodes of the measurement below, in a process of their own: they say hello, many over one connection, and then
/// only listen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by `placements` as a process of its own"]
async fn quiet_nodes() {
    use api::node_rpc::{FromNode, FromNodeMessage, node_service_client::NodeServiceClient};
    let Ok(address) = std::env::var("SERVER_TEST_ADDRESS") else { return };
    let mut listeners = Vec::new();
    let mut client = None;
    for number in 0..setting("NODES", 5000) {
        if number % 100 == 0 {
            client = Some(NodeServiceClient::connect(address.clone()).await.unwrap());
        }
        let node = node(number + 1);
        let (tx, rx) = tokio::sync::mpsc::channel::<FromNode>(1);
        tx.send(FromNodeMessage::Hello(hello(&node)).into()).await.unwrap();
        let mut client = client.clone().unwrap();
        listeners.push(tokio::spawn(async move {
            let mut from = client.session(tokio_stream::wrappers::ReceiverStream::new(rx)).await.unwrap().into_inner();
            while let Ok(Some(_)) = from.message().await {}
            drop(tx);
        }));
    }
    for listener in listeners {
        let _ = listener.await;
    }
}

/// Ends the nodes with the measurement, however it ends.
pub(crate) struct Nodes(pub(crate) std::process::Child);

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn setting(name: &str, default: u128) -> u128 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// Placements per second, commit on disk included, and what the server then takes: `cargo xtask bench placements`
/// runs this.
#[test]
#[ignore = "a measurement: needs optimisation and an idle machine to say anything"]
fn placements() {
    // As the program does before its first thread.
    heap::limit_arenas(heap::arenas(2));
    heap::part_large_pieces();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(place());
}

async fn place() {
    let (nodes, jobs, each) = (setting("NODES", 5000), setting("JOBS", 1), setting("EACH", 10_000));
    let dir = tempfile::tempdir().unwrap();
    let lease = Duration::from_secs(600);
    let config = server::ServerConfig { data_dir: Some(dir.path().to_owned()), ..Default::default() }.with_lease(lease);
    let server = server::Server::start(config).await.unwrap();
    let s = server.handle();
    let start = Instant::now();
    let process = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["speed::quiet_nodes", "--exact", "--ignored"])
        .env("SERVER_TEST_ADDRESS", format!("http://{}", s.rpc_addr()))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let process = Nodes(process);
    until(s, "all nodes are ready", |state| state.nodes().filter(|node| node.ready()).count() == nodes as usize).await;
    println!("{nodes} nodes registered in {:?}, {:.0} MiB", start.elapsed(), rss_mib());
    // With SESSIONS=0 the nodes are only known, as in measurements that register them over HTTP.
    let process = Some(process).filter(|_| setting("SESSIONS", 1) == 1);
    if process.is_none() {
        while s.stats().sessions > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("sessions closed: {:.0} MiB", rss_mib());
    }
    let before = s.stats();
    let start = Instant::now();
    let mut submitted = Vec::new();
    for n in 0..jobs {
        let mut job = batch_job(&format!("job-{n}"), i32::try_from(each).unwrap());
        resources(&mut job, 100, 100);
        let s = s.clone();
        submitted.push(tokio::spawn(async move { submit(&s, job).await }));
    }
    let total = (jobs * each) as usize;
    until(s, "everything is placed", |state| state.alloc_count() == total).await;
    let took = start.elapsed();
    let after = s.stats();
    println!(
        "{jobs} jobs of {each} on {nodes} nodes: {took:?}, {:.0} placements/s, {} commits, {} transactions, {} \
            partial, {:.0} MiB",
        total as f64 / took.as_secs_f64(),
        after.commits - before.commits,
        after.syncs - before.syncs,
        after.plans_partial,
        rss_mib()
    );
    // For `cargo xtask bench placements`: per second, MiB.
    println!("figures {:.0} {:.1}", total as f64 / took.as_secs_f64(), rss_mib());
    drop(process);
    server.shutdown().await;
}
