//! Slurm by slurmrestd instead of its commands: the queue, submissions, cancels, signals, nodes, accounting.
//!
//! ```text
//! http.rs     one request: TCP, TLS or a socket of this machine
//! token.rs    what a token says of itself: pure
//! job.rs      options of sbatch → a job's description: pure
//! tables.rs   what slurmrestd answers, in both of its forms: pure
//! doctor.rs   what tasks will need of it
//! ```
//!
//! Forms follow the version of the API that the path names: up to v0.0.38 numbers are numbers, states are words and an
//! environment is a map; from v0.0.39 on numbers may be objects, states lists, and an environment is a list. Source:
//! the OpenAPI descriptions of Slurm 22.05 to 26.05 (`/openapi/v3` of a running slurmrestd), and 22.05.8 as it answers.
//!
//! Whatever is not clearly an answer is *could not ask*: a status of 500 stands for a silent controller, for an expired
//! token and for a refusal alike, and only the list of errors tells which.
//!
//! Must never know: run directories, epochs. Begin reading at [`Rest`].

pub(crate) mod doctor;
mod http;
mod job;
mod tables;
mod token;

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ::http::Method;
use driver_sdk::RemoteError;
use serde_json::{Value, json};

pub(crate) use self::http::check;
use self::http::{Endpoint, Said};
pub(crate) use self::tables::{Served, Version};
use crate::answer::Refusal;
use crate::config::{PluginConfig, RestConfig};
use crate::tables::{Job, JobId};

type Answer<T> = Result<T, RemoteError>;

/// Numbers of Slurm's errors that say of a signal: there is nothing to tell any more (`ESLURM_INVALID_JOB_ID`,
/// `ESLURM_ALREADY_DONE` of slurm_errno.h).
const NOTHING_LEFT: [i64; 2] = [2017, 2021];
/// `ESLURM_REST_INVALID_QUERY`: how 22.05 answers a signal that it does not know.
const INVALID_QUERY: i64 = 9000;

/// A failed submission: the refusal if Slurm itself has refused, and what to tell. Without a refusal the job may have
/// been taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unsent {
    pub(crate) refusal: Option<Refusal>,
    pub(crate) why: RemoteError,
}

/// What slurmrestd says of itself and of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reached {
    pub(crate) version: Version,
    /// Release of Slurm, such as `22.05.8`.
    pub(crate) release: String,
    /// Seconds since 1970 by the controller's clock.
    pub(crate) time: Option<u64>,
}

/// One slurmrestd.
pub(crate) struct Rest {
    pub(crate) config: RestConfig,
    endpoint: Endpoint,
    limit: Duration,
    /// What it serves, once it has said so.
    served: Mutex<Option<Served>>,
}

impl Rest {
    /// Reads the authorities of TLS; connects nowhere yet. Blocks.
    ///
    /// # Errors
    /// [`RemoteError::WrongRequest`]: the configuration names no place, or an authority that cannot be read.
    pub(crate) fn new(config: &RestConfig, plugin: &PluginConfig) -> Answer<Self> {
        let wrong = |why: String| RemoteError::wrong_request(format!("rest: {why}"));
        let endpoint = Endpoint::new(&config.url, config.ca_file.as_deref()).map_err(wrong)?;
        Ok(Self { config: config.clone(), endpoint, limit: plugin.command_timeout, served: Mutex::default() })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.config.url
    }

    /// The token as it is in the file now; `None` where none is configured.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: the file cannot be read, or holds none.
    pub(crate) async fn token(&self) -> Answer<Option<String>> {
        let Some(path) = &self.config.token_file else { return Ok(None) };
        let told = |why: String| RemoteError::could_not_ask(format!("token_file {}: {why}", path.display()));
        // Whoever renews it replaces the file: it is read for each call.
        let text = tokio::fs::read_to_string(path).await.map_err(|why| told(why.to_string()))?;
        match token::of_file(&text) {
            Some(token) => Ok(Some(token)),
            None => Err(told("it holds no token; write one with `scontrol token`".to_owned())),
        }
    }

    /// Whom slurmrestd takes the calls to be from: the configured user, or the one that the token names.
    pub(crate) fn user(&self, token: Option<&str>) -> Option<String> {
        let configured = self.config.user.clone().filter(|user| !user.is_empty());
        configured.or_else(|| token::claims(token?).user)
    }

    /// One call. `path` begins after the address.
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Answer<Said> {
        let token = self.token().await?;
        let user = self.user(token.as_deref());
        let ask = self.endpoint.ask(method.clone(), path, body, user.as_deref(), token.as_deref());
        let limit = self.limit;
        let said = match tokio::time::timeout(limit, ask).await {
            Ok(said) => said,
            Err(_) => Err(format!("no answer within {} s (`command_timeout`)", limit.as_secs_f64())),
        };
        let said = said.map_err(|why| RemoteError::could_not_ask(format!("slurmrestd at {}: {why}", self.url())))?;
        tracing::trace!(%method, path, status = said.status, "asked");
        if said.success() {
            return Ok(said);
        }
        if said.status == 404 && tables::errors(&said.body).is_empty() {
            // It may have been replaced by one that serves other versions.
            *self.served.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let expired = token.as_deref().and_then(|token| token::expired(token, SystemTime::now()));
        Ok(Said { expired, ..said })
    }

    /// What an answer other than success says, as *could not ask*.
    fn unclear(&self, what: &str, said: &Said) -> RemoteError {
        let reason = said.reason();
        let renew = "write a new one into `token_file` (`scontrol token`)";
        RemoteError::could_not_ask(match (said.expired, said.status) {
            (Some(age), _) => {
                format!("token expired: it was valid until {} s ago; {renew}; {what}: {reason}", age.as_secs())
            }
            (None, 401 | 403) => {
                format!("slurmrestd does not accept the token (status {}): {reason}; {renew}", said.status)
            }
            (None, status) => format!("{what} of slurmrestd answers {status}: {reason}"),
        })
    }

    /// Versions of the API that are served: the configured one, or the best one that both sides know.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: no answer, or none that this release can use.
    pub(crate) async fn served(&self) -> Answer<Served> {
        if let Some(version) = self.config.version() {
            return Ok(Served { slurm: version, accounting: Some(version) });
        }
        if let Some(known) = *self.served.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(known);
        }
        let said = self.call(Method::GET, "/openapi/v3", None).await?;
        if !said.success() {
            return Err(self.unclear("/openapi/v3", &said));
        }
        let served = tables::served(&said.body)
            .map_err(|why| RemoteError::could_not_ask(format!("/openapi/v3 of slurmrestd: {why}")))?;
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = Some(served);
        Ok(served)
    }

    /// A question, answered with success.
    async fn get(&self, version: Version, what: &str) -> Answer<Said> {
        let said = self.call(Method::GET, &format!("/slurm/{version}/{what}"), None).await?;
        match said.success() {
            true => Ok(said),
            false => Err(self.unclear(what, &said)),
        }
    }

    /// The jobs of the acting user, each job of an array by itself, those that ended lately as well.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: no answer, or none that lists all jobs.
    pub(crate) async fn jobs(&self, uid: u32) -> Answer<Vec<Job>> {
        let version = self.served().await?.slurm;
        let said = self.get(version, "jobs").await?;
        let user = self.user(self.token().await?.as_deref());
        // Megabytes on a large cluster: not on a thread that others wait for.
        let read = tokio::task::spawn_blocking(move || tables::jobs(&said.body, uid, user.as_deref()));
        let read = read.await.map_err(RemoteError::could_not_ask)?;
        read.map_err(|why| RemoteError::could_not_ask(format!("jobs of slurmrestd: {why}")))
    }

    /// Submits a script with options as `sbatch` takes them, from a directory. Returns the number of the job.
    ///
    /// # Errors
    /// See [`Unsent`].
    ///
    /// A drop leaves it open whether the job was taken.
    pub(crate) async fn submit(&self, dir: &Path, options: &[String], script: &str) -> Result<u64, Unsent> {
        let unclear = |why| Unsent { refusal: None, why };
        let version = self.served().await.map_err(unclear)?.slurm;
        if !version.names_members() && options.iter().any(|option| option.starts_with("--array=")) {
            let why = RemoteError::wrong_request(format!("{version} of slurmrestd cannot end one job of an array"));
            return Err(Unsent { refusal: Some(Refusal::Array), why });
        }
        let body = job::description(version, dir, options, script)
            .map_err(|why| Unsent { refusal: Some(Refusal::Wrong), why: RemoteError::wrong_request(why) })?;
        let path = format!("/slurm/{version}/job/submit");
        let said = self.call(Method::POST, &path, Some(&body)).await.map_err(unclear)?;
        match (tables::job_id(&said.body), tables::refusal(said.status, &said.body)) {
            // Complaints beside a number, also with a status of 500, are none: the job waits for what it lacks.
            (Some(number), _) => Ok(number),
            (None, Some(Refusal::Full)) => {
                let why = format!("the cluster takes no more jobs now: {}", said.reason());
                Err(Unsent { refusal: Some(Refusal::Full), why: RemoteError::could_not_ask(why) })
            }
            (None, refusal @ Some(_)) => {
                let why = RemoteError::wrong_request(format!("Slurm refuses the job: {}", said.reason()));
                Err(Unsent { refusal, why })
            }
            (None, None) => {
                let why = self.unclear("job/submit", &said);
                let why = format!("{}; the job may have been taken, or not", told(&why));
                Err(unclear(RemoteError::could_not_ask(why)))
            }
        }
    }

    /// A signal to a job's script and everything below it; KILL ends the job, also one that waits. A job that has ended
    /// or is not known is no error, and no confirmation.
    ///
    /// # Errors
    /// [`RemoteError::WrongRequest`]: there is no such signal. [`RemoteError::CouldNotAsk`]: anything else.
    pub(crate) async fn signal(&self, id: JobId, signal: &str) -> Answer<()> {
        let version = self.served().await?.slurm;
        let said = match version.signals_by_list() {
            // A path names a whole array there: an index is left out.
            true => {
                let body = json!({"jobs": [id.to_string()], "signal": signal, "flags": ["FULL_JOB"]});
                self.call(Method::DELETE, &format!("/slurm/{version}/jobs/"), Some(&body)).await?
            }
            false if id.index.is_some() && !version.names_members() => {
                return Err(RemoteError::could_not_ask(format!(
                    "{version} of slurmrestd would end the whole array of the job {id}; use another `version`, or end \
                        it by `scancel {id}`"
                )));
            }
            false => self.call(Method::DELETE, &format!("/slurm/{version}/job/{id}?signal={signal}"), None).await?,
        };
        let mut errors = tables::errors(&said.body);
        errors.extend(tables::signal_errors(&said.body));
        errors.retain(|error| !NOTHING_LEFT.contains(&error.number));
        let unknown = |error: &tables::Fault| error.number == INVALID_QUERY && error.text.contains("signal");
        match (said.success(), errors.is_empty()) {
            (true, true) => Ok(()),
            // All that it complained about was that there is nothing left.
            (false, true) if !tables::errors(&said.body).is_empty() => Ok(()),
            _ if errors.iter().any(unknown) => {
                Err(RemoteError::wrong_request(format!("Slurm does not know the signal {signal:?}")))
            }
            _ => Err(self.unclear("a signal by job", &said)),
        }
    }

    /// What accounting says of a job; nothing where it is not served.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: no answer.
    pub(crate) async fn account(&self, id: JobId) -> Answer<Vec<Job>> {
        let Some(version) = self.served().await?.accounting else { return Ok(Vec::new()) };
        let said = self.call(Method::GET, &format!("/slurmdb/{version}/job/{}", id.number), None).await?;
        if !said.success() {
            return Err(self.unclear("accounting", &said));
        }
        tables::accounts(&said.body).map_err(|why| RemoteError::could_not_ask(format!("accounting: {why}")))
    }

    /// Whether the controller hears all nodes of an expression.
    pub(crate) async fn heard(&self, nodes: &str) -> bool {
        let Ok(served) = self.served().await else { return false };
        let Ok(said) = self.get(served.slurm, "nodes").await else { return false };
        tables::heard(&said.body, nodes)
    }

    /// Whether slurmrestd reaches the controller.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: it does not, or gives no answer.
    pub(crate) async fn ping(&self) -> Answer<()> {
        let version = self.served().await?.slurm;
        let said = self.get(version, "ping").await?;
        match tables::pinged(&said.body) {
            true => Ok(()),
            false => Err(RemoteError::could_not_ask(format!("the controller does not answer: {}", said.reason()))),
        }
    }

    /// Version, release and clock, for the doctor.
    ///
    /// # Errors
    /// As [`Rest::ping`].
    pub(crate) async fn reach(&self) -> Answer<Reached> {
        self.ping().await?;
        let version = self.served().await?.slurm;
        let said = self.get(version, "diag").await?;
        Ok(Reached { version, release: tables::release(&said.body), time: tables::time(&said.body) })
    }

    /// Seconds that the token is still valid: negative when it has expired, `None` when it does not say.
    pub(crate) fn valid_for(token: &str, now: SystemTime) -> Option<i64> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Some(token::claims(token).expires? - i64::try_from(now).unwrap_or(i64::MAX))
    }
}

/// The text of an error without its kind.
fn told(why: &RemoteError) -> String {
    match why {
        RemoteError::CouldNotAsk(text) | RemoteError::WrongRequest(text) => text.clone(),
        other => other.to_string(),
    }
}
