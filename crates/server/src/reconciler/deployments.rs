//! The deployment watcher: carries out what `control::deployments` decides. Which deployments it looks at is remembered
//! for speed, and filled again from the snapshot.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use control::{
    Stamp,
    deployments::{Changed, decide},
};
use model::DeploymentId;
use state::State;
use tokio::sync::Notify;

use crate::{
    clock::{new_id, now_ns},
    commit::{Commit, Decided},
    loops::{self, Loop},
    reconciler::part::{Look, Part, glance, told},
};

/// Wakes when a deployment, its job or an allocation of it changes, and at deadlines.
#[derive(Debug, Default)]
pub(crate) struct Deployments {
    changed: Mutex<Changed>,
    wake: Notify,
}

impl Deployments {
    fn lock(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        if self.lock().follow(&commit.state, &commit.applied) {
            self.wake.notify_one();
        }
    }
}

impl Part for Deployments {
    type Work = BTreeSet<DeploymentId>;
    type Answer = ();
    const LOOP: &Loop = &loops::DEPLOYMENTS;
    const WORK: &str = "deployments";
    const WAIT: &str = "a deployment that changes";
    const FAILED: &str = "watching deployments";

    fn wake(&self) -> &Notify {
        &self.wake
    }

    fn look(self: &Arc<Self>, state: &State) -> Look<Self::Work> {
        let now = now_ns();
        let mut changed = self.lock();
        if !changed.is_in(state) {
            return Look::Rest(Some(Duration::ZERO));
        }
        let deployments = changed.take(now);
        changed.looked(state, &deployments, now);
        let next = changed.next();
        drop(changed);
        if decide(state, &deployments, glance(), &mut new_id).batch.is_empty() {
            return Look::Rest(next.map(|at| Duration::from_nanos(u64::try_from(at - now).unwrap_or(0))));
        }
        Look::Decide(deployments)
    }

    fn decide(&self, deployments: Self::Work, state: &State, stamp: Stamp) -> Decided<()> {
        told::<Self>(decide(state, &deployments, stamp, &mut new_id))
    }

    fn fill(&self, state: &State) {
        self.lock().fill(state);
        self.wake.notify_one();
    }
}
