//! A store that lasts as long as its process: for tests and development agents.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use state::{Row, Table};

use crate::{
    contract::{Batch, Committed, Contents, Done, Fence, Store, StoreError, StoreStats, row_bytes},
    recent::{Recent, Watch},
};

#[derive(Debug, Default)]
struct Inner {
    closed: bool,
    fence: u64,
    index: u64,
    rows: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
    stats: StoreStats,
}

/// A store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
    recent: Arc<Recent>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self { inner: Mutex::default(), recent: Recent::new(0) }
    }
}

impl MemoryStore {
    fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.closed {
            return Err(StoreError::Closed);
        }
        admit(batch.fence, batch.base, inner.fence, inner.index)?;
        let rows = (batch.rows)(self.format());
        let bytes: usize = rows.iter().map(row_bytes).sum();
        for row in &rows {
            match &row.value {
                Some(value) => inner.rows.insert((row.table, row.key.clone()), value.clone()),
                None => inner.rows.remove(&(row.table, row.key.clone())),
            };
        }
        inner.index = batch.index;
        inner.stats.batches += 1;
        inner.stats.transactions += 1;
        inner.stats.bytes += bytes as u64;
        self.recent.push(Committed { index: batch.index, rows }, bytes);
        Ok(())
    }
}

/// Whether a batch may be committed.
pub(crate) fn admit(fence: Fence, base: u64, newest: u64, actual: u64) -> Result<(), StoreError> {
    if fence.0 != newest {
        return Err(StoreError::Fenced { newest, ours: fence.0 });
    }
    if base != actual {
        return Err(StoreError::WrongBase { base, actual });
    }
    Ok(())
}

impl Store for MemoryStore {
    fn load(&self) -> Result<Contents, StoreError> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = inner
            .rows
            .iter()
            .map(|((table, key), value)| Row { table: *table, key: key.clone(), value: Some(value.clone()) })
            .collect();
        Ok(Contents { index: inner.index, rows })
    }

    fn acquire(&self) -> Result<Fence, StoreError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.fence += 1;
        Ok(Fence(inner.fence))
    }

    fn submit(&self, batch: Batch, done: Done) {
        // The lock is free when `done` runs: it may use the store.
        let result = self.commit(batch);
        done(result);
    }

    fn watch(&self, index: u64) -> Result<Watch, StoreError> {
        self.recent.watch(index)
    }

    fn followed(&self) -> bool {
        true
    }

    fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn close(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.recent.close();
    }

    fn stats(&self) -> StoreStats {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).stats
    }
}
