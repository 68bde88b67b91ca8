//! Dynamic host volumes: directories of a node that the servers know as objects, and the claims that groups have on
//! them.
//!
//! ```text
//! created: pending ── the node has it ──► ready          deleting ── the node has removed it ──► gone
//!             └── the node cannot: `error` says why; it tries again with its next session
//! ```
//! The servers keep what shall be; a node is told its volumes with every session, and says what has become of each.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    alloc::Allocation,
    constraint::Constraint,
    ids::{AllocId, ClaimId, JobId, JobKey, Namespace, NodeId, StoreIndex, TimestampNs, VolumeId},
    job::{TaskGroup, VolumeRequest},
    map::Map,
};

/// The plugin that every node has: it makes a directory.
pub const MKDIR: &str = "mkdir";

/// Access modes of host volumes (facts: dynamic host volumes).
pub const ACCESS_MODES: [&str; 4] = [READER_ONLY, WRITER, SINGLE_WRITER, MULTI_WRITER];
/// Nobody writes.
pub const READER_ONLY: &str = "single-node-reader-only";
/// Allocations of the node write.
pub const WRITER: &str = "single-node-writer";
/// At most one allocation writes.
pub const SINGLE_WRITER: &str = "single-node-single-writer";
/// Any number of allocations of the node write.
pub const MULTI_WRITER: &str = "single-node-multi-writer";

/// Attachment modes of host volumes.
pub const ATTACHMENT_MODES: [&str; 2] = [FILE_SYSTEM, "block-device"];
/// A mounted directory.
pub const FILE_SYSTEM: &str = "file-system";

/// The attribute that a node with that plugin has; its value is the plugin's version.
#[must_use]
pub fn attribute(plugin: &str) -> String {
    format!("plugins.host_volume.{plugin}.version")
}

/// Whether there is such a volume on its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// Its node has not said that it has it. Clients leave the state of a volume that they ask for empty.
    #[default]
    #[serde(alias = "")]
    Pending,
    /// Its node has it.
    Ready,
    /// Its node is down or unknown. Shown only; the servers keep one of the others.
    Unavailable,
}

/// A way to use a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VolumeCapability {
    /// One of [`ATTACHMENT_MODES`].
    pub attachment_mode: String,
    /// One of [`ACCESS_MODES`].
    pub access_mode: String,
}

/// A dynamic host volume. Serde form: the `Volume` object of the HTTP API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DynamicVolume {
    /// Namespace of the jobs that may use it.
    pub namespace: Namespace,
    /// Id.
    #[serde(rename = "ID")]
    pub id: VolumeId,
    /// Name: the `source` of jobs. One of its kind on a node.
    pub name: String,
    /// The plugin that makes it.
    #[serde(rename = "PluginID")]
    pub plugin_id: String,
    /// Pool of its node.
    pub node_pool: String,
    /// Its node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// What was asked of the node.
    pub constraints: Vec<Constraint>,
    /// Least capacity that was asked for, in bytes; 0 = any.
    pub requested_capacity_min_bytes: i64,
    /// Largest capacity that was asked for, in bytes; 0 = any.
    pub requested_capacity_max_bytes: i64,
    /// Capacity that the plugin has given it, in bytes; 0 = it does not say.
    pub capacity_bytes: i64,
    /// The ways in which jobs may use it.
    pub requested_capabilities: Vec<VolumeCapability>,
    /// For the plugin.
    pub parameters: Map<String, String>,
    /// Path on the node.
    pub host_path: String,
    /// It was made by somebody else: no plugin makes or removes it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub registered: bool,
    /// Whether it is there.
    pub state: VolumeState,
    /// It is to be removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// Why its node could not make or remove it, at the last attempt.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Index at which the servers last asked its node for something: to make it, to change it, to remove it.
    pub revision: StoreIndex,
    /// That servers have told its node of it: see [`crate::proof`]. Only the node keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<Arc<str>>,
    /// Index of the creation.
    pub create_index: StoreIndex,
    /// When it was created, Unix ns.
    pub create_time: TimestampNs,
    /// Index of the last change.
    pub modify_index: StoreIndex,
    /// When it was last changed, Unix ns.
    pub modify_time: TimestampNs,
}

impl DynamicVolume {
    /// The capability by which a request uses it: the one that the request names, else the first that allows the
    /// request to read, or to write. `None` = it may not be used so.
    #[must_use]
    pub fn serves(&self, request: &VolumeRequest) -> Option<&VolumeCapability> {
        let named = |asked: &str, has: &str| asked.is_empty() || asked == has;
        self.requested_capabilities.iter().find(|capability| {
            named(&request.attachment_mode, &capability.attachment_mode)
                && named(&request.access_mode, &capability.access_mode)
                && (request.read_only || capability.access_mode != READER_ONLY)
        })
    }
}

/// What a node says of a volume that it was told of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VolumeReport {
    /// The volume.
    #[serde(rename = "ID")]
    pub id: VolumeId,
    /// What the node has acted on: a report on a former revision says nothing.
    pub revision: StoreIndex,
    /// Where it is.
    pub host_path: String,
    /// Its capacity in bytes.
    pub capacity_bytes: i64,
    /// It is removed.
    pub removed: bool,
    /// Why nothing was made or removed; the rest says nothing then.
    pub error: String,
}

/// A claim of a group with `sticky` on a volume: the places of the group stay with the volumes that they have had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VolumeClaim {
    /// Id.
    #[serde(rename = "ID")]
    pub id: ClaimId,
    /// Namespace of job and volume.
    pub namespace: Namespace,
    /// Job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Group.
    pub task_group_name: String,
    /// The allocation that had it last.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Volume.
    #[serde(rename = "VolumeID")]
    pub volume_id: VolumeId,
    /// Its name.
    pub volume_name: String,
    /// Index of the first placement.
    pub create_index: StoreIndex,
    /// Index of the last one.
    pub modify_index: StoreIndex,
}

impl VolumeClaim {
    /// Its job.
    #[must_use]
    pub fn job_key(&self) -> JobKey {
        JobKey { namespace: self.namespace.clone(), id: self.job_id.clone() }
    }
}

/// The name of the volume that an allocation of that index uses for a request.
#[must_use]
pub fn source_of(request: &VolumeRequest, index: u32) -> std::borrow::Cow<'_, str> {
    if request.per_alloc {
        return format!("{}[{index}]", request.source).into();
    }
    request.source.as_str().into()
}

/// The host volumes that a group asks for.
pub fn host_requests(group: &TaskGroup) -> impl Iterator<Item = &VolumeRequest> {
    group.volumes.values().filter(|volume| volume.kind == "host")
}

/// Whether an allocation uses a volume of that namespace and name, and whether it writes to it.
#[must_use]
pub fn use_of(alloc: &Allocation, namespace: &Namespace, name: &str) -> Option<bool> {
    if alloc.namespace != *namespace {
        return None;
    }
    uses(alloc.job.as_ref()?.group(&alloc.task_group)?, alloc.index(), name)
}

/// Whether the allocation of a group with that index uses a volume, and whether it writes to it.
#[must_use]
pub fn uses(group: &TaskGroup, index: u32, name: &str) -> Option<bool> {
    let requests = host_requests(group).filter(|request| source_of(request, index) == name);
    requests.map(|request| !request.read_only).reduce(|one, other| one || other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(access: &str) -> VolumeCapability {
        VolumeCapability { attachment_mode: FILE_SYSTEM.into(), access_mode: access.into() }
    }

    #[test]
    fn a_request_is_served_by_what_it_names_or_by_the_first_that_allows_it() {
        let volume = |modes: &[&str]| DynamicVolume {
            requested_capabilities: modes.iter().map(|mode| capability(mode)).collect(),
            ..DynamicVolume::default()
        };
        let asks = |mode: &str, read_only| VolumeRequest { access_mode: mode.into(), read_only, ..Default::default() };
        let by = |modes: &[&str], request: VolumeRequest| {
            volume(modes).serves(&request).map(|capability| capability.access_mode.clone())
        };
        for (modes, request, expected) in [
            (&[WRITER][..], asks("", false), Some(WRITER)),
            (&[WRITER], asks("", true), Some(WRITER)),
            (&[READER_ONLY], asks("", false), None),
            (&[READER_ONLY], asks("", true), Some(READER_ONLY)),
            (&[READER_ONLY, SINGLE_WRITER], asks("", false), Some(SINGLE_WRITER)),
            (&[WRITER, MULTI_WRITER], asks(MULTI_WRITER, false), Some(MULTI_WRITER)),
            (&[WRITER], asks(MULTI_WRITER, false), None),
            (&[READER_ONLY], asks(READER_ONLY, false), None),
        ] {
            assert_eq!(by(modes, request.clone()).as_deref(), expected, "{modes:?} {request:?}");
        }
        let block = VolumeRequest { attachment_mode: "block-device".into(), ..Default::default() };
        assert_eq!(volume(&[WRITER]).serves(&block), None);
    }
}
