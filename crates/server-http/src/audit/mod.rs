//! The audit log: who asked for what, and what came of it. Each request leaves a pair of events, one before it is
//! looked at and one before its answer leaves.
//!
//! [`event`] makes lines and [`filter`] leaves some out, both pure; [`sink`] hands lines over. Nothing here knows files
//! or sockets: those belong to the agent. Begin reading at [`Audit::begin`].

mod event;
mod filter;
mod sink;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use uuid::Uuid;

pub(crate) use event::{Auth, Kind, Object};
pub use filter::{Filter, Stage};
pub use sink::{Counts, Guarantee, Order, Orders, Sink};

use crate::reply::{HttpError, Why};

/// The other end of the connection that a request comes over. Requests over unix sockets have none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Where a handler says which object a request is about, when its path does not. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct About(Arc<Mutex<Option<Object>>>);

impl About {
    /// It is about this object; the last word counts.
    pub(crate) fn says(&self, kind: &'static str, id: impl ToString, namespace: impl ToString) {
        let (id, namespace) = (id.to_string(), namespace.to_string());
        self.set(Object { kind, id, name: String::new(), namespace });
    }

    /// The same of an object with a name besides its id, in no namespace. Where the id is empty, the object has not
    /// been made, and its name stands for it.
    pub(crate) fn names(&self, kind: &'static str, id: &str, name: &str) {
        let (id, name) = if id.is_empty() { (name, "") } else { (id, name) };
        if !id.is_empty() {
            self.set(Object { kind, id: id.into(), name: name.into(), namespace: String::new() });
        }
    }

    fn set(&self, object: Object) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(object);
    }

    fn said(&self) -> Option<Object> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The audit log of an agent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Audit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    agent: String,
    filters: Vec<Filter>,
    sinks: Vec<Sink>,
}

impl Audit {
    /// `agent` is the address of the agent's HTTP API, which its events name.
    #[must_use]
    pub fn new(agent: String, filters: Vec<Filter>, sinks: Vec<Sink>) -> Self {
        Self(Arc::new(Inner { agent, filters, sinks }))
    }

    /// Has the files of all sinks opened anew. A sink that is stuck delays it; dropped, the later ones are not told.
    pub async fn reopen(&self) {
        for sink in &self.0.sinks {
            sink.reopen().await;
        }
    }

    /// Waits, up to 10 s for each sink, until the events so far are written.
    pub async fn flush(&self) {
        for sink in &self.0.sinks {
            sink.flush().await;
        }
    }

    /// Events since the start that each sink could not write, by its name.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.sinks.iter().map(|sink| (&*sink.name, sink.counts.lost_so_far()))
    }

    /// Notes that a request has come. `auth` says who sends it.
    ///
    /// # Errors
    /// The answer to a request whose event must be written and cannot be.
    pub(crate) fn begin(
        &self,
        request: &Request<Body>,
        auth: Auth,
    ) -> impl Future<Output = Result<Pair, HttpError>> + use<> {
        let uri = request.uri();
        let remote = request.extensions().get::<Peer>().map(|peer| peer.0.to_string()).unwrap_or_default();
        let (method, query) = (request.method().as_str(), uri.query().unwrap_or_default());
        let asked = event::Asked::of(Uuid::new_v4(), method, uri.path(), query, request.headers(), remote);
        self.clone().received(event::Asked { auth, ..asked })
    }

    async fn received(self, asked: event::Asked) -> Result<Pair, HttpError> {
        let pair = Pair(Mutex::new(Some(Begun { audit: self.clone(), asked: asked.clone(), about: About::default() })));
        let Err(Unwritten { sink, why }) = self.write(&asked, None).await else { return Ok(pair) };
        drop(pair.take());
        // The sinks before that one hold the first event of a pair.
        let refused =
            event::Outcome { status: Some(StatusCode::INTERNAL_SERVER_ERROR), why: why.clone(), object: None };
        if let Some(line) = self.line(&asked, Some(&refused)) {
            self.0.sinks[..sink].iter().for_each(|sink| sink.hand_over(line.clone()));
        }
        Err(HttpError::internal(format_args!(
            "the request was not carried out: its event could not be written to the audit log: {why}"
        )))
    }

    /// The lines of an event; None = a filter leaves it out.
    fn line(&self, asked: &event::Asked, outcome: Option<&event::Outcome>) -> Option<Arc<[u8]>> {
        let stage = if outcome.is_some() { Stage::Complete } else { Stage::Received };
        if self.0.filters.iter().any(|filter| filter.leaves_out(stage, &asked.method, &asked.path)) {
            return None;
        }
        Some(event::line(Uuid::new_v4(), Timestamp::now(), &self.0.agent, asked, outcome).into())
    }

    async fn write(&self, asked: &event::Asked, outcome: Option<&event::Outcome>) -> Result<(), Unwritten> {
        let Some(line) = self.line(asked, outcome) else { return Ok(()) };
        for (n, sink) in self.0.sinks.iter().enumerate() {
            let written = sink.write(line.clone()).await;
            written.map_err(|why| Unwritten { sink: n, why: format!("sink {:?}: {why}", sink.name) })?;
        }
        Ok(())
    }
}

/// A sink that must have an event and has not.
#[derive(Debug)]
struct Unwritten {
    /// Its place.
    sink: usize,
    why: String,
}

#[derive(Debug)]
struct Begun {
    audit: Audit,
    asked: event::Asked,
    about: About,
}

/// A request whose second event is still to come. Dropped before that, its client has gone away, and the event says
/// so. The lock is for those who share it between threads.
#[derive(Debug)]
pub(crate) struct Pair(Mutex<Option<Begun>>);

impl Pair {
    fn take(&self) -> Option<Begun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Where its handler says what it is about.
    pub(crate) fn about(&self) -> About {
        let begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        begun.as_ref().map(|begun| begun.about.clone()).unwrap_or_default()
    }

    /// The answer, once its event is written; another one, where that has to be and cannot.
    pub(crate) async fn complete(self, mut response: Response<Body>) -> Response<Body> {
        let Some(Begun { audit, asked, about }) = self.take() else { return response };
        let status = response.status();
        let why = response.extensions_mut().remove::<Why>().map(|why| why.0);
        let usual = || status.canonical_reason().unwrap_or_default().to_owned();
        let failed = status.is_client_error() || status.is_server_error();
        let outcome = event::Outcome {
            status: Some(status),
            why: if failed { why.unwrap_or_else(usual) } else { String::new() },
            object: about.said(),
        };
        // On its own: the client may go away meanwhile.
        let write = tokio::spawn(async move { audit.write(&asked, Some(&outcome)).await });
        match write.await {
            Ok(Ok(())) => response,
            // The runtime ends, and with it all connections.
            Err(_) => response,
            Ok(Err(Unwritten { why, .. })) => HttpError::internal(format_args!(
                "the request was carried out (status {}), but its event could not be written to the audit log: {why}",
                status.as_u16()
            ))
            .into_response(),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let taken = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Begun { audit, asked, about }) = taken else { return };
        let outcome = event::Outcome { status: None, why: String::new(), object: about.said() };
        if let Some(line) = audit.line(&asked, Some(&outcome)) {
            audit.0.sinks.iter().for_each(|sink| sink.hand_over(line.clone()));
        }
    }
}
