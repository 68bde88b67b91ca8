//! The node's identity: an id and a secret, made at the first start and kept for the life of the data directory.

use model::NodeId;
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
    pub secret_id: String,
}

/// Reads the identity, or makes and stores one.
pub async fn load(store: &LocalStore) -> Result<Identity, StoreError> {
    let read = |name| store.meta(name);
    if let (Some(id), Some(secret_id)) = (read("node_id").and_then(|t| t.parse::<NodeId>().ok()), read("secret_id"))
        && !id.is_nil()
    {
        return Ok(Identity { node_id: id, secret_id });
    }
    let identity = Identity { node_id: NodeId(Uuid::new_v4()), secret_id: Uuid::new_v4().to_string() };
    store.commit(vec![Write::Meta("node_id", identity.node_id.to_string()), Write::Meta("secret_id", identity.secret_id.clone())]).await?;
    Ok(identity)
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
}
