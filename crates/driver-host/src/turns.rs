//! How many starts, or recoveries, a plugin has in hand at once.
//!
//! A plugin that is given thousands of tasks at once falls over, takes all that it has in hand along, and falls over again when they return. So calls wait in
//! a line, in the order in which they came, and only so many of them are sent. Each fall halves that number, down to one; it doubles again with each quiet
//! spell. The line holds one call for each task of the node at most, and whoever waits in it may leave.
//!
//! A call that was in hand at several falls asks for a turn alone: then it is known whether it is what the plugin falls
//! over. It holds the line up for a bounded time: it waits so long until the calls in hand have ended, and goes with
//! them if they have not; and what has it alone shares the plugin with the others after so long.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::Instant;

use crate::session::Session;

/// Most calls in hand at once. One start costs a process or two, and the plugin a connection to them.
const MOST: usize = 32;
/// After a fall: how long it has to be quiet until twice as many are sent.
const SPELL: Duration = Duration::from_secs(30);
/// How long a call that is to be alone keeps the others waiting until it is sent, and once more after that.
const ALONE: Duration = Duration::from_secs(30);

/// How many calls may be in hand, after the falls so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    /// Right after the last fall.
    low: usize,
    /// When that was; `None` before the first.
    fell: Option<Instant>,
}

impl Limit {
    const NEW: Self = Self { low: MOST, fell: None };

    fn at(&self, now: Instant) -> usize {
        let spells = self.fell.map_or(0, |fell| now.duration_since(fell).as_secs() / SPELL.as_secs());
        // More doublings than these reach the most from one.
        self.low.saturating_mul(1 << spells.min(16)).clamp(1, MOST)
    }

    /// When it is higher than now; `None` when it cannot be.
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
    /// How many turns have been given.
    given: u64,
    /// Counted, so that one fall that many calls report is one.
    falls: u64,
    /// The newest process that has fallen over with a call of a turn in hand.
    fallen: Option<u64>,
}

/// The line before a plugin.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Whoever holds it is the first of the line. It is fair.
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

    /// Waits in the line. Whoever is dropped meanwhile has left it. One that is to be alone and has been the first of
    /// the line for [`ALONE`] is given a turn among the others.
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
            // A permit that is given between the look and this is kept for us: nobody else waits for one.
            tokio::select! {
                () = self.freed.notified() => {}
                () = changes => {}
            }
        }
    }
}

/// Leave to make one call. Given back when it is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    /// How many falls there were when it was given.
    falls: u64,
    since: Instant,
    /// Of all turns that were given.
    number: u64,
    /// It was asked for alone, and nobody was in hand when it was given.
    alone: bool,
    /// The head of the line, kept from the others for a while.
    line: Mutex<Option<OwnedMutexGuard<()>>>,
    /// The process that has been sent the call.
    pub(crate) sent_to: OnceLock<Arc<Session>>,
}

impl Turn {
    /// Whether it was asked for alone, and no other call has been in hand beside it until now.
    pub fn was_alone(&self) -> bool {
        self.alone && self.turns.state().given == self.number
    }

    /// The plugin has fallen over with the call in hand. Only the first one to say so of a fall counts.
    pub(crate) fn fell(&self) {
        let process = self.sent_to.get().map(|session| session.generation);
        let mut state = self.turns.state();
        // A process falls over once, also with calls that have reached it since.
        if state.falls == self.falls && (process.is_none() || process > state.fallen) {
            state.falls += 1;
            state.fallen = process.or(state.fallen);
            state.limit = state.limit.after_fall(Instant::now());
        }
    }

    /// Returns when the others have waited long enough; from then on they are given turns beside it. Never, if they do
    /// not wait for it.
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
        // All that were in hand report the same fall.
        held.iter().for_each(Turn::fell);
        drop(held.split_off(MOST / 2));
        assert!(taken(&turns, false).await.is_none(), "half as many now");
        held.pop();
        held.extend(taken(&turns, false).await);
        assert_eq!(held.len(), MOST / 2);
        // Quiet, twice as many go.
        let more = tokio::time::timeout(SPELL + Duration::from_secs(1), turns.take(false)).await.expect("after a spell");
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
        // A start that takes for ever, as one that fetches an image.
        let _slow = taken(&turns, false).await.expect("free");
        let (begin, alone) = (Instant::now(), turns.take(true));
        let (alone, after) = tokio::join!(alone, turns.take(false));
        assert!(begin.elapsed() >= ALONE && begin.elapsed() < ALONE + Duration::from_secs(1), "{:?}", begin.elapsed());
        assert!(!alone.was_alone() && !after.was_alone());
    }
}
