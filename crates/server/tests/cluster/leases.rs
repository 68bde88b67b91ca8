//! What short leases of many nodes cost, and whether they hold while the server works: the measurement that `cargo
//! xtask bench leases` runs.

use std::{
    collections::HashMap,
    io::Read,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use api::node_rpc::{
    FromNode, FromNodeMessage, Heartbeat, ToNode, ToNodeMessage, node_service_client::NodeServiceClient,
};
use model::{NodeId, StoreIndex};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::{
    fake::*,
    speed::{Nodes, setting},
};

/// What nodes have seen of their leases.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// How often a lease was over before the servers answered.
    lapses: u64,
    /// The longest that an answer took.
    slowest: Duration,
}

/// One node that does nothing but keep its lease, by its own clock: counted from when a message was sent.
async fn keep(mut client: NodeServiceClient<Channel>, number: u128, over: CancellationToken) -> Seen {
    let node = node(number);
    let (tx, rx) = mpsc::channel::<FromNode>(4);
    let mut sent = Instant::now();
    tx.send(FromNodeMessage::Hello(hello(&node)).into()).await.unwrap();
    let mut from = client.session(tokio_stream::wrappers::ReceiverStream::new(rx)).await.unwrap().into_inner();
    let (mut seen, mut seq, mut until, mut beat) = (Seen::default(), 0, None::<Instant>, None::<tokio::time::Interval>);
    let mut granted = |sent: Instant, lease_ms: u64| {
        let now = Instant::now();
        seen.slowest = seen.slowest.max(now - sent);
        seen.lapses += u64::from(until.is_some_and(|until| until < now));
        until = Some(sent + Duration::from_millis(lease_ms));
    };
    loop {
        let next = async {
            match &mut beat {
                Some(beat) => drop(beat.tick().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = over.cancelled() => return seen,
            () = next => {
                (seq, sent) = (seq + 1, Instant::now());
                tx.send(FromNodeMessage::Heartbeat(Heartbeat { seq, ..Heartbeat::default() }).into()).await.unwrap();
            }
            message = from.message() => match message.unwrap() {
                Some(ToNode { message: Some(ToNodeMessage::Welcome(welcome)) }) => {
                    granted(sent, welcome.lease_ms);
                    let period = Duration::from_millis(welcome.heartbeat_interval_ms);
                    let mut interval = tokio::time::interval(period);
                    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                    beat = Some(interval);
                }
                Some(ToNode { message: Some(ToNodeMessage::HeartbeatAck(ack)) })
                    if ack.seq == seq => granted(sent, ack.lease_ms),
                Some(_) => {}
                None => panic!("the server has ended the session of node {number}"),
            }
        }
    }
}

/// The nodes of the measurement below, in a process of their own; they stop when its standard input is closed, and
/// print what they have seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by `leases` as a process of its own"]
async fn beating_nodes() {
    let Ok(address) = std::env::var("SERVER_TEST_ADDRESS") else { return };
    let over = CancellationToken::new();
    let mut nodes = tokio::task::JoinSet::new();
    let mut client = None;
    for number in 0..setting("NODES", 1000) {
        if number % 100 == 0 {
            client =
                Some(NodeServiceClient::connect(address.clone()).await.unwrap().max_decoding_message_size(64 << 20));
        }
        nodes.spawn(keep(client.clone().unwrap(), number + 1, over.clone()));
    }
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    over.cancel();
    let all = nodes.join_all().await;
    let (lapses, slowest) =
        (all.iter().map(|s| s.lapses).sum::<u64>(), all.iter().map(|s| s.slowest).max().unwrap_or_default());
    println!("\nseen {lapses} {}", slowest.as_millis());
}

/// The process of the nodes.
fn beating(address: &str) -> Nodes {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["leases::beating_nodes", "--exact", "--ignored", "--nocapture"])
        .env("SERVER_TEST_ADDRESS", format!("http://{address}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Nodes(child)
}

/// Stops the nodes: how many leases they saw run out, and the slowest answer in milliseconds.
fn seen_by(process: &mut Nodes) -> (u64, u64) {
    drop(process.0.stdin.take());
    let mut printed = String::new();
    process.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    let seen: Vec<u64> = printed
        .lines()
        .find_map(|l| l.strip_prefix("seen "))
        .unwrap_or("")
        .split(' ')
        .filter_map(|f| f.parse().ok())
        .collect();
    let [lapses, slowest] = seen[..] else { panic!("the nodes said: {printed}") };
    (lapses, slowest)
}

/// CPU time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.split(' ').skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum::<f64>());
    // A tick is 10 ms.
    fields.unwrap_or(0.0) / 100.0
}

/// A server, and nodes that keep their leases.
struct Fleet {
    server: server::Server,
    /// How many, and their lease.
    nodes: u64,
    lease: Duration,
    process: Nodes,
    /// Versions of the nodes when all were ready.
    indexes: HashMap<NodeId, StoreIndex>,
    _dir: tempfile::TempDir,
}

/// What became of the nodes.
struct Outcome {
    /// Nodes that the server took for lost.
    lost: usize,
    /// Leases that nodes saw run out.
    lapses: u64,
    /// Milliseconds to the slowest answer to a heartbeat.
    slowest: u64,
}

impl Fleet {
    async fn start() -> Self {
        let (nodes, lease) = (setting("NODES", 1000) as u64, Duration::from_millis(setting("LEASE_MS", 2000) as u64));
        let dir = tempfile::tempdir().unwrap();
        let config = server::ServerConfig { data_dir: Some(dir.path().to_owned()), ..Default::default() };
        let server = server::Server::start(config.with_lease(lease)).await.unwrap();
        let process = beating(&server.handle().rpc_addr().to_string());
        let ready = |state: &state::State| state.nodes().filter(|node| node.ready()).count() == nodes as usize;
        let first = until(server.handle(), "all nodes are ready", ready).await;
        let indexes = first.nodes().map(|node| (node.id, node.modify_index)).collect();
        Self { server, nodes, lease, process, indexes, _dir: dir }
    }

    /// Ends the nodes.
    fn seen(&mut self, last: &state::State) -> Outcome {
        let lost = last.nodes().filter(|node| self.indexes.get(&node.id) != Some(&node.modify_index)).count();
        let (lapses, slowest) = seen_by(&mut self.process);
        Outcome { lost, lapses, slowest }
    }
}

impl std::fmt::Display for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} nodes with a lease of {:?}", self.nodes, self.lease)
    }
}

/// Many nodes with a short lease: what keeping them costs the server in peace, and whether any is lost while jobs are
/// placed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: needs optimisation and an idle machine to say anything"]
async fn leases() {
    let (peace, jobs) = (Duration::from_secs(setting("SECONDS", 30) as u64), setting("JOBS", 100));
    let mut fleet = Fleet::start().await;
    let s = fleet.server.handle();
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    tokio::time::sleep(peace).await;
    let share = (cpu_seconds() - cpu) / begun.elapsed().as_secs_f64() * 100.0;
    for n in 0..jobs {
        let mut job = batch_job(&format!("job-{n}"), 100);
        resources(&mut job, 1, 10);
        submit(s, job).await;
    }
    let last = until(s, "everything is placed", |state| state.alloc_count() == jobs as usize * 100).await;
    let Outcome { lost, lapses, slowest } = fleet.seen(&last);
    println!(
        "{fleet}: {share:.1} % of a core, {lost} lost, {lapses} lapses, slowest \
            answer {slowest} ms"
    );
    // For `cargo xtask bench leases`: per cent, nodes, lapses, milliseconds.
    println!("figures {share:.1} {lost} {lapses} {slowest}");
    fleet.server.shutdown().await;
}

/// Many periodic jobs at one minute: how long after it all are launched, and all placed, and whether a lease is delayed
/// by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: needs optimisation and an idle machine to say anything"]
async fn periodic() {
    let jobs = setting("JOBS", 10_000) as usize;
    let mut fleet = Fleet::start().await;
    let s = fleet.server.handle();
    // A minute that leaves time to register them.
    let unix = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let minute = (unix().as_secs() + 40) / 60 + 1;
    let spec = format!("{} {} * * *", minute % 60, minute / 60 % 24);
    let mut submitted = tokio::task::JoinSet::new();
    for n in 0..jobs {
        let mut job = batch_job(&format!("nightly-{n}"), 1);
        resources(&mut job, 1, 10);
        job.periodic =
            Some(model::job::Periodic { enabled: Some(true), spec: Some(spec.clone()), ..Default::default() });
        let s = s.clone();
        submitted.spawn(async move { submit(&s, job).await });
        if submitted.len() >= 256 {
            submitted.join_next().await;
        }
    }
    submitted.join_all().await;
    let at = Duration::from_secs(minute * 60);
    assert!(unix() < at, "registering {jobs} jobs took longer than there was time");
    assert_eq!(s.snapshot().alloc_count(), 0);
    let children = |state: &state::State| state.jobs().filter(|job| !job.parent_id.is_empty()).count();
    while s.snapshot().jobs().all(|job| job.parent_id.is_empty()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let begun = unix().saturating_sub(at);
    until(s, "all are launched", |state| children(state) == jobs).await;
    let launched = unix().saturating_sub(at);
    let last = until(s, "all are placed", |state| state.alloc_count() == jobs).await;
    let placed = unix().saturating_sub(at);
    let Outcome { lost, lapses, slowest } = fleet.seen(&last);
    println!(
        "{jobs} periodic jobs at one minute, {fleet}: the first launched after {begun:?}, all after \
            {launched:?}, all placed after {placed:?}; {lost} nodes lost, {lapses} lapses, slowest answer {slowest} ms"
    );
    // For `cargo xtask bench periodic`: milliseconds, nodes, lapses, milliseconds.
    println!("figures {} {} {lost} {lapses} {slowest}", launched.as_millis(), placed.as_millis());
    fleet.server.shutdown().await;
}
