//! The tables of dynamic host volumes and of the claims on them.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use model::{
    ids::{ClaimId, JobKey, NodeId, VolumeId},
    volume::{DynamicVolume, VolumeClaim},
};

/// Volumes and claims.
#[derive(Clone, Default)]
pub(crate) struct Volumes {
    pub(crate) volumes: OrdMap<VolumeId, Arc<DynamicVolume>>,
    pub(crate) by_node: OrdSet<(NodeId, VolumeId)>,
    pub(crate) claims: OrdMap<ClaimId, Arc<VolumeClaim>>,
    pub(crate) by_job: OrdSet<(JobKey, ClaimId)>,
}

impl Volumes {
    pub(crate) fn put(&mut self, volume: Arc<DynamicVolume>) {
        self.remove(volume.id);
        self.by_node.insert((volume.node_id, volume.id));
        self.volumes.insert(volume.id, volume);
    }

    pub(crate) fn remove(&mut self, id: VolumeId) -> Option<Arc<DynamicVolume>> {
        let volume = self.volumes.remove(&id)?;
        self.by_node.remove(&(volume.node_id, id));
        Some(volume)
    }

    pub(crate) fn put_claim(&mut self, claim: Arc<VolumeClaim>) {
        self.remove_claim(claim.id);
        self.by_job.insert((claim.job_key(), claim.id));
        self.claims.insert(claim.id, claim);
    }

    pub(crate) fn remove_claim(&mut self, id: ClaimId) -> Option<Arc<VolumeClaim>> {
        let claim = self.claims.remove(&id)?;
        self.by_job.remove(&(claim.job_key(), id));
        Some(claim)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<DynamicVolume>> {
        self.volumes.values()
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = &Arc<VolumeClaim>> {
        self.claims.values()
    }
}
