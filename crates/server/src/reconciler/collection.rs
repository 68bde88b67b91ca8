//! Collection: commits what `control::collection` decides by the clock. What may be garbage is remembered for speed,
//! and filled again from the snapshot.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use control::{
    Stamp,
    collection::{Aging, Before, Candidate, Later, decide_among},
};
use model::TimestampNs;
use state::State;

use crate::{
    clock::now_ns,
    commit::{Commit, Decided},
    config::GcConfig,
    loops::{self, Loop},
    reconciler::part::{Look, Part},
    requests::Collected,
};

/// Candidates of one commit: others wait behind it.
const AT_ONCE: usize = 2_000;

/// Wakes by the clock only.
#[derive(Debug)]
pub(crate) struct Collection {
    aging: Mutex<Aging>,
    interval: Duration,
    /// When it looks next.
    due: Mutex<Instant>,
}

impl Collection {
    pub(crate) fn new(config: &GcConfig) -> Self {
        let interval = config.interval.max(Duration::from_millis(10));
        Self { aging: Mutex::new(Aging::new(config.ages())), interval, due: Mutex::new(Instant::now() + interval) }
    }

    fn lock(&self) -> MutexGuard<'_, Aging> {
        self.aging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        self.lock().follow(&commit.before, &commit.state, &commit.applied);
    }
}

/// What was collected, what stays, and when that was decided.
pub(crate) type Outcome = (Collected, Vec<(Candidate, Later)>, TimestampNs);

impl Part for Collection {
    type Work = BTreeSet<Candidate>;
    type Answer = Outcome;
    const LOOP: &Loop = &loops::COLLECTION;
    const WORK: &str = "what has ended";
    const WAIT: &str = "its interval";
    const FAILED: &str = "collecting";

    fn look(self: &Arc<Self>, _: &State) -> Look<Self::Work> {
        let (mut due, now) = (self.due.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        if now < *due {
            return Look::Rest(Some(*due - now));
        }
        let (mut aging, at) = (self.lock(), now_ns());
        let candidates = aging.take(at, AT_ONCE);
        if !aging.is_due(at) {
            *due = now + self.interval;
        }
        if candidates.is_empty() { Look::Rest(Some(self.interval)) } else { Look::Decide(candidates) }
    }

    fn decide(&self, candidates: Self::Work, state: &State, stamp: Stamp) -> Decided<Outcome> {
        let before = Before::aged(self.lock().ages(), stamp.now);
        let (decided, stay) = decide_among(state, before, candidates);
        Decided { batch: decided.batch, answer: (decided.answer, stay, stamp.now) }
    }

    fn stored(&self, (collected, stay, now): Outcome, state: &State) {
        self.lock().stay(state, stay, now, self.interval);
        if collected != Collected::default() {
            tracing::info!(?collected, "collected what has ended");
        }
    }

    fn fill(&self, state: &State) {
        self.lock().fill(state);
    }
}
