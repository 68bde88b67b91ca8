//! What fake nodes do about their host volumes.

use api::node_rpc::{HostVolumeReports, HostVolumes, Unreadable, from_json, to_json};
use model::{DynamicVolume, Node, VolumeReport, node::HostVolume};

/// The volumes that a node is told of.
pub(crate) fn told_volumes(told: &HostVolumes) -> Result<Vec<DynamicVolume>, Unreadable> {
    told.volumes_json.iter().map(|json| from_json("a host volume", json)).collect()
}

/// A node with volumes that are there.
fn with_volumes(node: &Node, volumes: &[DynamicVolume]) -> Node {
    let mut node = node.clone();
    for volume in volumes.iter().filter(|volume| !volume.deleting) {
        let (name, path) = (volume.name.clone(), format!("/volumes/{}", volume.name));
        node.host_volumes.insert(name.clone(), HostVolume { name, path, read_only: false, id: volume.id });
    }
    node
}

/// What becomes of volumes: those with `bad` in their names cannot be made, and those with `stuck` not be removed.
pub(crate) fn volumes_of(node: &Node, told: &HostVolumes) -> Result<HostVolumeReports, Unreadable> {
    let report = |volume: DynamicVolume| {
        let fails = volume.name.contains(if volume.deleting { "stuck" } else { "bad" });
        to_json(&VolumeReport {
            id: volume.id,
            revision: volume.revision,
            host_path: format!("/volumes/{}", volume.name),
            capacity_bytes: 1,
            removed: volume.deleting,
            error: if fails { "no room".to_owned() } else { String::new() },
        })
    };
    let volumes = told_volumes(told)?;
    let node_json = to_json(&with_volumes(node, &volumes));
    Ok(HostVolumeReports { reports_json: volumes.into_iter().map(report).collect(), node_json })
}
