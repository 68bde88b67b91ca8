//! The newest committed batches, for watchers.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use crate::contract::{Committed, StoreError};

/// A watcher that is further behind loads everything again. Keeping more would waste memory.
const MAX_BATCHES: usize = 256;
const MAX_BYTES: usize = 256 * 1024;
/// What a follower has not taken yet is kept up to here: loading everything costs more.
const FOLLOWED_BATCHES: usize = 64 * 1024;
const FOLLOWED_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug)]
struct Ring {
    batches: VecDeque<(Arc<Committed>, usize)>,
    bytes: usize,
    // The ring has every batch after this index.
    complete_after: u64,
    /// The newest batch that the follower has taken; None = there is no follower.
    followed: Option<u64>,
}

impl Ring {
    /// Forgets what is too much.
    fn trim(&mut self) {
        while self.batches.len() > MAX_BATCHES || self.bytes > MAX_BYTES {
            let Some((first, size)) = self.batches.front() else { break };
            let awaited = self.followed.is_some_and(|seen| first.index > seen);
            if awaited && self.batches.len() <= FOLLOWED_BATCHES && self.bytes <= FOLLOWED_BYTES.max(*size) {
                break;
            }
            self.bytes -= size;
            self.complete_after = first.index;
            self.batches.pop_front();
        }
    }
}

/// The ring of the newest batches.
#[derive(Debug)]
pub(crate) struct Recent {
    ring: Mutex<Ring>,
    // The newest index and whether the store is closed.
    newest: watch::Sender<(u64, bool)>,
}

impl Recent {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new(index: u64) -> Arc<Self> {
        let ring = Ring { batches: VecDeque::new(), bytes: 0, complete_after: index, followed: None };
        Arc::new(Self { ring: Mutex::new(ring), newest: watch::Sender::new((index, false)) })
    }

    pub(crate) fn push(&self, batch: Committed, bytes: usize) {
        let index = batch.index;
        {
            let mut ring = self.lock();
            ring.bytes += bytes;
            ring.batches.push_back((Arc::new(batch), bytes));
            ring.trim();
        }
        self.newest.send_modify(|newest| newest.0 = index);
    }

    /// Forgets everything: batches up to this index were not seen. Watchers from before it load again.
    pub(crate) fn restart(&self, index: u64) {
        {
            let mut ring = self.lock();
            ring.batches.clear();
            ring.bytes = 0;
            ring.complete_after = index;
        }
        self.newest.send_modify(|newest| newest.0 = index);
    }

    /// Ends every watch after its remaining batches.
    pub(crate) fn close(&self) {
        self.newest.send_modify(|newest| newest.1 = true);
    }

    pub(crate) fn watch(self: &Arc<Self>, index: u64) -> Result<Watch, StoreError> {
        self.after(index)?;
        let (newest, queue) = (self.newest.subscribe(), VecDeque::new());
        Ok(Watch { recent: self.clone(), newest, seen: index, queue, follows: false })
    }

    /// A watch that is given more time: the store keeps more for it. There is one at a time; the newest counts.
    pub(crate) fn follow(self: &Arc<Self>, index: u64) -> Result<Watch, StoreError> {
        let mut watch = self.watch(index)?;
        self.lock().followed = Some(index);
        watch.follows = true;
        // What was there a moment ago may be gone by now.
        self.after(index)?;
        Ok(watch)
    }

    fn after(&self, index: u64) -> Result<VecDeque<Arc<Committed>>, StoreError> {
        let ring = self.lock();
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
    /// The ring keeps for it what it has not taken.
    follows: bool,
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
            self.take()?;
            if self.queue.is_empty() {
                if closed {
                    return Err(StoreError::Closed);
                }
                self.newest.changed().await.map_err(|_| StoreError::Closed)?;
            }
        }
    }

    /// The batches that the store has already and this watch has not told.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn ready(&mut self) -> Result<Vec<Arc<Committed>>, StoreError> {
        let mut batches: Vec<_> = self.queue.drain(..).collect();
        self.seen = batches.last().map_or(self.seen, |batch| batch.index);
        self.take()?;
        batches.extend(self.queue.drain(..));
        self.seen = batches.last().map_or(self.seen, |batch| batch.index);
        Ok(batches)
    }

    /// Takes what the ring has.
    fn take(&mut self) -> Result<(), StoreError> {
        self.queue = self.recent.after(self.seen)?;
        if self.follows
            && let Some(newest) = self.queue.back()
        {
            let mut ring = self.recent.lock();
            ring.followed = Some(newest.index);
            ring.trim();
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.follows {
            let mut ring = self.recent.lock();
            ring.followed = None;
            ring.trim();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(recent: &Recent) -> usize {
        recent.lock().batches.len()
    }

    #[test]
    fn only_what_the_follower_has_not_taken_is_kept_beyond_the_usual() {
        let recent = Recent::new(0);
        let push = |from: u64, to: u64| (from..=to).for_each(|index| recent.push(Committed { index, rows: vec![] }, 1));
        let mut follows = recent.follow(0).unwrap();
        push(1, 1000);
        assert_eq!(kept(&recent), 1000);
        let taken = follows.ready().unwrap();
        assert_eq!((taken.len(), taken[999].index, kept(&recent)), (1000, 1000, MAX_BATCHES));
        push(1001, 2000);
        assert_eq!(kept(&recent), 1000, "what it has taken is not kept for it");
        recent.push(Committed { index: 2001, rows: vec![] }, FOLLOWED_BYTES + 1);
        let told = follows.ready();
        assert!(matches!(told, Err(StoreError::Compacted { asked: 1000, oldest: 2000 })), "there is an end to it");
        push(2002, 3000);
        drop(follows);
        assert_eq!(kept(&recent), MAX_BATCHES, "nobody waits for more");
        let mut strict = recent.watch(2900).unwrap();
        push(3001, 4000);
        assert!(matches!(strict.ready(), Err(StoreError::Compacted { asked: 2900, .. })));
    }
}
