//! What accounting says of jobs that the controller has forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hpc::command::Commands;
use tokio::sync::Mutex;

use crate::answer;
use crate::place::Files;
use crate::rest::Rest;
use crate::tables::{self, Job, JobId};

/// How often accounting is asked: its database serves everybody.
const APART: Duration = Duration::from_secs(5);
/// Jobs that one `sacct` asks for: their numbers are on its command line.
const AT_ONCE: usize = 1000;
/// Jobs that one look asks slurmrestd for, one by one.
const BY_REST: usize = 20;

/// An answer of accounting.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The jobs that it is an answer about.
    asked: Vec<JobId>,
    jobs: Vec<Job>,
}

/// Accounting as this process sees it.
pub(crate) struct Accounts {
    commands: Commands,
    rest: Option<Arc<Rest>>,
    last: Mutex<Last>,
}

/// The last question.
#[derive(Default)]
struct Last {
    at: Option<Instant>,
    /// The last job that it was about.
    of: Option<JobId>,
}

/// The jobs that are asked for next: those behind the last one of before, so that each has its turn.
fn next(mut wanted: Vec<JobId>, last: Option<JobId>, most: usize) -> Vec<JobId> {
    let behind = last.and_then(|last| wanted.iter().position(|id| *id == last)).map_or(0, |at| at + 1);
    wanted.rotate_left(behind);
    wanted.truncate(most);
    wanted
}

impl Accounts {
    pub(crate) fn new(commands: Commands, rest: Option<Arc<Rest>>) -> Self {
        Self { commands, rest, last: Mutex::default() }
    }

    /// What is known of these jobs, or of a part of them: a look does not wait for accounting's turn, the next one asks
    /// for others. Where there is no accounting, that is the answer.
    #[expect(clippy::await_holding_invalid_type, reason = "one question to accounting at a time")]
    pub(crate) async fn of(&self, wanted: Vec<JobId>) -> Known {
        let Ok(mut last) = self.last.try_lock() else { return Known::default() };
        if wanted.is_empty() || last.at.is_some_and(|at| at.elapsed() < APART) {
            return Known::default();
        }
        let asked = next(wanted, last.of, if self.rest.is_some() { BY_REST } else { AT_ONCE });
        (last.at, last.of) = (Some(Instant::now()), asked.last().copied());
        match &self.rest {
            Some(rest) => {
                let mut known = Known::default();
                for id in asked {
                    if let Ok(jobs) = rest.account(id).await {
                        known.asked.push(id);
                        known.jobs.extend(jobs);
                    }
                }
                known
            }
            None => match self.sacct(&asked).await {
                Some(jobs) => Known { asked, jobs },
                None => Known::default(),
            },
        }
    }

    /// `None`: no answer.
    async fn sacct(&self, asked: &[JobId]) -> Option<Vec<Job>> {
        let ids: Vec<String> = asked.iter().map(JobId::to_string).collect();
        // Without a start, only what was there since midnight is shown.
        let args = ["-X", "-n", "-P", "-S", "2000-01-01", "-j", &ids.join(","), "-o", tables::SACCT_FORMAT];
        let said = self.commands.run("sacct", &args.map(str::to_owned)).await.ok()?;
        match said.success {
            true => Some(tables::sacct(&said.stdout)),
            false if answer::no_accounting(&said.stderr) => Some(Vec::new()),
            false => None,
        }
    }
}

impl Known {
    /// The newest entry of an instance's job, if there is one; `Err`: it was not asked for. Numbers are used again, so
    /// the name has to be one of the instance's.
    pub(crate) fn entry(&self, id: JobId, name: &str, files: &Files) -> Result<Option<&Job>, NotAsked> {
        let ours = |job: &Job| job.name == name || files.arrays.iter().any(|member| member.array == job.name);
        match self.asked.contains(&id) {
            true => Ok(self.jobs.iter().rfind(|job| job.id == id && ours(job))),
            false => Err(NotAsked),
        }
    }
}

/// Nobody has asked for this job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotAsked;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Member;

    #[test]
    fn each_job_has_its_turn() {
        let all: Vec<JobId> = (1..=5).map(JobId::single).collect();
        let (mut last, mut turns) = (None, Vec::new());
        for _ in 0..3 {
            let asked = next(all.clone(), last, 2);
            last = asked.last().copied();
            turns.extend(asked.iter().map(|id| id.number));
        }
        assert_eq!(turns, [1, 2, 3, 4, 5, 1]);
        assert_eq!(next(Vec::new(), last, 2), []);
        assert_eq!(next(all.clone(), Some(JobId::single(9)), 2), all[..2], "the last one was answered");
    }

    #[test]
    fn a_number_that_was_used_again_is_another_job() {
        let asked = ["7", "8_2", "10"].map(|id| id.parse().expect("a job")).to_vec();
        let text = "7|k|FAILED|n1\n7|other|COMPLETED|n1\n8_1|a|COMPLETED|n1\n8_2|a|FAILED|n1\n";
        let known = Known { asked, jobs: tables::sacct(text) };
        let files = Files { arrays: vec![Member { array: "a".into(), index: 2 }], ..Files::default() };
        let state = |id: &str, name: &str| {
            let found = known.entry(id.parse().expect("a job"), name, &files);
            found.map(|job| job.map(|job| job.state.as_str()))
        };
        assert_eq!((state("7", "k"), state("7", "z"), state("10", "k")), (Ok(Some("FAILED")), Ok(None), Ok(None)));
        assert_eq!(state("8_2", "k"), Ok(Some("FAILED")));
        assert_eq!(state("9", "k"), Err(NotAsked), "that nothing is known of it says nothing");
    }
}
