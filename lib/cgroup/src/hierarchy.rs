//! What `/proc` says of hierarchies and of the cgroups of processes.

use std::path::Path;

/// A mounted hierarchy.
#[derive(Clone, Copy, Debug)]
pub struct Mount<'a> {
    /// Where it is mounted.
    pub point: &'a Path,
    /// The part of the hierarchy that is mounted there; `/` = all of it.
    pub root: &'a str,
    /// Options of a version 1 hierarchy, its controllers among them; `None` for version 2.
    options: Option<&'a str>,
}

impl Mount<'_> {
    /// Whether it is the version 2 hierarchy.
    pub fn is_v2(&self) -> bool {
        self.options.is_none()
    }

    /// Whether it is the version 1 hierarchy of this controller.
    pub fn is_v1_of(&self, controller: &str) -> bool {
        self.options.is_some_and(|options| options.split(',').any(|option| option == controller))
    }
}

/// The hierarchies in the text of `/proc/self/mountinfo`, in its order.
pub fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        // id parent dev root mountpoint options [tags…] - type source super-options
        let (mount, filesystem) = line.split_once(" - ")?;
        let (mut mount, mut filesystem) = (mount.split(' ').skip(3), filesystem.split(' '));
        let (root, point) = (mount.next()?, Path::new(mount.next()?));
        let options = match filesystem.next()? {
            "cgroup2" => None,
            "cgroup" => Some(filesystem.nth(1).unwrap_or_default()),
            _ => return None,
        };
        Some(Mount { point, root, options })
    })
}

/// The cgroups in the text of a `/proc/<pid>/cgroup`: controllers with commas between them and the path, which begins
/// with a slash. The controllers of version 2 are empty.
pub fn memberships(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// The path of the version 1 cgroup with this controller.
pub(crate) fn v1_path<'a>(text: &'a str, controller: &str) -> Option<&'a str> {
    memberships(text).find(|(of, _)| of.split(',').any(|c| c == controller)).map(|(_, path)| path)
}
