//! File access in directories where the task may plant links. The node reads and writes as root, and never leaves the
//! opened directory.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::fchown,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, fchmod, fstat, mkdirat, openat, openat2, renameat, unlinkat},
    io::Errno,
};

/// Largest file that the node reads, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// Distinguishes two states of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        #[allow(
            clippy::unnecessary_cast,
            clippy::useless_conversion,
            reason = "the types differ between architectures"
        )]
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as i64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        }
    }
}

/// An opened directory.
#[derive(Debug)]
pub(crate) struct Root {
    dir: OwnedFd,
    path: PathBuf,
    /// Its directory [`OWN`] is the node's own.
    has_own: bool,
}

/// Where the node keeps its own files of a task, in the task's directory.
const OWN: &str = "private";

/// Mode and owner of a rendered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Mode bits of the file.
    pub mode: u32,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

fn names(path: &Path) -> io::Result<Vec<&std::ffi::OsStr>> {
    path.components()
        .filter(|c| !matches!(c, Component::CurDir))
        .map(|c| match c {
            Component::Normal(name) => Ok(name),
            _ => Err(io::Error::other("the path leaves the directory")),
        })
        .collect()
}

impl Root {
    /// The directory of a task.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let dir = openat(CWD, path, DIRECTORY, Mode::empty())?;
        Ok(Self { dir, path: path.to_owned(), has_own: true })
    }

    /// A directory in which nothing is the node's own, such as the one that tasks share.
    pub(crate) fn open_shared(path: &Path) -> io::Result<Self> {
        Ok(Self { has_own: false, ..Self::open(path)? })
    }

    /// The content of a regular file below, with its stamp. Follows links as long as they stay below, and do not lead
    /// to the node's own files: the node names these itself.
    pub(crate) fn read(&self, path: &Path) -> io::Result<(Vec<u8>, Stamp)> {
        let (file, stamp) = self.file(path)?;
        let mut content = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut content)?;
        if content.len() as u64 > MAX_FILE {
            return Err(io::Error::other(format!("it is larger than {} MiB", MAX_FILE >> 20)));
        }
        Ok((content, stamp))
    }

    /// The stamp of a regular file below.
    pub(crate) fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        self.file(path).map(|(_, stamp)| stamp)
    }

    fn file(&self, path: &Path) -> io::Result<(File, Stamp)> {
        // Found first, and opened only if it is a file: an open of a FIFO waits, one of a device does what it does.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found =
            match openat2(&self.dir, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS) {
                // Older kernels, and sandboxes without the call: open without following links.
                Err(Errno::NOSYS | Errno::PERM) => self.open_plain(path, flags)?,
                Err(Errno::XDEV) => return Err(io::Error::other("it leads out of the task's directory")),
                other => other?,
            };
        let stamp = regular(&found)?;
        if self.has_own
            && names(path)?.first().is_some_and(|first| *first != OWN)
            && self.below(&found)?.starts_with(OWN)
        {
            return Err(io::Error::other("it leads to the node's own files"));
        }
        Ok((readable(&found)?, stamp))
    }

    /// Where what was found lies, below the directory.
    fn below(&self, found: &OwnedFd) -> io::Result<PathBuf> {
        let real = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let (found, dir) = (real(found)?, real(&self.dir)?);
        let below = found.strip_prefix(dir).map_err(|_| io::Error::other("it leads out of the task's directory"))?;
        Ok(below.to_owned())
    }

    fn open_plain(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let (parent, name) = self.parent(path, false)?;
        Ok(openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty())?)
    }

    /// The parent directory and the last name of a path; makes the directory if it is missing. Does not follow links.
    fn parent<'p>(&self, path: &'p Path, make: bool) -> io::Result<(OwnedFd, &'p std::ffi::OsStr)> {
        let names = names(path)?;
        let (last, parents) = names.split_last().ok_or_else(|| io::Error::other("the path names no file"))?;
        let mut dir = self.dir.try_clone()?;
        for name in parents {
            let next = match openat(&dir, *name, DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT) if make => {
                    match mkdirat(&dir, *name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(e) => return Err(e.into()),
                    }
                    openat(&dir, *name, DIRECTORY, Mode::empty())
                }
                other => other,
            };
            dir = next.map_err(|e| {
                io::Error::other(format!(
                    "{:?} of {} is no directory that can be entered ({e}); links are not followed",
                    name,
                    path.display()
                ))
            })?;
        }
        Ok((dir, last))
    }

    /// Replaces a file atomically. False when the file already has this content and look.
    pub(crate) fn write(&self, path: &Path, content: &[u8], look: Look) -> io::Result<bool> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("write {}: {e}", self.path.join(path).display()));
        self.put(path, content, look).map_err(named)
    }

    fn put(&self, path: &Path, content: &[u8], look: Look) -> io::Result<bool> {
        let (dir, name) = self.parent(path, true)?;
        if same(&dir, name, content, look) {
            return Ok(false);
        }
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(".rendering");
        match unlinkat(&dir, &temporary, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // No other user reads it before it has its owner and mode.
        let file = openat(&dir, &temporary, flags, Mode::from_raw_mode(0o600))?;
        let written = (|| -> io::Result<()> {
            let mut file = File::from(file);
            file.write_all(content)?;
            if look.uid.is_some() || look.gid.is_some() {
                fchown(&file, look.uid, look.gid).map_err(|e| {
                    io::Error::new(
                        e.kind(),
                        format!(
                            "give it to uid {:?}, gid {:?}: {e}; the agent needs to run as root for that",
                            look.uid, look.gid
                        ),
                    )
                })?;
            }
            fchmod(&file, Mode::from_raw_mode(look.mode))?;
            renameat(&dir, &temporary, &dir, name)?;
            Ok(())
        })();
        if written.is_err() {
            // Best effort: the next attempt also removes it.
            let _ = unlinkat(&dir, &temporary, AtFlags::empty());
        }
        written.map(|()| true)
    }
}

fn regular(file: &OwnedFd) -> io::Result<Stamp> {
    let stat = fstat(file)?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(Stamp::of(&stat))
}

/// Opens for reading what was found, and nothing that has taken its place.
fn readable(found: &OwnedFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Whether the file has this content and look.
fn same(dir: &OwnedFd, name: &std::ffi::OsStr, content: &[u8], look: Look) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(there) = openat(dir, name, flags, Mode::empty()) else { return false };
    let Ok(stat) = fstat(&there) else { return false };
    let is = |wanted: Option<u32>, have: u32| wanted.is_none_or(|w| w == have);
    if regular(&there).is_err()
        || stat.st_mode & 0o7777 != look.mode
        || !is(look.uid, stat.st_uid)
        || !is(look.gid, stat.st_gid)
    {
        return false;
    }
    let mut found = Vec::new();
    let limit = content.len() as u64 + 1;
    readable(&there).and_then(|file| file.take(limit).read_to_end(&mut found)).is_ok() && found == content
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    const LOOK: Look = Look { mode: 0o640, uid: None, gid: None };

    #[test]
    fn files_are_written_whole_and_only_when_they_differ() {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = Root::open(dir.path()).expect("open");
        let path = Path::new("local/conf/app.conf");
        assert!(root.write(path, b"one", LOOK).expect("written"));
        assert!(!root.write(path, b"one", LOOK).expect("as it is"));
        assert!(root.write(path, b"one", Look { mode: 0o600, ..LOOK }).expect("another mode"));
        assert!(root.write(path, b"two", LOOK).expect("changed"));
        let file = dir.path().join(path);
        assert_eq!(fs::read(&file).expect("read"), b"two");
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(file.parent().expect("parent")).expect("list").count(), 1, "no temporary file stays");
        let (content, before) = root.read(path).expect("read");
        assert_eq!(content, b"two");
        root.write(path, b"three", LOOK).expect("changed");
        assert_ne!(root.read(path).expect("read").1, before);
    }

    #[test]
    fn links_of_a_task_lead_nowhere_else() {
        let dir = tempfile::tempdir().expect("temp dir");
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).expect("outside");
        fs::write(outside.join("secret"), "secret").expect("secret");
        let task = dir.path().join("task");
        fs::create_dir_all(task.join("local")).expect("task");
        std::os::unix::fs::symlink(&outside, task.join("local/out")).expect("link");
        std::os::unix::fs::symlink(outside.join("secret"), task.join("local/file")).expect("link");
        std::os::unix::fs::symlink("real", task.join("local/inner")).expect("link");
        fs::write(task.join("local/real"), "real").expect("real");
        fs::create_dir(task.join("private")).expect("the node's own");
        fs::write(task.join("private/vault.json"), "token").expect("a record");
        std::os::unix::fs::symlink("../private/vault.json", task.join("local/record")).expect("link");
        std::os::unix::fs::symlink("../private", task.join("local/records")).expect("link");
        let root = Root::open(&task).expect("open");
        for path in ["local/out/secret", "local/file", "../outside/secret", "local/../../outside/secret"] {
            root.read(Path::new(path)).expect_err(path);
        }
        for path in ["local/record", "local/records/vault.json", "./local/record", "local/records/./vault.json"] {
            let error = root.read(Path::new(path)).expect_err(path);
            assert!(error.to_string().contains("the node's own"), "{path}: {error}");
            root.stamp(Path::new(path)).expect_err(path);
        }
        assert_eq!(root.read(Path::new("private/vault.json")).expect("the node's own word").0, b"token");
        let shared = Root::open_shared(&task).expect("open");
        assert_eq!(shared.read(Path::new("local/record")).expect("a name like others").0, b"token");
        for path in ["local/out/new", "../new", "/new"] {
            root.write(Path::new(path), b"x", LOOK).expect_err(path);
        }
        assert_eq!(root.read(Path::new("local/inner")).expect("a link that stays below").0, b"real");
        // The write replaces the link itself, not its target.
        root.write(Path::new("local/file"), b"x", LOOK).expect("written");
        assert_eq!(fs::read_to_string(outside.join("secret")).expect("read"), "secret");
        assert_eq!(fs::read_dir(&outside).expect("list").count(), 1);
        rustix::fs::mknodat(CWD, task.join("local/fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .expect("fifo");
        assert!(root.read(Path::new("local/fifo")).expect_err("fifo").to_string().contains("regular"));
    }
}
