//! Services and their checks, as jobs declare them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{go_duration::GoDuration, task::Identity};

/// A service that allocations register.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Service {
    /// Name; defaults to `${JOB}-${TASKGROUP}[-${TASK}]`.
    pub name: String,
    /// `nomad` or `consul`.
    pub provider: String,
    /// Label or number of the port.
    pub port_label: String,
    /// Tags.
    pub tags: Vec<String>,
    /// Tags of canaries.
    pub canary_tags: Vec<String>,
    /// auto, alloc, driver or host.
    pub address_mode: String,
    /// Fixed address.
    pub address: String,
    /// Addresses by tag.
    pub tagged_addresses: BTreeMap<String, String>,
    /// Checks.
    pub checks: Vec<Check>,
    /// Restart on failing checks.
    pub check_restart: Option<CheckRestart>,
    /// Metadata.
    pub meta: BTreeMap<String, String>,
    /// Metadata of canaries.
    pub canary_meta: BTreeMap<String, String>,
    /// Task that the service belongs to, for group services.
    #[serde(rename = "TaskName")]
    pub task: String,
    /// require_healthy, ignore_warnings, ignore.
    pub on_update: String,
    /// Consul only.
    pub enable_tag_override: bool,
    /// Identity for Consul.
    pub identity: Option<Identity>,
    /// Consul only.
    pub weights: Option<serde_json::Value>,
    /// Consul cluster.
    pub cluster: String,
    /// Connect: kept, refused to run.
    pub connect: Option<serde_json::Value>,
}

/// A check of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Check {
    /// Name.
    pub name: String,
    /// http, tcp, grpc, script.
    #[serde(rename = "Type")]
    pub kind: String,
    /// HTTP path.
    pub path: String,
    /// HTTP method.
    pub method: String,
    /// HTTP body.
    pub body: String,
    /// HTTP headers.
    pub header: BTreeMap<String, Vec<String>>,
    /// Label or number of the port.
    pub port_label: String,
    /// http or https.
    pub protocol: String,
    /// Time between two runs.
    pub interval: GoDuration,
    /// Time for one run.
    pub timeout: GoDuration,
    /// alloc, driver or host.
    pub address_mode: String,
    /// Address given to Consul.
    pub advertise: String,
    /// Task that runs a script check.
    #[serde(rename = "TaskName")]
    pub task: String,
    /// Script.
    pub command: String,
    /// Script arguments.
    pub args: Vec<String>,
    /// Connect only.
    pub expose: bool,
    /// Status before the first run.
    pub initial_status: String,
    /// Good runs before passing.
    pub success_before_passing: i32,
    /// Bad runs before critical.
    pub failures_before_critical: i32,
    /// Bad runs before warning.
    pub failures_before_warning: i32,
    /// Restart on failure.
    pub check_restart: Option<CheckRestart>,
    /// require_healthy, ignore_warnings, ignore.
    pub on_update: String,
    /// TLS server name.
    #[serde(rename = "TLSServerName")]
    pub tls_server_name: String,
    /// No TLS verification.
    #[serde(rename = "TLSSkipVerify")]
    pub tls_skip_verify: bool,
    /// gRPC service.
    #[serde(rename = "GRPCService")]
    pub grpc_service: String,
    /// gRPC over TLS.
    #[serde(rename = "GRPCUseTLS")]
    pub grpc_use_tls: bool,
    /// Free text.
    pub notes: String,
}

/// Restart a task whose checks fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CheckRestart {
    /// Failures in a row.
    pub limit: i32,
    /// Time after the start.
    pub grace: Option<GoDuration>,
    /// Warnings are fine.
    pub ignore_warnings: bool,
}
