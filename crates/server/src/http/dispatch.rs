//! What happens to every request: cleaned path, route, method, region, and what every answer carries.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
};

use api::query::{Query, percent_decode};
use axum::{
    Router,
    body::Body,
    extract::State,
    middleware::{self, Next},
};
use futures::FutureExt as _;
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ORIGIN},
};

use super::{
    App, compress,
    reply::{HttpError, Reply},
    request::Ctx,
    routes::{self, Verb},
};

pub(super) async fn dispatch(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let gzip = compress::wanted(request.headers());
    let cors = request.headers().contains_key(ORIGIN) && open_to_all(request.uri().path());
    let mut response = match answer(&app, request, cors).await {
        Ok(reply) => reply.into_response(),
        Err(error) => error.into_response(),
    };
    if cors {
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    }
    for (name, value) in &app.options.response_headers {
        response.headers_mut().insert(name, value.clone());
    }
    compress::apply(response, gzip)
}

/// Gives the answers of another router what every answer of this API has: redirects to clean paths, CORS, headers of the operator, gzip.
/// For agents without a server, which answer some requests by themselves and pass the others on.
pub fn as_every_answer(router: Router, headers: Vec<(HeaderName, HeaderValue)>) -> Router {
    router.layer(middleware::from_fn_with_state(Arc::new(headers), dressed))
}

async fn dressed(State(headers): State<Arc<Vec<(HeaderName, HeaderValue)>>>, request: Request<Body>, next: Next) -> Response<Body> {
    let gzip = compress::wanted(request.headers());
    let cors = request.headers().contains_key(ORIGIN) && open_to_all(request.uri().path());
    let mut response = match percent_decode(request.uri().path(), false).as_deref().and_then(cleaned) {
        Some(clean) => to_clean(&clean, request.uri().query()).into_response(),
        None if cors && request.method() == Method::OPTIONS => preflight().into_response(),
        None => next.run(request).await,
    };
    if cors {
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    }
    for (name, value) in headers.iter() {
        response.headers_mut().insert(name, value.clone());
    }
    compress::apply(response, gzip)
}

fn to_clean(clean: &str, query: Option<&str>) -> Reply {
    let clean = clean.split('/').map(api::query::percent_encode).collect::<Vec<_>>().join("/");
    let to = query.map_or(clean.clone(), |q| format!("{clean}?{q}"));
    Reply::redirect(StatusCode::MOVED_PERMANENTLY, &to)
}

fn preflight() -> Reply {
    Reply::empty(StatusCode::OK)
        .with_header(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, PUT, POST, DELETE"))
        .with_header(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"))
}

async fn answer(app: &Arc<App>, request: Request<Body>, cors: bool) -> Result<Reply, HttpError> {
    let (mut head, body) = request.into_parts();
    let Some(path) = percent_decode(head.uri.path(), false) else {
        return Err(HttpError::bad_request(format_args!("the path {:?} is not valid percent-encoded UTF-8", head.uri.path())));
    };
    if let Some(clean) = cleaned(&path) {
        return Ok(to_clean(&clean, head.uri.query()));
    }
    if path == "/" {
        return Ok(Reply::redirect(StatusCode::TEMPORARY_REDIRECT, "/ui/"));
    }
    let Some((route, params)) = routes::find(&path) else {
        return Err(HttpError::new(StatusCode::NOT_FOUND, ""));
    };
    if cors && head.method == Method::OPTIONS {
        return Ok(preflight());
    }
    let Some(run) = Verb::of(&head.method).and_then(|verb| route.handler(verb)) else {
        return Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "Invalid method"));
    };
    let query = Query::parse(head.uri.query().unwrap_or_default())?;
    let region = query.text("region");
    if !region.is_empty() && region != app.server.config().region {
        return Err(HttpError::internal("No path to region"));
    }
    // Reads of this server are never stale; the parameter is checked all the same.
    query.flag("stale")?;
    let upgrade = Mutex::new(head.extensions.remove());
    let (method, uri, headers) = (head.method, head.uri, head.headers);
    let ctx = Ctx { app: app.clone(), method, uri, params, query, headers, body: Mutex::new(body), upgrade };
    // A defect of a handler costs its request an answer, not the connection.
    match AssertUnwindSafe(run(ctx)).catch_unwind().await {
        Ok(answer) => answer,
        Err(_) => {
            tracing::error!(pattern = route.pattern, "a handler of the HTTP API has panicked");
            Err(HttpError::internal("answering failed inside the server; its log says more"))
        }
    }
}

/// The path that a client should have used, when it is another one: doubled slashes and dots are not part of names.
fn cleaned(path: &str) -> Option<String> {
    if !path.contains("//") && !path.split('/').any(|s| s == "." || s == "..") {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let mut clean = format!("/{}", parts.join("/"));
    if path.ends_with('/') && clean.len() > 1 {
        clean.push('/');
    }
    (clean != path).then_some(clean)
}

/// What browsers of other origins may read.
fn open_to_all(path: &str) -> bool {
    ["/v1/client/fs/", "/v1/client/stats", "/v1/client/allocation/", "/v1/client/metadata", "/v1/vars", "/v1/var/"]
        .iter()
        .any(|p| path.starts_with(p))
}

#[cfg(test)]
mod tests {
    use super::cleaned;

    #[test]
    fn clean_paths() {
        for (path, clean) in [
            ("/v1/jobs", None),
            ("/v1/job//scale", Some("/v1/job/scale")),
            ("//v1/jobs/", Some("/v1/jobs/")),
            ("/v1/../../x", Some("/x")),
            ("/v1/./jobs", Some("/v1/jobs")),
            ("//", Some("/")),
            ("/v1/job/a..b", None),
        ] {
            assert_eq!(cleaned(path).as_deref(), clean, "{path}");
        }
    }
}
