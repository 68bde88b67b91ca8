//! The keys that workload identities are signed with.
//!
//! One key is active and signs; the others are inactive: they stay published so that what they have signed can be
//! verified, until somebody deletes them. Each key is a file of its own, `<data dir>/keystore/<key id>.json`,
//! readable by the server's user only. Private keys are in these files and in memory, nowhere else: not in the store,
//! an answer, a log or a `Debug` text. A development server keeps its keys in memory.
//!
//! The newest key is the active one. A rotation writes the new key first and marks the old one afterwards, so a crash
//! in between leaves two files that say "active", and the newer one is right. A file that cannot be read is reported
//! by name and left as it is; ids are never used twice, so no new key is written over it.

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use model::{StoreIndex, TimestampNs};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

use crate::clock::new_id;

/// Directory of the keys in the server's data directory.
pub const DIR: &str = "keystore";

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const SUFFIX: &str = ".json";
/// A file that is being written; it counts once it has its final name.
const UNFINISHED: &str = ".json.tmp";

/// Why the keyring did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The directory or a file of it.
    #[error("{attempt} {path} failed: {source}; the server's user must own the directory, with room on its disk", path = path.display())]
    File {
        /// What was attempted.
        attempt: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The crypto library made no key or no signature.
    #[error("{0} failed in the crypto library")]
    Crypto(
        /// What was attempted.
        &'static str,
    ),
    /// The claims are not JSON.
    #[error("writing the claims of a token as JSON failed: {0}")]
    Claims(
        /// Why.
        #[from]
        serde_json::Error,
    ),
    /// The active key cannot be deleted.
    #[error("active root key cannot be deleted: rotate first")]
    Active,
}

/// What a key signs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl Algorithm {
    /// Its name in tokens, key lists and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
        }
    }
}

/// What a key is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// New tokens are signed with it.
    Active,
    /// It is published for the tokens that it has signed.
    Inactive,
}

impl KeyState {
    /// Its name in key lists and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Inactive => "inactive",
        }
    }
}

/// A key without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMeta {
    /// Id; `kid` of its tokens.
    pub id: Uuid,
    /// What it signs with.
    pub algorithm: Algorithm,
    /// What it is used for.
    pub state: KeyState,
    /// When it was made.
    pub create_time: TimestampNs,
    /// Index of its making; orders the keys.
    pub create_index: StoreIndex,
    /// Index of the last change of its state.
    pub modify_index: StoreIndex,
    /// The public half: the 32 bytes of RFC 8032.
    pub public: Vec<u8>,
}

/// A file that is not a key. It is never touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// A key with its secret.
#[derive(Clone)]
struct Key {
    meta: KeyMeta,
    pair: Arc<Ed25519KeyPair>,
}

/// What a file holds. Unknown fields make it unreadable: they would be lost when the state changes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct KeyFile {
    #[serde(rename = "KeyID")]
    key_id: Uuid,
    algorithm: Algorithm,
    state: KeyState,
    create_time: TimestampNs,
    create_index: StoreIndex,
    modify_index: StoreIndex,
    /// PKCS #8 with the public half (RFC 5958), base64: a damaged secret does not fit its public half.
    private_key: String,
}

/// The keys at one moment, the newest first; the first is the active one.
struct Ring {
    keys: Vec<Key>,
    /// Index of the last change.
    index: StoreIndex,
}

/// The keys that workload identities are signed with.
pub struct Keyring {
    dir: Option<PathBuf>,
    ring: ArcSwap<Ring>,
    /// Held by whoever changes the keys.
    changing: Mutex<()>,
    /// Index of the last change, for those who wait for one.
    changed: watch::Sender<StoreIndex>,
    damaged: Vec<Damaged>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.ring.load();
        let keys: Vec<String> = ring.keys.iter().map(|k| format!("{} {}", k.meta.id, k.meta.state.name())).collect();
        f.debug_struct("Keyring").field("dir", &self.dir).field("keys", &keys).field("damaged", &self.damaged).finish_non_exhaustive()
    }
}

impl Keyring {
    /// Reads the keys of a directory (None = in memory), and makes one when there is none that can be read. Waits for
    /// the disk. `index` is that of the state. The caller owns the directory alone: it holds the lock of the data
    /// directory.
    ///
    /// # Errors
    /// When the directory cannot be made or listed, or the first key not be written. Damaged files are no error: see
    /// [`Self::damaged`].
    pub fn open(dir: Option<PathBuf>, now: TimestampNs, index: StoreIndex) -> Result<Self, KeyringError> {
        let (mut keys, damaged) = match &dir {
            Some(dir) => read_dir(dir)?,
            None => (Vec::new(), Vec::new()),
        };
        for Damaged { path, why } in &damaged {
            tracing::error!(file = %path.display(), %why, "a signing key could not be read and is not used; tokens signed with it cannot be verified until the file is restored and the server restarted");
        }
        keys.sort_by_key(|k| std::cmp::Reverse((k.meta.create_index, k.meta.create_time, k.meta.id)));
        // Indexes never go back, also when the state was replaced beside its keys.
        let index = keys.iter().map(|k| k.meta.modify_index).fold(index.max(1), u64::max);
        let this = Self {
            dir,
            ring: ArcSwap::from_pointee(Ring { keys: Vec::new(), index }),
            changing: Mutex::default(),
            changed: watch::Sender::new(index),
            damaged,
        };
        match keys.first().map(|k| k.meta.state) {
            // The newest key may also be inactive: the active one has been lost, with its file.
            None | Some(KeyState::Inactive) => {
                this.ring.store(Arc::new(Ring { keys, index }));
                let made = this.rotate(now, index)?;
                tracing::info!(key = %made.id, "made a key for signing workload identities");
            }
            Some(KeyState::Active) => {
                this.deactivate(&mut keys[1..], index);
                this.ring.store(Arc::new(Ring { keys, index }));
            }
        }
        Ok(this)
    }

    /// The keys, the newest first, with the index of their last change.
    #[must_use]
    pub fn keys(&self) -> (Vec<KeyMeta>, StoreIndex) {
        let ring = self.ring.load();
        (ring.keys.iter().map(|k| k.meta.clone()).collect(), ring.index)
    }

    /// Files that were not keys at the start.
    #[must_use]
    pub fn damaged(&self) -> &[Damaged] {
        &self.damaged
    }

    /// Every key as its file holds it, with the name of the file: a secret, for a snapshot and nothing else.
    ///
    /// # Errors
    /// When the crypto library does not encode a key.
    pub fn export(&self) -> Result<Vec<(String, Vec<u8>)>, KeyringError> {
        self.ring.load().keys.iter().map(|key| Ok((format!("{}{SUFFIX}", key.meta.id), text_of(key)?))).collect()
    }

    /// Resolves when the keys have changed after `index`. Cancel safe.
    pub async fn changed_after(&self, index: StoreIndex) {
        // The sender lives as long as this keyring.
        let _ = self.changed.subscribe().wait_for(|now| *now > index).await;
    }

    /// Signs claims with the active key: a JWT whose header names the key.
    ///
    /// # Errors
    /// When the claims are not JSON, or the crypto library fails.
    pub fn sign<T: Serialize + ?Sized>(&self, claims: &T) -> Result<String, KeyringError> {
        let ring = self.ring.load();
        let key = ring.keys.first().ok_or(KeyringError::Crypto("finding an active key"))?;
        let header = serde_json::json!({"alg": key.meta.algorithm.name(), "kid": key.meta.id, "typ": "JWT"});
        let mut token = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&header)?);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(serde_json::to_vec(claims)?, &mut token);
        let signature = key.pair.try_sign(token.as_bytes()).map_err(|_| KeyringError::Crypto("signing a token"))?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    /// The claims of a token that a key of this ring has signed, whatever they say. None = no such token.
    #[must_use]
    pub fn verify(&self, token: &str) -> Option<serde_json::Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header: serde_json::Value = serde_json::from_slice(&decode(header)?).ok()?;
        let kid: Uuid = header["kid"].as_str()?.parse().ok()?;
        let ring = self.ring.load();
        let key = ring.keys.iter().find(|k| k.meta.id == kid && header["alg"] == k.meta.algorithm.name())?;
        match key.meta.algorithm {
            Algorithm::EdDsa => UnparsedPublicKey::new(&ED25519, &key.meta.public).verify(signed.as_bytes(), &decode(signature)?).ok()?,
        }
        serde_json::from_slice(&decode(claims)?).ok()
    }

    /// Makes a new active key; the others are inactive from now on. Waits for the disk. `index` is the change's own
    /// in the state.
    ///
    /// # Errors
    /// When the new key could not be made or written; nothing has changed then.
    pub fn rotate(&self, now: TimestampNs, index: StoreIndex) -> Result<KeyMeta, KeyringError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = self.ring.load();
        // Rotations that came at once may get here in another order than they got their indexes.
        let index = if ring.keys.is_empty() { index.max(ring.index) } else { index.max(ring.index + 1) };
        let pair = Ed25519KeyPair::generate().map_err(|_| KeyringError::Crypto("making a key"))?;
        let meta = KeyMeta {
            id: new_id(),
            algorithm: Algorithm::EdDsa,
            state: KeyState::Active,
            create_time: now,
            create_index: index,
            modify_index: index,
            public: pair.public_key().as_ref().to_vec(),
        };
        let key = Key { meta: meta.clone(), pair: Arc::new(pair) };
        if let Some(dir) = &self.dir
            && let Err(error) = write_key(dir, &key)
        {
            // It may have its name already and only not be known to be durable: the next start must not find it.
            let _ = fs::remove_file(file_of(dir, meta.id));
            return Err(error);
        }
        let mut keys = Vec::with_capacity(ring.keys.len() + 1);
        keys.push(key);
        keys.extend(ring.keys.iter().cloned());
        self.deactivate(&mut keys[1..], index);
        self.publish(Ring { keys, index });
        Ok(meta)
    }

    /// Deletes an inactive key: what it has signed can no longer be verified. None when there is no such key. Waits
    /// for the disk.
    ///
    /// # Errors
    /// When the key is the active one, or its file could not be removed; nothing has changed then.
    pub fn delete(&self, id: Uuid, index: StoreIndex) -> Result<Option<StoreIndex>, KeyringError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = self.ring.load();
        if !self.deletable(id)? {
            return Ok(None);
        }
        if let Some(dir) = &self.dir {
            let path = file_of(dir, id);
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("removing the key", &path)(e)),
                _ => sync_dir(dir)?,
            }
        }
        let index = index.max(ring.index + 1);
        let keys = ring.keys.iter().filter(|k| k.meta.id != id).cloned().collect();
        self.publish(Ring { keys, index });
        Ok(Some(index))
    }

    /// Whether there is such a key and it may be deleted.
    ///
    /// # Errors
    /// When it is the active one.
    pub fn deletable(&self, id: Uuid) -> Result<bool, KeyringError> {
        match self.ring.load().keys.iter().find(|k| k.meta.id == id).map(|k| k.meta.state) {
            None => Ok(false),
            Some(KeyState::Inactive) => Ok(true),
            Some(KeyState::Active) => Err(KeyringError::Active),
        }
    }

    fn publish(&self, ring: Ring) {
        let index = ring.index;
        self.ring.store(Arc::new(ring));
        self.changed.send_replace(index);
    }

    /// Marks keys as inactive. A mark that cannot be written is none that is missed: a newer key exists, which says
    /// the same at the next start.
    fn deactivate(&self, keys: &mut [Key], index: StoreIndex) {
        for key in keys.iter_mut().filter(|k| k.meta.state == KeyState::Active) {
            key.meta.state = KeyState::Inactive;
            key.meta.modify_index = index;
            if let Some(dir) = &self.dir
                && let Err(error) = write_key(dir, key)
            {
                tracing::warn!(key = %key.meta.id, %error, "marking a key as inactive in its file failed; the next start does it");
            }
        }
    }
}

/// What can be read, and what cannot.
fn read_dir(dir: &Path) -> Result<(Vec<Key>, Vec<Damaged>), KeyringError> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir).map_err(failed("making the directory of the keys", dir))?;
    keep_private(dir, DIR_MODE).map_err(failed("taking the rights of others from", dir))?;
    let (mut keys, mut damaged) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir).map_err(failed("listing the keys in", dir))? {
        let path = entry.map_err(failed("listing the keys in", dir))?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        if name.ends_with(UNFINISHED) {
            // A key that was never used: the server ended while it was written.
            fs::remove_file(&path).map_err(failed("removing the unfinished key", &path))?;
        } else if let Some(id) = name.strip_suffix(SUFFIX) {
            match read_key(&path, id) {
                Ok(key) => keys.push(key),
                Err(why) => damaged.push(Damaged { path, why }),
            }
        }
    }
    Ok((keys, damaged))
}

/// Reads a key. Reasons are made of positions, never of what the file holds.
fn read_key(path: &Path, name: &str) -> Result<Key, String> {
    let text = fs::read(path).map_err(|e| format!("it could not be read: {e}"))?;
    let file: KeyFile = serde_json::from_slice(&text)
        .map_err(|e| format!("it is not the record of a key ({:?} error at line {} column {})", e.classify(), e.line(), e.column()))?;
    if file.key_id.to_string() != name {
        return Err(format!("it holds the key {}: a key's file has the name of its key", file.key_id));
    }
    let der = STANDARD.decode(&file.private_key).map_err(|_| "its private key is not base64".to_owned())?;
    let pair = Ed25519KeyPair::from_pkcs8(&der).map_err(|e| format!("its private key is not a whole Ed25519 key in PKCS #8: {e}"))?;
    keep_private(path, FILE_MODE).map_err(|e| format!("others may read it, and taking that right from them failed: {e}"))?;
    let meta = KeyMeta {
        id: file.key_id,
        algorithm: file.algorithm,
        state: file.state,
        create_time: file.create_time,
        create_index: file.create_index,
        modify_index: file.modify_index,
        public: pair.public_key().as_ref().to_vec(),
    };
    Ok(Key { meta, pair: Arc::new(pair) })
}

/// Takes rights of others away, and says so: they may have made a copy.
fn keep_private(path: &Path, mode: u32) -> io::Result<()> {
    let now = fs::metadata(path)?.permissions().mode() & 0o7777;
    if now & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        tracing::warn!(path = %path.display(), mode = format_args!("{now:o}"), "others had rights to signing keys, which were taken away; rotate the keys if somebody may have read them");
    }
    Ok(())
}

/// What is in the file of a key.
fn text_of(key: &Key) -> Result<Vec<u8>, KeyringError> {
    let meta = &key.meta;
    let der = key.pair.to_pkcs8().map_err(|_| KeyringError::Crypto("encoding a private key"))?;
    let file = KeyFile {
        key_id: meta.id,
        algorithm: meta.algorithm,
        state: meta.state,
        create_time: meta.create_time,
        create_index: meta.create_index,
        modify_index: meta.modify_index,
        private_key: STANDARD.encode(der.as_ref()),
    };
    Ok(serde_json::to_vec_pretty(&file)?)
}

/// Writes a key so that its file is the old or the new one, whole, whatever happens.
fn write_key(dir: &Path, key: &Key) -> Result<(), KeyringError> {
    let (meta, text) = (&key.meta, text_of(key)?);
    let unfinished = dir.join(format!("{}{UNFINISHED}", meta.id));
    let path = file_of(dir, meta.id);
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

fn file_of(dir: &Path, id: Uuid) -> PathBuf {
    dir.join(format!("{id}{SUFFIX}"))
}

fn sync_dir(dir: &Path) -> Result<(), KeyringError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(failed("making durable the directory", dir))
}

fn failed(attempt: &'static str, path: &Path) -> impl Fn(io::Error) -> KeyringError {
    move |source| KeyringError::File { attempt, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
