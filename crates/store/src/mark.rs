//! How far the store has come, in a small file beside the database. A database behind its mark has lost acknowledged
//! changes.
//!
//! The store writes the mark in place after a transaction is durable, and never before. So the mark is ahead of the
//! database only if a person has truncated or deleted the write-ahead log, or has put an older database there. It costs
//! no extra fsync while the store works. After a loss of power it may be older than the database, which raises no
//! alarm.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The mark of one database.
#[derive(Debug)]
pub(crate) struct Mark {
    file: File,
    /// A write has failed, and the log says so.
    failed: bool,
    unsynced: bool,
}

/// The mark at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No mark, or an unreadable one.
    Nothing,
    /// Everything up to this index was acknowledged.
    Index(u64),
}

impl Mark {
    /// Path of a database's mark.
    pub(crate) fn path(database: &Path) -> PathBuf {
        let mut name = database.as_os_str().to_owned();
        name.push(".mark");
        PathBuf::from(name)
    }

    /// Reads the mark; the first write makes the file.
    pub(crate) fn read(database: &Path) -> Found {
        std::fs::read(Self::path(database)).ok().and_then(|text| parse(&text)).map_or(Found::Nothing, Found::Index)
    }

    /// Opens or makes it, and writes the index; `None` leaves the present content until the next change is durable.
    pub(crate) fn open(database: &Path, index: Option<u64>) -> io::Result<Self> {
        // Never truncated: a full disk must keep the old content.
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(Self::path(database))?;
        let mut mark = Self { file, failed: false, unsynced: false };
        if let Some(index) = index {
            mark.set(index);
        }
        Ok(mark)
    }

    /// Records that everything up to this index is durable.
    pub(crate) fn set(&mut self, index: u64) {
        match self.file.write_all_at(line(index).as_bytes(), 0) {
            Ok(()) => (self.failed, self.unsynced) = (false, true),
            // The database has the change: only the alarm would come later.
            Err(error) if !self.failed => {
                self.failed = true;
                tracing::warn!(error = %error, "the mark beside the database could not be written; it is tried again \
                    with the next change");
            }
            Err(_) => {}
        }
    }

    /// Syncs the file, when the store is idle.
    pub(crate) fn sync(&mut self) {
        if self.unsynced {
            // An older mark raises no false alarm.
            let _ = self.file.sync_data();
            self.unsynced = false;
        }
    }
}

/// One line of a fixed length, for people too.
fn line(index: u64) -> String {
    let text = format!("index {index:020}");
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text} {sum:08x}\n")
}

fn parse(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let index = text.strip_prefix("index ")?.get(..20)?.parse().ok()?;
    (text == line(index)).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_whole_or_not_at_all() {
        assert_eq!(parse(line(7).as_bytes()), Some(7));
        assert_eq!(parse(line(u64::MAX).as_bytes()), Some(u64::MAX));
        let torn = line(7).replace('7', "8");
        for wrong in [&b""[..], b"index", torn.as_bytes(), &line(7).as_bytes()[..20], b"\0\0\0\0"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
