//! What stands at `/ui/` until there is a web UI: a page that says so and lists the endpoints.

use http::{HeaderName, HeaderValue, StatusCode};

use crate::{
    reply::{HttpError, Reply},
    request::Ctx,
    routes::ROUTES,
};

const POLICY: HeaderName = HeaderName::from_static("content-security-policy");

pub(crate) async fn redirect(_: Ctx) -> Result<Reply, HttpError> {
    Ok(Reply::redirect(StatusCode::TEMPORARY_REDIRECT, "/ui/"))
}

pub(crate) async fn page(ctx: Ctx) -> Result<Reply, HttpError> {
    Ok(Reply::bytes("text/html; charset=utf-8", html(&ctx.app.options.version)).with_header(
        POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"),
    ))
}

fn html(version: &str) -> String {
    use std::fmt::Write as _;
    let mut html = String::from(
        "<!doctype html><html lang=\"en\"><head><meta \
            charset=\"utf-8\"><title>Drover</title></head><body><h1>Drover</h1>\
         <p>This release has no web UI. The HTTP API answers here:</p><ul>",
    );
    for route in ROUTES.iter().filter(|r| r.pattern.starts_with("/v1") || r.pattern.starts_with("/.")) {
        let verbs: Vec<&str> = route.verbs.iter().map(|(v, _)| v.shown()).collect();
        let pattern = route.pattern.replace('*', ":");
        // Plain reads can be followed.
        if verbs.contains(&"GET") && !pattern.contains(':') {
            let _ = write!(html, "<li>{} <a href=\"{pattern}\">{pattern}</a></li>", verbs.join(", "));
        } else {
            let _ = write!(html, "<li>{} {pattern}</li>", verbs.join(", "));
        }
    }
    let _ = write!(html, "</ul><p>Version {}</p></body></html>", version.replace(['<', '&'], ""));
    html
}
