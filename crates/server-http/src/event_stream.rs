//! The event stream: a JSON object per line, `{}` as a sign of life.

use std::{sync::Arc, time::Duration};

use access::{Capability, Level, Need};
use api::{go_json, shapes::node_detail};
use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use model::{MAX_RUN_EXCEEDED, Namespace};
use serde::Serialize;
use serde_json::value::RawValue;
use server::{
    ServerHandle,
    events::{Event, EventBatch, EventFilter, EventSubscription, Payload, Topic},
};

use crate::{
    caller::{Caller, READS_JOBS, Unchecked, token},
    reply::{HttpError, Reply},
    request::{App, Ctx},
};

pub(crate) async fn stream(ctx: Unchecked) -> Result<Reply, HttpError> {
    let index = ctx
        .said()
        .query
        .number("index")
        .map_err(|_| HttpError::bad_request("Unable to parse index: it must be an unsigned integer"))?;
    let mut filter = filter(ctx.said())?;
    let payloads = match ctx.said().query.text("payload") {
        "" => true,
        "none" => false,
        other => {
            return Err(HttpError::bad_request(format_args!(
                "payload={other}: the only value is none, for no payloads"
            )));
        }
    };
    let namespace = ctx.said().query.namespace();
    let ctx = ctx.filtering(|caller| permit(&mut filter, caller, namespace.as_str()))?;
    let watch = Watch { app: ctx.app.clone(), payloads, token: token(&ctx.headers).to_owned() };
    let server = ctx.server().clone();
    let subscription = server.subscribe(filter, index.unwrap_or(0));
    let heartbeat = ctx.app.options.event_heartbeat;
    let body = Body::from_stream(stream::unfold(State::First(subscription), move |state| {
        let (server, watch) = (server.clone(), watch.clone());
        async move { next(state, heartbeat, &server, &watch).await }
    }));
    Ok(Reply::body("application/json", body).read_at(ctx.server().snapshot().latest_index()))
}

enum State {
    /// The headers must reach the client before the first event does: a sign of life at once.
    First(EventSubscription),
    Open(EventSubscription),
}

async fn next(
    state: State,
    heartbeat: Duration,
    server: &ServerHandle,
    watch: &Watch,
) -> Option<(Result<Bytes, go_json::Error>, State)> {
    let mut subscription = match state {
        State::First(subscription) => {
            return Some((Ok(Bytes::from_static(b"{}\n")), State::Open(subscription)));
        }
        State::Open(subscription) => subscription,
    };
    let stopping = server.stopping();
    let line = tokio::select! {
        // Both are cancel safe: nothing is lost when the other one wins.
        batch = subscription.next() => line(&watch.permitted(batch?)?, watch.payloads),
        () = tokio::time::sleep(heartbeat) => Ok(Bytes::from_static(b"{}\n")),
        () = stopping.cancelled() => return None,
    };
    Some((line, State::Open(subscription)))
}

/// What an event needs. Those of nodes belong to every namespace.
fn need(topic: Topic, namespace: &str) -> Need<'_> {
    match topic {
        Topic::Node => Need::Node(Level::Read),
        Topic::NodePool
        | Topic::AclPolicy
        | Topic::AclToken
        | Topic::AclRole
        | Topic::AclAuthMethod
        | Topic::AclBindingRule => Need::Management,
        Topic::Recovery => Need::Operator(Level::Read),
        Topic::HostVolume => Need::Namespace { namespace, any_of: &[Capability::HostVolumeRead] },
        Topic::Job | Topic::Evaluation | Topic::Allocation | Topic::Deployment | Topic::RemoteTask | Topic::Service => {
            Need::Namespace { namespace, any_of: READS_JOBS }
        }
    }
}

/// Keeps the topics that the caller may follow; false = there are none.
fn permit(filter: &mut EventFilter, caller: &Caller, namespace: &str) -> bool {
    if filter.topics.is_empty() {
        filter.topics = Topic::ALL.into_iter().map(|topic| (topic, vec!["*".to_owned()])).collect();
    }
    filter.topics.retain(|topic, _| caller.may(&need(*topic, namespace)));
    !filter.topics.is_empty()
}

/// Judges each event when it comes: a token may expire, and its policies may change, while a stream is open.
#[derive(Clone)]
struct Watch {
    app: Arc<App>,
    /// Whether events bring their objects.
    payloads: bool,
    token: String,
}

impl Watch {
    /// What of a batch the caller may see now; None = it may see nothing any more, and the stream ends.
    fn permitted(&self, mut batch: EventBatch) -> Option<EventBatch> {
        let caller = Caller::of(self.app.authority.as_ref(), &self.app.server, &self.token).ok()?;
        let may = |event: &Event| caller.may(&need(event.topic, event.namespace.as_str()));
        batch.events.retain(may);
        Some(batch)
    }
}

/// The topics that are asked for: `Topic`, `Topic:key`, `*`.
fn filter(ctx: &Ctx) -> Result<EventFilter, HttpError> {
    let mut filter =
        EventFilter { namespace: Some(ctx.query.namespace()).filter(|n| n != "*"), ..EventFilter::default() };
    let mut any = false;
    for text in ctx.query.all("topic") {
        any = true;
        let (topic, key) = text.split_once(':').unwrap_or((text, "*"));
        if key.contains(':') {
            return Err(HttpError::bad_request(format_args!("Invalid key value pair for topic, topic: {text}")));
        }
        let key = if key.is_empty() { "*" } else { key };
        // Of a topic that is not known here nothing ever comes: it may be one of other releases.
        let topics: Vec<Topic> = match topic {
            "*" => Topic::ALL.to_vec(),
            name => Topic::ALL.into_iter().filter(|t| t.as_str() == name).collect(),
        };
        for topic in topics {
            filter.topics.entry(topic).or_default().push(key.to_owned());
        }
    }
    if any && filter.topics.is_empty() {
        // Only topics of which nothing comes: a filter that nothing passes, because an empty one would let
        // everything through.
        filter.topics.insert(Topic::Job, Vec::new());
    }
    Ok(filter)
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct BatchView<'a> {
    index: u64,
    events: Vec<EventView<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct EventView<'a> {
    topic: &'static str,
    #[serde(rename = "Type")]
    kind: &'static str,
    key: &'a str,
    namespace: &'a Namespace,
    filter_keys: Vec<&'a str>,
    index: u64,
    /// None = the client has asked for none.
    payload: Option<Box<RawValue>>,
}

fn line(batch: &EventBatch, payloads: bool) -> Result<Bytes, go_json::Error> {
    let events = batch.events.iter().map(|event| view(event, payloads)).collect::<Result<_, _>>()?;
    let mut bytes = go_json::to_vec(&BatchView { index: batch.index, events }, false)?;
    bytes.push(b'\n');
    Ok(bytes.into())
}

fn view(event: &Event, payloads: bool) -> Result<EventView<'_>, go_json::Error> {
    let payload = if payloads { Some(payload(event)?) } else { None };
    Ok(EventView {
        topic: event.topic.as_str(),
        kind: event.kind,
        key: &event.key,
        namespace: &event.namespace,
        filter_keys: event.filter_keys.iter().map(|k| &**k).collect(),
        index: event.index,
        payload,
    })
}

fn payload(event: &Event) -> Result<Box<RawValue>, go_json::Error> {
    let object = match &event.payload {
        Payload::Job(job) => go_json::to_string(job, false)?,
        Payload::Evaluation(eval) => go_json::to_string(&api::shapes::eval_detail(eval), false)?,
        Payload::Allocation(alloc) => go_json::to_string(alloc, false)?,
        Payload::Deployment(deployment) => go_json::to_string(deployment, false)?,
        Payload::Node(node) => go_json::to_string(&node_detail(node), false)?,
        Payload::RemoteTask(record) => go_json::to_string(record, false)?,
        Payload::Service(registration) => go_json::to_string(registration, false)?,
        Payload::NodePool(pool) => go_json::to_string(&crate::nodes::pool_view(pool), false)?,
        Payload::Volume(volume) => go_json::to_string(volume, false)?,
        Payload::AclPolicy(policy) => go_json::to_string(policy, false)?,
        Payload::AclToken(token) => go_json::to_string(token, false)?,
        Payload::AclRole(role) => go_json::to_string(role, false)?,
        Payload::AclAuthMethod(method) => go_json::to_string(method, false)?,
        Payload::AclBindingRule(rule) => go_json::to_string(rule, false)?,
        Payload::Recovery(meta) => go_json::to_string(&crate::operator::recovery_view(meta), false)?,
    };
    // Nomad names these objects otherwise than their topics.
    let name = match event.topic {
        Topic::AclAuthMethod => "AuthMethod",
        Topic::HostVolume => "Volume",
        topic => topic.as_str(),
    };
    // An allocation that its `max_run_duration` has ended says so beside the object.
    let timeout = match &event.payload {
        Payload::Allocation(alloc) if &*alloc.client_description == MAX_RUN_EXCEEDED => {
            format!(",\"Timeout\":true,\"TimeoutReason\":\"{MAX_RUN_EXCEEDED}\"")
        }
        _ => String::new(),
    };
    RawValue::from_string(format!("{{\"{name}\":{object}{timeout}}}")).map_err(go_json::Error::Encode)
}
