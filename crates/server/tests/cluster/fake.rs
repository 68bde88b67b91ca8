//! Fake nodes: real sessions over TCP, no tasks. What they do about an allocation is a setting; remote tasks live in
//! a fake provider that several nodes share and that records each call.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use api::node_rpc::{
    AllocUpdates, Allocs, FromNode, FromNodeMessage, Heartbeat, Hello, IdentitiesSigned, Inventory, ListRemote,
    MAX_MESSAGE_BYTES, PROTOCOLS, RemoteListed, RemoteOrders, RemoteReports, SignIdentities, ToNode, ToNodeMessage,
    from_json, node_service_client::NodeServiceClient, to_json,
};
use model::{
    AllocClientUpdate, AllocDeploymentStatus, AllocId, Allocation, ClientStatus, DesiredRemote, DesiredStatus,
    DriverInfo, IncarnationId, Job, JobKey, Node, NodeId, Observed, RemoteInstance, RemoteOrder, RemoteReport,
    RemoteServices, ServiceEntry, SlotKey, TaskRunState, TaskState,
    node::RemoteProvider,
    remote::{RemoteHandle, RemoteRole, RemoteVerdict},
};
use server::{
    Server, ServerConfig, ServerHandle, Watched,
    requests::{DeregisterJob, RegisterJob},
};
use state::{State, Table};
use tokio::{sync::mpsc, task::JoinHandle};
use uuid::Uuid;

pub(crate) use crate::fake_jobs::*;
use crate::fake_volumes::{told_volumes, volumes_of};
pub(crate) use testkit::{PATIENCE, eventually, soon};
/// Lease of the nodes in these tests: long enough that a busy machine loses none of them by itself.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// A server, used through its handle; it ends with this.
pub(crate) struct Started(pub(crate) Server);

impl std::ops::Deref for Started {
    type Target = ServerHandle;
    fn deref(&self) -> &ServerHandle {
        self.0.handle()
    }
}

/// A server with short leases, in memory.
pub(crate) async fn start() -> Started {
    Started(start_with(ServerConfig::default()).await)
}

/// The same for tests in which no node is to be lost, however busy the machine is.
pub(crate) async fn start_patient() -> Started {
    let config = ServerConfig { workers: 2, ..ServerConfig::default().with_lease(LEASE) };
    Started(Server::start(ServerConfig { lease_margin: PATIENCE, ..config }).await.unwrap())
}

/// The same with one node, which does that about allocations.
pub(crate) async fn with_node(fate: Fate) -> (Started, FakeNode) {
    let server = start_patient().await;
    let node = FakeNode::join(&server, node(1), fate, &Provider::default()).await;
    (server, node)
}

pub(crate) async fn start_with(config: ServerConfig) -> Server {
    Server::start(ServerConfig { workers: 2, ..config.with_lease(LEASE) }).await.unwrap()
}

/// One with a data directory.
pub(crate) async fn start_in(dir: &Path) -> Server {
    start_with(ServerConfig { data_dir: Some(dir.to_owned()), ..ServerConfig::default() }).await
}

/// What a query waits for that any commit may answer.
pub(crate) fn any_change(_: &State) -> Watched {
    Watched::Tables(Table::ALL.iter().copied().collect())
}

/// Waits until the published state meets a condition.
pub(crate) async fn until(server: &ServerHandle, what: &str, condition: impl Fn(&State) -> bool) -> Arc<State> {
    match server.wait_until(PATIENCE, condition).await {
        Ok(state) => state,
        Err(state) => {
            let mut seen = format!("{what}: not within {PATIENCE:?}; {state:?}");
            for alloc in state.allocs() {
                seen += &format!(
                    "\n  {} {} on {} desired {:?} client {:?} healthy {:?} ({})",
                    alloc.id.short(),
                    alloc.name,
                    alloc.node_id.short(),
                    alloc.desired_status,
                    alloc.client_status,
                    alloc.healthy(),
                    alloc.desired_description
                );
            }
            for eval in state.evals() {
                seen += &format!(
                    "\n  eval {} {:?} {:?} {:?} {:?}",
                    eval.id.short(),
                    eval.trigger,
                    eval.status,
                    eval.status_description,
                    eval.failed_groups.keys().collect::<Vec<_>>()
                );
            }
            for record in state.remote_tasks() {
                seen += &format!("\n  {record:?}");
            }
            panic!("{seen}");
        }
    }
}

pub(crate) fn key(id: &str) -> JobKey {
    JobKey::new("default", id)
}

pub(crate) async fn submit(server: &ServerHandle, job: Job) -> server::requests::EvalCreated {
    server.register_job(RegisterJob { job, ..RegisterJob::default() }).await.unwrap()
}

/// Ends a job; its record stays.
pub(crate) async fn stop(server: &ServerHandle, id: &str) {
    server
        .deregister_job(DeregisterJob { key: key(id), purge: false, eval_priority: None, no_shutdown_delay: false })
        .await
        .unwrap();
}

/// Ends a job and forgets it.
pub(crate) async fn purge(server: &ServerHandle, id: &str) {
    server
        .deregister_job(DeregisterJob { key: key(id), purge: true, eval_priority: None, no_shutdown_delay: false })
        .await
        .unwrap();
}

/// Waits until a drain is over.
pub(crate) async fn drained(server: &ServerHandle, node: &FakeNode) -> Arc<State> {
    let id = node.id();
    until(server, "the drain is complete", |state| state.node(id).is_some_and(|node| node.drain.is_none())).await
}

/// The allocations of a job that are wanted and in that status.
pub(crate) fn live(state: &State, id: &str, status: ClientStatus) -> Vec<Arc<Allocation>> {
    let of = |alloc: &&Arc<Allocation>| alloc.desired_status == DesiredStatus::Run && alloc.client_status == status;
    state.allocs_by_job(&key(id)).filter(of).cloned().collect()
}

/// What a fake node does about allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They run and are healthy.
    Runs,
    /// They run and are unhealthy.
    Unhealthy,
    /// They run and end with code 0.
    Completes,
    /// They fail at once.
    Fails,
    /// Nothing is reported, but that they end when they are to stop.
    Silent,
    /// Nothing is reported, and they end slowly.
    Lingers,
}

/// What a fake node has been told.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) welcomed: bool,
    /// The cluster of the session: owner of what is created.
    cluster: String,
    pub(crate) allocs: BTreeMap<AllocId, Allocation>,
    pub(crate) jobs: BTreeMap<(JobKey, u64), Job>,
    /// Of each allocation, its job as it was sent, and the proof.
    pub(crate) proofs: BTreeMap<AllocId, (Vec<u8>, String)>,
    /// The texts of jobs.
    texts: BTreeMap<(JobKey, u64, u64), Vec<u8>>,
    /// It says this instead of what it has.
    pub(crate) forged: Option<Inventory>,
    /// It is of a release that keeps no proofs.
    pub(crate) without_proofs: bool,
    /// It takes full sets in pieces.
    takes_pieces: bool,
    /// A piece of the same full set follows: of allocations, of orders.
    more: (bool, bool),
    pub(crate) jobs_received: usize,
    pub(crate) full: usize,
    pub(crate) changes: usize,
    pub(crate) removed: BTreeSet<String>,
    pub(crate) orders: BTreeMap<SlotKey, RemoteOrder>,
    pub(crate) acks: u64,
    pub(crate) stored: BTreeSet<u64>,
    pub(crate) goodbye: Option<(String, bool)>,
    /// Updates to say, whatever it knows.
    pub(crate) says: Vec<AllocClientUpdate>,
    /// Tokens to ask for.
    pub(crate) asks: Vec<SignIdentities>,
    pub(crate) signed: Vec<IdentitiesSigned>,
    /// What it remembers of its servers when it is one that does: cluster, generation, highest index.
    pub(crate) member: Option<(String, String, u64)>,
    /// It says that its record of the two last is damaged.
    pub(crate) mark_lost: bool,
    /// Which start of the agent it says to be; empty = it does not say.
    pub(crate) instance: String,
    /// It holds: nothing may be told.
    pub(crate) holds: bool,
    pub(crate) inventories: usize,
    /// Names of its host volumes, as told last.
    pub(crate) volumes: Vec<String>,
    reported: BTreeMap<AllocId, (ClientStatus, model::DeploymentId)>,
    reports: BTreeMap<SlotKey, RemoteReport>,
    /// Slots whose order has not been looked at yet.
    news: BTreeSet<SlotKey>,
    /// Something has changed that reports on allocations follow from.
    changed: bool,
    /// The provider as it was looked at last.
    seen: u64,
}

impl View {
    fn acts_on(&mut self, index: u64) {
        if let Some(member) = &mut self.member {
            member.2 = member.2.max(index);
        }
    }

    /// What a copy of the node's data directory has of it: what it was told to run, and what it remembers of its
    /// servers. Orders are not in it.
    pub(crate) fn directory(&self) -> Self {
        Self {
            allocs: self.allocs.clone(),
            jobs: self.jobs.clone(),
            proofs: self.proofs.clone(),
            member: self.member.clone(),
            ..Self::default()
        }
    }

    /// The allocations that run here.
    pub(crate) fn runs(&self) -> BTreeSet<AllocId> {
        self.allocs.values().filter(|alloc| !alloc.terminal()).map(|alloc| alloc.id).collect()
    }
}

/// A fake node. Dropping it is a crash: nobody is told.
pub(crate) struct FakeNode {
    pub(crate) node: Node,
    pub(crate) view: Arc<Mutex<View>>,
    task: JoinHandle<()>,
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The description of a fake node with room for much.
pub(crate) fn node(number: u128) -> Node {
    let mut node = Node {
        id: NodeId(Uuid::from_u128(0xf000 + number)),
        secret_id: format!("secret {number}").into(),
        datacenter: "dc1".to_owned(),
        name: format!("node-{number}").into(),
        pool: "default".to_owned(),
        ..Node::default()
    };
    node.attributes.insert("kernel.name".into(), "linux".into());
    let driver = DriverInfo { detected: true, healthy: true, ..DriverInfo::default() };
    node.drivers.insert("mock_driver".to_owned(), driver.clone());
    node.attributes.insert("driver.mock_driver".into(), "1".into());
    node.resources.cpu.cpu_shares = 4000;
    node.resources.memory.memory_mb = 8192;
    node.resources.disk.disk_mb = 100_000;
    node
}

/// The same with a driver whose tasks live at a provider.
pub(crate) fn remote_node(number: u128) -> Node {
    let mut node = node(number);
    let remote = RemoteProvider {
        provider: "the provider".to_owned(),
        keyed_create: true,
        find: true,
        list: true,
        list_owners: true,
        conditional_writes: true,
        retained_exit_results: true,
        handle_schema_min: 1,
        handle_schema_max: 1,
        ..RemoteProvider::default()
    };
    node.drivers.insert(
        "far".to_owned(),
        DriverInfo { detected: true, healthy: true, remote: Some(remote), ..DriverInfo::default() },
    );
    node.attributes.insert("driver.far".into(), "1".into());
    node
}

impl FakeNode {
    /// Connects and waits until it is welcome.
    pub(crate) async fn join(server: &ServerHandle, node: Node, fate: Fate, provider: &Provider) -> Self {
        let this = Self::connect(server, node, fate, provider);
        this.until("the node is welcome", |view| view.welcomed && view.full > 0).await;
        this
    }

    pub(crate) fn connect(server: &ServerHandle, node: Node, fate: Fate, provider: &Provider) -> Self {
        Self::go_on(server, node, fate, provider, View::default())
    }

    /// A node that keeps what it has been told, and remembers its servers.
    pub(crate) async fn join_for_good(server: &ServerHandle, node: Node, provider: &Provider) -> Self {
        let view = View { member: Some(Default::default()), ..View::default() };
        let this = Self::go_on(server, node, Fate::Runs, provider, view);
        this.until("the node is welcome", |view| view.welcomed && view.full > 0).await;
        this
    }

    /// A node that takes full sets in pieces.
    pub(crate) fn in_pieces(server: &ServerHandle, node: Node, provider: &Provider) -> Self {
        Self::go_on(server, node, Fate::Runs, provider, View { takes_pieces: true, ..View::default() })
    }

    /// What it has; the node is cut off.
    pub(crate) fn leave(self) -> View {
        self.task.abort();
        std::mem::take(&mut *self.view())
    }

    /// A node that has all that already.
    pub(crate) fn go_on(server: &ServerHandle, node: Node, fate: Fate, provider: &Provider, has: View) -> Self {
        Self::go_on_at(&server.rpc_addr().to_string(), node, fate, provider, has)
    }

    /// A node that reaches its servers at this address.
    pub(crate) async fn join_at(address: &str, node: Node, provider: &Provider) -> Self {
        let this = Self::go_on_at(address, node, Fate::Runs, provider, View::default());
        this.until("the node is welcome", |view| view.welcomed && view.full > 0).await;
        this
    }

    fn go_on_at(address: &str, node: Node, fate: Fate, provider: &Provider, has: View) -> Self {
        let view = Arc::new(Mutex::new(has));
        let address = format!("http://{address}");
        let (described, seen, provider) = (node.clone(), view.clone(), provider.clone());
        let task = tokio::spawn(async move {
            loop {
                let session =
                    Session { node: described.clone(), view: seen.clone(), fate, provider: provider.clone(), seq: 0 };
                if let Err(error) = session.run(address.clone()).await {
                    println!("fake session ended: {error:?}");
                }
                // What was not stored is reported again in a new session; being sent away for another reason is the
                // end.
                {
                    let mut view = seen.lock().unwrap();
                    let again = |view: &View, why: &str| why.contains("was not stored") || view.member.is_some();
                    let goes_on = view.goodbye.as_ref().is_some_and(|(why, retry)| *retry && again(&view, why));
                    if goes_on {
                        view.goodbye = None;
                    } else if view.goodbye.is_some() {
                        return;
                    }
                    view.reported.clear();
                    view.reports.clear();
                    (view.seen, view.changed) = (0, true);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Self { node, view, task }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.node.id
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap()
    }

    /// Waits until it has been told something.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&View) -> bool) {
        testkit::eventually(what, || {
            let view = self.view();
            if condition(&view) { Ok(()) } else { Err(format!("{view:?}")) }
        })
        .await;
    }
}

struct Session {
    node: Node,
    view: Arc<Mutex<View>>,
    fate: Fate,
    provider: Provider,
    seq: u64,
}

/// What a node says first.
pub(crate) fn hello(node: &Node) -> Hello {
    Hello {
        node_id: node.id.to_string(),
        secret_id: node.secret_id.reveal().to_owned(),
        node_json: to_json(node),
        region: "global".to_owned(),
        protocol: *PROTOCOLS.start(),
        ..Hello::default()
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Session {
    async fn run(mut self, address: String) -> Result<(), Failure> {
        let mut client = NodeServiceClient::connect(address).await?.max_decoding_message_size(MAX_MESSAGE_BYTES);
        let (tx, rx) = mpsc::channel::<FromNode>(64);
        let mut hello = hello(&self.node);
        {
            let view = self.view.lock().unwrap();
            hello.instance.clone_from(&view.instance);
            hello.mark_lost = view.mark_lost;
            hello.takes_pieces = view.takes_pieces;
            if let Some(member) = view.member.clone() {
                (hello.cluster_id, hello.generation, hello.mark_index) = member;
            }
        }
        tx.send(FromNodeMessage::Hello(hello).into()).await?;
        let mut from = client.session(tokio_stream::wrappers::ReceiverStream::new(rx)).await?.into_inner();
        let served = self.serve(&tx, &mut from).await;
        if served.is_err() {
            // A server that has stopped reading has said why: its last words are still to be heard.
            while let Ok(Some(message)) = from.message().await {
                message.message.map_or(Ok(()), |message| self.hear(message))?;
            }
        }
        served
    }

    async fn serve(&mut self, tx: &mpsc::Sender<FromNode>, from: &mut tonic::Streaming<ToNode>) -> Result<(), Failure> {
        let mut beat = tokio::time::interval(LEASE / 4);
        let mut look = tokio::time::interval(Duration::from_millis(5));
        loop {
            tokio::select! {
                message = from.message() => {
                    let Some(message) = message?.and_then(|m| m.message) else { return Ok(()) };
                    if let ToNodeMessage::ListRemote(ask) = &message {
                        tx.send(FromNodeMessage::RemoteListed(self.listed(ask)).into()).await?;
                    }
                    if let ToNodeMessage::HostVolumes(told) = &message
                        && self.fate != Fate::Silent
                    {
                        tx.send(FromNodeMessage::HostVolumeReports(volumes_of(&self.node, told)?).into()).await?;
                    }
                    let welcome = matches!(message, ToNodeMessage::Welcome(_));
                    let lost = self.view.lock().unwrap().mark_lost;
                    self.hear(message)?;
                    if lost && !self.view.lock().unwrap().mark_lost {
                        // The mark is set: another session follows.
                        return Ok(());
                    }
                    if welcome && self.view.lock().unwrap().holds {
                        let inventory = self.inventory();
                        tx.send(FromNodeMessage::Inventory(inventory).into()).await?;
                    }
                    self.act(tx).await?;
                }
                _ = beat.tick() => {
                    self.seq += 1;
                    let heartbeat = Heartbeat { seq: self.seq, ..Heartbeat::default() };
                    tx.send(FromNodeMessage::Heartbeat(heartbeat).into()).await?;
                }
                // What has changed at the provider meanwhile.
                _ = look.tick() => self.act(tx).await?,
            }
        }
    }

    /// All that it has.
    fn inventory(&self) -> Inventory {
        let mut view = self.view.lock().unwrap();
        view.inventories += 1;
        if let Some(forged) = view.forged.clone() {
            return forged;
        }
        let mut allocs = Allocs::default();
        for alloc in view.allocs.values() {
            let (job, proof) = view.proofs[&alloc.id].clone();
            let client_status = if alloc.terminal() { alloc.client_status } else { ClientStatus::Running };
            allocs.allocs_json.push(to_json(&Allocation { client_status, ..alloc.clone() }));
            allocs.jobs_json.push(job);
            allocs.proofs.push(if view.without_proofs { String::new() } else { proof });
        }
        let handle = |order: &RemoteOrder| {
            Some(RemoteHandle { schema: 1, data: order.incarnation.0.as_bytes().as_slice().into() })
        };
        let proof = |order: &RemoteOrder| order.proof.clone().filter(|_| !view.without_proofs);
        let orders = view
            .orders
            .values()
            .map(|order| to_json(&RemoteOrder { handle: handle(order), proof: proof(order), ..order.clone() }))
            .collect();
        let orders = RemoteOrders { orders_json: orders, ..RemoteOrders::default() };
        Inventory { allocs: Some(allocs), orders: Some(orders), ..Inventory::default() }
    }

    /// One page that holds everything.
    fn listed(&self, ask: &ListRemote) -> RemoteListed {
        let owner = self.view.lock().unwrap().cluster.clone();
        let world = self.provider.0.lock().unwrap();
        let instances_json =
            world.instances.iter().filter(|(_, i)| !world.hides && (ask.all_owners || i.owner == owner)).map(
                |(key, i)| {
                    let observed = match i.exit {
                        None => Observed::Running,
                        Some(code) => Observed::Exited { code, signal: 0, oom_killed: false, reason: "".into(), at: 1 },
                    };
                    to_json(&RemoteInstance {
                        key: key.to_string(),
                        slot: i.slot.to_string(),
                        owner: if i.owner == owner { String::new() } else { i.owner.clone() },
                        epoch: i.epoch,
                        handle: Some(RemoteHandle { schema: 1, data: key.0.as_bytes().as_slice().into() }),
                        observed,
                        ..RemoteInstance::default()
                    })
                },
            );
        RemoteListed { seq: ask.seq, instances_json: instances_json.collect(), ..RemoteListed::default() }
    }

    fn hear(&self, message: ToNodeMessage) -> Result<(), Failure> {
        let mut view = self.view.lock().unwrap();
        match message {
            ToNodeMessage::Welcome(welcome) => {
                assert!(!welcome.cluster_id.is_empty() && welcome.lease_ms == LEASE.as_millis() as u64);
                view.welcomed = true;
                view.cluster.clone_from(&welcome.cluster_id);
                view.holds = false;
                if let Some((cluster, generation, index)) = view.member.clone() {
                    assert!(
                        cluster.is_empty() || cluster == welcome.cluster_id,
                        "a node of another cluster is not welcome"
                    );
                    let lost = !generation.is_empty() && index > welcome.history_index;
                    let holds = !welcome.recovering.is_empty() || lost || view.mark_lost;
                    let generation = if holds { generation } else { welcome.generation };
                    (view.member, view.holds) = (Some((welcome.cluster_id, generation, index)), holds);
                }
            }
            ToNodeMessage::InventoryStored(stored) => {
                if let Some(member) = &mut view.member {
                    (member.1, member.2) = (stored.generation, stored.index);
                }
                view.mark_lost = false;
            }
            ToNodeMessage::HeartbeatAck(_) => view.acks += 1,
            ToNodeMessage::IdentitiesSigned(answer) => view.signed.push(answer),
            ToNodeMessage::Allocs(allocs) => {
                assert!(!view.holds, "nothing is told to a node that holds: {:?}", view.member);
                view.acts_on(allocs.index);
                view.changed = true;
                if allocs.full && !std::mem::replace(&mut view.more.0, allocs.more) {
                    view.allocs.clear();
                }
                view.full += usize::from(allocs.full && !allocs.more);
                view.changes += allocs.allocs_json.len();
                for json in &allocs.jobs_json {
                    let job: Job = from_json("a job", json)?;
                    view.jobs_received += 1;
                    view.texts.insert((job.key(), job.version, job.job_modify_index), json.clone());
                    view.jobs.insert((job.key(), job.version), job);
                }
                for ((json, index), proof) in allocs.allocs_json.iter().zip(&allocs.job_indexes).zip(&allocs.proofs) {
                    let alloc: Allocation = from_json("an allocation", json)?;
                    assert!(
                        view.jobs.contains_key(&(alloc.job_key(), alloc.job_version)),
                        "the job came before its allocation"
                    );
                    let text = view.texts[&(alloc.job_key(), alloc.job_version, *index)].clone();
                    view.proofs.insert(alloc.id, (text, proof.clone()));
                    view.allocs.insert(alloc.id, alloc);
                }
                for id in allocs.removed {
                    view.allocs.remove(&id.parse()?);
                    view.removed.insert(id);
                }
            }
            ToNodeMessage::UpdatesStored(stored) => {
                if !view.holds {
                    view.acts_on(stored.index);
                }
                view.stored.insert(stored.seq);
            }
            ToNodeMessage::RemoteOrders(orders) => {
                assert!(!view.holds, "nothing is ordered from a node that holds");
                view.acts_on(orders.index);
                view.changed = true;
                if orders.full && !std::mem::replace(&mut view.more.1, orders.more) {
                    view.orders.clear();
                }
                for json in &orders.orders_json {
                    let order: RemoteOrder = from_json("an order", json)?;
                    view.news.insert(order.slot.clone());
                    view.orders.insert(order.slot.clone(), order);
                }
                for slot in orders.released {
                    view.orders.remove(&slot.parse()?);
                }
            }
            // Answered where they came.
            ToNodeMessage::ListRemote(_) => {}
            ToNodeMessage::HostVolumes(told) => {
                assert!(!view.holds, "nothing is made by a node that holds");
                view.acts_on(told.index);
                view.volumes = told_volumes(&told)?.into_iter().map(|volume| volume.name).collect();
            }
            ToNodeMessage::Goodbye(goodbye) => view.goodbye = Some((goodbye.reason, goodbye.retry)),
        }
        Ok(())
    }

    /// Reports whatever has become of allocations and remote tasks.
    async fn act(&mut self, tx: &mpsc::Sender<FromNode>) -> Result<(), Failure> {
        let asks = std::mem::take(&mut self.view.lock().unwrap().asks);
        for ask in asks {
            tx.send(FromNodeMessage::SignIdentities(ask).into()).await?;
        }
        let (reports, updates) = {
            let mut view = self.view.lock().unwrap();
            let reports = self.remote_reports(&mut view);
            (reports, self.updates(&mut view))
        };
        if !reports.is_empty() {
            self.seq += 1;
            let reports = RemoteReports { seq: self.seq, reports_json: reports.iter().map(to_json).collect() };
            tx.send(FromNodeMessage::RemoteReports(reports).into()).await?;
        }
        let said = std::mem::take(&mut self.view.lock().unwrap().says);
        for updates in updates.into_iter().chain((!said.is_empty()).then_some(said)) {
            self.seq += 1;
            let updates = AllocUpdates { seq: self.seq, updates_json: updates.iter().map(to_json).collect() };
            tx.send(FromNodeMessage::AllocUpdates(updates).into()).await?;
        }
        Ok(())
    }

    fn updates(&self, view: &mut View) -> Vec<Vec<AllocClientUpdate>> {
        let mut rounds: Vec<Vec<AllocClientUpdate>> = vec![Vec::new(), Vec::new()];
        if !std::mem::take(&mut view.changed) {
            rounds.clear();
            return rounds;
        }
        for alloc in view.allocs.values() {
            // Taking part in another deployment, its health is to be reported again.
            let (before, deployment) =
                view.reported.get(&alloc.id).copied().unwrap_or((alloc.client_status, alloc.deployment_id));
            if before.terminal() {
                continue;
            }
            let job = &view.jobs[&(alloc.job_key(), alloc.job_version)];
            let remote = job.task_groups[0].tasks[0].driver == "far";
            let slot = model::remote::slot_of(alloc, &"t".into());
            let order = view.orders.get(&slot).filter(|order| order.alloc_id == alloc.id);
            if self.fate == Fate::Lingers {
                continue;
            }
            let statuses: &[ClientStatus] = if alloc.server_terminal() {
                // What it manages elsewhere is let go when the servers say so, not because the allocation ends here.
                if remote && order.is_some_and(|o| o.role == RemoteRole::Manage && !o.verdict.final_for_task()) {
                    continue;
                }
                &[ClientStatus::Complete]
            } else if remote {
                match order.map(|order| (&order.verdict, view.reports.get(&slot).map(|r| &r.observed))) {
                    Some((RemoteVerdict::Complete | RemoteVerdict::Stopped, _)) => &[ClientStatus::Complete],
                    Some((RemoteVerdict::Failed { .. }, _)) => &[ClientStatus::Failed],
                    Some((_, Some(Observed::Running))) => &[ClientStatus::Running],
                    _ => continue,
                }
            } else {
                match self.fate {
                    Fate::Runs | Fate::Unhealthy => &[ClientStatus::Running],
                    Fate::Completes => &[ClientStatus::Running, ClientStatus::Complete],
                    Fate::Fails => &[ClientStatus::Failed],
                    Fate::Silent | Fate::Lingers => continue,
                }
            };
            for (round, status) in statuses.iter().enumerate() {
                if *status != before || deployment != alloc.deployment_id {
                    let mut update = update(alloc, *status, self.fate != Fate::Unhealthy);
                    let entries = if *status == ClientStatus::Running { entries(job) } else { Vec::new() };
                    if !remote {
                        update.services = Some(entries);
                    } else if let Some(order) = order.filter(|o| o.role == RemoteRole::Manage) {
                        update.remote_services.insert("t".into(), RemoteServices { epoch: order.epoch, entries });
                    }
                    rounds[round].push(update);
                }
            }
        }
        for update in rounds.iter().flatten() {
            let deployment = view.allocs[&update.id].deployment_id;
            view.reported.insert(update.id, (update.client_status, deployment));
        }
        rounds.retain(|updates| !updates.is_empty());
        rounds
    }

    fn remote_reports(&self, view: &mut View) -> Vec<RemoteReport> {
        let changes = self.provider.0.lock().unwrap().changes;
        let (all, news) = (std::mem::replace(&mut view.seen, changes) != changes, std::mem::take(&mut view.news));
        let mut reports = Vec::new();
        for order in view.orders.values().filter(|order| all || news.contains(&order.slot)) {
            let report = self.provider.follow(self.node.id, &view.cluster, order);
            if view.reports.get(&order.slot) != Some(&report) {
                view.reports.insert(order.slot.clone(), report.clone());
                reports.push(report);
            }
        }
        view.changed |= !reports.is_empty();
        reports
    }
}

pub(crate) fn update(alloc: &Allocation, status: ClientStatus, healthy: bool) -> AllocClientUpdate {
    let state = match status {
        ClientStatus::Pending => TaskRunState::Pending,
        ClientStatus::Running => TaskRunState::Running,
        _ => TaskRunState::Dead,
    };
    let task = TaskState { state, failed: status == ClientStatus::Failed, ..TaskState::default() };
    let watched = status == ClientStatus::Running;
    AllocClientUpdate {
        id: alloc.id,
        client_status: status,
        task_states: [("t".into(), task)].into(),
        deployment_status: watched
            .then(|| AllocDeploymentStatus { healthy: Some(healthy), ..AllocDeploymentStatus::default() }),
        ..AllocClientUpdate::default()
    }
}

/// The services of a job as a node would register them.
fn entries(job: &Job) -> Vec<ServiceEntry> {
    let services = job.task_groups[0].services.iter();
    let entry = |s: &model::Service| ServiceEntry {
        suffix: format!("group-g-{}-", s.name),
        name: s.name.clone(),
        tags: s.tags.clone(),
        address: "10.9.9.9".to_owned(),
        port: 80,
        ..ServiceEntry::default()
    };
    services.map(entry).collect()
}

/// A call that the provider has carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Create,
    Stop,
    Forget,
}

#[derive(Debug, Default)]
struct World {
    instances: BTreeMap<IncarnationId, Instance>,
    by_slot: BTreeMap<SlotKey, Vec<IncarnationId>>,
    /// How often an instance has come to look otherwise to those who know it.
    changes: u64,
    calls: Vec<(Call, NodeId, u64)>,
    /// Who has seen which instance: nobody creates again what it has seen, however late it hears that the instance is
    /// not its own any more.
    seen: BTreeSet<(NodeId, IncarnationId)>,
    /// Highest number of live instances that a slot ever had.
    most_live: usize,
    /// It lists nothing.
    hides: bool,
}

#[derive(Clone, Debug)]
struct Instance {
    slot: SlotKey,
    owner: String,
    epoch: u64,
    exit: Option<i32>,
}

/// The runtime outside of every node: keyed create, conditional writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Provider(Arc<Mutex<World>>);

impl Provider {
    pub(crate) fn calls(&self, call: &Call) -> usize {
        self.0.lock().unwrap().calls.iter().filter(|(c, ..)| c == call).count()
    }
    /// Instances that run.
    pub(crate) fn live(&self) -> BTreeSet<IncarnationId> {
        self.0.lock().unwrap().instances.iter().filter(|(_, i)| i.exit.is_none()).map(|(id, _)| *id).collect()
    }
    pub(crate) fn most_live(&self) -> usize {
        self.0.lock().unwrap().most_live
    }
    /// Whether it lists nothing of what it has.
    pub(crate) fn hides(&self, hides: bool) {
        self.0.lock().unwrap().hides = hides;
    }
    /// The instances end by themselves.
    pub(crate) fn exit_all(&self, code: i32) {
        let mut world = self.0.lock().unwrap();
        world.changes += 1;
        world.instances.values_mut().for_each(|i| i.exit = i.exit.or(Some(code)));
    }

    /// What a well-behaved manager does about an order, in one step.
    fn follow(&self, node: NodeId, owner: &str, order: &RemoteOrder) -> RemoteReport {
        let mut world = self.0.lock().unwrap();
        let World { instances, by_slot, changes, calls, seen, most_live, .. } = &mut *world;
        let calls_before = calls.len();
        let mutates = order.role != RemoteRole::Observe;
        let mut forgotten = false;
        if mutates
            && order.role == RemoteRole::Manage
            && order.desired == DesiredRemote::Run
            && !order.acknowledge
            && !order.verdict.final_for_task()
            && !instances.contains_key(&order.incarnation)
            && !seen.contains(&(node, order.incarnation))
        {
            calls.push((Call::Create, node, order.epoch));
            let instance =
                Instance { slot: order.slot.clone(), owner: owner.to_owned(), epoch: order.epoch, exit: None };
            instances.insert(order.incarnation, instance);
            let of_slot = by_slot.entry(order.slot.clone()).or_default();
            of_slot.push(order.incarnation);
            let live = of_slot.iter().filter_map(|id| instances.get(id)).filter(|i| i.exit.is_none()).count();
            *most_live = (*most_live).max(live);
        }
        if let Some(instance) = instances.get_mut(&order.incarnation)
            && mutates
            // A call under a stale epoch is refused: a manager that does not know yet that it was replaced.
            && order.epoch >= instance.epoch
        {
            *changes += u64::from(order.epoch != instance.epoch);
            instance.epoch = order.epoch;
            if order.desired == DesiredRemote::Stop && instance.exit.is_none() {
                calls.push((Call::Stop, node, order.epoch));
                instance.exit = Some(143);
            }
        }
        let found = instances.get(&order.incarnation).cloned();
        if found.is_some() {
            seen.insert((node, order.incarnation));
        }
        let stale = found.as_ref().is_some_and(|instance| instance.epoch > order.epoch);
        if mutates && order.acknowledge && !stale {
            if instances.remove(&order.incarnation).is_some() {
                calls.push((Call::Forget, node, order.epoch));
            }
            forgotten = true;
        }
        *changes += (calls.len() - calls_before) as u64;
        let observed = match found {
            None => Observed::Gone,
            Some(Instance { exit: None, .. }) => Observed::Running,
            Some(Instance { exit: Some(code), .. }) => {
                Observed::Exited { code, signal: 0, oom_killed: false, reason: "".into(), at: 1 }
            }
        };
        let handle = RemoteHandle { schema: 1, data: order.incarnation.0.as_bytes().as_slice().into() };
        RemoteReport {
            slot: order.slot.clone(),
            incarnation: order.incarnation,
            epoch: order.epoch,
            provider: "the provider".to_owned(),
            handle: (observed != Observed::Gone).then_some(handle),
            started_at: i64::from(observed != Observed::Gone),
            observed,
            forgotten,
            ..RemoteReport::default()
        }
    }
}
