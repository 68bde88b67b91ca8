//! The calls.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use etcd::{
    ops,
    proto::{
        AlarmKind, AlarmMember, AlarmRequest, AlarmResponse, AuthenticateRequest, AuthenticateResponse,
        CompactionRequest, CompactionResponse, DefragmentRequest, DefragmentResponse, DeleteRangeRequest,
        DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
        LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, Member,
        MemberListRequest, MemberListResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, StatusRequest,
        StatusResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse, alarm_request::Action, auth_server::Auth,
        cluster_server::Cluster, kv_server::Kv, lease_server::Lease, maintenance_server::Maintenance, response_op,
        watch_request, watch_server::Watch,
    },
};
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    Seen,
    data::{Data, deletes, puts, size},
};

/// What goes wrong with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is done, and the answer is lost.
    LoseAnswer,
    /// It is never done, and no answer says so.
    LoseRequest,
    /// There is no answer, and it is done only after this time.
    Late(Duration),
    /// It is done at once, and the answer comes after this time.
    Slow(Duration),
    /// It is the one that uses up the quota: it is done, the answer says that there is no room, and from now on there
    /// is none.
    Last,
}

fn no_leader() -> Status {
    Status::unavailable("etcdserver: no leader")
}

fn no_space() -> Status {
    Status::resource_exhausted("etcdserver: mvcc: database space exceeded")
}

#[derive(Debug, Default)]
pub(crate) struct Switches {
    pub(crate) faults: VecDeque<(Fault, String)>,
    pub(crate) delay: Duration,
    pub(crate) no_space: bool,
    pub(crate) corrupt: bool,
    pub(crate) silent: bool,
    /// Defragmentations are not done.
    pub(crate) hold: bool,
    /// One has begun since they are held.
    pub(crate) defragments: bool,
    /// What somebody else puts right before the next lease is granted.
    pub(crate) before_grant: Option<(String, Vec<u8>)>,
    /// Members that are listed besides: their names and addresses.
    pub(crate) listed: Vec<(String, String)>,
    pub(crate) user: Option<(String, String)>,
    pub(crate) token: u64,
    pub(crate) seen: Seen,
}

#[derive(Debug)]
pub(crate) struct Shared {
    address: SocketAddr,
    pub(crate) data: Mutex<Data>,
    pub(crate) switches: Mutex<Switches>,
    pub(crate) revision: watch::Sender<i64>,
    /// Raised when all streams end.
    pub(crate) lives: watch::Sender<u64>,
}

impl Shared {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            data: Mutex::default(),
            switches: Mutex::default(),
            revision: watch::Sender::new(1),
            lives: watch::Sender::new(0),
        }
    }
}

/// One member, and whether it is frozen.
#[derive(Clone, Debug)]
pub(crate) struct Service(pub(crate) Arc<Shared>, pub(crate) watch::Sender<bool>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    fn data(&self) -> MutexGuard<'_, Data> {
        self.0.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switches(&self) -> MutexGuard<'_, Switches> {
        self.0.switches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the data and wakes the watchers.
    fn change<T>(&self, change: impl FnOnce(&mut Data) -> T) -> T {
        let (result, revision) = {
            let mut data = self.data();
            (change(&mut data), data.revision)
        };
        self.0.revision.send_replace(revision);
        result
    }

    pub(crate) async fn expire_leases(&self) {
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if !*self.1.borrow() && self.data().expire() {
                self.change(|_| ());
            }
        }
    }

    /// What every call goes through.
    async fn enter<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let (delay, token) = {
            let switches = self.switches();
            (switches.delay, switches.user.as_ref().map(|_| format!("token-{}", switches.token)))
        };
        tokio::time::sleep(delay).await;
        let mut frozen = self.1.subscribe();
        let _ = frozen.wait_for(|frozen| !*frozen).await;
        let shown = request.metadata().get("token").and_then(|token| token.to_str().ok());
        match token {
            Some(token) if shown != Some(&*token) => Err(Status::unauthenticated("etcdserver: invalid auth token")),
            _ => Ok(()),
        }
    }

    /// Waits until no defragmentation is under way.
    async fn defragmented(&self) {
        while self.switches().defragments {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn do_txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        let has_put = puts(&request).next().is_some();
        let fault = {
            let mut switches = self.switches();
            if has_put && switches.no_space {
                return Err(no_space());
            }
            if switches.corrupt {
                return Err(Status::data_loss("etcdserver: corrupt cluster"));
            }
            if has_put {
                let seen = &mut switches.seen;
                seen.txns += 1;
                seen.operations = seen.operations.max(request.success.len());
                seen.bytes = seen.bytes.max(size(&request));
            }
            let mut changed = puts(&request).chain(deletes(&request));
            let mut hit = |text: &str| changed.any(|key| String::from_utf8_lossy(key).contains(text));
            match switches.faults.front() {
                Some((fault, key)) if hit(key) => {
                    let fault = *fault;
                    switches.faults.pop_front();
                    Some(fault)
                }
                _ => None,
            }
        };
        let lost = || Status::unavailable("etcdserver: request timed out, possibly due to previous leader failure");
        match fault {
            None => self.change(|data| data.txn(&request)),
            Some(Fault::Slow(delay)) => {
                let answer = self.change(|data| data.txn(&request));
                tokio::time::sleep(delay).await;
                answer
            }
            Some(Fault::LoseAnswer) => {
                drop(self.change(|data| data.txn(&request)));
                Err(lost())
            }
            Some(Fault::LoseRequest) => Err(lost()),
            Some(Fault::Last) => {
                self.switches().no_space = true;
                drop(self.change(|data| data.txn(&request)));
                Err(no_space())
            }
            Some(Fault::Late(delay)) => {
                let service = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    drop(service.change(|data| data.txn(&request)));
                });
                Err(lost())
            }
        }
    }
}

#[tonic::async_trait]
impl Kv for Service {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        self.enter(&request).await?;
        // Only who reads to the end of the log names no batch as its end.
        let asked = request.get_ref();
        let all = asked.range_end.ends_with(b"/log0") && !asked.count_only;
        self.switches().seen.loads += u64::from(all);
        self.data().range(request.get_ref()).map(Response::new)
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.enter(&request).await?;
        let PutRequest { key, value, lease } = request.into_inner();
        let done = self.do_txn(ops::when(Vec::new(), vec![ops::put(key, value, lease)], Vec::new())).await?;
        Ok(Response::new(PutResponse { header: done.header }))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.enter(&request).await?;
        let DeleteRangeRequest { key, range_end, .. } = request.into_inner();
        let done = self.do_txn(ops::when(Vec::new(), vec![ops::delete_between(key, range_end)], Vec::new())).await?;
        let deleted = done.responses.into_iter().next().and_then(|done| done.response);
        let deleted = if let Some(response_op::Response::DeleteRange(done)) = deleted { done.deleted } else { 0 };
        Ok(Response::new(DeleteRangeResponse { header: done.header, deleted, prev_kvs: Vec::new() }))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        self.enter(&request).await?;
        self.do_txn(request.into_inner()).await.map(Response::new)
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        self.enter(&request).await?;
        let revision = request.get_ref().revision;
        let mut data = self.data();
        if revision <= data.compacted {
            return Err(Status::out_of_range("etcdserver: mvcc: required revision has been compacted"));
        }
        if revision > data.revision {
            return Err(Status::out_of_range("etcdserver: mvcc: required revision is a future revision"));
        }
        data.compacted = revision;
        self.switches().seen.compactions += 1;
        Ok(Response::new(CompactionResponse { header: data.header() }))
    }
}

#[tonic::async_trait]
impl Watch for Service {
    type WatchStream = Answers<WatchResponse>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let entered = self.enter(&request).await;
        let first = request.into_inner().message().await?.and_then(|first| first.request);
        if let Err(refused) = entered {
            // etcd asks for rights within the stream, and says so there.
            let cancel_reason = format!("rpc error: code = Unauthenticated desc = {}", refused.message());
            let answer = WatchResponse { created: true, canceled: true, cancel_reason, ..WatchResponse::default() };
            return Ok(Response::new(Box::pin(tokio_stream::once(Ok(answer)))));
        }
        let Some(watch_request::Request::Create(create)) = first else {
            return Err(Status::invalid_argument("a watch is expected"));
        };
        let (tx, rx) = mpsc::channel(64);
        let service = self.clone();
        let (mut newest, mut lives) = (self.0.revision.subscribe(), self.0.lives.subscribe());
        let mut frozen = self.1.subscribe();
        lives.mark_unchanged();
        tokio::spawn(async move {
            let (header, compacted) = {
                let data = service.data();
                (data.header(), data.compacted)
            };
            let mut next = match create.start_revision {
                0 => header.as_ref().map_or(0, |header| header.revision) + 1,
                start => start,
            };
            let created = WatchResponse { header, created: true, ..WatchResponse::default() };
            if tx.send(Ok(created.clone())).await.is_err() {
                return;
            }
            if next < compacted {
                let canceled = WatchResponse { created: false, canceled: true, compact_revision: compacted, ..created };
                let _ = tx.send(Ok(canceled)).await;
                return;
            }
            loop {
                newest.mark_unchanged();
                loop {
                    // A stream that was broken meanwhile tells nothing more.
                    let broken = tokio::select! {
                        biased;
                        _ = lives.changed() => true,
                        _ = frozen.wait_for(|frozen| !*frozen) => false,
                    };
                    if broken {
                        let _ = tx.send(Err(no_leader())).await;
                        return;
                    }
                    if service.switches().silent {
                        break;
                    }
                    let found = {
                        let data = service.data();
                        data.changes(next, &create.key, &create.range_end).map(|found| (found, data.header()))
                    };
                    let Some(((revision, events), header)) = found else { break };
                    next = revision + 1;
                    if tx.send(Ok(WatchResponse { header, events, ..WatchResponse::default() })).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    biased;
                    _ = lives.changed() => {
                        let _ = tx.send(Err(no_leader())).await;
                        return;
                    }
                    changed = newest.changed() => if changed.is_err() { return },
                    () = tx.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(rx))))
    }
}

#[tonic::async_trait]
impl Lease for Service {
    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Result<Response<LeaseGrantResponse>, Status> {
        self.enter(&request).await?;
        if self.switches().no_space {
            return Err(no_space());
        }
        let before = self.switches().before_grant.take();
        if let Some((key, value)) = before {
            let put = ops::when(Vec::new(), vec![ops::put(key, value, 0)], Vec::new());
            drop(self.change(|data| data.txn(&put)));
            // Watches tell of it first.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut data = self.data();
        let (id, ttl) = data.grant(request.get_ref().ttl);
        Ok(Response::new(LeaseGrantResponse { header: data.header(), id, ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        self.enter(&request).await?;
        if !self.change(|data| data.revoke(request.get_ref().id)) {
            return Err(Status::not_found("etcdserver: requested lease not found"));
        }
        Ok(Response::new(LeaseRevokeResponse { header: self.data().header() }))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        self.enter(&request).await?;
        let id = request.get_ref().id;
        let data = self.data();
        let (ttl, granted_ttl) = data.left(id).unwrap_or((-1, 0));
        Ok(Response::new(LeaseTimeToLiveResponse { header: data.header(), id, ttl, granted_ttl, keys: Vec::new() }))
    }

    type LeaseKeepAliveStream = Answers<LeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        self.enter(&request).await?;
        let id = request.into_inner().message().await?.map_or(0, |keep| keep.id);
        let mut data = self.data();
        let answer = LeaseKeepAliveResponse { header: data.header(), id, ttl: data.keep(id) };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(answer)))))
    }
}

#[tonic::async_trait]
impl Maintenance for Service {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.enter(&request).await?;
        self.defragmented().await;
        let header = self.data().header();
        let status = StatusResponse { header, version: "0.0.0".into(), db_size: 1, leader: 1, ..Default::default() };
        Ok(Response::new(status))
    }

    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        self.enter(&request).await?;
        let mut switches = self.switches();
        if request.get_ref().action() == Action::Deactivate && request.get_ref().alarm() == AlarmKind::Nospace {
            switches.no_space = false;
        }
        let raised = [(switches.no_space, AlarmKind::Nospace), (switches.corrupt, AlarmKind::Corrupt)];
        let alarms = raised.into_iter().filter(|(is, _)| *is);
        let alarms = alarms.map(|(_, alarm)| AlarmMember { member_id: 1, alarm: alarm as i32 }).collect();
        Ok(Response::new(AlarmResponse { header: self.data().header(), alarms }))
    }

    async fn defragment(&self, request: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        self.enter(&request).await?;
        {
            let mut switches = self.switches();
            switches.seen.defragmentations += 1;
            switches.defragments = switches.hold;
        }
        self.defragmented().await;
        Ok(Response::new(DefragmentResponse { header: self.data().header() }))
    }
}

#[tonic::async_trait]
impl Cluster for Service {
    async fn member_list(&self, request: Request<MemberListRequest>) -> Result<Response<MemberListResponse>, Status> {
        self.enter(&request).await?;
        let own = ("fake".to_owned(), format!("http://{}", self.0.address));
        let all = std::iter::once(own).chain(self.switches().listed.clone());
        let member = |(id, (name, url))| Member { id, name, client_urls: vec![url], ..Member::default() };
        let members = (1..).zip(all).map(member).collect();
        Ok(Response::new(MemberListResponse { header: self.data().header(), members }))
    }
}

#[tonic::async_trait]
impl Auth for Service {
    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let switches = self.switches();
        let AuthenticateRequest { name, password } = request.into_inner();
        match &switches.user {
            None => Err(Status::failed_precondition("etcdserver: authentication is not enabled")),
            Some(user) if *user == (name, password) => {
                let token = format!("token-{}", switches.token);
                Ok(Response::new(AuthenticateResponse { header: None, token }))
            }
            Some(_) => Err(Status::invalid_argument("etcdserver: authentication failed, invalid user ID or password")),
        }
    }
}
