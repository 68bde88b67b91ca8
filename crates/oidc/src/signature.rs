//! Signatures of tokens, and keys in PEM.

use aws_lc_rs::signature::{
    self as of, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use login::{
    Algorithm, Token,
    keys::{Curve, Key, Public},
};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, pem::PemObject as _};
use x509_parser::{
    prelude::{FromDer as _, X509Certificate},
    public_key::PublicKey,
    x509::SubjectPublicKeyInfo,
};

/// Whether the key has signed the token. RSA keys below 2048 bits have signed nothing.
#[must_use]
pub fn signed_by(token: &Token<'_>, key: &Public) -> bool {
    let (signed, signature) = (token.signed.as_bytes(), &*token.signature);
    let plain = |algorithm: &'static dyn VerificationAlgorithm, bytes: &[u8]| {
        UnparsedPublicKey::new(algorithm, bytes).verify(signed, signature).is_ok()
    };
    if !key.fits(token.algorithm) {
        return false;
    }
    match (key, token.algorithm) {
        (Public::Rsa { n, e }, algorithm) => {
            let parameters: &RsaParameters = match algorithm {
                Algorithm::Rs256 => &of::RSA_PKCS1_2048_8192_SHA256,
                Algorithm::Rs384 => &of::RSA_PKCS1_2048_8192_SHA384,
                Algorithm::Rs512 => &of::RSA_PKCS1_2048_8192_SHA512,
                Algorithm::Ps256 => &of::RSA_PSS_2048_8192_SHA256,
                Algorithm::Ps384 => &of::RSA_PSS_2048_8192_SHA384,
                Algorithm::Ps512 => &of::RSA_PSS_2048_8192_SHA512,
                _ => return false,
            };
            RsaPublicKeyComponents { n, e }.verify(parameters, signed, signature).is_ok()
        }
        (Public::Ec { curve: Curve::P256, point }, _) => plain(&of::ECDSA_P256_SHA256_FIXED, point),
        (Public::Ec { curve: Curve::P384, point }, _) => plain(&of::ECDSA_P384_SHA384_FIXED, point),
        (Public::Ec { curve: Curve::P521, point }, _) => plain(&of::ECDSA_P521_SHA512_FIXED, point),
        (Public::Ed25519(x), _) => plain(&of::ED25519, x),
    }
}

/// Reads public keys in PEM: `PUBLIC KEY`, or the key of a `CERTIFICATE`, whose dates and signer do not count.
///
/// # Errors
/// Which of the texts is none, and why.
pub fn public_keys(texts: &[String]) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        let wrong = |why: &str| {
            format!("JWTValidationPubKeys[{i}] {why}; write a public key (RSA, P-256, P-384, P-521, Ed25519) in PEM")
        };
        let public = match SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()) {
            Ok(der) => SubjectPublicKeyInfo::from_der(&der).ok().and_then(|(_, info)| public(&info)),
            Err(_) => {
                let certificate = CertificateDer::from_pem_slice(text.as_bytes());
                let certificate = certificate.map_err(|_| wrong("holds no public key"))?;
                let read = X509Certificate::from_der(&certificate).ok();
                read.and_then(|(_, certificate)| public(certificate.public_key()))
            }
        };
        keys.push(Key::of(public.ok_or_else(|| wrong("holds a key of a kind that is not supported"))?));
    }
    Ok(keys)
}

fn public(info: &SubjectPublicKeyInfo<'_>) -> Option<Public> {
    let algorithm = info.algorithm.algorithm.to_id_string();
    if algorithm == "1.3.101.112" {
        return Some(Public::Ed25519(info.subject_public_key.data.to_vec())).filter(|_| {
            // RFC 8410, section 4.
            info.subject_public_key.data.len() == 32
        });
    }
    match info.parsed().ok()? {
        PublicKey::RSA(rsa) => {
            let strip = |bytes: &[u8]| bytes.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
            Some(Public::Rsa { n: strip(rsa.modulus), e: strip(rsa.exponent) })
        }
        PublicKey::EC(point) => {
            let point = point.data().to_vec();
            let curves = [Curve::P256, Curve::P384, Curve::P521];
            let fits = |curve: &Curve| point.len() == 1 + 2 * curve.coordinate() && point[0] == 4;
            // Of other curves of these lengths a signature of this one never verifies.
            curves.into_iter().find(fits).map(|curve| Public::Ec { curve, point })
        }
        _ => None,
    }
}
