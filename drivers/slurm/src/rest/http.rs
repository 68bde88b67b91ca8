//! One request to slurmrestd, over TCP, TLS or a socket of this machine. The connection is not kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use hpc::command::last_lines;
use http::{HeaderValue, Method, Request, Uri, header};
use http_body_util::Full;
use serde_json::Value;
use tls::{Dialer, Protocol, Roots};
use tokio::net::{TcpStream, UnixStream};

use super::tables;

/// Longest answer that is read, in bytes: a job takes 3 to 6 KB, and all jobs of the cluster come at once.
const MAX_ANSWER: usize = 1 << 30;
/// Port of slurmrestd where the address names none.
const PORT: u16 = 6820;

/// Where slurmrestd listens.
pub(crate) enum Endpoint {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16, dialer: Dialer },
}

/// What it has answered.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    /// How long ago the token had expired that a refused call came with.
    pub(crate) expired: Option<Duration>,
}

impl Said {
    pub(crate) fn success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// What it complains about, on one line.
    pub(crate) fn reason(&self) -> String {
        let errors = tables::errors(&self.body);
        let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
        match told.is_empty() {
            false => told.join("; ").chars().take(400).collect(),
            true => last_lines(&String::from_utf8_lossy(&self.body[..self.body.len().min(2000)])),
        }
    }
}

/// Reads an address: whether it is secure, its host and its port; `None`: it is not one of `http` or `https`.
fn parts(url: &str) -> Option<(bool, String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let secure = match uri.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let bare = uri.query().is_none() && matches!(uri.path(), "" | "/");
    let host = uri.host().filter(|host| bare && !host.is_empty())?;
    Some((secure, host.trim_matches(['[', ']']).to_owned(), uri.port_u16().unwrap_or(PORT)))
}

/// Whether an address can be used; in an error, what it has to be.
///
/// # Errors
/// Why not, as a part of a sentence.
pub(crate) fn check(url: &str) -> Result<(), String> {
    let good = match url.strip_prefix("unix:") {
        Some(path) => Path::new(path.trim_start_matches("//")).is_absolute() || path.starts_with('/'),
        None => parts(url).is_some(),
    };
    match good {
        true => Ok(()),
        false => Err(format!("url {url:?} must be http://host:port, https://host:port or unix:/path of a socket")),
    }
}

impl Endpoint {
    /// Reads an address, and authorities from a file or from this system; blocks.
    pub(crate) fn new(url: &str, ca: Option<&Path>) -> Result<Self, String> {
        check(url)?;
        if let Some(path) = url.strip_prefix("unix:") {
            // unix:/path and unix:///path are both written.
            return Ok(Self::Unix(path.strip_prefix("//").unwrap_or(path).into()));
        }
        let (secure, host, port) = parts(url).ok_or("the url names no host")?;
        if !secure {
            return Ok(Self::Tcp { host, port });
        }
        let roots = match ca {
            Some(path) => Roots::of_file("ca_file", path),
            None => Roots::of_system(),
        };
        let roots = roots.map_err(|why| why.to_string())?;
        let dialer = Dialer::of_roots(Some(roots), "", Protocol::Http1).map_err(|why| why.to_string())?;
        Ok(Self::Tls { host, port, dialer })
    }

    /// Sends one request and reads the answer. `target` is path and query.
    ///
    /// # Errors
    /// Why there is no whole answer, as a part of a sentence. The request may have been carried out.
    ///
    /// A drop ends the connection, and leaves the same open.
    pub(crate) async fn ask(
        &self,
        method: Method,
        target: &str,
        body: Option<&Value>,
        user: Option<&str>,
        token: Option<&str>,
    ) -> Result<Said, String> {
        let host = match self {
            Self::Unix(_) => "localhost".to_owned(),
            Self::Tcp { host, port } | Self::Tls { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } | Self::Tls { host, port, .. } => format!("{host}:{port}"),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, host)
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        for (name, value) in [("X-SLURM-USER-NAME", user), ("X-SLURM-USER-TOKEN", token)] {
            if let Some(value) = value {
                let mut value = HeaderValue::try_from(value).map_err(|why| why.to_string())?;
                value.set_sensitive(true);
                request = request.header(name, value);
            }
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).map_err(|why| why.to_string())?;
        let (status, body) = match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|why| why.to_string())?;
                fetch::exchange(stream, request, MAX_ANSWER).await?
            }
            Self::Tcp { host, port } => fetch::exchange(tcp(host, *port).await?, request, MAX_ANSWER).await?,
            Self::Tls { host, port, dialer } => {
                let stream = tcp(host, *port).await?;
                let stream = dialer.connect(stream, host).await.map_err(|why| tls::why(&why))?;
                fetch::exchange(stream, request, MAX_ANSWER).await?
            }
        };
        Ok(Said { status: status.as_u16(), body, expired: None })
    }
}

async fn tcp(host: &str, port: u16) -> Result<TcpStream, String> {
    let stream = TcpStream::connect((host, port)).await.map_err(|why| why.to_string())?;
    stream.set_nodelay(true).map_err(|why| why.to_string())?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_or_a_socket() {
        for (url, wanted) in [
            ("http://rest.example:8080", Some((false, "rest.example", 8080))),
            ("http://rest.example", Some((false, "rest.example", PORT))),
            ("https://[::1]:6820/", Some((true, "::1", 6820))),
            ("http://rest.example/slurm", None),
            ("ftp://rest.example", None),
            ("rest.example:6820", None),
        ] {
            let wanted = wanted.map(|(secure, host, port)| (secure, host.to_owned(), port));
            assert_eq!(parts(url), wanted, "{url}");
        }
        for (url, good) in [
            ("unix:/run/rest", true),
            ("unix:///run/rest", true),
            ("unix:run/rest", false),
            ("unix:", false),
            ("", false),
            ("http://", false),
        ] {
            assert_eq!(check(url).is_ok(), good, "{url}");
        }
        for url in ["unix:/run/rest", "unix:///run/rest"] {
            let made = Endpoint::new(url, None);
            assert!(matches!(made, Ok(Endpoint::Unix(path)) if path == Path::new("/run/rest")), "{url}");
        }
    }
}
