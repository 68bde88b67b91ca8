//! Locks of variables: who gets one, what only its holder may do, and when it ends.
//!
//! The state says who holds a lock, until its end; the server that leads counts the time, in [`Locks`]. A holder counts
//! its TTL from the moment when it *sent* a renewal. The server counts twice the TTL from its receipt: the holder has
//! let go by its own clock before. Then nobody can renew the lock, and nobody gets it before its delay is over, so that
//! the last requests of the holder have arrived.
//!
//! A renewal is not stored. So a server that begins to lead gives every lock its whole time again: too long for some,
//! too short for none.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use model::{
    GoDuration, Secret,
    variables::{Variable, VariableKey, VariableLock},
};
use state::{Batch, Change, State};

use crate::{
    Boot, Decided, Refused, Stamp,
    variables::{Sealed, Written, check_namespace, done, passes, written},
};

/// Bounds of the TTL.
const TTL: std::ops::RangeInclusive<GoDuration> = GoDuration::from_secs(10)..=GoDuration::from_secs(24 * 3600);
/// The TTL, and the delay, of a lock that names none.
const DEFAULT: GoDuration = GoDuration::from_secs(15);
/// Bytes of an id.
const MAX_ID: usize = 128;

/// The lock of a request to acquire one. Zero = the default.
///
/// # Errors
/// When a time is out of its bounds, or the id is too long.
pub fn asked(id: &str, ttl: GoDuration, lock_delay: GoDuration) -> Result<VariableLock, Refused> {
    let bad = |why: &str| Err(Refused::BadRequest(why.to_owned()));
    let or_default = |time: GoDuration| if time == GoDuration::ZERO { DEFAULT } else { time };
    let lock = VariableLock { id: id.into(), ttl: or_default(ttl), lock_delay: or_default(lock_delay) };
    if lock.ttl < GoDuration::ZERO || lock.lock_delay < GoDuration::ZERO {
        return bad("Lock delay and TTL must be positive");
    }
    if !TTL.contains(&lock.ttl) {
        return bad("TTL must be between 10 seconds and 24 hours");
    }
    if id.is_empty() || id.len() > MAX_ID {
        return bad("the ID of a lock has 1 to 128 bytes; leave it out to be given one");
    }
    Ok(lock)
}

/// Acquires the lock of a variable, which is made when there is none. `items`: those of the variable from now on; None
/// = as they are, `empty` for a new variable. `renewed`: the id is that of the holder, who has not lost the lock by
/// time.
///
/// # Errors
/// When the namespace does not exist.
pub fn acquire(
    state: &State,
    stamp: Stamp,
    key: &VariableKey,
    items: Option<Sealed>,
    empty: Sealed,
    lock: VariableLock,
    renewed: bool,
) -> Result<Decided<Written>, Refused> {
    check_namespace(state, key)?;
    let current = state.variable(key);
    if current.and_then(|variable| variable.lock.as_ref()).is_some_and(|held| held.id != lock.id || !renewed) {
        return Ok(Decided { batch: Batch::default(), answer: Written::Locked });
    }
    let kept = || current.map(|v| Sealed { key_id: v.key_id, data: v.data.clone() });
    let sealed = items.or_else(kept).unwrap_or(empty);
    Ok(done(written(state, stamp, key, sealed, Some(lock))))
}

/// Gives up the lock of a variable.
#[must_use]
pub fn release(state: &State, stamp: Stamp, key: &VariableKey, id: &str) -> Decided<Written> {
    let current = state.variable(key);
    let Some(variable) = current else { return Decided { batch: Batch::default(), answer: Written::Absent } };
    match passes(Some(variable), Some(id)) {
        Ok(()) => done(without_lock(state, stamp, variable)),
        Err(answer) => Decided { batch: Batch::default(), answer },
    }
}

/// Frees the variables whose lock is over. Those of which that does not hold any more stay as they are.
#[must_use]
pub fn free(state: &State, over: &[(VariableKey, Secret)]) -> Batch {
    let held = |(key, id): &(VariableKey, Secret)| {
        let variable = state.variable(key).filter(|variable| variable.lock.as_ref().is_some_and(|l| l.id == *id))?;
        Some(Change::PutVariable(Box::new(Variable { lock: None, ..Variable::clone(variable) })))
    };
    over.iter().filter_map(held).collect::<Vec<_>>().into()
}

fn without_lock(state: &State, stamp: Stamp, variable: &Variable) -> Variable {
    let sealed = Sealed { key_id: variable.key_id, data: variable.data.clone() };
    written(state, stamp, &variable.key(), sealed, None)
}

/// A lock with the end of its time.
#[derive(Debug)]
struct Held {
    lock: VariableLock,
    /// From then on nobody can renew it.
    until: Boot,
}

impl Held {
    fn new(lock: &VariableLock, now: Boot) -> Self {
        Self { until: now + lock.ttl.to_std() * 2, lock: lock.clone() }
    }
    /// When the variable becomes free.
    fn free_at(&self) -> Boot {
        self.until + self.lock.lock_delay.to_std()
    }
}

/// The times of the locks that there are.
#[derive(Debug, Default)]
pub struct Locks {
    held: HashMap<VariableKey, Held>,
    order: BTreeSet<(Boot, VariableKey)>,
}

impl Locks {
    fn set(&mut self, key: &VariableKey, held: Option<Held>) {
        let free_at = held.as_ref().map(Held::free_at);
        let before = match held {
            Some(held) => self.held.insert(key.clone(), held),
            None => self.held.remove(key),
        };
        if let Some(before) = before {
            self.order.remove(&(before.free_at(), key.clone()));
        }
        if let Some(free_at) = free_at {
            self.order.insert((free_at, key.clone()));
        }
    }

    /// The variable has this lock, or none. One that was there before keeps its time.
    pub fn follow(&mut self, key: &VariableKey, lock: Option<&VariableLock>, now: Boot) {
        if self.held.get(key).map(|held| &held.lock) != lock {
            self.set(key, lock.map(|lock| Held::new(lock, now)));
        }
    }

    /// As the state says, where changes may have been missed. Locks that were there before keep their time.
    pub fn fill(&mut self, state: &State, now: Boot) {
        let gone: Vec<VariableKey> =
            self.held.keys().filter(|key| state.variable(key).is_none_or(|v| v.lock.is_none())).cloned().collect();
        for key in gone {
            self.set(&key, None);
        }
        for variable in state.variables().filter(|variable| variable.lock.is_some()) {
            self.follow(&variable.key(), variable.lock.as_ref(), now);
        }
    }

    /// Gives the lock of that id its whole time again. False when the variable has no such lock, or its time is over.
    pub fn renew(&mut self, key: &VariableKey, id: &str, now: Boot) -> bool {
        let Some(held) = self.held.get(key).filter(|held| held.lock.id.matches(id) && now < held.until) else {
            return false;
        };
        let held = Held::new(&held.lock, now);
        self.set(key, Some(held));
        true
    }

    /// Locks whose delay is over, with their ids; no more than `most`.
    #[must_use]
    pub fn over(&self, now: Boot, most: usize) -> Vec<(VariableKey, Secret)> {
        let over = self.order.iter().take_while(|(free_at, _)| *free_at <= now).take(most);
        over.filter_map(|(_, key)| Some((key.clone(), self.held.get(key)?.lock.id.clone()))).collect()
    }

    /// How long until the next lock is over; None = there are none.
    #[must_use]
    pub fn next(&self, now: Boot) -> Option<Duration> {
        self.order.first().map(|(free_at, _)| now.until(*free_at))
    }
}

#[cfg(test)]
mod tests;
