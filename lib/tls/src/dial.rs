//! Makes TLS connections to agents.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::{
    Agent, Error, Service, Settings, Stream,
    load::provider,
    pem::{self, File},
    verify::{Expected, Verifier},
};

/// Whom an agent dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The node RPC of a server.
    ServerRpc,
    /// The HTTP API of a server.
    Server,
    /// The HTTP API of a server or node.
    Agent,
}

/// What a command is told of TLS. Empty = not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Authorities, in one file.
    pub ca_cert: PathBuf,
    /// Authorities, in the files of a directory.
    pub ca_path: PathBuf,
    /// The client's certificate.
    pub client_cert: PathBuf,
    /// Its private key.
    pub client_key: PathBuf,
    /// Name that the agent's certificate must have, instead of the host in the address.
    pub server_name: String,
    /// Take any certificate.
    pub skip_verify: bool,
}

/// Files for connections to a service that is no agent, such as etcd. Empty = not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFiles {
    /// Authorities of the service, in one file; without it those of this system.
    pub ca_file: PathBuf,
    /// Certificate that the service is shown, with those between it and its authority.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

/// The names by which the person has given [`ServiceFiles`], for errors.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSettings {
    /// Of `ca_file`.
    pub ca: &'static str,
    /// Of `cert_file`.
    pub cert: &'static str,
    /// Of `key_file`.
    pub key: &'static str,
}

/// What is spoken over a connection; said in the handshake (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `http/1.1`.
    Http1,
    /// `h2`.
    Http2,
}

impl Protocol {
    fn alpn(self) -> Vec<Vec<u8>> {
        vec![match self {
            Self::Http1 => b"http/1.1".to_vec(),
            Self::Http2 => b"h2".to_vec(),
        }]
    }
}

/// Authorities. Cheap to clone.
#[derive(Clone)]
pub struct Roots(Arc<RootCertStore>);

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roots({})", self.0.len())
    }
}

impl Roots {
    /// Those of this system. Blocks: it reads files.
    ///
    /// # Errors
    /// There are none.
    pub fn of_system() -> Result<Self, Error> {
        pem::system_roots().map(|roots| Self(Arc::new(roots)))
    }

    /// Those of texts in PEM. `setting` is the name by which the person has given them.
    ///
    /// # Errors
    /// When they hold no authority.
    pub fn of_pem(setting: &str, texts: &[String]) -> Result<Self, Error> {
        pem::text_roots(setting, texts).map(|roots| Self(Arc::new(roots)))
    }

    /// Those of a file. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or holds no authority; `setting` is the name by which the person has given it.
    pub fn of_file(setting: &'static str, path: &Path) -> Result<Self, Error> {
        File { setting, path }.roots().map(|roots| Self(Arc::new(roots)))
    }
}

/// Makes TLS connections. Cheap to clone.
#[derive(Clone)]
pub struct Dialer(Kind);

#[derive(Clone)]
enum Kind {
    Agent(Agent, Peer),
    Service(Service),
    Client(Arc<ClientConfig>, String),
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Agent(_, peer) => write!(f, "Dialer({peer:?})"),
            Kind::Service(_) => write!(f, "Dialer(service)"),
            Kind::Client(_, name) => write!(f, "Dialer({name:?})"),
        }
    }
}

impl Dialer {
    pub(crate) fn of_agent(agent: Agent, peer: Peer) -> Self {
        Self(Kind::Agent(agent, peer))
    }

    pub(crate) fn to_service(service: Service) -> Self {
        Self(Kind::Service(service))
    }

    /// For a command. Reads the files.
    ///
    /// # Errors
    /// What cannot be used, and what to do.
    pub fn of_client(files: &ClientFiles) -> Result<Self, Error> {
        const NAMES: ServiceSettings = ServiceSettings { ca: "-ca-cert", cert: "-client-cert", key: "-client-key" };
        Self::of_files(files, NAMES, "-ca-path")
    }

    /// The same where the files were given by other names; `ca_path` is the one of the directory.
    ///
    /// # Errors
    /// What cannot be used, and what to do.
    pub fn of_files(files: &ClientFiles, names: ServiceSettings, ca_path: &'static str) -> Result<Self, Error> {
        let expected = if files.skip_verify {
            Expected::Anybody
        } else {
            let file = File { setting: names.ca, path: &files.ca_cert };
            Expected::Dialled(Arc::new(pem::roots(file, File { setting: ca_path, path: &files.ca_path })?))
        };
        let own = Own {
            certificate: File { setting: names.cert, path: &files.client_cert },
            key: File { setting: names.key, path: &files.client_key },
        };
        own.dialer(expected, &files.server_name, Protocol::Http1)
    }

    /// For a service that is no agent: its certificate must have the host that is dialled. Reads the files, once: see
    /// [`Service`] for more.
    ///
    /// # Errors
    /// What cannot be used, and what to do.
    pub fn of_service(files: &ServiceFiles, settings: ServiceSettings, protocol: Protocol) -> Result<Self, Error> {
        Ok(Self(Kind::Client(service_config(files, settings, protocol)?, String::new())))
    }

    /// For a service of anybody: its certificate must be of `roots` and have that name, or the host that is dialled
    /// where the name is empty. Without roots any certificate is taken.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn of_roots(roots: Option<Roots>, name: &str, protocol: Protocol) -> Result<Self, Error> {
        let expected = roots.map_or(Expected::Anybody, |roots| Expected::Dialled(roots.0));
        let nothing = File { setting: "", path: Path::new("") };
        Own { certificate: nothing, key: nothing }.dialer(expected, name, protocol)
    }

    /// Performs the handshake over a connection to `host`. A drop closes the connection.
    ///
    /// # Errors
    /// See [`why`](crate::why) for a text.
    pub async fn connect<T: AsyncRead + AsyncWrite + Unpin>(&self, stream: T, host: &str) -> io::Result<Stream<T>> {
        let authorities = match &self.0 {
            // Requests over HTTP end by themselves, and one that is under way is not lost for a reload.
            Kind::Agent(agent, Peer::ServerRpc) => Some(agent.authorities()),
            Kind::Agent(..) | Kind::Service(_) | Kind::Client(..) => None,
        };
        let (config, name) = match &self.0 {
            Kind::Agent(agent, peer) => (agent.client_config(*peer), agent.dialled_name()),
            Kind::Service(service) => (service.config(), host.to_owned()),
            Kind::Client(config, name) if name.is_empty() => (config.clone(), host.to_owned()),
            Kind::Client(config, name) => (config.clone(), name.clone()),
        };
        let wrong = || {
            let text = format!(
                "{name:?} is no name that a certificate could have; give the one it has (-tls-server-name, \
                    tls_server_name)"
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let server = ServerName::try_from(name.clone()).map_err(|_| wrong())?;
        let stream = TlsConnector::from(config).connect(server, stream).await?;
        Ok(Stream::new(stream.into(), host, authorities))
    }
}

/// For a service that is no agent. Reads the files.
pub(crate) fn service_config(
    files: &ServiceFiles,
    settings: ServiceSettings,
    protocol: Protocol,
) -> Result<Arc<ClientConfig>, Error> {
    let roots = match files.ca_file.as_os_str().is_empty() {
        true => Roots::of_system()?,
        false => Roots::of_file(settings.ca, &files.ca_file)?,
    };
    let own = Own {
        certificate: File { setting: settings.cert, path: &files.cert_file },
        key: File { setting: settings.key, path: &files.key_file },
    };
    own.client(Expected::Dialled(roots.0), protocol)
}

/// The files of this side's own certificate; both or none are named.
struct Own<'a> {
    certificate: File<'a>,
    key: File<'a>,
}

impl Own<'_> {
    fn dialer(&self, expected: Expected, name: &str, protocol: Protocol) -> Result<Dialer, Error> {
        Ok(Dialer(Kind::Client(self.client(expected, protocol)?, name.to_owned())))
    }

    fn client(&self, expected: Expected, protocol: Protocol) -> Result<Arc<ClientConfig>, Error> {
        let provider = provider(&Settings::default());
        let mut config = self.config(Verifier { expected, provider })?;
        config.alpn_protocols = protocol.alpn();
        Ok(Arc::new(config))
    }

    fn config(&self, verifier: Verifier) -> Result<ClientConfig, Error> {
        let Self { certificate, key } = self;
        let builder = ClientConfig::builder_with_provider(verifier.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::Settings(format!("TLS cannot be set up: {e}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        match (certificate.path.as_os_str().is_empty(), key.path.as_os_str().is_empty()) {
            (true, true) => Ok(builder.with_no_client_auth()),
            (false, false) => builder.with_client_auth_cert(certificate.certificates()?, key.key()?).map_err(|e| {
                let (setting, path) = (certificate.setting, certificate.path.display());
                key.wrong(format!("cannot be used with {setting} {path}: {e}"))
            }),
            (false, true) => Err(Error::Missing { setting: key.setting, why: "a certificate needs its private key" }),
            (true, false) => {
                Err(Error::Missing { setting: certificate.setting, why: "a private key needs its certificate" })
            }
        }
    }
}
