//! The deployment watcher: carries out what `control::deployments` decides.

use std::sync::Arc;

use control::{Stamp, deployments::decide};
use state::{State, Table};
use tokio::sync::Notify;

use crate::{
    clock::new_id,
    commit::{Commit, Decided},
    loops::{self, Loop},
    reconciler::part::{Look, Part, glance, told},
};

/// Wakes when deployments, jobs or health change, and at deadlines.
#[derive(Debug, Default)]
pub(crate) struct Deployments {
    wake: Notify,
}

impl Deployments {
    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        if commit.applied.tables.contains(Table::Deployments) || commit.applied.tables.contains(Table::Jobs) {
            self.wake.notify_one();
        }
    }
}

impl Part for Deployments {
    type Work = ();
    type Answer = ();
    const LOOP: &Loop = &loops::DEPLOYMENTS;
    const WORK: &str = "deployments";
    const WAIT: &str = "a deployment that changes";
    const FAILED: &str = "watching deployments";

    fn wake(&self) -> &Notify {
        &self.wake
    }

    fn look(self: &Arc<Self>, state: &State) -> Look<()> {
        Look::at((), &decide(state, glance(), &mut new_id))
    }

    fn decide(&self, (): (), state: &State, stamp: Stamp) -> Decided<()> {
        told::<Self>(decide(state, stamp, &mut new_id))
    }

    fn fill(&self, _: &State) {
        self.wake.notify_one();
    }
}
