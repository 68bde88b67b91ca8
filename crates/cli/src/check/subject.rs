//! What is checked: a driver, its configuration and its tasks.

use std::{ffi::OsString, fmt, path::PathBuf};

use model::GoDuration;
use serde_json::Value;

/// The driver under check, and its tasks.
pub(super) struct Subject {
    /// Name of the driver; empty until a node has said it.
    pub(super) driver: String,
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    /// The plugin's configuration.
    pub(super) config: Value,
    /// Configuration of a task that runs, and of one that ends; or why there is none.
    pub(super) runs: Result<Value, String>,
    pub(super) ends: Result<Value, String>,
    pub(super) lease: GoDuration,
}

/// A row that cannot be played against this driver, with the reason.
#[derive(Debug)]
pub(super) struct NotApplicable(pub(super) String);

impl fmt::Display for NotApplicable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotApplicable {}
