//! The commit pipeline: the only way in which state changes.
//!
//! ```text
//! decide on the newest state ─► apply ─► (next decision builds on it at once)
//!                                  └─► store: durable, in order ─► publish ─► answer, events, loops
//! ```
//!
//! One thread decides and applies; what it has applied is *newest*, what is durable is *published*. Decisions do not
//! wait for the disk of those before them, so that throughput is not one fsync per decision, yet nothing is seen
//! outside, answered or acted upon by a node before it is durable. Only the scheduling side reads *newest*: what it
//! decides is built upon it and fails with it. The store is told when a decision of the scheduler follows, so that one
//! transaction takes it with what it is built upon.
//!
//! An answer without a change, a refusal above all, tells of *newest* as well. It waits until that is durable, so that
//! nobody hears of a write that others do not see yet, or that a crash takes back.
//!
//! When the store refuses a batch, everything that was built on it is refused too (its base is wrong), *newest*
//! returns to *published* and the broker is filled again from there.

use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
pub(crate) use control::{Decided, Stamp};
use model::StoreIndex;
use state::{AppliedSet, State};
use store::{Fence, Store, StoreError};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{
    clock::now_ns,
    error::ServerError,
    loops,
    progress::{Progress, Turns},
    published::Published,
    threads::Threads,
};

/// What may wait for the disk; beyond it the decisions wait. Each batch in flight keeps alive in what its state
/// differs from the next one, which is most of a MiB in a cluster of 5,000 nodes; and this many in one transaction
/// outrun any scheduler already.
const MAX_BATCHES_IN_FLIGHT: usize = 32;
const MAX_CHANGES_IN_FLIGHT: usize = 50_000;
/// How often is looked whether the deciding thread has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A commit that has been applied, with the state that it led to.
#[derive(Debug)]
pub(crate) struct Commit {
    /// What it was built on.
    pub(crate) before: Arc<State>,
    pub(crate) state: Arc<State>,
    pub(crate) applied: AppliedSet,
}

/// Who hears of commits.
pub(crate) trait Observer: Send + Sync {
    /// Applied, not durable yet. Answers whether it has made work for the scheduler, whose decision follows at once.
    /// Runs on the deciding thread.
    fn applied(&self, commit: &Commit) -> bool;
    /// Durable, so long after it was handed to the store, and nobody has heard of it. Runs on the store's thread, in
    /// order: keep it short.
    fn durable(&self, commit: &Commit, took: Duration);
    /// Durable. Runs on the store's thread, in order: keep it short.
    fn published(&self, commit: Arc<Commit>);
    /// What was applied since this state is void.
    fn reset(&self, state: &Arc<State>);
    /// The store has refused a batch for a reason of its own.
    fn refused(&self, error: &StoreError);
    /// A part of the pipeline has ended that must not: the process must end.
    fn broken(&self, part: &str, why: &str);
    /// The store can no longer be trusted: the process must end.
    fn fatal(&self, error: &StoreError);
}

/// The two moments at which a commit answers.
struct Answers<R> {
    /// Once it is applied.
    applied: Option<oneshot::Sender<Result<R, ServerError>>>,
    /// Once it is durable.
    durable: Option<oneshot::Sender<Result<R, ServerError>>>,
}

type Work = Box<dyn FnOnce(&mut Committer) + Send>;

/// The end of the queue that decisions are taken from.
pub(crate) struct Queued(mpsc::UnboundedReceiver<Work>);

/// Where decisions are queued. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CommitQueue {
    queue: mpsc::UnboundedSender<Work>,
    newest: Arc<ArcSwap<State>>,
    floor: Arc<AtomicU64>,
}

impl fmt::Debug for CommitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommitQueue")
    }
}

impl CommitQueue {
    /// A pipeline that begins with this state. Decisions are queued until it is started.
    pub(crate) fn new(state: Arc<State>) -> (Self, Queued) {
        let (queue, decisions) = mpsc::unbounded_channel();
        (Self { queue, newest: Arc::new(ArcSwap::new(state)), floor: Arc::default() }, Queued(decisions))
    }

    /// The newest state, which may not be durable yet. For the scheduling side only.
    pub(crate) fn newest(&self) -> Arc<State> {
        self.newest.load_full()
    }

    /// The newest state of a server that decides nothing: others have made it.
    pub(crate) fn follow(&self, state: Arc<State>) {
        self.newest.store(state);
    }

    /// No commit from now on has a lower index.
    pub(crate) fn raise(&self, index: StoreIndex) {
        self.floor.fetch_max(index, Ordering::AcqRel);
    }

    /// Decides on the newest state, and answers when the decision is durable.
    pub(crate) async fn commit<R: Send + 'static>(
        &self,
        decide: impl FnOnce(&Arc<State>, Stamp) -> Result<Decided<R>, ServerError> + Send + 'static,
    ) -> Result<R, ServerError> {
        self.queue_commit(decide).await.map_err(|_| ServerError::ShuttingDown)?
    }

    /// Queues a decision before it returns: whatever is queued later is decided later. The answer comes when it is
    /// durable.
    pub(crate) fn queue_commit<R: Send + 'static>(
        &self,
        decide: impl FnOnce(&Arc<State>, Stamp) -> Result<Decided<R>, ServerError> + Send + 'static,
    ) -> oneshot::Receiver<Result<R, ServerError>> {
        let (tx, rx) = oneshot::channel();
        // A closed queue drops the sender, which the receiver sees.
        let _ = self
            .queue
            .send(Box::new(move |committer| committer.decide(decide, Answers { applied: None, durable: Some(tx) })));
        rx
    }

    /// Decides on the newest state and waits only until it is applied: for the scheduling side, whose work is void
    /// when the disk refuses it.
    pub(crate) async fn commit_applied<R: Send + 'static>(
        &self,
        decide: impl FnOnce(&Arc<State>, Stamp) -> Result<Decided<R>, ServerError> + Send + 'static,
    ) -> Result<R, ServerError> {
        let (tx, rx) = oneshot::channel();
        let _ = self
            .queue
            .send(Box::new(move |committer| committer.decide(decide, Answers { applied: Some(tx), durable: None })));
        rx.await.map_err(|_| ServerError::ShuttingDown)?
    }
}

/// How many batches with how many changes wait for the disk.
#[derive(Debug)]
struct InFlight {
    now: Mutex<(usize, usize)>,
    fewer: Condvar,
    freed: Notify,
    /// Progress of the store: it works while there is something in flight.
    store: Arc<Turns>,
}

impl InFlight {
    /// Waits until one more batch may wait for the disk. Where deciding and the store share a thread, a wait that held
    /// the thread would never end; [`InFlight::add`] still holds it while very many changes wait. Cancel safe.
    async fn room(&self) {
        while self.now.lock().unwrap_or_else(PoisonError::into_inner).0 >= MAX_BATCHES_IN_FLIGHT {
            self.freed.notified().await;
        }
    }

    fn add(&self, changes: usize) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        while now.0 >= MAX_BATCHES_IN_FLIGHT || (now.0 > 0 && now.1 + changes > MAX_CHANGES_IN_FLIGHT) {
            now = self.fewer.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
        if now.0 == 0 {
            self.store.begins("batches");
        }
        *now = (now.0 + 1, now.1 + changes);
    }
    fn remove(&self, changes: usize) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = (now.0 - 1, now.1 - changes);
        match now.0 {
            0 => self.store.waits("a batch"),
            _ => self.store.begins("batches"),
        }
        drop(now);
        self.fewer.notify_one();
        self.freed.notify_one();
    }
}

/// An answer that changes nothing. The error says that the state which it is about is void.
type Told = Box<dyn FnOnce(Result<(), ServerError>) + Send>;

/// Answers that wait until the state which they tell of is durable, with its index.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<Vec<(StoreIndex, Told)>>>);

impl Waiting {
    /// Answers once that index is durable, at once if it is.
    fn tell(&self, index: StoreIndex, durable: &AtomicU64, told: Told) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: the store's thread notes what is durable before it takes the lock.
        if durable.load(Ordering::Acquire) < index {
            return waiting.push((index, told));
        }
        drop(waiting);
        told(Ok(()));
    }

    /// The batch of that index is durable or refused.
    fn ended(&self, index: StoreIndex, refusal: Option<&str>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due: Vec<_> = waiting.extract_if(.., |(of, _)| *of <= index).collect();
        drop(waiting);
        for (_, told) in due {
            told(refusal.map_or(Ok(()), |why| Err(ServerError::Store(why.to_owned()))));
        }
    }
}

struct Committer {
    store: Arc<dyn Store>,
    fence: Fence,
    newest: Arc<ArcSwap<State>>,
    published: Published,
    observer: Arc<dyn Observer>,
    queue: mpsc::UnboundedSender<Work>,
    in_flight: Arc<InFlight>,
    /// Raised with each reset: failures of batches from before it are old news.
    generation: u64,
    /// Index of the newest batch that was handed to the store.
    tip: StoreIndex,
    /// No commit has a lower index.
    floor: Arc<AtomicU64>,
    /// Index of the newest batch that is durable.
    durable: Arc<AtomicU64>,
    /// Why the store has last refused a batch: what was built on that batch is refused for the same reason.
    refusal: Arc<Mutex<String>>,
    waiting: Waiting,
    /// Nothing is decided any more, and the store may be closed.
    stopped: Arc<AtomicBool>,
    /// Versions kept of each job.
    versions: usize,
}

impl Committer {
    fn decide<R: Send + 'static>(
        &mut self,
        decide: impl FnOnce(&Arc<State>, Stamp) -> Result<Decided<R>, ServerError>,
        answers: Answers<R>,
    ) {
        let state = self.newest.load_full();
        let base = self.tip;
        let index = (state.latest_index().max(base) + 1).max(self.floor.load(Ordering::Acquire));
        let stamp = Stamp { index, now: now_ns() };
        let (durable, waiting) = (self.durable.clone(), self.waiting.clone());
        let tell = |answers: Answers<R>, answer: Result<R, ServerError>| {
            if let Some(tx) = answers.durable {
                let told = move |stored: Result<(), ServerError>| drop(tx.send(stored.and(answer)));
                waiting.tell(base, &durable, Box::new(told));
            } else if let Some(tx) = answers.applied {
                let _ = tx.send(answer);
            }
        };
        let decided = match decide(&state, stamp) {
            Ok(decided) => decided,
            Err(error) => return tell(answers, Err(error)),
        };
        if decided.batch.is_empty() && decided.batch.expect.is_empty() {
            return tell(answers, Ok(decided.answer));
        }
        // The one place that all decisions pass: on a state from the past nothing is decided that cannot be taken back.
        if let Some(recovery) = &state.cluster().recovery
            && decided.batch.waits_for_recovery()
        {
            return tell(answers, Err(ServerError::Recovering(recovery.cause.clone())));
        }
        let mut next = State::clone(&state);
        next.keep_versions(self.versions);
        let applied = match next.apply(stamp.index, stamp.now, decided.batch) {
            Ok(applied) => applied,
            Err(error) => return tell(answers, Err(ServerError::conflict(error.to_string()))),
        };
        let (needs, in_use) = (applied.format(), self.store.format());
        if needs > in_use {
            return tell(answers, Err(ServerError::Format { needs, in_use }));
        }
        let next = Arc::new(next);
        let commit = Arc::new(Commit { before: state, state: next.clone(), applied });
        let changes = commit.applied.changes.len();
        self.in_flight.add(changes);
        self.newest.store(next);
        self.tip = stamp.index;
        let more = self.observer.applied(&commit);
        let (mut early, late) = (answers.applied, answers.durable);
        let mut answer = Some(decided.answer);
        if let Some(tx) = early.take()
            && let Some(answer) = answer.take()
        {
            let _ = tx.send(Ok(answer));
        }
        let rows = {
            let (commit, turns, followed) = (commit.clone(), self.in_flight.store.clone(), self.store.followed());
            // Formats differ in tables only so far. The encoder of a row is chosen here, by the number.
            Box::new(move |_format| {
                turns.stumble();
                if followed { commit.applied.rows_told(&commit.state) } else { commit.applied.rows(&commit.state) }
            })
        };
        let (published, observer, queue, in_flight, generation) = (
            self.published.clone(),
            self.observer.clone(),
            self.queue.clone(),
            self.in_flight.clone(),
            self.generation,
        );
        let (durable, refusal, waiting) = (self.durable.clone(), self.refusal.clone(), self.waiting.clone());
        let (stopped, handed) = (self.stopped.clone(), Instant::now());
        let unanswered = Unanswered(Some(self.observer.clone()));
        self.store.submit(
            store::Batch { fence: self.fence, base, index: stamp.index, rows, more },
            Box::new(move |result| {
                unanswered.answered();
                in_flight.remove(changes);
                let result = match result {
                    Ok(()) => {
                        observer.durable(&commit, handed.elapsed());
                        durable.store(stamp.index, Ordering::Release);
                        published.set(commit.state.clone());
                        observer.published(commit);
                        waiting.ended(stamp.index, None);
                        Ok(())
                    }
                    Err(error) => {
                        if error.fatal() {
                            observer.fatal(&error);
                        }
                        match &error {
                            StoreError::Closed if stopped.load(Ordering::Acquire) => {}
                            StoreError::Closed => observer.broken("store writer", "is no more, and takes no batch"),
                            // The reason is that of an earlier one.
                            StoreError::WrongBase { .. } => {}
                            error => observer.refused(error),
                        }
                        let _ = queue.send(Box::new(move |committer| committer.reset(generation)));
                        let why = told(&error, &refusal);
                        waiting.ended(stamp.index, Some(&why));
                        Err(ServerError::Store(why))
                    }
                };
                if let (Some(tx), Some(answer)) = (late, answer) {
                    let _ = tx.send(result.map(|()| answer));
                }
            }),
        );
    }

    fn reset(&mut self, generation: u64) {
        if generation != self.generation {
            return;
        }
        self.generation += 1;
        self.tip = self.durable.load(Ordering::Acquire);
        let state = self.published.load_full();
        tracing::warn!(index = state.latest_index(), "the store has refused a batch; what was built on it is void");
        self.newest.store(state.clone());
        self.observer.reset(&state);
    }
}

/// A batch that the store has neither stored nor refused: whoever should have done it is no more.
struct Unanswered(Option<Arc<dyn Observer>>);

impl Unanswered {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(observer) = self.0.take() {
            observer.broken(
                "store writer",
                "has ended with a batch in its hands; what it has said stands before this in the log",
            );
        }
    }
}

/// What a person is told of a refused batch. One that was built on another refused one has no reason of its own.
fn told(error: &StoreError, refusal: &Mutex<String>) -> String {
    let mut last = refusal.lock().unwrap_or_else(PoisonError::into_inner);
    if let StoreError::WrongBase { .. } = error {
        return format!("an earlier write was refused, and this one was decided on top of it: {last}; try again");
    }
    *last = error.to_string();
    last.clone()
}

/// What the pipeline starts from.
pub(crate) struct Start {
    pub(crate) queue: CommitQueue,
    pub(crate) queued: Queued,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) fence: Fence,
    /// Index of the store.
    pub(crate) tip: StoreIndex,
    pub(crate) published: Published,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) turns: CommitTurns,
    pub(crate) threads: Threads,
    /// Versions kept of each job.
    pub(crate) versions: usize,
}

/// Progress of the deciding thread and of the store.
pub(crate) struct CommitTurns {
    commit: Arc<Turns>,
    store: Arc<Turns>,
}

/// Where the pipeline reports its progress.
pub(crate) fn turns(progress: &Progress) -> CommitTurns {
    CommitTurns { commit: progress.turns(&loops::COMMIT), store: progress.turns(&loops::STORE) }
}

/// Starts the deciding thread (or task), which ends when the last queue handle outside of it is gone and the given
/// guard is dropped.
pub(crate) fn start(start: Start) -> std::io::Result<CommitThread> {
    let (CommitQueue { queue: tx, newest, floor }, Queued(mut rx)) = (start.queue, start.queued);
    let (turns, observer) = (start.turns.commit, start.observer.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let mut committer = Committer {
        store: start.store,
        fence: start.fence,
        newest,
        published: start.published,
        observer: start.observer,
        queue: tx.clone(),
        in_flight: Arc::new(InFlight {
            now: Mutex::default(),
            fewer: Condvar::new(),
            freed: Notify::new(),
            store: start.turns.store,
        }),
        generation: 0,
        tip: start.tip,
        floor,
        durable: Arc::new(AtomicU64::new(start.tip)),
        refusal: Arc::default(),
        waiting: Waiting::default(),
        stopped: stop.clone(),
        versions: start.versions,
    };
    let stopped = stop.clone();
    let decisions = async move {
        while let Some(work) = rx.recv().await {
            if stopped.load(Ordering::Acquire) {
                break;
            }
            turns.works("a decision");
            committer.in_flight.room().await;
            // Room may have come by the end of the store.
            if stopped.load(Ordering::Acquire) {
                break;
            }
            work(&mut committer);
            turns.waits("a decision");
        }
    };
    let builder = thread::Builder::new().name("commit".to_owned());
    let thread =
        start.threads.start(builder, decisions, move |why| observer.broken("deciding thread (commit)", &why))?;
    Ok(CommitThread { stop, wake: tx, thread })
}

/// The deciding thread; dropping it ends the thread after the decision at hand.
#[derive(Debug)]
pub(crate) struct CommitThread {
    stop: Arc<AtomicBool>,
    wake: mpsc::UnboundedSender<Work>,
    thread: Option<thread::JoinHandle<()>>,
}

impl CommitThread {
    /// Ends it after the decision at hand. False = that has not ended within this time: it waits for the store, and
    /// ends with that. Blocks.
    pub(crate) fn end(&self, within: Duration) -> bool {
        self.tell();
        let until = Instant::now() + within;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }

    fn tell(&self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.wake.send(Box::new(|_| {}));
    }
}

impl Drop for CommitThread {
    fn drop(&mut self) {
        self.tell();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the deciding thread has panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_decision_waits_for_room_and_leaves_its_thread_to_the_store() {
        let store = turns(&Progress::default()).store;
        let (now, fewer, freed) = (Mutex::default(), Condvar::new(), Notify::new());
        let in_flight = InFlight { now, fewer, freed, store };
        for _ in 1..MAX_BATCHES_IN_FLIGHT {
            in_flight.add(1);
        }
        assert!(futures::poll!(std::pin::pin!(in_flight.room())).is_ready(), "there is room for one");
        in_flight.add(1);
        let mut room = std::pin::pin!(in_flight.room());
        assert!(futures::poll!(room.as_mut()).is_pending(), "there is none");
        in_flight.remove(1);
        assert!(futures::poll!(room.as_mut()).is_ready(), "one has become durable");
    }
}
