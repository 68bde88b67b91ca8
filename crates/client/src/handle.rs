//! The handle by which the rest of the agent talks to a running node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use api::shapes::{DriverReload, Gauge, NodeAudit, PluginReload, ReloadOutcome};
use driver_host::Reloaded;
use hooks::{
    discovery::Discovery,
    drivers::{ConfiguredPlugins, Drivers},
    task_api::{TaskApiServer, TaskApis},
};
use host::fingerprint::{self, Cpu};
use host::node_env::NodeEnv;
use model::{AllocId, Node, NodeId};
use node_config::ClientConfig;
use node_record::{
    identity::SignedIdentity,
    lease::{BootInstant, Lease},
    metadata::Metadata,
    outbox::Outbox,
    servers::ToldServers,
    store::LocalStore,
};
use remote_manager::RemoteManager;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    alloc::AllocCommand,
    allocs::{self, Allocs},
    error::RequestError,
    ledger::Ledger,
    metrics,
    node::NodeCommand,
    session::SessionStatus,
    stats::TaskStatsCache,
};

/// What a handle leads to.
pub(crate) struct Inner {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) node: watch::Sender<Arc<Node>>,
    pub(crate) store: LocalStore,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) drivers: Arc<Drivers>,
    pub(crate) env: NodeEnv,
    pub(crate) remote: RemoteManager,
    pub(crate) lease: Lease,
    pub(crate) discovery: Discovery,
    pub(crate) task_apis: Arc<TaskApis>,
    pub(crate) cpu: Cpu,
    pub(crate) stop: CancellationToken,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) allocs: Allocs,
    pub(crate) servers: watch::Sender<Vec<String>>,
    pub(crate) told_servers: ToldServers,
    pub(crate) status: Arc<Mutex<SessionStatus>>,
    pub(crate) node_commands: mpsc::UnboundedSender<NodeCommand>,
    pub(crate) metadata: tokio::sync::Mutex<Metadata>,
    pub(crate) task_stats: TaskStatsCache,
    pub(crate) signed: SignedIdentity,
}

impl Inner {
    pub(crate) fn session(&self) -> SessionStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the rest of the agent may ask of the node. Cheap to clone.
#[derive(Clone)]
pub struct ClientHandle {
    pub(crate) inner: Arc<Inner>,
}

impl ClientHandle {
    /// Id of the node.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node().id
    }

    /// The node as it is registered now, drivers included.
    #[must_use]
    pub fn node(&self) -> Arc<Node> {
        self.inner.node.borrow().clone()
    }

    /// The identity that servers have signed for the node.
    #[must_use]
    pub fn signed_identity(&self) -> &SignedIdentity {
        &self.inner.signed
    }

    /// Where the server of the session answers HTTP; None without a session, or when it did not say.
    #[must_use]
    pub fn server_http(&self) -> Option<String> {
        let session = self.inner.session();
        Some(session.http).filter(|h| session.connected && !h.is_empty())
    }

    /// Whether the servers decide who may ask this node for something, as they told last.
    #[must_use]
    pub fn acl(&self) -> bool {
        self.inner.session().acl
    }

    /// Services of the cluster as this node reads them.
    #[must_use]
    pub fn discovery(&self) -> &Discovery {
        &self.inner.discovery
    }

    /// The configuration of the node.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Whether an allocation is on this node; the agent answers its client endpoints itself then.
    #[must_use]
    pub fn has_alloc(&self, alloc: AllocId) -> bool {
        allocs::handle(&self.inner.allocs, alloc).is_some()
    }

    /// Allocations on this node: id, and whether nothing is left to do for it.
    #[must_use]
    pub fn allocs(&self) -> Vec<(AllocId, bool)> {
        allocs::handles(&self.inner.allocs).into_iter().map(|(id, h)| (id, h.view.borrow().over)).collect()
    }

    /// Whether a local task runs and its driver has it.
    #[must_use]
    pub fn running(&self, alloc: AllocId, task: &str) -> bool {
        allocs::handle(&self.inner.allocs, alloc).is_some_and(|h| h.view.borrow().runs.contains_key(task))
    }

    /// What the servers are told about an allocation.
    #[must_use]
    pub fn alloc_update(&self, alloc: AllocId) -> Option<Arc<model::AllocClientUpdate>> {
        allocs::handle(&self.inner.allocs, alloc).map(|h| h.view.borrow().update.clone())
    }

    /// Servers that the node knows: those that it was given, then those that servers have told it of.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        self.inner.told_servers.with(&self.inner.servers.borrow())
    }

    /// Replaces the list of servers; the session moves when its server is no longer in it. What servers have told
    /// before is forgotten with the former list.
    pub fn set_servers(&self, servers: Vec<String>) {
        self.inner.servers.send_if_modified(|old| {
            let changed = *old != servers;
            if changed {
                // Queued; the next server tells anew.
                drop(self.inner.told_servers.take(&[]));
            }
            *old = servers;
            changed
        });
    }

    /// Whether the node may act for remote tasks now.
    #[must_use]
    pub fn lease_held(&self) -> bool {
        self.inner.lease.held()
    }

    /// Why the servers' word does not count for this node, if so: they belong to another cluster, refuse it, or know
    /// less than it has acted on, or the disk does not take its mark. It keeps its tasks as they are meanwhile.
    #[must_use]
    pub fn disagrees(&self) -> Option<String> {
        self.inner.session().disagrees()
    }

    /// Fault injection for tests: as long as it is stalled, the disk of the node's records takes nothing and refuses
    /// nothing.
    pub fn stall_store(&self, stalled: bool) {
        self.inner.store.stall(stalled);
    }

    /// A session with a server stands.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.inner.session().connected
    }

    /// Figures for `agent-info`: node_id, known_servers, num_allocations, last_heartbeat, heartbeat_ttl and the state
    /// of the session.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<String, String> {
        let session = self.inner.session();
        let last =
            session.last_ack.map_or_else(|| "never".to_owned(), |t| format!("{:?}", t.until(BootInstant::now())));
        BTreeMap::from([
            ("node_id".to_owned(), self.node_id().to_string()),
            ("known_servers".to_owned(), self.servers().join(",")),
            ("num_allocations".to_owned(), self.allocs().len().to_string()),
            ("last_heartbeat".to_owned(), last),
            ("heartbeat_ttl".to_owned(), format!("{:?}", session.lease)),
            ("server".to_owned(), session.server.clone()),
            ("connected".to_owned(), session.connected.to_string()),
            ("last_error".to_owned(), session.last_error.clone()),
            ("holds".to_owned(), session.holds.clone()),
        ])
    }

    /// Balances the books: what exists ⇄ what records claim. With `sweep`, what nobody claims is ended.
    pub async fn audit(&self, sweep: bool) -> NodeAudit {
        self.inner.ledger.audit(sweep).await
    }

    /// Figures of the node for `/v1/metrics`. What is measured of tasks takes up to two seconds when nobody has asked
    /// for a while.
    pub async fn metrics(&self) -> Vec<Gauge> {
        let mut all = self.inner.ledger.metrics();
        all.extend(metrics::of_node(self).await);
        all
    }

    /// Says who answers the requests that tasks make through their Task API sockets, until the client stops.
    pub fn answer_task_api(&self, server: TaskApiServer) {
        self.inner.task_apis.answered_by(Some(server));
    }

    /// Restarts one task, or all (`all` also those that have ended).
    ///
    /// # Errors
    /// When the allocation or the task is unknown, or nothing runs.
    pub async fn restart(&self, alloc: AllocId, task: Option<&str>, all: bool) -> Result<(), RequestError> {
        let task = task.map(str::to_owned);
        self.ask(alloc, |reply| AllocCommand::Restart { task, all, reply }).await
    }

    /// Sends a signal to one task, or to all that run.
    ///
    /// # Errors
    /// When the allocation or the task is unknown, nothing runs, or the driver refuses.
    pub async fn signal(&self, alloc: AllocId, task: Option<&str>, signal: &str) -> Result<(), RequestError> {
        if !fingerprint::is_signal(signal) {
            return Err(RequestError::Invalid(format!("{signal:?} is not the name of a signal, such as SIGHUP")));
        }
        let (task, signal) = (task.map(str::to_owned), signal.to_owned());
        self.ask(alloc, |reply| AllocCommand::Signal { task, signal, reply }).await
    }

    async fn ask(
        &self,
        alloc: AllocId,
        command: impl FnOnce(oneshot::Sender<Result<(), RequestError>>) -> AllocCommand,
    ) -> Result<(), RequestError> {
        let handle = allocs::handle(&self.inner.allocs, alloc).ok_or_else(|| RequestError::unknown_alloc(alloc))?;
        let (reply, answer) = oneshot::channel();
        let ended = |_| RequestError::Failed("the allocation is being removed".into());
        handle.commands.send(command(reply)).map_err(|_| RequestError::unknown_alloc(alloc))?;
        answer.await.map_err(ended)?
    }

    /// Collects an ended allocation, or all of them. What no server knows to have ended stays; for an end of a moment
    /// ago this waits some seconds.
    ///
    /// # Errors
    /// When the allocation is unknown, still runs, or no server has stored its end.
    pub async fn collect(&self, alloc: Option<AllocId>) -> Result<(), RequestError> {
        let (reply, answer) = oneshot::channel();
        let stopping = || RequestError::Failed("the node is stopping".into());
        self.inner.node_commands.send(NodeCommand::Collect { alloc, reply }).map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }

    /// Takes changed plugins over without touching tasks: by file, arguments and configuration. `configured` replaces
    /// the `plugin` blocks and the directory that were configured before.
    ///
    /// # Errors
    /// When the directory cannot be read or names collide; then nothing has changed.
    pub async fn reload_drivers(&self, configured: Option<ConfiguredPlugins>) -> Result<DriverReload, RequestError> {
        Ok(reload_answer(self.inner.drivers.reload(configured).await?))
    }

    /// Replaces the process of one plugin, named by itself or by its driver, whether it has changed or not.
    ///
    /// # Errors
    /// When there is none of that name.
    pub async fn restart_driver(&self, name: &str) -> Result<DriverReload, RequestError> {
        Ok(reload_answer(self.inner.drivers.restart(name).await?))
    }

    /// Static, dynamic and merged metadata of the node.
    pub async fn metadata(&self) -> serde_json::Value {
        self.inner.metadata.lock().await.to_json()
    }

    /// Changes dynamic metadata; None removes a key. Stored before it takes effect.
    ///
    /// # Errors
    /// When it cannot be stored.
    #[expect(clippy::await_holding_invalid_type, reason = "changes are stored in the order in which they take effect")]
    pub async fn change_metadata(
        &self,
        changes: BTreeMap<String, Option<String>>,
    ) -> Result<serde_json::Value, RequestError> {
        let mut metadata = self.inner.metadata.lock().await;
        let mut changed = metadata.clone();
        changed.change(changes);
        self.inner.store.commit(vec![changed.write()]).await.map_err(|e| RequestError::Failed(e.to_string()))?;
        *metadata = changed;
        let merged = metadata.merged();
        self.inner.node.send_if_modified(|node| {
            let different = node.meta != merged;
            if different {
                let mut new = (**node).clone();
                new.meta = merged;
                new.computed_class = fingerprint::computed_class(&new);
                *node = Arc::new(new);
            }
            different
        });
        Ok(metadata.to_json())
    }
}

fn reload_answer(done: BTreeMap<String, Reloaded>) -> DriverReload {
    let plugins = done.into_iter().map(|(plugin, done)| {
        let (outcome, description) = match done {
            Reloaded::Unchanged => (ReloadOutcome::Unchanged, String::new()),
            Reloaded::Replaced => (ReloadOutcome::Replaced, String::new()),
            Reloaded::Started => (ReloadOutcome::Started, String::new()),
            Reloaded::Ended => (ReloadOutcome::Ended, String::new()),
            Reloaded::Recovered => (ReloadOutcome::Recovered, String::new()),
            Reloaded::Kept(why) => (ReloadOutcome::Kept, why),
            Reloaded::Failed(why) => (ReloadOutcome::Failed, why),
        };
        (plugin, PluginReload { outcome, description })
    });
    DriverReload { plugins: plugins.collect() }
}
