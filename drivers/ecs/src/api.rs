//! The calls: each within the budget, each error with what was attempted.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_config::meta::region::ProvideRegion;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::error::CredentialsError;
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
/// Credentials that were refused are not looked for anew more often.
const RENEW_AFTER: Duration = Duration::from_secs(2);

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

/// What speaks to AWS with the credentials that were there when it was made: profiles are read once, and the SDK keeps
/// what does not say when it ends.
struct Clients {
    ecs: aws_sdk_ecs::Client,
    /// Repeats nothing by itself: after a lost answer one looks first.
    once: aws_sdk_ecs::Client,
    sdk: SdkConfig,
    /// By region.
    logs: Mutex<HashMap<String, aws_sdk_cloudwatchlogs::Client>>,
    made: Instant,
}

/// The cluster's API.
pub(crate) struct Api {
    config: PluginConfig,
    clients: Mutex<Arc<Clients>>,
    /// The credentials were refused, or there were none: they are looked for anew.
    refused: AtomicBool,
    renew_after: Duration,
    /// Of many calls that were refused the first looks for new credentials.
    renewing: tokio::sync::Mutex<()>,
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

/// No credentials were found, so nothing was asked.
fn lacks_credentials(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<CredentialsError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

impl Clients {
    async fn make(config: &PluginConfig, region: &str) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_WITHIN)
            .operation_attempt_timeout(ANSWER_WITHIN)
            .operation_timeout(CALL_WITHIN)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(region.to_owned()))
            .retry_config(RetryConfig::standard().with_max_attempts(3))
            .timeout_config(timeouts);
        if let Some(profile) = &config.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(file) = &config.shared_credentials_file {
            loader =
                loader.credentials_provider(FileCredentials { file: file.clone(), profile: config.profile.clone() });
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
            made: Instant::now(),
        }
    }

    fn logs(&self, region: &str) -> aws_sdk_cloudwatchlogs::Client {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let client = logs.entry(region.to_owned()).or_insert_with(|| {
            let config =
                aws_sdk_cloudwatchlogs::config::Builder::from(&self.sdk).region(Region::new(region.to_owned())).build();
            aws_sdk_cloudwatchlogs::Client::from_conf(config)
        });
        client.clone()
    }
}

impl Api {
    /// Asks nothing yet.
    pub(crate) async fn new(config: &PluginConfig, cluster: Cluster, region: String) -> Self {
        let clients = Clients::make(config, &region).await;
        Self {
            config: config.clone(),
            clients: Mutex::new(Arc::new(clients)),
            refused: AtomicBool::new(false),
            renew_after: RENEW_AFTER,
            renewing: tokio::sync::Mutex::default(),
            cluster,
            region,
            budget: Budget::new(config.requests_per_second),
            definitions: Mutex::default(),
            registering: tokio::sync::Mutex::default(),
        }
    }

    fn now(&self) -> Arc<Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The clients; with the credentials that there are now, when the last ones were refused.
    #[expect(clippy::await_holding_invalid_type, reason = "credentials are renewed once for all who wait")]
    async fn clients(&self) -> Arc<Clients> {
        let due =
            |clients: &Clients| self.refused.load(Ordering::Relaxed) && clients.made.elapsed() >= self.renew_after;
        let clients = self.now();
        if !due(&clients) {
            return clients;
        }
        let _turn = self.renewing.lock().await;
        let clients = self.now();
        if !due(&clients) {
            return clients;
        }
        self.refused.store(false, Ordering::Relaxed);
        let new = Arc::new(Clients::make(&self.config, &self.region).await);
        *self.clients.lock().unwrap_or_else(PoisonError::into_inner) = new.clone();
        tracing::info!(cluster = self.cluster.name, "the credentials were refused; those that there are now are used");
        new
    }

    async fn ask<T, E>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, SdkError<E>>>,
    ) -> Result<T, Trouble>
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
        let unfound = lacks_credentials(&error);
        let trouble = Trouble::of(doing, error);
        if unfound || trouble.meaning() == crate::answer::Meaning::Credentials {
            self.refused.store(true, Ordering::Relaxed);
        }
        if trouble.meaning() == crate::answer::Meaning::Throttled {
            self.budget.slow_down();
        }
        trouble
    }

    /// The cluster itself.
    pub(crate) async fn cluster(&self) -> Result<ClusterSeen, Trouble> {
        let doing = "ask for the cluster";
        let answer =
            self.ask(doing, self.clients().await.ecs.describe_clusters().clusters(&self.cluster.given).send()).await?;
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
    pub(crate) async fn run(&self, plan: &Plan) -> Result<Ran, Trouble> {
        self.budget.take().await;
        let clients = self.clients().await;
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
                _ => Err(self.trouble("start the task", error)),
            },
        }
    }

    /// At most [`BATCH`] tasks, with their tags; and what the service does not know, with the reason.
    pub(crate) async fn describe(&self, arns: Vec<String>) -> Result<(Vec<Task>, Vec<Failure>), Trouble> {
        let call = self
            .clients()
            .await
            .ecs
            .describe_tasks()
            .cluster(&self.cluster.given)
            .set_tasks(Some(arns))
            .include(TaskField::Tags)
            .send();
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
        let call = self
            .clients()
            .await
            .ecs
            .list_tasks()
            .cluster(&self.cluster.given)
            .set_next_token(from)
            .set_max_results(size);
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
        let call = self.clients().await.ecs.stop_task().cluster(&self.cluster.given).task(arn).reason(reason).send();
        self.ask("stop the task", call).await.map(drop)
    }

    /// Sets tags of a task.
    pub(crate) async fn tag(&self, arn: &str, tags: Vec<Tag>) -> Result<(), Trouble> {
        self.ask("tag the task", self.clients().await.ecs.tag_resource().resource_arn(arn).set_tags(Some(tags)).send())
            .await
            .map(drop)
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
        let call = self.clients().await.ecs.describe_task_definition().task_definition(name).send();
        let answer = self.ask("read the task definition", call).await?;
        Ok(self.learn(answer.task_definition().map(Known::of).unwrap_or_default()))
    }

    /// The definition with this content, which is made when there is none.
    #[expect(clippy::await_holding_invalid_type, reason = "a definition is made once for all who want it")]
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
        let clients = self.clients().await;
        let call = clients
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

    /// A page of a log from its beginning, or from a token.
    pub(crate) async fn events(&self, place: &LogPlace, from: Option<String>) -> Result<GetLogEventsOutput, Trouble> {
        let region = if place.region.is_empty() { &self.region } else { &place.region };
        let call = self
            .clients()
            .await
            .logs(region)
            .get_log_events()
            .log_group_name(&place.group)
            .log_stream_name(&place.stream);
        self.ask("read the log", call.start_from_head(true).set_next_token(from).send()).await
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A service that knows one key at a time.
    async fn service(key: Arc<Mutex<String>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let key = key.clone();
                tokio::spawn(async move {
                    let mut asked = Vec::new();
                    while !asked.ends_with(b"}") {
                        if !matches!(stream.read_buf(&mut asked).await, Ok(n) if n > 0) {
                            return;
                        }
                    }
                    let known = format!("Credential={}/", key.lock().expect("unpoisoned"));
                    let (status, body) = if String::from_utf8_lossy(&asked).contains(&known) {
                        ("200 OK", r#"{"clusters":[{"clusterArn":"a","status":"ACTIVE"}]}"#)
                    } else {
                        (
                            "400 Bad Request",
                            r#"{"__type":"ExpiredTokenException","message":"The security token has expired"}"#,
                        )
                    };
                    let head = format!(
                        "HTTP/1.1 {status}\r\ncontent-type: application/x-amz-json-1.1\r\ncontent-length: \
                            {}\r\nconnection: close\r\n\r\n",
                        body.len()
                    );
                    // A client that has gone away is asked nothing more.
                    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn credentials_that_were_refused_are_looked_for_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("credentials");
        let write = |key: &str| {
            std::fs::write(&file, format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n"))
                .expect("written");
        };
        let known = Arc::new(Mutex::new("first".to_owned()));
        let endpoint = Some(service(known.clone()).await);
        let config = PluginConfig {
            endpoint,
            shared_credentials_file: Some(file.clone()),
            requests_per_second: 1000.0,
            region: Some("us-east-1".to_owned()),
            poll_interval: Duration::from_secs(2),
            ..PluginConfig::default()
        };
        let mut api = Api::new(&config, config.cluster().expect("fine"), "us-east-1".to_owned()).await;
        api.renew_after = Duration::ZERO;
        let why = api.cluster().await.expect_err("there is no file yet").to_string();
        assert!(why.contains("cannot read the credentials file"), "{why}");
        write("first");
        assert_eq!(api.cluster().await.map(|c| c.status), Ok("ACTIVE".to_owned()));
        "second".clone_into(&mut known.lock().expect("unpoisoned"));
        let why = api.cluster().await.expect_err("refused").to_string();
        assert!(why.contains("AWS refuses this node's credentials (ExpiredTokenException"), "{why}");
        api.cluster().await.expect_err("what there is is no better");
        write("second");
        assert_eq!(api.cluster().await.map(|c| c.status), Ok("ACTIVE".to_owned()));
    }
}
