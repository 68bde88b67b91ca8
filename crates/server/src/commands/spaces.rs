//! Commands that change namespaces and node pools.

use std::sync::Arc;

use control::spaces;
use model::{Namespace, StoreIndex};
use state::{NamespaceRecord, NodePool};

use crate::{error::ServerError, handle::ServerHandle};

impl ServerHandle {
    /// Creates a namespace, or replaces the whole of one; the index of the change.
    ///
    /// # Errors
    /// When a rule of namespaces is broken.
    pub async fn put_namespace(&self, record: NamespaceRecord) -> Result<StoreIndex, ServerError> {
        self.decide(move |_, stamp, _| spaces::put_namespace(record, stamp)).await
    }

    /// Deletes a namespace that nothing uses; the index of the change.
    ///
    /// # Errors
    /// When it is built in, does not exist, or is in use.
    pub async fn delete_namespace(&self, name: Namespace) -> Result<StoreIndex, ServerError> {
        let region = self.config().region.clone();
        self.decide(move |state, stamp, _| spaces::delete_namespace(state, &name, &region, stamp)).await
    }

    /// Creates a node pool, or replaces the whole of one; the index of the change.
    ///
    /// # Errors
    /// When it is built in, or a rule of node pools is broken.
    pub async fn put_node_pool(&self, pool: NodePool) -> Result<StoreIndex, ServerError> {
        self.decide(move |_, stamp, _| spaces::put_pool(pool, stamp)).await
    }

    /// Deletes a node pool that nothing uses; the index of the change.
    ///
    /// # Errors
    /// When it is built in, does not exist, or is in use.
    pub async fn delete_node_pool(&self, name: Arc<str>) -> Result<StoreIndex, ServerError> {
        let region = self.config().region.clone();
        self.decide(move |state, stamp, _| spaces::delete_pool(state, &name, &region, stamp)).await
    }
}
