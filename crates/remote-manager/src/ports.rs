//! What the manager needs of the node that it is part of. The node implements it; nothing else of the node is known
//! here.

use std::{collections::BTreeMap, time::Duration};

use driver_host::{BundleFile, Capabilities, Driver, TaskConfig};
use futures::future::BoxFuture;
use host::{dirs::AllocDirs, node_env::TaskSpec};
use lifecycle::{
    alloc::{inbox::Inbox, machine::StartFailure},
    identities::Due,
};
use model::{AllocId, Task, node::RemoteProvider};

/// Why a create does not have what it takes along; the texts are for people.
#[derive(Debug)]
pub enum Unprepared {
    /// It will never have it.
    Refused(String),
    /// It is tried again.
    Later(String),
}

/// The drivers of this node.
pub trait Drivers: Send + Sync {
    /// The driver of that name, when its plugin is there or comes within `limit`. Cancel safe.
    ///
    /// # Errors
    /// Why there is none, for people.
    fn get<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<Driver, String>>;

    /// As [`Drivers::get`], without waiting.
    fn now(&self, name: &str) -> Option<Driver>;

    /// What a driver has declared of its runtime; None: no plugin has declared a driver of remote tasks by that name.
    fn provider(&self, name: &str) -> Option<RemoteProvider>;
}

/// Tokens for a task that runs elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Files that travel to the task.
    pub files: Vec<BundleFile>,
    /// Variables of the task, by name.
    pub variables: BTreeMap<String, String>,
    /// When those that end are due to be renewed.
    pub due: Due,
}

/// What templates give to a task that runs elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Rendered {
    /// Files that travel to the task.
    pub files: Vec<BundleFile>,
    /// Variables of the task, by name.
    pub variables: BTreeMap<String, String>,
}

/// What tasks that run elsewhere get from this node. The answers are for one attempt: who needs them asks again.
pub trait Supplies: Send + Sync {
    /// Downloads the task's artifacts into `into`, whose directories are new and nobody else's. `run` names the
    /// attempt, `tell` hears that it begins. Cancel safe: when it is dropped, no process of it is left.
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
    fn tokens<'a>(&'a self, alloc: AllocId, task: &'a Task, identities: Vec<String>) -> BoxFuture<'a, Result<Tokens, Unprepared>>;

    /// Renders the task's templates, which may read the variables of `tokens`. Data that is missing is waited for, but
    /// not for long. Cancel safe.
    ///
    /// # Errors
    /// When a template cannot be rendered, cannot travel, or misses data.
    fn templates<'a>(
        &'a self,
        of: TaskSpec<'a>,
        capabilities: &'a Capabilities,
        tokens: BTreeMap<String, String>,
    ) -> BoxFuture<'a, Result<Rendered, Unprepared>>;

    /// The message that the driver starts the task from, with `variables` added to its environment. Its paths are
    /// those of this node.
    ///
    /// # Errors
    /// What of the job this driver or this node cannot do.
    fn config(
        &self,
        of: TaskSpec<'_>,
        run: &str,
        driver: &Driver,
        capabilities: &Capabilities,
        variables: &BTreeMap<String, String>,
    ) -> Result<TaskConfig, StartFailure>;
}
