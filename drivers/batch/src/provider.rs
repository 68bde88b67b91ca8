//! Jobs and the queue of Batch, for `lib/aws`.

use std::time::{Duration, SystemTime};

use aws::answer::Trouble;
use aws::marks::{Marks, Tag};
use aws::pages::{self, Paged};
use aws::provider::{Described, Place, Provider};
use aws::{Answer, LogPlace, Session};
use aws_sdk_batch::types::{JobDetail, JobQueueDetail, JobStatus, JqState, JqStatus};
use driver_sdk::{Observation, StopTask, async_trait};

use crate::api::{Api, BATCH, Listing};
use crate::config::QUEUE;
use crate::look;
use crate::plan::job_name;

/// How long Batch waits between SIGTERM and SIGKILL (TerminateJob).
const GRACE: Duration = Duration::from_secs(30);

/// Statuses of live jobs, in the order of a job's life: a listing sees a job that advances meanwhile twice rather than
/// never.
const LIVE: [JobStatus; 5] =
    [JobStatus::Submitted, JobStatus::Pending, JobStatus::Runnable, JobStatus::Starting, JobStatus::Running];

/// The answer of DescribeJobQueues for the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue(pub(crate) JobQueueDetail);

impl Queue {
    /// State and status. It takes jobs when they are ENABLED and VALID.
    pub(crate) fn words(&self) -> (&str, &str) {
        let (state, status) = (self.0.state().map(JqState::as_str), self.0.status().map(JqStatus::as_str));
        (state.unwrap_or("unknown"), status.unwrap_or("unknown"))
    }
}

impl Place for Queue {
    fn arn(&self) -> &str {
        self.0.job_queue_arn().unwrap_or_default()
    }
}

#[async_trait]
impl Provider for Api {
    type Client = aws_sdk_batch::Client;
    type Place = Queue;
    type Task = JobDetail;

    const NAME: &'static str = "Batch";
    const NOUN: &'static str = "job";
    const PLACE: &'static str = "job queue";
    const BATCH: usize = BATCH;
    const LOG_COMES_LATE: bool = true;

    fn intended_place(intent: &[u8]) -> Answer<String> {
        aws::once::intended_place(intent)
    }

    fn session(&self) -> &Session<aws_sdk_batch::Client> {
        &self.session
    }

    async fn place(&self) -> Answer<Queue> {
        let queue = Queue(self.queue().await?);
        self.queue.of_account(QUEUE, queue.arn())?;
        Ok(queue)
    }

    fn id(job: &JobDetail) -> Option<&str> {
        job.job_arn()
    }

    fn marks(job: &JobDetail) -> Option<Marks> {
        Marks::of(job.tags()?.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }

    fn created(job: &JobDetail) -> Option<SystemTime> {
        look::time(job.created_at())
    }

    fn place_of(job: &JobDetail) -> Option<&str> {
        job.job_queue()
    }

    fn observation(job: &JobDetail, marks: &Marks) -> Observation {
        look::observation(job, marks)
    }

    // DescribeJobs has no word for a job that it does not know: it leaves it out.
    async fn describe(&self, ids: Vec<String>) -> Result<Described<JobDetail>, Trouble> {
        let tasks = self.jobs(&ids).await?;
        let missing = ids.into_iter().filter(|id| !tasks.iter().any(|t| t.job_arn() == Some(id))).collect();
        Ok(Described { tasks, missing, failed: Vec::new() })
    }

    async fn of_key(&self, key: &str, owner: &str, from: Option<String>) -> Answer<Paged<String>> {
        Ok(self.list(Listing::Named(job_name(owner, key)), from, BATCH).await?)
    }

    async fn live(&self, from: Option<String>, size: usize) -> Answer<Paged<String>> {
        pages::in_turn(&LIVE, from, |status, from| self.list(Listing::In(status.clone()), from, size)).await
    }

    async fn stop(&self, id: &str, epoch: u64) -> Result<(), Trouble> {
        self.terminate(id, format!("stopped by Drover, epoch {epoch}")).await
    }

    fn about_to_stop(&self, id: &str, stop: &StopTask) {
        if !matches!(stop.signal.as_str(), "" | "SIGTERM") || stop.timeout != GRACE {
            tracing::warn!(
                signal = stop.signal,
                kill_timeout = ?stop.timeout,
                job = id,
                "Batch sends SIGTERM and 30 s later SIGKILL; neither can be chosen"
            );
        }
    }

    async fn tag(&self, id: &str, tags: Vec<Tag>) -> Result<(), Trouble> {
        self.tag(id, tags).await
    }

    fn takes_no_tags(trouble: &Trouble) -> bool {
        trouble.is("ClientException")
    }

    async fn log_of(&self, job: &JobDetail, _container: &str) -> Answer<Option<LogPlace>> {
        Ok(look::log_of(job))
    }

    fn no_log() -> &'static str {
        "the job has no log stream: it never started, or its definition has another log driver than awslogs"
    }
}
