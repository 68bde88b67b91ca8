//! Applying batches: the one place where a state changes.

mod acl;
mod allocs;
mod deployments;
mod evals;
mod jobs;
mod nodes;
mod plan;
mod services;
mod settings;
mod volumes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    ids::{AllocId, DeploymentId, JobKey, StoreIndex, TimestampNs},
    records::JobSummary,
    remote::RemoteTask,
};

use crate::{
    applied::{AppliedSet, Cause, Object},
    batch::{ApplyError, Batch, Change, Expect},
    lineage::ClusterMeta,
    tables::State,
};

/// The application of one batch.
struct Applier<'a> {
    state: &'a mut State,
    index: StoreIndex,
    now: TimestampNs,
    set: AppliedSet,
    /// Jobs whose status may change.
    touched: BTreeSet<JobKey>,
    /// Deployments whose counters have changed.
    counted: BTreeSet<DeploymentId>,
    /// Ended allocations of purged jobs.
    orphans: BTreeSet<AllocId>,
    /// Summaries being changed; written once at the end.
    summaries: BTreeMap<JobKey, JobSummary>,
}

impl State {
    /// Applies a batch. The state moves to `index`, which must be greater than its own.
    ///
    /// # Errors
    /// When a condition of the batch does not hold, or the index is not new; the state is then as before.
    pub fn apply(&mut self, index: StoreIndex, now: TimestampNs, batch: Batch) -> Result<AppliedSet, ApplyError> {
        if index <= self.index {
            return Err(ApplyError::StaleIndex { given: index, current: self.index });
        }
        for e in &batch.expect {
            self.check(e)?;
        }
        let set = AppliedSet { index, now, ..AppliedSet::default() };
        let (touched, counted, orphans) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut a = Applier { state: self, index, now, set, touched, counted, orphans, summaries: BTreeMap::new() };
        for change in batch.changes {
            a.change(change);
        }
        a.settle();
        let set = a.set;
        self.index = index;
        for t in set.tables.iter() {
            self.table_index[t.slot()] = index;
        }
        Ok(set)
    }

    fn check(&self, expect: &Expect) -> Result<(), ApplyError> {
        let conflict = |expected: String, found: String| {
            Err(ApplyError::Conflict { expected, found, expect: Box::new(expect.clone()) })
        };
        let at = |i: StoreIndex, what: &str| if i == 0 { format!("no {what}") } else { format!("{what} at index {i}") };
        let same = |wanted: StoreIndex, found: StoreIndex, what: String| {
            if wanted == found { Ok(()) } else { conflict(at(wanted, &what), at(found, &what)) }
        };
        match expect {
            Expect::JobModifyIndex(key, i) => {
                same(*i, self.job(key).map_or(0, |j| j.job_modify_index), format!("job {key}"))
            }
            Expect::JobExists(key) if self.job(key).is_none() => conflict(format!("job {key}"), "none".into()),
            Expect::NodeExists(id) if self.node(*id).is_none() => conflict(format!("node {id}"), "none".into()),
            Expect::NodeModifyIndex(id, i) => {
                same(*i, self.node(*id).map_or(0, |n| n.modify_index), format!("node {id}"))
            }
            Expect::DeploymentActive(id) => match self.deployment(*id) {
                Some(d) if d.status.active() => Ok(()),
                Some(d) => conflict(format!("deployment {id} in progress"), format!("status {:?}", d.status)),
                None => conflict(format!("deployment {id} in progress"), "none".into()),
            },
            Expect::RemoteModifyIndex(slot, i) => {
                same(*i, self.remote_task(slot).map_or(0, |r| r.modify_index), format!("remote task {slot}"))
            }
            Expect::SchedulerConfigIndex(i) => {
                same(*i, self.scheduler_config.modify_index, "scheduler settings".into())
            }
            Expect::JobExists(_) | Expect::NodeExists(_) => Ok(()),
        }
    }
}

impl Applier<'_> {
    fn change(&mut self, change: Change) {
        match change {
            Change::RegisterNode(node) => self.register_node(*node),
            Change::NodeStatus { id, status, description, event } => {
                self.node_status(id, status, &description, event.as_ref())
            }
            Change::NodeDrain { id, drain, mark_eligible, last_drain, event } => {
                self.node_drain(id, drain.as_ref(), mark_eligible, last_drain.as_ref(), event.as_ref());
            }
            Change::NodeEligibility { id, eligibility, event } => {
                self.node_eligibility(id, eligibility, event.as_ref())
            }
            Change::NodeEvents(id, events) => self.node_events(id, &events),
            Change::DeleteNode(id) => self.delete_node(id),
            Change::UpsertJob { job, submission } => self.upsert_job(&job, submission.as_deref()),
            Change::StopJob(key) => self.stop_job(&key),
            Change::DeleteJob(key) => self.delete_job(&key),
            Change::JobStability { key, version, stable } => self.job_stability(&key, version, stable),
            Change::JobVersionTag { key, version, tag } => self.job_tag(&key, version, tag.as_ref()),
            Change::RecordLaunch { key, at } => self.record_launch(&key, at),
            Change::RecordScaling { key, group, event } => self.record_scaling(&key, &group, *event),
            Change::UpsertEvals(evals) => evals.iter().for_each(|e| self.upsert_eval(e)),
            Change::DeleteEvals(ids) => ids.iter().for_each(|id| self.delete_eval(*id)),
            Change::ApplyPlan(plan) => self.apply_plan(*plan),
            Change::UpdateAllocsFromClient(updates) => updates.into_iter().for_each(|u| self.update_from_client(u)),
            Change::AllocTransitions(transitions) => transitions.iter().for_each(|(id, t)| self.transition(*id, t)),
            Change::UpsertAllocs(allocs) => allocs.into_iter().for_each(|a| self.upsert_alloc(a)),
            Change::DeleteAllocs(ids) => ids.iter().for_each(|id| self.delete_alloc(*id)),
            Change::UpsertDeployment(d) => self.upsert_deployment(&d),
            Change::DeploymentStatus(u) => self.deployment_status(&u),
            Change::DeploymentHealth { id, healthy, unhealthy } => self.deployment_health(id, &healthy, &unhealthy),
            Change::DeploymentPromotion { id, groups } => self.promote(id, groups.as_deref()),
            Change::DeploymentProgress(id) => self.deployment_progress(id),
            Change::DeleteDeployments(ids) => ids.iter().for_each(|id| self.delete_deployment(*id)),
            Change::PutRemoteTask(r) => self.put_remote(*r),
            Change::DeleteRemoteTask(slot) => self.delete_remote(&slot),
            Change::DeleteService(id) => self.delete_service(&id),
            Change::PutNamespace(n) => self.put_namespace(&n),
            Change::DeleteNamespace(n) => self.delete_namespace(&n),
            Change::PutNodePool(p) => self.put_pool(&p),
            Change::DeleteNodePool(p) => self.delete_pool(&p),
            Change::SetSchedulerConfig(c) => self.set_scheduler_config(&c),
            Change::SetClusterMeta(m) => {
                let m: Arc<ClusterMeta> = m.into();
                let before = std::mem::replace(&mut self.state.cluster, m.clone());
                // A generation begins with each start of a server.
                let started = m.recovery.is_some() && (before.recovery.is_none() || before.generation != m.generation);
                let cause = match (started, before.recovery.is_some() && m.recovery.is_none()) {
                    (true, _) => Cause::RecoveryStarted,
                    (_, true) => Cause::RecoveryEnded,
                    _ => Cause::SettingsUpdated,
                };
                self.set.put(cause, Object::ClusterMeta(m));
            }
            Change::PutSigningKey(key) => self.put_signing_key(*key),
            Change::DeleteSigningKey(id) => self.delete_signing_key(id),
            Change::PutAclPolicy(policy) => self.put_acl_policy(*policy),
            Change::DeleteAclPolicy(name) => self.delete_acl_policy(&name),
            Change::PutAclToken(token) => self.put_acl_token(*token),
            Change::DeleteAclToken(accessor) => self.delete_acl_token(&accessor),
            Change::PutAclRole(role) => self.put_acl_role(*role),
            Change::DeleteAclRole(id) => self.delete_acl_role(&id),
            Change::PutAclAuthMethod(method) => self.put_acl_auth_method(*method),
            Change::DeleteAclAuthMethod(name) => self.delete_acl_auth_method(&name),
            Change::PutAclBindingRule(rule) => self.put_acl_binding_rule(*rule),
            Change::DeleteAclBindingRule(id) => self.delete_acl_binding_rule(&id),
            Change::PutOneTimeToken(token) => self.put_one_time_token(*token),
            Change::DeleteOneTimeToken(digest) => self.delete_one_time_token(&digest),
            Change::AclBootstrapped => self.acl_bootstrapped(),
            Change::PutVolume(volume) => self.put_volume(*volume),
            Change::DeleteVolume(id) => self.delete_volume(id),
            Change::PutVolumeClaim(claim) => self.put_volume_claim(*claim),
            Change::DeleteVolumeClaim(id) => self.delete_volume_claim(id),
            Change::PutVariable(variable) => self.put_variable(*variable),
            Change::DeleteVariable(key) => self.delete_variable(&key),
            Change::ResealVariable { key, key_id, data } => self.reseal_variable(&key, key_id, data),
            Change::RecoverJob { job, current } => self.recover_job(&job, current),
        }
    }

    /// Makes changes that follow from the whole batch: removes objects without users, then sets the status of jobs,
    /// then their counts.
    fn settle(&mut self) {
        for id in std::mem::take(&mut self.orphans) {
            self.delete_alloc(id);
        }
        for id in std::mem::take(&mut self.counted) {
            self.settle_deployment(id);
        }
        for key in std::mem::take(&mut self.touched) {
            self.settle_job_status(&key);
        }
        for (key, mut summary) in std::mem::take(&mut self.summaries) {
            summary.modify_index = self.index;
            if summary.create_index == 0 {
                summary.create_index = self.index;
            }
            let summary = Arc::new(summary);
            self.state.summaries.insert(key, summary.clone());
            self.set.put(Cause::Derived, Object::Summary(summary));
        }
    }

    fn put_remote(&mut self, mut record: RemoteTask) {
        let before = self.state.remote.get(&record.slot).cloned();
        record.create_index = before.as_ref().map_or(self.index, |b| b.create_index);
        record.modify_index = self.index;
        if let Some(before) = &before {
            unlink_managers(self.state, before);
            // The slot of the earlier record, because the indexes hold it.
            record.slot = before.slot.clone();
            if before.incarnation != record.incarnation {
                self.delete_services_of_slot(&record.slot);
            }
        }
        for m in record.manager.iter().chain(&record.successor) {
            self.state.remote_by_manager.insert((m.node_id, record.slot.clone()));
        }
        self.count_remote(before.as_deref(), Some(&record));
        let record = Arc::new(record);
        self.state.remote.insert(record.slot.clone(), record.clone());
        self.services_follow_slot(&record);
        self.set.put(Cause::RemoteTaskUpdated, Object::RemoteTask(record));
    }

    /// Counts a remote instance for its job even while no node manages it; the job's summary includes both.
    fn count_remote(&mut self, before: Option<&RemoteTask>, after: Option<&RemoteTask>) {
        let Some(key) = after.or(before).map(|r| r.slot.job()) else { return };
        let seen = |r: Option<&RemoteTask>| r.filter(|r| r.stands()).map(|r| r.manager.is_some());
        let (was, is) = (seen(before), seen(after));
        if was.is_some() != is.is_some() {
            self.edit_counts(&key, |c| {
                c.remote = (c.remote + u32::from(is.is_some())).saturating_sub(u32::from(was.is_some()))
            });
        }
        if was != is && self.state.jobs.contains_key(&key) {
            self.summary(&key);
        }
    }

    fn delete_remote(&mut self, slot: &model::ids::SlotKey) {
        if let Some(before) = self.state.remote.remove(slot) {
            unlink_managers(self.state, &before);
            self.count_remote(Some(&before), None);
            self.delete_services_of_slot(slot);
            self.set.delete(Cause::RemoteTaskUpdated, Object::RemoteTask(before));
        }
    }
}

fn unlink_managers(state: &mut State, record: &RemoteTask) {
    for m in record.manager.iter().chain(&record.successor) {
        state.remote_by_manager.remove(&(m.node_id, record.slot.clone()));
    }
}

/// An instant in the API's format.
pub(crate) fn rfc3339(now: TimestampNs) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(now)).map_or_else(|_| String::new(), |t| t.to_string())
}
