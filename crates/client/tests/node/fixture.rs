//! A node, its plugins, and a server session that the test speaks through.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use api::node_rpc::{
    self, Allocs, DriverSchema, FromNode, FromNodeMessage, HeartbeatAck, IdentitiesSigned, RemoteOrders,
    SignedIdentity, ToNode, ToNodeMessage, UpdatesStored, Welcome,
    node_service_server::{NodeService, NodeServiceServer},
};
use client::{Client, ClientConfig, PluginCommand, PluginSettings, StartError};
use model::{
    AllocClientUpdate, AllocId, Allocation, ClientStatus, DesiredRemote, DesiredStatus, GoDuration, IncarnationId, Job,
    Node, Observed, RemoteOrder, RemoteReport, Restart, Task, TaskGroup, TaskState,
    remote::{RemoteRole, slot_of},
    resources::{AllocatedCpu, AllocatedMemory, AllocatedResources, AllocatedTask},
};
pub(crate) use testkit::{PATIENCE, eventually, poll};
use testkit::{command_line, environment, pids};
use tokio::sync::{mpsc, watch};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// What the node has said, newest by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) allocs: BTreeMap<AllocId, AllocClientUpdate>,
    /// Every update, in order.
    pub(crate) updates: Vec<AllocClientUpdate>,
    pub(crate) reports: BTreeMap<String, Vec<RemoteReport>>,
    pub(crate) sessions: usize,
    /// What a node that holds has said.
    pub(crate) inventories: Vec<node_rpc::Inventory>,
    pub(crate) hellos: Vec<node_rpc::Hello>,
    /// Of the drivers, as told last in this session.
    pub(crate) schemas: Option<Vec<DriverSchema>>,
    /// What has become of host volumes, in order.
    pub(crate) volumes: Vec<model::VolumeReport>,
}

#[derive(Default)]
struct Desired {
    allocs: BTreeMap<AllocId, (Allocation, Job)>,
    orders: BTreeMap<String, RemoteOrder>,
    lease_ms: u64,
    heartbeat_ms: u64,
    mute: bool,
    away: bool,
    http: String,
    token_ttl: Option<Duration>,
    /// What sessions that begin from now on are welcomed with.
    welcome: Welcome,
    /// Index of what is told.
    index: u64,
    /// The servers that heartbeats are answered with.
    servers: Vec<String>,
}

struct Shared {
    desired: Mutex<Desired>,
    heard: watch::Sender<Heard>,
    session: Mutex<Option<mpsc::UnboundedSender<Result<ToNode, Status>>>>,
}

/// The server of the tests.
#[derive(Clone)]
pub(crate) struct FakeServer {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

impl FakeServer {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("addr");
        let shared = Arc::new(Shared {
            desired: Mutex::new(Desired { lease_ms: 10_000, ..Desired::default() }),
            heard: watch::Sender::default(),
            session: Mutex::default(),
        });
        let stop = CancellationToken::new();
        let service = NodeServiceServer::new(Service(shared.clone()));
        let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        let ended = stop.clone();
        tokio::spawn(async move {
            let served = tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming_shutdown(incoming, ended.cancelled_owned());
            served.await.expect("serve");
        });
        Self { addr, shared, stop }
    }

    fn desired(&self) -> std::sync::MutexGuard<'_, Desired> {
        self.shared.desired.lock().expect("lock")
    }

    fn send(&self, message: ToNodeMessage) {
        self.say(message.into());
    }

    /// Says it as it is, whether a node knows such a message or not.
    pub(crate) fn say(&self, message: ToNode) {
        if let Some(session) = &*self.shared.session.lock().expect("lock") {
            let _ = session.send(Ok(message));
        }
    }

    /// Places or changes an allocation.
    pub(crate) fn place(&self, alloc: &Allocation, job: &Job) {
        self.desired().allocs.insert(alloc.id, (alloc.clone(), job.clone()));
        self.send(ToNodeMessage::Allocs(message(&[(alloc.clone(), job.clone())], false)));
    }

    /// Wants an allocation stopped.
    pub(crate) fn stop_alloc(&self, id: AllocId) {
        let placed = {
            let mut desired = self.desired();
            let (alloc, job) = desired.allocs.get_mut(&id).expect("placed");
            alloc.desired_status = DesiredStatus::Stop;
            alloc.alloc_modify_index += 1;
            (alloc.clone(), job.clone())
        };
        self.send(ToNodeMessage::Allocs(message(&[placed], false)));
    }

    /// Leases from now on.
    pub(crate) fn lease(&self, lease: Duration) {
        self.desired().lease_ms = u64::try_from(lease.as_millis()).expect("short");
    }

    /// Pause between heartbeats from now on.
    pub(crate) fn heartbeat(&self, pause: Duration) {
        self.desired().heartbeat_ms = u64::try_from(pause.as_millis()).expect("short");
    }

    /// Says goodbye; the next session is welcomed so, and what is told then has that index.
    pub(crate) fn change(&self, welcome: Welcome, index: u64) {
        let mut desired = self.desired();
        (desired.welcome, desired.index) = (welcome, index);
        drop(desired);
        self.send(ToNodeMessage::Goodbye(node_rpc::Goodbye { reason: "the test goes on".into(), retry: true }));
    }

    /// Takes an allocation out of what the next sessions are told.
    pub(crate) fn forget_alloc(&self, id: AllocId) -> (Allocation, Job) {
        self.desired().allocs.remove(&id).expect("placed")
    }

    /// Puts it back.
    pub(crate) fn set_alloc(&self, placed: (Allocation, Job)) {
        self.desired().allocs.insert(placed.0.id, placed);
    }

    /// Takes an order out of what the next sessions are told.
    pub(crate) fn forget_order(&self, slot: &model::SlotKey) {
        self.desired().orders.remove(&slot.to_string());
    }

    /// The inventory that was said is taken over.
    pub(crate) fn take_over(&self, generation: &str, index: u64) {
        self.send(ToNodeMessage::InventoryStored(node_rpc::InventoryStored {
            generation: generation.to_owned(),
            index,
        }));
    }

    /// Heartbeats are answered with these servers from now on.
    pub(crate) fn tells_of(&self, servers: &[String]) {
        self.desired().servers = servers.to_vec();
    }

    /// Heartbeats are no longer answered.
    pub(crate) fn mute(&self, mute: bool) {
        self.desired().mute = mute;
    }

    /// Ends the session, takes nothing more of what the node says, and opens no session.
    pub(crate) fn goes_away(&self) {
        self.desired().away = true;
        self.send(ToNodeMessage::Goodbye(node_rpc::Goodbye { reason: "the server goes away".into(), retry: true }));
    }

    /// Opens sessions again.
    pub(crate) fn comes_back(&self) {
        self.desired().away = false;
    }

    /// Tokens are given from now on, with so long a life (zero = without an end).
    pub(crate) fn tokens(&self, ttl: Duration) {
        self.desired().token_ttl = Some(ttl);
    }

    /// Where sessions that begin from now on are told that the server answers HTTP.
    pub(crate) fn http(&self, addr: &str) {
        addr.clone_into(&mut self.desired().http);
    }

    /// Forgets an allocation.
    pub(crate) fn collect(&self, id: AllocId) {
        self.desired().allocs.remove(&id);
        self.send(ToNodeMessage::Allocs(Allocs { removed: vec![id.to_string()], ..Allocs::default() }));
    }

    /// The newest update of an allocation that fits.
    pub(crate) async fn alloc(
        &self,
        id: AllocId,
        what: &str,
        fits: impl Fn(&AllocClientUpdate) -> bool,
    ) -> AllocClientUpdate {
        self.heard(what, |h| h.allocs.get(&id).filter(|u| fits(u)).cloned()).await
    }

    pub(crate) async fn status(&self, id: AllocId, status: ClientStatus) -> AllocClientUpdate {
        self.alloc(id, &format!("client status {status:?}"), |u| u.client_status == status).await
    }

    /// Waits until the tasks of an allocation have been started; they may have ended since.
    pub(crate) async fn started(&self, id: AllocId) {
        let all = |u: &AllocClientUpdate| {
            !u.task_states.is_empty() && u.task_states.values().all(|state| !state.started_at.is_unset())
        };
        self.alloc(id, "the start of its tasks", all).await;
    }

    /// Gives an order about a slot.
    pub(crate) fn order(&self, order: &RemoteOrder) {
        self.desired().orders.insert(order.slot.to_string(), order.clone());
        self.send(ToNodeMessage::RemoteOrders(RemoteOrders {
            full: false,
            orders_json: vec![node_rpc::to_json(order)],
            ..RemoteOrders::default()
        }));
    }

    /// All orders that there are, in the middle of a session.
    pub(crate) fn all_orders(&self) {
        let orders_json = self.shared.desired.lock().expect("lock").orders.values().map(node_rpc::to_json).collect();
        self.send(ToNodeMessage::RemoteOrders(RemoteOrders { full: true, orders_json, ..RemoteOrders::default() }));
    }

    /// What the next session is told about a slot.
    pub(crate) fn set_order(&self, order: &RemoteOrder) {
        self.desired().orders.insert(order.slot.to_string(), order.clone());
    }

    /// Waits for new reports from here on.
    pub(crate) fn forget_reports(&self) {
        self.shared.heard.send_modify(|h| h.reports.clear());
    }

    /// Takes a slot from the node.
    pub(crate) fn release(&self, slot: &str) {
        self.desired().orders.remove(slot);
        self.send(ToNodeMessage::RemoteOrders(RemoteOrders {
            released: vec![slot.to_owned()],
            ..RemoteOrders::default()
        }));
    }

    /// Takes a slot from the node and gives it the next order in the same breath.
    pub(crate) fn release_and_order(&self, order: &RemoteOrder) {
        let slot = order.slot.to_string();
        self.desired().orders.insert(slot.clone(), order.clone());
        let orders_json = vec![node_rpc::to_json(order)];
        self.send(ToNodeMessage::RemoteOrders(RemoteOrders {
            orders_json,
            released: vec![slot],
            ..RemoteOrders::default()
        }));
    }

    /// The newest report on a slot that fits.
    pub(crate) async fn report(&self, slot: &str, what: &str, fits: impl Fn(&RemoteReport) -> bool) -> RemoteReport {
        self.heard(what, |h| h.reports.get(slot)?.last().filter(|r| fits(r)).cloned()).await
    }

    /// Places an allocation with the order to manage its task, and waits for the running instance.
    pub(crate) async fn manages(&self, a: &Allocation, job: &Job, order: &RemoteOrder) -> RemoteReport {
        self.place(a, job);
        self.order(order);
        self.report(&order.slot.to_string(), "a running instance", running).await
    }

    /// Stops an instance for good under an epoch, and has it forgotten; how it ended.
    pub(crate) async fn ends(&self, order: RemoteOrder, epoch: u64) -> RemoteReport {
        let mut stop = RemoteOrder { role: RemoteRole::Stop, desired: DesiredRemote::Stop, epoch, ..order };
        self.order(&stop);
        let ended = self.report(&stop.slot.to_string(), "the end", |r| r.observed.ended() && r.epoch == epoch).await;
        stop.handle.clone_from(&ended.handle);
        self.forgets(&mut stop).await;
        ended
    }

    /// Acknowledges the end of a task, and waits until nobody knows it any more.
    pub(crate) async fn forgets(&self, order: &mut RemoteOrder) {
        order.acknowledge = true;
        self.order(order);
        self.report(&order.slot.to_string(), "that it is forgotten", |r| r.forgotten).await;
    }

    /// Waits until something has been heard.
    pub(crate) async fn heard<T>(&self, what: &str, find: impl Fn(&Heard) -> Option<T>) -> T {
        let mut heard = self.shared.heard.subscribe();
        let found = async {
            loop {
                if let Some(found) = find(&heard.borrow_and_update()) {
                    return found;
                }
                heard.changed().await.expect("server lives");
            }
        };
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(found) => found,
            Err(_) => panic!("waited in vain for {what}; heard {:#?}", self.shared.heard.borrow()),
        }
    }

    pub(crate) fn now(&self) -> Heard {
        self.shared.heard.borrow().clone()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        if Arc::strong_count(&self.shared) <= 2 {
            self.stop.cancel();
        }
    }
}

fn message(placed: &[(Allocation, Job)], full: bool) -> Allocs {
    Allocs {
        full,
        allocs_json: placed.iter().map(|(a, _)| node_rpc::to_json(a)).collect(),
        jobs_json: placed.iter().map(|(_, j)| text_of(j)).collect(),
        job_indexes: placed.iter().map(|(_, j)| j.job_modify_index).collect(),
        proofs: placed.iter().map(|(a, _)| proof_of(a)).collect(),
        ..Allocs::default()
    }
}

/// A job as a newer server writes it, with a field that the node does not know.
pub(crate) fn text_of(job: &Job) -> Vec<u8> {
    let mut text = node_rpc::to_json(job);
    text.splice(..1, *br#"{"OfANewerRelease": 7,"#);
    text
}

/// What this server proves an allocation by.
pub(crate) fn proof_of(alloc: &Allocation) -> String {
    format!("proof of {} as of {}", alloc.id, alloc.alloc_modify_index)
}

/// The cluster of the tests.
const CLUSTER: &str = "c0000000-0000-4000-8000-000000000001";

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl NodeService for Service {
    type SessionStream = UnboundedReceiverStream<Result<ToNode, Status>>;

    async fn session(&self, request: Request<Streaming<FromNode>>) -> Result<Response<Self::SessionStream>, Status> {
        let mut from = request.into_inner();
        let (to, stream) = mpsc::unbounded_channel();
        let shared = self.0.clone();
        if shared.desired.lock().expect("lock").away {
            return Err(Status::unavailable("the server is away"));
        }
        tokio::spawn(async move {
            while let Some(Ok(message)) = from.next().await {
                shared.handle(message, &to);
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}

impl Shared {
    fn handle(&self, message: FromNode, to: &mpsc::UnboundedSender<Result<ToNode, Status>>) {
        let answer = |m: ToNodeMessage| drop(to.send(Ok(m.into())));
        let desired = self.desired.lock().expect("lock");
        if desired.away {
            return;
        }
        match message.message {
            Some(FromNodeMessage::Hello(hello)) => {
                let node: Node = node_rpc::from_json("node", &hello.node_json).expect("node");
                let told = desired.welcome.clone();
                let cluster_id = if told.cluster_id.is_empty() { CLUSTER.to_owned() } else { told.cluster_id.clone() };
                answer(ToNodeMessage::Welcome(Welcome {
                    cluster_id,
                    lease_ms: desired.lease_ms,
                    heartbeat_interval_ms: if desired.heartbeat_ms > 0 {
                        desired.heartbeat_ms
                    } else {
                        (desired.lease_ms / 4).max(20)
                    },
                    server_version: "test".into(),
                    http_addr: desired.http.clone(),
                    ..told
                }));
                let placed: Vec<_> = desired.allocs.values().cloned().collect();
                answer(ToNodeMessage::Allocs(Allocs { index: desired.index, ..self::message(&placed, true) }));
                let orders_json = desired.orders.values().map(node_rpc::to_json).collect();
                answer(ToNodeMessage::RemoteOrders(RemoteOrders {
                    full: true,
                    orders_json,
                    ..RemoteOrders::default()
                }));
                // Under the lock of what is desired: what a test places from now on is sent to this session.
                *self.session.lock().expect("lock") = Some(to.clone());
                drop(desired);
                self.heard.send_modify(|h| h.hellos.push(hello));
                self.heard.send_modify(|h| {
                    h.sessions += 1;
                    h.schemas = None;
                    h.node = Some(Arc::new(node));
                });
            }
            Some(FromNodeMessage::Heartbeat(beat)) if !desired.mute => {
                answer(ToNodeMessage::HeartbeatAck(HeartbeatAck {
                    seq: beat.seq,
                    lease_ms: desired.lease_ms,
                    servers: desired.servers.clone(),
                    ..HeartbeatAck::default()
                }));
            }
            Some(FromNodeMessage::Node(update)) => {
                let node = node_rpc::from_json("node", &update.node_json).expect("node");
                self.heard.send_modify(|h| h.node = Some(Arc::new(node)));
            }
            Some(FromNodeMessage::AllocUpdates(updates)) => {
                let mut desired = desired;
                self.heard.send_modify(|h| {
                    for json in &updates.updates_json {
                        let update: AllocClientUpdate = node_rpc::from_json("update", json).expect("update");
                        if let Some((alloc, _)) = desired.allocs.get_mut(&update.id) {
                            // As servers do: what a node says is part of what it gets back with its next session.
                            alloc.client_status = update.client_status;
                            alloc.task_states.clone_from(&update.task_states);
                        }
                        h.updates.push(update.clone());
                        h.allocs.insert(update.id, update);
                    }
                });
                answer(ToNodeMessage::UpdatesStored(UpdatesStored { seq: updates.seq, index: 0 }));
            }
            Some(FromNodeMessage::RemoteReports(reports)) => {
                self.heard.send_modify(|h| {
                    for json in &reports.reports_json {
                        let report: RemoteReport = node_rpc::from_json("report", json).expect("report");
                        h.reports.entry(report.slot.to_string()).or_default().push(report);
                    }
                });
                answer(ToNodeMessage::UpdatesStored(UpdatesStored { seq: reports.seq, index: 0 }));
            }
            Some(FromNodeMessage::HostVolumeReports(told)) => self.heard.send_modify(|h| {
                let read = |json: &Vec<u8>| node_rpc::from_json::<model::VolumeReport>("report", json).expect("report");
                h.volumes.extend(told.reports_json.iter().map(read));
            }),
            Some(FromNodeMessage::Inventory(piece)) => self.heard.send_modify(|h| h.inventories.push(piece)),
            Some(FromNodeMessage::DriverSchemas(told)) => self.heard.send_modify(|h| h.schemas = Some(told.schemas)),
            Some(FromNodeMessage::SignIdentities(ask)) => {
                if let Some(ttl) = desired.token_ttl {
                    let now = std::time::SystemTime::now()
                        .duration_since(std::time::UNIX_EPOCH)
                        .expect("after 1970")
                        .as_nanos() as i64;
                    let expires_ns = if ttl.is_zero() { 0 } else { now + ttl.as_nanos() as i64 };
                    let token = |identity: String| SignedIdentity {
                        token: format!("{identity}-{now}"),
                        identity,
                        issued_ns: now,
                        expires_ns,
                    };
                    let signed = ask.identities.into_iter().map(token).collect();
                    answer(ToNodeMessage::IdentitiesSigned(IdentitiesSigned {
                        seq: ask.seq,
                        signed,
                        ..IdentitiesSigned::default()
                    }));
                }
            }
            Some(FromNodeMessage::Heartbeat(_) | FromNodeMessage::Event(_) | FromNodeMessage::RemoteListed(_))
            | None => {}
        }
    }
}

/// A node's directories, which outlive its restarts.
pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) server: FakeServer,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        Self { dir: tempfile::tempdir().expect("temp dir"), server: FakeServer::start().await }
    }

    pub(crate) fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new(self.dir.path(), "n1");
        config.network_interface = "lo".into();
        config.templates.poll = Duration::from_millis(30);
        config.servers = vec![self.server.addr.to_string()];
        config.builtin_drivers = ["mock", "raw_exec", "remote_exec"]
            .into_iter()
            .map(|name| PluginCommand { name: name.into(), program: plugin(), args: vec![name.into()] })
            .collect();
        config.artifacts.program =
            Some(PluginCommand { name: "artifact".into(), program: plugin(), args: vec!["artifact-fetch".into()] });
        let runtime = serde_json::json!({"root": self.dir.path().join("runtime")});
        config.plugins.insert("remote_exec".into(), PluginSettings { args: Vec::new(), config: Some(runtime) });
        config
    }

    /// A node that is ready to start tasks.
    pub(crate) async fn node(&self) -> Client {
        self.node_with(self.config()).await
    }

    /// A rig, and a node whose driver takes tasks.
    pub(crate) async fn with(driver: &str) -> (Self, Client) {
        let rig = Self::new().await;
        let node = rig.node_of(driver).await;
        (rig, node)
    }

    /// A node whose driver takes tasks.
    pub(crate) async fn node_of(&self, driver: &str) -> Client {
        let node = self.node().await;
        self.driver_ready(driver).await;
        node
    }

    /// Places an allocation of these tasks.
    pub(crate) fn place(&self, kind: &str, tasks: Vec<Task>) -> (Allocation, Job) {
        let (a, job) = alloc(kind, tasks);
        self.server.place(&a, &job);
        (a, job)
    }

    /// The same; returns when it runs.
    pub(crate) async fn run(&self, kind: &str, tasks: Vec<Task>) -> (Allocation, Job) {
        let (a, job) = self.place(kind, tasks);
        self.server.status(a.id, ClientStatus::Running).await;
        (a, job)
    }

    /// On the directory of a node that was dropped, whose loops let go of it a moment later.
    pub(crate) async fn start_again(&self, config: ClientConfig) -> Client {
        let started = async || match Client::start(config.clone()).await {
            Err(StartError::InUse { .. }) => None,
            started => Some(started.expect("start")),
        };
        poll("the directory to be free", started).await
    }

    /// As [`Rig::node`], with another configuration.
    pub(crate) async fn node_with(&self, config: ClientConfig) -> Client {
        let sessions = self.server.now().sessions;
        let client = Client::start(config).await.expect("start");
        self.server.heard("a session", |h| (h.sessions > sessions).then_some(())).await;
        client
    }

    pub(crate) async fn driver_ready(&self, name: &str) {
        self.server
            .heard("a healthy driver", |h| h.node.as_ref()?.drivers.get(name).filter(|d| d.healthy).map(drop))
            .await;
    }

    /// Waits until the node tells the servers why a driver does not serve, in such words.
    pub(crate) async fn driver_says(&self, name: &str, words: &str) {
        let says = |d: &&model::node::DriverInfo| d.health_description.contains(words);
        self.server.heard(words, |h| h.node.as_ref()?.drivers.get(name).filter(says).map(drop)).await;
    }

    pub(crate) fn alloc_dir(&self, id: AllocId) -> PathBuf {
        self.dir.path().join("alloc").join(id.to_string())
    }
}

impl Drop for Rig {
    /// A test that fails half-way leaves nothing running either.
    fn drop(&mut self) {
        testkit::end_everything_of(self.dir.path());
    }
}

/// Damages a record of an allocation while its node does not run.
pub(crate) fn damage(rig: &Rig, sql: &str, id: AllocId) {
    let path = rig.dir.path().join("client/node.sqlite");
    let changed = rusqlite::Connection::open(path).expect("open").execute(sql, [id.to_string()]).expect("sql");
    assert_eq!(changed, 1, "{sql}");
}

/// Changes a record of an allocation while its node does not run, to one that a node may have written.
pub(crate) fn rewrite(rig: &Rig, sql: &str, id: AllocId) {
    damage(rig, sql, id);
    node_record::store::seal_records(&rig.dir.path().join("client")).expect("sealed");
}

/// What is mounted below a directory.
pub(crate) fn mounts(dir: &Path) -> Vec<PathBuf> {
    let info = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    info.lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .filter(|point| point.starts_with(dir))
        .collect()
}

/// Takes away what is mounted below a directory.
pub(crate) fn unmount_below(dir: &Path) {
    for point in mounts(dir) {
        let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Processes that have anything to do with a directory, with their command lines.
pub(crate) fn processes(dir: &Path) -> Vec<(i32, String)> {
    let (marker, me) = (dir.display().to_string(), std::process::id().cast_signed());
    let names = |pid: &i32| {
        command_line(*pid).contains(&marker) || environment(*pid).iter().any(|variable| variable.contains(&marker))
    };
    pids().filter(|pid| *pid != me && names(pid)).map(|pid| (pid, command_line(pid))).collect()
}

/// Ends what a test has placed and asserts that nothing stays.
pub(crate) async fn end(rig: &Rig, node: Client) {
    let placed: Vec<AllocId> = rig.server.desired().allocs.keys().copied().collect();
    for id in placed {
        rig.server.stop_alloc(id);
        if node.handle().has_alloc(id) {
            rig.server.alloc(id, "the end of an allocation", |u| u.client_status.terminal()).await;
        }
    }
    // A node that stops waits for what it frees for some seconds only.
    eventually("what is mounted to go", || mounts(rig.dir.path()).is_empty()).await;
    node.stop().await;
    nothing_left(rig).await;
    assert_eq!(mounts(rig.dir.path()), [] as [PathBuf; 0], "nothing stays mounted");
}

/// Stops the node; no process of the rig is left then.
pub(crate) async fn leave(rig: &Rig, node: Client) {
    node.stop().await;
    nothing_left(rig).await;
}

/// Waits until no process of the rig is left.
pub(crate) async fn nothing_left(rig: &Rig) {
    eventually(&format!("all processes to end: {:?}", processes(rig.dir.path())), || {
        processes(rig.dir.path()).is_empty()
    })
    .await;
}

/// The plugin program, built as an example of this crate.
pub(crate) fn plugin() -> PathBuf {
    testkit::beside_the_tests("test_plugin")
}

/// A task of a driver with its configuration.
pub(crate) fn task(name: &str, driver: &str, config: serde_json::Value) -> Task {
    Task {
        name: name.into(),
        driver: driver.into(),
        config: config.as_object().expect("object").clone(),
        kill_timeout: Some(GoDuration::from_secs(2)),
        restart: Some(restarts(0)),
        ..Task::default()
    }
}

/// A task that runs a shell's script.
pub(crate) fn sh(name: &str, script: &str) -> Task {
    task(name, "raw_exec", serde_json::json!({"command": "/bin/sh", "args": ["-c", script]}))
}

/// A policy with so many quick restarts.
pub(crate) fn restarts(attempts: i32) -> Restart {
    Restart {
        attempts: Some(attempts),
        interval: Some(GoDuration::from_secs(300)),
        delay: Some(GoDuration::from_millis(10)),
        mode: Some("fail".into()),
        render_templates: Some(false),
    }
}

/// A job of one group and an allocation of it.
pub(crate) fn alloc(kind: &str, tasks: Vec<Task>) -> (Allocation, Job) {
    let group = TaskGroup { name: "g".into(), count: Some(1), tasks: tasks.clone(), ..TaskGroup::default() };
    let job = Job {
        id: "job".into(),
        name: "job".into(),
        namespace: "default".into(),
        kind: kind.into(),
        task_groups: vec![group].into(),
        ..Job::default()
    };
    let given = |_: &Task| AllocatedTask {
        cpu: AllocatedCpu { cpu_shares: 100, ..AllocatedCpu::default() },
        memory: AllocatedMemory { memory_mb: 64, memory_max_mb: 0 },
        ..AllocatedTask::default()
    };
    let alloc = Allocation {
        id: AllocId(uuid::Uuid::new_v4()),
        namespace: "default".into(),
        job_id: "job".into(),
        name: "job.g[0]".into(),
        task_group: "g".into(),
        resources: Arc::new(AllocatedResources {
            tasks: tasks.iter().map(|t| (t.name.clone(), given(t))).collect(),
            ..AllocatedResources::default()
        }),
        alloc_modify_index: 1,
        ..Allocation::default()
    };
    (alloc, job)
}

/// A job of one group with one remote task, an allocation of it, and the order to manage its first incarnation.
pub(crate) fn managed(kind: &str, task: Task) -> (Allocation, Job, RemoteOrder) {
    let (name, driver, kill_timeout) = (task.name.clone(), task.driver.clone(), task.kill_timeout.unwrap_or_default());
    let (mut alloc, job) = alloc(kind, vec![task]);
    let incarnation = IncarnationId(uuid::Uuid::new_v4());
    alloc.remote.insert(name.clone(), incarnation);
    let slot = slot_of(&alloc, &name);
    let order = RemoteOrder {
        slot,
        role: RemoteRole::Manage,
        incarnation,
        epoch: 1,
        driver,
        alloc_id: alloc.id,
        kill_timeout,
        ..RemoteOrder::default()
    };
    (alloc, job, order)
}

/// The same in another slot of the job.
pub(crate) fn nth(
    index: usize,
    (mut alloc, job, mut order): (Allocation, Job, RemoteOrder),
) -> (Allocation, Job, RemoteOrder) {
    alloc.name = format!("job.g[{index}]").into();
    order.slot = slot_of(&alloc, &order.slot.task);
    (alloc, job, order)
}

/// A stop by a node that has neither the allocation nor, it may be, the handle.
pub(crate) fn bare(order: &RemoteOrder) -> RemoteOrder {
    RemoteOrder {
        role: RemoteRole::Stop,
        desired: DesiredRemote::Stop,
        epoch: 2,
        adopt: true,
        alloc_id: AllocId::NIL,
        ..order.clone()
    }
}

/// Whether a report is on an instance that runs and can be found again.
pub(crate) fn running(r: &RemoteReport) -> bool {
    r.observed == Observed::Running && r.handle.is_some()
}

/// Kinds of a task's events, oldest first.
pub(crate) fn kinds(state: &TaskState) -> Vec<&str> {
    state.events.iter().map(|e| e.kind.as_str()).collect()
}
