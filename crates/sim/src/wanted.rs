//! What people have asked for, as the simulation remembers it beside the servers: what invariants are judged by.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
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
}

/// All jobs.
#[derive(Debug, Default)]
pub(crate) struct Wanted(Mutex<BTreeMap<String, Asked>>);

impl Wanted {
    fn with<T>(&self, job: &str, change: impl FnOnce(&mut Asked) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(job.to_owned()).or_default())
    }

    /// As far as it is known to count.
    pub(crate) fn now(&self, job: &str) -> Ask {
        self.with(job, |asked| asked.now)
    }

    /// It is about to be sent. False while another request about the job is under way: then it is not.
    pub(crate) fn sends(&self, job: &str, ask: Ask) -> bool {
        self.with(job, |asked| {
            let free = asked.pending.is_none();
            asked.pending = asked.pending.or(Some(ask));
            free
        })
    }

    /// The servers have answered that it counts.
    pub(crate) fn counts(&self, job: &str) {
        self.with(job, |asked| asked.now = asked.pending.take().unwrap_or(asked.now));
    }

    /// Whether every way to read what was asked for wants an instance of this revision in that slot.
    pub(crate) fn surely(&self, slot: &SlotParts, revision: u32) -> bool {
        self.with(slot.job_id.as_str(), |asked| {
            [Some(asked.now), asked.pending]
                .into_iter()
                .flatten()
                .all(|ask| slot.index < ask.count && revision == ask.revision)
        })
    }

    /// Whether some way to read what was asked for wants it.
    pub(crate) fn perhaps(&self, slot: &SlotParts, revision: u32) -> bool {
        self.with(slot.job_id.as_str(), |asked| {
            [Some(asked.now), asked.pending]
                .into_iter()
                .flatten()
                .any(|ask| slot.index < ask.count && revision == ask.revision)
        })
    }

    /// Jobs with what they are.
    pub(crate) fn all(&self) -> Vec<(String, Ask)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(job, asked)| (job.clone(), asked.now)).collect()
    }

    /// Jobs about which no answer is outstanding, with what they are.
    pub(crate) fn settled(&self) -> Vec<(String, Ask)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = all.iter().filter(|(_, asked)| asked.pending.is_none() && asked.now.revision > 0);
        settled.map(|(job, asked)| (job.clone(), asked.now)).collect()
    }

    /// Whether an answer is outstanding.
    pub(crate) fn open(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().any(|asked| asked.pending.is_some())
    }
}
