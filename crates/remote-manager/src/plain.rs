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
//! Such a driver cannot search by key. After a create with a lost answer, the slot is held until a person decides. The
//! driver also does not fence stale epochs. The guarantee of the task shows both.

use std::{
    fs::{self, File},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use driver_host::{
    Bundle, CallError, Driver, ExecSession, Inspection, TaskConfig, TaskExit, TaskHandle, TaskStatus,
    handle_from_bytes, handle_to_bytes, proto::driver::TaskStats,
};
use host::clock::now_ns;
use lifecycle::remote::node::{Answer, Sighting};
use model::{GoDuration, Observed, SlotKey, TimestampNs, remote::RemoteHandle};

use crate::{
    attached::{Attached, NOWHERE, Place, PlainTasks},
    evidence,
    wire::bounded,
};

/// Layout version of a handle of the plain protocol: the driver's own message, without fields that do not help to find
/// the instance again.
const SCHEMA: u32 = 0;
/// The signal that makes a driver let go of a task without a stop.
const DETACH: &str = driver_host::DETACH_SIGNAL;
/// How long the driver may take to report how an ended task ended.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long the driver may take to let a task go.
const DETACH_PATIENCE: Duration = Duration::from_secs(5);
/// The attribute by which drivers name an instance in their output.
const INSTANCE: &str = "arn";
/// How far the reader of a driver's output may lag.
const READING_PATIENCE: Duration = Duration::from_millis(500);
/// How often one call makes a plugin adopt its task: the plugin's process, or the target of the output, may change
/// meanwhile.
const ATTEMPTS: usize = 4;

/// The field in which a handle names its slot. The driver never sees it.
const SLOT: &str = "drover.slot";

/// The part of a task's configuration that finds it again. Environment and driver configuration stay here: both may
/// hold secrets.
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
    RemoteHandle { schema: SCHEMA, data: handle_to_bytes(&TaskHandle { config, ..started }).into() }
}

/// A task's handle in its driver's form, its id, and its slot, which handles of older agents do not name.
type Opened = (TaskHandle, String, Option<SlotKey>);

fn opened(handle: &RemoteHandle) -> Result<Opened, Answer> {
    let found = (handle.schema == SCHEMA).then(|| handle_from_bytes(&handle.data)).flatten();
    let id = found.as_ref().and_then(|h| h.config.as_ref()).map(|c| c.id.clone()).filter(|id| !id.is_empty());
    match (found, id) {
        (Some(mut handle), Some(id)) => {
            let mut slot = None;
            if let Some(config) = &mut handle.config {
                slot = config.env.remove(SLOT).and_then(|slot| slot.parse().ok());
                // Drivers written in Go dereference these without a check.
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

/// The meaning of RecoverTask's error. *Task not found* says that there is no such task; every other error says
/// nothing.
fn trouble(error: &CallError) -> Answer {
    if error.is_task_not_found() { Answer::Absent } else { Answer::CouldNotAsk(error.to_string()) }
}

/// The meaning of any other call's error. A plugin that has just adopted a task and does not know it says nothing about
/// the instance: the plugin may have died in between.
fn lost(error: &CallError) -> Answer {
    Answer::CouldNotAsk(error.to_string())
}

/// Opens the FIFOs that a plugin writes to, so that a plugin that waits for a reader continues. Reads nothing.
fn readers(place: &Place) -> Vec<File> {
    let fifo = |path: &&str| fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo());
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let open = |path: &str| File::options().read(true).custom_flags(nonblocking).open(path).ok();
    place.paths().into_iter().filter(fifo).filter_map(open).collect()
}

fn nanos(at: Option<SystemTime>) -> TimestampNs {
    at.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).and_then(|d| i64::try_from(d.as_nanos()).ok()).unwrap_or(0)
}

/// A call about a task. A plugin that has lost the task adopts it once more.
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
    /// The task, followed by the running plugin. The plugin adopts it first, unless it has done so under this order.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "calls that change what the plugin knows of a task exclude all others about it"
    )]
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
            // RecoverTask of a known task does nothing: the plugin neither begins to follow it nor looks at its paths.
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

    /// As [`Plain::attached`], after the former attachment has proved useless.
    async fn attached_anew(&self, handle: &RemoteHandle, former: Attached) -> Result<Attached, Answer> {
        self.tasks.renew(&former.id);
        drop(former);
        self.attached(handle).await
    }

    /// Makes the plugin's process forget the task, whose gate the caller holds exclusively. The instance continues.
    async fn make_forget(&self, id: &str) -> Result<(), Answer> {
        let told = self.tasks.told(id, self.driver.generation());
        // A plugin that waits for a reader of the task's output is deaf until it has one.
        let _reads = told.as_ref().map(readers);
        let refuses = |e: &CallError| {
            Answer::CouldNotAsk(format!("the driver does not let go of what it knows of the task: {e}"))
        };
        match self.driver.stop_task(id, DETACH, DETACH_PATIENCE).await {
            Ok(()) => {}
            Err(e) if e.is_task_not_found() => return Ok(()),
            Err(e) if evidence::detaches_all_the_same(&e.to_string()) => {}
            // The plugin may know the task from a former agent, or not at all.
            Err(e) if told.is_none() && !e.is_plugin_gone() && !e.is_disconnected() => {
                tracing::debug!(task = id, error = %e, "the driver did not let go of a task that it was not told of");
                return Ok(());
            }
            Err(e) => return Err(refuses(&e)),
        }
        match self.driver.destroy_task(id, false).await {
            Ok(_) => Ok(()),
            // Its watch has ended with an error, so the plugin takes the task for running. The task is detached, so
            // this deletes only the plugin's record.
            Err(CallError::Failed { .. }) => {
                self.driver.destroy_task(id, true).await.map(drop).map_err(|e| refuses(&e))
            }
            Err(e) => Err(refuses(&e)),
        }
    }

    #[expect(
        clippy::await_holding_invalid_type,
        reason = "calls that change what the plugin knows of a task exclude all others about it"
    )]
    pub(crate) async fn start(&self, slot: &SlotKey, mut config: TaskConfig, bundle: &Bundle) -> Answer {
        if !bundle.files.is_empty() {
            return Answer::WrongRequest(
                "the driver knows the plain driver protocol only, which carries no files: the job must not have \
                    artifacts, templates or a payload"
                    .to_owned(),
            );
        }
        let _alone = self.tasks.gate(&config.id).write_owned().await;
        let place = self.tasks.place_of(Some(slot), None).await;
        place.put_into(&mut config);
        // A driver that stores output itself would store it where nobody looks.
        config.drover_log = None;
        let (id, generation) = (config.id.clone(), self.driver.generation());
        match self.driver.start_task(config).await {
            Ok(started) => {
                self.tasks.follow(&id, &self.driver, generation, place);
                let network = started.network.unwrap_or_default();
                bounded(
                    kept(started.handle, slot),
                    Sighting {
                        observed: Observed::Creating,
                        address: network.address,
                        port_map: network.port_map,
                        ..Sighting::default()
                    },
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

    /// The meaning of a driver's inspection, together with the answer of its WaitTask.
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
                    // How it ended: the task is over, so the answer comes at once.
                    None => match tokio::time::timeout(END_PATIENCE, self.driver.wait_task(&at.id)).await {
                        Ok(Ok(exit)) => exit,
                        Ok(Err(e)) => return lost(&e),
                        Err(_) => {
                            return Answer::CouldNotAsk(
                                "the driver says that the task has ended, but not how".to_owned(),
                            );
                        }
                    },
                };
                match exit.error.as_deref() {
                    None => exited(exit, ""),
                    Some(why) if evidence::says_gone(why) => return Answer::Absent,
                    // Such drivers report an end when they could not ask. Adopt the task anew.
                    Some(why) => {
                        let why = why.to_owned();
                        self.tasks.doubt(&at.id);
                        return Answer::CouldNotAsk(why);
                    }
                }
            }
            // The watch is over without a recorded end: the task has ended, or the driver could not ask. Its output may
            // tell which.
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
                return Answer::CouldNotAsk(
                    "the driver has begun anew to watch the task and has not told anything of it yet".to_owned(),
                );
            }
            (TaskStatus::Running, None) => Observed::Running,
            (TaskStatus::Unknown, None) => {
                return Answer::CouldNotAsk("the driver cannot say whether the task runs".to_owned());
            }
        };
        let network = seen.network.unwrap_or_default();
        let sighting = Sighting {
            observed,
            provider_id: String::new(),
            attributes: seen.attributes.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            address: network.address,
            port_map: network.port_map,
            started_at: nanos(seen.started_at),
            waiting: String::new(),
        };
        Answer::Instance { handle: handle.clone(), sighting: Box::new(sighting) }
    }

    /// The final status that the driver has written to the task's output. The reader of the output may lag a moment.
    async fn seen_ended(&self, at: &Attached, instance: String) -> Option<String> {
        let place = Some(at.place.clone()).filter(Place::is_read)?;
        let until = tokio::time::Instant::now() + READING_PATIENCE;
        loop {
            let (place, instance) = (place.clone(), instance.clone());
            let found = blocking::spawn(move || place.seen_ended(&instance)).await.ok()?;
            if found.is_some() || tokio::time::Instant::now() > until {
                return found;
            }
            tokio::time::sleep(READING_PATIENCE / 10).await;
        }
    }

    pub(crate) async fn stop(&self, handle: &RemoteHandle, signal: &str, timeout: GoDuration) -> Answer {
        // A job that names this signal would make the driver forget its instance instead of stopping it.
        let signal = if signal == DETACH { "" } else { signal };
        let mut at = match self.attached(handle).await {
            Ok(at) => at,
            Err(answer) => return answer,
        };
        // A plugin whose watch is over ignores a stop of the task.
        if at.ended().is_some() {
            match self.look_at(handle, &at).await {
                Answer::Instance { sighting, handle } if sighting.observed.ended() => {
                    return Answer::Instance { sighting, handle };
                }
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
                Answer::CouldNotAsk(
                    "the driver has stopped the task but still says that it runs; it is told of the task anew"
                        .to_owned(),
                )
            }
            answer => answer,
        }
    }

    /// The end of the task is stored. Makes the plugin forget it: by DestroyTask, or as if it were let go if the plugin
    /// has not recorded the end.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "calls that change what the plugin knows of a task exclude all others about it"
    )]
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

    /// The task's order has changed: the task is adopted anew, whatever the plugin knows of it.
    pub(crate) fn adopt_anew(tasks: &PlainTasks, handle: &RemoteHandle) {
        if let Ok((_, id, _)) = opened(handle) {
            tasks.renew(&id);
        }
    }

    /// Lets the plugin forget the task; the instance continues. The answer does not matter.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "calls that change what the plugin knows of a task exclude all others about it"
    )]
    pub(crate) async fn let_go(&self, handle: &RemoteHandle) {
        let Ok((_, id, _)) = opened(handle) else { return };
        let alone = self.tasks.gate(&id).write_owned().await;
        // A process that has never known the task has nothing to let go.
        if self.tasks.told(&id, self.driver.generation()).is_none() {
            return;
        }
        match self.make_forget(&id).await {
            Ok(()) => self.tasks.forgotten(&id),
            // The plugin must let go before the next call.
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

    pub(crate) async fn exec(
        &self,
        handle: &RemoteHandle,
        command: Vec<String>,
        tty: bool,
    ) -> Result<ExecSession, String> {
        let at = self.attached(handle).await.map_err(why)?;
        self.driver.exec_streaming(&at.id, command, tty).map_err(|e| e.to_string())
    }
}

fn why(answer: Answer) -> String {
    match answer {
        Answer::Absent => "the driver does not know the task any more".to_owned(),
        Answer::CouldNotAsk(why) | Answer::NotSent(why) | Answer::WrongRequest(why) => why,
        Answer::Instance { .. } | Answer::Intent(_) | Answer::StaleEpoch { .. } => {
            "the driver did not answer".to_owned()
        }
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
        let handle =
            kept(TaskHandle { config: Some(config), driver_state: b"state".to_vec(), ..TaskHandle::default() }, &slot);
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
