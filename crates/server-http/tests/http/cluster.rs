//! A server with its HTTP listener, and nodes that are only a session.

use std::{panic::Location, sync::Arc, time::Duration};

use api::{
    ApiClient, ClientOptions, RequestOptions,
    client::{Address, Connection},
    node_rpc::{
        AllocUpdates, DriverSchema, DriverSchemas, FromNode, FromNodeMessage, Heartbeat, Hello, PROTOCOLS,
        ToNodeMessage, from_json, node_service_client::NodeServiceClient, to_json,
    },
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use model::{
    AllocClientUpdate, Allocation, ClientStatus, DriverInfo, Job, Node, NodeId, ServiceEntry, TaskState,
    alloc::AllocDeploymentStatus,
    resources::{NodeCpu, NodeDisk, NodeMemory, NodeResources},
};
use serde::Serialize;
use serde_json::{Value, json};
use server::{Server, ServerConfig};
use server_http::{HttpOptions, Limits};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) address: String,
    pub(crate) client: ApiClient,
    /// Shown with each request; empty = none.
    token: String,
    stop: CancellationToken,
    _listener: AbortOnDropHandle<()>,
}

/// An answer as it came over the wire.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Raw {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::with(HttpOptions::default(), Limits::default()).await
    }

    pub(crate) async fn with(options: HttpOptions, limits: Limits) -> Self {
        Self::of(ServerConfig::default(), options, limits).await
    }

    /// With a server of other settings; it has one worker.
    pub(crate) async fn of(config: ServerConfig, options: HttpOptions, limits: Limits) -> Self {
        let config = ServerConfig { workers: 1, ..config };
        let server = Server::start(config).await.expect("the server starts");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("address").to_string();
        let stop = CancellationToken::new();
        let router = server_http::router(server.handle().clone(), options);
        let serve = tokio::spawn(server_http::serve(listener, router, limits, None, stop.clone()));
        let client =
            ApiClient::new(ClientOptions { address: address.clone(), ..ClientOptions::default() }).expect("client");
        Self { server, address, client, token: String::new(), stop, _listener: AbortOnDropHandle::new(serve) }
    }

    /// Shows this token from now on.
    pub(crate) fn show(&mut self, token: &str) {
        token.clone_into(&mut self.token);
        let options =
            ClientOptions { address: self.address.clone(), token: token.to_owned(), ..ClientOptions::default() };
        self.client = ApiClient::new(options).expect("client");
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.server.shutdown().await;
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Raw {
        let address = Address::parse(&self.address).expect("address");
        let mut connection: Connection<Full<Bytes>> = Connection::open(&address, None).await.expect("connects");
        let mut request = Request::builder().method(method).uri(path).header("host", &self.address);
        if !self.token.is_empty() {
            request = request.header("x-nomad-token", &self.token);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = connection.send(request.body(Full::new(body.into())).expect("request")).await.expect("answers");
        let (head, body) = response.into_parts();
        Raw { status: head.status, headers: head.headers, body: body.collect().await.expect("body").to_bytes() }
    }

    pub(crate) async fn get(&self, path: &str) -> Raw {
        self.send(Method::GET, path, &[], "").await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Raw {
        self.send(Method::PUT, path, &[], body.to_string()).await
    }

    /// Puts what is to be a success; its answer.
    #[track_caller]
    pub(crate) fn done(&self, path: &str, body: &Value) -> impl Future<Output = Value> {
        let at = Location::caller();
        async move {
            let raw = self.put(path, body).await;
            assert_eq!(raw.status, StatusCode::OK, "{at}: {path}: {}", raw.text());
            if raw.body.is_empty() { Value::Null } else { raw.json() }
        }
    }

    /// Registers a job; the answer must be a success.
    pub(crate) async fn register(&self, job: &impl Serialize) -> Value {
        self.done("/v1/jobs", &json!({ "Job": job })).await
    }

    /// Reads until the answer meets the condition, by blocking queries.
    pub(crate) async fn until(&self, path: &str, what: &str, done: impl Fn(&Value) -> bool) -> Value {
        let mut index = 0;
        for _ in 0..100 {
            let options = RequestOptions::after(index, Duration::from_secs(5));
            let answer = self.client.query::<Value>(path, &options).await.unwrap_or_else(|e| panic!("{path}: {e}"));
            if done(&answer.value) {
                return answer.value;
            }
            index = answer.meta.index;
        }
        panic!("{path}: not {what} in time");
    }
}

/// A job of one group with one task.
pub(crate) fn job(id: &str, count: i32) -> Job {
    let job = json!({
        "ID": id, "Name": id, "Type": "service", "Datacenters": ["dc1"],
        "TaskGroups": [{
            "Name": "web", "Count": count,
            "Tasks": [{"Name": "server", "Driver": "mock", "Config": {"run_for": "1h"},
                "Resources": {"CPU": 100, "MemoryMB": 64}}],
        }],
    });
    api::go_json::from_value(job).expect("job")
}

pub(crate) fn node(name: &str) -> Node {
    let driver =
        DriverInfo { detected: true, healthy: true, health_description: "Healthy".into(), ..DriverInfo::default() };
    Node {
        id: NodeId(uuid::Uuid::new_v4()),
        datacenter: "dc1".into(),
        name: name.into(),
        http_addr: "127.0.0.1:1".into(),
        attributes: [("kernel.name", "linux"), ("driver.mock", "1"), ("os.name", "testos"), ("nomad.version", "1.9.7")]
            .map(|(k, v)| (k.into(), v.into()))
            .into(),
        resources: NodeResources {
            cpu: NodeCpu { cpu_shares: 4000, total_cpu_cores: 4, reservable_cpu_cores: vec![0, 1, 2, 3] },
            memory: NodeMemory { memory_mb: 8192 },
            disk: NodeDisk { disk_mb: 100_000 },
            min_dynamic_port: 20000,
            max_dynamic_port: 32000,
            ..NodeResources::default()
        },
        class: "big".into(),
        pool: "default".into(),
        drivers: [("mock".to_owned(), driver)].into(),
        ..Node::default()
    }
}

/// A node that is only a session: it keeps its lease and says that whatever it is given runs and is healthy.
pub(crate) struct FakeNode {
    pub(crate) id: NodeId,
    _session: AbortOnDropHandle<()>,
}

impl FakeNode {
    pub(crate) async fn join(cluster: &Cluster, node: Node) -> Self {
        let run_for = json!({"Kind": "attr", "Name": "run_for", "Type": "string", "Required": false});
        let schema_json = json!({"Kind": "object", "Attributes": {"run_for": run_for}}).to_string().into_bytes();
        Self::with_schemas(
            cluster,
            node,
            vec![DriverSchema { driver: "mock".into(), version: "0.1.0".into(), schema_json }],
        )
        .await
    }

    /// One that tells these schemas of its drivers; without any it is like one of an older release.
    pub(crate) async fn with_schemas(cluster: &Cluster, node: Node, schemas: Vec<DriverSchema>) -> Self {
        let id = node.id;
        let rpc = format!("http://{}", cluster.server.handle().rpc_addr());
        let mut client = NodeServiceClient::connect(rpc).await.expect("the node RPC answers");
        let (to, from) = mpsc::channel::<FromNode>(64);
        let hello = Hello {
            node_id: id.to_string(),
            secret_id: uuid::Uuid::new_v4().to_string(),
            node_json: to_json(&node),
            region: "global".into(),
            protocol: *PROTOCOLS.start(),
            ..Hello::default()
        };
        to.send(FromNodeMessage::Hello(hello).into()).await.expect("session");
        let tells = async || -> u64 {
            let list = cluster.get("/v1/drivers/schemas").await.json();
            let schemas = list
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(|known| known["Schemas"].as_array().into_iter().flatten());
            schemas.filter_map(|schema| schema["Nodes"].as_u64()).sum()
        };
        let (told, tells_any) = (tells().await, !schemas.is_empty());
        if tells_any {
            to.send(FromNodeMessage::DriverSchemas(DriverSchemas { schemas }).into()).await.expect("session");
        }
        let mut session =
            client.session(tokio_stream::wrappers::ReceiverStream::new(from)).await.expect("session").into_inner();
        let task = tokio::spawn(async move {
            let mut seq = 0;
            let mut jobs: Vec<Job> = Vec::new();
            let mut beat = tokio::time::interval(Duration::from_secs(1));
            loop {
                seq += 1;
                let message: FromNode = tokio::select! {
                    _ = beat.tick() => FromNodeMessage::Heartbeat(Heartbeat { seq, ..Heartbeat::default() }).into(),
                    received = session.message() => match received.ok().flatten().and_then(|m| m.message) {
                        Some(ToNodeMessage::Allocs(allocs)) => {
                            jobs.extend(allocs.jobs_json.iter().map(|bytes| from_json::<Job>("a job",
                                bytes).expect("job")));
                            let updates: Vec<Vec<u8>> = allocs
                                .allocs_json
                                .iter()
                                .map(|bytes| to_json(&report(&from_json("an allocation", bytes).expect("allocation"),
                                    &jobs)))
                                .collect();
                            if updates.is_empty() {
                                continue;
                            }
                            FromNodeMessage::AllocUpdates(AllocUpdates { seq, updates_json: updates }).into()
                        }
                        Some(ToNodeMessage::Goodbye(_)) | None => return,
                        Some(_) => continue,
                    },
                };
                if to.send(message).await.is_err() {
                    return;
                }
            }
        });
        let node = Self { id, _session: AbortOnDropHandle::new(task) };
        let ready = |list: &Value| {
            list.as_array().is_some_and(|l| l.iter().any(|n| n["ID"] == id.to_string() && n["Status"] == "ready"))
        };
        cluster.until("/v1/nodes", "ready", ready).await;
        testkit::poll("the node's schemas", async || !tells_any || tells().await != told).await;
        node
    }
}

fn report(alloc: &Allocation, jobs: &[Job]) -> AllocClientUpdate {
    let stopped = alloc.server_terminal();
    let job =
        jobs.iter().rev().find(|j| j.id == alloc.job_id && j.version == alloc.job_version).expect("its job came first");
    let entry = |s: &model::Service| ServiceEntry {
        suffix: format!("group-web-{}-{}", s.name, s.port_label),
        name: s.name.clone(),
        tags: s.tags.clone(),
        address: "10.1.2.3".into(),
        port: 8000 + i32::try_from(alloc.index()).expect("small"),
        ..ServiceEntry::default()
    };
    let state = TaskState {
        state: if stopped { model::TaskRunState::Dead } else { model::TaskRunState::Running },
        started_at: "2026-01-01T00:00:00Z".into(),
        ..TaskState::default()
    };
    AllocClientUpdate {
        id: alloc.id,
        client_status: if stopped { ClientStatus::Complete } else { ClientStatus::Running },
        task_states: [(Arc::from("server"), state)].into(),
        services: Some(if stopped { Vec::new() } else { job.task_groups[0].services.iter().map(entry).collect() }),
        deployment_status: (!stopped)
            .then(|| AllocDeploymentStatus { healthy: Some(true), ..AllocDeploymentStatus::default() }),
        ..AllocClientUpdate::default()
    }
}
