//! Where an engine listens, and how to get a connection to it.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tls::{Dialer, Protocol, ServiceFiles, ServiceSettings};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::ssh::Tunnel;
use crate::config::TlsFiles;

/// The socket that engines listen on by default.
pub(crate) const DEFAULT_SOCKET: &str = "/var/run/docker.sock";
const DEFAULT_PORT: u16 = 2375;
const DEFAULT_TLS_PORT: u16 = 2376;
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// A socket on this machine.
    Unix(PathBuf),
    /// A port, in the clear.
    Tcp { host: String, port: u16 },
    /// A port, with TLS.
    Tls { host: String, port: u16 },
    /// A socket on another machine, reached by the system's `ssh`.
    Ssh { user: Option<String>, host: String, port: Option<u16>, socket: PathBuf },
}

impl Endpoint {
    /// Reads `unix:///path`, `tcp://host:port`, `https://host:port` or `ssh://[user@]host[:port][/path]`. With TLS
    /// files `tcp` means TLS.
    pub(crate) fn parse(text: &str, tls: bool) -> Result<Endpoint, String> {
        let wrong = |why: &str| {
            Err(format!(
                "endpoint {text:?} {why}; write unix:///path/of/the.sock, tcp://host:port (TLS when a `tls` block is \
                    given), or \
                 ssh://user@host"
            ))
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            return wrong("has no scheme");
        };
        let rest = rest.trim_end_matches('/');
        match scheme {
            "unix" if rest.starts_with('/') => Ok(Endpoint::Unix(rest.into())),
            "unix" => wrong("is not an absolute path"),
            "tcp" | "http" | "https" => {
                let tls = tls || scheme == "https";
                if rest.is_empty() || rest.contains(['/', '@', '?']) {
                    return wrong("is not a host with a port");
                }
                let Some((host, port)) = host_port(rest) else {
                    return wrong("has no valid port");
                };
                let port = port.unwrap_or(if tls { DEFAULT_TLS_PORT } else { DEFAULT_PORT });
                Ok(if tls { Endpoint::Tls { host, port } } else { Endpoint::Tcp { host, port } })
            }
            "ssh" => {
                let (place, socket) = match rest.split_once('/') {
                    Some((place, path)) => (place, format!("/{path}")),
                    None => (rest, DEFAULT_SOCKET.to_owned()),
                };
                let (user, place) = match place.rsplit_once('@') {
                    Some((user, place)) => (Some(user.to_owned()), place),
                    None => (None, place),
                };
                let Some((host, port)) = host_port(place) else {
                    return wrong("has no valid port");
                };
                // A leading dash would be an option of ssh.
                if host.is_empty()
                    || host.starts_with('-')
                    || user.as_deref().is_some_and(|u| u.is_empty() || u.starts_with('-'))
                {
                    return wrong("names no host");
                }
                Ok(Endpoint::Ssh { user, host, port, socket: socket.into() })
            }
            _ => wrong("has an unknown scheme"),
        }
    }

    /// Whether it can only mean this machine.
    pub(crate) fn is_local_socket(&self) -> bool {
        matches!(self, Endpoint::Unix(_))
    }

    /// Name or address of the engine's machine.
    pub(crate) fn host(&self) -> &str {
        match self {
            Endpoint::Unix(_) => "localhost",
            Endpoint::Tcp { host, .. } | Endpoint::Tls { host, .. } | Endpoint::Ssh { host, .. } => host,
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bracket = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        match self {
            Endpoint::Unix(path) => write!(f, "unix://{}", path.display()),
            Endpoint::Tcp { host, port } => write!(f, "tcp://{}:{port}", bracket(host)),
            Endpoint::Tls { host, port } => write!(f, "https://{}:{port}", bracket(host)),
            Endpoint::Ssh { user, host, port, socket } => {
                let user = user.as_ref().map(|u| format!("{u}@")).unwrap_or_default();
                let port = port.map(|p| format!(":{p}")).unwrap_or_default();
                write!(f, "ssh://{user}{}{port}{}", bracket(host), socket.display())
            }
        }
    }
}

/// `host`, `host:port`, `[v6]:port`; `None` when the port is not one.
fn host_port(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, after)) => (host, Some(after.strip_prefix(':')?)),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    match port {
        Some(port) => Some((host.to_owned(), Some(port.parse().ok()?))),
        None => Some((host.to_owned(), None)),
    }
}

/// Makes connections to one endpoint.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Inner>);

struct Inner {
    endpoint: Endpoint,
    tls: Option<Dialer>,
    tunnel: Option<Tunnel>,
}

impl Connector {
    /// Reads the TLS files, connects nowhere yet.
    pub(crate) fn new(endpoint: Endpoint, tls: Option<&TlsFiles>, ssh_config: &str) -> Result<Connector, String> {
        let tls = match &endpoint {
            Endpoint::Tls { .. } => {
                let files = tls.ok_or(
                    "a TLS endpoint needs a `tls` block with `ca` and, for engines that ask for it, `cert` and `key`",
                )?;
                Some(dialer(files)?)
            }
            _ => None,
        };
        let tunnel = matches!(endpoint, Endpoint::Ssh { .. }).then(|| Tunnel::new(ssh_config));
        Ok(Connector(Arc::new(Inner { endpoint, tls, tunnel })))
    }

    /// Where it connects to.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    async fn connect(self) -> io::Result<TokioIo<Stream>> {
        let work = async {
            Ok(match &self.0.endpoint {
                Endpoint::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
                Endpoint::Tcp { host, port } => Stream::Tcp(tcp(host, *port).await?),
                Endpoint::Tls { host, port } => {
                    let dialer =
                        self.0.tls.as_ref().ok_or_else(|| io::Error::other("there is no TLS configuration"))?;
                    let stream = dialer.connect(tcp(host, *port).await?, host).await?;
                    Stream::Tls(Box::new(stream))
                }
                Endpoint::Ssh { user, host, port, socket } => {
                    let tunnel = self.0.tunnel.as_ref().ok_or_else(|| io::Error::other("there is no tunnel"))?;
                    Stream::Unix(tunnel.connect(user.as_deref(), host, *port, socket).await?)
                }
            })
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {CONNECT_WITHIN:?}"));
        tokio::time::timeout(CONNECT_WITHIN, work).await.map_err(late)?.map(TokioIo::new)
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl tower::Service<http::Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

fn dialer(files: &TlsFiles) -> Result<Dialer, String> {
    if files.ca.is_empty() {
        return Err("tls.ca is missing; name the file with the certificate authority of the engine".into());
    }
    let settings = ServiceSettings { ca: "tls.ca", cert: "tls.cert", key: "tls.key" };
    let files = ServiceFiles {
        ca_file: files.ca.as_str().into(),
        cert_file: files.cert.as_str().into(),
        key_file: files.key.as_str().into(),
    };
    Dialer::of_service(&files, settings, Protocol::Http1).map_err(|e| e.to_string())
}

/// One connection.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<tls::Stream<TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_flush(cx),
            Stream::Tcp(s) => Pin::new(s).poll_flush(cx),
            Stream::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_people_write_them() {
        for (text, tls, shown) in [
            ("unix:///var/run/docker.sock", false, "unix:///var/run/docker.sock"),
            ("tcp://h:99", false, "tcp://h:99"),
            ("tcp://h", false, "tcp://h:2375"),
            ("tcp://h", true, "https://h:2376"),
            ("tcp://[::1]:99", true, "https://[::1]:99"),
            ("https://h/", false, "https://h:2376"),
            ("ssh://me@h:22/run/d.sock", false, "ssh://me@h:22/run/d.sock"),
            ("ssh://h", false, "ssh://h/var/run/docker.sock"),
        ] {
            assert_eq!(Endpoint::parse(text, tls).map(|e| e.to_string()), Ok(shown.to_owned()), "{text}");
        }
        for text in [
            "",
            "h:99",
            "unix://x",
            "tcp://",
            "tcp://h:x",
            "tcp://h/path",
            "ssh://-oProxyCommand=x",
            "ssh://@h",
            "ftp://h",
        ] {
            assert!(Endpoint::parse(text, false).is_err(), "{text}");
        }
    }

    #[test]
    fn tls_files_that_cannot_work_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let empty = dir.path().join("empty.pem");
        std::fs::write(&empty, "no certificate").expect("written");
        let files = |ca: &str, cert: &str| TlsFiles { ca: ca.into(), cert: cert.into(), key: String::new() };
        let endpoint = || Endpoint::Tls { host: "h".into(), port: 1 };
        for (files, part) in [
            (files("", ""), "tls.ca"),
            (files("/nowhere/ca.pem", ""), "/nowhere/ca.pem"),
            (files(&empty.display().to_string(), ""), "holds no certificate"),
        ] {
            let error = Connector::new(endpoint(), Some(&files), "").err().expect("refused");
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(Connector::new(endpoint(), None, "").is_err());
    }
}
