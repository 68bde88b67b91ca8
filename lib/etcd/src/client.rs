//! The calls, and at which endpoint they are tried.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tls::Dialer;
use tonic::{Code, Request, Response, Status, metadata::AsciiMetadataValue, transport::Channel};

use crate::{
    Error, Reason,
    connect::Address,
    error::{Said, said, words},
    ops,
    proto::{
        AuthenticateRequest, CompactionRequest, DeleteRangeRequest, DeleteRangeResponse, KeyValue, LeaseGrantRequest,
        LeaseRevokeRequest, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
        auth_client::AuthClient, kv_client::KvClient, lease_client::LeaseClient, request_op,
    },
};

/// The deadline of a call at one endpoint, with the making of the connection. A call that is under way when etcd loses
/// its leader is never answered.
pub(crate) const DEADLINE: Duration = Duration::from_millis(1500);
/// Responses are larger than gRPC's usual 4 MiB where pages hold large values.
pub(crate) const MAX_MESSAGE_BYTES: usize = 512 * 1024 * 1024;
/// A page of [`Client::pages`] should have about as many bytes as this.
const PAGE_BYTES: usize = 2 * 1024 * 1024;
const MOST_KEYS_OF_A_PAGE: i64 = 4096;

/// How etcd is reached.
#[derive(Clone, Default)]
pub struct Options {
    /// Its members: `http://HOST:PORT`, `https://HOST:PORT` or `HOST:PORT`.
    pub endpoints: Vec<String>,
    /// For endpoints with `https://`. That of a [`tls::Service`] makes new connections with what the service has taken
    /// over last.
    pub tls: Option<Dialer>,
    /// Name and password.
    pub user: Option<(String, String)>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("Options").field("endpoints", &self.endpoints).field("user", &user).finish_non_exhaustive()
    }
}

/// A client. Cheap to clone; clones share their connections. It connects with its first call.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Inner>, pub(crate) Duration);

pub(crate) struct Inner {
    addresses: Vec<Address>,
    pub(crate) tls: Option<Dialer>,
    user: Option<(String, String)>,
    token: Mutex<Option<AsciiMetadataValue>>,
    /// The endpoint of the newest call that was answered.
    current: AtomicUsize,
    /// Number of the next call.
    calls: AtomicU64,
}

impl Inner {
    pub(crate) fn user(&self) -> Option<(String, String)> {
        self.user.clone()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.name()).finish()
    }
}

/// Whether a call whose answer is missing may be tried again at the next endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Reads,
    Writes,
}

impl Client {
    /// Reads the options; connects nowhere.
    ///
    /// # Errors
    /// [`Error::Options`].
    pub fn new(options: &Options) -> Result<Self, Error> {
        let address = |text: &String| Address::new(text, options.tls.as_ref());
        let addresses = options.endpoints.iter().map(address).collect::<Result<Vec<_>, _>>()?;
        if addresses.is_empty() {
            return Err(Error::Options("etcd needs at least one endpoint".to_owned()));
        }
        let inner = Inner {
            addresses,
            tls: options.tls.clone(),
            user: options.user.clone(),
            token: Mutex::default(),
            current: AtomicUsize::new(0),
            // An endpoint that has answered nothing has answered call 0.
            calls: AtomicU64::new(1),
        };
        Ok(Self(Arc::new(inner), DEADLINE))
    }

    /// One whose calls have this deadline at each endpoint, in place of 1.5 s.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self(self.0.clone(), deadline)
    }

    /// The endpoints, for logs and errors.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.addresses.iter().map(|address| &*address.name).collect::<Vec<_>>().join(",")
    }

    /// Reads keys at once.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
        self.call(Kind::Reads, request, |channel, request| async move { kv(channel).range(request).await }).await
    }

    /// The next page of a range: as many keys as make a fair response. `request.limit` is how many it may be; it and
    /// `request.key` are set for the following page, `request.revision` too if it was 0. None = that was the last one.
    ///
    /// # Errors
    /// See [`Error`]; the same page may be asked for again.
    pub async fn page(&self, request: &mut Option<RangeRequest>) -> Result<Vec<KeyValue>, Error> {
        let Some(mut next) = request.clone() else { return Ok(Vec::new()) };
        if next.limit == 0 {
            next.limit = 16;
        }
        let page = self.range(next.clone()).await?;
        let bytes: usize = page.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
        *request = page.kvs.last().filter(|_| page.more).map(|last| {
            // The key right after the last one.
            next.key.clone_from(&last.key);
            next.key.push(0);
            if bytes < PAGE_BYTES / 2 {
                next.limit = (next.limit * 2).min(MOST_KEYS_OF_A_PAGE);
            } else if bytes > PAGE_BYTES * 2 {
                next.limit = (next.limit / 2).max(1);
            }
            if next.revision == 0 {
                next.revision = page.header.as_ref().map_or(0, |header| header.revision);
            }
            next
        });
        Ok(page.kvs)
    }

    /// Puts a key; it ends with the lease, 0 = with none.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        lease: i64,
    ) -> Result<PutResponse, Error> {
        let request = PutRequest { key: key.into(), value: value.into(), lease };
        self.call(Kind::Writes, request, |channel, request| async move { kv(channel).put(request).await }).await
    }

    /// Deletes the keys from `first` to before `end`; an empty `end` = the first alone.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete(
        &self,
        first: impl Into<Vec<u8>>,
        end: impl Into<Vec<u8>>,
    ) -> Result<DeleteRangeResponse, Error> {
        let request = DeleteRangeRequest { key: first.into(), range_end: end.into(), prev_kv: false };
        self.call(Kind::Writes, request, |channel, request| async move { kv(channel).delete_range(request).await })
            .await
    }

    /// A transaction. See [`ops`] for its parts. One that only reads is tried at the next endpoint, as other reads are.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Error> {
        let only_reads = |op: &RequestOp| matches!(op.request, Some(request_op::Request::Range(_)));
        let kind =
            if request.success.iter().chain(&request.failure).all(only_reads) { Kind::Reads } else { Kind::Writes };
        self.call(kind, request, |channel, request| async move { kv(channel).txn(request).await }).await
    }

    /// Drops all values that were replaced before this revision.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn compact(&self, revision: i64) -> Result<(), Error> {
        self.compaction(CompactionRequest { revision, physical: false }).await
    }

    /// As [`Self::compact`], and waits until the member that answers has deleted the revisions: only then does its
    /// status tell how much of its file is free.
    ///
    /// # Errors
    /// See [`Error`]. Without an answer in time etcd still compacts.
    pub async fn compact_and_wait(&self, revision: i64) -> Result<(), Error> {
        self.compaction(CompactionRequest { revision, physical: true }).await
    }

    async fn compaction(&self, request: CompactionRequest) -> Result<(), Error> {
        let answer =
            self.call(Kind::Reads, request, |channel, request| async move { kv(channel).compact(request).await });
        answer.await.map(drop)
    }

    /// A new lease; etcd ends it when it was not kept alive for `ttl`, of which it takes at least 2 s. A lease that was
    /// granted without an answer ends by itself.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn grant(&self, ttl: Duration) -> Result<i64, Error> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(2);
        let request = LeaseGrantRequest { ttl: seconds, id: 0 };
        let answer = self.call(Kind::Reads, request, |channel, request| async move {
            LeaseClient::new(channel).lease_grant(request).await
        });
        Ok(answer.await?.id)
    }

    /// Ends a lease and deletes its keys.
    ///
    /// # Errors
    /// See [`Error`]; a lease that has ended already is none.
    pub async fn revoke(&self, lease: i64) -> Result<(), Error> {
        let request = LeaseRevokeRequest { id: lease };
        let answer = self.call(Kind::Reads, request, |channel, request| async move {
            LeaseClient::new(channel).lease_revoke(request).await
        });
        match answer.await {
            Err(error) if error.refused() == Some(Reason::NoLease) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Leaves the endpoint at which the newest call was answered: the next calls begin with another one. For streams
    /// that have fallen silent.
    pub fn leave_endpoint(&self) {
        let current = self.0.current.load(Ordering::Relaxed);
        self.leave(current);
    }

    /// Leaves the connections to all endpoints: the next call makes a new one, wherever it begins. What is under way on
    /// them goes on. For a caller that no endpoint has answered in time.
    pub fn leave_all_endpoints(&self) {
        self.0.addresses.iter().for_each(Address::leave);
        self.turn_endpoint();
    }

    /// The next calls begin with another endpoint; the connection to this one stays, and so do the calls on it. For a
    /// call whose answer is late.
    pub fn turn_endpoint(&self) {
        let current = self.0.current.load(Ordering::Relaxed);
        self.turn(current);
    }

    /// How many endpoints there are.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.0.addresses.len()
    }

    fn leave(&self, at: usize) {
        self.0.addresses[at].leave();
        self.turn(at);
    }

    fn turn(&self, at: usize) {
        let next = (at + 1) % self.0.addresses.len();
        // Unless another call has gone on already.
        let _ = self.0.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The next calls begin where this one was answered, unless the endpoint that they would begin with has answered a
    /// newer one: then this answer was only late.
    fn answered(&self, at: usize, number: u64) {
        self.0.addresses[at].answered.fetch_max(number, Ordering::Relaxed);
        let current = self.0.current.load(Ordering::Relaxed);
        if self.0.addresses[current].answered.load(Ordering::Relaxed) < number {
            self.0.current.store(at, Ordering::Relaxed);
        }
    }

    /// Tries a call at one endpoint after the other.
    pub(crate) async fn call<Q, A, F, Fut>(&self, kind: Kind, message: Q, send: F) -> Result<A, Error>
    where
        Q: Clone,
        F: Fn(Channel, Request<Q>) -> Fut,
        Fut: Future<Output = Result<Response<A>, Status>>,
    {
        let (all, first) = (self.0.addresses.len(), self.0.current.load(Ordering::Relaxed));
        let (mut why, mut unanswered) = (Vec::new(), None);
        let mut renewed = false;
        let mut turn = 0;
        while turn < all {
            let at = (first + turn) % all;
            let address = &self.0.addresses[at];
            let number = self.0.calls.fetch_add(1, Ordering::Relaxed);
            let attempt = async {
                let channel = address.channel().await.map_err(Attempt::NotSent)?;
                let mut request = Request::new(message.clone());
                request.set_timeout(self.1);
                self.sign(&mut request, &channel).await.map_err(Attempt::Failed)?;
                send(channel, request).await.map_err(Attempt::Failed)
            };
            // What times out while the connection is made counts as sent: no harm is done by doubt.
            let ended = match tokio::time::timeout(self.1, attempt).await {
                Ok(Ok(answer)) => {
                    self.answered(at, number);
                    return Ok(answer.into_inner());
                }
                Ok(Err(ended)) => ended,
                Err(_) => Attempt::Failed(Status::from_error("no answer in time".into())),
            };
            match ended {
                Attempt::NotSent(text) => why.push(format!("{}: {text}", address.name)),
                Attempt::Failed(status) => match said(&status) {
                    Said::Refused(Reason::Token) if !renewed && self.forget_token() => {
                        renewed = true;
                        continue;
                    }
                    Said::Refused(reason) => {
                        return Err(Error::Refused { reason, code: status.code(), text: status.message().to_owned() });
                    }
                    Said::NotSent => why.push(format!("{}: {}", address.name, words(&status))),
                    Said::Unanswered => {
                        let error = Error::Unanswered { endpoint: address.name.clone(), why: words(&status) };
                        if kind == Kind::Writes {
                            self.leave(at);
                            return Err(error);
                        }
                        unanswered = Some(error);
                    }
                },
            }
            self.leave(at);
            turn += 1;
        }
        Err(unanswered.unwrap_or_else(|| Error::Unreachable(why.join("; "))))
    }

    /// The next call gets a new token; false where there is no user, who could have another one.
    pub(crate) fn forget_token(&self) -> bool {
        self.0.token.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.0.user.is_some()
    }

    /// Adds the token of the user.
    pub(crate) async fn sign<T>(&self, request: &mut Request<T>, channel: &Channel) -> Result<(), Status> {
        let Some((name, password)) = &self.0.user else { return Ok(()) };
        let known = self.0.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let token = match known {
            Some(token) => token,
            None => {
                let request = AuthenticateRequest { name: name.clone(), password: password.clone() };
                let answer = match AuthClient::new(channel.clone()).authenticate(request).await {
                    Ok(answer) => answer.into_inner(),
                    // Users are off, so everybody may do everything.
                    Err(status) if status.code() == Code::FailedPrecondition => return Ok(()),
                    Err(status) => return Err(status),
                };
                let token = AsciiMetadataValue::try_from(answer.token)
                    .map_err(|_| Status::internal("etcd's token is no text that could be sent"))?;
                *self.0.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
                token
            }
        };
        request.metadata_mut().insert("token", token);
        Ok(())
    }

    /// The connection for a stream, and the endpoint's name.
    pub(crate) async fn channel(&self) -> Result<(Channel, String), Error> {
        let (all, first) = (self.0.addresses.len(), self.0.current.load(Ordering::Relaxed));
        let mut why = Vec::new();
        for at in (0..all).map(|turn| (first + turn) % all) {
            let address = &self.0.addresses[at];
            match address.channel().await {
                Ok(channel) => return Ok((channel, address.name.clone())),
                Err(text) => {
                    why.push(format!("{}: {text}", address.name));
                    self.leave(at);
                }
            }
        }
        Err(Error::Unreachable(why.join("; ")))
    }

    /// Reads the value of one key.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<KeyValue>, Error> {
        Ok(self.range(ops::key(key)).await?.kvs.pop())
    }
}

/// How an attempt at one endpoint ended without an answer.
enum Attempt {
    NotSent(String),
    Failed(Status),
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES)
}
