//! Who hears of commits, and in which order.

use std::sync::Arc;

use state::State;
use store::StoreError;

use crate::{
    commit::{Commit, Observer},
    disk::Disk,
    events::EventLog,
    parts::Parts,
    published::Published,
    runner::Runner,
    schemas::DriverSchemas,
    sessions::NodeSessions,
};

/// Passes on what happens to commits.
pub(crate) struct Followers {
    pub(crate) parts: Parts,
    pub(crate) events: Arc<EventLog>,
    pub(crate) schemas: Arc<DriverSchemas>,
    pub(crate) sessions: Arc<dyn NodeSessions>,
    pub(crate) published: Published,
    pub(crate) disk: Arc<Disk>,
    pub(crate) runner: Arc<Runner>,
}

impl Observer for Followers {
    fn applied(&self, commit: &Commit) {
        self.parts.follow(commit);
    }

    fn published(&self, commit: Arc<Commit>) {
        self.events.follow(&commit);
        self.schemas.follow(&commit);
        self.sessions.follow(&commit);
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
