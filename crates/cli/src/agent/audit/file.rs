//! A file of the audit log. It holds whole lines only, also after its disk was full, and is replaced by age and size.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    time::{Duration, SystemTime},
};

use super::{super::log_file::Rotation, Target};

#[derive(Debug)]
pub(super) struct AuditFile {
    rotation: Rotation,
    mode: u32,
    open: Open,
}

#[derive(Debug)]
struct Open {
    file: File,
    written: u64,
    since: SystemTime,
}

impl AuditFile {
    /// Opens the file; what is in it stays. A directory that is missing is made for this agent's user alone.
    pub(super) fn open(rotation: Rotation, mode: u32, now: SystemTime) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(rotation.directory())?;
        let open = open(&rotation, mode, now)?;
        Ok(Self { rotation, mode, open })
    }

    /// Puts the file aside. One that cannot be replaced goes on.
    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        let (path, aside) = (&self.rotation.path, self.rotation.free_aside(now));
        fs::rename(path, &aside)?;
        match open(&self.rotation, self.mode, now) {
            Ok(open) => self.open = open,
            Err(error) => {
                fs::rename(&aside, path)?;
                return Err(error);
            }
        }
        self.rotation.remove_surplus()
    }
}

fn open(rotation: &Rotation, mode: u32, now: SystemTime) -> io::Result<Open> {
    let file = OpenOptions::new().create(true).append(true).mode(mode).open(&rotation.path)?;
    let meta = file.metadata()?;
    let since = if meta.len() == 0 { now } else { meta.created().or_else(|_| meta.modified())? };
    Ok(Open { file, written: meta.len(), since })
}

impl Target for AuditFile {
    fn append(&mut self, lines: &[u8], now: SystemTime) -> io::Result<()> {
        // A clock that was set back makes no file old.
        let age = now.duration_since(self.open.since).unwrap_or(Duration::ZERO);
        if self.open.written > 0
            && self.rotation.due(self.open.written, age)
            && let Err(error) = self.rotate(now)
        {
            let path = self.rotation.path.display();
            tracing::warn!(%path, %error, "a file of the audit log could not be put aside, it goes on");
        }
        // Into a file that somebody has removed nothing is written.
        if self.open.file.metadata()?.nlink() == 0 {
            self.reopen(now)?;
        }
        match self.open.file.write_all(lines) {
            Ok(()) => {
                self.open.written += lines.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Takes back the part of a line that had room.
                let length = self.open.file.metadata()?.len();
                if length > self.open.written {
                    self.open.file.set_len(self.open.written)?;
                }
                Err(error)
            }
        }
    }

    fn reopen(&mut self, now: SystemTime) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.rotation.directory())?;
        self.open = open(&self.rotation, self.mode, now)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, path::Path};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn rotation(path: &Path, bytes: u64, keep: Option<usize>) -> Rotation {
        Rotation { path: path.to_owned(), age: DAY, bytes, keep }
    }

    /// The texts of all files, those put aside first, oldest first.
    fn texts(path: &Path) -> Vec<String> {
        let dir = path.parent().expect("a directory");
        let mut files: Vec<_> = fs::read_dir(dir).expect("readable").flatten().map(|e| e.path()).collect();
        files.sort();
        // `audit-1.log` comes before `audit.log`.
        files.iter().map(|file| fs::read_to_string(file).expect("text")).collect()
    }

    #[test]
    fn a_file_is_put_aside_by_size_and_by_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit/audit.log");
        let start = SystemTime::now();
        let mut file = AuditFile::open(rotation(&path, 10, Some(2)), 0o600, start).expect("a file");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().expect("a directory"))), (0o600, 0o700));
        file.append(b"short\n", start).expect("written");
        file.append(b"more\n", start).expect("written");
        assert_eq!(texts(&path), ["short\nmore\n"], "size counts before a line is written");
        file.append(b"next\n", start).expect("written");
        assert_eq!(texts(&path), ["short\nmore\n", "next\n"]);
        // The clock does not move: a name that is taken is not used again.
        file.append(b"to ten\n", start).expect("written");
        file.append(b"2\n", start).expect("written");
        assert_eq!(texts(&path), ["short\nmore\n", "next\nto ten\n", "2\n"]);
        let nearly = start + DAY - Duration::from_secs(1);
        file.append(b"3\n", nearly).expect("written");
        assert_eq!(texts(&path)[2], "2\n3\n");
        file.append(b"4\n", start + DAY).expect("written");
        assert_eq!(texts(&path), ["next\nto ten\n", "2\n3\n", "4\n"], "two are kept aside");
        // A clock that was set back makes no file old.
        file.append(b"5\n", start - DAY * 400).expect("written");
        assert_eq!(texts(&path)[2], "4\n5\n");
    }

    #[test]
    fn a_file_that_was_moved_or_removed_is_made_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        let now = SystemTime::now();
        let mut file = AuditFile::open(rotation(&path, 0, None), 0o640, now).expect("a file");
        file.append(b"1\n", now).expect("written");
        fs::rename(&path, dir.path().join("audit.0")).expect("moved");
        file.append(b"2\n", now).expect("written");
        assert!(!path.exists(), "until it is told, it writes on");
        file.reopen(now).expect("opened");
        file.append(b"3\n", now).expect("written");
        assert_eq!(texts(&path), ["1\n2\n", "3\n"]);
        fs::remove_file(&path).expect("removed");
        file.append(b"4\n", now).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("there again"), "4\n");
    }

    #[test]
    fn a_full_disk_leaves_whole_lines() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = dir.path().join("disk");
        fs::create_dir(&disk).expect("a directory");
        let size = std::ffi::CString::new("size=64k").expect("no NUL");
        let flags = rustix::mount::MountFlags::empty();
        if let Err(error) = rustix::mount::mount("tmpfs", &disk, "tmpfs", flags, size.as_c_str()) {
            return skip::cannot(&format!("a small file system cannot be mounted: {error}"));
        }
        let path = disk.join("audit.log");
        let now = SystemTime::now();
        let mut file = AuditFile::open(rotation(&path, 0, None), 0o600, now).expect("a file");
        let line = format!("{}\n", "x".repeat(1000));
        let fits = (0..200).take_while(|_| file.append(line.as_bytes(), now).is_ok()).count();
        let refused = file.append(line.as_bytes(), now);
        let text = fs::read_to_string(&path).expect("text");
        fs::write(&path, "").expect("room");
        // Another program has emptied it.
        let again = file.append(line.as_bytes(), now);
        let last = fs::read_to_string(&path).expect("text");
        drop(file);
        rustix::mount::unmount(&disk, rustix::mount::UnmountFlags::empty()).expect("unmounted");
        assert!((10..100).contains(&fits), "{fits}");
        assert_eq!(refused.expect_err("full").kind(), io::ErrorKind::StorageFull);
        assert_eq!(text, line.repeat(fits), "whole lines");
        again.expect("there is room");
        assert_eq!(last, line);
    }
}
