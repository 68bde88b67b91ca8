//! The real servers and nodes, started and killed as a simulation wants it.
//!
//! A killed one shares this process with the others, so its tasks end a moment later than it is dead. Before, it is
//! cut off from everything that others can see: its disk, its connections, the provider.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use client::{Client, ClientConfig, ClientHandle, PluginCommand};
use driver_host::Within;
use server::{Server, ServerConfig, ServerHandle, Threads};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    disk::{Disk, Mounted},
    net::{self, Link},
    provider::{Far, Provider},
    servers::addresses,
};

/// A server that runs.
pub(crate) struct RunningServer {
    server: Server,
    disk: Arc<Mounted>,
}

impl RunningServer {
    pub(crate) async fn start(disk: &Arc<Disk>, net: &net::Server, seed: u64) -> Result<Self, String> {
        let disk = Mounted::new(disk.clone(), seed);
        let (connections, nodes) = mpsc::unbounded_channel();
        let config = ServerConfig { workers: 2, ..ServerConfig::default() };
        let around = server::Surroundings {
            store: Some(disk.clone()),
            nodes: Some(nodes),
            threads: Threads::Runtime,
            ..server::Surroundings::default()
        };
        match Server::start_in(config, around).await {
            Ok(server) => {
                net.listens(Some(connections));
                Ok(Self { server, disk })
            }
            Err(error) => {
                disk.crash();
                Err(error.to_string())
            }
        }
    }

    pub(crate) fn handle(&self) -> ServerHandle {
        self.server.handle().clone()
    }

    pub(crate) fn kill(self, net: &net::Server) {
        net.listens(None);
        self.disk.crash();
        drop(self.server);
    }
}

/// A node: its data, and its agent while one runs.
pub(crate) struct Node {
    pub(crate) name: String,
    number: usize,
    dir: PathBuf,
    starts: u64,
    /// Partitions that are open: one begun later ends later, and an agent that starts within one is in it.
    holes: u32,
    agent: Option<Agent>,
}

/// A running agent.
struct Agent {
    client: Client,
    link: Link,
    killed: Arc<AtomicBool>,
    state: PathBuf,
    plugin: Arc<Mutex<CancellationToken>>,
    lease: Lease,
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It refers to its own plugin, which asks it for the lease.
        self.lease.set(None);
    }
}

/// Whether an agent holds its lease, for the judge of what it sends.
#[derive(Clone, Default)]
pub(crate) struct Lease(Arc<Mutex<Option<ClientHandle>>>);

impl Lease {
    fn set(&self, of: Option<ClientHandle>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = of;
    }

    /// None while nobody can tell.
    pub(crate) fn held(&self) -> Option<bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(ClientHandle::lease_held)
    }
}

impl Node {
    pub(crate) fn new(number: usize, root: &Path) -> Self {
        let (name, dir) = (format!("n{number}"), root.join(format!("n{number}")));
        Self { name, number, dir, starts: 0, holes: 0, agent: None }
    }

    pub(crate) fn runs(&self) -> bool {
        self.agent.is_some()
    }

    fn state(&self, start: u64) -> PathBuf {
        self.dir.join(format!("state-{start}"))
    }

    pub(crate) async fn start(&mut self, servers: &[net::Server], provider: &Arc<Provider>, delay: Duration) {
        self.starts += 1;
        let (killed, link) = (Arc::new(AtomicBool::new(false)), Link::new(self.number, delay));
        link.set_hole(self.holes > 0);
        let lease = Lease::default();
        let far = Far { provider: provider.clone(), caller: self.number, killed: killed.clone(), lease: lease.clone() };
        let plugin = Arc::new(Mutex::new(CancellationToken::new()));
        let newest = plugin.clone();
        let within = Within::new(move |exited| {
            let (connections, taken) = mpsc::unbounded_channel();
            *newest.lock().unwrap_or_else(PoisonError::into_inner) = exited.clone();
            tokio::spawn(driver_sdk::serve_remote_within(far.clone(), taken, exited));
            connections
        });
        let (known, line) = (servers.to_vec(), link.clone());
        // Where there is one, its address says nothing.
        let named = |address: &str| address.strip_prefix("server")?.split(':').next()?.parse::<usize>().ok();
        let reach = move |address: &str| known[named(address).unwrap_or(0).min(known.len() - 1)].clone();
        let around = client::Surroundings {
            connect: Some(Arc::new(move |address| Box::pin(line.clone().open(reach(address))))),
            drivers: [("far".to_owned(), within)].into(),
            simulated: true,
        };
        let mut config = ClientConfig::new(&self.dir, self.name.clone());
        config.state_dir = self.state(self.starts);
        config.servers = if servers.len() > 1 { addresses() } else { vec!["server:4647".to_owned()] };
        config.builtin_drivers =
            vec![PluginCommand { name: "far".into(), program: PathBuf::from("/far"), args: Vec::new() }];
        (config.cpu_total_compute, config.memory_total_mb) = (4000, 4096);
        (config.disk_total_mb, config.disk_free_mb) = (10_000, 9_000);
        let state = config.state_dir.clone();
        let client = Client::start_in(config, around).await.expect("a node starts in its own directory");
        lease.set(Some(client.handle()));
        self.agent = Some(Agent { client, link, killed, state, plugin, lease });
    }

    /// Kills the agent. The next one finds what has reached its disk.
    pub(crate) fn kill(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        agent.killed.store(true, Ordering::Relaxed);
        agent.link.set_hole(true);
        agent.link.break_all();
        let next = self.state(self.starts + 1);
        std::fs::create_dir_all(&next).expect("a directory in the simulation's own");
        for file in ["node.sqlite", "node.sqlite-wal"] {
            // There may be no log of writes.
            let _ = std::fs::copy(agent.state.join(file), next.join(file));
        }
        let state = agent.state.clone();
        drop(agent);
        let _ = std::fs::remove_dir_all(state);
    }

    /// A partition begins, or one of them ends.
    pub(crate) fn set_hole(&mut self, hole: bool) {
        self.holes = if hole { self.holes + 1 } else { self.holes.saturating_sub(1) };
        self.agent.iter().for_each(|agent| agent.link.set_hole(self.holes > 0));
    }

    pub(crate) fn break_line(&self) {
        self.agent.iter().for_each(|agent| agent.link.break_all());
    }

    pub(crate) fn kill_plugin(&self) {
        let Some(agent) = &self.agent else { return };
        agent.plugin.lock().unwrap_or_else(PoisonError::into_inner).cancel();
    }

    /// Whether it runs and may act on what the servers have said.
    pub(crate) fn holds_lease(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.client.handle().lease_held())
    }

    /// The server that it has a session with, by its address; empty = it has had none.
    pub(crate) fn server(&self) -> String {
        let stats = self.agent.as_ref().map(|agent| agent.client.handle().stats());
        stats.and_then(|mut stats| stats.remove("server")).unwrap_or_default()
    }

    /// Whether it has a session with the server.
    pub(crate) fn connected(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.client.handle().connected())
    }
}
