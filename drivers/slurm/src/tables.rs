//! What `squeue` and `sacct` print.
//!
//! Fields are set apart by `|`; our own names hold none, and the reason comes last.

use std::fmt;
use std::str::FromStr;

/// `-o` of squeue.
pub(crate) const SQUEUE_FORMAT: &str = "%i|%j|%T|%N|%r";
/// The same with the number of each job's user.
pub(crate) const SQUEUE_FORMAT_OF_ALL: &str = "%U %i|%j|%T|%N|%r";
/// `-o` of sacct.
pub(crate) const SACCT_FORMAT: &str = "jobid,jobname,state,nodelist";

/// What a state of Slurm means for an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing of it runs yet, or any more: it was put back into the queue.
    Waiting,
    /// It runs, or processes of it may be left.
    Running,
    /// The controller has lost the node; processes may run on.
    NodeLost,
    /// It has ended.
    Ended,
    /// A sibling cluster runs it, or a state that this release does not know.
    Unclear,
}

/// Slurm's name of a job: its number, or number and index in its array.
///
/// A job of an array has a number of its own as well, but the number of one of them is that of the array: `scancel`
/// with it ends all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct JobId {
    pub(crate) number: u64,
    pub(crate) index: Option<u32>,
}

impl JobId {
    /// A job that is in no array.
    pub(crate) fn single(number: u64) -> Self {
        Self { number, index: None }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            None => write!(f, "{}", self.number),
            Some(index) => write!(f, "{}_{index}", self.number),
        }
    }
}

impl FromStr for JobId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('_') {
            None => Ok(Self::single(text.parse()?)),
            Some((number, index)) => Ok(Self { number: number.parse()?, index: Some(index.parse()?) }),
        }
    }
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    /// The name: our key, or the name of the array.
    pub(crate) name: String,
    /// The state as Slurm says it.
    pub(crate) state: String,
    /// Nodes, as an expression.
    pub(crate) nodes: String,
    /// Why it waits or has ended.
    pub(crate) reason: String,
    /// Number of its user, where everybody's jobs were asked for.
    pub(crate) user: Option<u32>,
}

impl Job {
    pub(crate) fn phase(&self) -> Phase {
        phase(&self.state)
    }

    /// State and reason for people.
    pub(crate) fn told(&self) -> String {
        match self.reason.as_str() {
            "" | "None" => self.state.clone(),
            reason => format!("{} ({reason})", self.state),
        }
    }
}

/// The phase of a state, which may carry a suffix (`CANCELLED by 0`).
pub(crate) fn phase(state: &str) -> Phase {
    match state.split_whitespace().next().unwrap_or_default().trim_end_matches('+') {
        "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => {
            Phase::Waiting
        }
        "RUNNING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "RESIZING" | "STAGE_OUT" | "COMPLETING" => Phase::Running,
        "COMPLETED" | "FAILED" | "TIMEOUT" | "OUT_OF_MEMORY" | "DEADLINE" | "PREEMPTED" | "CANCELLED" | "BOOT_FAIL"
        | "LAUNCH_FAILED" => Phase::Ended,
        "NODE_FAIL" => Phase::NodeLost,
        _ => Phase::Unclear,
    }
}

/// The jobs of `squeue -h -r -o` [`SQUEUE_FORMAT`] or [`SQUEUE_FORMAT_OF_ALL`]. Other lines, such as `CLUSTER: name`,
/// are none.
pub(crate) fn squeue(text: &str) -> Vec<Job> {
    text.lines()
        .filter_map(|line| {
            let mut cells = line.splitn(5, '|').map(str::trim);
            let id = cells.next()?;
            let (user, id) = match id.split_once(' ') {
                Some((user, id)) => (Some(user.parse().ok()?), id.trim()),
                None => (None, id),
            };
            let id = id.parse().ok()?;
            let mut next = || cells.next().map(str::to_owned);
            let (name, state, nodes) = (next()?, next()?, next()?);
            Some(Job { id, name, state, nodes, reason: next().unwrap_or_default(), user })
        })
        .collect()
}

/// The jobs of `sacct -n -P -X -o` [`SACCT_FORMAT`].
pub(crate) fn sacct(text: &str) -> Vec<Job> {
    text.lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [id, name, state, nodes] = cells[..] else { return None };
            let nodes = if nodes.starts_with("None") { "" } else { nodes };
            Some(Job {
                id: id.parse().ok()?,
                name: name.to_owned(),
                state: state.to_owned(),
                nodes: nodes.to_owned(),
                reason: String::new(),
                user: None,
            })
        })
        .collect()
}

/// Whether all nodes of `sinfo -h -N -o %T` are heard by the controller: each line is a state, and a `*` says that the
/// node does not answer.
pub(crate) fn all_heard(text: &str) -> bool {
    let mut states = text.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    states.peek().is_some()
        && states.all(|state| {
            !state.ends_with('*')
                && ["idle", "mixed", "allocated", "completing", "draining", "drained", "reserved", "planned", "maint"]
                    .iter()
                    .any(|known| state.starts_with(known))
        })
}

/// The `ProctrackType` that finds every process of a job, whatever session it is in.
pub(crate) const WHOLE_TREE: &str = "proctrack/cgroup";

/// A setting of `scontrol show config`, whose lines are `Name = value`.
pub(crate) fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().filter_map(|line| line.split_once('=')).find(|(key, _)| key.trim() == name).map(|(_, v)| v.trim())
}

/// Seconds of `[DD-[HH:]]MM:SS[.mmm]`.
pub(crate) fn seconds(text: &str) -> Option<f64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (days.parse::<f64>().ok()?, rest),
        None => (0.0, text),
    };
    let clock = rest.split(':').try_fold(0.0, |sum, part| Some(sum * 60.0 + part.parse::<f64>().ok()?))?;
    Some(days * 86_400.0 + clock)
}

/// Bytes of `123K`, `4.5M`, `7`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let unit = match unit {
        "" => 1.0,
        "K" => 1024.0,
        "M" => 1024.0 * 1024.0,
        "G" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    // Never negative, and far below what a float holds exactly.
    Some((digits.parse::<f64>().ok()? * unit) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_read_whatever_a_reason_holds() {
        let text = "CLUSTER: peer\n7|k-1|RUNNING|n1|None\n8|k-2|PENDING||Nodes required | for job\n9_[1-3]|other|\
            PENDING||Priority\n9_4|a|PENDING||None\nslurm_load_jobs error\n";
        let jobs = squeue(text);
        let names: Vec<_> = jobs.iter().map(|j| (j.id.to_string(), j.name.as_str(), j.phase())).collect();
        let wanted = [("7", "k-1", Phase::Running), ("8", "k-2", Phase::Waiting), ("9_4", "a", Phase::Waiting)];
        assert_eq!(names, wanted.map(|(id, name, phase)| (id.to_owned(), name, phase)));
        let of_all = squeue("0 7|k-1|RUNNING|n1|None\n1001 7_1|k-2|PENDING||None\nCLUSTER: peer\n");
        let users: Vec<_> = of_all.iter().map(|job| (job.id.to_string(), job.user)).collect();
        assert_eq!(users, [("7".to_owned(), Some(0)), ("7_1".to_owned(), Some(1001))]);
        assert_eq!((jobs[0].told().as_str(), jobs[1].reason.as_str()), ("RUNNING", "Nodes required | for job"));
    }

    #[test]
    fn the_accounts_carry_suffixes() {
        let jobs = sacct("7|k-1|CANCELLED by 0|n1\n8|k-2|NODE_FAIL|n[1-2]\n9|k-3|CANCELLED by 0|None assigned\n");
        let phases: Vec<Phase> = jobs.iter().map(Job::phase).collect();
        assert_eq!(phases, [Phase::Ended, Phase::NodeLost, Phase::Ended]);
        assert_eq!((jobs[1].nodes.as_str(), jobs[2].nodes.as_str()), ("n[1-2]", ""));
    }

    #[test]
    fn every_state_has_a_phase() {
        for (state, wanted) in [
            ("COMPLETING", Phase::Running),
            ("OUT_OF_MEMORY", Phase::Ended),
            ("PREEMPTED", Phase::Ended),
            ("REQUEUE_HOLD", Phase::Waiting),
            ("REVOKED", Phase::Unclear),
            ("NEVER_HEARD_OF", Phase::Unclear),
            ("", Phase::Unclear),
        ] {
            assert_eq!(phase(state), wanted, "{state}");
        }
    }

    #[test]
    fn a_silent_node_is_seen() {
        assert!(all_heard("idle\nmixed\nmaint\n"));
        for silent in ["", "mixed*\n", "idle\ndown\n", "down*", "unknown", "idle*\nidle", "maint*"] {
            assert!(!all_heard(silent), "{silent:?}");
        }
    }

    #[test]
    fn figures_of_sstat() {
        assert_eq!(
            (seconds("00:01:02"), seconds("1-00:00:01"), seconds("01:02.500")),
            (Some(62.0), Some(86_401.0), Some(62.5))
        );
        assert_eq!(
            (bytes("12K"), bytes("1.5M"), bytes("7"), bytes("")),
            (Some(12_288), Some(1_572_864), Some(7), None)
        );
    }

    #[test]
    fn a_setting_is_found_by_its_whole_name() {
        let text = "Configuration data as of 2026-01-01T00:00:00\nProctrackType           = proctrack/linuxproc\n\
            PrologFlags             = Alloc,Contain\n";
        assert_eq!(setting(text, "ProctrackType"), Some("proctrack/linuxproc"));
        assert_eq!(setting(text, "Proctrack"), None);
    }
}
