//! The inbox of an allocation's loop. Hooks and managers report to the loop through it, and know nothing else of the
//! loop.

use std::{fmt, sync::Arc};

use model::TaskEvent;

use super::machine::Event;

/// The allocation's loop has ended and takes no more events.
#[derive(Clone, Copy, Debug)]
pub struct LoopEnded;

/// Takes events to the loop of one allocation, in the order in which they are given.
pub trait Deliver: fmt::Debug + Send + Sync {
    /// Gives the loop one event, without waiting.
    ///
    /// # Errors
    /// When the loop has ended.
    fn deliver(&self, event: Event) -> Result<(), LoopEnded>;
}

/// Sends events to the loop of one allocation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Inbox(Arc<dyn Deliver>);

impl Inbox {
    /// The inbox of the loop that `to` leads to.
    pub fn new(to: impl Deliver + 'static) -> Self {
        Self(Arc::new(to))
    }

    /// Sends an event to the loop.
    ///
    /// # Errors
    /// When the loop has ended.
    pub fn send(&self, event: Event) -> Result<(), LoopEnded> {
        self.0.deliver(event)
    }

    /// Adds an event to a task's history; lost if the loop has ended.
    pub fn note(&self, task: &Arc<str>, event: TaskEvent) {
        let _ = self.send(Event::Noted { task: task.clone(), event: Box::new(event) });
    }
}
