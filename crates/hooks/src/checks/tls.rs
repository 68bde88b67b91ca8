//! TLS for checks: with this system's root certificates, or without verification where the job says so.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tls::{Dialer, Protocol, Roots, Stream};
use tokio::net::TcpStream;

/// TLS settings of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Expected name in the certificate; empty = the host of the check.
    pub(crate) server_name: String,
    /// Accept any certificate.
    pub(crate) skip_verify: bool,
}

/// The system's roots are read again after this time: an operator may have added one.
const ROOTS_FOR: Duration = Duration::from_secs(300);

static ROOTS: Mutex<Option<(Instant, Roots)>> = Mutex::new(None);

/// The system's root certificates. Blocks at the first use, and whenever it reads them again.
fn roots() -> Result<Roots, String> {
    let mut kept = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((read, roots)) = &*kept
        && read.elapsed() < ROOTS_FOR
    {
        return Ok(roots.clone());
    }
    let roots = Roots::of_system().map_err(|why| format!("{why}; or write tls_skip_verify = true"))?;
    *kept = Some((Instant::now(), roots.clone()));
    Ok(roots)
}

impl Tls {
    /// Performs a TLS handshake over a connection to `host`.
    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        host: &str,
        protocol: Protocol,
    ) -> Result<Stream<TcpStream>, String> {
        let roots = match self.skip_verify {
            true => None,
            false => Some(blocking::spawn(roots).await.map_err(|e| e.to_string())??),
        };
        self.speak(roots, stream, host, protocol).await
    }

    async fn speak(
        &self,
        roots: Option<Roots>,
        stream: TcpStream,
        host: &str,
        protocol: Protocol,
    ) -> Result<Stream<TcpStream>, String> {
        let name = if self.server_name.is_empty() { host } else { &self.server_name };
        let dialer = Dialer::of_roots(roots, name, protocol).map_err(|e| e.to_string())?;
        dialer.connect(stream, host).await.map_err(|e| format!("TLS with {name}: {e}"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{net::SocketAddr, sync::Arc};

    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    use tokio::{io::AsyncWriteExt, net::TcpListener};
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Certificate of `web.test`, valid until 2120; made for these tests, trusted by nobody.
    const WEB: &str = "-----BEGIN CERTIFICATE-----
MIIBOzCB4qADAgECAgEHMAoGCCqGSM49BAMCMBMxETAPBgNVBAMMCHdlYi50ZXN0
MCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjATMREwDwYDVQQDDAh3
ZWIudGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABBCD5abP1GjhbvvWyZIn
eIPTwiNuoCBW8d+5EQBm+/cPBZi0fbFpfufow3fXf94zvG8/7INhNsapQ30pa+KI
cByjJTAjMBMGA1UdEQQMMAqCCHdlYi50ZXN0MAwGA1UdEwEB/wQCMAAwCgYIKoZI
zj0EAwIDSAAwRQIhAJ05tXridSkPpNHcahWnEZDEteq8xaue4x9xzqgwleshAiAg
LFIz2m70bBuq6C37oVMxFPARkjatfgesw3ReM0SdJQ==
-----END CERTIFICATE-----";
    const WEB_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgafnJ5eh/F8GLpPLL
Oz8fWJNaXLRjHFialzJrb9UzEZShRANCAAQQg+Wmz9Ro4W771smSJ3iD08IjbqAg
VvHfuREAZvv3DwWYtH2xaX7n6MN313/eM7xvP+yDYTbGqUN9KWviiHAc
-----END PRIVATE KEY-----";
    /// The same for `other.test`.
    const OTHER: &str = "-----BEGIN CERTIFICATE-----
MIIBQTCB6KADAgECAgEHMAoGCCqGSM49BAMCMBUxEzARBgNVBAMMCm90aGVyLnRl
c3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBUxEzARBgNVBAMM
Cm90aGVyLnRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQfbbY1INC/GTac
y++i/x0nq9oHwI35DbwjcYu5tzzo4bE7OAezQffcahBE0RxBQUE9ZVC8ygP0G7fJ
OeFMJivxoycwJTAVBgNVHREEDjAMggpvdGhlci50ZXN0MAwGA1UdEwEB/wQCMAAw
CgYIKoZIzj0EAwIDSAAwRQIgfTgSt2zRR/1u96YrXVtUy7HrcYbH1KR4XpDnMFRz
vi0CIQDzD9wxQ5VmSRZy5iXJouq2DfS0WFaZRA6QCFEtnkynkg==
-----END CERTIFICATE-----";

    fn certificate(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
    }

    fn root(pem: &str) -> Roots {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), pem).expect("written");
        Roots::of_file("ca", file.path()).expect("a root")
    }

    /// Serves the certificate of `web.test`.
    pub(in crate::checks) fn acceptor(alpn: &[u8]) -> TlsAcceptor {
        let key = PrivateKeyDer::from_pem_slice(WEB_KEY.as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions");
        let config = builder.with_no_client_auth().with_single_cert(vec![certificate(WEB)], key);
        let mut config = config.expect("a server's configuration");
        config.alpn_protocols = vec![alpn.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    async fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("address");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that refuses the certificate disconnects at once.
                if let Ok(mut stream) = acceptor(b"http/1.1").accept(stream).await {
                    let _ = stream.shutdown().await;
                }
            }
        });
        address
    }

    #[tokio::test]
    async fn certificates_are_verified_by_name_and_root_unless_the_job_says_otherwise() {
        let address = server().await;
        let (trusted, other) = (root(WEB), root(OTHER));
        for (name, skip_verify, roots, fine) in [
            ("web.test", false, &trusted, true),
            ("", false, &trusted, false),
            ("other.test", false, &trusted, false),
            ("web.test", false, &other, false),
            ("", true, &other, true),
            ("other.test", true, &other, true),
        ] {
            let tls = Tls { server_name: name.into(), skip_verify };
            let stream = TcpStream::connect(address).await.expect("connected");
            let spoken = tls.speak((!skip_verify).then(|| roots.clone()), stream, "127.0.0.1", Protocol::Http1).await;
            assert_eq!(spoken.is_ok(), fine, "{name:?} {skip_verify}: {:?}", spoken.err());
        }
    }
}
