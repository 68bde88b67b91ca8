//! Lays out an instance's directory and builds its spec.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use executor_proto::host::HostEnsure;
use executor_proto::{LogPolicy, MARKER_VARIABLE, Spec, User};

use super::files::Staged;
use super::place::Place;
use super::refusal::{Answer, Refusal, unclear};
use super::runtime::Runtime;
use crate::program::{find_program, find_user};
use cgroup::CgroupPolicy;

/// Search path of programs if the task's environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_FILES: u32 = 10;
const DEFAULT_FILE_BYTES: u64 = 10 << 20;

impl Runtime {
    /// Lays out the task's directory and builds its spec.
    pub(super) fn prepare(&self, place: &Place, request: &HostEnsure, files: Staged) -> Answer<Spec> {
        let user = become_whom(&request.user)?;
        let (task_dir, alloc_dir) = (place.task_dir(), place.alloc_dir());
        let dirs = ["local", "secrets", "tmp"].map(|d| task_dir.join(d));
        let shared = ["data", "tmp"].map(|d| alloc_dir.join(d));
        for dir in dirs.iter().chain(&shared).chain([&place.logs_dir()]) {
            std::fs::create_dir_all(dir).map_err(unclear("create", dir))?;
        }
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&dirs[1], private).map_err(unclear("protect", &dirs[1]))?;
        files.unpack(&task_dir, &request.files)?;
        if let Some(user) = &user {
            let own = |path: &Path| std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid));
            give(&task_dir, &own)
                .and_then(|()| give(&alloc_dir, &own))
                .map_err(unclear("give to the user", &task_dir))?;
            // Others may pass through, but cannot list the neighbours.
            for dir in [&self.root, &self.root.join("instances"), &place.dir] {
                let passable = std::fs::Permissions::from_mode(0o711);
                std::fs::set_permissions(dir, passable).map_err(unclear("make passable", dir))?;
            }
        }
        let mut env = request.env.clone();
        // The manager's paths of these directories do not exist here.
        for (name, dir) in [("TASK", &dirs[0]), ("SECRETS", &dirs[1]), ("ALLOC", &alloc_dir)] {
            env.insert(format!("NOMAD_{name}_DIR"), dir.display().to_string());
        }
        let path = env.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into()).clone();
        let command = find_program(&task_dir, &request.command, Some(OsStr::new(&path)))?;
        let policy = cgroup_policy(request);
        let cgroup = self.cgroups.place(&policy);
        if cgroup.is_none() {
            env.insert(MARKER_VARIABLE.into(), request.key.clone());
        }
        Ok(Spec {
            id: request.key.clone(),
            command: bytes(&command),
            args: request.args.iter().map(|a| a.clone().into_bytes()).collect(),
            env: env.into_iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect(),
            cwd: bytes(&work_dir(&task_dir, &request.work_dir)?),
            user,
            log: log_policy(request, place),
            cgroup,
            epoch: request.epoch,
            listen: true,
            ..Spec::default()
        })
    }
}

/// The user to become; `None` when this process already is that user.
fn become_whom(name: &str) -> Answer<Option<User>> {
    if name.is_empty() {
        return Ok(None);
    }
    let user = find_user(name)?;
    let own = rustix::process::geteuid();
    if own.is_root() {
        return Ok(Some(user));
    }
    if own.as_raw() == user.uid {
        return Ok(None);
    }
    Err(Refusal::WrongRequest(format!(
        "the task is to run as user {name:?}, and only root can start it as another user; this host is reached \
            as uid {}",
        own.as_raw()
    )))
}

/// The working directory; a relative one is made.
fn work_dir(task_dir: &Path, wanted: &str) -> Answer<PathBuf> {
    let path = Path::new(wanted);
    if path.is_absolute() {
        return match path.is_dir() {
            true => Ok(path.to_owned()),
            false => Err(Refusal::WrongRequest(format!("work_dir {wanted:?} is not a directory of this host"))),
        };
    }
    if !path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(Refusal::WrongRequest(format!(
            "work_dir {wanted:?} leaves the task's directory; use a plain or an absolute path"
        )));
    }
    let dir = task_dir.join(path);
    std::fs::create_dir_all(&dir).map_err(unclear("create", &dir))?;
    Ok(dir)
}

/// Applies `own` to a directory and everything in it, without following links.
fn give(dir: &Path, own: &dyn Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    own(dir)?;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            give(&entry.path(), own)?;
        } else if kind.is_file() {
            own(&entry.path())?;
        }
    }
    Ok(())
}

/// Names and limits from the manager, in the instance's own directory.
fn log_policy(request: &HostEnsure, place: &Place) -> Option<LogPolicy> {
    (!request.log_disabled).then(|| LogPolicy {
        dir: bytes(&place.logs_dir()),
        stdout_name: format!("{}.stdout", request.task_name),
        stderr_name: format!("{}.stderr", request.task_name),
        max_files: if request.log_files == 0 { DEFAULT_FILES } else { request.log_files },
        max_file_bytes: if request.log_file_bytes == 0 { DEFAULT_FILE_BYTES } else { request.log_file_bytes },
    })
}

fn cgroup_policy(request: &HostEnsure) -> CgroupPolicy {
    let positive = |n: u64| Some(n).filter(|n| *n > 0);
    let safe = request.key.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '.' });
    CgroupPolicy {
        name: format!("remote-{}", safe.collect::<String>()),
        memory_max: positive(request.memory_max),
        memory_reservation: positive(request.memory_reservation),
        cpu_shares: positive(request.cpu_shares),
        ..CgroupPolicy::default()
    }
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_directories_stay_below_or_exist() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(work_dir(dir.path(), "").unwrap(), dir.path());
        assert_eq!(work_dir(dir.path(), "local/x").unwrap(), dir.path().join("local/x"));
        assert!(dir.path().join("local/x").is_dir());
        assert_eq!(work_dir(dir.path(), "/").unwrap(), Path::new("/"));
        for bad in ["../x", "a/../..", "/no/such/dir"] {
            assert!(matches!(work_dir(dir.path(), bad), Err(Refusal::WrongRequest(_))), "{bad}");
        }
    }
}
