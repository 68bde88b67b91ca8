//! From a request, the decision on it and its answer to a line of the log. Names and nesting are those of Nomad's
//! events; what Drover adds are `request.query`, `request.object`, `auth.type` and `auth.policies`.
//!
//! Bodies never get here. Of a query only the values that cannot be secrets are told.

use api::{query::Query, shapes::AclCaller};
use http::{HeaderMap, HeaderValue, StatusCode, header::USER_AGENT};
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::filter::Stage;
use crate::authority::Known;

/// Parameters whose values are told. Of all others only the name is: a new one that holds a secret is no leak.
const TOLD: &[&str] = &[
    "address",
    "algo",
    "all",
    "all_owners",
    "cas",
    "choose",
    "diff_version",
    "diffs",
    "driver",
    "eval_priority",
    "follow",
    "force",
    "format",
    "full",
    "global",
    "id",
    "index",
    "job",
    "limit",
    "local",
    "log_level",
    "log_json",
    "namespace",
    "no_shutdown_delay",
    "node",
    "node_id",
    "offset",
    "origin",
    "os",
    "path",
    "per_page",
    "plain",
    "prefix",
    "pretty",
    "purge",
    "region",
    "related",
    "reschedule",
    "resources",
    "reverse",
    "server_id",
    "stale",
    "status",
    "sweep",
    "task",
    "task_states",
    "topic",
    "tty",
    "type",
    "version",
    "wait",
    "ws_handshake",
];

/// Stands for a value that is not told.
const REDACTED: &str = "<redacted>";
/// Longest user agent that is told.
const AGENT_MAX: usize = 256;

/// Who sends a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Auth {
    /// Of the token; empty = none that has one.
    pub(crate) accessor_id: String,
    /// Of the token, or of the task whose identity is shown; of a node, its id.
    pub(crate) name: String,
    /// See [`Kind`].
    #[serde(rename = "type")]
    pub(crate) kind: Kind,
    /// What the caller's rights come from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) policies: Vec<String>,
}

impl From<&Known> for Auth {
    /// Whoever the ACLs know.
    fn from(known: &Known) -> Self {
        let policies = known.policies.iter().map(ToString::to_string).collect();
        let of = |kind, name| Self { kind, name, policies, ..Auth::default() };
        match (&known.token, known.access.identity()) {
            (Some(token), _) => {
                let kind = if token.management() { Kind::Management } else { Kind::Client };
                Self { accessor_id: token.accessor_id.to_string(), ..of(kind, token.name.clone()) }
            }
            (None, Some(task)) => {
                let parts = [Some(&task.namespace), Some(&task.job), Some(&task.group), task.task.as_ref()];
                let name = parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join("/");
                of(Kind::Workload, name)
            }
            (None, None) => match known.access.node() {
                Some(id) => of(Kind::Node, id.to_owned()),
                None => of(Kind::Anonymous, String::new()),
            },
        }
    }
}

impl From<AclCaller> for Auth {
    fn from(caller: AclCaller) -> Self {
        let kind = match caller.kind.as_str() {
            "client" => Kind::Client,
            "management" => Kind::Management,
            "workload" => Kind::Workload,
            "node" => Kind::Node,
            "invalid" => Kind::Invalid,
            _ => Kind::Anonymous,
        };
        Self { accessor_id: caller.accessor_id, name: caller.name, kind, policies: caller.policies }
    }
}

impl From<Auth> for AclCaller {
    fn from(auth: Auth) -> Self {
        let kind = match auth.kind {
            Kind::Anonymous => "anonymous",
            Kind::Invalid => "invalid",
            Kind::Client => "client",
            Kind::Management => "management",
            Kind::Workload => "workload",
            Kind::Node => "node",
        };
        Self { accessor_id: auth.accessor_id, name: auth.name, kind: kind.to_owned(), policies: auth.policies }
    }
}

/// How somebody is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// No token is shown, or none was looked at: there are no ACLs, or this agent does not know tokens.
    #[default]
    Anonymous,
    /// A token that is unknown or has expired.
    Invalid,
    /// A token with policies.
    Client,
    /// A token that may everything.
    Management,
    /// A task by its identity.
    Workload,
    /// A node by its identity.
    Node,
}

/// The object of a request whose path does not name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Object {
    /// Such as `job`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// Its name, or its id where it has one.
    pub(crate) id: String,
    /// Its name beside its id; empty = it has only one of them, or none is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    /// Empty = it belongs to none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
}

/// What is known of a request before it is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) id: Uuid,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) namespace: String,
    /// Empty = it comes over a unix socket, or from within this process.
    pub(crate) remote: String,
    pub(crate) user_agent: String,
    pub(crate) auth: Auth,
}

impl Asked {
    /// What a request says. `raw` is its query as it was sent.
    pub(crate) fn of(id: Uuid, method: &str, path: &str, raw: &str, headers: &HeaderMap, remote: String) -> Self {
        let query = Query::parse(raw).ok();
        let namespace = query.map_or_else(|| "default".to_owned(), |query| query.namespace().to_string());
        let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
        let user_agent = String::from_utf8_lossy(agent).chars().take(AGENT_MAX).collect();
        Self {
            id,
            method: method.to_owned(),
            path: path.to_owned(),
            query: told(raw),
            namespace,
            remote,
            user_agent,
            auth: Auth::default(),
        }
    }
}

/// A query without what may be secret in it.
fn told(raw: &str) -> String {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if value.is_empty() || TOLD.contains(&name) { pair.to_owned() } else { format!("{name}={REDACTED}") }
    };
    raw.split('&').filter(|p| !p.is_empty()).map(pair).collect::<Vec<_>>().join("&")
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// None = its client went away before the answer.
    pub(crate) status: Option<StatusCode>,
    /// Why it was refused; empty where that is not told.
    pub(crate) why: String,
    pub(crate) object: Option<Object>,
}

#[derive(Serialize)]
struct Line<'e> {
    created_at: String,
    event_type: &'static str,
    payload: Payload<'e>,
}

#[derive(Serialize)]
struct Payload<'e> {
    id: Uuid,
    stage: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: String,
    version: u8,
    auth: &'e Auth,
    request: Request<'e>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<Response<'e>>,
}

#[derive(Serialize)]
struct Request<'e> {
    id: Uuid,
    operation: &'e str,
    endpoint: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    query: &'e str,
    namespace: Namespace<'e>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<&'e Object>,
    request_meta: RequestMeta<'e>,
    node_meta: NodeMeta<'e>,
}

#[derive(Serialize)]
struct Namespace<'e> {
    id: &'e str,
}

#[derive(Serialize)]
struct RequestMeta<'e> {
    remote_address: &'e str,
    user_agent: &'e str,
}

#[derive(Serialize)]
struct NodeMeta<'e> {
    ip: &'e str,
}

#[derive(Serialize)]
struct Response<'e> {
    status_code: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'e str,
}

/// What an answer says that never comes.
const GONE: &str = "the client closed the connection before the answer";

/// The line of an event, with its end. `agent` is the address of the agent's HTTP API; without an outcome the request
/// has been received.
pub(crate) fn line(id: Uuid, now: Timestamp, agent: &str, asked: &Asked, outcome: Option<&Outcome>) -> Vec<u8> {
    let stage = if outcome.is_some() { Stage::Complete } else { Stage::Received };
    let response = outcome.map(|outcome| match outcome.status {
        Some(status) => Response { status_code: status.as_u16(), error: &outcome.why },
        None => Response { status_code: 0, error: GONE },
    });
    let timestamp = now.to_string();
    let line = Line {
        created_at: timestamp.clone(),
        event_type: "audit",
        payload: Payload {
            id,
            stage: stage.name(),
            kind: "audit",
            timestamp,
            version: 1,
            auth: &asked.auth,
            request: Request {
                id: asked.id,
                operation: &asked.method,
                endpoint: &asked.path,
                query: &asked.query,
                namespace: Namespace { id: &asked.namespace },
                object: outcome.and_then(|outcome| outcome.object.as_ref()),
                request_meta: RequestMeta { remote_address: &asked.remote, user_agent: &asked.user_agent },
                node_meta: NodeMeta { ip: agent },
            },
            response,
        },
    };
    // Texts and numbers: there is nothing that JSON has no form for.
    let mut line = serde_json::to_vec(&line).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;
    use serde_json::{Value, json};

    use super::*;

    fn asked(raw: &str) -> Asked {
        let headers = [
            (USER_AGENT, HeaderValue::from_static("curl/8")),
            (AUTHORIZATION, HeaderValue::from_static("Bearer s3cret")),
        ];
        let headers: HeaderMap = headers.into_iter().collect();
        Asked::of(Uuid::from_u128(1), "PUT", "/v1/jobs", raw, &headers, "127.0.0.1:9".into())
    }

    #[test]
    fn a_caller_is_the_same_on_every_agent() {
        for kind in [Kind::Anonymous, Kind::Invalid, Kind::Client, Kind::Management, Kind::Workload, Kind::Node] {
            let auth = Auth { accessor_id: "a".into(), name: "n".into(), kind, policies: vec!["p".into()] };
            let told = AclCaller::from(auth.clone());
            assert_eq!(json!(told.kind), serde_json::to_value(kind).expect("JSON"));
            assert_eq!(Auth::from(told), auth);
        }
    }

    #[test]
    fn values_that_may_be_secret_are_not_told() {
        for (raw, shown) in [
            ("", ""),
            ("namespace=a&index=7", "namespace=a&index=7"),
            ("token=s3cret&stale", "token=<redacted>&stale"),
            ("ott=s3cret", "ott=<redacted>"),
            ("command=%5B%22s3cret%22%5D&task=t", "command=<redacted>&task=t"),
            ("NAMESPACE=s3cret", "NAMESPACE=<redacted>"),
            ("nam%65space=s3cret", "nam%65space=<redacted>"),
            ("new=a=s3cret&&x=", "new=<redacted>&x="),
        ] {
            assert_eq!(told(raw), shown, "{raw}");
        }
        let line = line(Uuid::from_u128(2), Timestamp::UNIX_EPOCH, "a", &asked("token=s3cret"), None);
        assert!(!String::from_utf8_lossy(&line).contains("s3cret"));
    }

    #[test]
    fn a_pair_of_events() {
        let asked = asked("namespace=prod");
        let object = Object { kind: "job", id: "web".into(), name: String::new(), namespace: "prod".into() };
        let refused =
            Outcome { status: Some(StatusCode::FORBIDDEN), why: "Permission denied".into(), object: Some(object) };
        let event = |outcome: Option<&Outcome>| {
            let line = line(Uuid::from_u128(2), Timestamp::UNIX_EPOCH, "127.0.0.1:4646", &asked, outcome);
            assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
            serde_json::from_slice::<Value>(&line).expect("JSON")
        };
        let received = json!({
            "created_at": "1970-01-01T00:00:00Z", "event_type": "audit",
            "payload": {
                "id": "00000000-0000-0000-0000-000000000002", "stage": "OperationReceived", "type": "audit",
                "timestamp": "1970-01-01T00:00:00Z", "version": 1,
                "auth": {"accessor_id": "", "name": "", "type": "anonymous"},
                "request": {
                    "id": "00000000-0000-0000-0000-000000000001", "operation": "PUT", "endpoint": "/v1/jobs",
                    "query": "namespace=prod", "namespace": {"id": "prod"},
                    "request_meta": {"remote_address": "127.0.0.1:9", "user_agent": "curl/8"},
                    "node_meta": {"ip": "127.0.0.1:4646"}
                }
            }
        });
        assert_eq!(event(None), received);
        let mut complete = received;
        complete["payload"]["stage"] = json!("OperationComplete");
        complete["payload"]["response"] = json!({"status_code": 403, "error": "Permission denied"});
        complete["payload"]["request"]["object"] = json!({"type": "job", "id": "web", "namespace": "prod"});
        assert_eq!(event(Some(&refused)), complete);
        let gone = event(Some(&Outcome { status: None, why: String::new(), object: None }));
        assert_eq!(gone["payload"]["response"], json!({"status_code": 0, "error": GONE}));
    }
}
