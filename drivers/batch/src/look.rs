//! A job of Batch as an observation of its instance.

use std::time::{Duration, SystemTime};

use aws::LogPlace;
use aws::absence::gone;
use aws::ends::{attributes, strange, with_code, without_code};
use aws::marks::Marks;
use aws_sdk_batch::types::{JobDetail, JobStatus, LogDriver};
use driver_sdk::{InstanceState, Observation, TaskExit};

/// Log group of containers whose definition names none (RegisterJobDefinition, `logConfiguration`: the log driver is
/// awslogs by default).
pub(crate) const LOG_GROUP: &str = "/aws/batch/job";

/// Milliseconds since 1970; 0 = never.
pub(crate) fn time(at: Option<i64>) -> Option<SystemTime> {
    let at = u64::try_from(at?).ok().filter(|at| *at > 0)?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_millis(at))
}

/// The state that a status means (DescribeJobs, `status`); `None` for one that is not known.
fn state(status: Option<&JobStatus>) -> Option<InstanceState> {
    match status? {
        JobStatus::Submitted | JobStatus::Pending | JobStatus::Runnable | JobStatus::Starting => {
            Some(InstanceState::Creating)
        }
        JobStatus::Running => Some(InstanceState::Running),
        JobStatus::Succeeded | JobStatus::Failed => Some(InstanceState::Exited),
        _ => None,
    }
}

/// What the container and the job say, each once: of a container that could not be made only the attempt may tell.
fn reason(job: &JobDetail) -> String {
    let attempt = job.attempts().last();
    let of_attempt = attempt.and_then(|a| a.container()).and_then(|c| c.reason());
    let words = [job.container().and_then(|c| c.reason()).or(of_attempt), job.status_reason()];
    let mut parts: Vec<&str> = Vec::new();
    for word in words.into_iter().flatten().filter(|w| !w.is_empty()) {
        if !parts.iter().any(|part| part.contains(word)) {
            parts.push(word);
        }
    }
    let told = parts.join("; ");
    // TerminateJob and CancelJob: what was told to end says by which of them, and the reason that was given.
    let by_order = [(job.is_terminated(), "terminated"), (job.is_cancelled(), "cancelled before it started")];
    let by_order = by_order.into_iter().find(|(is, _)| *is == Some(true)).map(|(_, word)| word);
    let kind = match by_order {
        Some(word) => word,
        // Texts of the service: it has no codes for them.
        None if told.contains("OutOfMemoryError") => "out of memory",
        None if told.contains("CannotPullContainer") => "the image could not be pulled",
        None if told.contains("Host EC2") || told.contains("Spot Task was interrupted") => {
            "its host was taken away (Spot, or ended)"
        }
        None if told.contains("exceeded timeout") => "ended by its timeout",
        None => return told,
    };
    if told.is_empty() { kind.to_owned() } else { format!("{kind}: {told}") }
}

/// Exit result of an ended job. A FAILED one never counts as a success, whatever its container's exit code.
fn exit(job: &JobDetail) -> TaskExit {
    let told = reason(job);
    let oom_killed = told.contains("OutOfMemoryError");
    let succeeded = job.status() == Some(&JobStatus::Succeeded);
    let attempt = job.attempts().last().and_then(|a| a.container()).and_then(|c| c.exit_code());
    match job.container().and_then(|c| c.exit_code()).or(attempt) {
        // SUCCEEDED means that the exit code was 0.
        None if succeeded => TaskExit::default(),
        Some(code) if succeeded || code != 0 => with_code(code, oom_killed),
        _ => without_code("Batch", told, oom_killed),
    }
}

/// The observation of a job's instance.
pub(crate) fn observation(job: &JobDetail, marks: &Marks) -> Observation {
    let status = job.status().map(JobStatus::as_str).unwrap_or_default();
    let Some(state) = state(job.status()) else {
        return strange("Batch", "job", status, marks);
    };
    let ended = state == InstanceState::Exited;
    if ended && marks.acknowledged {
        return gone(&marks.key);
    }
    let container = job.container();
    let waits = state == InstanceState::Creating;
    let facts = [
        ("status", Some(status)),
        ("job_id", job.job_id()),
        ("job_definition", job.job_definition()),
        ("task", container.and_then(|c| c.task_arn())),
        ("container_instance", container.and_then(|c| c.container_instance_arn())),
        ("log_stream", container.and_then(|c| c.log_stream_name())),
    ];
    Observation {
        key: marks.key.clone(),
        state,
        exit: if ended { exit(job) } else { TaskExit::default() },
        // Of a job that does not start the service says why here (MISCONFIGURATION:…, CAPACITY:…).
        reason: match () {
            () if ended => reason(job),
            () if waits => job.status_reason().unwrap_or_default().to_owned(),
            () => String::new(),
        },
        started_at: time(job.started_at()),
        finished_at: time(job.stopped_at()).filter(|_| ended),
        provider_id: job.job_arn().unwrap_or_default().to_owned(),
        address: container
            .and_then(|c| c.network_interfaces().iter().find_map(|i| i.private_ipv4_address()))
            .unwrap_or_default()
            .to_owned(),
        attributes: attributes(facts),
        epoch: marks.epoch,
        ..Observation::default()
    }
}

/// Log stream of a job; `None`: it has not started, or has another log driver than awslogs.
pub(crate) fn log_of(job: &JobDetail) -> Option<LogPlace> {
    let container = job.container()?;
    let log = container.log_configuration();
    if log.is_some_and(|l| l.log_driver() != Some(&LogDriver::Awslogs)) {
        return None;
    }
    let option = |name: &str| log.and_then(|l| l.options()).and_then(|o| o.get(name)).cloned();
    Some(LogPlace {
        group: option("awslogs-group").unwrap_or_else(|| LOG_GROUP.to_owned()),
        region: option("awslogs-region").unwrap_or_default(),
        stream: container.log_stream_name().filter(|stream| !stream.is_empty())?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use aws_sdk_batch::types::{ContainerDetail, LogConfiguration};

    use super::*;

    fn marks() -> Marks {
        Marks { key: "k".into(), owner: "o".into(), epoch: 2, ..Marks::default() }
    }

    fn job(status: &str) -> aws_sdk_batch::types::builders::JobDetailBuilder {
        JobDetail::builder()
            .job_arn("arn")
            .job_name("n")
            .job_id("1")
            .status(JobStatus::from(status))
            .job_queue("q")
            .started_at(0)
            .job_definition("d")
    }

    #[test]
    fn statuses_are_states() {
        let table = [
            ("SUBMITTED", InstanceState::Creating),
            ("PENDING", InstanceState::Creating),
            ("RUNNABLE", InstanceState::Creating),
            ("STARTING", InstanceState::Creating),
            ("RUNNING", InstanceState::Running),
            ("SUCCEEDED", InstanceState::Exited),
            ("FAILED", InstanceState::Exited),
            ("DREAMING", InstanceState::Unknown),
        ];
        for (status, wanted) in table {
            let seen = observation(&job(status).build(), &marks());
            assert_eq!((seen.state, seen.key.as_str()), (wanted, "k"), "{status}");
        }
        let stuck = job("RUNNABLE").status_reason("MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - …").build();
        assert!(observation(&stuck, &marks()).reason.starts_with("MISCONFIGURATION:"));
    }

    #[test]
    fn ends_are_told_with_their_reasons() {
        type End = (&'static str, &'static str, Option<i32>, &'static str, (i32, i32, bool), &'static str);
        let table: [End; 10] = [
            ("SUCCEEDED", "Essential container in task exited", Some(0), "", (0, 0, false), "Essential"),
            ("SUCCEEDED", "", None, "", (0, 0, false), ""),
            ("FAILED", "Essential container in task exited", Some(3), "", (3, 0, false), "Essential"),
            (
                "FAILED",
                "Essential container in task exited",
                Some(137),
                "OutOfMemoryError: Container killed due to memory usage",
                (137, 9, true),
                "out of memory: OutOfMemoryError",
            ),
            ("FAILED", "Host EC2 (instance i-1) terminated.", None, "", (-1, 0, false), "its host was taken away"),
            // What gave way in an orderly manner has not done its work.
            ("FAILED", "Your Spot Task was interrupted.", Some(0), "", (-1, 0, false), "its host was taken away"),
            ("FAILED", "Job attempt duration exceeded timeout", Some(137), "", (137, 9, false), "ended by its timeout"),
            (
                "FAILED",
                "Task failed to start",
                None,
                "CannotPullContainerError: no such image",
                (-1, 0, false),
                "the image could not be pulled: CannotPullContainerError: no such image; Task failed to start",
            ),
            ("FAILED", "Dependent job failed", None, "", (-1, 0, false), "Dependent job failed"),
            ("FAILED", "", None, "", (-1, 0, false), ""),
        ];
        for (status, why, code, of_container, wanted, said) in table {
            let container = ContainerDetail::builder().set_exit_code(code).reason(of_container).build();
            let seen = observation(&job(status).status_reason(why).container(container).build(), &marks());
            assert_eq!((seen.exit.exit_code, seen.exit.signal, seen.exit.oom_killed), wanted, "{status} {why}");
            assert!(seen.reason.contains(said), "{why}: {:?}", seen.reason);
            assert_eq!(seen.exit.error.is_some(), wanted.0 == -1, "{why}");
        }
        let ordered = job("FAILED").status_reason("not needed").is_terminated(true).build();
        assert_eq!(observation(&ordered, &marks()).reason, "terminated: not needed");
        let cancelled = job("FAILED").status_reason("not needed").is_cancelled(true).build();
        assert_eq!(observation(&cancelled, &marks()).reason, "cancelled before it started: not needed");
    }

    #[test]
    fn an_acknowledged_end_is_no_instance_any_more() {
        let acknowledged = Marks { acknowledged: true, ..marks() };
        assert_eq!(observation(&job("FAILED").build(), &acknowledged).state, InstanceState::Gone);
        assert_eq!(observation(&job("RUNNING").build(), &acknowledged).state, InstanceState::Running);
    }

    #[test]
    fn logs_are_where_the_container_says() {
        let place = |container: ContainerDetail| log_of(&job("RUNNING").container(container).build());
        assert_eq!(place(ContainerDetail::builder().build()), None);
        let plain = place(ContainerDetail::builder().log_stream_name("d/default/1").build()).expect("a place");
        assert_eq!((plain.group.as_str(), plain.stream.as_str()), ("/aws/batch/job", "d/default/1"));
        let log = |driver: LogDriver| {
            let options = LogConfiguration::builder().log_driver(driver).options("awslogs-group", "/g");
            let log = options.options("awslogs-region", "eu-west-1").build();
            place(ContainerDetail::builder().log_stream_name("s").log_configuration(log).build())
        };
        let own = log(LogDriver::Awslogs).expect("a place");
        assert_eq!((own.group.as_str(), own.region.as_str()), ("/g", "eu-west-1"));
        assert_eq!(log(LogDriver::Splunk), None);
    }
}
