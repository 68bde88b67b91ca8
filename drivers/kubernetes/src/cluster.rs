//! Which cluster: how it is reached, and by what it is known.

use std::time::Duration;

use driver_sdk::RemoteError;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::config::PluginConfig;

/// How long nothing may come over a connection that has something to send: bookmarks of a watch come every minute.
const SILENCE: Duration = Duration::from_secs(90);

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
    client.read_timeout = Some(SILENCE.max(config.request_timeout));
    client.write_timeout = Some(config.request_timeout);
    let namespace = config.namespace.clone().unwrap_or_else(|| client.default_namespace.clone());
    let server = client.cluster_url.to_string();
    let client = Client::try_from(client).map_err(|why| unusable("the configuration of the client", why))?;
    Ok(Reached { client, namespace, server })
}

/// Identity of the runtime, the same on every node and under every address.
pub(crate) fn provider(cluster: &str, namespace: &str) -> String {
    format!("kubernetes/{cluster}/{namespace}")
}
