//! The calls: each within the budget, each error with what was attempted.

use std::sync::Arc;

use aws::Session;
use aws::answer::{Trouble, What};
use aws::definitions::Definitions;
use aws::named::Named;
use aws::pages::{self, Paged};
use aws_sdk_ecs::operation::run_task::RunTaskError;
use aws_sdk_ecs::types::{DesiredStatus, Failure, Tag, Task, TaskDefinition, TaskField};

use crate::definition::{Known, Made};
use crate::plan::Plan;

/// The driver's page.
pub(crate) const PAGE: &str = "docs/reference/drivers/ecs.md";
/// The service's limit for one DescribeTasks.
pub(crate) const BATCH: usize = 100;

/// What RunTask has brought.
pub(crate) enum Ran {
    /// A task: a new one, or the one that the same request has started before.
    Task(Box<Task>),
    /// Tasks that a different request with the same token has started before.
    Taken(Vec<String>),
    /// Nothing, and why.
    NotPlaced(Vec<Failure>),
}

/// The cluster as the service tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSeen {
    pub(crate) arn: String,
    pub(crate) status: String,
    pub(crate) instances: i32,
}

/// Which tasks to list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listing<'a> {
    /// Those of a key that are meant to run. The service takes no second filter beside this one.
    OfKey(&'a str),
    /// All that are meant to run.
    Wanted,
    /// All that were told to end or have ended lately: one whose container takes its time still runs.
    Unwanted,
}

/// The cluster's API.
pub struct Api {
    pub(crate) session: Session<aws_sdk_ecs::Client>,
    pub(crate) cluster: Named,
    definitions: Definitions<Arc<Known>>,
}

impl Api {
    /// Asks nothing yet.
    pub(crate) fn new(session: Session<aws_sdk_ecs::Client>, cluster: Named) -> Self {
        Self { session, cluster, definitions: Definitions::default() }
    }

    /// The cluster's region.
    pub(crate) fn region(&self) -> &str {
        &self.session.access.region
    }

    /// The cluster itself.
    pub(crate) async fn cluster(&self) -> Result<ClusterSeen, Trouble> {
        let doing = "ask for the cluster";
        let answer = self
            .session
            .ask(doing, self.session.clients().await.service.describe_clusters().clusters(&self.cluster.given).send())
            .await?;
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        match answer.clusters().first() {
            Some(c) => Ok(ClusterSeen {
                arn: text(c.cluster_arn()),
                status: text(c.status()),
                instances: c.registered_container_instances_count(),
            }),
            None => {
                let reason = answer.failures().first().and_then(Failure::reason).unwrap_or("no reason given");
                let message = format!("{}: {reason}", self.cluster.given);
                Err(Trouble {
                    doing,
                    page: PAGE,
                    what: What::Refused { code: "ClusterNotFoundException".into(), message },
                })
            }
        }
    }

    /// Starts a task.
    pub(crate) async fn run(&self, plan: &Plan) -> Result<Ran, Trouble> {
        self.session.take().await;
        let clients = self.session.clients().await;
        let call = clients
            .once
            .run_task()
            .cluster(&self.cluster.given)
            .task_definition(&plan.definition)
            .count(1)
            .client_token(&plan.client_token)
            .started_by(&plan.started_by)
            .set_tags(Some(plan.tags.clone()))
            .overrides(plan.overrides.clone())
            .set_launch_type(plan.launch_type.clone())
            .set_capacity_provider_strategy((!plan.strategy.is_empty()).then(|| plan.strategy.clone()))
            .set_network_configuration(plan.network.clone())
            .set_platform_version(plan.platform_version.clone());
        match call.send().await {
            Ok(answer) => Ok(match answer.tasks().first() {
                Some(task) => Ran::Task(Box::new(task.clone())),
                None => Ran::NotPlaced(answer.failures().to_vec()),
            }),
            Err(error) => match error.as_service_error() {
                Some(RunTaskError::ConflictException(taken)) => Ok(Ran::Taken(taken.resource_ids().to_vec())),
                _ => Err(self.session.trouble("start the task", error)),
            },
        }
    }

    /// At most [`BATCH`] tasks, with their tags; and what the service does not know, with the reason.
    pub(crate) async fn describe(&self, arns: Vec<String>) -> Result<(Vec<Task>, Vec<Failure>), Trouble> {
        let call = self
            .session
            .clients()
            .await
            .service
            .describe_tasks()
            .cluster(&self.cluster.given)
            .set_tasks(Some(arns))
            .include(TaskField::Tags)
            .send();
        let answer = self.session.ask("look at tasks", call).await?;
        Ok((answer.tasks.unwrap_or_default(), answer.failures.unwrap_or_default()))
    }

    /// ARNs of a page of a listing.
    pub(crate) async fn list(
        &self,
        listing: Listing<'_>,
        from: Option<String>,
        size: usize,
    ) -> Result<Paged<String>, Trouble> {
        let size = i32::try_from(size.clamp(1, BATCH)).ok();
        let call = self
            .session
            .clients()
            .await
            .service
            .list_tasks()
            .cluster(&self.cluster.given)
            .set_next_token(from)
            .set_max_results(size);
        let call = match listing {
            Listing::OfKey(started_by) => call.started_by(started_by),
            Listing::Wanted => call.desired_status(DesiredStatus::Running),
            Listing::Unwanted => call.desired_status(DesiredStatus::Stopped),
        };
        let answer = self.session.ask("list tasks", call.send()).await?;
        Ok((answer.task_arns.unwrap_or_default(), pages::next(answer.next_token)))
    }

    /// Tells a task to end.
    pub(crate) async fn stop(&self, arn: &str, reason: &str) -> Result<(), Trouble> {
        let call = self
            .session
            .clients()
            .await
            .service
            .stop_task()
            .cluster(&self.cluster.given)
            .task(arn)
            .reason(reason)
            .send();
        self.session.ask("stop the task", call).await.map(drop)
    }

    /// Sets tags of a task.
    pub(crate) async fn tag(&self, arn: &str, tags: Vec<Tag>) -> Result<(), Trouble> {
        self.session
            .ask(
                "tag the task",
                self.session.clients().await.service.tag_resource().resource_arn(arn).set_tags(Some(tags)).send(),
            )
            .await
            .map(drop)
    }

    fn learn(&self, definition: Option<&TaskDefinition>) -> Arc<Known> {
        let known = definition.map(Known::of).unwrap_or_default();
        self.definitions.learn(&known.arn.clone(), Arc::new(known))
    }

    /// A task definition by family, family:revision or ARN.
    pub(crate) async fn definition(&self, name: &str) -> Result<Arc<Known>, Trouble> {
        if let Some(known) = self.definitions.known(name) {
            return Ok(known);
        }
        let call = self.session.clients().await.service.describe_task_definition().task_definition(name).send();
        let answer = self.session.ask("read the task definition", call).await?;
        Ok(self.learn(answer.task_definition()))
    }

    /// The active definition with this content, which is registered when there is none. The one with the ARN `refused`
    /// is not taken from memory.
    pub(crate) async fn made(
        &self,
        made: &Made,
        owner_tag: Vec<Tag>,
        refused: Option<&str>,
    ) -> Result<Arc<Known>, driver_sdk::RemoteError> {
        let family = made.family();
        if let Some(refused) = refused {
            self.definitions.forget(&family, |known| known.arn == refused);
        }
        let find_or_register = async {
            match self.definition(&family).await {
                // The service has no code of its own for a definition that does not exist.
                Err(trouble) if trouble.is("ClientException") => self.register(made, &family, owner_tag).await,
                found => Ok(found?),
            }
        };
        self.definitions.made(&family, find_or_register).await
    }

    async fn register(&self, made: &Made, family: &str, tags: Vec<Tag>) -> Result<Arc<Known>, driver_sdk::RemoteError> {
        let ((cpu, memory), (task_role, execution_role)) = (made.size(), made.roles());
        let clients = self.session.clients().await;
        let call = clients
            .service
            .register_task_definition()
            .family(family)
            .container_definitions(made.container()?)
            .network_mode(made.network_mode())
            .set_requires_compatibilities(made.compatibility().map(|c| vec![c]))
            .set_runtime_platform(made.platform())
            .cpu(cpu)
            .memory(memory)
            .set_task_role_arn(task_role)
            .set_execution_role_arn(execution_role)
            .set_tags(Some(tags));
        let answer = self.session.ask("register the task definition", call.send()).await?;
        Ok(self.learn(answer.task_definition()))
    }
}
