//! Numbers that spread events in time that would otherwise coincide.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A source of seeds; its clones share one sequence.
#[derive(Clone, Debug)]
pub struct Seeds(Arc<AtomicU64>);

impl Seeds {
    /// A source whose sequence starts from `first`.
    #[must_use]
    pub fn from(first: u64) -> Self {
        Self(Arc::new(AtomicU64::new(first)))
    }

    /// A number that no other call returns.
    #[must_use]
    pub fn next(&self) -> u64 {
        lifecycle::restart::mix(self.0.fetch_add(1, Ordering::Relaxed))
    }
}
