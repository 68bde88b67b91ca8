//! One simulated node: its description and its session.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api::node_rpc::{
    AllocUpdates, Allocs, FromNode, FromNodeMessage, Heartbeat, Hello, MAX_MESSAGE_BYTES, PROTOCOLS, ToNodeMessage,
    from_json, node_service_client::NodeServiceClient, to_json,
};
use model::{
    AllocClientUpdate, AllocId, ClientStatus, DeploymentId, DesiredStatus, Node, NodeId, TaskRunState, TaskState,
    alloc::{AllocDeploymentStatus, Happening},
    node::DriverInfo,
};
use serde::Deserialize;
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, MissedTickBehavior},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, transport::Channel};

use crate::{Failure, Seen};

/// After a broken session.
const AGAIN: Duration = Duration::from_millis(500);

/// Messages of a node that wait for its connection.
const QUEUED: usize = 8;

/// The server that all nodes belong to.
#[derive(Debug)]
pub(crate) struct Server {
    /// URL of its node RPC.
    pub(crate) address: String,
    /// Its join secret.
    pub(crate) secret: String,
}

/// The description of a node with room for much: four kinds of them in two datacenters.
pub(crate) fn simulated(number: u32) -> Node {
    let mut node = Node {
        id: NodeId(uuid::Uuid::from_u128(0x5ca1_e000_0000_4000_8000_0000_0000_0000 + u128::from(number))),
        secret_id: format!("secret of node {number}").into(),
        datacenter: format!("dc{}", 1 + number % 2),
        name: format!("simulated-{number}").into(),
        pool: "default".to_owned(),
        class: format!("class-{}", number % 4),
        ..Node::default()
    };
    for (name, value) in [("kernel.name", "linux"), ("cpu.arch", "amd64"), ("driver.raw_exec", "1")] {
        node.attributes.insert(name.into(), value.into());
    }
    let driver = DriverInfo { detected: true, healthy: true, ..DriverInfo::default() };
    node.drivers.insert("raw_exec".to_owned(), driver);
    node.resources.cpu.cpu_shares = 64_000;
    node.resources.memory.memory_mb = 262_144;
    node.resources.disk.disk_mb = 4_000_000;
    node
}

/// What the node reads of an allocation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Told {
    #[serde(rename = "ID")]
    id: AllocId,
    #[serde(rename = "DesiredStatus")]
    desired: DesiredStatus,
    #[serde(rename = "ClientStatus")]
    status: ClientStatus,
    #[serde(rename = "DeploymentID")]
    deployment: DeploymentId,
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// What a node says of an allocation that runs, or has been stopped: with the events of a task that has started.
fn report(told: &Told) -> Option<AllocClientUpdate> {
    let wanted = told.desired == DesiredStatus::Run;
    let status = match told.status {
        ClientStatus::Pending | ClientStatus::Unknown if wanted => ClientStatus::Running,
        ClientStatus::Pending | ClientStatus::Running | ClientStatus::Unknown if !wanted => ClientStatus::Complete,
        _ => return None,
    };
    let now = now_ns();
    let event = |(kind, line): &(&str, &str)| {
        let what = Happening { kind: (*kind).to_owned(), display_message: (*line).to_owned(), ..Happening::default() };
        what.at(now)
    };
    let mut events: Vec<_> = [("Received", "Task received by client"), ("Task Setup", "Building Task Directory")]
        .iter()
        .map(event)
        .collect();
    let (state, last) = match wanted {
        true => (TaskRunState::Running, ("Started", "Task started by client")),
        false => (TaskRunState::Dead, ("Killed", "Task successfully killed")),
    };
    events.push(event(&last));
    let task = TaskState { state, started_at: now.into(), events, ..TaskState::default() };
    let healthy =
        AllocDeploymentStatus { healthy: Some(true), timestamp: now.into(), ..AllocDeploymentStatus::default() };
    Some(AllocClientUpdate {
        id: told.id,
        client_status: status,
        task_states: [("t".into(), task)].into(),
        deployment_status: (wanted && !told.deployment.is_nil()).then_some(healthy),
        ..AllocClientUpdate::default()
    })
}

/// Keeps a session open for as long as it is polled.
pub(crate) async fn run(server: Arc<Server>, node: Node, seen: Arc<Seen>, greetings: Arc<Semaphore>) {
    let hello = Hello {
        node_id: node.id.to_string(),
        secret_id: node.secret_id.reveal().to_owned(),
        node_json: to_json(&node),
        region: "global".to_owned(),
        protocol: *PROTOCOLS.start(),
        instance: format!("fleet-{}", std::process::id()),
        ..Hello::default()
    };
    drop(node);
    loop {
        let session = Session { seen: &seen, hello: &hello, welcome: false };
        let why = match Box::pin(session.serve(&server, &greetings)).await {
            Ok(()) => "the server has closed it".to_owned(),
            Err(why) => why.to_string(),
        };
        seen.broke(why);
        tokio::time::sleep(AGAIN).await;
    }
}

struct Session<'a> {
    seen: &'a Seen,
    hello: &'a Hello,
    welcome: bool,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self.welcome {
            self.seen.welcome.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Session<'_> {
    async fn serve(mut self, server: &Server, greetings: &Semaphore) -> Result<(), Failure> {
        let turn = greetings.acquire().await?;
        let channel = Channel::from_shared(server.address.clone())?.connect().await?;
        let mut client = NodeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let (tx, rx) = mpsc::channel::<FromNode>(QUEUED);
        tx.send(FromNodeMessage::Hello(self.hello.clone()).into()).await?;
        let mut request = Request::new(ReceiverStream::new(rx));
        request.metadata_mut().insert("authorization", format!("Bearer {}", server.secret).parse()?);
        let mut from = client.session(request).await?.into_inner();
        let (mut lease, mut beat) = (Duration::ZERO, tokio::time::interval(Duration::from_secs(3600)));
        let mut turn = Some(turn);
        // The number of each heartbeat and when it was sent; of each report how many allocations it is about.
        let (mut seq, mut beats, mut reports) = (0_u64, VecDeque::<(u64, Instant)>::new(), HashMap::<u64, u64>::new());
        loop {
            seq += 1;
            tokio::select! {
                message = from.message() => match message?.and_then(|message| message.message) {
                    Some(ToNodeMessage::Welcome(welcome)) => {
                        lease = Duration::from_millis(welcome.lease_ms);
                        let between = Duration::from_millis(welcome.heartbeat_interval_ms.max(1));
                        // Nodes that have come together beat at times of their own.
                        let first = between.mul_f64(f64::from(u32::from(fastbyte(&self.hello.node_id))) / 256.0);
                        beat = tokio::time::interval_at(Instant::now() + first, between);
                        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
                        self.welcome = true;
                        self.seen.welcome.fetch_add(1, Ordering::Relaxed);
                        turn = None;
                    }
                    Some(ToNodeMessage::HeartbeatAck(ack)) => {
                        while let Some((_, sent)) = beats.pop_front_if(|(number, _)| *number <= ack.seq) {
                            self.seen.acknowledged(sent.elapsed(), lease);
                        }
                    }
                    Some(ToNodeMessage::Allocs(allocs)) => {
                        let updates_json = answers(&allocs)?;
                        if !updates_json.is_empty() {
                            let many = updates_json.len() as u64;
                            self.seen.reported.fetch_add(many, Ordering::Relaxed);
                            reports.insert(seq, many);
                            tx.send(FromNodeMessage::AllocUpdates(AllocUpdates { seq, updates_json }).into()).await?;
                        }
                    }
                    Some(ToNodeMessage::UpdatesStored(stored)) => {
                        let many = reports.remove(&stored.seq).unwrap_or(0);
                        self.seen.stored.fetch_add(many, Ordering::Relaxed);
                    }
                    Some(ToNodeMessage::Goodbye(goodbye)) => return Err(goodbye.reason.into()),
                    Some(_) => {}
                    None => return Ok(()),
                },
                _ = beat.tick(), if turn.is_none() => {
                    beats.push_back((seq, Instant::now()));
                    tx.send(FromNodeMessage::Heartbeat(Heartbeat { seq, ..Heartbeat::default() }).into()).await?;
                }
            }
        }
    }
}

/// A byte that differs among nodes.
fn fastbyte(id: &str) -> u8 {
    id.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte))
}

/// What the node reports of the allocations that it is told of.
fn answers(allocs: &Allocs) -> Result<Vec<Vec<u8>>, Failure> {
    let mut updates = Vec::new();
    for json in &allocs.allocs_json {
        let told: Told = from_json("an allocation", json)?;
        updates.extend(report(&told).map(|update| to_json(&update)));
    }
    Ok(updates)
}
