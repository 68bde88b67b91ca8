//! Log collectors: processes that store the output of tasks. Each task has one, and it outlives the agent.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use executor_client::{CollectSpec, Launcher, LogCollector, LogPolicy};
use model::{AllocId, Task};
use node_record::store::{LocalStore, Write};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use crate::{place::TaskPlace, task_config};

/// The log collectors of a node.
pub struct Collectors {
    store: LocalStore,
    /// Parent of their state directories.
    dir: PathBuf,
    executors: PathBuf,
    launcher: OnceCell<Launcher>,
}

impl Collectors {
    /// Collectors whose state is in `dir`; `executors` is where their program is installed.
    pub fn new(store: LocalStore, dir: PathBuf, executors: PathBuf) -> Self {
        Self { store, dir, executors, launcher: OnceCell::new() }
    }

    /// The launcher of log collectors. It installs the executor at the first use, because most nodes never need it.
    async fn launcher(&self) -> Result<&Launcher, String> {
        let dir = self.executors.clone();
        self.launcher
            .get_or_try_init(|| async move {
                blocking::spawn(move || Launcher::new(dir))
                    .await
                    .map_err(|e| e.to_string())?
                    .map_err(|e| format!("install the executor for log collection: {e}"))
            })
            .await
    }

    /// State directory of a task's log collector.
    pub fn state_dir(&self, alloc: AllocId, task: &str) -> PathBuf {
        self.dir.join(name_of(alloc, task))
    }

    /// Starts the task's log collector, or finds it.
    ///
    /// # Errors
    /// Why its output cannot be stored. The claim on the collector stands then.
    pub async fn collect(&self, place: &TaskPlace, task: &Task) -> Result<(), String> {
        let state_dir = self.state_dir(place.alloc.id, &place.task);
        let key = dir_name(&state_dir);
        self.store.commit(vec![Write::Claim { kind: "collector", key }]).await.map_err(|e| e.to_string())?;
        let (stdout_fifo, stderr_fifo) = task_config::fifos(&place.dirs, &place.task);
        let (max_files, max_file_bytes) = task_config::rotation(task.logs.as_ref());
        let spec = CollectSpec {
            id: format!("{}/{}", place.alloc.id, place.task),
            stdout_fifo,
            stderr_fifo,
            log: LogPolicy {
                dir: place.dirs.logs(),
                stdout_name: format!("{}.stdout", place.task),
                stderr_name: format!("{}.stderr", place.task),
                max_files,
                max_file_bytes,
            },
        };
        std::fs::create_dir_all(&self.dir).map_err(|e| format!("create {}: {e}", self.dir.display()))?;
        LogCollector::start(self.launcher().await?, &state_dir, spec)
            .await
            .map(drop)
            .map_err(|e| format!("start the log collector: {e}"))
    }

    /// Ends the collector of a task and removes its FIFOs; returns the writes that drop the claims.
    pub async fn end(&self, place: &TaskPlace) -> Vec<Write> {
        let mut released = Vec::new();
        let state_dir = self.state_dir(place.alloc.id, &place.task);
        if state_dir.exists() {
            match end_collector(&state_dir).await {
                Ok(()) => released.push(Write::Release { kind: "collector", key: dir_name(&state_dir) }),
                Err(error) => {
                    tracing::warn!(alloc = %place.alloc.id, task = %place.task, error, "the log collector was not \
                        ended, the next sweep tries again");
                }
            }
        }
        let (stdout, stderr) = task_config::fifos(&place.dirs, &place.task);
        for fifo in [stdout, stderr] {
            // If the driver collects the output itself, there is no FIFO.
            let _ = std::fs::remove_file(fifo);
        }
        released
    }
}

/// Name of the state directory of a task's log collector. Short, because it holds a socket, and socket paths are
/// limited.
pub fn name_of(alloc: AllocId, task: &str) -> String {
    let digest = Sha256::digest(format!("{alloc}/{task}"));
    digest.iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// Ends the collector of a state directory, if there is one.
///
/// # Errors
/// Why it has not ended; the caller may repeat the call.
pub async fn end_collector(state_dir: &Path) -> Result<(), String> {
    if !state_dir.exists() {
        return Ok(());
    }
    if let Some(collector) = LogCollector::attach(state_dir).await.map_err(|e| e.to_string())? {
        collector.stop(Duration::from_secs(2)).await.map_err(|e| e.to_string())?;
    }
    executor_client::destroy(state_dir).await.map_err(|e| e.to_string())
}

/// Last part of a path.
fn dir_name(dir: &Path) -> String {
    dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}
