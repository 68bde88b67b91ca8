//! What root keys are encrypted under where they lie: the key that a `keyring` block of the configuration gives.

use crate::shared::SharedKey;

/// Keys that the secrets of root keys are encrypted under, in files and snapshots; none = they lie there as they are.
#[derive(Clone, Debug, Default)]
pub struct Wrapping {
    /// What is written is encrypted under this one.
    pub active: Option<SharedKey>,
    /// These open what was written before.
    pub others: Vec<SharedKey>,
}

impl Wrapping {
    /// There is no key at all.
    pub(super) fn is_none(&self) -> bool {
        self.active.is_none() && self.others.is_empty()
    }

    /// The first key that opens something, by its place, and what it has opened. The active one is asked first.
    pub(super) fn find<T>(&self, open: impl Fn(&SharedKey) -> Option<T>) -> Option<(usize, T)> {
        self.active.iter().chain(&self.others).enumerate().find_map(|(at, key)| Some((at, open(key)?)))
    }
}
