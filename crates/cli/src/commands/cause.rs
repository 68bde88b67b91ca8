//! Why a task does not do what it should: its exit in words, the driver's error, the end of its standard error, its
//! failing checks. What the restart policy made of it is not the cause, so it is not told here.

use std::time::Duration;

use api::call;
use model::{AllocId, Allocation, CheckResult, CheckStatus, DesiredStatus, TaskEvent, TaskRunState, TaskState};

use super::signals;
use crate::conn::Conn;

/// Lines of standard error that are shown with a cause.
const LINES: usize = 5;
/// Characters of a line that are shown.
const WIDTH: usize = 240;
/// How much of standard error is asked for.
const TAIL_BYTES: u32 = 4096;
/// How long the node may take to hand out what explains a failure.
const PATIENCE: Duration = Duration::from_secs(3);

/// What went wrong with a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// The task.
    pub(crate) task: String,
    /// The cause in one line.
    pub(crate) text: String,
    /// The task has run, so that its standard error may say more.
    pub(crate) ran: bool,
    /// When it happened, Unix ns.
    pub(crate) at: i64,
}

/// How a process has ended. Shells and runtimes tell a death by signal as 128 + its number.
pub(crate) fn exit_text(code: i32, signal: i32, out_of_memory: bool) -> String {
    let named = |n: i32| signals::name(n).map_or_else(|| format!("signal {n}"), str::to_owned);
    let text = match (code, signal) {
        (_, s) if s != 0 => format!("killed by {}", named(s)),
        (c, _) if c > 128 && signals::name(c - 128).is_some() => format!("exit code {c} ({})", named(c - 128)),
        (c, _) => format!("exit code {c}"),
    };
    if out_of_memory { format!("{text}, out of memory") } else { text }
}

/// The last thing that ended or prevented a run of the task.
fn decisive(task: &TaskState) -> Option<&TaskEvent> {
    let tells = |e: &TaskEvent| match e.kind.as_str() {
        // What follows from a cause, not the cause.
        "Not Restarting" | "Restarting" | "Killed" | "Sibling Task Failed" | "Leader Task Dead" => false,
        "Terminated" | "Setup Failure" | "Failed Artifact Download" | "Driver Failure" => true,
        _ => e.fails_task || !e.driver_error.is_empty(),
    };
    task.events.iter().rev().find(|e| tells(e))
}

fn cause_of(name: &str, task: &TaskState) -> Option<Cause> {
    let event = decisive(task)?;
    let cause = |text: String, ran: bool| Cause { task: name.to_owned(), text, ran, at: event.time };
    if event.kind == "Terminated" {
        let oom = event.details.get("oom_killed").is_some_and(|v| v == "true");
        let text = exit_text(event.exit_code, event.signal, oom);
        return Some(cause(if event.message.is_empty() { text } else { format!("{text}: {}", event.message) }, true));
    }
    let text = [&event.driver_error, &event.display_message, &event.message]
        .into_iter()
        .find(|t| !t.is_empty())
        .unwrap_or(&event.kind);
    Some(cause(text.clone(), false))
}

/// What went wrong in an allocation: of each task that has failed, or that waits to be started again.
pub(crate) fn causes(a: &Allocation) -> Vec<Cause> {
    let wanted = a.desired_status == DesiredStatus::Run;
    let troubled = |t: &TaskState| {
        t.failed || (wanted && t.state == TaskRunState::Pending && (t.restarts > 0 || decisive(t).is_some()))
    };
    let mut found: Vec<Cause> =
        a.task_states.iter().filter(|(_, t)| troubled(t)).filter_map(|(n, t)| cause_of(n, t)).collect();
    if found.is_empty() && a.client_status == model::ClientStatus::Failed && !a.client_description.is_empty() {
        // No task had a part in it: the node could not prepare the allocation.
        found.push(Cause {
            task: String::new(),
            text: a.client_description.to_string(),
            ran: false,
            at: a.modify_time,
        });
    }
    found
}

/// The last lines of a text, long ones cut.
fn last_lines(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    let cut = |l: &&str| {
        if l.chars().count() > WIDTH {
            format!("{}…", l.chars().take(WIDTH).collect::<String>())
        } else {
            (*l).to_owned()
        }
    };
    lines[lines.len().saturating_sub(LINES)..].iter().map(cut).collect()
}

/// The end of a task's standard error. The node may be away or the logs gone: then there is none.
pub(crate) async fn stderr_tail(conn: &Conn, alloc: AllocId, task: &str) -> Vec<String> {
    let logs = call::alloc_files("logs", alloc)
        .with("task", task)
        .with("type", "stderr")
        .with("plain", true)
        .with("follow", false);
    match tokio::time::timeout(PATIENCE, conn.text(logs.with("origin", "end").with("offset", TAIL_BYTES))).await {
        Ok(Ok(text)) => last_lines(&text),
        _ => Vec::new(),
    }
}

/// A cause as lines: what happened, then what the task has said last.
pub(crate) async fn explained(conn: &Conn, alloc: AllocId, cause: &Cause) -> Vec<String> {
    let head =
        if cause.task.is_empty() { cause.text.clone() } else { format!("task {:?}: {}", cause.task, cause.text) };
    let mut lines = vec![head];
    if cause.ran {
        lines.extend(stderr_tail(conn, alloc, &cause.task).await.into_iter().map(|l| format!("  stderr: {l}")));
    }
    lines
}

/// All that is known of why an allocation is not well, as lines; empty when nothing is.
pub(crate) async fn of_alloc(conn: &Conn, a: &Allocation) -> Vec<String> {
    let mut lines = Vec::new();
    for cause in causes(a) {
        lines.extend(explained(conn, a.id, &cause).await);
    }
    if a.desired_status == DesiredStatus::Run && !a.client_terminal() {
        lines.extend(failing_checks(conn, a.id).await.iter().map(|c| check_text(c, 1)));
    }
    lines
}

/// The checks of an allocation that fail now. Its node may be away: then none are known.
pub(crate) async fn failing_checks(conn: &Conn, alloc: AllocId) -> Vec<CheckResult> {
    match tokio::time::timeout(PATIENCE, conn.ask(call::alloc_node_checks(alloc))).await {
        Ok(Ok(all)) => all.into_values().filter(|c| c.status == CheckStatus::Failure).collect(),
        _ => Vec::new(),
    }
}

/// A failing check in one line.
pub(crate) fn check_text(check: &CheckResult, times: u32) -> String {
    let often = if times > 1 { format!(" {times} times") } else { String::new() };
    let said = last_lines(&check.output).join(" ");
    let code = if said.is_empty() && check.status_code != 0 {
        format!(": status {}", check.status_code)
    } else {
        String::new()
    };
    format!(
        "check {:?} failing{often}{code}{}",
        check.check,
        if said.is_empty() { String::new() } else { format!(": {said}") }
    )
}

#[cfg(test)]
mod tests {
    use model::{ClientStatus, Happening};

    use super::*;

    #[test]
    fn exits_are_named() {
        for (code, signal, oom, text) in [
            (3, 0, false, "exit code 3"),
            (139, 0, false, "exit code 139 (SIGSEGV)"),
            (137, 0, true, "exit code 137 (SIGKILL), out of memory"),
            (0, 11, false, "killed by SIGSEGV"),
            (0, 40, false, "killed by signal 40"),
            (255, 0, false, "exit code 255"),
        ] {
            assert_eq!(exit_text(code, signal, oom), text);
        }
    }

    fn event(kind: &str, text: &str, fails: bool) -> TaskEvent {
        Happening { kind: kind.into(), display_message: text.into(), fails_task: fails, ..Happening::default() }.at(7)
    }

    fn alloc(state: TaskRunState, failed: bool, events: Vec<TaskEvent>) -> Allocation {
        let task = TaskState { state, failed, restarts: 1, events, ..TaskState::default() };
        Allocation { task_states: [("t".into(), task)].into_iter().collect(), ..Allocation::default() }
    }

    #[test]
    fn the_cause_is_told_not_the_policy() {
        let ended = Happening { kind: "Terminated".into(), exit_code: 3, ..Happening::default() }.at(5);
        let a = alloc(
            TaskRunState::Dead,
            true,
            vec![ended.clone(), event("Not Restarting", "Exceeded allowed attempts", true)],
        );
        assert_eq!(causes(&a), [Cause { task: "t".into(), text: "exit code 3".into(), ran: true, at: 5 }]);
        let a = alloc(
            TaskRunState::Pending,
            false,
            vec![ended.clone(), event("Restarting", "Task restarting in 1s", false)],
        );
        assert_eq!(causes(&a)[0].text, "exit code 3");
        let a = alloc(
            TaskRunState::Dead,
            true,
            vec![
                event("Driver Failure", "no such file: /bin/nope", false),
                event("Not Restarting", "Error was unrecoverable", true),
            ],
        );
        assert_eq!((causes(&a)[0].text.as_str(), causes(&a)[0].ran), ("no such file: /bin/nope", false));
        // It runs again, or has ended well: nothing to tell.
        assert!(causes(&alloc(TaskRunState::Running, false, vec![ended.clone()])).is_empty());
        assert!(causes(&alloc(TaskRunState::Dead, false, vec![ended])).is_empty());
        let a = Allocation {
            client_status: ClientStatus::Failed,
            client_description: "no bridge".into(),
            ..Allocation::default()
        };
        assert_eq!(causes(&a)[0].text, "no bridge");
    }

    #[test]
    fn checks_say_what_they_saw() {
        let check = CheckResult {
            check: "web".into(),
            output: "connect to 192.0.2.2:1: Connection refused\n".into(),
            ..CheckResult::default()
        };
        assert_eq!(check_text(&check, 8), "check \"web\" failing 8 times: connect to 192.0.2.2:1: Connection refused");
        let check = CheckResult { check: "web".into(), status_code: 503, ..CheckResult::default() };
        assert_eq!(check_text(&check, 1), "check \"web\" failing: status 503");
    }

    #[test]
    fn the_end_of_a_text_is_short() {
        assert_eq!(last_lines("1\n2\n\n3\n4\n5\n6\n"), ["2", "3", "4", "5", "6"]);
        assert_eq!(last_lines(&"x".repeat(500))[0].chars().count(), WIDTH + 1);
    }
}
