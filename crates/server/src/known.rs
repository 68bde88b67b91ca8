//! A state in memory with the place in the store that it stands at.

use std::sync::Arc;

use model::StoreIndex;
use state::{AppliedSet, LoadError, State};
use store::{Committed, Contents, Store};

/// A state that has everything up to an index of its store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Known {
    pub(crate) state: Arc<State>,
    /// Of the newest batch, also of one that no row is left of.
    pub(crate) index: StoreIndex,
}

impl Known {
    /// The state of these rows.
    ///
    /// # Errors
    /// When they are no state.
    pub(crate) fn read(contents: Contents) -> Result<Self, LoadError> {
        Ok(Self { index: contents.index, state: Arc::new(State::load(contents.rows)?) })
    }

    /// The state after the next batch, and what that has changed.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn after(&self, batch: &Committed) -> Result<(Self, AppliedSet), LoadError> {
        let mut next = State::clone(&self.state);
        let applied = next.follow(batch.index, &batch.rows)?;
        Ok((Self { state: Arc::new(next), index: batch.index }, applied))
    }

    /// The newest state of a store to which nobody else writes any more, if the store still has all that is missing
    /// here.
    pub(crate) fn caught_up(mut self, store: &dyn Store) -> Option<Self> {
        let batches = store.watch(self.index).and_then(|mut rest| rest.ready()).ok()?;
        for batch in batches {
            self = self.after(&batch).ok()?.0;
        }
        Some(self)
    }

    /// Index of the newest batch in it.
    #[must_use]
    pub fn index(&self) -> StoreIndex {
        self.index
    }
}
