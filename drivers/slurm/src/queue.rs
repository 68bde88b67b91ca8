//! One `squeue`, or one question to slurmrestd, for all who ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_sdk::RemoteError;
use tokio::sync::Mutex;

use crate::command::Commands;
use crate::place::Member;
use crate::rest::Rest;
use crate::tables::{self, Job, JobId, Phase};

/// Time between two calls: at most two a second, however many ask.
const APART: Duration = Duration::from_millis(500);
/// A look that bears it takes an answer that is no older than this many times what the last call took …
const SHARE: u32 = 50;
/// … and than this.
const OLDEST: Duration = Duration::from_secs(10);

/// The jobs of this user at one moment.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    by_name: HashMap<String, Vec<Job>>,
}

impl Jobs {
    pub(crate) fn new(jobs: Vec<Job>) -> Self {
        let mut by_name: HashMap<String, Vec<Job>> = HashMap::new();
        for job in jobs {
            by_name.entry(job.name.clone()).or_default().push(job);
        }
        Self { by_name }
    }

    /// All submissions of a name.
    fn named(&self, name: &str) -> &[Job] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// All submissions of an instance: those with its own name, and its part of arrays.
    pub(crate) fn of_instance<'a>(&'a self, name: &str, arrays: &'a [Member]) -> impl Iterator<Item = &'a Job> {
        let member =
            |member: &'a Member| self.named(&member.array).iter().filter(move |job| job.id.index == Some(member.index));
        self.named(name).iter().chain(arrays.iter().flat_map(member))
    }

    /// The one with this id. Numbers are used again, so the name has to be the same.
    pub(crate) fn job(&self, name: &str, arrays: &[Member], id: JobId) -> Option<&Job> {
        let found = self.named(name).iter().find(|job| job.id == id);
        found.or_else(|| arrays.iter().find_map(|member| self.named(&member.array).iter().find(|job| job.id == id)))
    }

    /// A submission of this instance that has not ended.
    pub(crate) fn live(&self, name: &str, arrays: &[Member]) -> Option<JobId> {
        self.of_instance(name, arrays).find(|job| job.phase() != Phase::Ended).map(|job| job.id)
    }
}

type Answer = Result<Arc<Jobs>, RemoteError>;

/// The queue as this process sees it.
pub(crate) struct Queue {
    commands: Commands,
    rest: Option<Arc<Rest>>,
    uid: u32,
    last: Mutex<Option<Last>>,
}

/// The last call.
struct Last {
    begun: Instant,
    took: Duration,
    answer: Answer,
}

impl Queue {
    pub(crate) fn new(commands: Commands, rest: Option<Arc<Rest>>) -> Self {
        Self { commands, rest, uid: rustix::process::geteuid().as_raw(), last: Mutex::new(None) }
    }

    /// The jobs as they were at some time after this call began.
    pub(crate) async fn now(&self) -> Answer {
        self.since(Instant::now()).await
    }

    /// As [`Queue::now`] for a look every `interval`. Where `squeue` takes long, the jobs are as they were a moment
    /// ago: for thousands of jobs it keeps a core and the controller busy for a while.
    pub(crate) async fn lately(&self, interval: Duration) -> Answer {
        let now = Instant::now();
        // A controller that gave no answer may be back.
        let answered = |last: &Last| last.answer.is_ok().then_some(last.took);
        let took = self.last.lock().await.as_ref().and_then(answered).unwrap_or_default();
        let age = (took * SHARE).min(OLDEST);
        let wanted = if age > interval { now.checked_sub(age) } else { None };
        self.since(wanted.unwrap_or(now)).await
    }

    #[expect(clippy::await_holding_invalid_type, reason = "everybody waits for the one call that is under way")]
    async fn since(&self, wanted: Instant) -> Answer {
        let mut last = self.last.lock().await;
        if let Some(last) = &*last {
            if last.begun >= wanted {
                return last.answer.clone();
            }
            tokio::time::sleep_until((last.begun + APART).into()).await;
        }
        let begun = Instant::now();
        let answer = self.jobs().await.map(|jobs| Arc::new(Jobs::new(jobs)));
        *last = Some(Last { begun, took: begun.elapsed(), answer: answer.clone() });
        answer
    }

    async fn jobs(&self) -> Result<Vec<Job>, RemoteError> {
        if let Some(rest) = &self.rest {
            return rest.jobs(self.uid).await;
        }
        let args = ["-h", "-r", "-t", "all", "-u", &self.uid.to_string(), "-o", tables::SQUEUE_FORMAT];
        let said = self.commands.run("squeue", &args.map(str::to_owned)).await?;
        Ok(tables::squeue(&said.output("squeue")?))
    }
}
