//! Collection on the node: which ended allocations lose their directories.

/// Thresholds above which the node collects ended allocations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Percent of used disk.
    pub disk: f64,
    /// Percent of used inodes.
    pub inodes: f64,
    /// Allocations of the node, ended ones included.
    pub allocs: usize,
}

/// End times of the allocations to collect now, oldest first. A full disk takes one at a time: the next look sees the
/// effect.
#[must_use]
pub fn surplus(at: &Thresholds, total: usize, mut ended: Vec<i64>, disk: f64, inodes: f64) -> Vec<i64> {
    ended.sort_unstable();
    let too_many = total.saturating_sub(at.allocs);
    let too_full = usize::from(disk > at.disk || inodes > at.inodes);
    ended.truncate(too_many.max(too_full));
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_the_disk_is_full() {
        let at = Thresholds { disk: 80.0, inodes: 70.0, allocs: 3 };
        for (total, ended, disk, inodes, expected) in [
            (3, vec![5, 4], 10.0, 10.0, vec![]),
            (5, vec![5, 4, 9], 10.0, 10.0, vec![4, 5]),
            (5, vec![7], 10.0, 10.0, vec![7]),
            (1, vec![7], 81.0, 10.0, vec![7]),
            (2, vec![7, 6], 10.0, 71.0, vec![6]),
            (0, vec![], 99.0, 99.0, vec![]),
        ] {
            assert_eq!(surplus(&at, total, ended.clone(), disk, inodes), expected, "{total} {ended:?} {disk} {inodes}");
        }
    }
}
