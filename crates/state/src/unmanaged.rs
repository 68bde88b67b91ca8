//! Corrections of a job's summary for remote tasks: an instance continues when its managing allocation is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{ClientStatus, JobKey, remote::RemoteTask};

use crate::State;

/// Corrections to the counts of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmanaged {
    /// Places whose tasks all run without a manager: they count as running, and nobody waits for room for them.
    pub running: i64,
    /// Lost allocations whose tasks continued: only a manager was lost.
    pub kept: i64,
}

impl State {
    /// The corrections for the groups of a job; empty for jobs without remote tasks.
    #[must_use]
    pub fn unmanaged(&self, key: &JobKey) -> BTreeMap<Arc<str>, Unmanaged> {
        let mut out: BTreeMap<Arc<str>, Unmanaged> = BTreeMap::new();
        let mut standing: BTreeMap<(Arc<str>, u32), Vec<&Arc<RemoteTask>>> = BTreeMap::new();
        for r in self.remote_tasks_by_job(key).filter(|r| r.stands()) {
            standing.entry((r.slot.group.clone(), r.slot.index)).or_default().push(r);
        }
        let Some(job) = self.job(key).filter(|_| !standing.is_empty()) else { return out };
        // A local task ends with its node.
        let tasks: BTreeMap<&str, usize> = job.task_groups.iter().map(|g| (&*g.name, g.tasks.len())).collect();
        standing.retain(|(group, _), records| tasks.get(&**group).is_some_and(|n| records.len() >= *n));
        for ((group, _), records) in &standing {
            if self.live_allocs_at(&records[0].slot).next().is_none() {
                out.entry(group.clone()).or_default().running += 1;
            }
        }
        let lost: BTreeSet<&str> = self
            .job_summary(key)
            .into_iter()
            .flat_map(|s| &s.summary)
            .filter(|(_, g)| g.lost > 0)
            .map(|(n, _)| &**n)
            .collect();
        if lost.is_empty() {
            return out;
        }
        for a in
            self.allocs_by_job(key).filter(|a| a.client_status == ClientStatus::Lost && lost.contains(&*a.task_group))
        {
            let of = standing.get(&(a.task_group.clone(), a.index()));
            // Lost before the instance began: it had another instance.
            if of.is_some_and(|records| records.iter().all(|r| r.started_at <= a.modify_time)) {
                out.entry(a.task_group.clone()).or_default().kept += 1;
            }
        }
        out
    }
}
