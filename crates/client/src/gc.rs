//! Which ended allocations lose their directories. Pure but for one look at the file system.

use std::path::Path;

use crate::config::GcConfig;

/// Used disk and inodes in percent; zero when it cannot be read.
pub(crate) fn usage(dir: &Path) -> (f64, f64) {
    let Ok(stat) = rustix::fs::statvfs(dir) else {
        return (0.0, 0.0);
    };
    let percent = |free: u64, all: u64| {
        if all == 0 { 0.0 } else { 100.0 - 100.0 * free as f64 / all as f64 }
    };
    (percent(stat.f_bavail, stat.f_blocks), percent(stat.f_favail, stat.f_files))
}

/// Ends of the allocations that go now, oldest first. A full disk takes one at a time: the next look sees what that has brought.
pub(crate) fn surplus(config: &GcConfig, total: usize, mut ended: Vec<i64>, disk: f64, inodes: f64) -> Vec<i64> {
    ended.sort_unstable();
    let too_many = total.saturating_sub(config.max_allocs);
    let too_full = usize::from(disk > config.disk_usage_threshold || inodes > config.inode_usage_threshold);
    ended.truncate(too_many.max(too_full));
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_the_disk_is_full() {
        let config = GcConfig { max_allocs: 3, ..GcConfig::default() };
        for (total, ended, disk, inodes, expected) in [
            (3, vec![5, 4], 10.0, 10.0, vec![]),
            (5, vec![5, 4, 9], 10.0, 10.0, vec![4, 5]),
            (5, vec![7], 10.0, 10.0, vec![7]),
            (1, vec![7], 81.0, 10.0, vec![7]),
            (2, vec![7, 6], 10.0, 71.0, vec![6]),
            (0, vec![], 99.0, 99.0, vec![]),
        ] {
            assert_eq!(surplus(&config, total, ended.clone(), disk, inodes), expected, "{total} {ended:?} {disk} {inodes}");
        }
    }
}
