//! What a job and an operator can ask for.

use std::collections::BTreeMap;
use std::time::Duration;

use driver_sdk::schema::{self, Spec, block, list, number, object, string};
use serde::Deserialize;

/// A task's `config`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TaskOptions {
    /// How long the task runs.
    #[serde(deserialize_with = "driver_sdk::config::duration")]
    pub run_for: Duration,
    /// Exit code at its end.
    pub exit_code: i32,
    /// Signal at its end.
    pub exit_signal: i32,
    /// Error text beside the exit.
    pub exit_err_msg: String,
    /// The end counts as lack of memory.
    pub exit_oom: bool,
    /// StartTask fails with this text.
    pub start_error: String,
    /// … and may be tried again.
    pub start_error_recoverable: bool,
    /// StartTask takes this long.
    #[serde(deserialize_with = "driver_sdk::config::duration")]
    pub start_block_for: Duration,
    /// How long the task takes to die after a stop's signal; the stop's timeout still kills it.
    #[serde(deserialize_with = "driver_sdk::config::duration")]
    pub kill_after: Duration,
    /// Text for standard output.
    pub stdout_string: String,
    /// How often it is repeated after the first time.
    pub stdout_repeat: u64,
    /// Pause between repetitions.
    #[serde(deserialize_with = "driver_sdk::config::duration")]
    pub stdout_repeat_duration: Duration,
    /// Text for standard error.
    pub stderr_string: String,
    /// SignalTask fails with this text.
    pub signal_error: String,
    /// The driver's process ends this long after the start; zero never.
    #[serde(deserialize_with = "driver_sdk::config::duration")]
    pub plugin_exit_after: Duration,
    /// Calls that never answer: `start`, `recover`, `wait`, `stop`, `destroy`, `inspect`, `signal`, `exec`, `stats`.
    pub hang: Vec<String>,
    /// Calls that panic; the same names.
    pub panic: Vec<String>,
    /// Lines that the driver logs at the start.
    pub log_lines: u64,
    /// Events that the driver reports at the start.
    pub events: u64,
    /// Processor use in the statistics, percent of one core.
    pub cpu_percent: f64,
    /// Memory use in the statistics.
    pub memory_mb: u64,
    /// Address of the task.
    pub driver_ip: String,
    /// Services advertise that address.
    pub driver_advertise: bool,
    /// Its ports, `label:port` separated by blanks.
    pub driver_port_map: String,
    /// What `exec` does; without it commands are echoed.
    pub exec_command: Option<ExecOptions>,
}

/// A command beside the task.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ExecOptions {
    /// How long it runs.
    #[serde(deserialize_with = "driver_sdk::config::duration")]
    pub run_for: Duration,
    /// Its exit code.
    pub exit_code: i32,
    /// Its standard output.
    pub stdout_string: String,
    /// Its standard error.
    pub stderr_string: String,
}

impl TaskOptions {
    /// `label:port` pairs; what is no pair is left out.
    pub fn ports(&self) -> BTreeMap<String, i32> {
        let pair = |text: &str| {
            let (label, port) = text.split_once(':')?;
            Some((label.to_owned(), port.parse().ok()?))
        };
        self.driver_port_map.split_whitespace().filter_map(pair).collect()
    }
}

/// Schema of [`TaskOptions`].
pub fn task_schema() -> Spec {
    object([
        ("run_for", string()),
        ("exit_code", number()),
        ("exit_signal", number()),
        ("exit_err_msg", string()),
        ("exit_oom", schema::bool()),
        ("start_error", string()),
        ("start_error_recoverable", schema::bool()),
        ("start_block_for", string()),
        ("kill_after", string()),
        ("stdout_string", string()),
        ("stdout_repeat", number()),
        ("stdout_repeat_duration", string()),
        ("stderr_string", string()),
        ("signal_error", string()),
        ("plugin_exit_after", string()),
        ("hang", list("string")),
        ("panic", list("string")),
        ("log_lines", number()),
        ("events", number()),
        ("cpu_percent", number()),
        ("memory_mb", number()),
        ("driver_ip", string()),
        ("driver_advertise", schema::bool()),
        ("driver_port_map", string()),
        (
            "exec_command",
            block(object([("run_for", string()), ("exit_code", number()), ("stdout_string", string()), ("stderr_string", string())])),
        ),
    ])
}

/// The operator's `plugin "mock" { config { … } }`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PluginOptions {
    /// `none`, `chroot`, `image` or `unveil`.
    pub fs_isolation: String,
    /// The driver claims to be unhealthy from this long after its start on; zero never.
    #[serde(deserialize_with = "driver_sdk::config::duration")]
    pub shutdown_periodic_after: Duration,
    /// … for this long, then it is healthy again, then it starts over.
    #[serde(deserialize_with = "driver_sdk::config::duration")]
    pub shutdown_periodic_duration: Duration,
}

/// Schema of [`PluginOptions`].
pub fn plugin_schema() -> Spec {
    object([
        ("fs_isolation", string().default("\"none\"")),
        ("shutdown_periodic_after", string()),
        ("shutdown_periodic_duration", string()),
    ])
}
