//! Services and variables of the cluster as a node reads them: the data of template functions such as `nomadService`.
//!
//! A read asks the server of the node's session over HTTP, with the last known index. The server answers when *that
//! service* has changed, or after a while with the same data. So a watcher loops over [`Discovery::service`] and passes
//! the last index back in.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::{
    ApiClient, ClientError, ClientOptions, call,
    shapes::{NamespaceServices, VariableView},
};
use model::{Namespace, ServiceRegistration, StoreIndex};

use crate::read_token::Shown;

/// How long one read waits for a change.
const WAIT: Duration = Duration::from_secs(60);

/// Why the servers were not read. Every variant is temporary: try again after a pause.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The node has no session.
    #[error("no server is heard at present")]
    NoServer,
    /// The server has no HTTP address for nodes.
    #[error("the server of the node's session does not say where it answers HTTP; set advertise.http there")]
    NoAddress,
    /// The server did not answer, or refused.
    #[error("{0}")]
    Client(#[from] ClientError),
}

/// HTTP address of the server of the node's session, with `https://` where it is reached over TLS; empty when the
/// server names none, `None` without a session.
pub(crate) type SessionServer = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The identity of this node, which its reads show; `None` = they show nothing.
type Identity = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// A reader of services and variables. Cheap to clone; connections are shared.
#[derive(Clone)]
pub struct Discovery {
    region: String,
    server: SessionServer,
    /// Makes the connections to servers that answer over TLS.
    tls: Option<tls::Dialer>,
    /// By which the servers know the node where requests need rights.
    identity: Option<Identity>,
    /// The client of the last server, with that server's address.
    client: Arc<Mutex<Option<(String, ApiClient)>>>,
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discovery").field("region", &self.region).finish_non_exhaustive()
    }
}

impl Discovery {
    /// A reader for the services of a region.
    pub fn new(region: String, server: SessionServer) -> Self {
        Self { region, server, tls: None, identity: None, client: Arc::default() }
    }

    /// The same with the certificates of this agent.
    #[must_use]
    pub fn with_tls(self, tls: Option<tls::Dialer>) -> Self {
        Self { tls, ..self }
    }

    /// The same with what the node shows of itself: the token of its identity, asked for with each read.
    #[must_use]
    pub fn with_identity(self, identity: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { identity: Some(Arc::new(identity)), ..self }
    }

    /// The registrations of a service, by id, and their index. With an `index` other than 0, waits for a change of the
    /// service, at most a minute. A lower index in the answer belongs to another server state: begin again with 0.
    /// Cancel safe.
    ///
    /// # Errors
    /// See [`DiscoveryError`]. The call then learns nothing; the last known registrations stay the best guess.
    pub async fn service(
        &self,
        namespace: &Namespace,
        name: &str,
        index: StoreIndex,
    ) -> Result<(Vec<ServiceRegistration>, StoreIndex), DiscoveryError> {
        self.chosen(namespace, name, None, index).await
    }

    /// As [`Self::service`]; `choose` is `NUMBER|KEY`: at most so many registrations, the same ones for the same key
    /// while they last.
    pub(crate) async fn chosen(
        &self,
        namespace: &Namespace,
        name: &str,
        choose: Option<&str>,
        index: StoreIndex,
    ) -> Result<(Vec<ServiceRegistration>, StoreIndex), DiscoveryError> {
        let call = call::service(name).with_some("choose", choose);
        let answer = self.client()?.call(call.in_namespace(namespace).after(index, WAIT)).await?;
        Ok((answer.value, answer.meta.index))
    }

    /// The services of a namespace. Waits and fails as [`Self::service`] does.
    ///
    /// # Errors
    /// See [`DiscoveryError`].
    pub async fn services(
        &self,
        namespace: &Namespace,
        index: StoreIndex,
    ) -> Result<(Vec<NamespaceServices>, StoreIndex), DiscoveryError> {
        let answer = self.client()?.call(call::services().in_namespace(namespace).after(index, WAIT)).await?;
        Ok((answer.value, answer.meta.index))
    }

    /// A variable, and its index; None = there is none. Waits as [`Self::service`] does, as long as the token allows.
    /// The servers decide by the token whether it may be read.
    ///
    /// # Errors
    /// See [`DiscoveryError`].
    pub(crate) async fn variable(
        &self,
        token: &Shown,
        namespace: &Namespace,
        path: &str,
        index: StoreIndex,
    ) -> Result<(Option<VariableView>, StoreIndex), DiscoveryError> {
        let call = call::variable(path).in_namespace(namespace).after(index, wait_of(token));
        let answer = self.client()?.with_token(&token.text).call_if_there(call).await?;
        Ok((answer.value, answer.meta.index))
    }

    /// The variables whose paths begin so and that the token may list. Waits as [`Self::variable`] does.
    ///
    /// # Errors
    /// See [`DiscoveryError`].
    pub(crate) async fn variables(
        &self,
        token: &Shown,
        namespace: &Namespace,
        prefix: &str,
        index: StoreIndex,
    ) -> Result<(Vec<VariableView>, StoreIndex), DiscoveryError> {
        let call = call::variables().with("prefix", prefix).in_namespace(namespace).after(index, wait_of(token));
        let answer = self.client()?.with_token(&token.text).call(call).await?;
        Ok((answer.value, answer.meta.index))
    }

    /// The HTTP client of the session's server; it shows the identity of this node.
    pub(crate) fn client(&self) -> Result<ApiClient, DiscoveryError> {
        let client = self.connected()?;
        Ok(match self.identity.as_ref().and_then(|identity| identity()) {
            Some(token) => client.with_token(&token),
            None => client,
        })
    }

    fn connected(&self) -> Result<ApiClient, DiscoveryError> {
        let server = (self.server)().ok_or(DiscoveryError::NoServer)?;
        if server.is_empty() {
            return Err(DiscoveryError::NoAddress);
        }
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((of, client)) if *of == server => Ok(client.clone()),
            _ => {
                let options =
                    ClientOptions { address: server.clone(), region: self.region.clone(), ..ClientOptions::default() };
                let client = ApiClient::with_dialer(options, self.tls.clone())?;
                *kept = Some((server, client.clone()));
                Ok(client)
            }
        }
    }
}

/// How long a read with this token waits for a change.
fn wait_of(token: &Shown) -> Duration {
    token.most.map_or(WAIT, |most| most.min(WAIT))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn reads_ask_the_server_of_the_session() {
        let server = Arc::new(Mutex::new(None));
        let discovery = Discovery::new(String::new(), {
            let server = server.clone();
            Arc::new(move || server.lock().expect("lock").clone())
        });
        let discovery = discovery.with_identity(|| Some("i.am.node".to_owned()));
        let namespace = Namespace::from("ns");
        assert!(matches!(discovery.service(&namespace, "web", 0).await, Err(DiscoveryError::NoServer)));
        *server.lock().expect("lock") = Some(String::new());
        assert!(matches!(discovery.service(&namespace, "web", 0).await, Err(DiscoveryError::NoAddress)));

        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        *server.lock().expect("lock") = Some(listener.local_addr().expect("address").to_string());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut asked = vec![0; 4096];
            let n = stream.read(&mut asked).await.expect("a request");
            let body = r#"[{"ID": "r", "ServiceName": "web", "Address": "10.0.0.1", "Port": 80}]"#;
            let head = format!("HTTP/1.1 200 OK\r\nx-nomad-index: 42\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await.expect("an answer");
            String::from_utf8_lossy(&asked[..n]).into_owned()
        });
        let (places, index) = discovery.service(&namespace, "web", 41).await.expect("an answer");
        assert_eq!((places[0].address.as_str(), places[0].port, index), ("10.0.0.1", 80, 42));
        let asked = server.await.expect("asked");
        assert!(asked.starts_with("GET /v1/service/web?namespace=ns&index=41&wait=1m"), "{asked}");
        assert!(asked.contains("x-nomad-token: i.am.node\r\n"), "it says which node asks: {asked}");
    }
}
