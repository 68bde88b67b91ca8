//! How a server shows a node that it has decided a request, and a node shows the servers that it is itself: a code over
//! the request, made with the secret that only the two know. It is no secret itself and good for one path and a short
//! time. Beside it stands who the servers have decided about, for the node's audit log, under a code of its own.

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderName, Method};

use crate::shapes::AclCaller;

/// The header of a pass.
pub const PASS: HeaderName = HeaderName::from_static("x-drover-pass");
/// The id of the node that makes the pass; absent where a server does.
pub const PASS_NODE: HeaderName = HeaderName::from_static("x-drover-node");

/// The header that tells who has sent the request, as the server knows it.
pub const CALLER: HeaderName = HeaderName::from_static("x-drover-caller");

/// Bytes of a caller's description above which it goes without the policies.
const CALLER_MAX: usize = 4096;

/// How far the clocks of the two may be apart, and how long a request may take, in seconds.
const VALID_S: i64 = 120;

fn said(at: i64, method: &Method, path: &str) -> String {
    format!("{at}\n{method}\n{path}")
}

fn said_of(at: i64, method: &Method, path: &str, who: &str) -> String {
    format!("caller\n{who}\n{}", said(at, method, path))
}

/// Who has sent a request, for the node that carries it out. `now`: Unix seconds; `path`: with the query.
#[must_use]
pub fn caller(secret: &str, now: i64, method: &Method, path: &str, who: &AclCaller) -> String {
    // Texts: there is nothing that JSON has no form for.
    let json = |who: &AclCaller| serde_json::to_vec(who).unwrap_or_default();
    let mut told = json(who);
    if told.len() > CALLER_MAX {
        told = json(&AclCaller { policies: Vec::new(), ..who.clone() });
    }
    let who = URL_SAFE_NO_PAD.encode(told);
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let code = hmac::sign(&key, said_of(now, method, path, &who).as_bytes());
    format!("{now}.{}.{who}", URL_SAFE_NO_PAD.encode(code))
}

/// Who has sent this request, as a server has told it not long ago; None = no server has said so.
#[must_use]
pub fn caller_of(secret: &str, now: i64, method: &Method, path: &str, shown: &str) -> Option<AclCaller> {
    let (at, rest) = shown.split_once('.')?;
    let (code, who) = rest.split_once('.')?;
    let at: i64 = at.parse().ok()?;
    if secret.is_empty() || now.saturating_sub(at).saturating_abs() > VALID_S {
        return None;
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let code = URL_SAFE_NO_PAD.decode(code).ok()?;
    hmac::verify(&key, said_of(at, method, path, who).as_bytes(), &code).ok()?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(who).ok()?).ok()
}

/// A pass for a request. `now`: Unix seconds; `path`: with the query.
#[must_use]
pub fn pass(secret: &str, now: i64, method: &Method, path: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let code = hmac::sign(&key, said(now, method, path).as_bytes());
    format!("{now}.{}", URL_SAFE_NO_PAD.encode(code))
}

/// Whether this pass was made with the secret for this request, not long ago. An empty secret admits nobody.
#[must_use]
pub fn admits(secret: &str, now: i64, method: &Method, path: &str, shown: &str) -> bool {
    let Some((at, code)) = shown.split_once('.') else { return false };
    let (Ok(at), Ok(code)) = (at.parse::<i64>(), URL_SAFE_NO_PAD.decode(code)) else { return false };
    if secret.is_empty() || now.saturating_sub(at).saturating_abs() > VALID_S {
        return false;
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hmac::verify(&key, said(at, method, path).as_bytes(), &code).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_told_for_one_request_its_time_and_its_node() {
        let path = "/v1/client/fs/logs/1?task=a";
        let who = AclCaller {
            accessor_id: "a".into(),
            name: "ann.\n".into(),
            kind: "client".into(),
            policies: vec!["p".into()],
        };
        let shown = caller("s", 1_000, &Method::GET, path, &who);
        assert_eq!(caller_of("s", 1_000, &Method::GET, path, &shown), Some(who.clone()));
        let (head, told) = shown.rsplit_once('.').expect("parts");
        let other = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&AclCaller::default()).expect("JSON"));
        let pass = pass("s", 1_000, &Method::GET, path);
        for (secret, now, method, path, shown) in [
            ("t", 1_000, Method::GET, path, shown.as_str()),
            ("", 1_000, Method::GET, path, &caller("", 1_000, &Method::GET, path, &who)),
            ("s", 1_121, Method::GET, path, &shown),
            ("s", 1_000, Method::PUT, path, &shown),
            ("s", 1_000, Method::GET, "/v1/client/fs/logs/2", &shown),
            ("s", 1_000, Method::GET, path, &format!("{head}.{other}")),
            ("s", 1_000, Method::GET, path, &format!("{pass}.{told}")),
            ("s", 1_000, Method::GET, path, &pass),
            ("s", 1_000, Method::GET, path, ""),
        ] {
            assert_eq!(caller_of(secret, now, &method, path, shown), None, "{secret} {now} {method} {path} {shown}");
        }
        assert!(!admits("s", 1_000, &Method::GET, path, &shown), "it is no pass");
        let many = AclCaller { policies: vec!["p".repeat(100); 100], ..who.clone() };
        let shown = caller("s", 1_000, &Method::GET, path, &many);
        let cut = AclCaller { policies: Vec::new(), ..who };
        assert_eq!(caller_of("s", 1_000, &Method::GET, path, &shown), Some(cut), "headers have an end");
    }

    #[test]
    fn a_pass_is_good_for_its_request_its_time_and_its_node() {
        let path = "/v1/client/fs/logs/1?task=a";
        let shown = pass("s", 1_000, &Method::GET, path);
        assert!(admits("s", 1_000, &Method::GET, path, &shown));
        assert!(admits("s", 1_120, &Method::GET, path, &shown) && admits("s", 880, &Method::GET, path, &shown));
        for (secret, now, method, path, shown) in [
            ("t", 1_000, Method::GET, path, shown.as_str()),
            ("", 1_000, Method::GET, path, &pass("", 1_000, &Method::GET, path)),
            ("s", 1_121, Method::GET, path, &shown),
            ("s", 879, Method::GET, path, &shown),
            ("s", 1_000, Method::PUT, path, &shown),
            ("s", 1_000, Method::GET, "/v1/client/fs/logs/2?task=a", &shown),
            ("s", 1_000, Method::GET, path, ""),
            ("s", 1_000, Method::GET, path, "1000."),
            ("s", 1_000, Method::GET, path, "1000.%"),
            ("s", 1_000, Method::GET, path, &format!("999.{}", &shown[5..])),
            ("s", i64::MAX, Method::GET, path, "-9223372036854775808.AA"),
        ] {
            assert!(!admits(secret, now, &method, path, shown), "{secret} {now} {method} {path} {shown}");
        }
    }
}
