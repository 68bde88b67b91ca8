//! The client of a namespace, which is made anew when the API server refuses its credentials.
//!
//! The client library reads token files again by itself, once a minute, but a kubeconfig and the certificates that it
//! names only once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use driver_sdk::RemoteError;
use futures::future::{BoxFuture, FutureExt as _};
use kube::Client;
use tokio::time::Instant;

use crate::answer::Answer;
use crate::api::Api;
use crate::cluster;
use crate::config::PluginConfig;

/// Least time between two readings: credentials that stay refused would be read for each request.
const AGAIN: Duration = Duration::from_secs(10);

/// A client, and how many there were before it.
pub(crate) type Numbered = (u64, Client);

/// The present client, and where a new one comes from.
pub(crate) struct Access {
    client: Mutex<Numbered>,
    source: Option<Source>,
}

struct Source {
    config: PluginConfig,
    /// What a new client must reach: cluster and namespace.
    provider: String,
    /// Address of the API server, for accounts that may not ask which cluster it is.
    server: String,
    /// The turn of a reading. When the last one was, and why it brought no client.
    last: tokio::sync::Mutex<Option<(Instant, String)>>,
}

/// Whether credentials are read again.
fn is_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now >= last + AGAIN)
}

impl Access {
    /// A client that stays as it is.
    pub(crate) fn fixed(client: Client) -> Self {
        Self { client: Mutex::new((0, client)), source: None }
    }

    /// A client that a new one of this configuration may replace, if that one reaches the same.
    pub(crate) fn renewed(client: Client, config: PluginConfig, provider: String, server: String) -> Self {
        let last = tokio::sync::Mutex::default();
        Self { client: Mutex::new((0, client)), source: Some(Source { config, provider, server, last }) }
    }

    pub(crate) fn client(&self) -> Numbered {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The client after the one whose credentials were refused. Whoever is refused meanwhile shares it. Cancel safe.
    ///
    /// # Errors
    /// Why there is none, for people.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "credentials are read once for all whose request was refused"
    )]
    async fn read(&self, refused: u64) -> Result<Numbered, String> {
        let Some(source) = &self.source else { return Err("they were read just now".into()) };
        let mut last = source.last.lock().await;
        let (present, now) = (self.client(), Instant::now());
        if present.0 > refused {
            return Ok(present);
        }
        if let Some((at, why)) = &*last
            && !is_due(Some(*at), now)
        {
            return Err(why.clone());
        }
        *last = Some((now, "they were read again, and are refused as well".into()));
        match source.reach().await {
            Ok(client) => {
                let next = (refused + 1, client);
                *self.client.lock().unwrap_or_else(PoisonError::into_inner) = next.clone();
                tracing::info!("the API server has refused the credentials; they were read again");
                Ok(next)
            }
            Err(why) => {
                let why = format!("they were read again, and cannot be used: {why}");
                *last = Some((now, why.clone()));
                Err(why)
            }
        }
    }

    /// [`Access::read`], which asks the API server itself.
    pub(crate) fn renew(&self, refused: u64) -> BoxFuture<'_, Result<Numbered, String>> {
        self.read(refused).boxed()
    }
}

impl Source {
    /// A new client. The configuration may lead elsewhere by now, where absence would say nothing of this namespace.
    async fn reach(&self) -> Answer<Client> {
        let reached = cluster::reach(&self.config).await?;
        let api = Api::new(Access::fixed(reached.client.clone()), reached.namespace, self.config.request_timeout);
        let (cluster, verified) = cluster::identify(&api, &self.config, &reached.server).await?;
        let there = cluster::provider(&cluster, &api.namespace);
        if there == self.provider && (verified || reached.server == self.server) {
            return Ok(reached.client);
        }
        Err(RemoteError::could_not_ask(format!(
            "they lead to {there} at {} now, this node manages {} at {}; run `drover node drivers reload` if that \
                is meant",
            reached.server, self.provider, self.server
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_that_stay_refused_are_read_every_ten_seconds() {
        let begun = Instant::now();
        assert!(is_due(None, begun) && is_due(Some(begun), begun + AGAIN));
        assert!(!is_due(Some(begun), begun) && !is_due(Some(begun), begun + AGAIN / 2));
    }
}
