//! Dynamic host volumes: `/v1/volume/host`.

use model::{DynamicVolume, Namespace, NodeId, StoreIndex, TimestampNs, VolumeId, VolumeState};
use serde::{Deserialize, Serialize};

use super::AllocListStub;
use crate::With;

/// A row of `GET /v1/volumes?type=host`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostVolumeStub {
    /// Namespace.
    pub namespace: Namespace,
    /// Id.
    #[serde(rename = "ID")]
    pub id: VolumeId,
    /// Name.
    pub name: String,
    /// The plugin that made it.
    #[serde(rename = "PluginID")]
    pub plugin_id: String,
    /// Pool of its node.
    pub node_pool: String,
    /// Its node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Capacity in bytes; 0 = the plugin does not say.
    pub capacity_bytes: i64,
    /// Whether it is there.
    pub state: VolumeState,
    /// Index of the creation.
    pub create_index: StoreIndex,
    /// When it was created, Unix ns.
    pub create_time: TimestampNs,
    /// Index of the last change.
    pub modify_index: StoreIndex,
    /// When it was last changed, Unix ns.
    pub modify_time: TimestampNs,
}

impl HostVolumeStub {
    /// The row of a volume in that state.
    #[must_use]
    pub fn new(volume: &DynamicVolume, state: VolumeState) -> Self {
        Self {
            namespace: volume.namespace.clone(),
            id: volume.id,
            name: volume.name.clone(),
            plugin_id: volume.plugin_id.clone(),
            node_pool: volume.node_pool.clone(),
            node_id: volume.node_id,
            capacity_bytes: volume.capacity_bytes,
            state,
            create_index: volume.create_index,
            create_time: volume.create_time,
            modify_index: volume.modify_index,
            modify_time: volume.modify_time,
        }
    }
}

/// A volume with those who use it.
pub type HostVolumeDetail = With<DynamicVolume, HostVolumeUsers>;

/// The allocations that use a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostVolumeUsers {
    /// Those that have not ended.
    pub allocations: Vec<AllocListStub>,
}

/// Body of the creation and registration of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostVolumeRequest {
    /// The volume; with an id it changes that one.
    pub volume: Option<DynamicVolume>,
    /// Enterprise; without effect.
    pub policy_override: bool,
}

/// Its answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostVolumeResponse {
    /// The volume as the servers keep it.
    pub volume: Option<DynamicVolume>,
    /// For people; empty = none.
    pub warnings: String,
}
