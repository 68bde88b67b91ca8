//! A job as this node keeps it once, for all of its allocations.
//!
//! Each allocation comes in a message or record of its own, with its own copies of the names of the job and its tasks,
//! and of what a task gets. A node has thousands of one job that differ in their ids and in little else.

use std::{collections::BTreeMap, sync::Arc};

use model::{AllocatedResources, Allocation, Job};
use node_record::store::StoredJob;

/// A job, and what its allocations have in common.
pub(crate) struct KnownJob {
    pub(crate) job: Arc<Job>,
    pub(crate) stored: Arc<StoredJob>,
    /// By group: what the last allocation got, and the name of its node.
    last: BTreeMap<Arc<str>, (Arc<AllocatedResources>, Arc<str>)>,
}

impl KnownJob {
    pub(crate) fn new(job: Job, stored: StoredJob) -> Self {
        Self { job: Arc::new(job), stored: Arc::new(stored), last: BTreeMap::new() }
    }

    /// Gives an allocation its job. What it has in common with that, or with the one before, is kept once from then on.
    pub(crate) fn share(&mut self, alloc: &mut Allocation) {
        let job = &self.job;
        alloc.job = Some(job.clone());
        if alloc.namespace == job.namespace {
            alloc.namespace = job.namespace.clone();
        }
        if alloc.job_id == job.id {
            alloc.job_id = job.id.clone();
        }
        let Some(group) = job.group(&alloc.task_group) else { return };
        alloc.task_group = group.name.clone();
        let named = |name: &Arc<str>| group.task(name).map_or_else(|| name.clone(), |task| task.name.clone());
        alloc.remote = alloc.remote.iter().map(|(task, incarnation)| (named(task), *incarnation)).collect();
        let last =
            self.last.entry(group.name.clone()).or_insert_with(|| (alloc.resources.clone(), alloc.node_name.clone()));
        keep(&mut last.0, &mut alloc.resources);
        keep(&mut last.1, &mut alloc.node_name);
    }
}

/// The former value instead of an equal one; another one is the former of the next.
fn keep<T: PartialEq + ?Sized>(former: &mut Arc<T>, new: &mut Arc<T>) {
    if former == new {
        *new = former.clone();
    } else {
        *former = new.clone();
    }
}

#[cfg(test)]
mod tests {
    use model::{IncarnationId, Task, TaskGroup};

    use super::*;

    #[test]
    fn what_is_equal_is_one_piece_of_memory_and_what_is_not_stays_as_it_came() {
        let task = Task { name: "t".into(), ..Task::default() };
        let group = TaskGroup { name: "g".into(), tasks: vec![task], ..TaskGroup::default() };
        let job = Job { id: "j".into(), namespace: "n".into(), task_groups: vec![group].into(), ..Job::default() };
        let mut known = KnownJob::new(job.clone(), StoredJob::new(Vec::new()));
        let alloc = |node: &str, disk: i64, group: &str| {
            let mut resources = AllocatedResources::default();
            resources.shared.disk_mb = disk;
            Allocation {
                job_id: "j".into(),
                namespace: "n".into(),
                task_group: group.into(),
                node_name: node.into(),
                resources: Arc::new(resources),
                remote: [(Arc::from("t"), IncarnationId::NIL), (Arc::from("u"), IncarnationId::NIL)]
                    .into_iter()
                    .collect(),
                ..Allocation::default()
            }
        };
        let mut shared = |mut alloc: Allocation| {
            let before = alloc.clone();
            known.share(&mut alloc);
            assert_eq!(alloc.job.take().as_deref(), Some(&job));
            assert_eq!(alloc, before, "nothing else about it has changed");
            alloc
        };
        let (first, second) = (shared(alloc("a", 1, "g")), shared(alloc("a", 1, "g")));
        assert!(Arc::ptr_eq(&first.resources, &second.resources) && Arc::ptr_eq(&first.node_name, &second.node_name));
        assert!(Arc::ptr_eq(&first.task_group, &second.task_group));
        assert!(std::ptr::eq(first.job_id.as_str(), second.job_id.as_str()));
        assert!(std::ptr::eq(first.namespace.as_str(), second.namespace.as_str()));
        assert!(first.remote.keys().zip(second.remote.keys()).map(|(a, b)| Arc::ptr_eq(a, b)).eq([true, false]));
        let (other, like_other) = (shared(alloc("b", 2, "g")), shared(alloc("b", 2, "g")));
        assert!(Arc::ptr_eq(&other.resources, &like_other.resources) && other.resources != first.resources);
        shared(alloc("a", 1, "of another version"));
    }
}
