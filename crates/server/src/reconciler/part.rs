//! What the reconciler runs: a decision of `control`, with what is remembered for it.

use std::{sync::Arc, time::Duration};

use control::{Decision, Stamp};
use state::State;
use tokio::sync::Notify;

use crate::{clock::now_ns, commit::Decided, loops::Loop};

/// After a refused commit a part looks again this much later.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// What a look has come to.
#[derive(Debug)]
pub(crate) enum Look<W> {
    /// There is something to decide and to commit.
    Decide(W),
    /// There is nothing, until the part is woken or this time has passed.
    Rest(Option<Duration>),
}

impl<W> Look<W> {
    /// What to do about a decision that was made to see whether it changes anything: another one on the state of its
    /// commit, or nothing.
    pub(crate) fn at(work: W, decision: &Decision) -> Self {
        let until = |at| Duration::from_nanos(u64::try_from(at - now_ns()).unwrap_or(0));
        if decision.batch.is_empty() { Self::Rest(decision.wake_at.map(until)) } else { Self::Decide(work) }
    }
}

/// When it is only seen whether there is something to decide: no commit has this index.
pub(crate) fn glance() -> Stamp {
    Stamp { index: 0, now: now_ns() }
}

/// What the reconciler carries out: a decision of `control`, with what is remembered for it.
pub(crate) trait Part: Send + Sync + 'static {
    /// What a commit is about, as a look has found it.
    type Work: Send + 'static;
    /// What the commit gives back.
    type Answer: Send + 'static;
    /// What is run.
    const LOOP: &'static Loop;
    /// It also works while the servers recover.
    const IN_RECOVERY: bool = false;
    /// What it works on.
    const WORK: &'static str;
    /// What it waits for.
    const WAIT: &'static str;
    /// What the log says of a refused commit.
    const FAILED: &'static str;

    /// Told when there may be something to decide. A part without it wakes by time only.
    fn wake(&self) -> &Notify {
        static NEVER: Notify = Notify::const_new();
        &NEVER
    }

    /// Is there anything to decide?
    fn look(self: &Arc<Self>, state: &State) -> Look<Self::Work>;

    /// The decision, on the newest state.
    fn decide(&self, work: Self::Work, state: &State, stamp: Stamp) -> Decided<Self::Answer>;

    /// It is durable.
    fn stored(&self, _: Self::Answer, _: &State) {}

    /// Starts again from a snapshot: after a refused commit and wherever else what is remembered may be void.
    fn fill(&self, _: &State) {}
}

/// A decision as a commit takes it. Its reasons go to the log.
pub(crate) fn told<P: Part>(decision: Decision) -> Decided<()> {
    for reason in decision.reasons {
        tracing::debug!(part = P::LOOP.name, reason, "decided");
    }
    Decided { batch: decision.batch, answer: () }
}
