//! Calls to one driver, whichever process serves it at the moment.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use driver_proto::driver::driver_client::DriverClient;
use driver_proto::driver::*;
use driver_proto::hclspec::Spec;
use driver_proto::{build, errors};
use hcl_lang::hclspec::Checked;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::config::{self, ConfigError, Variables};
use crate::error::{CallError, broken_connection};
use crate::options::Timing;
use crate::session::{self, Session};
use crate::turns::{Turn, Turns};
use crate::types::{Capabilities, ExecResult, Inspection, Started, TaskExit};

/// What the process of a plugin does at the moment.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// Not there, and why; `again`: it is started again by itself.
    Down { why: Arc<str>, again: bool },
    /// Takes calls.
    Ready(Arc<Session>),
}

/// What all handles to one driver share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) driver: String,
    pub(crate) timing: Timing,
    pub(crate) phase: watch::Sender<Phase>,
    /// The newest answers; a driver that is down still has a schema.
    pub(crate) facts: watch::Sender<Option<Facts>>,
    /// Starts, and recoveries: a start may take long, and none of them waits for a recovery.
    pub(crate) starts: Arc<Turns>,
    pub(crate) recoveries: Arc<Turns>,
}

/// Constant answers of a driver.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) capabilities: Capabilities,
    pub(crate) task_schema: Arc<Spec>,
    pub(crate) checked: Arc<Result<Checked, ConfigError>>,
    pub(crate) remote: bool,
    pub(crate) generation: u64,
}

/// A driver. Cheap to clone; stays valid over restarts of its plugin.
///
/// Every call has a deadline and its own stream: a stuck one delays no other. When the plugin process ends during a call
/// the answer is [`CallError::PluginGone`]; then [`Driver::wait_ready`] and [`Driver::recover_task`] for each task.
#[derive(Debug, Clone)]
pub struct Driver {
    pub(crate) shared: Arc<Shared>,
}

impl Driver {
    /// The driver name that jobs use.
    pub fn name(&self) -> &str {
        &self.shared.driver
    }

    /// Counts the processes that have served this driver, 0 before the first. Tasks recovered (or started) under an
    /// older generation must be recovered again.
    pub fn generation(&self) -> u64 {
        self.shared.facts.borrow().as_ref().map_or(0, |facts| facts.generation)
    }

    /// Whether calls can be made now.
    pub fn is_ready(&self) -> bool {
        matches!(*self.shared.phase.borrow(), Phase::Ready(_))
    }

    /// Why no calls can be made now; `None` when they can.
    pub fn unavailable(&self) -> Option<String> {
        match &*self.shared.phase.borrow() {
            Phase::Ready(_) => None,
            Phase::Down { why, .. } => Some(why.to_string()),
        }
    }

    /// Whether calls can be made now, or the host starts the plugin again by itself.
    pub fn comes_back(&self) -> bool {
        matches!(*self.shared.phase.borrow(), Phase::Ready(_) | Phase::Down { again: true, .. })
    }

    /// Waits until a process with a generation above `newer_than` takes calls; 0 for any. For ever, if none comes.
    pub async fn wait_ready(&self, newer_than: u64) -> u64 {
        let mut phases = self.shared.phase.subscribe();
        loop {
            if let Phase::Ready(session) = &*phases.borrow_and_update()
                && session.generation > newer_than
            {
                return session.generation;
            }
            if phases.changed().await.is_err() {
                // The sender lives as long as this handle, so this is never reached; waiting is what was promised.
                return std::future::pending().await;
            }
        }
    }

    /// What the driver offers; `None` before its plugin has run once.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.shared.facts.borrow().as_ref().map(|facts| facts.capabilities.clone())
    }

    /// The schema of a task's `config`; `None` before its plugin has run once.
    pub fn task_config_schema(&self) -> Option<Arc<Spec>> {
        self.shared.facts.borrow().as_ref().map(|facts| facts.task_schema.clone())
    }

    /// The same as a document that [`hcl_lang::hclspec::Spec::from_document`] reads.
    pub fn task_config_document(&self) -> Option<serde_json::Value> {
        self.task_config_schema().map(|schema| config::convert(&schema).to_document())
    }

    /// Evaluates a task's `config` (the JSON of the job) to the bytes of `TaskConfig.msgpack_driver_config`.
    pub fn encode_task_config(&self, config: &serde_json::Value, variables: &Variables) -> Result<Vec<u8>, ConfigError> {
        let checked = self.shared.facts.borrow().as_ref().map(|facts| facts.checked.clone());
        let checked = checked.ok_or_else(|| ConfigError::NoSchema(self.name().to_owned()))?;
        config::encode(checked.as_ref().as_ref().map_err(Clone::clone)?, config, variables)
    }

    pub(crate) fn session(&self) -> Result<Arc<Session>, CallError> {
        match &*self.shared.phase.borrow() {
            // Its supervisor is about to see it: what is not sent now is not cut off.
            Phase::Ready(session) if session.process.exited().is_cancelled() => {
                Err(CallError::NotReady { driver: self.shared.driver.clone(), reason: "the plugin process has just ended".to_owned() })
            }
            Phase::Ready(session) => Ok(session.clone()),
            Phase::Down { why, .. } => Err(CallError::NotReady { driver: self.shared.driver.clone(), reason: why.to_string() }),
        }
    }

    pub(crate) fn gone(&self, call: &'static str, session: &Session) -> CallError {
        CallError::PluginGone { driver: self.shared.driver.clone(), call, generation: session.generation }
    }

    /// Runs a call against the present process; tells a broken connection from an answer.
    pub(crate) async fn attempt<T>(
        &self,
        call: &'static str,
        limit: Option<Duration>,
        session: &Session,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Result<T, Status>, CallError> {
        let bounded = async {
            match limit {
                Some(limit) => {
                    timeout(limit, answer).await.map_err(|_| CallError::Timeout { driver: self.shared.driver.clone(), call, after: limit })
                }
                None => Ok(answer.await),
            }
        };
        let answer = tokio::select! {
            answer = bounded => answer?,
            () = session.process.exited().cancelled() => return Err(self.gone(call, session)),
        };
        if let Err(status) = &answer
            && broken_connection(status)
            // The connection breaks a moment before the death of the process shows.
            && session.process.ended_within(self.shared.timing.death_race).await
        {
            return Err(self.gone(call, session));
        }
        Ok(answer.map(Response::into_inner))
    }

    /// What the failure of a stream means: the death of the process, or an answer.
    pub(crate) async fn stream_error(&self, call: &'static str, task: &str, session: &Session, status: Status) -> CallError {
        if broken_connection(&status) && session.process.ended_within(self.shared.timing.death_race).await {
            return self.gone(call, session);
        }
        CallError::from_status(&self.shared.driver, call, task, &status)
    }

    async fn call<T, F>(
        &self,
        call: &'static str,
        limit: Option<Duration>,
        task: &str,
        run: impl FnOnce(DriverClient<Channel>) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let session = self.session()?;
        let answer = self.attempt(call, limit, &session, run(session.driver_client())).await?;
        answer.map_err(|status| CallError::from_status(&self.shared.driver, call, task, &status))
    }

    /// Waits for leave to start a task. A plugin has a bounded number of starts in hand; the others wait in a line, and
    /// fewer are sent after it has fallen over. `alone`: if those in hand end in time, none but this one is in hand,
    /// for some time at least; [`Turn::was_alone`] says it. Dropping the future leaves the line.
    pub async fn turn(&self, alone: bool) -> Turn {
        self.shared.starts.take(alone).await
    }

    /// Starts a task when it is its turn.
    ///
    /// # Errors
    /// As [`Driver::start_task_in`].
    pub async fn start_task(&self, config: TaskConfig) -> Result<Started, CallError> {
        let turn = self.turn(false).await;
        self.start_task_in(&turn, config).await
    }

    /// Starts a task. After [`CallError::PluginGone`], [`CallError::Disconnected`] or [`CallError::Timeout`] it may
    /// have been started: destroy it before another attempt. After the last two the process may still be at it: end
    /// that first, by [`Driver::end_process_of`]. [`CallError::recoverable`] says whether the restart policy applies.
    pub async fn start_task_in(&self, turn: &Turn, mut config: TaskConfig) -> Result<Started, CallError> {
        build::fill_resources(&mut config);
        let request = StartTaskRequest { task: Some(config.clone()) };
        let (limit, id) = (self.shared.timing.start_task, config.id.clone());
        let session = self.session()?;
        let _ = turn.sent_to.set(session.clone());
        let mut client = session.driver_client();
        let answer = {
            let mut call = pin!(self.attempt("StartTask", Some(limit), &session, client.start_task(request)));
            tokio::select! {
                answer = &mut call => answer,
                () = turn.shared() => call.await,
            }
        };
        let answer =
            answer.and_then(|answer| answer.map_err(|status| CallError::from_status(&self.shared.driver, "StartTask", &id, &status)));
        if matches!(answer, Err(CallError::PluginGone { .. } | CallError::Disconnected { .. })) {
            turn.fell();
        }
        let answer = answer?;
        let mut handle = answer.handle.unwrap_or_default();
        handle.version = handle.version.max(1);
        handle.set_state(TaskState::Running);
        // What was asked, not what was echoed: recovery needs it complete.
        handle.config = Some(config);
        Ok(Started { handle, network: answer.network_override.map(Into::into) })
    }

    /// Ends the plugin process that was sent the start of this turn, and with it what the process may still do of the
    /// start. Tasks run on; another process is brought up by itself, with a generation above the one that is answered.
    /// An error when the process could not be ended.
    pub async fn end_process_of(&self, turn: &Turn) -> Result<u64, String> {
        let Some(session) = turn.sent_to.get() else { return Ok(0) };
        session::stop(None, &session.process, self.shared.timing.stop_grace).await;
        if session.process.exited().is_cancelled() {
            return Ok(session.generation);
        }
        Err(format!(
            "the plugin of driver {:?} (pid {}) resists SIGKILL, and may still start the task",
            self.shared.driver, session.process.pid
        ))
    }

    /// Makes a new process of the plugin (or a new agent) know a task again. Success means that waiting works.
    pub async fn recover_task(&self, handle: TaskHandle) -> Result<(), CallError> {
        let task_id = handle.config.as_ref().map(|config| config.id.clone()).unwrap_or_default();
        let request = RecoverTaskRequest { task_id: task_id.clone(), handle: Some(handle) };
        let limit = self.shared.timing.task_call;
        let turn = self.shared.recoveries.take(false).await;
        let answer = self.call("RecoverTask", Some(limit), &task_id, |mut client| async move { client.recover_task(request).await }).await;
        if matches!(answer, Err(CallError::PluginGone { .. } | CallError::Disconnected { .. })) {
            turn.fell();
        }
        answer.map(drop)
    }

    /// Waits for the end of a task, without a deadline; ends with [`CallError::PluginGone`] when the plugin does.
    pub async fn wait_task(&self, id: &str) -> Result<TaskExit, CallError> {
        let request = WaitTaskRequest { task_id: id.to_owned() };
        let answer = self.call("WaitTask", None, id, |mut client| async move { client.wait_task(request).await }).await?;
        let error = (!answer.err.is_empty()).then(|| crate::error::bounded(&answer.err));
        match (answer.result, error) {
            // Some drivers report the loss of a task as an error in the answer.
            (_, Some(text)) if text.contains(errors::TASK_NOT_FOUND) => {
                Err(CallError::TaskNotFound { driver: self.shared.driver.clone(), task: id.to_owned() })
            }
            (Some(result), error) => Ok(TaskExit { error, ..result.into() }),
            (None, Some(error)) => Ok(TaskExit { exit_code: -1, error: Some(error), ..TaskExit::default() }),
            (None, None) => Err(CallError::BadAnswer { driver: self.shared.driver.clone(), call: "WaitTask", missing: "a result" }),
        }
    }

    /// Sends the signal (empty: the driver's default), waits, kills; answers after the task's death.
    pub async fn stop_task(&self, id: &str, signal: &str, timeout: Duration) -> Result<(), CallError> {
        let request = StopTaskRequest { task_id: id.to_owned(), timeout: Some(build::duration(timeout)), signal: signal.to_owned() };
        let limit = timeout.saturating_add(self.shared.timing.task_call);
        self.call("StopTask", Some(limit), id, |mut client| async move { client.stop_task(request).await }).await?;
        Ok(())
    }

    /// Frees what a task holds. A driver that does not know the task has nothing to free: that is success, told by `false`.
    pub async fn destroy_task(&self, id: &str, force: bool) -> Result<bool, CallError> {
        let request = DestroyTaskRequest { task_id: id.to_owned(), force };
        let limit = self.shared.timing.task_call;
        match self.call("DestroyTask", Some(limit), id, |mut client| async move { client.destroy_task(request).await }).await {
            Ok(_) => Ok(true),
            Err(CallError::TaskNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Asks for the state of a task.
    pub async fn inspect_task(&self, id: &str) -> Result<Inspection, CallError> {
        let request = InspectTaskRequest { task_id: id.to_owned() };
        let limit = self.shared.timing.short_call;
        let answer = self.call("InspectTask", Some(limit), id, |mut client| async move { client.inspect_task(request).await }).await?;
        Ok(answer.into())
    }

    /// Sends a signal such as `SIGHUP`.
    pub async fn signal_task(&self, id: &str, signal: &str) -> Result<(), CallError> {
        let request = SignalTaskRequest { task_id: id.to_owned(), signal: signal.to_owned() };
        let limit = self.shared.timing.short_call;
        self.call("SignalTask", Some(limit), id, |mut client| async move { client.signal_task(request).await }).await?;
        Ok(())
    }

    /// Runs a command beside a task and returns its output.
    pub async fn exec_task(&self, id: &str, command: Vec<String>, timeout: Duration) -> Result<ExecResult, CallError> {
        let request = ExecTaskRequest { task_id: id.to_owned(), command, timeout: Some(build::duration(timeout)) };
        let limit = timeout.saturating_add(self.shared.timing.short_call);
        let answer = self.call("ExecTask", Some(limit), id, |mut client| async move { client.exec_task(request).await }).await?;
        let result = answer.result.ok_or_else(|| CallError::BadAnswer {
            driver: self.shared.driver.clone(),
            call: "ExecTask",
            missing: "a result",
        })?;
        Ok(ExecResult { stdout: answer.stdout, stderr: answer.stderr, exit: result.into() })
    }

    /// Samples of resource use, the first one at once. Ends with an error or when the plugin ends; dropping it cancels.
    pub fn stats(&self, id: &str, interval: Duration) -> Result<StatsStream, CallError> {
        let session = self.session()?;
        let (out, samples) = mpsc::channel(1);
        let request = TaskStatsRequest { task_id: id.to_owned(), collection_interval: Some(build::duration(interval)) };
        let (driver, id) = (self.clone(), id.to_owned());
        // Servers written in Go send headers with the first sample, so opening the stream may take for ever.
        tokio::spawn(async move {
            let pump = async {
                let failed = |status: Status| driver.stream_error("TaskStats", &id, &session, status);
                let mut stream = match session.driver_client().task_stats(request).await {
                    Ok(stream) => stream.into_inner(),
                    Err(status) => return Some(failed(status).await),
                };
                loop {
                    match stream.message().await {
                        // Without the sample there is nothing to show; the next one may be whole.
                        Ok(Some(TaskStatsResponse { stats: None })) => {}
                        Ok(Some(TaskStatsResponse { stats: Some(stats) })) => {
                            if out.send(Ok(stats)).await.is_err() {
                                return None;
                            }
                        }
                        Ok(None) => return None,
                        Err(status) => return Some(failed(status).await),
                    }
                }
            };
            let error = tokio::select! {
                error = pump => error,
                () = session.process.exited().cancelled() => Some(driver.gone("TaskStats", &session)),
                () = out.closed() => None,
            };
            if let Some(error) = error {
                let _ = out.send(Err(error)).await;
            }
        });
        Ok(StatsStream { samples })
    }

    /// Creates the network of an allocation; the flag says whether it is new.
    pub async fn create_network(&self, alloc_id: &str, hostname: &str) -> Result<(Option<NetworkIsolationSpec>, bool), CallError> {
        let request = CreateNetworkRequest { alloc_id: alloc_id.to_owned(), hostname: hostname.to_owned() };
        let limit = self.shared.timing.task_call;
        let answer =
            self.call("CreateNetwork", Some(limit), alloc_id, |mut client| async move { client.create_network(request).await }).await?;
        Ok((answer.isolation_spec, answer.created))
    }

    /// Removes the network of an allocation.
    pub async fn destroy_network(&self, alloc_id: &str, spec: Option<NetworkIsolationSpec>) -> Result<(), CallError> {
        let request = DestroyNetworkRequest { alloc_id: alloc_id.to_owned(), isolation_spec: spec };
        let limit = self.shared.timing.task_call;
        self.call("DestroyNetwork", Some(limit), alloc_id, |mut client| async move { client.destroy_network(request).await }).await?;
        Ok(())
    }
}

/// Samples of a task's resource use.
#[derive(Debug)]
pub struct StatsStream {
    samples: mpsc::Receiver<Result<TaskStats, CallError>>,
}

impl StatsStream {
    /// The next sample; `None` at the end. Reopen after an interval, not at once.
    pub async fn next(&mut self) -> Option<Result<TaskStats, CallError>> {
        self.samples.recv().await
    }
}
