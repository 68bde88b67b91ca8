//! Providers, what is remembered of them, and what they are asked in a login.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex as Guarded, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use login::{
    Claims, Token,
    claims::{Expected, Refusal},
    keys::{self, Key},
    oidc::{Provider, WrongIdentity, add_user_info, check_id_token, encoded, form},
};
use serde::Deserialize;
use tls::Roots;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    fetch::{Unreachable, ask},
    signature::{public_keys, signed_by},
};

/// After so long keys are asked for again.
const FRESH: Duration = Duration::from_secs(300);
/// So long old keys count while the provider does not answer.
const STALE: Duration = Duration::from_secs(3600);
/// A token with an unknown key makes the servers ask again, but not more often than this: anybody can invent a key id.
const AT_MOST_EVERY: Duration = Duration::from_secs(10);
/// Providers that are remembered.
const REMEMBERED: usize = 64;

/// Why a login with a provider failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The token does not count.
    #[error("unable to validate provided token: {0}")]
    Refused(#[from] Refusal),
    /// The ID token or the further claims are not of this login.
    #[error("unable to validate provided token: {0}")]
    Identity(#[from] WrongIdentity),
    /// The provider did not answer.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// What it answered is not what it should be.
    #[error("the identity provider's answer from {url} cannot be used: {why}")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The method's own keys or certificates cannot be used.
    #[error("the auth method cannot be used: {0}")]
    Method(
        /// Which of them, and why.
        String,
    ),
}

/// Where the keys of a method's tokens come from: the first that is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeySource<'m> {
    /// Public keys in PEM.
    pub public_keys: &'m [String],
    /// Address of a set of keys.
    pub jwks_url: &'m str,
    /// Authority of that address in PEM; empty = those of this system.
    pub jwks_ca: &'m str,
    /// A provider.
    pub discovery_url: &'m str,
    /// Authorities of the provider in PEM; none = those of this system.
    pub discovery_ca: &'m [String],
}

/// What a code stands for, and who asks.
#[derive(Clone, Copy)]
pub struct CodeExchange<'a> {
    /// The provider.
    pub discovery_url: &'a str,
    /// Its authorities, see [`KeySource::discovery_ca`].
    pub discovery_ca: &'a [String],
    /// Id of the servers there.
    pub client_id: &'a str,
    /// Their secret there; empty for a public client with PKCE.
    pub client_secret: &'a str,
    /// The code.
    pub code: &'a str,
    /// Where the login led back to.
    pub redirect: &'a str,
    /// The verifier of PKCE.
    pub verifier: Option<&'a str>,
    /// The nonce of this login.
    pub nonce: &'a str,
    /// Whether further claims are asked for.
    pub user_info: bool,
}

/// What a provider gives for a code.
#[derive(Clone, Deserialize)]
pub struct Tokens {
    /// Who logged in, signed.
    pub id_token: String,
    /// Opens the userinfo endpoint.
    #[serde(default)]
    pub access_token: String,
}

/// What is remembered of one address.
struct Remembered<T> {
    value: Option<(Arc<T>, Instant)>,
    /// The last request that failed, until one succeeds.
    failed: Option<(Error, Instant)>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { value: None, failed: None }
    }
}

/// A slot that one asks for while the others wait.
type Slot<T> = Arc<Mutex<Remembered<T>>>;
/// By address and authorities.
type Slots<T> = Guarded<HashMap<(String, String), Slot<T>>>;

/// The providers that this server has asked.
#[derive(Default)]
pub struct Providers {
    keys: Slots<Vec<Key>>,
    documents: Slots<Provider>,
    system: Guarded<Option<Roots>>,
}

fn slot<T>(slots: &Slots<T>, url: &str, ca: &str) -> Slot<T> {
    let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (url.to_owned(), ca.to_owned());
    if slots.len() >= REMEMBERED && !slots.contains_key(&key) {
        slots.clear();
    }
    slots.entry(key).or_default().clone()
}

/// What is remembered, or asked for when it is older than `fresh`. While the provider does not answer, the old counts,
/// and nobody else waits for it: it is asked again after a while only.
#[expect(
    clippy::await_holding_invalid_type,
    reason = "those who want the same keys wait for the one who asks for them, which has a bound"
)]
async fn recall<T>(
    slot: &Slot<T>,
    fresh: Duration,
    asking: impl Future<Output = Result<T, Error>>,
) -> Result<Arc<T>, Error> {
    let mut slot = slot.lock().await;
    if let Some((value, at)) = &slot.value
        && at.elapsed() < fresh
    {
        return Ok(value.clone());
    }
    let lately = slot.failed.as_ref().filter(|(_, at)| at.elapsed() < AT_MOST_EVERY).map(|(error, _)| error.clone());
    let answer = match lately {
        Some(error) => Err(error),
        None => asking.await.inspect_err(|error| slot.failed = Some((error.clone(), Instant::now()))),
    };
    match (answer, &slot.value) {
        (Ok(value), _) => {
            let value = Arc::new(value);
            *slot = Remembered { value: Some((value.clone(), Instant::now())), failed: None };
            Ok(value)
        }
        (Err(_), Some((value, at))) if at.elapsed() < STALE => Ok(value.clone()),
        (Err(error), _) => Err(error),
    }
}

impl Providers {
    /// Verifies a token: its form, algorithm, signature, times, audience and issuer. `now` is in seconds of Unix time.
    /// Cancel safe: at most an answer of a provider is lost.
    ///
    /// # Errors
    /// When it does not count, or its keys are not to be had.
    pub async fn verify(
        &self,
        source: KeySource<'_>,
        text: &str,
        expected: &Expected<'_>,
        now: i64,
    ) -> Result<Claims, Error> {
        let token = Token::read(text).map_err(Refusal::from)?;
        expected.algorithm(token.algorithm)?;
        let signed = |keys: &[Key]| keys::candidates(&token, keys).any(|key| signed_by(&token, &key.public));
        let keys = self.keys_of(source, FRESH).await?;
        let mut fine = signed(&keys);
        if !fine && source.public_keys.is_empty() && keys::unknown_key(&token, &keys) {
            fine = signed(&self.keys_of(source, AT_MOST_EVERY).await?);
        }
        if !fine {
            return Err(Refusal::Signature.into());
        }
        expected.check(&token.claims, now)?;
        Ok(token.claims)
    }

    async fn keys_of(&self, source: KeySource<'_>, fresh: Duration) -> Result<Arc<Vec<Key>>, Error> {
        if !source.public_keys.is_empty() {
            return public_keys(source.public_keys).map(Arc::new).map_err(Error::Method);
        }
        let pem = [source.jwks_ca.to_owned()];
        let (url, ca): (String, &[String]) = if source.jwks_url.is_empty() {
            (self.provider(source.discovery_url, source.discovery_ca).await?.jwks_uri.clone(), source.discovery_ca)
        } else {
            (source.jwks_url.to_owned(), if source.jwks_ca.is_empty() { &[] } else { &pem })
        };
        let asking = async {
            let json = ask(self.roots(&url, ca).await?.as_ref(), &url, None, None).await?;
            keys::read_set(&json).map_err(|why| Error::Answer { url: url.clone(), why })
        };
        recall(&slot(&self.keys, &url, &ca.concat()), fresh, asking).await
    }

    /// What a provider says of itself.
    ///
    /// # Errors
    /// When it does not answer, or is another one.
    pub async fn provider(&self, discovery_url: &str, ca: &[String]) -> Result<Arc<Provider>, Error> {
        let url = Provider::document_of(discovery_url);
        let asking = async {
            let json = ask(self.roots(&url, ca).await?.as_ref(), &url, None, None).await?;
            Provider::read(&json, discovery_url).map_err(|why| Error::Answer { url: url.clone(), why })
        };
        recall(&slot(&self.documents, &url, &ca.concat()), FRESH, asking).await
    }

    /// Takes a login by browser to its end: exchanges the code, checks the ID token, adds further claims. The provider
    /// takes a code once. Not cancel safe: a dropped call may have used up the code, and the person logs in again.
    ///
    /// # Errors
    /// When the provider refuses the code or does not answer, or what it gives is not of this login.
    pub async fn complete(&self, login: CodeExchange<'_>, expected: &Expected<'_>, now: i64) -> Result<Claims, Error> {
        let provider = self.provider(login.discovery_url, login.discovery_ca).await?;
        let mut pairs =
            vec![("grant_type", "authorization_code"), ("code", login.code), ("redirect_uri", login.redirect)];
        pairs.extend(login.verifier.map(|verifier| ("code_verifier", verifier)));
        let mut header = None;
        if login.client_secret.is_empty() || provider.secret_in_form() {
            pairs.push(("client_id", login.client_id));
            if !login.client_secret.is_empty() {
                pairs.push(("client_secret", login.client_secret));
            }
        } else {
            // RFC 6749, section 2.3.1: both are encoded as in a form first.
            let both = format!("{}:{}", encoded(login.client_id), encoded(login.client_secret));
            header = Some(format!("Basic {}", STANDARD.encode(both)));
        }
        let roots = self.roots(&provider.token_endpoint, login.discovery_ca).await?;
        let answer = ask(roots.as_ref(), &provider.token_endpoint, header.as_deref(), Some(form(&pairs))).await?;
        // What is in the answer is secret: the error does not repeat it.
        let tokens: Tokens = serde_json::from_slice(&answer).map_err(|_| Error::Answer {
            url: provider.token_endpoint.clone(),
            why: "it holds no id_token; the scope openid must be allowed for this client".to_owned(),
        })?;
        let source =
            KeySource { discovery_url: login.discovery_url, discovery_ca: login.discovery_ca, ..KeySource::default() };
        let mut claims = self.verify(source, &tokens.id_token, expected, now).await?;
        check_id_token(&claims, &provider.issuer, login.client_id, login.nonce)?;
        if let Some(url) = provider.userinfo_endpoint.as_deref().filter(|_| login.user_info) {
            let bearer = format!("Bearer {}", tokens.access_token);
            let roots = self.roots(url, login.discovery_ca).await?;
            let json = ask(roots.as_ref(), url, Some(&bearer), None).await?;
            let info = serde_json::from_slice(&json)
                .map_err(|_| Error::Answer { url: url.to_owned(), why: "it is no object of JSON".to_owned() })?;
            add_user_info(&mut claims, info)?;
        }
        Ok(claims)
    }

    /// The authorities that are trusted: those that are given, otherwise those of this system, which are read once.
    /// None for an address without TLS.
    async fn roots(&self, url: &str, ca: &[String]) -> Result<Option<Roots>, Error> {
        if !url.starts_with("https:") {
            return Ok(None);
        }
        if !ca.is_empty() {
            let roots = Roots::of_pem("the certificates of the provider", ca);
            return roots.map(Some).map_err(|e| Error::Method(e.to_string()));
        }
        if let Some(known) = &*self.system.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Some(known.clone()));
        }
        let read = tokio::task::spawn_blocking(Roots::of_system).await;
        let read = read.map_err(|e| Error::Method(e.to_string()))?.map_err(|e| Error::Method(e.to_string()))?;
        Ok(Some(self.system.lock().unwrap_or_else(PoisonError::into_inner).insert(read).clone()))
    }
}
