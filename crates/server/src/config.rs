//! What a server is told at its start.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use control::{admission::VaultRules, introduction::Enforcement};
use model::ClusterId;

use crate::shared::SharedKey;

/// Settings of a server. [`ServerConfig::default`] is a development server: state in memory, loopback only, ports
/// chosen by the system.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where the state is kept; None keeps it in memory (development and tests).
    pub data_dir: Option<PathBuf>,
    /// Where the running server keeps its mark, which proves to the next one that the state in `data_dir` is the
    /// newest. Only a directory in memory (tmpfs) will do; None = nowhere.
    pub run_dir: Option<PathBuf>,
    /// Refuse writes that would make the stored state larger; None = as much as the disk takes.
    pub max_stored_bytes: Option<u64>,
    /// Identity of the cluster. A state that begins empty takes it, and recovers when it meets nodes that know more;
    /// None = a new one. A state that has another one is refused.
    pub cluster_id: Option<ClusterId>,
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
    /// Connections of one address to the node RPC at a time, of this machine itself ten times as many; 0 = any number.
    pub rpc_conns_per_client: usize,
    /// Time for a connection to the node RPC to begin; None = as long as it likes.
    pub rpc_handshake: Option<Duration>,
    /// Where the HTTP API of this server is reached, `host:port`; nodes forward to it. Empty = not told.
    pub http_advertise: String,
    /// How long a node may act without hearing from the servers.
    pub lease: Duration,
    /// How much longer than the lease the servers wait before they give management away: clocks may drift, the
    /// network may hold a message.
    pub lease_margin: Duration,
    /// How often nodes renew; well below the lease.
    pub heartbeat_interval: Duration,
    /// After a start, nodes that were ready are given this much more time to come back than their lease. A server that
    /// takes over from another gives them less: they look for it at once.
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
    /// Who issues workload identities (`iss`), as relying parties reach it; None = discovery is off.
    pub oidc_issuer: Option<String>,
    /// What tasks with a `vault` block get; None = Vault is off.
    pub vault: Option<VaultRules>,
    /// Thresholds of the collection.
    pub gc: GcConfig,
    /// When root keys are replaced and deleted.
    pub root_keys: RootKeyConfig,
    /// How often providers are asked what this cluster has there.
    pub sweep_interval: Duration,
    /// Largest priority of a job.
    pub job_max_priority: i32,
    /// What nodes show before they are listened to.
    pub join: node_gateway::join::Join,
    /// What is asked of nodes that the servers do not know, and the tokens of nodes.
    pub introduction: IntroductionConfig,
    /// The key of all servers that share the store: it encrypts their signing keys there, and the join secret follows
    /// from it. None = the store is this server's own, and so are its keys.
    pub shared: Option<SharedKey>,
    /// What root keys are encrypted under in files and snapshots.
    pub wrapping: crate::keyring::Wrapping,
    /// Certificates of the agent; None = no TLS.
    pub tls: Option<tls::Agent>,
    /// Allocations that a job may ask for, all its groups together; 0 = any number.
    pub job_max_count: u32,
    /// Largest text of a job file, with its variables, that is kept beside its job.
    pub job_max_source_bytes: usize,
    /// Priority of a job that names none.
    pub job_default_priority: i32,
    /// Limits of searches.
    pub search: SearchLimits,
    /// Versions kept of each job.
    pub job_tracked_versions: usize,
    /// Access control.
    pub acl: AclConfig,
    /// A loop that has work and makes no progress for this long is taken for dead. Time in which the whole process
    /// stood still does not count.
    pub stuck_after: Duration,
    /// Where sessions of nodes and the loops run, leases among them; None = on the caller's runtime. On one of their
    /// own they never wait for requests of people.
    pub runtime: Option<tokio::runtime::Handle>,
    /// End the process when a part of the server has panicked or stands still; else that is told by
    /// [`crate::Server::failed`] only.
    pub end_process_when_broken: bool,
}

/// What is asked of nodes that the servers do not know, and the tokens of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntroductionConfig {
    /// What a new node must show.
    pub enforcement: Enforcement,
    /// How long an introduction token is valid where its maker does not say.
    pub default_ttl: Duration,
    /// The longest time for which one is valid.
    pub max_ttl: Duration,
    /// How long the identity of a node is valid.
    pub identity_ttl: Duration,
}

impl Default for IntroductionConfig {
    fn default() -> Self {
        Self {
            enforcement: Enforcement::default(),
            default_ttl: Duration::from_secs(5 * 60),
            max_ttl: Duration::from_secs(30 * 60),
            identity_ttl: Duration::from_secs(24 * 3600),
        }
    }
}

/// Access control of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclConfig {
    /// Requests need rights; else every request may do everything.
    pub enabled: bool,
    /// Shortest time to live that a token may ask for.
    pub token_min_expiration: Duration,
    /// Longest time to live that a token may ask for.
    pub token_max_expiration: Duration,
    /// How long after its end an expired token is collected.
    pub token_gc_threshold: Duration,
}

impl Default for AclConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            token_min_expiration: Duration::from_secs(60),
            token_max_expiration: Duration::from_secs(24 * 3600),
            token_gc_threshold: Duration::from_secs(3600),
        }
    }
}

/// Limits of searches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchLimits {
    /// Searches by parts of names are answered.
    pub fuzzy: bool,
    /// Most finds of one kind.
    pub results: usize,
    /// Shortest text of a fuzzy search.
    pub min_term: usize,
}

impl Default for SearchLimits {
    fn default() -> Self {
        Self { fuzzy: true, results: 100, min_term: 2 }
    }
}

/// When root keys are replaced and deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootKeyConfig {
    /// How long a key signs and encrypts; above 0. The next key is published after half of that.
    pub rotation_threshold: Duration,
    /// How long a key is kept after that, if nobody needs it.
    pub gc_threshold: Duration,
    /// How often the servers look for keys that nobody needs; above 0.
    pub gc_interval: Duration,
}

impl Default for RootKeyConfig {
    fn default() -> Self {
        Self {
            rotation_threshold: Duration::from_secs(720 * 3600),
            gc_threshold: Duration::from_secs(3600),
            gc_interval: Duration::from_secs(600),
        }
    }
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

impl GcConfig {
    /// The ages without the period.
    pub(crate) fn ages(&self) -> control::collection::Ages {
        control::collection::Ages {
            eval: self.eval_threshold,
            batch_eval: self.batch_eval_threshold,
            job: self.job_threshold,
            deployment: self.deployment_threshold,
            node: self.node_threshold,
        }
    }
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
            run_dir: None,
            max_stored_bytes: None,
            cluster_id: None,
            name: "drover".to_owned(),
            region: "global".to_owned(),
            datacenter: "dc1".to_owned(),
            rpc_bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            rpc_advertise: None,
            rpc_conns_per_client: 0,
            rpc_handshake: Some(Duration::from_secs(5)),
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
            oidc_issuer: None,
            vault: None,
            gc: GcConfig::default(),
            root_keys: RootKeyConfig::default(),
            sweep_interval: Duration::from_secs(60),
            job_max_priority: 100,
            join: node_gateway::join::Join::Open,
            introduction: IntroductionConfig::default(),
            shared: None,
            wrapping: crate::keyring::Wrapping::default(),
            tls: None,
            job_max_count: scheduler::MOST_OF_A_JOB,
            job_max_source_bytes: 1024 * 1024,
            job_default_priority: 50,
            search: SearchLimits::default(),
            job_tracked_versions: 6,
            acl: AclConfig::default(),
            stuck_after: Duration::from_secs(60),
            runtime: None,
            end_process_when_broken: false,
        }
    }
}

/// Allocations that a job is given where registrations have no limit: a server must be able to hold them.
const MOST_WITHOUT_LIMIT: u32 = 1_000_000;

/// Within this time nodes whose server has gone have tried all others twice: their longest pause is 5 s for a round.
const SOUGHT: Duration = Duration::from_secs(10);

impl ServerConfig {
    /// Allocations that the scheduler gives a job, also one that was stored before there was a limit.
    pub(crate) fn most_of_a_job(&self) -> u32 {
        if self.job_max_count == 0 { MOST_WITHOUT_LIMIT } else { self.job_max_count }
    }

    /// How long the servers wait for a node: its lease and a margin.
    pub(crate) fn lease_wait(&self) -> Duration {
        self.lease + self.lease_margin
    }

    /// How much longer than for a lease a server that begins waits for the nodes that were ready.
    pub(crate) fn grace(&self, takes_over: bool) -> Duration {
        let sought = SOUGHT.saturating_sub(self.lease_wait());
        if takes_over { self.startup_grace.min(sought) } else { self.startup_grace }
    }

    /// How long nodes of which the state knows nothing may act after a start: so long they need to be heard.
    pub(crate) fn unheard(&self) -> Duration {
        self.lease_wait() + self.startup_grace
    }

    /// Limits of the node RPC's listener.
    #[must_use]
    pub fn rpc_limits(&self) -> node_gateway::Limits {
        node_gateway::Limits { per_client: self.rpc_conns_per_client, handshake: self.rpc_handshake }
    }

    /// What a job may ask for.
    pub(crate) fn admission(&self) -> control::admission::Rules<'_> {
        control::admission::Rules {
            region: &self.region,
            default_priority: self.job_default_priority,
            max_priority: self.job_max_priority,
            max_count: self.job_max_count,
            zones: crate::clock::zone,
            vault: self.vault.as_ref(),
        }
    }

    /// What bounds how late a second instance may appear at a provider that refuses no late call.
    #[must_use]
    pub fn times(&self) -> lifecycle::remote::Times {
        lifecycle::remote::Times { lease: self.lease, margin: self.lease_margin, sweep: self.sweep_interval }
    }

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
