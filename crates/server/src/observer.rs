//! Who hears of commits, and in which order.

use std::{sync::Arc, time::Duration};

use state::{State, Table};
use store::StoreError;

use crate::{
    commit::{Commit, Observer},
    disk::Disk,
    events::EventLog,
    haste::Haste,
    keyring::Keyring,
    parts::Parts,
    published::Published,
    run_mark::Keeper,
    runner::Runner,
    schemas::DriverSchemas,
    sessions::NodeSessions,
    watches::Watches,
};

/// Passes on what happens to commits.
pub(crate) struct Followers {
    pub(crate) parts: Parts,
    pub(crate) events: Arc<EventLog>,
    pub(crate) schemas: Arc<DriverSchemas>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) sessions: Arc<dyn NodeSessions>,
    pub(crate) published: Published,
    pub(crate) watches: Arc<Watches>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) haste: Haste,
    pub(crate) run_mark: Arc<Keeper>,
    pub(crate) runner: Arc<Runner>,
}

impl Observer for Followers {
    fn applied(&self, commit: &Commit) -> bool {
        self.parts.follow(commit)
    }

    fn durable(&self, commit: &Commit, took: Duration) {
        self.haste.committed(took);
        self.run_mark.durable(commit.state.cluster(), commit.applied.index);
    }

    fn published(&self, commit: Arc<Commit>) {
        if commit.applied.tables.contains(Table::SigningKeys) {
            self.keyring.follow(&commit.state);
        }
        self.events.follow(&commit);
        self.schemas.follow(&commit);
        self.sessions.follow(&commit);
        self.watches.follow(&commit.applied);
        self.published.tell(commit.applied.index);
    }

    fn reset(&self, state: &Arc<State>) {
        self.parts.reset(state);
    }

    fn refused(&self, error: &StoreError) {
        self.disk.refused(error.to_string());
    }

    fn broken(&self, part: &str, why: &str) {
        self.runner.broken(part, why);
    }

    fn fatal(&self, error: &StoreError) {
        self.runner.fatal(error.to_string());
    }
}
