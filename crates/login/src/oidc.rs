//! The decisions of a login by browser (OpenID Connect Core 1.0, section 3.1; RFC 7636; RFC 8252).

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Claims, claims};

/// Seconds that a person has for a login.
pub const PATIENCE: i64 = 600;
/// Longest text that a client may choose: its nonce, its redirect.
pub const MAX_TEXT: usize = 2048;

/// A login that has begun. It travels, sealed, in the `state` of the login: whichever server leads when it comes back
/// can go on.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Name of the auth method.
    pub method: String,
    /// The client's own nonce, which the ID token repeats.
    pub nonce: String,
    /// Where the login leads back to.
    pub redirect: String,
    /// The verifier of PKCE, where the method uses it.
    pub verifier: Option<String>,
    /// When it is over, in seconds of Unix time.
    pub until: i64,
}

/// Why a login that has begun cannot end so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The state is none of these servers.
    #[error("no OIDC request found for client nonce: the state is none that these servers have made; log in again")]
    State,
    /// It took too long.
    #[error(
        "no OIDC request found for client nonce: the login was not complete after {} minutes; log in again",
        PATIENCE / 60
    )]
    Late,
    /// It has ended before.
    #[error("no OIDC request found for client nonce: the login has ended already; log in again")]
    Ended,
    /// It was begun with something else.
    #[error("no OIDC request found for client nonce: the login was begun with another {0}; log in again")]
    Other(
        /// With what.
        &'static str,
    ),
}

impl Begun {
    /// Whether a login ends as it was begun.
    ///
    /// # Errors
    /// What differs.
    pub fn fits(&self, method: &str, nonce: &str, redirect: &str, now: i64) -> Result<(), Mismatch> {
        if now >= self.until {
            Err(Mismatch::Late)
        } else if self.method != method {
            Err(Mismatch::Other("auth method"))
        } else if self.nonce != nonce {
            Err(Mismatch::Other("client nonce"))
        } else if self.redirect != redirect {
            Err(Mismatch::Other("redirect URI"))
        } else {
            Ok(())
        }
    }
}

/// What a provider says of itself (OpenID Connect Discovery 1.0, section 3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Provider {
    /// Its name, which is its URL.
    pub issuer: String,
    /// Where a person logs in.
    #[serde(default)]
    pub authorization_endpoint: String,
    /// Where a code becomes tokens.
    #[serde(default)]
    pub token_endpoint: String,
    /// Where further claims are.
    #[serde(default)]
    pub userinfo_endpoint: Option<String>,
    /// Where its keys are.
    pub jwks_uri: String,
    /// How a client may prove who it is at the token endpoint; without it by HTTP basic authentication.
    #[serde(default)]
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

impl Provider {
    /// Where the document of a provider is.
    #[must_use]
    pub fn document_of(discovery_url: &str) -> String {
        let base = discovery_url.trim_end_matches('/');
        let base = base.strip_suffix("/.well-known/openid-configuration").unwrap_or(base);
        format!("{base}/.well-known/openid-configuration")
    }

    /// Reads the document, which must name the provider that was asked.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(json: &[u8], discovery_url: &str) -> Result<Self, String> {
        let found: Self = serde_json::from_slice(json).map_err(|e| format!("it is no discovery document: {e}"))?;
        let asked = Self::document_of(discovery_url);
        if Self::document_of(&found.issuer) != asked {
            return Err(format!(
                "it is of the issuer {:?}, and {discovery_url:?} was asked; write the issuer as OIDCDiscoveryURL",
                found.issuer
            ));
        }
        for url in [&found.jwks_uri, &found.authorization_endpoint, &found.token_endpoint]
            .into_iter()
            .chain(&found.userinfo_endpoint)
            .filter(|url| !url.is_empty())
        {
            safe_url(url)?;
        }
        Ok(found)
    }

    /// Whether the client's secret goes into the form instead of a header.
    #[must_use]
    pub fn secret_in_form(&self) -> bool {
        let supported = self.token_endpoint_auth_methods_supported.as_deref().unwrap_or_default();
        let has = |name: &str| supported.iter().any(|method| method == name);
        has("client_secret_post") && !has("client_secret_basic")
    }
}

/// The host of a URL, in lower case and without a port; None when it is no URL of http or https.
fn host(url: &str) -> Option<(bool, String)> {
    let (secure, rest) = match url.strip_prefix("https://") {
        Some(rest) => (true, rest),
        None => (false, url.strip_prefix("http://")?),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // Names and passwords in addresses only hide where they lead.
    if authority.is_empty() || authority.contains(['@', '\\']) || url.chars().any(|c| c.is_control() || c == ' ') {
        return None;
    }
    let end = authority.find(']').map_or_else(|| authority.find(':').unwrap_or(authority.len()), |i| i + 1);
    Some((secure, authority[..end].to_ascii_lowercase()))
}

fn loopback(host: &str) -> bool {
    host == "localhost" || host == "[::1]" || host.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether an address of a provider may be asked: https, or http to this machine itself. What comes over plain HTTP
/// from elsewhere proves nothing: anybody on the way can replace keys.
///
/// # Errors
/// Why not.
pub fn safe_url(url: &str) -> Result<(), String> {
    match host(url) {
        None => Err(format!("{url:?} is no URL of a provider, such as https://id.example.com")),
        Some((true, _)) => Ok(()),
        Some((false, host)) if loopback(&host) => Ok(()),
        Some((false, _)) => Err(format!("{url:?} is asked over plain HTTP, which is for this machine only; use https")),
    }
}

/// Whether a login may lead back there: to one of the allowed addresses, or to the same on another port of the person's
/// own machine (RFC 8252, section 7.3).
#[must_use]
pub fn redirect_allowed(redirect: &str, allowed: &[String]) -> bool {
    let without_port = |url: &str| {
        let (secure, host) = host(url)?;
        let rest = &url[url.find("://")? + 3..];
        let path = rest.find(['/', '?', '#']).map_or("", |i| &rest[i..]);
        loopback(&host).then(|| (secure, host, path.to_owned()))
    };
    allowed.iter().any(|one| one == redirect)
        || without_port(redirect).is_some_and(|r| allowed.iter().any(|one| without_port(one).as_ref() == Some(&r)))
}

/// A text as a part of a query or form.
#[must_use]
pub fn encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => {
                // Writing to a text cannot fail.
                let _ = write!(out, "%{other:02X}");
            }
        }
        out
    })
}

/// `a=b&c=d`.
#[must_use]
pub fn form(pairs: &[(&str, &str)]) -> String {
    pairs.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect::<Vec<_>>().join("&")
}

/// Scopes that are asked for: `openid` and those of the method.
#[must_use]
pub fn scopes(of_method: &[String]) -> String {
    let more = of_method.iter().map(String::as_str).filter(|scope| *scope != "openid");
    std::iter::once("openid").chain(more).collect::<Vec<_>>().join(" ")
}

/// What a person's browser is sent to.
#[derive(Clone, Copy, Debug)]
pub struct AuthRequest<'a> {
    /// The provider's authorization endpoint.
    pub endpoint: &'a str,
    /// Id of the servers there.
    pub client_id: &'a str,
    /// Where it leads back to.
    pub redirect: &'a str,
    /// As [`scopes`] makes them.
    pub scopes: &'a str,
    /// The sealed login.
    pub state: &'a str,
    /// Repeated in the ID token.
    pub nonce: &'a str,
    /// Of PKCE, SHA-256 of the verifier in base64url.
    pub challenge: Option<&'a str>,
}

impl AuthRequest<'_> {
    /// The address for the browser.
    #[must_use]
    pub fn url(&self) -> String {
        let mut pairs = vec![
            ("client_id", self.client_id),
            ("nonce", self.nonce),
            ("redirect_uri", self.redirect),
            ("response_type", "code"),
            ("scope", self.scopes),
            ("state", self.state),
        ];
        if let Some(challenge) = self.challenge {
            pairs.extend([("code_challenge", challenge), ("code_challenge_method", "S256")]);
        }
        let separator = if self.endpoint.contains('?') { '&' } else { '?' };
        format!("{}{separator}{}", self.endpoint, form(&pairs))
    }
}

/// Why an ID token or further claims do not count, although the signature is right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongIdentity {
    /// Another provider has made it.
    #[error("the ID token is of the issuer {0:?}, not of the provider that was asked")]
    Issuer(
        /// As it says.
        String,
    ),
    /// It is meant for another client.
    #[error("the ID token is not meant for the client {0:?}")]
    Client(
        /// The client's id.
        String,
    ),
    /// It is of another login.
    #[error("the ID token repeats another nonce: it is of another login")]
    Nonce,
    /// It has no subject or no end.
    #[error("the ID token lacks the claim {0}")]
    Lacks(
        /// The claim.
        &'static str,
    ),
    /// The further claims are of somebody else.
    #[error("the claims of the userinfo endpoint are of another subject than the ID token")]
    Subject,
}

/// Checks an ID token beyond signature and times (OpenID Connect Core 1.0, section 3.1.3.7).
///
/// # Errors
/// What is wrong.
pub fn check_id_token(token: &Claims, issuer: &str, client_id: &str, nonce: &str) -> Result<(), WrongIdentity> {
    if claims::text(token, "iss") != issuer {
        return Err(WrongIdentity::Issuer(claims::text(token, "iss").chars().take(256).collect()));
    }
    let audiences = claims::audiences(token);
    let authorized = claims::text(token, "azp");
    let for_another = !authorized.is_empty() && authorized != client_id;
    if !audiences.contains(&client_id) || for_another || (audiences.len() > 1 && authorized.is_empty()) {
        return Err(WrongIdentity::Client(client_id.to_owned()));
    }
    if nonce.is_empty() || claims::text(token, "nonce") != nonce {
        return Err(WrongIdentity::Nonce);
    }
    for claim in ["exp", "iat"] {
        if !token.get(claim).is_some_and(Value::is_number) {
            return Err(WrongIdentity::Lacks(claim));
        }
    }
    if claims::text(token, "sub").is_empty() {
        return Err(WrongIdentity::Lacks("sub"));
    }
    Ok(())
}

/// Adds the claims of the userinfo endpoint to those of the ID token. What the provider has signed about itself and the
/// person stays: `iss`, `sub`, `aud`, and the times.
///
/// # Errors
/// When they are of somebody else.
pub fn add_user_info(token: &mut Claims, info: Claims) -> Result<(), WrongIdentity> {
    if claims::text(&info, "sub") != claims::text(token, "sub") {
        return Err(WrongIdentity::Subject);
    }
    for (claim, value) in info {
        if !matches!(&*claim, "iss" | "sub" | "aud" | "azp" | "exp" | "iat" | "nbf" | "nonce") {
            token.insert(claim, value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claims(value: Value) -> Claims {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn a_login_ends_as_it_was_begun() {
        let begun = Begun {
            method: "m".into(),
            nonce: "n".into(),
            redirect: "http://localhost:4649/oidc/callback".into(),
            verifier: None,
            until: 100,
        };
        let back = &*begun.redirect;
        assert_eq!(begun.fits("m", "n", back, 99), Ok(()));
        assert_eq!(begun.fits("m", "n", back, 100), Err(Mismatch::Late));
        assert_eq!(begun.fits("x", "n", back, 0), Err(Mismatch::Other("auth method")));
        assert_eq!(begun.fits("m", "x", back, 0), Err(Mismatch::Other("client nonce")));
        assert_eq!(begun.fits("m", "n", "http://evil/", 0), Err(Mismatch::Other("redirect URI")));
    }

    #[test]
    fn a_login_leads_back_to_allowed_addresses_only() {
        let allowed =
            ["http://localhost:4649/oidc/callback", "http://[::1]/cb", "https://ui.example.com/cb"].map(str::to_owned);
        for (redirect, fine) in [
            ("http://localhost:4649/oidc/callback", true),
            ("http://localhost:5000/oidc/callback", true),
            ("http://localhost/oidc/callback", true),
            ("http://[::1]:99/cb", true),
            ("https://ui.example.com/cb", true),
            ("https://ui.example.com:8443/cb", false),
            ("https://localhost:4649/oidc/callback", false),
            ("http://localhost:4649/oidc/callback/x", false),
            ("http://localhost:4649@evil.example.com/oidc/callback", false),
            ("http://localhost.evil.example.com/oidc/callback", false),
            ("http://127.0.0.1:4649/oidc/callback", false),
            ("javascript:alert(1)", false),
            ("", false),
        ] {
            assert_eq!(redirect_allowed(redirect, &allowed), fine, "{redirect}");
        }
        assert!(!redirect_allowed("http://localhost/", &[]));
    }

    #[test]
    fn providers_are_asked_over_https_or_on_this_machine() {
        for (url, fine) in [
            ("https://id.example.com", true),
            ("http://127.0.0.1:80/x", true),
            ("http://127.9.9.9", true),
            ("http://localhost:80", true),
            ("http://[::1]:80/", true),
            ("http://10.0.0.1/", false),
            ("http://localhost.example.com", false),
            ("http://127.0.0.1@example.com/", false),
            ("https://a b", false),
            ("https://", false),
            ("file:///etc/passwd", false),
            ("id.example.com", false),
        ] {
            assert_eq!(safe_url(url).is_ok(), fine, "{url}");
        }
    }

    #[test]
    fn a_discovery_document_names_the_provider_that_was_asked() {
        let read = |issuer: &str, jwks: &str| {
            let text = json!({"issuer": issuer, "jwks_uri": jwks, "token_endpoint": "https://id/token"}).to_string();
            Provider::read(text.as_bytes(), "https://id/")
        };
        assert!(read("https://id", "https://id/keys").is_ok_and(|found| !found.secret_in_form()));
        assert!(read("https://evil", "https://id/keys").is_err_and(|why| why.contains("https://evil")));
        assert!(read("https://id", "http://id/keys").is_err_and(|why| why.contains("plain HTTP")));
        assert!(Provider::read(b"<html>", "https://id").is_err());
        let document = "https://id/a/.well-known/openid-configuration";
        assert_eq!(
            (Provider::document_of("https://id/a/"), Provider::document_of(document)),
            (document.into(), document.into())
        );
    }

    #[test]
    fn the_address_of_a_login_has_all_that_the_provider_needs() {
        let request = AuthRequest {
            endpoint: "https://id/auth?tenant=1",
            client_id: "drover",
            redirect: "http://localhost:4649/oidc/callback",
            scopes: &scopes(&["email".into(), "openid".into()]),
            state: "s=",
            nonce: "n&x=y",
            challenge: Some("c"),
        };
        assert_eq!(
            request.url(),
            "https://id/auth?tenant=1&client_id=drover&nonce=n%26x%3Dy&redirect_uri=http%3A%2F%2Flocalhost%3A4649%2F\
                oidc%2Fcallback&response_type=code&scope=openid%20email&state=s%3D&code_challenge=c&\
                code_challenge_method=S256"
        );
    }

    #[test]
    fn an_id_token_is_of_this_provider_for_this_client_and_this_login() {
        let fine = json!({"iss": "https://id", "aud": "c", "nonce": "n", "sub": "ann", "exp": 2, "iat": 1});
        let check = |change: Value| {
            let mut token = claims(fine.clone());
            token.extend(claims(change));
            check_id_token(&token, "https://id", "c", "n")
        };
        assert_eq!(check(json!({})), Ok(()));
        assert_eq!(check(json!({"aud": ["c", "d"], "azp": "c"})), Ok(()));
        let client = Err(WrongIdentity::Client("c".to_owned()));
        assert_eq!(check(json!({"aud": ["c", "d"]})), client);
        assert_eq!(check(json!({"azp": "d"})), client);
        assert_eq!(check(json!({"aud": "d"})), client);
        assert_eq!(check(json!({"iss": "https://evil"})), Err(WrongIdentity::Issuer("https://evil".to_owned())));
        assert_eq!(check(json!({"nonce": "x"})), Err(WrongIdentity::Nonce));
        assert_eq!(check(json!({"exp": null})), Err(WrongIdentity::Lacks("exp")));
        assert_eq!(check(json!({"sub": ""})), Err(WrongIdentity::Lacks("sub")));
        let unsaid = claims(json!({"iss": "https://id", "aud": "c", "sub": "ann", "exp": 2, "iat": 1}));
        assert_eq!(check_id_token(&unsaid, "https://id", "c", ""), Err(WrongIdentity::Nonce), "none fits none");
    }

    #[test]
    fn further_claims_replace_nothing_that_is_signed_about_the_person() {
        let mut token = claims(json!({"iss": "https://id", "sub": "ann", "groups": ["a"]}));
        let info = json!({"sub": "ann", "iss": "https://evil", "exp": 9, "groups": ["b"], "mail": "m"});
        assert_eq!(add_user_info(&mut token, claims(info)), Ok(()));
        assert_eq!(token, claims(json!({"iss": "https://id", "sub": "ann", "groups": ["b"], "mail": "m"})));
        assert_eq!(add_user_info(&mut token, claims(json!({"sub": "bob"}))), Err(WrongIdentity::Subject));
        assert_eq!(add_user_info(&mut token, Claims::new()), Err(WrongIdentity::Subject));
    }
}
