//! Record of a network: everything that its removal needs, on disk before the network is made.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use model::{AllocId, alloc::NetworkStatus};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cni::{NetworkList, PortMapping};

const NAME: &str = "record.json";
const LOG: &str = "plugins.log";
/// How long a plugin may take after its agent has gone.
const ORPHAN: Duration = Duration::from_secs(90);
/// Limit of the plugins' log, in bytes.
const LOG_BYTES: u64 = 64 << 10;

/// One network of one allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The driver that holds the namespace; empty = this node.
    pub driver: String,
    /// File of the namespace; empty until the driver has reported it.
    pub path: String,
    /// The driver's own notes.
    pub labels: BTreeMap<String, String>,
    /// Its host name; may be empty.
    pub hostname: String,
    /// The plugins as called at the start; an operator may have changed the list since.
    pub list: Option<NetworkList>,
    /// `CNI_ARGS`.
    pub args: String,
    /// Ports of the host that lead into it.
    pub ports: Vec<PortMapping>,
    /// The last plugin's result.
    pub result: Option<Value>,
    /// The network is complete.
    pub up: bool,
    /// Plugins whose check passed when the network was made, by position; None = no check was made.
    pub checks: Option<BTreeSet<usize>>,
    /// Addresses of the allocation.
    pub status: NetworkStatus,
}

impl Record {
    /// Reads the record of a directory; `None` when it is gone, or when the agent was killed before it wrote one.
    ///
    /// # Errors
    /// When the record cannot be read or is damaged.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        match fs::read(dir.join(NAME)) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes it durably: the addresses that plugins have assigned survive a loss of power too.
    ///
    /// # Errors
    /// When the directory cannot be made or written; a former record is unharmed.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let half = dir.join(format!(".{NAME}"));
        let mut file = File::create(&half)?;
        file.write_all(&serde_json::to_vec(self).map_err(io::Error::other)?)?;
        file.sync_all()?;
        fs::rename(&half, dir.join(NAME))?;
        for dir in [Some(dir), dir.parent()].into_iter().flatten() {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    }
}

/// Takes the lock that says that no plugin is at work on a network, and returns the file that carries it. Plugins
/// inherit it.
///
/// # Errors
/// When the file cannot be opened, or a plugin of an earlier agent still works on the network.
pub async fn lock(dir: &Path) -> Result<File, String> {
    let path = dir.join(LOG);
    let failed = |e: io::Error| format!("lock {}: {e}", path.display());
    let file = OpenOptions::new().append(true).create(true).open(&path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() > LOG_BYTES {
        file.set_len(0).map_err(failed)?;
    }
    let deadline = Instant::now() + ORPHAN;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(format!(
                    "a CNI plugin that an earlier agent has started still works on this network (it holds {})",
                    path.display()
                ));
            }
            Err(e) => return Err(failed(e.into())),
        }
    }
}

/// Directories of networks, with the allocations that they belong to.
pub fn directories(parent: &Path) -> Vec<(AllocId, PathBuf)> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.filter_map(|e| Some((e.file_name().to_str()?.parse().ok()?, e.path()))).collect()
}

/// Removes a directory whose namespace is gone. The record goes last: it alone explains the other files.
///
/// # Errors
/// When a file or the directory cannot be removed; the record is still there, or another call finds nothing.
pub fn remove(dir: &Path) -> io::Result<()> {
    let gone = |done: io::Result<()>| match done {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    };
    for name in [LOG.to_owned(), format!(".{NAME}"), NAME.to_owned()] {
        gone(fs::remove_file(dir.join(name)))?;
    }
    gone(fs::remove_dir(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_record_is_there_again_and_goes_with_its_directory() {
        let parent = tempfile::tempdir().expect("temp dir");
        let dir = parent.path().join("a");
        assert_eq!(Record::read(&dir).expect("absent"), None);
        let record = Record { path: "/ns".into(), up: true, ..Record::default() };
        record.write(&dir).expect("write");
        record.write(&dir).expect("write again");
        assert_eq!(Record::read(&dir).expect("read"), Some(record));
        let held = lock(&dir).await.expect("lock");
        let second = OpenOptions::new().append(true).open(dir.join(LOG)).expect("open");
        let copy = held.try_clone().expect("copy");
        drop(held);
        assert!(flock(&second, FlockOperation::NonBlockingLockExclusive).is_err(), "a plugin's copy keeps the lock");
        drop(copy);
        // Waited for: a process that another test starts at this moment has a copy until it runs its program.
        drop(lock(&dir).await.expect("free again"));
        remove(&dir).expect("remove");
        remove(&dir).expect("remove is idempotent");
        assert!(!dir.exists());
    }
}
