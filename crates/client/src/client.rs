//! Start and stop of a node, and the handle that the rest of the agent talks to.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

use api::shapes::{DriverReload, Gauge, NodeAudit, PluginReload, ReloadOutcome};
use driver_host::Reloaded;
use lifecycle::remote::node::Stored;
use model::{AllocId, Node, NodeId};
use tokio::{
    sync::{Notify, OnceCell, mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::{
    alloc::AllocCommand,
    config::ClientConfig,
    context::NodeContext,
    discovery::Discovery,
    drivers::{ConfiguredPlugins, Drivers},
    env,
    error::{RequestError, StartError},
    fingerprint, identity,
    lease::{BootInstant, Lease},
    ledger::Ledger,
    leftovers::Places,
    lock::DirLock,
    metadata::Metadata,
    node::{self, Allocs, Known, NodeCommand, NodeLoop},
    outbox::Outbox,
    remote::{RemoteLoop, RemoteManager},
    service_watch::ServiceWatches,
    session::{Session, SessionStatus},
    stats::TaskStatsCache,
    store::{CGROUP_PARENT, LocalStore, Write},
    task_api::{TaskApiServer, TaskApis},
    tokens::Tokens,
};

/// A running node. Dropping it without [`Client::stop`] ends its loops at once; tasks run on either way.
pub struct Client {
    handle: ClientHandle,
    loops: Vec<JoinHandle<()>>,
    _lock: DirLock,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.handle.inner.ctx.stop.cancel();
    }
}

/// How long final states may take to reach a server when the agent stops.
const FLUSH: Duration = Duration::from_secs(2);
/// How long loops may take to leave their records complete.
const LOOPS: Duration = Duration::from_secs(10);

impl Client {
    /// Takes the data directory, restores, fingerprints, launches the drivers and begins to talk to a server.
    ///
    /// # Errors
    /// When another agent holds the directory, or the directory or configuration cannot be used. A server that cannot be reached is no error.
    pub async fn start(config: ClientConfig) -> Result<Self, StartError> {
        use std::os::unix::fs::DirBuilderExt;
        if let Some(option) = config.unknown_options().first() {
            return Err(StartError::Config(format!(
                "option {option:?} is not known; known are {}",
                crate::config::KNOWN_OPTIONS.join(", ")
            )));
        }
        let create = |mode: u32, dir: &std::path::Path| {
            let made = std::fs::DirBuilder::new().recursive(true).mode(mode).create(dir);
            made.map_err(StartError::io("create", dir))
        };
        create(0o700, &config.state_dir)?;
        create(0o711, &config.alloc_dir)?;
        create(0o700, &config.run_dir())?;
        let lock = take_directory(&config.state_dir).await?;
        let (store, restored) = LocalStore::open(&config.state_dir)?;
        let identity = identity::load(&store).await?;
        if config.plugin_dir.is_some() {
            let missing = crate::cgroup::missing_parents();
            let claim = |dir: &std::path::PathBuf| Write::Claim { kind: CGROUP_PARENT, key: dir.display().to_string() };
            // Who made them is known by it who may remove them; they are only directories, so a claim that is not stored harms nobody.
            let _ = store.commit(missing.iter().map(claim).collect()).await;
            if let Err(error) = crate::cgroup::prepare() {
                tracing::warn!(%error, "cgroups for drivers could not be prepared; drivers that need them will fail to start tasks");
            }
        }
        let config = Arc::new(config);
        let facts = {
            let config = config.clone();
            let looked = tokio::task::spawn_blocking(move || fingerprint::look(&config)).await;
            looked.map_err(|e| StartError::Config(format!("the fingerprint broke off: {e}")))?
        };
        let metadata = Metadata::load(&store, config.meta.clone());
        let mut node = fingerprint::node(&config, &facts);
        node.id = identity.node_id;
        node.secret_id = identity.secret_id;
        node.meta = metadata.merged();
        node.computed_class = fingerprint::computed_class(&node);
        let drivers = Drivers::start(&config, &facts)?;
        let (remote, remote_commands) = RemoteManager::new();
        let denylist = config.options.get("env.denylist").cloned().unwrap_or_else(|| env::DEFAULT_DENYLIST.to_owned());
        let inherited =
            env::inherited(&denylist, std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))));
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        let allocs = Allocs::default();
        let status = Arc::new(Mutex::new(SessionStatus::default()));
        let (tokens, token_questions) = Tokens::new();
        let discovery = Discovery::new(config.region.clone(), status.clone());
        let stop = CancellationToken::new();
        let ctx = Arc::new(NodeContext {
            config: config.clone(),
            store,
            outbox: Arc::new(Outbox::default()),
            node: watch::Sender::new(Arc::new(node)),
            drivers,
            places: Places::of(&config),
            remote,
            lease: Lease::default(),
            services: ServiceWatches::new(discovery.clone()),
            discovery,
            tokens,
            inherited,
            cpu: facts.cpu,
            cores: tokio::sync::Mutex::default(),
            reserving: Arc::default(),
            unbound: Notify::new(),
            task_apis: TaskApis::new(stop.clone()),
            stop,
            launcher: OnceCell::new(),
            seeds: AtomicU64::new(seed),
            allocs: allocs.clone(),
        });

        let (node_commands, commands) = mpsc::unbounded_channel();
        let (to_node, from_server) = mpsc::unbounded_channel();
        let reset = Arc::new(Notify::new());
        let slots = restored.slots.into_iter().map(|(key, attempted, highest_epoch)| (key, Stored { attempted, highest_epoch })).collect();
        let remote_loop = RemoteLoop::new(ctx.clone(), remote_commands, slots, reset.clone());
        let mut node_loop = NodeLoop {
            ctx: ctx.clone(),
            allocs: allocs.clone(),
            loops: JoinSet::new(),
            from_server,
            commands,
            driver_events: ctx.drivers.host().events(),
        };
        let Known { allocs: known, live, forgotten, origins } = Known::of(restored.allocs);
        let (servers, servers_seen) = watch::channel(config.servers.clone());
        let session = Session {
            region: config.region.clone(),
            servers: servers_seen,
            node: ctx.node.subscribe(),
            outbox: ctx.outbox.clone(),
            questions: token_questions,
            lease: ctx.lease.clone(),
            to_node,
            status: status.clone(),
            reset,
            stop: ctx.stop.clone(),
        };
        let mut loops = vec![tokio::spawn(remote_loop.run())];
        // Before the loops and the session: what starts from now on is not left over from a former run.
        node::sweep(&ctx, &known, &live, &restored.ledger).await;
        if !forgotten.is_empty() {
            // Damaged records that stay are damaged again at the next start: nothing depends on their removal.
            let _ = ctx.store.commit(forgotten).await;
        }
        node_loop.restore(origins);
        loops.push(tokio::spawn(node_loop.run()));
        crate::cpuset::settle(&ctx).await;
        let ledger = Arc::new(Ledger::new(ctx.clone(), allocs.clone()));
        loops.push(tokio::spawn(ledger.clone().run()));
        loops.push(tokio::spawn(session.run()));
        let inner = Inner {
            ctx,
            ledger,
            allocs,
            servers,
            status,
            node_commands,
            metadata: tokio::sync::Mutex::new(metadata),
            task_stats: TaskStatsCache::default(),
        };
        Ok(Self { handle: ClientHandle { inner: Arc::new(inner) }, loops, _lock: lock })
    }

    /// The handle for the rest of the agent.
    #[must_use]
    pub fn handle(&self) -> ClientHandle {
        self.handle.clone()
    }

    /// Ends the loops and the plugin processes. Tasks run on, unless the configuration says otherwise; remote instances are never touched.
    pub async fn stop(mut self) {
        let inner = self.handle.inner.clone();
        if inner.ctx.config.stop_tasks_on_stop {
            let (reply, done) = oneshot::channel();
            if inner.node_commands.send(NodeCommand::StopLocal(reply)).is_ok() {
                let limit = inner.ctx.config.max_kill_timeout + Duration::from_secs(5);
                if tokio::time::timeout(limit, done).await.is_err() {
                    tracing::warn!("tasks that did not end in time are left running");
                }
            }
        }
        let flushed = async {
            while !inner.ctx.outbox.is_empty() && inner.session().connected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(FLUSH, flushed).await;
        inner.ctx.stop.cancel();
        // Whoever answers knows this client.
        inner.ctx.task_apis.answered_by(None);
        for l in std::mem::take(&mut self.loops) {
            let _ = tokio::time::timeout(LOOPS, l).await;
        }
        inner.ctx.drivers.shutdown().await;
        let made = inner.ctx.store.claimed(CGROUP_PARENT).into_iter().map(Into::into).collect();
        let gone = crate::cgroup::remove_parents(made);
        let release = |dir: &std::path::PathBuf| Write::Release { kind: CGROUP_PARENT, key: dir.display().to_string() };
        // A claim on what is gone is taken up again by the next start.
        let _ = inner.ctx.store.commit(gone.iter().map(release).collect()).await;
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

/// A process that was being started while the last holder ended has a copy of the lock's descriptor until it executes: not every refusal is final.
async fn take_directory(dir: &std::path::Path) -> Result<DirLock, StartError> {
    let patience = tokio::time::Instant::now() + Duration::from_millis(250);
    loop {
        match DirLock::acquire(dir) {
            Err(StartError::InUse { .. }) if tokio::time::Instant::now() < patience => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => return other,
        }
    }
}

pub(crate) struct Inner {
    pub(crate) ctx: Arc<NodeContext>,
    ledger: Arc<Ledger>,
    pub(crate) allocs: Allocs,
    servers: watch::Sender<Vec<String>>,
    status: Arc<Mutex<SessionStatus>>,
    pub(crate) node_commands: mpsc::UnboundedSender<NodeCommand>,
    metadata: tokio::sync::Mutex<Metadata>,
    pub(crate) task_stats: TaskStatsCache,
}

impl Inner {
    fn session(&self) -> SessionStatus {
        self.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
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
        self.inner.ctx.node()
    }

    /// Changes of the node.
    #[must_use]
    pub fn node_changes(&self) -> watch::Receiver<Arc<Node>> {
        self.inner.ctx.node.subscribe()
    }

    /// Where the server of the session answers HTTP; None without a session, or when it did not say.
    #[must_use]
    pub fn server_http(&self) -> Option<String> {
        let session = self.inner.session();
        Some(session.http).filter(|h| session.connected && !h.is_empty())
    }

    /// Services of the cluster as this node reads them.
    #[must_use]
    pub fn discovery(&self) -> &Discovery {
        &self.inner.ctx.discovery
    }

    /// The configuration of the node.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.inner.ctx.config
    }

    /// Waits until every plugin has sent its first fingerprint or has failed, at most this long.
    pub async fn drivers_settled(&self, limit: Duration) {
        self.inner.ctx.drivers.host().settled(limit).await;
    }

    /// Whether an allocation is on this node; the agent answers its client endpoints itself then.
    #[must_use]
    pub fn has_alloc(&self, alloc: AllocId) -> bool {
        node::handle(&self.inner.allocs, alloc).is_some()
    }

    /// Allocations on this node: id, and whether nothing is left to do for it.
    #[must_use]
    pub fn allocs(&self) -> Vec<(AllocId, bool)> {
        node::handles(&self.inner.allocs).into_iter().map(|(id, h)| (id, h.view.borrow().over)).collect()
    }

    /// Whether a local task runs and its driver has it.
    #[must_use]
    pub fn running(&self, alloc: AllocId, task: &str) -> bool {
        node::handle(&self.inner.allocs, alloc).is_some_and(|h| h.view.borrow().runs.contains_key(task))
    }

    /// What the servers are told about an allocation.
    #[must_use]
    pub fn alloc_update(&self, alloc: AllocId) -> Option<Arc<model::AllocClientUpdate>> {
        node::handle(&self.inner.allocs, alloc).map(|h| h.view.borrow().update.clone())
    }

    /// Servers that the node knows.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        self.inner.servers.borrow().clone()
    }

    /// Replaces the list of servers; the session moves when its server is no longer in it.
    pub fn set_servers(&self, servers: Vec<String>) {
        self.inner.servers.send_if_modified(|old| {
            let changed = *old != servers;
            *old = servers;
            changed
        });
    }

    /// Whether the node may act for remote tasks now.
    #[must_use]
    pub fn lease_held(&self) -> bool {
        self.inner.ctx.lease.held()
    }

    /// A session with a server stands.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.inner.session().connected
    }

    /// Figures for `agent-info`: node_id, known_servers, num_allocations, last_heartbeat, heartbeat_ttl and the state of the session.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<String, String> {
        let session = self.inner.session();
        let last = session.last_ack.map_or_else(|| "never".to_owned(), |t| format!("{:?}", t.until(BootInstant::now())));
        BTreeMap::from([
            ("node_id".to_owned(), self.node_id().to_string()),
            ("known_servers".to_owned(), self.servers().join(",")),
            ("num_allocations".to_owned(), self.allocs().len().to_string()),
            ("last_heartbeat".to_owned(), last),
            ("heartbeat_ttl".to_owned(), format!("{:?}", session.lease)),
            ("server".to_owned(), session.server.clone()),
            ("connected".to_owned(), session.connected.to_string()),
            ("last_error".to_owned(), session.last_error.clone()),
        ])
    }

    /// Balances the books: what exists ⇄ what records claim. With `sweep`, what nobody claims is ended.
    pub async fn audit(&self, sweep: bool) -> NodeAudit {
        self.inner.ledger.audit(sweep).await
    }

    /// Figures of the node for `/v1/metrics`.
    #[must_use]
    pub fn metrics(&self) -> Vec<Gauge> {
        self.inner.ledger.metrics()
    }

    /// Says who answers the requests that tasks make through their Task API sockets, until the client stops.
    pub fn answer_task_api(&self, server: TaskApiServer) {
        self.inner.ctx.task_apis.answered_by(Some(server));
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
        let handle = node::handle(&self.inner.allocs, alloc).ok_or_else(|| RequestError::unknown_alloc(alloc))?;
        let (reply, answer) = oneshot::channel();
        let ended = |_| RequestError::Failed("the allocation is being removed".into());
        handle.commands.send(command(reply)).map_err(|_| RequestError::unknown_alloc(alloc))?;
        answer.await.map_err(ended)?
    }

    /// Collects an ended allocation, or all of them.
    ///
    /// # Errors
    /// When the allocation is unknown or still runs.
    pub async fn collect(&self, alloc: Option<AllocId>) -> Result<(), RequestError> {
        let (reply, answer) = oneshot::channel();
        let stopping = || RequestError::Failed("the node is stopping".into());
        self.inner.node_commands.send(NodeCommand::Collect { alloc, reply }).map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }

    /// Takes changed plugins over without touching tasks: by file, arguments and configuration. `configured` replaces the `plugin` blocks and the
    /// directory that were configured before.
    ///
    /// # Errors
    /// When the directory cannot be read or names collide; then nothing has changed.
    pub async fn reload_drivers(&self, configured: Option<ConfiguredPlugins>) -> Result<DriverReload, RequestError> {
        self.inner.ctx.drivers.reload(configured).await.map(reload_answer)
    }

    /// Replaces the process of one plugin, named by itself or by its driver, whether it has changed or not.
    ///
    /// # Errors
    /// When there is none of that name.
    pub async fn restart_driver(&self, name: &str) -> Result<DriverReload, RequestError> {
        self.inner.ctx.drivers.restart(name).await.map(reload_answer)
    }

    /// Static, dynamic and merged metadata of the node.
    pub async fn metadata(&self) -> serde_json::Value {
        self.inner.metadata.lock().await.to_json()
    }

    /// Changes dynamic metadata; None removes a key. Stored before it takes effect.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub async fn change_metadata(&self, changes: BTreeMap<String, Option<String>>) -> Result<serde_json::Value, RequestError> {
        let mut metadata = self.inner.metadata.lock().await;
        let mut changed = metadata.clone();
        changed.change(changes);
        self.inner.ctx.store.commit(vec![changed.write()]).await.map_err(|e| RequestError::Failed(e.to_string()))?;
        *metadata = changed;
        let merged = metadata.merged();
        self.inner.ctx.node.send_if_modified(|node| {
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
