//! What tasks see behind their Task API sockets: the agent's HTTP API, for whoever shows a token.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use client::TaskApiServer;
use http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use server::http::{Limits, serve_unix};

/// Answers with `router`.
pub(crate) fn server(router: Router, limits: Limits) -> TaskApiServer {
    let router = router.layer(middleware::from_fn(with_token));
    Arc::new(move |listener, stop| Box::pin(serve_unix(listener, router.clone(), limits, stop)))
}

/// Requests without a token are refused, be there rules for tokens or not: otherwise whatever a task can be talked into asking would be answered.
async fn with_token(request: Request, next: Next) -> Response {
    if has_token(request.headers()) { next.run(request).await } else { (StatusCode::UNAUTHORIZED, "Unauthorized").into_response() }
}

fn has_token(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim).unwrap_or_default();
    let bearer = text(AUTHORIZATION.as_str()).split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    !text("x-nomad-token").is_empty() || bearer.is_some_and(|(_, token)| !token.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::has_token;

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
            assert_eq!(has_token(&headers), shown, "{name}: {value}");
        }
    }
}
