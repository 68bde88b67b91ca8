//! Installs the embedded executor.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Error;

/// The static binary, built by `build.rs`.
static BINARY: &[u8] = include_bytes!(env!("DROVER_EXECUTOR_BINARY"));

/// The embedded binary, for transfer to another host.
pub fn binary() -> &'static [u8] {
    BINARY
}

/// SHA-256 of the embedded binary, in lower-case hexadecimal.
pub static HASH: std::sync::LazyLock<String> =
    std::sync::LazyLock::new(|| Sha256::digest(BINARY).iter().map(|b| format!("{b:02x}")).collect());

/// File name of the installed binary, from its content.
pub fn installed_name() -> String {
    format!("drover-executor-{}", &HASH[..16])
}

/// Copies the executor into `dir` under a name made of its content, and returns the path. Executors of earlier releases
/// keep their files, so an upgrade does not touch running ones. Safe for concurrent processes.
///
/// # Errors
/// When `dir` cannot be made or written, for want of room say. No half of a program is left under the final name.
pub fn install(dir: &Path) -> Result<PathBuf, Error> {
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let target = dir.join(installed_name());
    let is_ours =
        |m: std::fs::Metadata| m.is_file() && m.len() == BINARY.len() as u64 && m.permissions().mode() & 0o100 != 0;
    if std::fs::metadata(&target).is_ok_and(is_ours) {
        return Ok(target);
    }
    std::fs::create_dir_all(dir).map_err(Error::io("create the directory for executors", dir))?;
    remove_halves(dir);
    let temporary = dir.join(format!(".{}.{}", installed_name(), std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o755)
        .open(&temporary)
        .and_then(|mut file| {
            // Without file locks there is nothing to wait for.
            let _ = file.lock();
            file.write_all(BINARY)?;
            // A power loss must not leave a torn file under a name that promises its content.
            file.sync_all()
        })
        .and_then(|()| {
            await_writers(&temporary)?;
            std::fs::rename(&temporary, &target)
        });
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written.map_err(Error::io("install the executor as", &target))?;
    Ok(target)
}

/// Returns when no process has the file, written under a lock, open for writing. A process that another thread forks
/// meanwhile inherits the descriptor and its lock until it executes its program. Until then the kernel refuses to
/// execute the file (ETXTBSY).
fn await_writers(file: &Path) -> std::io::Result<()> {
    let _ = std::fs::File::open(file)?.lock_shared();
    Ok(())
}

/// Removes partial files of killed processes, whose pids are in the names.
fn remove_halves(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let writer = name.to_str().and_then(|n| n.strip_prefix(".drover-executor-")?.rsplit_once('.')?.1.parse().ok());
        let dead = writer
            .and_then(rustix::process::Pid::from_raw)
            .is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH));
        if dead {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_not_taken_for_written_while_anybody_has_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        file.lock().unwrap();
        let inherited = file.try_clone().unwrap();
        drop(file);
        let (done, waits) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            await_writers(&path).unwrap();
            done.send(()).unwrap();
        });
        let short = std::time::Duration::from_millis(50);
        assert!(waits.recv_timeout(short).is_err(), "it is open for writing");
        drop(inherited);
        waits.recv_timeout(std::time::Duration::from_secs(30)).expect("nobody has it any more");
        waiter.join().unwrap();
    }

    #[test]
    fn what_a_killed_process_had_begun_is_removed_and_what_is_under_way_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let half = |writer: u32| dir.path().join(format!(".drover-executor-0123.{writer}"));
        let (left, under_way, other) =
            (half(ended.id()), half(std::process::id()), dir.path().join(".drover-executor-notes"));
        for file in [&left, &under_way, &other] {
            std::fs::write(file, "half").unwrap();
        }
        install(dir.path()).unwrap();
        assert!(!left.exists() && under_way.exists() && other.exists());
    }
}
