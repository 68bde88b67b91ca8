//! Collection: commits what `control::collection` decides by the clock.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use control::{
    Stamp,
    collection::{Ages, Before, decide},
};
use state::State;

use crate::{
    commit::Decided,
    config::GcConfig,
    loops::{self, Loop},
    reconciler::part::{Look, Part},
    requests::Collected,
};

/// Wakes by the clock only.
#[derive(Debug)]
pub(crate) struct Collection {
    ages: Ages,
    interval: Duration,
    /// When it looks next.
    due: Mutex<Instant>,
}

impl Collection {
    pub(crate) fn new(config: &GcConfig) -> Self {
        let interval = config.interval.max(Duration::from_millis(10));
        Self { ages: config.ages(), interval, due: Mutex::new(Instant::now() + interval) }
    }
}

impl Part for Collection {
    type Work = ();
    type Answer = Collected;
    const LOOP: &Loop = &loops::COLLECTION;
    const WORK: &str = "what has ended";
    const WAIT: &str = "its interval";
    const FAILED: &str = "collecting";

    fn look(self: &Arc<Self>, _: &State) -> Look<()> {
        let (mut due, now) = (self.due.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        if now < *due {
            return Look::Rest(Some(*due - now));
        }
        *due = now + self.interval;
        Look::Decide(())
    }

    fn decide(&self, (): (), state: &State, stamp: Stamp) -> Decided<Collected> {
        decide(state, Before::aged(&self.ages, stamp.now))
    }

    fn stored(&self, collected: Collected, _: &State) {
        if collected != Collected::default() {
            tracing::info!(?collected, "collected what has ended");
        }
    }
}
