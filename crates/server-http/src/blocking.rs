//! Blocking queries: an answer waits until what it watches is newer than the index that the client has seen.

use std::{hash::Hash, sync::Arc, time::Duration};

use api::query::Blocking;
use server::Watched;
use state::{State, Table, TableSet};

use crate::{reply::HttpError, request::Ctx};

impl Ctx {
    /// The newest snapshot once `index_of` is above the client's index, or when its time is up. `watched` says which
    /// changes may raise that index: only those wake the request.
    pub(crate) async fn watch(
        &self,
        watched: impl Fn(&State) -> Watched,
        index_of: impl Fn(&State) -> u64,
    ) -> Result<Arc<State>, HttpError> {
        let blocking = Blocking::parse(&self.query).map_err(HttpError::bad_request)?;
        let wait = blocking.wait + jitter(blocking.wait);
        Ok(self.server().wait_for(blocking.index, wait, watched, index_of).await)
    }

    /// As [`Self::watch`], for tables as a whole; with the newest of their indexes.
    pub(crate) async fn watch_tables(&self, tables: TableSet) -> Result<(Arc<State>, u64), HttpError> {
        let state = self.watch(|_| Watched::Tables(tables), |s| s.index_of(tables)).await?;
        let index = state.index_of(tables);
        Ok((state, index))
    }

    /// The same for one table.
    pub(crate) async fn watch_table(&self, table: Table) -> Result<(Arc<State>, u64), HttpError> {
        let state = self.watch(|_| Watched::table(table), |s| s.index(table)).await?;
        let index = state.index(table);
        Ok((state, index))
    }

    /// As [`Self::watch`], for the object with a key ([`Watched::object`]); the index of its table while it does not
    /// exist, so that its creation and removal are seen and the index never goes back.
    pub(crate) async fn watch_object<T>(
        &self,
        table: Table,
        key: &impl Hash,
        find: impl Fn(&State) -> Option<T>,
        modified: impl Fn(&T) -> u64,
    ) -> Result<(Option<T>, u64, Arc<State>), HttpError> {
        let index_of = |state: &State| find(state).map_or_else(|| state.index(table), |object| modified(&object));
        let watched = |state: &State| match find(state) {
            Some(_) => Watched::object(table, key),
            None => Watched::table(table),
        };
        let state = self.watch(watched, &index_of).await?;
        let (object, index) = (find(&state), index_of(&state));
        Ok((object, index, state))
    }
}

/// Up to a sixteenth of the wait, so that many clients do not come back in the same instant.
pub(crate) fn jitter(wait: Duration) -> Duration {
    let bound = u64::try_from(wait.as_nanos() / 16).unwrap_or(u64::MAX);
    if bound == 0 {
        return Duration::ZERO;
    }
    Duration::from_nanos(uuid::Uuid::new_v4().as_u64_pair().1 % bound)
}
