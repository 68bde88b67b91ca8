//! Keys in files: one each, for the server's user alone, whole whatever happens.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use uuid::Uuid;
use zeroize::Zeroizing;

use super::{
    key::{Key, KeyringError, Unread},
    wrapping::Wrapping,
};

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// End of a file's name, after the key's id.
pub(super) const SUFFIX: &str = ".json";
/// A file that is being written; it counts once it has its final name.
pub(super) const UNFINISHED: &str = ".json.tmp";

/// A file that is not a key. It is never touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// The keys of a directory.
pub(super) struct Files {
    /// What can be read.
    pub(super) keys: Vec<Key>,
    /// What cannot, which is also logged.
    pub(super) damaged: Vec<Damaged>,
    /// Those of the keys that lie there otherwise than new ones: plain, or encrypted under a former key.
    pub(super) otherwise: Vec<Uuid>,
}

/// Reads a directory of keys. Makes it when there is none.
///
/// # Errors
/// Also when a key is encrypted and nothing here opens it: it is not damaged, and nobody may go on without it.
pub(super) fn read_dir(dir: &Path, wrapping: &Wrapping) -> Result<Files, KeyringError> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(dir)
        .map_err(failed("making the directory of the keys", dir))?;
    keep_private(dir, DIR_MODE).map_err(failed("taking the rights of others from", dir))?;
    let (mut keys, mut damaged, mut otherwise) = (Vec::new(), Vec::new(), Vec::new());
    for entry in fs::read_dir(dir).map_err(failed("listing the keys in", dir))? {
        let path = entry.map_err(failed("listing the keys in", dir))?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        if name.ends_with(UNFINISHED) {
            // A key that was never used: the server ended while it was written.
            fs::remove_file(&path).map_err(failed("removing the unfinished key", &path))?;
        } else if let Some(id) = name.strip_suffix(SUFFIX) {
            match read_key(&path, id, wrapping) {
                Ok((key, fits)) => {
                    otherwise.extend((!fits).then_some(key.meta.id));
                    keys.push(key);
                }
                Err(Unread::Damaged(why)) => damaged.push(Damaged { path, why }),
                Err(Unread::Locked(why)) => return Err(KeyringError::Locked { path, why }),
            }
        }
    }
    for Damaged { path, why } in &damaged {
        tracing::error!(file = %path.display(), %why, "a signing key could not be read and is not used; tokens \
            signed with it cannot be verified until the file is restored and the server restarted");
    }
    Ok(Files { keys, damaged, otherwise })
}

/// Reads a key.
fn read_key(path: &Path, name: &str, wrapping: &Wrapping) -> Result<(Key, bool), Unread> {
    let text = Zeroizing::new(fs::read(path).map_err(|e| format!("it could not be read: {e}"))?);
    let key = Key::read(&text, name, wrapping)?;
    keep_private(path, FILE_MODE)
        .map_err(|e| format!("others may read it, and taking that right from them failed: {e}"))?;
    Ok(key)
}

/// Takes rights of others away, and says so: they may have made a copy.
fn keep_private(path: &Path, mode: u32) -> io::Result<()> {
    let now = fs::metadata(path)?.permissions().mode() & 0o7777;
    if now & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        tracing::warn!(path = %path.display(), mode = format_args!("{now:o}"), "others had rights to signing keys, \
            which were taken away; rotate the keys if somebody may have read them");
    }
    Ok(())
}

/// Writes a key so that its file is the old or the new one, whole, whatever happens.
pub(super) fn write_key(dir: &Path, key: &Key, wrapping: &Wrapping) -> Result<(), KeyringError> {
    let (id, text) = (key.meta.id, key.text(wrapping)?);
    let unfinished = dir.join(format!("{id}{UNFINISHED}"));
    let path = file_of(dir, id);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&unfinished)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)
    };
    write().map_err(|error| {
        // What is left of it holds a secret that nobody uses.
        let _ = fs::remove_file(&unfinished);
        failed("writing the key", &path)(error)
    })?;
    sync_dir(dir)
}

/// Removes a key; one that is not there is removed.
pub(super) fn remove_key(dir: &Path, id: Uuid) -> Result<(), KeyringError> {
    let path = file_of(dir, id);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("removing the key", &path)(e)),
        _ => sync_dir(dir),
    }
}

/// The file of a key.
pub(super) fn file_of(dir: &Path, id: Uuid) -> PathBuf {
    dir.join(format!("{id}{SUFFIX}"))
}

fn sync_dir(dir: &Path) -> Result<(), KeyringError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(failed("making durable the directory", dir))
}

fn failed(attempt: &'static str, path: &Path) -> impl Fn(io::Error) -> KeyringError {
    move |source| KeyringError::File { attempt, path: path.to_owned(), source }
}
