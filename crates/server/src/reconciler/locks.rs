//! Locks of variables: keeps the times of `control::locks` by the clock, and frees what nobody has renewed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::{Stamp, locks::free};
use model::variables::VariableKey;
use state::{Object, State, Table};
use tokio::sync::Notify;

use crate::{
    clock::boot_now,
    commit::{Commit, Decided},
    loops::{self, Loop},
    reconciler::part::{Look, Part},
};

/// Locks that one commit ends: others wait behind it.
const AT_ONCE: usize = 500;

/// The times of the locks. They begin anew with each server that leads.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    times: Mutex<control::locks::Locks>,
    wake: Notify,
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, control::locks::Locks> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the lock of that id its whole time again. False when the variable has no such lock, or its time is over.
    pub(crate) fn renew(&self, key: &VariableKey, id: &str) -> bool {
        self.lock().renew(key, id, boot_now())
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        if !commit.applied.tables.contains(Table::Variables) {
            return;
        }
        let (mut times, now) = (self.lock(), boot_now());
        for change in &commit.applied.changes {
            if let Object::Variable(variable) = &change.object {
                let lock = variable.lock.as_ref().filter(|_| !change.deleted);
                times.follow(&variable.key(), lock, now);
            }
        }
        self.wake.notify_one();
    }
}

/// Wakes when a lock is over, and when variables change.
impl Part for Locks {
    type Work = ();
    type Answer = ();
    const LOOP: &Loop = &loops::LOCKS;
    const WORK: &str = "locks that nobody has renewed";
    const WAIT: &str = "the end of a lock";
    const FAILED: &str = "ending locks of variables";

    fn wake(&self) -> &Notify {
        &self.wake
    }

    fn look(self: &Arc<Self>, _: &State) -> Look<()> {
        let (times, now) = (self.lock(), boot_now());
        match times.over(now, 1).is_empty() {
            true => Look::Rest(times.next(now)),
            false => Look::Decide(()),
        }
    }

    fn decide(&self, (): (), state: &State, _: Stamp) -> Decided<()> {
        let over = self.lock().over(boot_now(), AT_ONCE);
        for (key, _) in &over {
            tracing::info!(namespace = %key.namespace, path = %key.path, "nobody has renewed the lock of the variable");
        }
        Decided { batch: free(state, &over), answer: () }
    }

    fn fill(&self, state: &State) {
        self.lock().fill(state, boot_now());
        self.wake.notify_one();
    }
}
