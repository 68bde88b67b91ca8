//! Which servers a dialler takes for the right ones.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

/// What a server must show. The signature of the handshake is checked in any case: it has the certificate's key.
#[derive(Debug)]
pub(crate) enum Expected {
    /// A certificate of these authorities with one of these names; no names = any.
    Member(Arc<RootCertStore>, Vec<ServerName<'static>>),
    /// A certificate of these authorities with the name that is dialled.
    Dialled(Arc<RootCertStore>),
    /// Any certificate.
    Anybody,
}

/// Checks servers' certificates.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) expected: Expected,
    pub(crate) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        dialled: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        match &self.expected {
            Expected::Anybody => {}
            Expected::Dialled(roots) => {
                let certificate = ParsedCertificate::try_from(certificate)?;
                verify_server_cert_signed_by_trust_anchor(&certificate, roots, between, now, algorithms)?;
                verify_server_name(&certificate, dialled)?;
            }
            Expected::Member(roots, names) => {
                let certificate = ParsedCertificate::try_from(certificate)?;
                verify_server_cert_signed_by_trust_anchor(&certificate, roots, between, now, algorithms)?;
                let mut checked: Vec<_> = names.iter().map(|name| verify_server_name(&certificate, name)).collect();
                if !names.is_empty() && checked.iter().all(Result::is_err) {
                    return Err(checked
                        .swap_remove(0)
                        .err()
                        .unwrap_or(rustls::Error::InvalidCertificate(CertificateError::NotValidForName)));
                }
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
