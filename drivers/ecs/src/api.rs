//! The calls: each within the budget, each error with what was attempted.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_config::meta::region::ProvideRegion;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_cloudwatchlogs::operation::get_log_events::GetLogEventsOutput;
use aws_sdk_ecs::config::retry::RetryConfig;
use aws_sdk_ecs::config::timeout::TimeoutConfig;
use aws_sdk_ecs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ecs::operation::run_task::RunTaskError;
use aws_sdk_ecs::types::{DesiredStatus, Failure, Tag, Task, TaskField};

use crate::answer::{Trouble, What};
use crate::budget::Budget;
use crate::config::{Cluster, PluginConfig};
use crate::credentials::FileCredentials;
use crate::definition::{Known, LogPlace, Made};
use crate::plan::Plan;

/// The service's limit for one DescribeTasks.
pub(crate) const BATCH: usize = 100;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// All attempts of a call together.
const CALL_WITHIN: Duration = Duration::from_secs(40);

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
pub(crate) struct ClusterSeen {
    pub(crate) arn: String,
    pub(crate) status: String,
    pub(crate) instances: i32,
}

/// Which tasks to list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listing<'a> {
    /// Live ones of a key. The service takes no second filter beside this one.
    OfKey(&'a str),
    /// All live ones.
    Live,
    /// All that have ended lately.
    Ended,
}

/// The cluster's API.
pub(crate) struct Api {
    ecs: aws_sdk_ecs::Client,
    /// Repeats nothing by itself: after a lost answer one looks first.
    once: aws_sdk_ecs::Client,
    sdk: SdkConfig,
    /// By region.
    logs: Mutex<HashMap<String, aws_sdk_cloudwatchlogs::Client>>,
    pub(crate) cluster: Cluster,
    pub(crate) region: String,
    budget: Budget,
    /// Revisions of definitions never change.
    definitions: Mutex<HashMap<String, Arc<Known>>>,
    /// Of many starts of one job the first makes its definition.
    registering: tokio::sync::Mutex<()>,
}

/// The region of the configuration, the environment or the profile; none is looked for on the network.
pub(crate) async fn region(config: &PluginConfig, cluster: &Cluster) -> Option<String> {
    if let Some(named) = config.region(cluster) {
        return Some(named);
    }
    let text = |region: Region| region.as_ref().to_owned();
    if config.profile.is_none()
        && let Some(region) = aws_config::environment::EnvironmentVariableRegionProvider::new().region().await
    {
        return Some(text(region));
    }
    let mut profile = aws_config::profile::ProfileFileRegionProvider::builder();
    if let Some(name) = &config.profile {
        profile = profile.profile_name(name);
    }
    profile.build().region().await.map(text)
}

impl Api {
    /// Asks nothing yet.
    pub(crate) async fn new(config: &PluginConfig, cluster: Cluster, region: String) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_WITHIN)
            .operation_attempt_timeout(ANSWER_WITHIN)
            .operation_timeout(CALL_WITHIN)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(region.clone()))
            .retry_config(RetryConfig::standard().with_max_attempts(3))
            .timeout_config(timeouts);
        if let Some(profile) = &config.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(file) = &config.shared_credentials_file {
            loader = loader.credentials_provider(FileCredentials { file: file.clone(), profile: config.profile.clone() });
        }
        if let Some(endpoint) = &config.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        let sdk = loader.load().await;
        let once = aws_sdk_ecs::config::Builder::from(&sdk).retry_config(RetryConfig::disabled()).build();
        Self {
            ecs: aws_sdk_ecs::Client::new(&sdk),
            once: aws_sdk_ecs::Client::from_conf(once),
            sdk,
            logs: Mutex::default(),
            cluster,
            region,
            budget: Budget::new(config.requests_per_second),
            definitions: Mutex::default(),
            registering: tokio::sync::Mutex::default(),
        }
    }

    async fn ask<T, E>(&self, doing: &'static str, call: impl Future<Output = Result<T, SdkError<E>>>) -> Result<T, Trouble>
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        self.budget.take().await;
        call.await.map_err(|error| self.trouble(doing, error))
    }

    fn trouble<E>(&self, doing: &'static str, error: SdkError<E>) -> Trouble
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let trouble = Trouble::of(doing, error);
        if trouble.meaning() == crate::answer::Meaning::Throttled {
            self.budget.slow_down();
        }
        trouble
    }

    /// The cluster itself.
    pub(crate) async fn cluster(&self) -> Result<ClusterSeen, Trouble> {
        let doing = "ask for the cluster";
        let answer = self.ask(doing, self.ecs.describe_clusters().clusters(&self.cluster.given).send()).await?;
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
                Err(Trouble { doing, what: What::Refused { code: "ClusterNotFoundException".into(), message } })
            }
        }
    }

    /// Starts a task.
    pub(crate) async fn run(&self, plan: &Plan, definition: &str) -> Result<Ran, Trouble> {
        self.budget.take().await;
        let call = self
            .once
            .run_task()
            .cluster(&self.cluster.given)
            .task_definition(definition)
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
                _ => Err(self.trouble("start the task", error)),
            },
        }
    }

    /// At most [`BATCH`] tasks, with their tags; and what the service does not know, with the reason.
    pub(crate) async fn describe(&self, arns: Vec<String>) -> Result<(Vec<Task>, Vec<Failure>), Trouble> {
        let call = self.ecs.describe_tasks().cluster(&self.cluster.given).set_tasks(Some(arns)).include(TaskField::Tags).send();
        let answer = self.ask("look at tasks", call).await?;
        Ok((answer.tasks.unwrap_or_default(), answer.failures.unwrap_or_default()))
    }

    /// One page of a listing: ARNs and where to go on.
    pub(crate) async fn list(
        &self,
        listing: Listing<'_>,
        from: Option<String>,
        size: usize,
    ) -> Result<(Vec<String>, Option<String>), Trouble> {
        let size = i32::try_from(size.clamp(1, BATCH)).ok();
        let call = self.ecs.list_tasks().cluster(&self.cluster.given).set_next_token(from).set_max_results(size);
        let call = match listing {
            Listing::OfKey(started_by) => call.started_by(started_by),
            Listing::Live => call.desired_status(DesiredStatus::Running),
            Listing::Ended => call.desired_status(DesiredStatus::Stopped),
        };
        let answer = self.ask("list tasks", call.send()).await?;
        Ok((answer.task_arns.unwrap_or_default(), answer.next_token.filter(|t| !t.is_empty())))
    }

    /// Tells a task to end.
    pub(crate) async fn stop(&self, arn: &str, reason: &str) -> Result<(), Trouble> {
        let call = self.ecs.stop_task().cluster(&self.cluster.given).task(arn).reason(reason).send();
        self.ask("stop the task", call).await.map(drop)
    }

    /// Sets tags of a task.
    pub(crate) async fn tag(&self, arn: &str, tags: Vec<Tag>) -> Result<(), Trouble> {
        self.ask("tag the task", self.ecs.tag_resource().resource_arn(arn).set_tags(Some(tags)).send()).await.map(drop)
    }

    fn definitions(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Known>>> {
        self.definitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, known: Known) -> Arc<Known> {
        let known = Arc::new(known);
        self.definitions().insert(known.arn.clone(), known.clone());
        known
    }

    /// A task definition by family, family:revision or ARN.
    pub(crate) async fn definition(&self, name: &str) -> Result<Arc<Known>, Trouble> {
        if let Some(known) = self.definitions().get(name) {
            return Ok(known.clone());
        }
        let call = self.ecs.describe_task_definition().task_definition(name).send();
        let answer = self.ask("read the task definition", call).await?;
        Ok(self.learn(answer.task_definition().map(Known::of).unwrap_or_default()))
    }

    /// The definition with this content, which is made when there is none.
    pub(crate) async fn made(&self, made: &Made, owner_tag: Vec<Tag>) -> Result<Arc<Known>, driver_sdk::RemoteError> {
        let family = made.family();
        let _turn = self.registering.lock().await;
        if let Some(known) = self.definitions().get(&family) {
            return Ok(known.clone());
        }
        let known = match self.definition(&family).await {
            Ok(known) => known,
            // The service has no code of its own for a definition that does not exist.
            Err(trouble) if trouble.is("ClientException") => self.register(made, &family, owner_tag).await?,
            Err(trouble) => return Err(trouble.into()),
        };
        self.definitions().insert(family, known.clone());
        Ok(known)
    }

    async fn register(&self, made: &Made, family: &str, tags: Vec<Tag>) -> Result<Arc<Known>, driver_sdk::RemoteError> {
        let ((cpu, memory), (task_role, execution_role)) = (made.size(), made.roles());
        let call = self
            .ecs
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
        let answer = self.ask("register the task definition", call.send()).await?;
        Ok(self.learn(answer.task_definition().map(Known::of).unwrap_or_default()))
    }

    fn logs(&self, region: &str) -> aws_sdk_cloudwatchlogs::Client {
        let region = if region.is_empty() { &self.region } else { region };
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let client = logs.entry(region.to_owned()).or_insert_with(|| {
            let config = aws_sdk_cloudwatchlogs::config::Builder::from(&self.sdk).region(Region::new(region.to_owned())).build();
            aws_sdk_cloudwatchlogs::Client::from_conf(config)
        });
        client.clone()
    }

    /// A page of a log from its beginning, or from a token.
    pub(crate) async fn events(&self, place: &LogPlace, from: Option<String>) -> Result<GetLogEventsOutput, Trouble> {
        let call = self.logs(&place.region).get_log_events().log_group_name(&place.group).log_stream_name(&place.stream);
        self.ask("read the log", call.start_from_head(true).set_next_token(from).send()).await
    }
}
