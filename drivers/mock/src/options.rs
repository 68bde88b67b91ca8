//! What a job and an operator can ask for. Where a driver of this kind is known elsewhere the names are the same.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use driver_sdk::{DriverConfig, Error};

/// A task's `config`.
#[derive(Debug, Clone, Default, PartialEq, DriverConfig)]
#[config(default)]
pub struct TaskOptions {
    /// How long the task runs.
    pub run_for: Duration,
    /// Exit code at its end.
    pub exit_code: i32,
    /// Signal at its end, as a number.
    pub exit_signal: i32,
    /// Error text beside the exit.
    pub exit_err_msg: String,
    /// The end counts as lack of memory.
    pub exit_oom: bool,
    /// The start fails with this text.
    pub start_error: String,
    /// … and may be tried again under the job's restart policy.
    pub start_error_recoverable: bool,
    /// How many starts of this task in its allocation fail, hang, panic or crash as asked for; later ones succeed. 0
    /// means all.
    pub start_failures: u64,
    /// The start takes this long.
    pub start_block_for: Duration,
    /// How long the task takes to die after a stop's signal; the stop's timeout still kills it.
    pub kill_after: Duration,
    /// Text for standard output.
    pub stdout_string: String,
    /// How often it is repeated after the first time.
    pub stdout_repeat: u64,
    /// Pause between repetitions; without it a flood.
    pub stdout_repeat_duration: Duration,
    /// Text for standard error.
    pub stderr_string: String,
    /// How often it is repeated after the first time.
    pub stderr_repeat: u64,
    /// Pause between repetitions; without it a flood.
    pub stderr_repeat_duration: Duration,
    /// Signals fail with this text.
    pub signal_error: String,
    /// The plugin's process ends this long after the start; 0 never.
    pub plugin_exit_after: Duration,
    /// Calls that never answer: start, recover, wait, stop, destroy, inspect, signal, exec, stats.
    pub hang: Vec<String>,
    /// Calls that panic; the same names.
    pub panic: Vec<String>,
    /// Calls in which the plugin's process ends; the same names.
    pub crash: Vec<String>,
    /// Lines that the plugin logs at the start.
    pub log_lines: u64,
    /// Events that the plugin reports at the start.
    pub events: u64,
    /// Processor use in the statistics, percent of one core.
    pub cpu_percent: f64,
    /// Memory use in the statistics.
    pub memory_mb: u64,
    /// IP address of the task.
    pub driver_ip: String,
    /// Services advertise that address.
    pub driver_advertise: bool,
    /// Its ports, `label:port` separated by blanks.
    pub driver_port_map: String,
    /// What a command run beside the task does; without it, it is echoed.
    pub exec_command: Option<ExecOptions>,
}

/// A command beside the task.
#[derive(Debug, Clone, Default, PartialEq, DriverConfig)]
#[config(default)]
pub struct ExecOptions {
    /// How long it runs.
    pub run_for: Duration,
    /// Its exit code.
    pub exit_code: i32,
    /// The signal that ends it, as a number.
    pub exit_signal: i32,
    /// It fails with this text instead.
    pub exit_err_msg: String,
    /// Its standard output.
    pub stdout_string: String,
    /// How often that is repeated after the first time.
    pub stdout_repeat: u64,
    /// Pause between repetitions.
    pub stdout_repeat_duration: Duration,
    /// Its standard error.
    pub stderr_string: String,
    /// How often that is repeated after the first time.
    pub stderr_repeat: u64,
    /// Pause between repetitions.
    pub stderr_repeat_duration: Duration,
    /// Refused: no signal reaches a command beside the task.
    pub signal_error: String,
}

/// Calls that can be made to misbehave.
const CALLS: &[&str] = &["start", "recover", "wait", "stop", "destroy", "inspect", "signal", "exec", "stats"];

/// Refuses what names no call: a misspelt fault would look like a passed test.
fn known_calls(option: &str, given: &[String], known: &[&str]) -> Result<(), Error> {
    match given.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Error::invalid(format!("{option}: {name:?} is no call; there are {}", known.join(", ")))),
    }
}

impl TaskOptions {
    /// Checks what the schema cannot.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        for (option, given) in [("hang", &self.hang), ("panic", &self.panic), ("crash", &self.crash)] {
            known_calls(option, given, CALLS)?;
        }
        if self.exec_command.as_ref().is_some_and(|command| !command.signal_error.is_empty()) {
            return Err(Error::invalid(
                "exec_command.signal_error is not supported: no signal reaches a command beside the task; the task's \
                    own is signal_error",
            ));
        }
        self.ports().map(drop)
    }

    /// `label:port` pairs.
    ///
    /// # Errors
    /// When a pair is none, or its port no number.
    pub fn ports(&self) -> Result<BTreeMap<String, i32>, Error> {
        let pair = |text: &str| {
            let parsed = text
                .split_once(':')
                .and_then(|(label, port)| Some((label.to_owned(), port.parse::<u16>().ok()?.into())));
            parsed.ok_or_else(|| Error::invalid(format!("driver_port_map: {text:?} is not \"label:port\"")))
        };
        self.driver_port_map.split_whitespace().map(pair).collect()
    }
}

/// The operator's `plugin "mock" { config { … } }`.
#[derive(Debug, Clone, Default, PartialEq, DriverConfig)]
#[config(default)]
pub struct PluginOptions {
    /// How tasks claim to see the file system: none, chroot, image or unveil.
    #[config(default = "none")]
    pub fs_isolation: String,
    /// The driver claims to be unhealthy from this long after its start on; 0 never.
    pub shutdown_periodic_after: Duration,
    /// … for this long, then it is healthy again, then it starts over.
    pub shutdown_periodic_duration: Duration,
}

/// A task's `config` for the remote driver.
#[derive(Debug, Clone, Default, PartialEq, DriverConfig)]
#[config(default)]
pub struct RemoteTaskOptions {
    /// How long the instance runs.
    pub run_for: Duration,
    /// Exit code at its end.
    pub exit_code: i32,
    /// Signal at its end, as a number.
    pub exit_signal: i32,
    /// Reason beside the exit.
    pub exit_err_msg: String,
    /// The end counts as lack of memory.
    pub exit_oom: bool,
    /// The create is refused for good with this text.
    pub start_error: String,
    /// How long the instance is being created before it runs.
    pub start_block_for: Duration,
    /// How long the instance takes to die after a stop's signal; the stop's timeout still kills it.
    pub kill_after: Duration,
    /// Text for standard output.
    pub stdout_string: String,
    /// How often it is repeated after the first time.
    pub stdout_repeat: u64,
    /// Pause between repetitions.
    pub stdout_repeat_duration: Duration,
    /// Text for standard error.
    pub stderr_string: String,
    /// How often it is repeated after the first time.
    pub stderr_repeat: u64,
    /// Pause between repetitions.
    pub stderr_repeat_duration: Duration,
    /// IP address of the instance.
    pub driver_ip: String,
}

/// The operator's `plugin "mock_remote" { config { … } }`.
#[derive(Debug, Clone, Default, PartialEq, DriverConfig)]
#[config(default)]
pub struct RemoteOptions {
    /// The directory that is the provider, the same for all nodes. It is made when it is missing.
    #[config(required)]
    pub dir: PathBuf,
    /// What goes wrong from the start. A file `faults.json` in the directory with the same keys adds to it at any time.
    pub faults: Faults,
    /// Processor capacity of the provider; 0 does not declare one.
    pub pool_cpu_mhz: u64,
    /// Memory capacity of the provider; 0 does not declare one.
    pub pool_memory_mib: u64,
    /// Name under which its calls are recorded; a file `faults-NAME.json` in the directory applies to its calls alone.
    pub caller: String,
    /// Every call is recorded in the file `calls.jsonl` of the directory.
    pub record: bool,
    /// Credentials for the provider. Where its directory has a file `credentials`, calls with other ones than that
    /// file's lines are denied.
    pub credentials: String,
    /// A file with them instead, read at each call.
    pub credentials_file: Option<PathBuf>,
    /// What the provider does not have: keyed_create, find, list, conditional_writes, seal, retained_exit_results,
    /// refresh.
    pub without: Vec<String>,
    /// The host is asked to keep what each create is about to send. The provider takes a key in the form in which it
    /// came first, and refuses any other.
    pub intents: bool,
    /// How often instances are looked at.
    #[config(default = "50ms")]
    pub watch_interval: Duration,
    /// After how long without an answer instances that were seen running are unknown.
    #[config(default = "10s")]
    pub watch_patience: Duration,
}

/// What goes wrong between the driver and its provider.
#[derive(Debug, Clone, Default, PartialEq, DriverConfig)]
#[config(default)]
pub struct Faults {
    /// How long each call takes.
    pub latency: Duration,
    /// Calls that do not reach the provider: ensure, find, list, observe, stop, seal, acknowledge, logs, signal,
    /// refresh.
    pub fail: Vec<String>,
    /// Calls that take effect and whose answer is lost; the same names.
    pub lose: Vec<String>,
    /// Calls that reach the provider and wait there until they are not named here any more; then they take effect. The
    /// same names.
    pub hold: Vec<String>,
    /// Calls whose caller gives up at once and that take effect later; the same names.
    pub late: Vec<String>,
    /// How much later.
    pub late_by: Duration,
    /// The caller is cut off: no call of any name reaches the provider.
    pub cut: bool,
    /// Calls that the provider takes in a second, of all callers together; more are turned away. 0 is no limit.
    pub requests_per_second: u64,
}

/// What a provider can be without.
const ABILITIES: &[&str] =
    &["keyed_create", "find", "list", "conditional_writes", "seal", "retained_exit_results", "refresh"];

impl RemoteOptions {
    /// Checks what the schema cannot.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        self.faults.validate()?;
        if self.watch_interval.is_zero() {
            return Err(Error::invalid("watch_interval must be above 0: it would ask without a pause"));
        }
        if let Some(name) = self.without.iter().find(|name| !ABILITIES.contains(&name.as_str())) {
            return Err(Error::invalid(format!(
                "without: {name:?} is nothing that a provider can have; there are {}",
                ABILITIES.join(", ")
            )));
        }
        if !self.caller.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
            return Err(Error::invalid(format!(
                "caller {:?} must be of letters, digits, - and _: it is part of a file's name",
                self.caller
            )));
        }
        Ok(())
    }

    /// Has the provider that ability?
    pub(crate) fn has(&self, ability: &str) -> bool {
        !self.without.iter().any(|name| name == ability)
    }
}

const REMOTE_CALLS: &[&str] =
    &["ensure", "find", "list", "observe", "stop", "seal", "acknowledge", "logs", "signal", "refresh"];

impl Faults {
    /// Checks what the schema cannot.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        known_calls("fail", &self.fail, REMOTE_CALLS)?;
        known_calls("lose", &self.lose, REMOTE_CALLS)?;
        known_calls("hold", &self.hold, REMOTE_CALLS)?;
        known_calls("late", &self.late, REMOTE_CALLS)
    }

    /// Both together.
    #[must_use]
    pub(crate) fn and(mut self, other: Faults) -> Self {
        self.latency = self.latency.max(other.latency);
        self.fail.extend(other.fail);
        self.lose.extend(other.lose);
        self.hold.extend(other.hold);
        self.late.extend(other.late);
        self.late_by = self.late_by.max(other.late_by);
        self.cut |= other.cut;
        self.requests_per_second = match (self.requests_per_second, other.requests_per_second) {
            (0, n) | (n, 0) => n,
            (a, b) => a.min(b),
        };
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_described() {
        for spec in
            [TaskOptions::schema(), PluginOptions::schema(), RemoteTaskOptions::schema(), RemoteOptions::schema()]
        {
            let bare: Vec<_> =
                driver_sdk::reference::rows(&spec).into_iter().filter(|row| row.description.is_empty()).collect();
            assert!(bare.is_empty(), "{bare:?}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused() {
        let valid = TaskOptions {
            hang: vec!["stop".into()],
            driver_port_map: "http:80 db:5432".into(),
            ..TaskOptions::default()
        };
        assert_eq!(valid.validate(), Ok(()));
        assert_eq!(valid.ports().expect("fits")["db"], 5432);
        let hang = TaskOptions { hang: vec!["stopp".into()], ..TaskOptions::default() };
        assert!(hang.validate().expect_err("misspelt").to_string().contains("\"stopp\" is no call; there are start"));
        let deaf = ExecOptions { signal_error: "no".into(), ..ExecOptions::default() };
        let deaf = TaskOptions { exec_command: Some(deaf), ..TaskOptions::default() };
        assert!(
            deaf.validate()
                .expect_err("no signal reaches it")
                .to_string()
                .contains("exec_command.signal_error is not supported")
        );
        for ports in ["http", "http:x", "http:70000"] {
            let wrong = TaskOptions { driver_port_map: ports.into(), ..TaskOptions::default() };
            assert!(wrong.validate().is_err(), "{ports}");
        }
        assert!(Faults { lose: vec!["start".into()], ..Faults::default() }.validate().is_err());
        let valid = RemoteOptions { watch_interval: Duration::from_millis(50), ..RemoteOptions::default() };
        assert_eq!(valid.validate(), Ok(()));
        assert!(RemoteOptions { without: vec!["keys".into()], ..valid.clone() }.validate().is_err());
        assert!(RemoteOptions { caller: "../a".into(), ..valid.clone() }.validate().is_err());
        assert!(RemoteOptions { watch_interval: Duration::ZERO, ..valid }.validate().is_err());
    }
}
