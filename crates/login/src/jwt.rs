//! Reads JSON Web Tokens in their compact form (RFC 7515, section 7.1; RFC 7519).

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;

use crate::Claims;

/// Longest token that is read, in bytes. Providers stay below what fits into a header of HTTP.
pub const MAX_LENGTH: usize = 64 * 1024;

/// How a token may be signed (RFC 7518, section 3; RFC 8037). There is no `none`, and no HMAC: with that, whoever can
/// verify a token can make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// RSA, PKCS #1 v1.5, SHA-256.
    Rs256,
    /// RSA, PKCS #1 v1.5, SHA-384.
    Rs384,
    /// RSA, PKCS #1 v1.5, SHA-512.
    Rs512,
    /// RSA, PSS, SHA-256.
    Ps256,
    /// RSA, PSS, SHA-384.
    Ps384,
    /// RSA, PSS, SHA-512.
    Ps512,
    /// P-256, SHA-256.
    Es256,
    /// P-384, SHA-384.
    Es384,
    /// P-521, SHA-512.
    Es512,
    /// Ed25519.
    EdDsa,
}

/// Each algorithm with its name.
const NAMES: [(Algorithm, &str); 10] = [
    (Algorithm::Rs256, "RS256"),
    (Algorithm::Rs384, "RS384"),
    (Algorithm::Rs512, "RS512"),
    (Algorithm::Ps256, "PS256"),
    (Algorithm::Ps384, "PS384"),
    (Algorithm::Ps512, "PS512"),
    (Algorithm::Es256, "ES256"),
    (Algorithm::Es384, "ES384"),
    (Algorithm::Es512, "ES512"),
    (Algorithm::EdDsa, "EdDSA"),
];

impl Algorithm {
    /// The algorithm of this name; names are compared exactly.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(algorithm, _)| *algorithm)
    }

    /// Its name in a header.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }

    /// All names, for errors.
    #[must_use]
    pub fn names() -> String {
        NAMES.map(|(_, name)| name).join(", ")
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a text is no token that could be verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is too long.
    #[error("the token has {0} bytes, at most {MAX_LENGTH} are read")]
    TooLong(
        /// In bytes.
        usize,
    ),
    /// It has another number of parts.
    #[error("the token has {0} parts between dots, a signed JWT has 3")]
    Parts(
        /// How many.
        usize,
    ),
    /// A part is not base64url.
    #[error("the {0} of the token is not base64url")]
    Base64(
        /// Which part.
        &'static str,
    ),
    /// A part is not an object of JSON.
    #[error("the {part} of the token is not the JSON that a JWT has there: {why}")]
    Json {
        /// Which part.
        part: &'static str,
        /// What the reader says.
        why: String,
    },
    /// The algorithm is none that is accepted.
    #[error(
        "the token is signed with {0:?}, which is never accepted; accepted can be {known}",
        known = Algorithm::names()
    )]
    Algorithm(
        /// As the header names it.
        String,
    ),
    /// The header demands what nobody here understands.
    #[error("the token's header has critical extensions ({0}), and none is supported")]
    Critical(
        /// Their names.
        String,
    ),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    crit: Option<Vec<String>>,
}

/// A token whose signature nobody has looked at yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Token<'t> {
    /// How it says that it is signed.
    pub algorithm: Algorithm,
    /// The key that it names: text to compare, nothing else. It never becomes a path or an address.
    pub key_id: Option<String>,
    /// What it says.
    pub claims: Claims,
    /// The text that is signed.
    pub signed: &'t str,
    /// The signature.
    pub signature: Vec<u8>,
}

impl<'t> Token<'t> {
    /// Reads a token.
    ///
    /// # Errors
    /// When it is none, or one that nobody could verify. The error does not repeat the token.
    pub fn read(text: &'t str) -> Result<Self, Malformed> {
        if text.len() > MAX_LENGTH {
            return Err(Malformed::TooLong(text.len()));
        }
        let parts: Vec<&str> = text.split('.').collect();
        let [header, claims, signature] = parts[..] else { return Err(Malformed::Parts(parts.len())) };
        let header: Header = json("header", header)?;
        if let Some(critical) = header.crit {
            return Err(Malformed::Critical(critical.join(", ")));
        }
        let algorithm = Algorithm::named(&header.alg).ok_or(Malformed::Algorithm(header.alg))?;
        Ok(Self {
            algorithm,
            key_id: header.kid,
            claims: json("body", claims)?,
            signed: &text[..text.len() - signature.len() - 1],
            signature: bytes("signature", signature)?,
        })
    }
}

fn bytes(part: &'static str, text: &str) -> Result<Vec<u8>, Malformed> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| Malformed::Base64(part))
}

fn json<T: serde::de::DeserializeOwned>(part: &'static str, text: &str) -> Result<T, Malformed> {
    serde_json::from_slice(&bytes(part, text)?).map_err(|e| Malformed::Json { part, why: e.to_string() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(header: &str, claims: &str) -> String {
        format!("{}.{}.c2ln", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn what_nobody_could_verify_is_refused_before_a_key_is_looked_for() {
        let fine = token(r#"{"alg":"RS256","kid":"../../etc/passwd"}"#, r#"{"sub":"a"}"#);
        let read = Token::read(&fine).expect("a token");
        assert_eq!((read.algorithm, read.key_id.as_deref()), (Algorithm::Rs256, Some("../../etc/passwd")));
        assert_eq!((read.signed, &*read.signature), (fine.rsplit_once('.').expect("dots").0, &b"sig"[..]));
        for alg in ["none", "None", "", "HS256", "HS512", "rs256", "RS1", "dir"] {
            let text = token(&format!(r#"{{"alg":"{alg}"}}"#), "{}");
            assert_eq!(Token::read(&text), Err(Malformed::Algorithm(alg.to_owned())));
        }
        let crit = token(r#"{"alg":"RS256","crit":["b64"],"b64":false}"#, "{}");
        assert_eq!(Token::read(&crit), Err(Malformed::Critical("b64".to_owned())));
        assert_eq!(Token::read("a.b"), Err(Malformed::Parts(2)));
        assert_eq!(Token::read("a.b.c.d.e"), Err(Malformed::Parts(5)));
        assert_eq!(Token::read(&"a".repeat(MAX_LENGTH + 1)), Err(Malformed::TooLong(MAX_LENGTH + 1)));
        assert_eq!(Token::read("?.e30.c2ln"), Err(Malformed::Base64("header")));
        for claims in ["[]", "1", "{", "null", r#""a""#] {
            let text = token(r#"{"alg":"RS256"}"#, claims);
            assert!(matches!(Token::read(&text), Err(Malformed::Json { part: "body", .. })), "{claims}");
        }
    }

    #[test]
    fn algorithms_have_one_name_each() {
        for (algorithm, name) in NAMES {
            assert_eq!((Algorithm::named(name), algorithm.name()), (Some(algorithm), name));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-zA-Z0-9_.-]{0,200}") {
            let _ = Token::read(&text);
        }

        #[test]
        fn a_damaged_header_never_becomes_another_algorithm(at in 0_usize..60, by in any::<u8>()) {
            let fine = token(r#"{"alg":"ES256","kid":"k"}"#, r#"{"sub":"a"}"#);
            let mut damaged = fine.into_bytes();
            let at = at % damaged.len();
            damaged[at] = by;
            if let Ok(text) = String::from_utf8(damaged) && let Ok(read) = Token::read(&text) {
                let known = NAMES.map(|(algorithm, _)| algorithm);
                prop_assert!(known.contains(&read.algorithm));
            }
        }
    }
}
