//! The plugins' side of the plain protocol: which process follows which task, where it writes, and the answer of its
//! WaitTask.
//!
//! Such a plugin follows a task by a watch of its own. The watch begins with StartTask or RecoverTask and ends with any
//! error. RecoverTask of a task that the plugin knows does nothing. So each adoption makes the plugin forget the task
//! and begins anew: DETACH, DestroyTask, RecoverTask, WaitTask.
//!
//! Calls about a task share its *gate*. A call that makes the plugin forget holds the gate exclusively. So no DETACH
//! meets a stop, and no answer comes from a task that was let go.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use driver_host::{Driver, TaskConfig, TaskExit};
use model::{AllocId, SlotKey};
use tokio::{
    sync::{OwnedRwLockReadGuard, RwLock, watch},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{evidence, unshown::Unshown};

/// After a watch has ended for an unknown reason, the next one has to last this many times as long. Only then the
/// driver's word that the task runs counts …
const DOUBT_FACTOR: u32 = 2;
/// … and at most this long: drivers look every few seconds.
const DOUBT_MAX: Duration = Duration::from_secs(10);

/// Some drivers open the task's output for writing and take a failure for the end of the task. Every node can open this
/// path.
pub(crate) const NOWHERE: &str = "/dev/null";

/// The tasks that the running plugins know, and where their output goes.
#[derive(Debug, Default)]
pub(crate) struct PlainTasks {
    inner: Mutex<Inner>,
    outputs: watch::Sender<HashMap<SlotKey, Output>>,
    /// How long a task waits for the allocation that shows its output. Then the node reads the output itself.
    patience: Duration,
}

#[derive(Debug, Default)]
struct Inner {
    known: HashMap<String, Known>,
    gates: HashMap<String, Arc<RwLock<()>>>,
    /// How long the next watch of a task has to last before its word counts.
    doubts: HashMap<String, Duration>,
}

/// A plugin's knowledge of a task.
#[derive(Debug)]
struct Known {
    /// Generation of the plugin's process.
    generation: u64,
    /// Where the plugin writes the output.
    place: Place,
    since: Instant,
    believed_from: Instant,
    /// Its watch is unreliable: the plugin must adopt the task anew before the next call.
    stale: bool,
    /// The answer of WaitTask.
    ended: Arc<OnceLock<TaskExit>>,
    /// The pending WaitTask call.
    _waits: AbortOnDropHandle<()>,
}

/// Where a driver writes a task's output: FIFOs of this node that have a reader as long as an allocation shows the
/// task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The allocation.
    pub alloc: AllocId,
    /// Path for standard output.
    pub stdout: String,
    /// Path for standard error.
    pub stderr: String,
}

impl Output {
    /// Output that nothing keeps.
    #[must_use]
    pub fn nowhere(alloc: AllocId) -> Self {
        Self { alloc, stdout: NOWHERE.to_owned(), stderr: NOWHERE.to_owned() }
    }

    fn put_into(&self, config: &mut TaskConfig) {
        config.stdout_path.clone_from(&self.stdout);
        config.stderr_path.clone_from(&self.stderr);
    }
}

/// A plugin's target of a task's output.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    output: Output,
    /// The pipe, if the node reads the output itself.
    unshown: Option<Arc<Unshown>>,
}

impl Place {
    fn of(output: Output) -> Self {
        Self { output, unshown: None }
    }

    fn unshown(former: Option<Arc<Unshown>>) -> Self {
        let unshown = former.map_or_else(|| Unshown::new().map(Arc::new), Ok);
        match unshown {
            // Drivers write their observations of a task to its standard output.
            Ok(pipe) => Self {
                output: Output { stdout: pipe.path().to_owned(), ..Output::nowhere(AllocId::NIL) },
                unshown: Some(pipe),
            },
            Err(error) => {
                tracing::warn!(%error, "there is no pipe for what a driver says of a task without an allocation: it \
                    is not read");
                Self::of(Output::nowhere(AllocId::NIL))
            }
        }
    }

    pub(crate) fn put_into(&self, config: &mut TaskConfig) {
        self.output.put_into(config);
    }

    /// Paths of the FIFOs.
    pub(crate) fn paths(&self) -> [&str; 2] {
        [&self.output.stdout, &self.output.stderr]
    }

    /// The final status of an instance, if its driver has written one here so far. Blocking.
    pub(crate) fn seen_ended(&self, instance: &str) -> Option<String> {
        match &self.unshown {
            Some(pipe) => evidence::final_status(&pipe.text(), instance).map(str::to_owned),
            None if self.output.stdout == NOWHERE => None,
            None => evidence::seen_ended(Path::new(&self.output.stdout), instance),
        }
    }

    /// Whether the output has a reader.
    pub(crate) fn is_read(&self) -> bool {
        self.unshown.is_some() || self.output.stdout != NOWHERE
    }
}

/// A task that the running plugin follows, for one call. Until its drop nothing makes the plugin forget the task.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) id: String,
    /// Where the plugin writes the output.
    pub(crate) place: Place,
    /// The answer of WaitTask.
    ended: Arc<OnceLock<TaskExit>>,
    believed_from: Instant,
    _shares: OwnedRwLockReadGuard<()>,
}

impl Attached {
    /// The answer of WaitTask, if there is one.
    pub(crate) fn ended(&self) -> Option<TaskExit> {
        self.ended.get().cloned()
    }

    /// The last watch ended without a reason, and the present one has not lasted long enough to be believed.
    pub(crate) fn doubted(&self) -> bool {
        Instant::now() < self.believed_from
    }
}

impl PlainTasks {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gate that calls about a task share.
    pub(crate) fn gate(&self, id: &str) -> Arc<RwLock<()>> {
        self.lock().gates.entry(id.to_owned()).or_default().clone()
    }

    /// The task as the plugin's present process follows it; `None`: the plugin must adopt it (again).
    pub(crate) fn attached(
        &self,
        id: &str,
        generation: u64,
        slot: Option<&SlotKey>,
        shares: OwnedRwLockReadGuard<()>,
    ) -> Option<Attached> {
        let inner = self.lock();
        let known = inner.known.get(id).filter(|known| self.good(known, generation, slot))?;
        let (place, ended, believed_from) = (known.place.clone(), known.ended.clone(), known.believed_from);
        Some(Attached { id: id.to_owned(), place, ended, believed_from, _shares: shares })
    }

    fn good(&self, known: &Known, generation: u64, slot: Option<&SlotKey>) -> bool {
        known.generation == generation && !known.stale && !self.moved(slot, &known.place.output)
    }

    /// Whether the plugin's present process follows the task as it should.
    pub(crate) fn follows(&self, id: &str, generation: u64, slot: Option<&SlotKey>) -> bool {
        self.lock().known.get(id).is_some_and(|known| self.good(known, generation, slot))
    }

    /// The plugin's target of output, if its present process knows the task.
    pub(crate) fn told(&self, id: &str, generation: u64) -> Option<Place> {
        self.lock().known.get(id).filter(|known| known.generation == generation).map(|known| known.place.clone())
    }

    /// Records that the plugin follows the task from now on, and calls WaitTask in the background.
    pub(crate) fn follow(&self, id: &str, driver: &Driver, generation: u64, place: Place) {
        let (ended, now) = (Arc::new(OnceLock::new()), Instant::now());
        let waits = {
            let (driver, id, ended) = (driver.clone(), id.to_owned(), ended.clone());
            async move {
                match driver.wait_task(&id).await {
                    // Only the first answer counts.
                    Ok(exit) => drop(ended.set(exit)),
                    Err(error) => {
                        tracing::debug!(task = id, %error, "the end of a task cannot be waited for: its driver is \
                            asked about it")
                    }
                }
            }
        };
        let _waits = AbortOnDropHandle::new(tokio::spawn(waits));
        let mut inner = self.lock();
        let believed_from = now + inner.doubts.remove(id).unwrap_or_default();
        inner
            .known
            .insert(id.to_owned(), Known { generation, place, since: now, believed_from, stale: false, ended, _waits });
    }

    /// Makes the plugin adopt the task anew before the next call.
    pub(crate) fn renew(&self, id: &str) {
        if let Some(known) = self.lock().known.get_mut(id) {
            known.stale = true;
        }
    }

    /// Records that the plugin's watch has ended without a reason.
    pub(crate) fn doubt(&self, id: &str) {
        let mut inner = self.lock();
        if let Some(known) = inner.known.get_mut(id) {
            known.stale = true;
            let lasted = known.since.elapsed();
            inner.doubts.insert(id.to_owned(), lasted.saturating_mul(DOUBT_FACTOR).min(DOUBT_MAX));
        }
    }

    /// Records that no plugin follows the task any more.
    pub(crate) fn forgotten(&self, id: &str) {
        self.lock().known.remove(id);
    }

    /// Drops the state of a task that no plugin follows and no call uses.
    pub(crate) fn prune(&self, id: &str) {
        let mut inner = self.lock();
        // Each waiter at the gate holds a reference to it.
        if !inner.known.contains_key(id) && inner.gates.get(id).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            inner.gates.remove(id);
            inner.doubts.remove(id);
        }
    }

    /// Sends the output of the slot's task there from now on.
    pub(crate) fn output_to(&self, slot: SlotKey, output: Output) {
        self.outputs.send_if_modified(|outputs| outputs.insert(slot, output.clone()).as_ref() != Some(&output));
    }

    /// Tells that the allocation no longer reads the slot's output.
    pub(crate) fn no_output_to(&self, slot: &SlotKey, alloc: AllocId) {
        self.outputs.send_if_modified(|outputs| {
            let reads = outputs.get(slot).is_some_and(|output| output.alloc == alloc);
            reads && outputs.remove(slot).is_some()
        });
    }

    /// Whether a plugin's latest target is a FIFO of this allocation.
    pub(crate) fn tells(&self, alloc: AllocId) -> bool {
        self.lock().known.values().any(|known| known.place.output.alloc == alloc)
    }

    /// Where the output of the slot's task goes. Waits a moment for the allocation, which comes with the order for its
    /// task. If none comes, the node reads the output itself, through the same pipe as `before`.
    pub(crate) async fn place_of(&self, slot: Option<&SlotKey>, before: Option<Place>) -> Place {
        let former = before.and_then(|place| place.unshown);
        let Some(slot) = slot else { return Place::unshown(former) };
        let mut outputs = self.outputs.subscribe();
        let patience = if former.is_some() { Duration::ZERO } else { self.patience };
        let there = outputs.wait_for(|outputs| outputs.contains_key(slot));
        let shown = match tokio::time::timeout(patience, there).await {
            Ok(Ok(outputs)) => outputs.get(slot).cloned(),
            _ => None,
        };
        shown.map_or_else(|| Place::unshown(former), Place::of)
    }

    /// Whether the output's target differs from the plugin's.
    fn moved(&self, slot: Option<&SlotKey>, told: &Output) -> bool {
        slot.is_some_and(|slot| self.outputs.borrow().get(slot).is_some_and(|now| now != told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn output_goes_to_the_allocation_that_shows_the_task_now() {
        let tasks = PlainTasks::default();
        let slot: SlotKey = "default/job.g[0]/t".parse().expect("a slot");
        let output = |n: u128| Output {
            alloc: AllocId(uuid::Uuid::from_u128(n)),
            stdout: format!("{n}.out"),
            stderr: format!("{n}.err"),
        };
        let nowhere = Output::nowhere(AllocId::NIL);
        let place = async |before| tasks.place_of(Some(&slot), before).await;
        assert!(tasks.place_of(None, None).await.unshown.is_some(), "the node reads it");
        let unshown = place(None).await;
        assert!(unshown.unshown.is_some(), "nobody shows it");
        let begin = Instant::now();
        assert_eq!(place(Some(unshown.clone())).await.output, unshown.output, "what it has said is not lost");
        assert_eq!(begin.elapsed(), Duration::ZERO, "it was waited for already");
        tasks.output_to(slot.clone(), output(1));
        assert_eq!(place(None).await.output, output(1));
        assert_eq!(place(Some(unshown)).await.output, output(1));
        assert!(
            tasks.moved(Some(&slot), &nowhere) && !tasks.moved(Some(&slot), &output(1)) && !tasks.moved(None, &nowhere)
        );
        // Its successor's allocation comes before the former one goes.
        tasks.output_to(slot.clone(), output(2));
        tasks.no_output_to(&slot, output(1).alloc);
        assert_eq!(place(None).await.output, output(2));
        tasks.no_output_to(&slot, output(2).alloc);
        assert!(!tasks.moved(Some(&slot), &output(2)), "what is told of nowhere else stays");
    }
}
