//! The public keys of a provider, and which of them could have signed a token.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::Value;

use crate::{Algorithm, Token};

/// Most keys that are read of one set; each may cost a verification.
pub const MAX_KEYS: usize = 64;

/// A curve of ECDSA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// P-256.
    P256,
    /// P-384.
    P384,
    /// P-521.
    P521,
}

impl Curve {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "P-256" => Self::P256,
            "P-384" => Self::P384,
            "P-521" => Self::P521,
            _ => return None,
        })
    }

    /// Bytes of a coordinate.
    #[must_use]
    pub fn coordinate(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Public {
    /// Of RSA; big-endian.
    Rsa {
        /// Modulus.
        n: Vec<u8>,
        /// Exponent.
        e: Vec<u8>,
    },
    /// Of ECDSA.
    Ec {
        /// Its curve.
        curve: Curve,
        /// The point, uncompressed: `0x04`, x, y.
        point: Vec<u8>,
    },
    /// Of Ed25519.
    Ed25519(
        /// 32 bytes.
        Vec<u8>,
    ),
}

impl Public {
    /// Whether the algorithm is one of keys of this kind. A token that says otherwise is a confusion, or an attack.
    #[must_use]
    pub fn fits(&self, algorithm: Algorithm) -> bool {
        use Algorithm as A;
        match self {
            Self::Rsa { .. } => {
                matches!(algorithm, A::Rs256 | A::Rs384 | A::Rs512 | A::Ps256 | A::Ps384 | A::Ps512)
            }
            Self::Ec { curve: Curve::P256, .. } => algorithm == A::Es256,
            Self::Ec { curve: Curve::P384, .. } => algorithm == A::Es384,
            Self::Ec { curve: Curve::P521, .. } => algorithm == A::Es512,
            Self::Ed25519(_) => algorithm == A::EdDsa,
        }
    }
}

/// A key of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its id, where it has one.
    pub id: Option<String>,
    /// The only algorithm that it is for, where it names one.
    pub algorithm: Option<Algorithm>,
    /// The key.
    pub public: Public,
}

impl Key {
    /// A key without an id, for any algorithm of its kind.
    #[must_use]
    pub fn of(public: Public) -> Self {
        Self { id: None, algorithm: None, public }
    }
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default, rename = "use")]
    usage: Option<String>,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

/// Reads a set of keys (RFC 7517, section 5). As that section wants it, keys of other kinds and uses are passed over,
/// as are broken ones: one bad key must not lock everybody out.
///
/// # Errors
/// When the text is no set, or no key of it can be used.
pub fn read_set(json: &[u8]) -> Result<Vec<Key>, String> {
    let set: Set = serde_json::from_slice(json).map_err(|e| format!("it is no set of JSON Web Keys: {e}"))?;
    let keys: Vec<Key> = set.keys.into_iter().filter_map(read_key).take(MAX_KEYS).collect();
    if keys.is_empty() {
        return Err("it holds no RSA, P-256, P-384, P-521 or Ed25519 key for signatures".to_owned());
    }
    Ok(keys)
}

fn read_key(value: Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    if jwk.usage.as_deref().is_some_and(|usage| usage != "sig") {
        return None;
    }
    let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok().filter(|bytes| !bytes.is_empty());
    let public = match &*jwk.kty {
        "RSA" => Public::Rsa { n: bytes(&jwk.n)?, e: bytes(&jwk.e)? },
        "EC" => {
            let curve = Curve::named(&jwk.crv)?;
            let mut point = vec![4];
            for coordinate in [bytes(&jwk.x)?, bytes(&jwk.y)?] {
                // Some writers leave out zeros in front.
                let short = curve.coordinate().checked_sub(coordinate.len())?;
                point.extend(std::iter::repeat_n(0, short));
                point.extend(coordinate);
            }
            Public::Ec { curve, point }
        }
        "OKP" if jwk.crv == "Ed25519" => Public::Ed25519(bytes(&jwk.x).filter(|x| x.len() == 32)?),
        _ => return None,
    };
    // An algorithm that we do not know is one that the key is only for.
    let algorithm = match jwk.alg.as_deref() {
        None | Some("") => None,
        Some(name) => Some(Algorithm::named(name).filter(|algorithm| public.fits(*algorithm))?),
    };
    Some(Key { id: jwk.kid.filter(|id| !id.is_empty()), algorithm, public })
}

/// The keys that could have signed the token: of its kind, for its algorithm, and with its key's id where both have
/// one.
pub fn candidates<'k>(token: &Token<'_>, keys: &'k [Key]) -> impl Iterator<Item = &'k Key> {
    let (algorithm, id) = (token.algorithm, token.key_id.clone());
    keys.iter().filter(move |key| {
        key.public.fits(algorithm)
            && key.algorithm.is_none_or(|only| only == algorithm)
            && match (&id, &key.id) {
                (Some(named), Some(of_key)) => named == of_key,
                _ => true,
            }
    })
}

/// Whether the token names a key that is not in the set: the provider may have a new one.
#[must_use]
pub fn unknown_key(token: &Token<'_>, keys: &[Key]) -> bool {
    token.key_id.as_ref().is_some_and(|id| keys.iter().all(|key| key.id.as_ref() != Some(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &str = r#"{"keys":[
        {"kty":"RSA","kid":"r","alg":"RS256","use":"sig","n":"AQAB","e":"AQAB"},
        {"kty":"RSA","kid":"enc","use":"enc","n":"AQAB","e":"AQAB"},
        {"kty":"oct","kid":"h","k":"AAAA"},
        {"kty":"RSA","kid":"bad","n":"?","e":"AQAB"},
        {"kty":"RSA","kid":"mixed","alg":"ES256","n":"AQAB","e":"AQAB"},
        {"kty":"EC","kid":"p","crv":"P-256","x":"AQ","y":"Ag"},
        {"kty":"EC","kid":"k","crv":"secp256k1","x":"AQ","y":"Ag"},
        {"kty":"OKP","crv":"Ed25519","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
        7]}"#;

    fn token(algorithm: Algorithm, id: Option<&str>) -> Token<'static> {
        Token {
            algorithm,
            key_id: id.map(str::to_owned),
            claims: crate::Claims::new(),
            signed: "",
            signature: Vec::new(),
        }
    }

    #[test]
    fn keys_that_are_not_for_signatures_are_passed_over() {
        let keys = read_set(SET.as_bytes()).expect("a set");
        let ids: Vec<_> = keys.iter().map(|key| key.id.as_deref()).collect();
        assert_eq!(ids, [Some("r"), Some("p"), None]);
        let Public::Ec { point, .. } = &keys[1].public else { panic!("{:?}", keys[1]) };
        assert_eq!((point.len(), point[0], point[32], point[64]), (65, 4, 1, 2), "coordinates have their length");
        assert!(read_set(br#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#).is_err());
        assert!(read_set(b"<html>").is_err());
    }

    #[test]
    fn a_token_is_verified_only_with_a_key_of_its_kind_and_name() {
        let keys = read_set(SET.as_bytes()).expect("a set");
        let ids = |algorithm, id| -> Vec<Option<String>> {
            candidates(&token(algorithm, id), &keys).map(|key| key.id.clone()).collect()
        };
        assert_eq!(ids(Algorithm::Rs256, Some("r")), [Some("r".to_owned())]);
        assert_eq!(ids(Algorithm::Rs256, None), [Some("r".to_owned())]);
        assert_eq!(ids(Algorithm::Ps256, Some("r")), [], "the key says that it is for RS256");
        assert_eq!(ids(Algorithm::Es256, Some("r")), [], "another kind of key");
        assert_eq!(ids(Algorithm::Es384, Some("p")), [], "another curve");
        assert_eq!(ids(Algorithm::EdDsa, Some("new")), [None], "a key without an id may be any");
        assert!(unknown_key(&token(Algorithm::Rs256, Some("new")), &keys));
        assert!(!unknown_key(&token(Algorithm::Rs256, None), &keys));
    }
}
