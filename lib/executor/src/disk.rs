//! Atomic writes of small files: a reader, or a machine after a power loss, sees all of the old or all of the new.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What [`replace`] guarantees when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Any process sees all or nothing. After power loss the file may be missing.
    Atomic,
    /// It is also on stable storage, together with its name.
    Durable,
}

/// Writes `bytes` to `dir/name` with mode 0600.
///
/// # Errors
/// When the file cannot be written or renamed; the former one is unharmed. After a failed sync of the directory the
/// new one is there, but perhaps not after a loss of power.
pub fn replace(dir: &Path, name: &str, bytes: &[u8], durability: Durability) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}.new"));
    let target = dir.join(name);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        // What is there already may be a reserve of space.
        .truncate(false)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.set_len(bytes.len() as u64)?;
            if durability == Durability::Durable { file.sync_data() } else { Ok(()) }
        })
        .and_then(|()| std::fs::rename(&temporary, &target));
    if let Err(e) = written {
        let _ = std::fs::remove_file(&temporary);
        return Err(e);
    }
    match durability {
        Durability::Durable => File::open(dir)?.sync_all(),
        Durability::Atomic => Ok(()),
    }
}

/// Bytes that [`reserve`] keeps: more than any file has that is written with it.
const RESERVE: usize = 4096;

/// Keeps space for the next [`replace`] of `dir/name`, so that it succeeds on a full disk, too.
///
/// # Errors
/// When there is no space now.
pub fn reserve(dir: &Path, name: &str) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join(format!(".{name}.new")))?
        .write_all(&[0; RESERVE])
}

/// Gives the space of [`reserve`] back.
pub fn release(dir: &Path, name: &str) {
    let _ = std::fs::remove_file(dir.join(format!(".{name}.new")));
}

/// Whether there was no space for a write.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
