//! Observations for all watchers: one poller per plugin, and so per provider, for any number of streams and calls.
//!
//! All instances share calls with as many handles as the driver takes at once, and the calls stay within its rate
//! ([`schedule`]). More instances make a round longer; new ones, and those asked for by name, go first. Creates
//! alternate with looks within the same rate. Stops, and other calls that an order or a person waits for, do not wait.
//! They count, so that the others make room. The poller does not poll drivers that push changes themselves; these set
//! their own pace.

mod packed;
mod schedule;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use self::packed::Packed;
use self::schedule::{Limits, Next, Schedule, Told};
use crate::guard::panic_text;
use crate::remote::{InstanceState, Observation, ObservationSink, RemoteHandle};
use crate::{RemoteDriver, RemoteError};

/// Concurrent calls: a slow one does not delay all others.
const CALLS: usize = 4;
/// A call without an answer after this long counts as failed.
const CALL_LIMIT: Duration = Duration::from_secs(45);
/// How long an instance's observation is kept after its last watcher has gone: a stream over a changed set is a new
/// stream.
const LINGER: Duration = Duration::from_secs(5);

type Answer = Result<Vec<Observation>, RemoteError>;

/// The interface to the poller, which starts with the first request.
pub(crate) struct Observer {
    driver: Arc<dyn RemoteDriver>,
    poller: OnceLock<mpsc::UnboundedSender<Command>>,
}

enum Command {
    Ask {
        handles: Vec<RemoteHandle>,
        reply: oneshot::Sender<Answer>,
    },
    Watch {
        watch: u64,
        handles: Vec<RemoteHandle>,
        news: Arc<News>,
    },
    Unwatch {
        watch: u64,
    },
    Turn(oneshot::Sender<()>),
    Create(oneshot::Sender<()>),
    /// A call that does not wait is made.
    Spent,
    /// A call in turn has ended; false: the provider could not be asked.
    Ended(bool),
}

/// A watcher's unsent news: the newest observation of each instance, so that a slow watcher costs no more than that.
#[derive(Default)]
struct News {
    pending: Mutex<Pending>,
    wake: Notify,
}

#[derive(Default)]
struct Pending {
    changed: BTreeMap<u64, Observation>,
    failed: Option<RemoteError>,
}

impl News {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, id: u64, seen: &Observation) {
        self.lock().changed.insert(id, seen.clone());
        self.wake.notify_one();
    }

    fn fail(&self, error: &RemoteError) {
        self.lock().failed = Some(error.clone());
        self.wake.notify_one();
    }
}

/// Ends a watch at any end of its call.
struct Watching<'a> {
    commands: &'a mpsc::UnboundedSender<Command>,
    watch: u64,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        // Without the poller there is no watch.
        let _ = self.commands.send(Command::Unwatch { watch: self.watch });
    }
}

fn ends() -> RemoteError {
    RemoteError::could_not_ask("the plugin ends")
}

impl Observer {
    pub(crate) fn new(driver: Arc<dyn RemoteDriver>) -> Self {
        Self { driver, poller: OnceLock::new() }
    }

    fn commands(&self) -> &mpsc::UnboundedSender<Command> {
        self.poller.get_or_init(|| {
            let (commands, receiver) = mpsc::unbounded_channel();
            tokio::spawn(Poller::new(self.driver.clone()).run(receiver));
            commands
        })
    }

    /// One observation for each handle, made after this call began.
    pub(crate) async fn observe(&self, handles: Vec<RemoteHandle>) -> Answer {
        if handles.is_empty() {
            return Ok(Vec::new());
        }
        if self.driver.describe().watch {
            let asked = handles.len();
            return counted(self.driver.observe(&handles).await?, asked);
        }
        let (reply, answer) = oneshot::channel();
        self.commands().send(Command::Ask { handles, reply }).map_err(|_| ends())?;
        answer.await.map_err(|_| ends())?
    }

    /// Sends the present observation of each handle and then every change, until the sink is closed.
    pub(crate) async fn watch(&self, handles: Vec<RemoteHandle>, sink: ObservationSink) -> Result<(), RemoteError> {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        if self.driver.describe().watch {
            return self.driver.watch(handles, sink).await;
        }
        let commands = self.commands();
        let watch = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let news = Arc::new(News::default());
        commands.send(Command::Watch { watch, handles, news: news.clone() }).map_err(|_| ends())?;
        let _watching = Watching { commands, watch };
        loop {
            let pending = std::mem::take(&mut *news.lock());
            for seen in pending.changed.into_values() {
                if sink.send(seen).await.is_err() {
                    return Ok(());
                }
            }
            if let Some(error) = pending.failed {
                return Err(error);
            }
            tokio::select! {
                () = news.wake.notified() => {}
                () = sink.closed() => return Ok(()),
            }
        }
    }

    /// Makes another read-only call, a page of a listing, within the same rate.
    pub(crate) async fn in_turn<T>(
        &self,
        call: impl Future<Output = Result<T, RemoteError>>,
    ) -> Result<T, RemoteError> {
        if self.driver.describe().watch {
            return call.await;
        }
        let (reply, turn) = oneshot::channel();
        self.commands().send(Command::Turn(reply)).map_err(|_| ends())?;
        turn.await.map_err(|_| ends())?;
        let answer = call.await;
        let _ = self.commands().send(Command::Ended(!matches!(answer, Err(RemoteError::CouldNotAsk(_)))));
        answer
    }

    /// Returns when a create may be sent. Cancel safe: a drop gives the turn back.
    pub(crate) async fn create_turn(&self) -> Result<(), RemoteError> {
        if self.driver.describe().watch {
            return Ok(());
        }
        let (reply, turn) = oneshot::channel();
        self.commands().send(Command::Create(reply)).map_err(|_| ends())?;
        turn.await.map_err(|_| ends())
    }

    /// Counts a call that does not wait.
    pub(crate) fn spent(&self) {
        if !self.driver.describe().watch {
            // Without the poller no other call has to make room.
            let _ = self.commands().send(Command::Spent);
        }
    }
}

fn counted(seen: Vec<Observation>, asked: usize) -> Answer {
    if seen.len() == asked {
        return Ok(seen);
    }
    Err(RemoteError::could_not_ask(format!("the driver answered {} observations for {asked} handles", seen.len())))
}

/// An instance under observation. There are thousands: it keeps no room for what it does not have.
struct Entry {
    /// As the index by handle has it.
    handle: Arc<RemoteHandle>,
    last: Option<Packed>,
    watchers: Vec<(u64, Arc<News>)>,
    /// Requests that wait for the next look: the request, and the place in its answer.
    askers: Vec<(u64, usize)>,
    /// Requests whose look is under way.
    asking: Vec<(u64, usize)>,
    /// For an instance without watchers: since when, and its next due time.
    left: Option<(Duration, Duration)>,
}

/// A request in progress.
struct Ask {
    answers: Vec<Option<Observation>>,
    left: usize,
    reply: oneshot::Sender<Answer>,
}

type Call = BoxFuture<'static, (Vec<u64>, Answer)>;

struct Poller {
    driver: Arc<dyn RemoteDriver>,
    begun: Instant,
    schedule: Schedule,
    next: u64,
    ids: HashMap<Arc<RemoteHandle>, u64>,
    /// Boxed: a table has up to twice as many places as it uses.
    entries: HashMap<u64, Box<Entry>>,
    asks: HashMap<u64, Ask>,
    watches: HashMap<u64, Vec<u64>>,
    turns: VecDeque<oneshot::Sender<()>>,
    creates: VecDeque<oneshot::Sender<()>>,
    calls: FuturesUnordered<Call>,
    /// Instances without watchers, with the time.
    leaving: VecDeque<(Duration, u64)>,
    /// Since when no call has had an answer.
    failing: Option<Duration>,
    /// For the comparison of observations.
    buffer: Vec<u8>,
}

impl Poller {
    fn new(driver: Arc<dyn RemoteDriver>) -> Self {
        Self {
            driver,
            begun: Instant::now(),
            schedule: Schedule::default(),
            next: 0,
            ids: HashMap::new(),
            entries: HashMap::new(),
            asks: HashMap::new(),
            watches: HashMap::new(),
            turns: VecDeque::new(),
            creates: VecDeque::new(),
            calls: FuturesUnordered::new(),
            leaving: VecDeque::new(),
            failing: None,
            buffer: Vec::new(),
        }
    }

    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut batch = Vec::new();
        loop {
            let until = self.start();
            let sleep = async {
                match until {
                    Some(at) => tokio::time::sleep_until(self.begun + at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Requests that arrive together share their calls.
                n = commands.recv_many(&mut batch, 1024) => {
                    if n == 0 {
                        return;
                    }
                    batch.drain(..).for_each(|command| self.command(command));
                }
                Some((ids, answer)) = self.calls.next(), if !self.calls.is_empty() => self.ended(&ids, answer),
                () = sleep => {}
            }
        }
    }

    fn limits(&self) -> Limits {
        let rate = self.driver.observe_rate();
        Limits {
            interval: self.driver.watch_interval(),
            batch: self.driver.observe_batch(),
            rate: if rate.is_finite() { rate } else { 1e6 },
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Begins the calls that are due; returns the time of the next one.
    fn start(&mut self) -> Option<Duration> {
        let limits = self.limits();
        while self.calls.len() < CALLS {
            match self.schedule.next(&limits, self.now()) {
                Next::Look(ids) => self.look(ids),
                Next::Turn => {
                    // A create that waits no more has not used its turn.
                    while self.turns.pop_front().is_some_and(|turn| turn.send(()).is_err()) {}
                }
                Next::Create => {
                    while self.creates.pop_front().is_some_and(|turn| turn.send(()).is_err()) {
                        self.schedule.create_given_up();
                    }
                }
                Next::At(at) => return Some(at),
                Next::Rest => return None,
            }
        }
        None
    }

    fn look(&mut self, ids: Vec<u64>) {
        let mut handles = Vec::with_capacity(ids.len());
        let ids: Vec<u64> = ids.into_iter().filter(|id| self.entries.contains_key(id)).collect();
        for id in &ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.asking.extend(std::mem::take(&mut entry.askers));
                handles.push(RemoteHandle::clone(&entry.handle));
            }
        }
        let driver = self.driver.clone();
        self.calls.push(
            async move {
                let asked = AssertUnwindSafe(driver.observe(&handles)).catch_unwind();
                let answer = match tokio::time::timeout(CALL_LIMIT, asked).await {
                    Ok(Ok(answer)) => answer.and_then(|seen| counted(seen, handles.len())),
                    Ok(Err(panic)) => {
                        Err(RemoteError::could_not_ask(format!("the driver panicked: {}", panic_text(panic.as_ref()))))
                    }
                    Err(_) => Err(RemoteError::could_not_ask(format!("no answer within {CALL_LIMIT:?}"))),
                };
                (ids, answer)
            }
            .boxed(),
        );
    }

    fn ended(&mut self, ids: &[u64], answer: Answer) {
        let (limits, now) = (self.limits(), self.now());
        match answer {
            Ok(seen) => {
                self.failing = None;
                let told = ids.iter().zip(&seen).map(|(id, seen)| match seen.state {
                    InstanceState::Creating => (*id, Told::Changing),
                    _ => (*id, Told::Steady),
                });
                self.schedule.ended(true, told, &limits, now);
                for (id, seen) in ids.iter().zip(seen) {
                    self.seen(*id, seen);
                }
            }
            Err(error) => {
                self.schedule.ended(false, ids.iter().map(|id| (*id, Told::Nothing)), &limits, now);
                // A temporary failure is not a change; a caller that needs certainty asks.
                let passing = matches!(error, RemoteError::CouldNotAsk(_));
                if passing {
                    tracing::debug!(%error, "observation failed, will ask again");
                    self.unanswered(&error);
                }
                for id in ids {
                    let Some(entry) = self.entries.get_mut(id) else { continue };
                    if !passing {
                        entry.watchers.iter().for_each(|(_, news)| news.fail(&error));
                    }
                    for (ask, _) in std::mem::take(&mut entry.asking) {
                        if let Some(ask) = self.asks.remove(&ask) {
                            // The caller waits no more.
                            let _ = ask.reply.send(Err(error.clone()));
                        }
                    }
                }
            }
        }
        ids.iter().for_each(|id| self.let_go(*id));
    }

    fn seen(&mut self, id: u64, seen: Observation) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        for (number, place) in std::mem::take(&mut entry.asking) {
            let Some(ask) = self.asks.get_mut(&number) else { continue };
            ask.answers[place] = Some(seen.clone());
            ask.left -= 1;
            if ask.left == 0
                && let Some(ask) = self.asks.remove(&number)
            {
                let _ = ask.reply.send(Ok(ask.answers.into_iter().flatten().collect()));
            }
        }
        if Packed::replace(&mut entry.last, &seen, &mut self.buffer) {
            entry.watchers.iter().for_each(|(_, news)| news.tell(id, &seen));
        }
    }

    /// After a long silence of the provider, the last observations count as unknown. Reported once, until an instance
    /// is seen again.
    fn unanswered(&mut self, error: &RemoteError) {
        let now = self.now();
        if now - *self.failing.get_or_insert(now) < self.driver.watch_patience() {
            return;
        }
        let RemoteError::CouldNotAsk(why) = error else { return };
        for (id, entry) in &mut self.entries {
            let alive = |last: &&Packed| matches!(last.state(), InstanceState::Creating | InstanceState::Running);
            let Some(last) = entry.last.as_ref().filter(alive) else { continue };
            let unknown = Observation::unknown(last.observation().key, why);
            Packed::replace(&mut entry.last, &unknown, &mut self.buffer);
            entry.watchers.iter().for_each(|(_, news)| news.tell(*id, &unknown));
        }
    }

    /// Stops looking at an instance without watchers, and forgets it after a while.
    fn let_go(&mut self, id: u64) {
        let now = self.now();
        while let Some((since, id)) = self.leaving.pop_front_if(|(since, _)| *since + LINGER <= now) {
            if self.entries.get(&id).is_some_and(|entry| entry.left.is_some_and(|(left, _)| left == since))
                && let Some(entry) = self.entries.remove(&id)
            {
                self.ids.remove(&entry.handle);
            }
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let wanted = !entry.watchers.is_empty() || !entry.askers.is_empty() || !entry.asking.is_empty();
        if !wanted && entry.left.is_none() {
            let due = self.schedule.remove(id).unwrap_or(now);
            entry.left = Some((now, due));
            self.leaving.push_back((now, id));
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn entry(&mut self, handle: RemoteHandle) -> (u64, &mut Entry) {
        let (id, handle) = match self.ids.get_key_value(&handle) {
            Some((known, id)) => (*id, known.clone()),
            None => {
                let (id, handle) = (self.number(), Arc::new(handle));
                self.ids.insert(handle.clone(), id);
                (id, handle)
            }
        };
        let none = || {
            let (watchers, askers, asking) = (Vec::new(), Vec::new(), Vec::new());
            Box::new(Entry { handle, last: None, watchers, askers, asking, left: None })
        };
        (id, self.entries.entry(id).or_insert_with(none))
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Ask { handles, reply } => {
                let number = self.number();
                let ask = Ask { answers: vec![None; handles.len()], left: handles.len(), reply };
                for (place, handle) in handles.into_iter().enumerate() {
                    let (id, entry) = self.entry(handle);
                    entry.askers.push((number, place));
                    entry.left = None;
                    self.schedule.soon(id, now);
                }
                self.asks.insert(number, ask);
            }
            Command::Watch { watch, handles, news } => {
                let mut ids = Vec::with_capacity(handles.len());
                for handle in handles {
                    let (id, entry) = self.entry(handle);
                    // Usually one; two only while its stream is opened anew.
                    entry.watchers.reserve_exact(1);
                    entry.watchers.push((watch, news.clone()));
                    let left = entry.left.take();
                    match &entry.last {
                        // It is as recent as the others, and keeps its due time.
                        Some(last) => {
                            news.tell(id, &last.observation());
                            if let Some((_, due)) = left {
                                self.schedule.due(id, due);
                            }
                        }
                        None => self.schedule.soon(id, now),
                    }
                    ids.push(id);
                }
                self.watches.insert(watch, ids);
            }
            Command::Unwatch { watch } => {
                for id in self.watches.remove(&watch).unwrap_or_default() {
                    if let Some(entry) = self.entries.get_mut(&id) {
                        entry.watchers.retain(|(by, _)| *by != watch);
                    }
                    self.let_go(id);
                }
            }
            Command::Turn(turn) => {
                self.turns.push_back(turn);
                self.schedule.turn();
            }
            Command::Create(turn) => {
                self.creates.push_back(turn);
                self.schedule.create();
            }
            Command::Spent => {
                let limits = self.limits();
                self.schedule.spent(&limits, now);
            }
            Command::Ended(answered) => {
                let limits = self.limits();
                self.schedule.ended(answered, [], &limits, now);
                if answered {
                    self.failing = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
