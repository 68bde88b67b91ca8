//! Clients of the server's HTTP API.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::interop::cluster::Agent;

/// Connections over which jobs come: enough that the server always has something to do.
const CONNECTIONS: usize = 16;

/// Requests over a connection that is kept.
pub(super) struct Api {
    address: String,
    http: ureq::Agent,
}

impl Api {
    /// A client of that server.
    pub(super) fn of(server: &Agent) -> Self {
        Self { address: server.address(), http: ureq::Agent::config_builder().build().into() }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    pub(super) fn get(&self, path: &str) -> Result<Value> {
        Ok(self.http.get(self.url(path)).call()?.body_mut().with_config().limit(u64::MAX).read_json()?)
    }

    pub(super) fn put(&self, path: &str, body: &Value) -> Result<Value> {
        let mut answer = self.http.put(self.url(path)).send_json(body)?;
        let text = answer.body_mut().read_to_string()?;
        Ok(if text.is_empty() { Value::Null } else { serde_json::from_str(&text)? })
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value> {
        Ok(self.http.delete(self.url(path)).call()?.body_mut().read_json()?)
    }

    /// Reads a page as bytes; the token of the next one.
    pub(super) fn page(&self, path: &str) -> Result<Option<String>> {
        let mut answer = self.http.get(self.url(path)).call()?;
        let next = answer.headers().get("X-Nomad-NextToken").and_then(|token| token.to_str().ok()).map(str::to_owned);
        ensure!(!answer.body_mut().with_config().limit(u64::MAX).read_to_vec()?.is_empty(), "an empty page");
        Ok(next.filter(|token| !token.is_empty()))
    }

    /// Allocations of a node that have not ended.
    pub(super) fn count_live_of_node(&self, node: &str) -> Result<u64> {
        let allocs = self.get(&format!("/v1/node/{node}/allocations"))?;
        let live = |alloc: &&Value| alloc["ClientStatus"] == "running" && alloc["DesiredStatus"] == "run";
        Ok(allocs.as_array().into_iter().flatten().filter(live).count() as u64)
    }
}

/// Does something for each number, over [`CONNECTIONS`].
pub(super) fn each(server: &Agent, many: usize, act: impl Fn(&Api, usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let client = || {
            let api = Api::of(server);
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= many {
                    return Ok(());
                }
                act(&api, n)?;
            }
        };
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(client)).collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// So many clients read this list again and again, each on a connection of its own. The bytes that they have read
/// until the time is up; nothing of them is kept.
pub(super) fn list_everything(server: &Agent, path: &str, clients: usize, time: Duration) -> Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let read = Arc::new(AtomicU64::new(0));
    let address = format!("127.0.0.1:{}", server.http_port());
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    runtime.block_on(async {
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..clients {
            readers.spawn(reader(address.clone(), request.clone(), read.clone()));
        }
        tokio::time::sleep(time).await;
        readers.abort_all();
    });
    Ok(read.load(Ordering::Relaxed))
}

/// One answer after the other, each on a new connection.
async fn reader(address: String, request: String, read: Arc<AtomicU64>) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let mut stream = TcpStream::connect(&address).await?;
        stream.write_all(request.as_bytes()).await?;
        loop {
            let n = stream.read(&mut buffer).await?;
            if n == 0 {
                break;
            }
            read.fetch_add(n as u64, Ordering::Relaxed);
        }
    }
}
