//! Starts. SubmitJob takes no token, and job names are not unique: [`aws::once`] has the procedure.

use aws::Answer;
use aws::answer::Trouble;
use aws::marks::Marks;
use aws::once::Tokenless;
use aws_sdk_batch::types::{JobDetail, JobStatus, JobTimeout, RetryStrategy};
use driver_sdk::{Ensure, RemoteError, async_trait};

use crate::api::Api;
use crate::definition::Made;
use crate::options::TaskOptions;
use crate::plan::{Plan, plan};

#[async_trait]
impl Tokenless for Api {
    type Options = TaskOptions;
    type Plan = Plan;

    const CALL: &'static str = "SubmitJob";

    fn options(request: &Ensure) -> Answer<TaskOptions> {
        let options = TaskOptions::read(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        aws::request::refused(request, "Batch", "a job definition", options.image.is_some())?;
        Ok(options)
    }

    async fn definition(&self, request: &Ensure, options: &TaskOptions, refused: Option<&str>) -> Answer<String> {
        match options.job_definition.as_deref() {
            Some(given) if !given.is_empty() => self.definition(given).await,
            _ => self.made(&Made::of(options, request)?, refused).await,
        }
    }

    fn plan(request: &Ensure, options: &TaskOptions, definition: String) -> Answer<Plan> {
        plan(request, options, definition)
    }

    // One attempt, whatever the definition says: who restarts tasks is the scheduler. The SDK repeats nothing: a second
    // request makes a second job.
    async fn submit(&self, plan: &Plan) -> Result<String, Trouble> {
        let clients = self.session.clients().await;
        let call = clients
            .once
            .submit_job()
            .job_name(&plan.name)
            .job_queue(&self.queue.given)
            .job_definition(&plan.definition)
            .container_overrides(plan.overrides.clone())
            .retry_strategy(RetryStrategy::builder().attempts(1).build())
            .set_parameters((!plan.parameters.is_empty()).then(|| plan.parameters.clone()))
            .set_timeout(plan.timeout.map(|s| JobTimeout::builder().attempt_duration_seconds(s).build()))
            .set_share_identifier(plan.share.clone())
            .set_scheduling_priority_override(plan.priority)
            .set_tags(Some(plan.tags.clone()));
        Ok(self.session.ask("submit the job", call.send()).await?.job_arn.unwrap_or_default())
    }

    fn submitted(plan: &Plan, arn: String, queue: &str) -> (JobDetail, Marks) {
        let job = JobDetail::builder().job_arn(arn).job_queue(queue).status(JobStatus::Submitted);
        (job.job_definition(&plan.definition).build(), plan.marks.clone())
    }
}
