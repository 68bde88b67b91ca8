//! One `squeue`, or one question to slurmrestd, for all who ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_sdk::RemoteError;
use hpc::command::Commands;
use tokio::sync::Mutex;

use crate::place::{Files, Member};
use crate::rest::Rest;
use crate::tables::{self, Job, JobId, Phase};

/// Time between two calls: at most two a second, however many ask.
const APART: Duration = Duration::from_millis(500);
/// A look that bears it takes an answer that is no older than this many times what the last call took …
const SHARE: u32 = 50;
/// … and than this.
const OLDEST: Duration = Duration::from_secs(10);

/// The jobs at one moment.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// Those of the agent's user only.
    own_only: bool,
    all: Vec<Job>,
    by_name: HashMap<String, Vec<usize>>,
    /// An array has hundreds of jobs with one name.
    by_id: HashMap<JobId, usize>,
}

impl Jobs {
    /// Jobs of everybody; with `own_only` those of the agent's user.
    pub(crate) fn new(all: Vec<Job>, own_only: bool) -> Self {
        let (mut by_name, mut by_id) = (HashMap::<String, Vec<usize>>::new(), HashMap::with_capacity(all.len()));
        for (place, job) in all.iter().enumerate() {
            match by_name.get_mut(&job.name) {
                Some(places) => places.push(place),
                None => drop(by_name.insert(job.name.clone(), vec![place])),
            }
            by_id.insert(job.id, place);
        }
        Self { own_only, all, by_name, by_id }
    }

    /// Whether the jobs of this user are not among them, so that a missing one says nothing.
    pub(crate) fn leaves_out(&self, files: &Files) -> Option<u32> {
        files.user.filter(|_| self.own_only)
    }

    /// Anybody may give a job the name of an instance: it is one of its user's.
    fn is_of(job: &Job, files: &Files) -> bool {
        let user = files.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        job.user.is_none_or(|of| of == user)
    }

    /// All submissions of a name, by the user of these files.
    fn named<'a>(&'a self, name: &str, files: &'a Files) -> impl Iterator<Item = &'a Job> + use<'a> {
        let places = self.by_name.get(name).map_or(&[][..], Vec::as_slice);
        places.iter().map(|place| &self.all[*place]).filter(|job| Self::is_of(job, files))
    }

    /// All submissions of an instance: those with its own name, and its part of arrays.
    pub(crate) fn of_instance<'a>(&'a self, name: &str, files: &'a Files) -> impl Iterator<Item = &'a Job> {
        let member =
            |member: &'a Member| self.named(&member.array, files).filter(move |job| job.id.index == Some(member.index));
        self.named(name, files).chain(files.arrays.iter().flat_map(member))
    }

    /// The one with this id. Numbers are used again, so the name has to be the same.
    pub(crate) fn job(&self, name: &str, files: &Files, id: JobId) -> Option<&Job> {
        let job = &self.all[*self.by_id.get(&id)?];
        let named = job.name == name || files.arrays.iter().any(|member| member.array == job.name);
        (named && Self::is_of(job, files)).then_some(job)
    }

    /// A submission of this instance that has not ended.
    pub(crate) fn live(&self, name: &str, files: &Files) -> Option<JobId> {
        self.of_instance(name, files).find(|job| job.phase() != Phase::Ended).map(|job| job.id)
    }
}

type Answer = Result<Arc<Jobs>, RemoteError>;

/// The queue as this process sees it.
pub(crate) struct Queue {
    commands: Commands,
    rest: Option<Arc<Rest>>,
    /// Everybody's jobs are wanted, not only those of this process's user.
    several_users: bool,
    last: Mutex<Option<Last>>,
}

/// The last call.
struct Last {
    begun: Instant,
    took: Duration,
    answer: Answer,
}

impl Queue {
    pub(crate) fn new(commands: Commands, rest: Option<Arc<Rest>>, several_users: bool) -> Self {
        Self { commands, rest, several_users, last: Mutex::new(None) }
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
        let answer = self.jobs().await.map(|jobs| Arc::new(Jobs::new(jobs, !self.several_users)));
        *last = Some(Last { begun, took: begun.elapsed(), answer: answer.clone() });
        answer
    }

    async fn jobs(&self) -> Result<Vec<Job>, RemoteError> {
        let uid = rustix::process::geteuid().as_raw();
        if let Some(rest) = &self.rest {
            return rest.jobs(uid).await;
        }
        let (format, user) = match self.several_users {
            false => (tables::SQUEUE_FORMAT, Some(format!("--user={uid}"))),
            true => (tables::SQUEUE_FORMAT_OF_ALL, None),
        };
        let mut args = ["-h", "-r", "-t", "all", "-o", format].map(str::to_owned).to_vec();
        args.extend(user);
        let said = self.commands.run("squeue", &args).await?;
        Ok(tables::squeue(&said.output("squeue")?))
    }
}
