//! Requests to Vault, one connection each, with bounds.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use model::Secret;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::{
    Error, Granted, Health, Mount, Reading, Settings, Unusable,
    answers::{self, Body},
    kv::{self, Access},
    settings::Address,
};

/// How long a whole request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Who asks, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The token; empty = none.
    pub token: Secret,
    /// Namespace; empty = the root.
    pub namespace: String,
}

/// One Vault. Cheap to clone. All calls are cancel safe: dropped, they close their connection.
#[derive(Clone)]
pub struct Vault(Arc<Inner>);

struct Inner {
    settings: Settings,
    address: Address,
    patience: Duration,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Vault").field(&self.0.settings).finish()
    }
}

impl PartialEq for Vault {
    fn eq(&self, other: &Self) -> bool {
        self.0.settings == other.0.settings
    }
}

impl Vault {
    /// Checks the settings and reads the files of TLS. Blocking. Asks nobody.
    ///
    /// # Errors
    /// Which setting cannot be used, and why.
    pub fn new(settings: Settings) -> Result<Self, Unusable> {
        Self::patient(settings, PATIENCE)
    }

    fn patient(settings: Settings, patience: Duration) -> Result<Self, Unusable> {
        let address = Address::of(&settings)?;
        Ok(Self(Arc::new(Inner { settings, address, patience })))
    }

    /// How it is reached.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// What it is and how it does. Also a sealed one answers.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn health(&self) -> Result<Health, Error> {
        // Whether it is sealed or a standby is in the answer; the status says the same in another way.
        let (_, body) = self.ask(Method::GET, "sys/health", &NOBODY, None).await?;
        serde_json::from_slice(&body).map_err(|_| self.odd("its health is not what Vault's API describes"))
    }

    /// Logs in with the token of an identity. An empty role is the method's own default.
    ///
    /// # Errors
    /// [`Error::Denied`] and [`Error::Refused`] when Vault does not take the identity for the role.
    pub async fn login(&self, namespace: &str, role: &str, jwt: &Secret) -> Result<Granted, Error> {
        let mut body = json!({"jwt": jwt.reveal()});
        if !role.is_empty() {
            body["role"] = role.into();
        }
        let path = format!("auth/{}/login", escaped(self.0.settings.jwt_path.trim_matches('/')));
        let caller = Caller { token: Secret::default(), namespace: namespace.to_owned() };
        let granted = self.granted(&path, &caller, Some(body)).await?;
        if granted.token.is_empty() {
            return Err(self.odd("the answer to the login holds no token"));
        }
        Ok(granted)
    }

    /// Renews the caller's own token.
    ///
    /// # Errors
    /// [`Error::Denied`] when the token is not valid any more, [`Error::Refused`] when it cannot be renewed.
    pub async fn renew_self(&self, caller: &Caller) -> Result<Granted, Error> {
        self.granted("auth/token/renew-self", caller, Some(json!({}))).await
    }

    /// Revokes the caller's own token, with the leases that it has.
    ///
    /// # Errors
    /// [`Error::Denied`] when it is not valid any more.
    pub async fn revoke_self(&self, caller: &Caller) -> Result<(), Error> {
        let (status, body) = self.ask(Method::POST, "auth/token/revoke-self", caller, Some(json!({}))).await?;
        done(status, &body).map(drop)
    }

    /// Renews the lease of a secret: how long it lasts from now on, and whether it may be renewed again.
    ///
    /// # Errors
    /// [`Error::Refused`] when the lease has ended.
    pub async fn renew_lease(&self, caller: &Caller, lease_id: &str) -> Result<(Duration, bool), Error> {
        let body = json!({"lease_id": lease_id});
        let (status, body) = self.ask(Method::POST, "sys/leases/renew", caller, Some(body)).await?;
        Ok(self.body(&done(status, &body)?)?.lease())
    }

    /// Where a path is mounted, as far as the caller may know.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and [`Error::Unable`].
    pub async fn mount(&self, caller: &Caller, path: &str) -> Result<Option<Mount>, Error> {
        let (path, _) = parts(path);
        let path = format!("sys/internal/ui/mounts/{}", escaped(path.trim_matches('/')));
        let (status, body) = self.ask(Method::GET, &path, caller, None).await?;
        match done(status, &body) {
            Ok(body) => Ok(self.body(&body)?.mount()),
            Err(error) if error.decided() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A secret; `None` = there is none. The path may have a query, such as `?version=2`.
    ///
    /// # Errors
    /// [`Error::Denied`] when the caller may not read it.
    pub async fn read(&self, caller: &Caller, path: &str, mount: Option<&Mount>) -> Result<Option<Reading>, Error> {
        let (path, query) = parts(path);
        let path = escaped(&kv::path(path, mount, Access::Read));
        let path = query.map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
        let (status, body) = self.ask(Method::GET, &path, caller, None).await?;
        match status {
            // A version that was deleted answers so, with its metadata.
            StatusCode::NOT_FOUND => Ok(None),
            _ => Ok(self.body(&done(status, &body)?)?.reading()),
        }
    }

    /// Writes to a path, and gives the secret that comes of it; `None` = nothing came of it. Paths are taken as they
    /// are written.
    ///
    /// # Errors
    /// [`Error::Denied`] when the caller may not write there.
    pub async fn write(&self, caller: &Caller, path: &str, data: Value) -> Result<Option<Reading>, Error> {
        let path = escaped(path.trim_matches('/'));
        let (status, body) = self.ask(Method::POST, &path, caller, Some(data)).await?;
        match (status, done(status, &body)?) {
            (StatusCode::NO_CONTENT, _) => Ok(None),
            (_, body) => Ok(self.body(&body)?.reading()),
        }
    }

    /// The names below a path; empty where there is nothing.
    ///
    /// # Errors
    /// [`Error::Denied`] when the caller may not list them.
    pub async fn list(&self, caller: &Caller, path: &str, mount: Option<&Mount>) -> Result<Vec<String>, Error> {
        let path = escaped(&kv::path(path, mount, Access::List));
        // Of the two ways to ask for a list, the one that every proxy passes on.
        let (status, body) = self.ask(Method::GET, &format!("{path}?list=true"), caller, None).await?;
        match status {
            StatusCode::NOT_FOUND => Ok(Vec::new()),
            _ => Ok(self.body(&done(status, &body)?)?.keys()),
        }
    }

    async fn granted(&self, path: &str, caller: &Caller, body: Option<Value>) -> Result<Granted, Error> {
        let (status, body) = self.ask(Method::POST, path, caller, body).await?;
        self.body(&done(status, &body)?)?.granted().map_err(|why| self.odd(&why))
    }

    fn body(&self, bytes: &[u8]) -> Result<Body, Error> {
        answers::body(bytes).map_err(|why| self.odd(&why))
    }

    fn odd(&self, why: &str) -> Error {
        Error::Unreachable { address: self.0.address.authority.clone(), why: why.to_owned() }
    }

    /// One request; gives whatever the answer is.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        caller: &Caller,
        body: Option<Value>,
    ) -> Result<(StatusCode, Bytes), Error> {
        let inner = &self.0;
        match tokio::time::timeout(inner.patience, self.send(method, path, caller, body)).await {
            Ok(answer) => answer.map_err(|why| self.odd(&why)),
            Err(_) => Err(self.odd(&format!("no answer within {} s", inner.patience.as_secs()))),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        caller: &Caller,
        body: Option<Value>,
    ) -> Result<(StatusCode, Bytes), String> {
        let address = &self.0.address;
        let header = |text: &str, what: &str, secret: bool| {
            // The text may be a secret, so the error does not quote it.
            let mut value =
                HeaderValue::from_str(text).map_err(|_| format!("the {what} cannot be sent in a header"))?;
            value.set_sensitive(secret);
            Ok::<_, String>(value)
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/v1/{path}", address.prefix))
            .header(header::HOST, &address.authority)
            .header(header::CONNECTION, "close")
            .header("x-vault-request", "true");
        if !caller.token.is_empty() {
            request = request.header("x-vault-token", header(caller.token.reveal(), "token", true)?);
        }
        if !caller.namespace.is_empty() {
            request = request.header("x-vault-namespace", header(&caller.namespace, "namespace", false)?);
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(body)).map_err(|_| format!("the path {path:?} cannot be asked for"))?;
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(|e| e.to_string())?;
        match &address.dialer {
            None => fetch::exchange(stream, request, MAX_ANSWER).await,
            Some(dialer) => {
                let stream = dialer.connect(stream, &address.host).await.map_err(|e| tls::why(&e))?;
                fetch::exchange(stream, request, MAX_ANSWER).await
            }
        }
    }
}

const NOBODY: Caller = Caller { token: Secret::none(), namespace: String::new() };

/// The body of an answer that says yes.
fn done(status: StatusCode, body: &Bytes) -> Result<Bytes, Error> {
    if status.is_success() {
        return Ok(body.clone());
    }
    let said = answers::errors(status, body);
    Err(match status {
        StatusCode::FORBIDDEN => Error::Denied(said),
        StatusCode::TOO_MANY_REQUESTS => Error::Unable(said),
        status if status.is_server_error() => Error::Unable(said),
        _ => Error::Refused(said),
    })
}

/// A path and its query.
fn parts(path: &str) -> (&str, Option<&str>) {
    path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)))
}

/// The path as it stands in a URL: people write any text.
fn escaped(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests;
