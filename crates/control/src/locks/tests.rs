//! Random sequences of holders, renewals, servers and time: a lock has one holder at most.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::variables::{delete, put};

const SECOND: Duration = Duration::from_secs(1);

fn sealed(data: &str) -> Sealed {
    Sealed { key_id: Uuid::nil(), data: data.to_owned() }
}

fn key() -> VariableKey {
    VariableKey::new("default", "a")
}

/// A server that leads, with the state that it has stored.
#[derive(Default)]
struct Leader {
    state: State,
    locks: Locks,
    now: Duration,
}

impl Leader {
    fn boot(&self) -> Boot {
        Boot::since(self.now)
    }
    fn stamp(&self) -> Stamp {
        Stamp { index: self.state.latest_index() + 1, now: 1 }
    }
    fn store(&mut self, decided: Decided<Written>) -> Written {
        if !decided.batch.is_empty() {
            let index = self.state.latest_index() + 1;
            self.state.apply(index, 1, decided.batch).expect("applies");
            let now = self.boot();
            let lock = self.state.variable(&key()).and_then(|v| v.lock.clone());
            self.locks.follow(&key(), lock.as_ref(), now);
        }
        decided.answer
    }
    fn acquire(&mut self, id: &str, ttl: i64, delay: i64, items: Option<&str>) -> Written {
        let lock = asked(id, GoDuration::from_secs(ttl), GoDuration::from_secs(delay)).expect("a lock");
        let renewed = self.locks.renew(&key(), id, self.boot());
        let items = items.map(sealed);
        let decided = acquire(&self.state, self.stamp(), &key(), items, sealed("empty"), lock, renewed);
        self.store(decided.expect("a namespace"))
    }
    fn renew(&mut self, id: &str) -> bool {
        let now = self.boot();
        self.locks.renew(&key(), id, now)
    }
    fn release(&mut self, id: &str) -> Written {
        let decided = release(&self.state, self.stamp(), &key(), id);
        self.store(decided)
    }
    fn put(&mut self, id: Option<&str>, data: &str) -> Written {
        let decided = put(&self.state, self.stamp(), &key(), sealed(data), None, id);
        self.store(decided.expect("a namespace"))
    }
    fn delete(&mut self, id: Option<&str>) -> Written {
        let decided = delete(&self.state, key(), None, id);
        self.store(decided)
    }
    /// Time passes, and the loop of the locks works.
    fn wait(&mut self, time: Duration) {
        self.now += time;
        let over = self.locks.over(self.boot(), 10);
        let batch = free(&self.state, &over);
        assert!(over.is_empty() || !batch.is_empty(), "what is over can be freed: {over:?}");
        self.store(Decided { batch, answer: Written::Gone });
        assert!(self.locks.over(self.boot(), 10).is_empty());
    }
    /// Another server leads. It knows the state, and no times.
    fn change(&mut self) {
        self.locks = Locks::default();
        let now = self.boot();
        self.locks.fill(&self.state, now);
    }
    fn data(&self) -> Option<String> {
        self.state.variable(&key()).map(|v| v.data.clone())
    }
}

fn is_done(written: &Written) -> bool {
    matches!(written, Written::Done(_))
}

#[test]
fn a_lock_ends_after_twice_its_ttl_and_its_delay() {
    let mut leader = Leader::default();
    assert!(is_done(&leader.acquire("one", 10, 4, Some("x"))));
    assert_eq!(leader.acquire("two", 10, 4, None), Written::Locked);
    leader.wait(SECOND * 19);
    assert!(leader.renew("one") && !leader.renew("two"));
    leader.wait(SECOND * 20);
    assert!(!leader.renew("one"), "the delay has begun");
    assert_eq!(leader.acquire("one", 10, 4, None), Written::Locked, "nor is it got again by its id");
    leader.wait(Duration::from_millis(3_999));
    assert_eq!(leader.acquire("two", 10, 4, None), Written::Locked);
    assert_eq!(leader.locks.next(leader.boot()), Some(Duration::from_millis(1)));
    leader.wait(Duration::from_millis(1));
    assert_eq!(leader.locks.next(leader.boot()), None);
    assert!(is_done(&leader.acquire("two", 10, 4, None)));
    assert_eq!(leader.data().as_deref(), Some("x"), "without items it keeps its own");
}

#[test]
fn only_the_holder_writes_releases_and_deletes() {
    let mut leader = Leader::default();
    assert_eq!(leader.release("one"), Written::Absent);
    assert_eq!(leader.put(Some("one"), "x"), Written::Unlocked);
    assert!(is_done(&leader.put(None, "x")));
    assert_eq!((leader.release("one"), leader.delete(Some("one"))), (Written::Unlocked, Written::Unlocked));
    assert!(is_done(&leader.acquire("one", 10, 4, Some("y"))));
    for id in [None, Some("two")] {
        assert_eq!((leader.put(id, "z"), leader.delete(id)), (Written::Locked, Written::Locked), "{id:?}");
    }
    assert_eq!(leader.release("two"), Written::Locked);
    let Written::Done(variable) = leader.put(Some("one"), "z") else { panic!("the holder writes") };
    assert_eq!(variable.lock.map(|lock| (lock.ttl, lock.lock_delay)), Some((seconds(10), seconds(4))));
    // The holder acquires it again, with other times: those count from now on.
    assert!(is_done(&leader.acquire("one", 20, 4, None)));
    leader.wait(SECOND * 39);
    assert!(leader.renew("one"));
    assert!(is_done(&leader.release("one")));
    assert!(is_done(&leader.acquire("two", 10, 4, None)));
    assert_eq!(leader.delete(Some("two")), Written::Gone);
    assert_eq!((leader.data(), leader.renew("two")), (None, false));
}

fn seconds(n: i64) -> GoDuration {
    GoDuration::from_secs(n)
}

#[test]
fn times_and_ids_have_bounds() {
    let day = 24 * 3600;
    for (id, ttl, delay, wanted) in [
        ("i", 0, 0, Ok((15, 15))),
        ("i", 10, 1, Ok((10, 1))),
        ("i", day, 0, Ok((day, 15))),
        ("i", 9, 0, Err("TTL must be between 10 seconds and 24 hours")),
        ("i", day + 1, 0, Err("TTL must be between 10 seconds and 24 hours")),
        ("i", -1, 0, Err("Lock delay and TTL must be positive")),
        ("i", 10, -1, Err("Lock delay and TTL must be positive")),
        ("", 10, 1, Err("the ID of a lock")),
        (&"i".repeat(129), 10, 1, Err("the ID of a lock")),
    ] {
        let found = asked(id, GoDuration::from_secs(ttl), GoDuration::from_secs(delay));
        match (found, wanted) {
            (Ok(lock), Ok((ttl, delay))) => assert_eq!((lock.ttl, lock.lock_delay), (seconds(ttl), seconds(delay))),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, wanted) => panic!("{ttl} {delay}: {found:?}, not {wanted:?}"),
        }
    }
}

/// What may happen.
#[derive(Clone, Debug)]
enum Step {
    Acquire(usize),
    Renew(usize),
    Release(usize),
    Write(usize),
    Delete(usize),
    Wait(u64),
    /// Another server leads.
    Change,
    /// Batches were refused: what is remembered is filled again.
    Fill,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0_usize..3;
    let step = prop_oneof![
        3 => who.clone().prop_map(Step::Acquire),
        3 => who.clone().prop_map(Step::Renew),
        1 => who.clone().prop_map(Step::Release),
        1 => who.clone().prop_map(Step::Write),
        1 => who.prop_map(Step::Delete),
        4 => (0_u64..15_000).prop_map(Step::Wait),
        1 => Just(Step::Change),
        1 => Just(Step::Fill),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    /// Holders believe that they hold the lock for the TTL after their last acknowledged sign of life. However they,
    /// the time and the servers come together, no two believe it at once, and an unlocked variable waits for no one.
    #[test]
    fn a_lock_has_one_holder_at_most(steps in steps(), ttl in 10_i64..14, delay in 1_i64..6) {
        let mut leader = Leader::default();
        // Who believes to hold the lock, until when.
        let mut believe: BTreeMap<usize, Duration> = BTreeMap::new();
        let ids = ["a", "b", "c"];
        let held = Duration::from_secs(ttl.unsigned_abs());
        for step in steps {
            let now = leader.now;
            match step {
                Step::Acquire(who) => {
                    let free = leader.state.variable(&key()).is_none_or(|v| v.lock.is_none());
                    let done = is_done(&leader.acquire(ids[who], ttl, delay, None));
                    prop_assert!(done || !free, "a free lock is given");
                    if done {
                        believe.insert(who, now + held);
                    }
                }
                Step::Renew(who) => {
                    if leader.renew(ids[who]) {
                        believe.insert(who, now + held);
                    } else {
                        prop_assert!(believe.get(&who).is_none_or(|until| *until <= now), "a holder can renew");
                    }
                }
                Step::Release(who) => if is_done(&leader.release(ids[who])) {
                    believe.remove(&who);
                },
                Step::Write(who) => {
                    let holds = believe.get(&who).is_some_and(|until| now < *until);
                    let done = is_done(&leader.put(Some(ids[who]), "w"));
                    prop_assert!(done || !holds, "a holder can write");
                }
                Step::Delete(who) => {
                    let locked = leader.state.variable(&key()).and_then(|v| v.lock.clone());
                    if leader.delete(Some(ids[who])) == Written::Gone {
                        prop_assert!(locked.is_some_and(|lock| lock.id.matches(ids[who])), "only the holder deletes");
                        believe.remove(&who);
                    }
                }
                Step::Wait(ms) => leader.wait(Duration::from_millis(ms)),
                Step::Change => leader.change(),
                Step::Fill => {
                    let now = leader.boot();
                    leader.locks.fill(&leader.state, now);
                }
            }
            let now = leader.now;
            let holders = believe.values().filter(|until| now < **until).count();
            prop_assert!(holders <= 1, "{:?} at {:?}", believe, now);
            prop_assert_eq!(leader.locks.held.len(), leader.locks.order.len());
        }
        // Nobody is heard any more: the lock ends.
        leader.wait(held * 2 + Duration::from_secs(delay.unsigned_abs()));
        prop_assert!(leader.state.variable(&key()).is_none_or(|v| v.lock.is_none()));
        prop_assert!(is_done(&leader.acquire("other", ttl, delay, None)));
    }
}
