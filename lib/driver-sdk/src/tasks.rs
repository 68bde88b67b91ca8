//! A table of the tasks that a driver knows, and the directories of their files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driver_proto::driver::TaskConfig;
use tokio::sync::watch;

use crate::Error;
pub use crate::task_log::log_policy;

/// The tasks that a driver knows, by id.
#[derive(Debug)]
pub struct Tasks<T>(Mutex<HashMap<String, Known<T>>>);

#[derive(Debug)]
struct Known<T> {
    task: Arc<T>,
    /// Dropped with the entry.
    gone: watch::Sender<()>,
}

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Tasks<T> {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Known<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task with this id.
    ///
    /// # Errors
    /// [`Error::TaskNotFound`].
    pub fn get(&self, id: &str) -> Result<Arc<T>, Error> {
        self.all().get(id).map(|known| known.task.clone()).ok_or(Error::TaskNotFound)
    }

    /// Whether there is a task with this id.
    pub fn contains(&self, id: &str) -> bool {
        self.all().contains_key(id)
    }

    /// Adds a task.
    ///
    /// # Errors
    /// The id is known already; its task stays.
    pub fn insert(&self, id: &str, task: T) -> Result<Arc<T>, Error> {
        let mut all = self.all();
        if all.contains_key(id) {
            return Err(Error::failed(format!("the task {id:?} exists already")));
        }
        let task = Arc::new(task);
        all.insert(id.to_owned(), Known { task: task.clone(), gone: watch::Sender::new(()) });
        Ok(task)
    }

    /// Forgets a task: [`Tasks::while_known`] ends. True if there was one.
    pub fn remove(&self, id: &str) -> bool {
        self.all().remove(id).is_some()
    }

    /// Number of known tasks.
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Whether the driver knows no task.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs `work` for a task, until the task is forgotten at the latest. `wait_task` needs this, because
    /// `destroy_task` ends pending waits. Cancel safe if `work` is.
    ///
    /// # Errors
    /// [`Error::TaskNotFound`] when the task is unknown, or no longer known.
    pub async fn while_known<R>(&self, id: &str, work: impl Future<Output = Result<R, Error>>) -> Result<R, Error> {
        let mut gone = self.all().get(id).map(|known| known.gone.subscribe()).ok_or(Error::TaskNotFound)?;
        tokio::select! {
            biased;
            result = work => result,
            // Nothing is ever sent: the end of the sender is the message.
            _ = gone.changed() => Err(Error::TaskNotFound),
        }
    }
}

/// The task's own directory on this machine: `local`, `secrets`, `private`, `tmp` are in it.
pub fn task_dir(task: &TaskConfig) -> PathBuf {
    Path::new(&task.alloc_dir).join(&task.name)
}

/// A name for one start of a task, fit for a file name. It is the same if the host repeats the start after a crash.
pub fn start_name(task: &TaskConfig) -> String {
    let start = task.id.rsplit('/').next().unwrap_or_default();
    let name: String = start.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    if name.is_empty() { "task".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_starts_are_names() {
        for (id, name) in
            [("0a1b/web/c0ffee", "c0ffee"), ("../../etc", "etc"), ("a/..", "__"), ("", "task"), ("a/b c", "b_c")]
        {
            assert_eq!(start_name(&TaskConfig { id: id.into(), ..TaskConfig::default() }), name);
        }
        let task = TaskConfig { name: "web".into(), alloc_dir: "/a/0a1b".into(), ..TaskConfig::default() };
        assert_eq!(task_dir(&task), Path::new("/a/0a1b/web"));
    }

    #[tokio::test]
    async fn a_wait_ends_with_what_it_waits_for() {
        let tasks = Tasks::default();
        tasks.insert("a", 1).expect("new");
        assert!(tasks.insert("a", 2).is_err());
        assert_eq!((tasks.get("a").as_deref(), tasks.get("b")), (Ok(&1), Err(Error::TaskNotFound)));
        assert_eq!(tasks.while_known("a", async { Ok(5) }).await, Ok(5));
        let pending = tasks.while_known("a", std::future::pending::<Result<(), Error>>());
        let (seen, removed) = tokio::join!(pending, async { tasks.remove("a") });
        assert_eq!((seen, removed, tasks.remove("a"), tasks.is_empty()), (Err(Error::TaskNotFound), true, false, true));
        assert_eq!(tasks.while_known("a", async { Ok(5) }).await, Err(Error::TaskNotFound));
    }
}
