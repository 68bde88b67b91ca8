//! Allocations: one function writes them and makes every derived change.

use std::sync::Arc;

use model::{
    alloc::{AllocClientUpdate, AllocStateChange, Allocation, ClientStatus, DesiredTransition},
    ids::{AllocId, JobKey, TimestampNs},
    job::Job,
    records::GroupSummary,
};

use super::Applier;
use crate::{
    applied::{Cause, Object},
    tables::{AllocEntry, Shared, job_number, place_of},
};

/// The counter for allocations of that status. Complete and failed ones stay counted.
fn counter(s: &mut GroupSummary, status: ClientStatus) -> &mut i64 {
    match status {
        ClientStatus::Pending => &mut s.starting,
        ClientStatus::Running => &mut s.running,
        ClientStatus::Complete => &mut s.complete,
        ClientStatus::Failed => &mut s.failed,
        ClientStatus::Lost => &mut s.lost,
        ClientStatus::Unknown => &mut s.unknown,
    }
}

/// The job's own copy of a task's name. All its allocations share that one, while every report brings another copy.
fn name_of(alloc: &Allocation, task: Arc<str>) -> Arc<str> {
    let group = alloc.job.as_ref().and_then(|j| j.group(&alloc.task_group));
    group.and_then(|g| g.task(&task)).map_or(task, |t| t.name.clone())
}

/// Status changes kept of an allocation.
const STATES_KEPT: usize = 10;

/// Records that the allocation's node was disconnected, or has reconnected.
pub(super) fn note_status(alloc: &mut Allocation, status: &str, now: TimestampNs) {
    let change = AllocStateChange {
        field: AllocStateChange::CLIENT_STATUS.to_owned(),
        value: status.to_owned(),
        time: now.into(),
    };
    alloc.alloc_states.push(change);
    let surplus = alloc.alloc_states.len().saturating_sub(STATES_KEPT);
    alloc.alloc_states.drain(..surplus);
}

impl Applier<'_> {
    pub(super) fn update_from_client(&mut self, update: AllocClientUpdate) {
        let Some(entry) = self.state.allocs.get(&update.id) else { return };
        let mut alloc = Allocation::clone(&entry.alloc);
        if alloc.client_status == ClientStatus::Unknown && update.client_status != ClientStatus::Unknown {
            note_status(
                &mut alloc,
                if update.client_status == ClientStatus::Running { "running" } else { "ended" },
                self.now,
            );
        }
        alloc.client_status = update.client_status;
        alloc.client_description = update.client_description;
        alloc.task_states =
            update.task_states.into_iter().map(|(task, state)| (name_of(&alloc, task), state)).collect();
        if update.network_status.is_some() {
            alloc.network_status = update.network_status;
        }
        // Health is decided once: a late report does not undo it. The servers decide whether it is a canary.
        if let Some(health) = update.deployment_status
            && health.healthy.is_some()
        {
            let own = alloc.deployment_status.get_or_insert_default();
            if own.healthy != health.healthy {
                own.healthy = health.healthy;
                own.timestamp = health.timestamp;
                own.modify_index = self.index;
            }
        }
        alloc.modify_time = self.now;
        self.put_alloc(alloc, Cause::AllocationUpdated);
        self.report_services(update.id, update.services, update.remote_services);
        self.forget_orphan(update.id);
    }

    /// Removes an ended allocation of a purged job; a later job of the same name does not matter. Records of remote
    /// tasks stay: they end when the absence of their instances is confirmed.
    pub(super) fn forget_orphan(&mut self, id: AllocId) {
        let Some(alloc) = self.state.allocs.get(&id).map(|e| &e.alloc).filter(|a| a.client_terminal()) else { return };
        let own = |job: &Arc<Job>| alloc.job.as_ref().is_none_or(|j| j.create_index == job.create_index);
        if !self.state.jobs.get(&alloc.job_key()).is_some_and(own) {
            self.orphans.insert(id);
        }
    }

    pub(super) fn transition(&mut self, id: AllocId, t: &DesiredTransition) {
        let Some(entry) = self.state.allocs.get(&id) else { return };
        let mut alloc = Allocation::clone(&entry.alloc);
        let own = &mut alloc.desired_transition;
        for (own, given) in [
            (&mut own.migrate, t.migrate),
            (&mut own.reschedule, t.reschedule),
            (&mut own.force_reschedule, t.force_reschedule),
            (&mut own.no_shutdown_delay, t.no_shutdown_delay),
        ] {
            if given.is_some() {
                *own = given;
            }
        }
        // The node has to hear of it; the others wait for the plan that carries them out.
        if t.rolling_restart != 0 {
            own.rolling_restart = t.rolling_restart;
            alloc.alloc_modify_index = self.index;
        }
        alloc.modify_time = self.now;
        self.put_alloc(alloc, Cause::AllocationUpdateDesiredStatus);
    }

    pub(super) fn upsert_alloc(&mut self, mut alloc: Allocation) {
        // One that a recovery brings back has its volumes.
        if !alloc.terminal() && !self.state.allocs.contains_key(&alloc.id) {
            self.claim_volumes(&alloc, None);
        }
        alloc.alloc_modify_index = self.index;
        self.put_alloc(alloc, Cause::AllocationUpdated);
    }

    /// Writes an allocation with all derived changes: indexes, room on its node, counts, health of its deployment.
    pub(super) fn put_alloc(&mut self, mut alloc: Allocation, cause: Cause) {
        let key = alloc.job_key();
        let before = self.state.allocs.get(&alloc.id).cloned();
        alloc.create_index = before.as_ref().map_or(self.index, |b| b.alloc.create_index);
        alloc.modify_index = self.index;
        if alloc.create_time == 0 {
            alloc.create_time = self.now;
        }
        if alloc.job.is_none() {
            alloc.job = self.state.job_version(&key, alloc.job_version).cloned();
        }
        let alloc = Arc::new(alloc);
        let old = before.as_ref().map(|b| &b.alloc);

        self.relink(old, &alloc, &key);
        self.retake(old, &alloc);
        self.count_in_summary(&key, old.map(|o| &**o), Some(&*alloc));
        let (was_live, is_live) = (old.is_some_and(|o| !o.terminal()), !alloc.terminal());
        if old.is_none() || was_live != is_live {
            self.edit_counts(&key, |c| {
                c.allocs += u32::from(old.is_none());
                c.live_allocs = (c.live_allocs + u32::from(is_live)).saturating_sub(u32::from(was_live));
            });
        }
        self.count_in_deployment(old, &alloc);

        let same = |s: &Option<AllocEntry>, f: fn(&Allocation, &Allocation) -> bool| {
            s.as_ref().is_some_and(|b| f(&b.alloc, &alloc))
        };
        let kept_resources = same(&before, |a, b| Arc::ptr_eq(&a.resources, &b.resources));
        let kept_metrics = same(&before, |a, b| match (&a.metrics, &b.metrics) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        });
        let (mut resources_ref, mut metrics_ref) = before.as_ref().map_or((0, 0), |b| (b.resources_ref, b.metrics_ref));
        if !kept_resources {
            self.release_shared(resources_ref);
            resources_ref = 0;
        }
        if !kept_metrics {
            self.release_shared(metrics_ref);
            metrics_ref = 0;
        }
        self.state.allocs.insert(alloc.id, AllocEntry { alloc: alloc.clone(), resources_ref, metrics_ref });
        if alloc.client_terminal() {
            self.delete_local_services_of_alloc(alloc.id);
        }
        self.set.put(cause, Object::Alloc(alloc));
        if let Some(old) = before.map(|b| b.alloc)
            && let Some(j) = &old.job
        {
            self.release_retained(&key, j.create_index, old.job_version);
        }
    }

    /// Counts an allocation for its own job. One that outlives its job's purge does not count, even for a new job of
    /// that name, until that job takes it over.
    fn count_in_summary(&mut self, key: &JobKey, old: Option<&Allocation>, new: Option<&Allocation>) {
        let Some(named) = self.state.job(key).map(|j| j.create_index) else { return };
        let of = |a: Option<&Allocation>| {
            a.filter(|a| a.job.as_ref().is_some_and(|j| j.create_index == named)).map(|a| a.client_status)
        };
        let (was, is) = (of(old), of(new));
        let Some(group) = old.or(new).map(|a| a.task_group.clone()).filter(|_| was != is) else { return };
        let Some(s) = self.group_summary(key, &group) else { return };
        // Ended allocations stay counted. A lost one may still report, until it is collected.
        if let Some(was) = was
            && !matches!(was, ClientStatus::Complete | ClientStatus::Failed)
            && (new.is_some() || was != ClientStatus::Lost)
        {
            *counter(s, was) -= 1;
        }
        if let Some(is) = is {
            *counter(s, is) += 1;
        }
    }

    fn relink(&mut self, old: Option<&Arc<Allocation>>, new: &Allocation, key: &JobKey) {
        let s = &mut *self.state;
        if let Some(o) = old {
            if o.node_id != new.node_id {
                s.allocs_by_node.remove(&(o.node_id, o.id));
            }
            if o.eval_id != new.eval_id {
                s.allocs_by_eval.remove(&(o.eval_id, o.id));
            }
            if o.deployment_id != new.deployment_id {
                s.allocs_by_deployment.remove(&(o.deployment_id, o.id));
            }
        } else {
            s.allocs_by_job.insert((job_number(key), new.id));
            s.allocs_by_creation.insert((new.create_index, new.id));
        }
        if old.is_none_or(|o| o.node_id != new.node_id) {
            s.allocs_by_node.insert((new.node_id, new.id));
        }
        if old.is_none_or(|o| o.eval_id != new.eval_id) {
            s.allocs_by_eval.insert((new.eval_id, new.id));
        }
        if !new.deployment_id.is_nil() && old.is_none_or(|o| o.deployment_id != new.deployment_id) {
            s.allocs_by_deployment.insert((new.deployment_id, new.id));
        }
        s.count_in_namespace(old.map(|o| &**o), Some(new));
        // The place of an allocation never changes.
        match (old.is_some_and(|o| !o.terminal()), !new.terminal()) {
            (false, true) => drop(s.live_by_place.insert((place_of(new), new.id))),
            (true, false) => drop(s.live_by_place.remove(&(place_of(new), new.id))),
            _ => {}
        }
    }

    /// Keeps room until the node reports the end: a stopping allocation runs on for its shutdown_delay and
    /// kill_timeout, with its ports and memory. Only its replacement in the same plan may use its room, and waits for
    /// it on the node.
    fn retake(&mut self, old: Option<&Arc<Allocation>>, new: &Allocation) {
        let old = old.filter(|o| o.occupies());
        if let Some(o) = old
            && new.occupies()
            && o.node_id == new.node_id
            && Arc::ptr_eq(&o.resources, &new.resources)
        {
            return;
        }
        if let Some(o) = old {
            self.state.fleet.release(o);
        }
        if new.occupies() {
            self.state.fleet.take(new);
        }
    }

    pub(super) fn delete_alloc(&mut self, id: AllocId) {
        let Some(entry) = self.state.allocs.remove(&id) else { return };
        let a = entry.alloc;
        let key = a.job_key();
        let s = &mut *self.state;
        s.allocs_by_job.remove(&(job_number(&key), id));
        s.allocs_by_creation.remove(&(a.create_index, id));
        s.allocs_by_node.remove(&(a.node_id, id));
        s.allocs_by_eval.remove(&(a.eval_id, id));
        s.allocs_by_deployment.remove(&(a.deployment_id, id));
        if !a.terminal() {
            s.live_by_place.remove(&(place_of(&a), id));
        }
        if a.occupies() {
            s.fleet.release(&a);
        }
        s.count_in_namespace(Some(&a), None);
        self.count_in_summary(&key, Some(&*a), None);
        self.edit_counts(&key, |c| {
            c.allocs = c.allocs.saturating_sub(1);
            c.live_allocs = c.live_allocs.saturating_sub(u32::from(!a.terminal()));
        });
        self.release_shared(entry.resources_ref);
        self.release_shared(entry.metrics_ref);
        if let Some(j) = &a.job {
            self.release_retained(&key, j.create_index, a.job_version);
        }
        self.delete_local_services_of_alloc(id);
        self.set.delete(Cause::Collected, Object::Alloc(a));
    }

    /// Makes a shared row for a value that several rows of this batch refer to.
    pub(super) fn share(&mut self, value: Shared) -> u64 {
        // Unique and growing: the batch's index in the high bits, a counter in the low ones.
        let base = self.index << 20;
        let newest = self.state.shared.get_max().map_or(0, |(k, _)| *k);
        let id = (newest + 1).max(base);
        self.state.shared.insert(id, crate::tables::SharedValue { users: 0, value });
        self.set.tables.insert(crate::Table::Shared);
        self.set.shared.push(id);
        id
    }

    pub(super) fn use_shared(&mut self, id: u64) {
        if let Some(v) = self.state.shared.get_mut(&id) {
            v.users += 1;
        }
    }

    fn release_shared(&mut self, id: u64) {
        if id == 0 {
            return;
        }
        let Some(v) = self.state.shared.get_mut(&id) else { return };
        v.users = v.users.saturating_sub(1);
        if v.users == 0 {
            self.state.shared.remove(&id);
            self.set.tables.insert(crate::Table::Shared);
            self.set.shared.push(id);
        }
    }
}
