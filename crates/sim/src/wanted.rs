//! What people have asked for, as the simulation remembers it beside the servers: what invariants are judged by.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use model::SlotParts;

/// A job as it was asked for; count 0 = stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) count: u32,
    /// Revision of the task: its instances carry it.
    pub(crate) revision: u32,
}

#[derive(Clone, Debug, Default)]
struct Asked {
    now: Ask,
    /// Sent and not answered: it may count already, or never.
    pending: Option<Ask>,
    /// What else was asked for since the copy was made, with what counted then; empty = nothing.
    since: Vec<Ask>,
    /// The store was restored since the copy, and any of these may count.
    maybe: Vec<Ask>,
    /// The pending one is sent to servers that have come to know all there is.
    settles: bool,
}

impl Asked {
    /// Every way to read what was asked for.
    fn ways(&self) -> impl Iterator<Item = Ask> {
        [Some(self.now), self.pending].into_iter().flatten().chain(self.maybe.iter().copied())
    }
}

/// All jobs.
#[derive(Debug, Default)]
pub(crate) struct Wanted(Mutex<BTreeMap<String, Asked>>);

impl Wanted {
    fn with<T>(&self, job: &str, change: impl FnOnce(&mut Asked) -> T) -> T {
        change(self.lock().entry(job.to_owned()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Asked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As far as it is known to count.
    pub(crate) fn now(&self, job: &str) -> Ask {
        self.with(job, |asked| asked.now)
    }

    /// It is about to be sent. False while another request about the job is under way: then it is not.
    pub(crate) fn sends(&self, job: &str, ask: Ask) -> bool {
        self.with(job, |asked| {
            let free = asked.pending.is_none();
            if free {
                (asked.pending, asked.settles) = (Some(ask), false);
                if asked.since.is_empty() {
                    asked.since.push(asked.now);
                }
                asked.since.push(ask);
                if !asked.maybe.is_empty() {
                    asked.maybe.push(ask);
                }
            }
            free
        })
    }

    /// Somebody copies what the servers have.
    pub(crate) fn copied(&self) {
        for asked in self.lock().values_mut() {
            asked.since =
                if asked.pending.is_none() && asked.maybe.is_empty() { Vec::new() } else { asked.ways().collect() };
        }
    }

    /// The copy has taken the place of what the servers had: whatever was asked for since may count or not.
    pub(crate) fn restored(&self) {
        for asked in self.lock().values_mut() {
            asked.maybe = asked.since.clone();
            asked.settles = false;
        }
    }

    /// Jobs of which nobody knows what counts, and about which nothing is asked now.
    pub(crate) fn unsure(&self) -> Vec<(String, Ask)> {
        let all = self.lock();
        let unsure = all.iter().filter(|(_, asked)| asked.pending.is_none() && !asked.maybe.is_empty());
        unsure.map(|(job, asked)| (job.clone(), asked.now)).collect()
    }

    /// Whether there is a job of which nobody knows what counts.
    pub(crate) fn is_unsure(&self) -> bool {
        self.lock().values().any(|asked| !asked.maybe.is_empty())
    }

    /// What is asked for now counts alone once it is answered.
    pub(crate) fn settles(&self, job: &str) {
        self.with(job, |asked| asked.settles = true);
    }

    /// The servers have answered that it counts.
    pub(crate) fn counts(&self, job: &str) {
        self.with(job, |asked| {
            asked.now = asked.pending.take().unwrap_or(asked.now);
            if std::mem::take(&mut asked.settles) {
                asked.maybe.clear();
            }
        });
    }

    /// Whether every way to read what was asked for wants an instance of this revision in that slot.
    pub(crate) fn surely(&self, slot: &SlotParts, revision: u32) -> bool {
        self.with(slot.job_id.as_str(), |asked| {
            asked.ways().all(|ask| slot.index < ask.count && revision == ask.revision)
        })
    }

    /// Whether some way to read what was asked for wants it.
    pub(crate) fn perhaps(&self, slot: &SlotParts, revision: u32) -> bool {
        self.with(slot.job_id.as_str(), |asked| {
            asked.ways().any(|ask| slot.index < ask.count && revision == ask.revision)
        })
    }

    /// Jobs with what they are.
    pub(crate) fn all(&self) -> Vec<(String, Ask)> {
        let all = self.lock();
        all.iter().map(|(job, asked)| (job.clone(), asked.now)).collect()
    }

    /// Jobs about which no answer is outstanding, with what they are.
    pub(crate) fn settled(&self) -> Vec<(String, Ask)> {
        let all = self.lock();
        let sure = |asked: &Asked| asked.pending.is_none() && asked.maybe.is_empty();
        let settled = all.iter().filter(|(_, asked)| sure(asked) && asked.now.revision > 0);
        settled.map(|(job, asked)| (job.clone(), asked.now)).collect()
    }

    /// Whether an answer is outstanding.
    pub(crate) fn open(&self) -> bool {
        self.lock().values().any(|asked| asked.pending.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_restore_all_counts_that_was_asked_for_since_the_copy() {
        let wanted = Wanted::default();
        let ask = |job: &str, count, revision| {
            assert!(wanted.sends(job, Ask { count, revision }));
            wanted.counts(job);
        };
        let slot = |job: &str| SlotParts { job_id: job.into(), ..SlotParts::default() };
        ask("a", 1, 1);
        ask("b", 1, 1);
        wanted.copied();
        ask("b", 2, 1);
        ask("b", 1, 2);
        ask("c", 1, 1);
        assert!(wanted.surely(&slot("b"), 2) && !wanted.perhaps(&slot("b"), 1));
        wanted.restored();
        assert!(wanted.surely(&slot("a"), 1), "nothing was asked for since");
        for (job, revision) in [("b", 1), ("b", 2), ("c", 1)] {
            assert!(wanted.perhaps(&slot(job), revision) && !wanted.surely(&slot(job), revision), "{job} {revision}");
        }
        let unsure: Vec<String> = wanted.unsure().into_iter().map(|(job, _)| job).collect();
        assert_eq!(unsure, ["b", "c"]);
        ask("b", 1, 3);
        assert!(wanted.perhaps(&slot("b"), 1), "servers that know more later may bring it back");
        assert!(wanted.sends("b", Ask { count: 1, revision: 4 }));
        wanted.settles("b");
        wanted.counts("b");
        assert!(wanted.surely(&slot("b"), 4) && !wanted.perhaps(&slot("b"), 3));
        assert_eq!(wanted.settled().len(), 2);
    }
}
