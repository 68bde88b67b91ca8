//! A node that nobody has asked for: `rogue_node HOST:PORT JOIN_SECRET FILE [GENERATION INDEX]` opens a session as
//! the node of a JSON file, with `-` for no secret, and says what it is told. With a generation and an index it
//! claims to have acted on them. Lines of its input are sent: `report JSON` (of a remote task), `update JSON` (of an
//! allocation), `sign ALLOCATION TASK IDENTITY`, `inventory JSON` (allocations that it claims to have), `node JSON`
//! (itself anew), `noise HEX` (bytes in the place of JSON). It ends with its input.

use std::io::Write as _;

use api::node_rpc::{
    AllocUpdates, Allocs, FromNode, FromNodeMessage, Heartbeat, Hello, Inventory, MAX_MESSAGE_BYTES, NodeUpdate,
    PROTOCOLS, RemoteReports, SignIdentities, ToNodeMessage, node_service_client::NodeServiceClient, to_json,
};
use model::Node;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::mpsc,
};
use tonic::{Request, transport::Channel};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn say(what: &str) {
    // Nobody reads any more: so be it.
    let _ = writeln!(std::io::stdout(), "{}", what.replace('\n', " "));
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let played = play().await;
    if let Err(error) = &played {
        let _ = writeln!(std::io::stderr(), "{error}");
    }
    // A return would wait for the thread that reads the input, until there is some.
    std::process::exit(i32::from(played.is_err()));
}

async fn play() -> Result<(), Failure> {
    const USAGE: &str = "usage: rogue_node HOST:PORT JOIN_SECRET|- FILE [GENERATION INDEX]";
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let claimed = args.split_off(args.len().min(3));
    let [address, secret, file] = args.try_into().map_err(|_| USAGE)?;
    let (generation, mark_index) = match claimed.as_slice() {
        [] => (String::new(), 0),
        [generation, index] => (generation.clone(), index.parse()?),
        _ => return Err(USAGE.into()),
    };
    let node: Node = serde_json::from_slice(&std::fs::read(file)?)?;
    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = NodeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let (tx, rx) = mpsc::channel::<FromNode>(8);
    let hello = Hello {
        node_id: node.id.to_string(),
        secret_id: node.secret_id.reveal().to_owned(),
        node_json: to_json(&node),
        region: "global".to_owned(),
        protocol: *PROTOCOLS.start(),
        instance: "rogue".to_owned(),
        generation,
        mark_index,
        ..Hello::default()
    };
    tx.send(FromNodeMessage::Hello(hello).into()).await?;
    let mut request = Request::new(tokio_stream::wrappers::ReceiverStream::new(rx));
    if secret != "-" {
        request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
    }
    let mut from = match client.session(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            say(&format!("refused {}", status.message()));
            return Ok(());
        }
    };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut beat = tokio::time::interval(std::time::Duration::from_millis(300));
    let mut seq = 0;
    // What the server says last is heard, also when it listens no more.
    let mut listens = true;
    loop {
        seq += 1;
        tokio::select! {
            message = from.message() => match message {
                Ok(Some(message)) => heard(message.message),
                Ok(None) => {
                    say("closed");
                    return Ok(());
                }
                Err(status) => {
                    say(&format!("closed {}", status.message()));
                    return Ok(());
                }
            },
            line = lines.next_line() => {
                let Some(line) = line? else { return Ok(()) };
                let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
                listens = tx.send(said(verb, rest, seq)?.into()).await.is_ok();
            }
            _ = beat.tick(), if listens => {
                let heartbeat = Heartbeat { seq, ..Heartbeat::default() };
                listens = tx.send(FromNodeMessage::Heartbeat(heartbeat).into()).await.is_ok();
            }
        }
    }
}

fn said(verb: &str, rest: &str, seq: u64) -> Result<FromNodeMessage, Failure> {
    let json = || rest.as_bytes().to_vec();
    Ok(match verb {
        "report" => FromNodeMessage::RemoteReports(RemoteReports { seq, reports_json: vec![json()] }),
        "update" => FromNodeMessage::AllocUpdates(AllocUpdates { seq, updates_json: vec![json()] }),
        "node" => FromNodeMessage::Node(NodeUpdate { node_json: json() }),
        "inventory" => {
            let allocs = Allocs { allocs_json: vec![json()], ..Allocs::default() };
            FromNodeMessage::Inventory(Inventory { allocs: Some(allocs), ..Inventory::default() })
        }
        "sign" => {
            let [alloc, task, identity] =
                rest.split(' ').collect::<Vec<_>>().try_into().map_err(|_| "sign ALLOCATION TASK IDENTITY")?;
            FromNodeMessage::SignIdentities(SignIdentities {
                seq,
                alloc_id: alloc.to_owned(),
                task: task.to_owned(),
                identities: vec![identity.to_owned()],
            })
        }
        "noise" => {
            let bytes = (0..rest.len() / 2)
                .map(|n| u8::from_str_radix(&rest[2 * n..2 * n + 2], 16))
                .collect::<Result<Vec<u8>, _>>()?;
            FromNodeMessage::RemoteReports(RemoteReports { seq, reports_json: vec![bytes] })
        }
        other => return Err(format!("unknown: {other}").into()),
    })
}

fn heard(message: Option<ToNodeMessage>) {
    match message {
        Some(ToNodeMessage::Welcome(welcome)) => say(&format!("welcome {}", welcome.cluster_id)),
        Some(ToNodeMessage::Goodbye(goodbye)) => say(&format!("goodbye {}", goodbye.reason)),
        Some(ToNodeMessage::Allocs(allocs)) => {
            for json in allocs.allocs_json.iter().chain(&allocs.jobs_json) {
                say(&format!("told {}", String::from_utf8_lossy(json)));
            }
        }
        Some(ToNodeMessage::RemoteOrders(orders)) => {
            for json in &orders.orders_json {
                say(&format!("ordered {}", String::from_utf8_lossy(json)));
            }
        }
        Some(ToNodeMessage::UpdatesStored(_)) => say("stored"),
        Some(ToNodeMessage::InventoryStored(_)) => say("taken"),
        Some(ToNodeMessage::IdentitiesSigned(answer)) => match answer.signed.first() {
            Some(_) => say("signed"),
            None => say(&format!("unsigned {}", answer.error)),
        },
        Some(ToNodeMessage::HeartbeatAck(_) | ToNodeMessage::ListRemote(_) | ToNodeMessage::HostVolumes(_)) | None => {}
    }
}
