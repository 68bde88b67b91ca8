//! Logins: methods and binding rules are written, and what an identity provider says of somebody becomes a token.
//!
//! The provider is asked here; what counts is decided in `login`, and what somebody may do in `control`.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use aws_lc_rs::{
    digest::{SHA256, digest},
    rand,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as URL};
use control::acl_login;
use login::{
    Algorithm, Claims,
    claims::Expected,
    mapping::{self, NoList},
    oidc::{AuthRequest, Begun, MAX_TEXT, Mismatch, PATIENCE, redirect_allowed, scopes},
    rules::Outcome,
};
use model::{
    AclAuthMethod, AclAuthMethodConfig, AclBindingRule, AclToken, GoDuration, Secret, StoreIndex,
    acl_login::METHOD_TYPES,
};
use oidc::{CodeExchange, KeySource, Providers, public_keys};
use uuid::Uuid;

use super::acl::gone;
use crate::{clock::time_of_day, commands::acl::ttl, error::ServerError, handle::ServerHandle};

/// Logins by browser that are remembered as ended; beyond, all of them are forgotten. The provider takes a code once
/// in any case.
const ENDED: usize = 100_000;
/// Begins what is sealed in the `state` of a login: nothing else that these servers seal is one.
const SEALED: &[u8] = b"oidc login\0";

/// What logins need besides the state.
#[derive(Default)]
pub(crate) struct Logins {
    providers: Providers,
    /// Logins by browser that have ended, by the digest of their state, with the second until which it is valid.
    ended: Mutex<HashMap<[u8; 32], i64>>,
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logins")
    }
}

impl Logins {
    /// Ends a login: false = it had ended before.
    fn end(&self, state: &str, until: i64, now: i64) -> bool {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.len() >= ENDED {
            ended.retain(|_, until| *until > now);
        }
        if ended.len() >= ENDED {
            ended.clear();
        }
        ended.insert(Secret::digest_of(state), until).is_none()
    }
}

/// Why somebody was not logged in. `Display` is the text for the outside.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoginError {
    /// The servers refuse it, or cannot.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The request is wrong.
    #[error("{0}")]
    Request(
        /// What is wrong with it.
        String,
    ),
    /// What is shown proves nothing.
    #[error("{0}")]
    Token(
        /// Why.
        String,
    ),
    /// The provider did not answer, or not as it should; or the method cannot be used.
    #[error("{0}")]
    Provider(
        /// Why.
        String,
    ),
    /// A list claim is no list.
    #[error(transparent)]
    NoList(#[from] NoList),
}

impl From<oidc::Error> for LoginError {
    fn from(error: oidc::Error) -> Self {
        match error {
            oidc::Error::Refused(_) | oidc::Error::Identity(_) => Self::Token(error.to_string()),
            other => Self::Provider(other.to_string()),
        }
    }
}

impl From<Mismatch> for LoginError {
    fn from(mismatch: Mismatch) -> Self {
        Self::Request(mismatch.to_string())
    }
}

/// What a login by browser comes back with.
#[derive(Clone, Debug)]
pub struct LoginReturn {
    /// Name of the method.
    pub method: String,
    /// The nonce that the client began with.
    pub nonce: String,
    /// Where the login led back to.
    pub redirect: String,
    /// The state of the login, as the provider has given it back.
    pub state: Secret,
    /// What the provider gives for it.
    pub code: Secret,
    /// The issuer that the provider has named in its answer (RFC 9207); empty = it has named none.
    pub issuer: String,
}

/// What is wrong with keys and certificates of a method.
fn unreadable(config: Option<&AclAuthMethodConfig>) -> Vec<String> {
    let Some(config) = config else { return Vec::new() };
    let mut wrong = Vec::new();
    wrong.extend(public_keys(&config.jwt_validation_pub_keys).err());
    let jwks_ca = [config.jwks_ca_cert.clone()];
    for (setting, texts) in [("DiscoveryCaPem", &*config.discovery_ca_pem), ("JWKSCACert", &jwks_ca)] {
        if texts.iter().any(|text| !text.is_empty()) {
            wrong.extend(tls::Roots::of_pem(setting, texts).err().map(|error| error.to_string()));
        }
    }
    wrong
}

/// Whole seconds of a leeway; what is shorter is one.
fn seconds(leeway: GoDuration) -> i64 {
    match leeway.nanos() / 1_000_000_000 {
        0 => leeway.nanos().signum(),
        seconds => seconds,
    }
}

fn expected(config: &AclAuthMethodConfig) -> Expected<'_> {
    Expected {
        algorithms: config.signing_algs.iter().filter_map(|name| Algorithm::named(name)).collect(),
        audiences: &config.bound_audiences,
        issuers: &config.bound_issuer,
        expiration_leeway: seconds(config.expiration_leeway),
        not_before_leeway: seconds(config.not_before_leeway),
        clock_skew: seconds(config.clock_skew_leeway),
    }
}

/// The time of day in seconds: what others have made is compared with it.
fn now() -> i64 {
    time_of_day() / 1_000_000_000
}

/// What is missing in a request, as clients know it.
fn all_given(request: &str, given: &[(&str, bool)]) -> Result<(), LoginError> {
    let missing: Vec<&str> = given.iter().filter(|(_, given)| !given).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let count = if missing.len() == 1 { "1 error".to_owned() } else { format!("{} errors", missing.len()) };
    let list: String = missing.iter().map(|name| format!("\n\t* missing {name}")).collect();
    Err(LoginError::Request(format!("invalid {request} request: {count} occurred:{list}\n\n")))
}

impl ServerHandle {
    /// Creates a method to log in, or changes the one of its name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn put_acl_auth_method(&self, method: AclAuthMethod) -> Result<Arc<AclAuthMethod>, ServerError> {
        let (ttl, unreadable) = (ttl(&self.inner.config.acl), unreadable(method.config.as_ref()));
        let name =
            self.decide(move |state, stamp, _| acl_login::put_method(state, method, &unreadable, ttl, stamp)).await?;
        self.snapshot().acl_auth_method(&name).cloned().ok_or_else(|| gone("writing the auth method"))
    }

    /// Forgets a method with its binding rules. Tokens of its logins stay valid until they end.
    ///
    /// # Errors
    /// When there is no such method.
    pub async fn delete_acl_auth_method(&self, name: String) -> Result<StoreIndex, ServerError> {
        self.decide(move |state, stamp, _| acl_login::delete_method(state, &name, stamp)).await
    }

    /// Creates a binding rule, or changes the one that it names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn put_acl_binding_rule(&self, rule: AclBindingRule) -> Result<Arc<AclBindingRule>, ServerError> {
        let id = self.decide(move |state, stamp, ids| acl_login::put_rule(state, rule, stamp, ids)).await?;
        self.snapshot().acl_binding_rule(&id).cloned().ok_or_else(|| gone("writing the binding rule"))
    }

    /// Forgets a binding rule.
    ///
    /// # Errors
    /// When there is no such rule.
    pub async fn delete_acl_binding_rule(&self, id: String) -> Result<StoreIndex, ServerError> {
        self.decide(move |state, stamp, _| acl_login::delete_rule(state, &id, stamp)).await
    }

    /// Exchanges the token of an identity provider for one of these servers. Cancel safe: at most a token was made that
    /// nobody knows, and it ends by itself.
    ///
    /// # Errors
    /// When the token proves nothing, its bearer gets nothing here, or the provider does not give its keys.
    pub async fn log_in(&self, method: &str, token: &Secret) -> Result<Arc<AclToken>, LoginError> {
        let given = [("auth method name", !method.is_empty()), ("login token", !token.is_empty())];
        all_given("login", &given)?;
        let (method, config) = self.method(method, METHOD_TYPES[0])?;
        let source = KeySource {
            public_keys: &config.jwt_validation_pub_keys,
            jwks_url: &config.jwks_url,
            jwks_ca: &config.jwks_ca_cert,
            discovery_url: &config.oidc_discovery_url,
            discovery_ca: &config.discovery_ca_pem,
        };
        let verified = self.inner.logins.providers.verify(source, token.reveal(), &expected(&config), now()).await;
        let claims = verified.inspect_err(|error| refused(&method, error))?;
        self.token_for(method, &config, &claims).await
    }

    /// The address at which a person logs in with a browser. Nothing is kept: what the login has begun with travels,
    /// sealed, in its `state`, so that it can end at another server.
    ///
    /// # Errors
    /// When it may not lead back there, or the provider does not answer.
    pub async fn login_address(&self, method: &str, nonce: &str, redirect: &str) -> Result<String, LoginError> {
        let given = [
            ("auth method name", !method.is_empty()),
            ("client nonce", !nonce.is_empty()),
            ("redirect URI", !redirect.is_empty()),
        ];
        all_given("OIDC auth URL", &given)?;
        if nonce.len().max(redirect.len()) > MAX_TEXT {
            let why = format!("client nonce and redirect URI have at most {MAX_TEXT} bytes each");
            return Err(LoginError::Request(why));
        }
        let (method, config) = self.method(method, METHOD_TYPES[1])?;
        if !redirect_allowed(redirect, &config.allowed_redirect_uris) {
            return Err(LoginError::Request(format!(
                "unauthorized redirect_uri: {redirect}; the auth method's AllowedRedirectURIs do not have it"
            )));
        }
        let provider = self.provider(&method, &config).await?;
        if provider.authorization_endpoint.is_empty() {
            let url = &config.oidc_discovery_url;
            return Err(LoginError::Provider(format!("the identity provider {url} has no authorization_endpoint")));
        }
        let verifier = config.oidc_enable_pkce.then(random).transpose()?;
        let challenge = verifier.as_ref().map(|verifier| URL.encode(digest(&SHA256, verifier.as_bytes())));
        let begun = Begun {
            method: method.name.to_string(),
            nonce: nonce.to_owned(),
            redirect: redirect.to_owned(),
            verifier,
            until: now() + PATIENCE,
        };
        let request = AuthRequest {
            endpoint: &provider.authorization_endpoint,
            client_id: &config.oidc_client_id,
            redirect,
            scopes: &scopes(&config.oidc_scopes),
            state: &self.seal(&begun)?,
            nonce,
            challenge: challenge.as_deref(),
        };
        Ok(request.url())
    }

    /// Ends a login by browser with a token. Not cancel safe: a dropped call may have used up the code, and the person
    /// logs in again.
    ///
    /// # Errors
    /// When the login was begun with something else, has ended, or the provider refuses or does not answer.
    pub async fn complete_login(&self, back: LoginReturn) -> Result<Arc<AclToken>, LoginError> {
        let given = [
            ("auth method name", !back.method.is_empty()),
            ("client nonce", !back.nonce.is_empty()),
            ("state", !back.state.is_empty()),
            ("code", !back.code.is_empty()),
            ("redirect URI", !back.redirect.is_empty()),
        ];
        all_given("OIDC complete auth", &given)?;
        let (method, config) = self.method(&back.method, METHOD_TYPES[1])?;
        let begun = self.unseal(back.state.reveal()).ok_or(Mismatch::State)?;
        begun.fits(&back.method, &back.nonce, &back.redirect, now())?;
        if !redirect_allowed(&back.redirect, &config.allowed_redirect_uris) {
            return Err(LoginError::Request(format!("unauthorized redirect_uri: {}", back.redirect)));
        }
        let provider = self.provider(&method, &config).await?;
        if !back.issuer.is_empty() && back.issuer != provider.issuer {
            let why = format!("the answer is of the issuer {:?}, not of {:?}", back.issuer, provider.issuer);
            return Err(LoginError::Token(why));
        }
        if !self.inner.logins.end(back.state.reveal(), begun.until, now()) {
            return Err(Mismatch::Ended.into());
        }
        let exchange = CodeExchange {
            discovery_url: &config.oidc_discovery_url,
            discovery_ca: &config.discovery_ca_pem,
            client_id: &config.oidc_client_id,
            client_secret: config.oidc_client_secret.reveal(),
            code: back.code.reveal(),
            redirect: &back.redirect,
            verifier: begun.verifier.as_deref(),
            nonce: &back.nonce,
            user_info: !config.oidc_disable_user_info,
        };
        let completed = self.inner.logins.providers.complete(exchange, &expected(&config), now()).await;
        let claims = completed.inspect_err(|error| refused(&method, error))?;
        self.token_for(method, &config, &claims).await
    }

    /// The method of that name, if it is of that type.
    fn method(&self, name: &str, kind: &str) -> Result<(Arc<AclAuthMethod>, AclAuthMethodConfig), LoginError> {
        let method = self.snapshot().acl_auth_method(name).cloned();
        let method = method.ok_or_else(|| LoginError::Request(format!("auth-method {name:?} not found")))?;
        if method.kind != kind {
            let why =
                format!("auth-method {name:?} is of the type {}, and this is a login of the type {kind}", method.kind);
            return Err(LoginError::Request(why));
        }
        let config = method.config.clone();
        let config = config.ok_or_else(|| LoginError::Provider(format!("auth-method {name:?} has no Config")))?;
        Ok((method, config))
    }

    async fn provider(
        &self,
        method: &AclAuthMethod,
        config: &AclAuthMethodConfig,
    ) -> Result<Arc<login::oidc::Provider>, LoginError> {
        let asked = self.inner.logins.providers.provider(&config.oidc_discovery_url, &config.discovery_ca_pem).await;
        Ok(asked.inspect_err(|error| refused(method, error))?)
    }

    /// The token for whoever these claims are about.
    async fn token_for(
        &self,
        method: Arc<AclAuthMethod>,
        config: &AclAuthMethodConfig,
        claims: &Claims,
    ) -> Result<Arc<AclToken>, LoginError> {
        let name = &*method.name;
        if config.verbose_logging {
            tracing::debug!(method = name, claims = %serde_json::Value::Object(claims.clone()), "claims of a login");
        }
        let identity = mapping::identity(claims, &config.claim_mappings, &config.list_claim_mappings)?;
        for (rule, outcome) in acl_login::granted(&self.snapshot(), name, &identity).1 {
            match outcome {
                Outcome::Selector(_) | Outcome::Name(_) | Outcome::Kind(_) => {
                    tracing::warn!(method = name, rule, %outcome, "a binding rule cannot be used");
                }
                Outcome::Given(_) | Outcome::NotMatched | Outcome::Missing(_) => {
                    tracing::debug!(method = name, rule, %outcome, "a binding rule was asked");
                }
            }
        }
        let ttl = ttl(&self.inner.config.acl);
        let of = method.clone();
        let accessor =
            self.decide(move |state, stamp, ids| acl_login::log_in(state, &of, &identity, ttl, stamp, ids)).await?;
        tracing::info!(method = name, accessor = &*accessor, "somebody has logged in");
        Ok(self.snapshot().acl_token(&accessor).cloned().ok_or_else(|| gone("writing the token"))?)
    }

    fn seal(&self, begun: &Begun) -> Result<String, LoginError> {
        let mut clear = SEALED.to_vec();
        serde_json::to_writer(&mut clear, begun).map_err(|error| internal(error.to_string()))?;
        let (key, sealed) = self.inner.keyring.seal(&clear).map_err(ServerError::from)?;
        Ok(URL.encode([key.as_bytes(), &*sealed].concat()))
    }

    /// What a state has sealed; None = these servers have not made it, or their key is gone.
    fn unseal(&self, state: &str) -> Option<Begun> {
        let bytes = URL.decode(state).ok()?;
        let (key, sealed) = bytes.split_first_chunk()?;
        let clear = self.inner.keyring.unseal(Uuid::from_bytes(*key), sealed, "").ok()?;
        serde_json::from_slice(clear.strip_prefix(SEALED)?).ok()
    }
}

fn internal(why: String) -> ServerError {
    ServerError::Internal { what: "beginning a login", why }
}

/// A verifier of PKCE (RFC 7636, section 4.1): 43 characters of 32 random bytes.
fn random() -> Result<String, ServerError> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).map_err(|_| internal("the system gives no random bytes".to_owned()))?;
    Ok(URL.encode(bytes))
}

/// What an operator has to know of a failed login, whatever the person is told.
fn refused(method: &AclAuthMethod, error: &oidc::Error) {
    let method = &*method.name;
    match error {
        oidc::Error::Refused(_) | oidc::Error::Identity(_) => tracing::info!(method, %error, "a login was refused"),
        _ => tracing::warn!(method, %error, "a login failed for its identity provider or auth method"),
    }
}
