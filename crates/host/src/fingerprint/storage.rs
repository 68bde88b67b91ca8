//! The volume that holds the allocation directories.

use std::{fs, path::Path};

use super::facts::Facts;
use node_config::ClientConfig;

/// Looks at the volume: its name, size, and what is free.
pub fn look(config: &ClientConfig, facts: &mut Facts) {
    // Before the first start the directory itself does not exist.
    let Some(dir) = config.alloc_dir.ancestors().find(|d| d.exists()) else {
        return;
    };
    let volume = volume_of(dir).map(|(device, _)| device);
    facts.set("unique.storage.volume", volume.unwrap_or_else(|| dir.display().to_string()));
    if let Ok(stat) = rustix::fs::statvfs(dir) {
        let or = |figure_mb: u64, found: u64| if figure_mb > 0 { figure_mb << 20 } else { found };
        let total = or(config.disk_total_mb, stat.f_blocks * stat.f_frsize);
        let free = or(config.disk_free_mb, stat.f_bavail * stat.f_frsize);
        // The operator's figure may cover more than one file system.
        let total = if config.disk_total_mb > 0 { total } else { total.max(free) };
        facts.set("unique.storage.bytestotal", total);
        facts.set("unique.storage.bytesfree", free);
        facts.resources.disk.disk_mb = (free >> 20).cast_signed();
    }
}

/// The device or file system that is mounted at the longest mount point above `dir`, and that mount point.
pub(crate) fn volume_of(dir: &Path) -> Option<(String, String)> {
    let dir = dir.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(_, at)| dir.starts_with(at))
        .max_by_key(|(_, at)| at.len())
        .map(|(device, at)| (device.to_owned(), at.to_owned()))
}
