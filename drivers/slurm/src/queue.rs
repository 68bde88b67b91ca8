//! One `squeue` for all who ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_sdk::RemoteError;
use tokio::sync::Mutex;

use crate::command::Commands;
use crate::tables::{self, Job, Phase};

/// Time between two calls: at most two a second, however many ask.
const APART: Duration = Duration::from_millis(500);

/// The jobs of this user at one moment.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    by_name: HashMap<String, Vec<Job>>,
}

impl Jobs {
    pub(crate) fn of(jobs: Vec<Job>) -> Self {
        let mut by_name: HashMap<String, Vec<Job>> = HashMap::new();
        for job in jobs {
            by_name.entry(job.name.clone()).or_default().push(job);
        }
        Self { by_name }
    }

    /// All submissions of a name.
    pub(crate) fn named(&self, name: &str) -> &[Job] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// The one with this number. Numbers are used again, so the name has to be the same.
    pub(crate) fn job(&self, name: &str, id: u64) -> Option<&Job> {
        self.named(name).iter().find(|job| job.id == id)
    }

    /// A submission of this name that has not ended.
    pub(crate) fn live(&self, name: &str) -> Option<&Job> {
        self.named(name).iter().find(|job| job.phase() != Phase::Ended)
    }
}

type Answer = Result<Arc<Jobs>, RemoteError>;

/// The queue as this process sees it.
pub(crate) struct Queue {
    commands: Commands,
    user: String,
    last: Mutex<Option<(Instant, Answer)>>,
}

impl Queue {
    pub(crate) fn new(commands: Commands) -> Self {
        Self { commands, user: rustix::process::geteuid().as_raw().to_string(), last: Mutex::new(None) }
    }

    /// The jobs as they were at some time after this call began.
    #[expect(clippy::await_holding_invalid_type, reason = "everybody waits for the one call that is under way")]
    pub(crate) async fn now(&self) -> Answer {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((begun, answer)) = &*last {
            if *begun >= asked {
                return answer.clone();
            }
            tokio::time::sleep_until((*begun + APART).into()).await;
        }
        let begun = Instant::now();
        let args = ["-h", "-t", "all", "-u", &self.user, "-o", tables::SQUEUE_FORMAT].map(str::to_owned);
        let said = self.commands.run("squeue", &args).await;
        let answer = said.and_then(|said| said.output("squeue")).map(|text| Arc::new(Jobs::of(tables::squeue(&text))));
        *last = Some((begun, answer.clone()));
        answer
    }
}
