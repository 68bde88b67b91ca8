//! Rolling restarts: carries out what `control::rolling` decides. Which jobs it looks at is remembered for speed, and
//! filled again from the snapshot.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use control::{
    Stamp,
    rolling::{Changed, decide},
};
use model::JobKey;
use state::State;
use tokio::sync::Notify;

use crate::{
    clock::now_ns,
    commit::{Commit, Decided},
    loops::{self, Loop},
    reconciler::part::{Look, Part, glance, told},
};

/// Wakes when an allocation waits for its turn to restart, or a job changes of which one does.
#[derive(Debug, Default)]
pub(crate) struct Rolling {
    changed: Mutex<Changed>,
    wake: Notify,
}

impl Rolling {
    fn lock(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        if self.lock().follow(&commit.applied) {
            self.wake.notify_one();
        }
    }
}

impl Part for Rolling {
    type Work = BTreeSet<JobKey>;
    type Answer = ();
    const LOOP: &Loop = &loops::ROLLING;
    const WORK: &str = "turns of rolling restarts";
    const WAIT: &str = "an allocation with a changed template";
    const FAILED: &str = "giving turns to rolling restarts";

    fn wake(&self) -> &Notify {
        &self.wake
    }

    fn look(self: &Arc<Self>, state: &State) -> Look<Self::Work> {
        let mut changed = self.lock();
        if !changed.is_in(state) {
            return Look::Rest(Some(Duration::ZERO));
        }
        let now = now_ns();
        let jobs = changed.take(state, now);
        let decision = decide(state, &jobs, glance());
        changed.rest(decision.wake_at);
        if !decision.batch.is_empty() {
            return Look::Decide(jobs);
        }
        Look::Rest(changed.next().map(|at| Duration::from_nanos(u64::try_from(at - now).unwrap_or(0))))
    }

    fn decide(&self, jobs: Self::Work, state: &State, stamp: Stamp) -> Decided<()> {
        told::<Self>(decide(state, &jobs, stamp))
    }

    fn fill(&self, state: &State) {
        self.lock().fill(state);
        self.wake.notify_one();
    }
}
