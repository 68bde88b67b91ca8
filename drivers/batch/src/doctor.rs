//! Checks of the queue, its compute environments and the permissions for `drover driver doctor`.

use aws::doctor::{logs, no_place, right};
use aws::marks::acknowledged_tag;
use aws::provider::Place as _;
use aws_sdk_batch::types::{CeState, CeStatus, ComputeEnvironmentDetail, JobStatus};
use driver_sdk::Finding;

use crate::api::{Api, Listing};
use crate::look::LOG_GROUP;
use crate::provider::Queue;

/// Id of no job: a request about it shows the permission and changes nothing.
const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

/// Checks everything; starts nothing.
pub(crate) async fn examine(api: &Api) -> Vec<Finding> {
    let queue = match api.queue().await {
        Ok(queue) => Queue(queue),
        Err(why) => return no_place("queue", "job_queue", why),
    };
    let mut findings = vec![of_queue(&queue)];
    let order = queue.0.compute_environment_order().iter();
    let arns: Vec<String> = order.filter_map(|o| o.compute_environment()).map(str::to_owned).collect();
    match api.environments(arns).await {
        Ok(environments) => findings.extend(environments.iter().map(of_environment)),
        Err(why) => findings.push(right("batch:DescribeComputeEnvironments", Some(why), Some("word on environments"))),
    }
    let place = queue.arn().split(":job-queue/").next().unwrap_or_default();
    let nobody = format!("{place}:job/{NOBODY}");
    let listed = api.list(Listing::In(JobStatus::Running), None, 1).await.err();
    findings.extend([
        right("batch:ListJobs", listed, None),
        right("batch:DescribeJobs", api.jobs(std::slice::from_ref(&nobody)).await.err(), None),
        right("batch:TerminateJob", api.terminate(&nobody, "drover driver doctor".into()).await.err(), None),
        right("batch:TagResource", api.tag(&nobody, vec![acknowledged_tag()]).await.err(), None),
        logs(&api.session, LOG_GROUP, NOBODY).await,
    ]);
    findings
}

fn of_queue(queue: &Queue) -> Finding {
    let (state, status) = queue.words();
    let found = format!("{}: {state}, {status}", queue.arn());
    match (state, status) {
        ("ENABLED", "VALID") => Finding::pass("queue", found),
        _ => Finding::fail("queue", found, "enable the queue, or name one that is ENABLED and VALID"),
    }
}

fn of_environment(of: &ComputeEnvironmentDetail) -> Finding {
    let what = format!("compute environment {}", of.compute_environment_name().unwrap_or_default());
    let state = of.state().map_or("unknown", CeState::as_str);
    let status = of.status().map_or("unknown", CeStatus::as_str);
    let found = format!("{state}, {status}: {}", of.status_reason().unwrap_or("no reason given"));
    match (state, status) {
        ("ENABLED", "VALID") => Finding::pass(what, found),
        _ => Finding::warning(
            what,
            found,
            "jobs wait in RUNNABLE until an environment of the queue is ENABLED and VALID",
        ),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_batch::types::{JobQueueDetail, JqState, JqStatus};
    use driver_sdk::Verdict;

    use super::*;

    #[test]
    fn a_queue_that_cannot_run_anything_is_told() {
        let queue = |state: JqState, status: JqStatus| {
            let queue = JobQueueDetail::builder().job_queue_name("q").job_queue_arn("a").state(state).status(status);
            of_queue(&Queue(queue.build())).verdict
        };
        assert_eq!(queue(JqState::Enabled, JqStatus::Valid), Verdict::Pass);
        assert_eq!(queue(JqState::Disabled, JqStatus::Valid), Verdict::Fail);
        assert_eq!(queue(JqState::Enabled, JqStatus::Invalid), Verdict::Fail);
        let environment = |state: CeState, status: CeStatus| {
            let made = ComputeEnvironmentDetail::builder().compute_environment_name("e").state(state).status(status);
            of_environment(&made.build()).verdict
        };
        assert_eq!(environment(CeState::Enabled, CeStatus::Valid), Verdict::Pass);
        assert_eq!(environment(CeState::Enabled, CeStatus::Invalid), Verdict::Warning);
    }
}
