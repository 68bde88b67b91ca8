//! A driver's channel to its host: task events and requests for a new fingerprint.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use driver_proto::build;
use driver_proto::driver::{DriverTaskEvent, TaskConfig};
use tokio::sync::{Notify, broadcast};

/// An event in the history of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskEvent {
    /// Task id.
    pub task_id: String,
    /// Allocation id.
    pub alloc_id: String,
    /// Task name.
    pub task_name: String,
    /// What happened.
    pub message: String,
    /// Details.
    pub annotations: BTreeMap<String, String>,
}

impl TaskEvent {
    /// An event of this task with a message.
    pub fn new(task: &TaskConfig, message: impl Into<String>) -> Self {
        Self {
            task_id: task.id.clone(),
            alloc_id: task.alloc_id.clone(),
            task_name: task.name.clone(),
            message: message.into(),
            annotations: BTreeMap::new(),
        }
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.annotations.insert(name.into(), value.to_string());
        self
    }
}

/// A driver's access to its host. The SDK hands it to [`crate::Driver::attach`] before the first call. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct Context {
    events: broadcast::Sender<DriverTaskEvent>,
    refingerprint: Arc<Notify>,
}

impl Context {
    pub(crate) fn new() -> Self {
        // A host that does not read loses the oldest events, the driver never waits.
        Self { events: broadcast::channel(256).0, refingerprint: Arc::default() }
    }

    /// Adds an event to the task's history. The event is lost if no host is connected.
    pub fn emit(&self, event: TaskEvent) {
        let TaskEvent { task_id, alloc_id, task_name, message, annotations } = event;
        let timestamp = Some(build::timestamp(Some(SystemTime::now())));
        let event = DriverTaskEvent { task_id, alloc_id, task_name, timestamp, message, annotations };
        // An error only means that there is no listener.
        let _ = self.events.send(event);
    }

    /// Asks for a new fingerprint now instead of at the next interval.
    pub fn refingerprint(&self) {
        self.refingerprint.notify_waiters();
    }

    #[cfg(test)]
    pub(crate) fn listeners(&self) -> usize {
        self.events.receiver_count()
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<DriverTaskEvent> {
        self.events.subscribe()
    }

    pub(crate) fn fingerprint_due(&self) -> Arc<Notify> {
        self.refingerprint.clone()
    }
}
