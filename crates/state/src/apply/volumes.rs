//! Dynamic host volumes and the claims on them.

use std::sync::Arc;

use model::{
    alloc::Allocation,
    ids::{ClaimId, JobKey, VolumeId},
    job::Job,
    volume::{DynamicVolume, VolumeClaim, host_requests, source_of},
};

use super::Applier;
use crate::applied::{Cause, Object};

impl Applier<'_> {
    pub(super) fn put_volume(&mut self, volume: DynamicVolume) {
        let (create_index, create_time) = match self.state.volume(volume.id) {
            Some(before) => (before.create_index, before.create_time),
            None => (self.index, self.now),
        };
        let (modify_index, modify_time) = (self.index, self.now);
        let volume = Arc::new(DynamicVolume { create_index, create_time, modify_index, modify_time, ..volume });
        self.state.volumes.put(volume.clone());
        self.set.put(Cause::HostVolumeRegistered, Object::Volume(volume));
    }

    pub(super) fn delete_volume(&mut self, id: VolumeId) {
        let Some(volume) = self.state.volumes.remove(id) else { return };
        self.set.delete(Cause::HostVolumeDeleted, Object::Volume(volume));
        let claims = self.state.volumes.claims().filter(|claim| claim.volume_id == id).map(|claim| claim.id);
        for claim in claims.collect::<Vec<_>>() {
            self.delete_volume_claim(claim);
        }
    }

    pub(super) fn put_volume_claim(&mut self, claim: VolumeClaim) {
        let create_index = self.state.volume_claim(claim.id).map_or(self.index, |before| before.create_index);
        let claim = Arc::new(VolumeClaim { create_index, modify_index: self.index, ..claim });
        self.state.volumes.put_claim(claim.clone());
        self.set.put(Cause::Derived, Object::VolumeClaim(claim));
    }

    pub(super) fn delete_volume_claim(&mut self, id: ClaimId) {
        if let Some(claim) = self.state.volumes.remove_claim(id) {
            self.set.delete(Cause::Derived, Object::VolumeClaim(claim));
        }
    }

    pub(super) fn delete_volume_claims_of(&mut self, job: &JobKey) {
        let claims: Vec<_> = self.state.volume_claims_of(job).map(|claim| claim.id).collect();
        claims.into_iter().for_each(|claim| self.delete_volume_claim(claim));
    }

    /// A new allocation of a group with sticky volumes has a claim on each that it finds on its node.
    pub(super) fn claim_volumes(&mut self, alloc: &Allocation, job: Option<&Arc<Job>>) {
        let Some(group) = alloc.job.as_ref().or(job).and_then(|job| job.group(&alloc.task_group)) else { return };
        for request in host_requests(group).filter(|request| request.sticky) {
            let name = source_of(request, alloc.index());
            let named = |volume: &&Arc<DynamicVolume>| volume.name == *name && volume.namespace == alloc.namespace;
            let Some(volume) = self.state.volumes_of(alloc.node_id).find(named).map(|volume| volume.id) else {
                continue;
            };
            let group = &*alloc.task_group;
            let same = |claim: &&Arc<VolumeClaim>| claim.volume_id == volume && claim.task_group_name == group;
            let before = self.state.volume_claims_of(&alloc.job_key()).find(same).map(|claim| claim.id);
            // Of the allocation and the volume, so that every server that applies the batch gives it the same id.
            let bits = alloc.id.0.as_u128().rotate_left(1) ^ volume.0.as_u128();
            let id = || ClaimId(uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid());
            self.put_volume_claim(VolumeClaim {
                id: before.unwrap_or_else(id),
                namespace: alloc.namespace.clone(),
                job_id: alloc.job_id.clone(),
                task_group_name: group.to_owned(),
                alloc_id: alloc.id,
                volume_id: volume,
                volume_name: name.to_string(),
                ..VolumeClaim::default()
            });
        }
    }
}
