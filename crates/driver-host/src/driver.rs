//! Calls to one driver, whichever process serves it.

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

/// The state of a plugin's process.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// Down, with the reason; `again`: the host restarts it automatically.
    Down { why: Arc<str>, again: bool },
    /// Takes calls.
    Ready(Arc<Session>),
}

/// Shared state of all handles to one driver.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) driver: String,
    pub(crate) timing: Timing,
    pub(crate) phase: watch::Sender<Phase>,
    /// The newest facts; a driver that is down keeps its schema.
    pub(crate) facts: watch::Sender<Option<Facts>>,
    /// Starts and recoveries have separate lines: a start may take long, and none waits for a recovery.
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
/// Every call has a deadline and its own stream: a stuck one delays no other. When the plugin process ends during a
/// call, the answer is [`CallError::PluginGone`]. Then call [`Driver::wait_ready`], and [`Driver::recover_task`] for
/// each task.
#[derive(Debug, Clone)]
pub struct Driver {
    pub(crate) shared: Arc<Shared>,
}

impl Driver {
    /// The driver name that jobs use.
    pub fn name(&self) -> &str {
        &self.shared.driver
    }

    /// Number of processes that have served this driver; 0 before the first. Recover tasks that were recovered (or
    /// started) under an older generation.
    pub fn generation(&self) -> u64 {
        self.shared.facts.borrow().as_ref().map_or(0, |facts| facts.generation)
    }

    /// Whether the driver takes calls now.
    pub fn is_ready(&self) -> bool {
        matches!(*self.shared.phase.borrow(), Phase::Ready(_))
    }

    /// Why the driver takes no calls now; `None` when it does.
    pub fn unavailable(&self) -> Option<String> {
        match &*self.shared.phase.borrow() {
            Phase::Ready(_) => None,
            Phase::Down { why, .. } => Some(why.to_string()),
        }
    }

    /// Whether the driver takes calls now, or the host restarts the plugin automatically.
    pub fn comes_back(&self) -> bool {
        matches!(*self.shared.phase.borrow(), Phase::Ready(_) | Phase::Down { again: true, .. })
    }

    /// Waits until a process with a generation above `newer_than` takes calls; 0 for any. Waits for ever if none comes.
    pub async fn wait_ready(&self, newer_than: u64) -> u64 {
        let mut phases = self.shared.phase.subscribe();
        loop {
            if let Phase::Ready(session) = &*phases.borrow_and_update()
                && session.generation > newer_than
            {
                return session.generation;
            }
            if phases.changed().await.is_err() {
                // Unreachable, because the sender lives as long as this handle; waiting keeps the promise.
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
    ///
    /// # Errors
    /// [`ConfigError::NoSchema`] before the plugin has run once; else as [`crate::encode_config`].
    pub fn encode_task_config(
        &self,
        config: &serde_json::Value,
        variables: &Variables,
    ) -> Result<Vec<u8>, ConfigError> {
        let checked = self.shared.facts.borrow().as_ref().map(|facts| facts.checked.clone());
        let checked = checked.ok_or_else(|| ConfigError::NoSchema(self.name().to_owned()))?;
        config::encode(checked.as_ref().as_ref().map_err(Clone::clone)?, config, variables)
    }

    pub(crate) fn session(&self) -> Result<Arc<Session>, CallError> {
        match &*self.shared.phase.borrow() {
            // Its supervisor is about to notice. A call that was not sent is not cut off.
            Phase::Ready(session) if session.process.exited().is_cancelled() => Err(CallError::NotReady {
                driver: self.shared.driver.clone(),
                reason: "the plugin process has just ended".to_owned(),
            }),
            Phase::Ready(session) => Ok(session.clone()),
            Phase::Down { why, .. } => {
                Err(CallError::NotReady { driver: self.shared.driver.clone(), reason: why.to_string() })
            }
        }
    }

    pub(crate) fn gone(&self, call: &'static str, session: &Session) -> CallError {
        CallError::PluginGone { driver: self.shared.driver.clone(), call, generation: session.generation }
    }

    /// Runs a call on the present process; distinguishes a broken connection from an answer.
    pub(crate) async fn attempt<T>(
        &self,
        call: &'static str,
        limit: Option<Duration>,
        session: &Session,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Result<T, Status>, CallError> {
        let bounded = async {
            match limit {
                Some(limit) => timeout(limit, answer).await.map_err(|_| CallError::Timeout {
                    driver: self.shared.driver.clone(),
                    call,
                    after: limit,
                }),
                None => Ok(answer.await),
            }
        };
        let answer = tokio::select! {
            answer = bounded => answer?,
            () = session.process.exited().cancelled() => return Err(self.gone(call, session)),
        };
        if let Err(status) = &answer
            && broken_connection(status)
            // The connection breaks a moment before the process's death is visible.
            && session.process.ended_within(self.shared.timing.death_race).await
        {
            return Err(self.gone(call, session));
        }
        Ok(answer.map(Response::into_inner))
    }

    /// Whether a stream failed by the death of the process or by an answer.
    pub(crate) async fn stream_error(
        &self,
        call: &'static str,
        task: &str,
        session: &Session,
        status: Status,
    ) -> CallError {
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

    /// Waits for a turn to start a task. A plugin has a bounded number of starts in hand. The others wait in a line,
    /// and after a fall of the plugin fewer are sent. `alone`: no other start is in hand, at least for some time, if
    /// the present ones end in time; see [`Turn::was_alone`]. Cancel safe: a drop leaves the line.
    pub async fn turn(&self, alone: bool) -> Turn {
        self.shared.starts.take(alone).await
    }

    /// Waits for a turn and starts a task.
    ///
    /// # Errors
    /// As [`Driver::start_task_in`].
    pub async fn start_task(&self, config: TaskConfig) -> Result<Started, CallError> {
        let turn = self.turn(false).await;
        self.start_task_in(&turn, config).await
    }

    /// Starts a task. After [`CallError::PluginGone`], [`CallError::Disconnected`] or [`CallError::Timeout`] the task
    /// may have started: destroy it before another attempt. After the last two the process may still be working on the
    /// start: end it first with [`Driver::end_process_of`]. [`CallError::recoverable`] says whether the restart policy
    /// applies.
    ///
    /// # Errors
    /// See [`CallError`]. After [`CallError::NotReady`] and an answer of the driver no task has started.
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
        let answer = answer.and_then(|answer| {
            answer.map_err(|status| CallError::from_status(&self.shared.driver, "StartTask", &id, &status))
        });
        if matches!(answer, Err(CallError::PluginGone { .. } | CallError::Disconnected { .. })) {
            turn.fell();
        }
        let answer = answer?;
        let mut handle = answer.handle.unwrap_or_default();
        handle.version = handle.version.max(1);
        handle.set_state(TaskState::Running);
        // The request's configuration, not the echoed one: recovery needs it complete.
        handle.config = Some(config);
        Ok(Started { handle, network: answer.network_override.map(Into::into) })
    }

    /// Ends the plugin process that received this turn's start, and with it any remaining work on the start. Tasks
    /// continue. The host starts another process automatically, with a generation above the returned one.
    ///
    /// # Errors
    /// When the process could not be ended.
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

    /// Makes a new process of the plugin (or a new agent) adopt a task. Success means that [`Driver::wait_task`] works.
    ///
    /// # Errors
    /// See [`CallError`]. The task may run all the same, except after [`CallError::TaskNotFound`].
    pub async fn recover_task(&self, handle: TaskHandle) -> Result<(), CallError> {
        let task_id = handle.config.as_ref().map(|config| config.id.clone()).unwrap_or_default();
        let request = RecoverTaskRequest { task_id: task_id.clone(), handle: Some(handle) };
        let limit = self.shared.timing.task_call;
        let turn = self.shared.recoveries.take(false).await;
        let answer = self
            .call("RecoverTask", Some(limit), &task_id, |mut client| async move { client.recover_task(request).await })
            .await;
        if matches!(answer, Err(CallError::PluginGone { .. } | CallError::Disconnected { .. })) {
            turn.fell();
        }
        answer.map(drop)
    }

    /// Waits for the end of a task, without a deadline; ends with [`CallError::PluginGone`] when the plugin does.
    ///
    /// # Errors
    /// See [`CallError`]. None of them says that the task has ended, except [`CallError::TaskNotFound`].
    pub async fn wait_task(&self, id: &str) -> Result<TaskExit, CallError> {
        let request = WaitTaskRequest { task_id: id.to_owned() };
        let answer =
            self.call("WaitTask", None, id, |mut client| async move { client.wait_task(request).await }).await?;
        let error = (!answer.err.is_empty()).then(|| crate::error::bounded(&answer.err));
        match (answer.result, error) {
            // Some drivers report a lost task as an error in the answer.
            (_, Some(text)) if text.contains(errors::TASK_NOT_FOUND) => {
                Err(CallError::TaskNotFound { driver: self.shared.driver.clone(), task: id.to_owned() })
            }
            (Some(result), error) => Ok(TaskExit { error, ..result.into() }),
            (None, Some(error)) => Ok(TaskExit { exit_code: -1, error: Some(error), ..TaskExit::default() }),
            (None, None) => {
                Err(CallError::BadAnswer { driver: self.shared.driver.clone(), call: "WaitTask", missing: "a result" })
            }
        }
    }

    /// Sends the signal (empty: the driver's default), waits, kills; returns after the task's death.
    ///
    /// # Errors
    /// See [`CallError`]. The task may have ended or may still end.
    pub async fn stop_task(&self, id: &str, signal: &str, timeout: Duration) -> Result<(), CallError> {
        let request = StopTaskRequest {
            task_id: id.to_owned(),
            timeout: Some(build::duration(timeout)),
            signal: signal.to_owned(),
        };
        let limit = timeout.saturating_add(self.shared.timing.task_call);
        self.call("StopTask", Some(limit), id, |mut client| async move { client.stop_task(request).await }).await?;
        Ok(())
    }

    /// Frees a task at the driver. True if the driver knew the task; an unknown one is a success, too.
    ///
    /// # Errors
    /// See [`CallError`]. The call may be repeated.
    pub async fn destroy_task(&self, id: &str, force: bool) -> Result<bool, CallError> {
        let request = DestroyTaskRequest { task_id: id.to_owned(), force };
        let limit = self.shared.timing.task_call;
        match self
            .call("DestroyTask", Some(limit), id, |mut client| async move { client.destroy_task(request).await })
            .await
        {
            Ok(_) => Ok(true),
            Err(CallError::TaskNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Asks for the state of a task.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn inspect_task(&self, id: &str) -> Result<Inspection, CallError> {
        let request = InspectTaskRequest { task_id: id.to_owned() };
        let limit = self.shared.timing.short_call;
        let answer = self
            .call("InspectTask", Some(limit), id, |mut client| async move { client.inspect_task(request).await })
            .await?;
        Ok(answer.into())
    }

    /// Sends a signal such as `SIGHUP`.
    ///
    /// # Errors
    /// See [`CallError`]. After [`CallError::Timeout`] the signal may still arrive.
    pub async fn signal_task(&self, id: &str, signal: &str) -> Result<(), CallError> {
        let request = SignalTaskRequest { task_id: id.to_owned(), signal: signal.to_owned() };
        let limit = self.shared.timing.short_call;
        self.call("SignalTask", Some(limit), id, |mut client| async move { client.signal_task(request).await }).await?;
        Ok(())
    }

    /// Runs a command in a task and returns its output.
    ///
    /// # Errors
    /// See [`CallError`]. The command may have run, or may still run.
    pub async fn exec_task(&self, id: &str, command: Vec<String>, timeout: Duration) -> Result<ExecResult, CallError> {
        let request = ExecTaskRequest { task_id: id.to_owned(), command, timeout: Some(build::duration(timeout)) };
        let limit = timeout.saturating_add(self.shared.timing.short_call);
        let answer =
            self.call("ExecTask", Some(limit), id, |mut client| async move { client.exec_task(request).await }).await?;
        let result = answer.result.ok_or_else(|| CallError::BadAnswer {
            driver: self.shared.driver.clone(),
            call: "ExecTask",
            missing: "a result",
        })?;
        Ok(ExecResult { stdout: answer.stdout, stderr: answer.stderr, exit: result.into() })
    }

    /// Samples of resource use, the first one at once. Ends with an error or with the plugin; a drop cancels.
    ///
    /// # Errors
    /// [`CallError::NotReady`]. All others come as the last item.
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
                        // Skip an empty message; the next one may have a sample.
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
    ///
    /// # Errors
    /// See [`CallError`]. The call may be repeated: the flag of its answer tells whether the network was there.
    pub async fn create_network(
        &self,
        alloc_id: &str,
        hostname: &str,
    ) -> Result<(Option<NetworkIsolationSpec>, bool), CallError> {
        let request = CreateNetworkRequest { alloc_id: alloc_id.to_owned(), hostname: hostname.to_owned() };
        let limit = self.shared.timing.task_call;
        let answer =
            self.call("CreateNetwork", Some(limit), alloc_id, |mut client| async move {
                client.create_network(request).await
            })
            .await?;
        Ok((answer.isolation_spec, answer.created))
    }

    /// Removes the network of an allocation.
    ///
    /// # Errors
    /// See [`CallError`]. The call may be repeated.
    pub async fn destroy_network(&self, alloc_id: &str, spec: Option<NetworkIsolationSpec>) -> Result<(), CallError> {
        let request = DestroyNetworkRequest { alloc_id: alloc_id.to_owned(), isolation_spec: spec };
        let limit = self.shared.timing.task_call;
        self.call("DestroyNetwork", Some(limit), alloc_id, |mut client| async move {
            client.destroy_network(request).await
        })
        .await?;
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
