//! Which rule allows or denies a request: `PUT /v1/acl/explain`. Nothing of the request is carried out.

use std::sync::Arc;

use access::Need;
use api::{
    query::Query,
    shapes::{AclExplainRequest, AclExplanation, AclRule},
};
use http::{Method, StatusCode};

use crate::{
    audit::Auth,
    caller::{Caller, Unchecked, token},
    needs::Asked,
    reply::{HttpError, Reply},
    routes::{self, Verb},
};

/// The path of the endpoint.
pub(crate) const PATTERN: &str = "/v1/acl/explain";

/// About the token of the request, which everybody may ask, also without one; or with a management token about another
/// one.
pub(crate) async fn explain(ctx: Unchecked) -> Result<Reply, HttpError> {
    let request: AclExplainRequest = ctx.said().json().await?;
    let own = request.token.is_empty() || request.token == token(&ctx.said().headers);
    let ctx = ctx.check(if own { &Need::Open } else { &Need::Management })?;
    let authority = ctx.app.authority.as_ref();
    let caller = match own {
        true => ctx.caller.clone(),
        false => Caller::of(authority, ctx.server(), request.token.trim())
            .map_err(|_| HttpError::not_found("ACL token not found"))?,
    };
    let method: Method = request
        .method
        .to_ascii_uppercase()
        .parse()
        .map_err(|_| HttpError::bad_request(format_args!("{:?} is no method", request.method)))?;
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    // Without the query, which may hold a token.
    ctx.about.says("request", format_args!("{method} {path}"), "");
    let found = routes::find(path).and_then(|(route, params)| {
        let (needs, _) = Verb::of(&method).and_then(|verb| route.answering(verb))?;
        Some((route, params, needs))
    });
    let Some((route, params, needs)) = found else {
        return Err(HttpError::new(StatusCode::NOT_FOUND, format_args!("there is no endpoint {method} {path}")));
    };
    let query = Query::parse(query)?;
    // Whoever may nothing does not learn where something is whose id they know.
    let state = if ctx.caller.may_nothing() { Arc::default() } else { ctx.server().snapshot() };
    let mut rules = Vec::new();
    let allowed = needs.met(&Asked { params: &params, query: &query }, &state, &mut |need| {
        let Some(decision) = caller.decision(need) else { return true };
        rules.push(AclRule { need: need.to_string(), allowed: decision.allowed, why: decision.why.to_string() });
        decision.allowed
    });
    let depends = needs.depends().map(str::to_owned).unwrap_or_default();
    ctx.plain(&AclExplanation {
        endpoint: route.pattern.to_owned(),
        needs: needs.shown(),
        allowed,
        depends,
        rules,
        caller: caller.known().map(|known| Auth::from(known).into()).unwrap_or_default(),
    })
}
