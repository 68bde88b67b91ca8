//! The manager's interface to the node, which implements it. The manager knows nothing else of the node.

use std::{collections::BTreeMap, time::Duration};

use driver_host::{BundleFile, Capabilities, Driver, TaskConfig};
use futures::future::BoxFuture;
use host::{dirs::AllocDirs, node_env::TaskSpec};
use lifecycle::{
    alloc::{inbox::Inbox, machine::StartFailure},
    identities::Due,
};
use model::{AllocId, Task, node::RemoteProvider};

/// Why the preparation of a create is incomplete; the texts are for people.
#[derive(Debug)]
pub enum Unprepared {
    /// It never can be complete.
    Refused(String),
    /// Another attempt follows.
    Later(String),
}

/// The drivers of this node.
pub trait Drivers: Send + Sync {
    /// The driver of that name, if its plugin is ready now or becomes so within `limit`. Cancel safe.
    ///
    /// # Errors
    /// Why there is none, for people.
    fn get<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<Driver, String>>;

    /// As [`Drivers::get`], without waiting.
    fn now(&self, name: &str) -> Option<Driver>;

    /// The provider that a driver has declared; `None`: no plugin has declared a driver of remote tasks by that name.
    fn provider(&self, name: &str) -> Option<RemoteProvider>;
}

/// Tokens for a task that runs elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Files that travel to the task.
    pub files: Vec<BundleFile>,
    /// Variables of the task, by name.
    pub variables: BTreeMap<String, String>,
    /// When the tokens are due for renewal.
    pub due: Due,
}

/// Rendered templates of a task that runs elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Rendered {
    /// Files that travel to the task.
    pub files: Vec<BundleFile>,
    /// Variables of the task, by name.
    pub variables: BTreeMap<String, String>,
    /// Values of its secrets, by `secret.NAME.KEY`.
    pub secrets: BTreeMap<String, String>,
}

/// Supplies of this node for tasks that run elsewhere. The answers are for one attempt; each attempt asks again.
pub trait Supplies: Send + Sync {
    /// Downloads the task's artifacts into `into`, whose directories are new and used by nothing else. `run` names the
    /// attempt; `tell` hears that it begins. Cancel safe: a drop leaves no process.
    ///
    /// # Errors
    /// Which artifact failed, why, and whether another attempt may succeed.
    fn artifacts<'a>(
        &'a self,
        of: TaskSpec<'a>,
        into: AllocDirs,
        run: &'a str,
        tell: Option<&'a Inbox>,
    ) -> BoxFuture<'a, Result<(), StartFailure>>;

    /// Asks the servers for tokens of these identities of a task. Nothing is stored on this node. Cancel safe.
    ///
    /// # Errors
    /// When the servers refuse, or none has answered.
    fn tokens<'a>(
        &'a self,
        alloc: AllocId,
        task: &'a Task,
        identities: Vec<String>,
    ) -> BoxFuture<'a, Result<Tokens, Unprepared>>;

    /// Reads the task's secrets and renders its templates, which may read the variables of `tokens`. Waits for missing
    /// data only briefly. Cancel safe.
    ///
    /// # Errors
    /// When a secret is missing, or a template cannot be rendered, cannot travel, or misses data.
    fn templates<'a>(
        &'a self,
        of: TaskSpec<'a>,
        capabilities: &'a Capabilities,
        tokens: BTreeMap<String, String>,
    ) -> BoxFuture<'a, Result<Rendered, Unprepared>>;

    /// The driver's start message, with what was rendered in the task's environment. Its paths are those of this node.
    ///
    /// # Errors
    /// The option of the job that this driver or this node does not support.
    fn config(
        &self,
        of: TaskSpec<'_>,
        run: &str,
        driver: &Driver,
        capabilities: &Capabilities,
        rendered: &Rendered,
    ) -> Result<TaskConfig, StartFailure>;
}
