//! Nodes that run nothing, and end at once what they should stop: `simulated_nodes HOST:PORT FILE` opens a session
//! for each node of a JSON list and keeps it until its input ends. A line `NODE ALLOCATION STATUS` of the input
//! reports that allocation of that node; each is answered with a line when it is stored. Each node has a connection
//! of its own: for more than a thousand the server needs `limits { rpc_max_conns_per_client = 0 }`.

use std::{
    collections::{BTreeSet, HashMap},
    io::Write as _,
    time::Duration,
};

use api::node_rpc::{
    AllocUpdates, FromNode, FromNodeMessage, Heartbeat, Hello, MAX_MESSAGE_BYTES, PROTOCOLS, ToNodeMessage, from_json,
    node_service_client::NodeServiceClient, to_json,
};
use model::{AllocClientUpdate, AllocId, Allocation, ClientStatus, Node, NodeId, TaskRunState, TaskState};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::mpsc,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Much shorter than any lease.
const BEAT: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let [address, file] =
        std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "usage: simulated_nodes HOST:PORT FILE")?;
    let nodes: Vec<Node> = serde_json::from_slice(&std::fs::read(file)?)?;
    let mut sessions = HashMap::new();
    for node in nodes {
        let (tx, rx) = mpsc::channel(8);
        sessions.insert(node.id, tx);
        let address = format!("http://{address}");
        tokio::spawn(async move {
            if let Err(error) = session(address, node, rx).await {
                eprintln!("a session has ended: {error}");
                std::process::exit(1);
            }
        });
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let [node, alloc, status] =
            line.split(' ').collect::<Vec<_>>().try_into().map_err(|_| format!("not a report: {line}"))?;
        let node: NodeId = node.parse()?;
        let status: ClientStatus = serde_json::from_value(status.into())?;
        sessions.get(&node).ok_or("there is no such node")?.send(report(alloc.parse()?, status)).await?;
    }
    Ok(())
}

async fn session(address: String, node: Node, mut reports: mpsc::Receiver<AllocClientUpdate>) -> Result<(), Failure> {
    let mut client = NodeServiceClient::connect(address).await?.max_decoding_message_size(MAX_MESSAGE_BYTES);
    let (tx, rx) = mpsc::channel::<FromNode>(8);
    let hello = Hello {
        node_id: node.id.to_string(),
        secret_id: node.secret_id.reveal().to_owned(),
        node_json: to_json(&node),
        region: "global".to_owned(),
        protocol: *PROTOCOLS.start(),
        ..Hello::default()
    };
    tx.send(FromNodeMessage::Hello(hello).into()).await?;
    let mut from = client.session(tokio_stream::wrappers::ReceiverStream::new(rx)).await?.into_inner();
    let mut beat = tokio::time::interval(BEAT);
    let mut seq = 0;
    // Reports that somebody has asked for.
    let mut asked = BTreeSet::new();
    loop {
        seq += 1;
        tokio::select! {
            message = from.message() => match message?.and_then(|m| m.message) {
                Some(ToNodeMessage::UpdatesStored(stored)) => if asked.remove(&stored.seq) {
                    writeln!(std::io::stdout(), "stored")?;
                },
                Some(ToNodeMessage::Allocs(allocs)) => {
                    let mut updates_json = Vec::new();
                    for json in &allocs.allocs_json {
                        let alloc: Allocation = from_json("an allocation", json)?;
                        if alloc.server_terminal() && !alloc.client_terminal() {
                            updates_json.push(to_json(&report(alloc.id, ClientStatus::Complete)));
                        }
                    }
                    if !updates_json.is_empty() {
                        tx.send(FromNodeMessage::AllocUpdates(AllocUpdates { seq, updates_json }).into()).await?;
                    }
                }
                Some(ToNodeMessage::Goodbye(goodbye)) => return Err(goodbye.reason.into()),
                Some(_) => {}
                None => return Err("the server has closed it".into()),
            },
            _ = beat.tick() => {
                let heartbeat = Heartbeat { seq, ..Heartbeat::default() };
                tx.send(FromNodeMessage::Heartbeat(heartbeat).into()).await?;
            }
            Some(report) = reports.recv() => {
                asked.insert(seq);
                let update = AllocUpdates { seq, updates_json: vec![to_json(&report)] };
                tx.send(FromNodeMessage::AllocUpdates(update).into()).await?;
            }
        }
    }
}

/// What a node says of an allocation.
fn report(id: AllocId, status: ClientStatus) -> AllocClientUpdate {
    let state = if status == ClientStatus::Running { TaskRunState::Running } else { TaskRunState::Dead };
    let task = TaskState { state, failed: status == ClientStatus::Failed, ..TaskState::default() };
    AllocClientUpdate {
        id,
        client_status: status,
        task_states: [("t".into(), task)].into(),
        ..AllocClientUpdate::default()
    }
}
