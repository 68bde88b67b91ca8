//! Root keys: they sign workload identities and encrypt variables.
//!
//! One key is active: it signs and encrypts. The others stay published so that what they have signed can be verified,
//! and open the variables that they have encrypted, until they are deleted. A prepublished key waits for its turn.
//! The newest of the others is the active one. Ids are never used twice.
//!
//! A server with a store of its own keeps each key in a file of its own, `<data dir>/keystore/<key id>.json`, readable
//! by the server's user only. Private keys are in these files, in snapshots and in memory, nowhere else: not in the
//! store, an answer, a log or a `Debug` text. With a `keyring` block they are encrypted in files and snapshots.
//!
//! A rotation writes the new key first and marks the old one afterwards, so a crash in between leaves two files that
//! say "active", and the newer one is right. A file that cannot be read is reported by name and left as it is; one that
//! is encrypted and that nothing here opens ends the start. A development server keeps its keys in memory.
//!
//! Servers that share a store keep their keys in the state, encrypted under the key that they share: what one has
//! signed the others verify. Changes are commits, which this keyring follows.

mod files;
mod key;
mod rows;
mod secret;
mod wrapping;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
pub use model::signing::{Algorithm, KeyState};
use model::{StoreIndex, TimestampNs, proof::MAC_BYTES, signing::SigningKey};
use serde::Serialize;
use state::{State, Table};
use tokio::sync::watch;
use uuid::Uuid;
use zeroize::Zeroizing;

pub(crate) use self::key::Made;
pub use self::{
    files::Damaged,
    key::{KeyMeta, KeyringError},
    secret::rsa_parts,
    wrapping::Wrapping,
};
use self::{
    files::{Files, SUFFIX, file_of, read_dir, remove_key, write_key},
    key::{Key, sort},
};
use crate::{clock::new_id, shared::SharedKey};

/// Directory of the keys in the server's data directory, and in snapshots.
pub const DIR: &str = "keystore";

/// Where keys are kept.
enum Kept {
    /// In memory only.
    Memory,
    /// In files of this directory.
    Files(PathBuf),
    /// In the state, encrypted.
    State(SharedKey),
}

/// The keys at one moment: the active one, the others with the newest first, and prepublished ones.
struct Ring {
    keys: Vec<Key>,
    /// Index of the last change.
    index: StoreIndex,
}

/// The keys that workload identities are signed with.
pub struct Keyring {
    kept: Kept,
    wrapping: Wrapping,
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
        let kept = match &self.kept {
            Kept::Memory => "memory".to_owned(),
            Kept::Files(dir) => dir.display().to_string(),
            Kept::State(_) => "state".to_owned(),
        };
        f.debug_struct("Keyring")
            .field("kept", &kept)
            .field("keys", &keys)
            .field("damaged", &self.damaged)
            .finish_non_exhaustive()
    }
}

impl Keyring {
    fn new(kept: Kept, wrapping: Wrapping, index: StoreIndex, damaged: Vec<Damaged>) -> Self {
        Self {
            kept,
            wrapping,
            ring: ArcSwap::from_pointee(Ring { keys: Vec::new(), index }),
            changing: Mutex::default(),
            changed: watch::Sender::new(index),
            damaged,
        }
    }

    /// Reads the keys of a directory (None = in memory), and makes one when there is none that can be read. What lies
    /// there otherwise than `wrapping` says is written again. Waits for the disk. `index` is that of the state. The
    /// caller owns the directory alone: it holds the lock of the data directory.
    ///
    /// # Errors
    /// When the directory cannot be made or listed, a key is encrypted and nothing here opens it, or a key not be
    /// written. Damaged files are no error: see [`Self::damaged`].
    pub fn open(
        dir: Option<PathBuf>,
        wrapping: Wrapping,
        now: TimestampNs,
        index: StoreIndex,
    ) -> Result<Self, KeyringError> {
        let Files { mut keys, damaged, otherwise } = match &dir {
            Some(dir) => read_dir(dir, &wrapping)?,
            None => Files { keys: Vec::new(), damaged: Vec::new(), otherwise: Vec::new() },
        };
        if let Some(dir) = &dir {
            for key in keys.iter().filter(|key| otherwise.contains(&key.meta.id)) {
                write_key(dir, key, &wrapping)?;
                let now =
                    if wrapping.active.is_some() { "encrypted under the key of the keyring block" } else { "plain" };
                tracing::info!(key = %key.meta.id, now, "a root key was written again");
            }
        }
        sort(&mut keys);
        // Indexes never go back, also when the state was replaced beside its keys.
        let index = keys.iter().map(|k| k.meta.modify_index).fold(index.max(1), u64::max);
        let this = Self::new(dir.map_or(Kept::Memory, Kept::Files), wrapping, index, damaged);
        match keys.first().filter(|key| key.meta.state == KeyState::Active).map(|key| key.meta.encrypts) {
            Some(true) => {
                let others = keys[1..].iter().filter(|k| k.meta.state == KeyState::Active);
                let changes: Vec<_> = others.map(|k| (k.meta.id, KeyState::Inactive)).collect();
                this.mark(&mut keys, &changes, index);
                this.ring.store(Arc::new(Ring { keys, index }));
            }
            // The newest key may also be inactive: the active one has been lost, with its file. Or a release has made
            // it that had no variables.
            Some(false) | None => {
                let active = keys.iter().filter(|k| k.meta.state == KeyState::Active);
                let changes: Vec<_> = active.map(|k| (k.meta.id, KeyState::Inactive)).collect();
                this.ring.store(Arc::new(Ring { keys, index }));
                let made = this.rotate(&Made { now, publish_time: 0, encrypts: true }, &changes, index)?;
                tracing::info!(key = %made.id, "made a root key");
            }
        }
        Ok(this)
    }

    /// The keys that the state has, for a server that shares them. Where it has none, this one signs nothing before
    /// [`Self::first`] is committed and followed. `wrapping` is for snapshots.
    ///
    /// # Errors
    /// When one of them does not open with the shared key: it is that of another cluster.
    pub fn of_state(shared: SharedKey, wrapping: Wrapping, state: &State) -> Result<Self, KeyringError> {
        let mut keys = state.signing_keys().map(|row| rows::key_of(&shared, row)).collect::<Result<Vec<_>, _>>()?;
        sort(&mut keys);
        let index = state.index(Table::SigningKeys);
        let this = Self::new(Kept::State(shared), wrapping, index, Vec::new());
        this.ring.store(Arc::new(Ring { keys, index }));
        Ok(this)
    }

    /// What the first commit of a server that shares its keys has to add to the state: nothing where there is an active
    /// key. Else a new one, or the keys of the directory `dir`, if the state has none: the server kept them there when
    /// it had a store of its own. `encrypts`: all servers read the format of keys that encrypt variables. Waits for the
    /// disk.
    ///
    /// # Errors
    /// When the directory cannot be read or the crypto library makes no key.
    pub fn first(&self, dir: Option<&Path>, now: TimestampNs, encrypts: bool) -> Result<Vec<SigningKey>, KeyringError> {
        let Kept::State(shared) = &self.kept else { return Ok(Vec::new()) };
        let newest = self.ring.load().keys.first().map(|key| key.meta.state);
        if newest == Some(KeyState::Active) {
            return Ok(Vec::new());
        }
        let mut rows = Vec::new();
        if let Some(dir) = dir.filter(|dir| newest.is_none() && dir.is_dir()) {
            rows = rows::rows_of(shared, read_dir(dir, &self.wrapping)?.keys)?;
            if !rows.is_empty() {
                tracing::info!(dir = %dir.display(), keys = rows.len(), "the signing keys of this directory are kept \
                    in the shared store from now on, encrypted; the directory can be deleted once the server runs");
            }
        }
        if rows.first().is_none_or(|row| row.state != KeyState::Active) {
            let (made, _) = fresh(shared, &Made { now, publish_time: 0, encrypts })?;
            tracing::info!(key = %made.id, "made a root key");
            rows.push(made);
        }
        Ok(rows)
    }

    /// For a server that shares its keys, a new key to commit, without its indexes; None = keys are kept here and
    /// [`Self::rotate`] makes one. Takes up to a second.
    ///
    /// # Errors
    /// When the crypto library makes no key.
    pub(crate) fn to_commit(&self, made: &Made) -> Result<Option<(SigningKey, KeyMeta)>, KeyringError> {
        match &self.kept {
            Kept::State(shared) => fresh(shared, made).map(Some),
            Kept::Memory | Kept::Files(_) => Ok(None),
        }
    }

    /// Whether the keys are in the state, where only commits change them.
    pub(crate) fn in_state(&self) -> bool {
        matches!(self.kept, Kept::State(_))
    }

    /// Takes over the keys of a newer state, if they are kept there. One that does not open is logged and not used.
    pub fn follow(&self, state: &State) {
        let Kept::State(shared) = &self.kept else { return };
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, index) = (self.ring.load(), state.index(Table::SigningKeys));
        if known.index >= index {
            return;
        }
        let mut keys = Vec::new();
        for row in state.signing_keys() {
            match known.keys.iter().find(|key| key.meta.id == row.id) {
                Some(Key { signer, data, proofs, .. }) => {
                    keys.push(rows::with_secrets(row, signer.clone(), data.clone(), proofs.clone()));
                }
                None => match rows::key_of(shared, row) {
                    Ok(key) => keys.push(key),
                    Err(error) => tracing::error!(%error, "a signing key is not used; tokens signed with it cannot \
                        be verified here"),
                },
            }
        }
        sort(&mut keys);
        self.publish(Ring { keys, index });
    }

    /// The keys with the index of their last change: the active one, the others with the newest first, and
    /// prepublished ones.
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

    /// Every key as its file holds it, with the name of the file: a secret, for a snapshot and nothing else. With a
    /// `keyring` block its key encrypts them.
    ///
    /// # Errors
    /// When the crypto library does not encode a key.
    pub fn export(&self) -> Result<Vec<(String, Vec<u8>)>, KeyringError> {
        let file = |key: &Key| Ok((format!("{}{SUFFIX}", key.meta.id), key.text(&self.wrapping)?.to_vec()));
        self.ring.load().keys.iter().map(file).collect()
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
        let active = |key: &&Key| key.meta.state == KeyState::Active;
        let key = ring.keys.first().filter(active).ok_or(KeyringError::Crypto("finding an active key"))?;
        let header = serde_json::json!({"alg": key.meta.algorithm.name(), "kid": key.meta.id, "typ": "JWT"});
        let mut token = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&header)?);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(serde_json::to_vec(claims)?, &mut token);
        let signature = key.signer.sign(token.as_bytes())?;
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
        if !secret::verifies(key.meta.algorithm, &key.meta.public, signed.as_bytes(), &decode(signature)?) {
            return None;
        }
        serde_json::from_slice(&decode(claims)?).ok()
    }

    /// The MAC of a statement under the active key, and the id of that key; None = there is no active key.
    #[must_use]
    pub fn prove(&self, statement: &[u8]) -> Option<(Uuid, [u8; MAC_BYTES])> {
        let ring = self.ring.load();
        let key = ring.keys.first().filter(|key| key.meta.state == KeyState::Active)?;
        let tag = hmac::sign(&key.proofs, statement);
        Some((key.meta.id, tag.as_ref().try_into().ok()?))
    }

    /// Whether these servers have proven a statement so; None = they do not have the key.
    #[must_use]
    pub fn proven(&self, key: Uuid, statement: &[u8], mac: &[u8; MAC_BYTES]) -> Option<bool> {
        let ring = self.ring.load();
        let key = ring.keys.iter().find(|known| known.meta.id == key)?;
        Some(hmac::verify(&key.proofs, statement, mac).is_ok())
    }

    /// Encrypts the items of a variable with the active key: the id of the key, and nonce, ciphertext and tag.
    ///
    /// # Errors
    /// [`KeyringError::NoDataKey`] while there is no key that encrypts.
    pub fn seal(&self, clear: &[u8]) -> Result<(Uuid, Vec<u8>), KeyringError> {
        let ring = self.ring.load();
        let key = ring.keys.first().filter(|key| key.meta.state == KeyState::Active).ok_or(KeyringError::NoDataKey)?;
        let data = key.data.as_ref().ok_or(KeyringError::NoDataKey)?;
        Ok((key.meta.id, data.seal(key.meta.id, clear)?))
    }

    /// Decrypts the items of the variable at `path`.
    ///
    /// # Errors
    /// When the key is not there, or has not made this.
    pub fn unseal(&self, id: Uuid, sealed: &[u8], path: &str) -> Result<Zeroizing<Vec<u8>>, KeyringError> {
        let wrong = |why| KeyringError::Sealed { id, path: path.to_owned(), why };
        let ring = self.ring.load();
        let key =
            ring.keys.iter().find(|k| k.meta.id == id).ok_or_else(|| wrong("the server does not have the key"))?;
        let data = key.data.as_ref().ok_or_else(|| wrong("the key encrypts no variables"))?;
        data.open(id, sealed).ok_or_else(|| wrong("it was encrypted under another key, or is damaged"))
    }

    /// Makes a new key, and gives others the states that follow from it. Waits for the disk. `index` is the change's
    /// own in the state. Not for keys in the state.
    ///
    /// # Errors
    /// When the new key could not be made or written; nothing has changed then.
    pub(crate) fn rotate(
        &self,
        made: &Made,
        changes: &[(Uuid, KeyState)],
        index: StoreIndex,
    ) -> Result<KeyMeta, KeyringError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = self.ring.load();
        // Rotations that came at once may get here in another order than they got their indexes.
        let index = if ring.keys.is_empty() { index.max(ring.index) } else { index.max(ring.index + 1) };
        let key = Key::generate(new_id(), made, index)?;
        let meta = key.meta.clone();
        if let Kept::Files(dir) = &self.kept
            && let Err(error) = write_key(dir, &key, &self.wrapping)
        {
            // It may have its name already and only not be known to be durable: the next start must not find it.
            let _ = fs::remove_file(file_of(dir, meta.id));
            return Err(error);
        }
        let mut keys = Vec::with_capacity(ring.keys.len() + 1);
        keys.push(key);
        keys.extend(ring.keys.iter().cloned());
        self.mark(&mut keys[1..], changes, index);
        sort(&mut keys);
        self.publish(Ring { keys, index });
        Ok(meta)
    }

    /// Gives keys other states. Waits for the disk. Not for keys in the state.
    pub(crate) fn set_states(&self, changes: &[(Uuid, KeyState)], index: StoreIndex) -> StoreIndex {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = self.ring.load();
        let index = index.max(ring.index + 1);
        let mut keys = ring.keys.clone();
        self.mark(&mut keys, changes, index);
        sort(&mut keys);
        self.publish(Ring { keys, index });
        index
    }

    /// Deletes a key: what it has signed can no longer be verified. None when there is no such key. Waits for the disk.
    /// The caller knows that no variable needs it. Not for keys in the state.
    ///
    /// # Errors
    /// When the key is the active one, or its file could not be removed; nothing has changed then.
    pub(crate) fn delete(&self, id: Uuid, index: StoreIndex) -> Result<Option<StoreIndex>, KeyringError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = self.ring.load();
        if !self.deletable(id)? {
            return Ok(None);
        }
        if let Kept::Files(dir) = &self.kept {
            remove_key(dir, id)?;
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
            Some(KeyState::Active) => Err(KeyringError::Active),
            Some(_) => Ok(true),
        }
    }

    fn publish(&self, ring: Ring) {
        let index = ring.index;
        self.ring.store(Arc::new(ring));
        self.changed.send_replace(index);
    }

    /// Gives keys other states. A mark that cannot be written is none that is missed: where a key was active a newer
    /// one exists, which says the same at the next start.
    fn mark(&self, keys: &mut [Key], changes: &[(Uuid, KeyState)], index: StoreIndex) {
        for key in keys {
            let Some((_, state)) = changes.iter().find(|(id, state)| *id == key.meta.id && *state != key.meta.state)
            else {
                continue;
            };
            key.meta.state = *state;
            key.meta.modify_index = index;
            if let Kept::Files(dir) = &self.kept
                && let Err(error) = write_key(dir, key, &self.wrapping)
            {
                tracing::warn!(key = %key.meta.id, state = state.name(), %error, "writing the new state of a root key \
                    to its file failed; the next start tells it from the newer keys");
            }
        }
    }
}

/// A new key for the state, and what will be known of it; its index is that of its commit.
fn fresh(shared: &SharedKey, made: &Made) -> Result<(SigningKey, KeyMeta), KeyringError> {
    let key = Key::generate(new_id(), made, 0)?;
    Ok((rows::row_of(shared, &key)?, key.meta))
}

/// Rows of the keys in a server's directory. Waits for the disk.
///
/// # Errors
/// When the directory cannot be read, or within, when one of its files is no key.
pub(crate) fn rows_of_dir(
    shared: &SharedKey,
    wrapping: &Wrapping,
    dir: &Path,
) -> Result<Result<Vec<SigningKey>, Damaged>, KeyringError> {
    let Files { keys, damaged, .. } = read_dir(dir, wrapping)?;
    Ok(match damaged.into_iter().next() {
        Some(damaged) => Err(damaged),
        None => Ok(rows::rows_of(shared, keys)?),
    })
}

/// Whether two texts of the file at this path of a snapshot hold the same key. Each encryption makes another text.
pub(crate) fn same_key(path: &str, one: &[u8], other: &[u8], wrapping: &Wrapping) -> bool {
    let read = |text| id_of(path).and_then(|id| Key::read(text, id, wrapping).ok());
    let plain = |text| read(text).and_then(|(key, _)| key.text(&Wrapping::default()).ok());
    plain(one).is_some_and(|one| plain(other) == Some(one))
}

/// The id in the path of a key's file in a snapshot.
fn id_of(path: &str) -> Option<&str> {
    path.strip_prefix(DIR)?.strip_prefix('/')?.strip_suffix(SUFFIX)
}

/// Rows of the keys in a snapshot: `files` are its files with their names.
///
/// # Errors
/// When a key cannot be read, with its file.
pub(crate) fn rows_of_files<'a>(
    shared: &SharedKey,
    wrapping: &Wrapping,
    files: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Vec<SigningKey>, String> {
    let mut keys = Vec::new();
    for (path, content) in files {
        let name = id_of(path).ok_or_else(|| format!("{path} is not the file of a signing key"))?;
        let read = Key::read(content, name, wrapping).map_err(|why| format!("{path}: {}", String::from(why)))?;
        keys.push(read.0);
    }
    rows::rows_of(shared, keys).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
