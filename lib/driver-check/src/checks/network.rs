//! CreateNetwork and DestroyNetwork, of drivers that make the network of a group themselves.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use driver_proto::driver::network_isolation_spec::NetworkIsolationMode;
use driver_proto::driver::*;

use crate::check::table;
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold, not_applicable};
use crate::plugin::Plugin;

table! {
    "network/create", "D6", "CreateNetwork answers with a namespace that is there; asked again for the same \
        allocation it is the same one",
        "an agent that asks again after a crash gives the tasks of a group networks that do not meet", create;
    "network/destroy", "D6", "DestroyNetwork removes the namespace, and is answered with success however often it \
        is asked",
        "each allocation that ends leaves a network behind, or cannot be cleaned up", destroy;
}

async fn plugin(lab: &Lab) -> Outcome<Arc<Plugin>> {
    if !lab.profile().capabilities.must_create_network {
        return not_applicable("the driver does not declare must_create_network");
    }
    lab.plugin().await
}

/// Which file lies at a path. A namespace is mounted there: without it the mount point may stay for a while, which is
/// another file.
fn identity(path: &str) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// An allocation of the check's own.
fn alloc_id() -> Outcome<String> {
    match std::fs::read_to_string("/proc/sys/kernel/random/uuid") {
        Ok(id) => Ok(id.trim().to_owned()),
        Err(error) => failed(format!("no allocation id can be made: {error}")),
    }
}

async fn made(lab: &Lab, plugin: &Plugin, alloc_id: &str) -> Outcome<NetworkIsolationSpec> {
    let request = CreateNetworkRequest { alloc_id: alloc_id.to_owned(), hostname: "check".into() };
    match lab.call(plugin, "CreateNetwork", plugin.driver().create_network(request)).await?.isolation_spec {
        Some(spec) => Ok(spec),
        None => failed("CreateNetwork was answered without isolation_spec"),
    }
}

async fn removed(lab: &Lab, plugin: &Plugin, alloc_id: &str, spec: &NetworkIsolationSpec, what: &str) -> Outcome {
    let request = DestroyNetworkRequest { alloc_id: alloc_id.to_owned(), isolation_spec: Some(spec.clone()) };
    lab.call(plugin, what, plugin.driver().destroy_network(request)).await.map(drop)
}

async fn create(lab: &Arc<Lab>) -> Outcome {
    let plugin = plugin(lab).await?;
    let id = alloc_id()?;
    let first = made(lab, &plugin, &id).await?;
    let seen = again(lab, &plugin, &id, &first).await;
    removed(lab, &plugin, &id, &first, "DestroyNetwork").await?;
    seen
}

async fn again(lab: &Lab, plugin: &Plugin, id: &str, first: &NetworkIsolationSpec) -> Outcome {
    hold!(first.mode() == NetworkIsolationMode::Group, "the namespace has mode {:?}, expected is Group", first.mode());
    hold!(Path::new(&first.path).exists(), "the namespace {:?} is not there", first.path);
    let second = made(lab, plugin, id).await?;
    hold!(second.path == first.path, "the namespace was {:?}; asked again it is {:?}", first.path, second.path);
    Ok(())
}

async fn destroy(lab: &Arc<Lab>) -> Outcome {
    let plugin = plugin(lab).await?;
    let id = alloc_id()?;
    let spec = made(lab, &plugin, &id).await?;
    let before = identity(&spec.path);
    removed(lab, &plugin, &id, &spec, "DestroyNetwork").await?;
    lab.until("the namespace did not go away", || identity(&spec.path).is_none_or(|now| before != Some(now))).await?;
    removed(lab, &plugin, &id, &spec, "the second DestroyNetwork").await
}
