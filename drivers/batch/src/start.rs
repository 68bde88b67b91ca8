//! Starts. SubmitJob has no token, and names of jobs are not unique: a request that may have arrived is not sent again.
//!
//! A host that keeps what is about to be sent never repeats a create of this driver. So what the service has refused
//! for certain is tried again within the call. What then is certain not to have started is an error of the task, and
//! the job's reschedule policy begins anew under another key. What is not certain is *could not ask*: it is found by
//! its name, or a person decides.

use std::time::{Duration, SystemTime};

use aws::answer::{Meaning, Trouble};
use aws::provider::Place as _;
use aws::sent::Unlisted;
use aws::site::Site;
use aws::{Answer, lock};
use aws_sdk_batch::types::{JobDetail, JobStatus};
use driver_sdk::{DriverState as _, Ensure, Ensured, Lookup, RemoteError, handle};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::api::Api;
use crate::definition::Made;
use crate::look::observation;
use crate::options::TaskOptions;
use crate::plan::{Plan, plan};

/// Layout of [`Intent`].
const VERSION: u16 = 1;
/// How long a start is tried that has started nothing for certain. Hosts wait a minute for a call.
const PATIENCE: Duration = Duration::from_secs(40);
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// What is kept of a create before it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Intent {
    /// When it was decided, in seconds since 1970.
    at: u64,
    /// ARN of the revision: a name may mean another one tomorrow.
    definition: String,
}

fn options(request: &Ensure) -> Answer<TaskOptions> {
    let options = TaskOptions::read(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
    aws::request::refused(request, "Batch", "a job definition", options.image.is_some())?;
    Ok(options)
}

/// What to say of a start that has certainly started nothing: of the first one nobody else has sent anything either.
fn nothing_started(first: bool, why: &dyn std::fmt::Display) -> RemoteError {
    match first {
        true => RemoteError::wrong_request(format!("nothing was submitted: {why}")),
        false => RemoteError::could_not_ask(why),
    }
}

/// Whether the service has refused for certain, so that nothing was submitted. An answer that is not understood is
/// none.
fn is_refusal(trouble: &Trouble) -> bool {
    trouble.meaning() != Meaning::CouldNotAsk
}

/// ARNs of the queue, and of the definition that the job means now or that is `kept`; asked for again while nothing is
/// known of them.
async fn ready(
    site: &Site<Api>,
    request: &Ensure,
    options: &TaskOptions,
    kept: Option<Intent>,
    until: Instant,
) -> Answer<(String, String)> {
    loop {
        let known = async {
            let queue = site.place(false).await?.arn().to_owned();
            let definition = match (&kept, options.job_definition.as_deref()) {
                (Some(kept), _) => kept.definition.clone(),
                (None, Some(given)) if !given.is_empty() => site.provider.definition(given).await?,
                _ => site.provider.made(&Made::of(options, request)?).await?,
            };
            Ok::<_, RemoteError>((queue, definition))
        };
        match known.await {
            Err(RemoteError::CouldNotAsk(why)) if Instant::now() >= until => {
                return Err(nothing_started(request.first, &why));
            }
            Err(RemoteError::CouldNotAsk(why)) => tracing::warn!(why, "nothing was submitted yet; it is tried again"),
            known => return known,
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// [`driver_sdk::RemoteDriver::intent`]: `None` when it is kept already.
pub(crate) async fn intent(site: &Site<Api>, request: &Ensure, now: SystemTime) -> Answer<Option<Vec<u8>>> {
    let options = options(request)?;
    if handle::decode_intent::<Intent>(VERSION, &request.intent)?.is_some() {
        return Ok(None);
    }
    let (_, definition) = ready(site, request, &options, None, Instant::now() + PATIENCE).await?;
    let at = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    handle::encode_intent(VERSION, &Intent { at, definition }).map(Some)
}

/// [`driver_sdk::RemoteDriver::ensure`].
pub(crate) async fn ensure(site: &Site<Api>, request: &Ensure) -> Answer<Ensured> {
    let options = options(request)?;
    site.starting.alone(&request.key, start(site, request, &options)).await
}

async fn start(site: &Site<Api>, request: &Ensure, options: &TaskOptions) -> Answer<Ensured> {
    let until = Instant::now() + PATIENCE;
    // Of the first create of a key there is nothing to find.
    if !request.first {
        if let Some((job, marks)) = site.of_key(&request.key, &request.owner).await? {
            return site.existing(job, marks, request.epoch).await;
        }
        let asked = Lookup {
            key: request.key.clone(),
            owner: request.owner.clone(),
            intent: request.intent.clone(),
            epoch: request.epoch,
            create_follows: false,
        };
        if lock(&site.sent).unlisted(&asked, site.window) == Unlisted::NotYet {
            return Err(RemoteError::could_not_ask(site.not_yet()));
        }
    }
    let kept = handle::decode_intent::<Intent>(VERSION, &request.intent)?;
    let (queue, definition) = ready(site, request, options, kept, until).await?;
    let plan = plan(request, options, definition)?;
    let arn = submit(site, request, &plan, until).await?;
    if arn.is_empty() {
        return Err(RemoteError::could_not_ask("SubmitJob was answered without the ARN of a job"));
    }
    lock(&site.sent).found(&request.key);
    // As the answer says; how the job is now is another question, which DescribeJobs may answer late.
    let job = JobDetail::builder().job_arn(arn).job_queue(queue).status(JobStatus::Submitted);
    let job = job.job_definition(&plan.definition).build();
    let handle = site.handle(&job, &plan.marks).await?.remote_handle()?;
    Ok(Ensured { handle, observed: observation(&job, &plan.marks), created: true })
}

/// Submits; again while the service refuses for want of room, rights or requests.
async fn submit(site: &Site<Api>, request: &Ensure, plan: &Plan, until: Instant) -> Answer<String> {
    loop {
        // Whatever ends this call before its answer: the job may exist.
        let heard = lock(&site.sent).begin(&request.key, &request.owner, request.epoch, request.first);
        let trouble = match site.provider.submit(plan).await {
            Ok(arn) => return Ok(arn),
            Err(trouble) => trouble,
        };
        if !is_refusal(&trouble) {
            return Err(trouble.into());
        }
        lock(&site.sent).nothing(&request.key, heard);
        if trouble.meaning() == Meaning::WrongRequest {
            return Err(trouble.into());
        }
        if Instant::now() >= until {
            return Err(nothing_started(request.first, &trouble));
        }
        tracing::warn!(key = request.key, %trouble, "nothing was submitted yet; it is tried again");
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}
