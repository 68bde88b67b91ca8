//! The newest committed batches, for watchers.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;

use crate::contract::{Committed, StoreError};

/// A watcher that is further behind loads everything again. Keeping more would waste memory.
const MAX_BATCHES: usize = 256;
const MAX_BYTES: usize = 256 * 1024;

#[derive(Debug)]
struct Ring {
    batches: VecDeque<(Arc<Committed>, usize)>,
    bytes: usize,
    // The ring has every batch after this index.
    complete_after: u64,
}

/// The ring of the newest batches.
#[derive(Debug)]
pub(crate) struct Recent {
    ring: Mutex<Ring>,
    // The newest index and whether the store is closed.
    newest: watch::Sender<(u64, bool)>,
}

impl Recent {
    pub(crate) fn new(index: u64) -> Arc<Self> {
        let ring = Ring { batches: VecDeque::new(), bytes: 0, complete_after: index };
        Arc::new(Self { ring: Mutex::new(ring), newest: watch::Sender::new((index, false)) })
    }

    pub(crate) fn push(&self, batch: Committed, bytes: usize) {
        let index = batch.index;
        {
            let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.bytes += bytes;
            ring.batches.push_back((Arc::new(batch), bytes));
            while ring.batches.len() > MAX_BATCHES || ring.bytes > MAX_BYTES {
                let Some((dropped, bytes)) = ring.batches.pop_front() else { break };
                ring.bytes -= bytes;
                ring.complete_after = dropped.index;
            }
        }
        self.newest.send_modify(|newest| newest.0 = index);
    }

    /// Ends every watch after its remaining batches.
    pub(crate) fn close(&self) {
        self.newest.send_modify(|newest| newest.1 = true);
    }

    pub(crate) fn watch(self: &Arc<Self>, index: u64) -> Result<Watch, StoreError> {
        self.after(index)?;
        Ok(Watch { recent: self.clone(), newest: self.newest.subscribe(), seen: index, queue: VecDeque::new() })
    }

    fn after(&self, index: u64) -> Result<VecDeque<Arc<Committed>>, StoreError> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if index < ring.complete_after {
            return Err(StoreError::Compacted { asked: index, oldest: ring.complete_after });
        }
        let start = ring.batches.partition_point(|(batch, _)| batch.index <= index);
        Ok(ring.batches.range(start..).map(|(batch, _)| batch.clone()).collect())
    }
}

/// A stream of committed batches.
#[derive(Debug)]
pub struct Watch {
    recent: Arc<Recent>,
    newest: watch::Receiver<(u64, bool)>,
    seen: u64,
    queue: VecDeque<Arc<Committed>>,
}

impl Watch {
    /// The next batch. Cancel safe.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when the watcher was too slow, [`StoreError::Closed`] when the store is gone.
    pub async fn next(&mut self) -> Result<Arc<Committed>, StoreError> {
        loop {
            if let Some(batch) = self.queue.pop_front() {
                self.seen = batch.index;
                return Ok(batch);
            }
            let closed = self.newest.borrow_and_update().1;
            self.queue = self.recent.after(self.seen)?;
            if self.queue.is_empty() {
                if closed {
                    return Err(StoreError::Closed);
                }
                self.newest.changed().await.map_err(|_| StoreError::Closed)?;
            }
        }
    }
}
