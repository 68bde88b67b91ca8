//! Supervision of remote tasks: carries out what `control::supervision` decides. What is remembered here is remembered
//! for speed, and filled again from the snapshot.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use control::{
    sessions::SessionId,
    supervision::{self, Beginning, Said, Signals, Supervised, Timers},
};
use lifecycle::remote::Event;
use model::{RemoteReport, SlotKey, StoreIndex, TimestampNs};
use state::{Batch, State};
use tokio::sync::{Notify, oneshot};

use crate::{
    clock::{new_id, now_ns},
    commit::{Commit, CommitQueue, Decided, Stamp},
    error::{Kind, ServerError},
    loops::{self, Loop},
    reconciler::part::{Look, Part},
    session_order::SessionOrder,
    sweep::Sweeps,
};

/// Wakes on signals and at the times of restarts.
#[derive(Debug)]
pub(crate) struct Supervision {
    signals: Mutex<Signals>,
    timers: Mutex<Timers>,
    wake: Notify,
    sweeps: Arc<Sweeps>,
    queue: CommitQueue,
    /// Slots that were looked at since the start.
    pub(crate) looks: AtomicU64,
}

impl Supervision {
    pub(crate) fn new(sweeps: Arc<Sweeps>, queue: CommitQueue) -> Self {
        Self {
            signals: Mutex::default(),
            timers: Mutex::default(),
            wake: Notify::new(),
            sweeps,
            queue,
            looks: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Signals> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at everything again.
    pub(crate) fn again(&self) {
        self.lock().fill();
        self.wake.notify_one();
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        let some = self.lock().follow(&commit.before, &commit.state, &commit.applied);
        if some {
            self.wake.notify_one();
        }
    }

    /// Why an incarnation must not begin now, as far as sweeps know.
    fn held(&self, begins: &Beginning<'_>) -> Option<String> {
        self.sweeps.holds(begins.slot, (begins.driver, begins.provider), begins.can_list, begins.stopping)
    }

    /// Stores what a node reports about remote tasks: queued when this returns. The second part names the slots whose
    /// order (or release) the node is to be told again.
    pub(crate) fn report(
        self: &Arc<Self>,
        (from, order): (SessionId, SessionOrder),
        reports: Vec<RemoteReport>,
    ) -> (impl Future<Output = Result<(), ServerError>> + Send + 'static, oneshot::Receiver<Vec<SlotKey>>) {
        let (tx, resend) = oneshot::channel();
        let own = self.clone();
        let stored = self.queue.queue_commit(move |state, stamp| {
            order.check(from)?;
            let from = from.node;
            for report in reports.iter().filter(|report| report.stale_epoch > 0) {
                let (slot, epoch, acted_under) = (&report.slot, report.epoch, report.stale_epoch);
                tracing::warn!(slot = %slot, node = %from, epoch, acted_under, "an order was refused as stale");
            }
            let (supervised, again) =
                supervision::report(state, from, reports, stamp, &mut new_id, &|begins| own.held(begins));
            let _ = tx.send(again);
            Ok(Decided { batch: told(supervised), answer: () })
        });
        (async move { stored.await.map_err(|_| ServerError::ShuttingDown)? }, resend)
    }

    /// What a person orders for a slot that has a record.
    pub(crate) async fn order(self: &Arc<Self>, slot: SlotKey, event: Event) -> Result<StoreIndex, ServerError> {
        let own = self.clone();
        let decide = move |state: &Arc<State>, stamp: Stamp| {
            if state.remote_task(&slot).is_none() {
                return Err(ServerError::not_found(Kind::RemoteTask, &slot));
            }
            Ok(Decided { batch: own.ordered(state, &slot, &event, stamp)?, answer: stamp.index })
        };
        self.queue.commit(decide).await
    }

    /// What follows from an order for a slot.
    ///
    /// # Errors
    /// When nothing does.
    pub(crate) fn ordered(
        &self,
        state: &State,
        slot: &SlotKey,
        event: &Event,
        stamp: Stamp,
    ) -> Result<Batch, ServerError> {
        let (supervised, result) =
            supervision::order(state, slot, event, stamp, &mut new_id, &|begins| self.held(begins));
        let batch = told(supervised);
        result?;
        Ok(batch)
    }
}

impl Part for Supervision {
    type Work = (BTreeSet<SlotKey>, TimestampNs);
    type Answer = Self::Work;
    const LOOP: &Loop = &loops::SUPERVISION;
    const WORK: &str = "remote tasks";
    const WAIT: &str = "a remote task that changes";
    const FAILED: &str = "supervising remote tasks";

    fn wake(&self) -> &Notify {
        &self.wake
    }

    fn look(self: &Arc<Self>, state: &State) -> Look<Self::Work> {
        let now = now_ns();
        let mut slots = std::mem::take(&mut *self.lock()).resolve(state);
        let timers = self.timers();
        slots.extend(timers.due(now));
        if slots.is_empty() {
            return Look::Rest(timers.next().map(|at| Duration::from_nanos(u64::try_from(at - now).unwrap_or(0))));
        }
        self.looks.fetch_add(slots.len() as u64, Ordering::Relaxed);
        Look::Decide((slots, now))
    }

    /// On a state that may be newer than the one that the slots came from: then it wakes us again.
    fn decide(&self, (slots, now): Self::Work, state: &State, stamp: Stamp) -> Decided<Self::Answer> {
        let looked_at = slots.clone();
        let supervised = supervision::decide(state, slots, stamp, &mut new_id, &|begins| self.held(begins));
        Decided { batch: told(supervised), answer: (looked_at, now) }
    }

    fn stored(&self, (slots, now): Self::Answer, state: &State) {
        self.timers().looked(state, slots, now);
    }

    fn fill(&self, _: &State) {
        self.again();
    }
}

/// Logs the reasons; the changes.
fn told(supervised: Supervised) -> Batch {
    for said in supervised.said {
        match said {
            Said::Held { slot, why } => tracing::warn!(slot = %slot, why, "no incarnation of a remote task begins now"),
            Said::Asks { job, why } => tracing::debug!(job = %job, why, "a remote task asks for an evaluation"),
            Said::Changed { slot, reasons } => tracing::debug!(slot = %slot, ?reasons, "remote task changed"),
        }
    }
    supervised.batch
}
