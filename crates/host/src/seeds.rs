//! Numbers that spread what would else come together.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A source of seeds; its clones share it.
#[derive(Clone, Debug)]
pub struct Seeds(Arc<AtomicU64>);

impl Seeds {
    /// A source whose numbers follow from this one.
    #[must_use]
    pub fn from(first: u64) -> Self {
        Self(Arc::new(AtomicU64::new(first)))
    }

    /// A number that no other call gets.
    #[must_use]
    pub fn next(&self) -> u64 {
        lifecycle::restart::mix(self.0.fetch_add(1, Ordering::Relaxed))
    }
}
