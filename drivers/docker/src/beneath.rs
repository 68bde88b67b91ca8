//! What lies below a directory in which tasks may plant links: found name by name, and no link is followed.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, fchmod, mkdirat, openat};
use rustix::io::Errno;

const FOUND: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

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

/// Goes down from a directory that the caller trusts. `make`: missing directories are made, as an engine makes the
/// sources of its binds. `seen` is shown all that lies on the way, the last one too.
pub(crate) fn find(
    base: &Path,
    below: &Path,
    make: bool,
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
            Err(Errno::NOENT) if make => {
                made(&found.file, Path::new(name)).map_err(named(&path))?;
                openat(&found.file, name, FOUND, Mode::empty())
            }
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

/// Makes a directory as engines do, whatever the umask is.
fn made(dir: &File, name: &Path) -> Result<(), Errno> {
    match mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => fchmod(openat(dir, name, DIRECTORY, Mode::empty())?, Mode::from_raw_mode(0o755)),
        Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e),
    }
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
