//! Transfer of a bundle's files: first to a staging directory, then, when all have arrived and match their digest, into
//! the instance.
//!
//! Before the start of an instance nothing else uses its directory. Later the task does, and may have planted links:
//! renewing files follows none.

use std::fs::{DirEntry, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use executor_proto::host::HostFile;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, Uid, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::place::unique_name;
use super::refusal::{Answer, Refusal, unclear};
use super::runtime::Runtime;

/// Directory for files that only the task's user may read.
const SECRETS: &str = "secrets";

/// A directory of files that arrive. The process that receives them holds its lock, so that whatever a killed one has
/// left can be told and removed: secrets may be among it.
pub(super) struct Upload {
    dir: PathBuf,
    _lock: File,
}

impl Upload {
    const PREFIX: &str = ".upload-";

    fn new(root: &Path) -> Answer<Upload> {
        // Another channel may take it for a dead one's before it has its lock.
        for _ in 0..10 {
            let dir = root.join("uploads").join(format!("{}{}", Upload::PREFIX, unique_name()));
            std::fs::DirBuilder::new().mode(0o700).create(&dir).map_err(unclear("create", &dir))?;
            if let Some(lock) = Upload::lock(&dir) {
                return Ok(Upload { dir, _lock: lock });
            }
            let _ = std::fs::remove_dir(&dir);
        }
        Err(Refusal::CouldNotAsk(format!("no directory in {} could be locked", root.join("uploads").display())))
    }

    /// The lock of a directory that is still there; `None` when another process has it.
    fn lock(dir: &Path) -> Option<File> {
        let lock = File::open(dir).ok()?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        dir.exists().then_some(lock)
    }

    pub(super) fn is_one(entry: &DirEntry) -> bool {
        entry.file_name().as_encoded_bytes().starts_with(Upload::PREFIX.as_bytes())
    }

    /// Removes what processes that are no more have left.
    pub(super) fn tidy(root: &Path) {
        let entries = std::fs::read_dir(root.join("uploads")).into_iter().flatten().flatten();
        for entry in entries.filter(Upload::is_one) {
            if let Some(_lock) = Upload::lock(&entry.path()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Removes what this process receives. It is about to end.
    pub(super) fn give_up(root: &Path) {
        let own = format!("{}.new-{}-", Upload::PREFIX, std::process::id());
        for entry in std::fs::read_dir(root.join("uploads")).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(own.as_bytes()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Numbered files that have arrived. A drop removes them, unless they were taken.
pub(super) struct Staged {
    upload: Option<Upload>,
}

impl Staged {
    /// For an instance without files.
    pub(super) fn none() -> Staged {
        Staged { upload: None }
    }

    /// Stores the data of `next` until all files have arrived; `None` from it is an early end of the channel.
    pub(super) fn receive(
        runtime: &Runtime,
        files: &[HostFile],
        digest: &str,
        mut next: impl FnMut() -> Option<Vec<u8>>,
    ) -> Answer<Staged> {
        files.iter().try_for_each(|file| plain(&file.path).map(drop))?;
        let upload = Upload::new(&runtime.root)?;
        let dir = upload.dir.clone();
        let staged = Staged { upload: Some(upload) };
        let mut hash = Sha256::new();
        let mut data: Vec<u8> = Vec::new();
        for (n, HostFile { path, mode, size }) in files.iter().enumerate() {
            hash.update((path.len() as u64).to_le_bytes());
            hash.update(path.as_bytes());
            hash.update(mode.to_le_bytes());
            hash.update(size.to_le_bytes());
            let name = dir.join(n.to_string());
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&name)
                .map_err(unclear("create", &name))?;
            let mut left = *size;
            while left > 0 {
                if data.is_empty() {
                    data = next()
                        .ok_or_else(|| Refusal::CouldNotAsk("the channel ended before all files had arrived".into()))?;
                    continue;
                }
                let part = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                file.write_all(&data[..part]).map_err(unclear("write", &name))?;
                hash.update(&data[..part]);
                data.drain(..part);
                left -= part as u64;
            }
        }
        let found: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        if found != digest || !data.is_empty() {
            return Err(Refusal::WrongRequest(format!(
                "the bundle's digest is {digest:?}, its {} files have {found:?} as they arrived; send the bundle \
                    again as it was made",
                files.len()
            )));
        }
        Ok(staged)
    }

    /// Puts the files below the task's directory.
    pub(super) fn unpack(self, task_dir: &Path, files: &[HostFile]) -> Answer<()> {
        let Some(Upload { dir, .. }) = &self.upload else { return Ok(()) };
        for (n, file) in files.iter().enumerate() {
            let target = task_dir.join(plain(&file.path)?);
            if is_directory(file) {
                make(&target, mode_of(file)).map_err(unclear("make", &target))?;
                continue;
            }
            place(&dir.join(n.to_string()), &target, mode_of(file)).map_err(unclear("unpack", &target))?;
        }
        Ok(())
    }

    /// Replaces files of a running task, each atomically. They get the owner of the task's directory.
    pub(super) fn renew(self, task_dir: &Path, files: &[HostFile]) -> Answer<()> {
        let Some(Upload { dir, .. }) = &self.upload else { return Ok(()) };
        let root = directory(CWD, task_dir).map_err(|e| unclear("open", task_dir)(e.into()))?;
        let own = rustix::fs::fstat(&root).map_err(|e| unclear("look at", task_dir)(e.into()))?;
        let owner = (Uid::from_raw(own.st_uid), Gid::from_raw(own.st_gid));
        for (n, file) in files.iter().enumerate() {
            let path = plain(&file.path)?;
            if is_directory(file) {
                return Err(Refusal::WrongRequest(format!(
                    "{:?} is a directory; files are renewed, and directories made for them",
                    file.path
                )));
            }
            replace(&root, owner, &dir.join(n.to_string()), path, mode_of(file)).map_err(|e| match e {
                // A link counts as no directory, wherever it leads.
                Errno::NOTDIR | Errno::LOOP | Errno::ISDIR => Refusal::WrongRequest(format!(
                    "{:?} cannot be renewed: the task has put something else in its way, a link or a file where a \
                        directory belongs ({e})",
                    file.path
                )),
                e => unclear("renew", &task_dir.join(path))(e.into()),
            })?;
        }
        Ok(())
    }
}

/// Opens a directory, but no link.
fn directory(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Moves a complete file to its place below `root`, step by step and through no link; makes missing directories.
fn replace(root: &OwnedFd, owner: (Uid, Gid), source: &Path, path: &Path, mode: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (Some(owner.0), Some(owner.1));
    rustix::fs::chownat(CWD, source, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    // After the owner, whose change clears set-id bits.
    rustix::fs::chmod(source, Mode::from_raw_mode(mode))?;
    let mut parent = root.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    for step in path.parent().into_iter().flat_map(Path::components) {
        let step = Path::new(step.as_os_str());
        parent = match directory(&parent, step) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&parent, step, Mode::from_raw_mode(0o755)) {
                    Err(Errno::EXIST) => {}
                    made => {
                        made.and_then(|()| rustix::fs::chownat(&parent, step, uid, gid, AtFlags::SYMLINK_NOFOLLOW))?
                    }
                }
                directory(&parent, step)?
            }
            opened => opened?,
        };
    }
    rustix::fs::renameat(CWD, source, &parent, path.file_name().map_or(path, Path::new))
}

fn place(source: &Path, target: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::set_permissions(source, std::fs::Permissions::from_mode(mode))?;
    std::fs::rename(source, target)
}

/// Whether it is a directory.
fn is_directory(file: &HostFile) -> bool {
    file.path.ends_with('/')
}

fn make(target: &Path, mode: u32) -> io::Result<()> {
    std::fs::create_dir_all(target)?;
    std::fs::set_permissions(target, std::fs::Permissions::from_mode(mode))
}

/// Files below `secrets` are private, whatever their original mode. None runs with its owner's rights.
fn mode_of(file: &HostFile) -> u32 {
    let secret = Path::new(&file.path).starts_with(SECRETS);
    file.mode & if secret { 0o700 } else { 0o1777 }
}

/// Refuses paths that are not plainly below a directory.
fn plain(path: &str) -> Answer<&Path> {
    let relative = Path::new(path);
    if !path.is_empty() && relative.components().all(|c| matches!(c, Component::Normal(_))) {
        return Ok(relative);
    }
    Err(Refusal::WrongRequest(format!("the bundle holds {path:?}, which is not a plain relative path")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgroup::CgroupHost;

    fn runtime(root: &Path) -> Runtime {
        std::fs::create_dir_all(root.join("uploads")).unwrap();
        let root = root.to_owned();
        Runtime { root, id: "x".into(), boot: "b".into(), binary: "/x".into(), cgroups: CgroupHost::off() }
    }

    fn request(files: &[(&str, u32, &str)]) -> (Vec<HostFile>, String) {
        let mut hash = Sha256::new();
        for (path, mode, data) in files {
            hash.update((path.len() as u64).to_le_bytes());
            hash.update(path.as_bytes());
            hash.update(mode.to_le_bytes());
            hash.update((data.len() as u64).to_le_bytes());
            hash.update(data.as_bytes());
        }
        let listed = files.iter().map(|(p, mode, d)| HostFile { path: (*p).into(), mode: *mode, size: d.len() as u64 });
        (listed.collect(), hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
    }

    #[test]
    fn files_arrive_however_the_stream_is_cut() {
        let files = [
            ("local/bin/tool", 0o4755, "#!/bin/sh\n"),
            ("empty", 0o644, ""),
            ("secrets/token", 0o666, "very secret"),
            ("local/d/", 0o750, ""),
        ];
        let all: Vec<u8> = files.iter().flat_map(|f| f.2.bytes()).collect();
        for size in [1, 3, 7, 100] {
            let root = tempfile::tempdir().unwrap();
            let (runtime, (listed, digest)) = (runtime(root.path()), request(&files));
            let mut chunks = all.chunks(size).map(<[u8]>::to_vec);
            let staged = Staged::receive(&runtime, &listed, &digest, || chunks.next()).unwrap();
            let task = root.path().join("task");
            staged.unpack(&task, &listed).unwrap();
            let mode = |path: &str| std::fs::metadata(task.join(path)).unwrap().permissions().mode() & 0o7777;
            assert_eq!((mode("local/bin/tool"), mode("empty"), mode("secrets/token")), (0o755, 0o644, 0o600));
            assert!(task.join("local/d").is_dir() && mode("local/d") == 0o750, "a directory of its own");
            assert_eq!(std::fs::read_to_string(task.join("secrets/token")).unwrap(), "very secret");
            assert_eq!(std::fs::read_dir(root.path().join("uploads")).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_is_not_what_was_sent_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(root.path());
        let receive = |(files, digest): &(Vec<HostFile>, String), sent: &[&str]| {
            let mut sent = sent.iter().map(|s| s.as_bytes().to_vec());
            Staged::receive(&runtime, files, digest, || sent.next()).map(drop)
        };
        let good = request(&[("a", 0o644, "data")]);
        assert!(matches!(receive(&good, &["dat"]), Err(Refusal::CouldNotAsk(_))), "cut");
        assert!(matches!(receive(&good, &["dats"]), Err(Refusal::WrongRequest(_))), "changed");
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "."] {
            assert!(matches!(receive(&request(&[(bad, 0o644, "")]), &[]), Err(Refusal::WrongRequest(_))), "{bad}");
        }
        assert_eq!(std::fs::read_dir(root.path().join("uploads")).unwrap().count(), 0);
    }

    #[test]
    fn what_runs_gets_new_files_whole_and_through_no_link() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(root.path());
        let task = root.path().join("task");
        let elsewhere = root.path().join("elsewhere");
        for dir in [&task.join("secrets"), &task.join("local/dir"), &elsewhere] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let renew = |files: &[(&str, u32, &str)]| {
            let (listed, digest) = request(files);
            let mut data = files.iter().map(|f| f.2.as_bytes().to_vec()).filter(|d| !d.is_empty());
            Staged::receive(&runtime, &listed, &digest, || data.next()).unwrap().renew(&task, &listed)
        };
        let read = |path: &str| std::fs::read_to_string(task.join(path)).unwrap();
        renew(&[("secrets/token", 0o644, "old"), ("local/made/x", 0o640, "made")]).unwrap();
        // An open old file keeps its whole content.
        let mut open = std::fs::File::open(task.join("secrets/token")).unwrap();
        std::os::unix::fs::symlink(elsewhere.join("other"), task.join("local/link")).unwrap();
        renew(&[("secrets/token", 0o644, "new"), ("local/link", 0o644, "file")]).unwrap();
        let mut old = String::new();
        io::Read::read_to_string(&mut open, &mut old).unwrap();
        assert_eq!(
            (old.as_str(), read("secrets/token").as_str(), read("local/made/x").as_str()),
            ("old", "new", "made")
        );
        let mode = |path: &str| std::fs::symlink_metadata(task.join(path)).unwrap().permissions().mode();
        assert_eq!((mode("secrets/token") & 0o777, mode("local/made/x") & 0o777), (0o600, 0o640));
        assert!(
            std::fs::symlink_metadata(task.join("local/link")).unwrap().is_file(),
            "the link is replaced, not followed"
        );

        std::os::unix::fs::symlink(&elsewhere, task.join("out")).unwrap();
        std::os::unix::fs::symlink("../..", task.join("local/up")).unwrap();
        for hostile in ["out/x", "local/up/x", "local/dir", "local/dir/", "secrets/token/x"] {
            let refused = renew(&[(hostile, 0o644, if hostile.ends_with('/') { "" } else { "stolen" })]);
            assert!(matches!(refused, Err(Refusal::WrongRequest(_))), "{hostile}: {refused:?}");
        }
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0, "nothing was written elsewhere");
        assert!(!root.path().join("x").exists());
        assert_eq!(std::fs::read_dir(root.path().join("uploads")).unwrap().count(), 0);
    }
}
