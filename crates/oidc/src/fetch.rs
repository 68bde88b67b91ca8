//! One request to a provider.

use bytes::Bytes;
use login::oidc::safe_url;
use tls::Roots;

/// Why a provider did not answer a request as it should. Nothing has changed; the request may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not ask the identity provider at {url}: {why}")]
pub struct Unreachable {
    /// What was asked, without its query.
    pub url: String,
    /// Why there is no answer.
    pub why: String,
}

/// Sends one request. A body is a form. Plain HTTP needs no roots.
pub(crate) async fn ask(
    roots: Option<&Roots>,
    url: &str,
    authorization: Option<&str>,
    form: Option<String>,
) -> Result<Bytes, Unreachable> {
    let failed = |why: String| Unreachable { url: url.split('?').next().unwrap_or_default().to_owned(), why };
    safe_url(url).map_err(failed)?;
    fetch::fetch(roots, url, authorization, form).await.map_err(failed)
}
