//! Remote tasks through drivers that know the plain driver protocol only: capability `remote_tasks`, a handle, RecoverTask, `DETACH`.
//!
//! ```text
//! create ──── StartTask ───────────────► handle (kept by the servers)
//! look ────── RecoverTask, InspectTask ► running · ended (WaitTask says how) · task not found = gone · any other error = could not ask
//! stop ────── StopTask, InspectTask    ► confirmed only when it is seen ended
//! forget ──── DestroyTask
//! let go ──── StopTask with DETACH, DestroyTask: the plugin forgets it, the instance goes on
//! output ──── StdoutPath, StderrPath: FIFOs of the node that manages the task, which a log collector of its allocation reads ([`Output`])
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
use model::{AllocId, GoDuration, Observed, SlotKey, Text, TimestampNs, remote::RemoteHandle};
use tokio::sync::watch;

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

/// How long a task waits for the place of its output before its driver is told that there is none.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(5);

/// Which tasks the running plugins know, and where the output of tasks goes.
#[derive(Debug, Default)]
pub(crate) struct PlainTasks {
    known: Mutex<HashMap<String, Known>>,
    outputs: watch::Sender<HashMap<SlotKey, Output>>,
}

/// What a plugin knows of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    /// The plugin's process.
    generation: u64,
    /// Where it was told to write.
    output: Output,
}

/// Where a driver writes what a task says: FIFOs of this node that are read as long as an allocation shows the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// The allocation.
    pub(crate) alloc: AllocId,
    /// Path for standard output.
    pub(crate) stdout: String,
    /// Path for standard error.
    pub(crate) stderr: String,
}

impl Output {
    /// What is written is not kept.
    pub(crate) fn nowhere(alloc: AllocId) -> Self {
        Self { alloc, stdout: NOWHERE.to_owned(), stderr: NOWHERE.to_owned() }
    }

    fn put_into(&self, config: &mut TaskConfig) {
        config.stdout_path.clone_from(&self.stdout);
        config.stderr_path.clone_from(&self.stderr);
    }
}

impl PlainTasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the output of the slot's task goes there.
    pub(super) fn output_to(&self, slot: SlotKey, output: Output) {
        self.outputs.send_if_modified(|outputs| outputs.insert(slot, output.clone()).as_ref() != Some(&output));
    }

    /// Nobody reads any more what goes to that allocation.
    pub(super) fn no_output_to(&self, slot: &SlotKey, alloc: AllocId) {
        self.outputs.send_if_modified(|outputs| {
            let reads = outputs.get(slot).is_some_and(|output| output.alloc == alloc);
            reads && outputs.remove(slot).is_some()
        });
    }

    /// Some plugin has been told to write there, and has not been told otherwise.
    pub(super) fn tells(&self, alloc: AllocId) -> bool {
        self.lock().values().any(|known| known.output.alloc == alloc)
    }

    /// Where the output of the slot's task goes. That is known in a moment where it is not yet: the allocation comes with the order for its task.
    async fn output_of(&self, slot: Option<&SlotKey>) -> Output {
        let Some(slot) = slot else { return Output::nowhere(AllocId::NIL) };
        let mut outputs = self.outputs.subscribe();
        let there = outputs.wait_for(|outputs| outputs.contains_key(slot));
        match tokio::time::timeout(OUTPUT_PATIENCE, there).await {
            Ok(Ok(outputs)) => outputs.get(slot).cloned(),
            _ => None,
        }
        .unwrap_or_else(|| Output::nowhere(AllocId::NIL))
    }

    /// The output goes elsewhere than the plugin was told.
    fn moved(&self, slot: Option<&SlotKey>, told: &Output) -> bool {
        slot.is_some_and(|slot| self.outputs.borrow().get(slot).is_some_and(|now| now != told))
    }
}

/// Where a handle says whose it is. The driver never sees it.
const SLOT: &str = "drover.slot";

/// What of a task finds it again. The environment and the driver's configuration stay here: both may hold secrets.
fn to_find(config: &TaskConfig, slot: &SlotKey) -> TaskConfig {
    TaskConfig {
        env: [(SLOT.to_owned(), slot.to_string())].into(),
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

fn kept(started: TaskHandle, slot: &SlotKey) -> RemoteHandle {
    let config = started.config.as_ref().map(|config| to_find(config, slot));
    RemoteHandle { schema: SCHEMA, data: handle_to_bytes(&TaskHandle { config, ..started }) }
}

/// A task's handle as its driver takes it, its id, and its slot, which handles of older agents do not name.
type Opened = (TaskHandle, String, Option<SlotKey>);

fn opened(handle: &RemoteHandle) -> Result<Opened, Answer> {
    let found = (handle.schema == SCHEMA).then(|| handle_from_bytes(&handle.data)).flatten();
    let id = found.as_ref().and_then(|h| h.config.as_ref()).map(|c| c.id.clone()).filter(|id| !id.is_empty());
    match (found, id) {
        (Some(mut handle), Some(id)) => {
            let mut slot = None;
            if let Some(config) = &mut handle.config {
                slot = config.env.remove(SLOT).and_then(|slot| slot.parse().ok());
                // Drivers written in Go follow these without looking.
                driver_host::proto::build::fill_resources(config);
            }
            Ok((handle, id, slot))
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
        let (mut found, id, slot) = opened(handle)?;
        let generation = self.driver.generation();
        let known = self.tasks.lock().get(&id).filter(|known| known.generation == generation).cloned();
        if let Some(known) = known {
            if !self.tasks.moved(slot.as_ref(), &known.output) {
                return Ok(id);
            }
            // A plugin that knows a task does not look at its paths again.
            self.let_go(handle).await;
        }
        let output = self.tasks.output_of(slot.as_ref()).await;
        if let Some(config) = &mut found.config {
            output.put_into(config);
        }
        self.driver.recover_task(found).await.map_err(|e| trouble(&e))?;
        self.tasks.lock().insert(id.clone(), Known { generation, output });
        Ok(id)
    }

    pub(crate) async fn start(&self, slot: &SlotKey, mut config: TaskConfig, bundle: &Bundle) -> Answer {
        if !bundle.files.is_empty() {
            return Answer::WrongRequest(
                "the driver knows the plain driver protocol only, which carries no files: the job must not have artifacts, templates or a payload"
                    .to_owned(),
            );
        }
        let output = self.tasks.output_of(Some(slot)).await;
        output.put_into(&mut config);
        // Drivers that store output by themselves would store it where nobody looks for it.
        config.drover_log = None;
        let id = config.id.clone();
        match self.driver.start_task(config).await {
            Ok(started) => {
                self.tasks.lock().insert(id, Known { generation: self.driver.generation(), output });
                let network = started.network.unwrap_or_default();
                bounded(
                    kept(started.handle, slot),
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
                if let Ok((_, id, _)) = opened(handle) {
                    self.tasks.lock().remove(&id);
                }
                Answer::Absent
            }
            Err(answer) => answer,
        }
    }

    /// The plugin need not know the task any more; the instance goes on. Whatever it answers, nothing is lost.
    pub(crate) async fn let_go(&self, handle: &RemoteHandle) {
        let Ok((_, id, _)) = opened(handle) else { return };
        // A process that has never heard of it has nothing to let go.
        let known = self.tasks.lock().remove(&id);
        if known.is_none_or(|known| known.generation != self.driver.generation()) {
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
        let slot: SlotKey = "default/job.g[0]/t".parse().expect("a slot");
        let handle = kept(TaskHandle { config: Some(config), driver_state: b"state".to_vec(), ..TaskHandle::default() }, &slot);
        let text = String::from_utf8_lossy(&handle.data).into_owned();
        assert!(text.contains("a/t/1") && text.contains("state") && !text.contains("secret"), "{text}");
        let (back, id, of) = opened(&handle).expect("one of ours");
        assert_eq!((id.as_str(), back.driver_state.as_slice(), of), ("a/t/1", b"state".as_slice(), Some(slot)));
        assert!(back.config.as_ref().is_some_and(|c| c.env.is_empty()), "the driver sees nothing of it");
        assert!(back.config.is_some_and(|c| c.resources.is_some()), "drivers in Go follow it without looking");
        for wrong in [RemoteHandle { schema: 1, ..handle }, RemoteHandle::default()] {
            assert!(matches!(opened(&wrong), Err(Answer::CouldNotAsk(_))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn output_goes_to_the_allocation_that_shows_the_task_now() {
        let tasks = PlainTasks::default();
        let slot: SlotKey = "default/job.g[0]/t".parse().expect("a slot");
        let output = |n: u128| Output { alloc: AllocId(uuid::Uuid::from_u128(n)), stdout: format!("{n}.out"), stderr: format!("{n}.err") };
        let nowhere = Output::nowhere(AllocId::NIL);
        assert_eq!(tasks.output_of(None).await, nowhere);
        assert_eq!(tasks.output_of(Some(&slot)).await, nowhere, "nobody shows it");
        tasks.output_to(slot.clone(), output(1));
        assert_eq!(tasks.output_of(Some(&slot)).await, output(1));
        assert!(tasks.moved(Some(&slot), &nowhere) && !tasks.moved(Some(&slot), &output(1)) && !tasks.moved(None, &nowhere));
        // Its successor's allocation comes before the former one goes.
        tasks.output_to(slot.clone(), output(2));
        tasks.no_output_to(&slot, output(1).alloc);
        assert_eq!(tasks.output_of(Some(&slot)).await, output(2));
        tasks.no_output_to(&slot, output(2).alloc);
        assert!(!tasks.moved(Some(&slot), &output(2)), "what is told of nowhere else stays");
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
