//! What fake nodes do about their host volumes.

use api::node_rpc::{HostVolumeReports, HostVolumes, Unreadable, from_json, to_json};
use model::{DynamicVolume, VolumeReport};

/// The volumes that a node is told of.
pub(crate) fn told_volumes(told: &HostVolumes) -> Result<Vec<DynamicVolume>, Unreadable> {
    told.volumes_json.iter().map(|json| from_json("a host volume", json)).collect()
}

/// What becomes of volumes: those with `bad` in their names cannot be made, and those with `stuck` not be removed.
pub(crate) fn volumes_of(told: &HostVolumes) -> Result<HostVolumeReports, Unreadable> {
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
    let reports_json = told_volumes(told)?.into_iter().map(report).collect();
    Ok(HostVolumeReports { reports_json, node_json: Vec::new() })
}
