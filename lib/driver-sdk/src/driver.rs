//! The trait of local drivers.

use std::time::Duration;

use async_trait::async_trait;
use driver_proto::driver::{NetworkIsolationSpec, TaskConfig, TaskHandle};
use futures::FutureExt;

use crate::config::Config;
use crate::exec::ExecIo;
use crate::schema::Spec;
use crate::types::{
    AgentConfig, Capabilities, ExecOutput, Fingerprint, Inspection, PluginInfo, Started, StopTask, TaskExit, TaskStatus, TaskUsage,
};
use crate::{Context, Error};

/// A driver for tasks on this machine.
///
/// Calls run concurrently on one thread: never block it, use `tokio::task::spawn_blocking`. A panic becomes an error of
/// that call. The process may be killed at any time and a new one started; then `recover_task` is called for every task.
///
/// Calls that change something (start, recover, stop, destroy, signal, networks) run to their end even when the host no longer
/// waits; it may then send the same call again while the first one runs. All others are dropped at an await when nobody waits.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Name and version.
    fn info(&self) -> PluginInfo;

    /// Called once before anything else; keep the context to report events.
    fn attach(&self, _context: Context) {}

    /// Schema of the operator's `plugin "…" { config { … } }`; `None` forbids a configuration.
    fn config_schema(&self) -> Option<Spec> {
        None
    }

    /// Takes the operator's configuration. May be called more than once and in a process that is then ended: no side
    /// effects that outlive it. `agent` is absent while a configuration is only checked.
    async fn set_config(&self, _config: Config, _agent: Option<AgentConfig>) -> Result<(), Error> {
        Ok(())
    }

    /// The place for side effects. Not every host calls it, so nothing may depend on it.
    async fn init(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Schema of a task's `config { … }`.
    fn task_config_schema(&self) -> Spec;

    /// What the driver offers; constant.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// One look at the driver's state; asked again every [`Driver::fingerprint_interval`] and after
    /// [`Context::refingerprint`]. Only changes are sent.
    async fn fingerprint(&self) -> Fingerprint {
        Fingerprint::healthy()
    }

    /// How often to look.
    fn fingerprint_interval(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Starts a task. `task.id` is fresh, but comes again when the plugin died in the middle of the first call: never make a second
    /// workload for one id. Refuse an id that is known. Where anything fails, undo everything: the host forgets the task.
    /// [`Error::Recoverable`] leads to another attempt under the job's restart policy, everything else is final.
    async fn start_task(&self, task: TaskConfig) -> Result<Started, Error>;

    /// Finds a task again by its handle, in a new process. Success means that `wait_task` works. A known id is success; a
    /// finished task is reported, never run again. `handle.config` may lack the driver configuration.
    async fn recover_task(&self, handle: TaskHandle) -> Result<(), Error>;

    /// Waits for the end of a task; at once when it has ended. Any number of callers, and each may go away and come back.
    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error>;

    /// Delivers the signal, waits at most the timeout, kills the whole tree; returns after death.
    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error>;

    /// Forgets a task and frees what it held; idempotent. With `force` survivors are killed, without it a running task
    /// is an error. Pending waits end.
    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), Error>;

    /// Reports on a task. The default knows no more than [`Driver::wait_task`] answers at once.
    async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> {
        let exit = self.wait_task(id).now_or_never().transpose()?;
        let status = if exit.is_some() { TaskStatus::Exited } else { TaskStatus::Running };
        Ok(Inspection { id: id.to_owned(), status, exit, ..Inspection::default() })
    }

    /// One sample of resource use; `None` when the driver cannot measure.
    async fn task_stats(&self, _id: &str) -> Result<Option<TaskUsage>, Error> {
        Ok(None)
    }

    /// Sends a signal such as `SIGHUP`.
    async fn signal_task(&self, _id: &str, _signal: &str) -> Result<(), Error> {
        Err(Error::unsupported("signals"))
    }

    /// Runs a command beside the task and returns its output.
    async fn exec_task(&self, _id: &str, _command: Vec<String>, _timeout: Duration) -> Result<ExecOutput, Error> {
        Err(Error::unsupported("exec"))
    }

    /// Runs an interactive command beside the task. Returning ends the session. When the client goes away the call is
    /// dropped at an await, so tie the command's life to a value that ends it.
    async fn exec_streaming(&self, _id: &str, _command: Vec<String>, _tty: bool, _io: ExecIo) -> Result<TaskExit, Error> {
        Err(Error::unsupported("interactive exec"))
    }

    /// Creates the network of an allocation; true in the answer when it did not exist before.
    async fn create_network(&self, _alloc_id: &str, _hostname: &str) -> Result<(NetworkIsolationSpec, bool), Error> {
        Err(Error::unsupported("creating networks"))
    }

    /// Removes the network of an allocation; idempotent.
    async fn destroy_network(&self, _alloc_id: &str, _spec: Option<NetworkIsolationSpec>) -> Result<(), Error> {
        Err(Error::unsupported("destroying networks"))
    }

    /// The process ends within two seconds. Tasks must go on.
    async fn shutdown(&self) {}
}
