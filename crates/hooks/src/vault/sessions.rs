//! The tokens of Vault that the tasks of this node have at present, for those who read secrets with them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::AllocId;
use tokio::sync::watch;
use vault::{Caller, Vault};

/// A task that reads with rights of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Reader {
    pub(crate) alloc: AllocId,
    pub(crate) task: String,
}

#[derive(Debug)]
struct Inner {
    vault: Option<Vault>,
    unread: Duration,
    sessions: Mutex<HashMap<Reader, watch::Sender<Option<Caller>>>>,
}

/// Vault as this node reaches it, with the tokens of its tasks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Vaults(Arc<Inner>);

impl Vaults {
    /// `vault`: None = this node has none. `unread`: longest time for which a secret without a lease is kept unread.
    pub fn new(vault: Option<Vault>, unread: Duration) -> Self {
        Self(Arc::new(Inner { vault, unread, sessions: Mutex::default() }))
    }

    /// How Vault is asked.
    pub(crate) fn vault(&self) -> Option<&Vault> {
        self.0.vault.as_ref()
    }

    /// Longest time for which a secret without a lease is kept unread.
    pub(super) fn unread(&self) -> Duration {
        self.0.unread
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Reader, watch::Sender<Option<Caller>>>> {
        self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task's token from now on. The same token changes nothing.
    pub(super) fn give(&self, reader: &Reader, caller: Caller) {
        let mut sessions = self.sessions();
        let session = sessions.entry(reader.clone()).or_insert_with(|| watch::Sender::new(None));
        session.send_if_modified(|present| {
            let changed = present.as_ref() != Some(&caller);
            if changed {
                *present = Some(caller);
            }
            changed
        });
    }

    /// The task's token, and those that follow it.
    pub(super) fn of(&self, reader: &Reader) -> watch::Receiver<Option<Caller>> {
        self.sessions().entry(reader.clone()).or_insert_with(|| watch::Sender::new(None)).subscribe()
    }

    /// The task is over.
    pub(super) fn end(&self, reader: &Reader) {
        self.sessions().remove(reader);
    }
}
