//! What became of the order to look at a plugin again.

use tokio::sync::oneshot;

use crate::options::PluginSpec;

/// What a reload did to a plugin. Tasks are never touched: a new process is told of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reloaded {
    /// Program file, arguments and configuration are those that the running process was started with.
    Unchanged,
    /// A new process serves the driver.
    Replaced,
    /// It was configured for the first time and runs.
    Started,
    /// It is no longer configured, so its process was ended.
    Ended,
    /// It did not run before the reload and does now.
    Recovered,
    /// What is configured now cannot be used, so the former process was not touched and goes on.
    Kept(String),
    /// It does not run; the text is the reason.
    Failed(String),
}

/// To the supervisor of one plugin.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) spec: PluginSpec,
    /// Also when nothing has changed.
    pub(crate) force: bool,
    /// It belongs to the start of the supervisor, whose first attempt answers it.
    pub(crate) fresh: bool,
    pub(crate) reply: oneshot::Sender<Reloaded>,
}
