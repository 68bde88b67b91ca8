//! The runtime below `root`: instances as directories.
//!
//! Every step is safe to repeat and to interrupt. What decides is made in one atomic step each: the intent by a hard link that
//! fails when it exists, the start by the executor's lock, the end by its result. Acknowledging keeps
//! the executor's directory with the result for a week: a late start of the same key finds it and starts nothing.
//! Sealing a key that has no instance makes the same directory with a result of its own: under the executor's lock either the start or the
//! seal comes first, and the other one finds it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use driver_sdk::{BundleFile, Ensure, RemoteError, TaskConfig};
use executor_client::{CgroupPolicy, Error, Executor, LaunchSpec, Launched, Launcher, LogPolicy, RotatedLog, find_program, find_user};
use serde::{Deserialize, Serialize};

use crate::config::TaskOptions;

/// What remains of an acknowledged instance or a seal only has to outlive the last call of a manager that lost its lease long ago.
const RETIRED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Where programs are looked for when the task's environment says nothing.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_FILES: u32 = 10;
const DEFAULT_FILE_BYTES: u64 = 10 << 20;

/// What is known about an instance before it is started.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) slot: String,
    pub(crate) task_name: String,
}

/// One runtime.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    root: PathBuf,
    id: String,
    launcher: Launcher,
}

/// One instance's directory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    dir: PathBuf,
}

impl Place {
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.join("executor")
    }

    fn task_dir(&self) -> PathBuf {
        self.dir.join("task")
    }

    fn intent(&self) -> PathBuf {
        self.dir.join("instance.json")
    }

    /// The epoch of the acknowledgement or seal. Made only when the executor's directory holds a result, so that nothing runs and nothing starts.
    fn retired(&self) -> PathBuf {
        self.dir.join("retired")
    }

    fn logs_dir(&self) -> PathBuf {
        self.dir.join("logs")
    }

    pub(crate) fn log(&self, name: &str) -> RotatedLog {
        RotatedLog::new(self.logs_dir(), name)
    }
}

/// What could not be done with files of the runtime says nothing about the instance.
fn unclear(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> RemoteError {
    let text = format!("{doing} {}", path.display());
    move |e| RemoteError::could_not_ask(format!("{text}: {e}"))
}

/// An executor's error as one of the three answers.
pub(crate) fn answer(error: Error) -> RemoteError {
    match error {
        Error::StaleEpoch { given, current, .. } => RemoteError::StaleEpoch { given, accepted: current },
        Error::Exec { .. } | Error::NoSuchUser { .. } => RemoteError::wrong_request(error),
        e => RemoteError::could_not_ask(e),
    }
}

impl Runtime {
    /// Opens the runtime; makes its identity on first use.
    pub(crate) fn open(root: &Path) -> Result<Runtime, RemoteError> {
        for dir in [root.to_owned(), root.join("instances")] {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(unclear("create", &dir))?;
        }
        let file = root.join("provider-id");
        let id = match read_id(root) {
            Ok(id) => id,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let kernel = Path::new("/proc/sys/kernel/random/uuid");
                let fresh = std::fs::read_to_string(kernel).map_err(unclear("read", kernel))?;
                create_once(&file, fresh.trim().as_bytes()).map_err(unclear("create", &file))?;
                // Whoever was first has decided.
                read_id(root).map_err(unclear("read", &file))?
            }
            Err(e) => return Err(unclear("read", &file)(e)),
        };
        let launcher = Launcher::new(root.join("executors")).map_err(answer)?;
        let runtime = Runtime { root: root.to_owned(), id, launcher };
        runtime.forget_old_retirements();
        Ok(runtime)
    }

    /// Identity that all managers of this runtime see.
    pub(crate) fn provider(&self) -> String {
        format!("remote_exec/local:{}", self.id)
    }

    /// An empty mount point looks like a runtime without instances: only with our identity in it an absence means anything.
    fn check(&self) -> Result<(), RemoteError> {
        let file = self.root.join("provider-id");
        match read_id(&self.root) {
            Ok(id) if id == self.id => Ok(()),
            Ok(id) => Err(RemoteError::could_not_ask(format!(
                "{} now belongs to the runtime {id}, it was {} when this plugin was configured",
                self.root.display(),
                self.id
            ))),
            Err(e) => Err(unclear("read", &file)(e)),
        }
    }

    /// The directory for a key. Keys are file names with everything unusual escaped.
    fn place(&self, key: &str) -> Result<Place, RemoteError> {
        Ok(Place { dir: self.root.join("instances").join(file_name(key)?) })
    }

    /// The instance of a key with its intent; `Gone` when the runtime is there and the instance is not.
    pub(crate) fn find(&self, key: &str) -> Result<(Place, Intent), RemoteError> {
        let place = self.place(key)?;
        let absent = || RemoteError::gone(format!("{} has no instance {key}", self.provider()));
        let retired = place.retired();
        if retired.try_exists().map_err(unclear("look at", &retired))? {
            // An intent beside it is of a call that came too late, or the retirement was interrupted.
            self.check()?;
            return Err(absent());
        }
        let file = place.intent();
        match std::fs::read(&file) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(intent) => Ok((place, intent)),
                Err(e) => Err(RemoteError::could_not_ask(format!("{} is damaged: {e}", file.display()))),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.check()?;
                Err(absent())
            }
            Err(e) => Err(unclear("read", &file)(e)),
        }
    }

    /// Creates the instance or gets the one that has the key. Also completes what a crash has left half-made.
    pub(crate) async fn ensure(&self, request: &Ensure) -> Result<(Place, Launched), RemoteError> {
        self.check()?;
        let options = TaskOptions::decode(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        let place = self.place(&request.key)?;
        self.refuse_sealed(&place, request.epoch)?;
        // What runs or has run is not prepared again; it only learns the epoch.
        let standing = match self.find(&request.key) {
            Ok((_, intent)) => {
                owned(&intent, &request.owner)?;
                match Executor::attach(&place.state_dir()).await {
                    Ok(executor) => Some(executor),
                    Err(Error::Absent { .. }) => None,
                    Err(e) => return Err(answer(e)),
                }
            }
            Err(RemoteError::Gone(_)) => None,
            Err(e) => return Err(e),
        };
        let launched = match standing {
            Some(executor) => {
                executor.at_epoch(request.epoch).claim().await.map_err(answer)?;
                Launched { executor, created: false }
            }
            None => {
                // Refused before anything is made.
                refuse_what_cannot_be_had(&request.task)?;
                request.bundle.verify()?;
                make(&place)?;
                let intent = Intent {
                    key: request.key.clone(),
                    owner: request.owner.clone(),
                    slot: request.slot.clone(),
                    task_name: request.task.name.clone(),
                };
                let file = place.intent();
                let bytes = serde_json::to_vec(&intent).map_err(RemoteError::wrong_request)?;
                create_once(&file, &bytes).map_err(unclear("create", &file))?;
                // A seal that has not seen this intent is seen here.
                self.refuse_sealed(&place, request.epoch)?;
                owned(&self.find(&request.key)?.1, &request.owner)?;
                let spec = self.prepare(&place, request, &options).await?;
                self.launcher.launch(&place.state_dir(), spec).await.map_err(answer)?
            }
        };
        if !launched.created {
            // Found ended because it has been sealed meanwhile.
            self.refuse_sealed(&place, request.epoch)?;
        }
        Ok((place, launched))
    }

    /// Refuses a key that nothing is started with any more, and removes what a late call has begun to lay out.
    fn refuse_sealed(&self, place: &Place, epoch: u64) -> Result<(), RemoteError> {
        let retired = place.retired();
        let accepted: u64 = match std::fs::read_to_string(&retired) {
            Ok(epoch) => epoch.trim().parse().unwrap_or(0),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(unclear("read", &retired)(e)),
        };
        self.clear(place)?;
        if epoch < accepted {
            return Err(RemoteError::StaleEpoch { given: epoch, accepted });
        }
        Err(RemoteError::sealed(
            "it was stopped before it was created, or its instance has ended and was acknowledged; a new start needs a new key",
        ))
    }

    /// The place of a key that may never have been used, with an executor's directory in which it can be decided that nothing starts.
    pub(crate) fn reserve(&self, key: &str) -> Result<Place, RemoteError> {
        self.check()?;
        let place = self.place(key)?;
        make(&place)?;
        Ok(place)
    }

    /// Lays out the task's directory and says what to run in it.
    async fn prepare(&self, place: &Place, request: &Ensure, options: &TaskOptions) -> Result<LaunchSpec, RemoteError> {
        let task = &request.task;
        let user = match task.user.as_str() {
            "" => None,
            name => Some(find_user(name).await.map_err(answer)?),
        };
        let task_dir = place.task_dir();
        let alloc_dir = place.dir.join("alloc");
        let dirs = ["local", "secrets", "tmp"].map(|d| task_dir.join(d));
        let shared = ["data", "tmp"].map(|d| alloc_dir.join(d));
        for dir in dirs.iter().chain(&shared).chain([&place.logs_dir()]) {
            std::fs::create_dir_all(dir).map_err(unclear("create", dir))?;
        }
        for file in &request.bundle.files {
            unpack(&task_dir, file)?;
        }
        if let Some(user) = &user {
            let own = |path: &Path| std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid));
            give(&task_dir, &own).and_then(|()| give(&alloc_dir, &own)).map_err(unclear("give to the user", &task_dir))?;
            // The way to it is passable, its neighbours stay hidden.
            for dir in [&self.root, &self.root.join("instances"), &place.dir] {
                let passable = std::fs::Permissions::from_mode(0o711);
                std::fs::set_permissions(dir, passable).map_err(unclear("make passable", dir))?;
            }
        }
        let mut env = task.env.clone();
        env.extend(task.device_env.clone());
        // The node's names for these directories mean nothing here.
        for (name, dir) in [("TASK", &dirs[0]), ("SECRETS", &dirs[1]), ("ALLOC", &alloc_dir)] {
            env.insert(format!("NOMAD_{name}_DIR"), dir.display().to_string());
        }
        env.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
        let path = env.get("PATH").map(OsString::from);
        let command = find_program(&task_dir, &options.command, path.as_deref()).map_err(answer)?;
        Ok(LaunchSpec {
            id: request.key.clone(),
            command,
            args: options.args.iter().map(OsString::from).collect(),
            env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: task_dir,
            user,
            log: log_policy(task, place),
            cgroup: Some(cgroup_policy(&request.key, task)),
            oom_score_adj: None,
            epoch: Some(request.epoch),
            isolation: None,
            listen: true,
        })
    }

    /// Keys of all instances, sorted.
    pub(crate) fn keys(&self) -> Result<Vec<String>, RemoteError> {
        self.check()?;
        let dir = self.root.join("instances");
        let mut keys = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(unclear("list", &dir))? {
            let name = entry.map_err(unclear("list", &dir))?.file_name();
            keys.extend(name.to_str().and_then(key_of));
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// Forgets an instance that has ended, except for what keeps its key from being started again; that is kept for another week from now.
    pub(crate) fn retire(&self, place: &Place, epoch: u64) -> Result<(), RemoteError> {
        let retired = place.retired();
        create_once(&retired, epoch.to_string().as_bytes()).map_err(unclear("create", &retired))?;
        let again = std::fs::OpenOptions::new().write(true).open(&retired).and_then(|file| file.set_modified(SystemTime::now()));
        again.map_err(unclear("date", &retired))?;
        let instances = self.root.join("instances");
        sync(&instances).map_err(unclear("store", &instances))?;
        self.clear(place)
    }

    /// Finishes a retirement that a crash has interrupted.
    pub(crate) fn finish_retirement(&self, key: &str) -> Result<(), RemoteError> {
        let place = self.place(key)?;
        if place.retired().exists() { self.clear(&place) } else { Ok(()) }
    }

    /// Removes everything but the executor's directory and the mark of the retirement.
    fn clear(&self, place: &Place) -> Result<(), RemoteError> {
        let intent = place.intent();
        match std::fs::remove_file(&intent) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(unclear("remove", &intent)(e)),
            _ => {}
        }
        for dir in [place.task_dir(), place.dir.join("alloc"), place.logs_dir()] {
            match std::fs::remove_dir_all(&dir) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(unclear("remove", &dir)(e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn forget_old_retirements(&self) {
        let now = SystemTime::now();
        for entry in std::fs::read_dir(self.root.join("instances")).into_iter().flatten().flatten() {
            let modified = std::fs::metadata(entry.path().join("retired")).and_then(|m| m.modified());
            let age = modified.ok().and_then(|at| now.duration_since(at).ok());
            if age.is_some_and(|age| age > RETIRED_FOR) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn read_id(root: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(root.join("provider-id"))?;
    let id = text.trim();
    if id.is_empty() { Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty")) } else { Ok(id.to_owned()) }
}

/// For a file on its way to its name; managers in other processes and other calls in this one do the same meanwhile.
fn unique_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(".new-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Creates a file with its content in one step, durably; an existing one stays as it is.
fn create_once(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let dir = path.parent().unwrap_or(Path::new("/"));
    let temporary = dir.join(unique_name());
    let linked = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| match std::fs::hard_link(&temporary, path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
    let _ = std::fs::remove_file(&temporary);
    linked?;
    sync(dir)
}

/// Makes the names in a directory durable.
fn sync(dir: &Path) -> io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}

/// Creates the directories in which starts are decided.
fn make(place: &Place) -> Result<(), RemoteError> {
    for dir in [place.dir.clone(), place.state_dir()] {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(unclear("create", &dir))?;
    }
    Ok(())
}

/// Refuses to touch what another cluster owns.
pub(crate) fn owned(intent: &Intent, owner: &str) -> Result<(), RemoteError> {
    if intent.owner == owner {
        return Ok(());
    }
    Err(RemoteError::wrong_request(format!("instance {} belongs to the cluster {:?}, not to {owner:?}", intent.key, intent.owner)))
}

/// Writes one file of the bundle beneath the task's directory.
fn unpack(task_dir: &Path, file: &BundleFile) -> Result<(), RemoteError> {
    let relative = Path::new(&file.path);
    let plain = relative.components().all(|c| matches!(c, Component::Normal(_)));
    if !plain || file.path.is_empty() {
        return Err(RemoteError::wrong_request(format!("the bundle holds {:?}, which is not a plain relative path", file.path)));
    }
    let target = task_dir.join(relative);
    let write = || {
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let temporary = target.with_file_name(unique_name());
        std::fs::write(&temporary, &file.data)?;
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(file.mode & 0o7777))?;
        std::fs::rename(&temporary, &target)
    };
    write().map_err(unclear("unpack", &target))
}

/// Applies `own` to a directory and everything in it; links are not followed.
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

fn refuse_what_cannot_be_had(task: &TaskConfig) -> Result<(), RemoteError> {
    use driver_sdk::proto::driver::network_isolation_spec::NetworkIsolationMode;
    let refuse = |what: &str| Err(RemoteError::wrong_request(format!("remote_exec cannot offer {what}")));
    if let Some(spec) = &task.network_isolation_spec
        && spec.mode() != NetworkIsolationMode::Host
    {
        return refuse("a network of the group's own; use network mode \"host\"");
    }
    if !task.mounts.is_empty() {
        return refuse("volume mounts");
    }
    if !task.devices.is_empty() {
        return refuse("devices");
    }
    let linux = task.resources.as_ref().and_then(|r| r.linux_resources.as_ref());
    if linux.is_some_and(|l| !l.cpuset_cpus.is_empty()) {
        return refuse("reserved cores; use `cpu` instead of `cores`");
    }
    Ok(())
}

/// Names and limits as the host wishes, in the instance's own directory.
fn log_policy(task: &TaskConfig, place: &Place) -> Option<LogPolicy> {
    let wanted = task.drover_log.clone().unwrap_or_default();
    let positive = |n: u64, default: u64| if n == 0 { default } else { n };
    (!wanted.disabled).then(|| LogPolicy {
        dir: place.logs_dir(),
        stdout_name: format!("{}.stdout", task.name),
        stderr_name: format!("{}.stderr", task.name),
        max_files: if wanted.max_files == 0 { DEFAULT_FILES } else { wanted.max_files },
        max_file_bytes: positive(wanted.max_file_size_bytes, DEFAULT_FILE_BYTES),
    })
}

fn cgroup_policy(key: &str, task: &TaskConfig) -> CgroupPolicy {
    let positive = |n: i64| u64::try_from(n).ok().filter(|n| *n > 0);
    let resources = task.resources.as_ref();
    let linux = resources.and_then(|r| r.linux_resources.as_ref());
    let memory = resources.and_then(|r| r.allocated_resources.as_ref()?.memory.as_ref());
    let memory_max = linux.and_then(|l| positive(l.memory_limit_bytes));
    let reserved = memory.and_then(|m| positive(m.memory_mb)).map(|mib| mib << 20);
    let safe = key.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '.' });
    CgroupPolicy {
        name: format!("remote-{}", safe.collect::<String>()),
        memory_max,
        memory_reservation: reserved.filter(|reserved| memory_max.is_some_and(|max| *reserved < max)),
        cpu_shares: linux.and_then(|l| positive(l.cpu_shares)),
        ..CgroupPolicy::default()
    }
}

/// A file name for any key: what is unusual in names is written as `%` and two hexadecimal digits.
fn file_name(key: &str) -> Result<String, RemoteError> {
    let mut name = String::with_capacity(key.len());
    for (n, byte) in key.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte as char),
            b'.' if n > 0 => name.push('.'),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    if name.is_empty() || name.len() > 240 {
        return Err(RemoteError::wrong_request(format!("the key {key:?} is empty or too long for a file name")));
    }
    Ok(name)
}

/// The key behind a file name; `None` for names that no key has.
fn key_of(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'%' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &rest[2..];
            }
            other => bytes.push(*other),
        }
    }
    let key = String::from_utf8(bytes).ok()?;
    (file_name(&key).ok()? == name).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_has_a_file_name_of_its_own() {
        let keys = ["a-b_c", "a/b", "../x", ".", "..", "ü%", "%2e", "a.b", "A", "a", "with space"];
        let names: std::collections::BTreeSet<String> = keys.iter().map(|k| file_name(k).unwrap()).collect();
        assert_eq!(names.len(), keys.len());
        for key in keys {
            let name = file_name(key).unwrap();
            assert!(!name.contains('/') && !name.starts_with('.'), "{name}");
            assert_eq!(key_of(&name).as_deref(), Some(key));
        }
        assert!(file_name("").is_err() && file_name(&"x".repeat(300)).is_err());
        for stray in [".hidden", "%", "%zz", "a b"] {
            assert_eq!(key_of(stray), None, "{stray}");
        }
    }

    #[test]
    fn bundles_stay_beneath_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str| BundleFile { path: path.into(), mode: 0o755, data: b"x".to_vec() };
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "."] {
            assert!(matches!(unpack(dir.path(), &file(bad)), Err(RemoteError::WrongRequest(_))), "{bad}");
        }
        unpack(dir.path(), &file("local/bin/tool")).unwrap();
        unpack(dir.path(), &file("local/bin/tool")).unwrap();
        let mode = std::fs::metadata(dir.path().join("local/bin/tool")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn the_first_creation_decides() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        create_once(&file, b"one").unwrap();
        create_once(&file, b"two").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"one");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
