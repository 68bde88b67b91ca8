//! One loop looks at all watched tasks, a hundred with each request, however many ask for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use driver_sdk::{InstanceState, Observation, ObservationSink};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How many looks in a row fail before the instance counts as unknown: one lost answer is no news.
const PATIENCE: u32 = 3;
/// Registrations come in bursts: one request takes them all.
const SETTLE: Duration = Duration::from_millis(20);

/// What finds an instance again.
pub trait Handle: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// The provider's own name of the instance.
    fn id(&self) -> &str;
}

/// Looks at many tasks at once: one observation for each, in the order asked.
#[driver_sdk::async_trait]
pub trait Look<H>: Send + Sync + 'static {
    /// Never fails: what cannot be seen is unknown, with the reason.
    async fn look(&self, handles: &[H]) -> Vec<Observation>;
}

#[derive(Debug)]
struct Watched<H> {
    handle: H,
    watchers: usize,
    last: Option<Observation>,
    failed: u32,
}

/// What is known of the watched tasks.
#[derive(Debug)]
pub struct Poller<H> {
    watched: Mutex<HashMap<String, Watched<H>>>,
    /// Counts rounds, so that watchers wake; `None` when there will be no further one.
    rounds: watch::Sender<Option<u64>>,
    wake: Notify,
}

/// Whether an observation replaces the last one.
fn is_news(last: Option<&Observation>, failed: u32, seen: &Observation) -> bool {
    match seen.state {
        // Whatever was seen before stays true until looking has failed for a while.
        InstanceState::Unknown => last.is_none_or(|l| l.state != InstanceState::Unknown) && failed >= PATIENCE,
        _ => last != Some(seen),
    }
}

/// Takes its watcher's interest back, however the watch ends.
struct Interest<H> {
    poller: Arc<Poller<H>>,
    ids: Vec<String>,
}

impl<H> Drop for Interest<H> {
    fn drop(&mut self) {
        let mut watched = self.poller.watched();
        for id in &self.ids {
            if let Some(entry) = watched.get_mut(id) {
                entry.watchers -= 1;
                if entry.watchers == 0 {
                    watched.remove(id);
                }
            }
        }
    }
}

impl<H> Poller<H> {
    fn watched(&self) -> std::sync::MutexGuard<'_, HashMap<String, Watched<H>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Handle> Poller<H> {
    /// Nothing is watched.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { watched: Mutex::default(), rounds: watch::Sender::new(Some(0)), wake: Notify::new() })
    }

    /// Nobody looks any more: watches end, and hosts open them again where somebody does.
    pub fn close(&self) {
        self.rounds.send_modify(|n| *n = None);
    }

    fn handles(&self, wanted: impl Fn(&Watched<H>) -> bool) -> Vec<H> {
        self.watched().values().filter(|w| wanted(w)).map(|w| w.handle.clone()).collect()
    }

    async fn round(&self, look: &dyn Look<H>, handles: Vec<H>) {
        let seen = look.look(&handles).await;
        let mut watched = self.watched();
        for (handle, seen) in handles.iter().zip(seen) {
            let Some(entry) = watched.get_mut(handle.id()) else { continue };
            entry.failed = if seen.state == InstanceState::Unknown { entry.failed.saturating_add(1) } else { 0 };
            if is_news(entry.last.as_ref(), entry.failed, &seen) {
                entry.last = Some(seen);
            }
        }
        drop(watched);
        self.rounds.send_modify(|n| *n = n.map(|n| n + 1));
    }

    /// Looks for as long as it is polled itself.
    pub async fn run(&self, look: Arc<dyn Look<H>>, every: Duration) {
        let mut due = Instant::now();
        loop {
            let fresh = self.handles(|w| w.last.is_none() && w.failed == 0);
            if !fresh.is_empty() {
                tokio::time::sleep(SETTLE).await;
                let fresh = self.handles(|w| w.last.is_none() && w.failed == 0);
                self.round(&*look, fresh).await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = self.wake.notified() => continue,
            }
            // An end is told once and does not change any more.
            let live = self.handles(|w| {
                !w.last.as_ref().is_some_and(|l| matches!(l.state, InstanceState::Exited | InstanceState::Gone))
            });
            if live.is_empty() {
                self.wake.notified().await;
            } else {
                self.round(&*look, live).await;
            }
            // After a round that took long the next one waits as well: the budget is for other calls, too.
            due = Instant::now() + every;
        }
    }

    /// Pushes what is known of these tasks and every change, until nobody listens.
    pub async fn watch(self: &Arc<Self>, handles: Vec<H>, sink: ObservationSink) {
        let mut rounds = self.rounds.subscribe();
        let interest = Interest { poller: self.clone(), ids: handles.iter().map(|h| h.id().to_owned()).collect() };
        {
            let mut watched = self.watched();
            for handle in handles {
                let id = handle.id().to_owned();
                let entry = watched.entry(id).or_insert(Watched { handle, watchers: 0, last: None, failed: 0 });
                entry.watchers += 1;
            }
        }
        self.wake.notify_one();
        let mut told: HashMap<&str, Observation> = HashMap::new();
        loop {
            if rounds.borrow_and_update().is_none() {
                return;
            }
            let mut news = Vec::new();
            {
                let watched = self.watched();
                for id in &interest.ids {
                    if let Some(seen) = watched.get(id).and_then(|w| w.last.as_ref())
                        && told.get(id.as_str()) != Some(seen)
                    {
                        news.push((id.as_str(), seen.clone()));
                    }
                }
            }
            for (id, seen) in news {
                told.insert(id, seen.clone());
                if sink.send(seen).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                changed = rounds.changed() => if changed.is_err() { return },
                () = sink.closed() => return,
            }
        }
    }
}

/// The loop of a poller, which ends when it is dropped: another one takes its place.
pub struct Loop<H: Handle> {
    looking: tokio::task::JoinHandle<()>,
    poller: Arc<Poller<H>>,
}

impl<H: Handle> Loop<H> {
    /// Begins to look.
    pub fn start(poller: Arc<Poller<H>>, look: Arc<dyn Look<H>>, every: Duration) -> Self {
        let of_loop = poller.clone();
        Self { looking: tokio::spawn(async move { of_loop.run(look, every).await }), poller }
    }
}

impl<H: Handle> Drop for Loop<H> {
    fn drop(&mut self) {
        self.looking.abort();
        self.poller.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;

    use super::*;

    impl Handle for String {
        fn id(&self) -> &str {
            self
        }
    }

    fn seen(key: &str, state: InstanceState) -> Observation {
        Observation { key: key.into(), state, ..Observation::default() }
    }

    #[test]
    fn one_lost_answer_is_no_news() {
        let running = seen("a", InstanceState::Running);
        let unknown = Observation::unknown("a", "why");
        assert!(is_news(None, 0, &running));
        assert!(!is_news(Some(&running), 0, &running));
        assert!(is_news(Some(&running), 0, &seen("a", InstanceState::Exited)));
        for failed in 1..PATIENCE {
            assert!(!is_news(Some(&running), failed, &unknown) && !is_news(None, failed, &unknown));
        }
        assert!(is_news(Some(&running), PATIENCE, &unknown) && is_news(None, PATIENCE, &unknown));
        assert!(
            !is_news(Some(&unknown), PATIENCE + 1, &Observation::unknown("a", "another")),
            "since when matters, not each text"
        );
        assert!(is_news(Some(&unknown), 0, &running));
    }

    struct Fake {
        rounds: AtomicUsize,
        asked: AtomicUsize,
        states: Mutex<HashMap<String, InstanceState>>,
    }

    #[driver_sdk::async_trait]
    impl Look<String> for Fake {
        async fn look(&self, handles: &[String]) -> Vec<Observation> {
            self.rounds.fetch_add(1, Ordering::Relaxed);
            self.asked.fetch_add(handles.len(), Ordering::Relaxed);
            let states = self.states.lock().expect("unpoisoned");
            handles.iter().map(|h| seen(h, states.get(h).copied().unwrap_or(InstanceState::Running))).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_watchers_share_one_loop() {
        let fake = Arc::new(Fake { rounds: AtomicUsize::new(0), asked: AtomicUsize::new(0), states: Mutex::default() });
        let poller = Poller::new();
        let looking = {
            tokio::spawn({
                let (p, f) = (poller.clone(), fake.clone());
                async move { p.run(f, Duration::from_secs(2)).await }
            })
        };
        let mut pushed = Vec::new();
        let mut watching = Vec::new();
        for n in 0..50 {
            let (sink, pushes) = mpsc::channel(16);
            let poller = poller.clone();
            watching.push(tokio::spawn(
                async move { poller.watch(vec![format!("t{n}"), "shared".to_owned()], sink).await },
            ));
            pushed.push(pushes);
        }
        for pushes in &mut pushed {
            assert_eq!(pushes.recv().await.map(|s| s.state), Some(InstanceState::Running));
            assert_eq!(pushes.recv().await.map(|s| s.state), Some(InstanceState::Running));
        }
        let (rounds, asked) = (fake.rounds.load(Ordering::Relaxed), fake.asked.load(Ordering::Relaxed));
        assert!(rounds <= 3 && asked <= 51 * 2, "{rounds} rounds asked {asked} times for 51 tasks");
        fake.states.lock().expect("unpoisoned").insert("shared".into(), InstanceState::Exited);
        for pushes in &mut pushed {
            assert_eq!(pushes.recv().await.map(|s| (s.key, s.state)), Some(("shared".into(), InstanceState::Exited)));
        }
        // Who has heard enough is forgotten, and so is the task that nobody else watches.
        drop(pushed);
        for watching in watching {
            watching.await.expect("ended");
        }
        assert!(poller.watched().is_empty());
        looking.abort();
        // Without a loop a watch does not wait for news that never come.
        poller.close();
        poller.watch(vec!["late".to_owned()], mpsc::channel(1).0).await;
    }
}
