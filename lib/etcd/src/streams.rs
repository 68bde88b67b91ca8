//! Calls that are streams: watches, and the keeping of leases.

use std::time::Duration;

use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming, metadata::AsciiMetadataValue};

use crate::{
    Client, Error, Reason,
    client::{Kind, MAX_MESSAGE_BYTES},
    error::{Said, said, words},
    proto::{
        LeaseKeepAliveRequest, LeaseTimeToLiveRequest, WatchCreateRequest, WatchRequest, WatchResponse,
        lease_client::LeaseClient, watch_client::WatchClient, watch_request,
    },
};

/// The changes of a range, one revision after the other.
#[derive(Debug)]
pub struct Watch {
    stream: Streaming<WatchResponse>,
    // Its end ends the watch.
    _requests: mpsc::Sender<WatchRequest>,
    endpoint: String,
    /// Newest revision of etcd when the watch began. One below the start means that etcd's data are older than what
    /// this client has seen; such a watch is silent.
    pub revision: i64,
}

/// Why a watch has ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchError {
    /// Changes after its start were compacted: read everything again.
    #[error("etcd keeps the changes from revision {0} on only")]
    Compacted(i64),
    /// The stream has ended; another one may go on after the last revision that was seen.
    #[error(transparent)]
    Ended(#[from] Error),
}

impl Client {
    /// Watches the keys from `first` to before `end`, from a revision on.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub async fn watch(
        &self,
        first: impl Into<Vec<u8>>,
        end: impl Into<Vec<u8>>,
        start: i64,
    ) -> Result<Watch, WatchError> {
        let create = WatchCreateRequest {
            key: first.into(),
            range_end: end.into(),
            start_revision: start,
            ..WatchCreateRequest::default()
        };
        match self.open_watch(create.clone()).await {
            Err(WatchError::Ended(error)) if error.refused() == Some(Reason::Token) && self.forget_token() => {
                self.open_watch(create).await
            }
            opened => opened,
        }
    }

    async fn open_watch(&self, create: WatchCreateRequest) -> Result<Watch, WatchError> {
        let (channel, endpoint) = self.channel().await?;
        let failed = |why: String| Error::Unanswered { endpoint: endpoint.clone(), why };
        let opening = async {
            let (requests, queue) = mpsc::channel(1);
            // The queue has room for one.
            let _ = requests.try_send(WatchRequest { request: Some(watch_request::Request::Create(create)) });
            let mut request = Request::new(ReceiverStream::new(queue));
            needs_leader(&mut request);
            self.sign(&mut request, &channel).await?;
            let mut client = WatchClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
            let mut stream = client.watch(request).await?.into_inner();
            let first = stream.message().await?;
            Ok::<_, Status>((requests, stream, first))
        };
        let opened = timeout(self.1, opening).await.map_err(|_| failed("no answer in time".to_owned()));
        let (requests, stream, first) =
            match opened.and_then(|opened| opened.map_err(|status| ended(&status, &endpoint))) {
                Ok(opened) => opened,
                Err(error) => {
                    self.leave_endpoint();
                    return Err(error.into());
                }
            };
        let Some(first) = first else { return Err(failed("the stream has ended".to_owned()).into()) };
        if first.canceled {
            return Err(canceled(first, &endpoint));
        }
        let revision = first.header.map_or(0, |header| header.revision);
        Ok(Watch { stream, _requests: requests, endpoint, revision })
    }

    /// Keeps a lease; None = it has ended, with all its keys. etcd counts from when it got the call.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn keep(&self, lease: i64) -> Result<Option<Duration>, Error> {
        let keep = LeaseKeepAliveRequest { id: lease };
        let call = self.call(Kind::Reads, keep, |channel, request| async move {
            let (meta, _, keep) = request.into_parts();
            let mut request = Request::new(tokio_stream::once(keep));
            *request.metadata_mut() = meta;
            needs_leader(&mut request);
            let mut answers = LeaseClient::new(channel).lease_keep_alive(request).await?;
            let first = answers.get_mut().message().await?;
            let answer = first.ok_or_else(|| Status::unavailable("the stream has ended"))?;
            Ok(tonic::Response::new(answer))
        });
        match call.await {
            Ok(answer) => Ok(u64::try_from(answer.ttl).ok().filter(|ttl| *ttl > 0).map(Duration::from_secs)),
            Err(error) if error.refused() == Some(Reason::NoLease) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Client {
    /// How long ago a lease was kept alive, rounded up to the second; None = it has ended.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn kept_ago(&self, lease: i64) -> Result<Option<Duration>, Error> {
        let request = LeaseTimeToLiveRequest { id: lease, keys: false };
        let answer = self.call(Kind::Reads, request, |channel, request| async move {
            LeaseClient::new(channel).lease_time_to_live(request).await
        });
        let answer = answer.await?;
        Ok((answer.ttl >= 0).then(|| Duration::from_secs(answer.granted_ttl.abs_diff(answer.ttl))))
    }
}

impl Watch {
    /// The next changes; those of one revision stand together in one response. Cancel safe.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub async fn next(&mut self) -> Result<WatchResponse, WatchError> {
        match self.stream.message().await {
            Ok(Some(response)) if response.canceled => Err(canceled(response, &self.endpoint)),
            Ok(Some(response)) => Ok(response),
            Ok(None) => {
                Err(Error::Unanswered { endpoint: self.endpoint.clone(), why: "the stream has ended".into() }.into())
            }
            Err(status) => Err(ended(&status, &self.endpoint).into()),
        }
    }
}

/// Without it a stream stays open in silence while etcd has no leader.
fn needs_leader<T>(request: &mut Request<T>) {
    request.metadata_mut().insert("hasleader", AsciiMetadataValue::from_static("true"));
}

fn canceled(response: WatchResponse, endpoint: &str) -> WatchError {
    if response.compact_revision > 0 {
        return WatchError::Compacted(response.compact_revision);
    }
    let why = format!("the watch ended: {}", response.cancel_reason);
    // Who shows a token that has ended gets one of these in the stream, no status (isWatchPermitted in
    // server/etcdserver/api/v3rpc/watch.go).
    let denied = ["permission denied", "invalid auth token", "revision of auth store is old"];
    if denied.iter().any(|text| response.cancel_reason.contains(text)) {
        return Error::Refused { reason: Reason::Token, code: Code::PermissionDenied, text: why }.into();
    }
    Error::Unanswered { endpoint: endpoint.to_owned(), why }.into()
}

fn ended(status: &Status, endpoint: &str) -> Error {
    match said(status) {
        Said::Refused(reason) => Error::Refused { reason, code: status.code(), text: status.message().to_owned() },
        Said::NotSent | Said::Unanswered => Error::Unanswered { endpoint: endpoint.to_owned(), why: words(status) },
    }
}
