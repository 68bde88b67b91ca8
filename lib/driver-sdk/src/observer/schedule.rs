//! When to look at which instances: a pure decision. Times are relative to a start that the caller chooses.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// The provider's limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    /// Time between two looks at an instance, while there are few.
    pub(super) interval: Duration,
    /// Instances in one call.
    pub(super) batch: usize,
    /// Calls per second.
    pub(super) rate: f64,
}

/// Calls that may be made at once after a rest, in seconds' worth.
const BURST_SECONDS: f64 = 0.5;
/// Calls that do not wait use up the savings, and then delay the others for at most this long.
const DEBT: Duration = Duration::from_secs(1);
/// Largest factor by which calls to a failing or overloaded provider slow down.
const SLOWEST: f64 = 16.0;
/// Creates made before a waiting look: one look covers as many instances as a call takes, a create makes one.
const CREATES_A_LOOK: usize = 4;
/// Factor by which an answer reduces the slowdown.
const RECOVERY: f64 = 0.75;

impl Limits {
    /// Time for a look at everything: the interval, or as long as that many calls need.
    pub(super) fn round(&self, watched: usize) -> Duration {
        let calls = watched.div_ceil(self.batch.max(1)).max(1);
        #[allow(clippy::cast_precision_loss, reason = "a number of calls")]
        let needed = calls as f64 / self.rate.max(f64::MIN_POSITIVE);
        self.interval.max(Duration::try_from_secs_f64(needed).unwrap_or(Duration::MAX))
    }
}

/// The result of a look at an instance, as far as it affects the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It is unchanged, or has changed and will not for a while.
    Steady,
    /// It is about to change.
    Changing,
    /// None: the call failed.
    Nothing,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Observe these.
    Look(Vec<u64>),
    /// Another counted call may be made.
    Turn,
    /// A create may be made.
    Create,
    /// Nothing before this time.
    At(Duration),
    /// Wait until something is added.
    Rest,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// It was never seen, or a request waits for it: before all others.
    Soon(Duration),
    /// Due in its turn.
    Due(Duration),
    /// Its call is under way; true: another look follows.
    Asked(bool),
}

/// Instances, by the caller's numbers, and the calls that may be made.
#[derive(Debug)]
pub(super) struct Schedule {
    places: HashMap<u64, Place>,
    soon: BTreeSet<(Duration, u64)>,
    due: BTreeSet<(Duration, u64)>,
    turns: usize,
    creates: usize,
    /// How many of the last calls were creates.
    created: usize,
    /// When the budget has paid for the calls so far.
    paid: Duration,
    /// Factor of the pause between calls.
    slow: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            places: HashMap::new(),
            soon: BTreeSet::new(),
            due: BTreeSet::new(),
            turns: 0,
            creates: 0,
            created: 0,
            paid: Duration::ZERO,
            slow: 1.0,
        }
    }
}

impl Schedule {
    /// Looks at an instance before all that were seen already. During a call about it, another look follows.
    pub(super) fn soon(&mut self, id: u64, now: Duration) {
        let place = match self.places.get(&id) {
            Some(Place::Soon(at)) => Place::Soon(*at),
            Some(Place::Asked(_)) => Place::Asked(true),
            Some(Place::Due(at)) => {
                self.due.remove(&(*at, id));
                Place::Soon(now)
            }
            None => Place::Soon(now),
        };
        self.put(id, place);
    }

    /// Adds a new instance with this due time.
    pub(super) fn due(&mut self, id: u64, at: Duration) {
        if !self.places.contains_key(&id) {
            self.put(id, Place::Due(at));
        }
    }

    /// Removes an instance and returns its due time.
    pub(super) fn remove(&mut self, id: u64) -> Option<Duration> {
        match self.places.remove(&id)? {
            Place::Soon(at) => {
                self.soon.remove(&(at, id));
                Some(at)
            }
            Place::Due(at) => {
                self.due.remove(&(at, id));
                Some(at)
            }
            Place::Asked(_) => None,
        }
    }

    /// Adds a counted call that is about no instances.
    pub(super) fn turn(&mut self) {
        self.turns += 1;
    }

    /// Adds a create that waits for its turn.
    pub(super) fn create(&mut self) {
        self.creates += 1;
    }

    /// Removes a waiting create.
    pub(super) fn create_given_up(&mut self) {
        self.creates = self.creates.saturating_sub(1);
    }

    /// Counts a call made now without waiting, such as a stop: waiting calls make room for it. However many there are,
    /// they delay the others by no more than a moment. An overloaded provider reports that itself.
    pub(super) fn spent(&mut self, limits: &Limits, now: Duration) {
        self.paid = self
            .paid
            .max(now)
            .saturating_add(self.pause(limits))
            .min(self.paid.max(now + Duration::from_secs_f64(BURST_SECONDS) + DEBT));
    }

    fn pause(&self, limits: &Limits) -> Duration {
        Duration::try_from_secs_f64(self.slow / limits.rate.max(f64::MIN_POSITIVE)).unwrap_or(Duration::MAX)
    }

    /// A call has ended. Instances removed meanwhile stay removed.
    pub(super) fn ended(
        &mut self,
        answered: bool,
        told: impl IntoIterator<Item = (u64, Told)>,
        limits: &Limits,
        now: Duration,
    ) {
        self.slow = if answered { (self.slow * RECOVERY).max(1.0) } else { (self.slow * 2.0).min(SLOWEST) };
        let round = limits.round(self.places.len());
        for (id, told) in told {
            let place = match (self.places.get(&id), told) {
                (None | Some(Place::Soon(_) | Place::Due(_)), _) => continue,
                (Some(Place::Asked(true)), _) => Place::Soon(now),
                (Some(Place::Asked(false)), Told::Steady) => Place::Due(now + round),
                (Some(Place::Asked(false)), Told::Changing | Told::Nothing) => Place::Due(now + limits.interval),
            };
            self.put(id, place);
        }
    }

    fn put(&mut self, id: u64, place: Place) {
        match place {
            Place::Soon(at) => drop(self.soon.insert((at, id))),
            Place::Due(at) => drop(self.due.insert((at, id))),
            Place::Asked(_) => {}
        }
        self.places.insert(id, place);
    }

    /// The next step; a returned call counts as made.
    pub(super) fn next(&mut self, limits: &Limits, now: Duration) -> Next {
        let first_due = self.due.first().map(|(at, _)| *at);
        let looks = !self.soon.is_empty() || self.turns > 0;
        let wanted = if looks || self.creates > 0 { Some(Duration::ZERO) } else { first_due };
        let Some(wanted) = wanted else { return Next::Rest };
        let pause = self.pause(limits);
        // A slow provider gets no burst.
        let saved = if self.slow > 1.0 { Duration::ZERO } else { Duration::from_secs_f64(BURST_SECONDS) };
        let possible = self.paid.saturating_sub(saved);
        let at = wanted.max(possible);
        if at > now {
            return Next::At(at);
        }
        self.paid = self.paid.max(now).saturating_add(pause);
        // In turn with the looks, so that neither waits for the end of the other's queue.
        let look_waits = looks || first_due.is_some_and(|at| at <= now);
        if self.creates > 0 && (self.created < CREATES_A_LOOK || !look_waits) {
            self.creates -= 1;
            self.created = self.created.saturating_add(1);
            return Next::Create;
        }
        self.created = 0;
        if self.soon.is_empty() && self.turns > 0 {
            self.turns -= 1;
            return Next::Turn;
        }
        // Instances due soon fill the call up, so that instances that came one by one share their calls.
        let horizon = now + limits.round(self.places.len()) / 2;
        let room = limits.batch.max(1);
        let mut ids: Vec<u64> = self.soon.iter().take(room).map(|(_, id)| *id).collect();
        let rest = room - ids.len();
        ids.extend(self.due.iter().take_while(|(at, _)| *at <= horizon).take(rest).map(|(_, id)| *id));
        for id in &ids {
            self.remove(*id);
            self.places.insert(*id, Place::Asked(false));
        }
        Next::Look(ids)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secs(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    fn limits(interval: f64, batch: usize, rate: f64) -> Limits {
        Limits { interval: secs(interval), batch, rate }
    }

    #[test]
    fn a_round_takes_as_long_as_its_calls_need() {
        for (interval, batch, rate, watched, expected) in [
            (1.0, 100, 5.0, 0, 1.0),
            (1.0, 100, 5.0, 1, 1.0),
            (1.0, 100, 5.0, 500, 1.0),
            (1.0, 100, 5.0, 501, 1.2),
            (1.0, 100, 5.0, 3334, 6.8),
            (1.0, 100, 5.0, 10_000, 20.0),
            (10.0, 100, 5.0, 3334, 10.0),
            (0.05, 100, 20.0, 100, 0.05),
            (0.05, 100, 20.0, 101, 0.1),
            (1.0, 0, 5.0, 10, 2.0),
        ] {
            assert_eq!(
                limits(interval, batch, rate).round(watched),
                secs(expected),
                "{watched} at {rate}/s of {batch}"
            );
        }
    }

    /// Lets time pass until nothing is due before the end; every call is answered at once. Returns times and sizes of
    /// the calls.
    fn run(
        schedule: &mut Schedule,
        limits: &Limits,
        mut now: Duration,
        end: Duration,
        answered: bool,
    ) -> Vec<(Duration, Vec<u64>)> {
        let mut calls = Vec::new();
        loop {
            match schedule.next(limits, now) {
                Next::Look(ids) => {
                    let told = if answered { Told::Steady } else { Told::Nothing };
                    schedule.ended(answered, ids.iter().map(|id| (*id, told)), limits, now);
                    calls.push((now, ids));
                }
                Next::Turn | Next::Create => calls.push((now, Vec::new())),
                Next::At(at) if at < end => now = at,
                Next::At(_) | Next::Rest => return calls,
            }
        }
    }

    #[test]
    fn few_are_looked_at_together_and_at_the_interval() {
        let limits = limits(1.0, 100, 5.0);
        let mut schedule = Schedule::default();
        assert_eq!(schedule.next(&limits, secs(0.0)), Next::Rest);
        for n in 0..20_u32 {
            schedule.soon(u64::from(n), secs(0.04 * f64::from(n)));
            run(&mut schedule, &limits, secs(0.04 * f64::from(n)), secs(0.04 * f64::from(n + 1)), true);
        }
        let calls = run(&mut schedule, &limits, secs(2.0), secs(12.0), true);
        assert!((10..=12).contains(&calls.len()), "{calls:?}");
        assert!(calls[2..].iter().all(|(_, ids)| ids.len() == 20), "they share their calls: {calls:?}");
    }

    #[test]
    fn what_is_new_does_not_wait_for_what_is_known() {
        let limits = limits(1.0, 100, 5.0);
        let mut schedule = Schedule::default();
        (0..5000).for_each(|id| schedule.soon(id, secs(0.0)));
        run(&mut schedule, &limits, secs(0.0), secs(60.0), true);
        schedule.soon(9999, secs(60.0));
        let calls = run(&mut schedule, &limits, secs(60.0), secs(60.5), true);
        assert!(calls[0].1.contains(&9999), "{calls:?}");
        assert!(calls[0].0 <= secs(60.2), "{:?}", calls[0].0);
        assert_eq!(calls[0].1.len(), 100, "its call takes others along");
    }

    #[test]
    fn what_is_about_to_change_is_looked_at_at_the_interval_and_starves_nobody() {
        let limits = limits(1.0, 10, 2.0);
        let mut schedule = Schedule::default();
        (0..200).for_each(|id| schedule.soon(id, secs(0.0)));
        let mut looked: HashMap<u64, usize> = HashMap::new();
        let mut now = secs(0.0);
        while now < secs(120.0) {
            match schedule.next(&limits, now) {
                Next::Look(ids) => {
                    ids.iter().for_each(|id| *looked.entry(*id).or_default() += 1);
                    // Half of them never reach their final state.
                    let told = ids.into_iter().map(|id| (id, if id < 100 { Told::Changing } else { Told::Steady }));
                    schedule.ended(true, told, &limits, now);
                }
                Next::At(at) => now = at,
                other => panic!("{other:?}"),
            }
        }
        assert!(looked.len() == 200 && looked.values().all(|n| *n >= 5), "{looked:?}");
    }

    #[test]
    fn a_provider_that_does_not_answer_is_asked_rarely_and_soon_again_when_it_does() {
        let limits = limits(1.0, 100, 5.0);
        let mut schedule = Schedule::default();
        (0..50).for_each(|id| schedule.soon(id, secs(0.0)));
        let failed = run(&mut schedule, &limits, secs(0.0), secs(60.0), false);
        assert!(failed.len() < 30, "{} calls in a minute", failed.len());
        let again = run(&mut schedule, &limits, secs(60.0), secs(75.0), true);
        assert!(again[0].0 < secs(64.0), "{:?}", again[0].0);
        let last: Vec<_> = again.iter().rev().take(3).map(|(at, _)| *at).collect();
        assert!(last[0] - last[1] < secs(1.1) && last[1] - last[2] < secs(1.1), "{last:?}");
    }

    #[test]
    fn other_calls_have_their_turn_between_looks() {
        let limits = limits(0.1, 1, 10.0);
        let mut schedule = Schedule::default();
        (0..3).for_each(|id| schedule.soon(id, secs(0.0)));
        schedule.turn();
        let calls = run(&mut schedule, &limits, secs(0.0), secs(1.0), true);
        assert_eq!(calls.iter().filter(|(_, ids)| ids.is_empty()).count(), 1);
        assert!(calls[3].1.is_empty(), "behind what is new, before what is known: {calls:?}");
    }

    #[test]
    fn one_that_is_wanted_while_it_is_asked_about_is_asked_about_again() {
        let limits = limits(10.0, 10, 5.0);
        let mut schedule = Schedule::default();
        schedule.soon(1, secs(0.0));
        assert_eq!(schedule.next(&limits, secs(0.0)), Next::Look(vec![1]));
        schedule.soon(1, secs(0.1));
        assert_eq!(schedule.next(&limits, secs(0.1)), Next::Rest);
        schedule.ended(true, [(1, Told::Steady)], &limits, secs(0.2));
        assert_eq!(schedule.next(&limits, secs(0.3)), Next::Look(vec![1]));
        schedule.remove(1);
        schedule.ended(true, [(1, Told::Steady)], &limits, secs(0.4));
        assert_eq!(schedule.next(&limits, secs(99.0)), Next::Rest, "it was removed meanwhile");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// For any sequence of watches, additions, requests and failures: never more calls than the rate, and
        /// everything gets its turn.
        #[test]
        fn calls_stay_within_the_rate(
            watched in 1_u64..600,
            batch in 1_usize..200,
            rate in 0.5_f64..50.0,
            interval in 0.01_f64..5.0,
            fails in proptest::collection::vec(any::<bool>(), 8),
            wanted in proptest::collection::vec((0_u64..800, 0.0_f64..10.0), 0..100),
        ) {
            let limits = limits(interval, batch, rate);
            let mut schedule = Schedule::default();
            (0..watched).for_each(|id| schedule.soon(id, secs(0.0)));
            let mut wanted = wanted;
            wanted.sort_by(|a, b| b.1.total_cmp(&a.1));
            let (mut now, mut times, mut n) = (secs(0.0), Vec::new(), 0);
            while now < secs(10.0) {
                while let Some((id, _)) = wanted.pop_if(|(_, at)| secs(*at) <= now) {
                    schedule.soon(id, now);
                    if id % 3 == 0 {
                        schedule.create();
                    }
                }
                match schedule.next(&limits, now) {
                    Next::Create => times.push(now),
                    Next::Look(ids) => {
                        prop_assert!(!ids.is_empty() && ids.len() <= batch);
                        times.push(now);
                        n += 1;
                        let ok = !fails[n % fails.len()];
                        let told = if ok { Told::Steady } else { Told::Nothing };
                        schedule.ended(ok, ids.into_iter().map(|id| (id, told)), &limits, now);
                    }
                    Next::At(at) => now = wanted.last().map_or(at, |(_, w)| at.min(secs(*w).max(now + secs(0.001)))),
                    Next::Turn | Next::Rest => break,
                }
            }
            for (i, from) in times.iter().enumerate() {
                for (j, to) in times.iter().enumerate().skip(i) {
                    let most = rate.mul_add((*to - *from).as_secs_f64() + BURST_SECONDS, 1.0 + 1e-6);
                    #[allow(clippy::cast_precision_loss, reason = "a number of calls")]
                    let made = (j - i + 1) as f64;
                    prop_assert!(made <= most + 1.0, "{} calls in {:?} at {rate}/s", j - i + 1, *to - *from);
                }
            }
        }
    }
}
