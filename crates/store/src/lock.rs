//! The exclusive right to a data directory.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long to wait for a lock that a process holds by accident.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);

/// Why a data directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process uses it.
    #[error("the data directory {} is used by another agent ({}); stop that one or choose another \
        directory", .dir.display(), holder(*.pid))]
    Held {
        /// The directory.
        dir: PathBuf,
        /// The process that holds it, if readable.
        pid: Option<u32>,
    },
    /// The lock file cannot be made or read.
    #[error("locking the data directory {} failed: {source}; check that the agent may write there", .dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "its process id could not be read".to_owned(), |pid| format!("process {pid}"))
}

/// The exclusive right to a data directory, until its drop or any end of the process.
#[derive(Debug)]
pub struct DataDirLock {
    // The lock belongs to the open file.
    file: File,
}

impl Drop for DataDirLock {
    fn drop(&mut self) {
        // Closing would not do: a process that is being started has a copy of the file until it runs its program.
        let _ = self.file.unlock();
    }
}

impl DataDirLock {
    /// Name of the lock file.
    pub const FILE: &str = "agent.lock";

    /// Makes a missing directory and locks it.
    ///
    /// # Errors
    /// When another process holds it, naming that process, or when the directory cannot be used.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let io = |source| LockError::Io { dir: dir.to_owned(), source };
        make_private_dir(dir).map_err(io)?;
        let path = dir.join(Self::FILE);
        // Never truncated on open: the content belongs to the holder of the lock.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io)?;
        // A process forked while the last holder ended has a copy of the lock's descriptor until it executes: a refusal
        // may be temporary.
        let patience = Instant::now() + PATIENCE;
        let mut tried = file.try_lock();
        while matches!(tried, Err(TryLockError::WouldBlock)) && Instant::now() < patience {
            std::thread::sleep(PAUSE);
            tried = file.try_lock();
        }
        match tried {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(LockError::Held { dir: dir.to_owned(), pid });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Self { file })
    }
}

/// The state holds nodes' secrets, so nobody else may read it. A parent directory made here lets others pass: tasks of
/// other users live there.
fn make_private_dir(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    if let Some(parent) = dir.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(parent)?;
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_made_is_closed_and_lets_others_pass_above() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("data/server");
        let _lock = DataDirLock::acquire(&dir).expect("locked");
        let mode = |path: &Path| std::fs::metadata(path).expect("made").permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(DataDirLock::FILE))), (0o700, 0o600));
        assert_eq!(mode(&root.path().join("data")), 0o711);
    }
}
