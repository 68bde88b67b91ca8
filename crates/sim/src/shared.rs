//! The shared store as one server has it open: what `EtcdStore` does, over a simulated etcd (`truth`).
//!
//! An answer that does not come leaves open whether a transaction happened, or will. As there, the writer finds out
//! before it answers anybody: the same transaction goes again, and its conditions let only one of the two win.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use store::{Batch, Committed, Contents, Done, Fence, Lost, MemoryStore, SILENT, Store, StoreError, StoreStats, Watch};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    mark::Mark,
    truth::{Of, Record, Stands, Tip, Told, Truth, Unanswered},
};

/// A leader that commits nothing shows after this long that it lives.
const BEAT: Duration = Duration::from_millis(500);
const BEAT_DEADLINE: Duration = Duration::from_millis(300);
/// Of other requests.
const DEADLINE: Duration = Duration::from_secs(2);
/// So long nothing may answer before a take-over fails.
const PATIENCE: Duration = Duration::from_secs(10);
/// Refusals that leave the fate of an earlier try open are borne for so long.
const DOUBT: Duration = Duration::from_secs(10);
/// So long a closing store waits for answers.
const CLOSE: Duration = Duration::from_secs(3);
/// How often a server looks at the store when nothing has changed.
const LOOK: Duration = Duration::from_millis(250);
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// Batches of one transaction.
const GROUP: usize = 126;

/// What the loops of one opened store share.
struct Inner {
    tip: Tip,
    leading: Option<u64>,
    /// A fence that was won, until the server takes it.
    won: Option<u64>,
    /// The newest fence that was seen.
    newest: u64,
    /// When the others have last seen a sign of this leader.
    shown: Instant,
    /// Watchers have everything up to here.
    published: u64,
    /// The highest revision in an answer.
    revision: u64,
    /// The mark is as new as what is known here; else it tells of a loss, and waits for a commit.
    marked: bool,
    /// Why the store can no longer be used.
    broken: Option<StoreError>,
    queue: Option<mpsc::UnboundedSender<(Batch, Done)>>,
}

/// The store of one server, from its opening on.
pub(crate) struct SharedStore {
    truth: Arc<Truth>,
    server: usize,
    inner: Mutex<Inner>,
    /// What is known here.
    local: MemoryStore,
    own: Fence,
    opened: u64,
    /// How often the store had lost something by then.
    losses: u64,
    lost: Option<Lost>,
    checked: watch::Sender<Option<Duration>>,
    fenced: watch::Sender<Option<u64>>,
    vacant: watch::Sender<bool>,
    leader: watch::Sender<Option<usize>>,
    ends: watch::Sender<bool>,
    ended: watch::Sender<bool>,
    breaks: watch::Sender<bool>,
    closed: AtomicBool,
    gone: AtomicBool,
    transactions: AtomicU64,
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedStore of server {}", self.server)
    }
}

fn failed(attempt: &'static str) -> StoreError {
    StoreError::Backend { attempt, path: "the simulated etcd".into(), reason: "it does not answer".into() }
}

fn fatal(reason: impl Into<Arc<str>>) -> StoreError {
    StoreError::Fatal { path: "the simulated etcd".into(), reason: reason.into() }
}

impl SharedStore {
    /// Opens it for a server, and begins its loops on the runtime that this is called in.
    ///
    /// # Errors
    /// When it is not reached.
    pub(crate) async fn open(truth: &Arc<Truth>, server: usize) -> Result<Arc<Self>, StoreError> {
        let read = |truth: &Truth| (truth.contents(), truth.stands(), truth.losses());
        let read = truth.call(server, Of::Turns, DEADLINE, read).await;
        let (contents, stands, losses) = read.map_err(|Unanswered| failed("opening"))?;
        let lost = truth.mark(server).and_then(|mark| mark.missing(stands.tip.index, stands.revision));
        let local = MemoryStore::default();
        let (own, opened) = (local.acquire()?, contents.index);
        if opened > 0 {
            let rows = contents.rows;
            local.submit(
                Batch { fence: own, base: 0, index: opened, rows: Box::new(move |_| rows), more: false },
                Box::new(drop),
            );
        }
        let (queue, work) = mpsc::unbounded_channel();
        let inner = Inner {
            tip: stands.tip,
            leading: None,
            won: None,
            newest: stands.newest,
            shown: Instant::now(),
            published: opened,
            revision: stands.revision,
            marked: lost.is_none(),
            broken: None,
            queue: Some(queue),
        };
        let store = Arc::new(Self {
            truth: truth.clone(),
            server,
            inner: Mutex::new(inner),
            local,
            own,
            opened,
            losses,
            lost,
            checked: watch::Sender::new(None),
            fenced: watch::Sender::new(None),
            vacant: watch::Sender::new(false),
            leader: watch::Sender::new(None),
            ends: watch::Sender::new(false),
            ended: watch::Sender::new(false),
            breaks: watch::Sender::new(false),
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            transactions: AtomicU64::new(0),
        });
        store.set_mark(opened, false);
        let (writing, beating, viewing) = (store.clone(), store.clone(), store.clone());
        tokio::spawn(async move { writing.write(work).await });
        tokio::spawn(async move { beating.until_end(beating.beats()).await });
        tokio::spawn(async move { viewing.until_end(viewing.follow()).await });
        Ok(store)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Becomes a higher fence once the one that this server held was lost.
    pub(crate) fn fenced(&self) -> watch::Receiver<Option<u64>> {
        self.fenced.subscribe()
    }

    /// When the newest check was sent that found this server's fence in place, by the boot clock.
    pub(crate) fn checked(&self) -> watch::Receiver<Option<Duration>> {
        self.checked.subscribe()
    }

    /// The server that leads.
    pub(crate) fn leader(&self) -> watch::Receiver<Option<usize>> {
        self.leader.subscribe()
    }

    /// Nobody else can have taken over by now.
    pub(crate) fn surely_leads(&self) -> bool {
        let age = self.checked.borrow().map(|at| clock::boot_now().saturating_sub(at));
        let still = self.truth.way(self.server).frozen || self.gone.load(Ordering::Relaxed);
        !still && self.lock().leading.is_some() && age.is_some_and(|age| age < SILENT)
    }

    /// The acknowledged batches that were missing at the opening.
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.lost
    }

    /// What it has shown is not lost.
    pub(crate) fn shows_the_present(&self) -> bool {
        self.losses == self.truth.losses()
    }

    /// Waits until nobody leads, or nothing was seen of the leader for [`SILENT`]. Cancel safe.
    ///
    /// # Errors
    /// When the store can no longer be used.
    pub(crate) async fn vacant(&self) -> Result<(), StoreError> {
        let (mut breaks, mut vacant) = (self.breaks.subscribe(), self.vacant.subscribe());
        tokio::select! {
            biased;
            _ = breaks.wait_for(|broken| *broken) => Err(self.lock().broken.clone().unwrap_or(StoreError::Closed)),
            _ = vacant.wait_for(|vacant| *vacant) => Ok(()),
        }
    }

    /// Takes the fence for the server's next [`Store::acquire`], and reads what was committed before.
    ///
    /// # Errors
    /// [`StoreError::Held`]: somebody else leads, or has won.
    pub(crate) async fn take_over(&self) -> Result<(), StoreError> {
        if let Some(error) = self.lock().broken.clone() {
            return Err(error);
        }
        let (attempt, seen) = (self.attempt(), *self.leader.borrow());
        let before = self.truth.call(self.server, Of::Turns, DEADLINE, Truth::stands).await;
        let held = before.map_err(|Unanswered| failed("taking over"))?.held;
        if held.is_some_and(|held| held.by != self.server && !(*self.vacant.borrow() && seen == Some(held.by))) {
            return Err(StoreError::Held { leader: "the other server".into() });
        }
        let (begun, server) = (Instant::now(), self.server);
        let (won, stands) = loop {
            let expected = held.map(|held| held.fence);
            let take = move |truth: &Truth| truth.take(server, attempt, expected);
            match self.truth.call(server, Of::Turns, DEADLINE, take).await {
                Ok(told) => break told,
                Err(Unanswered) if begun.elapsed() > PATIENCE || *self.ends.borrow() => {
                    return Err(failed("taking over"));
                }
                Err(Unanswered) => tokio::time::sleep(PAUSES.1).await,
            }
        };
        if !won || stands.held.is_none_or(|held| held.attempt != attempt) {
            return Err(StoreError::Held { leader: "the other server".into() });
        }
        self.leads(stands);
        // From the fence on nobody else commits.
        let before = self.revision();
        let (stands, records) = self.truth.look(self.published());
        self.lock().tip = stands.tip;
        let begun = self.note_revision(before, stands.revision).and_then(|()| self.take_in(records));
        if begun.is_err() {
            let fence = self.lock().leading.take();
            if let Some(fence) = fence {
                // Without an answer the others find out that it is silent.
                let let_go = move |truth: &Truth| truth.let_go(fence);
                let _ = self.truth.call(self.server, Of::Turns, CLOSE, let_go).await;
            }
        }
        begun
    }

    fn leads(&self, stands: Stands) {
        let mut inner = self.lock();
        (inner.tip, inner.newest) = (stands.tip, stands.newest);
        (inner.leading, inner.won, inner.shown) = (Some(stands.newest), Some(stands.newest), Instant::now());
        drop(inner);
        self.fenced.send_replace(None);
        self.vacant.send_replace(false);
        self.leader.send_replace(Some(self.server));
    }

    /// The fence of this leader is no more.
    fn lose(&self, fence: u64, newest: u64) {
        let mut inner = self.lock();
        inner.newest = inner.newest.max(newest);
        if inner.leading != Some(fence) {
            return;
        }
        inner.leading = None;
        drop(inner);
        self.fenced.send_replace(Some(newest));
    }

    /// The server is no more. What it has sent may still arrive.
    pub(crate) fn crash(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.lock().queue.take();
        self.ends.send_replace(true);
    }

    /// Commits what is queued, gives the fence back, and ends.
    pub(crate) async fn end(&self) {
        self.close();
        // The writer has what was handed to it, and ends after that.
        self.lock().queue.take();
        self.ends.send_replace(true);
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    async fn until_end(&self, loops: impl Future<Output = ()>) {
        let mut ends = self.ends.subscribe();
        tokio::select! {
            biased;
            _ = ends.wait_for(|ends| *ends) => {}
            () = loops => {}
        }
    }

    fn attempt(&self) -> u64 {
        self.truth.draw(self.server, Of::Turns, u64::MAX)
    }

    fn published(&self) -> u64 {
        self.lock().published
    }

    fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// Notes the revision of an answer. `before` is what was known when the call was sent.
    fn note_revision(&self, before: u64, revision: u64) -> Result<(), StoreError> {
        let mut inner = self.lock();
        inner.revision = inner.revision.max(revision);
        drop(inner);
        if revision >= before || self.truth.heedless() {
            return Ok(());
        }
        Err(self.went_back("revision", before, revision))
    }

    /// Ends the store: what it has shown is not what etcd has.
    fn went_back(&self, what: &str, from: u64, to: u64) -> StoreError {
        let error = fatal(format!("its {what} went back from {from} to {to}: an older copy was put in its place"));
        self.lock().broken.get_or_insert_with(|| error.clone());
        self.breaks.send_replace(true);
        error
    }

    /// Everything up to this index is durable. A mark that tells of a loss waits for a commit of this server.
    fn set_mark(&self, index: u64, own: bool) {
        let revision = {
            let mut inner = self.lock();
            inner.marked |= own;
            if !inner.marked || self.gone.load(Ordering::Relaxed) {
                return;
            }
            inner.revision
        };
        self.truth.set_mark(self.server, Mark { revision, index });
        self.truth.saw(self.server, self.losses, index);
    }

    /// Tells watchers of the batches that others have committed.
    fn take_in(&self, records: Vec<Record>) -> Result<(), StoreError> {
        for Record { base, batch, .. } in records {
            let published = self.published();
            if base < published && published < batch.index && !self.truth.heedless() {
                return Err(self.went_back("index", published, base));
            }
            self.publish(vec![batch]);
        }
        Ok(())
    }

    /// Tells watchers of batches, each once.
    fn publish(&self, batches: Vec<Arc<Committed>>) {
        for batch in batches {
            let mut inner = self.lock();
            if batch.index <= inner.published {
                continue;
            }
            let base = std::mem::replace(&mut inner.published, batch.index);
            drop(inner);
            let index = batch.index;
            let rows = Box::new(move |_| batch.rows.clone());
            self.local.submit(Batch { fence: self.own, base, index, rows, more: false }, Box::new(drop));
        }
    }

    /// The fence was seen in place by a check that was sent then.
    fn held(&self, sent: Duration) {
        self.lock().shown = Instant::now();
        self.checked.send_if_modified(|checked| {
            let newer = checked.is_none_or(|checked| checked < sent);
            *checked = (*checked).max(Some(sent));
            newer
        });
    }

    async fn beats(&self) {
        loop {
            let (leading, shown) = {
                let inner = self.lock();
                (inner.leading, inner.shown)
            };
            let Some(fence) = leading.filter(|_| shown.elapsed() >= BEAT) else {
                tokio::time::sleep(BEAT / 5).await;
                continue;
            };
            let sent = clock::boot_now();
            match self.truth.call(self.server, Of::Beats, BEAT_DEADLINE, move |truth| truth.beat(fence)).await {
                Ok((true, _)) => self.held(sent),
                Ok((false, stands)) => self.lose(fence, stands.newest),
                Err(Unanswered) => tokio::time::sleep(BEAT / 10).await,
            }
        }
    }

    /// Sees who leads, whether that server lives, and what it commits.
    async fn follow(&self) {
        let mut changes = 0;
        let (mut sign, mut answering, mut last) = (Instant::now(), None, None);
        loop {
            // Whether it is the one or the other, it looks.
            let _ = tokio::time::timeout(LOOK, self.truth.changed.until(|now| now != changes)).await;
            let (before, published) = (self.revision(), self.published());
            let look = move |truth: &Truth| truth.look(published);
            let seen = self.truth.call(self.server, Of::View, DEADLINE, look).await;
            changes = self.truth.changed.now();
            let Ok((stands, records)) = seen else {
                answering = None;
                self.vacant.send_replace(false);
                continue;
            };
            let mut well = self.note_revision(before, stands.revision);
            // A restore can keep the revision from going back.
            if well.is_ok() && stands.tip.index < published && !self.truth.heedless() {
                well = Err(self.went_back("index", published, stands.tip.index));
            }
            if well.is_err() {
                return self.breaks_down();
            }
            let since = *answering.get_or_insert_with(Instant::now);
            let signs = (stands.held, stands.beat);
            if last.replace(signs) != Some(signs) {
                sign = Instant::now();
            }
            let leading = self.lock().leading;
            if let Some(fence) = leading.filter(|fence| *fence <= stands.revision)
                && stands.held.is_none_or(|held| held.fence != fence)
            {
                self.lose(fence, stands.newest);
            }
            if self.take_in(records).is_err() {
                return self.breaks_down();
            }
            self.set_mark(self.published(), false);
            let silent = sign.elapsed() >= SILENT && since.elapsed() >= SILENT;
            let vacant = match stands.held {
                None => true,
                Some(held) if held.by == self.server => self.lock().leading.is_none(),
                Some(_) => silent,
            };
            let leader = stands.held.map(|held| held.by);
            self.leader.send_if_modified(|now| std::mem::replace(now, leader) != leader);
            self.vacant.send_if_modified(|now| std::mem::replace(now, vacant) != vacant);
        }
    }

    /// The store is followed no more: this server leads no more either.
    fn breaks_down(&self) {
        let leading = self.lock().leading;
        if let Some(fence) = leading {
            self.lose(fence, fence);
        }
    }

    /// Commits until the store ends.
    async fn write(&self, mut work: mpsc::UnboundedReceiver<(Batch, Done)>) {
        let mut poisoned: Option<StoreError> = None;
        while let Some(first) = work.recv().await {
            let mut group = vec![first];
            while group.len() < GROUP
                && let Ok(next) = work.try_recv()
            {
                group.push(next);
            }
            if self.gone.load(Ordering::Relaxed) {
                continue;
            }
            self.commit(group, &mut poisoned).await;
        }
        let fence = self.lock().leading.take();
        if let Some(fence) = fence.filter(|_| !self.gone.load(Ordering::Relaxed)) {
            // Without an answer the others find out that it is silent.
            let _ = self.truth.call(self.server, Of::Writer, CLOSE, move |truth| truth.let_go(fence)).await;
        }
        self.ended.send_replace(true);
    }

    async fn commit(&self, group: Vec<(Batch, Done)>, poisoned: &mut Option<StoreError>) {
        let (before, newest) = {
            let inner = self.lock();
            (inner.tip, inner.leading.unwrap_or(inner.newest + 1))
        };
        let (mut index, mut batches, mut answers) = (before.index, Vec::new(), Vec::new());
        for (batch, done) in group {
            let admitted = match poisoned {
                Some(error) => Err(error.clone()),
                None if batch.fence.0 != newest => Err(StoreError::Fenced { newest, ours: batch.fence.0 }),
                None if batch.base != index => Err(StoreError::WrongBase { base: batch.base, actual: index }),
                None => Ok(()),
            };
            if admitted.is_ok() {
                index = batch.index;
                batches.push(Arc::new(Committed { index, rows: (batch.rows)(self.format()) }));
            }
            answers.push((admitted, done));
        }
        let tip = Tip { index, nonce: self.truth.draw(self.server, Of::Writer, u64::MAX) };
        let sent = match batches.is_empty() {
            true => Ok(()),
            false => self.send(newest, before, tip, batches.clone()).await,
        };
        if self.gone.load(Ordering::Relaxed) {
            return;
        }
        match &sent {
            Ok(()) if !batches.is_empty() => {
                self.lock().tip = tip;
                self.transactions.fetch_add(1, Ordering::Relaxed);
                self.set_mark(tip.index, true);
                self.publish(batches);
            }
            Err(error @ StoreError::Fatal { .. }) => *poisoned = Some(error.clone()),
            _ => {}
        }
        for (admitted, done) in answers {
            done(admitted.and_then(|()| sent.clone()));
        }
    }

    /// Sends a transaction until its fate is known.
    async fn send(&self, fence: u64, before: Tip, tip: Tip, batches: Vec<Arc<Committed>>) -> Result<(), StoreError> {
        let (mut doubtful, mut pause) = (false, PAUSES.0);
        let (mut refused, mut closing) = (None::<Instant>, None::<Instant>);
        let batches = Arc::new(batches);
        loop {
            let (sent, at, known) = (batches.clone(), clock::boot_now(), self.revision());
            let apply = move |truth: &Truth| truth.commit(fence, before, tip, &sent);
            match self.truth.call(self.server, Of::Writer, DEADLINE, apply).await {
                Ok(Told { done, full, stands, record }) => {
                    // What the view finds next tells the rest.
                    let _ = self.note_revision(known, stands.revision);
                    if done || stands.tip == tip || (doubtful || full) && record == Some(fence) {
                        if stands.held.is_some_and(|held| held.fence == fence) {
                            self.held(at);
                        } else {
                            self.lose(fence, stands.newest);
                        }
                        return Ok(());
                    }
                    if stands.held.is_none_or(|held| held.fence != fence) {
                        self.lose(fence, stands.newest);
                        return Err(StoreError::Fenced { newest: stands.newest, ours: fence });
                    }
                    if stands.tip != before {
                        return Err(fatal("its tip was changed by somebody else"));
                    }
                    if full && !doubtful {
                        let reason = "no space left".into();
                        return Err(StoreError::Full { path: "the simulated etcd".into(), reason });
                    }
                    refused.get_or_insert_with(Instant::now);
                }
                Err(Unanswered) if self.truth.pretends() => return Ok(()),
                Err(Unanswered) => (doubtful, refused) = (true, None),
            }
            if self.gone.load(Ordering::Relaxed) {
                return Err(StoreError::Closed);
            }
            let over = *self.ends.borrow() && closing.get_or_insert_with(Instant::now).elapsed() > CLOSE;
            if over || refused.is_some_and(|since| since.elapsed() > DOUBT) {
                return Err(fatal("whether the newest batch was committed could not be found out"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

impl Store for SharedStore {
    fn load(&self) -> Result<Contents, StoreError> {
        let faults = self.truth.faults();
        if faults.out || !self.truth.reached(self.server) {
            return Err(failed("reading everything"));
        }
        let (before, stands) = (self.revision(), self.truth.stands());
        self.note_revision(before, stands.revision)?;
        Ok(self.truth.contents())
    }

    /// The fence that [`SharedStore::take_over`] has won; without that, takes it at once.
    fn acquire(&self) -> Result<Fence, StoreError> {
        if let Some(fence) = self.lock().won.take() {
            return Ok(Fence(fence));
        }
        let held = self.truth.stands().held;
        if held.is_some_and(|held| held.by != self.server) && !*self.vacant.borrow() {
            return Err(StoreError::Held { leader: "the other server".into() });
        }
        let (won, stands) = self.truth.take(self.server, self.attempt(), held.map(|held| held.fence));
        if !won {
            return Err(StoreError::Held { leader: "the other server".into() });
        }
        self.leads(stands);
        self.lock().won = None;
        Ok(Fence(stands.newest))
    }

    fn submit(&self, batch: Batch, done: Done) {
        let queue = self.lock().queue.clone().filter(|_| !self.closed.load(Ordering::Relaxed));
        match queue {
            // Of a server that is no more nobody hears.
            _ if self.gone.load(Ordering::Relaxed) => {}
            Some(queue) => {
                if let Err(mpsc::error::SendError((_, done))) = queue.send((batch, done)) {
                    done(Err(StoreError::Closed));
                }
            }
            None => done(Err(StoreError::Closed)),
        }
    }

    fn watch(&self, index: u64) -> Result<Watch, StoreError> {
        if index < self.opened {
            return Err(StoreError::Compacted { asked: index, oldest: self.opened });
        }
        self.local.watch(index)
    }

    fn followed(&self) -> bool {
        true
    }

    fn confirmed(&self) -> Option<Duration> {
        // Before the first check nobody may be granted anything.
        Some((*self.checked.borrow()).unwrap_or_default())
    }

    fn probe(&self) -> Result<(), StoreError> {
        let faults = self.truth.faults();
        if faults.out || faults.full { Err(failed("trying whether it takes writes")) } else { Ok(()) }
    }

    fn close(&self) {
        // Servers call this away from the runtime: whoever were woken from here would go on at no certain moment. The
        // writer ends with `end`.
        self.closed.store(true, Ordering::Relaxed);
        self.local.close();
    }

    fn stats(&self) -> StoreStats {
        StoreStats { transactions: self.transactions.load(Ordering::Relaxed), ..self.local.stats() }
    }
}
