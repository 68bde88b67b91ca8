//! Which cluster: how it is reached, and by what it is known.

use std::time::Duration;

use driver_sdk::{RemoteError, handle};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::api::Api;
use crate::config::PluginConfig;

/// How long the client keeps a connection that no request uses.
const POOLED: Duration = Duration::from_secs(90);

/// How long nothing may come over a connection.
///
/// The time begins with the last byte that came, also if the connection waited for a request since then: with less, a
/// request over one that waited would end too early. And it must be longer than 60 s, because so often the client pings
/// sessions of commands: a quiet command goes on while its server answers, and one whose server has died ends.
fn read_timeout(request: Duration) -> Duration {
    POOLED + request
}

/// How the cluster is reached, and in which namespace.
pub(crate) struct Reached {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// Address of the API server, for people.
    pub(crate) server: String,
}

fn unusable(what: &str, why: impl std::fmt::Display) -> RemoteError {
    RemoteError::could_not_ask(format!("{what} cannot be used: {why}"))
}

/// Reads the configuration of the client. Asks nobody.
pub(crate) async fn reach(config: &PluginConfig) -> Result<Reached, RemoteError> {
    let options = KubeConfigOptions { context: config.context.clone(), ..KubeConfigOptions::default() };
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let mut client = match &config.kubeconfig {
        Some(path) => {
            let what = format!("the kubeconfig {}", path.display());
            let read = Kubeconfig::read_from(path).map_err(|why| unusable(&what, why))?;
            Config::from_custom_kubeconfig(read, &options).await.map_err(|why| unusable(&what, why))?
        }
        None if in_pod && config.context.is_none() => {
            Config::incluster().map_err(|why| unusable("the service account of this pod", why))?
        }
        None => Config::from_kubeconfig(&options).await.map_err(|why| {
            unusable("the kubeconfig of KUBECONFIG or ~/.kube/config (`kubeconfig` in the plugin's configuration)", why)
        })?,
    };
    // Whoever repeats a request decides about it here: a create that was not answered is looked for first.
    client.default_retry = false;
    client.connect_timeout = Some(config.request_timeout);
    client.read_timeout = Some(read_timeout(config.request_timeout));
    // Else the pings to a server that has died would count as signs of life.
    client.reset_reader_on_write = false;
    client.write_timeout = Some(config.request_timeout);
    let namespace = config.namespace.clone().unwrap_or_else(|| client.default_namespace.clone());
    let server = client.cluster_url.to_string();
    // A kubeconfig may name a program that brings the credentials, and the library waits for it.
    let made = tokio::task::spawn_blocking(move || Client::try_from(client)).await;
    let what = "the configuration of the client";
    let client = made.map_err(|why| unusable(what, why))?.map_err(|why| unusable(what, why))?;
    Ok(Reached { client, namespace, server })
}

/// UID of the cluster, and whether this account may read it. `server`: its address, for people.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: it is another one than the configuration names; [`RemoteError::CouldNotAsk`]: it
/// cannot be read, and the configuration names none.
pub(crate) async fn identify(api: &Api, config: &PluginConfig, server: &str) -> Answer<(String, bool)> {
    let asked = api.namespace_uid("kube-system").await.map_err(RemoteError::from);
    match (asked, config.cluster.clone().filter(|c| !c.is_empty())) {
        (Ok(found), Some(given)) if found != given => Err(RemoteError::wrong_request(format!(
            "{server} leads to the cluster {found}, the plugin's configuration names {given}"
        ))),
        (Ok(found), _) => Ok((found, true)),
        (Err(_), Some(given)) => Ok((given, false)),
        (Err(why), None) => Err(RemoteError::could_not_ask(format!(
            "the identity of the cluster at {server} could not be read (the UID of the namespace kube-system): {why}; \
                let the account read it, or give it as `cluster` in the plugin's configuration"
        ))),
    }
}

/// Layout of [`Intent`].
const INTENT: u16 = 1;

/// What the servers keep of a create before it is sent: where it goes. Between a create whose answer was lost and the
/// search for its pod the plugin may have been configured for another cluster, which says nothing of that pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// UID of the cluster.
    pub(crate) cluster: String,
    pub(crate) namespace: String,
}

impl Intent {
    pub(crate) fn write(&self) -> Answer<Vec<u8>> {
        handle::encode_intent(INTENT, self)
    }

    /// `None` where nothing is kept.
    pub(crate) fn read(kept: &[u8]) -> Answer<Option<Self>> {
        handle::decode_intent(INTENT, kept)
    }
}

/// Identity of the runtime, the same on every node and under every address.
pub(crate) fn provider(cluster: &str, namespace: &str) -> String {
    format!("kubernetes/{cluster}/{namespace}")
}
