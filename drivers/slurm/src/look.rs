//! What a run directory and the queue say together about an instance.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use driver_sdk::{InstanceState, Observation, TaskExit};

use crate::place::{Claim, Exit, Files};
use crate::queue::Jobs;
use crate::tables::{Job, JobId, Phase};

/// How long a submission that was answered may be missing from the queue before it counts as lost.
const APPEARS_WITHIN: Duration = Duration::from_secs(15);

/// How old what the files of a task said may be, though its directory seems unchanged: times of some file systems are
/// coarse.
const READ_AGAIN: Duration = Duration::from_secs(30);
/// The same for what was as before then: by now its last change is far older than what times of a file system hide.
const READ_AGAIN_AT_LAST: Duration = Duration::from_mins(10);

/// Looks are so many times apart as one of them takes: they keep 1.25 % of a core busy, and Slurm with them. What is
/// told of the looks costs the agent as much again.
const LOOK_SHARE: u32 = 80;
/// Even where looks take long, the end of a task is seen within this time.
const LOOK_AT_LAST: Duration = Duration::from_secs(10);

/// What is known, or what else has to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// This is it.
    Known(InstanceState, String),
    /// It has ended like this.
    Exited(Exit),
    /// No submission is left and none has started: the directory can be closed, and then it is over.
    Close(String),
    /// Its job has ended, or the controller says so; the exit result has to be looked for once more. Without one, it
    /// has ended only if these nodes are heard; an empty expression: it has ended in any case.
    Ended { why: String, code: i32, out_of_memory: bool, nodes: String },
    /// Its job is not in the queue any more.
    Absent { id: JobId, nodes: String },
}

/// What the files say by themselves; `None` when the queue has to be asked.
pub(crate) fn alone(files: &Files) -> Option<Step> {
    let gone = |why: &str| Some(Step::Known(InstanceState::Gone, why.to_owned()));
    match (&files.claim, &files.exit) {
        _ if files.acknowledged => gone("its end was acknowledged"),
        (Some(Claim::Sealed), _) => gone("the key is sealed and has no instance"),
        (Some(Claim::Over(why)), _) => Some(Step::Exited(Exit { code: 1, at: 0, why: why.clone(), oom: false })),
        (Some(Claim::Job { .. }), Some(exit)) => Some(Step::Exited(exit.clone())),
        (Some(Claim::Job { .. }) | None, _) => None,
    }
}

/// What files and queue say.
pub(crate) fn together(files: &Files, jobs: &Jobs, name: &str) -> Step {
    if let Some(step) = alone(files) {
        return step;
    }
    if let Some(user) = jobs.leaves_out(files) {
        let why = format!(
            "the job is the user {user}'s, whose jobs this node does not ask for; set `users` in the plugin's \
                configuration, and no `rest`"
        );
        return Step::Known(InstanceState::Unknown, why);
    }
    match &files.claim {
        Some(Claim::Job { id, nodes, .. }) => match jobs.job(name, files, *id) {
            Some(job) => of_job(job, nodes),
            None => Step::Absent { id: *id, nodes: nodes.clone() },
        },
        _ => {
            let unstarted = |job: &&Job| matches!(job.phase(), Phase::Waiting | Phase::Running | Phase::Unclear);
            if let Some(job) = jobs.of_instance(name, files).find(unstarted) {
                return Step::Known(InstanceState::Creating, job.told());
            }
            match jobs.of_instance(name, files).last() {
                Some(job) => Step::Close(format!("the job {} ended before the task started: {}", job.id, job.told())),
                None if files.sent_for.is_some_and(|age| age < APPEARS_WITHIN) => {
                    Step::Known(InstanceState::Creating, "the job has been submitted".to_owned())
                }
                None => Step::Close("Slurm does not know the job any more, and it had not started".to_owned()),
            }
        }
    }
}

/// The observation of an instance whose directory has not changed since its files were read, while Slurm says that
/// exactly its job is RUNNING, or still waits. `None` for every other state: a job that completes may have left its
/// exit result.
pub(crate) fn stays(key: &str, files: &Files, jobs: &Jobs, name: &str) -> Option<Observation> {
    if jobs.leaves_out(files).is_some() {
        return None;
    }
    let step = match &files.claim {
        Some(Claim::Job { id, .. }) => {
            jobs.job(name, files, *id).filter(|job| job.state == "RUNNING")?;
            Step::Known(InstanceState::Running, String::new())
        }
        Some(_) => return None,
        None => {
            let job = jobs.job(name, files, files.job?).filter(|job| job.phase() == Phase::Waiting)?;
            Step::Known(InstanceState::Creating, job.told())
        }
    };
    Some(observation(key, files, Some(jobs), name, &step))
}

/// How long files are trusted while their directory seems unchanged. `again`: they were read again, and it was as
/// before.
pub(crate) fn patience(again: bool) -> Duration {
    if again { READ_AGAIN_AT_LAST } else { READ_AGAIN }
}

/// How often all tasks are looked at, where a look takes so long.
pub(crate) fn pace(poll_interval: Duration, took: Duration) -> Duration {
    (took * LOOK_SHARE).min(LOOK_AT_LAST).max(poll_interval)
}

/// Whether the job's node has said that it ended. The other ends are the controller's decisions, which it tells as well
/// of what it has given up on a node that it does not hear.
fn reported(state: &str) -> bool {
    ["COMPLETED", "FAILED", "OUT_OF_MEMORY"].iter().any(|known| state.starts_with(known))
}

/// What the state of the claimant's job says.
pub(crate) fn of_job(job: &Job, nodes: &str) -> Step {
    let told = job.told();
    match job.phase() {
        Phase::Running => Step::Known(InstanceState::Running, String::new()),
        Phase::Ended => Step::Ended {
            why: format!("Slurm says {told}, and no exit result was left"),
            // The gate ends with the task's code.
            code: if job.state == "COMPLETED" { 0 } else { KILLED },
            out_of_memory: job.state.starts_with("OUT_OF_MEMORY"),
            nodes: if reported(&job.state) { String::new() } else { nodes.to_owned() },
        },
        Phase::Waiting => Step::Ended {
            why: format!("the job was put back into the queue, {told}; the task does not start a second time"),
            code: KILLED,
            out_of_memory: false,
            nodes: nodes.to_owned(),
        },
        Phase::NodeLost => Step::Ended {
            why: format!("Slurm says {told}: a node was lost"),
            code: KILLED,
            out_of_memory: false,
            nodes: nodes.to_owned(),
        },
        Phase::Unclear => Step::Known(InstanceState::Unknown, format!("Slurm says {told} of the job {}", job.id)),
    }
}

/// The observation of a final or an open state.
pub(crate) fn observation(key: &str, files: &Files, jobs: Option<&Jobs>, name: &str, step: &Step) -> Observation {
    let mut seen = Observation { key: key.to_owned(), epoch: files.epoch, ..Observation::default() };
    let job = match &files.claim {
        Some(Claim::Job { id, at, nodes, .. }) => {
            seen.started_at = time(*at);
            if !nodes.is_empty() {
                seen.attributes.insert("nodes".into(), nodes.clone());
            }
            Some(*id)
        }
        _ => files.job,
    };
    if let Some(id) = job {
        seen.provider_id = format!("job {id}");
        seen.attributes.insert("job_id".into(), id.to_string());
    }
    let state = job.and_then(|id| jobs?.job(name, files, id)).map(Job::told);
    if let Some(state) = &state {
        seen.attributes.insert("slurm_state".into(), state.clone());
    }
    match step {
        Step::Known(state, why) => {
            seen.state = *state;
            seen.reason.clone_from(why);
        }
        Step::Exited(exit) => {
            seen.state = InstanceState::Exited;
            seen.finished_at = time(exit.at);
            seen.reason.clone_from(&exit.why);
            seen.exit = TaskExit {
                exit_code: exit.code,
                signal: if (129..=192).contains(&exit.code) { exit.code - 128 } else { 0 },
                oom_killed: exit.oom,
                error: (!exit.why.is_empty()).then(|| exit.why.clone()),
            };
        }
        Step::Close(why) | Step::Ended { why, .. } => {
            seen.state = InstanceState::Unknown;
            seen.reason.clone_from(why);
        }
        Step::Absent { id, .. } => {
            seen.state = InstanceState::Unknown;
            seen.reason = format!(
                "Slurm does not know the job {id} any more, it has left no exit result, and nothing proves that it \
                    has ended"
            );
        }
    }
    seen
}

/// The code of a run that has left no result: SIGKILL, or the end of its node, leaves none.
pub(crate) const KILLED: i32 = 137;

/// How a run ended that has left no result.
pub(crate) fn without_result(why: String, (code, oom): (i32, bool), now: SystemTime) -> Exit {
    let at = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // A success is told by its code.
    Exit { code, at, why: if code == 0 { String::new() } else { why }, oom }
}

fn time(seconds: u64) -> Option<SystemTime> {
    (seconds > 0).then(|| UNIX_EPOCH + Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Member;
    use crate::tables;

    fn claimed() -> Files {
        let id = JobId::single(7);
        let claim = Claim::Job { id, number: 7, restarts: 0, at: 100, nodes: "n1".into() };
        Files { epoch: 2, claim: Some(claim), job: Some(id), ..Files::default() }
    }

    fn jobs(text: &str) -> Jobs {
        Jobs::new(tables::squeue(text), false)
    }

    #[test]
    fn a_result_decides_without_the_queue() {
        let exit = Exit { code: 7, at: 200, why: String::new(), oom: false };
        let files = Files { exit: Some(exit.clone()), ..claimed() };
        assert_eq!(alone(&files), Some(Step::Exited(exit)));
        let gone = Files { acknowledged: true, ..files };
        assert!(matches!(alone(&gone), Some(Step::Known(InstanceState::Gone, _))));
        assert_eq!(alone(&claimed()), None);
        let seen = observation(
            "k",
            &claimed(),
            None,
            "k",
            &Step::Exited(without_result("x".into(), (KILLED, false), UNIX_EPOCH)),
        );
        assert_eq!((seen.exit.exit_code, seen.exit.signal, seen.provider_id.as_str()), (137, 9, "job 7"));
    }

    #[test]
    fn a_job_that_runs_or_waits_spares_a_look_at_the_files_and_no_other_does() {
        let seen = |files: &Files, text: &str| stays("k", files, &jobs(text), "k").map(|seen| seen.state);
        for state in ["RUNNING", "COMPLETING", "SUSPENDED", "NODE_FAIL", "PENDING"] {
            let spared = (state == "RUNNING").then_some(InstanceState::Running);
            assert_eq!(seen(&claimed(), &format!("7|k|{state}|n1|None\n")), spared, "{state}");
        }
        assert_eq!(seen(&claimed(), "8|k|RUNNING|n1|None\n7|other|RUNNING|n1|None\n"), None, "another job");
        let waits = Files { claim: None, ..claimed() };
        for state in ["PENDING", "RUNNING", "CANCELLED"] {
            let spared = (state == "PENDING").then_some(InstanceState::Creating);
            assert_eq!(seen(&waits, &format!("7|k|{state}||Priority\n")), spared, "{state}");
        }
        assert_eq!(seen(&Files { job: None, ..waits.clone() }, "7|k|PENDING||None\n"), None, "an answer was lost");
        assert_eq!(seen(&Files { claim: Some(Claim::Sealed), ..waits }, "7|k|PENDING||None\n"), None);
    }

    #[test]
    fn looks_that_take_long_are_further_apart_up_to_ten_seconds() {
        let millis = Duration::from_millis;
        for (took, apart) in [(0, 2000), (10, 2000), (25, 2000), (50, 4000), (100, 8000), (250, 10_000), (9000, 10_000)]
        {
            assert_eq!(pace(millis(2000), millis(took)), millis(apart), "{took} ms");
        }
        // Who wants fewer gets fewer.
        assert_eq!(pace(millis(60_000), millis(9000)), millis(60_000));
    }

    #[test]
    fn a_job_of_an_array_is_told_from_its_siblings() {
        let id = JobId { number: 7, index: Some(1) };
        let arrays = vec![Member { array: "a".into(), index: 1 }];
        let waits = Files { job: Some(id), arrays, sent_for: Some(Duration::from_secs(60)), ..Files::default() };
        let text = "7_0|a|RUNNING|n1|None\n7_1|a|PENDING||Priority\n7_2|a|CANCELLED||None\n";
        let step = together(&waits, &jobs(text), "k");
        assert_eq!(step, Step::Known(InstanceState::Creating, "PENDING (Priority)".into()));
        // The answer was lost: the array is known by its name.
        let lost = Files { job: None, ..waits.clone() };
        assert_eq!(jobs(text).live("k", &lost), Some(id));
        assert_eq!(together(&lost, &jobs(text), "k"), step);
        let siblings = "7_0|a|RUNNING|n1|None\n7_2|a|RUNNING|n1|None\n7_1|other|RUNNING|n1|None\n";
        assert!(matches!(together(&waits, &jobs(siblings), "k"), Step::Close(_)));
        assert_eq!(jobs(siblings).live("k", &waits), None);
        let claim = Claim::Job { id, number: 9, restarts: 0, at: 100, nodes: "n1".into() };
        let runs = Files { claim: Some(claim), ..waits };
        let seen = stays("k", &runs, &jobs("7_1|a|RUNNING|n1|None\n"), "k").expect("it runs");
        assert_eq!((seen.state, seen.provider_id.as_str()), (InstanceState::Running, "job 7_1"));
        assert_eq!(together(&runs, &jobs(siblings), "k"), Step::Absent { id, nodes: "n1".into() });
    }

    #[test]
    fn a_job_of_another_user_with_the_name_is_none_of_ours() {
        let own = |user: u32, files: Files| Files { user: Some(user), ..files };
        let text = "1001 7|k|RUNNING|n1|None\n";
        assert!(stays("k", &own(1001, claimed()), &jobs(text), "k").is_some());
        assert_eq!(stays("k", &own(1002, claimed()), &jobs(text), "k"), None);
        assert!(matches!(together(&own(1002, claimed()), &jobs(text), "k"), Step::Absent { .. }));
        assert_eq!(jobs(text).live("k", &own(1002, Files::default())), None);
        assert_eq!(jobs(text).live("k", &own(1001, Files::default())), Some(JobId::single(7)));
        // Jobs of the agent's user say nothing of somebody else's, whether they are there or not.
        let own_only = Jobs::new(tables::squeue("7|k|RUNNING|n1|None\n"), true);
        let waits = Files { job: Some(JobId::single(8)), sent_for: Some(Duration::from_secs(60)), ..Files::default() };
        for files in [claimed(), waits] {
            let step = together(&own(1001, files.clone()), &own_only, "k");
            assert!(matches!(&step, Step::Known(InstanceState::Unknown, why) if why.contains("1001")), "{step:?}");
            assert!(!matches!(together(&files, &own_only, "k"), Step::Known(InstanceState::Unknown, _)));
        }
    }

    #[test]
    fn a_purge_is_no_end() {
        let step = together(&claimed(), &jobs("8|other|RUNNING|n1|None"), "k");
        assert_eq!(step, Step::Absent { id: JobId::single(7), nodes: "n1".into() });
        assert_eq!(observation("k", &claimed(), None, "k", &step).state, InstanceState::Unknown);
        // The number is used again, for something else.
        assert_eq!(together(&claimed(), &jobs("7|other|RUNNING|n1|None"), "k"), step);
    }

    #[test]
    fn a_lost_node_proves_nothing() {
        // What was cancelled, or reached its time limit, on a node that then went silent has these states as well.
        for state in ["NODE_FAIL", "PENDING", "REQUEUE_HOLD", "CANCELLED", "TIMEOUT"] {
            let step = together(&claimed(), &jobs(&format!("7|k|{state}|n1|x")), "k");
            let told = matches!(&step, Step::Ended { nodes, code: KILLED, .. } if nodes == "n1");
            assert!(told, "{state}: {step:?}");
            assert_eq!(observation("k", &claimed(), None, "k", &step).state, InstanceState::Unknown);
        }
        // A run that could not leave its result ends with its code.
        let ended = together(&claimed(), &jobs("7|k|COMPLETED|n1|None"), "k");
        assert!(matches!(&ended, Step::Ended { code: 0, nodes, .. } if nodes.is_empty()), "{ended:?}");
        let left = together(&claimed(), &jobs("7|k|COMPLETING|n1|None"), "k");
        assert_eq!(left, Step::Known(InstanceState::Running, String::new()));
    }

    #[test]
    fn what_has_not_started_waits_with_its_reason_or_is_closed() {
        let asked = Files { job: Some(JobId::single(7)), sent_for: Some(Duration::from_secs(60)), ..Files::default() };
        let waits = together(&asked, &jobs("7|k|PENDING||Resources"), "k");
        assert_eq!(waits, Step::Known(InstanceState::Creating, "PENDING (Resources)".into()));
        for text in ["7|k|CANCELLED||None", ""] {
            assert!(matches!(together(&asked, &jobs(text), "k"), Step::Close(_)), "{text}");
        }
        let just = Files { sent_for: Some(Duration::from_secs(1)), ..asked };
        assert!(matches!(together(&just, &jobs(""), "k"), Step::Known(InstanceState::Creating, _)));
    }
}
