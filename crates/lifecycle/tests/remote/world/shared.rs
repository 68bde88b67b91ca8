//! Parts that a world and its copies have in common until one of them changes its own. A part remembers its digest, so
//! that a step is paid for by what it changes, not by the size of the world.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, OnceLock},
};

use super::digest::{Digest, NAMINGS, Names};

/// A part that is copied when it is written to, as [`Arc::make_mut`] does. Each mutable access forgets the digest.
pub(crate) struct Shared<T>(Arc<Part<T>>);

struct Part<T> {
    value: T,
    /// One for each way to name nodes and slots.
    digests: [OnceLock<u128>; NAMINGS],
}

impl<T> Part<T> {
    fn new(value: T) -> Self {
        Self { value, digests: [const { OnceLock::new() }; NAMINGS] }
    }
}

impl<T: Clone> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self::new(self.value.clone())
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(Part::new(value)))
    }
}

impl<T: Default> Default for Shared<T> {
    fn default() -> Self {
        T::default().into()
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        let part = Arc::make_mut(&mut self.0);
        for digest in &mut part.digests {
            digest.take();
        }
        &mut part.value
    }
}

impl<T: Digest> Shared<T> {
    pub(super) fn digest(&self, names: &Names) -> u128 {
        *self.0.digests[names.number()].get_or_init(|| self.0.value.digest(names))
    }
}
