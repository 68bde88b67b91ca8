//! Events of tasks: kinds, details and texts that clients of the API know.

use std::collections::BTreeMap;

use model::{GoDuration, Happening, TaskEvent, TaskState, TimestampNs, alloc::CUT_OFF};

/// Kinds of events.
pub mod kind {
    /// The node has it.
    pub const RECEIVED: &str = "Received";
    /// Preparation.
    pub const SETUP: &str = "Task Setup";
    /// Preparation failed.
    pub const SETUP_FAILURE: &str = "Setup Failure";
    /// The driver refuses the configuration.
    pub const FAILED_VALIDATION: &str = "Failed Validation";
    /// Artifacts are fetched.
    pub const DOWNLOADING_ARTIFACTS: &str = "Downloading Artifacts";
    /// An artifact could not be fetched.
    pub const ARTIFACT_DOWNLOAD_FAILED: &str = "Failed Artifact Download";
    /// News about the task's workload identities.
    pub const IDENTITY: &str = "Identity";
    /// News about the task's templates.
    pub const TEMPLATE: &str = "Template";
    /// News about the task's token of Vault.
    pub const VAULT: &str = "Vault";
    /// News about the network of the task's group.
    pub const NETWORK: &str = "Network";
    /// It runs.
    pub const STARTED: &str = "Started";
    /// It has ended.
    pub const TERMINATED: &str = "Terminated";
    /// It will be started again.
    pub const RESTARTING: &str = "Restarting";
    /// It will not.
    pub const NOT_RESTARTING: &str = "Not Restarting";
    /// It is being stopped.
    pub const KILLING: &str = "Killing";
    /// It was stopped.
    pub const KILLED: &str = "Killed";
    /// The driver could not start it.
    pub const DRIVER_FAILURE: &str = "Driver Failure";
    /// A message of the driver.
    pub const DRIVER: &str = "Driver";
    /// A signal is sent.
    pub const SIGNALING: &str = "Signaling";
    /// A restart was ordered.
    pub const RESTART_SIGNALED: &str = "Restart Signaled";
    /// The leader has ended.
    pub const LEADER_DEAD: &str = "Leader Task Dead";
    /// Another task has failed.
    pub const SIBLING_FAILED: &str = "Sibling Task Failed";
    /// All main tasks have ended, so a sidecar stops.
    pub const MAIN_DEAD: &str = "Main Tasks Dead";
    /// The driver could not recover the task.
    pub const RESTORE_FAILED: &str = "Failed Restoring Task";
    /// The allocation did not become healthy.
    pub const ALLOC_UNHEALTHY: &str = "Alloc Unhealthy";
    /// A service is not registered, or a check of it asks for a restart.
    pub const SERVICE: &str = "Service";
    /// The stop waits for `shutdown_delay`.
    pub const SHUTDOWN_DELAY: &str = "Waiting for shutdown delay";
    /// The stop skips `shutdown_delay`.
    pub const SKIP_SHUTDOWN_DELAY: &str = "Skipping shutdown delay";
    /// The node is connected again after the servers had counted it as lost.
    pub const RECONNECTED: &str = "Reconnected";
}

const KEPT: usize = 10;

/// Adds an event; the oldest go.
pub fn push(state: &mut TaskState, event: TaskEvent) {
    if event.fails_task {
        state.failed = true;
    }
    let surplus = (state.events.len() + 1).saturating_sub(KEPT);
    state.events.drain(..surplus);
    // Most tasks have two or three, and nodes thousands of tasks: no room for more.
    state.events.reserve_exact(1);
    state.events.push(event);
}

fn event(kind: &str, text: impl Into<String>) -> Happening {
    Happening { kind: kind.to_owned(), display_message: text.into(), ..Happening::default() }
}

fn with(mut what: Happening, details: impl IntoIterator<Item = (&'static str, String)>) -> Happening {
    what.details.extend(details.into_iter().map(|(k, v)| (k.to_owned(), v)));
    what
}

/// The node has the task.
pub fn received(now: TimestampNs) -> TaskEvent {
    event(kind::RECEIVED, "Task received by client").at(now)
}

/// Preparation, named.
pub fn setup(now: TimestampNs, what: &str) -> TaskEvent {
    let mut e = with(event(kind::SETUP, what), [("message", what.to_owned())]);
    e.message = what.to_owned();
    e.at(now)
}

/// Preparation failed.
pub fn setup_failure(now: TimestampNs, why: &str, fails_task: bool) -> TaskEvent {
    let mut e = with(event(kind::SETUP_FAILURE, why), [("setup_error", why.to_owned())]);
    e.fails_task = fails_task;
    with(e, fails_task.then(|| ("fails_task", "true".to_owned()))).at(now)
}

/// The driver refuses the configuration.
pub fn failed_validation(now: TimestampNs, why: &str) -> TaskEvent {
    let mut e = with(
        event(kind::FAILED_VALIDATION, why),
        [("validation_error", why.to_owned()), ("fails_task", "true".to_owned())],
    );
    e.fails_task = true;
    e.at(now)
}

/// Artifacts are fetched.
pub fn downloading(now: TimestampNs) -> TaskEvent {
    event(kind::DOWNLOADING_ARTIFACTS, "Client is downloading artifacts").at(now)
}

/// An artifact could not be fetched.
pub fn artifact_failed(now: TimestampNs, why: &str) -> TaskEvent {
    with(event(kind::ARTIFACT_DOWNLOAD_FAILED, why), [("download_error", why.to_owned())]).at(now)
}

/// News about the task's templates.
pub fn template(now: TimestampNs, what: &str) -> TaskEvent {
    let mut e = with(event(kind::TEMPLATE, what), [("message", what.to_owned())]);
    e.message = what.to_owned();
    e.at(now)
}

/// A signal is sent because a template has changed.
pub fn template_signaling(now: TimestampNs, signal: &str) -> TaskEvent {
    signaling_because(now, signal, "Template re-rendered")
}

/// News about the task's workload identities.
pub fn identity(now: TimestampNs, what: &str) -> TaskEvent {
    let mut e = with(event(kind::IDENTITY, what), [("message", what.to_owned())]);
    e.message = what.to_owned();
    e.at(now)
}

/// News about the network of the task's group.
pub fn network(now: TimestampNs, what: &str) -> TaskEvent {
    let mut e = with(event(kind::NETWORK, what), [("message", what.to_owned())]);
    e.message = what.to_owned();
    e.at(now)
}

/// A signal is sent because a token has been renewed.
pub fn identity_signaling(now: TimestampNs, signal: &str, identity: &str) -> TaskEvent {
    signaling_because(now, signal, &format!("Token of identity {identity:?} renewed"))
}

/// A signal is sent, and why.
pub fn signaling_because(now: TimestampNs, signal: &str, why: &str) -> TaskEvent {
    let text = format!("Task being sent signal {signal}: {why}");
    with(event(kind::SIGNALING, text), [("task_signal", signal.to_owned()), ("task_signal_reason", why.to_owned())])
        .at(now)
}

/// News about the task's token of Vault.
pub fn vault(now: TimestampNs, what: &str) -> TaskEvent {
    let mut e = with(event(kind::VAULT, what), [("message", what.to_owned())]);
    e.message = what.to_owned();
    e.at(now)
}

/// A check asks for a restart.
pub fn check_unhealthy(now: TimestampNs, why: &str) -> TaskEvent {
    let mut e =
        with(event(kind::RESTART_SIGNALED, format!("healthcheck: {why}")), [("restart_reason", why.to_owned())]);
    e.restart_reason = why.to_owned();
    e.at(now)
}

/// A check asks for a restart, but the state of the instance is unknown.
pub fn check_in_doubt(now: TimestampNs, why: &str) -> TaskEvent {
    event(kind::SERVICE, format!("{why}: the task is not restarted while its provider cannot say how it is")).at(now)
}

/// A service is not registered or not checked.
pub fn service_problem(now: TimestampNs, service: &str, why: &str) -> TaskEvent {
    event(kind::SERVICE, format!("Service {service:?} {why}")).at(now)
}

/// It runs.
pub fn started(now: TimestampNs) -> TaskEvent {
    event(kind::STARTED, "Task started by client").at(now)
}

/// It runs, as it did before this allocation.
pub fn adopted(now: TimestampNs) -> TaskEvent {
    event(kind::STARTED, "Task adopted: its instance runs since before this allocation").at(now)
}

/// It has ended.
pub fn terminated(now: TimestampNs, code: i32, signal: i32, oom: bool, message: &str) -> TaskEvent {
    let mut text = format!("Exit Code: {code}");
    if signal != 0 {
        text.push_str(&format!(", Signal: {signal}"));
    }
    if !message.is_empty() {
        text.push_str(&format!(", Exit Message: {message:?}"));
    }
    let mut e = with(
        event(kind::TERMINATED, text),
        [("exit_code", code.to_string()), ("signal", signal.to_string()), ("oom_killed", oom.to_string())],
    );
    if !message.is_empty() {
        e.details.insert("exit_message".into(), message.to_owned());
    }
    e.message = message.to_owned();
    e.exit_code = code;
    e.signal = signal;
    e.at(now)
}

/// It will be started again.
pub fn restarting(now: TimestampNs, delay: GoDuration, reason: &str) -> TaskEvent {
    let text = format!("Task restarting in {delay}");
    let text = if reason.is_empty() || reason == "Restart within policy" { text } else { format!("{reason} - {text}") };
    let mut e = with(
        event(kind::RESTARTING, text),
        [("start_delay", delay.nanos().to_string()), ("restart_reason", reason.to_owned())],
    );
    e.restart_reason = reason.to_owned();
    e.at(now)
}

/// It will not be started again.
pub fn not_restarting(now: TimestampNs, reason: &str) -> TaskEvent {
    let text = if reason.is_empty() { "Task exceeded restart policy" } else { reason };
    let mut e = with(
        event(kind::NOT_RESTARTING, text),
        [("restart_reason", reason.to_owned()), ("fails_task", "true".to_owned())],
    );
    e.restart_reason = reason.to_owned();
    e.fails_task = true;
    e.at(now)
}

/// With the mark that tells the servers of an end that nobody has ordered.
fn marked(what: Happening, cut_off: bool) -> Happening {
    with(what, cut_off.then(|| (CUT_OFF, "true".to_owned())))
}

fn kill(timeout: GoDuration, reason: &str) -> Happening {
    let text = if reason.is_empty() {
        format!("Sent interrupt. Waiting {timeout} before force killing")
    } else {
        reason.to_owned()
    };
    let e = with(event(kind::KILLING, text), [("kill_timeout", timeout.to_string())]);
    with(e, (!reason.is_empty()).then(|| ("kill_reason", reason.to_owned())))
}

/// It is being stopped; `cut_off`: see [`CUT_OFF`].
pub fn killing(now: TimestampNs, timeout: GoDuration, reason: &str, cut_off: bool) -> TaskEvent {
    marked(kill(timeout, reason), cut_off).at(now)
}

/// It is being stopped because it cannot go on: it has failed.
pub fn killing_failed(now: TimestampNs, timeout: GoDuration, reason: &str) -> TaskEvent {
    Happening { fails_task: true, ..kill(timeout, reason) }.at(now)
}

/// It was stopped; `cut_off`: see [`CUT_OFF`].
pub fn killed(now: TimestampNs, error: &str, cut_off: bool) -> TaskEvent {
    let text = if error.is_empty() { "Task successfully killed" } else { error };
    let e = with(event(kind::KILLED, text), (!error.is_empty()).then(|| ("kill_error", error.to_owned())));
    marked(e, cut_off).at(now)
}

/// The driver could not start it.
pub fn driver_failure(now: TimestampNs, why: &str) -> TaskEvent {
    let mut e = with(event(kind::DRIVER_FAILURE, why), [("driver_error", why.to_owned())]);
    e.driver_error = why.to_owned();
    e.at(now)
}

/// A message of the driver.
pub fn driver(now: TimestampNs, message: &str, annotations: &BTreeMap<String, String>) -> TaskEvent {
    let mut e = event(kind::DRIVER, message);
    e.details.extend(annotations.clone());
    e.details.insert("driver_message".into(), message.to_owned());
    e.at(now)
}

/// A signal is sent.
pub fn signaling(now: TimestampNs, signal: &str) -> TaskEvent {
    with(event(kind::SIGNALING, format!("Task being sent signal {signal}")), [("signal", signal.to_owned())]).at(now)
}

/// Reason of a restart that an operator ordered for one task.
pub const BY_USER: &str = "User requested task to restart";
/// Reason of a restart that an operator ordered for all running tasks.
pub const RUNNING_BY_USER: &str = "User requested running tasks to restart";
/// Reason of a restart that an operator ordered for all tasks, ended ones included.
pub const ALL_BY_USER: &str = "User requested all tasks to restart";
/// Reason of a restart that a changed template asks for.
pub const BY_TEMPLATE: &str = "Template with change_mode restart re-rendered";

/// A restart was ordered.
pub fn restart_signaled(now: TimestampNs, why: &str) -> TaskEvent {
    with(event(kind::RESTART_SIGNALED, why), [("restart_reason", why.to_owned())]).at(now)
}

/// The leader has ended.
pub fn leader_dead(now: TimestampNs) -> TaskEvent {
    event(kind::LEADER_DEAD, "Leader Task in Group dead").at(now)
}

/// Another task has failed.
pub fn sibling_failed(now: TimestampNs, sibling: &str) -> TaskEvent {
    with(
        event(kind::SIBLING_FAILED, format!("Task's sibling {sibling:?} failed")),
        [("failed_sibling", sibling.to_owned())],
    )
    .at(now)
}

/// All main tasks have ended, so a sidecar stops.
pub fn main_dead(now: TimestampNs) -> TaskEvent {
    event(kind::MAIN_DEAD, "Main tasks in the group died").at(now)
}

/// The driver could not recover the task.
pub fn restore_failed(now: TimestampNs, why: &str) -> TaskEvent {
    with(
        event(kind::RESTORE_FAILED, format!("Task could not be found again: {why}")),
        [("driver_error", why.to_owned())],
    )
    .at(now)
}

/// The allocation did not become healthy.
pub fn alloc_unhealthy(now: TimestampNs, why: &str) -> TaskEvent {
    with(event(kind::ALLOC_UNHEALTHY, why), [("message", why.to_owned())]).at(now)
}

/// The stop waits for `shutdown_delay`, or an operator skips it.
pub fn shutdown_delay(now: TimestampNs, delay: GoDuration, skip: bool) -> TaskEvent {
    let (kind, what) =
        if skip { (kind::SKIP_SHUTDOWN_DELAY, "Skipping") } else { (kind::SHUTDOWN_DELAY, "Waiting for") };
    event(kind, format!("{what} shutdown_delay of {delay} before killing the task.")).at(now)
}

/// The node is connected again after the servers had counted it as lost.
pub fn reconnected(now: TimestampNs) -> TaskEvent {
    event(kind::RECONNECTED, "Client reconnected").at(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_people_know() {
        for (event, expected) in [
            (terminated(1, 0, 0, false, ""), "Exit Code: 0"),
            (terminated(1, 137, 9, true, "gone"), "Exit Code: 137, Signal: 9, Exit Message: \"gone\""),
            (restarting(1, GoDuration::from_secs(15), "Restart within policy"), "Task restarting in 15s"),
            (restarting(1, GoDuration::from_millis(1500), "x"), "x - Task restarting in 1.5s"),
            (killing(1, GoDuration::from_secs(5), "", true), "Sent interrupt. Waiting 5s before force killing"),
            (killed(1, "", true), "Task successfully killed"),
            (reconnected(1), "Client reconnected"),
            (
                shutdown_delay(1, GoDuration::from_secs(2), false),
                "Waiting for shutdown_delay of 2s before killing the task.",
            ),
            (
                shutdown_delay(1, GoDuration::from_secs(2), true),
                "Skipping shutdown_delay of 2s before killing the task.",
            ),
            (not_restarting(1, ""), "Task exceeded restart policy"),
        ] {
            assert_eq!(event.display_message, expected, "{}", event.kind);
        }
    }

    #[test]
    fn ten_events_are_kept_and_failures_stick() {
        let mut state = TaskState::default();
        push(&mut state, not_restarting(0, "r"));
        for n in 1..=11 {
            push(&mut state, received(n));
        }
        assert_eq!(state.events.len(), 10);
        assert_eq!(state.events[0].time, 2);
        assert!(state.failed);
    }
}
