//! Start and stop of a node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use driver_host::Within;
use hooks::{
    api_socket::ApiSocket,
    artifacts::Artifacts,
    checks::Checks,
    cluster_watch::ClusterWatches,
    collectors::Collectors,
    containment::Containment,
    devices::Devices,
    directories::Directories,
    discovery::Discovery,
    displaced::Displaced,
    drivers::Drivers,
    host_volumes::VolumePlugins,
    identities::Identities,
    launch::Launch,
    migrate,
    network::Networks,
    secrets::Secrets,
    sticky::FormerData,
    task_api::TaskApis,
    task_config::TaskConfigs,
    templates::Templates,
    tokens::Tokens,
    vault::{VaultTokens, Vaults},
    volume_turns::VolumeTurns,
};
use host::{cgroup, cpuset::CoreBinder, env, fingerprint, leftovers::Places, node_env::NodeEnv, seeds::Seeds};
use lifecycle::remote::node::Stored;
use node_config::{ClientConfig, Cores};
use node_record::{
    identity::{self, SignedIdentity},
    lease::Lease,
    membership::Membership,
    metadata::Metadata,
    outbox::Outbox,
    servers::ToldServers,
    store::{CGROUP_PARENT, LocalStore, Write},
};
use remote_manager::{RemoteLoop, RemoteManager};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::{
    alloc::{effects::Runs, outputs::Outputs, parts::Parts, remote_exec::ByManager, start::Starter},
    allocs::{self, Allocs, Here},
    credentials::Credentials,
    elsewhere::{NodeDrivers, Supplies},
    error::StartError,
    former::{Known, Sweep},
    handle::{ClientHandle, Inner},
    host_volumes::{AtStart, HostVolumes},
    ledger::{self, Ledger},
    lock::DirLock,
    node::{NodeCommand, NodeLoop},
    session::{Connect, Session, SessionStatus},
    stats::TaskStatsCache,
    vault_fingerprint,
};

/// What a node has around it: by default this machine.
#[derive(Clone, Default)]
pub struct Surroundings {
    /// How servers are reached; None = over the network.
    pub connect: Option<Connect>,
    /// Built-in drivers that run within this process, by name.
    pub drivers: BTreeMap<String, Within>,
    /// The node is a part of a simulation: nothing on this machine is its own but its directories. It looks for no
    /// processes, and commits its records without a thread.
    pub simulated: bool,
}

/// A running node. Dropping it without [`Client::stop`] ends its loops at once; tasks run on either way.
pub struct Client {
    handle: ClientHandle,
    loops: Vec<JoinHandle<()>>,
    _lock: DirLock,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.handle.inner.stop.cancel();
    }
}

/// Cores that the operator keeps from tasks are kept, or the node does not start.
fn keeps_cores(config: &ClientConfig, cpu: &fingerprint::Cpu) -> Result<(), String> {
    let name = match config.reserved.cores {
        Cores::None => return Ok(()),
        Cores::These(_) => "reserved.cores",
        Cores::Others(_) => "reservable_cores",
    };
    if !cgroup::host().enforces("cpuset") {
        return Err(format!(
            "{name} cannot be kept: this agent has no cgroup controller cpuset; run it as root on a host that has \
                one, or leave {name} out"
        ));
    }
    if cpu.reservable.is_empty() {
        return Err(format!("{name} leaves no core of this host to tasks"));
    }
    Ok(())
}

/// How long loops may take to leave their records complete.
const LOOPS: Duration = Duration::from_secs(10);

impl Client {
    /// Takes the data directory, restores, fingerprints, launches the drivers and begins to talk to a server.
    ///
    /// # Errors
    /// When another agent holds the directory, or the directory or configuration cannot be used. A server that cannot
    /// be reached is no error.
    pub async fn start(config: ClientConfig) -> Result<Self, StartError> {
        Self::start_in(config, Surroundings::default()).await
    }

    /// As [`Client::start`], with other surroundings.
    ///
    /// # Errors
    /// As [`Client::start`].
    pub async fn start_in(config: ClientConfig, around: Surroundings) -> Result<Self, StartError> {
        use std::os::unix::fs::DirBuilderExt;
        if let Some(option) = config.unknown_options().first() {
            return Err(StartError::Config(format!(
                "option {option:?} is not known; known are {}",
                node_config::KNOWN_OPTIONS.join(", ")
            )));
        }
        let create = |mode: u32, dir: &std::path::Path| {
            let made = std::fs::DirBuilder::new().recursive(true).mode(mode).create(dir);
            made.map_err(StartError::io("create", dir))
        };
        // Tasks of other users pass through what is above their directories.
        config.state_dir.parent().map_or(Ok(()), |above| create(0o711, above))?;
        create(0o700, &config.state_dir)?;
        create(0o711, &config.alloc_dir)?;
        create(0o700, &config.run_dir())?;
        let lock = take_directory(&config.state_dir).await?;
        let (store, restored) = match around.simulated {
            false => LocalStore::open(&config.state_dir)?,
            true => LocalStore::open_without_thread(&config.state_dir)?,
        };
        let identity = identity::load(&store).await?;
        let signed = SignedIdentity::load(&store);
        let membership = Membership::load(&store, restored.mark_lost);
        if config.plugin_dir.is_some() {
            let missing = cgroup::missing_parents();
            let claim = |dir: &std::path::PathBuf| Write::Claim { kind: CGROUP_PARENT, key: dir.display().to_string() };
            // Who made them is known by it who may remove them; they are only directories, so a claim that is not
            // stored harms nobody.
            let _ = store.commit(missing.iter().map(claim).collect()).await;
            if let Err(error) = cgroup::prepare() {
                tracing::warn!(%error, "cgroups for drivers could not be prepared; drivers that need them will fail \
                    to start tasks");
            }
        }
        let config = Arc::new(config);
        let facts = {
            let config = config.clone();
            let looked = blocking::spawn(move || fingerprint::look(&config)).await;
            looked.map_err(|e| StartError::Config(format!("the fingerprint broke off: {e}")))?
        };
        keeps_cores(&config, &facts.cpu).map_err(StartError::Config)?;
        let metadata = Metadata::load(&store, config.meta.clone());
        let mut node = fingerprint::node(&config, &facts);
        node.id = identity.node_id;
        node.secret_id = identity.secret_id;
        node.meta = metadata.merged();
        let AtStart { offered, volumes: seen } = AtStart::of(&store, &config.host_volumes);
        node.host_volumes = offered;
        let seen = watch::Sender::new(seen);
        node.computed_class = fingerprint::computed_class(&node);
        let Known { allocs: known, live, forgotten, origins, unconfirmed } = Known::of(restored.allocs);
        // A node that has anything to account for does not keep the servers waiting.
        let new = known.is_empty() && restored.slots.is_empty() && restored.doubtful.is_empty();
        let drivers = Drivers::start(&config, &facts, unconfirmed, around.drivers);
        let drivers = Arc::new(drivers.map_err(StartError::Drivers)?);
        let (remote, remote_commands) = RemoteManager::new(config.patience.output);
        let denylist = config.options.get("env.denylist").cloned().unwrap_or_else(|| env::DEFAULT_DENYLIST.to_owned());
        let inherited = env::inherited(
            &denylist,
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))),
        );
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        let allocs = Allocs::default();
        let status = Arc::new(Mutex::new(SessionStatus::default()));
        let (tokens, token_questions) = Tokens::new();
        let discovery = Discovery::new(config.region.clone(), {
            let status = status.clone();
            Arc::new(move || status.lock().unwrap_or_else(PoisonError::into_inner).http_server())
        })
        .with_tls(config.tls.as_ref().map(|tls| tls.dialer(tls::Peer::Server)))
        .with_identity({
            let (status, signed) = (status.clone(), signed.clone());
            // Servers that let everybody in need not see it.
            move || signed.token().filter(|_| status.lock().unwrap_or_else(PoisonError::into_inner).acl)
        });
        let stop = CancellationToken::new();
        let places = Places::of(&config);
        let foreign = config.plugin_dir.is_some();
        let cores = CoreBinder::new(&facts.cpu, places.clone(), foreign, {
            let allocs = allocs.clone();
            move || allocs::tenants(&allocs)
        });
        let node = watch::Sender::new(Arc::new(node));
        let env = NodeEnv::new(node.subscribe(), &config.region, config.alloc_dir.clone(), inherited);
        let of_requests = env.clone();
        let seeds = Seeds::from(seed);
        let artifacts = Artifacts {
            settings: config.artifacts.clone(),
            env: env.clone(),
            places: places.clone(),
            socket_dir: config.plugin_socket_dir(),
        };
        let artifacts = Arc::new(artifacts);
        let networks =
            Networks { config: config.clone(), drivers: drivers.clone(), env: env.clone(), stop: stop.clone() };
        let networks = Arc::new(networks);
        let (cores, lease, outbox) = (Arc::new(cores), Lease::default(), Arc::new(Outbox::default()));
        let vaults = Vaults::new(config.vault.clone(), config.templates.secrets_unread);
        let watches = ClusterWatches::new(discovery.clone(), tokens.clone(), vaults.clone());
        let vault = Arc::new(VaultTokens {
            vaults,
            tokens: tokens.clone(),
            drivers: drivers.clone(),
            watches: watches.clone(),
            seeds: seeds.clone(),
        });
        let task_apis = Arc::new(TaskApis::new(stop.clone()));
        let collectors = Arc::new(Collectors::new(store.clone(), config.collectors_dir(), config.executors_dir()));
        let identities = Arc::new(Identities { tokens, drivers: drivers.clone(), seeds: seeds.clone() });
        let configs = Arc::new(TaskConfigs { config: config.clone(), env: env.clone(), cpu: facts.cpu.clone() });
        let former = FormerData {
            env: env.clone(),
            present: Box::new(Here(allocs.clone())),
            discovery: discovery.clone(),
            seeds: seeds.clone(),
            patience: migrate::PATIENCE,
        };
        let secrets = Arc::new(Secrets {
            env: env.clone(),
            watches: watches.clone(),
            dir: config.secrets_dir(),
            socket_dir: config.plugin_socket_dir(),
        });
        let templates = Arc::new(Templates {
            config: config.templates.clone(),
            env: env.clone(),
            watches: watches.clone(),
            drivers: drivers.clone(),
            seeds: seeds.clone(),
        });
        let api = Arc::new(ApiSocket { apis: task_apis.clone() });
        let containment = Arc::new(Containment { drivers: drivers.clone(), places: places.clone() });
        let starter = Starter {
            hooks: vec![
                Arc::new(Displaced { present: Box::new(Here(allocs.clone())) }),
                Arc::new(VolumeTurns { volumes: seen.subscribe(), present: Box::new(Here(allocs.clone())) }),
                Arc::new(former),
                Arc::new(Directories { store: store.clone() }),
                api.clone(),
                networks.clone(),
                artifacts.clone(),
                identities.clone(),
                vault.clone(),
                Arc::new(Devices { drivers: drivers.clone(), present: Box::new(Here(allocs.clone())) }),
                secrets.clone(),
                templates.clone(),
            ],
            configs: configs.clone(),
            containment: containment.clone(),
            collectors: collectors.clone(),
            cores: cores.clone(),
            launch: Launch { drivers: drivers.clone(), containment: containment.clone() },
        };
        let runs = Runs {
            store: store.clone(),
            drivers: drivers.clone(),
            containment,
            collectors: collectors.clone(),
            api,
            vault: vault.clone(),
            networks: networks.clone(),
            cores: cores.clone(),
            patience: config.patience.clone(),
            max_kill_timeout: config.max_kill_timeout,
        };
        let outputs = Outputs {
            store: store.clone(),
            drivers: drivers.clone(),
            collectors: collectors.clone(),
            remote: remote.clone(),
        };
        let parts = Arc::new(Parts {
            store: store.clone(),
            outbox: outbox.clone(),
            remote: remote.clone(),
            env: env.clone(),
            seeds: seeds.clone(),
            stop: stop.clone(),
            max_kill_timeout: config.max_kill_timeout,
            cores: cores.clone(),
            networks: networks.clone(),
            checks: Arc::new(Checks { drivers: drivers.clone(), remote: Box::new(ByManager(remote.clone())) }),
            templates,
            identities: identities.clone(),
            vault,
            outputs: Arc::new(outputs),
            starter: Arc::new(starter),
            runs: Arc::new(runs),
        });
        let supplies = Supplies {
            env: env.clone(),
            artifacts,
            identities,
            secrets,
            watches,
            templates: config.templates.clone(),
            configs,
        };
        let reset = Arc::new(Notify::new());
        let means = remote_manager::Means {
            manager: remote.clone(),
            drivers: Arc::new(NodeDrivers(drivers.clone())),
            supplies: Arc::new(supplies),
            lease: lease.clone(),
            store: store.clone(),
            outbox: outbox.clone(),
            env: env.clone(),
            seeds,
            reset_session: reset.clone(),
            stop: stop.clone(),
        };
        let sweep = Sweep {
            config: config.clone(),
            env: env.clone(),
            places: places.clone(),
            store: store.clone(),
            collectors,
            networks: networks.clone(),
        };
        let ledger = Arc::new(Ledger::new(ledger::Means {
            config: config.clone(),
            places,
            drivers: drivers.clone(),
            store: store.clone(),
            networks,
            env,
            allocs: allocs.clone(),
            stop: stop.clone(),
        }));

        let (told_volumes, told) = mpsc::unbounded_channel();
        let volumes = HostVolumes {
            plugins: VolumePlugins {
                env: of_requests.clone(),
                volumes_dir: config.host_volumes_dir.clone(),
                plugin_dir: config.host_volume_plugin_dir.clone(),
                lock_dir: config.volume_locks_dir(),
            },
            store: store.clone(),
            configured: config.host_volumes.clone(),
            node: node.clone(),
            seen,
            told,
            stop: stop.clone(),
        };
        let (node_commands, commands) = mpsc::unbounded_channel();
        let (to_node, from_server) = mpsc::unbounded_channel();
        let slots = restored
            .slots
            .into_iter()
            .map(|(key, attempted, highest_epoch)| (key, Stored { attempted, highest_epoch }))
            .collect();
        let slots = remote_manager::Restored { slots, doubtful: restored.doubtful };
        let remote_loop = RemoteLoop::new(means, remote_commands, slots);
        let schemas = watch::Sender::default();
        let (drivers_told, drivers_known) = oneshot::channel();
        let mut node_loop = NodeLoop {
            config: config.clone(),
            node: node.clone(),
            schemas: schemas.clone(),
            drivers: drivers.clone(),
            remote: remote.clone(),
            volumes: told_volumes,
            outbox: outbox.clone(),
            cores: cores.clone(),
            stop: stop.clone(),
            parts,
            allocs: allocs.clone(),
            loops: JoinSet::new(),
            from_server,
            commands,
            driver_events: drivers.host().events(),
            drivers_known: Some(drivers_told),
        };
        let (servers, servers_seen) = watch::channel(config.servers.clone());
        let told_servers = ToldServers::load(&store);
        let session = Session {
            region: config.region.clone(),
            credentials: Credentials::new(&config, signed.clone()),
            connect: around.connect,
            tls: config.tls.clone().filter(|tls| tls.settings().rpc),
            servers: servers_seen,
            told: told_servers.clone(),
            node: node.subscribe(),
            schemas: schemas.subscribe(),
            outbox: outbox.clone(),
            questions: token_questions,
            lease: lease.clone(),
            membership,
            to_node,
            status: status.clone(),
            reset,
            stop: stop.clone(),
        };
        let mut loops = vec![tokio::spawn(remote_loop.run()), tokio::spawn(volumes.run())];
        // Before the loops and the session: what starts from now on is not left over from a former run.
        if !around.simulated {
            sweep.run(&known, &live, &restored.ledger).await;
        }
        if !forgotten.is_empty() {
            // Damaged records that stay are damaged again at the next start: nothing depends on their removal.
            let _ = store.commit(forgotten).await;
        }
        node_loop.restore(origins);
        if let Some(vault) = config.vault.clone() {
            loops.push(tokio::spawn(vault_fingerprint::run(vault, node.clone(), stop.clone())));
        }
        loops.push(tokio::spawn(node_loop.run()));
        cores.settle().await;
        if !around.simulated {
            loops.push(tokio::spawn(ledger.clone().run()));
        }
        loops.push(tokio::spawn({
            let (stop, patience) = (stop.clone(), config.patience.registration);
            async move {
                if new {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        _ = tokio::time::timeout(patience, drivers_known) => {}
                    }
                }
                session.run().await;
            }
        }));
        let inner = Inner {
            config,
            node,
            store,
            outbox,
            drivers,
            env: of_requests,
            remote,
            lease,
            discovery,
            task_apis,
            cpu: facts.cpu,
            stop,
            ledger,
            allocs,
            servers,
            told_servers,
            status,
            node_commands,
            metadata: tokio::sync::Mutex::new(metadata),
            signed,
            task_stats: TaskStatsCache::default(),
        };
        Ok(Self { handle: ClientHandle { inner: Arc::new(inner) }, loops, _lock: lock })
    }

    /// The handle for the rest of the agent.
    #[must_use]
    pub fn handle(&self) -> ClientHandle {
        self.handle.clone()
    }

    /// Ends the loops and the plugin processes, and closes the records: the directory may be copied then. Tasks run on,
    /// unless the configuration says otherwise; remote instances are never touched.
    pub async fn stop(mut self) {
        let inner = self.handle.inner.clone();
        if inner.config.stop_tasks_on_stop {
            let (reply, done) = oneshot::channel();
            if inner.node_commands.send(NodeCommand::StopLocal(reply)).is_ok() {
                let limit = inner.config.max_kill_timeout + Duration::from_secs(5);
                if tokio::time::timeout(limit, done).await.is_err() {
                    tracing::warn!("tasks that did not end in time are left running");
                }
            }
        }
        let flushed = async {
            while !inner.outbox.is_empty() && inner.session().connected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(inner.config.patience.flush, flushed).await;
        inner.stop.cancel();
        // Whoever answers knows this client.
        inner.task_apis.answered_by(None);
        for l in std::mem::take(&mut self.loops) {
            let _ = tokio::time::timeout(LOOPS, l).await;
        }
        inner.drivers.shutdown().await;
        let made = inner.store.claimed(CGROUP_PARENT).into_iter().map(Into::into).collect();
        let gone = cgroup::remove_parents(made);
        let release = |dir: &std::path::PathBuf| Write::Release { kind: CGROUP_PARENT, key: dir.display().to_string() };
        // A claim on what is gone is taken up again by the next start.
        let _ = inner.store.commit(gone.iter().map(release).collect()).await;
        // Whoever still has a handle: the directory may be copied now.
        if tokio::time::timeout(LOOPS, inner.store.close()).await.is_err() {
            tracing::warn!("the local records are still open: the disk does not complete what was written last");
        }
    }
}

/// A process that was being started while the last holder ended has a copy of the lock's descriptor until it
/// executes: not every refusal is final.
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
