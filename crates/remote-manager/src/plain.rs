//! Remote tasks through drivers that know the plain driver protocol only: capability `remote_tasks`, a handle,
//! RecoverTask, `DETACH`.
//!
//! ```text
//! create ──── StartTask, WaitTask ─────► handle (kept by the servers)
//! adopt ───── StopTask with DETACH, DestroyTask, RecoverTask, WaitTask ► task not found = gone ·
//!             any other error = could not ask
//! look ────── InspectTask ─────────────► running, unless WaitTask has answered · ended (WaitTask says how)
//! stop ────── StopTask, InspectTask ───► confirmed only when it is seen ended
//! forget ──── DestroyTask
//! let go ──── StopTask with DETACH, DestroyTask: the plugin forgets it, the instance goes on (`attached`)
//! output ──── StdoutPath, StderrPath: FIFOs of the node that manages the task, which a log collector of its
//!             allocation reads (`attached::Output`); without an allocation a pipe that the node reads by itself
//!             (`unshown`)
//! ```
//! Such a driver cannot be asked by key: after a create whose answer was lost nothing is created again, and a person
//! decides. It refuses no stale epoch either. Both are shown as the guarantee of the task.

use std::{
    fs::{self, File},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use driver_host::{
    Bundle, CallError, Driver, ExecSession, Inspection, TaskConfig, TaskExit, TaskHandle, TaskStatus, handle_from_bytes, handle_to_bytes,
    proto::driver::TaskStats,
};
use host::clock::now_ns;
use lifecycle::remote::node::{Answer, Sighting};
use model::{GoDuration, Observed, SlotKey, TimestampNs, remote::RemoteHandle};

use crate::{
    attached::{Attached, NOWHERE, Place, PlainTasks},
    evidence,
    wire::bounded,
};

/// Layout of a handle of the plain protocol: the driver's own message, without what is of no use for finding the
/// instance again.
const SCHEMA: u32 = 0;
/// The signal that means: let go of the task, and leave it alone.
const DETACH: &str = driver_host::DETACH_SIGNAL;
/// How long the driver gets to say how a task that has ended did so.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long the driver gets to let a task go.
const DETACH_PATIENCE: Duration = Duration::from_secs(5);
/// The attribute by which drivers name the instance that they write of.
const INSTANCE: &str = "arn";
/// How far whoever reads what a driver writes may be behind.
const READING_PATIENCE: Duration = Duration::from_millis(500);
/// How often a plugin is told of a task for one call: its process, or the place of the task's output, may change
/// meanwhile.
const ATTEMPTS: usize = 4;

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

/// What RecoverTask has failed with. Every error says that nothing is known, but the one that says that there is no
/// such task.
fn trouble(error: &CallError) -> Answer {
    if error.is_task_not_found() { Answer::Absent } else { Answer::CouldNotAsk(error.to_string()) }
}

/// What any other call has failed with. A plugin that has just taken a task over and does not know it says nothing
/// about the instance: it may have died between.
fn lost(error: &CallError) -> Answer {
    Answer::CouldNotAsk(error.to_string())
}

/// Readers of the FIFOs that a plugin writes to: one that waits for a reader goes on. Nothing is read.
fn readers(place: &Place) -> Vec<File> {
    let fifo = |path: &&str| fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo());
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let open = |path: &str| File::options().read(true).custom_flags(nonblocking).open(path).ok();
    place.paths().into_iter().filter(fifo).filter_map(open).collect()
}

fn nanos(at: Option<SystemTime>) -> TimestampNs {
    at.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).and_then(|d| i64::try_from(d.as_nanos()).ok()).unwrap_or(0)
}

/// A call about a task. A plugin that has lost it is told of it once more.
macro_rules! about {
    ($plain:expr, $handle:expr, $call:ident($($argument:expr),*)) => {
        async {
            let at = $plain.attached($handle).await?;
            match $plain.driver.$call(&at.id $(, $argument)*).await {
                Err(e) if e.is_task_not_found() => {
                    let at = $plain.attached_anew($handle, at).await?;
                    $plain.driver.$call(&at.id $(, $argument)*).await.map_err(|e| lost(&e))
                }
                answer => answer.map_err(|e| lost(&e)),
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
    /// The task, followed by the running plugin: it is told of it unless it was under this adoption.
    #[expect(clippy::await_holding_invalid_type, reason = "calls that change what the plugin knows of a task exclude all others about it")]
    async fn attached(&self, handle: &RemoteHandle) -> Result<Attached, Answer> {
        let (mut found, id, slot) = opened(handle)?;
        for _ in 0..ATTEMPTS {
            let shares = self.tasks.gate(&id).read_owned().await;
            if let Some(at) = self.tasks.attached(&id, self.driver.generation(), slot.as_ref(), shares) {
                return Ok(at);
            }
            let _alone = self.tasks.gate(&id).write_owned().await;
            let generation = self.driver.generation();
            if self.tasks.follows(&id, generation, slot.as_ref()) {
                continue;
            }
            let before = self.tasks.told(&id, generation);
            // A plugin that knows a task does nothing when it is told of it again: neither does it begin to follow it,
            // nor look at its paths.
            self.make_forget(&id).await?;
            self.tasks.forgotten(&id);
            let place = self.tasks.place_of(slot.as_ref(), before).await;
            if let Some(config) = &mut found.config {
                place.put_into(config);
            }
            self.driver.recover_task(found.clone()).await.map_err(|e| trouble(&e))?;
            self.tasks.follow(&id, &self.driver, generation, place);
        }
        Err(Answer::CouldNotAsk("the driver's plugin or the place of its output changes all the time".to_owned()))
    }

    /// As [`Plain::attached`], after what was attached has turned out to be of no use.
    async fn attached_anew(&self, handle: &RemoteHandle, former: Attached) -> Result<Attached, Answer> {
        self.tasks.renew(&former.id);
        drop(former);
        self.attached(handle).await
    }

    /// The plugin's process forgets the task, whose gate the caller has alone; the instance goes on.
    async fn make_forget(&self, id: &str) -> Result<(), Answer> {
        let told = self.tasks.told(id, self.driver.generation());
        // A plugin that waits for a reader of the task's output hears nothing before there is one.
        let _reads = told.as_ref().map(readers);
        let refuses = |e: &CallError| Answer::CouldNotAsk(format!("the driver does not let go of what it knows of the task: {e}"));
        match self.driver.stop_task(id, DETACH, DETACH_PATIENCE).await {
            Ok(()) => {}
            Err(e) if e.is_task_not_found() => return Ok(()),
            Err(e) if evidence::detaches_all_the_same(&e.to_string()) => {}
            // It may have known the task from a former agent, or not at all.
            Err(e) if told.is_none() && !e.is_plugin_gone() && !e.is_disconnected() => {
                tracing::debug!(task = id, error = %e, "the driver did not let go of a task that it was not told of");
                return Ok(());
            }
            Err(e) => return Err(refuses(&e)),
        }
        match self.driver.destroy_task(id, false).await {
            Ok(_) => Ok(()),
            // Its watch has ended by an error: then it takes a task for running. It is detached, so that nothing but
            // its own note goes.
            Err(CallError::Failed { .. }) => self.driver.destroy_task(id, true).await.map(drop).map_err(|e| refuses(&e)),
            Err(e) => Err(refuses(&e)),
        }
    }

    #[expect(clippy::await_holding_invalid_type, reason = "calls that change what the plugin knows of a task exclude all others about it")]
    pub(crate) async fn start(&self, slot: &SlotKey, mut config: TaskConfig, bundle: &Bundle) -> Answer {
        if !bundle.files.is_empty() {
            return Answer::WrongRequest(
                "the driver knows the plain driver protocol only, which carries no files: the job must not have artifacts, templates or a payload"
                    .to_owned(),
            );
        }
        let _alone = self.tasks.gate(&config.id).write_owned().await;
        let place = self.tasks.place_of(Some(slot), None).await;
        place.put_into(&mut config);
        // Drivers that store output by themselves would store it where nobody looks for it.
        config.drover_log = None;
        let (id, generation) = (config.id.clone(), self.driver.generation());
        match self.driver.start_task(config).await {
            Ok(started) => {
                self.tasks.follow(&id, &self.driver, generation, place);
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
        let at = match self.attached(handle).await {
            Ok(at) => at,
            Err(answer) => return answer,
        };
        match self.driver.inspect_task(&at.id).await {
            Ok(seen) => self.seen(handle, &at, seen).await,
            Err(e) if e.is_task_not_found() => match self.attached_anew(handle, at).await {
                Ok(at) => self.look_at(handle, &at).await,
                Err(answer) => answer,
            },
            Err(e) => lost(&e),
        }
    }

    async fn look_at(&self, handle: &RemoteHandle, at: &Attached) -> Answer {
        match self.driver.inspect_task(&at.id).await {
            Ok(seen) => self.seen(handle, at, seen).await,
            Err(e) => lost(&e),
        }
    }

    /// What the driver's word about a task means, beside what its WaitTask has answered.
    async fn seen(&self, handle: &RemoteHandle, at: &Attached, seen: Inspection) -> Answer {
        let exited = |exit: TaskExit, reason: &str| Observed::Exited {
            code: exit.exit_code,
            signal: exit.signal,
            oom_killed: exit.oom_killed,
            reason: reason.into(),
            at: Some(nanos(seen.completed_at)).filter(|at| *at > 0).unwrap_or_else(now_ns),
        };
        let observed = match (seen.status, at.ended()) {
            (TaskStatus::Exited, ended) => {
                let exit = match ended {
                    Some(exit) => exit,
                    // How it ended: it is over, so this does not wait.
                    None => match tokio::time::timeout(END_PATIENCE, self.driver.wait_task(&at.id)).await {
                        Ok(Ok(exit)) => exit,
                        Ok(Err(e)) => return lost(&e),
                        Err(_) => return Answer::CouldNotAsk("the driver says that the task has ended, but not how".to_owned()),
                    },
                };
                match exit.error.as_deref() {
                    None => exited(exit, ""),
                    Some(why) if evidence::says_gone(why) => return Answer::Absent,
                    // Such drivers call it an end when they could not ask. It is asked anew, from the beginning.
                    Some(why) => {
                        let why = why.to_owned();
                        self.tasks.doubt(&at.id);
                        return Answer::CouldNotAsk(why);
                    }
                }
            }
            // Its watch is over, and it has not noted an end: the task has ended, or could not be asked about. Which of
            // both may stand in what it writes.
            (TaskStatus::Running | TaskStatus::Unknown, Some(exit)) => {
                let instance = seen.attributes.get(INSTANCE).cloned().unwrap_or_default();
                match self.seen_ended(at, instance).await {
                    Some(status) => exited(exit, &format!("its driver has seen it {status}")),
                    None => {
                        self.tasks.doubt(&at.id);
                        let why = exit.error.map_or_else(String::new, |why| format!(": {why}"));
                        return Answer::CouldNotAsk(format!(
                            "the driver has stopped watching the task and has not seen its end{why}; it begins anew"
                        ));
                    }
                }
            }
            (TaskStatus::Running, None) if at.doubted() => {
                return Answer::CouldNotAsk("the driver has begun anew to watch the task and has not told anything of it yet".to_owned());
            }
            (TaskStatus::Running, None) => Observed::Running,
            (TaskStatus::Unknown, None) => return Answer::CouldNotAsk("the driver cannot say whether the task runs".to_owned()),
        };
        let network = seen.network.unwrap_or_default();
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

    /// The final status that the driver says to have seen, in the output of the task. Who reads that may be a moment
    /// behind.
    async fn seen_ended(&self, at: &Attached, instance: String) -> Option<String> {
        let place = Some(at.place.clone()).filter(Place::is_read)?;
        let until = tokio::time::Instant::now() + READING_PATIENCE;
        loop {
            let (place, instance) = (place.clone(), instance.clone());
            let found = tokio::task::spawn_blocking(move || place.seen_ended(&instance)).await.ok()?;
            if found.is_some() || tokio::time::Instant::now() > until {
                return found;
            }
            tokio::time::sleep(READING_PATIENCE / 10).await;
        }
    }

    pub(crate) async fn stop(&self, handle: &RemoteHandle, signal: &str, timeout: GoDuration) -> Answer {
        // A job that names this signal would have its instance forgotten instead of stopped.
        let signal = if signal == DETACH { "" } else { signal };
        let mut at = match self.attached(handle).await {
            Ok(at) => at,
            Err(answer) => return answer,
        };
        // A plugin whose watch is over does nothing when it is told to stop the task: it has no hand in it any more.
        if at.ended().is_some() {
            match self.look_at(handle, &at).await {
                Answer::Instance { sighting, handle } if sighting.observed.ended() => return Answer::Instance { sighting, handle },
                Answer::Absent => return Answer::Absent,
                _ => {}
            }
            at = match self.attached_anew(handle, at).await {
                Ok(at) => at,
                Err(answer) => return answer,
            };
        }
        let mut told = self.driver.stop_task(&at.id, signal, timeout.to_std()).await;
        if told.as_ref().is_err_and(CallError::is_task_not_found) {
            at = match self.attached_anew(handle, at).await {
                Ok(at) => at,
                Err(answer) => return answer,
            };
            told = self.driver.stop_task(&at.id, signal, timeout.to_std()).await;
        }
        if let Err(e) = told {
            return lost(&e);
        }
        match self.look_at(handle, &at).await {
            Answer::Instance { sighting, .. } if !sighting.observed.ended() => {
                self.tasks.renew(&at.id);
                Answer::CouldNotAsk("the driver has stopped the task but still says that it runs; it is told of the task anew".to_owned())
            }
            answer => answer,
        }
    }

    /// The end of the task is stored. A driver that has not noted it is made to forget the task like one that is let
    /// go.
    #[expect(clippy::await_holding_invalid_type, reason = "calls that change what the plugin knows of a task exclude all others about it")]
    pub(crate) async fn forget(&self, handle: &RemoteHandle) -> Answer {
        let destroyed = about!(self, handle, destroy_task(false)).await;
        let Ok((_, id, _)) = opened(handle) else { return Answer::Absent };
        match destroyed {
            Ok(_) => {}
            Err(Answer::Absent) => return Answer::Absent,
            Err(answer) => {
                let runs = self.driver.inspect_task(&id).await.is_ok_and(|seen| seen.status == TaskStatus::Running);
                let _alone = self.tasks.gate(&id).write_owned().await;
                if !runs || self.make_forget(&id).await.is_err() {
                    return answer;
                }
            }
        }
        self.tasks.forgotten(&id);
        self.tasks.prune(&id);
        Answer::Absent
    }

    /// The order for the task is another one: it is adopted anew, whatever the plugin has of it.
    pub(crate) fn adopt_anew(tasks: &PlainTasks, handle: &RemoteHandle) {
        if let Ok((_, id, _)) = opened(handle) {
            tasks.renew(&id);
        }
    }

    /// The plugin need not know the task any more; the instance goes on. Whatever it answers, nothing is lost.
    #[expect(clippy::await_holding_invalid_type, reason = "calls that change what the plugin knows of a task exclude all others about it")]
    pub(crate) async fn let_go(&self, handle: &RemoteHandle) {
        let Ok((_, id, _)) = opened(handle) else { return };
        let alone = self.tasks.gate(&id).write_owned().await;
        // A process that has never heard of it has nothing to let go.
        if self.tasks.told(&id, self.driver.generation()).is_none() {
            return;
        }
        match self.make_forget(&id).await {
            Ok(()) => self.tasks.forgotten(&id),
            // Before it is asked again it has to let go.
            Err(answer) => {
                tracing::debug!(task = id, why = why(answer), "the driver did not let go of a task");
                self.tasks.renew(&id);
            }
        }
        drop(alone);
        self.tasks.prune(&id);
    }

    pub(crate) async fn signal(&self, handle: &RemoteHandle, signal: &str) -> Result<(), String> {
        about!(self, handle, signal_task(signal)).await.map_err(why)
    }

    pub(crate) async fn stats(&self, handle: &RemoteHandle) -> Option<TaskStats> {
        let at = self.attached(handle).await.ok()?;
        self.driver.stats(&at.id, Duration::from_secs(1)).ok()?.next().await?.ok()
    }

    pub(crate) async fn exec(&self, handle: &RemoteHandle, command: Vec<String>, tty: bool) -> Result<ExecSession, String> {
        let at = self.attached(handle).await.map_err(why)?;
        self.driver.exec_streaming(&at.id, command, tty).map_err(|e| e.to_string())
    }
}

fn why(answer: Answer) -> String {
    match answer {
        Answer::Absent => "the driver does not know the task any more".to_owned(),
        Answer::CouldNotAsk(why) | Answer::NotSent(why) | Answer::WrongRequest(why) => why,
        Answer::Instance { .. } | Answer::Intent(_) | Answer::StaleEpoch { .. } => "the driver did not answer".to_owned(),
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
}
