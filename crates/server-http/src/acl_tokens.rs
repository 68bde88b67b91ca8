//! ACL tokens: the first one, those that management tokens make, and one-time tokens. A secret is shown to who makes
//! the token, to its owner, and to management tokens.

use std::sync::Arc;

use access::Need;
use api::{
    paging::{cut, start},
    shapes::{AclBootstrapRequest, AclTokenStub, OneTimeTokenExchange, OneTimeTokenExchanged, OneTimeTokenMade},
};
use http::StatusCode;
use model::{
    AclToken,
    acl::{ANONYMOUS, token_type},
};
use state::Table;

use crate::{
    caller::{Unchecked, denied},
    reply::{HttpError, Reply},
    request::Ctx,
};

/// What a token is in the audit log. Its secret is never there.
pub(crate) const TOKEN: &str = "acl_token";

/// `PUT /v1/acl/bootstrap`: the first management token of the cluster.
pub(crate) async fn bootstrap(ctx: Ctx) -> Result<Reply, HttpError> {
    let attempt = ctx.app.failures.begin(ctx.sender)?;
    let request: AclBootstrapRequest = ctx.json_or_default().await?;
    let token = attempt.ended(ctx.server().bootstrap_acl(request.bootstrap_secret.reveal().to_owned()).await)?;
    ctx.about.names(TOKEN, &token.accessor_id, &token.name);
    ctx.written(token.modify_index, &*token)
}

/// `GET /v1/acl/tokens`, by accessor; `global=true` leaves out the others.
pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let global = ctx.query.flag("global")?;
    let (state, index) = ctx.watch_table(Table::AclTokens).await?;
    ctx.beside(move |ctx| {
        let from = start::<String>(&options)?;
        // Downwards nothing tells where a prefix ends.
        let first = Some(options.prefix.clone()).filter(|prefix| !options.reverse && !prefix.is_empty());
        let from = from.into_iter().chain(first).max().map(Arc::from);
        let wanted =
            |token: &&Arc<AclToken>| token.accessor_id.starts_with(&options.prefix) && (!global || token.global);
        let tokens = state.acl_tokens_onward(from, options.reverse).filter(wanted);
        let rows = tokens.map(|token| AclTokenStub::from(&**token));
        let page = cut(rows, &options, |token| token.accessor_id.to_string())?;
        Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
    })
    .await
}

/// `PUT /v1/acl/token`: a new one, or the one that the body names.
pub(crate) async fn put(ctx: Ctx) -> Result<Reply, HttpError> {
    let token = ctx.json().await?;
    written(&ctx, token).await
}

/// `PUT /v1/acl/token/:accessor`.
pub(crate) async fn put_named(ctx: Ctx) -> Result<Reply, HttpError> {
    let token: AclToken = ctx.json().await?;
    if *token.accessor_id != *ctx.param("accessor") {
        return Err(HttpError::bad_request("ACL token accessor does not match request path"));
    }
    written(&ctx, token).await
}

async fn written(ctx: &Ctx, token: AclToken) -> Result<Reply, HttpError> {
    ctx.about.names(TOKEN, &token.accessor_id, &token.name);
    let token = ctx.server().put_acl_token(token).await?;
    ctx.about.names(TOKEN, &token.accessor_id, &token.name);
    ctx.written(token.modify_index, &*token)
}

/// `GET /v1/acl/token/:accessor`: for management tokens, and for its owner.
pub(crate) async fn get(ctx: Unchecked) -> Result<Reply, HttpError> {
    let accessor = ctx.said().param("accessor").to_owned();
    let ctx = ctx.filtering(|caller| {
        let own = caller.known().and_then(|known| known.token.as_ref());
        caller.may(&Need::Management) || own.is_some_and(|token| *token.accessor_id == *accessor)
    })?;
    let (found, index, _) = ctx
        .watch_object(Table::AclTokens, &accessor, |s| s.acl_token(&accessor).cloned(), |token| token.modify_index)
        .await?;
    let token = found.ok_or_else(|| HttpError::not_found("ACL token not found").read_at(index))?;
    ctx.read(index, &*token)
}

/// `GET /v1/acl/token/self`: the token that is shown; without one, what stands for everybody.
pub(crate) async fn own(ctx: Unchecked) -> Result<Reply, HttpError> {
    let ctx = ctx.filtering(|_| true)?;
    let index = ctx.server().snapshot().index(Table::AclTokens);
    let Some(known) = ctx.caller.known() else { return Err(denied()) };
    match &known.token {
        Some(token) => ctx.read(token.modify_index, &**token),
        // A task is nobody that has a token.
        None if known.access.identity().is_some() => Err(HttpError::not_found("ACL token not found").read_at(index)),
        None => ctx.read(index, &anonymous()),
    }
}

/// What callers without a token have instead of one.
fn anonymous() -> AclToken {
    AclToken {
        accessor_id: ANONYMOUS.into(),
        name: "Anonymous Token".to_owned(),
        kind: token_type::CLIENT.to_owned(),
        policies: vec![ANONYMOUS.to_owned()],
        ..AclToken::default()
    }
}

/// `DELETE /v1/acl/token/:accessor`.
pub(crate) async fn delete(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().delete_acl_tokens(vec![ctx.param("accessor").to_owned()]).await?;
    Ok(Reply::empty(StatusCode::OK).written_at(index))
}

/// `PUT /v1/acl/token/onetime`: a one-time token for the token that is shown.
pub(crate) async fn one_time(ctx: Ctx) -> Result<Reply, HttpError> {
    let token = ctx.caller.known().and_then(|known| known.token.clone()).ok_or_else(denied)?;
    let made = ctx.server().make_one_time_token(token.accessor_id.clone()).await?;
    ctx.written(made.create_index, &OneTimeTokenMade { index: made.create_index, one_time_token: (*made).clone() })
}

/// `PUT /v1/acl/token/onetime/exchange`. Used, unknown and expired ones are refused alike.
pub(crate) async fn exchange(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: OneTimeTokenExchange = ctx.json().await?;
    let exchanged = ctx.server().exchange_one_time_token(request.one_time_secret_id.reveal().to_owned()).await?;
    let (token, index) = exchanged.ok_or_else(denied)?;
    ctx.about.names(TOKEN, &token.accessor_id, &token.name);
    ctx.written(index, &OneTimeTokenExchanged { index, token: (*token).clone() })
}
