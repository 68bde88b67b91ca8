//! Files of a bundle on their way: first beside the instances, then, when all of them are there and are the ones that were sent, into one.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use executor_proto::host::{HostEnsure, HostFile};
use sha2::{Digest, Sha256};

use super::place::unique_name;
use super::refusal::{Answer, Refusal, unclear};
use super::runtime::Runtime;

/// Directory for what nobody but the task's user may read.
const SECRETS: &str = "secrets";

/// Files that have arrived, numbered. Removed when they are not taken.
pub(super) struct Staged {
    dir: Option<PathBuf>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(dir) = &self.dir {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Staged {
    /// For an instance without files.
    pub(super) fn none() -> Staged {
        Staged { dir: None }
    }

    /// Stores what `next` brings until all files are there; `None` from it is the early end of the channel.
    pub(super) fn receive(runtime: &Runtime, request: &HostEnsure, mut next: impl FnMut() -> Option<Vec<u8>>) -> Answer<Staged> {
        request.files.iter().try_for_each(|file| plain(&file.path).map(drop))?;
        let dir = runtime.root.join("uploads").join(unique_name());
        std::fs::DirBuilder::new().mode(0o700).create(&dir).map_err(unclear("create", &dir))?;
        let staged = Staged { dir: Some(dir.clone()) };
        let mut hash = Sha256::new();
        let mut data: Vec<u8> = Vec::new();
        for (n, HostFile { path, mode, size }) in request.files.iter().enumerate() {
            hash.update((path.len() as u64).to_le_bytes());
            hash.update(path.as_bytes());
            hash.update(mode.to_le_bytes());
            hash.update(size.to_le_bytes());
            let name = dir.join(n.to_string());
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name).map_err(unclear("create", &name))?;
            let mut left = *size;
            while left > 0 {
                if data.is_empty() {
                    data = next().ok_or_else(|| Refusal::CouldNotAsk("the channel ended before all files had arrived".into()))?;
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
        if found != request.digest || !data.is_empty() {
            return Err(Refusal::WrongRequest(format!(
                "the bundle's digest is {:?}, its {} files have {found:?} as they arrived; send the bundle again as it was made",
                request.digest,
                request.files.len()
            )));
        }
        Ok(staged)
    }

    /// Puts the files beneath the task's directory.
    pub(super) fn unpack(self, task_dir: &Path, files: &[HostFile]) -> Answer<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        for (n, file) in files.iter().enumerate() {
            let target = task_dir.join(plain(&file.path)?);
            place(&dir.join(n.to_string()), &target, mode_of(file)).map_err(unclear("unpack", &target))?;
        }
        Ok(())
    }
}

fn place(source: &Path, target: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::set_permissions(source, std::fs::Permissions::from_mode(mode))?;
    std::fs::rename(source, target)
}

/// What is below `secrets` is nobody else's, whatever its mode was where it came from.
fn mode_of(file: &HostFile) -> u32 {
    let secret = Path::new(&file.path).starts_with(SECRETS);
    file.mode & if secret { 0o700 } else { 0o7777 }
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
    use crate::cgroup_host::CgroupHost;

    fn runtime(root: &Path) -> Runtime {
        std::fs::create_dir_all(root.join("uploads")).unwrap();
        Runtime { root: root.to_owned(), id: "x".into(), binary: "/x".into(), cgroups: CgroupHost::off() }
    }

    fn request(files: &[(&str, u32, &str)]) -> HostEnsure {
        let mut hash = Sha256::new();
        for (path, mode, data) in files {
            hash.update((path.len() as u64).to_le_bytes());
            hash.update(path.as_bytes());
            hash.update(mode.to_le_bytes());
            hash.update((data.len() as u64).to_le_bytes());
            hash.update(data.as_bytes());
        }
        HostEnsure {
            digest: hash.finalize().iter().map(|b| format!("{b:02x}")).collect(),
            files: files.iter().map(|(p, mode, d)| HostFile { path: (*p).into(), mode: *mode, size: d.len() as u64 }).collect(),
            ..HostEnsure::default()
        }
    }

    #[test]
    fn files_arrive_however_the_stream_is_cut() {
        let files = [("local/bin/tool", 0o755, "#!/bin/sh\n"), ("empty", 0o644, ""), ("secrets/token", 0o666, "very secret")];
        let all: Vec<u8> = files.iter().flat_map(|f| f.2.bytes()).collect();
        for size in [1, 3, 7, 100] {
            let root = tempfile::tempdir().unwrap();
            let (runtime, request) = (runtime(root.path()), request(&files));
            let mut chunks = all.chunks(size).map(<[u8]>::to_vec);
            let staged = Staged::receive(&runtime, &request, || chunks.next()).unwrap();
            let task = root.path().join("task");
            staged.unpack(&task, &request.files).unwrap();
            let mode = |path: &str| std::fs::metadata(task.join(path)).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode("local/bin/tool"), mode("empty"), mode("secrets/token")), (0o755, 0o644, 0o600));
            assert_eq!(std::fs::read_to_string(task.join("secrets/token")).unwrap(), "very secret");
            assert_eq!(std::fs::read_dir(root.path().join("uploads")).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_is_not_what_was_sent_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(root.path());
        let receive = |request: &HostEnsure, sent: &[&str]| {
            let mut sent = sent.iter().map(|s| s.as_bytes().to_vec());
            Staged::receive(&runtime, request, || sent.next()).map(drop)
        };
        let good = request(&[("a", 0o644, "data")]);
        assert!(matches!(receive(&good, &["dat"]), Err(Refusal::CouldNotAsk(_))), "cut");
        assert!(matches!(receive(&good, &["dats"]), Err(Refusal::WrongRequest(_))), "changed");
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "."] {
            assert!(matches!(receive(&request(&[(bad, 0o644, "")]), &[]), Err(Refusal::WrongRequest(_))), "{bad}");
        }
        assert_eq!(std::fs::read_dir(root.path().join("uploads")).unwrap().count(), 0);
    }
}
