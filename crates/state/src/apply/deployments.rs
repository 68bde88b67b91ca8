//! Deployments: counters follow the allocations.

use std::sync::Arc;

use model::{
    alloc::Allocation,
    deployment::{Deployment, DeploymentGroup, DeploymentStatus},
    ids::{AllocId, DeploymentId, TimestampNs},
    plan::DeploymentUpdate,
};

use super::{Applier, rfc3339};
use crate::applied::{Cause, Object};

fn progress_until(group: &mut DeploymentGroup, at: TimestampNs) {
    group.require_progress_by_ns = at;
    group.require_progress_by = if at == 0 { String::new() } else { rfc3339(at) };
}

impl Applier<'_> {
    pub(super) fn upsert_deployment(&mut self, deployment: &Deployment) {
        let mut d = deployment.clone();
        if let Some(before) = self.state.deployments.get(&d.id) {
            d.create_index = before.create_index;
            d.create_time = before.create_time;
            // The allocations own the counters: a plan made on an older snapshot must not reset them.
            for (name, g) in d.groups.iter_mut() {
                if let Some(b) = before.groups.get(name) {
                    g.placed_allocs = b.placed_allocs;
                    g.healthy_allocs = b.healthy_allocs;
                    g.unhealthy_allocs = b.unhealthy_allocs;
                    g.placed_canaries.clone_from(&b.placed_canaries);
                    g.require_progress_by.clone_from(&b.require_progress_by);
                    g.require_progress_by_ns = b.require_progress_by_ns;
                    g.promoted |= b.promoted;
                }
            }
        } else {
            d.create_index = self.index;
            d.create_time = self.now;
        }
        self.put_deployment(d, Cause::DeploymentStatusUpdate);
    }

    /// A plan's deployment: a new one, or what one under way has to reach now. The plan was made on an older snapshot,
    /// so it says nothing about the state of the deployment.
    pub(super) fn planned_deployment(&mut self, planned: &Deployment) {
        let Some(before) = self.state.deployments.get(&planned.id) else { return self.upsert_deployment(planned) };
        if !before.status.active() {
            return;
        }
        let mut d = Deployment::clone(before);
        for (name, g) in d.groups.iter_mut() {
            g.desired_total = planned.groups.get(name).map_or(g.desired_total, |planned| planned.desired_total);
        }
        self.put_deployment(d, Cause::DeploymentStatusUpdate);
    }

    pub(super) fn deployment_status(&mut self, u: &DeploymentUpdate) {
        let Some(before) = self.state.deployments.get(&u.id) else { return };
        let mut d = Deployment::clone(before);
        d.status = u.status;
        d.status_description.clone_from(&u.description);
        let (key, version) = (d.job_key(), d.job_version);
        let created = d.job_create_index;
        self.put_deployment(d, Cause::DeploymentStatusUpdate);
        if u.status == DeploymentStatus::Successful && self.state.job(&key).is_some_and(|j| j.create_index == created) {
            self.job_stability(&key, version, true);
        }
    }

    pub(super) fn deployment_health(&mut self, id: DeploymentId, healthy: &[AllocId], unhealthy: &[AllocId]) {
        for (ids, health) in [(healthy, true), (unhealthy, false)] {
            for alloc in ids {
                let Some(entry) = self.state.allocs.get(alloc) else { continue };
                if entry.alloc.deployment_id != id {
                    continue;
                }
                let mut a = Allocation::clone(&entry.alloc);
                let own = a.deployment_status.get_or_insert_default();
                own.healthy = Some(health);
                own.timestamp = self.now.into();
                own.modify_index = self.index;
                a.modify_time = self.now;
                self.put_alloc(a, Cause::DeploymentAllocHealth);
            }
        }
    }

    pub(super) fn promote(&mut self, id: DeploymentId, groups: Option<&[Arc<str>]>) {
        let Some(before) = self.state.deployments.get(&id) else { return };
        let mut d = Deployment::clone(before);
        let named = |name: &Arc<str>| groups.is_none_or(|groups| groups.contains(name));
        // Groups without canaries are promoted along with the others, because clients wait until all groups are
        // promoted.
        for (_, g) in d.groups.iter_mut().filter(|(name, _)| named(name)) {
            g.promoted = true;
            if g.progress_deadline.nanos() > 0 && (g.desired_canaries > 0 || g.placed_allocs > 0) {
                progress_until(g, self.now + g.progress_deadline.nanos());
            }
        }
        if d.status == DeploymentStatus::Running {
            d.awaited_promotion().unwrap_or("Deployment is running").clone_into(&mut d.status_description);
        }
        self.put_deployment(d, Cause::DeploymentPromotion);
        let canary =
            |a: &&Arc<Allocation>| named(&a.task_group) && a.deployment_status.as_ref().is_some_and(|s| s.canary);
        let canaries: Vec<Allocation> =
            self.state.allocs_by_deployment(id).filter(canary).map(|a| Allocation::clone(a)).collect();
        for mut a in canaries {
            let own = a.deployment_status.get_or_insert_default();
            own.canary = false;
            own.modify_index = self.index;
            // Their nodes must hear of it: a canary may register other services.
            a.alloc_modify_index = self.index;
            a.modify_time = self.now;
            self.put_alloc(a, Cause::DeploymentPromotion);
        }
    }

    /// Restarts the clocks, except in groups without placements, whose clocks have not begun.
    pub(super) fn deployment_progress(&mut self, id: DeploymentId) {
        let Some(before) = self.state.deployments.get(&id) else { return };
        let mut d = Deployment::clone(before);
        for g in d.groups.values_mut().filter(|g| g.placed_allocs > 0 && g.progress_deadline.nanos() > 0) {
            progress_until(g, self.now + g.progress_deadline.nanos());
        }
        self.put_deployment(d, Cause::DeploymentStatusUpdate);
    }

    pub(super) fn delete_deployment(&mut self, id: DeploymentId) {
        if let Some(d) = self.state.deployments.remove(&id) {
            self.state.deployments_by_job.remove(&(d.job_key(), id));
            self.state.deployments_by_creation.remove(&(d.create_index, id));
            self.state.active_deployments.remove(&id);
            self.set.delete(Cause::Collected, Object::Deployment(d));
        }
    }

    /// Counts placed and healthy allocations of a deployment as they are written.
    pub(super) fn count_in_deployment(&mut self, old: Option<&Arc<Allocation>>, new: &Allocation) {
        if new.deployment_id.is_nil() {
            return;
        }
        let old = old.filter(|o| o.deployment_id == new.deployment_id);
        let (was, is) = (old.and_then(|o| o.healthy()), new.healthy());
        if old.is_some() && was == is {
            return;
        }
        let now = self.now;
        // Changed in place: 10,000 placements of one plan make one change of their deployment.
        let Some(d) = self.state.deployments.get_mut(&new.deployment_id) else { return };
        if !d.groups.contains_key(&new.task_group) {
            return;
        }
        let Some(g) = Arc::make_mut(d).groups.get_mut(&new.task_group) else { return };
        self.counted.insert(new.deployment_id);
        // The clock begins with the first placement: before it, no progress can be due.
        let first = old.is_none() && g.placed_allocs == 0;
        if old.is_none() {
            g.placed_allocs += 1;
            if new.deployment_status.as_ref().is_some_and(|s| s.canary) {
                g.placed_canaries.push(new.id);
            }
        }
        let delta = |value: bool| i32::from(is == Some(value)) - i32::from(was == Some(value));
        g.healthy_allocs += delta(true);
        g.unhealthy_allocs += delta(false);
        if (first || (is == Some(true) && was != is)) && g.progress_deadline.nanos() > 0 {
            progress_until(g, now + g.progress_deadline.nanos());
        }
    }

    /// Writes a deployment whose counters have changed.
    pub(super) fn settle_deployment(&mut self, id: DeploymentId) {
        if let Some(d) = self.state.deployments.get(&id).cloned() {
            self.put_deployment(Deployment::clone(&d), Cause::DeploymentAllocHealth);
        }
    }

    fn put_deployment(&mut self, mut d: Deployment, cause: Cause) {
        d.modify_index = self.index;
        d.modify_time = self.now;
        let d = Arc::new(d);
        self.state.deployments_by_job.insert((d.job_key(), d.id));
        self.state.deployments_by_creation.insert((d.create_index, d.id));
        if d.status.active() {
            self.state.active_deployments.insert(d.id);
        } else {
            self.state.active_deployments.remove(&d.id);
        }
        self.state.deployments.insert(d.id, d.clone());
        self.set.put(cause, Object::Deployment(d));
    }
}
