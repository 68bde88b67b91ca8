//! TLS of a running agent: accepts connections, gives diallers, and takes over changed files.

use std::{io, net::SocketAddr, sync::Arc, time::SystemTime};

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    Certificate, Dialer, Error, Expiry, Peer, Role, Settings, Stream,
    load::{Loaded, load},
    standing::{self, Authorities},
};

/// TLS of an agent. Cheap to clone; all clones see a reload.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    loaded: ArcSwap<Loaded>,
    /// Connections that stand hear when authorities are gone.
    authorities: watch::Sender<Arc<RootCertStore>>,
}

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
        let loaded = load(settings, now)?;
        let authorities = watch::Sender::new(loaded.roots.clone());
        Ok(Self(Arc::new(Inner { loaded: ArcSwap::from_pointee(loaded), authorities })))
    }

    /// Reads and checks everything again. New connections use it; those that stand keep theirs, but for those whose
    /// peer has lost its authority: see [`Stream`].
    ///
    /// # Errors
    /// What cannot be used, an expired certificate too. Nothing has changed then.
    pub fn reload(&self, settings: &Settings, now: SystemTime) -> Result<(), Error> {
        let loaded = load(settings, now)?;
        if let Some(why) = loaded.out_of_time {
            return Err(Error::Settings(format!("{why}; the certificates in use are kept")));
        }
        let roots = loaded.roots.clone();
        self.0.loaded.store(Arc::new(loaded));
        // After the store: who subscribes in between has shaken hands under the new authorities.
        self.0.authorities.send_if_modified(|current| {
            let fewer = standing::takes_away(current, &roots);
            *current = roots;
            fewer
        });
        Ok(())
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.0.loaded.load().settings.clone()
    }

    /// What a person should look after at `now`.
    #[must_use]
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let loaded = self.0.loaded.load();
        let expiring = loaded.expiries.iter().filter_map(|expiry| expiry.warning(now));
        loaded.warnings.iter().cloned().chain(expiring).collect()
    }

    /// Until when the files in use are valid.
    #[must_use]
    pub fn expiries(&self) -> Vec<Expiry> {
        self.0.loaded.load().expiries.clone()
    }

    /// Performs the handshake of an HTTP client. Cancel safe in that a drop closes the connection.
    ///
    /// # Errors
    /// See [`crate::why`] for a text.
    pub async fn accept_http<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: T,
        peer: SocketAddr,
    ) -> io::Result<Stream<T>> {
        let authorities = self.authorities();
        let config = self.0.loaded.load().http.clone();
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        Ok(Stream::new(stream.into(), peer.to_string(), Some(authorities)))
    }

    /// Performs the handshake of a node. It has shown a certificate of the authority; whether that gives it access is
    /// told beside the stream, so that the refusal can be explained to the node.
    ///
    /// # Errors
    /// See [`crate::why`] for a text.
    pub async fn accept_rpc<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: T,
        peer: SocketAddr,
    ) -> io::Result<(Stream<T>, Result<Member, Refused>)> {
        let authorities = self.authorities();
        let loaded = self.0.loaded.load_full();
        let Some(config) = loaded.rpc.clone() else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "tls.rpc is off"));
        };
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let stream = Stream::new(stream.into(), peer.to_string(), Some(authorities));
        let first = stream.peer_certificates().and_then(<[_]>::first);
        let admitted = match first {
            Some(certificate) => admit(&loaded.settings, certificate),
            None => Err(Refused("it shows no certificate".to_owned())),
        };
        Ok((stream, admitted))
    }

    /// To be called before a handshake, see [`Stream::new`].
    pub(crate) fn authorities(&self) -> Authorities {
        self.0.authorities.subscribe()
    }

    /// Connects to other agents as this one.
    #[must_use]
    pub fn dialer(&self, peer: Peer) -> Dialer {
        Dialer::of_agent(self.clone(), peer)
    }

    pub(crate) fn client_config(&self, peer: Peer) -> Arc<rustls::ClientConfig> {
        let loaded = self.0.loaded.load();
        match peer {
            Peer::ServerRpc => loaded.to_rpc.clone(),
            Peer::Server => loaded.to_server.clone(),
            Peer::Agent => loaded.to_agent.clone(),
        }
    }

    /// The name that is told in the handshake; which names count is decided by the verifier.
    pub(crate) fn dialled_name(&self) -> String {
        Role::Server.name(&self.0.loaded.load().settings.region)
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
