//! A task: what a driver runs.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    constraint::{Affinity, Constraint},
    go_duration::GoDuration,
    job::{Meta, Scaling},
    policy::Restart,
    resources::Resources,
    service::Service,
};

/// A task of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Task {
    /// Name, unique in the group.
    pub name: Arc<str>,
    /// Name of the driver.
    pub driver: String,
    /// User that the workload runs as; empty = the driver's default.
    pub user: String,
    /// The driver's own configuration, without a schema: blocks are lists of maps.
    pub config: serde_json::Map<String, serde_json::Value>,
    /// Rules.
    pub constraints: Vec<Constraint>,
    /// Preferences.
    pub affinities: Vec<Affinity>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Services.
    pub services: Vec<Service>,
    /// What it needs.
    pub resources: Resources,
    /// Restart policy, merged over the group's.
    #[serde(rename = "RestartPolicy")]
    pub restart: Option<Restart>,
    /// Free metadata.
    pub meta: Meta,
    /// Time between the signal and the kill.
    pub kill_timeout: Option<GoDuration>,
    /// Log rotation.
    #[serde(rename = "LogConfig")]
    pub logs: Option<LogConfig>,
    /// Files to fetch.
    pub artifacts: Vec<Artifact>,
    /// Vault settings.
    pub vault: Option<Vault>,
    /// Consul settings.
    pub consul: Option<Consul>,
    /// Files to render.
    pub templates: Vec<Template>,
    /// Where the dispatch payload is written.
    pub dispatch_payload: Option<DispatchPayload>,
    /// Mounted volumes.
    pub volume_mounts: Vec<VolumeMount>,
    /// CSI plugin that this task serves.
    #[serde(rename = "CSIPluginConfig")]
    pub csi_plugin: Option<serde_json::Value>,
    /// When the task runs relative to the others.
    pub lifecycle: Option<Lifecycle>,
    /// When it ends, the others are stopped.
    pub leader: bool,
    /// Wait between deregistration and stop.
    pub shutdown_delay: GoDuration,
    /// Signal sent first on stop; empty = the driver's default.
    pub kill_signal: String,
    /// Set by Connect.
    pub kind: String,
    /// The default workload identity.
    pub identity: Option<Identity>,
    /// Further workload identities.
    pub identities: Vec<Identity>,
    /// Commands offered to people.
    pub actions: Vec<Action>,
    /// Vertical scaling policies.
    pub scaling_policies: Vec<Scaling>,
    /// Enterprise: refused.
    pub schedule: Option<serde_json::Value>,
    /// Secrets that providers are asked for: refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<serde_json::Value>,
}

/// Log rotation of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogConfig {
    /// Files kept.
    #[serde(rename = "MaxFiles")]
    pub max_files: Option<i64>,
    /// MiB per file.
    #[serde(rename = "MaxFileSizeMB")]
    pub max_file_size_mb: Option<i64>,
    /// No capture at all.
    #[serde(rename = "Disabled")]
    pub disabled: Option<bool>,
    /// Deprecated opposite of disabled.
    #[serde(rename = "Enabled", skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { max_files: Some(10), max_file_size_mb: Some(10), disabled: Some(false), enabled: None }
    }
}

/// A file or archive to fetch before the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Artifact {
    /// go-getter address.
    #[serde(rename = "GetterSource")]
    pub source: Option<String>,
    /// Options.
    #[serde(rename = "GetterOptions")]
    pub options: BTreeMap<String, String>,
    /// HTTP headers.
    #[serde(rename = "GetterHeaders")]
    pub headers: BTreeMap<String, String>,
    /// any, file or dir.
    #[serde(rename = "GetterMode")]
    pub mode: Option<String>,
    /// No TLS verification.
    #[serde(rename = "GetterInsecure")]
    pub insecure: Option<bool>,
    /// Relative to the task directory.
    #[serde(rename = "RelativeDest")]
    pub destination: Option<String>,
    /// Give the files to the task's user.
    #[serde(rename = "Chown")]
    pub chown: bool,
}

/// A file to render.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Template {
    /// File that holds the text.
    #[serde(rename = "SourcePath")]
    pub source: Option<String>,
    /// Where the result goes.
    #[serde(rename = "DestPath")]
    pub destination: Option<String>,
    /// The text itself.
    #[serde(rename = "EmbeddedTmpl")]
    pub data: Option<String>,
    /// restart, signal, script, noop.
    #[serde(rename = "ChangeMode")]
    pub change_mode: Option<String>,
    /// Script for change_mode script.
    #[serde(rename = "ChangeScript")]
    pub change_script: Option<ChangeScript>,
    /// Signal for change_mode signal.
    #[serde(rename = "ChangeSignal")]
    pub change_signal: Option<String>,
    /// Random wait before a change is acted upon.
    #[serde(rename = "Splay")]
    pub splay: Option<GoDuration>,
    /// Octal mode.
    #[serde(rename = "Perms")]
    pub perms: Option<String>,
    /// Owner.
    #[serde(rename = "Uid")]
    pub uid: Option<i64>,
    /// Group.
    #[serde(rename = "Gid")]
    pub gid: Option<i64>,
    /// Left delimiter.
    #[serde(rename = "LeftDelim")]
    pub left_delimiter: Option<String>,
    /// Right delimiter.
    #[serde(rename = "RightDelim")]
    pub right_delimiter: Option<String>,
    /// The result is also read as environment.
    #[serde(rename = "Envvars")]
    pub env: Option<bool>,
    /// Deprecated.
    #[serde(rename = "VaultGrace")]
    pub vault_grace: Option<GoDuration>,
    /// min and max wait for quiet.
    #[serde(rename = "Wait")]
    pub wait: Option<TemplateWait>,
    /// A missing key is an error.
    #[serde(rename = "ErrMissingKey")]
    pub error_on_missing_key: Option<bool>,
    /// Render once only.
    #[serde(rename = "Once")]
    pub once: Option<bool>,
}

/// What is run in a task when a template has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ChangeScript {
    /// Program, as the task sees it.
    pub command: Option<String>,
    /// Its arguments.
    pub args: Option<Vec<String>>,
    /// Killed after this long.
    pub timeout: Option<GoDuration>,
    /// The task is failed when the script does.
    pub fail_on_error: Option<bool>,
    /// Also after the first rendering: refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_on_first_render: Option<bool>,
}

/// How long changes of a template's data are collected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TemplateWait {
    /// Quiet time after a change.
    pub min: Option<GoDuration>,
    /// At most this long after the first change.
    pub max: Option<GoDuration>,
}

/// Where the dispatch payload is written, relative to `local/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DispatchPayload {
    /// File name.
    pub file: String,
}

/// A mounted volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeMount {
    /// Name in the group's volumes.
    #[serde(rename = "Volume")]
    pub volume: Option<String>,
    /// Path in the task.
    #[serde(rename = "Destination")]
    pub destination: Option<String>,
    /// Read-only.
    #[serde(rename = "ReadOnly")]
    pub read_only: Option<bool>,
    /// private, host-to-task or bidirectional.
    #[serde(rename = "PropagationMode")]
    pub propagation_mode: Option<String>,
    /// SELinux label.
    #[serde(rename = "SELinuxLabel")]
    pub selinux_label: Option<String>,
}

/// When a task runs relative to the main tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Lifecycle {
    /// prestart, poststart or poststop.
    pub hook: String,
    /// Runs as long as the main tasks do.
    pub sidecar: bool,
}

/// A workload identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// Name; empty or `default` for the default one.
    #[serde(rename = "Name")]
    pub name: String,
    /// Audiences.
    #[serde(rename = "Audience")]
    pub audience: Vec<String>,
    /// restart, signal, noop.
    #[serde(rename = "ChangeMode")]
    pub change_mode: String,
    /// Signal for change_mode signal.
    #[serde(rename = "ChangeSignal")]
    pub change_signal: String,
    /// Exposed as environment variable.
    #[serde(rename = "Env")]
    pub env: bool,
    /// Exposed as file.
    #[serde(rename = "File")]
    pub file: bool,
    /// File path.
    #[serde(rename = "Filepath")]
    pub filepath: String,
    /// Service that the identity is for.
    #[serde(rename = "ServiceName")]
    pub service_name: String,
    /// Time to live.
    #[serde(rename = "TTL")]
    pub ttl: GoDuration,
    /// Claims of the namespace that its tokens carry: refused.
    #[serde(rename = "ExtraClaims", skip_serializing_if = "Vec::is_empty")]
    pub extra_claims: Vec<String>,
}

/// A command offered to people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Action {
    /// Name.
    pub name: String,
    /// Command.
    pub command: String,
    /// Arguments.
    pub args: Vec<String>,
}

/// Consul settings: kept, refused at submission when they would have an effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Consul {
    /// Namespace.
    pub namespace: String,
    /// Cluster.
    pub cluster: String,
    /// Partition.
    pub partition: String,
}

impl Consul {
    /// Whether there is more in it than the name of the default cluster.
    pub(crate) fn says_something(&self) -> bool {
        let Self { namespace, cluster, partition } = self;
        !namespace.is_empty() || !partition.is_empty() || !matches!(cluster.as_str(), "" | "default")
    }
}

/// Vault settings: kept, refused at submission until secrets are supported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Vault {
    /// Policies.
    pub policies: Vec<String>,
    /// Role.
    pub role: String,
    /// Namespace.
    pub namespace: Option<String>,
    /// Cluster.
    pub cluster: String,
    /// Expose VAULT_TOKEN.
    pub env: Option<bool>,
    /// Do not write the token file.
    pub disable_file: Option<bool>,
    /// restart, signal, noop.
    pub change_mode: Option<String>,
    /// Signal for change_mode signal.
    pub change_signal: Option<String>,
    /// Let the token expire.
    pub allow_token_expiration: Option<bool>,
}
