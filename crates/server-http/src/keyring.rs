//! Root keys: published for those who verify identities, listed, rotated and deleted for operators.

use api::{
    query::Blocking,
    shapes::{JsonWebKey, JsonWebKeys, KeyDeleted, KeyRotated, OpenIdConfiguration, RootKeyMeta},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderValue, StatusCode, header::CACHE_CONTROL};
use model::AllocId;
use server::keyring::{Algorithm, KeyMeta, rsa_parts};

use crate::{
    authority::lapsed,
    blocking::jitter,
    reply::{HttpError, Reply},
    request::{Ctx, uuid},
};

/// A new key signs at once, so who verifies may hold on to the list for a short time only.
const PUBLISHED_FOR: HeaderValue = HeaderValue::from_static("public, max-age=60");

/// What root keys encrypt with.
const ENCRYPTS: &str = "aes256-gcm";

pub(crate) async fn jwks(ctx: Ctx) -> Result<Reply, HttpError> {
    let (keys, _) = ctx.server().keyring().keys();
    let keys = keys.iter().map(published).collect();
    Ok(ctx.plain(&JsonWebKeys { keys })?.with_header(CACHE_CONTROL, PUBLISHED_FOR))
}

fn published(key: &KeyMeta) -> JsonWebKey {
    let base = JsonWebKey {
        alg: key.algorithm.name().to_owned(),
        usage: "sig".to_owned(),
        kid: key.id.to_string(),
        ..JsonWebKey::default()
    };
    match key.algorithm {
        Algorithm::EdDsa => JsonWebKey {
            kty: "OKP".to_owned(),
            crv: "Ed25519".to_owned(),
            x: URL_SAFE_NO_PAD.encode(&key.public),
            ..base
        },
        Algorithm::Rs256 => {
            let (n, e) = rsa_parts(&key.public).unwrap_or_default();
            JsonWebKey { kty: "RSA".to_owned(), n: URL_SAFE_NO_PAD.encode(n), e: URL_SAFE_NO_PAD.encode(e), ..base }
        }
    }
}

/// `GET /.well-known/openid-configuration`: for relying parties that only know the issuer.
pub(crate) async fn discovery(ctx: Ctx) -> Result<Reply, HttpError> {
    let Some(issuer) = &ctx.server().config().oidc_issuer else {
        return Err(HttpError::not_found("OIDC Discovery endpoint disabled: set server.oidc_issuer to enable it"));
    };
    ctx.plain(&OpenIdConfiguration {
        issuer: issuer.clone(),
        jwks_uri: format!("{}/.well-known/jwks.json", issuer.trim_end_matches('/')),
        id_token_signing_alg_values_supported: vec!["RS256".to_owned(), "EdDSA".to_owned()],
        response_types_supported: vec!["code".to_owned()],
        subject_types_supported: vec!["public".to_owned()],
    })
}

fn meta(key: &KeyMeta) -> RootKeyMeta {
    RootKeyMeta {
        key_id: key.id.to_string(),
        algorithm: if key.encrypts { ENCRYPTS } else { key.algorithm.name() }.to_owned(),
        state: key.state.name().to_owned(),
        create_time: key.create_time,
        create_index: key.create_index,
        modify_index: key.modify_index,
        publish_time: key.publish_time,
    }
}

/// `GET /v1/identity`: the claims of the token that is shown, while the task stands that it was given to. Agents
/// ask it about who comes by a Task API.
pub(crate) async fn identity(ctx: Ctx) -> Result<Reply, HttpError> {
    let refused = |why: String| HttpError::new(StatusCode::FORBIDDEN, why);
    let token = ctx.headers.get("x-nomad-token").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let claims = ctx.server().keyring().verify(token.trim());
    let claims =
        claims.ok_or_else(|| refused("Permission denied: this cluster has not signed the token".to_owned()))?;
    let alloc = claims["nomad_allocation_id"].as_str().and_then(|id| id.parse().ok()).map(AllocId);
    let state = ctx.server().snapshot();
    let stands = alloc.and_then(|id| state.alloc(id)).is_some_and(|a| !a.client_terminal());
    match lapsed(&claims, jiff::Timestamp::now().as_second(), stands) {
        Some(why) => Err(refused(format!("Permission denied: {why}"))),
        None => ctx.plain(&claims),
    }
}

pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let blocking = Blocking::parse(&ctx.query)?;
    ctx.server().wait_for_keys(blocking.index, blocking.wait + jitter(blocking.wait)).await;
    let (keys, index) = ctx.server().keyring().keys();
    ctx.read(index, &keys.iter().map(meta).collect::<Vec<_>>())
}

pub(crate) async fn rotate(ctx: Ctx) -> Result<Reply, HttpError> {
    let algorithm = ctx.query.text("algo");
    if !["", ENCRYPTS].contains(&algorithm) {
        let why = "root keys encrypt with aes256-gcm and sign with RS256; leave algo out";
        return Err(HttpError::unsupported(format_args!("keys for {algorithm:?}"), why));
    }
    let publish_time = ctx.query.number::<i64>("publish_time")?.unwrap_or(0);
    let key = ctx.server().rotate_root_key(ctx.query.flag("full")?, publish_time).await?;
    // Without its indexes, as in Nomad: clients wait for what is newer than the one they read here, and then list
    // both keys.
    let made = RootKeyMeta { create_index: 0, modify_index: 0, ..meta(&key) };
    ctx.written(key.modify_index, &KeyRotated { key: made, index: key.modify_index })
}

/// `force` is taken and changes nothing. Which tokens still live is not recorded, so no key needs it for them: deleting
/// a key ends the tokens that it has signed, for whoever verifies them. A key that variables need, or the active one,
/// is not deleted even then.
pub(crate) async fn delete(ctx: Ctx) -> Result<Reply, HttpError> {
    let _ = ctx.query.flag("force")?;
    let id = uuid(ctx.param("id"), "root key metadata")?;
    let index = ctx.server().delete_key(id).await?;
    ctx.written(index, &KeyDeleted { index })
}
