//! Keeps observations coming: a few streams per driver, each over a set of handles. The node asks for instances that no
//! stream reports, also while no stream can be opened.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use host::clock::now_ns;
use lifecycle::remote::node::{Answer, Event, Sighting};
use model::{IncarnationId, Observed, SlotKey, remote::RemoteHandle};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    calls::{self, Providers, Reached},
    manager::{Command, RemoteManager},
    plain::Plain,
    wire,
};

/// Handles per stream: a change of the set reopens its own stream only.
const GROUP: usize = 256;
/// Changes come in bursts (an order of 500 slots): one reopening covers all that follow each other within this time …
const SETTLE: Duration = Duration::from_millis(5);
/// … but waits at most this long: thousands of creates one by one would delay it for ever.
const SETTLE_MAX: Duration = Duration::from_millis(200);

/// After this long, the node asks for what no stream has reported, and again each time that this has passed.
const UNHEARD: Duration = Duration::from_secs(5);
/// Instances in one such call.
const ASKED: usize = 100;

/// Pause between two looks at the instances of a driver without streams.
const PLAIN_PAUSE: Duration = Duration::from_secs(1);
/// Time limit of one look.
const PLAIN_PATIENCE: Duration = Duration::from_secs(15);
const PLAIN_AT_ONCE: usize = 16;

type Members = BTreeMap<IncarnationId, (SlotKey, RemoteHandle)>;

struct Group {
    members: watch::Sender<Arc<Members>>,
    _ends: DropGuard,
}

/// All watches of this node.
pub(crate) struct Watches {
    providers: Providers,
    manager: RemoteManager,
    stop: CancellationToken,
    by_driver: HashMap<Arc<str>, Vec<Group>>,
    /// The driver, by its one name above, and the group.
    placed: HashMap<IncarnationId, (Arc<str>, usize)>,
}

impl Watches {
    pub(crate) fn new(providers: Providers, manager: RemoteManager, stop: CancellationToken) -> Self {
        Self { providers, manager, stop, by_driver: HashMap::new(), placed: HashMap::new() }
    }

    /// Watches an instance. Idempotent.
    pub(crate) fn add(&mut self, driver: &str, incarnation: IncarnationId, slot: &SlotKey, handle: &RemoteHandle) {
        let named = self.by_driver.get_key_value(driver).map(|(known, _)| known.clone());
        let named: Arc<str> = named.unwrap_or_else(|| driver.into());
        let groups = self.by_driver.entry(named.clone()).or_default();
        if let Some((_, at)) = self.placed.get(&incarnation) {
            if let Some(group) = groups.get(*at) {
                let known = group.members.borrow().get(&incarnation).is_some_and(|(s, h)| s == slot && h == handle);
                if !known {
                    group
                        .members
                        .send_modify(|m| drop(Arc::make_mut(m).insert(incarnation, (slot.clone(), handle.clone()))));
                }
            }
            return;
        }
        let at = groups.iter().position(|g| g.members.borrow().len() < GROUP).unwrap_or_else(|| {
            let (members, seen) = watch::channel(Arc::new(Members::new()));
            let ends = CancellationToken::new();
            let (providers, manager, stop) = (self.providers.clone(), self.manager.clone(), self.stop.clone());
            let (driver, until) = (driver.to_owned(), ends.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = follow(providers, manager, driver, seen) => {}
                    () = until.cancelled() => {}
                    () = stop.cancelled() => {}
                }
            });
            groups.push(Group { members, _ends: ends.drop_guard() });
            groups.len() - 1
        });
        groups[at].members.send_modify(|m| drop(Arc::make_mut(m).insert(incarnation, (slot.clone(), handle.clone()))));
        self.placed.insert(incarnation, (named, at));
    }

    /// Ends the watch of an incarnation.
    pub(crate) fn remove(&mut self, incarnation: IncarnationId) {
        if let Some((driver, at)) = self.placed.remove(&incarnation)
            && let Some(group) = self.by_driver.get(&driver).and_then(|g| g.get(at))
        {
            group.members.send_modify(|m| drop(Arc::make_mut(m).remove(&incarnation)));
        }
    }
}

/// The instances of a set that no stream reports now, and since when the node waits for a word of each.
#[derive(Default)]
struct Silence(Mutex<HashMap<IncarnationId, Instant>>);

impl Silence {
    fn lock(&self) -> MutexGuard<'_, HashMap<IncarnationId, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No stream covers the set from now on. An instance that was silent before stays so for as long.
    fn falls(&self, set: &Members) {
        let (now, mut silent) = (Instant::now(), self.lock());
        silent.retain(|incarnation, _| set.contains_key(incarnation));
        for incarnation in set.keys() {
            silent.entry(*incarnation).or_insert(now);
        }
    }

    /// A stream has reported the instance, and reports its changes.
    fn ends(&self, incarnation: IncarnationId) {
        let mut silent = self.lock();
        silent.remove(&incarnation);
        // The usual state, for as long as the stream lasts: it needs no room.
        if silent.is_empty() {
            *silent = HashMap::new();
        }
    }

    /// The node has asked for the instance. False if a stream has reported it meanwhile, which is newer.
    fn asked(&self, incarnation: IncarnationId) -> bool {
        self.lock().get_mut(&incarnation).is_some_and(|since| {
            *since = Instant::now();
            true
        })
    }

    fn is_overdue(&self, incarnation: IncarnationId) -> bool {
        self.lock().get(&incarnation).is_some_and(|since| since.elapsed() >= UNHEARD)
    }

    /// No instance is overdue before that time.
    fn next(&self) -> Instant {
        self.lock().values().min().map_or_else(Instant::now, |since| *since) + UNHEARD
    }
}

async fn follow(providers: Providers, manager: RemoteManager, driver: String, members: watch::Receiver<Arc<Members>>) {
    let silence = Silence::default();
    // A stream that cannot be opened, or breaks again and again, must not keep the node from asking.
    tokio::select! {
        () = streams(&providers, &manager, &driver, members.clone(), &silence) => {}
        () = ask(&providers, &manager, &driver, members, &silence) => {}
    }
}

/// Opens a stream after the other, until nobody changes the set any more.
async fn streams(
    providers: &Providers,
    manager: &RemoteManager,
    driver: &str,
    mut members: watch::Receiver<Arc<Members>>,
    silence: &Silence,
) {
    let mut pause = Duration::from_millis(100);
    loop {
        settle(&mut members).await;
        let set = members.borrow_and_update().clone();
        silence.falls(&set);
        if set.is_empty() {
            if members.changed().await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            healthy = once(providers, manager, driver, &set, silence) => {
                silence.falls(&set);
                pause = if healthy { Duration::from_millis(100) } else { (pause * 2).min(Duration::from_secs(5)) };
                tokio::time::sleep(pause).await;
            }
            changed = members.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// Asks for overdue instances, for ever. An instance that cannot be asked is unknown until it is seen again.
async fn ask(
    providers: &Providers,
    manager: &RemoteManager,
    driver: &str,
    members: watch::Receiver<Arc<Members>>,
    silence: &Silence,
) {
    loop {
        tokio::time::sleep_until(silence.next()).await;
        let set = members.borrow().clone();
        let overdue: Vec<_> = set.iter().filter(|(incarnation, _)| silence.is_overdue(**incarnation)).collect();
        for some in overdue.chunks(ASKED) {
            let handles: Vec<RemoteHandle> = some.iter().map(|(_, (_, handle))| handle.clone()).collect();
            let tell = |at: usize, answer: Answer| {
                if let Some((incarnation, (slot, _))) = some.get(at)
                    && silence.asked(**incarnation)
                    && let Some(sighting) = sighted(answer)
                {
                    report(manager, slot, **incarnation, sighting);
                }
            };
            calls::observe_by_name(providers, driver, &handles, tell).await;
        }
    }
}

fn report(manager: &RemoteManager, slot: &SlotKey, incarnation: IncarnationId, sighting: Box<Sighting>) {
    let event = Event::Seen { incarnation, sighting };
    manager.send(Command::Event { slot: slot.clone(), event: Box::new(event) });
}

async fn settle(members: &mut watch::Receiver<Arc<Members>>) {
    let calm = async { while let Ok(Ok(())) = tokio::time::timeout(SETTLE, members.changed()).await {} };
    // A burst that still continues is cut here.
    let _ = tokio::time::timeout(SETTLE_MAX, calm).await;
}

/// Polls a driver of the plain protocol, which pushes nothing, until its plugin is away. Inspects each instance in a
/// call of its own. A slow one delays no other: the plugin may have to forget it, or it waits for its output's target.
async fn poll(plain: &Plain<'_>, manager: &RemoteManager, set: &Members) -> bool {
    let (told, turns) = (AtomicBool::new(false), Semaphore::new(PLAIN_AT_ONCE));
    let looks = set.iter().map(async |(incarnation, (slot, handle))| {
        while plain.driver.is_ready() {
            let turn = turns.acquire().await;
            let answer = tokio::time::timeout(PLAIN_PATIENCE, plain.look(handle)).await;
            drop(turn);
            // The call that stops an instance or lets it go reports that itself.
            if let Some(sighting) = answer.ok().and_then(sighted) {
                told.store(true, Ordering::Relaxed);
                report(manager, slot, *incarnation, sighting);
            }
            tokio::time::sleep(PLAIN_PAUSE).await;
        }
    });
    let away = async {
        while plain.driver.is_ready() {
            tokio::time::sleep(PLAIN_PAUSE).await;
        }
    };
    tokio::select! {
        _ = futures::future::join_all(looks) => {}
        () = away => {}
    }
    told.into_inner()
}

/// Runs one stream until it ends; true when it has reported anything.
async fn once(providers: &Providers, manager: &RemoteManager, driver: &str, set: &Members, silence: &Silence) -> bool {
    let Ok(found) = providers.drivers.get(driver, Duration::from_secs(60)).await else {
        return false;
    };
    found.wait_ready(0).await;
    let remote = match calls::way(providers, found) {
        Ok(Reached::Extension(remote)) => remote,
        Ok(Reached::Plain(plain)) => {
            // It asks by itself.
            set.keys().for_each(|incarnation| silence.ends(*incarnation));
            return poll(&plain, manager, set).await;
        }
        Err(_) => return false,
    };
    let mut stream = match remote.watch(set.values().map(|(_, h)| wire::wire_handle(h)).collect()) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(driver, %error, "cannot watch instances, will try again");
            return false;
        }
    };
    let mut told = false;
    // A stream begins with the present state.
    while let Some(item) = stream.next().await {
        match item {
            Ok(observation) => {
                told = true;
                let Ok(incarnation) = observation.key.parse::<IncarnationId>() else {
                    continue;
                };
                silence.ends(incarnation);
                if let Some((slot, _)) = set.get(&incarnation) {
                    report(manager, slot, incarnation, Box::new(wire::sighting(&observation)));
                }
            }
            Err(error) => {
                tracing::debug!(driver, %error, "the watch of instances has ended, will be opened again");
                break;
            }
        }
    }
    told
}

/// The sighting in an answer, if it has one.
fn sighted(answer: Answer) -> Option<Box<Sighting>> {
    match answer {
        Answer::Instance { sighting, .. } => Some(sighting),
        Answer::Absent => Some(Box::new(Sighting { observed: Observed::Gone, ..Sighting::default() })),
        Answer::CouldNotAsk(why) => Some(Box::new(Sighting {
            observed: Observed::Unknown { since: now_ns(), why: why.into() },
            ..Sighting::default()
        })),
        Answer::Intent(_) | Answer::NotSent(_) | Answer::WrongRequest(_) | Answer::StaleEpoch { .. } => None,
    }
}
