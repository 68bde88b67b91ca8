//! Bounds a plugin's concurrent starts, or recoveries.
//!
//! A plugin with thousands of tasks at once falls over, takes all calls in hand along, and falls over again when they
//! return. So calls wait in a line, in order of arrival, and only a limited number is sent. Each fall halves the limit,
//! down to one; each quiet spell doubles it. The line holds at most one call for each task of the node, and a waiting
//! call may leave.
//!
//! A call that was in hand at several falls asks for a turn alone: that shows whether it causes the falls. It delays
//! the line for a bounded time. It waits that long for the calls in hand to end, and otherwise joins them. Once sent
//! alone, it shares the plugin with the others after the same time.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::Instant;

use crate::session::Session;

/// Most calls in hand at once. A start costs a process or two, and the plugin a connection to them.
const MOST: usize = 32;
/// How long a plugin must be quiet after a fall before the limit doubles.
const SPELL: Duration = Duration::from_secs(30);
/// How long a call that asks to be alone may delay the others before it is sent, and once more afterwards.
const ALONE: Duration = Duration::from_secs(30);

/// The limit of calls in hand, after the falls so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    /// The limit right after the last fall.
    low: usize,
    /// Time of the last fall; `None` before the first.
    fell: Option<Instant>,
}

impl Limit {
    const NEW: Self = Self { low: MOST, fell: None };

    fn at(&self, now: Instant) -> usize {
        let spells = self.fell.map_or(0, |fell| now.duration_since(fell).as_secs() / SPELL.as_secs());
        // More doublings would exceed the maximum even from one.
        self.low.saturating_mul(1 << spells.min(16)).clamp(1, MOST)
    }

    /// When the limit next grows; `None` at the maximum.
    fn grows(&self, now: Instant) -> Option<Instant> {
        let fell = self.fell.filter(|_| self.at(now) < MOST)?;
        let spells = u32::try_from(now.duration_since(fell).as_secs() / SPELL.as_secs()).unwrap_or(u32::MAX - 1);
        Some(fell + SPELL * (spells + 1))
    }

    fn after_fall(&self, now: Instant) -> Self {
        Self { low: (self.at(now) / 2).max(1), fell: Some(now) }
    }
}

#[derive(Debug)]
struct State {
    limit: Limit,
    in_hand: usize,
    /// Number of turns given.
    given: u64,
    /// Number of falls, so that one fall reported by many calls counts once.
    falls: u64,
    /// The newest process that has fallen with a turn's call in hand.
    fallen: Option<u64>,
}

/// The line before a plugin.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Its holder is the first of the line. The mutex is fair.
    first: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
    freed: Notify,
}

impl Turns {
    pub(crate) fn new() -> Arc<Self> {
        let state = Mutex::new(State { limit: Limit::NEW, in_hand: 0, given: 0, falls: 0, fallen: None });
        Arc::new(Self { first: Arc::default(), state, freed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits in the line. Cancel safe: a drop leaves the line. A call that asks to be alone gets a normal turn after
    /// [`ALONE`] at the head of the line.
    #[expect(clippy::await_holding_invalid_type, reason = "the guard is the place at the head of the line")]
    pub(crate) async fn take(self: &Arc<Self>, alone: bool) -> Turn {
        let first = self.first.clone().lock_owned().await;
        let patience = Instant::now() + ALONE;
        loop {
            let changes = {
                let mut state = self.state();
                let now = Instant::now();
                let alone = alone && now < patience;
                if state.in_hand < if alone { 1 } else { state.limit.at(now) } {
                    state.in_hand += 1;
                    state.given += 1;
                    return Turn {
                        turns: self.clone(),
                        falls: state.falls,
                        since: now,
                        number: state.given,
                        alone,
                        line: Mutex::new(alone.then_some(first)),
                        sent_to: OnceLock::new(),
                    };
                }
                if alone { Some(patience) } else { state.limit.grows(now) }
            };
            let changes = async {
                match changes {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // A permit given between the look and this is kept for us, because no other call waits for one.
            tokio::select! {
                () = self.freed.notified() => {}
                () = changes => {}
            }
        }
    }
}

/// Leave to make one call; a drop returns it.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    /// Number of falls when it was given.
    falls: u64,
    since: Instant,
    /// Its number among all turns.
    number: u64,
    /// It asked to be alone, and no other call was in hand when it was given.
    alone: bool,
    /// The head of the line, held for a while.
    line: Mutex<Option<OwnedMutexGuard<()>>>,
    /// The process that received the call.
    pub(crate) sent_to: OnceLock<Arc<Session>>,
}

impl Turn {
    /// Whether it asked to be alone, and no other call has been in hand so far.
    pub fn was_alone(&self) -> bool {
        self.alone && self.turns.state().given == self.number
    }

    /// Reports that the plugin has fallen with the call in hand. Only the first report of a fall counts.
    pub(crate) fn fell(&self) {
        let process = self.sent_to.get().map(|session| session.generation);
        let mut state = self.turns.state();
        // A process falls once, even with calls that reached it later.
        if state.falls == self.falls && (process.is_none() || process > state.fallen) {
            state.falls += 1;
            state.fallen = process.or(state.fallen);
            state.limit = state.limit.after_fall(Instant::now());
        }
    }

    /// Returns when the others have waited long enough; from then on they get turns beside it. Pending for ever if no
    /// call waits for it.
    pub(crate) async fn shared(&self) {
        if !self.alone {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.since + ALONE).await;
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.state().in_hand -= 1;
        self.turns.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fall_halves_what_is_sent_and_quiet_spells_double_it() {
        let start = Instant::now();
        let mut limit = Limit::NEW;
        assert_eq!((limit.at(start), limit.grows(start)), (MOST, None));
        for expected in [16, 8, 4, 2, 1, 1] {
            limit = limit.after_fall(start);
            assert_eq!((limit.at(start), limit.grows(start)), (expected, Some(start + SPELL)));
        }
        for (spells, expected) in [(0, 1), (1, 2), (2, 4), (4, 16), (5, MOST), (1000, MOST)] {
            let now = start + SPELL * spells;
            assert_eq!(limit.at(now), expected, "after {spells} spells");
            assert_eq!(limit.grows(now), (expected < MOST).then_some(start + SPELL * (spells + 1)));
        }
        let later = start + 2 * SPELL;
        assert_eq!(limit.after_fall(later).at(later), 2, "what had grown is halved");
    }

    async fn taken(turns: &Arc<Turns>, alone: bool) -> Option<Turn> {
        tokio::time::timeout(Duration::from_millis(1), turns.take(alone)).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_bounded_and_one_fall_counts_once() {
        let turns = Turns::new();
        let mut held = Vec::new();
        while let Some(turn) = taken(&turns, false).await {
            held.push(turn);
        }
        assert_eq!(held.len(), MOST);
        // All calls in hand report the same fall.
        held.iter().for_each(Turn::fell);
        drop(held.split_off(MOST / 2));
        assert!(taken(&turns, false).await.is_none(), "half as many now");
        held.pop();
        held.extend(taken(&turns, false).await);
        assert_eq!(held.len(), MOST / 2);
        // After a quiet spell the limit doubles.
        let more =
            tokio::time::timeout(SPELL + Duration::from_secs(1), turns.take(false)).await.expect("after a spell");
        more.fell();
        held.push(more);
        assert!(taken(&turns, false).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_alone_waits_for_all_and_keeps_the_others_waiting_for_a_while() {
        let turns = Turns::new();
        let other = taken(&turns, false).await.expect("free");
        assert!(taken(&turns, true).await.is_none() && !other.was_alone());
        drop(other);
        let alone = taken(&turns, true).await.expect("nobody is there");
        assert!(alone.was_alone() && taken(&turns, false).await.is_none());
        alone.shared().await;
        assert!(alone.was_alone(), "nobody has come");
        let beside = taken(&turns, false).await.expect("it shares");
        drop(beside);
        assert!(!alone.was_alone(), "somebody has been there");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_alone_is_waited_for_in_vain_for_so_long_only() {
        let turns = Turns::new();
        // An endless start, like one that fetches an image.
        let _slow = taken(&turns, false).await.expect("free");
        let (begin, alone) = (Instant::now(), turns.take(true));
        let (alone, after) = tokio::join!(alone, turns.take(false));
        assert!(begin.elapsed() >= ALONE && begin.elapsed() < ALONE + Duration::from_secs(1), "{:?}", begin.elapsed());
        assert!(!alone.was_alone() && !after.was_alone());
    }
}
