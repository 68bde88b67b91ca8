//! TLS for checks: with this system's root certificates, or without verification where the job says so.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

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

static ROOTS: Mutex<Option<(Instant, Arc<RootCertStore>)>> = Mutex::new(None);

/// The system's root certificates. Blocks at the first use, and whenever it reads them again.
fn roots() -> Result<Arc<RootCertStore>, String> {
    let mut kept = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((read, roots)) = &*kept
        && read.elapsed() < ROOTS_FOR
    {
        return Ok(roots.clone());
    }
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(found.certs);
    if added == 0 {
        let why: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        return Err(format!("this node has no root certificates ({}); install them, or write tls_skip_verify = true", why.join("; ")));
    }
    let store = Arc::new(store);
    *kept = Some((Instant::now(), store.clone()));
    Ok(store)
}

fn config(skip_verify: bool, alpn: &[u8], roots: impl FnOnce() -> Result<Arc<RootCertStore>, String>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| format!("set up TLS: {e}"))?;
    let mut config = if skip_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider))).with_no_client_auth()
    } else {
        builder.with_root_certificates(roots()?).with_no_client_auth()
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(config)
}

impl Tls {
    /// Performs a TLS handshake over a connection to `host`.
    pub(crate) async fn connect(&self, stream: TcpStream, host: &str, alpn: &'static [u8]) -> Result<TlsStream<TcpStream>, String> {
        let skip = self.skip_verify;
        let config = tokio::task::spawn_blocking(move || config(skip, alpn, roots)).await.map_err(|e| e.to_string())??;
        self.speak(config, stream, host).await
    }

    async fn speak(&self, config: ClientConfig, stream: TcpStream, host: &str) -> Result<TlsStream<TcpStream>, String> {
        let name = if self.server_name.is_empty() { host } else { &self.server_name };
        let of = ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name:?} is no name that a certificate could have; set tls_server_name"))?;
        TlsConnector::from(Arc::new(config)).connect(of, stream).await.map_err(|e| format!("TLS with {name}: {e}"))
    }
}

/// Accepts every certificate but checks every signature: the server must have the key of its certificate.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        None
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;

    use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
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

    fn root(pem: &str) -> Arc<RootCertStore> {
        let mut store = RootCertStore::empty();
        store.add(certificate(pem)).expect("a root");
        Arc::new(store)
    }

    /// Serves the certificate of `web.test`.
    pub(in crate::checks) fn acceptor(alpn: &[u8]) -> TlsAcceptor {
        let key = PrivateKeyDer::from_pem_slice(WEB_KEY.as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
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
            let config = config(skip_verify, b"http/1.1", || Ok(roots.clone())).expect("a configuration");
            let stream = TcpStream::connect(address).await.expect("connected");
            let spoken = tls.speak(config, stream, "127.0.0.1").await;
            assert_eq!(spoken.is_ok(), fine, "{name:?} {skip_verify}: {:?}", spoken.err());
        }
    }
}
