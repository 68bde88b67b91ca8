//! A task of an allocation on this node, as those who work for it are told of it.

use std::{collections::BTreeMap, sync::Arc};

use host::{
    dirs::{AllocDirs, TaskDirs},
    node_env::TaskSpec,
};
use lifecycle::alloc::{inbox::Inbox, machine::Event};
use model::{Allocation, Job, Task, TaskEvent};

use crate::network::SharedNetwork;

/// Whether an allocation has taken over what it is to have. Shared by its tasks, so that one of them does it.
pub type Moved = Arc<tokio::sync::Mutex<bool>>;

/// Which task, where it lies, and whom to tell. A value: it lives as long as somebody works for the task.
#[derive(Clone, Debug)]
pub struct TaskPlace {
    /// As the servers have sent it.
    pub alloc: Arc<Allocation>,
    /// In the version of the allocation.
    pub job: Arc<Job>,
    /// Name of the task; empty for what is the allocation's.
    pub task: Arc<str>,
    /// Of the allocation.
    pub dirs: AllocDirs,
    /// To the allocation's loop.
    pub inbox: Inbox,
    /// Of the allocation.
    pub network: SharedNetwork,
    /// Of the allocation: its data is taken over once.
    pub moved: Moved,
}

impl TaskPlace {
    /// Warns people, among the task's events. The loop may have ended.
    pub fn note(&self, message: String) {
        tracing::warn!(alloc = %self.alloc.id, task = %self.task, message, "told on the task");
        let _ = self.inbox.send(Event::DriverSaid { task: self.task.clone(), message, annotations: BTreeMap::new() });
    }

    /// Tells people something of the task.
    pub fn tell(&self, event: TaskEvent) {
        self.inbox.note(&self.task, event);
    }

    /// The task in its job, unless the job has no such task.
    pub fn spec(&self) -> Option<TaskSpec<'_>> {
        let group = self.job.group(&self.alloc.task_group)?;
        Some(TaskSpec { alloc: &self.alloc, job: &self.job, group, task: group.task(&self.task)? })
    }

    /// The task as its job describes it, unless the job has no such task.
    pub fn task(&self) -> Option<&Task> {
        self.spec().map(|spec| spec.task)
    }

    /// Empty when the job has no such task.
    pub fn driver_name(&self) -> &str {
        self.task().map(|t| t.driver.as_str()).unwrap_or_default()
    }

    /// The directories of the task, which need not exist.
    pub fn task_dirs(&self) -> TaskDirs {
        self.dirs.task(&self.task)
    }

    /// Cores that the task has for itself.
    pub fn cores(&self) -> &[u16] {
        self.alloc.resources.tasks.get(&self.task).map(|t| t.cpu.reserved_cores.as_slice()).unwrap_or_default()
    }
}
