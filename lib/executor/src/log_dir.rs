//! The directory of kept output, by its descriptor.
//!
//! It belongs to the writer of the output, usually root, but tasks may write there as well: all tasks of an allocation
//! see it as `/alloc/logs`. Files that they plant, links above all, must not redirect reads or writes. This module
//! follows no links and opens plain files only.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// A directory whose files are opened by name.
#[derive(Debug)]
pub(crate) struct LogDir {
    fd: OwnedFd,
}

/// `NONBLOCK` avoids waiting for a FIFO or device before its refusal.
const NEVER_ELSEWHERE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

fn plain(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

impl LogDir {
    /// Opens it; its parent belongs to the host and may be reached through links.
    pub(crate) fn open(path: &Path) -> io::Result<LogDir> {
        // A name in the present directory has an empty parent.
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), Path::new(name)),
            (Some(parent), Some(name)) => (parent, Path::new(name)),
            _ => (path, Path::new(".")),
        };
        let parent = openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(LogDir { fd: openat(&parent, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())? })
    }

    /// Names in it.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        Ok(names)
    }

    /// Size of a plain file; `None` for anything else.
    pub(crate) fn size(&self, name: &str) -> io::Result<Option<u64>> {
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(plain(&stat).then_some(stat.st_size as u64)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Opens a plain file for reading; anything else is *not found*.
    pub(crate) fn read(&self, name: &str) -> io::Result<File> {
        match openat(&self.fd, name, OFlags::RDONLY | NEVER_ELSEWHERE, Mode::empty()) {
            Ok(fd) if plain(&fstat(&fd)?) => Ok(fd.into()),
            Ok(_) | Err(Errno::LOOP) => Err(io::ErrorKind::NotFound.into()),
            Err(e) => Err(e.into()),
        }
    }

    /// The text of a small file.
    pub(crate) fn text(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        self.read(name)?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Opens or makes a plain file for writing. Unlinks anything else of that name, and a file with further hard links.
    pub(crate) fn write(&self, name: &str) -> io::Result<File> {
        // Without append mode, which splice refuses; the executor is the only writer.
        match openat(&self.fd, name, OFlags::WRONLY | OFlags::CREATE | NEVER_ELSEWHERE, Mode::from_raw_mode(0o666)) {
            Ok(fd) => {
                let stat = fstat(&fd)?;
                if plain(&stat) && stat.st_nlink == 1 { Ok(fd.into()) } else { self.fresh(name, 0o666) }
            }
            // A link; a FIFO without a reader or an absent device; or another user's file in a sticky directory
            // (`fs.protected_regular`).
            Err(Errno::LOOP | Errno::NXIO | Errno::ACCESS) => self.fresh(name, 0o666),
            Err(e) => Err(e.into()),
        }
    }

    /// A new file under a name that may be taken.
    fn fresh(&self, name: &str, mode: u32) -> io::Result<File> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NEVER_ELSEWHERE;
        Ok(openat(&self.fd, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Writes `bytes` under a name atomically, mode 0600.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!(".{name}.new");
        let written = self
            .fresh(&temporary, 0o600)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| Ok(renameat(&self.fd, &temporary, &self.fd, name)?));
        if written.is_err() {
            let _ = unlinkat(&self.fd, &temporary, AtFlags::empty());
        }
        written
    }

    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_in_the_way_leads_nowhere() {
        let place = tempfile::tempdir().unwrap();
        let (logs, target) = (place.path().join("logs"), place.path().join("target"));
        std::fs::create_dir(&logs).unwrap();
        std::fs::write(&target, "the host's").unwrap();
        let dir = LogDir::open(&logs).unwrap();
        let put = |kind: &str, name: &str| match kind {
            "link" => symlink(&target, logs.join(name)).unwrap(),
            "link to nothing" => symlink(place.path().join("made"), logs.join(name)).unwrap(),
            "hard link" => std::fs::hard_link(&target, logs.join(name)).unwrap(),
            _ => rustix::fs::mknodat(CWD, logs.join(name), FileType::Fifo, Mode::RWXU, 0).unwrap(),
        };
        for kind in ["link", "link to nothing", "hard link", "fifo"] {
            put(kind, "t.stdout.0");
            if kind != "hard link" {
                assert_eq!(dir.size("t.stdout.0").unwrap(), None, "{kind}");
                assert_eq!(dir.read("t.stdout.0").unwrap_err().kind(), io::ErrorKind::NotFound, "{kind}");
            }
            dir.write("t.stdout.0").unwrap().write_all(b"output").unwrap();
            assert_eq!(dir.text("t.stdout.0").unwrap(), "output", "{kind}");
            // Both the name and its temporary name.
            for name in [".t.stdout.index", "..t.stdout.index.new"] {
                let _ = dir.remove(name);
                put(kind, name);
            }
            dir.replace(".t.stdout.index", b"0 0\n").unwrap();
            assert_eq!(dir.text(".t.stdout.index").unwrap(), "0 0\n", "{kind}");
            dir.remove("t.stdout.0").unwrap();
        }
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "the host's");
        assert!(!place.path().join("made").exists());
        // An existing plain file continues.
        dir.write("t.stdout.0").unwrap().write_all(b"first").unwrap();
        dir.write("t.stdout.0").unwrap().write_all(b"w").unwrap();
        assert_eq!(dir.text("t.stdout.0").unwrap(), "wirst");

        symlink(&logs, place.path().join("elsewhere")).unwrap();
        assert!(LogDir::open(&place.path().join("elsewhere")).is_err(), "the directory itself");
    }
}
