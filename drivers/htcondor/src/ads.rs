//! Jobs as `condor_q -json` prints them, and conditions for the schedd.

use std::time::{Duration, SystemTime};

use hpc::script::{CANNOT_CLAIM, REFUSED};
use serde_json::{Map, Value};

/// Attributes that are asked for.
pub(crate) const ATTRIBUTES: &str = "ClusterId,JobStatus,HoldReason,HoldReasonCode,RemoveReason,VacateReason,\
    LastRejMatchReason,ExitCode,ExitSignal,JobRunCount,Owner,JobLeaseDuration,RemoteHost,LastRemoteHost,\
    JobDisconnectedDate,RemoteUserCpu,RemoteSysCpu,ResidentSetSize,DroverKey,DroverOwner,DroverSlot,DroverTask,\
    DroverEpoch,DroverState,DroverAcknowledged";

/// `HoldReasonCode` of a job that its submission has put on hold (HTCondor's manual, job ClassAd attributes).
const SUBMITTED_ON_HOLD: i64 = 15;
/// `HoldReasonCode` of a job that used more memory than it had asked for.
const OUT_OF_MEMORY: i64 = 34;

/// What `DroverState` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// On hold: it may begin, or be removed in favour of another one.
    Candidate,
    /// The instance.
    Begun,
    /// Never runs: no other one of its key may begin.
    Sealed,
}

impl Role {
    /// As the attribute has it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Role::Candidate => "candidate",
            Role::Begun => "begun",
            Role::Sealed => "sealed",
        }
    }
}

/// `JobStatus` (HTCondor's manual, job ClassAd attributes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Idle,
    Running,
    Removed,
    Completed,
    Held,
}

/// A job of the queue.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Job(Map<String, Value>);

impl Job {
    fn int(&self, name: &str) -> Option<i64> {
        self.0.get(name)?.as_i64()
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn positive(&self, name: &str) -> u64 {
        self.int(name).and_then(|n| u64::try_from(n).ok()).unwrap_or_default()
    }

    fn time(&self, name: &str) -> Option<SystemTime> {
        Some(self.positive(name)).filter(|at| *at > 0).map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(at))
    }

    pub(crate) fn cluster(&self) -> u64 {
        self.positive("ClusterId")
    }

    pub(crate) fn key(&self) -> &str {
        self.text("DroverKey")
    }

    pub(crate) fn owner(&self) -> &str {
        self.text("DroverOwner")
    }

    pub(crate) fn slot(&self) -> &str {
        self.text("DroverSlot")
    }

    pub(crate) fn task(&self) -> &str {
        self.text("DroverTask")
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.positive("DroverEpoch")
    }

    /// What somebody has written there by hand counts as begun: it may run.
    pub(crate) fn role(&self) -> Role {
        let own = [Role::Candidate, Role::Sealed].into_iter().find(|role| role.text() == self.text("DroverState"));
        own.unwrap_or(Role::Begun)
    }

    pub(crate) fn acknowledged(&self) -> bool {
        self.int("DroverAcknowledged").is_some()
    }

    /// `None`: one that this driver does not know.
    pub(crate) fn status(&self) -> Option<Status> {
        match self.int("JobStatus")? {
            1 => Some(Status::Idle),
            // Also one whose output is being transferred, and one that is suspended.
            2 | 6 | 7 => Some(Status::Running),
            3 => Some(Status::Removed),
            4 => Some(Status::Completed),
            5 => Some(Status::Held),
            _ => None,
        }
    }

    /// Whether it waits on hold since its submission.
    pub(crate) fn waits_on_hold(&self) -> bool {
        self.status() == Some(Status::Held) && self.int("HoldReasonCode") == Some(SUBMITTED_ON_HOLD)
    }

    pub(crate) fn out_of_memory(&self) -> bool {
        self.int("HoldReasonCode") == Some(OUT_OF_MEMORY)
    }

    /// The machine that has it, also while it is being ended there.
    pub(crate) fn host(&self) -> Option<&str> {
        Some(self.text("RemoteHost")).filter(|host| !host.is_empty())
    }

    /// The machine that has it, or had it last.
    pub(crate) fn last_host(&self) -> Option<&str> {
        self.host().or(Some(self.text("LastRemoteHost"))).filter(|host| !host.is_empty())
    }

    /// Whether it was started once at most.
    pub(crate) fn started_once(&self) -> bool {
        self.int("JobRunCount").unwrap_or_default() <= 1
    }

    /// User of the job, as the schedd knows it.
    pub(crate) fn user(&self) -> &str {
        self.text("Owner")
    }

    /// The code of a completed job that was started once; more than 128 for a signal.
    pub(crate) fn code(&self) -> Option<i32> {
        if self.status() != Some(Status::Completed) || !self.started_once() {
            return None;
        }
        let code = self.int("ExitSignal").map_or_else(|| self.int("ExitCode"), |signal| Some(signal + 128))?;
        // Of a gate that has started nothing.
        i32::try_from(code).ok().filter(|code| ![REFUSED, CANNOT_CLAIM].contains(code))
    }

    /// Until when its machine may run it although it is not heard: then it ends the job by itself.
    pub(crate) fn leased_until(&self) -> Option<SystemTime> {
        Some(self.disconnected()? + Duration::from_secs(self.positive("JobLeaseDuration")))
    }

    /// Since when its machine is not heard.
    pub(crate) fn disconnected(&self) -> Option<SystemTime> {
        self.time("JobDisconnectedDate")
    }

    /// Why it does not run, or not any more.
    pub(crate) fn why(&self) -> String {
        let texts = ["HoldReason", "RemoveReason", "VacateReason", "LastRejMatchReason"].map(|name| self.text(name));
        texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default().trim().to_owned()
    }

    /// Seconds of processor time, and bytes of memory, as the execute node has told lately.
    pub(crate) fn usage(&self) -> (f64, Option<u64>) {
        let seconds = |name: &str| self.0.get(name).and_then(Value::as_f64).unwrap_or_default();
        let memory = Some(self.positive("ResidentSetSize") * 1024).filter(|bytes| *bytes > 0);
        (seconds("RemoteUserCpu") + seconds("RemoteSysCpu"), memory)
    }
}

/// The jobs in an answer. Where nothing matches, `condor_q` prints nothing.
///
/// # Errors
/// It is no answer.
pub(crate) fn jobs(stdout: &str) -> Result<Vec<Job>, String> {
    if stdout.trim().is_empty() {
        return Ok(Vec::new());
    }
    let ads: Vec<Map<String, Value>> =
        serde_json::from_str(stdout).map_err(|why| format!("condor_q printed no list of jobs: {why}"))?;
    Ok(ads.into_iter().map(Job).collect())
}

/// How many jobs an action has changed, by its line of totals, and how many it was refused; `None`: the schedd gave no
/// answer.
pub(crate) fn totals(stdout: &str) -> Option<(u64, u64)> {
    let totals = stdout.lines().find(|line| line.contains(" Succeeded, "))?;
    let of = |what: &str| {
        let count = totals.split(", ").find_map(|part| part.trim().strip_suffix(what))?;
        count.trim().parse::<u64>().ok()
    };
    Some((of("Succeeded")?, of("Failed")? + of("Permission Denied")?))
}

/// A text as a literal of the ClassAd language. One may not hold the end of a line, which becomes a blank, everywhere
/// alike.
pub(crate) fn literal(text: &str) -> String {
    let line = text.replace(['\n', '\r', '\0'], " ");
    format!("\"{}\"", line.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(ad: Value) -> Job {
        jobs(&serde_json::json!([ad]).to_string()).expect("jobs").remove(0)
    }

    #[test]
    fn answers_of_condor_q() {
        assert_eq!(jobs(""), Ok(Vec::new()));
        assert!(jobs("-- Failed to fetch ads").is_err() && jobs("[{\"ClusterId\"").is_err());
        let job = job(serde_json::json!({
            "ClusterId": 3, "JobStatus": 5, "HoldReasonCode": 15, "DroverState": "candidate", "DroverEpoch": 7,
            "DroverKey": "k", "RemoteUserCpu": 1.5, "RemoteSysCpu": 1, "JobDisconnectedDate": null,
            "ResidentSetSize": "\\/Expr(x)\\/"
        }));
        assert_eq!((job.cluster(), job.epoch(), job.role()), (3, 7, Role::Candidate));
        assert_eq!((job.waits_on_hold(), job.disconnected(), job.usage()), (true, None, (2.5, None)));
    }

    #[test]
    fn totals_tell_whether_the_schedd_answered() {
        let none = "0 Succeeded, 0 Failed, 0 Not Found, 0 Bad Status, 0 Already Done, 0 Permission Denied\n";
        assert_eq!(totals(none), Some((0, 0)));
        assert_eq!(totals(&none.replacen('0', "1", 1)), Some((1, 0)));
        assert_eq!(totals(&none.replace("0 Failed", "1 Failed").replace("0 Perm", "2 Perm")), Some((0, 3)));
        assert_eq!(totals(""), None);
    }

    #[test]
    fn a_literal_ends_where_it_should() {
        assert_eq!(literal(r#"a" || true || "\"#), r#""a\" || true || \"\\""#);
    }
}
