//! Whether what a token says is valid now, and meant for us.

use serde_json::Value;

use crate::{Algorithm, Claims};

/// Leeway of `exp` and `nbf` where the method sets none, in seconds: for tokens that lack the claim, which is then
/// taken from the others.
pub const DEFAULT_LEEWAY: i64 = 150;
/// How far clocks may differ where the method does not say, in seconds.
pub const DEFAULT_CLOCK_SKEW: i64 = 60;

/// What a method expects of tokens.
#[derive(Clone, Debug, Default)]
pub struct Expected<'m> {
    /// Accepted algorithms; empty = RS256, the one that each OpenID provider has.
    pub algorithms: Vec<Algorithm>,
    /// Accepted audiences; empty = any.
    pub audiences: &'m [String],
    /// Accepted issuers; empty = any.
    pub issuers: &'m [String],
    /// Seconds that a token without `exp` is valid; 0 = [`DEFAULT_LEEWAY`], negative = none.
    pub expiration_leeway: i64,
    /// Seconds before `exp` at which a token without `nbf` and `iat` begins; as above.
    pub not_before_leeway: i64,
    /// Seconds that clocks may differ; 0 = [`DEFAULT_CLOCK_SKEW`], negative = none.
    pub clock_skew: i64,
}

/// Why a token does not count. `Display` is what follows `unable to validate provided token: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The text is no token.
    #[error("unable to verify signature of JWT token: error parsing token: {0}")]
    Malformed(#[from] crate::jwt::Malformed),
    /// The method does not accept its algorithm.
    #[error(
        "unable to verify signature of JWT token: error verifying token signature: the token is signed with {found}, \
            and the auth method accepts {accepted}; hint: SigningAlgs lists what it accepts"
    )]
    Algorithm {
        /// The token's.
        found: Algorithm,
        /// The method's.
        accepted: String,
    },
    /// No key has signed it.
    #[error(
        "unable to verify signature of JWT token: error verifying token signature: no known key successfully \
            validated the token signature"
    )]
    Signature,
    /// It has no time at all.
    #[error(
        "unable to verify signature of JWT token: no issued at (iat), not before (nbf), or expiration time (exp) \
            claims in token"
    )]
    NoTimes,
    /// A time is no number.
    #[error("unable to verify signature of JWT token: the claim {0} is not a number of seconds")]
    NoNumber(
        /// Its claim.
        &'static str,
    ),
    /// It has expired.
    #[error("unable to verify signature of JWT token: invalid expiration time (exp) claim: token is expired")]
    Expired,
    /// It is not valid yet.
    #[error("unable to verify signature of JWT token: invalid not before (nbf) claim: token not yet valid")]
    NotYet,
    /// It was made in the future.
    #[error("unable to verify signature of JWT token: invalid issued at (iat) claim: token issued in the future")]
    IssuedLater,
    /// It is meant for somebody else.
    #[error(
        "unable to verify signature of JWT token: invalid audience (aud) claim: audience claim does not match any \
            expected audience"
    )]
    Audience,
    /// Somebody else has made it.
    #[error("invalid JWT issuer: {0}")]
    Issuer(
        /// As the token says.
        String,
    ),
}

impl Expected<'_> {
    /// Whether the algorithm is accepted. Asked before a key is looked for.
    ///
    /// # Errors
    /// When it is not.
    pub fn algorithm(&self, found: Algorithm) -> Result<(), Refusal> {
        let accepted: &[Algorithm] = if self.algorithms.is_empty() { &[Algorithm::Rs256] } else { &self.algorithms };
        if accepted.contains(&found) {
            return Ok(());
        }
        let accepted: Vec<&str> = accepted.iter().map(|algorithm| algorithm.name()).collect();
        Err(Refusal::Algorithm { found, accepted: accepted.join(", ") })
    }

    /// Checks the claims of a token whose signature is right. `now` is in seconds of Unix time.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, claims: &Claims, now: i64) -> Result<(), Refusal> {
        self.times(claims, now)?;
        if !self.audiences.is_empty() && !audiences(claims).iter().any(|aud| self.audiences.iter().any(|a| a == aud)) {
            return Err(Refusal::Audience);
        }
        let issuer = text(claims, "iss");
        if !self.issuers.is_empty() && !self.issuers.iter().any(|accepted| accepted == issuer) {
            return Err(Refusal::Issuer(issuer.chars().take(256).collect()));
        }
        Ok(())
    }

    fn times(&self, claims: &Claims, now: i64) -> Result<(), Refusal> {
        let (exp, nbf, iat) = (time(claims, "exp")?, time(claims, "nbf")?, time(claims, "iat")?);
        let latest = nbf.into_iter().chain(iat).max();
        let exp = match (exp, latest) {
            (Some(exp), _) => exp,
            (None, Some(latest)) => latest.saturating_add(leeway(self.expiration_leeway, DEFAULT_LEEWAY)),
            (None, None) => return Err(Refusal::NoTimes),
        };
        let begin = exp.saturating_sub(leeway(self.not_before_leeway, DEFAULT_LEEWAY));
        let nbf = nbf.or(iat).unwrap_or(begin);
        let skew = leeway(self.clock_skew, DEFAULT_CLOCK_SKEW);
        let (early, late) = (now.saturating_add(skew), now.saturating_sub(skew));
        if late >= exp {
            Err(Refusal::Expired)
        } else if iat.is_some_and(|iat| early < iat) {
            Err(Refusal::IssuedLater)
        } else if early < nbf {
            Err(Refusal::NotYet)
        } else {
            Ok(())
        }
    }
}

fn leeway(set: i64, default: i64) -> i64 {
    if set == 0 { default } else { set.max(0) }
}

/// The audiences of a token: one text or several (RFC 7519, section 4.1.3).
#[must_use]
pub fn audiences(claims: &Claims) -> Vec<&str> {
    match claims.get("aud") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// A claim that is a text; empty without one.
#[must_use]
pub fn text<'c>(claims: &'c Claims, claim: &str) -> &'c str {
    claims.get(claim).and_then(Value::as_str).unwrap_or_default()
}

/// A date of seconds, which may have a fraction. 0 counts as absent, as with Nomad.
fn time(claims: &Claims, claim: &'static str) -> Result<Option<i64>, Refusal> {
    match claims.get(claim) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            #[allow(clippy::cast_possible_truncation, reason = "a cast of a float stops at the ends of the range")]
            let whole = || value.as_f64().filter(|f| f.is_finite()).map(|f| f as i64);
            let seconds = value.as_i64().or_else(whole).ok_or(Refusal::NoNumber(claim))?;
            Ok((seconds != 0).then_some(seconds))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn claims(value: Value) -> Claims {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn times_with_their_leeways() {
        let none = Expected { expiration_leeway: -1, not_before_leeway: -1, clock_skew: -1, ..Expected::default() };
        let usual = Expected::default();
        for (expected, given, said) in [
            (&usual, json!({}), Err(Refusal::NoTimes)),
            (&usual, json!({"exp": 0}), Err(Refusal::NoTimes)),
            (&usual, json!({"exp": "soon"}), Err(Refusal::NoNumber("exp"))),
            (&none, json!({"exp": NOW + 1}), Err(Refusal::NotYet)),
            (&none, json!({"exp": NOW + 1, "iat": NOW}), Ok(())),
            (&none, json!({"exp": NOW, "iat": NOW}), Err(Refusal::Expired)),
            (&usual, json!({"exp": NOW - 59}), Ok(())),
            (&usual, json!({"exp": NOW - 60}), Err(Refusal::Expired)),
            (&usual, json!({"exp": 1_699_999_941.5}), Ok(())),
            (&usual, json!({"iat": NOW - 209}), Ok(())),
            (&usual, json!({"iat": NOW - 210}), Err(Refusal::Expired)),
            (&usual, json!({"iat": NOW + 60}), Ok(())),
            (&usual, json!({"iat": NOW + 61}), Err(Refusal::IssuedLater)),
            (&usual, json!({"nbf": NOW + 61}), Err(Refusal::NotYet)),
            (&usual, json!({"nbf": NOW + 60, "exp": NOW + 100}), Ok(())),
            (&usual, json!({"exp": i64::MAX, "iat": NOW}), Ok(())),
            (&usual, json!({"exp": 1e300, "iat": NOW}), Ok(())),
            (&usual, json!({"exp": -1e300}), Err(Refusal::Expired)),
        ] {
            assert_eq!(expected.check(&claims(given.clone()), NOW), said, "{given}");
        }
    }

    #[test]
    fn audience_issuer_and_algorithm_count_only_when_they_are_set() {
        let (audiences, issuers) = (["drover".to_owned()], ["https://id".to_owned()]);
        let bound = Expected { audiences: &audiences, issuers: &issuers, ..Expected::default() };
        let with = |aud: Value, iss: &str| claims(json!({"exp": NOW + 60, "iat": NOW, "aud": aud, "iss": iss}));
        assert_eq!(bound.check(&with(json!("drover"), "https://id"), NOW), Ok(()));
        assert_eq!(bound.check(&with(json!(["x", "drover"]), "https://id"), NOW), Ok(()));
        for other in [json!("x"), json!([]), json!(null), json!({"drover": 1}), json!("Drover")] {
            assert_eq!(bound.check(&with(other, "https://id"), NOW), Err(Refusal::Audience));
        }
        let you = bound.check(&with(json!("drover"), "you"), NOW);
        assert_eq!(you.expect_err("another issuer").to_string(), "invalid JWT issuer: you");
        assert_eq!(Expected::default().check(&with(json!("x"), "you"), NOW), Ok(()));
        assert_eq!(Expected::default().algorithm(Algorithm::Rs256), Ok(()));
        let refused = Expected::default().algorithm(Algorithm::Es256).expect_err("not accepted").to_string();
        assert!(refused.contains("ES256") && refused.ends_with("SigningAlgs lists what it accepts"), "{refused}");
    }

    proptest! {
        #[test]
        fn a_token_counts_within_one_span_only(exp in -10_i64..500, iat in -10_i64..500, skew in -1_i64..50) {
            let expected = Expected { clock_skew: skew, ..Expected::default() };
            let given = claims(json!({"exp": exp, "iat": iat}));
            let counts: Vec<bool> = (-200..900).map(|now| expected.check(&given, now).is_ok()).collect();
            let turns = counts.windows(2).filter(|two| two[0] != two[1]).count();
            prop_assert!(turns <= 2 && !counts[counts.len() - 1]);
        }
    }
}
