//! What a task of ECS says about its instance.

use std::collections::BTreeMap;
use std::time::SystemTime;

use aws::absence::gone;
use aws::ends::{attributes, strange, with_code, without_code};
use aws_sdk_ecs::primitives::DateTime;
use aws_sdk_ecs::types::{Container, Task, TaskStopCode};
use driver_sdk::{InstanceState, Observation, TaskExit};

use crate::marks::Marks;

fn time(at: Option<&DateTime>) -> Option<SystemTime> {
    at.and_then(|at| SystemTime::try_from(*at).ok())
}

/// The container that counts: the one with this name, else the only one.
fn counting<'t>(task: &'t Task, name: &str) -> Option<&'t Container> {
    let named = task.containers().iter().find(|c| c.name() == Some(name));
    named.or_else(|| task.containers().first().filter(|_| name.is_empty() || task.containers().len() == 1))
}

/// The provider itself has ended the task.
fn taken_away(code: Option<&TaskStopCode>) -> Option<&'static str> {
    match code? {
        TaskStopCode::SpotInterruption => Some("the capacity was taken back (spot interruption)"),
        TaskStopCode::TerminationNotice => Some("its host was taken away (termination notice)"),
        _ => None,
    }
}

fn reason(task: &Task, container: Option<&Container>) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let Some(why) = taken_away(task.stop_code()) {
        parts.push(why.to_owned());
    }
    if task.stop_code() == Some(&TaskStopCode::TaskFailedToStart) {
        parts.push("the task could not be started".to_owned());
    }
    parts.extend(
        [task.stopped_reason(), container.and_then(|c| c.reason())]
            .into_iter()
            .flatten()
            .filter(|r| !r.is_empty())
            .map(str::to_owned),
    );
    parts.join("; ")
}

/// How a stopped task has ended.
fn exit(task: &Task, container: Option<&Container>) -> TaskExit {
    let oom_killed = container.and_then(|c| c.reason()).is_some_and(|r| r.starts_with("OutOfMemory"));
    match container.and_then(|c| c.exit_code()) {
        // A task that gave way in an orderly manner has not done its work.
        Some(0) if taken_away(task.stop_code()).is_some() => without_code("ECS", reason(task, container), oom_killed),
        Some(code) => with_code(code, oom_killed),
        None => without_code("ECS", reason(task, container), oom_killed),
    }
}

/// Address of the task's own, if it has one.
fn address(task: &Task) -> String {
    let detail = |name: &str| {
        let details = task.attachments().iter().flat_map(|a| a.details());
        details.filter(|d| d.name() == Some(name)).find_map(|d| d.value()).map(str::to_owned)
    };
    let of_container = || {
        let interfaces = task.containers().iter().flat_map(|c| c.network_interfaces());
        interfaces.filter_map(|i| i.private_ipv4_address()).map(str::to_owned).next()
    };
    detail("privateIPv4Address").or_else(of_container).unwrap_or_default()
}

/// Label → port at the task's address. On an address of its own the port is the container's; elsewhere the host's port
/// counts.
fn port_map(task: &Task, marks: &Marks) -> BTreeMap<String, i32> {
    let outside = |port: u16| {
        let bindings = task.containers().iter().flat_map(|c| c.network_bindings());
        bindings
            .filter(|b| b.container_port() == Some(i32::from(port)))
            .find_map(|b| b.host_port())
            .unwrap_or(i32::from(port))
    };
    marks.ports.iter().map(|(label, port)| (label.clone(), outside(*port))).collect()
}

/// The state that a status of ECS means; `None` for one that is not known.
fn state(status: &str) -> Option<InstanceState> {
    match status {
        "PROVISIONING" | "PENDING" | "ACTIVATING" => Some(InstanceState::Creating),
        // What is being ended has not ended: only STOPPED is confirmed.
        "RUNNING" | "DEACTIVATING" | "STOPPING" | "DEPROVISIONING" => Some(InstanceState::Running),
        "STOPPED" => Some(InstanceState::Exited),
        "DELETED" => Some(InstanceState::Gone),
        _ => None,
    }
}

/// What a task says about the instance of its key.
pub(crate) fn observation(task: &Task, marks: &Marks) -> Observation {
    let status = task.last_status().unwrap_or_default();
    let Some(state) = state(status) else {
        return strange("ECS", "task", status, marks);
    };
    if state == InstanceState::Gone || (state == InstanceState::Exited && marks.acknowledged) {
        return gone(&marks.key);
    }
    let container = counting(task, &marks.container);
    let ended = state == InstanceState::Exited;
    let facts = [
        ("status", Some(status)),
        ("task_definition", task.task_definition_arn()),
        ("launch_type", task.launch_type().map(|l| l.as_str())),
        ("capacity_provider", task.capacity_provider_name()),
        ("availability_zone", task.availability_zone()),
        ("container_instance", task.container_instance_arn()),
        ("health", task.health_status().map(|h| h.as_str()).filter(|h| *h != "UNKNOWN")),
        ("stop_code", task.stop_code().map(|s| s.as_str())),
    ];
    Observation {
        key: marks.key.clone(),
        state,
        exit: if ended { exit(task, container) } else { TaskExit::default() },
        reason: if ended { reason(task, container) } else { String::new() },
        started_at: time(task.started_at()),
        finished_at: time(task.stopped_at()).filter(|_| ended),
        provider_id: task.task_arn().unwrap_or_default().to_owned(),
        address: address(task),
        port_map: port_map(task, marks),
        attributes: attributes(facts),
        epoch: marks.epoch,
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_ecs::types::{Attachment, KeyValuePair, NetworkBinding};

    use super::*;

    fn marks() -> Marks {
        Marks {
            key: "k".into(),
            owner: "o".into(),
            epoch: 3,
            container: "main".into(),
            ports: [("http".to_owned(), 80)].into(),
            ..Marks::default()
        }
    }

    fn container(code: Option<i32>, reason: &str) -> Container {
        Container::builder().name("main").set_exit_code(code).reason(reason).build()
    }

    fn stopped(code: TaskStopCode, reason: &str, containers: Vec<Container>) -> Observation {
        let task = Task::builder()
            .last_status("STOPPED")
            .stop_code(code)
            .stopped_reason(reason)
            .set_containers(Some(containers))
            .build();
        observation(&task, &marks())
    }

    #[test]
    fn statuses_are_states() {
        let table = [
            ("PROVISIONING", InstanceState::Creating),
            ("PENDING", InstanceState::Creating),
            ("ACTIVATING", InstanceState::Creating),
            ("RUNNING", InstanceState::Running),
            ("DEACTIVATING", InstanceState::Running),
            ("STOPPING", InstanceState::Running),
            ("DEPROVISIONING", InstanceState::Running),
            ("STOPPED", InstanceState::Exited),
            ("DELETED", InstanceState::Gone),
            ("DREAMING", InstanceState::Unknown),
            ("", InstanceState::Unknown),
        ];
        for (status, wanted) in table {
            let seen = observation(&Task::builder().last_status(status).build(), &marks());
            assert_eq!(seen.state, wanted, "{status}");
            assert_eq!(seen.key, "k");
        }
    }

    #[test]
    fn ends_are_told_with_their_reasons() {
        type End = (TaskStopCode, &'static str, Option<i32>, &'static str, (i32, i32, bool), &'static str);
        let table: [End; 8] = [
            (
                TaskStopCode::EssentialContainerExited,
                "Essential container in task exited",
                Some(0),
                "",
                (0, 0, false),
                "Essential",
            ),
            (TaskStopCode::EssentialContainerExited, "", Some(3), "", (3, 0, false), ""),
            (TaskStopCode::UserInitiated, "asked for", Some(143), "", (143, 15, false), "asked for"),
            (
                TaskStopCode::EssentialContainerExited,
                "Essential container in task exited",
                Some(137),
                "OutOfMemoryError: Container killed due to memory usage",
                (137, 9, true),
                "OutOfMemoryError",
            ),
            (
                TaskStopCode::TaskFailedToStart,
                "CannotPullContainerError: no such image",
                None,
                "",
                (-1, 0, false),
                "could not be started",
            ),
            (
                TaskStopCode::SpotInterruption,
                "Your Spot Task was interrupted.",
                Some(137),
                "",
                (137, 9, false),
                "spot interruption",
            ),
            // Not its work: what the provider took away in an orderly manner is no success.
            (TaskStopCode::SpotInterruption, "", Some(0), "", (-1, 0, false), "spot interruption"),
            (TaskStopCode::TerminationNotice, "", Some(0), "", (-1, 0, false), "termination notice"),
        ];
        for (code, why, exit, of_container, wanted, said) in table {
            let seen = stopped(code.clone(), why, vec![container(exit, of_container)]);
            assert_eq!((seen.exit.exit_code, seen.exit.signal, seen.exit.oom_killed), wanted, "{code:?} {why}");
            assert!(seen.reason.contains(said), "{code:?}: {:?}", seen.reason);
            assert_eq!(seen.exit.error.is_some(), wanted.0 == -1, "{code:?}");
        }
        // Whatever is missing in the answer, an end without a code is never taken for a success.
        assert_eq!(stopped(TaskStopCode::from("New"), "", Vec::new()).exit.exit_code, -1);
    }

    #[test]
    fn the_container_that_counts_is_the_named_one() {
        let side = Container::builder().name("side").exit_code(9).build();
        let seen = stopped(TaskStopCode::EssentialContainerExited, "", vec![side.clone(), container(Some(4), "")]);
        assert_eq!(seen.exit.exit_code, 4);
        // A name that is not there is not another one's result, unless there is only one.
        assert_eq!(stopped(TaskStopCode::EssentialContainerExited, "", vec![side.clone()]).exit.exit_code, 9);
        assert_eq!(stopped(TaskStopCode::EssentialContainerExited, "", vec![side.clone(), side]).exit.exit_code, -1);
    }

    #[test]
    fn addresses_and_ports_are_told() {
        let detail = KeyValuePair::builder().name("privateIPv4Address").value("10.0.0.7").build();
        let task =
            Task::builder().last_status("RUNNING").attachments(Attachment::builder().details(detail).build()).build();
        let seen = observation(&task, &marks());
        assert_eq!((seen.address.as_str(), seen.port_map["http"]), ("10.0.0.7", 80));
        let bound = Container::builder()
            .network_bindings(NetworkBinding::builder().container_port(80).host_port(32_768).build())
            .build();
        let seen = observation(&Task::builder().last_status("RUNNING").containers(bound).build(), &marks());
        assert_eq!((seen.address.as_str(), seen.port_map["http"]), ("", 32_768));
    }

    #[test]
    fn an_acknowledged_end_is_no_instance_any_more() {
        let acknowledged = Marks { acknowledged: true, ..marks() };
        assert_eq!(
            observation(&Task::builder().last_status("STOPPED").build(), &acknowledged).state,
            InstanceState::Gone
        );
        // Nobody acknowledges what runs; if somebody has, it runs.
        assert_eq!(
            observation(&Task::builder().last_status("RUNNING").build(), &acknowledged).state,
            InstanceState::Running
        );
    }
}
