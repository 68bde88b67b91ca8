//! The secrets of a root key: what it signs identities with, and what it encrypts variables with.

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    encoding::AsDer as _,
    hkdf, hmac,
    rand::{self, SystemRandom},
    rsa::KeySize,
    signature::{
        ED25519, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair,
        UnparsedPublicKey,
    },
};
use model::{proof::MAC_BYTES, signing::Algorithm};
use uuid::Uuid;
use zeroize::Zeroizing;

use super::key::KeyringError;

/// The private key that signs.
#[derive(Clone)]
pub(super) enum Signer {
    /// Of keys that releases before format 2 have made.
    Ed25519(Arc<Ed25519KeyPair>),
    /// RSA of 2048 bits.
    Rsa(Arc<RsaKeyPair>),
}

impl Signer {
    /// A new private key. RSA takes up to a second: not for a thread that others wait for.
    pub(super) fn generate(algorithm: Algorithm) -> Result<Self, KeyringError> {
        let failed = |_| KeyringError::Crypto("making a key");
        Ok(match algorithm {
            Algorithm::EdDsa => Self::Ed25519(Arc::new(Ed25519KeyPair::generate().map_err(failed)?)),
            Algorithm::Rs256 => Self::Rsa(Arc::new(RsaKeyPair::generate(KeySize::Rsa2048).map_err(failed)?)),
        })
    }

    /// Reads a private key in PKCS #8. The reason repeats nothing of it.
    pub(super) fn read(algorithm: Algorithm, der: &[u8]) -> Result<Self, String> {
        match algorithm {
            Algorithm::EdDsa => match Ed25519KeyPair::from_pkcs8(der) {
                Ok(pair) => Ok(Self::Ed25519(Arc::new(pair))),
                Err(why) => Err(format!("its private key is not a whole Ed25519 key in PKCS #8: {why}")),
            },
            Algorithm::Rs256 => match RsaKeyPair::from_pkcs8(der) {
                Ok(pair) => Ok(Self::Rsa(Arc::new(pair))),
                Err(why) => Err(format!("its private key is not a whole RSA key in PKCS #8: {why}")),
            },
        }
    }

    /// The private key in PKCS #8.
    pub(super) fn secret(&self) -> Result<Zeroizing<Vec<u8>>, KeyringError> {
        let failed = |_| KeyringError::Crypto("encoding a private key");
        Ok(Zeroizing::new(match self {
            Self::Ed25519(pair) => pair.to_pkcs8().map_err(failed)?.as_ref().to_vec(),
            Self::Rsa(pair) => pair.as_der().map_err(failed)?.as_ref().to_vec(),
        }))
    }

    /// The public half: the 32 bytes of RFC 8032, or `RSAPublicKey` of RFC 8017 in DER.
    pub(super) fn public(&self) -> Vec<u8> {
        match self {
            Self::Ed25519(pair) => pair.public_key().as_ref().to_vec(),
            Self::Rsa(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    pub(super) fn sign(&self, text: &[u8]) -> Result<Vec<u8>, KeyringError> {
        let failed = |_| KeyringError::Crypto("signing a token");
        Ok(match self {
            Self::Ed25519(pair) => pair.try_sign(text).map_err(failed)?.as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text, &mut signature).map_err(failed)?;
                signature
            }
        })
    }
}

/// What the proofs of nodes are made with, from the secrets of a root key: its data key, or its private key where it
/// has none. The label keeps it apart from all else that a root key is used for.
pub(super) fn proof_key(signer: &Signer, data: Option<&DataKey>) -> Result<hmac::Key, KeyringError> {
    let secret = match data {
        Some(data) => Zeroizing::new(data.bytes().to_vec()),
        None => signer.secret()?,
    };
    let mut derived = Zeroizing::new([0; MAC_BYTES]);
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"drover root key");
    let filled = salt
        .extract(&secret)
        .expand(&[b"proofs of what nodes were told, 1"], hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut *derived));
    filled.map_err(|_| KeyringError::Crypto("deriving the key of proofs"))?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &*derived))
}

/// Whether the key with that public half has signed the text.
pub(super) fn verifies(algorithm: Algorithm, public: &[u8], text: &[u8], signature: &[u8]) -> bool {
    match algorithm {
        Algorithm::EdDsa => UnparsedPublicKey::new(&ED25519, public).verify(text, signature).is_ok(),
        Algorithm::Rs256 => UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public).verify(text, signature).is_ok(),
    }
}

/// Modulus and exponent of an `RSAPublicKey` (RFC 8017, A.1.1), big endian, without leading zeros. None = it is none.
#[must_use]
pub fn rsa_parts(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (0x30, numbers, []) = element(der)? else { return None };
    let (0x02, modulus, rest) = element(numbers)? else { return None };
    let (0x02, exponent, []) = element(rest)? else { return None };
    let unsigned = |number: &'_ [u8]| number.iter().take_while(|byte| **byte == 0).count();
    Some((&modulus[unsigned(modulus)..], &exponent[unsigned(exponent)..]))
}

/// Tag and content of the first element of DER, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*first) {
        short @ 0..0x80 => (short, rest),
        long => {
            let bytes = rest.get(..long - 0x80).filter(|bytes| bytes.len() <= 4)?;
            let length = bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, &rest[bytes.len()..])
        }
    };
    (length <= rest.len()).then(|| (*tag, &rest[..length], &rest[length..]))
}

/// What a root key encrypts variables with; `Debug` hides it, and it is overwritten when it is dropped.
#[derive(Clone)]
pub(super) struct DataKey(Arc<Zeroizing<[u8; 32]>>);

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

impl DataKey {
    pub(super) fn generate() -> Result<Self, KeyringError> {
        let mut bytes = Zeroizing::new([0; 32]);
        rand::fill(&mut *bytes).map_err(|_| KeyringError::Crypto("making a key"))?;
        Ok(Self(Arc::new(bytes)))
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self(Arc::new(Zeroizing::new(bytes.try_into().ok()?))))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &**self.0
    }

    fn key(&self) -> Result<RandomizedNonceKey, KeyringError> {
        RandomizedNonceKey::new(&AES_256_GCM, self.bytes()).map_err(|_| KeyringError::Crypto("reading a data key"))
    }

    /// AES-256-GCM: a random nonce of 12 bytes, the ciphertext, the tag of 16. It opens under the same key id only.
    pub(super) fn seal(&self, id: Uuid, clear: &[u8]) -> Result<Vec<u8>, KeyringError> {
        let failed = |_| KeyringError::Crypto("encrypting a variable");
        let mut sealed = clear.to_vec();
        let aad = id.to_string();
        let nonce = self.key()?.seal_in_place_append_tag(Aad::from(aad.as_bytes()), &mut sealed).map_err(failed)?;
        Ok([nonce.as_ref(), sealed.as_slice()].concat())
    }

    /// Opens what [`Self::seal`] has made. None = it was made with another key, for another id, or changed.
    pub(super) fn open(&self, id: Uuid, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let (mut clear, aad) = (Zeroizing::new(sealed.to_vec()), id.to_string());
        let key = self.key().ok()?;
        let opened = key.open_in_place(Nonce::from(nonce), Aad::from(aad.as_bytes()), &mut clear).ok()?.len();
        clear.truncate(opened);
        Some(clear)
    }
}
