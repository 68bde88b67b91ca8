//! The trait of local drivers.

use std::time::Duration;

use async_trait::async_trait;
use driver_proto::driver::{NetworkIsolationSpec, TaskConfig, TaskHandle};
use futures::FutureExt;

use crate::config::Config;
use crate::exec::ExecIo;
use crate::schema::Spec;
use crate::types::{
    AgentConfig, Capabilities, ExecOutput, Fingerprint, Inspection, PluginInfo, Started, StopTask, TaskExit,
    TaskStatus, TaskUsage,
};
use crate::{Context, Error};

/// A driver for tasks on this machine.
///
/// Calls run concurrently on one thread: never block it, use `tokio::task::spawn_blocking`. A panic becomes an error of
/// that call. The process may be killed at any time and a new one started; then the host calls `recover_task` for every
/// task.
///
/// Calls that change something (start, recover, stop, destroy, signal, networks) run to their end even when the host no
/// longer waits. The host may then send the same call again while the first one runs. The SDK drops all other calls at
/// an await when nobody waits.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Name and version of the plugin.
    fn info(&self) -> PluginInfo;

    /// Receives the context, once and before every other call. Keep it to report events.
    fn attach(&self, _context: Context) {}

    /// Schema of the operator's `plugin "…" { config { … } }`; `None` forbids a configuration.
    fn config_schema(&self) -> Option<Spec> {
        None
    }

    /// Validates and keeps the operator's configuration. Hosts may call it several times, also in a process that they
    /// end afterwards: leave no side effects behind. `agent` is absent while a host only checks a configuration.
    async fn set_config(&self, _config: Config, _agent: Option<AgentConfig>) -> Result<(), Error> {
        Ok(())
    }

    /// Runs side effects of the start, such as connecting to an engine. Not every host calls it, so nothing may
    /// depend on it.
    async fn init(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Schema of a task's `config { … }`.
    fn task_config_schema(&self) -> Spec;

    /// Capabilities of the driver; constant for the life of the process.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Reports the driver's health and attributes. The SDK calls it every [`Driver::fingerprint_interval`] and after
    /// [`Context::refingerprint`], and sends only changes.
    async fn fingerprint(&self) -> Fingerprint {
        Fingerprint::healthy()
    }

    /// Time between two calls of [`Driver::fingerprint`].
    fn fingerprint_interval(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Starts a task. `task.id` is new, but the host repeats it if the plugin died during the first call: never make
    /// a second workload for one id. Refuse a known id. On an error undo everything, because the host forgets the
    /// task. The restart policy of the job follows an [`Error::Recoverable`]; every other error is final. The SDK
    /// runs the call to its end even if the host goes away.
    async fn start_task(&self, task: TaskConfig) -> Result<Started, Error>;

    /// Takes over a running task by its handle, in a new process of the plugin. Success means that `wait_task` works
    /// for it. A known id is a success. A task that has ended succeeds as well: report its exit, never run it again.
    /// `handle.config` may lack the driver configuration.
    async fn recover_task(&self, handle: TaskHandle) -> Result<(), Error>;

    /// Waits for the end of a task and returns its exit, at once if the task has ended. Any number of callers may
    /// wait. Cancel safe: a caller may drop the call and wait again.
    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error>;

    /// Stops a task: sends the signal, waits up to the timeout, then kills all its processes. Returns when they have
    /// ended.
    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error>;

    /// Forgets a task and frees its resources; idempotent. `force` kills a running task; without it a running task is
    /// an error. Pending calls of `wait_task` return.
    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), Error>;

    /// Reports the status of a task. The default implementation asks [`Driver::wait_task`] without waiting.
    async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> {
        let exit = self.wait_task(id).now_or_never().transpose()?;
        let status = if exit.is_some() { TaskStatus::Exited } else { TaskStatus::Running };
        Ok(Inspection { id: id.to_owned(), status, exit, ..Inspection::default() })
    }

    /// Takes one sample of the task's resource usage; `None` if the driver cannot measure it.
    async fn task_stats(&self, _id: &str) -> Result<Option<TaskUsage>, Error> {
        Ok(None)
    }

    /// Sends a signal such as `SIGHUP`.
    async fn signal_task(&self, _id: &str, _signal: &str) -> Result<(), Error> {
        Err(Error::unsupported("signals"))
    }

    /// Runs a command in the task's environment and returns its output after its end.
    async fn exec_task(&self, _id: &str, _command: Vec<String>, _timeout: Duration) -> Result<ExecOutput, Error> {
        Err(Error::unsupported("exec"))
    }

    /// Runs an interactive command in the task's environment. The return ends the session. When the client goes away,
    /// the SDK drops the call at an await: hold the command in a value whose drop ends it.
    async fn exec_streaming(
        &self,
        _id: &str,
        _command: Vec<String>,
        _tty: bool,
        _io: ExecIo,
    ) -> Result<TaskExit, Error> {
        Err(Error::unsupported("interactive exec"))
    }

    /// Creates the network of an allocation. The flag is true if the network did not exist before.
    async fn create_network(&self, _alloc_id: &str, _hostname: &str) -> Result<(NetworkIsolationSpec, bool), Error> {
        Err(Error::unsupported("creating networks"))
    }

    /// Removes the network of an allocation; idempotent.
    async fn destroy_network(&self, _alloc_id: &str, _spec: Option<NetworkIsolationSpec>) -> Result<(), Error> {
        Err(Error::unsupported("destroying networks"))
    }

    /// Prepares for the end of the process, which follows within two seconds. Tasks must keep running.
    async fn shutdown(&self) {}
}
