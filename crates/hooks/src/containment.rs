//! What keeps the processes of tasks together on this node, and ends what drivers leave of them.

use std::sync::Arc;

use host::{
    cgroup::{self, TaskCgroup},
    leftovers::{self, Places},
    owner::Owner,
};

use crate::{drivers::Drivers, place::TaskPlace};

/// How processes of this node's tasks are held and found.
pub struct Containment {
    /// Which of them come with the agent.
    pub drivers: Arc<Drivers>,
    /// Where they are recognised by.
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

    /// From here on whatever comes of a start is known as the task's, also when it loses its executor.
    pub async fn take_in(&self, place: &TaskPlace, cgroup: Option<TaskCgroup>) {
        if !self.drivers.is_builtin(place.driver_name()) {
            let owner = Owner { alloc: place.alloc.id, task: place.task.to_string() };
            leftovers::take_in(&self.places, &owner, cgroup).await;
        }
    }

    /// Ends whatever a driver has left of a task: in the cgroups made for it, under its executors, by environment and
    /// directory. Answers how many processes there were; people are told.
    ///
    /// # Errors
    /// What resists, or why it could not be ended; may be repeated.
    pub async fn contain(&self, place: &TaskPlace) -> Result<usize, String> {
        let task_dir = place.task_dirs().root;
        leftovers::end_own_executors(&task_dir).await;
        // Drivers that come with the agent leave nothing but executors of our own.
        if self.drivers.is_builtin(place.driver_name()) {
            return Ok(0);
        }
        let mut killed = 0;
        // Both ways, because each finds what the other one misses; executors first, which might start something anew.
        let ended = leftovers::end_task(&self.places, place.alloc.id, &place.task).await;
        killed += ended.killed;
        if !ended.resisting.is_empty() {
            return Err(format!("processes {:?} of the task resist SIGKILL", ended.resisting));
        }
        if let Some(cgroup) = self.cgroup(place) {
            let cleared = tokio::task::spawn_blocking(move || cgroup.clear()).await.map_err(|e| e.to_string())?;
            killed += cleared.map_err(|e| format!("the task's cgroups could not be emptied: {e}"))?;
        }
        if killed > 0 {
            place.note(format!("{killed} processes that the driver left behind were killed"));
        }
        Ok(killed)
    }
}
