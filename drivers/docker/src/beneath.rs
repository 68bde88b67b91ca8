//! What lies below a directory in which tasks may plant links: found name by name, and no link is followed.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

const FOUND: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What was found, not opened: an open of a FIFO waits, one of a device does what it does.
pub(crate) struct Found {
    file: File,
    meta: Metadata,
}

impl Found {
    fn of(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        let meta = file.metadata()?;
        Ok(Self { file, meta })
    }

    pub(crate) fn meta(&self) -> &Metadata {
        &self.meta
    }

    /// Both are one file or directory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        (self.meta.dev(), self.meta.ino()) == (other.meta.dev(), other.meta.ino())
    }

    /// Opens what was found, and nothing that has taken its place, for both directions. Never waits.
    pub(crate) fn read_write(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        std::fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
    }
}

/// A file or directory by a path that the caller trusts but for its last name.
pub(crate) fn at(path: &Path) -> io::Result<Found> {
    let found = Found::of(openat(CWD, path, FOUND, Mode::empty())?)?;
    if found.meta.is_symlink() { Err(link(path)) } else { Ok(found) }
}

/// Goes down from a directory that the caller trusts. `may_miss`: it goes as far as there is something; an engine makes
/// the missing sources of its binds. `seen` is shown all that lies on the way, the last one too.
pub(crate) fn find(
    base: &Path,
    below: &Path,
    may_miss: bool,
    mut seen: impl FnMut(&Found) -> io::Result<()>,
) -> io::Result<Found> {
    let mut path = base.to_owned();
    let mut found = Found::of(openat(CWD, base, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(named(base))?)?;
    for part in below.components() {
        let Component::Normal(name) = part else {
            return Err(io::Error::other(format!("{} leaves its directory", below.display())));
        };
        path.push(name);
        let next = match openat(&found.file, name, FOUND, Mode::empty()) {
            Err(Errno::NOENT) if may_miss => return Ok(found),
            other => other,
        };
        found = Found::of(next.map_err(named(&path))?)?;
        if found.meta.is_symlink() {
            return Err(link(&path));
        }
        seen(&found)?;
    }
    Ok(found)
}

fn named(path: &Path) -> impl FnOnce(Errno) -> io::Error {
    let path = path.display().to_string();
    move |e| {
        let e = io::Error::from(e);
        io::Error::new(e.kind(), format!("{path}: {e}"))
    }
}

fn link(path: &Path) -> io::Error {
    io::Error::other(format!("{} is a link, which is not followed: a task can change where it leads", path.display()))
}
