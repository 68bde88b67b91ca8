//! What the plugins of the plain protocol know: which process follows which task, where it writes, and what its
//! WaitTask has answered.
//!
//! Such a plugin follows a task by a watch of its own that begins with StartTask or RecoverTask and ends with whatever
//! goes wrong; RecoverTask of a task that it knows does nothing. So each adoption makes the plugin forget what it had,
//! and begins anew: DETACH, DestroyTask, RecoverTask, WaitTask. Calls about a task share its *gate*; what makes the
//! plugin forget has it alone, so that no DETACH meets a stop, and no answer comes from a task that is let go.

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

/// After a watch has ended for an unknown reason the next one has to last twice as long as that before its driver's
/// word that the task runs counts …
const DOUBT_FACTOR: u32 = 2;
/// … and at most so long: drivers look every few seconds.
const DOUBT_MAX: Duration = Duration::from_secs(10);

/// Some drivers open the task's output for writing and take a failure for the end of the task; this can be opened on
/// every node.
pub(crate) const NOWHERE: &str = "/dev/null";

/// Which tasks the running plugins know, and where the output of tasks goes.
#[derive(Debug, Default)]
pub(crate) struct PlainTasks {
    inner: Mutex<Inner>,
    outputs: watch::Sender<HashMap<SlotKey, Output>>,
    /// How long a task waits for the allocation that shows its output before the node reads it by itself.
    patience: Duration,
}

#[derive(Debug, Default)]
struct Inner {
    known: HashMap<String, Known>,
    gates: HashMap<String, Arc<RwLock<()>>>,
    /// How long the next watch of a task has to last before it is believed.
    doubts: HashMap<String, Duration>,
}

/// What a plugin knows of a task.
#[derive(Debug)]
struct Known {
    /// The plugin's process.
    generation: u64,
    /// Where it was told to write.
    place: Place,
    since: Instant,
    believed_from: Instant,
    /// What it follows is not to be relied upon: it is told of the task anew before it is asked again.
    stale: bool,
    /// What WaitTask has answered.
    ended: Arc<OnceLock<TaskExit>>,
    /// Who waits for that.
    _waits: AbortOnDropHandle<()>,
}

/// Where a driver writes what a task says: FIFOs of this node that are read as long as an allocation shows the task.
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
    /// What is written is not kept.
    #[must_use]
    pub fn nowhere(alloc: AllocId) -> Self {
        Self { alloc, stdout: NOWHERE.to_owned(), stderr: NOWHERE.to_owned() }
    }

    fn put_into(&self, config: &mut TaskConfig) {
        config.stdout_path.clone_from(&self.stdout);
        config.stderr_path.clone_from(&self.stderr);
    }
}

/// Where a plugin is told to write.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    output: Output,
    /// The node reads it by itself.
    unshown: Option<Arc<Unshown>>,
}

impl Place {
    fn of(output: Output) -> Self {
        Self { output, unshown: None }
    }

    fn unshown(former: Option<Arc<Unshown>>) -> Self {
        let unshown = former.map_or_else(|| Unshown::new().map(Arc::new), Ok);
        match unshown {
            // Drivers write what they see of a task to its standard output.
            Ok(pipe) => Self { output: Output { stdout: pipe.path().to_owned(), ..Output::nowhere(AllocId::NIL) }, unshown: Some(pipe) },
            Err(error) => {
                tracing::warn!(%error, "there is no pipe for what a driver says of a task without an allocation: it is not read");
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

    /// The final status of an instance, by what its driver has written here so far. Blocking.
    pub(crate) fn seen_ended(&self, instance: &str) -> Option<String> {
        match &self.unshown {
            Some(pipe) => evidence::final_status(&pipe.text(), instance).map(str::to_owned),
            None if self.output.stdout == NOWHERE => None,
            None => evidence::seen_ended(Path::new(&self.output.stdout), instance),
        }
    }

    /// Whether anything can ever be read of it.
    pub(crate) fn is_read(&self) -> bool {
        self.unshown.is_some() || self.output.stdout != NOWHERE
    }
}

/// A task that the running plugin follows, for one call; until this is dropped the plugin is not made to forget it.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) id: String,
    /// Where it writes.
    pub(crate) place: Place,
    /// What WaitTask has answered.
    ended: Arc<OnceLock<TaskExit>>,
    believed_from: Instant,
    _shares: OwnedRwLockReadGuard<()>,
}

impl Attached {
    /// What WaitTask has answered, if it has.
    pub(crate) fn ended(&self) -> Option<TaskExit> {
        self.ended.get().cloned()
    }

    /// The watch before this one has ended without saying why, and this one has not lasted for long enough to be
    /// believed.
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

    /// Whom calls about a task share.
    pub(crate) fn gate(&self, id: &str) -> Arc<RwLock<()>> {
        self.lock().gates.entry(id.to_owned()).or_default().clone()
    }

    /// The task as the plugin's present process follows it; None: it has to be told of it (again).
    pub(crate) fn attached(&self, id: &str, generation: u64, slot: Option<&SlotKey>, shares: OwnedRwLockReadGuard<()>) -> Option<Attached> {
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

    /// Where the plugin writes, when its present process has been told of the task.
    pub(crate) fn told(&self, id: &str, generation: u64) -> Option<Place> {
        self.lock().known.get(id).filter(|known| known.generation == generation).map(|known| known.place.clone())
    }

    /// The plugin follows the task from now on; that is waited for.
    pub(crate) fn follow(&self, id: &str, driver: &Driver, generation: u64, place: Place) {
        let (ended, now) = (Arc::new(OnceLock::new()), Instant::now());
        let waits = {
            let (driver, id, ended) = (driver.clone(), id.to_owned(), ended.clone());
            async move {
                match driver.wait_task(&id).await {
                    // The first answer is the only one.
                    Ok(exit) => drop(ended.set(exit)),
                    Err(error) => {
                        tracing::debug!(task = id, %error, "the end of a task cannot be waited for: its driver is asked about it")
                    }
                }
            }
        };
        let _waits = AbortOnDropHandle::new(tokio::spawn(waits));
        let mut inner = self.lock();
        let believed_from = now + inner.doubts.remove(id).unwrap_or_default();
        inner.known.insert(id.to_owned(), Known { generation, place, since: now, believed_from, stale: false, ended, _waits });
    }

    /// The plugin is told of the task anew before it is asked again.
    pub(crate) fn renew(&self, id: &str) {
        if let Some(known) = self.lock().known.get_mut(id) {
            known.stale = true;
        }
    }

    /// The plugin's watch has ended, and it does not say why.
    pub(crate) fn doubt(&self, id: &str) {
        let mut inner = self.lock();
        if let Some(known) = inner.known.get_mut(id) {
            known.stale = true;
            let lasted = known.since.elapsed();
            inner.doubts.insert(id.to_owned(), lasted.saturating_mul(DOUBT_FACTOR).min(DOUBT_MAX));
        }
    }

    /// No plugin follows the task any more.
    pub(crate) fn forgotten(&self, id: &str) {
        self.lock().known.remove(id);
    }

    /// Nothing is kept of a task that no plugin follows and no call is about.
    pub(crate) fn prune(&self, id: &str) {
        let mut inner = self.lock();
        // Whoever waits at the gate holds it.
        if !inner.known.contains_key(id) && inner.gates.get(id).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            inner.gates.remove(id);
            inner.doubts.remove(id);
        }
    }

    /// From now on the output of the slot's task goes there.
    pub(crate) fn output_to(&self, slot: SlotKey, output: Output) {
        self.outputs.send_if_modified(|outputs| outputs.insert(slot, output.clone()).as_ref() != Some(&output));
    }

    /// Nobody reads any more what goes to that allocation.
    pub(crate) fn no_output_to(&self, slot: &SlotKey, alloc: AllocId) {
        self.outputs.send_if_modified(|outputs| {
            let reads = outputs.get(slot).is_some_and(|output| output.alloc == alloc);
            reads && outputs.remove(slot).is_some()
        });
    }

    /// Some plugin has been told to write there, and has not been told otherwise.
    pub(crate) fn tells(&self, alloc: AllocId) -> bool {
        self.lock().known.values().any(|known| known.place.output.alloc == alloc)
    }

    /// Where the output of the slot's task goes. That is known in a moment where it is not yet: the allocation comes
    /// with the order for its task. When none comes the node reads it by itself, as it has done when this was so
    /// `before`.
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

    /// The output goes elsewhere than the plugin was told.
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
        let output = |n: u128| Output { alloc: AllocId(uuid::Uuid::from_u128(n)), stdout: format!("{n}.out"), stderr: format!("{n}.err") };
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
        assert!(tasks.moved(Some(&slot), &nowhere) && !tasks.moved(Some(&slot), &output(1)) && !tasks.moved(None, &nowhere));
        // Its successor's allocation comes before the former one goes.
        tasks.output_to(slot.clone(), output(2));
        tasks.no_output_to(&slot, output(1).alloc);
        assert_eq!(place(None).await.output, output(2));
        tasks.no_output_to(&slot, output(2).alloc);
        assert!(!tasks.moved(Some(&slot), &output(2)), "what is told of nowhere else stays");
    }
}
