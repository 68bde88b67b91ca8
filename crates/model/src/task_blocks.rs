//! The blocks of a task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    go_duration::GoDuration,
    schema::{Described, INT},
};

/// Log rotation of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default)]
#[job(filled, decides)]
pub struct LogConfig {
    /// Files kept for each stream.
    #[serde(rename = "MaxFiles")]
    #[job(kind = INT, default = 10, in_place)]
    pub max_files: Option<i64>,
    /// Size of a file in MiB.
    #[serde(rename = "MaxFileSizeMB")]
    #[job(hcl = "max_file_size", kind = INT, default = 10, in_place)]
    pub max_file_size_mb: Option<i64>,
    /// Keep no logs at all.
    #[serde(rename = "Disabled")]
    #[job(default = false, replaces_local)]
    pub disabled: Option<bool>,
    /// Deprecated opposite of `disabled`.
    #[serde(rename = "Enabled", skip_serializing_if = "Option::is_none")]
    #[job(in_place)]
    pub enabled: Option<bool>,
}

/// A file or archive to fetch before the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default)]
pub struct Artifact {
    /// Address to fetch from.
    #[serde(rename = "GetterSource")]
    #[job(default = "")]
    pub source: Option<String>,
    /// Options of the address, such as `checksum`.
    #[serde(rename = "GetterOptions")]
    pub options: BTreeMap<String, String>,
    /// HTTP headers.
    #[serde(rename = "GetterHeaders")]
    pub headers: BTreeMap<String, String>,
    /// `any`, `file` or `dir`.
    #[serde(rename = "GetterMode")]
    #[job(default = "any")]
    pub mode: Option<String>,
    /// Do not verify certificates.
    #[serde(rename = "GetterInsecure")]
    #[job(default = false)]
    pub insecure: Option<bool>,
    /// Where it goes, relative to the task's directory.
    #[serde(rename = "RelativeDest")]
    #[job(says = "`local/`, with the file's name in mode `file`")]
    pub destination: Option<String>,
    /// Give the files to the task's user.
    #[serde(rename = "Chown")]
    pub chown: bool,
}

/// A file to render.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default)]
pub struct Template {
    /// File that holds the template.
    #[serde(rename = "SourcePath")]
    #[job(default = "")]
    pub source: Option<String>,
    /// Where the result goes.
    #[serde(rename = "DestPath")]
    #[job(default = "")]
    pub destination: Option<String>,
    /// The template itself.
    #[serde(rename = "EmbeddedTmpl")]
    #[job(default = "")]
    pub data: Option<String>,
    /// `restart`, `signal`, `script` or `noop`.
    #[serde(rename = "ChangeMode")]
    #[job(default = "restart", written)]
    pub change_mode: Option<String>,
    /// Script for `change_mode` `script`.
    #[serde(rename = "ChangeScript")]
    pub change_script: Option<ChangeScript>,
    /// Signal for `change_mode` `signal`.
    #[serde(rename = "ChangeSignal")]
    #[job(server = "")]
    pub change_signal: Option<String>,
    /// Longest random wait before the task sees a change.
    #[serde(rename = "Splay")]
    #[job(default = "5s", written)]
    pub splay: Option<GoDuration>,
    /// Mode of the file, in octal.
    #[serde(rename = "Perms")]
    #[job(default = "0644", written)]
    pub perms: Option<String>,
    /// Owner of the file.
    #[serde(rename = "Uid")]
    pub uid: Option<i64>,
    /// Group of the file.
    #[serde(rename = "Gid")]
    pub gid: Option<i64>,
    /// Left delimiter of actions.
    #[serde(rename = "LeftDelim")]
    #[job(default = "{{")]
    pub left_delimiter: Option<String>,
    /// Right delimiter of actions.
    #[serde(rename = "RightDelim")]
    #[job(default = "}}")]
    pub right_delimiter: Option<String>,
    /// Read the result as environment variables, too.
    #[serde(rename = "Envvars")]
    #[job(default = false)]
    pub env: Option<bool>,
    /// Deprecated, without effect in Nomad.
    #[serde(rename = "VaultGrace")]
    #[job(default = "0s")]
    pub vault_grace: Option<GoDuration>,
    /// How long changes are collected.
    #[serde(rename = "Wait")]
    pub wait: Option<TemplateWait>,
    /// A missing key is an error.
    #[serde(rename = "ErrMissingKey")]
    #[job(default = false, written)]
    pub error_on_missing_key: Option<bool>,
    /// Render once only.
    #[serde(rename = "Once")]
    #[job(left_out, server = false)]
    pub once: Option<bool>,
    /// Restart at most `update.max_parallel` allocations of the group at a time.
    #[serde(rename = "Rolling", skip_serializing_if = "Option::is_none")]
    #[job(left_out)]
    pub rolling: Option<bool>,
}

/// What runs in a task when a template has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct ChangeScript {
    /// Program, as the task sees it.
    #[job(default = "")]
    pub command: Option<String>,
    /// Its arguments.
    #[job(default = [], written)]
    pub args: Option<Vec<String>>,
    /// Kill the script after this long.
    #[job(default = "5s", written)]
    pub timeout: Option<GoDuration>,
    /// Fail the task when the script fails.
    #[job(default = false, written)]
    pub fail_on_error: Option<bool>,
    /// Run it after the first rendering, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[job(left_out)]
    pub run_on_first_render: Option<bool>,
}

/// How long changes of a template's data are collected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct TemplateWait {
    /// Quiet time after a change.
    #[job(server = "0s")]
    pub min: Option<GoDuration>,
    /// Longest time after the first change.
    #[job(says = "four times `min`")]
    pub max: Option<GoDuration>,
}

/// Where the dispatch payload is written, relative to `local/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct DispatchPayload {
    /// Name of the file.
    pub file: String,
}

/// A mounted volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default)]
pub struct VolumeMount {
    /// Name of the volume in the group.
    #[serde(rename = "Volume")]
    pub volume: Option<String>,
    /// Path in the task.
    #[serde(rename = "Destination")]
    pub destination: Option<String>,
    /// The task cannot write to it.
    #[serde(rename = "ReadOnly")]
    #[job(default = false)]
    pub read_only: Option<bool>,
    /// `private`, `host-to-task` or `bidirectional`.
    #[serde(rename = "PropagationMode")]
    #[job(default = "private")]
    pub propagation_mode: Option<String>,
    /// SELinux label.
    #[serde(rename = "SELinuxLabel")]
    #[job(default = "")]
    pub selinux_label: Option<String>,
}

/// When a task runs relative to the main tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Lifecycle {
    /// `prestart`, `poststart` or `poststop`.
    pub hook: String,
    /// It runs as long as the main tasks do.
    pub sidecar: bool,
}

/// A workload identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default)]
pub struct Identity {
    /// Name of the identity.
    #[serde(rename = "Name")]
    #[job(says = "`default`")]
    pub name: String,
    /// Audiences of its tokens.
    #[serde(rename = "Audience")]
    #[job(hcl = "aud")]
    pub audience: Vec<String>,
    /// `restart`, `signal` or `noop`.
    #[serde(rename = "ChangeMode")]
    pub change_mode: String,
    /// Signal for `change_mode` `signal`.
    #[serde(rename = "ChangeSignal")]
    pub change_signal: String,
    /// Give the token as environment variable.
    #[serde(rename = "Env")]
    pub env: bool,
    /// Give the token as file.
    #[serde(rename = "File")]
    pub file: bool,
    /// Path of the file.
    #[serde(rename = "Filepath")]
    pub filepath: String,
    /// Service that the identity is for.
    #[serde(rename = "ServiceName")]
    pub service_name: String,
    /// How long a token lives.
    #[serde(rename = "TTL")]
    pub ttl: GoDuration,
    /// Optional claims of the namespace that its tokens carry, by name.
    #[serde(rename = "ExtraClaims", skip_serializing_if = "Vec::is_empty")]
    #[job(left_out)]
    pub extra_claims: Vec<String>,
}

/// A command that a task offers to people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Action {
    /// Name of the action.
    #[job(label)]
    pub name: String,
    /// Program, as the task sees it.
    #[job(required)]
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
}

/// A secret that a provider is asked for before each start of the task. Its values stand for `${secret.NAME.KEY}` in
/// the task's environment and configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskSecret {
    /// Name of the secret.
    #[job(label)]
    pub name: String,
    /// `nomad` (variables), `vault`, or the name of an executable in the node's `common_plugin_dir`.
    pub provider: String,
    /// Where the provider has it.
    pub path: String,
    /// Options of `nomad` (`namespace`) and `vault` (`engine`).
    pub config: serde_json::Map<String, serde_json::Value>,
    /// Environment of an executable.
    pub env: BTreeMap<String, String>,
}

/// Consul settings: kept, refused at submission when they would have an effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Consul {
    /// Namespace in Consul.
    pub namespace: String,
    /// Cluster of Consul.
    #[job(default = "default")]
    pub cluster: String,
    /// Admin partition of Consul.
    pub partition: String,
}

impl Consul {
    /// Whether there is more in it than the name of the default cluster.
    pub(crate) fn says_something(&self) -> bool {
        let Self { namespace, cluster, partition } = self;
        !namespace.is_empty() || !partition.is_empty() || !matches!(cluster.as_str(), "" | "default")
    }
}

/// The token of Vault that a task gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct Vault {
    /// Policies of the token: refused at submission, they belong to the role.
    pub policies: Vec<String>,
    /// Role of Vault's JWT method that the task logs in with.
    pub role: String,
    /// Namespace in Vault.
    #[job(default = "")]
    pub namespace: Option<String>,
    /// Cluster of Vault.
    #[job(default = "default")]
    pub cluster: String,
    /// Give the token as `VAULT_TOKEN`.
    #[job(default = true, written)]
    pub env: Option<bool>,
    /// Do not write the token to a file.
    #[job(default = false, written)]
    pub disable_file: Option<bool>,
    /// `restart`, `signal` or `noop`.
    #[job(default = "restart", written)]
    pub change_mode: Option<String>,
    /// Signal for `change_mode` `signal`.
    #[job(server = "", client = "SIGHUP")]
    pub change_signal: Option<String>,
    /// Let the token expire.
    #[job(default = false)]
    pub allow_token_expiration: Option<bool>,
}
