//! The HTTP client: what commands, tests and other agents speak to an agent with.

mod exec;
mod gate;
mod stream;
mod transport;

use std::{env, fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use model::{GoDuration, StoreIndex};
use serde::{Serialize, de::DeserializeOwned};

pub use exec::ExecSocket;
pub use gate::{Gate, tunnel_behind};
pub use stream::{BodyStream, Frames, JsonStream};
use tls::{ClientFiles, Dialer};
pub use transport::{Address, AddressError, Body, ConnectError, Connection, tunnel, why};

use crate::{Call, go_json, query::percent_encode};

/// Default address of an agent.
pub const DEFAULT_ADDRESS: &str = "http://127.0.0.1:4646";

/// An HTTP client of an agent. Cheap to clone; connections are kept and shared between clones.
#[derive(Clone, Debug)]
pub struct ApiClient {
    options: ClientOptions,
    address: Address,
    tls: Option<Dialer>,
    pool: transport::Pool,
}

/// Where the agent is and as whom to speak to it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientOptions {
    /// `http://host:port`, `https://host:port` or `unix:///path`; empty = [`DEFAULT_ADDRESS`].
    pub address: String,
    /// Region; empty = the agent's.
    pub region: String,
    /// Namespace; empty = `default`.
    pub namespace: String,
    /// ACL token; empty = anonymous.
    pub token: String,
    /// Certificates for addresses with `https`.
    pub tls: ClientFiles,
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("address", &self.address)
            .field("region", &self.region)
            .field("namespace", &self.namespace)
            .field("token", &if self.token.is_empty() { "" } else { "<redacted>" })
            .field("tls", &self.tls)
            .finish()
    }
}

impl ClientOptions {
    /// From `DROVER_ADDR`, `DROVER_REGION`, `DROVER_NAMESPACE`, `DROVER_TOKEN` and the names of TLS (`DROVER_CACERT`,
    /// `_CAPATH`, `_CLIENT_CERT`, `_CLIENT_KEY`, `_TLS_SERVER_NAME`, `_SKIP_VERIFY`), else the same with `NOMAD_`.
    #[must_use]
    pub fn from_env() -> Self {
        let read = |name: &str| {
            ["DROVER", "NOMAD"]
                .iter()
                .find_map(|p| env::var(format!("{p}_{name}")).ok().filter(|v| !v.is_empty()))
                .unwrap_or_default()
        };
        let tls = ClientFiles {
            ca_cert: read("CACERT").into(),
            ca_path: read("CAPATH").into(),
            client_cert: read("CLIENT_CERT").into(),
            client_key: read("CLIENT_KEY").into(),
            server_name: read("TLS_SERVER_NAME"),
            skip_verify: matches!(read("SKIP_VERIFY").to_ascii_lowercase().as_str(), "1" | "t" | "true"),
        };
        Self { address: read("ADDR"), region: read("REGION"), namespace: read("NAMESPACE"), token: read("TOKEN"), tls }
    }
}

/// Why a request has no answer, or not the wanted one.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The files for TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// No agent answered.
    #[error(
        "cannot reach the agent at {address}: {source}; is it running, and is the address right (-address, \
            DROVER_ADDR, NOMAD_ADDR)?"
    )]
    Connect {
        /// The address.
        address: String,
        /// Why.
        source: ConnectError,
    },
    /// The connection broke before the answer was complete.
    #[error("{method} {path}: the connection to the agent broke: {}", why(.source))]
    Broken {
        /// Method.
        method: Method,
        /// Path.
        path: String,
        /// Why.
        source: hyper::Error,
    },
    /// The agent refused the request. The text is the agent's.
    #[error("Unexpected response code: {} ({message})", .status.as_u16())]
    Status {
        /// Status.
        status: StatusCode,
        /// Text of the answer.
        message: String,
    },
    /// The answer is not what it should be.
    #[error("{method} {path}: the agent's answer makes no sense: {source}")]
    Answer {
        /// Method.
        method: Method,
        /// Path.
        path: String,
        /// Why.
        source: go_json::Error,
    },
    /// The request has no JSON form.
    #[error("{method} {path}: the request cannot be written: {source}")]
    Request {
        /// Method.
        method: Method,
        /// Path.
        path: String,
        /// Why.
        source: go_json::Error,
    },
    /// A websocket broke, or its peer closed it with a reason.
    #[error("{0}")]
    Closed(String),
    /// Path or header values that HTTP does not allow.
    #[error("{method} {path}: not a valid request: {source}")]
    Invalid {
        /// Method.
        method: Method,
        /// Path.
        path: String,
        /// Why.
        source: http::Error,
    },
}

impl ClientError {
    /// The status, when the agent gave one.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
    /// The agent says that there is no such object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND)
    }
    /// The agent's own text, or ours when it gave none.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Status { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }
}

/// Options of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// Answer when the watched index is above this.
    pub index: StoreIndex,
    /// At the latest after this time; none = the agent's default.
    pub wait: Option<Duration>,
    /// Further parameters.
    pub params: Vec<(String, String)>,
    /// Instead of the client's namespace.
    pub namespace: Option<String>,
}

impl RequestOptions {
    /// A blocking query.
    #[must_use]
    pub fn after(index: StoreIndex, wait: Duration) -> Self {
        Self { index, wait: Some(wait), ..Self::default() }
    }
    /// Adds a parameter.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.params.push((name.to_owned(), value.to_string()));
        self
    }
    /// In this namespace; `*` reads all of them.
    #[must_use]
    pub fn in_namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }
}

/// Metadata of a response, from its headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// X-Nomad-Index; 0 = not given.
    pub index: StoreIndex,
    /// X-Nomad-KnownLeader.
    pub known_leader: bool,
    /// X-Nomad-LastContact.
    pub last_contact: Duration,
    /// X-Nomad-NextToken; empty = this was the last page.
    pub next_token: String,
}

impl Meta {
    fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
        Self {
            // 0 stands for what has never held anything. Asked for what comes after it, a server would answer at once,
            // again and again.
            index: text("x-nomad-index").parse().map_or(0, |index: StoreIndex| index.max(1)),
            known_leader: text("x-nomad-knownleader") == "true",
            last_contact: Duration::from_millis(text("x-nomad-lastcontact").parse().unwrap_or(0)),
            next_token: text("x-nomad-nexttoken").to_owned(),
        }
    }
}

/// An answer: the value and what the headers say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer<T> {
    /// The value.
    pub value: T,
    /// The headers.
    pub meta: Meta,
}

impl ApiClient {
    /// A client for that agent. Nothing is dialled yet.
    ///
    /// # Errors
    /// When the address is none, or the files for TLS cannot be used.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        let mut client = Self::with_dialer(options, None)?;
        if client.address.tls() {
            client.tls = Some(Dialer::of_client(&client.options.tls)?);
        }
        Ok(client)
    }

    /// A client with the certificates of an agent. Nothing is dialled yet.
    ///
    /// # Errors
    /// When the address is none.
    pub fn with_dialer(options: ClientOptions, tls: Option<Dialer>) -> Result<Self, ClientError> {
        let text = if options.address.is_empty() { DEFAULT_ADDRESS } else { &options.address };
        let address = Address::parse(text)?;
        Ok(Self { options, address, tls, pool: transport::Pool::default() })
    }

    /// The agent's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// Asks an endpoint: what it answers, and what the headers say.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn call<R: DeserializeOwned>(&self, call: Call<R>) -> Result<Answer<R>, ClientError> {
        let Call { method, path, options, body, .. } = call;
        let body =
            body.map_err(|source| ClientError::Request { method: method.clone(), path: path.clone(), source })?;
        self.json(method, &path, &options, body).await
    }

    /// The same client as whoever shows this token. It shares the connections.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        let mut client = self.clone();
        token.clone_into(&mut client.options.token);
        client
    }

    /// The same client with requests about this namespace. It shares the connections.
    #[must_use]
    pub fn with_namespace(&self, namespace: &str) -> Self {
        let mut client = self.clone();
        namespace.clone_into(&mut client.options.namespace);
        client
    }

    /// Asks an endpoint for an object; None with its headers when there is none. A blocking query for what does not
    /// exist goes on from their index.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn call_if_there<R: DeserializeOwned>(&self, call: Call<R>) -> Result<Answer<Option<R>>, ClientError> {
        let Call { method, path, options, body, .. } = call;
        let body =
            body.map_err(|source| ClientError::Request { method: method.clone(), path: path.clone(), source })?;
        let uri = self.uri(&path, &options);
        let (response, connection) = self.ask(method.clone(), &uri, &HeaderMap::new(), body).await?;
        let (head, body) = response.into_parts();
        let text = transport::collect(body).await.map_err(|source| ClientError::Broken {
            method: method.clone(),
            path: path.clone(),
            source,
        })?;
        self.pool.put(connection);
        let meta = Meta::of(&head.headers);
        match head.status {
            StatusCode::NOT_FOUND => Ok(Answer { value: None, meta }),
            status if status.is_success() => {
                let value =
                    go_json::from_slice(&text).map_err(|source| ClientError::Answer { method, path, source })?;
                Ok(Answer { value: Some(value), meta })
            }
            status => {
                Err(ClientError::Status { status, message: String::from_utf8_lossy(&text).trim_end().to_owned() })
            }
        }
    }

    /// Asks an endpoint whose answer is taken as it is, or does not matter.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn call_raw<R>(&self, call: Call<R>) -> Result<Answer<Bytes>, ClientError> {
        let Call { method, path, options, body, .. } = call;
        let body =
            body.map_err(|source| ClientError::Request { method: method.clone(), path: path.clone(), source })?;
        self.bytes(method, &path, &options, body).await
    }

    /// Reads an object. `path` is percent-encoded and begins with `/v1/`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.query(path, &RequestOptions::default()).await.map(|a| a.value)
    }

    /// Reads an object with options and headers: blocking queries, pages.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn query<T: DeserializeOwned>(
        &self,
        path: &str,
        options: &RequestOptions,
    ) -> Result<Answer<T>, ClientError> {
        self.json(Method::GET, path, options, Bytes::new()).await
    }

    /// Reads all pages of a list.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn query_all<T: DeserializeOwned>(
        &self,
        path: &str,
        options: &RequestOptions,
    ) -> Result<Vec<T>, ClientError> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let page = if token.is_empty() { options.clone() } else { options.clone().with("next_token", &token) };
            let answer: Answer<Vec<T>> = self.query(path, &page).await?;
            all.extend(answer.value);
            if answer.meta.next_token.is_empty() {
                return Ok(all);
            }
            token = answer.meta.next_token;
        }
    }

    /// Writes an object.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        let body = go_json::to_vec(body, false).map_err(|source| ClientError::Request {
            method: Method::PUT,
            path: path.to_owned(),
            source,
        })?;
        self.json(Method::PUT, path, &RequestOptions::default(), body.into()).await.map(|answer| answer.value)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete<T: DeserializeOwned>(
        &self,
        path: &str,
        options: &RequestOptions,
    ) -> Result<Answer<T>, ClientError> {
        self.json(Method::DELETE, path, options, Bytes::new()).await
    }

    /// Asks any path with further headers, which come before those of the client. The answer is as it is, whatever its
    /// status.
    ///
    /// # Errors
    /// See [`ClientError`]; an answer that is no success is none.
    pub async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<http::Response<BodyStream>, ClientError> {
        let uri = self.target(path);
        let (response, connection) = self.ask(method.clone(), &uri, headers, body).await?;
        Ok(BodyStream::with_head(method, path.to_owned(), response, connection))
    }

    /// The path with the client's region and namespace, as it is asked.
    #[must_use]
    pub fn target(&self, path: &str) -> String {
        self.uri(path, &RequestOptions::default())
    }

    /// Opens an answer that goes on: log and file frames, events, raw bytes. Dropping it ends the request.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stream(&self, path: &str, options: &RequestOptions) -> Result<BodyStream, ClientError> {
        let (method, path) = (Method::GET, self.uri(path, options));
        let response = self.send(method.clone(), &path, Bytes::new()).await?;
        Ok(BodyStream::new(method, path, response.0, response.1))
    }

    /// Runs a command beside a task: `path` is that of an exec endpoint. Dropping the socket ends the command.
    ///
    /// # Errors
    /// See [`ClientError`]. What is wrong with the command itself is told by the socket's first message.
    pub async fn exec(&self, path: &str, options: &RequestOptions) -> Result<ExecSocket, ClientError> {
        ExecSocket::open(&self.address, self.tls.as_ref(), &self.options.token, self.uri(path, options)).await
    }

    fn uri(&self, path: &str, options: &RequestOptions) -> String {
        let mut uri = path.to_owned();
        let mut add = |name: &str, value: &str| {
            uri.push(if uri.contains('?') { '&' } else { '?' });
            uri.push_str(&percent_encode(name));
            uri.push('=');
            uri.push_str(&percent_encode(value));
        };
        if !self.options.region.is_empty() {
            add("region", &self.options.region);
        }
        let namespace = options.namespace.as_deref().unwrap_or(&self.options.namespace);
        if !namespace.is_empty() {
            add("namespace", namespace);
        }
        if options.index > 0 {
            add("index", &options.index.to_string());
        }
        if let Some(wait) = options.wait {
            add("wait", &GoDuration::from(wait).to_string());
        }
        for (name, value) in &options.params {
            add(name, value);
        }
        uri
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        options: &RequestOptions,
        body: Bytes,
    ) -> Result<Answer<T>, ClientError> {
        let answer = self.bytes(method.clone(), path, options, body).await?;
        let value = go_json::from_slice(&answer.value).map_err(|source| ClientError::Answer {
            method,
            path: path.to_owned(),
            source,
        })?;
        Ok(Answer { value, meta: answer.meta })
    }

    async fn bytes(
        &self,
        method: Method,
        path: &str,
        options: &RequestOptions,
        body: Bytes,
    ) -> Result<Answer<Bytes>, ClientError> {
        let uri = self.uri(path, options);
        let (response, connection) = self.send(method.clone(), &uri, body).await?;
        let (head, body) = response.into_parts();
        let value = transport::collect(body).await.map_err(|source| ClientError::Broken {
            method,
            path: path.to_owned(),
            source,
        })?;
        self.pool.put(connection);
        Ok(Answer { value, meta: Meta::of(&head.headers) })
    }

    /// Sends a request; an answer that is not a success becomes an error with the agent's text.
    async fn send(
        &self,
        method: Method,
        uri: &str,
        body: Bytes,
    ) -> Result<(http::Response<hyper::body::Incoming>, Connection<Body>), ClientError> {
        let (response, connection) = self.ask(method.clone(), uri, &HeaderMap::new(), body).await?;
        if response.status().is_success() {
            return Ok((response, connection));
        }
        let status = response.status();
        let text = transport::collect(response.into_body()).await.map_err(|source| ClientError::Broken {
            method,
            path: uri.to_owned(),
            source,
        })?;
        self.pool.put(connection);
        Err(ClientError::Status { status, message: String::from_utf8_lossy(&text).trim_end().to_owned() })
    }

    /// Sends a request with further headers; any answer is one.
    async fn ask(
        &self,
        method: Method,
        uri: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<(http::Response<hyper::body::Incoming>, Connection<Body>), ClientError> {
        let mut request = http::Request::builder().method(&method).uri(uri);
        if !headers.contains_key(http::header::HOST) {
            request = request.header(http::header::HOST, self.address.host());
        }
        if !self.options.token.is_empty() && !headers.contains_key("x-nomad-token") {
            request = request.header("x-nomad-token", &self.options.token);
        }
        if !body.is_empty() && !headers.contains_key(http::header::CONTENT_TYPE) {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(body)).map_err(|source| ClientError::Invalid {
            method: method.clone(),
            path: uri.to_owned(),
            source,
        })?;
        self.pool.send(&self.address, self.tls.as_ref(), request).await.map_err(|e| match e {
            transport::SendError::Connect(source) => ClientError::Connect { address: self.address.to_string(), source },
            transport::SendError::Broken(source) => {
                ClientError::Broken { method: method.clone(), path: uri.to_owned(), source }
            }
        })
    }
}

#[cfg(test)]
mod tests;
