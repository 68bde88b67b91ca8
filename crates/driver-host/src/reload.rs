//! Outcomes of reloads.

use tokio::sync::oneshot;

use crate::options::PluginSpec;

/// The outcome of a plugin's reload. It never touches tasks: the node recovers each with a new process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reloaded {
    /// The running process already has this program file, arguments and configuration.
    Unchanged,
    /// A new process serves the driver.
    Replaced,
    /// It is newly configured and runs.
    Started,
    /// It is no longer configured, and its process has ended.
    Ended,
    /// It was down before the reload and runs now.
    Recovered,
    /// The new configuration is unusable, so the former process continues.
    Kept(String),
    /// It does not run; the text is the reason.
    Failed(String),
}

/// An order to the supervisor of one plugin.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) spec: PluginSpec,
    /// Replace it even without a change.
    pub(crate) force: bool,
    /// It comes with the start of the supervisor, whose first attempt answers it.
    pub(crate) fresh: bool,
    pub(crate) reply: oneshot::Sender<Reloaded>,
}
