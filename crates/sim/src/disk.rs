//! The disk of the servers: what was not synced is lost with the server that wrote it, and it may be full.

use std::{
    collections::VecDeque,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use store::{Batch, Contents, Done, Fence, MemoryStore, Store, StoreError, StoreStats, Watch};
use tokio::sync::Notify;

use crate::machine::mix;

/// Batches that may wait for a sync: the servers stop deciding at 32, and on one thread nothing would sync then.
const WAITING: usize = 24;

/// What outlives the servers.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    synced: MemoryStore,
    full: AtomicBool,
}

impl Disk {
    /// Refuses writes, or takes them again.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }
}

/// The disk as one server uses it.
pub(crate) struct Mounted {
    disk: Arc<Disk>,
    waiting: Mutex<VecDeque<(Batch, Done)>>,
    more: Notify,
    gone: AtomicBool,
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mounted")
    }
}

impl Mounted {
    /// For a new server. `seed` says how long its syncs take.
    pub(crate) fn new(disk: Arc<Disk>, seed: u64) -> Arc<Self> {
        let own = Arc::new(Self { disk, waiting: Mutex::default(), more: Notify::new(), gone: AtomicBool::new(false) });
        let syncing = own.clone();
        tokio::spawn(async move {
            for turn in 0.. {
                syncing.more.notified().await;
                tokio::time::sleep(Duration::from_micros(200 + mix(seed ^ turn) % 5_000)).await;
                if syncing.gone.load(Ordering::Relaxed) {
                    return;
                }
                syncing.sync();
            }
        });
        own
    }

    /// The server is no more: what waits is lost, and nothing of it reaches the disk any more.
    pub(crate) fn crash(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.more.notify_one();
        // Dropped outside of the lock: those who wait hear of it.
        let lost = std::mem::take(&mut *self.waiting());
        drop(lost);
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<(Batch, Done)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync(&self) {
        while let Some((batch, done)) = { self.waiting().pop_front() } {
            if self.disk.full.load(Ordering::Relaxed) {
                done(Err(full()));
            } else {
                self.disk.synced.submit(batch, done);
            }
        }
    }
}

fn full() -> StoreError {
    StoreError::Full { path: PathBuf::from("the simulated disk"), reason: "no space left on device".into() }
}

impl Store for Mounted {
    fn load(&self) -> Result<Contents, StoreError> {
        self.disk.synced.load()
    }

    fn acquire(&self) -> Result<Fence, StoreError> {
        self.disk.synced.acquire()
    }

    fn submit(&self, batch: Batch, done: Done) {
        if self.gone.load(Ordering::Relaxed) {
            return;
        }
        self.waiting().push_back((batch, done));
        if self.waiting().len() >= WAITING {
            self.sync();
        } else {
            self.more.notify_one();
        }
    }

    fn watch(&self, index: u64) -> Result<Watch, StoreError> {
        self.disk.synced.watch(index)
    }

    fn probe(&self) -> Result<(), StoreError> {
        if self.disk.full.load(Ordering::Relaxed) { Err(full()) } else { Ok(()) }
    }

    fn close(&self) {}

    fn stats(&self) -> StoreStats {
        self.disk.synced.stats()
    }
}
