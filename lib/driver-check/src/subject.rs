//! What is checked, and with what.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use driver_proto::driver::{DriverCapabilities, TaskConfig};
use driver_proto::hclspec::Spec;
use driver_proto::remote::DescribeResponse;
use serde_json::Value;

use crate::encode::encode_json;
use crate::kit::TaskKit;

/// From a schema and a configuration to the bytes that a plugin gets; the error says what does not fit.
pub type EncodeConfig = Arc<dyn Fn(&Spec, &Value) -> Result<Vec<u8>, String> + Send + Sync>;

/// Makes what an agent has ready around a task (such as cgroups), writes it into the task, and returns what removes it
/// again when dropped.
pub type Surroundings = Arc<dyn Fn(&mut TaskConfig) -> std::io::Result<Box<dyn Send + Sync>> + Send + Sync>;

/// How patient the suite is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// What must happen at some time gets this long.
    pub patience: Duration,
    /// What must not happen is watched for this long.
    pub hold: Duration,
    /// Multiplies the limits of the protocol (such as two seconds to end): above 1 for busy machines.
    pub slack: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { patience: Duration::from_secs(15), hold: Duration::from_secs(2), slack: 1.0 }
    }
}

impl Pace {
    /// For tests of a driver on a machine that is busy with other tests.
    pub fn relaxed() -> Self {
        Self { patience: Duration::from_secs(60), hold: Duration::from_millis(300), slack: 15.0 }
    }

    pub(crate) fn limit(&self, contract: Duration) -> Duration {
        contract.mul_f64(self.slack.max(0.1))
    }
}

/// A plugin program and what the suite needs to use it.
#[derive(Clone)]
pub struct Subject {
    /// The program.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Added to the environment.
    pub env: Vec<(OsString, OsString)>,
    /// The operator's configuration of the plugin; `@DIR@` in a string becomes a directory that is the check's own.
    pub config: Option<Value>,
    /// How tasks are made that do what the checks need; without one it is chosen by the driver's name and schema
    /// ([`TaskKit::preset_for`]).
    pub kit: Option<TaskKit>,
    /// How configurations are encoded.
    pub encode: EncodeConfig,
    /// What tasks find around them beyond their directories.
    pub surroundings: Option<Surroundings>,
    /// How patient to be.
    pub pace: Pace,
    profile: Arc<Profile>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("command", &self.command).field("args", &self.args).finish_non_exhaustive()
    }
}

impl Subject {
    /// A program without arguments and with the built-in ways.
    pub fn new(command: impl Into<PathBuf>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: Vec::new(),
            config: None,
            kit: None,
            encode: Arc::new(encode_json),
            surroundings: None,
            pace: Pace::default(),
            profile: Arc::default(),
        }
    }

    pub(crate) fn with_profile(self, profile: Profile) -> Self {
        Self { profile: Arc::new(profile), ..self }
    }

    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }
}

/// What the plugin says of itself, asked once before the checks. What it did not answer stays empty; a check says so.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// Name of the driver.
    pub name: String,
    /// Capabilities.
    pub capabilities: DriverCapabilities,
    /// Schema of the plugin's configuration.
    pub config_schema: Option<Spec>,
    /// Schema of a task's configuration.
    pub task_schema: Option<Spec>,
    /// Answer to Describe, when it serves our remote extension.
    pub remote: Option<DescribeResponse>,
}
