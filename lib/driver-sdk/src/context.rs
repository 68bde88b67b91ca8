//! The way from a driver back to its host: events of tasks, "look at me again".

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use driver_proto::build;
use driver_proto::driver::DriverTaskEvent;
use tokio::sync::{Notify, broadcast};

/// Something that happened to a task, for the people who watch it.
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

/// Handed to a driver once, before the first call. Cheap to clone.
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

    /// Shows an event in the task's history. Lost when no host listens.
    pub fn emit(&self, event: TaskEvent) {
        let TaskEvent { task_id, alloc_id, task_name, message, annotations } = event;
        let timestamp = Some(build::timestamp(Some(SystemTime::now())));
        let event = DriverTaskEvent { task_id, alloc_id, task_name, timestamp, message, annotations };
        // An error only says that nobody listens.
        let _ = self.events.send(event);
    }

    /// Asks for a new fingerprint now instead of at the next interval.
    pub fn refingerprint(&self) {
        self.refingerprint.notify_waiters();
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<DriverTaskEvent> {
        self.events.subscribe()
    }

    pub(crate) fn fingerprint_due(&self) -> Arc<Notify> {
        self.refingerprint.clone()
    }
}
