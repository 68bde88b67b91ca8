//! What tasks see behind their Task API sockets: the agent's HTTP API, for whoever shows a token.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use client::TaskApiServer;
use http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use server_http::{Limits, NotFromBrowser, serve_unix};

/// Answers with `router`.
pub(crate) fn server(router: Router, limits: Limits) -> TaskApiServer {
    let router = router.layer(middleware::from_fn(with_token));
    Arc::new(move |listener, stop| Box::pin(serve_unix(listener, router.clone(), limits, stop)))
}

/// Requests without a token are refused, be there rules for tokens or not: otherwise whatever a task can be talked
/// into asking would be answered. So are those with a token of a task that has ended, or of nobody: the servers say
/// so, also to an agent that is only a node.
async fn with_token(mut request: Request, next: Next) -> Response {
    let Some(token) = token(request.headers()) else {
        return (StatusCode::UNAUTHORIZED, "Unauthorized").into_response();
    };
    let Ok(mut question) = question(token) else {
        return (StatusCode::UNAUTHORIZED, "Unauthorized").into_response();
    };
    // Clients write what they like for the host of a socket.
    question.extensions_mut().insert(NotFromBrowser);
    let answer = next.clone().run(question).await;
    if answer.status() == StatusCode::BAD_REQUEST {
        // A token of ACLs in a cluster that has none.
        return (StatusCode::FORBIDDEN, "Forbidden").into_response();
    }
    if !answer.status().is_success() {
        return answer;
    }
    request.extensions_mut().insert(NotFromBrowser);
    next.run(request).await
}

/// Whether a token is one: the identity of a task, or where the cluster has ACLs any other.
fn question(token: &str) -> http::Result<Request> {
    if token.contains('.') {
        return Request::get("/v1/identity").header("x-nomad-token", token).body(Body::empty());
    }
    let about = r#"{"Method": "GET", "Path": "/v1/status/leader"}"#;
    Request::put("/v1/acl/explain").header("x-nomad-token", token).body(Body::from(about))
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim).unwrap_or_default();
    let bearer =
        text(AUTHORIZATION.as_str()).split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    [Some(text("x-nomad-token")), bearer.map(|(_, token)| token.trim())]
        .into_iter()
        .flatten()
        .find(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::token;

    #[test]
    fn a_token_is_shown_in_one_of_two_ways() {
        for (name, value, shown) in [
            ("x-nomad-token", "e30.e30.x", true),
            ("x-nomad-token", " ", false),
            ("authorization", "Bearer e30.e30.x", true),
            ("authorization", "bearer x", true),
            ("authorization", "Bearer ", false),
            ("authorization", "Basic eDp4", false),
            ("cookie", "x", false),
        ] {
            let headers = [(HeaderName::from_static(name), HeaderValue::from_static(value))].into_iter().collect();
            assert_eq!(token(&headers).is_some(), shown, "{name}: {value}");
        }
    }
}
