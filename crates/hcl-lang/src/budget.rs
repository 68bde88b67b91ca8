//! What the evaluation of a file may cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a file may spend: about a byte copied or a fiftieth of an evaluation step each.
pub const BUDGET: u64 = 64 << 20;

/// The rest of what may be spent; clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<AtomicU64>);

impl Default for Budget {
    fn default() -> Self {
        Budget(Arc::new(AtomicU64::new(BUDGET)))
    }
}

impl Budget {
    /// Takes `amount`, or says that it is used up.
    ///
    /// # Errors
    /// [`OverBudget`]; nothing is left then.
    pub fn charge(&self, amount: u64) -> Result<(), OverBudget> {
        let mut rest = self.0.load(Ordering::Relaxed);
        loop {
            let Some(next) = rest.checked_sub(amount) else {
                self.0.store(0, Ordering::Relaxed);
                return Err(OverBudget);
            };
            match self.0.compare_exchange_weak(rest, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => rest = now,
            }
        }
    }
}

/// The file asks for more work than any real one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("evaluating this takes more time or memory than is allowed for one file")]
pub struct OverBudget;
