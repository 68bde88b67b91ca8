//! Jobs: registration, versions, status, counts.

use std::sync::Arc;

use model::{
    ids::JobKey,
    job::{Job, VersionTag, job_status, job_type},
    records::{GroupSummary, JobScalingEvents, JobSummary, Submission},
    scaling::{self, ScalingEvent},
};

use super::Applier;
use crate::{
    applied::{Cause, Object},
    tables::JobCounts,
};

impl Applier<'_> {
    pub(super) fn upsert_job(&mut self, job: &Job, submission: Option<&Submission>) {
        let key = job.key();
        let mut job = job.clone();
        let before = self.state.jobs.get(&key).cloned();
        job.version_tag = None;
        job.stable = false;
        match &before {
            Some(old) if !model::specification_changed(old, &job) => {
                // No change: the version and all its facts stay.
                self.launch_from_now(&key);
                self.touched.insert(key);
                return;
            }
            Some(old) => {
                job.create_index = old.create_index;
                job.version = old.version + 1;
                job.status.clone_from(&old.status);
            }
            None => {
                job.create_index = self.index;
                job.version = 0;
                job_status::PENDING.clone_into(&mut job.status);
            }
        }
        job.job_modify_index = self.index;
        if job.submit_time == 0 || job.submit_time > self.now {
            job.submit_time = self.now;
        }
        let groups: Vec<_> = job.task_groups.iter().map(|g| g.name.clone()).collect();
        if let Some(s) = submission {
            let s = Submission {
                namespace: key.namespace.clone(),
                job_id: key.id.clone(),
                version: job.version,
                job_modify_index: self.index,
                ..s.clone()
            };
            let s = Arc::new(s);
            self.state.submissions.insert((key.clone(), job.version), s.clone());
            self.set.put(Cause::Derived, Object::Submission(s));
        }
        self.put_new_version(&key, job, Cause::JobRegistered);
        self.launch_from_now(&key);
        let summary = self.summary(&key);
        for g in groups {
            summary.summary.or_default(g);
        }
    }

    pub(super) fn recover_job(&mut self, job: &Arc<Job>, current: bool) {
        let key = job.key();
        let known = self.state.jobs.get(&key).map(|known| (known.create_index, known.version));
        let newer = known.is_none_or(|known| (job.create_index, job.version) > known);
        if current && newer {
            // The job was registered anew after this state's job had been purged.
            if known.is_some_and(|(created, _)| created != job.create_index) {
                self.delete_job(&key);
            }
            self.put_new_version(&key, Job::clone(job), Cause::JobRegistered);
            let summary = self.summary(&key);
            for group in &job.task_groups {
                summary.summary.or_default(group.name.clone());
            }
            return;
        }
        let here = known.is_some_and(|(created, _)| created == job.create_index)
            && self.state.job_version(&key, job.version).is_some();
        let at = (key, job.create_index, job.version);
        if !here && !self.state.retained.contains_key(&at) {
            self.state.retained.insert(at, job.clone());
            self.set.put(Cause::Derived, Object::RetainedJob(job.clone()));
        }
    }

    pub(super) fn stop_job(&mut self, key: &JobKey) {
        let Some(old) = self.state.jobs.get(key) else { return };
        if old.stop {
            return;
        }
        let mut job = Job::clone(old);
        job.stop = true;
        job.version += 1;
        job.version_tag = None;
        job.job_modify_index = self.index;
        job.submit_time = self.now;
        self.put_new_version(key, job, Cause::JobDeregistered);
    }

    pub(super) fn delete_job(&mut self, key: &JobKey) {
        if !self.state.jobs.contains_key(key) {
            return;
        }
        let ended: Vec<_> = self.state.allocs_by_job(key).filter(|a| a.client_terminal()).map(|a| a.id).collect();
        ended.into_iter().for_each(|id| self.delete_alloc(id));
        // Its deployments must not belong to a later job of that name.
        let deployments: Vec<_> = self.state.deployments_by_job(key).map(|d| d.id).collect();
        deployments.into_iter().for_each(|id| self.delete_deployment(id));
        let Some(job) = self.state.jobs.remove(key) else { return };
        self.state.index_system_job(key, None);
        let versions: Vec<_> = self.state.job_versions(key).map(|j| j.version).collect();
        for v in versions {
            self.drop_version(key, v);
        }
        self.summaries.remove(key);
        if let Some(s) = self.state.summaries.remove(key) {
            self.set.delete(Cause::Derived, Object::Summary(s));
        }
        if let Some(events) = self.state.scaling_events.remove(key) {
            self.set.delete(Cause::Derived, Object::ScalingEvents(events));
        }
        self.delete_volume_claims_of(key);
        self.set.delete(Cause::JobDeregistered, Object::Job(job));
    }

    /// Of two records the later launch stays.
    pub(super) fn record_launch(&mut self, key: &JobKey, at: i64) {
        if self.state.jobs.contains_key(key) {
            let summary = self.summary(key);
            summary.last_launch = summary.last_launch.max(at);
        }
    }

    /// A periodic job that is registered launches from now on. Times that a wrong clock has recorded ahead of now would
    /// keep it silent until then.
    fn launch_from_now(&mut self, key: &JobKey) {
        let Some(job) = self.state.jobs.get(key).filter(|job| job.periodic.is_some()).cloned() else { return };
        if job.submit_time > self.now {
            self.put_job(key, Job { submit_time: self.now, ..Job::clone(&job) }, Cause::JobRegistered);
        }
        let now = self.now / 1_000_000_000;
        if self.state.summaries.get(key).is_some_and(|summary| summary.last_launch > now) {
            self.summary(key).last_launch = now;
        }
    }

    pub(super) fn record_scaling(&mut self, key: &JobKey, group: &Arc<str>, event: ScalingEvent) {
        if !self.state.jobs.contains_key(key) {
            return;
        }
        let before = self.state.scaling_events.get(key);
        let mut events = before.map_or_else(
            || JobScalingEvents {
                namespace: key.namespace.clone(),
                job_id: key.id.clone(),
                ..JobScalingEvents::default()
            },
            |events| JobScalingEvents::clone(events),
        );
        events.modify_index = self.index;
        let of_group = events.events.entry(group.clone()).or_default();
        scaling::record(of_group, ScalingEvent { create_index: self.index, ..event });
        let events = Arc::new(events);
        self.state.scaling_events.insert(key.clone(), events.clone());
        self.set.put(Cause::Derived, Object::ScalingEvents(events));
    }

    pub(super) fn job_stability(&mut self, key: &JobKey, version: u64, stable: bool) {
        self.edit_version(key, version, |j| j.stable = stable);
    }

    pub(super) fn job_tag(&mut self, key: &JobKey, version: u64, tag: Option<&VersionTag>) {
        self.edit_version(key, version, |j| j.version_tag = tag.cloned());
    }

    fn edit_version(&mut self, key: &JobKey, version: u64, edit: impl FnOnce(&mut Job)) {
        let Some(old) = self.state.job_version(key, version) else { return };
        let mut job = Job::clone(old);
        edit(&mut job);
        if job == **old {
            return;
        }
        job.modify_index = self.index;
        if self.state.jobs.get(key).is_some_and(|j| j.version == version) {
            self.put_job(key, job, Cause::Derived);
        } else {
            let job = Arc::new(job);
            self.state.versions.insert((key.clone(), version), job.clone());
            self.set.put(Cause::Derived, Object::JobVersion(job));
        }
    }

    /// The current version has no row among the versions: it is the job's row. It gets one when it is superseded.
    fn put_new_version(&mut self, key: &JobKey, job: Job, cause: Cause) {
        if let Some(old) = self.state.jobs.get(key) {
            self.set.put(Cause::Derived, Object::JobVersion(old.clone()));
        }
        self.put_job(key, job, cause);
        self.prune_versions(key);
        self.touched.insert(key.clone());
    }

    fn put_job(&mut self, key: &JobKey, mut job: Job, cause: Cause) {
        job.modify_index = self.index;
        let job = Arc::new(job);
        self.state.versions.insert((key.clone(), job.version), job.clone());
        self.state.jobs.insert(key.clone(), job.clone());
        self.state.index_system_job(key, Some(&job));
        self.set.put(cause, Object::Job(job));
    }

    fn prune_versions(&mut self, key: &JobKey) {
        let versions: Vec<_> = self.state.job_versions(key).cloned().collect();
        let last_stable = versions.iter().find(|j| j.stable && !j.stop).map(|j| j.version);
        let plain = versions.iter().filter(|j| j.version_tag.is_none());
        let surplus: Vec<_> =
            plain.skip(self.state.versions_kept).map(|j| j.version).filter(|v| Some(*v) != last_stable).collect();
        for v in surplus {
            self.drop_version(key, v);
        }
    }

    /// Drops a version, but retains it for allocations that still run it.
    fn drop_version(&mut self, key: &JobKey, version: u64) {
        let Some(job) = self.state.versions.remove(&(key.clone(), version)) else { return };
        if let Some(s) = self.state.submissions.remove(&(key.clone(), version)) {
            self.set.delete(Cause::Derived, Object::Submission(s));
        }
        if self.state.runs_version(key, job.create_index, version) {
            self.state.retained.insert((key.clone(), job.create_index, version), job.clone());
            self.set.put(Cause::Derived, Object::RetainedJob(job.clone()));
        }
        self.set.delete(Cause::Derived, Object::JobVersion(job));
    }

    /// The summary of a job, mutable. Makes a missing one.
    pub(super) fn summary(&mut self, key: &JobKey) -> &mut JobSummary {
        let state = &*self.state;
        self.summaries.entry(key.clone()).or_insert_with(|| {
            state.summaries.get(key).map_or_else(
                || JobSummary { job_id: key.id.clone(), namespace: key.namespace.clone(), ..JobSummary::default() },
                |s| JobSummary::clone(s),
            )
        })
    }

    /// The counts of a group, mutable; `None` for unknown jobs.
    pub(super) fn group_summary(&mut self, key: &JobKey, group: &Arc<str>) -> Option<&mut GroupSummary> {
        if !self.state.jobs.contains_key(key) {
            return None;
        }
        Some(self.summary(key).summary.or_default(group.clone()))
    }

    pub(super) fn edit_counts(&mut self, key: &JobKey, edit: impl FnOnce(&mut JobCounts)) {
        let mut counts = self.state.counts.get(key).copied().unwrap_or_default();
        edit(&mut counts);
        if counts == JobCounts::default() {
            self.state.counts.remove(key);
        } else {
            self.state.counts.insert(key.clone(), counts);
        }
        self.touched.insert(key.clone());
    }

    pub(super) fn settle_job_status(&mut self, key: &JobKey) {
        let Some(job) = self.state.jobs.get(key) else { return };
        let counts = self.state.counts.get(key).copied().unwrap_or_default();
        let status = status_of(job, counts, job.job_modify_index == self.index);
        if job.status == status {
            return;
        }
        let mut job = Job::clone(job);
        status.clone_into(&mut job.status);
        let seen = self.set.changes.iter().rev().find_map(|c| match &c.object {
            Object::Job(j) if !c.deleted && j.key() == *key => Some(c.cause),
            _ => None,
        });
        self.put_job(key, job, seen.unwrap_or(Cause::Derived));
    }

    /// Drops a retained version that no allocation runs and no list shows.
    pub(super) fn release_retained(&mut self, key: &JobKey, created: u64, version: u64) {
        let at = (key.clone(), created, version);
        if self.state.retained.contains_key(&at)
            && !self.state.runs_version(key, created, version)
            && let Some(job) = self.state.retained.remove(&at)
        {
            self.set.delete(Cause::Derived, Object::RetainedJob(job));
        }
    }
}

/// Running while an allocation lives, pending while an evaluation is open, otherwise dead.
fn status_of(job: &Job, counts: JobCounts, registered_now: bool) -> &'static str {
    if job.is_template() {
        return if job.stop { job_status::DEAD } else { job_status::RUNNING };
    }
    if counts.live_allocs > 0 || counts.remote > 0 {
        return job_status::RUNNING;
    }
    if counts.open_evals > 0 {
        return job_status::PENDING;
    }
    if job.stop {
        return job_status::DEAD;
    }
    // A system job without nodes waits for nodes.
    if job.kind == job_type::SYSTEM {
        return job_status::RUNNING;
    }
    // A sysbatch job that has run nowhere waits as well; not so a launch of one, whose time is now.
    if job.kind == job_type::SYSBATCH && counts.allocs == 0 && (job.parent_id.is_empty() || counts.evals == 0) {
        return job_status::PENDING;
    }
    if registered_now || (counts.allocs == 0 && counts.evals == 0) { job_status::PENDING } else { job_status::DEAD }
}

impl crate::State {
    /// Whether an allocation runs this version.
    pub(crate) fn runs_version(&self, key: &JobKey, created: u64, version: u64) -> bool {
        self.allocs_by_job(key)
            .any(|a| a.job_version == version && a.job.as_ref().is_some_and(|j| j.create_index == created))
    }
}

#[cfg(test)]
mod tests {
    use model::{AllocId, Allocation, job::TaskGroup};

    use super::*;
    use crate::{Batch, Change, State};

    /// The groups are most of a job.
    #[test]
    fn a_job_shares_its_groups_with_allocations_that_keep_an_earlier_record() {
        let mut state = State::new();
        let mut apply = |change: Change| {
            let index = state.latest_index() + 1;
            state.apply(index, 1, Batch::new(vec![change])).expect("applies");
            state.clone()
        };
        let group = TaskGroup { name: "g".into(), ..TaskGroup::default() };
        let job = Job {
            id: "j".into(),
            namespace: "default".into(),
            kind: job_type::SERVICE.into(),
            task_groups: vec![group].into(),
            ..Job::default()
        };
        let registered = apply(Change::UpsertJob { job: Box::new(job), submission: None });
        let job = registered.job(&JobKey::new("default", "j")).expect("registered").clone();
        let id = AllocId(uuid::Uuid::from_u128(1));
        let placed = apply(Change::UpsertAllocs(vec![Allocation {
            id,
            namespace: "default".into(),
            job_id: "j".into(),
            task_group: "g".into(),
            job: Some(job),
            ..Allocation::default()
        }]));
        let now = placed.job(&JobKey::new("default", "j")).expect("registered");
        let of_alloc = placed.alloc(id).and_then(|a| a.job.as_ref()).expect("it knows its job");
        assert_eq!((&*of_alloc.status, &*now.status), (job_status::PENDING, job_status::RUNNING), "two records");
        assert!(std::ptr::eq(&of_alloc.task_groups[0], &now.task_groups[0]));
    }

    /// One that found no node at its time does not wait for one.
    #[test]
    fn a_launch_that_has_run_nowhere_is_over() {
        let job = |parent: &str| Job { kind: job_type::SYSBATCH.into(), parent_id: parent.into(), ..Job::default() };
        let looked = JobCounts { evals: 1, ..JobCounts::default() };
        assert_eq!(status_of(&job(""), looked, false), job_status::PENDING);
        assert_eq!(status_of(&job("clock"), looked, false), job_status::DEAD);
        let open = JobCounts { open_evals: 1, ..looked };
        assert_eq!(status_of(&job("clock"), open, false), job_status::PENDING);
        assert_eq!(status_of(&job("clock"), JobCounts::default(), true), job_status::PENDING);
    }
}
