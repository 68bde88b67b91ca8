//! ECS as `lib/aws` sees it.

use std::time::SystemTime;

use aws::answer::Trouble;
use aws::marks::{Marks, Tag};
use aws::pages::{self, Paged};
use aws::provider::{Described, Place, Provider};
use aws::{Answer, LogPlace, Session};
use aws_sdk_ecs::types::Task;
use driver_sdk::{Observation, StopTask, async_trait};

use crate::api::{Api, BATCH, ClusterSeen, Listing};
use crate::config::CLUSTER;
use crate::sent::Intent;
use crate::{look, marks};

/// Listings of live tasks: the service lists by what is meant of a task, and one that was told to end runs for as long
/// as its container takes. In this order, so that one that is told meanwhile is seen twice rather than never.
const LIVE: [Listing<'static>; 2] = [Listing::Wanted, Listing::Unwanted];

impl Place for ClusterSeen {
    fn arn(&self) -> &str {
        &self.arn
    }
}

#[async_trait]
impl Provider for Api {
    type Client = aws_sdk_ecs::Client;
    type Place = ClusterSeen;
    type Task = Task;

    const NAME: &'static str = "ECS";
    const NOUN: &'static str = "task";
    const PLACE: &'static str = "cluster";
    const BATCH: usize = BATCH;

    fn intended_place(intent: &[u8]) -> Answer<String> {
        Ok(Intent::read(intent)?.map_or_else(String::new, |intent| intent.cluster))
    }

    fn session(&self) -> &Session<aws_sdk_ecs::Client> {
        &self.session
    }

    async fn place(&self) -> Answer<ClusterSeen> {
        let seen = self.cluster().await?;
        self.cluster.of_account(CLUSTER, &seen.arn)?;
        Ok(seen)
    }

    fn id(task: &Task) -> Option<&str> {
        task.task_arn()
    }

    fn marks(task: &Task) -> Option<Marks> {
        marks::of(task.tags())
    }

    fn created(task: &Task) -> Option<SystemTime> {
        task.created_at().and_then(|at| SystemTime::try_from(*at).ok())
    }

    fn place_of(task: &Task) -> Option<&str> {
        task.cluster_arn()
    }

    fn observation(task: &Task, marks: &Marks) -> Observation {
        look::observation(task, marks)
    }

    async fn describe(&self, ids: Vec<String>) -> Result<Described<Task>, Trouble> {
        let (tasks, failures) = self.describe(ids).await?;
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let (missing, failed): (Vec<_>, Vec<_>) = failures
            .iter()
            .map(|failure| (text(failure.arn()), failure.reason().unwrap_or("nothing").to_owned()))
            .partition(|(_, reason)| reason == "MISSING");
        Ok(Described { tasks, missing: missing.into_iter().map(|(arn, _)| arn).collect(), failed })
    }

    async fn of_key(&self, key: &str, owner: &str, from: Option<String>) -> Answer<Paged<String>> {
        Ok(self.list(Listing::OfKey(&marks::started_by(owner, key)), from, BATCH).await?)
    }

    // The service lists by starter without a further filter only, and then those that are meant to run: others are gone
    // through.
    async fn ended(&self, from: Option<String>) -> Answer<Paged<String>> {
        Ok(self.list(Listing::Unwanted, from, BATCH).await?)
    }

    async fn live(&self, from: Option<String>, size: usize) -> Answer<Paged<String>> {
        pages::in_turn(&LIVE, from, |listing, from| self.list(*listing, from, size)).await
    }

    fn are_ending(from: Option<&str>) -> bool {
        pages::turn_of(from, LIVE.len()).is_some_and(|turn| matches!(LIVE[turn], Listing::Unwanted))
    }

    async fn stop(&self, id: &str, _epoch: u64) -> Result<(), Trouble> {
        self.stop(id, "stopped by the job's scheduler").await
    }

    fn about_to_stop(&self, id: &str, stop: &StopTask) {
        // No job file comes here with another one: it is refused before the create.
        if !matches!(stop.signal.as_str(), "" | "SIGTERM") {
            tracing::warn!(
                signal = stop.signal,
                task = id,
                "ECS sends the signal that the image names; no other can be chosen"
            );
        }
    }

    async fn tag(&self, id: &str, tags: Vec<Tag>) -> Result<(), Trouble> {
        self.tag(id, marks::tags(tags)).await
    }

    fn takes_no_tags(trouble: &Trouble) -> bool {
        ["InvalidParameterException", "ResourceNotFoundException", "ClientException"].iter().any(|c| trouble.is(c))
    }

    async fn log_of(&self, task: &Task, container: &str) -> Answer<Option<LogPlace>> {
        let (Some(definition), Some(arn)) = (task.task_definition_arn(), task.task_arn()) else {
            return Ok(None);
        };
        Ok(self.definition(definition).await?.log(container, arn))
    }

    fn no_log() -> &'static str {
        "the container's output goes to no log group that is known: its definition needs the log driver awslogs with \
            awslogs-group and awslogs-stream-prefix, or config.task.container a log_group"
    }
}
