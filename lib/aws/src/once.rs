//! Starts on a service without idempotency tokens and without unique names: a request that may have arrived is never
//! sent again.
//!
//! A host that stores the intent never repeats a create of such a driver. So this module repeats a request that the
//! service has certainly refused, within the same call. If still nothing was started, the task fails, and the job's
//! reschedule policy continues under another key. If that is not certain, the answer is *could not ask*: the driver
//! finds the instance by its name, or a person decides.

use std::time::{Duration, SystemTime};

use driver_sdk::{DriverState as _, Ensure, Ensured, Lookup, RemoteError, async_trait, handle};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::answer::{Meaning, Trouble};
use crate::marks::Marks;
use crate::provider::{Place as _, Provider};
use crate::sent::Unlisted;
use crate::site::Site;
use crate::{Answer, lock, seconds};

/// Layout of [`Intent`].
const VERSION: u16 = 1;
/// How long a start is tried that has started nothing for certain. Hosts wait a minute for a call.
const PATIENCE: Duration = Duration::from_secs(40);
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The intent: stored by the host before the create is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Intent {
    /// When it was decided, in seconds since 1970.
    at: u64,
    /// ARN of the revision: a name may mean another one tomorrow.
    definition: String,
    /// ARN of the place where it is to be started. Empty in what older releases wrote.
    #[serde(default)]
    place: String,
}

/// [`Provider::intended_place`] of a service whose intents are those of this module.
///
/// # Errors
/// [`RemoteError::CouldNotAsk`].
pub fn intended_place(intent: &[u8]) -> Answer<String> {
    Ok(handle::decode_intent::<Intent>(VERSION, intent)?.map_or_else(String::new, |intent| intent.place))
}

/// A service whose start request takes no token.
#[async_trait]
pub trait Tokenless: Provider {
    /// Options of a task.
    type Options: Send + Sync;
    /// Parameters of a start request.
    type Plan: Send + Sync;

    /// Name of the start request.
    const CALL: &'static str;

    /// Reads and checks the options before anything is sent.
    ///
    /// # Errors
    /// [`RemoteError::WrongRequest`].
    fn options(request: &Ensure) -> Answer<Self::Options>;
    /// ARN of the definition that the job means now. The driver registers one that the job describes itself, if there
    /// is none. `refused` is the ARN of one that the service has refused: it is not taken from memory.
    async fn definition(&self, request: &Ensure, options: &Self::Options, refused: Option<&str>) -> Answer<String>;
    /// The plan for an instance of a definition.
    ///
    /// # Errors
    /// [`RemoteError::WrongRequest`].
    fn plan(request: &Ensure, options: &Self::Options, definition: String) -> Answer<Self::Plan>;
    /// Sends a start, once; answers the id of the new instance.
    async fn submit(&self, plan: &Self::Plan) -> Result<String, Trouble>;
    /// What the answer to a start says of the instance `id` in a place. How it is now is another question, which the
    /// service may answer late.
    fn submitted(plan: &Self::Plan, id: String, place: &str) -> (Self::Task, Marks);
}

/// What to say of a start that has certainly started nothing: of the first one nobody else has sent anything either.
fn nothing_started(first: bool, why: &dyn std::fmt::Display) -> RemoteError {
    match first {
        true => RemoteError::wrong_request(format!("nothing was submitted: {why}")),
        false => RemoteError::could_not_ask(why),
    }
}

/// ARNs of the place, and of the definition that the job means now or that is `kept`; asked for again while nothing is
/// known of them.
async fn ready<P: Tokenless>(
    site: &Site<P>,
    request: &Ensure,
    options: &P::Options,
    kept: Option<Intent>,
    until: Instant,
) -> Answer<(String, String)> {
    loop {
        let known = async {
            let place = site.place(false).await?.arn().to_owned();
            let definition = match &kept {
                Some(kept) => kept.definition.clone(),
                None => site.provider.definition(request, options, None).await?,
            };
            Ok::<_, RemoteError>((place, definition))
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
///
/// # Errors
/// [`RemoteError::WrongRequest`] for what cannot be started; [`RemoteError::CouldNotAsk`].
pub async fn intent<P: Tokenless>(site: &Site<P>, request: &Ensure) -> Answer<Option<Vec<u8>>> {
    let options = P::options(request)?;
    if handle::decode_intent::<Intent>(VERSION, &request.intent)?.is_some() {
        return Ok(None);
    }
    let at = seconds(SystemTime::now());
    let (place, definition) = ready(site, request, &options, None, Instant::now() + PATIENCE).await?;
    handle::encode_intent(VERSION, &Intent { at, definition, place }).map(Some)
}

/// [`driver_sdk::RemoteDriver::ensure`].
///
/// # Errors
/// [`RemoteError::WrongRequest`] where nothing was started; [`RemoteError::CouldNotAsk`] where something may have been.
pub async fn ensure<P: Tokenless>(site: &Site<P>, request: &Ensure) -> Answer<Ensured> {
    let options = P::options(request)?;
    site.starting.alone(&request.key, start(site, request, &options)).await
}

async fn start<P: Tokenless>(site: &Site<P>, request: &Ensure, options: &P::Options) -> Answer<Ensured> {
    let until = Instant::now() + PATIENCE;
    // Of the first create of a key there is nothing to find.
    if !request.first {
        if let Some(taken) = site.taken(request).await? {
            return Ok(taken);
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
    if !request.first {
        site.intended_here(&request.intent).await?;
    }
    let (place, definition) = ready(site, request, options, kept, until).await?;
    // Of the first create nothing was sent anywhere.
    Site::<P>::intended(&request.intent, &place).map_err(|why| nothing_started(request.first, &why))?;
    let (plan, id) = submit(site, request, options, definition, until).await?;
    if id.is_empty() {
        let why = format!("{} was answered without the ARN of a {}", P::CALL, P::NOUN);
        return Err(RemoteError::could_not_ask(why));
    }
    lock(&site.sent).found(&request.key);
    let (task, marks) = P::submitted(&plan, id, &place);
    let handle = site.handle(&task, &marks).await?.remote_handle()?;
    Ok(Ensured { handle, observed: P::observation(&task, &marks), created: true })
}

/// Submits; again while the service refuses for want of room, rights or requests. Once more, if it refuses the request
/// and the job means another definition by now.
async fn submit<P: Tokenless>(
    site: &Site<P>,
    request: &Ensure,
    options: &P::Options,
    definition: String,
    until: Instant,
) -> Answer<(P::Plan, String)> {
    let refused = |answer: &Result<String, Trouble>| answer.as_ref().is_err_and(Trouble::is_refusal);
    let mut plan = P::plan(request, options, definition.clone())?;
    let mut replaced = false;
    loop {
        let trouble = match site.send(request, site.provider.submit(&plan), refused).await {
            Ok(id) => return Ok((plan, id)),
            Err(trouble) => trouble,
        };
        if !trouble.is_refusal() {
            return Err(trouble.into());
        }
        if trouble.meaning() == Meaning::WrongRequest {
            if replaced {
                return Err(trouble.into());
            }
            replaced = true;
            // Services have no code for a definition that was deregistered, so the definition itself is asked for.
            match site.provider.definition(request, options, Some(&definition)).await {
                Ok(other) if other != definition => {
                    let key = &request.key;
                    tracing::warn!(key, %trouble, refused = definition, other, "submits with another definition");
                    plan = P::plan(request, options, other)?;
                    continue;
                }
                Ok(_) => return Err(trouble.into()),
                Err(why) => {
                    tracing::warn!(key = request.key, %why, "whether the refused definition is active is not known");
                    return Err(trouble.into());
                }
            }
        }
        if Instant::now() >= until {
            return Err(nothing_started(request.first, &trouble));
        }
        tracing::warn!(key = request.key, %trouble, "nothing was submitted yet; it is tried again");
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}
