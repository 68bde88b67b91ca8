//! Agent configuration as people write it: Nomad's names, HCL or JSON, several files merged, flags on top.
//!
//! Text → tree (`file.rs`) → merged tree → what the table of names says (`table.rs`, `rules.rs`) → typed
//! [`AgentFile`] here → checked [`crate::agent::settings`]. Unknown names are errors; what has no meaning here is
//! said at start; what cannot be honoured is refused with the reason.

use std::collections::BTreeMap;

use model::Secret;
use serde::Deserialize;
use serde_json::Value;

use super::rules::{Notes, judge};

/// An agent's configuration, all files merged. Every field is optional: defaults are applied by `settings`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AgentFile {
    /// Region, `global`.
    pub(crate) region: Option<String>,
    /// Datacenter, `dc1`.
    pub(crate) datacenter: Option<String>,
    /// Name of this agent, the host name.
    pub(crate) name: Option<String>,
    /// Where state is kept.
    pub(crate) data_dir: Option<String>,
    /// trace, debug, info, warn, error.
    pub(crate) log_level: Option<String>,
    /// One JSON object per line.
    pub(crate) log_json: Option<bool>,
    /// Address that listeners bind to, `127.0.0.1`.
    pub(crate) bind_addr: Option<String>,
    /// Ports.
    pub(crate) ports: Ports,
    /// Bind addresses of single listeners.
    pub(crate) addresses: Addresses,
    /// Addresses told to others.
    pub(crate) advertise: Addresses,
    /// Server part.
    pub(crate) server: Server,
    /// Node part.
    pub(crate) client: Client,
    /// Plugin settings by file name.
    pub(crate) plugin: BTreeMap<String, Plugin>,
    /// Directory of external plugins.
    pub(crate) plugin_dir: Option<String>,
    /// Metrics.
    pub(crate) telemetry: Telemetry,
    /// Limits of the listeners.
    pub(crate) limits: Limits,
    /// Headers put on every HTTP answer.
    pub(crate) http_api_response_headers: BTreeMap<String, String>,
    /// What a stock agent does not know.
    pub(crate) drover: Own,
    /// TLS of the HTTP API and the node RPC.
    pub(crate) tls: Tls,
    /// The web UI.
    pub(crate) ui: Ui,
    /// Access control.
    pub(crate) acl: Acl,
    /// Tokens and secrets of Vault for tasks.
    pub(crate) vault: Vault,
    /// The audit log.
    pub(crate) audit: Audit,
    /// What root keys are encrypted under.
    pub(crate) keyring: Keyring,
    /// SIGINT means `client.drain_on_shutdown`.
    pub(crate) leave_on_interrupt: Option<bool>,
    /// SIGTERM means `client.drain_on_shutdown`.
    pub(crate) leave_on_terminate: Option<bool>,
    /// Drover never looks for updates, whatever this says.
    pub(crate) disable_update_check: Option<bool>,
    /// Drover sends no signature anywhere, whatever this says.
    pub(crate) disable_anonymous_signature: Option<bool>,
    /// Say where in the program a line of the log comes from.
    pub(crate) log_include_location: Option<bool>,
    /// The log, beside standard error.
    pub(crate) log_file: Option<String>,
    /// A file of the log that is older is put aside; one day.
    pub(crate) log_rotate_duration: Option<String>,
    /// A file of the log that is larger is put aside; 0 = any size.
    pub(crate) log_rotate_bytes: Option<u64>,
    /// How many files are kept aside; 0 = all, below 0 = none.
    pub(crate) log_rotate_max_files: Option<i64>,
    /// Names that were taken and have no effect.
    #[serde(skip)]
    pub(crate) notes: Notes,
}

/// Ports of the listeners; 0 takes a free one.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Ports {
    /// 4646.
    pub(crate) http: Option<u16>,
    /// 4647.
    pub(crate) rpc: Option<u16>,
}

/// Addresses by listener.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Addresses {
    /// HTTP.
    pub(crate) http: Option<String>,
    /// RPC.
    pub(crate) rpc: Option<String>,
}

/// Server part.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Server {
    /// This agent is a server.
    pub(crate) enabled: Option<bool>,
    /// Where the server keeps its state; `data_dir/server`.
    pub(crate) data_dir: Option<String>,
    /// Where the running server keeps its mark, in memory (tmpfs); empty = nowhere.
    pub(crate) run_dir: Option<String>,
    /// Parallel schedulers.
    pub(crate) num_schedulers: Option<u32>,
    /// How long a node may act without hearing from the servers: the lease of remote tasks.
    pub(crate) min_heartbeat_ttl: Option<String>,
    /// Identity of the cluster.
    pub(crate) cluster_id: Option<String>,
    /// How often providers are asked what this cluster has there.
    pub(crate) remote_sweep_interval: Option<String>,
    /// Added to the lease before a node counts as down.
    pub(crate) heartbeat_grace: Option<String>,
    /// Age at which ended evaluations are collected.
    pub(crate) eval_gc_threshold: Option<String>,
    /// The same of batch jobs.
    pub(crate) batch_eval_gc_threshold: Option<String>,
    /// Age at which dead jobs are collected.
    pub(crate) job_gc_threshold: Option<String>,
    /// How often jobs are looked at for collection.
    pub(crate) job_gc_interval: Option<String>,
    /// Age at which down nodes are collected.
    pub(crate) node_gc_threshold: Option<String>,
    /// Age at which ended deployments are collected.
    pub(crate) deployment_gc_threshold: Option<String>,
    /// Versions of a job that are kept.
    pub(crate) job_tracked_versions: Option<u32>,
    /// Batches kept for the event stream.
    pub(crate) event_buffer_size: Option<u32>,
    /// Largest priority of a job.
    pub(crate) job_max_priority: Option<i32>,
    /// Allocations that a job may ask for, all its groups together; 0 = any number.
    pub(crate) job_max_count: Option<i64>,
    /// Largest text of a job file that is kept; 0 = none.
    pub(crate) job_max_source_size: Option<String>,
    /// Priority of a job that names none.
    pub(crate) job_default_priority: Option<i32>,
    /// Limits of searches.
    pub(crate) search: Search,
    /// Must be the region of the server.
    pub(crate) authoritative_region: Option<String>,
    /// Settings of the scheduler, until somebody sets them.
    pub(crate) default_scheduler_config: Option<SchedulerDefaults>,
    /// What is asked of new nodes.
    pub(crate) client_introduction: ClientIntroduction,
    /// Who issues workload identities.
    pub(crate) oidc_issuer: Option<String>,
    /// How long a root key is used.
    pub(crate) root_key_rotation_threshold: Option<String>,
    /// How long a root key is kept after that.
    pub(crate) root_key_gc_threshold: Option<String>,
    /// How often old root keys are looked for.
    pub(crate) root_key_gc_interval: Option<String>,
    /// How long after its end an expired ACL token is collected.
    pub(crate) acl_token_gc_threshold: Option<String>,
    /// The key of servers that share a store, base64.
    pub(crate) encrypt: Option<Secret>,
    /// Servers to join: only this one may be named.
    pub(crate) server_join: ServerJoin,
    /// The same in its former place.
    pub(crate) retry_join: Vec<String>,
    /// The same in its former place.
    pub(crate) start_join: Vec<String>,
    /// How many servers the cluster has.
    pub(crate) bootstrap_expect: Option<i64>,
    /// Where the state is kept: sqlite or etcd.
    pub(crate) store: Option<String>,
    /// Members of etcd.
    pub(crate) endpoints: Vec<String>,
    /// Of all keys in etcd.
    pub(crate) prefix: Option<String>,
    /// Of etcd.
    pub(crate) user: Option<String>,
    /// Of that user.
    pub(crate) password_file: Option<String>,
    /// Certificates for etcd.
    pub(crate) tls: StoreTls,
}

/// Certificates for the connections to etcd.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreTls {
    /// The authority of etcd's members.
    pub(crate) ca_file: String,
    /// The server's own certificate.
    pub(crate) cert_file: String,
    /// Its key.
    pub(crate) key_file: String,
}

/// Where the key comes from that root keys are encrypted under.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Keyring {
    /// Nowhere: root keys lie in their files as they are.
    pub(crate) aead: Option<KeyringPlain>,
    /// From a command that prints it.
    pub(crate) command: Option<KeyringCommand>,
    /// From a file.
    pub(crate) file: Option<KeyringFile>,
}

/// No key.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KeyringPlain {
    /// What is written is plain.
    pub(crate) active: Option<bool>,
}

/// A key that a command prints.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KeyringCommand {
    /// It encrypts what is written; without this it opens what was written before.
    pub(crate) active: Option<bool>,
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// How long it may take, 30s.
    pub(crate) timeout: Option<String>,
}

/// A key in a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KeyringFile {
    /// It encrypts what is written; without this it opens what was written before.
    pub(crate) active: Option<bool>,
    /// The file.
    pub(crate) path: Option<String>,
}

/// What is asked of new nodes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ClientIntroduction {
    /// `none`, `warn` or `strict`.
    pub(crate) enforcement: Option<String>,
    /// How long an introduction token is valid where its maker does not say.
    pub(crate) default_identity_ttl: Option<String>,
    /// The longest time for which one is valid.
    pub(crate) max_identity_ttl: Option<String>,
}

/// Limits of searches.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Search {
    /// Searches by parts of names are answered.
    pub(crate) fuzzy_enabled: Option<bool>,
    /// Most finds of one kind.
    pub(crate) limit_results: Option<u32>,
    /// Shortest text of a fuzzy search.
    pub(crate) min_term_length: Option<u32>,
}

/// Settings of the scheduler, until somebody sets them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SchedulerDefaults {
    /// `binpack` or `spread`.
    pub(crate) scheduler_algorithm: Option<String>,
    /// `memory_max` has an effect.
    pub(crate) memory_oversubscription_enabled: bool,
    /// Jobs are not taken.
    pub(crate) reject_job_registration: bool,
    /// No evaluation is handed out.
    pub(crate) pause_eval_broker: bool,
    /// Which kinds of job may displace others.
    pub(crate) preemption_config: PreemptionDefaults,
}

/// Which kinds of job may displace others, until somebody sets it. What is not said is as without the block.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PreemptionDefaults {
    /// System jobs.
    pub(crate) system_scheduler_enabled: Option<bool>,
    /// Sysbatch jobs.
    pub(crate) sysbatch_scheduler_enabled: Option<bool>,
    /// Batch jobs.
    pub(crate) batch_scheduler_enabled: Option<bool>,
    /// Service jobs.
    pub(crate) service_scheduler_enabled: Option<bool>,
}

/// Node part.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Client {
    /// This agent is a node.
    pub(crate) enabled: Option<bool>,
    /// `host:port` of servers.
    pub(crate) servers: Vec<String>,
    /// Another way to name servers.
    pub(crate) server_join: ServerJoin,
    /// Where local state is kept; `data_dir/client`.
    pub(crate) state_dir: Option<String>,
    /// Where allocations live; `data_dir/alloc`.
    pub(crate) alloc_dir: Option<String>,
    /// Class.
    pub(crate) node_class: Option<String>,
    /// Pool.
    pub(crate) node_pool: Option<String>,
    /// Free metadata.
    pub(crate) meta: BTreeMap<String, Value>,
    /// Options of fingerprinters and drivers (`driver.allowlist`, `driver.denylist`, `fingerprint.denylist`).
    pub(crate) options: BTreeMap<String, Value>,
    /// Kept from tasks.
    pub(crate) reserved: Reserved,
    /// Interface whose address the node has.
    pub(crate) network_interface: Option<String>,
    /// Directories of CNI plugins, with colons between them.
    pub(crate) cni_path: Option<String>,
    /// Directory of the host volumes that plugins make.
    pub(crate) host_volumes_dir: Option<String>,
    /// Directory of executables that make host volumes.
    pub(crate) host_volume_plugin_dir: Option<String>,
    /// The servers forget the node's dynamic volumes with the node.
    pub(crate) gc_volumes_on_node_gc: bool,
    /// Directory of executables that the node asks for things, such as secrets.
    pub(crate) common_plugin_dir: Option<String>,
    /// Directory of the networks that jobs may name as `cni/NAME`.
    pub(crate) cni_config_dir: Option<String>,
    /// The bridge of network mode `bridge`.
    pub(crate) bridge_network_name: Option<String>,
    /// Its addresses.
    pub(crate) bridge_network_subnet: Option<String>,
    /// Its IPv6 addresses.
    pub(crate) bridge_network_subnet_ipv6: Option<String>,
    /// A namespace reaches itself by the host's ports.
    pub(crate) bridge_network_hairpin_mode: Option<bool>,
    /// MHz, instead of what was found.
    pub(crate) cpu_total_compute: Option<u64>,
    /// MiB, instead of what was found.
    pub(crate) memory_total_mb: Option<u64>,
    /// MiB, instead of what was found.
    pub(crate) disk_total_mb: Option<u64>,
    /// MiB that tasks can have, instead of what was found.
    pub(crate) disk_free_mb: Option<u64>,
    /// Cores that tasks may run on.
    pub(crate) reservable_cores: Option<String>,
    /// Allocations that the node takes at most.
    pub(crate) node_max_allocs: Option<u32>,
    /// `ipv4` or `ipv6`.
    pub(crate) preferred_address_family: Option<String>,
    /// Lowest dynamic port.
    pub(crate) min_dynamic_port: Option<u16>,
    /// Highest dynamic port.
    pub(crate) max_dynamic_port: Option<u16>,
    /// Remote tasks that this node manages at most; no limit unless set.
    pub(crate) remote_sessions: Option<u32>,
    /// Upper bound of kill_timeout.
    pub(crate) max_kill_timeout: Option<String>,
    /// How many ended allocations are kept.
    pub(crate) gc_max_allocs: Option<u32>,
    /// What of the host appears in the root of `exec`: path there → path inside.
    pub(crate) chroot_env: BTreeMap<String, Value>,
    /// No commands in tasks for people.
    pub(crate) disable_remote_exec: Option<bool>,
    /// The node comes ineligible.
    pub(crate) default_ineligible: Option<bool>,
    /// How often the node looks for allocations to collect.
    pub(crate) gc_interval: Option<String>,
    /// Percent of used disk at which it collects.
    pub(crate) gc_disk_usage_threshold: Option<f64>,
    /// Percent of used inodes at which it collects.
    pub(crate) gc_inode_usage_threshold: Option<f64>,
    /// Lowest port of plugins that cannot listen on unix sockets.
    pub(crate) client_min_port: Option<u16>,
    /// Highest port of these.
    pub(crate) client_max_port: Option<u16>,
    /// Directories offered to jobs.
    pub(crate) host_volume: BTreeMap<String, HostVolume>,
    /// Networks of the host, by which jobs choose addresses.
    pub(crate) host_network: BTreeMap<String, HostNetwork>,
    /// How artifacts are fetched.
    pub(crate) artifact: Artifact,
    /// How templates are rendered.
    pub(crate) template: Template,
    /// Move everything off the node before its agent ends.
    pub(crate) drain_on_shutdown: Option<DrainOnShutdown>,
}

/// How artifacts are fetched.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Artifact {
    /// An HTTP download must be complete after this long.
    pub(crate) http_read_timeout: Option<String>,
    /// Size of an HTTP or S3 download, such as `100GB`.
    pub(crate) http_max_size: Option<String>,
    /// All of git's work must be done after this long.
    pub(crate) git_timeout: Option<String>,
    /// An S3 download must be complete after this long.
    pub(crate) s3_timeout: Option<String>,
    /// Entries of an archive; 0 = any number.
    pub(crate) decompression_file_count_limit: Option<u64>,
    /// Size of what comes out of an archive; `0` = any.
    pub(crate) decompression_size_limit: Option<String>,
    /// Do not keep the fetching process to the directories that it needs.
    pub(crate) disable_filesystem_isolation: Option<bool>,
    /// Further paths that it may use, as `KIND:MODE:PATH`; readable directories are what `file` sources may name.
    pub(crate) filesystem_isolation_extra_paths: Vec<String>,
    /// Variables of the agent that it gets, with commas between them.
    pub(crate) set_environment_variables: Option<String>,
}

/// How templates are rendered.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Template {
    /// Functions that templates may not call.
    pub(crate) function_denylist: Option<Vec<String>>,
    /// Its former name.
    pub(crate) function_blacklist: Option<Vec<String>>,
    /// The function `file` reads whatever the agent may read.
    pub(crate) disable_file_sandbox: Option<bool>,
    /// How long changes are gathered where the job does not say.
    pub(crate) wait: Option<Wait>,
    /// Between what bounds jobs may say it.
    pub(crate) wait_bounds: Option<Wait>,
    /// Longest time for which a secret of Vault without a lease is kept unread; 5 minutes.
    pub(crate) vault_default_lease_duration: Option<String>,
}

/// How long changes are gathered.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wait {
    /// Quiet time.
    pub(crate) min: Option<String>,
    /// Longest wait.
    pub(crate) max: Option<String>,
}

/// How a node drains itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DrainOnShutdown {
    /// After this long the rest is stopped; one hour.
    pub(crate) deadline: Option<String>,
    /// Stop everything at once.
    pub(crate) force: Option<bool>,
    /// Leave system jobs where they are.
    pub(crate) ignore_system_jobs: Option<bool>,
}

/// A network of the host.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HostNetwork {
    /// Only addresses inside this range.
    pub(crate) cidr: String,
    /// Only this interface.
    pub(crate) interface: String,
    /// Ports that are not given out.
    pub(crate) reserved_ports: String,
}

/// Another way to name servers.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerJoin {
    /// Addresses.
    pub(crate) retry_join: Vec<String>,
    /// The same for those who knew them as different things.
    pub(crate) start_join: Vec<String>,
}

/// Kept from tasks.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Reserved {
    /// MHz.
    pub(crate) cpu: Option<u64>,
    /// MiB.
    pub(crate) memory: Option<u64>,
    /// MiB.
    pub(crate) disk: Option<u64>,
    /// Ranges.
    pub(crate) reserved_ports: Option<String>,
    /// Ranges.
    pub(crate) cores: Option<String>,
}

/// A directory offered to jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HostVolume {
    /// Path.
    pub(crate) path: String,
    /// Only readable.
    pub(crate) read_only: bool,
}

/// Settings of a plugin.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Plugin {
    /// Arguments of its process.
    pub(crate) args: Vec<String>,
    /// Its own configuration, checked by its schema.
    pub(crate) config: Option<Value>,
}

/// Metrics.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Telemetry {
    /// Serve `?format=prometheus`.
    pub(crate) prometheus_metrics: Option<bool>,
    /// Time between two samples of task statistics.
    pub(crate) collection_interval: Option<String>,
    /// Metrics of the machine.
    pub(crate) publish_node_metrics: Option<bool>,
    /// Metrics of each task.
    pub(crate) publish_allocation_metrics: Option<bool>,
}

/// Limits of the listeners.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Connections of one address to the HTTP API; 0 = any number.
    pub(crate) http_max_conns_per_client: Option<u32>,
    /// Connections of one address to the node RPC; 0 = any number.
    pub(crate) rpc_max_conns_per_client: Option<u32>,
    /// Time for the TLS handshake of a connection to the HTTP API; 0 = as long as it likes.
    pub(crate) https_handshake_timeout: Option<String>,
    /// Time for a connection to the node RPC to begin; 0 = as long as it likes.
    pub(crate) rpc_handshake_timeout: Option<String>,
}

/// TLS; files that are named are read at start and at each reload.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tls {
    /// HTTPS alone on the HTTP port.
    pub(crate) http: bool,
    /// TLS on the node RPC, with a certificate at both ends.
    pub(crate) rpc: bool,
    /// Authorities.
    pub(crate) ca_file: String,
    /// Certificate of this agent.
    pub(crate) cert_file: String,
    /// Its private key.
    pub(crate) key_file: String,
    /// Certificates must name the role of their agent.
    pub(crate) verify_server_hostname: bool,
    /// HTTP clients must show a certificate of the authority.
    pub(crate) verify_https_client: bool,
    /// Servers take plain nodes, too.
    pub(crate) rpc_upgrade_mode: bool,
    /// Suites of TLS 1.2, with commas; empty = all.
    pub(crate) tls_cipher_suites: String,
    /// `tls12` or `tls13`.
    pub(crate) tls_min_version: String,
}

/// The web UI.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Ui {
    /// False: nothing is served below `/ui/`.
    pub(crate) enabled: Option<bool>,
    /// False: commands do not tell where the page of what they show is.
    pub(crate) show_cli_hints: Option<bool>,
}

/// Access control.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Acl {
    /// Requests need a token with the rights for them.
    pub(crate) enabled: Option<bool>,
    /// Shortest time to live that a token may ask for.
    pub(crate) token_min_expiration_ttl: Option<String>,
    /// Longest time to live that a token may ask for.
    pub(crate) token_max_expiration_ttl: Option<String>,
}

/// Tokens and secrets of Vault for tasks.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Vault {
    /// Jobs may use Vault.
    pub(crate) enabled: Option<bool>,
    /// Where it answers; `https://vault.service.consul:8200`.
    pub(crate) address: Option<String>,
    /// Namespace of tasks that name none.
    pub(crate) namespace: String,
    /// Role of tasks that name none.
    pub(crate) create_from_role: String,
    /// Where the JWT method is mounted; `jwt-nomad`.
    pub(crate) jwt_auth_backend_path: Option<String>,
    /// Authorities, in one file.
    pub(crate) ca_file: String,
    /// Authorities, in the files of a directory.
    pub(crate) ca_path: String,
    /// Certificate that Vault is shown.
    pub(crate) cert_file: String,
    /// Its private key.
    pub(crate) key_file: String,
    /// Name that Vault's certificate must have, instead of the host in the address.
    pub(crate) tls_server_name: String,
    /// Take any certificate.
    pub(crate) tls_skip_verify: bool,
    /// Of tasks that bring no identity for Vault.
    pub(crate) default_identity: Option<VaultIdentity>,
}

/// An identity that tasks log in to Vault with.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct VaultIdentity {
    /// Audiences.
    pub(crate) aud: Vec<String>,
    /// The task sees the token as a variable.
    pub(crate) env: bool,
    /// The task sees the token as a file.
    pub(crate) file: bool,
    /// Path of the file.
    pub(crate) filepath: String,
    /// How long a token is valid.
    pub(crate) ttl: Option<String>,
    /// Claims of each token for Vault, by name.
    pub(crate) extra_claims: BTreeMap<String, Value>,
}

/// The audit log.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Audit {
    /// Requests leave events.
    pub(crate) enabled: Option<bool>,
    /// Where events go, by name; none = to a file in `data_dir`.
    pub(crate) sink: BTreeMap<String, AuditSink>,
    /// Which events are left out, by name.
    pub(crate) filter: BTreeMap<String, AuditFilter>,
}

/// Where events go.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuditSink {
    /// `file`, or Drover's own `socket`.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    /// `enforced` or `best-effort`.
    pub(crate) delivery_guarantee: Option<String>,
    /// `json`.
    pub(crate) format: Option<String>,
    /// Permissions of the file, octal.
    pub(crate) mode: Option<String>,
    /// The file or socket.
    pub(crate) path: Option<String>,
    /// A file that is larger is put aside; 0 = any size.
    pub(crate) rotate_bytes: Option<u64>,
    /// A file that is older is put aside; one day.
    pub(crate) rotate_duration: Option<String>,
    /// How many files are kept aside; 0 = all.
    pub(crate) rotate_max_files: Option<u32>,
}

/// Which events are left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuditFilter {
    /// `HTTPEvent`.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    /// Paths with stars.
    pub(crate) endpoints: Vec<String>,
    /// Stages.
    pub(crate) stages: Vec<String>,
    /// Methods.
    pub(crate) operations: Vec<String>,
}

/// Settings that a stock agent does not know.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Own {
    /// Further names by which the HTTP API is reached, such as that of a proxy.
    pub(crate) http_hosts: Vec<String>,
    /// The file with the join secret: what a node shows, and a server wants instead of the one that it makes.
    pub(crate) join_secret_file: Option<String>,
    /// False: a server listens to nodes without the secret.
    pub(crate) require_join_secret: Option<bool>,
    /// Listen beyond loopback without TLS.
    pub(crate) insecure: Option<bool>,
    /// URL of the Prometheus that collects the servers' metrics: charts of more than an hour come from there.
    pub(crate) prometheus_url: Option<String>,
    /// The file with the authority of its certificate, instead of those that the system trusts.
    pub(crate) prometheus_ca_file: Option<String>,
}

/// A mistake in the configuration: where, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake(pub(crate) String);

/// What the agent says of them.
pub(super) fn refuse(mistakes: Vec<Mistake>) -> anyhow::Error {
    let list: Vec<String> = mistakes.into_iter().map(|m| format!("  * {}", m.0)).collect();
    anyhow::anyhow!("the agent's configuration cannot be used:\n{}", list.join("\n"))
}

/// Lists of servers: each file names further ones.
const LISTS_THAT_ADD_UP: &[&str] = &["servers", "retry_join", "start_join"];

/// Puts `over` on top of `base`: maps are merged key by key, lists of servers add up, anything else is replaced.
pub(crate) fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                match (base.get_mut(&key), value) {
                    (Some(Value::Array(known)), Value::Array(more)) if LISTS_THAT_ADD_UP.contains(&key.as_str()) => {
                        let new: Vec<Value> = more.into_iter().filter(|v| !known.contains(v)).collect();
                        known.extend(new);
                    }
                    (Some(slot), value) => merge(slot, value),
                    (None, value) => {
                        base.insert(key, value);
                    }
                }
            }
        }
        (base, over) => *base = over,
    }
}

/// Applies the table of names to a merged configuration and types what has its effect.
pub(crate) fn typed(tree: Value) -> Result<AgentFile, Vec<Mistake>> {
    let judged = judge(&tree);
    if !judged.mistakes.is_empty() {
        return Err(judged.mistakes);
    }
    let mut file = AgentFile::deserialize(&judged.works).map_err(|e| vec![Mistake(e.to_string())])?;
    file.notes = judged.notes;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Mistake, merge, typed};

    #[test]
    fn later_files_win_and_maps_are_merged() {
        let mut base = json!({"client": {"enabled": true, "meta": {"a": "1", "b": "2"}, "servers": ["w:1", "x:1"]},
                "region": "eu"});
        merge(&mut base, json!({"client": {"meta": {"b": "3"}, "servers": ["x:1", "y:1"]}, "region": "us"}));
        assert_eq!(
            base,
            json!({"client": {"enabled": true, "meta": {"a": "1", "b": "3"}, "servers": ["w:1", "x:1", "y:1"]},
                "region": "us"})
        );
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name_unless_it_is_off() {
        let error = typed(json!({"server": {"non_voting_server": true}, "enable_syslog": true})).expect_err("refused");
        assert_eq!(error.len(), 2, "{error:?}");
        assert!(error.iter().any(|e| e.0.starts_with("enable_syslog is refused: ")), "{error:?}");
        typed(json!({"acl": {"enabled": false}, "consul": {"enabled": false}, "ui": {}})).expect("off is what we do");
        assert_eq!(typed(json!({"plugin_dir": []})).expect_err("type").len(), 1);
        let _: Mistake = typed(json!({"server": {"non_voting_server": true}})).expect_err("refused").remove(0);
    }

    #[test]
    fn a_number_that_does_not_fit_is_a_mistake() {
        assert_eq!(typed(json!({"ports": {"http": 70000}})).expect_err("too large").len(), 1);
        assert_eq!(typed(json!({"client": {"gc_max_allocs": -1}})).expect_err("negative").len(), 1);
    }
}
