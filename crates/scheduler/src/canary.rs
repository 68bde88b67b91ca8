//! Canaries of remote tasks: a second instance needs a slot of its own.
//!
//! A canary of local tasks has the name of the allocation that it may replace, and both exist for a while. A slot of a
//! remote task has one live instance. So a canary takes the lowest free index, which may lie beyond the count, and
//! keeps it after promotion. The index alone therefore does not tell which slots a job wants. The same holds for system
//! jobs, whose slots are one per provider.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    DesiredRemote,
    alloc::Allocation,
    ids::SlotKey,
    job::{Job, TaskGroup, job_type},
};
use state::State;

/// Whether it is a canary without promotion.
pub(crate) fn is_canary(a: &Allocation) -> bool {
    a.deployment_status.as_ref().is_some_and(|d| d.canary)
}

/// Number of canaries at the start of a new version of the group.
pub(crate) fn wanted(group: &TaskGroup) -> usize {
    group.update.as_ref().map_or(0, |u| usize::try_from(u.canary()).unwrap_or(0))
}

/// The wanted slots of a job's groups that have or had canaries.
pub struct Coverage<'a> {
    state: &'a State,
    job: &'a Job,
    /// By group: the existing slots, and those of them that the count covers.
    groups: BTreeMap<Arc<str>, (BTreeSet<u32>, BTreeSet<u32>)>,
}

impl<'a> Coverage<'a> {
    /// Looks at the job once.
    #[must_use]
    pub fn of(state: &'a State, job: &'a Job) -> Self {
        let key = job.key();
        let mut groups = BTreeMap::new();
        if job_type::everywhere(&job.kind) {
            for group in job.task_groups.iter().filter(|g| g.count() > 0) {
                groups.insert(group.name.clone(), one_for_each_provider(state, job, group));
            }
            return Self { state, job, groups };
        }
        for group in job.task_groups.iter().filter(|g| wanted(g) > 0 || any_beyond(state, job, g)) {
            let allocs = state.allocs_by_job(&key).filter(|a| a.task_group == group.name && !a.terminal());
            let live: BTreeSet<u32> = allocs.filter(|a| !is_canary(a)).map(|a| a.index()).collect();
            let records = state.remote_tasks_by_job(&key).filter(|r| r.slot.group == group.name);
            let records =
                records.filter(|r| !r.observed.ended() && r.desired == DesiredRemote::Run && !canary_s(state, &r.slot));
            let mut slots: BTreeMap<u32, u64> = live.iter().map(|i| (*i, 0)).collect();
            for r in records {
                let version = slots.entry(r.slot.index).or_default();
                *version = (*version).max(r.job_version);
            }
            // Newer versions first, then managed ones: an update makes the rest superfluous.
            let mut order: Vec<u32> = slots.keys().copied().collect();
            order.sort_by_key(|i| (std::cmp::Reverse(slots[i]), !live.contains(i), *i));
            order.truncate(group.count() as usize);
            groups.insert(group.name.clone(), (slots.into_keys().collect(), order.into_iter().collect()));
        }
        Self { state, job, groups }
    }

    /// Whether the job wants the slot; `None`: its index alone decides. The error is the reason for a tombstone.
    #[must_use]
    pub fn covers(&self, slot: &SlotKey) -> Option<Result<(), String>> {
        if let Some(a) = canary_of(self.state, slot) {
            let d = self.state.deployment(a.deployment_id);
            let goes_on = d.is_some_and(|d| d.status.active() && d.job_version == self.job.version);
            return Some(if goes_on { Ok(()) } else { Err("its canary was given up".to_owned()) });
        }
        let (existing, wanted) = self.groups.get(&slot.group)?;
        if wanted.contains(&slot.index) {
            Some(Ok(()))
        } else if existing.contains(&slot.index) {
            Some(Err(format!("group {:?} has its {} instances in other slots", &*slot.group, wanted.len())))
        } else {
            None
        }
    }
}

/// Whether the group has a slot that only a canary can have: its index exceeds the count of its own job version. It was
/// promoted, and a later version may have no canaries. The index of a slot that was scaled down lies within the count
/// of its version.
fn any_beyond(state: &State, job: &Job, group: &TaskGroup) -> bool {
    let key = job.key();
    let count_then = |version: u64| {
        let then = if version == job.version { Some(job) } else { state.job_version(&key, version).map(|j| &**j) };
        then.and_then(|j| j.task_groups.iter().find(|g| g.name == group.name)).map(TaskGroup::count)
    };
    let mut records =
        state.remote_tasks_by_job(&key).filter(|r| r.slot.group == group.name && r.desired == DesiredRemote::Run);
    records.any(|r| count_then(r.job_version).is_some_and(|count| i64::from(r.slot.index) >= i64::from(count)))
}

/// Existing slots of a system job's group, and the one that stays for each provider.
fn one_for_each_provider(state: &State, job: &Job, group: &TaskGroup) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let key = job.key();
    let live: BTreeSet<u32> =
        state.allocs_by_job(&key).filter(|a| a.task_group == group.name && !a.terminal()).map(|a| a.index()).collect();
    let mut slots: BTreeMap<u32, BTreeSet<(&Arc<str>, &str)>> = BTreeMap::new();
    let records = state.remote_tasks_by_job(&key).filter(|r| r.slot.group == group.name);
    for r in records.filter(|r| !r.observed.ended() && r.desired == DesiredRemote::Run) {
        slots.entry(r.slot.index).or_default().insert((&r.slot.task, &*r.provider));
    }
    let mut order: Vec<u32> = slots.keys().copied().collect();
    order.sort_by_key(|i| (!live.contains(i), *i));
    let mut served = BTreeSet::new();
    // A slot without a provider is about to get one.
    let mut first = |i: &u32| {
        slots[i]
            .iter()
            .fold(false, |first, (task, provider)| provider.is_empty() || served.insert((*task, *provider)) || first)
    };
    let wanted = order.into_iter().filter(|i| first(i)).collect();
    (slots.keys().copied().collect(), wanted)
}

/// The canary that the slot's record last served. That of a system job has no slot of its own: it takes the place of
/// the former allocation.
fn canary_of<'a>(state: &'a State, slot: &SlotKey) -> Option<&'a Arc<Allocation>> {
    let everywhere = |a: &Allocation| a.job.as_ref().is_some_and(|job| job_type::everywhere(&job.kind));
    state.alloc(state.remote_task(slot)?.alloc_id).filter(|a| is_canary(a) && !everywhere(a))
}

fn canary_s(state: &State, slot: &SlotKey) -> bool {
    canary_of(state, slot).is_some()
}

/// Wanted slots of the group whose instance lives or may live, without canaries.
pub(crate) fn living(state: &State, job: &Job, group: &TaskGroup) -> BTreeSet<u32> {
    let coverage = Coverage::of(state, job);
    let records = state.remote_tasks_by_job(&job.key()).filter(|r| r.slot.group == group.name && !r.observed.ended());
    let records = records.filter(|r| !canary_s(state, &r.slot));
    records
        .filter(|r| coverage.covers(&r.slot).map_or(r.slot.index < group.count(), |c| c.is_ok()))
        .map(|r| r.slot.index)
        .collect()
}
