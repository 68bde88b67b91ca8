//! Periodic jobs: carries out what `control::periodic` decides. When each is due is remembered for speed, and filled
//! again from the snapshot.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use control::{
    Stamp,
    periodic::{Upcoming, decide},
};
use model::JobKey;
use state::State;
use tokio::sync::Notify;

use crate::{
    clock::{new_id, now_ns, zone},
    commit::{Commit, Decided},
    loops::{self, Loop},
    reconciler::part::{Look, Part, glance, told},
};

/// Launches of one commit: others wait behind it.
const AT_ONCE: usize = 500;
/// The time of day may be set while nothing happens; so often it is looked at.
const CLOCK: Duration = Duration::from_secs(10);

/// Wakes at the time of the next launch, and when a periodic job changes.
#[derive(Debug)]
pub(crate) struct Launches {
    upcoming: Mutex<Upcoming>,
    wake: Notify,
}

impl Default for Launches {
    fn default() -> Self {
        Self { upcoming: Mutex::new(Upcoming::new(zone)), wake: Notify::new() }
    }
}

impl Launches {
    fn lock(&self) -> MutexGuard<'_, Upcoming> {
        self.upcoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        if self.lock().follow(&commit.state, &commit.applied) {
            self.wake.notify_one();
        }
    }
}

impl Part for Launches {
    type Work = Vec<JobKey>;
    type Answer = ();
    const LOOP: &Loop = &loops::PERIODIC;
    const WORK: &str = "launches";
    const WAIT: &str = "the next launch";
    const FAILED: &str = "launching periodic jobs";

    fn wake(&self) -> &Notify {
        &self.wake
    }

    fn look(self: &Arc<Self>, state: &State) -> Look<Self::Work> {
        let now = now_ns();
        let mut upcoming = self.lock();
        let due = upcoming.due(now, AT_ONCE);
        if !due.is_empty() {
            if !decide(state, &due, upcoming.zones(), glance(), &mut new_id).batch.is_empty() {
                return Look::Decide(due);
            }
            // What was remembered of them does not hold any more.
            upcoming.look_again(state, &due);
        }
        let until = |at: i64| Duration::from_nanos(u64::try_from(at - now).unwrap_or(0)).min(CLOCK);
        Look::Rest(upcoming.wake_at().map(until))
    }

    fn decide(&self, due: Self::Work, state: &State, stamp: Stamp) -> Decided<()> {
        told::<Self>(decide(state, &due, zone, stamp, &mut new_id))
    }

    fn fill(&self, state: &State) {
        self.lock().fill(state);
        self.wake.notify_one();
    }
}
