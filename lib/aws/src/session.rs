//! Calls of one node to AWS: each within the budget, with the credentials that there are, each error with what was
//! attempted.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_config::meta::region::ProvideRegion;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_cloudwatchlogs::config::retry::RetryConfig;
use aws_sdk_cloudwatchlogs::config::timeout::TimeoutConfig;
use aws_sdk_cloudwatchlogs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_cloudwatchlogs::operation::get_log_events::GetLogEventsOutput;

use crate::LogPlace;
use crate::answer::{Meaning, Trouble};
use crate::budget::Budget;
use crate::credentials::FileCredentials;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// All attempts of a call together.
const CALL_WITHIN: Duration = Duration::from_secs(40);
/// Credentials that were refused are not looked for anew more often.
const RENEW_AFTER: Duration = Duration::from_secs(2);

/// How AWS is reached.
#[derive(Clone, Debug)]
pub struct Access {
    /// The region of all calls that name no other.
    pub region: String,
    /// Profile of the shared configuration files; AWS's default when there is none.
    pub profile: Option<String>,
    /// The only source of credentials, when given.
    pub shared_credentials_file: Option<PathBuf>,
    /// Address of the APIs instead of AWS's own.
    pub endpoint: Option<String>,
    /// Limit for this node.
    pub requests_per_second: f64,
    /// The driver's page, which lists the permissions that it needs.
    pub page: &'static str,
}

/// What speaks to AWS with the credentials that were there when it was made: profiles are read once, and the SDK keeps
/// what does not say when it ends.
pub struct Clients<C> {
    /// The service. The SDK repeats its calls by itself.
    pub service: C,
    /// Repeats nothing by itself: after a lost answer one looks first.
    pub once: C,
    sdk: SdkConfig,
    /// By region.
    logs: Mutex<HashMap<String, aws_sdk_cloudwatchlogs::Client>>,
    made: Instant,
}

/// Calls to one service, and to CloudWatch Logs beside it.
pub struct Session<C> {
    /// How AWS is reached.
    pub access: Access,
    make: fn(&SdkConfig) -> C,
    clients: Mutex<Arc<Clients<C>>>,
    /// The credentials were refused, or there were none: they are looked for anew.
    refused: AtomicBool,
    renew_after: Duration,
    /// Of many calls that were refused the first looks for new credentials.
    renewing: tokio::sync::Mutex<()>,
    budget: Budget,
}

/// The region of the configuration (`named`), the environment or the profile; none is looked for on the network.
pub async fn region(named: Option<String>, profile: Option<&str>) -> Option<String> {
    if named.is_some() {
        return named;
    }
    let text = |region: Region| region.as_ref().to_owned();
    if profile.is_none()
        && let Some(region) = aws_config::environment::EnvironmentVariableRegionProvider::new().region().await
    {
        return Some(text(region));
    }
    let mut reader = aws_config::profile::ProfileFileRegionProvider::builder();
    if let Some(name) = profile {
        reader = reader.profile_name(name);
    }
    reader.build().region().await.map(text)
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

impl<C> Clients<C> {
    async fn make(access: &Access, make: fn(&SdkConfig) -> C) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_WITHIN)
            .operation_attempt_timeout(ANSWER_WITHIN)
            .operation_timeout(CALL_WITHIN)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(access.region.clone()))
            .retry_config(RetryConfig::standard().with_max_attempts(3))
            .timeout_config(timeouts);
        if let Some(profile) = &access.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(file) = &access.shared_credentials_file {
            loader =
                loader.credentials_provider(FileCredentials { file: file.clone(), profile: access.profile.clone() });
        }
        if let Some(endpoint) = &access.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        let sdk = loader.load().await;
        let once = sdk.to_builder().retry_config(RetryConfig::disabled()).build();
        Self { service: make(&sdk), once: make(&once), sdk, logs: Mutex::default(), made: Instant::now() }
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

impl<C> Session<C> {
    /// Asks nothing yet. `make` makes the service's client.
    pub async fn new(access: Access, make: fn(&SdkConfig) -> C) -> Self {
        let clients = Clients::make(&access, make).await;
        Self {
            clients: Mutex::new(Arc::new(clients)),
            make,
            refused: AtomicBool::new(false),
            renew_after: RENEW_AFTER,
            renewing: tokio::sync::Mutex::default(),
            budget: Budget::new(access.requests_per_second),
            access,
        }
    }

    fn now(&self) -> Arc<Clients<C>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The clients; with the credentials that there are now, when the last ones were refused.
    #[expect(clippy::await_holding_invalid_type, reason = "credentials are renewed once for all who wait")]
    pub async fn clients(&self) -> Arc<Clients<C>> {
        let due =
            |clients: &Clients<C>| self.refused.load(Ordering::Relaxed) && clients.made.elapsed() >= self.renew_after;
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
        let new = Arc::new(Clients::make(&self.access, self.make).await);
        *self.clients.lock().unwrap_or_else(PoisonError::into_inner) = new.clone();
        tracing::info!(region = self.access.region, "the credentials were refused; those that there are now are used");
        new
    }

    /// Waits for the budget, then makes the call. `doing` is what it attempts, as an infinitive.
    ///
    /// # Errors
    /// [`Trouble`], whose meaning says what it says of the call.
    pub async fn ask<T, E>(
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

    /// Returns when the budget has a request left, for a call that is not made by [`Session::ask`].
    pub async fn take(&self) {
        self.budget.take().await;
    }

    /// What an error means; of refused credentials and of too many requests the next calls learn.
    pub fn trouble<E>(&self, doing: &'static str, error: SdkError<E>) -> Trouble
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let unfound = lacks_credentials(&error);
        let trouble = Trouble::of(doing, self.access.page, error);
        if unfound || trouble.meaning() == Meaning::Credentials {
            self.refused.store(true, Ordering::Relaxed);
        }
        if trouble.meaning() == Meaning::Throttled {
            self.budget.slow_down();
        }
        trouble
    }

    /// A page of a log from its beginning, or from a token (CloudWatch Logs: GetLogEvents).
    ///
    /// # Errors
    /// [`Trouble`]: `ResourceNotFoundException` where there is no such stream yet.
    pub async fn events(&self, place: &LogPlace, from: Option<String>) -> Result<GetLogEventsOutput, Trouble> {
        let region = if place.region.is_empty() { &self.access.region } else { &place.region };
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
                        ("200 OK", r#"{"events":[{"message":"a"}]}"#)
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
        let access = Access {
            region: "us-east-1".to_owned(),
            profile: None,
            shared_credentials_file: Some(file.clone()),
            endpoint: Some(service(known.clone()).await),
            requests_per_second: 1000.0,
            page: "docs/x.md",
        };
        let mut session = Session::new(access, |_| ()).await;
        session.renew_after = Duration::ZERO;
        let place = LogPlace { group: "g".into(), region: String::new(), stream: "s".into() };
        let ask = async || session.events(&place, None).await.map(|page| page.events().len());
        let why = ask().await.expect_err("there is no file yet").to_string();
        assert!(why.contains("cannot read the credentials file"), "{why}");
        write("first");
        assert_eq!(ask().await, Ok(1));
        "second".clone_into(&mut known.lock().expect("unpoisoned"));
        let why = ask().await.expect_err("refused").to_string();
        assert!(why.contains("AWS refuses this node's credentials (ExpiredTokenException"), "{why}");
        ask().await.expect_err("what there is is no better");
        write("second");
        assert_eq!(ask().await, Ok(1));
    }
}
