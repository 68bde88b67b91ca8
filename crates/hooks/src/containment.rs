//! Containment of tasks' processes on this node, and the end of processes that drivers leave behind.

use std::sync::Arc;

use host::{
    cgroup::{self, TaskCgroup},
    leftovers::{self, Places},
    owner::Owner,
};

use crate::{drivers::Drivers, place::TaskPlace};

/// Holds and finds the processes of this node's tasks.
pub struct Containment {
    /// Tell which drivers come with the agent.
    pub drivers: Arc<Drivers>,
    /// The places that identify processes.
    pub places: Places,
}

impl Containment {
    /// The cgroups that this node makes for a task; drivers that come with the agent make their own.
    pub fn cgroup(&self, place: &TaskPlace) -> Option<TaskCgroup> {
        if self.drivers.is_builtin(place.driver_name()) || cgroup::mode() == cgroup::Mode::Off {
            return None;
        }
        Some(TaskCgroup::new(place.alloc.id, &place.task, place.cores()))
    }

    /// Records the processes of a start as the task's, also for the case that they lose their executor.
    pub async fn take_in(&self, place: &TaskPlace, cgroup: Option<TaskCgroup>) {
        if !self.drivers.is_builtin(place.driver_name()) {
            let owner = Owner { alloc: place.alloc.id, task: place.task.to_string() };
            leftovers::take_in(&self.places, &owner, cgroup).await;
        }
    }

    /// Ends the leftover processes of a task: in its cgroups, under its executors, and by environment and directory.
    /// Returns how many there were, for the task's events.
    ///
    /// # Errors
    /// The processes that resist, or why they could not be ended; the caller may repeat the call.
    pub async fn contain(&self, place: &TaskPlace) -> Result<usize, String> {
        let task_dir = place.task_dirs().root;
        leftovers::end_own_executors(&task_dir).await;
        // Drivers that come with the agent leave only our own executors behind.
        if self.drivers.is_builtin(place.driver_name()) {
            return Ok(0);
        }
        let mut killed = 0;
        // Both searches are needed, because each misses some processes. Executors go first: they might start something
        // anew.
        let ended = leftovers::end_task(&self.places, place.alloc.id, &place.task).await;
        killed += ended.killed;
        if !ended.resisting.is_empty() {
            return Err(format!("processes {:?} of the task resist SIGKILL", ended.resisting));
        }
        if let Some(cgroup) = self.cgroup(place) {
            let cleared = blocking::spawn(move || cgroup.clear()).await.map_err(|e| e.to_string())?;
            killed += cleared.map_err(|e| format!("the task's cgroups could not be emptied: {e}"))?;
        }
        if killed > 0 {
            place.note(format!("{killed} processes that the driver left behind were killed"));
        }
        Ok(killed)
    }
}
