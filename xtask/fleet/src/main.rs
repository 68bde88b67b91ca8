//! Simulated nodes for `cargo xtask bench scale`: `fleet HOST:PORT JOIN_SECRET NODES` opens a session for each node
//! over a connection of its own, renews its lease when the server wants that, and reports each allocation as running
//! as soon as it is told of it. It starts no task, and remembers no allocation: its memory depends on the nodes only.
//!
//! Lines of its input are orders. `stats` is answered with a line of JSON ([`Stats`]), `choose N` with a JSON list of
//! the ids of N nodes. `lose` ends the sessions of the chosen nodes without a word, and they stay away; the answer is
//! their number. It ends with its input.

#![allow(clippy::print_stdout, reason = "the answers are what this program prints")]

mod node;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    sync::Semaphore,
    task::AbortHandle,
};

/// What ends this program, or a session.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sessions that begin at the same time: a server of nodes that all come at once is another measurement.
const GREETINGS: usize = 64;

/// What all nodes together have seen. Times are of this process.
#[derive(Debug, Default)]
struct Seen {
    welcome: AtomicU64,
    reported: AtomicU64,
    stored: AtomicU64,
    acknowledged: AtomicU64,
    lapses: AtomicU64,
    broken: AtomicU64,
    slowest: Mutex<Duration>,
    why: Mutex<String>,
}

impl Seen {
    fn acknowledged(&self, took: Duration, lease: Duration) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        if took > lease {
            self.lapses.fetch_add(1, Ordering::Relaxed);
        }
        let mut slowest = self.slowest.lock().unwrap_or_else(PoisonError::into_inner);
        *slowest = took.max(*slowest);
    }

    fn broke(&self, why: String) {
        self.broken.fetch_add(1, Ordering::Relaxed);
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// The figures. The slowest answer is that since the last call.
    fn stats(&self) -> Stats {
        let slowest = std::mem::take(&mut *self.slowest.lock().unwrap_or_else(PoisonError::into_inner));
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Stats {
            welcome: count(&self.welcome),
            reported: count(&self.reported),
            stored: count(&self.stored),
            acknowledged: count(&self.acknowledged),
            lapses: count(&self.lapses),
            broken: count(&self.broken),
            slowest_ms: u64::try_from(slowest.as_millis()).unwrap_or(u64::MAX),
            why: self.why.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// The answer to `stats`.
#[derive(Debug, Serialize)]
struct Stats {
    /// Nodes with a session that the server has welcomed.
    welcome: u64,
    /// Reports of running allocations that were sent.
    reported: u64,
    /// Those of them that the server has stored.
    stored: u64,
    /// Heartbeats that were answered.
    acknowledged: u64,
    /// Those of them whose answer came after the lease that they renew.
    lapses: u64,
    /// Sessions that have ended against the node's will.
    broken: u64,
    /// The slowest answer to a heartbeat since the last `stats`, in milliseconds.
    slowest_ms: u64,
    /// Why the last of the broken sessions has ended.
    why: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let [address, secret, nodes] = std::env::args()
        .skip(1)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| "usage: fleet HOST:PORT JOIN_SECRET NODES")?;
    open_files::raise();
    let (seen, greetings) = (Arc::new(Seen::default()), Arc::new(Semaphore::new(GREETINGS)));
    let server = Arc::new(node::Server { address: format!("http://{address}"), secret });
    let mut sessions: Vec<(model::NodeId, AbortHandle)> = Vec::new();
    for number in 0..nodes.parse::<u32>()? {
        let node = node::simulated(number);
        let id = node.id;
        let run = node::run(server.clone(), node, seen.clone(), greetings.clone());
        sessions.push((id, tokio::spawn(run).abort_handle()));
    }
    let mut chosen = Vec::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.split_once(' ') {
            None if line == "stats" => println!("{}", serde_json::to_string(&seen.stats())?),
            Some(("choose", many)) => {
                // From everywhere among them: servers fill some nodes before others.
                let many = many.parse::<usize>()?.min(sessions.len());
                chosen.extend((0..many).map(|n| sessions.swap_remove(n * sessions.len() / many)));
                let ids: Vec<String> = chosen.iter().map(|(id, _)| id.to_string()).collect();
                println!("{}", serde_json::to_string(&ids)?);
            }
            None if line == "lose" => {
                chosen.iter().for_each(|(_, session)| session.abort());
                println!("{}", std::mem::take(&mut chosen).len());
            }
            _ => return Err(format!("no such order: {line}").into()),
        }
    }
    Ok(())
}
