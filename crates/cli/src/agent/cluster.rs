//! One of several servers: it leads, or it waits for its turn and passes requests and nodes' sessions on.
//!
//! The servers of a cluster share an etcd store. One of them leads: it decides, and talks to the nodes. The others
//! look for the leader's signs of life, follow the state, and send what they are asked to it, sessions of nodes
//! included. When it is gone, the first that takes the fence over leads; the store refuses whatever the former one
//! still tries to write. A server whose fence was taken does not end: it waits for its turn again, and its node goes
//! on.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use api::shapes::StoreMember;
use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use client::ClientHandle;
use futures::FutureExt as _;
use http::StatusCode;
use server::{AllServers, Server, ServerConfig, StartError, Surroundings};
use server_http::{AskStore, HttpOptions, ServerMember, StepDown, StoreStanding, may_be_stale};
use store::{DataDirLock, EtcdOptions, EtcdStore, Member, Peer, SILENT, Standing, Store as _, StoreError};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::{
    compose::set_up_scheduler,
    config::SchedulerDefaults,
    follow_state::{Following, age, contacts_of_leader},
    nodes::Nodes,
    switch::Switch,
};

/// Between two attempts to reach etcd, or to lead, that fail.
const PAUSE: Duration = Duration::from_secs(1);
/// A request to a leader that etcd does not confirm waits for so long.
const LED: Duration = Duration::from_secs(5);
/// A leader that etcd has not confirmed for so long waits for its turn again: with the usual lease it has granted
/// nothing that is still valid, and it answers nobody.
const UNCONFIRMED: Duration = Duration::from_secs(15);

/// Whoever asks a leader to make room has the answer within this time.
const ANSWERED: Duration = Duration::from_millis(250);

/// What a server among several needs.
pub(crate) struct Cluster {
    /// Of the server, each time that it leads.
    pub(crate) config: ServerConfig,
    /// The shared store.
    pub(crate) store: EtcdOptions,
    /// The scheduler's first settings.
    pub(crate) scheduler: Option<SchedulerDefaults>,
    /// The API while this server leads.
    pub(crate) http: HttpOptions,
    /// The API while another one does.
    pub(crate) elsewhere: Router,
    /// What answers now.
    pub(crate) switch: Switch,
    /// The node of this agent.
    pub(crate) node: Option<ClientHandle>,
    /// Where nodes connect.
    pub(crate) nodes: Nodes,
    /// Who leads, for those who pass requests on.
    pub(crate) leader: watch::Sender<Option<Member>>,
    /// Until when everything that was committed is known here, by the boot clock.
    pub(crate) heard: watch::Sender<Option<Duration>>,
    /// What answers stale reads while another one leads.
    pub(crate) following: Following,
}

/// Why an agent cannot go on.
type Broken = String;

/// A server among several, at work.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), Broken>>,
    /// No other agent uses the directory.
    _dir: Option<DataDirLock>,
    ended: watch::Receiver<Option<Broken>>,
}

impl Running {
    /// Resolves with the reason when the process must end. Cancel safe.
    pub(crate) async fn failed(&self) -> String {
        let mut ended = self.ended.clone();
        let why = ended.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        match why {
            Some(why) => why,
            None => std::future::pending().await,
        }
    }

    /// Hands leadership over, if it has it, and ends.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        // What it has come to was told by `failed`.
        drop(self.task.await);
    }
}

impl Cluster {
    /// Begins to wait for its turn.
    ///
    /// # Errors
    /// When the server's directory cannot be used, or another agent uses it.
    pub(crate) fn start(self) -> Result<Running> {
        let dir = self.config.data_dir.as_deref().map(DataDirLock::acquire).transpose()?;
        let stop = CancellationToken::new();
        let (tell, ended) = watch::channel(None);
        let until = stop.clone();
        let task = tokio::spawn(async move {
            let result = self.run(until).await;
            tell.send_replace(result.clone().err());
            result
        });
        Ok(Running { stop, task, _dir: dir, ended })
    }

    async fn run(mut self, stop: CancellationToken) -> Result<(), Broken> {
        self.switch.set(self.elsewhere.clone());
        self.nodes.pass_on();
        loop {
            let store = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                store = self.open() => store?,
            };
            let telling = tokio::spawn(tell(store.leader(), self.leader.clone(), self.node.clone()));
            self.following.reopened();
            let turn = self.turns(&store, &stop).await;
            self.switch.set(self.elsewhere.clone());
            self.nodes.pass_on();
            telling.abort();
            // What it knew of the leader grows old, and may be itself.
            self.leader.send_replace(None);
            let closing = store.clone();
            // Also takes this server off the list, and leaves the fence to the others.
            drop(tokio::task::spawn_blocking(move || closing.close()).await);
            match turn {
                Turn::Stopped => return Ok(()),
                Turn::Broken(why) => return Err(why),
                Turn::Again(why) => {
                    tracing::warn!(why, "this server waits for its turn again");
                    tokio::select! {
                        () = stop.cancelled() => return Ok(()),
                        () = tokio::time::sleep(PAUSE) => {}
                    }
                }
            }
        }
    }

    /// The store, once etcd is reached.
    ///
    /// # Errors
    /// When it is in a format that this release does not read: another try does not mend that.
    async fn open(&self) -> Result<Arc<EtcdStore>, Broken> {
        // Whoever names the cluster may begin with nothing: it recovers, and founds no other one.
        let open = if self.config.cluster_id.is_some() { EtcdStore::open_anew } else { EtcdStore::open };
        loop {
            let options = self.store.clone();
            match tokio::task::spawn_blocking(move || open(options)).await {
                Ok(Ok(store)) => return Ok(Arc::new(store)),
                Ok(Err(error @ StoreError::Format { .. })) => {
                    return Err(format!("this server can neither follow nor lead: {error}"));
                }
                Ok(Err(error @ StoreError::NoCluster { .. })) => {
                    tracing::error!(error = %error, retry_in = ?PAUSE, "this server waits for the store that it knows");
                }
                Ok(Err(error)) => tracing::error!(error = %error, retry_in = ?PAUSE, "the store is not reached"),
                Err(error) => tracing::error!(error = %error, "opening the store has panicked"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits for its turn and leads, until something ends that.
    async fn turns(&mut self, store: &Arc<EtcdStore>, stop: &CancellationToken) -> Turn {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Turn::Stopped,
                vacant = store.vacant() => if let Err(error) = vacant {
                    return Turn::Again(error.to_string());
                },
                // It says so before its turn comes.
                why = self.following.follow(store) => return Turn::Broken(format!("this server could not lead: {why}")),
            }
            let listed = store.clone();
            let servers = AllServers::told_by(move || addresses(&listed));
            let known = self.following.known();
            let around = Surroundings {
                store: Some(store.clone()),
                lost: store.lost(),
                servers,
                known,
                // Nodes that connect from here on wait for the next leader, which is this server or a rival.
                listener: match self.nodes.take_over() {
                    Ok(listener) => Some(listener),
                    Err(error) => return Turn::Again(format!("this server could not listen for nodes: {error}")),
                },
                ..Surroundings::default()
            };
            let started = tokio::select! {
                biased;
                // What it waits for may be an etcd that does not come back.
                () = stop.cancelled() => return Turn::Stopped,
                started = Server::start_in(self.config.clone(), around) => started,
            };
            match started {
                // A rival was faster.
                Err(StartError::Store(StoreError::Held { .. })) => self.nodes.pass_on(),
                // The store's: its first commit may find that the fence was taken, or that etcd does not answer.
                Err(error @ (StartError::Store(_) | StartError::Write(_))) => {
                    return Turn::Again(format!("this server could not lead: {error}"));
                }
                // Its own fault, which another try does not mend: the others go on without it.
                Err(error) => return Turn::Broken(format!("this server could not lead: {error}")),
                Ok(server) => return self.lead(server, store, stop).await,
            }
        }
    }

    /// Leads until the fence is taken, the store fails, or the agent stops.
    async fn lead(&mut self, server: Server, store: &Arc<EtcdStore>, stop: &CancellationToken) -> Turn {
        tokio::select! {
            set_up = set_up_scheduler(&server, self.scheduler.clone()) => if let Err(error) = set_up {
                tracing::warn!(error = format!("{error:#}"), "the scheduler's first settings were not stored");
            },
            // An etcd that does not answer holds up neither; what follows sees the same.
            () = stop.cancelled() => {}
            () = unconfirmed(store.checked()) => {}
        }
        let listed = store.clone();
        let servers = Arc::new(move || members(&listed));
        let asked = store.clone();
        let ask_store: AskStore = Arc::new(move || Box::pin(standing(asked.clone())));
        let make_room = Arc::new(Notify::new());
        let told = make_room.clone();
        let step_down: StepDown = Arc::new(move || told.notify_one());
        let (ask_store, step_down) = (Some(ask_store), Some(step_down));
        let contacts = Some(contacts_of_leader(store.checked()));
        let options =
            HttpOptions { servers: Some(servers), contacts, store: ask_store, step_down, ..self.http.clone() };
        let router = server_http::router(server.handle().clone(), options);
        self.switch.set(router.layer(middleware::from_fn_with_state(store.checked(), while_it_leads)));
        // There is one copy of the state.
        self.following.none();
        let mut fenced = store.fenced();
        let turn = tokio::select! {
            // A leader that was fenced is not confirmed either: the cause is told.
            biased;
            () = stop.cancelled() => Turn::Stopped,
            taken = fenced.wait_for(Option::is_some) => match taken {
                Ok(_) => Turn::Again("another server leads now".to_owned()),
                Err(_) => Turn::Again("the store has ended".to_owned()),
            },
            () = unconfirmed(store.checked()) => {
                Turn::Again(format!("etcd has not confirmed for {} s that this server leads", UNCONFIRMED.as_secs()))
            }
            () = asked_to_make_room(&make_room) => Turn::Again("somebody has asked it to make room".to_owned()),
            why = server.failed() => {
                // The next commit may have heard of it first.
                if store.fenced().borrow().is_some() { Turn::Again(why) } else { Turn::Broken(why) }
            }
        };
        let confirmed = *store.checked().borrow();
        self.heard.send_modify(|heard| *heard = confirmed.max(*heard));
        self.following.keep(server.handle());
        // Requests go to the next leader before this one is gone.
        self.switch.set(self.elsewhere.clone());
        server.shutdown().await;
        turn
    }
}

/// Resolves after somebody has asked for another leader, and has the answer. Cancel safe.
async fn asked_to_make_room(asked: &Notify) {
    asked.notified().await;
    tokio::time::sleep(ANSWERED).await;
}

/// What the store says of etcd's members and of the servers.
async fn standing(store: Arc<EtcdStore>) -> Result<StoreStanding, String> {
    let format = store.format();
    let asked = tokio::task::spawn_blocking(move || store.standing()).await.map_err(|error| error.to_string())?;
    let Standing { peers, servers } = asked.map_err(|error| error.to_string())?;
    let member = |of: Peer| StoreMember {
        id: of.id,
        name: of.name,
        address: of.endpoint,
        leader: of.leader,
        voter: !of.learner,
        version: of.version,
        size: of.db_size,
        in_use: of.db_in_use,
        healthy: of.error.is_none(),
        error: of.error.unwrap_or_default(),
    };
    let servers = servers.into_iter().map(|of| (of.member.id, of.ago)).collect();
    Ok(StoreStanding { members: peers.into_iter().map(member).collect(), format, servers })
}

type Checked = watch::Receiver<Option<Duration>>;

/// Answers while nobody else can have taken over: another server waits for [`SILENT`] after the leader's last sign of
/// life. So no client reads from a former leader what is older than what it has read from the next one, unless it says
/// that it may be.
async fn while_it_leads(State(mut checked): State<Checked>, request: Request, next: Next) -> Response {
    if may_be_stale(request.method(), request.uri()) {
        return next.run(request).await;
    }
    let unconfirmed = || {
        let why = "No cluster leader: etcd does not confirm that this server still leads";
        (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
    };
    if !held(&mut checked).await {
        return unconfirmed();
    }
    let unstored = request.method().is_safe() || renews_a_lock(request.uri());
    let response = next.run(request).await;
    // The process may have stood still since then, and the answer be of a state that another server has changed.
    if unstored && response.status() != StatusCode::SWITCHING_PROTOCOLS && !held(&mut checked).await {
        return unconfirmed();
    }
    response
}

/// Whether the request renews the lock of a variable. That is not stored, so the store does not refuse it to a server
/// that leads no more: it must not be answered once another one may have begun to count the time of the lock.
fn renews_a_lock(uri: &http::Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.split('=').next() == Some("lock-renew"))
}

/// Waits until nobody else can have taken over; false = etcd does not say so in time.
async fn held(checked: &mut Checked) -> bool {
    let confirmed = checked.wait_for(|at| age(*at) < SILENT).map(|found| found.is_ok());
    tokio::time::timeout(LED, confirmed).await.unwrap_or(false)
}

/// Resolves when etcd has not confirmed for [`UNCONFIRMED`] that this server leads. Cancel safe.
async fn unconfirmed(mut checked: Checked) {
    loop {
        let left = UNCONFIRMED.saturating_sub(age(*checked.borrow_and_update()));
        if left.is_zero() {
            return;
        }
        // Either way it is looked at again.
        drop(tokio::time::timeout(left, checked.changed()).await);
    }
}

/// What a turn has come to.
enum Turn {
    /// The agent stops.
    Stopped,
    /// For this reason it waits anew, with a new connection to the store.
    Again(String),
    /// The process must end.
    Broken(Broken),
}

/// Tells of each new leader: those who pass requests on, and the node of this agent.
async fn tell(
    mut leads: watch::Receiver<Option<Member>>,
    to: watch::Sender<Option<Member>>,
    node: Option<ClientHandle>,
) {
    loop {
        let leader = leads.borrow_and_update().clone();
        if let Some(leader) = &leader {
            tracing::info!(server = leader.name, rpc = leader.rpc, "a server leads");
            if let Some(node) = &node {
                node.set_servers(vec![leader.rpc.clone()]);
            }
        }
        to.send_replace(leader);
        if leads.changed().await.is_err() {
            return;
        }
    }
}

/// Where nodes reach the servers that are registered now, the leader first.
fn addresses(store: &EtcdStore) -> Vec<String> {
    let mut members = members(store);
    members.sort_by_key(|member| !member.leader);
    members.into_iter().map(|member| member.rpc).filter(|rpc| !rpc.is_empty()).collect()
}

/// The servers that are registered now.
fn members(store: &EtcdStore) -> Vec<ServerMember> {
    let leader = store.leader().borrow().as_ref().map(|leader| leader.id.clone());
    let member = |of: Member| {
        let leader = leader.as_ref() == Some(&of.id);
        ServerMember { id: of.id, name: of.name, rpc: of.rpc, version: of.version, leader }
    };
    store.members().into_iter().map(member).collect()
}
