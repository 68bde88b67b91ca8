//! What the shared store of two servers holds, and the network before it, which loses, delays and repeats.
//!
//! It answers transactions as etcd does: each is one step, on condition of the fence and the tip. What is known about
//! it where a server is, and what a server does about lost answers, is in `shared`.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use state::Row;
use store::{Batch, Committed, Contents, Fence, MemoryStore, Store as _};
use tokio::sync::oneshot;

use crate::{history::History, machine::mix, mark::Mark, plan::Flaw, signal::Signal};

/// Servers that share it.
pub(crate) const SERVERS: usize = 2;

/// What of a server asks the store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    /// Opening it, and taking over.
    Turns,
    Beats,
    View,
    Writer,
}

/// How many there are.
const LOOPS: usize = 4;

/// The newest transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tip {
    pub(crate) index: u64,
    /// Tells a transaction from others that end at the same index.
    pub(crate) nonce: u64,
}

/// The right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) fence: u64,
    /// The server.
    pub(crate) by: usize,
    /// Of one attempt to take over.
    pub(crate) attempt: u64,
}

/// What the truth looks like to somebody who reads all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stands {
    pub(crate) held: Option<Held>,
    pub(crate) tip: Tip,
    /// The newest fence.
    pub(crate) newest: u64,
    /// Grows with each sign of life of whoever leads.
    pub(crate) beat: u64,
    /// Grows with each change.
    pub(crate) revision: u64,
}

/// A batch as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Of the transaction that has written it.
    pub(crate) fence: u64,
    /// The batch before it.
    pub(crate) base: u64,
    pub(crate) batch: Arc<Committed>,
}

/// What comes of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) done: bool,
    /// There is no room. Nothing was written, unless this transaction has used up the last of it: only what stands
    /// there tells.
    pub(crate) full: bool,
    pub(crate) stands: Stands,
    /// The fence of the batch at the transaction's last index.
    pub(crate) record: Option<u64>,
}

/// Nobody knows whether it was heard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unanswered;

#[derive(Debug, Default)]
struct Inner {
    newest: u64,
    /// How often somebody has taken over.
    takes: u64,
    held: Option<Held>,
    beat: u64,
    revision: u64,
    tip: Tip,
    log: Vec<Record>,
    /// All rows.
    whole: MemoryStore,
    /// The fence of `whole`, which has one writer.
    own: Option<Fence>,
    faults: Faults,
    /// Since it is full, a transaction has used up the last room.
    filled: bool,
    /// Somebody may put it in the place of the data one day.
    copy: Option<Copied>,
    /// How often that was done: what was on its way then does not arrive.
    restores: u64,
    /// How often it has lost batches by that.
    losses: u64,
    /// Of the newest loss.
    loss: Loss,
    marks: [Option<Mark>; SERVERS],
    /// The newest index of the present history that each server has seen.
    seen: [u64; SERVERS],
}

/// A copy of all data.
#[derive(Debug)]
struct Copied {
    newest: u64,
    held: Option<Held>,
    beat: u64,
    revision: u64,
    tip: Tip,
    log: Vec<Record>,
    contents: Contents,
}

/// What is known of a loss to whoever sees everything.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loss {
    /// The servers that have seen what was lost.
    knew: [bool; SERVERS],
    /// Nobody has written since.
    untouched: bool,
}

impl Loss {
    /// Whether a server has to recover if it leads now.
    pub(crate) fn is_known_to(self, server: usize) -> bool {
        self.untouched && self.knew[server]
    }
}

/// What is broken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Nobody reaches it.
    pub(crate) out: bool,
    /// Answers take so much longer.
    pub(crate) slow: Duration,
    /// Some transactions are lost, or their answers, or they arrive late.
    pub(crate) doubt: bool,
    /// It takes one more commit, which it calls refused, and then no writes.
    pub(crate) full: bool,
}

/// How one server is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    /// The server stands still: what it has sent leaves when it goes on, and it hears what it was told then.
    pub(crate) frozen: bool,
    /// Nothing passes between it and the store.
    pub(crate) cut: bool,
}

/// The store.
#[derive(Debug)]
pub(crate) struct Truth {
    inner: Mutex<Inner>,
    /// How often something has happened in it.
    pub(crate) changed: Signal<u64>,
    ways: [Signal<Way>; SERVERS],
    drawn: [[AtomicU64; LOOPS]; SERVERS],
    flaw: Option<Flaw>,
    history: Arc<History>,
}

impl Truth {
    pub(crate) fn new(seed: u64, flaw: Option<Flaw>, history: Arc<History>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            changed: Signal::default(),
            ways: Default::default(),
            drawn: std::array::from_fn(|server| {
                std::array::from_fn(|of| AtomicU64::new(mix(mix(seed) ^ (server * LOOPS + of) as u64)))
            }),
            flaw,
            history,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number from the seed. Each loop of each server has its own sequence: in which order loops go on that are woken
    /// at the same moment does not change what they draw.
    pub(crate) fn draw(&self, server: usize, of: Of, below: u64) -> u64 {
        let drawn = &self.drawn[server][of as usize];
        let next = mix(drawn.load(Ordering::Relaxed));
        drawn.store(next, Ordering::Relaxed);
        next % below.max(1)
    }

    pub(crate) fn faults(&self) -> Faults {
        self.lock().faults
    }

    pub(crate) fn set_faults(&self, change: impl FnOnce(&mut Faults)) {
        let mut inner = self.lock();
        change(&mut inner.faults);
        inner.filled &= inner.faults.full;
    }

    pub(crate) fn way(&self, server: usize) -> Way {
        self.ways[server].now()
    }

    pub(crate) fn set_way(&self, server: usize, change: impl FnOnce(&mut Way)) {
        self.ways[server].change(change);
    }

    /// Waits while the server stands still. Cancel safe.
    pub(crate) async fn thawed(&self, server: usize) {
        self.ways[server].until(|way| !way.frozen).await;
    }

    pub(crate) fn reached(&self, server: usize) -> bool {
        !self.way(server).cut && !self.faults().out
    }

    pub(crate) fn stands(&self) -> Stands {
        let inner = self.lock();
        inner.stands()
    }

    /// Where it stands, and the batches after an index.
    pub(crate) fn look(&self, index: u64) -> (Stands, Vec<Record>) {
        let inner = self.lock();
        let from = inner.log.partition_point(|record| record.batch.index <= index);
        (inner.stands(), inner.log[from..].to_vec())
    }

    /// Makes a copy of all data; the newest index in it.
    pub(crate) fn copy(&self) -> u64 {
        let mut inner = self.lock();
        let contents = inner.whole.load().unwrap_or_default();
        let Inner { newest, held, beat, revision, tip, .. } = *inner;
        let copy = Copied { newest, held, beat, revision, tip, log: inner.log.clone(), contents };
        inner.copy = Some(copy);
        tip.index
    }

    /// Puts the copy in the place of the data, with revisions that go on so much higher; what the copy has. None =
    /// there is no copy.
    pub(crate) fn restore(&self, bump: u64) -> Option<Contents> {
        let contents = {
            let mut inner = self.lock();
            let Copied { newest, held, beat, revision, tip, log, contents } = inner.copy.take()?;
            let (log, lost) = (log.clone(), inner.tip != tip);
            let copy = Copied { newest, held, beat, revision, tip, log: log.clone(), contents: contents.clone() };
            (inner.copy, inner.log) = (Some(copy), log);
            (inner.newest, inner.revision) = (newest, revision + bump);
            (inner.held, inner.beat, inner.tip) = (held, beat, tip);
            (inner.whole, inner.own) = (MemoryStore::default(), None);
            let (index, rows) = (contents.index, contents.rows.clone());
            if index > 0 {
                inner.fill(0, index, rows);
            }
            inner.restores += 1;
            if lost {
                inner.losses += 1;
                inner.loss = Loss { knew: inner.seen.map(|seen| seen > index), untouched: true };
                inner.seen = inner.seen.map(|seen| seen.min(index));
            }
            contents
        };
        self.history.note(format!("the store is as it was at index {}", contents.index));
        self.tell();
        Some(contents)
    }

    /// How often batches were lost.
    pub(crate) fn losses(&self) -> u64 {
        self.lock().losses
    }

    pub(crate) fn loss(&self) -> Loss {
        self.lock().loss
    }

    /// What a server remembers.
    pub(crate) fn mark(&self, server: usize) -> Option<Mark> {
        self.lock().marks[server]
    }

    pub(crate) fn set_mark(&self, server: usize, mark: Mark) {
        self.lock().marks[server] = Some(mark);
    }

    /// A server has seen all up to an index, of the history after so many losses.
    pub(crate) fn saw(&self, server: usize, losses: u64, index: u64) {
        let mut inner = self.lock();
        if inner.losses == losses {
            inner.seen[server] = inner.seen[server].max(index);
        }
    }

    /// All rows, and the newest index.
    pub(crate) fn contents(&self) -> Contents {
        self.lock().whole.load().unwrap_or_default()
    }

    fn tell(&self) {
        self.changed.change(|changes| *changes += 1);
    }

    /// Replaces the fence if it still is the one that was seen; what stands then. `done` = the attempt has won, now or
    /// before.
    pub(crate) fn take(&self, by: usize, attempt: u64, seen: Option<u64>) -> (bool, Stands) {
        let won = {
            let mut inner = self.lock();
            if inner.held.is_some_and(|held| held.attempt == attempt && held.by == by) {
                true
            } else if inner.held.map(|held| held.fence) == seen && !inner.faults.full {
                inner.revision += 1;
                inner.takes += 1;
                // As the revision at which a key is created: after a restore it may be lower than it was before.
                inner.newest = inner.revision;
                inner.held = Some(Held { fence: inner.newest, by, attempt });
                true
            } else {
                false
            }
        };
        let stands = self.stands();
        if won {
            let takes = self.lock().takes;
            self.history.note(format!("server {by} has fence {}, the {takes}. one", stands.newest));
            self.tell();
        }
        (won, stands)
    }

    /// Gives the fence back.
    pub(crate) fn let_go(&self, fence: u64) {
        let mut inner = self.lock();
        if inner.held.is_some_and(|held| held.fence == fence) {
            inner.held = None;
            inner.revision += 1;
        }
        drop(inner);
        self.tell();
    }

    /// A sign of life. False = the fence is another one.
    pub(crate) fn beat(&self, fence: u64) -> (bool, Stands) {
        let ours = {
            let mut inner = self.lock();
            let ours = inner.held.is_some_and(|held| held.fence == fence);
            let done = u64::from(ours && !inner.faults.full);
            inner.beat += done;
            inner.revision += done;
            ours
        };
        if ours {
            self.tell();
        }
        (ours, self.stands())
    }

    /// One transaction: all batches or none.
    pub(crate) fn commit(&self, fence: u64, before: Tip, tip: Tip, batches: &[Arc<Committed>]) -> Told {
        let mut done = false;
        let mut wrong = None;
        {
            let mut inner = self.lock();
            let ours = inner.held.is_some_and(|held| held.fence == fence);
            let fits = inner.tip == before;
            let room = !inner.faults.full || !inner.filled;
            if room && (ours && fits || self.flaw == Some(Flaw::Unfenced) && inner.tip != tip) {
                done = true;
                inner.filled = inner.faults.full;
                if !(ours && fits) {
                    wrong = Some(format!(
                        "a commit under fence {fence} up to index {} landed: {:?} holds it, and index {} is the newest",
                        tip.index, inner.held, inner.tip.index
                    ));
                }
                inner.beat += 1;
                inner.revision += 1;
                inner.tip = tip;
                inner.loss.untouched = false;
                for batch in batches {
                    inner.put(fence, batch);
                }
            }
        }
        if let Some(wrong) = wrong {
            self.history.violated(format!("the store has two writers: {wrong}"));
        }
        if done {
            self.tell();
        }
        let told = self.told(done, tip);
        if done && told.full {
            self.history
                .note(format!("the commit up to index {} uses up the store, which calls it refused", tip.index));
        }
        if told.stands.held.is_none_or(|held| held.fence != fence) {
            self.history.note(format!("a commit under fence {fence} is refused"));
        }
        told
    }

    fn told(&self, done: bool, tip: Tip) -> Told {
        let stands = self.stands();
        let inner = self.lock();
        let at = inner.log.binary_search_by_key(&tip.index, |record| record.batch.index);
        let full = inner.faults.full;
        Told { done: done && !full, full, stands, record: at.ok().map(|at| inner.log[at].fence) }
    }

    /// Sends a request of a server and waits for the answer. It goes on its way however the wait ends.
    pub(crate) async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        server: usize,
        of: Of,
        deadline: Duration,
        apply: impl Fn(&Self) -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        self.thawed(server).await;
        let (tell, answer) = oneshot::channel();
        let (truth, restores) = (self.clone(), self.lock().restores);
        let travel = Duration::from_micros(300 + self.draw(server, of, 3_000)) + self.faults().slow.mul_f64(0.5);
        // Three of ten are not answered in time: some never arrive, some have arrived, some will.
        let fate = if self.faults().doubt { self.draw(server, of, 10) } else { 9 };
        let late = if fate == 2 { Duration::from_millis(200 + self.draw(server, of, 6_000)) } else { Duration::ZERO };
        tokio::spawn(async move {
            tokio::time::sleep(travel + late).await;
            // Connections end with the process that has had the data.
            let same = || truth.lock().restores == restores;
            if !truth.reached(server) || !same() || fate == 0 {
                return;
            }
            if fate <= 2 && truth.flaw == Some(Flaw::Forgetful) {
                return;
            }
            let told = apply(&truth);
            tokio::time::sleep(travel).await;
            if fate > 2 && truth.reached(server) && same() {
                // Whoever has asked may have stopped waiting.
                let _ = tell.send(told);
            }
        });
        let told = tokio::time::timeout(deadline, answer).await;
        self.thawed(server).await;
        match told {
            Ok(Ok(told)) => Ok(told),
            Ok(Err(_)) => {
                // Nothing says that it was lost.
                tokio::time::sleep(deadline).await;
                self.thawed(server).await;
                Err(Unanswered)
            }
            Err(_) => Err(Unanswered),
        }
    }

    /// Whether a new leader is broken on purpose: it does not wait for what the former one has granted.
    pub(crate) fn impatient(&self) -> bool {
        self.flaw == Some(Flaw::Impatient)
    }

    /// Whether servers are broken on purpose: they do not see that the store goes back.
    pub(crate) fn heedless(&self) -> bool {
        self.flaw == Some(Flaw::Heedless)
    }

    /// Whether servers are broken on purpose: what they remember of the store makes them recover from nothing.
    pub(crate) fn unrecovering(&self) -> bool {
        self.flaw == Some(Flaw::Unrecovering)
    }

    /// Whether a store that is broken on purpose says that an unanswered transaction was done.
    pub(crate) fn pretends(&self) -> bool {
        self.flaw == Some(Flaw::Forgetful)
    }
}

impl Inner {
    fn stands(&self) -> Stands {
        let Self { held, tip, newest, beat, revision, .. } = *self;
        Stands { held, tip, newest, beat, revision }
    }

    fn put(&mut self, fence: u64, batch: &Arc<Committed>) {
        let base = self.log.last().map_or(0, |newest| newest.batch.index);
        self.fill(base, batch.index, batch.rows.clone());
        self.log.push(Record { fence, base, batch: batch.clone() });
    }

    fn fill(&mut self, base: u64, index: u64, rows: Vec<Row>) {
        let Self { whole, own, .. } = self;
        let fence = match *own {
            Some(writer) => writer,
            None => *own.insert(whole.acquire().unwrap_or(Fence(0))),
        };
        whole.submit(Batch { fence, base, index, rows: Box::new(move |_| rows), more: false }, Box::new(drop));
    }
}
