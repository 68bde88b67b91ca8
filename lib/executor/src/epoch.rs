//! The highest epoch that a workload's managers have shown, kept in its state directory.
//!
//! Whoever holds the directory's lock (the executor while it lives, a controller afterwards) is the only writer.

use std::io;
use std::path::Path;

use executor_proto::files;

use crate::disk::{Durability, replace};

/// Answer to a call that carries an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Already the highest.
    Current,
    /// Higher than all before: to be recorded before the call takes effect.
    Raise,
    /// Lower than the one given here: the call must change nothing.
    Stale(u64),
}

/// Judges an epoch against the highest accepted so far.
pub fn judge(accepted: u64, given: u64) -> Verdict {
    match given.cmp(&accepted) {
        std::cmp::Ordering::Less => Verdict::Stale(accepted),
        std::cmp::Ordering::Equal => Verdict::Current,
        std::cmp::Ordering::Greater => Verdict::Raise,
    }
}

/// The epoch recorded in `state_dir`; 0 when there is none. A file that is not a number is an error: guessing low would let
/// a stale manager act.
pub fn load(state_dir: &Path) -> io::Result<u64> {
    match std::fs::read_to_string(state_dir.join(files::EPOCH)) {
        Ok(text) => text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the epoch file holds no number")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// Records `epoch` durably.
pub fn store(state_dir: &Path, epoch: u64) -> io::Result<()> {
    replace(state_dir, files::EPOCH, format!("{epoch}\n").as_bytes(), Durability::Durable)
}

/// Judges `given` against the record and raises the record when it is higher.
pub fn claim(state_dir: &Path, given: u64) -> io::Result<Verdict> {
    let verdict = judge(load(state_dir)?, given);
    if verdict == Verdict::Raise {
        store(state_dir, given)?;
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_grows() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(claim(dir.path(), 0).unwrap(), Verdict::Current);
        assert_eq!(claim(dir.path(), 3).unwrap(), Verdict::Raise);
        assert_eq!(claim(dir.path(), 2).unwrap(), Verdict::Stale(3));
        assert_eq!(claim(dir.path(), 3).unwrap(), Verdict::Current);
        assert_eq!(load(dir.path()).unwrap(), 3);
        std::fs::write(dir.path().join(files::EPOCH), "junk").unwrap();
        assert!(claim(dir.path(), 9).is_err(), "a damaged record must not admit anyone");
    }
}
