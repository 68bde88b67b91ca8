//! What errors of TLS mean to people.

use std::io;

use rustls::{AlertDescription, CertificateError};

/// What a failed handshake, or a connection that breaks right after it, means: the reason and what to do.
#[must_use]
pub fn why(error: &io::Error) -> String {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => format!(
                "the peer closed the connection during the TLS handshake ({error}); it may not speak TLS: TLS must be \
                    on at both ends"
            ),
            _ => error.to_string(),
        };
    };
    match tls {
        rustls::Error::InvalidMessage(_) => {
            "the peer does not speak TLS: it is a plain listener, or not an agent; TLS must be on at both ends".into()
        }
        // An authority with the name of another one, and a key of its own.
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "the peer's certificate is not signed by the authority that this side trusts (tls.ca_file, -ca-cert)".into()
        }
        rustls::Error::InvalidCertificate(reason) => format!("the peer's certificate is refused: {reason}"),
        rustls::Error::NoCertificatesPresented => "the peer shows no certificate, and one is required".into(),
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => {
                "the peer requires a certificate of its authority, and this side has shown none (-client-cert, \
                    -client-key)"
                    .into()
            }
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::AccessDenied => {
                format!(
                    "the peer refuses the certificate of this side ({alert:?}): an authority that the peer trusts (its \
                        tls.ca_file) must have signed it"
                )
            }
            AlertDescription::CertificateExpired => {
                "the peer refuses the certificate of this side: it has expired".into()
            }
            AlertDescription::ProtocolVersion => {
                "the two sides have no version of TLS in common (tls.tls_min_version)".into()
            }
            other => format!("the peer ended the TLS handshake: {other:?}"),
        },
        rustls::Error::PeerIncompatible(reason) => {
            format!("the two sides have no version or suite of TLS in common ({reason:?})")
        }
        other => other.to_string(),
    }
}
