//! The archive in which the data of an allocation travels to another node: `alloc/data` and each task's `local`.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Component, Path, PathBuf},
};

use host::dirs::AllocDirs;
use rustix::{
    fs::{CWD, Mode, OFlags, openat, readlinkat},
    io::Errno,
};

/// Room for headers and padding of an archive, in bytes.
const ENVELOPE: u64 = 16 << 20;

/// Directories on the way to the deepest that is packed: each is open meanwhile.
const MAX_DEPTH: usize = 256;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The parts of an allocation that travel, by their names in archives.
fn parts(tasks: &[String]) -> Vec<PathBuf> {
    let locals = tasks.iter().map(|task| Path::new(task).join("local"));
    std::iter::once(PathBuf::from("alloc/data")).chain(locals).collect()
}

/// Packs directories, files and links, with owners and modes. Leaves out sockets, pipes and devices. Blocking.
///
/// The tasks may change their directories meanwhile. So the walk goes from one opened directory to the next: by path, a
/// directory that has become a link would lead it anywhere on the node.
///
/// # Errors
/// When something cannot be read, or shrinks during the read. The output is incomplete then.
pub fn pack(dirs: &AllocDirs, tasks: &[String], to: &mut impl io::Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(to);
    let root = match openat(CWD, &dirs.root, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return archive.finish(),
        other => other?,
    };
    for part in parts(tasks) {
        let (Some(parent), Some(last)) = (part.parent(), part.file_name()) else { continue };
        match openat(&root, parent, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => {}
            Err(e) => return Err(at(parent)(e.into())),
            Ok(parent) => add(&mut archive, &parent, last, &part, MAX_DEPTH)?,
        }
    }
    archive.finish()
}

/// Names what an error is about.
fn at(name: &Path) -> impl Fn(io::Error) -> io::Error {
    move |e| io::Error::new(e.kind(), format!("{}: {e}", name.display()))
}

/// Opens for reading what was found, and nothing that has taken its place.
fn readable(found: &fs::File) -> io::Result<fs::File> {
    fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

fn add(
    archive: &mut tar::Builder<impl io::Write>,
    dir: &OwnedFd,
    last: &OsStr,
    name: &Path,
    deeper: usize,
) -> io::Result<()> {
    let named = at(name);
    // Found first: an open of a FIFO waits, one of a device does what it does.
    let found = match openat(dir, last, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => fs::File::from(other.map_err(|e| named(e.into()))?),
    };
    let meta = found.metadata().map_err(&named)?;
    let mut header = tar::Header::new_gnu();
    header.set_metadata(&meta);
    if meta.is_symlink() {
        let target = readlinkat(&found, "", Vec::new()).map_err(|e| named(e.into()))?;
        header.set_size(0);
        return archive.append_link(&mut header, name, OsStr::from_bytes(target.as_bytes())).map_err(named);
    }
    if meta.is_file() {
        let file = readable(&found).map_err(&named)?;
        header.set_size(meta.size());
        // Exactly as long as the header says: a later entry of the archive would be unreadable otherwise.
        return archive.append_data(&mut header, name, Exactly { file, left: meta.size() }).map_err(named);
    }
    if meta.is_dir() {
        header.set_size(0);
        archive.append_data(&mut header, name, io::empty()).map_err(&named)?;
        let deeper = deeper
            .checked_sub(1)
            .ok_or_else(|| named(io::Error::other(format!("it lies more than {MAX_DEPTH} directories deep"))))?;
        let opened = OwnedFd::from(readable(&found).map_err(&named)?);
        // One open directory for each level.
        drop(found);
        for entry in artifact::names(&opened).map_err(&named)? {
            add(archive, &opened, &entry, &name.join(&entry), deeper)?;
        }
    }
    Ok(())
}

/// Reads exactly `left` bytes; a shorter file is an error.
struct Exactly {
    file: fs::File,
    left: u64,
}

impl io::Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.file.read(&mut buffer[..most])?;
        if n == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has become shorter while it was read"));
        }
        self.left -= n as u64;
        Ok(n)
    }
}

/// Unpacks the entries that belong to the tasks: directories, files and links. Sets their owners where this is
/// possible.
pub(crate) fn unpack(from: impl Read, into: &Path, tasks: &[String], room: u64) -> io::Result<()> {
    let root = rustix::process::geteuid().is_root();
    // One more byte reveals an archive that is too large.
    let mut from = from.take(room.saturating_add(ENVELOPE).saturating_add(1));
    let mut archive = tar::Archive::new(&mut from);
    archive.set_preserve_permissions(true);
    // What runs with its owner's rights on the other node is not to do so here.
    archive.set_mask(0o6000);
    archive.set_preserve_ownerships(root);
    archive.set_overwrite(false);
    // Directories get their modes last: a task may have made some unreadable.
    let mut directories = Vec::new();
    let result = (|| {
        for entry in archive.entries()? {
            let mut entry = entry?;
            let name = entry.path()?.into_owned();
            let parts: Option<Vec<&str>> =
                name.components().map(|c| if let Component::Normal(n) = c { n.to_str() } else { None }).collect();
            let known = match parts.as_deref() {
                Some(["alloc", "data", ..]) => true,
                Some([task, "local", ..]) => tasks.iter().any(|t| t == task),
                // A name that is not UTF-8 is fine below a directory that is known to be the task's.
                _ => {
                    name.starts_with("alloc/data")
                        || tasks.iter().any(|task| name.starts_with(Path::new(task).join("local")))
                }
            };
            let climbs = name.components().any(|c| !matches!(c, Component::Normal(_)));
            if climbs {
                return Err(io::Error::other(format!(
                    "the archive has the name {}, which leaves the directory",
                    name.display()
                )));
            }
            if !known {
                // The job no longer has this task.
                continue;
            }
            match entry.header().entry_type() {
                tar::EntryType::Directory => {
                    let mode = entry.header().mode().unwrap_or(0o755);
                    let owner = (entry.header().uid()?, entry.header().gid()?);
                    if leads_elsewhere(into, &name)? {
                        return Err(io::Error::other(format!(
                            "the archive has the directory {} behind a link",
                            name.display()
                        )));
                    }
                    fs::create_dir_all(into.join(&name))?;
                    directories.push((into.join(&name), mode, owner));
                }
                tar::EntryType::Regular | tar::EntryType::Symlink => drop(entry.unpack_in(into)?),
                other => {
                    return Err(io::Error::other(format!("the archive has {} of the kind {other:?}", name.display())));
                }
            }
        }
        Ok(())
    })();
    let more = from.limit() == 0;
    if more {
        return Err(io::Error::other(format!("it is larger than the {} MiB of ephemeral_disk.size", room >> 20)));
    }
    result?;
    io::copy(&mut from, &mut io::sink())?;
    for (dir, mode, (uid, gid)) in directories.into_iter().rev() {
        let number = |id: u64| u32::try_from(id).ok().filter(|_| root);
        std::os::unix::fs::chown(&dir, number(uid), number(gid))?;
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(mode & 0o1777))?;
    }
    Ok(())
}

/// Whether the name, or a directory on its way, is a link. A write or chown through a link would reach outside.
fn leads_elsewhere(into: &Path, name: &Path) -> io::Result<bool> {
    let mut at = into.to_owned();
    for part in name.components() {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(meta) if meta.is_symlink() => return Ok(true),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn packed(dir: &Path, tasks: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let tasks: Vec<String> = tasks.iter().map(|t| (*t).to_owned()).collect();
        pack(&AllocDirs { root: dir.to_owned() }, &tasks, &mut bytes).expect("packed");
        bytes
    }

    #[test]
    fn an_allocation_looks_the_same_on_the_other_side() {
        let (from, to) = (tempfile::tempdir().expect("temp dir"), tempfile::tempdir().expect("temp dir"));
        let at = |name: &str| from.path().join(name);
        for dir in ["alloc/data/deep/er", "alloc/logs", "web/local", "web/secrets", "old/local"] {
            fs::create_dir_all(at(dir)).expect("directory");
        }
        for (file, text) in
            [("alloc/data/deep/er/f", "data"), ("web/local/run", "#!"), ("web/secrets/key", "k"), ("old/local/o", "o")]
        {
            fs::write(at(file), text).expect("file");
        }
        let long = "n".repeat(180);
        fs::write(at("web/local").join(&long), "long").expect("file");
        // What runs with its owner's rights on one node does not on the other.
        fs::set_permissions(at("web/local/run"), PermissionsExt::from_mode(0o6750)).expect("mode");
        fs::set_permissions(at("alloc/data/deep"), PermissionsExt::from_mode(0o2500)).expect("mode");
        symlink("../../alloc/data", at("web/local/link")).expect("link");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(at("alloc/data/deep/er/f"), Some(1234), Some(1235)).expect("given away");
        }
        let archive = packed(from.path(), &["web", "old", "missing"]);
        unpack(&archive[..], to.path(), &["web".to_owned()], 1 << 20).expect("unpacked");
        let here = |name: &str| to.path().join(name);
        assert_eq!(fs::read_to_string(here("alloc/data/deep/er/f")).expect("there"), "data");
        assert_eq!(fs::read_to_string(here("web/local").join(&long)).expect("there"), "long");
        assert_eq!(fs::read_link(here("web/local/link")).expect("a link"), Path::new("../../alloc/data"));
        let meta = |name: &str| fs::metadata(here(name)).expect("there");
        assert_eq!((meta("web/local/run").mode() & 0o7777, meta("alloc/data/deep").mode() & 0o7777), (0o750, 0o500));
        assert_eq!(meta("alloc/data/deep/er/f").uid(), fs::metadata(at("alloc/data/deep/er/f")).expect("there").uid());
        assert!(
            !here("web/secrets").exists() && !here("alloc/logs").exists() && !here("old").exists(),
            "no more than what goes on"
        );
    }

    /// Runs its action once a text has gone by.
    struct When<'a> {
        text: &'a [u8],
        written: Vec<u8>,
        action: Option<Box<dyn FnOnce() + 'a>>,
    }

    impl io::Write for When<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.extend_from_slice(bytes);
            if self.written.windows(self.text.len()).any(|w| w == self.text)
                && let Some(action) = self.action.take()
            {
                action();
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_directory_that_becomes_a_link_meanwhile_leads_nowhere() {
        let (temp, outside) = (tempfile::tempdir().expect("temp dir"), tempfile::tempdir().expect("temp dir"));
        let local = temp.path().join("web/local");
        for (root, text) in [(local.join("d"), "of the task"), (outside.path().to_owned(), "of the host")] {
            fs::create_dir_all(root.join("e")).expect("directory");
            for file in ["b", "e/f"] {
                fs::write(root.join(file), text).expect("file");
            }
            symlink(text, root.join("l")).expect("link");
        }
        fs::write(local.join("d/a"), "the first file").expect("file");
        let replace = || {
            fs::rename(local.join("d"), temp.path().join("web/moved")).expect("moved");
            symlink(outside.path(), local.join("d")).expect("link");
        };
        let mut to = When { text: b"the first file", written: Vec::new(), action: Some(Box::new(replace)) };
        pack(&AllocDirs { root: temp.path().to_owned() }, &["web".to_owned()], &mut to).expect("packed");
        assert!(to.action.is_none(), "the directory was replaced");
        let has = |text: &str| to.written.windows(text.len()).filter(|w| *w == text.as_bytes()).count();
        assert_eq!((has("of the task"), has("of the host")), (3, 0));
    }

    #[test]
    fn a_tree_without_end_is_refused() {
        let temp = tempfile::tempdir().expect("temp dir");
        fs::create_dir_all(temp.path().join("web/local").join("d/".repeat(MAX_DEPTH))).expect("directories");
        let mut bytes = Vec::new();
        let dirs = AllocDirs { root: temp.path().to_owned() };
        let error = pack(&dirs, &["web".to_owned()], &mut bytes).expect_err("too deep").to_string();
        assert!(error.contains("directories deep"), "{error}");
    }

    #[test]
    fn what_does_not_belong_there_is_refused() {
        let archive = |edit: &dyn Fn(&mut tar::Builder<Vec<u8>>)| {
            let mut builder = tar::Builder::new(Vec::new());
            edit(&mut builder);
            builder.into_inner().expect("archive")
        };
        let header = |kind, name: &str, size| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(size);
            header.set_mode(0o611);
            header.set_uid(0);
            header.set_gid(0);
            header.as_gnu_mut().expect("gnu").name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            header
        };
        let file = |name: &'static str| {
            archive(&move |b| b.append(&header(tar::EntryType::Regular, name, 1), &b"x"[..]).expect("added"))
        };
        let elsewhere = tempfile::tempdir().expect("temp dir");
        let through_link = |kind: tar::EntryType, name: &'static str| {
            archive(&|b| {
                let mut link = header(tar::EntryType::Symlink, "", 0);
                b.append_link(&mut link, "alloc/data/out", elsewhere.path()).expect("added");
                let content: &[u8] = if kind.is_file() { b"x" } else { b"" };
                b.append(&header(kind, name, content.len() as u64), content).expect("added");
            })
        };
        let device =
            archive(&|b| b.append(&header(tar::EntryType::Fifo, "alloc/data/p", 0), io::empty()).expect("added"));
        let large = archive(&|b| {
            let mut big = header(tar::EntryType::Regular, "", 40 << 20);
            b.append_data(&mut big, "alloc/data/big", io::repeat(7).take(40 << 20)).expect("added");
        });
        let mut cut = file("alloc/data/x");
        cut.truncate(512);
        for (name, bytes) in [
            ("climbs", file("alloc/data/../../../x")),
            ("a file behind a link", through_link(tar::EntryType::Regular, "alloc/data/out/evil")),
            ("a directory at a link", through_link(tar::EntryType::Directory, "alloc/data/out")),
            ("a directory behind a link", through_link(tar::EntryType::Directory, "alloc/data/out/new")),
            ("no file", device),
            ("too large", large),
            ("cut off", cut),
        ] {
            let around = tempfile::tempdir().expect("temp dir");
            let to = around.path().join("to");
            fs::create_dir(&to).expect("made");
            let error = unpack(&bytes[..], &to, &[], 1 << 20).expect_err(name);
            assert!(!around.path().join("x").exists(), "{name}: {error}");
            let untouched = fs::metadata(elsewhere.path()).expect("there").mode() & 0o777 != 0o611;
            assert!(untouched && fs::read_dir(elsewhere.path()).expect("there").next().is_none(), "{name}: {error}");
        }
    }
}
