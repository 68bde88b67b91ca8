//! Starting an executor.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cgroup::Paths;
use executor::contain;
use executor_proto::{ErrorCode, Failure, MARKER_VARIABLE, Reply, Spec, StateRecord, encode_frame, reply};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use crate::executor::{Executor, receive};
use crate::{CgroupHost, CgroupPolicy, Error, install};

pub use executor_proto::{Bind, Isolation, Propagation, User};

/// A start takes milliseconds; a disk that hangs must not block the caller for ever.
const START: Duration = Duration::from_secs(30);
/// Attempts of a start that finds a killed executor's leftovers.
const ATTEMPTS: usize = 3;

/// Rotated output files of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPolicy {
    /// Directory of the files.
    pub dir: PathBuf,
    /// Base name for standard output, such as `web.stdout`.
    pub stdout_name: String,
    /// Base name for standard error.
    pub stderr_name: String,
    /// Number of files kept of each stream.
    pub max_files: u32,
    /// Limit of each file in bytes.
    pub max_file_bytes: u64,
}

impl LogPolicy {
    pub(crate) fn to_wire(&self) -> executor_proto::LogPolicy {
        executor_proto::LogPolicy {
            dir: self.dir.as_os_str().as_bytes().to_vec(),
            stdout_name: self.stdout_name.clone(),
            stderr_name: self.stderr_name.clone(),
            max_files: self.max_files,
            max_file_bytes: self.max_file_bytes,
        }
    }
}

/// A workload to start.
#[derive(Clone, Debug, Default)]
pub struct LaunchSpec {
    /// Name for people, and for the search of its processes.
    pub id: String,
    /// Absolute path of the program.
    pub command: PathBuf,
    /// Arguments after the program's own name.
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// The user to become; `None` = no change.
    pub user: Option<User>,
    /// Destination of output; `None` = discarded.
    pub log: Option<LogPolicy>,
    /// Cgroup and limits, if the host has cgroups.
    pub cgroup: Option<CgroupPolicy>,
    /// Value for `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// Epoch of the manager; `None` = epochs are not used.
    pub epoch: Option<u64>,
    /// Own namespaces, mounts and rights; `command` and `cwd` are then paths inside.
    pub isolation: Option<Isolation>,
    /// Make the control socket at once, for controllers that cannot see this one's processes. Otherwise it is made when
    /// a controller looks for the workload.
    pub listen: bool,
}

/// The result of [`Launcher::launch`].
#[derive(Clone, Debug)]
pub struct Launched {
    /// The workload; it may have ended already.
    pub executor: Executor,
    /// False when the state directory already held a workload, which stays as it is.
    pub created: bool,
}

/// Starts executors.
#[derive(Clone, Debug)]
pub struct Launcher {
    binary: PathBuf,
    cgroups: CgroupHost,
}

impl Launcher {
    /// Installs the executor below `bin_dir` and detects the host's cgroups.
    ///
    /// # Errors
    /// As [`install`].
    pub fn new(bin_dir: impl AsRef<Path>) -> Result<Launcher, Error> {
        Ok(Launcher { binary: install(bin_dir.as_ref())?, cgroups: CgroupHost::detect() })
    }

    /// Uses other cgroups than the detected ones, or none.
    pub fn with_cgroups(mut self, cgroups: CgroupHost) -> Launcher {
        self.cgroups = cgroups;
        self
    }

    /// The host's cgroups.
    pub fn cgroups(&self) -> &CgroupHost {
        &self.cgroups
    }

    /// Path of the installed executor.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Finds the workload of `state_dir` again, as [`Executor::attach`] does. If its executor was killed and its record
    /// is damaged, `id` and `policy` of the launch identify its processes.
    ///
    /// # Errors
    /// Those of [`Executor::attach`] but [`Error::Damaged`] of the executor's record.
    pub async fn recover(&self, state_dir: &Path, id: &str, policy: &CgroupPolicy) -> Result<Executor, Error> {
        let damaged = match Executor::attach(state_dir).await {
            Err(Error::Damaged { why, .. }) => why,
            other => return other,
        };
        tracing::warn!(state_dir = %state_dir.display(), why = damaged, "the record of an executor that was killed is \
            damaged, its workload is ended");
        let paths = self.cgroups.place(policy).map(|cgroup| Paths::of_spec(&cgroup)).unwrap_or_default();
        let (cgroup, cgroup_v1) = paths.to_record();
        let boot_id =
            executor::process::boot_id().map_err(Error::io("read the boot id of the machine for", state_dir))?;
        let known = StateRecord { id: id.to_owned(), boot_id, cgroup, cgroup_v1, ..StateRecord::default() };
        contain_with(state_dir, known).await?;
        Executor::attach(state_dir).await
    }

    /// Starts the workload, or finds the one that `state_dir` already holds. After a crash of the caller at any point,
    /// another call leads to exactly one workload.
    ///
    /// # Errors
    /// [`Error::Exec`]: the program cannot be executed. [`Error::Launch`]: the executor could not make what the
    /// workload needs. [`Error::StaleEpoch`]: another manager has a higher epoch. Then nothing runs. After
    /// [`Error::Unresponsive`] and [`Error::Io`] something may run: the same call again finds it, or starts it.
    pub async fn launch(&self, state_dir: &Path, spec: LaunchSpec) -> Result<Launched, Error> {
        let command = spec.command.clone();
        let cgroup = spec.cgroup.as_ref().and_then(|policy| self.cgroups.place(policy));
        let mut env: Vec<Vec<u8>> = spec
            .env
            .into_iter()
            .map(|(name, value)| {
                let mut entry = name.into_vec();
                entry.push(b'=');
                entry.extend(value.into_vec());
                entry
            })
            .collect();
        if cgroup.is_none() {
            env.push(format!("{MARKER_VARIABLE}={}", spec.id).into_bytes());
        }
        let wire = Spec {
            id: spec.id,
            command: spec.command.into_os_string().into_vec(),
            args: spec.args.into_iter().map(OsStringExt::into_vec).collect(),
            env,
            cwd: spec.cwd.into_os_string().into_vec(),
            user: spec.user,
            log: spec.log.as_ref().map(LogPolicy::to_wire),
            cgroup,
            oom_score_adj: spec.oom_score_adj,
            epoch: spec.epoch.unwrap_or(0),
            collect: None,
            listen: spec.listen,
            isolation: spec.isolation,
        };
        self.start("run", state_dir, &command, wire, spec.epoch).await
    }

    pub(crate) async fn start(
        &self,
        verb: &str,
        state_dir: &Path,
        command: &Path,
        spec: Spec,
        epoch: Option<u64>,
    ) -> Result<Launched, Error> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)
            .map_err(Error::io("create the state directory", state_dir))?;
        if contain::read_result(state_dir)?.is_some() {
            return found(state_dir, epoch).await;
        }
        let mut frame = Vec::new();
        encode_frame(&spec, &mut frame);
        drop(spec);
        let mut last = Error::Absent { state_dir: state_dir.to_owned() };
        for _ in 0..ATTEMPTS {
            match self.attempt(verb, state_dir, command, &frame, epoch).await {
                // An interrupted start, earlier or just now, has been cleared away.
                Err(e @ (Error::Absent { .. } | Error::Vanished { .. })) => last = e,
                other => return other,
            }
        }
        Err(last)
    }

    async fn attempt(
        &self,
        verb: &str,
        state_dir: &Path,
        command: &Path,
        frame: &[u8],
        epoch: Option<u64>,
    ) -> Result<Launched, Error> {
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().map_err(Error::io("create a socket for", state_dir))?;
        ours.set_nonblocking(true).map_err(Error::io("prepare the socket for", state_dir))?;
        let mut ours = UnixStream::from_std(ours).map_err(Error::io("register the socket for", state_dir))?;
        let mut child = self.spawn(verb, state_dir, theirs.into()).await?;
        let mut buffer = Vec::new();
        let first = tokio::time::timeout(START, async {
            // If the executor exits early, its own reason is better than this error.
            let _ = ours.write_all(frame).await;
            receive(&mut ours, &mut buffer, state_dir).await
        })
        .await;
        if first.is_err() {
            // It hangs before it has forked, or has forked: then this ends nothing that counts.
            let _ = child.start_kill();
        }
        // It has forked; this half exits at once and must not stay a zombie. After a drop the runtime looks after it.
        let _ = tokio::time::timeout(START, child.wait()).await;
        let failed =
            |message: &str| Error::Launch { state_dir: state_dir.to_owned(), message: message.into(), errno: 0 };
        let reply = match first
            .map_err(|_| Error::Unresponsive { state_dir: state_dir.to_owned(), seconds: START.as_secs() })?
        {
            // It exited without reading the spec.
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::ConnectionReset => None,
            other => other?,
        };
        match reply {
            Some(Reply { body: Some(reply::Body::Launched(launched)), .. }) => {
                let hello = launched.hello.unwrap_or_default();
                let executor = Executor::connected(state_dir, ours, buffer, hello, epoch);
                Ok(Launched { executor, created: true })
            }
            Some(Reply { body: Some(reply::Body::Failure(failure)), .. }) => {
                match failure.code() {
                    // Another start was faster, now or in an earlier life of the caller.
                    ErrorCode::Held | ErrorCode::NotRunning => found(state_dir, epoch).await,
                    _ => Err(start_failure(state_dir, command, epoch, failure)),
                }
            }
            Some(_) => Err(failed("it answered out of turn")),
            // It was killed: its leftovers are found and ended. If the workload had begun, this is its end.
            None => match found(state_dir, epoch).await {
                Err(Error::Absent { .. }) => Err(Error::Vanished { state_dir: state_dir.to_owned() }),
                other => other,
            },
        }
    }

    async fn spawn(&self, verb: &str, state_dir: &Path, control: OwnedFd) -> Result<tokio::process::Child, Error> {
        let begun = std::time::Instant::now();
        let mut reinstalled = false;
        loop {
            let control = control.try_clone().map_err(Error::io("copy the socket for", state_dir))?;
            let spawned = tokio::process::Command::new(&self.binary)
                .arg(verb)
                .arg(state_dir)
                .env_clear()
                .stdin(Stdio::from(control))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            match spawned {
                // Just installed, and a starting process has inherited the write descriptor.
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy && begun.elapsed() < START => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                // The file was deleted.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && !reinstalled => {
                    reinstalled = true;
                    install(self.binary.parent().unwrap_or(Path::new("/")))?;
                }
                Ok(child) => {
                    // Before it gets its spec, because its workload inherits this.
                    child.id().into_iter().for_each(open_files::give_back);
                    return Ok(child);
                }
                Err(e) => return Err(Error::io("start the executor", &self.binary)(e)),
            }
        }
    }
}

async fn contain_with(state_dir: &Path, known: StateRecord) -> Result<(), Error> {
    let dir = state_dir.to_owned();
    let contained = tokio::task::spawn_blocking(move || contain::fate(&dir, Some(&known)).map(drop)).await;
    contained.unwrap_or_else(|e| Err(Error::io("look into", state_dir)(std::io::Error::other(e))))
}

async fn found(state_dir: &Path, epoch: Option<u64>) -> Result<Launched, Error> {
    let executor = Executor::attach(state_dir).await?;
    let executor = match epoch {
        Some(epoch) => {
            let executor = executor.at_epoch(epoch);
            executor.claim().await?;
            executor
        }
        None => executor,
    };
    Ok(Launched { executor, created: false })
}

fn start_failure(state_dir: &Path, command: &Path, epoch: Option<u64>, failure: Failure) -> Error {
    match failure.code() {
        ErrorCode::Exec => Error::refused(state_dir, epoch, failure).in_starting(command.as_os_str()),
        ErrorCode::StaleEpoch => Error::refused(state_dir, epoch, failure),
        _ => Error::Launch { state_dir: state_dir.to_owned(), message: failure.message, errno: failure.errno },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_executor_that_hangs_at_its_start_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (binary, begun) = (dir.path().join("hangs"), dir.path().join("pid"));
        testkit::program(&binary, &format!("#!/bin/sh\necho $$ > {}\nexec sleep 600\n", begun.display()));
        let launcher = Launcher { binary, cgroups: CgroupHost::detect() };
        let (state, spec) =
            (dir.path().join("state"), LaunchSpec { command: "/bin/true".into(), ..Default::default() });
        // The clock is paused: an hour is over when nothing else goes on.
        let launched = tokio::time::timeout(Duration::from_secs(3600), launcher.launch(&state, spec)).await;
        assert!(matches!(launched, Ok(Err(Error::Unresponsive { .. }))), "{launched:?}");
        testkit::until("its end", || {
            let pid = std::fs::read_to_string(&begun).unwrap_or_default();
            // It may have been killed before its first line.
            pid.is_empty() || !Path::new("/proc").join(pid.trim()).join("exe").exists()
        });
    }
}
