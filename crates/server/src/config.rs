//! What a server is told at its start.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Settings of a server. [`ServerConfig::default`] is a development server: state in memory, loopback only, ports chosen by the system.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where the state is kept; None keeps it in memory (development and tests).
    pub data_dir: Option<PathBuf>,
    /// Refuse writes that would make the stored state larger; None = as much as the disk takes.
    pub max_stored_bytes: Option<u64>,
    /// Name of this server, for people.
    pub name: String,
    /// Region.
    pub region: String,
    /// Datacenter of the server itself.
    pub datacenter: String,
    /// Address that the node RPC listens on; port 0 lets the system choose.
    pub rpc_bind: SocketAddr,
    /// Address that nodes are told; None = the one that it listens on.
    pub rpc_advertise: Option<SocketAddr>,
    /// Where the HTTP API of this server is reached, `host:port`; nodes forward to it. Empty = not told.
    pub http_advertise: String,
    /// How long a node may act without hearing from the servers.
    pub lease: Duration,
    /// How much longer than the lease the servers wait before they give management away: clocks may drift, the network may hold a message.
    pub lease_margin: Duration,
    /// How often nodes renew; well below the lease.
    pub heartbeat_interval: Duration,
    /// After a start, nodes that were ready are given this much more time to come back than their lease.
    pub startup_grace: Duration,
    /// Scheduling workers.
    pub workers: usize,
    /// An evaluation that a worker holds for longer is handed out again.
    pub nack_timeout: Duration,
    /// Deliveries after which an evaluation counts as failed.
    pub delivery_limit: u32,
    /// How long an evaluation that failed too often rests before its follow-up is tried.
    pub failed_follow_up: Duration,
    /// Batches of events kept for late subscribers.
    pub event_batches: usize,
    /// Thresholds of the collection.
    pub gc: GcConfig,
    /// How often providers are asked what this cluster has there.
    pub sweep_interval: Duration,
    /// Largest priority of a job.
    pub job_max_priority: i32,
    /// Versions kept of each job.
    pub job_tracked_versions: usize,
}

/// From what age objects that have ended are collected.
#[derive(Clone, Debug)]
pub struct GcConfig {
    /// How often the collection looks.
    pub interval: Duration,
    /// Evaluations with their allocations.
    pub eval_threshold: Duration,
    /// The same of batch jobs.
    pub batch_eval_threshold: Duration,
    /// Dead jobs.
    pub job_threshold: Duration,
    /// Ended deployments.
    pub deployment_threshold: Duration,
    /// Nodes that are down.
    pub node_threshold: Duration,
}

impl Default for GcConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(300),
            eval_threshold: Duration::from_secs(3600),
            batch_eval_threshold: Duration::from_secs(24 * 3600),
            job_threshold: Duration::from_secs(4 * 3600),
            deployment_threshold: Duration::from_secs(3600),
            node_threshold: Duration::from_secs(24 * 3600),
        }
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        let lease = Duration::from_secs(10);
        Self {
            data_dir: None,
            max_stored_bytes: None,
            name: "drover".to_owned(),
            region: "global".to_owned(),
            datacenter: "dc1".to_owned(),
            rpc_bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            rpc_advertise: None,
            http_advertise: String::new(),
            lease,
            lease_margin: Duration::from_secs(1),
            heartbeat_interval: lease / 3,
            startup_grace: lease,
            workers: std::thread::available_parallelism().map_or(2, usize::from).max(2),
            nack_timeout: Duration::from_secs(60),
            delivery_limit: 3,
            failed_follow_up: Duration::from_secs(60),
            event_batches: 100,
            gc: GcConfig::default(),
            sweep_interval: Duration::from_secs(60),
            job_max_priority: 100,
            job_tracked_versions: 6,
        }
    }
}

impl ServerConfig {
    /// Sets the lease with everything that is derived from it.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.lease_margin = lease / 10;
        self.heartbeat_interval = lease / 3;
        self.startup_grace = lease;
        self
    }
}
