//! Directories by descriptor. No link is ever followed: what is below a [`Dir`] stays below it, whatever others do to
//! the tree meanwhile.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::MetadataExt,
    },
    path::Path,
};

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid},
};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir(OwnedFd);

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Dir {
    /// A directory by a path that the caller trusts.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::open(path, DIRECTORY, Mode::empty())?))
    }

    /// A directory in this one. A link is `NotADirectory`.
    pub(crate) fn child(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(rustix::fs::openat(self, name, DIRECTORY, Mode::empty())?))
    }

    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// A directory in this one, made if there is none; true when it was made.
    pub(crate) fn ensure(&self, name: &OsStr) -> io::Result<(Self, bool)> {
        let made = match rustix::fs::mkdirat(self, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => false,
            Err(e) => return Err(e.into()),
        };
        let dir = self.child(name)?;
        if made {
            // The umask has cut the mode.
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o755))?;
        }
        Ok((dir, made))
    }

    /// Goes down, making what is missing; `made` sees every new directory.
    pub(crate) fn descend<S: AsRef<OsStr>>(
        &self,
        parts: &[S],
        mut made: impl FnMut(&Self) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut at = self.duplicate()?;
        for part in parts {
            let (next, new) = at.ensure(part.as_ref())?;
            if new {
                made(&next)?;
            }
            at = next;
        }
        Ok(at)
    }

    /// A new file; what is there must have been removed before.
    pub(crate) fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(self, name, flags, Mode::from_raw_mode(0o600))?))
    }

    /// A regular file in this directory.
    pub(crate) fn file(&self, name: &OsStr) -> io::Result<File> {
        // A FIFO must not make us wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(self, name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        Ok(file)
    }

    /// What a name is; `None` = nothing is there.
    pub(crate) fn kind(&self, name: &OsStr) -> io::Result<Option<FileType>> {
        match rustix::fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Device and inode of what a name is, of a link itself; `None` = nothing is there.
    pub(crate) fn identity_of(&self, name: &OsStr) -> io::Result<Option<(u64, u64)>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(self, name, flags, Mode::empty()) {
            Ok(found) => File::from(found).metadata().map(|meta| Some((meta.dev(), meta.ino()))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Device and inode of the directory itself.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        let meta = File::from(self.0.try_clone()?).metadata()?;
        Ok((meta.dev(), meta.ino()))
    }

    pub(crate) fn link_target(&self, name: &OsStr) -> io::Result<OsString> {
        Ok(OsString::from_vec(rustix::fs::readlinkat(self, name, Vec::new())?.into_bytes()))
    }

    pub(crate) fn symlink(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, self, name)?)
    }

    pub(crate) fn unlink(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self, name, AtFlags::empty())?)
    }

    /// Gives an entry away; a link itself, not what it names.
    pub(crate) fn give(&self, name: &OsStr, (uid, gid): (u32, u32)) -> io::Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        Ok(rustix::fs::chownat(self, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Gives the directory itself away.
    pub(crate) fn give_self(&self, (uid, gid): (u32, u32)) -> io::Result<()> {
        Ok(rustix::fs::fchown(self, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
    }

    /// Names in the directory, sorted.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        names(self)
    }
}

/// Names in an open directory, sorted.
///
/// # Errors
/// Those of the system.
pub fn names(dir: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The deepest tree that is unpacked or placed.
pub(crate) const MAX_DEPTH: usize = 200;

/// Names of a relative path without `.`; an error says how it leaves.
pub(crate) fn names_of(path: &[u8]) -> Result<Vec<OsString>, String> {
    let shown = || String::from_utf8_lossy(path).into_owned();
    if path.first() == Some(&b'/') {
        return Err(format!("{:?} is an absolute path", shown()));
    }
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    if parts.contains(&&b".."[..]) {
        return Err(format!("{:?} leaves the destination", shown()));
    }
    if parts.len() > MAX_DEPTH {
        return Err(format!("a path is {} directories deep, at most {MAX_DEPTH} are unpacked", parts.len()));
    }
    Ok(parts.into_iter().map(|part| OsStr::from_bytes(part).to_owned()).collect())
}

/// Does a link in a directory `depth` levels below the root stay below the root? Directories on the way are real ones,
/// so the leading `..` mean what they say; behind a name, which may itself be a link, `..` is not allowed.
pub(crate) fn link_stays(target: &OsStr, depth: usize) -> Result<(), String> {
    let bytes = target.as_bytes();
    let refuse = |why: &str| Err(format!("a link to {:?} {why}", String::from_utf8_lossy(bytes)));
    if bytes.first() == Some(&b'/') {
        return refuse("is absolute");
    }
    let mut up = 0;
    let mut named = false;
    for part in bytes.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named => return refuse("goes up behind a name"),
            b".." => up += 1,
            _ => named = true,
        }
    }
    if up > depth { refuse("leaves the destination") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below() {
        assert_eq!(names_of(b"./a//b/./c").expect("fine"), ["a", "b", "c"]);
        assert_eq!(names_of(b"./").expect("fine"), Vec::<OsString>::new());
        for wrong in ["/a", "../a", "a/../b", "a/.."] {
            assert!(names_of(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(names_of("a/".repeat(MAX_DEPTH + 1).as_bytes()).is_err());
    }

    #[test]
    fn links_stay_below() {
        for (target, depth, stays) in [
            ("a/b", 0, true),
            (".", 0, true),
            ("../a", 1, true),
            ("../../a", 2, true),
            ("../a", 0, false),
            ("../../a", 1, false),
            ("/etc/passwd", 5, false),
            ("a/../b", 3, false),
            ("./../a", 0, false),
        ] {
            assert_eq!(link_stays(OsStr::new(target), depth).is_ok(), stays, "{target} at {depth}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let temp = tempfile::tempdir().expect("temp dir");
        let dir = Dir::open(temp.path()).expect("open");
        dir.symlink(OsStr::new("/tmp"), OsStr::new("away")).expect("link");
        assert!(dir.child(OsStr::new("away")).is_err());
        assert!(dir.ensure(OsStr::new("away")).is_err());
        assert!(dir.descend(&["away", "x"], |_| Ok(())).is_err());
        assert!(dir.create(OsStr::new("away")).is_err());
        assert!(dir.file(OsStr::new("away")).is_err());
        assert_eq!(dir.kind(OsStr::new("away")).expect("stat"), Some(FileType::Symlink));
    }
}
