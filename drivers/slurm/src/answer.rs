//! What the commands complain about, as one of the three answers.

use driver_sdk::RemoteError;

/// Texts of refusals for want of room: nothing was taken, and the same request may be taken later.
const FULL: &[&str] =
    &["temporarily unable to accept job", "MaxSubmitJob", "MaxJobCount", "MaxGRES", "job submit limit exceeded"];

/// Texts of refusals that every manager would get.
const WRONG: &[&str] = &[
    "Invalid partition",
    "invalid partition",
    "Invalid account",
    "Invalid qos",
    "Invalid generic resource",
    "Invalid Trackable RESource",
    "Invalid feature specification",
    "Invalid job array",
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

/// What a failed `sbatch` means. Whatever is not known to be a refusal may have been taken: *could not ask*.
pub(crate) fn submit(stderr: &str) -> RemoteError {
    let text = last_lines(stderr);
    let has = |texts: &[&str]| texts.iter().any(|known| stderr.contains(known));
    if has(FULL) {
        return RemoteError::could_not_ask(format!("the cluster takes no more jobs now: {text}"));
    }
    match has(WRONG) {
        true => RemoteError::wrong_request(format!("Slurm refuses the job: {text}")),
        false => RemoteError::could_not_ask(format!("sbatch: {text}; the job may have been taken, or not")),
    }
}

/// Whether Slurm itself has refused: nothing was taken.
pub(crate) fn refused(stderr: &str) -> bool {
    [FULL, WRONG].concat().iter().any(|known| stderr.contains(known))
}

/// Whether a refusal is for want of room.
pub(crate) fn is_full(refusal: &RemoteError) -> bool {
    let text = refusal.to_string();
    FULL.iter().any(|known| text.contains(known))
}

/// Whether a refusal is of job arrays, which a site can switch off or limit.
pub(crate) fn no_arrays(refusal: &RemoteError) -> bool {
    refusal.to_string().contains("Invalid job array")
}

/// Whether a command says that it knows no such job, which confirms nothing.
pub(crate) fn no_such_job(stderr: &str) -> bool {
    ["Invalid job id specified", "already completing or completed", "Job/step already completing or completed"]
        .iter()
        .any(|known| stderr.contains(known))
}

/// The end of what a command has written, on one line and without stars round it.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(|line| line.trim_matches(['*', ' ', '\t'])).collect();
    let lines: Vec<&str> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    let told: String = lines[lines.len().saturating_sub(3)..].join("; ").chars().take(400).collect();
    if told.is_empty() { "it gave no reason".to_owned() } else { told }
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
            assert!(matches!(submit(text), RemoteError::WrongRequest(_)) && refused(text), "{text}");
        }
        let full = [
            "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
            "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates \
                accounting/QOS policy (job submit limit, user's size and/or time limits)",
        ];
        for text in full {
            let answer = submit(text);
            assert!(matches!(&answer, RemoteError::CouldNotAsk(why) if why.contains("no more jobs")), "{answer}");
            assert!(refused(text), "{text}");
        }
        let unclear = [
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            "sbatch: error: Batch job submission failed: Protocol authentication error",
            "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
            "sbatch: error: If munged is up, restart with --num-threads=10\nsbatch: error: Munge encode failed",
            "something that nobody has seen before",
            "",
        ];
        for text in unclear {
            assert!(matches!(submit(text), RemoteError::CouldNotAsk(_)) && !refused(text), "{text}");
        }
    }

    #[test]
    fn an_unknown_job_is_told_from_a_silent_controller() {
        assert!(no_such_job("scancel: error: Kill job error on job id 7: Invalid job id specified"));
        assert!(!no_such_job("scancel: error: Unable to contact slurm controller (connect failure)"));
        assert_eq!(last_lines("\n a \n\nb\n"), "a; b");
        assert_eq!(last_lines("x is DOWN\n*****\n** RESTORE IT **\n*****\n"), "x is DOWN; RESTORE IT");
    }
}
