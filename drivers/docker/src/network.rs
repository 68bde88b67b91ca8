//! The network of a group: a container that does nothing but hold it.

use driver_sdk::Error;
use driver_sdk::proto::driver::NetworkIsolationSpec;
use driver_sdk::proto::driver::network_isolation_spec::NetworkIsolationMode;
use serde_json::json;

use crate::config::PluginConfig;
use crate::create::{LABEL_ALLOC, NETWORK_LABEL};
use crate::engine::types::Created;
use crate::engine::{Engine, encode};
use crate::image;
use crate::options::TaskOptions;
use crate::watch::inspect;

fn name(alloc_id: &str) -> String {
    format!("drover_init_{alloc_id}")
}

/// Makes the holder, or finds it.
pub(crate) async fn create(
    engine: &Engine,
    plugin: &PluginConfig,
    alloc_id: &str,
    hostname: &str,
    tell: &(dyn Fn(String) + Send + Sync),
) -> Result<(NetworkIsolationSpec, bool), Error> {
    let name = name(alloc_id);
    let created = match inspect(engine, &name).await {
        Ok(_) => false,
        Err(e) if e.is_absent() => {
            let options = TaskOptions {
                image: plugin.infra_image().trim_start_matches("https://").to_owned(),
                image_pull_timeout: Some(plugin.infra_image_pull_timeout),
                ..TaskOptions::default()
            };
            image::ensure(engine, &options, plugin, None, tell).await?;
            let mut body = json!({
                "Image": options.image,
                "Labels": {LABEL_ALLOC: alloc_id, "drover.holds": "network"},
                // Addresses and routes are the host's to make.
                "HostConfig": {"NetworkMode": "none", "RestartPolicy": {"Name": "unless-stopped"}},
            });
            if !hostname.is_empty() {
                body["Hostname"] = hostname.into();
            }
            let made = engine
                .post::<Created>(
                    "make the container of the group's network",
                    &format!("/containers/create?name={}", encode(&name)),
                    &body,
                )
                .await;
            match made {
                Ok(_) => true,
                Err(e) if e.is_conflict() => false,
                Err(e) => return Err(Error::recoverable(e)),
            }
        }
        Err(e) => return Err(Error::recoverable(e)),
    };
    engine
        .act("start the container of the group's network", &format!("/containers/{}/start", encode(&name)))
        .await
        .map_err(Error::recoverable)?;
    let holder = inspect(engine, &name).await.map_err(Error::recoverable)?;
    let spec = NetworkIsolationSpec {
        mode: NetworkIsolationMode::Group.into(),
        path: holder.network_settings.sandbox_key,
        labels: [(NETWORK_LABEL.to_owned(), holder.id)].into(),
        ..NetworkIsolationSpec::default()
    };
    Ok((spec, created))
}

/// Removes the holder.
pub(crate) async fn destroy(engine: &Engine, alloc_id: &str) -> Result<(), Error> {
    let name = name(alloc_id);
    match engine
        .delete(
            "remove the container of the group's network",
            &format!("/containers/{}?force=true&v=true", encode(&name)),
        )
        .await
    {
        Err(e) if !e.is_absent() => Err(Error::recoverable(e)),
        _ => Ok(()),
    }
}
