//! The web UI: its files never change under their address, every other address below `/ui/` is the page that holds
//! all others.

use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_ENCODING, ETAG, IF_NONE_MATCH},
};

use crate::{
    compress,
    reply::{HttpError, Reply},
    request::Ctx,
};

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'",
);

/// Refuses where the operator has switched the web UI off.
fn served(ctx: &Ctx) -> Result<(), HttpError> {
    if ctx.app.options.ui {
        return Ok(());
    }
    Err(HttpError::not_found("the web UI is switched off: ui { enabled = false } in the agent's configuration"))
}

pub(crate) async fn redirect(ctx: Ctx) -> Result<Reply, HttpError> {
    served(&ctx)?;
    Ok(Reply::redirect(StatusCode::TEMPORARY_REDIRECT, "/ui/"))
}

pub(crate) async fn page(ctx: Ctx) -> Result<Reply, HttpError> {
    served(&ctx)?;
    if let Some(hashed) = ctx.uri.path().strip_prefix("/ui/-/") {
        let asset = ::ui::asset(hashed).ok_or_else(|| HttpError::new(StatusCode::NOT_FOUND, ""))?;
        let lasting = HeaderValue::from_static("public, max-age=31536000, immutable");
        let reply = if compress::wanted(&ctx.headers) {
            Reply::bytes(asset.content_type, asset.gzip).with_header(CONTENT_ENCODING, HeaderValue::from_static("gzip"))
        } else {
            Reply::bytes(asset.content_type, asset.bytes().map_err(HttpError::internal)?)
        };
        return Ok(guarded(reply).with_header(CACHE_CONTROL, lasting));
    }
    let shell = ::ui::shell();
    let etag = HeaderValue::from_str(&shell.etag).map_err(HttpError::internal)?;
    let known = ctx.headers.get(IF_NONE_MATCH).is_some_and(|have| have == etag);
    let reply = if known {
        Reply::empty(StatusCode::NOT_MODIFIED)
    } else {
        Reply::bytes("text/html; charset=utf-8", shell.html.as_str())
    };
    Ok(guarded(reply).with_header(ETAG, etag).with_header(CACHE_CONTROL, HeaderValue::from_static("no-cache")))
}

/// What a browser may do with it: load nothing from elsewhere, run no text as a script, show it in no frame.
fn guarded(reply: Reply) -> Reply {
    let header = |name| HeaderName::from_static(name);
    reply
        .with_header(header("content-security-policy"), POLICY)
        .with_header(header("x-content-type-options"), HeaderValue::from_static("nosniff"))
        .with_header(header("referrer-policy"), HeaderValue::from_static("no-referrer"))
        .with_header(header("cross-origin-opener-policy"), HeaderValue::from_static("same-origin"))
        .with_header(header("x-frame-options"), HeaderValue::from_static("DENY"))
}
