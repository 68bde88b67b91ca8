//! Services and their checks, as jobs declare them, and the registrations that follow from them.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    go_duration::GoDuration,
    ids::{AllocId, JobId, JobKey, Namespace, NodeId, SlotKey, StoreIndex},
    schema::{self, Described, Shape},
    task_blocks::Identity,
};

/// A service that allocations register.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Service {
    /// Name of the service.
    #[job(says = "JOB-GROUP, of a task JOB-GROUP-TASK")]
    pub name: String,
    /// `nomad` or `consul`.
    #[job(default = "consul")]
    pub provider: String,
    /// Label or number of the port.
    #[job(hcl = "port")]
    pub port_label: String,
    /// Tags.
    pub tags: Vec<String>,
    /// Tags of canaries.
    pub canary_tags: Vec<String>,
    /// `auto`, `alloc`, `driver` or `host`.
    #[job(default = "auto")]
    pub address_mode: String,
    /// Fixed address.
    pub address: String,
    /// Addresses by tag.
    pub tagged_addresses: BTreeMap<String, String>,
    /// Checks of the service.
    #[job(hcl = "check")]
    pub checks: Vec<Check>,
    /// Restart tasks when checks fail.
    pub check_restart: Option<CheckRestart>,
    /// Metadata.
    pub meta: BTreeMap<String, String>,
    /// Metadata of canaries.
    pub canary_meta: BTreeMap<String, String>,
    /// Task that the service belongs to, for services of groups.
    #[serde(rename = "TaskName")]
    pub task: String,
    /// `require_healthy`, `ignore_warnings` or `ignore`.
    #[job(default = "require_healthy")]
    pub on_update: String,
    /// Others may change its tags in Consul.
    pub enable_tag_override: bool,
    /// Identity for Consul.
    pub identity: Option<Identity>,
    /// Weights in Consul's DNS.
    #[job(shape = Shape::One(schema::opaque::WEIGHTS))]
    pub weights: Option<serde_json::Value>,
    /// Namespace that it is registered in: the job's own.
    #[job(api, left_out)]
    pub namespace: String,
    /// Cluster of Consul.
    #[job(client = "default")]
    pub cluster: String,
    /// Kind of the service in Consul.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[job(left_out)]
    pub kind: String,
    /// Consul's service mesh.
    #[job(shape = Shape::One(schema::connect::CONNECT))]
    pub connect: Option<serde_json::Value>,
}

/// A check of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Check {
    /// Name of the check.
    #[job(says = "that of its service")]
    pub name: String,
    /// `http`, `tcp`, `grpc` or `script`.
    #[serde(rename = "Type")]
    #[job(hcl = "type")]
    pub kind: String,
    /// HTTP path.
    pub path: String,
    /// HTTP method.
    #[job(says = "GET")]
    pub method: String,
    /// HTTP body.
    pub body: String,
    /// HTTP headers.
    pub header: BTreeMap<String, Vec<String>>,
    /// Label or number of the port.
    #[job(hcl = "port", says = "that of its service")]
    pub port_label: String,
    /// `http` or `https`.
    #[job(says = "http")]
    pub protocol: String,
    /// Time between two runs.
    pub interval: GoDuration,
    /// Time for one run.
    pub timeout: GoDuration,
    /// `alloc`, `driver` or `host`.
    pub address_mode: String,
    /// Address given to Consul.
    pub advertise: String,
    /// Task that runs a script check.
    #[serde(rename = "TaskName")]
    pub task: String,
    /// Program of a script check.
    pub command: String,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Expose it through Consul's service mesh.
    pub expose: bool,
    /// Status before the first run.
    pub initial_status: String,
    /// Good runs in a row before it passes.
    pub success_before_passing: i32,
    /// Bad runs in a row before it is critical.
    pub failures_before_critical: i32,
    /// Bad runs in a row before it warns.
    pub failures_before_warning: i32,
    /// Restart the task when it fails.
    pub check_restart: Option<CheckRestart>,
    /// `require_healthy`, `ignore_warnings` or `ignore`.
    #[job(says = "that of its service")]
    pub on_update: String,
    /// Server name for TLS.
    #[serde(rename = "TLSServerName")]
    pub tls_server_name: String,
    /// Do not verify certificates.
    #[serde(rename = "TLSSkipVerify")]
    pub tls_skip_verify: bool,
    /// gRPC service.
    #[serde(rename = "GRPCService")]
    pub grpc_service: String,
    /// gRPC over TLS.
    #[serde(rename = "GRPCUseTLS")]
    pub grpc_use_tls: bool,
    /// Text about the check.
    pub notes: String,
}

/// Restart a task whose checks fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct CheckRestart {
    /// Failures in a row; 0 = never restart.
    pub limit: i32,
    /// Time after the start in which failures do not count.
    pub grace: Option<GoDuration>,
    /// Warnings are no failures.
    pub ignore_warnings: bool,
}

/// What `on_update` may be.
pub mod on_update {
    /// Every check must pass before a deployment goes on.
    pub const REQUIRE_HEALTHY: &str = "require_healthy";
    /// A check that warns is good enough.
    pub const IGNORE_WARNINGS: &str = "ignore_warnings";
    /// The check says nothing about a deployment.
    pub const IGNORE: &str = "ignore";
}

/// Is it a name of a service? What RFC 1123 allows in the label of a host.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The provider whose registry is this system's own.
pub const PROVIDER: &str = "nomad";

/// One place where a service is reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServiceRegistration {
    /// Id, see [`registration_id`].
    #[serde(rename = "ID")]
    pub id: Arc<str>,
    /// Name.
    pub service_name: Arc<str>,
    /// Namespace of the job.
    pub namespace: Namespace,
    /// Node that vouches for it: the one that runs the task, or manages the remote one.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Datacenter of that node.
    pub datacenter: String,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Allocation.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Tags.
    pub tags: Vec<String>,
    /// Address.
    pub address: String,
    /// Port; 0 = the service has none.
    pub port: i32,
    /// Metadata.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// The slot of the remote task that serves it: such a registration lives as long as the instance, whichever
    /// allocation manages it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotKey>,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

impl ServiceRegistration {
    /// The job's full name.
    #[must_use]
    pub fn job_key(&self) -> JobKey {
        JobKey { namespace: self.namespace.clone(), id: self.job_id.clone() }
    }
    /// What it would be called under another allocation.
    #[must_use]
    pub fn id_under(&self, alloc: AllocId) -> Arc<str> {
        let own = registration_id(self.alloc_id, "");
        registration_id(alloc, self.id.strip_prefix(&*own).unwrap_or(&self.id))
    }
}

/// Id of a registration: what precedes `suffix` names the allocation, `suffix` what of it ([`ServiceEntry::suffix`]).
#[must_use]
pub fn registration_id(alloc: AllocId, suffix: &str) -> Arc<str> {
    Arc::from(format!("_nomad-task-{alloc}-{suffix}"))
}

/// A registration as the node of an allocation knows it; the servers add whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServiceEntry {
    /// `group-NAME-SERVICE-PORT` or `TASK-SERVICE-PORT`: unique within the allocation.
    pub suffix: String,
    /// Name.
    pub name: String,
    /// Tags.
    pub tags: Vec<String>,
    /// Metadata.
    pub meta: BTreeMap<String, String>,
    /// Address.
    pub address: String,
    /// Port.
    pub port: i32,
    /// The port was given to the allocation. A remote instance that was created for an earlier allocation listens on
    /// that one's.
    pub given_port: bool,
}

/// Where the remote task of an allocation serves, as its manager says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RemoteServices {
    /// Epoch under which the node manages it: a report of an earlier manager is void.
    pub epoch: u64,
    /// All of them.
    pub entries: Vec<ServiceEntry>,
}

/// What a check says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// It has not run yet.
    #[default]
    Pending,
    /// It passes.
    Success,
    /// It warns.
    Warning,
    /// It fails.
    Failure,
}

impl CheckStatus {
    /// The name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

/// The newest result of a check, as `/v1/client/allocation/:id/checks` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CheckResult {
    /// Id, stable while the check is.
    #[serde(rename = "ID")]
    pub id: String,
    /// `healthiness`: deployments wait for it; `readiness`: they do not.
    pub mode: String,
    /// What it says, after `success_before_passing` and `failures_before_critical`.
    pub status: CheckStatus,
    /// Status of the HTTP answer, exit code of the script; 0 = there was none.
    pub status_code: i32,
    /// What the last run has said, shortened.
    pub output: String,
    /// When the last run ended, Unix seconds; 0 = there was none.
    pub timestamp: i64,
    /// `job.group[index]`.
    pub group: String,
    /// Task, for services of tasks.
    pub task: String,
    /// Service.
    pub service: String,
    /// Check.
    pub check: String,
}
