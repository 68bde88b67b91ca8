//! `drover login`: exchanges what an identity provider says about a person or program for a token.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use api::{
    call,
    client::ClientError,
    shapes::{AclLoginRequest, OidcAuthUrlRequest, OidcCompleteAuthRequest},
};
use http::StatusCode;
use model::AclToken;
use serde_json::Value;
use tokio::time::Instant;

use super::{ApiArgs, Format, acl_shared, acl_token, login_callback::Callback};
use crate::{conn::Conn, output, when};

/// How long a person who is back waits for a server that leads. A provider's code lives that long at least.
const LEADERLESS: Duration = Duration::from_secs(60);
/// Between two looks whether one leads.
const AGAIN: Duration = Duration::from_millis(500);

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    format: Format,
    /// Name of the method; default: the default method of the cluster
    #[arg(long, value_name = "NAME")]
    method: Option<String>,
    /// Type of the method, JWT or OIDC, which must be the one that the cluster knows
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Token of the identity provider, for methods of type JWT; `-` reads standard input, `@FILE` a file
    #[arg(long, value_name = "TOKEN")]
    login_token: Option<String>,
    /// Where the browser brings the login back to, for methods of type OIDC
    #[arg(long, value_name = "HOST:PORT", default_value = "localhost:4649")]
    oidc_callback_addr: String,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let methods: Vec<Value> = conn.ask(call::acl_auth_methods().reading()).await?;
    let (name, kind) = chosen(&methods, args.method.as_deref(), args.kind.as_deref())?;
    let token = match kind.as_str() {
        "JWT" => {
            let given = args.login_token.as_deref().context("a login by JWT needs -login-token")?;
            let login_token = acl_shared::text_of_flag(given)?.trim().into();
            conn.ask(call::acl_login(&AclLoginRequest { auth_method_name: name.clone(), login_token })).await?
        }
        "OIDC" => by_browser(&conn, &name, &args.oidc_callback_addr).await?,
        other => bail!("method {name:?} is of type {other:?}; this command knows JWT and OIDC"),
    };
    acl_shared::print(&args.format, &token, |token| {
        output::line(&format!("Successfully logged in via {kind} and {name}\n"));
        acl_token::show(token, when::now_ns());
    })
}

/// Name and type of the method that is meant.
fn chosen(methods: &[Value], name: Option<&str>, kind: Option<&str>) -> Result<(String, String)> {
    let text = |method: &Value, field: &str| method[field].as_str().unwrap_or_default().to_owned();
    let known = || methods.iter().map(|method| text(method, "Name")).collect::<Vec<_>>().join(", ");
    let method = match name {
        Some(name) => methods.iter().find(|method| method["Name"] == name).with_context(|| match methods {
            [] => format!("there is no auth method {name:?}: the cluster has none"),
            _ => format!("there is no auth method {name:?}; the cluster has {}", known()),
        })?,
        None => methods.iter().find(|method| method["Default"] == true).with_context(|| match methods {
            [] => "the cluster has no auth methods: `drover acl auth-method create` makes one".to_owned(),
            _ => format!("no auth method is the default; name one with -method: {}", known()),
        })?,
    };
    let (name, is) = (text(method, "Name"), text(method, "Type"));
    match kind {
        Some(kind) if !kind.eq_ignore_ascii_case(&is) => bail!("auth method {name:?} is of type {is}, not {kind}"),
        _ => Ok((name, is)),
    }
}

/// Has a person log in by browser.
async fn by_browser(conn: &Conn, method: &str, address: &str) -> Result<AclToken> {
    let callback = Callback::bind(address).await?;
    let (redirect_uri, client_nonce) = (callback.uri(), nonce()?);
    let begun = OidcAuthUrlRequest {
        auth_method_name: method.to_owned(),
        redirect_uri: redirect_uri.clone(),
        client_nonce: client_nonce.clone(),
    };
    let url = conn.ask(call::oidc_auth_url(&begun)).await?.auth_url;
    // On its own, for who copies it or reads it by a program; standard output is for the token.
    output::note(&format!("Open this address in a browser to log in:\n\n{url}\n"));
    let back = tokio::select! {
        back = callback.wait() => back?,
        _ = tokio::signal::ctrl_c() => bail!("interrupted; nobody has logged in"),
    };
    let complete = OidcCompleteAuthRequest {
        auth_method_name: method.to_owned(),
        client_nonce,
        state: back.state.into(),
        code: back.code.into(),
        iss: back.iss,
        redirect_uri,
    };
    ended(conn, &complete).await
}

/// Ends a login. What it began with travels in its state: any server that leads can end it. While none does, the code
/// waits.
async fn ended(conn: &Conn, complete: &OidcCompleteAuthRequest) -> Result<AclToken> {
    let (until, mut said) = (Instant::now() + LEADERLESS, false);
    loop {
        let error = match conn.ask(call::oidc_complete_auth(complete)).await {
            Ok(token) => return Ok(token),
            Err(error) => error,
        };
        if !leaderless(error.downcast_ref()) || Instant::now() >= until {
            return Err(error.context("the login has not ended; log in again"));
        }
        if !std::mem::replace(&mut said, true) {
            output::note(&format!("{error}; the login goes on when one leads"));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Whether the code may still be good: no server leads. Other failures have used it up.
fn leaderless(error: Option<&ClientError>) -> bool {
    error.is_some_and(|error| error.status() == Some(StatusCode::SERVICE_UNAVAILABLE))
}

/// What nobody can guess: the login that is completed is the one that was begun here.
fn nonce() -> Result<String> {
    server::shared::SharedKey::generate().context("the system gives no random bytes")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_method_is_the_named_one_or_the_default() {
        let methods = [
            json!({"Name": "ci", "Type": "JWT", "Default": false}),
            json!({"Name": "sso", "Type": "OIDC", "Default": true}),
        ];
        let both = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
        assert_eq!(chosen(&methods, None, None).expect("one"), both("sso", "OIDC"));
        assert_eq!(chosen(&methods, Some("ci"), Some("jwt")).expect("one"), both("ci", "JWT"));
        for (methods, name, kind, says) in [
            (&methods[..], Some("no"), None, "there is no auth method \"no\"; the cluster has ci, sso"),
            (&methods[..1], None, None, "no auth method is the default; name one with -method: ci"),
            (&[], None, None, "the cluster has no auth methods"),
            (&methods, Some("ci"), Some("OIDC"), "auth method \"ci\" is of type JWT, not OIDC"),
        ] {
            assert!(chosen(methods, name, kind).expect_err(says).to_string().contains(says), "{says}");
        }
    }

    #[test]
    fn a_code_is_shown_again_only_while_no_server_leads() {
        let status = |status| ClientError::Status { status, message: "No cluster leader".into() };
        assert!(leaderless(Some(&status(StatusCode::SERVICE_UNAVAILABLE))));
        for seen in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::BAD_REQUEST, StatusCode::UNAUTHORIZED] {
            assert!(!leaderless(Some(&status(seen))), "{seen}");
        }
        assert!(!leaderless(None));
    }

    #[test]
    fn no_two_logins_have_a_nonce() {
        assert_ne!(nonce().expect("random"), nonce().expect("random"));
    }
}
