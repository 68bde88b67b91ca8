//! Rolling restarts: whose turn it is to restart with changed templates.
//!
//! Nodes tell which of their allocations [wait](RollingRestart) and which have become healthy with the new data. Of a
//! group at most `update.max_parallel` allocations are out of service at a time, whatever the reason: one that is
//! missing or was just replaced counts as well. So data that nobody can run with stop at those who have tried them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Allocation, ClientStatus, DesiredTransition, Job, JobKey, RollingRestart, StoreIndex, TaskGroup, TaskRunState,
    TimestampNs, job::job_type,
};
use state::{AppliedSet, Change, Object, State};

use crate::{Decision, Stamp};

/// Gives turns to the allocations of these jobs.
#[must_use]
pub fn decide(state: &State, jobs: &BTreeSet<JobKey>, stamp: Stamp) -> Decision {
    let mut decision = Decision::default();
    let mut turns = Vec::new();
    for job in jobs.iter().filter_map(|key| state.job(key)).filter(|job| !job.stopped()) {
        let mut groups: BTreeMap<&str, Vec<&Arc<Allocation>>> = BTreeMap::new();
        for alloc in state.allocs_by_job(&job.key()) {
            groups.entry(&alloc.task_group).or_default().push(alloc);
        }
        for (name, allocs) in groups {
            let Some(group) = job.group(name).filter(|_| allocs.iter().any(|alloc| waits(alloc).is_some())) else {
                continue;
            };
            let of_group = look(state, job, group, &allocs, stamp.now);
            decision.wake_at = decision.wake_at.into_iter().chain(of_group.wake_at).min();
            decision.reasons.push(format!("job {} group {name}: {}", job.id, of_group.why));
            turns.extend(of_group.turns);
        }
    }
    if !turns.is_empty() {
        decision.batch.push(Change::AllocTransitions(turns));
    }
    decision
}

/// What becomes of a group.
struct OfGroup {
    turns: Vec<(model::AllocId, DesiredTransition)>,
    wake_at: Option<TimestampNs>,
    why: String,
}

fn look(state: &State, job: &Job, group: &TaskGroup, allocs: &[&Arc<Allocation>], now: TimestampNs) -> OfGroup {
    let nothing = |why: String, wake_at| OfGroup { turns: Vec::new(), wake_at, why };
    let members: Vec<&Arc<Allocation>> = allocs.iter().copied().filter(|alloc| !alloc.terminal()).collect();
    if let Some(ill) = members.iter().find(|alloc| alloc.rolling_restarts().any(|restart| restart.unhealthy)) {
        return nothing(format!("allocation {} is not healthy with its new templates, the others wait", ill.id), None);
    }
    let update = group.update.clone().unwrap_or_default();
    let min_healthy = update.min_healthy_time().nanos();
    let up = |alloc: &Allocation| up_from(state, job, alloc, min_healthy);
    let (mut down, mut wake_at, mut waiting) = (0, None::<TimestampNs>, Vec::new());
    for alloc in &members {
        match up(alloc) {
            Some(at) if at <= now => waiting.extend(waits(alloc).map(|restart| (restart, *alloc))),
            later => {
                down += 1;
                wake_at = wake_at.into_iter().chain(later).min();
            }
        }
    }
    // What has no place yet is out of service, too.
    if job.kind == job_type::SERVICE {
        down += usize::try_from(group.count()).unwrap_or(0).saturating_sub(members.len());
    }
    let most = update.max_parallel.unwrap_or(1);
    // Like an update without pace: all at once.
    let most = if most == 0 { usize::MAX } else { usize::try_from(most).unwrap_or(1) };
    let room = most.saturating_sub(down);
    if room == 0 {
        return nothing(format!("{} wait, {down} are out of service, max_parallel is {most}", waiting.len()), wake_at);
    }
    // The same data would end the others as well.
    let healed = |alloc: &Allocation| {
        let last = replaced_by(state, alloc);
        last.id != alloc.id && up(last).is_some_and(|at| at <= now)
    };
    let ended = allocs.iter().filter_map(|alloc| failed_with(alloc).map(|at| (at, *alloc)));
    let worst = ended.filter(|(_, alloc)| !healed(alloc)).max_by_key(|(at, _)| *at);
    if let Some((at, ill)) = worst {
        let before = waiting.len();
        waiting.retain(|(restart, _)| restart.changed > at);
        if waiting.is_empty() && before > 0 {
            return nothing(format!("allocation {} has failed with its new templates, {before} wait", ill.id), wake_at);
        }
    }
    waiting.sort_by_key(|(restart, alloc)| (restart.asked, alloc.index(), alloc.id));
    let left = waiting.len().saturating_sub(room);
    waiting.truncate(room);
    let turn = |turn| DesiredTransition { rolling_restart: turn, ..DesiredTransition::default() };
    let turns: Vec<_> = waiting.into_iter().map(|(restart, alloc)| (alloc.id, turn(restart.turn))).collect();
    OfGroup { why: format!("{} may restart, {left} wait on", turns.len()), turns, wake_at }
}

/// When it failed for good in a rolling restart.
fn failed_with(alloc: &Allocation) -> Option<TimestampNs> {
    let began = alloc.client_status == ClientStatus::Failed && alloc.rolling_restarts().any(|r| r.begun != 0);
    let ends = || alloc.task_states.values().filter_map(|task| task.finished_at.ns());
    began.then(|| ends().max().unwrap_or(alloc.modify_time))
}

/// The last of those that have replaced it one after the other; itself, if none has.
fn replaced_by<'a>(state: &'a State, alloc: &'a Allocation) -> &'a Allocation {
    let mut last = alloc;
    // An allocation is replaced by a newer one, so this ends.
    while let Some(next) = state.alloc(last.next_allocation).filter(|next| next.create_index > last.create_index) {
        last = next;
    }
    last
}

/// The restart for which it waits, if its turn has not come.
fn waits(alloc: &Allocation) -> Option<&RollingRestart> {
    let restart =
        alloc.rolling_restarts().filter(|restart| restart.begun == 0).max_by_key(|restart| restart.changed)?;
    let leaves = alloc.terminal() || alloc.desired_transition.migrate == Some(true);
    (!leaves && alloc.desired_transition.rolling_restart != restart.turn).then_some(restart)
}

/// From when it counts as in service if nothing changes; None = it is out of service until it reports something else.
fn up_from(state: &State, job: &Job, alloc: &Allocation, min_healthy: i64) -> Option<TimestampNs> {
    let restarts =
        |restart: &RollingRestart| restart.begun != 0 || alloc.desired_transition.rolling_restart == restart.turn;
    let tried =
        state.deployment(alloc.deployment_id).is_some_and(|d| d.status.active()) && alloc.healthy() != Some(true);
    if alloc.client_status != ClientStatus::Running || tried || alloc.rolling_restarts().any(restarts) {
        return None;
    }
    let group = alloc.job.as_deref().unwrap_or(job).group(&alloc.task_group)?;
    let mut since = 0;
    for (name, task) in &alloc.task_states {
        let stays = group.task(name).is_some_and(|t| t.lifecycle.as_ref().is_none_or(|l| l.sidecar));
        match task.state {
            _ if task.failed => return None,
            TaskRunState::Running => since = since.max(task.started_at.ns().unwrap_or(0)),
            TaskRunState::Pending if stays => return None,
            TaskRunState::Pending | TaskRunState::Dead => {}
        }
    }
    // A node whose clock is ahead does not hold the group up.
    Some(since.min(alloc.modify_time).saturating_add(min_healthy))
}

/// Which jobs need a look. This memory only saves time; a snapshot refills it.
#[derive(Debug, Default)]
pub struct Changed {
    /// Jobs with allocations that wait, as of their last look.
    waiting: BTreeSet<JobKey>,
    changed: BTreeSet<JobKey>,
    /// When a look is due without a change.
    due: Option<TimestampNs>,
    /// Index of the newest commit that was followed.
    followed: StoreIndex,
}

impl Changed {
    /// Marks every job with allocations that wait. What was followed before may be void.
    pub fn fill(&mut self, state: &State) {
        let waiting = state.allocs().filter(|alloc| alloc.rolling_restarts().next().is_some());
        self.changed = waiting.map(|alloc| alloc.job_key()).collect();
        self.waiting = self.changed.clone();
        (self.due, self.followed) = (None, state.latest_index());
    }

    /// Whether a state holds all that was followed. A look at an older one would miss what it takes.
    #[must_use]
    pub fn is_in(&self, state: &State) -> bool {
        state.latest_index() >= self.followed
    }

    /// Follows an applied commit. True when it brings a job that is to be looked at.
    pub fn follow(&mut self, applied: &AppliedSet) -> bool {
        self.followed = applied.index;
        for change in &applied.changes {
            match &change.object {
                Object::Alloc(alloc) if alloc.rolling_restarts().next().is_some() => {
                    self.changed.insert(alloc.job_key());
                }
                // In most clusters nobody waits.
                _ if self.waiting.is_empty() => {}
                Object::Alloc(alloc) => self.mark(&alloc.job_key()),
                Object::Job(job) => self.mark(&job.key()),
                Object::Deployment(d) => self.mark(&d.job_key()),
                _ => {}
            }
        }
        !self.changed.is_empty()
    }

    fn mark(&mut self, key: &JobKey) {
        if self.waiting.contains(key) {
            self.changed.insert(key.clone());
        }
    }

    /// Takes the jobs that need a look now.
    pub fn take(&mut self, state: &State, now: TimestampNs) -> BTreeSet<JobKey> {
        let mut taken = std::mem::take(&mut self.changed);
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            taken.extend(self.waiting.iter().cloned());
        }
        for key in &taken {
            if state.allocs_by_job(key).any(|alloc| !alloc.terminal() && alloc.rolling_restarts().next().is_some()) {
                self.waiting.insert(key.clone());
            } else {
                self.waiting.remove(key);
            }
        }
        taken
    }

    /// A look has found nothing to do before that time.
    pub fn rest(&mut self, until: Option<TimestampNs>) {
        self.due = self.due.into_iter().chain(until).min();
    }

    /// When the next look is due if nothing changes before.
    #[must_use]
    pub fn next(&self) -> Option<TimestampNs> {
        self.due
    }
}

#[cfg(test)]
mod tests;
