//! What the commands complain about, as one of the three answers.

use driver_sdk::RemoteError;
use hpc::command::last_lines;

/// Texts of refusals for want of room: nothing was taken, and the same request may be taken later.
const FULL: &[&str] = &["MaxSubmitJob", "GrpSubmitJob", "MaxJobCount", "MaxGRES", "job submit limit exceeded"];

/// What `sbatch` writes before it sends the same request again by itself. What it wrote before that says nothing of
/// the later request, which may have been taken.
const AGAIN: &str = "retrying";

/// Text of a refusal of an array.
const ARRAY: &[&str] = &["Invalid job array"];

/// Texts of refusals that every manager would get.
const WRONG: &[&str] = &[
    "Invalid partition",
    "invalid partition",
    "Invalid account",
    "Invalid qos",
    "Invalid generic resource",
    "Invalid Trackable RESource",
    "Invalid feature specification",
    "Invalid wckey",
    "Requested node configuration is not available",
    "Requested time limit is invalid",
    "Requested reservation is invalid",
    "More processors requested than permitted",
    "Node count specification invalid",
    "Memory required by task is not available",
    "Job violates accounting/QOS policy",
    "Access/permission denied",
    "User's group not permitted to use this partition",
    "unrecognized option",
    "invalid option",
    "Invalid --",
    "Invalid time limit specification",
    "Invalid numeric value",
    "Batch script contains DOS line breaks",
];

/// Why Slurm itself has refused a submission: nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no room now.
    Full,
    /// An array has more jobs than the cluster takes (`MaxArraySize`), or it takes none.
    Array,
    /// Every manager would be refused.
    Wrong,
}

/// The refusal in what a failed `sbatch` has written; `None`: the job may have been taken.
pub(crate) fn refusal(stderr: &str) -> Option<Refusal> {
    let stderr = stderr.rsplit_once(AGAIN).map_or(stderr, |(_, last)| last);
    let has = |texts: &[&str]| texts.iter().any(|known| stderr.contains(known));
    match (has(FULL), has(ARRAY), has(WRONG)) {
        (true, ..) => Some(Refusal::Full),
        (_, true, _) => Some(Refusal::Array),
        (.., true) => Some(Refusal::Wrong),
        _ => None,
    }
}

/// What a failed `sbatch` means. Whatever is not known to be a refusal may have been taken: *could not ask*.
pub(crate) fn submit(stderr: &str) -> RemoteError {
    let text = last_lines(stderr);
    match refusal(stderr) {
        Some(Refusal::Full) => RemoteError::could_not_ask(format!("the cluster takes no more jobs now: {text}")),
        Some(_) => RemoteError::wrong_request(format!("Slurm refuses the job: {text}")),
        None => RemoteError::could_not_ask(format!("sbatch: {text}; the job may have been taken, or not")),
    }
}

/// Whether a command says that it knows no such job, which confirms nothing.
pub(crate) fn no_such_job(stderr: &str) -> bool {
    ["Invalid job id specified", "already completing or completed", "Job/step already completing or completed"]
        .iter()
        .any(|known| stderr.contains(known))
}

/// Whether `sacct` says that the cluster keeps no accounts.
pub(crate) fn no_accounting(stderr: &str) -> bool {
    stderr.contains("accounting storage is disabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_one_of_the_answers() {
        let wrong = [
            "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid \
                partition name specified",
            "sbatch: error: Batch job submission failed: Invalid qos specification",
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's \
                size and/or time limits)",
            "sbatch: unrecognized option '--frobnicate'",
        ];
        for text in wrong {
            assert!(matches!(submit(text), RemoteError::WrongRequest(_)), "{text}");
            assert_eq!(refusal(text), Some(Refusal::Wrong), "{text}");
        }
        let full = [
            "sbatch: error: AssocGrpSubmitJobsLimit\nsbatch: error: Batch job submission failed: Job violates \
                accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\nsbatch: error: \
                QOSMaxSubmitJobPerUserLimit",
            "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates \
                accounting/QOS policy (job submit limit, user's size and/or time limits)",
        ];
        for text in full {
            let answer = submit(text);
            assert!(matches!(&answer, RemoteError::CouldNotAsk(why) if why.contains("no more jobs")), "{answer}");
            assert_eq!(refusal(text), Some(Refusal::Full), "{text}");
        }
        let array = "sbatch: error: Batch job submission failed: Invalid job array specification";
        assert_eq!(refusal(array), Some(Refusal::Array));
        let unclear = [
            "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Slurm temporarily unable to accept job, \
                sleeping and retrying\nsbatch: error: Batch job submission failed: Socket timed out on send/recv \
                operation",
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            "sbatch: error: Batch job submission failed: Protocol authentication error",
            "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
            "sbatch: error: If munged is up, restart with --num-threads=10\nsbatch: error: Munge encode failed",
            "something that nobody has seen before",
            "",
        ];
        for text in unclear {
            assert!(matches!(submit(text), RemoteError::CouldNotAsk(_)) && refusal(text).is_none(), "{text}");
        }
    }

    #[test]
    fn an_unknown_job_is_told_from_a_silent_controller() {
        assert!(no_such_job("scancel: error: Kill job error on job id 7: Invalid job id specified"));
        assert!(!no_such_job("scancel: error: Unable to contact slurm controller (connect failure)"));
    }
}
