//! What accounting says of jobs that the controller has forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::command::Commands;
use crate::place::Files;
use crate::rest::Rest;
use crate::tables::{self, Job, JobId};

/// How often accounting is asked: its database serves everybody.
const APART: Duration = Duration::from_secs(5);
/// Jobs that one `sacct` asks for: their numbers are on its command line.
const AT_ONCE: usize = 1000;
/// Jobs that one look asks slurmrestd for, one by one; the next look asks for others.
const BY_REST: usize = 20;

/// An answer of accounting.
#[derive(Debug, Default)]
pub(crate) struct Known {
    asked: Vec<JobId>,
    jobs: Vec<Job>,
}

/// Accounting as this process sees it.
pub(crate) struct Accounts {
    commands: Commands,
    rest: Option<Arc<Rest>>,
    last: Mutex<Option<Instant>>,
}

impl Accounts {
    pub(crate) fn new(commands: Commands, rest: Option<Arc<Rest>>) -> Self {
        Self { commands, rest, last: Mutex::default() }
    }

    /// What is known of these jobs. Where there is no accounting, nothing is.
    #[expect(clippy::await_holding_invalid_type, reason = "one question to accounting at a time")]
    pub(crate) async fn of(&self, mut asked: Vec<JobId>) -> Known {
        let mut jobs = Vec::new();
        if self.rest.is_some() {
            asked.truncate(BY_REST);
        }
        for ids in asked.chunks(AT_ONCE) {
            let mut last = self.last.lock().await;
            if let Some(at) = *last {
                tokio::time::sleep_until((at + APART).into()).await;
            }
            *last = Some(Instant::now());
            if let Some(rest) = &self.rest {
                for id in ids {
                    jobs.extend(rest.account(*id).await.unwrap_or_default());
                }
                break;
            }
            let ids: Vec<String> = ids.iter().map(JobId::to_string).collect();
            // Without a start, only what was there since midnight is shown.
            let args = ["-X", "-n", "-P", "-S", "2000-01-01", "-j", &ids.join(","), "-o", tables::SACCT_FORMAT];
            match self.commands.run("sacct", &args.map(str::to_owned)).await {
                Ok(said) if said.success => jobs.extend(tables::sacct(&said.stdout)),
                // The next ones would get no other answer.
                _ => break,
            }
        }
        Known { asked, jobs }
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
