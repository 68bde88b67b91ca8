//! Remote tasks through drivers that know the plain driver protocol only: capability `remote_tasks`, a handle, RecoverTask, `DETACH`.
//!
//! ```text
//! create ──── StartTask ───────────────► handle (kept by the servers)
//! look ────── RecoverTask, InspectTask ► running · ended (WaitTask says how) · task not found = gone · any other error = could not ask
//! stop ────── StopTask, InspectTask    ► confirmed only when it is seen ended
//! forget ──── DestroyTask
//! let go ──── StopTask with DETACH, DestroyTask: the plugin forgets it, the instance goes on
//! ```
//! Such a driver cannot be asked by key: after a create whose answer was lost nothing is created again, and a person decides. It refuses no stale
//! epoch either. Both are shown as the guarantee of the task.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use driver_host::{
    Bundle, CallError, Driver, ExecSession, TaskConfig, TaskExit, TaskHandle, TaskStatus, handle_from_bytes, handle_to_bytes,
    proto::driver::TaskStats,
};
use lifecycle::remote::node::{Answer, Sighting};
use model::{GoDuration, Observed, Text, TimestampNs, remote::RemoteHandle};

use super::calls::bounded;
use crate::context::now_ns;

/// Layout of a handle of the plain protocol: the driver's own message, without what is of no use for finding the instance again.
const SCHEMA: u32 = 0;
/// The signal that means: let go of the task, and leave it alone.
const DETACH: &str = driver_host::DETACH_SIGNAL;
/// How long the driver gets to say how a task that has ended did so.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long the driver gets to let a task go.
const DETACH_PATIENCE: Duration = Duration::from_secs(5);

/// Which tasks the running plugins know: task id → generation of the plugin's process.
#[derive(Debug, Default)]
pub(crate) struct PlainTasks(Mutex<HashMap<String, u64>>);

impl PlainTasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What of a task finds it again. The environment and the driver's configuration stay here: both may hold secrets.
fn to_find(config: &TaskConfig) -> TaskConfig {
    TaskConfig {
        id: config.id.clone(),
        name: config.name.clone(),
        task_group_name: config.task_group_name.clone(),
        job_name: config.job_name.clone(),
        job_id: config.job_id.clone(),
        parent_job_id: config.parent_job_id.clone(),
        namespace: config.namespace.clone(),
        alloc_id: config.alloc_id.clone(),
        stdout_path: NOWHERE.to_owned(),
        stderr_path: NOWHERE.to_owned(),
        ..TaskConfig::default()
    }
}

/// Some drivers open the task's output for writing and take a failure for the end of the task; this can be opened on every node.
const NOWHERE: &str = "/dev/null";

/// The output of such a task stays where it runs.
pub(crate) fn without_output(config: &mut TaskConfig) {
    config.stdout_path = NOWHERE.to_owned();
    config.stderr_path = NOWHERE.to_owned();
    config.drover_log = None;
}

fn kept(started: TaskHandle) -> RemoteHandle {
    let config = started.config.as_ref().map(to_find);
    RemoteHandle { schema: SCHEMA, data: handle_to_bytes(&TaskHandle { config, ..started }) }
}

fn opened(handle: &RemoteHandle) -> Result<(TaskHandle, String), Answer> {
    let found = (handle.schema == SCHEMA).then(|| handle_from_bytes(&handle.data)).flatten();
    let id = found.as_ref().and_then(|h| h.config.as_ref()).map(|c| c.id.clone()).filter(|id| !id.is_empty());
    match (found, id) {
        (Some(mut handle), Some(id)) => {
            // Drivers written in Go follow these without looking.
            if let Some(config) = &mut handle.config {
                driver_host::proto::build::fill_resources(config);
            }
            Ok((handle, id))
        }
        _ => Err(Answer::CouldNotAsk(format!(
            "the handle (schema {}, {} bytes) is not one of the plain driver protocol: it was made by another driver",
            handle.schema,
            handle.data.len()
        ))),
    }
}

/// Every error says that nothing is known, but the one that says that there is no such task.
fn trouble(error: &CallError) -> Answer {
    if error.is_task_not_found() { Answer::Absent } else { Answer::CouldNotAsk(error.to_string()) }
}

fn nanos(at: Option<SystemTime>) -> TimestampNs {
    at.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).and_then(|d| i64::try_from(d.as_nanos()).ok()).unwrap_or(0)
}

/// What an end that comes with an error means: the protocol leaves only the text.
fn says_gone(error: &str) -> bool {
    let text = error.to_lowercase();
    text.contains("task not found") || text.contains("is gone")
}

/// A call about a task. A plugin that has lost it is told of it once more: only then its word counts.
macro_rules! about {
    ($plain:expr, $handle:expr, $call:ident($($argument:expr),*)) => {
        async {
            let id = $plain.recovered($handle).await?;
            match $plain.driver.$call(&id $(, $argument)*).await {
                Err(e) if e.is_task_not_found() => {
                    $plain.tasks.lock().remove(&id);
                    let id = $plain.recovered($handle).await?;
                    $plain.driver.$call(&id $(, $argument)*).await.map_err(|e| trouble(&e))
                }
                answer => answer.map_err(|e| trouble(&e)),
            }
        }
    };
}

/// A remote driver of the plain protocol.
#[derive(Clone, Debug)]
pub(crate) struct Plain<'a> {
    pub(crate) tasks: &'a PlainTasks,
    pub(crate) driver: Driver,
}

impl Plain<'_> {
    /// The task's id, when the running plugin knows the task.
    async fn recovered(&self, handle: &RemoteHandle) -> Result<String, Answer> {
        let (handle, id) = opened(handle)?;
        let generation = self.driver.generation();
        if self.tasks.lock().get(&id) == Some(&generation) {
            return Ok(id);
        }
        self.driver.recover_task(handle).await.map_err(|e| trouble(&e))?;
        self.tasks.lock().insert(id.clone(), generation);
        Ok(id)
    }

    pub(crate) async fn start(&self, mut config: TaskConfig, bundle: &Bundle) -> Answer {
        if !bundle.files.is_empty() {
            return Answer::WrongRequest(
                "the driver knows the plain driver protocol only, which carries no files: the job must not have artifacts, templates or a payload"
                    .to_owned(),
            );
        }
        without_output(&mut config);
        let id = config.id.clone();
        match self.driver.start_task(config).await {
            Ok(started) => {
                self.tasks.lock().insert(id, self.driver.generation());
                let network = started.network.unwrap_or_default();
                bounded(
                    kept(started.handle),
                    Sighting { observed: Observed::Creating, address: network.address, port_map: network.port_map, ..Sighting::default() },
                )
            }
            Err(e @ CallError::NotReady { .. }) => Answer::NotSent(e.to_string()),
            Err(CallError::Failed { code: tonic::Code::InvalidArgument, message, .. }) => Answer::WrongRequest(message),
            Err(e) => Answer::CouldNotAsk(e.to_string()),
        }
    }

    pub(crate) async fn look(&self, handle: &RemoteHandle) -> Answer {
        let seen = match about!(self, handle, inspect_task()).await {
            Ok(seen) => seen,
            Err(answer) => return answer,
        };
        let network = seen.network.unwrap_or_default();
        let observed = match seen.status {
            TaskStatus::Running => Observed::Running,
            TaskStatus::Unknown => return Answer::CouldNotAsk("the driver cannot say whether the task runs".to_owned()),
            TaskStatus::Exited => {
                // How it ended: it is over, so this does not wait.
                let exit = match tokio::time::timeout(END_PATIENCE, about!(self, handle, wait_task())).await {
                    Ok(Ok(exit)) => exit,
                    Ok(Err(answer)) => return answer,
                    Err(_) => return Answer::CouldNotAsk("the driver says that the task has ended, but not how".to_owned()),
                };
                match exit {
                    TaskExit { error: Some(why), .. } if says_gone(&why) => return Answer::Absent,
                    // Such drivers call it an end when they could not ask. It is asked anew, from the beginning.
                    TaskExit { error: Some(why), .. } => {
                        self.let_go(handle).await;
                        return Answer::CouldNotAsk(why);
                    }
                    TaskExit { exit_code, signal, oom_killed, error: None } => Observed::Exited {
                        code: exit_code,
                        signal,
                        oom_killed,
                        reason: Text::default(),
                        at: Some(nanos(seen.completed_at)).filter(|at| *at > 0).unwrap_or_else(now_ns),
                    },
                }
            }
        };
        let sighting = Sighting {
            observed,
            provider_id: String::new(),
            attributes: seen.attributes.into_iter().collect(),
            address: network.address,
            port_map: network.port_map,
            started_at: nanos(seen.started_at),
        };
        Answer::Instance { handle: handle.clone(), sighting: Box::new(sighting) }
    }

    pub(crate) async fn stop(&self, handle: &RemoteHandle, signal: &str, timeout: GoDuration) -> Answer {
        // A job that names this signal would have its instance forgotten instead of stopped.
        let signal = if signal == DETACH { "" } else { signal };
        if let Err(answer) = about!(self, handle, stop_task(signal, timeout.to_std())).await {
            return answer;
        }
        match self.look(handle).await {
            Answer::Instance { sighting, .. } if !sighting.observed.ended() => {
                Answer::CouldNotAsk("the driver has stopped the task but still says that it runs".to_owned())
            }
            answer => answer,
        }
    }

    pub(crate) async fn forget(&self, handle: &RemoteHandle) -> Answer {
        match about!(self, handle, destroy_task(false)).await {
            Ok(_) => {
                if let Ok((_, id)) = opened(handle) {
                    self.tasks.lock().remove(&id);
                }
                Answer::Absent
            }
            Err(answer) => answer,
        }
    }

    /// The plugin need not know the task any more; the instance goes on. Whatever it answers, nothing is lost.
    pub(crate) async fn let_go(&self, handle: &RemoteHandle) {
        let Ok((_, id)) = opened(handle) else { return };
        // A process that has never heard of it has nothing to let go.
        if self.tasks.lock().remove(&id) != Some(self.driver.generation()) {
            return;
        }
        let detached = async {
            self.driver.stop_task(&id, DETACH, DETACH_PATIENCE).await?;
            self.driver.destroy_task(&id, false).await
        };
        if let Err(error) = detached.await {
            tracing::debug!(task = id, %error, "the driver did not let go of a task");
        }
    }

    pub(crate) async fn signal(&self, handle: &RemoteHandle, signal: &str) -> Result<(), String> {
        about!(self, handle, signal_task(signal)).await.map_err(why)
    }

    pub(crate) async fn stats(&self, handle: &RemoteHandle) -> Option<TaskStats> {
        let id = self.recovered(handle).await.ok()?;
        self.driver.stats(&id, Duration::from_secs(1)).ok()?.next().await?.ok()
    }

    pub(crate) async fn exec(&self, handle: &RemoteHandle, command: Vec<String>, tty: bool) -> Result<ExecSession, String> {
        let id = self.recovered(handle).await.map_err(why)?;
        self.driver.exec_streaming(&id, command, tty).map_err(|e| e.to_string())
    }
}

fn why(answer: Answer) -> String {
    match answer {
        Answer::Absent => "the driver does not know the task any more".to_owned(),
        Answer::CouldNotAsk(why) | Answer::NotSent(why) | Answer::WrongRequest(why) => why,
        Answer::Instance { .. } | Answer::StaleEpoch { .. } => "the driver did not answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_holds_what_finds_the_task_and_no_secret() {
        let config = TaskConfig {
            id: "a/t/1".to_owned(),
            name: "t".to_owned(),
            env: [("TOKEN".to_owned(), "secret-value".to_owned())].into(),
            msgpack_driver_config: b"secret-config".to_vec(),
            ..TaskConfig::default()
        };
        let handle = kept(TaskHandle { config: Some(config), driver_state: b"state".to_vec(), ..TaskHandle::default() });
        let text = String::from_utf8_lossy(&handle.data).into_owned();
        assert!(text.contains("a/t/1") && text.contains("state") && !text.contains("secret"), "{text}");
        let (back, id) = opened(&handle).expect("one of ours");
        assert_eq!((id.as_str(), back.driver_state.as_slice()), ("a/t/1", b"state".as_slice()));
        assert!(back.config.is_some_and(|c| c.resources.is_some()), "drivers in Go follow it without looking");
        for wrong in [RemoteHandle { schema: 1, ..handle }, RemoteHandle::default()] {
            assert!(matches!(opened(&wrong), Err(Answer::CouldNotAsk(_))));
        }
    }

    #[test]
    fn only_words_that_say_so_mean_absence() {
        for (text, gone) in [
            ("task not found for given id", true),
            ("the provider says that the instance is gone; how it ended is not known", true),
            ("connection refused", false),
            ("cluster not found", false),
        ] {
            assert_eq!(says_gone(text), gone, "{text}");
        }
    }
}
