//! What a token says of itself. Nothing is verified: slurmctld does that.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;

/// Claims of a JSON web token (RFC 7519) that matter here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Claims {
    /// `exp`: seconds since 1970.
    pub(crate) expires: Option<i64>,
    /// `sun`, Slurm's user name; or `username`, which Slurm takes as well (its page on JWT).
    pub(crate) user: Option<String>,
}

/// The claims of a token; none of something else.
pub(crate) fn claims(token: &str) -> Claims {
    let payload =
        token.split('.').nth(1).and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok());
    let Some(value) = payload.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok()) else {
        return Claims::default();
    };
    let user = ["sun", "username"].iter().find_map(|name| value[name].as_str().map(str::to_owned));
    // RFC 7519 allows fractions of a second.
    let expires = value["exp"].as_i64().or_else(|| value["exp"].as_f64().map(|seconds| seconds as i64));
    Claims { expires, user }
}

/// The token in a file: by itself, or as `scontrol token` prints it (`SLURM_JWT=…`).
pub(crate) fn of_file(text: &str) -> Option<String> {
    let text = text.trim();
    let token = text.strip_prefix("SLURM_JWT=").unwrap_or(text);
    (!token.is_empty() && token.chars().all(|c| c.is_ascii_graphic())).then(|| token.to_owned())
}

/// How long ago a token has expired; `None` while it has not, or does not say.
pub(crate) fn expired(token: &str, now: SystemTime) -> Option<Duration> {
    let until = u64::try_from(claims(token).expires?).unwrap_or(0);
    now.duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(until)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Slurm 22.05.8 makes them.
    fn token(claims: &str) -> String {
        format!("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.{}.c2lnbmVk", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_says_whose_it_is_and_until_when() {
        let slurm = token(r#"{"exp":1795856756,"iat":1795856156,"sun":"alice"}"#);
        assert_eq!(claims(&slurm), Claims { expires: Some(1_795_856_756), user: Some("alice".into()) });
        assert_eq!(claims(&token(r#"{"username":"bob","exp":7.5}"#)).expires, Some(7));
        for nothing in ["", "a.b.c", "opaque", "a.e30.c"] {
            assert_eq!(claims(nothing), Claims::default(), "{nothing}");
        }
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(expired(&slurm, at(1_795_856_755)), None);
        assert_eq!(expired(&slurm, at(1_795_856_766)), Some(Duration::from_secs(10)));
        assert_eq!(expired("opaque", at(u64::from(u32::MAX))), None);
    }

    #[test]
    fn a_file_holds_a_token_or_what_scontrol_prints() {
        assert_eq!(of_file(" a.b.c\n").as_deref(), Some("a.b.c"));
        assert_eq!(of_file("SLURM_JWT=a.b.c\n").as_deref(), Some("a.b.c"));
        for nothing in ["", "\n", "SLURM_JWT=", "two lines\nof text"] {
            assert_eq!(of_file(nothing), None, "{nothing:?}");
        }
    }
}
