//! One instance's directory: its files, its lock, its intent.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use executor_proto::host::HostAmount;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::refusal::{Answer, Refusal, unclear};
use crate::log::RotatedLog;

/// How long a change waits for another change of the same instance.
const PATIENCE: Duration = Duration::from_secs(20);

/// The facts of an instance before its start.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Intent {
    pub(super) key: String,
    pub(super) owner: String,
    pub(super) slot: String,
    pub(super) task_name: String,
    /// Its part of the host's capacity, in MHz.
    pub(super) cpu_mhz: u64,
    pub(super) memory_mib: u64,
    /// Boot of the machine in which it was written. Under another one nothing of it is started any more.
    pub(super) boot: String,
}

impl Intent {
    /// Refuses another cluster's instance.
    pub(super) fn owned_by(&self, owner: &str) -> Answer<()> {
        if self.owner == owner {
            return Ok(());
        }
        Err(Refusal::WrongRequest(format!(
            "instance {} belongs to the cluster {:?}, not to {owner:?}",
            self.key, self.owner
        )))
    }

    pub(super) fn takes(&self) -> HostAmount {
        HostAmount { cpu_mhz: self.cpu_mhz, memory_mib: self.memory_mib, sessions: 1 }
    }
}

/// One instance's directory.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
}

impl Place {
    pub(super) fn state_dir(&self) -> PathBuf {
        self.dir.join("executor")
    }

    pub(super) fn task_dir(&self) -> PathBuf {
        self.dir.join("task")
    }

    pub(super) fn alloc_dir(&self) -> PathBuf {
        self.dir.join("alloc")
    }

    pub(super) fn logs_dir(&self) -> PathBuf {
        self.dir.join("logs")
    }

    pub(super) fn intent(&self) -> PathBuf {
        self.dir.join("instance.json")
    }

    /// The mark of an acknowledgement or seal, with its epoch. Made only when the executor's directory has a result, so
    /// that nothing runs or starts.
    pub(super) fn retired(&self) -> PathBuf {
        self.dir.join("retired")
    }

    pub(super) fn log(&self, name: &str) -> RotatedLog {
        RotatedLog::new(self.logs_dir(), name)
    }

    /// Reads the intent, if there is one.
    pub(super) fn read_intent(&self) -> Answer<Option<Intent>> {
        let file = self.intent();
        match std::fs::read(&file) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(intent) => Ok(Some(intent)),
                Err(e) => Err(Refusal::CouldNotAsk(format!("{} is damaged: {e}", file.display()))),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(unclear("read", &file)(e)),
        }
    }

    /// Makes the directory and takes its lock: during a change, from its first look to its last write, no other change
    /// of this instance runs.
    pub(super) fn hold(&self) -> Answer<Held> {
        let begun = Instant::now();
        loop {
            if let Some(held) = self.try_hold()? {
                return Ok(held);
            }
            if begun.elapsed() > PATIENCE {
                return Err(Refusal::CouldNotAsk(format!(
                    "{} has been held by another manager's change for {} s; ask again",
                    self.dir.display(),
                    PATIENCE.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// As [`Place::hold`], without waiting: `None` while another change holds the instance.
    pub(super) fn try_hold(&self) -> Answer<Option<Held>> {
        match std::fs::DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(unclear("create", &self.dir)(e)),
            _ => {}
        }
        let opened = match File::open(&self.dir) {
            // The former holder has removed it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(unclear("open", &self.dir))?,
        };
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let same =
                    |m: std::fs::Metadata| opened.metadata().is_ok_and(|o| (o.dev(), o.ino()) == (m.dev(), m.ino()));
                let there = std::fs::metadata(&self.dir).is_ok_and(same);
                Ok(there.then(|| Held { dir: self.dir.clone(), _lock: opened }))
            }
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => Ok(None),
            Err(e) => Err(unclear("lock", &self.dir)(e.into())),
        }
    }
}

/// The right to change one instance. Ends with the process at the latest.
pub(super) struct Held {
    dir: PathBuf,
    _lock: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        // This removes an empty directory only.
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// A file name for any key: unusual characters become `%` and two hexadecimal digits.
pub(super) fn file_name(key: &str) -> Answer<String> {
    let mut name = String::with_capacity(key.len());
    for (n, byte) in key.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte as char),
            b'.' if n > 0 => name.push('.'),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    if name.is_empty() || name.len() > 240 {
        return Err(Refusal::WrongRequest(format!("the key {key:?} is empty or too long for a file name")));
    }
    Ok(name)
}

/// The key of a file name; `None` for other names.
pub(super) fn key_of(name: &str) -> Option<String> {
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

/// A name for a temporary file, unique among processes and calls.
pub(super) fn unique_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(".new-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Creates a file with its content in one step, durably; an existing one stays as it is.
pub(super) fn create_once(path: &Path, bytes: &[u8]) -> io::Result<()> {
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
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Removes a directory with its content; ignores an absent one.
pub(super) fn remove_tree(dir: &Path) -> Answer<()> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(unclear("remove", dir)(e)),
        _ => Ok(()),
    }
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
    fn the_first_creation_decides() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        create_once(&file, b"one").unwrap();
        create_once(&file, b"two").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"one");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn one_change_at_a_time_and_nothing_stays_of_one_that_made_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { dir: dir.path().join("x") };
        let held = place.hold().unwrap();
        let second = place.clone();
        let other = std::thread::spawn(move || second.hold().map(drop));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!other.is_finished(), "the second waits for the first");
        drop(held);
        other.join().unwrap().unwrap();
        assert!(!place.dir.exists());
    }
}
