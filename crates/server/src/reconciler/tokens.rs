//! Tokens that have expired are collected: they give no rights any more, and are kept for a while for people to see.

use std::{sync::Arc, time::Duration};

use control::{Stamp, acl::collect};
use state::{Batch, State};

use crate::{
    clock::now_ns,
    commit::Decided,
    loops::{self, Loop},
    reconciler::part::{Look, Part},
};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(60);
/// Tokens of one commit: others wait behind it.
const AT_ONCE: usize = 1_000;

/// Wakes by the clock only.
#[derive(Debug)]
pub(crate) struct Tokens {
    threshold: Duration,
}

impl Tokens {
    /// `threshold`: how long after its end a token is kept.
    pub(crate) fn new(threshold: Duration) -> Self {
        Self { threshold }
    }
}

impl Part for Tokens {
    type Work = ();
    type Answer = usize;
    const LOOP: &Loop = &loops::TOKENS;
    const WORK: &str = "tokens that have expired";
    const WAIT: &str = "its interval";
    const FAILED: &str = "collecting tokens that have expired";

    fn look(self: &Arc<Self>, state: &State) -> Look<()> {
        match collect(state, self.threshold, now_ns(), 1).is_empty() {
            true => Look::Rest(Some(INTERVAL)),
            false => Look::Decide(()),
        }
    }

    fn decide(&self, (): (), state: &State, stamp: Stamp) -> Decided<usize> {
        let changes = collect(state, self.threshold, stamp.now, AT_ONCE);
        let answer = changes.len();
        Decided { batch: Batch::new(changes), answer }
    }

    fn stored(&self, collected: usize, _: &State) {
        tracing::info!(collected, "collected ACL tokens that have expired");
    }
}
