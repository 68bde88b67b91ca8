//! A store in memory that tests look into, and whose disk may stand still.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use store::{Batch, Contents, Done, Fence, Lost, MemoryStore, Store, StoreError, StoreStats, Watch};

#[derive(Default)]
pub(crate) struct TestStore {
    store: MemoryStore,
    /// Other servers follow it.
    followed: bool,
    /// Another server has led since a loss was found, and has recovered from it.
    recovered: bool,
    /// How often everything was read.
    pub(crate) loads: AtomicUsize,
    /// The index of the last recovery that was told.
    pub(crate) noted: AtomicU64,
    /// What waits for the disk; None = it does not stand still.
    waiting: Mutex<Option<Vec<(Batch, Done)>>>,
}

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestStore")
    }
}

impl TestStore {
    /// One that other servers follow.
    pub(crate) fn of_several() -> Self {
        Self { followed: true, ..Self::default() }
    }

    /// One that has an answer to whether a loss is over: another server has `recovered` from it.
    pub(crate) fn with_loss(recovered: bool) -> Self {
        Self { recovered, ..Self::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Vec<(Batch, Done)>>> {
        self.waiting.lock().unwrap()
    }

    /// The disk stands still.
    pub(crate) fn stand(&self) {
        *self.waiting() = Some(Vec::new());
    }

    /// How many batches wait for the disk.
    pub(crate) fn waits(&self) -> usize {
        self.waiting().as_ref().map_or(0, Vec::len)
    }

    /// Of those, which are told to be followed by another one.
    pub(crate) fn more(&self) -> Vec<bool> {
        self.waiting().iter().flatten().map(|(batch, _)| batch.more).collect()
    }

    /// The disk goes on.
    pub(crate) fn go_on(&self) {
        let mut waiting = self.waiting();
        // With the lock: what comes now is stored after it.
        for (batch, done) in waiting.take().into_iter().flatten() {
            self.store.submit(batch, done);
        }
    }
}

impl Store for TestStore {
    fn load(&self) -> Result<Contents, StoreError> {
        self.loads.fetch_add(1, Relaxed);
        self.store.load()
    }
    fn acquire(&self) -> Result<Fence, StoreError> {
        self.store.acquire()
    }
    fn submit(&self, batch: Batch, done: Done) {
        match &mut *self.waiting() {
            Some(waiting) => waiting.push((batch, done)),
            None => self.store.submit(batch, done),
        }
    }
    fn watch(&self, index: u64) -> Result<Watch, StoreError> {
        self.store.watch(index)
    }
    fn followed(&self) -> bool {
        self.followed
    }
    fn still_lost(&self, _: Lost) -> bool {
        !self.recovered
    }
    fn note_recovery(&self, index: u64) -> Result<(), StoreError> {
        self.noted.store(index, Relaxed);
        Ok(())
    }
    fn probe(&self) -> Result<(), StoreError> {
        self.store.probe()
    }
    fn close(&self) {
        self.store.close();
    }
    fn stats(&self) -> StoreStats {
        self.store.stats()
    }
}
