//! A text that must not reach a log.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

/// A secret text. `Debug` hides it, a comparison takes the same time wherever texts of one length differ, and its
/// memory is overwritten when it is dropped. JSON holds the text itself: whoever writes a record for people takes it
/// out first.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// None at all.
    #[must_use]
    pub const fn none() -> Self {
        Self(String::new())
    }
    /// The text. Never write it into a log or an error.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The SHA-256 by which a secret is found: a search by it tells nothing of how much of a guess was right.
    #[must_use]
    pub fn digest_of(text: &str) -> [u8; 32] {
        Sha256::digest(text.as_bytes()).into()
    }
    /// The SHA-256 of this one, see [`Secret::digest_of`].
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        Self::digest_of(&self.0)
    }
    /// Whether it is this text.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }
}

impl Eq for Secret {}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "\"\"" } else { "redacted" })
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_it_and_json_has_it() {
        let secret = Secret::from("4ea1fbd5-secret");
        assert_eq!(format!("{secret:?} {:?}", Secret::default()), "redacted \"\"");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"4ea1fbd5-secret\"");
        assert!(secret.matches("4ea1fbd5-secret") && !secret.matches("4ea1fbd5-secreT") && !secret.matches(""));
        assert_eq!(secret.digest(), Secret::digest_of("4ea1fbd5-secret"));
    }
}
