//! Logins: with the token of an identity provider, or by browser.

use api::shapes::{AclLoginRequest, OidcAuthUrl, OidcAuthUrlRequest, OidcCompleteAuthRequest};
use http::StatusCode;
use model::AclToken;
use server::{LoginError, LoginReturn};

use crate::{
    acl_tokens::TOKEN,
    auth_methods::METHOD,
    reply::{HttpError, Reply},
    request::Ctx,
};

impl From<LoginError> for HttpError {
    fn from(error: LoginError) -> Self {
        let status = match error {
            LoginError::Server(error) => return error.into(),
            LoginError::Request(_) => StatusCode::BAD_REQUEST,
            LoginError::Token(_) => StatusCode::UNAUTHORIZED,
            // Clients repeat a request that fails with more than 500.
            LoginError::Provider(_) | LoginError::NoList(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error)
    }
}

/// `PUT /v1/acl/login`.
pub(crate) async fn login(ctx: Ctx) -> Result<Reply, HttpError> {
    let attempt = ctx.app.failures.begin(ctx.sender)?;
    let request: AclLoginRequest = ctx.json().await?;
    ctx.about.names(METHOD, "", &request.auth_method_name);
    let token = ctx.server().log_in(&request.auth_method_name, &request.login_token).await;
    made(&ctx, &*attempt.ended(token)?)
}

/// `PUT /v1/acl/oidc/auth-url`.
pub(crate) async fn auth_url(ctx: Ctx) -> Result<Reply, HttpError> {
    let attempt = ctx.app.failures.begin(ctx.sender)?;
    let request: OidcAuthUrlRequest = ctx.json().await?;
    let OidcAuthUrlRequest { auth_method_name, redirect_uri, client_nonce } = request;
    ctx.about.names(METHOD, "", &auth_method_name);
    let auth_url = ctx.server().login_address(&auth_method_name, &client_nonce, &redirect_uri).await;
    ctx.plain(&OidcAuthUrl { auth_url: attempt.ended(auth_url)? })
}

/// `PUT /v1/acl/oidc/complete-auth`.
pub(crate) async fn complete_auth(ctx: Ctx) -> Result<Reply, HttpError> {
    let attempt = ctx.app.failures.begin(ctx.sender)?;
    let request: OidcCompleteAuthRequest = ctx.json().await?;
    ctx.about.names(METHOD, "", &request.auth_method_name);
    let back = LoginReturn {
        method: request.auth_method_name,
        nonce: request.client_nonce,
        redirect: request.redirect_uri,
        state: request.state,
        code: request.code,
        issuer: request.iss,
    };
    let token = ctx.server().complete_login(back).await;
    made(&ctx, &*attempt.ended(token)?)
}

/// The token that a login has made.
fn made(ctx: &Ctx, token: &AclToken) -> Result<Reply, HttpError> {
    ctx.about.names(TOKEN, &token.accessor_id, &token.name);
    // The index that clients know from Nomad here.
    ctx.written(0, token)
}
