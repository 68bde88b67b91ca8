//! The evaluation broker: hands evaluations to workers, the most urgent first, one per job at a time.
//!
//! ```text
//!            ┌─ waiting (wait_until) ─┐
//! pending ───┼────────────────────────┼─► ready ─► held by a worker ─► (its commit makes it terminal: forgotten)
//!            └─ behind one of its job ┘     ▲              │ nack, too slow
//!                                           └──────────────┘ … too often: failed, with a follow-up
//! ```
//!
//! The broker holds no truth of its own: it follows the applied commits and is filled again from a snapshot after a
//! start or a reset. An evaluation that a worker has finished leaves it because its record has become terminal.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use control::{
    Stamp,
    evaluations::{Chores, end_chores},
};
use model::{EvalId, EvalStatus, Evaluation, JobKey, StoreIndex, TimestampNs};
use state::State;
use tokio::sync::Notify;

use crate::{
    clock::{self, new_id, ns},
    commit::Decided,
    loops::{self, Loop},
    reconciler::part::{Look, Part},
    requests::ServerStats,
};

/// Order in which evaluations are handed out: priority first, then age.
type Rank = (Reverse<i32>, StoreIndex, EvalId);

fn rank(eval: &Evaluation) -> Rank {
    (Reverse(eval.priority), eval.create_index, eval.id)
}

/// An evaluation in a worker's hands.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) eval: Arc<Evaluation>,
    /// Which delivery it is: an answer to an older one counts for nothing.
    pub(crate) token: u64,
}

/// What there is for a worker.
enum Taken {
    One(Delivery),
    Nothing,
    Closed,
}

#[derive(Debug)]
struct Held {
    eval: Arc<Evaluation>,
    token: u64,
    until: Instant,
}

#[derive(Debug, Default)]
struct Inner {
    ready: BTreeMap<Rank, Arc<Evaluation>>,
    /// What is ready or held, by job.
    turn: HashMap<JobKey, EvalId>,
    behind: HashMap<JobKey, BTreeMap<Rank, Arc<Evaluation>>>,
    waiting: BinaryHeap<Reverse<(TimestampNs, EvalId)>>,
    waiting_evals: HashMap<EvalId, Arc<Evaluation>>,
    held: HashMap<EvalId, Held>,
    deliveries: HashMap<EvalId, u32>,
    chores: Chores,
    /// Chores that were handed out and have not shown up in the state yet.
    dismissed: BTreeSet<EvalId>,
    tokens: u64,
    paused: bool,
    closed: bool,
}

/// Nothing is handed out: a person wants it so, or the state is from the past.
pub(crate) fn paused(state: &State) -> bool {
    state.scheduler_config().pause_eval_broker || state.cluster().recovery.is_some()
}

/// The broker.
#[derive(Debug)]
pub(crate) struct Broker {
    inner: Mutex<Inner>,
    /// Tells all workers.
    ready: Notify,
    /// Told when there are chores or an earlier time to wake at.
    chore: Notify,
    nack_timeout: Duration,
    delivery_limit: u32,
    /// How long one that failed too often rests before its follow-up is tried.
    rest: Duration,
}

impl Broker {
    pub(crate) fn new(nack_timeout: Duration, delivery_limit: u32, rest: Duration) -> Self {
        Self {
            inner: Mutex::default(),
            ready: Notify::new(),
            chore: Notify::new(),
            nack_timeout,
            delivery_limit: delivery_limit.max(1),
            rest,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows changed evaluations. Answers whether one of them is for the next worker.
    pub(crate) fn follow<'a>(&self, evals: impl Iterator<Item = (&'a Arc<Evaluation>, bool)>) -> bool {
        let mut inner = self.lock();
        let before = inner.ready.len();
        let (mut work, mut chores) = (false, false);
        let now = clock::now_ns();
        for (eval, deleted) in evals {
            if deleted || eval.status != EvalStatus::Pending {
                work |= inner.release(eval);
            } else {
                work = true;
                chores |= eval.wait_until > now;
                inner.admit(eval, now);
            }
        }
        chores |= inner.chores != Chores::default();
        let more = inner.ready.len() > before && !inner.paused;
        drop(inner);
        if work {
            self.ready.notify_waiters();
        }
        if chores {
            self.chore.notify_one();
        }
        more
    }

    /// Stops or resumes handing out.
    pub(crate) fn pause(&self, paused: bool) {
        self.lock().paused = paused;
        self.ready.notify_waiters();
    }

    /// No worker gets anything any more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_waiters();
    }

    /// Waits for the next evaluation; None when the broker is closed. Cancel safe.
    pub(crate) async fn next(&self) -> Option<Delivery> {
        loop {
            // Before the look: it hears of everything that follows.
            let told = self.ready.notified();
            match self.take() {
                Taken::One(delivery) => return Some(delivery),
                Taken::Closed => return None,
                Taken::Nothing => told.await,
            }
        }
    }

    fn take(&self) -> Taken {
        let mut inner = self.lock();
        if inner.closed {
            return Taken::Closed;
        }
        if inner.paused {
            return Taken::Nothing;
        }
        let Some((_, eval)) = inner.ready.pop_first() else { return Taken::Nothing };
        inner.tokens += 1;
        let token = inner.tokens;
        *inner.deliveries.entry(eval.id).or_default() += 1;
        inner.held.insert(eval.id, Held { eval: eval.clone(), token, until: Instant::now() + self.nack_timeout });
        Taken::One(Delivery { eval, token })
    }

    /// May the holder of this delivery still answer?
    pub(crate) fn holds(&self, delivery: &Delivery) -> bool {
        self.lock().held.get(&delivery.eval.id).is_some_and(|held| held.token == delivery.token)
    }

    /// The worker could not do it: it is handed out again, or given up after too many times.
    pub(crate) fn nack(&self, delivery: &Delivery) {
        let mut inner = self.lock();
        if inner.held.get(&delivery.eval.id).is_some_and(|held| held.token == delivery.token) {
            inner.redeliver(delivery.eval.id, self.delivery_limit);
        }
        drop(inner);
        self.ready.notify_waiters();
        self.chore.notify_one();
    }

    /// Moves on what has waited long enough or was held too long. Returns what is to be committed and when to look
    /// again.
    fn tick(&self, now: TimestampNs) -> (Chores, Option<Duration>) {
        let mut inner = self.lock();
        while let Some(Reverse((at, id))) = inner.waiting.peek().copied() {
            if at > now {
                break;
            }
            inner.waiting.pop();
            if let Some(eval) = inner.waiting_evals.remove(&id) {
                inner.line_up(&eval);
            }
        }
        let instant = Instant::now();
        let late: Vec<EvalId> =
            inner.held.iter().filter(|(_, held)| held.until <= instant).map(|(id, _)| *id).collect();
        for id in late {
            tracing::warn!(eval = %id, "an evaluation was held for too long and is handed out again");
            inner.redeliver(id, self.delivery_limit);
        }
        let due =
            inner.waiting.peek().map(|Reverse((at, _))| Duration::from_nanos(u64::try_from(at - now).unwrap_or(0)));
        let held = inner.held.values().map(|held| held.until.saturating_duration_since(instant)).min();
        let next = [due, held].into_iter().flatten().min();
        let chores = std::mem::take(&mut inner.chores);
        let given: Vec<EvalId> = chores.superseded.iter().map(|(id, _)| id).chain(&chores.exhausted).copied().collect();
        inner.dismissed.extend(given);
        drop(inner);
        self.ready.notify_waiters();
        (chores, next)
    }

    /// Adds its numbers.
    pub(crate) fn stats(&self, stats: &mut ServerStats) {
        let inner = self.lock();
        for eval in inner.ready.values() {
            *stats.broker_ready.entry(eval.kind.clone()).or_default() += 1;
        }
        stats.broker_unacked = inner.held.len();
        stats.broker_pending = inner.behind.values().map(BTreeMap::len).sum();
        stats.broker_waiting = inner.waiting_evals.len();
    }
}

/// Moves on what waits and commits the chores.
impl Part for Broker {
    type Work = Chores;
    type Answer = ();
    const LOOP: &Loop = &loops::BROKER;
    const IN_RECOVERY: bool = true;
    const WORK: &str = "evaluations that wait or were held for too long";
    const WAIT: &str = "an evaluation whose time comes";
    const FAILED: &str = "ending evaluations";

    fn wake(&self) -> &Notify {
        &self.chore
    }

    fn look(self: &Arc<Self>, _: &State) -> Look<Chores> {
        let (chores, next) = self.tick(clock::now_ns());
        if chores == Chores::default() { Look::Rest(next) } else { Look::Decide(chores) }
    }

    fn decide(&self, chores: Chores, state: &State, stamp: Stamp) -> Decided<()> {
        Decided {
            batch: end_chores(state, &chores, self.delivery_limit, ns(self.rest), stamp, &mut new_id),
            answer: (),
        }
    }

    /// Forgets everything first. What workers hold is void.
    fn fill(&self, state: &State) {
        let mut inner = self.lock();
        let (tokens, closed) = (inner.tokens, inner.closed);
        *inner = Inner { tokens, closed, paused: paused(state), ..Inner::default() };
        for eval in state.evals().filter(|eval| eval.status == EvalStatus::Pending) {
            inner.admit(eval, clock::now_ns());
        }
        drop(inner);
        self.ready.notify_waiters();
        self.chore.notify_one();
    }
}

impl Inner {
    fn admit(&mut self, eval: &Arc<Evaluation>, now: TimestampNs) {
        if self.held.contains_key(&eval.id) || self.dismissed.contains(&eval.id) {
            return;
        }
        if eval.wait_until > now {
            self.waiting.push(Reverse((eval.wait_until, eval.id)));
            self.waiting_evals.insert(eval.id, eval.clone());
            return;
        }
        self.line_up(eval);
    }

    fn line_up(&mut self, eval: &Arc<Evaluation>) {
        let key = eval.job_key();
        match self.turn.get(&key) {
            Some(id) if *id != eval.id => {
                self.behind.entry(key).or_default().insert(rank(eval), eval.clone());
            }
            _ => {
                self.turn.insert(key, eval.id);
                self.ready.insert(rank(eval), eval.clone());
            }
        }
    }

    /// The evaluation is no longer pending. True when another one of its job may go.
    fn release(&mut self, eval: &Evaluation) -> bool {
        let key = eval.job_key();
        self.held.remove(&eval.id);
        self.deliveries.remove(&eval.id);
        self.dismissed.remove(&eval.id);
        self.waiting_evals.remove(&eval.id);
        self.ready.remove(&rank(eval));
        if let Some(behind) = self.behind.get_mut(&key) {
            behind.remove(&rank(eval));
        }
        if self.turn.get(&key) != Some(&eval.id) {
            return false;
        }
        self.turn.remove(&key);
        // Each evaluation looks at the whole job: of those that have queued up meanwhile the newest of the most
        // urgent does for all.
        let Some(mut behind) = self.behind.remove(&key) else { return false };
        let Some(best) = behind.keys().map(|(priority, ..)| *priority).min() else { return false };
        let chosen = behind.iter().rfind(|((priority, ..), _)| *priority == best).map(|(rank, _)| *rank);
        let Some(eval) = chosen.and_then(|rank| behind.remove(&rank)) else { return false };
        self.chores.superseded.extend(behind.values().map(|old| (old.id, eval.id)));
        self.turn.insert(key, eval.id);
        self.ready.insert(rank(&eval), eval);
        true
    }

    fn redeliver(&mut self, id: EvalId, limit: u32) {
        let Some(held) = self.held.remove(&id) else { return };
        if self.deliveries.get(&id).copied().unwrap_or(0) >= limit {
            // Its turn ends when its record says failed.
            self.chores.exhausted.push(id);
        } else {
            self.ready.insert(rank(&held.eval), held.eval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn eval(id: u128, job: &str, priority: i32, index: u64) -> Arc<Evaluation> {
        Arc::new(Evaluation {
            id: EvalId(Uuid::from_u128(id)),
            namespace: "default".into(),
            job_id: job.into(),
            priority,
            create_index: index,
            ..Evaluation::default()
        })
    }
    fn done(eval: &Arc<Evaluation>) -> Arc<Evaluation> {
        Arc::new(Evaluation { status: EvalStatus::Complete, ..(**eval).clone() })
    }
    fn broker() -> Broker {
        Broker::new(Duration::from_secs(60), 2, Duration::ZERO)
    }
    fn add(broker: &Broker, evals: &[&Arc<Evaluation>]) {
        broker.follow(evals.iter().map(|e| (*e, false)));
    }
    fn next(broker: &Broker) -> Option<Delivery> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(broker.next())
    }
    fn next_id(broker: &Broker) -> u128 {
        next(broker).map(|d| d.eval.id.0.as_u128()).unwrap()
    }

    #[test]
    fn hands_out_by_priority_then_age() {
        let broker = broker();
        add(&broker, &[&eval(1, "a", 50, 5), &eval(2, "b", 50, 4), &eval(3, "c", 80, 9)]);
        assert_eq!([next_id(&broker), next_id(&broker), next_id(&broker)], [3, 2, 1]);
    }

    #[test]
    fn tells_whether_there_is_work_for_a_worker() {
        let broker = broker();
        let follow = |eval: &Arc<Evaluation>| broker.follow(std::iter::once((eval, false)));
        let (first, second) = (eval(1, "a", 50, 1), eval(2, "a", 50, 2));
        assert!(follow(&first));
        assert!(!follow(&second), "it waits for its turn");
        assert_eq!(next_id(&broker), 1);
        assert!(follow(&done(&first)), "its turn has come");
        let late = Evaluation { wait_until: clock::now_ns() + 3_600_000_000_000, ..(*eval(3, "b", 50, 3)).clone() };
        assert!(!follow(&Arc::new(late)), "it waits for its time");
        broker.pause(true);
        assert!(!follow(&eval(4, "c", 50, 4)), "nothing is handed out");
    }

    #[test]
    fn one_evaluation_per_job_at_a_time_and_the_newest_supersedes() {
        let broker = broker();
        let (a, b, c) = (eval(1, "a", 50, 1), eval(2, "a", 50, 2), eval(3, "a", 50, 3));
        add(&broker, &[&a, &b, &c]);
        let first = next(&broker).unwrap();
        assert!(broker.lock().ready.is_empty());
        add(&broker, &[&done(&first.eval)]);
        assert_eq!(next_id(&broker), 3);
        assert_eq!(broker.tick(0).0.superseded, [(b.id, c.id)]);
        // A superseded one that is still pending in the state is not handed out again.
        add(&broker, &[&b]);
        add(&broker, &[&done(&c)]);
        assert!(broker.lock().ready.is_empty());
    }

    #[test]
    fn an_evaluation_that_fails_too_often_is_given_up() {
        let broker = broker();
        let a = eval(1, "a", 50, 1);
        add(&broker, &[&a]);
        let first = next(&broker).unwrap();
        broker.nack(&first);
        assert!(!broker.holds(&first));
        let second = next(&broker).unwrap();
        broker.nack(&first);
        assert!(broker.holds(&second), "an answer to the first delivery must not count for the second");
        broker.nack(&second);
        assert_eq!(broker.tick(0).0.exhausted, [a.id]);
        assert!(broker.lock().ready.is_empty());
    }

    #[test]
    fn waiting_evaluations_become_ready_at_their_time() {
        let broker = broker();
        let at = clock::now_ns() + 3_600_000_000_000;
        let a = Arc::new(Evaluation { wait_until: at, ..(*eval(1, "a", 50, 1)).clone() });
        add(&broker, &[&a]);
        let (_, next) = broker.tick(at - 5);
        assert_eq!(next, Some(Duration::from_nanos(5)));
        assert!(broker.lock().ready.is_empty());
        broker.tick(at);
        assert_eq!(next_id(&broker), 1);
    }
}
