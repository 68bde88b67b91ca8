//! A task of an allocation on this node, as its helpers see it.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU32},
};

use host::{
    dirs::{AllocDirs, TaskDirs},
    node_env::TaskSpec,
};
use lifecycle::alloc::{inbox::Inbox, machine::Event};
use model::{Allocation, Job, Task, TaskEvent};

use crate::network::SharedNetwork;

/// How far the allocation has taken over its former data. Its tasks share this, so that one of them does it.
pub type Moved = Arc<Takeover>;

/// The takeover of the former data of an allocation.
#[derive(Debug, Default)]
pub struct Takeover {
    /// Held by the task that does it; true = there is nothing left to do.
    pub(crate) done: tokio::sync::Mutex<bool>,
    /// Starts, of this agent, that have waited for the data in vain.
    pub(crate) failed: AtomicU32,
}

/// A task, its directories, and its inbox. It lives as long as anything works for the task.
#[derive(Clone, Debug)]
pub struct TaskPlace {
    /// The allocation as the servers have sent it.
    pub alloc: Arc<Allocation>,
    /// The job, in the allocation's version.
    pub job: Arc<Job>,
    /// Name of the task; empty for matters of the whole allocation.
    pub task: Arc<str>,
    /// The allocation's.
    pub dirs: AllocDirs,
    /// The inbox of the allocation's loop.
    pub inbox: Inbox,
    /// The allocation's.
    pub network: SharedNetwork,
    /// The allocation's; its data is taken over once.
    pub moved: Moved,
    /// The task's restart policy lets no start follow the present one. Said at a start only.
    pub last_start: bool,
}

impl TaskPlace {
    /// Adds a warning to the task's events. Does nothing when the allocation's loop has ended.
    pub fn note(&self, message: String) {
        tracing::warn!(alloc = %self.alloc.id, task = %self.task, message, "told on the task");
        let _ = self.inbox.send(Event::DriverSaid { task: self.task.clone(), message, annotations: BTreeMap::new() });
    }

    /// Adds an event to the task.
    pub fn tell(&self, event: TaskEvent) {
        self.inbox.note(&self.task, event);
    }

    /// The task in its job; `None` when the job has no such task.
    pub fn spec(&self) -> Option<TaskSpec<'_>> {
        let group = self.job.group(&self.alloc.task_group)?;
        Some(TaskSpec { alloc: &self.alloc, job: &self.job, group, task: group.task(&self.task)? })
    }

    /// The task as its job describes it; `None` when the job has no such task.
    pub fn task(&self) -> Option<&Task> {
        self.spec().map(|spec| spec.task)
    }

    /// Name of the driver; empty when the job has no such task.
    pub fn driver_name(&self) -> &str {
        self.task().map(|t| t.driver.as_str()).unwrap_or_default()
    }

    /// The directories of the task, which need not exist.
    pub fn task_dirs(&self) -> TaskDirs {
        self.dirs.task(&self.task)
    }

    /// The task's exclusive cores.
    pub fn cores(&self) -> &[u16] {
        self.alloc.resources.tasks.get(&self.task).map(|t| t.cpu.reserved_cores.as_slice()).unwrap_or_default()
    }
}
