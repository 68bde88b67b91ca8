//! One watch of all pods of an owner, however many of them are asked for.
//!
//! What the watch last said stays true until the API server has been silent for a while. Absence is never taken from
//! the watch: a cache may lag, so the store is asked itself.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driver_sdk::{InstanceState, Observation, ObservationSink};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::core::WatchEvent;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use crate::answer::Trouble;
use crate::api::SILENCE;
use crate::marks::Marks;
use crate::site::lock;
use crate::site::{HandleV1, Site, selector};

/// How long the API server may be silent before its pods count as unknown.
const PATIENCE: Duration = Duration::from_secs(12);
/// First delay after a watch that failed; it doubles.
const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a pod is kept after its last listener has gone: a stream over a changed set is a new stream.
const LINGER: Duration = Duration::from_secs(10);

/// A pod that somebody watches.
struct Watched {
    handle: HandleV1,
    listeners: Vec<(u64, mpsc::UnboundedSender<Observation>)>,
    last: Option<Observation>,
    /// [`State::events`] when the watch has last told of it.
    told: u64,
    /// The pod while time alone may change what it says.
    pod: Option<Box<Pod>>,
    /// When the last listener has gone.
    left: Option<Instant>,
}

#[derive(Default)]
struct State {
    /// By UID.
    watched: HashMap<String, Watched>,
    /// The listing before the watch is complete.
    complete: bool,
    /// How often the watch has told of a pod that somebody watches.
    events: u64,
    listeners: u64,
}

/// The pods of one owner.
pub(crate) struct Feed {
    owner: String,
    state: Mutex<State>,
    /// Pods of which the store is to be asked.
    doubtful: Mutex<HashSet<String>>,
    wake: Notify,
    /// A listing is under way, and tells of most pods.
    listing: watch::Sender<bool>,
}

/// Whether an observation replaces the last one.
fn is_news(last: Option<&Observation>, seen: &Observation) -> bool {
    match last {
        // Since when matters, not each text.
        Some(last) if seen.state == InstanceState::Unknown => last.state != InstanceState::Unknown,
        last => last != Some(seen),
    }
}

impl State {
    /// Forgets pods that nobody has listened to since then; `None`: at all.
    fn let_go(&mut self, since: Option<Instant>) {
        self.watched.retain(|_, entry| entry.left.is_none_or(|left| since.is_some_and(|since| left > since)));
    }

    fn tell(&mut self, uid: &str, seen: Observation) {
        let Some(entry) = self.watched.get_mut(uid) else { return };
        if is_news(entry.last.as_ref(), &seen) {
            entry.listeners.retain(|(_, listener)| listener.send(seen.clone()).is_ok());
            entry.last = Some(seen);
        }
    }
}

/// Pods of which nothing could be said, and when the store is asked for them again: all of them with the first, because
/// others that come all the time would put it off for ever.
#[derive(Debug, Default)]
struct Again {
    uids: Vec<String>,
    /// When the first is due.
    at: Option<Instant>,
}

impl Again {
    fn add(&mut self, uid: String, now: Instant) {
        self.uids.push(uid);
        self.at.get_or_insert(now + RETRY_MAX);
    }

    /// Those to ask for at `now`, which are no longer kept.
    fn due(&mut self, now: Instant) -> Vec<String> {
        match self.at {
            Some(at) if at <= now => std::mem::take(self).uids,
            _ => Vec::new(),
        }
    }

    /// Until some are due; for ever while there are none. Cancel safe.
    async fn wait(&self) {
        match self.at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

/// Takes its listener's interest back, however the watch ends.
struct Interest {
    feed: Arc<Feed>,
    uids: Vec<String>,
    listener: u64,
}

impl Drop for Interest {
    fn drop(&mut self) {
        let mut state = lock(&self.feed.state);
        for uid in &self.uids {
            if let Some(entry) = state.watched.get_mut(uid) {
                entry.listeners.retain(|(id, _)| *id != self.listener);
                if entry.listeners.is_empty() {
                    entry.left = Some(Instant::now());
                }
            }
        }
    }
}

impl Feed {
    fn new(owner: &str) -> Self {
        let (state, doubtful, wake) = (Mutex::default(), Mutex::default(), Notify::new());
        // It begins with one.
        Self { owner: owner.to_owned(), state, doubtful, wake, listing: watch::Sender::new(true) }
    }

    /// The watch does not show these pods any more: they are out of the selection or out of the store, and only the
    /// store knows. What they said last holds no longer.
    fn absent(&self, uids: impl IntoIterator<Item = String>) {
        let uids: Vec<String> = uids.into_iter().collect();
        {
            let mut state = lock(&self.state);
            for uid in &uids {
                match state.watched.get_mut(uid) {
                    Some(entry) if entry.left.is_none() => entry.pod = None,
                    // Whoever asks for it again is to hear what the store says then.
                    _ => drop(state.watched.remove(uid)),
                }
            }
        }
        self.doubt(uids);
    }

    fn doubt(&self, uids: impl IntoIterator<Item = String>) {
        lock(&self.doubtful).extend(uids);
        self.wake.notify_one();
    }

    /// Pushes what is known of these pods and every change, until nobody listens.
    pub(crate) async fn watch(self: &Arc<Self>, handles: Vec<HandleV1>, sink: ObservationSink) {
        let (told, mut heard) = mpsc::unbounded_channel();
        let uids: Vec<String> = handles.iter().map(|h| h.uid.clone()).collect();
        let interest = {
            let mut state = lock(&self.state);
            state.listeners += 1;
            let listener = state.listeners;
            for handle in handles {
                let uid = handle.uid.clone();
                let entry = state.watched.entry(uid).or_insert(Watched {
                    handle,
                    listeners: Vec::new(),
                    last: None,
                    told: 0,
                    pod: None,
                    left: None,
                });
                entry.left = None;
                if let Some(last) = &entry.last {
                    let _ = told.send(last.clone());
                }
                entry.listeners.push((listener, told.clone()));
            }
            Interest { feed: self.clone(), uids, listener }
        };
        drop(told);
        // The watch keeps only what somebody asked for: new ones are looked at once.
        let new: Vec<String> = {
            let state = lock(&self.state);
            let unseen = |uid: &&String| state.watched.get(*uid).is_some_and(|w| w.last.is_none());
            interest.uids.iter().filter(unseen).cloned().collect()
        };
        self.doubt(new);
        loop {
            tokio::select! {
                seen = heard.recv() => match seen {
                    Some(seen) => if sink.send(seen).await.is_err() { return },
                    None => return,
                },
                () = sink.closed() => return,
            }
        }
    }

    fn changed(&self, site: &Site, pod: Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        let mut state = lock(&self.state);
        if !state.watched.contains_key(&uid) {
            return;
        }
        let Some(marks) = Marks::of(&pod).filter(|marks| marks.owner == self.owner) else { return };
        let seen = site.see(&pod, &marks);
        state.events += 1;
        let events = state.events;
        if let Some(entry) = state.watched.get_mut(&uid) {
            entry.told = events;
            entry.pod = pod.metadata.deletion_timestamp.is_some().then(|| Box::new(pod));
        }
        state.tell(&uid, seen);
        // It is newer than the doubt.
        lock(&self.doubtful).remove(&uid);
    }

    /// One listing and the watch after it; returns when that has ended.
    async fn follow(&self, site: &Site, heard: &Mutex<Instant>) -> Result<(), Trouble> {
        let mut shown = HashSet::new();
        let listed = site.each(&self.owner, |pod| {
            *lock(heard) = Instant::now();
            shown.extend(pod.metadata.uid.clone());
            self.changed(site, pod);
        });
        let mut version = listed.await?;
        *lock(heard) = Instant::now();
        let absent: Vec<String> = {
            let mut state = lock(&self.state);
            state.complete = true;
            state.watched.keys().filter(|uid| !shown.contains(*uid)).cloned().collect()
        };
        drop(shown);
        self.absent(absent);
        self.listing.send_replace(false);
        loop {
            let events = site.api.watch_pods(&selector(&self.owner), &version).await?;
            let mut events = std::pin::pin!(events);
            loop {
                let event = tokio::time::timeout(SILENCE, events.next()).await.map_err(|_| {
                    let seconds = SILENCE.as_secs();
                    Trouble::could_not_ask(format!(
                        "the watch has told of nothing for {seconds} s, not even that it lives"
                    ))
                })?;
                let Some(event) = event else { break };
                *lock(heard) = Instant::now();
                let (pod, is_there) = match event? {
                    WatchEvent::Added(pod) => {
                        site.present.fetch_add(1, Ordering::Relaxed);
                        (pod, true)
                    }
                    WatchEvent::Modified(pod) => (pod, true),
                    WatchEvent::Deleted(pod) => {
                        let fewer = |n: usize| n.checked_sub(1);
                        let _ = site.present.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
                        (pod, false)
                    }
                    WatchEvent::Bookmark(mark) => {
                        version = mark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(status) => return Err(crate::answer::status(&status, None)),
                };
                version = pod.metadata.resource_version.clone().unwrap_or(version);
                match is_there {
                    true => self.changed(site, pod),
                    false => self.absent(pod.metadata.uid),
                }
            }
            // The server ends a watch after its time: it goes on from there.
        }
    }

    /// Asks the store about those of which the watch says nothing.
    async fn settle(&self, site: &Site) {
        let mut listing = self.listing.subscribe();
        let mut again = Again::default();
        loop {
            // The feed has the other end.
            let _ = listing.wait_for(|under_way| !under_way).await;
            let due = again.due(Instant::now());
            if !due.is_empty() {
                self.doubt(due);
            }
            let doubtful: Vec<String> = lock(&self.doubtful).drain().collect();
            let (handles, asked): (Vec<HandleV1>, u64) = {
                let state = lock(&self.state);
                let heard = |entry: &&Watched| entry.left.is_none();
                let handles = doubtful.iter().filter_map(|uid| state.watched.get(uid).filter(heard));
                (handles.map(|entry| entry.handle.clone()).collect(), state.events)
            };
            if handles.is_empty() {
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = again.wait() => continue,
                }
                // They come in bursts.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            let seen = site.observe(&handles).await;
            {
                let mut state = lock(&self.state);
                for (handle, seen) in handles.iter().zip(seen) {
                    // The watch has told of it meanwhile, and goes on from there: the answer is older.
                    if state.watched.get(&handle.uid).is_some_and(|entry| entry.told > asked) {
                        continue;
                    }
                    if seen.state == InstanceState::Unknown && seen.provider_id.is_empty() {
                        again.add(handle.uid.clone(), Instant::now());
                    }
                    // One lost answer is no news: the pulse decides when the server counts as silent. About a pod that
                    // nobody has told of yet there is nothing else to say.
                    let first = state.watched.get(&handle.uid).is_some_and(|w| w.last.is_none());
                    if seen.state != InstanceState::Unknown || first || !seen.provider_id.is_empty() || state.complete {
                        state.tell(&handle.uid, seen);
                    }
                }
            }
        }
    }

    /// Looks whether the server answers, and at what changes with time alone.
    async fn pulse(&self, site: &Site, heard: &Mutex<Instant>) {
        let mut silent = false;
        loop {
            tokio::time::sleep(site.config.pulse).await;
            let answer = site.api.list_pods(&selector(&self.owner), 1, "").await;
            let why = match answer {
                Ok(_) => {
                    *lock(heard) = Instant::now();
                    if silent {
                        silent = false;
                        let all: Vec<String> = lock(&self.state).watched.keys().cloned().collect();
                        self.doubt(all);
                    }
                    let mut state = lock(&self.state);
                    state.let_go(Instant::now().checked_sub(LINGER));
                    let due: Vec<(String, Observation)> = state
                        .watched
                        .iter()
                        .filter_map(|(uid, w)| {
                            let pod = w.pod.as_ref()?;
                            Some((uid.clone(), site.see(pod, &Marks::of(pod)?)))
                        })
                        .collect();
                    for (uid, seen) in due {
                        state.tell(&uid, seen);
                    }
                    continue;
                }
                Err(why) => driver_sdk::RemoteError::from(why),
            };
            if lock(heard).elapsed() < PATIENCE {
                continue;
            }
            silent = true;
            let mut state = lock(&self.state);
            state.let_go(None);
            let live: Vec<(String, String)> = state
                .watched
                .iter()
                .filter(|(_, w)| {
                    // An end is told once and does not change any more.
                    !w.last.as_ref().is_some_and(|l| matches!(l.state, InstanceState::Exited | InstanceState::Gone))
                })
                .map(|(uid, w)| (uid.clone(), w.handle.key.clone()))
                .collect();
            for (uid, key) in live {
                state.tell(&uid, Observation::unknown(key, &why));
            }
        }
    }

    /// Watches for as long as it is polled.
    async fn run(&self, site: &Site) {
        let heard = Mutex::new(Instant::now());
        let following = async {
            let mut delay = RETRY;
            loop {
                let begun = Instant::now();
                self.listing.send_replace(true);
                match self.follow(site, &heard).await {
                    Ok(()) | Err(Trouble::Expired) => tracing::debug!("the watch begins anew"),
                    Err(why) => tracing::warn!(?why, "the watch of the pods has failed; it begins anew"),
                }
                lock(&self.state).complete = false;
                self.listing.send_replace(false);
                delay = if begun.elapsed() > RETRY_MAX { RETRY } else { (delay * 2).min(RETRY_MAX) };
                tokio::time::sleep(delay).await;
            }
        };
        tokio::join!(following, self.settle(site), self.pulse(site, &heard));
    }
}

/// Ends with the site.
struct Running {
    feed: Arc<Feed>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The feeds of a site, one for each owner that was asked for: a node belongs to one cluster, so usually one.
#[derive(Default)]
pub(crate) struct Feeds(Mutex<HashMap<String, Running>>);

impl Feeds {
    /// The feed of an owner, running.
    pub(crate) fn of(&self, site: &Arc<Site>, owner: &str) -> Arc<Feed> {
        let mut all = lock(&self.0);
        let running = all.entry(owner.to_owned()).or_insert_with(|| {
            let feed = Arc::new(Feed::new(owner));
            let (looking, site) = (feed.clone(), site.clone());
            Running { feed, task: tokio::spawn(async move { looking.run(&site).await }) }
        });
        running.feed.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_news_are_told() {
        let seen = |state| Observation { state, ..Observation::default() };
        let running = seen(InstanceState::Running);
        assert!(is_news(None, &running) && !is_news(Some(&running), &running));
        assert!(is_news(Some(&running), &seen(InstanceState::Exited)));
        let unknown = Observation::unknown("k", "why");
        assert!(is_news(Some(&running), &unknown) && is_news(None, &unknown));
        assert!(!is_news(Some(&unknown), &Observation::unknown("k", "another")));
    }

    #[test]
    fn what_is_asked_for_again_is_due_with_the_first() {
        let (begun, mut again) = (Instant::now(), Again::default());
        let after = |part: u32| begun + RETRY_MAX / 4 * part;
        assert!(again.due(after(100)).is_empty());
        again.add("first".into(), begun);
        again.add("second".into(), after(3));
        assert!(again.due(after(3)).is_empty());
        assert_eq!(again.due(after(4)), ["first", "second"]);
        // Those that come then have a time of their own.
        again.add("third".into(), after(5));
        assert!(again.due(after(8)).is_empty());
        assert_eq!(again.due(after(9)), ["third"]);
    }
}
