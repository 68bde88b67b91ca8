//! The key that servers of one store share, from `server.encrypt` or a `keyring` block. From it they derive the key
//! that wraps what nobody else who reads the store may know, and what each of them must have without telling the
//! others. A server with a store of its own may have one as well, for its files.

use std::fmt;

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    error::Unspecified,
    hkdf::{HKDF_SHA256, Prk, Salt},
    rand,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use node_gateway::join::JoinSecret;
use uuid::Uuid;
use zeroize::Zeroizing;

/// What is derived for one purpose says nothing of what is derived for another. A number changes with the meaning of
/// what is derived.
const SALT: &[u8] = b"drover";
const WRAPS_SIGNING_KEYS: &[u8] = b"drover keyring 1";
const JOINS: &[u8] = b"drover join 1";

/// Bytes that a text may stand for, as with a stock server.
const LENGTHS: [usize; 3] = [16, 24, 32];
/// Bytes of a key that is made.
const MADE: usize = 32;

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedKeyError {
    /// It is not base64.
    #[error(
        "must be a key in base64; `drover operator gossip keyring generate` makes one, or `openssl rand -base64 32`"
    )]
    Text,
    /// It has another length.
    #[error(
        "must be 32 bytes in base64 (or 24 or 16), it is {0} bytes; `drover operator gossip keyring generate` makes a \
            key, or `openssl rand -base64 32`"
    )]
    Length(
        /// In bytes.
        usize,
    ),
}

/// The key that servers of one store share; `Debug` hides it.
#[derive(Clone)]
pub struct SharedKey(Prk);

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

impl SharedKey {
    /// Reads a key: 16, 24 or 32 bytes in base64. White space around it does not count.
    ///
    /// # Errors
    /// When it is none. The error does not repeat the text.
    pub fn read(text: &str) -> Result<Self, SharedKeyError> {
        let bytes = Zeroizing::new(STANDARD.decode(text.trim()).map_err(|_| SharedKeyError::Text)?);
        if !LENGTHS.contains(&bytes.len()) {
            return Err(SharedKeyError::Length(bytes.len()));
        }
        Ok(Self(Salt::new(HKDF_SHA256, SALT).extract(&bytes)))
    }

    /// A new key, as [`Self::read`] takes it: 32 random bytes in base64.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn generate() -> Result<String, Unspecified> {
        let mut bytes = [0; MADE];
        rand::fill(&mut bytes)?;
        Ok(STANDARD.encode(bytes))
    }

    fn derive(&self, purpose: &[u8]) -> Result<Zeroizing<[u8; 32]>, Unspecified> {
        let mut key = Zeroizing::new([0; 32]);
        self.0.expand(&[purpose], HKDF_SHA256)?.fill(&mut *key)?;
        Ok(key)
    }

    fn wrapping(&self) -> Result<RandomizedNonceKey, Unspecified> {
        RandomizedNonceKey::new(&AES_256_GCM, &*self.derive(WRAPS_SIGNING_KEYS)?)
    }

    /// Encrypts the secret of a signing key with AES-256-GCM: a random nonce of 12 bytes, the ciphertext, the tag of
    /// 16. It can be opened under the same id only.
    ///
    /// # Errors
    /// When the crypto library fails.
    pub fn wrap(&self, id: Uuid, secret: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let mut sealed = Vec::with_capacity(secret.len() + AES_256_GCM.tag_len());
        sealed.extend_from_slice(secret);
        let nonce = self.wrapping()?.seal_in_place_append_tag(Aad::from(id.as_bytes()), &mut sealed)?;
        Ok([nonce.as_ref(), sealed.as_slice()].concat())
    }

    /// Decrypts what [`Self::wrap`] has made.
    ///
    /// # Errors
    /// When another key has made it, for another id, or it was changed.
    pub fn open(&self, id: Uuid, wrapped: &[u8]) -> Result<Zeroizing<Vec<u8>>, Unspecified> {
        let (nonce, sealed) = wrapped.split_first_chunk::<NONCE_LEN>().ok_or(Unspecified)?;
        let mut sealed = Zeroizing::new(sealed.to_vec());
        let opened = self.wrapping()?.open_in_place(Nonce::from(nonce), Aad::from(id.as_bytes()), &mut sealed)?.len();
        sealed.truncate(opened);
        Ok(sealed)
    }

    /// The secret that nodes show to each server that has this key.
    ///
    /// # Errors
    /// When the crypto library fails.
    pub fn join_secret(&self) -> Result<JoinSecret, Unspecified> {
        Ok(JoinSecret::of_bytes(&*self.derive(JOINS)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SharedKey {
        SharedKey::read(&STANDARD.encode([byte; 32])).expect("a key")
    }

    #[test]
    fn a_key_has_one_of_three_lengths() {
        for (bytes, read) in [
            (0, Err(SharedKeyError::Length(0))),
            (15, Err(SharedKeyError::Length(15))),
            (16, Ok(())),
            (17, Err(SharedKeyError::Length(17))),
            (24, Ok(())),
            (31, Err(SharedKeyError::Length(31))),
            (32, Ok(())),
            (33, Err(SharedKeyError::Length(33))),
            (64, Err(SharedKeyError::Length(64))),
        ] {
            let text = STANDARD.encode(vec![7_u8; bytes]);
            assert_eq!(SharedKey::read(&format!(" {text}\n")).map(|_| ()), read, "{bytes} bytes");
        }
        for wrong in ["?", "secret words", "cg8StVXbQJ0gPvMd9o7yrg"] {
            let error = SharedKey::read(wrong).expect_err(wrong);
            assert_eq!(error, SharedKeyError::Text, "{wrong}");
            assert!(!error.to_string().contains(wrong) && error.to_string().contains("keyring generate"), "{error}");
        }
        SharedKey::read("cg8StVXbQJ0gPvMd9o7yrg==").expect("the key of the stock documentation");
        let made = SharedKey::generate().expect("random bytes");
        assert_eq!(STANDARD.decode(&made).expect("base64").len(), 32);
        assert_ne!(SharedKey::generate().expect("random bytes"), made);
        SharedKey::read(&made).expect("a key");
    }

    #[test]
    fn a_wrapped_secret_opens_under_its_id_and_key_only() {
        let (id, other, secret) = (Uuid::from_u128(1), Uuid::from_u128(2), b"the secret of a key".as_slice());
        let wrapped = key(1).wrap(id, secret).expect("wraps");
        assert_eq!(wrapped.len(), 12 + secret.len() + 16);
        assert!(!wrapped.windows(6).any(|part| part == b"secret"));
        assert_eq!(&*key(1).open(id, &wrapped).expect("opens"), secret);
        let again = key(1).wrap(id, secret).expect("wraps");
        assert!(again != wrapped && again[..12] != wrapped[..12], "no nonce is used twice");
        let changed = |at: usize| {
            let mut bytes = wrapped.clone();
            bytes[at] ^= 1;
            bytes
        };
        for (what, key, id, bytes) in [
            ("another key", key(2), id, wrapped.clone()),
            ("another id", key(1), other, wrapped.clone()),
            ("another nonce", key(1), id, changed(0)),
            ("another text", key(1), id, changed(14)),
            ("another tag", key(1), id, changed(wrapped.len() - 1)),
            ("a part", key(1), id, wrapped[..wrapped.len() - 1].to_vec()),
            ("a part of the tag", key(1), id, wrapped[..20].to_vec()),
            ("a part of the nonce", key(1), id, wrapped[..7].to_vec()),
            ("nothing", key(1), id, Vec::new()),
        ] {
            assert!(key.open(id, &bytes).is_err(), "{what} opens it");
        }
    }

    /// Servers of different releases must derive the same: computed with another implementation of RFC 5869.
    #[test]
    fn what_is_derived_never_changes() {
        let secret = key(1).join_secret().expect("derives");
        assert_eq!(secret.expose(), "8a812a170d09e99e958bd20cda0bd1804ed217ab99ec8d58fae5d7bb4e61dc77");
        assert_ne!(key(2).join_secret().expect("derives"), secret);
        let wrapped: Vec<u8> = STANDARD.decode("AAECAwQFBgcICQoLTwiWt6trcHqqL/AOQ6DT45v6GmI=").expect("base64");
        assert_eq!(&*key(1).open(Uuid::from_u128(1), &wrapped).expect("opens"), b"kept");
        assert_eq!(format!("{:?}", key(1)), "<redacted>");
    }
}
