//! The reconciler: one loop for every decision that the servers make by themselves.
//!
//! Look at the newest state, decide, commit, and sleep until a change or the time that the look has named. What is
//! committed was decided on the newest state at that moment. Nothing is remembered between two looks but what a
//! [`Part`] holds for speed, and fills again from a snapshot.

mod collection;
mod deployments;
mod drains;
mod launches;
mod leases;
mod locks;
pub(crate) mod part;
mod rolling;
mod supervision;
mod tokens;

use std::sync::Arc;

use self::part::{Look, Part, RETRY};
pub(crate) use self::{
    collection::Collection,
    deployments::Deployments,
    drains::Drains,
    launches::Launches,
    leases::{Expected, Leases},
    locks::Locks,
    rolling::Rolling,
    supervision::Supervision,
    tokens::Tokens,
};
use crate::{commit::CommitQueue, published::Published, runner::Runner};

/// Runs parts. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Reconciler {
    runner: Arc<Runner>,
    queue: CommitQueue,
    published: Published,
}

impl Reconciler {
    pub(crate) fn new(runner: Arc<Runner>, queue: CommitQueue, published: Published) -> Self {
        Self { runner, queue, published }
    }

    /// Starts the loop of a part.
    pub(crate) fn start<P: Part>(&self, part: &Arc<P>) {
        self.runner.spawn_loop(P::LOOP, run(self.clone(), part.clone()));
    }

    /// Returns at once, or when a recovery that is under way is over. Parts that decide wait here: what they would
    /// decide is refused meanwhile. Cancel safe.
    async fn not_recovering(&self) {
        let mut published = self.published.subscribe();
        while self.queue.newest().cluster().recovery.is_some() {
            tokio::select! {
                changed = published.changed() => if changed.is_err() { return },
                () = self.runner.stopping().cancelled() => return,
            }
        }
    }
}

/// The loop of a part.
async fn run<P: Part>(own: Reconciler, part: Arc<P>) {
    let turns = own.runner.turns(P::LOOP);
    loop {
        if !P::IN_RECOVERY {
            own.not_recovering().await;
        }
        turns.works(P::WORK);
        match part.look(&own.queue.newest()) {
            Look::Decide(work) => {
                turns.waits("a commit");
                let deciding = part.clone();
                match own.queue.commit(move |state, stamp| Ok(deciding.decide(work, state, stamp))).await {
                    Ok(answer) => part.stored(answer, &own.queue.newest()),
                    Err(error) => {
                        tracing::error!(error = %error, "{} failed; trying again", P::FAILED);
                        tokio::select! {
                            () = tokio::time::sleep(RETRY) => {}
                            () = own.runner.stopping().cancelled() => return,
                        }
                        part.fill(&own.queue.newest());
                    }
                }
            }
            Look::Rest(time) => {
                turns.waits(P::WAIT);
                tokio::select! {
                    () = part.wake().notified() => {}
                    () = tokio::time::sleep(time.unwrap_or_default()), if time.is_some() => {}
                    () = own.runner.stopping().cancelled() => return,
                }
            }
        }
    }
}
