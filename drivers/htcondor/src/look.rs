//! From a job of the queue and the files of its run directory to an observation.
//!
//! The run directory decides what the queue cannot tell: HTCondor says *removed* and *held* while the processes still
//! run, and *idle* of a job whose processes a dead startd has left behind. The lock of the directory says whether
//! anything runs, and the claim that nothing begins there again.

use std::time::SystemTime;

use driver_sdk::{InstanceState, Observation, TaskExit};

use crate::ads::{Job, Status};
use crate::place::{Exit, Files};

/// What is known of an instance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Look {
    /// A state, and the reason for people.
    State(InstanceState, String),
    /// It has ended with this result.
    Exited(Exit),
    /// It has ended, and its gate could not leave a result.
    Ended(Exit),
}

/// Whether the queue alone says how the job is: it runs, and was started once.
pub(crate) fn runs(job: &Job) -> bool {
    job.status() == Some(Status::Running) && job.host().is_some() && job.started_once() && job.disconnected().is_none()
}

/// What is known, given the job (`None`: the schedd has answered that there is none) and its files.
pub(crate) fn look(job: Option<&Job>, files: &Files, now: SystemTime) -> Look {
    let ended =
        |code: i32, why: String| Look::Ended(Exit { code, at: now, oom: job.is_some_and(Job::out_of_memory), why });
    let why = job.map(Job::why).filter(|why| !why.is_empty());
    let told = why.clone().unwrap_or_else(|| "it gives no reason".to_owned());
    let host = job.and_then(Job::host);
    if let Some(exit) = &files.exit {
        // The gate does not know of a limit.
        let oom = exit.oom || (exit.code > 128 && job.is_some_and(Job::out_of_memory));
        return Look::Exited(Exit { oom, ..exit.clone() });
    }
    match (&files.claim, host) {
        // What ends afterwards keeps the attribute.
        (Some((node, _)), Some(_)) if job.is_some_and(|job| job.disconnected().is_some()) => {
            Look::State(InstanceState::Unknown, format!("HTCondor does not hear the node {node}"))
        }
        (Some(_), Some(_)) => Look::State(InstanceState::Running, String::new()),
        (Some((node, _)), None) if files.alive => Look::State(
            InstanceState::Unknown,
            format!("HTCondor has given the job up ({told}), and something of it still runs on {node}"),
        ),
        // The lock may have gone with the node's line to the file server.
        (Some((node, _)), None) if job.and_then(Job::leased_until).is_some_and(|until| now < until) => Look::State(
            InstanceState::Unknown,
            format!("HTCondor has given the job up ({told}), and {node} may run it until its lease ends"),
        ),
        (Some(_), None) => match job.and_then(Job::code) {
            Some(code) => ended(code, String::new()),
            None => ended(137, format!("no exit result was left; HTCondor says: {told}")),
        },
        (None, Some(_)) => Look::State(InstanceState::Creating, String::new()),
        (None, None) => match job.map(Job::status) {
            None => Look::State(InstanceState::Gone, "the queue has no such job, and it never began".to_owned()),
            Some(Some(Status::Idle | Status::Held | Status::Running)) => {
                Look::State(InstanceState::Creating, why.unwrap_or_default())
            }
            Some(Some(Status::Removed | Status::Completed)) => ended(1, format!("it never began: {told}")),
            Some(None) => Look::State(InstanceState::Unknown, "the status of the job is unknown".to_owned()),
        },
    }
}

/// The observation of it.
pub(crate) fn observation(key: &str, cluster: u64, job: Option<&Job>, files: &Files, look: &Look) -> Observation {
    let mut seen = Observation {
        key: key.to_owned(),
        epoch: job.map(Job::epoch).unwrap_or_default(),
        provider_id: format!("job {cluster}.0"),
        started_at: files.claim.as_ref().map(|(_, at)| *at),
        ..Observation::default()
    };
    seen.attributes.insert("job_id".into(), format!("{cluster}.0"));
    let node = files.claim.as_ref().map(|(node, _)| node.as_str()).or_else(|| job?.last_host());
    if let Some(node) = node {
        seen.attributes.insert("node".into(), node.to_owned());
    }
    match look {
        Look::State(state, why) => (seen.state, seen.reason) = (*state, why.clone()),
        Look::Exited(exit) | Look::Ended(exit) => {
            seen.state = InstanceState::Exited;
            seen.finished_at = Some(exit.at);
            seen.reason.clone_from(&exit.why);
            seen.exit = TaskExit {
                exit_code: exit.code,
                // A shell tells a signal so.
                signal: if (129..=192).contains(&exit.code) { exit.code - 128 } else { 0 },
                oom_killed: exit.oom,
                error: (!exit.why.is_empty()).then(|| exit.why.clone()),
            };
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::ads;

    fn job(ad: Value) -> Job {
        ads::jobs(&json!([ad]).to_string()).expect("jobs").remove(0)
    }

    fn files(claimed: bool, alive: bool) -> Files {
        Files { claim: claimed.then(|| ("n1".to_owned(), SystemTime::UNIX_EPOCH)), alive, exit: None }
    }

    const NONE: (bool, bool) = (false, false);
    const RUNS: (bool, bool) = (true, true);
    const SILENT: (bool, bool) = (true, false);

    #[test]
    fn the_queue_and_the_files_together_tell_the_state() {
        use InstanceState::{Creating, Gone, Running, Unknown};
        // An end: its code.
        /// The job, whether it is claimed and alive, and the state or the code of the end.
        type Row = (Value, (bool, bool), Result<InstanceState, i32>);
        let table: [Row; 19] = [
            (Value::Null, NONE, Ok(Gone)),
            (Value::Null, RUNS, Ok(Unknown)),
            (Value::Null, SILENT, Err(137)),
            (json!({"JobStatus": 1}), NONE, Ok(Creating)),
            (json!({"JobStatus": 5, "HoldReasonCode": 15}), NONE, Ok(Creating)),
            (json!({"JobStatus": 5, "HoldReasonCode": 1}), NONE, Ok(Creating)),
            (json!({"JobStatus": 2, "RemoteHost": "n1"}), NONE, Ok(Creating)),
            (json!({"JobStatus": 2, "RemoteHost": "n1"}), RUNS, Ok(Running)),
            (json!({"JobStatus": 2, "RemoteHost": "n1"}), SILENT, Ok(Running)),
            (json!({"JobStatus": 2, "RemoteHost": "n1", "JobDisconnectedDate": 9}), RUNS, Ok(Unknown)),
            // Removed, on hold or released, and its processes run on.
            (json!({"JobStatus": 3, "RemoteHost": "n1"}), RUNS, Ok(Running)),
            (json!({"JobStatus": 5, "RemoteHost": "n1"}), RUNS, Ok(Running)),
            (json!({"JobStatus": 1, "RemoteHost": "n1"}), RUNS, Ok(Running)),
            // Evicted: they run on without a parent, or have ended.
            (json!({"JobStatus": 1, "LastRemoteHost": "n1"}), RUNS, Ok(Unknown)),
            (json!({"JobStatus": 1, "LastRemoteHost": "n1"}), SILENT, Err(137)),
            (json!({"JobStatus": 4}), SILENT, Err(137)),
            (json!({"JobStatus": 3}), NONE, Err(1)),
            (json!({"JobStatus": 4}), NONE, Err(1)),
            (json!({"JobStatus": 99}), NONE, Ok(Unknown)),
        ];
        for (ad, (claimed, alive), wanted) in table {
            let job = (!ad.is_null()).then(|| job(ad.clone()));
            let seen = match look(job.as_ref(), &files(claimed, alive), SystemTime::now()) {
                Look::State(state, _) => Ok(state),
                Look::Ended(exit) => Err(exit.code),
                Look::Exited(exit) => panic!("{ad}: {exit:?} was in no file"),
            };
            assert_eq!(seen, wanted, "{ad} {claimed} {alive}");
        }
    }

    #[test]
    fn a_result_counts_whatever_the_queue_says() {
        let exit =
            Exit { code: 3, at: SystemTime::UNIX_EPOCH + Duration::from_secs(9), oom: false, why: String::new() };
        for ad in [Value::Null, json!({"JobStatus": 2, "RemoteHost": "n1"}), json!({"JobStatus": 1})] {
            let job = (!ad.is_null()).then(|| job(ad.clone()));
            let files = Files { exit: Some(exit.clone()), ..files(true, true) };
            assert_eq!(look(job.as_ref(), &files, SystemTime::now()), Look::Exited(exit.clone()), "{ad}");
        }
    }

    #[test]
    fn only_the_first_start_needs_no_look_at_the_files() {
        let runs = |ad: Value| super::runs(&job(ad));
        assert!(runs(json!({"JobStatus": 2, "RemoteHost": "n1", "JobRunCount": 1})));
        assert!(!runs(json!({"JobStatus": 2, "RemoteHost": "n1", "JobRunCount": 2})));
        assert!(!runs(json!({"JobStatus": 2, "RemoteHost": "n1", "JobRunCount": 1, "JobDisconnectedDate": 5})));
        assert!(!runs(json!({"JobStatus": 2, "JobRunCount": 1})) && !runs(json!({"JobStatus": 3, "RemoteHost": "n1"})));
    }

    #[test]
    fn an_observation_tells_signal_memory_and_reason() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let ad = json!({
            "ClusterId": 7, "JobStatus": 5, "HoldReasonCode": 34, "HoldReason": "too much", "DroverEpoch": 4,
            "LastRemoteHost": "slot1@n1"});
        let (job, files) = (job(ad), files(true, false));
        let seen = observation("k", 7, Some(&job), &files, &look(Some(&job), &files, now));
        assert_eq!((seen.state, seen.epoch, seen.finished_at), (InstanceState::Exited, 4, Some(now)));
        assert_eq!((seen.exit.exit_code, seen.exit.signal, seen.exit.oom_killed), (137, 9, true));
        assert!(seen.reason.contains("too much") && seen.exit.error.as_ref() == Some(&seen.reason), "{seen:?}");
        assert_eq!((seen.attributes["node"].as_str(), seen.provider_id.as_str()), ("n1", "job 7.0"));
    }
}
