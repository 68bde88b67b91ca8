//! Log collectors: they store the output of workloads under other supervisors, from two FIFOs.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_proto::{Collect, Spec};
use rustix::fs::{AtFlags, CWD, FileType, Mode, statat, unlinkat};
use rustix::io::Errno;

use crate::{Error, Executor, Launcher, LogPolicy};

/// The job of a collector.
#[derive(Clone, Debug)]
pub struct CollectSpec {
    /// Name for people.
    pub id: String,
    /// FIFO of standard output; created if missing.
    pub stdout_fifo: PathBuf,
    /// FIFO of standard error; created if missing.
    pub stderr_fifo: PathBuf,
    /// Where the output goes.
    pub log: LogPolicy,
}

/// A process that stores the output of two FIFOs, independently of its starter. Writers may come and go: it stays until
/// it is stopped.
#[derive(Clone, Debug)]
pub struct LogCollector {
    executor: Executor,
}

impl LogCollector {
    /// Starts the collector of `state_dir`, or finds a running one. When this returns, a writer that opens a FIFO finds
    /// a reader.
    ///
    /// # Errors
    /// When a FIFO cannot be made, or an earlier collector of the directory neither answers nor ends; else those of
    /// [`Launcher::launch`]. FIFOs that were made stay.
    pub async fn start(launcher: &Launcher, state_dir: &Path, spec: CollectSpec) -> Result<LogCollector, Error> {
        for fifo in [&spec.stdout_fifo, &spec.stderr_fifo] {
            make_fifo(fifo).map_err(|e| Error::io("create the fifo", fifo)(e.into()))?;
        }
        // A stopped or killed one has left its result; a collector continues where that ended.
        match Executor::attach(state_dir).await {
            Ok(executor) if executor.ended().is_none() => return Ok(LogCollector { executor }),
            Ok(executor) => executor.destroy().await?,
            Err(Error::Absent { .. }) => {}
            Err(e) => return Err(e),
        }
        let wire = Spec {
            id: spec.id,
            log: Some(spec.log.to_wire()),
            collect: Some(Collect {
                stdout_fifo: spec.stdout_fifo.as_os_str().as_bytes().to_vec(),
                stderr_fifo: spec.stderr_fifo.as_os_str().as_bytes().to_vec(),
            }),
            ..Spec::default()
        };
        let launched = launcher.start("collect", state_dir, launcher.binary(), wire, None).await?;
        Ok(LogCollector { executor: launched.executor })
    }

    /// The running collector of `state_dir`; `None` when there is none.
    ///
    /// # Errors
    /// Those of [`Executor::attach`] but [`Error::Absent`].
    pub async fn attach(state_dir: &Path) -> Result<Option<LogCollector>, Error> {
        match Executor::attach(state_dir).await {
            Ok(executor) if executor.ended().is_none() => Ok(Some(LogCollector { executor })),
            Ok(_) | Err(Error::Absent { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.executor.executor_pid()
    }

    /// Returns when the collector has ended, by [`LogCollector::stop`] or by accident.
    pub async fn gone(&self) {
        let _ = self.executor.wait().await;
    }

    /// Stores the rest of the FIFOs, and waits up to `patience` for writers to leave. Then ends the collector and
    /// removes its state directory. Files and FIFOs stay.
    ///
    /// # Errors
    /// Those of [`Executor::stop`] and [`Executor::destroy`]. The state directory is still there, and another call
    /// goes on.
    pub async fn stop(&self, patience: Duration) -> Result<(), Error> {
        self.executor.stop(0, patience).await?;
        self.executor.destroy().await
    }
}

/// Makes a missing FIFO. Tasks may write to its directory: anything else in its place is removed.
fn make_fifo(path: &Path) -> rustix::io::Result<()> {
    let make = || rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0);
    match make() {
        Err(Errno::EXIST)
            if FileType::from_raw_mode(statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?.st_mode) != FileType::Fifo =>
        {
            unlinkat(CWD, path, AtFlags::empty())?;
            make()
        }
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}
