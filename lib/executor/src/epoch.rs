//! The highest epoch of a workload's managers, kept in its state directory.
//!
//! Only the holder of the directory's lock writes it: the executor while it lives, afterwards a controller.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use executor_proto::files;

use crate::disk::{Durability, is_full, replace};

/// The verdict on a call's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the highest already.
    Current,
    /// It is the highest so far: record it before the call takes effect.
    Raise,
    /// It is lower than this one: the call must change nothing.
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

/// The epoch recorded in `state_dir`; 0 when there is none. An invalid file is an error: a low guess would let a stale
/// manager act.
///
/// # Errors
/// When the file cannot be read, or holds no number.
pub fn load(state_dir: &Path) -> io::Result<u64> {
    match std::fs::read_to_string(state_dir.join(files::EPOCH)) {
        // A loss of power may leave the length of a number that was written over the former one, and not its digits.
        Ok(text) => text
            .trim_matches(|c: char| c.is_whitespace() || c == '\0')
            .parse()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the epoch file holds no number")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// Records `epoch` durably.
///
/// # Errors
/// When the file cannot be written; the former epoch stands.
pub fn store(state_dir: &Path, epoch: u64) -> io::Result<()> {
    let text = format!("{epoch}\n");
    match replace(state_dir, files::EPOCH, text.as_bytes(), Durability::Durable) {
        // A task that has filled the disk must not keep its next manager from stopping it.
        Err(e) if is_full(&e) => overwrite(state_dir, &text).map_err(|_| e),
        other => other,
    }
}

/// Writes the epoch into the space that the former one has. Numbers only grow, so whatever part of it a loss of power
/// leaves is no lower than the former one, and this one has admitted nobody by then.
fn overwrite(state_dir: &Path, text: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(state_dir.join(files::EPOCH))?;
    file.write_all_at(text.as_bytes(), 0)?;
    file.sync_all()
}

/// Judges `given` against the record and raises the record if it is higher.
///
/// # Errors
/// As [`load`] and [`store`].
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
        std::fs::write(dir.path().join(files::EPOCH), "9\n\0").unwrap();
        assert_eq!(load(dir.path()).unwrap(), 9, "cut off while it was written over");
        std::fs::write(dir.path().join(files::EPOCH), "junk").unwrap();
        assert!(claim(dir.path(), 9).is_err(), "a damaged record must not admit anyone");
    }
}
