//! What this server knows of the store, in a small file of its own: a store behind it has lost acknowledged batches.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

use uuid::Uuid;

use super::layout::{Meta, Recovered, Tip};
use crate::contract::Lost;

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Of the history.
    pub(super) generation: Uuid,
    /// etcd's id of its cluster.
    pub(super) cluster: u64,
    /// The highest revision of that cluster.
    pub(super) revision: i64,
    /// The highest index of that history.
    pub(super) index: u64,
}

impl Known {
    /// One line of a fixed length, for people too.
    fn line(&self) -> String {
        let Self { generation, cluster, revision, index } = self;
        let text = format!("generation {generation} cluster {cluster:016x} revision {revision:020} index {index:020}");
        let sum = crc32fast::hash(text.as_bytes());
        format!("{text} {sum:08x}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut after = |name: &str| words.next().filter(|word| *word == name).and_then(|_| words.next());
        let known = Self {
            generation: after("generation")?.parse().ok()?,
            cluster: u64::from_str_radix(after("cluster")?, 16).ok()?,
            revision: after("revision")?.parse().ok()?,
            index: after("index")?.parse().ok()?,
        };
        (known.line() == text).then_some(known)
    }

    /// Reads the file; None where there is none, or an unreadable one.
    pub(super) fn read(path: &Path) -> Option<Self> {
        std::fs::read_to_string(path).ok().and_then(|text| Self::parse(&text))
    }
}

/// What the mark knows and the store lacks.
pub(super) fn missing(known: &Known, meta: &Meta, tip: &Tip, cluster: u64, revision: i64) -> Option<Lost> {
    if known.generation != meta.generation {
        // Another history: nothing of what was acknowledged is there.
        return (known.index > 0).then_some(Lost { found: 0, acknowledged: known.index });
    }
    let back = known.cluster == cluster && known.revision > revision;
    (known.index > tip.index || back).then_some(Lost { found: tip.index, acknowledged: known.index.max(tip.index) })
}

/// Whether the servers have recovered from what this mark tells of. A mark of a lost history is below the index that
/// the recovery has jumped to; a later one tells of another loss. Indexes of another generation cannot be compared:
/// there only a recovery counts that has ended since this server saw the loss, when `before` was the newest.
pub(super) fn is_recovered(known: &Known, meta: &Meta, now: Recovered, before: Option<Recovered>) -> bool {
    let since = before.is_some_and(|before| now.index > before.index);
    now.index > known.index && (known.generation == meta.generation || since)
}

/// The file.
#[derive(Debug)]
pub(super) struct Mark {
    file: File,
    /// A write has failed, and the log says so.
    failed: bool,
}

impl Mark {
    /// Opens or makes it, and leaves its content.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Ok(Self { file, failed: false })
    }

    /// Records what is known now.
    pub(super) fn set(&mut self, known: &Known) {
        match self.file.write_all_at(known.line().as_bytes(), 0) {
            Ok(()) => self.failed = false,
            // etcd has the change: only the alarm would come later.
            Err(error) if !self.failed => {
                self.failed = true;
                tracing::warn!(error = %error, "the mark of how far etcd has come could not be written; it is tried \
                    again with the next change");
            }
            Err(_) => {}
        }
    }

    /// Syncs the file; without it, the mark may be older after a loss of power, which raises no alarm.
    pub(super) fn sync(&self) {
        let _ = self.file.sync_data();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_counts_for_the_marks_of_the_history_that_it_was_for() {
        let (own, other) = (Uuid::from_u128(7), Uuid::from_u128(8));
        let meta = Meta { format: 1, since: String::new(), generation: own, cluster: "c".into() };
        let at = |index| Recovered { index };
        for (what, generation, index, now, before, recovered) in [
            ("no recovery", own, 10, 0, Some(0), false),
            ("one that has ended since", own, 10, 1_000_010, Some(0), true),
            ("one that had ended before this server was opened", own, 10, 1_000_010, None, true),
            ("a second loss after it", own, 1_000_010, 1_000_010, None, false),
            ("a second loss after it, and nothing since", own, 1_000_020, 1_000_010, Some(1_000_010), false),
            ("another history, recovered long ago", other, 10, 1_000_010, None, false),
            ("another history, and no recovery since", other, 10, 1_000_010, Some(1_000_010), false),
            ("another history, recovered since", other, 10, 1_000_010, Some(0), true),
        ] {
            let known = Known { generation, cluster: 1, revision: 1, index };
            assert_eq!(is_recovered(&known, &meta, at(now), before.map(at)), recovered, "{what}");
        }
    }

    #[test]
    fn a_mark_is_read_whole_or_not_at_all() {
        let known = Known { generation: Uuid::from_u128(7), cluster: 8, revision: 9, index: 10 };
        let line = known.line();
        assert_eq!(Known::parse(&line), Some(known));
        let longest = Known { generation: Uuid::max(), cluster: u64::MAX, revision: i64::MAX, index: u64::MAX };
        assert_eq!(longest.line().len(), line.len(), "written in place");
        assert_eq!(Known::parse(&longest.line()), Some(longest));
        for wrong in ["", "generation", &line[..40], &line.replace("10 ", "11 ")] {
            assert_eq!(Known::parse(wrong), None, "{wrong:?}");
        }
    }
}
