//! Dynamic host volumes by their nodes, and claims by their groups.

use std::sync::Arc;

use model::{
    ids::{ClaimId, JobKey, NodeId, VolumeId},
    node::NodeStatus,
    volume::{DynamicVolume, VolumeClaim, VolumeState},
};

use crate::tables::{Rows, State, along, onward};

impl State {
    /// A dynamic host volume.
    #[must_use]
    pub fn volume(&self, id: VolumeId) -> Option<&Arc<DynamicVolume>> {
        self.volumes.volumes.get(&id)
    }

    /// The dynamic host volumes by id, from one on; downwards when `reverse`.
    #[must_use]
    pub fn volumes_onward(&self, from: Option<VolumeId>, reverse: bool) -> Rows<'_, &Arc<DynamicVolume>> {
        along(self.volumes.volumes.range(onward(from, reverse)).map(|(_, volume)| volume), reverse)
    }

    /// The dynamic host volumes of a node, by id.
    pub fn volumes_of(&self, node: NodeId) -> impl Iterator<Item = &Arc<DynamicVolume>> {
        let ids = (node, VolumeId::NIL)..=(node, VolumeId(uuid::Uuid::max()));
        self.volumes.by_node.range(ids).filter_map(|(_, id)| self.volume(*id))
    }

    /// What people see of a volume's state: whether its node is there, too.
    #[must_use]
    pub fn volume_state(&self, volume: &DynamicVolume) -> VolumeState {
        let there = self.node(volume.node_id).is_some_and(|node| node.status == NodeStatus::Ready);
        if there { volume.state } else { VolumeState::Unavailable }
    }

    /// A claim on a volume.
    #[must_use]
    pub fn volume_claim(&self, id: ClaimId) -> Option<&Arc<VolumeClaim>> {
        self.volumes.claims.get(&id)
    }

    /// The claims on volumes by id, from one on; downwards when `reverse`.
    #[must_use]
    pub fn volume_claims_onward(&self, from: Option<ClaimId>, reverse: bool) -> Rows<'_, &Arc<VolumeClaim>> {
        along(self.volumes.claims.range(onward(from, reverse)).map(|(_, claim)| claim), reverse)
    }

    /// The claims of a job's groups, by id.
    pub fn volume_claims_of(&self, job: &JobKey) -> impl Iterator<Item = &Arc<VolumeClaim>> {
        let ids = (job.clone(), ClaimId::NIL)..=(job.clone(), ClaimId(uuid::Uuid::max()));
        self.volumes.by_job.range(ids).filter_map(|(_, id)| self.volume_claim(*id))
    }
}
