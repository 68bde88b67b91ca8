//! The node's identity: an id and a secret, made at the first start and kept for the life of the data directory, and
//! what the servers have signed about it.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use model::{NodeId, Secret};
use uuid::Uuid;

use crate::{
    StoreError,
    store::{LocalStore, Write},
};

/// Identity of the node.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The node's id.
    pub node_id: NodeId,
    /// Secret that proves the id.
    pub secret_id: Secret,
}

/// Reads the identity, or makes and stores one.
///
/// # Errors
/// When a new identity cannot be stored: it must not be used then.
pub async fn load(store: &LocalStore) -> Result<Identity, StoreError> {
    let read = |name| store.meta(name);
    if let (Some(id), Some(secret_id)) = (read("node_id").and_then(|t| t.parse::<NodeId>().ok()), read("secret_id"))
        && !id.is_nil()
    {
        return Ok(Identity { node_id: id, secret_id: secret_id.into() });
    }
    let identity = Identity { node_id: NodeId(Uuid::new_v4()), secret_id: Uuid::new_v4().to_string().into() };
    store
        .commit(vec![
            Write::Meta("node_id", identity.node_id.to_string()),
            Write::Meta("secret_id", identity.secret_id.reveal().to_owned()),
        ])
        .await?;
    Ok(identity)
}

/// Name of the record of the token.
const SIGNED: &str = "signed_identity";

/// The identity that servers have signed for this node: a token that expires and that they renew. Cheap to clone.
#[derive(Clone)]
pub struct SignedIdentity {
    store: LocalStore,
    token: Arc<Mutex<Option<String>>>,
    wanted: Arc<AtomicBool>,
}

impl fmt::Debug for SignedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedIdentity").field("wanted", &self.wanted()).finish_non_exhaustive()
    }
}

impl SignedIdentity {
    /// Reads it.
    #[must_use]
    pub fn load(store: &LocalStore) -> Self {
        let token = store.meta(SIGNED).filter(|token| !token.is_empty());
        Self { store: store.clone(), token: Arc::new(Mutex::new(token)), wanted: Arc::default() }
    }

    /// The token, a JWT; `None` before the first registration.
    #[must_use]
    pub fn token(&self) -> Option<String> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a new one in the place of the former, and writes it down. It counts at once; the future resolves when it
    /// is durable, and the write goes on when the future is dropped.
    ///
    /// # Errors
    /// When it could not be written down: the next agent shows the former one.
    pub fn keep(&self, token: String) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        self.wanted.store(false, Ordering::Release);
        let store = self.store.clone();
        async move { store.commit(vec![Write::Meta(SIGNED, token)]).await }
    }

    /// Makes the next heartbeat ask for a new one.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    /// Whether a new one is wanted.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_node_keeps_its_identity() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (store, _) = LocalStore::open(dir.path()).expect("open");
        let first = load(&store).await.expect("first");
        let second = load(&store).await.expect("second");
        assert_eq!((first.node_id, first.secret_id), (second.node_id, second.secret_id));
        assert!(!first.node_id.is_nil());
    }
    #[tokio::test]
    async fn a_node_keeps_what_servers_have_signed() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (store, _) = LocalStore::open(dir.path()).expect("open");
        let signed = SignedIdentity::load(&store);
        assert_eq!((signed.token(), signed.wanted()), (None, false));
        signed.want();
        assert!(signed.clone().wanted(), "all of them want it");
        signed.keep("first".to_owned()).await.expect("kept");
        signed.keep("second".to_owned()).await.expect("kept");
        assert_eq!((signed.token().as_deref(), signed.wanted()), (Some("second"), false));
        assert!(!format!("{signed:?}").contains("second"));
        assert_eq!(SignedIdentity::load(&store).token().as_deref(), Some("second"));
    }
}
