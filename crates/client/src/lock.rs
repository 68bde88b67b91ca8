//! One agent per data directory: an advisory lock on a file that also names the holder.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crate::error::StartError;

/// Held as long as the value lives; the kernel lets go when the process dies, however it dies.
#[derive(Debug)]
pub(crate) struct DirLock {
    file: File,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing would not do: a process that is being started has a copy of the file until it runs its program.
        let _ = self.file.unlock();
    }
}

impl DirLock {
    pub(crate) fn acquire(dir: &Path) -> Result<Self, StartError> {
        let path = dir.join("agent.lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(StartError::io("open the lock file", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // The holder may be between truncating and writing; the refusal stands without its pid.
                let _ = file.read_to_string(&mut pid);
                let pid = if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() };
                return Err(StartError::InUse { dir: dir.to_owned(), pid });
            }
            Err(TryLockError::Error(e)) => return Err(StartError::io("lock", &path)(e)),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(StartError::io("write our pid into", &path))?;
        Ok(Self { file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_agent_is_refused_with_the_holders_pid() {
        let dir = tempfile::tempdir().expect("temp dir");
        let held = DirLock::acquire(dir.path()).expect("first");
        match DirLock::acquire(dir.path()) {
            Err(StartError::InUse { pid, .. }) => assert_eq!(pid, std::process::id().to_string()),
            other => panic!("expected a refusal, got {other:?}"),
        }
        // As a process has one that is being started.
        let _copy = held.file.try_clone().expect("a copy");
        drop(held);
        DirLock::acquire(dir.path()).expect("free again");
    }
}
