//! Clients who want the same locks, through every server, while there is trouble. They renew, release, vanish and come
//! back; no two may believe to hold a lock at the same moment.
//!
//! All of them are threads of this process and look at one clock, so their times can be compared. A holder believes to
//! hold its lock from the answer that gave it until one TTL after the beginning of the last request that renewed it, or
//! until it lets it go.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::super::dice::Dice;

/// The shortest that servers take.
const TTL: Duration = Duration::from_secs(10);
/// Between two renewals, a few of which may be lost.
const RENEWED: Duration = Duration::from_millis(1500);
/// Between two tries.
const BREATH: Duration = Duration::from_millis(120);
/// How many locks there are, and who wants each.
pub(super) const LOCKS: usize = 8;
pub(super) const CONTENDERS: usize = 2;

/// That somebody believed to hold a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    who: usize,
    /// Since the beginning of the run.
    from: Duration,
    until: Duration,
    /// Of the write that gave it: whoever writes elsewhere under the lock hands it on.
    index: u64,
}

/// What has happened to the locks.
pub(super) struct History {
    begun: Instant,
    /// Part of the names of the locks.
    name: String,
    holds: Mutex<BTreeMap<usize, Vec<Hold>>>,
}

impl History {
    pub(super) fn new(name: &str) -> Self {
        Self { begun: Instant::now(), name: name.to_owned(), holds: Mutex::default() }
    }

    fn holds(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Vec<Hold>>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a lock was given to somebody.
    ///
    /// # Errors
    /// When two have held one at the same moment, or a later holder has an earlier index.
    pub(super) fn judge(&self) -> Result<usize> {
        for (lock, holds) in &*self.holds() {
            if let Some(why) = contradiction(holds) {
                bail!("lock {lock}: {why}");
            }
        }
        Ok(self.holds().values().map(Vec::len).sum())
    }

    /// One client, until it is over. `who` differs from that of all others.
    pub(super) fn contend(&self, lock: usize, who: usize, addresses: &[String], mut dice: Dice, over: &AtomicBool) {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().timeout_global(Some(super::world::ANSWER)).build().into();
        let path = format!("/v1/var/lock-{}-{lock}", self.name);
        let ask = |dice: &mut Dice, operation: &str, body: Value| -> Option<Value> {
            let address = &addresses[dice.index(addresses.len())];
            let answer = agent.put(format!("{address}{path}?lock-{operation}")).send_json(&body);
            answer.ok()?.body_mut().read_json().ok()
        };
        while !over.load(Relaxed) {
            std::thread::sleep(BREATH + Duration::from_millis(dice.below(200)));
            let asked = Instant::now();
            let given = ask(&mut dice, "acquire", json!({"Lock": {"TTL": "10s", "LockDelay": "10ms"}}));
            let Some((id, index)) = given.as_ref().and_then(|variable| {
                Some((variable["Lock"]["ID"].as_str().filter(|id| !id.is_empty())?, variable["ModifyIndex"].as_u64()?))
            }) else {
                continue;
            };
            let from = self.begun.elapsed();
            let hold = Hold { who, from, until: (asked + TTL).duration_since(self.begun), index };
            self.holds().entry(lock).or_default().push(hold);
            // Some let it go soon, some hold on to it for long, and some are cut off and never heard of again.
            let leaves = Instant::now() + Duration::from_millis(300 + dice.below(12_000));
            let vanishes = dice.below(3) == 0;
            let mut valid = asked + TTL;
            while Instant::now() < valid && !over.load(Relaxed) {
                if Instant::now() >= leaves {
                    if !vanishes {
                        valid = Instant::now();
                        self.until(lock, who, index, valid);
                        ask(&mut dice, "release", json!({"Lock": {"ID": id}}));
                    }
                    break;
                }
                let renews = Instant::now();
                if ask(&mut dice, "renew", json!({"Lock": {"ID": id}})).is_some() {
                    valid = renews + TTL;
                    self.until(lock, who, index, valid);
                }
                let next = renews + RENEWED;
                while Instant::now() < next.min(valid).min(leaves) && !over.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            // It does not know that it is cut off, and goes on to believe.
            while Instant::now() < valid && !over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    fn until(&self, lock: usize, who: usize, index: u64, until: Instant) {
        let until = until.duration_since(self.begun);
        let mut holds = self.holds();
        let own = holds.entry(lock).or_default().iter_mut().rfind(|hold| (hold.who, hold.index) == (who, index));
        own.into_iter().for_each(|hold| hold.until = until);
    }
}

/// Why these cannot all be true.
fn contradiction(holds: &[Hold]) -> Option<String> {
    let mut sorted: Vec<&Hold> = holds.iter().collect();
    sorted.sort_by_key(|hold| hold.from);
    sorted.windows(2).find_map(|pair| {
        let [one, next] = pair else { return None };
        if next.from < one.until {
            return Some(format!("two have held it at once: {one:?} and {next:?}"));
        }
        (next.index <= one.index).then(|| format!("its index has not grown: {one:?}, then {next:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(who: usize, from: u64, until: u64, index: u64) -> Hold {
        Hold { who, from: Duration::from_secs(from), until: Duration::from_secs(until), index }
    }

    #[test]
    fn two_holders_at_once_and_an_index_that_goes_back_are_found() {
        for (holds, part) in [
            (vec![], ""),
            (vec![hold(1, 0, 10, 5), hold(2, 10, 12, 7), hold(1, 20, 30, 9)], ""),
            (vec![hold(2, 10, 12, 7), hold(1, 0, 10, 5)], ""),
            (vec![hold(1, 0, 10, 5), hold(2, 9, 12, 7)], "at once"),
            (vec![hold(2, 9, 12, 7), hold(1, 0, 10, 5)], "at once"),
            (vec![hold(1, 0, 10, 5), hold(1, 9, 12, 7)], "at once"),
            (vec![hold(1, 0, 10, 5), hold(2, 11, 12, 4)], "has not grown"),
            (vec![hold(1, 0, 10, 5), hold(2, 11, 12, 5)], "has not grown"),
        ] {
            let found = contradiction(&holds).unwrap_or_default();
            assert!(found.contains(part) && found.is_empty() == part.is_empty(), "{holds:?}: {found}");
        }
    }
}
