//! Requests to the API of AWS Batch.

use aws::answer::{Trouble, What};
use aws::definitions::Definitions;
use aws::driver::Service as _;
use aws::marks::{OWNER, Tag, text_tags};
use aws::named::Named;
use aws::pages::{self, Paged};
use aws::{Answer, Session};
use aws_sdk_batch::Client;
use aws_sdk_batch::types::{
    ComputeEnvironmentDetail, JobDefinition, JobDefinitionType, JobDetail, JobQueueDetail, JobStatus, KeyValuesPair,
};
use driver_sdk::RemoteError;

use crate::definition::{Made, usable};

/// Most ids of one DescribeJobs, and most jobs of one page of ListJobs with a filter (their API references).
pub(crate) const BATCH: usize = 100;

/// Id of the job with this ARN. DescribeJobs and TerminateJob take ids, `arn:…:job/ID` is for tags.
fn job_id(arn: &str) -> &str {
    arn.rsplit('/').next().unwrap_or(arn)
}

/// The queue's API.
pub struct Api {
    pub(crate) session: Session<Client>,
    pub(crate) queue: Named,
    /// ARNs of the revisions that are made here.
    made: Definitions<String>,
}

/// Which jobs to list.
pub(crate) enum Listing {
    /// All of a name, whatever their status: with a filter `jobStatus` counts for nothing (ListJobs, `filters`).
    Named(String),
    /// Those in a status.
    In(JobStatus),
}

impl Api {
    /// Asks nothing yet.
    pub(crate) fn new(session: Session<Client>, queue: Named) -> Self {
        Self { session, queue, made: Definitions::default() }
    }

    async fn client(&self) -> Client {
        self.session.clients().await.service.clone()
    }

    /// The queue itself (DescribeJobQueues).
    pub(crate) async fn queue(&self) -> Result<JobQueueDetail, Trouble> {
        let doing = "ask for the job queue";
        let call = self.client().await.describe_job_queues().job_queues(&self.queue.given).send();
        // The service answers with an empty list, not with an error.
        self.session.ask(doing, call).await?.job_queues.unwrap_or_default().pop().ok_or_else(|| {
            let message = format!("{} does not exist; check `job_queue` and `region` of the plugin", self.queue.given);
            Trouble { doing, page: Self::PAGE, what: What::Refused { code: "NoSuchQueue".into(), message } }
        })
    }

    /// The queue's compute environments (DescribeComputeEnvironments).
    pub(crate) async fn environments(&self, arns: Vec<String>) -> Result<Vec<ComputeEnvironmentDetail>, Trouble> {
        let call = self.client().await.describe_compute_environments().set_compute_environments(Some(arns)).send();
        let answer = self.session.ask("ask for the compute environments", call).await?;
        Ok(answer.compute_environments.unwrap_or_default())
    }

    /// Jobs by ARN, at most [`BATCH`]; the service leaves out what it does not know (DescribeJobs).
    pub(crate) async fn jobs(&self, arns: &[String]) -> Result<Vec<JobDetail>, Trouble> {
        let ids = arns.iter().map(|arn| job_id(arn).to_owned()).collect();
        let call = self.client().await.describe_jobs().set_jobs(Some(ids)).send();
        Ok(self.session.ask("look at jobs", call).await?.jobs.unwrap_or_default())
    }

    /// ARNs of a page of a listing of the queue (ListJobs).
    pub(crate) async fn list(
        &self,
        listing: Listing,
        from: Option<String>,
        size: usize,
    ) -> Result<Paged<String>, Trouble> {
        let call = self.client().await.list_jobs().job_queue(&self.queue.given).set_next_token(from);
        let call = call.set_max_results(i32::try_from(size.clamp(1, BATCH)).ok());
        let call = match listing {
            Listing::Named(name) => call.filters(KeyValuesPair::builder().name("JOB_NAME").values(name).build()),
            Listing::In(status) => call.job_status(status),
        };
        let answer = self.session.ask("list jobs", call.send()).await?;
        let jobs = answer.job_summary_list.unwrap_or_default().into_iter();
        Ok((jobs.filter_map(|job| job.job_arn).collect(), pages::next(answer.next_token)))
    }

    /// Tells a job to end: one that has not started is cancelled (TerminateJob).
    pub(crate) async fn terminate(&self, arn: &str, reason: String) -> Result<(), Trouble> {
        let call = self.client().await.terminate_job().job_id(job_id(arn)).reason(reason).send();
        self.session.ask("stop the job", call).await.map(drop)
    }

    /// Sets tags of a job (TagResource).
    pub(crate) async fn tag(&self, arn: &str, tags: Vec<Tag>) -> Result<(), Trouble> {
        let call = self.client().await.tag_resource().resource_arn(arn).set_tags(Some(tags.into_iter().collect()));
        self.session.ask("tag the job", call.send()).await.map(drop)
    }

    /// The newest active revision of a name, or the revision that is named (DescribeJobDefinitions).
    async fn newest(&self, given: &str) -> Result<Option<JobDefinition>, Trouble> {
        let call = self.client().await.describe_job_definitions();
        let call = match given.contains(':') {
            true => call.job_definitions(given),
            false => call.job_definition_name(given).status("ACTIVE"),
        };
        let page = async |from| {
            let call = call.clone().set_next_token(from).send();
            let answer = self.session.ask("read the job definition", call).await?;
            Ok::<_, Trouble>((answer.job_definitions.unwrap_or_default(), pages::next(answer.next_token)))
        };
        Ok(pages::all(usize::MAX, page).await?.into_iter().max_by_key(|d| d.revision()))
    }

    /// ARN of the revision that the job means now.
    pub(crate) async fn definition(&self, given: &str) -> Answer<String> {
        let newest = self.newest(given).await?;
        usable(&newest.ok_or_else(|| {
            RemoteError::wrong_request(format!(
                "there is no active job definition {given}; check config.job_definition and the plugin's region"
            ))
        })?)
    }

    /// ARN of the active revision with this content, which is registered when there is none (RegisterJobDefinition).
    /// `refused` is not taken from memory.
    pub(crate) async fn made(&self, made: &Made, refused: Option<&str>) -> Answer<String> {
        let name = made.name();
        if let Some(refused) = refused {
            self.made.forget(&name, |known| known == refused);
        }
        let find_or_register = async {
            if let Some(known) = self.newest(&name).await? {
                return Ok(known.job_definition_arn.unwrap_or_default());
            }
            let call = self.client().await.register_job_definition().job_definition_name(&name);
            let call = call.r#type(JobDefinitionType::Container).platform_capabilities(made.platform());
            let owner = text_tags(OWNER, &made.owner).into_iter().collect();
            let call = call.container_properties(made.container()).set_tags(Some(owner)).send();
            let answer = self.session.ask("register the job definition", call).await?;
            Ok(answer.job_definition_arn.unwrap_or_default())
        };
        self.made.made(&name, find_or_register).await
    }
}
