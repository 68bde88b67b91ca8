//! TLS of a running agent: accepts connections, gives diallers, and takes over changed files.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use crate::{
    Accepted, Certificate, Dialer, Error, Expiry, Peer, Role, Settings,
    load::{Loaded, load},
};

/// A certificate that is valid for less than this is worth a warning.
pub const WARN_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

/// TLS of an agent. Cheap to clone; all clones see a reload.
#[derive(Clone, Debug)]
pub struct Agent(Arc<ArcSwap<Loaded>>);

/// Who has connected to the RPC: its certificate names a role that may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The certificate names the role of a server of this region. Looked at also where names decide nothing else
    /// (`tls.verify_server_hostname = false`).
    pub server: bool,
}

/// Why the certificate of a peer gives it no access, for its logs and ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl Agent {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// What cannot be used, and what to do. A certificate that has expired is no error: the tasks of a node run on
    /// without its servers. See [`Self::warnings`].
    pub fn load(settings: &Settings, now: SystemTime) -> Result<Self, Error> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(load(settings, now)?))))
    }

    /// Reads and checks everything again. New connections use it; those that stand keep theirs.
    ///
    /// # Errors
    /// What cannot be used, an expired certificate too. Nothing has changed then.
    pub fn reload(&self, settings: &Settings, now: SystemTime) -> Result<(), Error> {
        let loaded = load(settings, now)?;
        if let Some(why) = loaded.out_of_time {
            return Err(Error::Settings(format!("{why}; the certificates in use are kept")));
        }
        self.0.store(Arc::new(loaded));
        Ok(())
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.0.load().settings.clone()
    }

    /// What a person should look after at `now`.
    #[must_use]
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let loaded = self.0.load();
        let expiring = loaded.expiries.iter().filter_map(|expiry| {
            let (setting, path) = (expiry.setting, expiry.path.display());
            match expiry.not_after.duration_since(now) {
                Ok(left) if left < WARN_BEFORE => Some(format!(
                    "{setting} {path} expires in {} days: replace the file and reload the agent (SIGHUP)",
                    left.as_secs() / (24 * 3600)
                )),
                Ok(_) => None,
                Err(_) => Some(format!(
                    "{setting} {path} has expired: peers refuse it; replace the file and reload the agent (SIGHUP)"
                )),
            }
        });
        loaded.warnings.iter().cloned().chain(expiring).collect()
    }

    /// Until when the files in use are valid.
    #[must_use]
    pub fn expiries(&self) -> Vec<Expiry> {
        self.0.load().expiries.clone()
    }

    /// Performs the handshake of an HTTP client. Cancel safe in that a drop closes the connection.
    ///
    /// # Errors
    /// See [`crate::why`] for a text.
    pub async fn accept_http<T: AsyncRead + AsyncWrite + Unpin>(&self, stream: T) -> io::Result<Accepted<T>> {
        let config = self.0.load().http.clone();
        TlsAcceptor::from(config).accept(stream).await
    }

    /// Performs the handshake of a node. It has shown a certificate of the authority; whether that gives it access is
    /// told beside the stream, so that the refusal can be explained to the node.
    ///
    /// # Errors
    /// See [`crate::why`] for a text.
    pub async fn accept_rpc<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: T,
    ) -> io::Result<(Accepted<T>, Result<Member, Refused>)> {
        let loaded = self.0.load_full();
        let Some(config) = loaded.rpc.clone() else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "tls.rpc is off"));
        };
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let first = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let admitted = match first {
            Some(certificate) => admit(&loaded.settings, certificate),
            None => Err(Refused("it shows no certificate".to_owned())),
        };
        Ok((stream, admitted))
    }

    /// Connects to other agents as this one.
    #[must_use]
    pub fn dialer(&self, peer: Peer) -> Dialer {
        Dialer::of_agent(self.clone(), peer)
    }

    pub(crate) fn client_config(&self, peer: Peer) -> Arc<rustls::ClientConfig> {
        let loaded = self.0.load();
        match peer {
            Peer::ServerRpc => loaded.to_rpc.clone(),
            Peer::Server => loaded.to_server.clone(),
            Peer::Agent => loaded.to_agent.clone(),
        }
    }

    /// The name that is told in the handshake; which names count is decided by the verifier.
    pub(crate) fn dialled_name(&self) -> String {
        Role::Server.name(&self.0.load().settings.region)
    }
}

/// Whether the certificate of a node gives it access.
fn admit(settings: &Settings, der: &[u8]) -> Result<Member, Refused> {
    let (client, server) = (Role::Client.name(&settings.region), Role::Server.name(&settings.region));
    let certificate = Certificate::parse(der);
    let is_server = certificate.as_ref().is_ok_and(|certificate| certificate.names(&server));
    if !settings.verify_names {
        return Ok(Member { server: is_server });
    }
    let certificate = certificate.map_err(|why| Refused(format!("its certificate {why}")))?;
    if is_server || certificate.names(&client) {
        return Ok(Member { server: is_server });
    }
    Err(Refused(format!(
        "the node's certificate names {}, and the servers of this region take {client} or {server} \
            (tls.verify_server_hostname); make one with `drover tls cert create -client -region {}`",
        certificate.shown(),
        settings.region
    )))
}
