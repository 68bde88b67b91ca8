//! A task: what a driver runs.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

pub use crate::task_blocks::*;
use crate::{
    constraint::{Affinity, Constraint},
    go_duration::GoDuration,
    map::Meta,
    policy::{Restart, Scaling},
    resources::Resources,
    schema::{
        self, Block, Described, Kind, Shape, Unset,
        opaque::{api, label},
    },
    service::Service,
};

/// `scaling "cpu"` and `scaling "mem"` of a task.
const TASK_SCALING: &Block = &Block {
    name: "TaskScaling",
    doc: "Bounds for the autoscaler of a task.",
    extra: &[label("#Name"), api("Namespace", Shape::Value(Kind::Text), Unset::Text)],
    ..*Scaling::BLOCK
};

/// A task of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
#[job(decides)]
pub struct Task {
    /// Name, unique in the group.
    #[job(label, replaces, by_hand)]
    pub name: Arc<str>,
    /// Name of the driver.
    #[job(replaces)]
    pub driver: String,
    /// User that the task runs as.
    #[job(says = "the driver's", replaces)]
    pub user: String,
    /// The driver's own options.
    // Without a schema: blocks are lists of maps.
    #[job(replaces)]
    pub config: serde_json::Map<String, serde_json::Value>,
    /// Rules that its node must meet.
    #[job(hcl = "constraint", in_place)]
    pub constraints: Vec<Constraint>,
    /// Nodes that it prefers or avoids.
    #[job(hcl = "affinity", replaces_local)]
    pub affinities: Vec<Affinity>,
    /// Environment variables.
    #[job(replaces)]
    pub env: BTreeMap<String, String>,
    /// Services of the task.
    #[job(hcl = "service", in_place)]
    pub services: Vec<Service>,
    /// What it needs.
    #[job(inside)]
    pub resources: Resources,
    /// Restart policy, merged over the group's.
    #[serde(rename = "RestartPolicy")]
    #[job(inside)]
    pub restart: Option<Restart>,
    /// Metadata that it sees.
    #[job(replaces, by_hand)]
    pub meta: Meta,
    /// Time between the signal and the kill.
    #[job(default = "5s", in_place)]
    pub kill_timeout: Option<GoDuration>,
    /// Log rotation.
    #[serde(rename = "LogConfig")]
    #[job(inside)]
    pub logs: Option<LogConfig>,
    /// Files to fetch.
    #[job(hcl = "artifact", replaces)]
    pub artifacts: Vec<Artifact>,
    /// Vault settings.
    #[job(replaces)]
    pub vault: Option<Vault>,
    /// Consul settings.
    #[job(replaces)]
    pub consul: Option<Consul>,
    /// Files to render.
    #[job(hcl = "template", replaces)]
    pub templates: Vec<Template>,
    /// Where the dispatch payload is written.
    #[job(replaces)]
    pub dispatch_payload: Option<DispatchPayload>,
    /// Volumes that it mounts.
    #[job(hcl = "volume_mount", replaces)]
    pub volume_mounts: Vec<VolumeMount>,
    /// CSI plugin that this task serves.
    #[serde(rename = "CSIPluginConfig")]
    #[job(shape = Shape::One(schema::opaque::CSI_PLUGIN), left_out, replaces_local)]
    pub csi_plugin: Option<serde_json::Value>,
    /// When the task runs relative to the others.
    #[job(in_place)]
    pub lifecycle: Option<Lifecycle>,
    /// Its end stops the other tasks.
    #[job(in_place)]
    pub leader: bool,
    /// Wait between the deregistration of its services and its stop.
    #[job(in_place)]
    pub shutdown_delay: GoDuration,
    /// Signal sent first on stop.
    #[job(says = "the driver's", in_place)]
    pub kill_signal: String,
    /// Set by Connect.
    #[job(in_place)]
    pub kind: String,
    /// The default workload identity.
    #[job(api, replaces)]
    pub identity: Option<Identity>,
    /// Workload identities; the one named `default` is the task's own.
    #[job(hcl = "identity", replaces)]
    pub identities: Vec<Identity>,
    /// Commands that it offers to people.
    #[job(hcl = "action", in_place)]
    pub actions: Vec<Action>,
    /// Vertical scaling policies.
    #[job(hcl = "scaling", shape = Shape::Many(TASK_SCALING), in_place)]
    pub scaling_policies: Vec<Scaling>,
    /// Times at which the task may run (Nomad Enterprise).
    #[job(shape = Shape::One(schema::opaque::SCHEDULE), in_place)]
    pub schedule: Option<serde_json::Value>,
    /// Secrets to ask providers for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[job(hcl = "secret", left_out, replaces)]
    pub secrets: Vec<TaskSecret>,
}
