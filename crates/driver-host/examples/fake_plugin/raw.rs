//! A driver with hand-written answers, without most services. Its argument names its faults, several joined by `+`.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use driver_host::proto::base::base_plugin_server::{BasePlugin, BasePluginServer};
use driver_host::proto::base::*;
use driver_host::proto::driver::driver_server::{Driver as WireDriver, DriverServer};
use driver_host::proto::driver::*;
use driver_host::proto::handshake::{self, Address};
use driver_host::proto::hclspec::{self, Spec, spec::Block as Kind};
use driver_host::proto::plugin::grpc_stdio_server::{GrpcStdio, GrpcStdioServer};
use driver_host::proto::plugin::{StdioData, stdio_data};
use driver_host::proto::structs::{Attribute, attribute};
use driver_sdk::schema;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::say;

type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

fn absent<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not here"))
}

/// Counters, shown by `InspectTask`.
#[derive(Debug, Default)]
struct Counts {
    fingerprints: AtomicI64,
    events: AtomicI64,
    events_open: AtomicI64,
    execs_open: AtomicI64,
    waits_open: AtomicI64,
    stats_open: AtomicI64,
}

/// Counts as long as it lives.
struct Open(Arc<Counts>, fn(&Counts) -> &AtomicI64);

impl Open {
    fn new(counts: &Arc<Counts>, of: fn(&Counts) -> &AtomicI64) -> Self {
        of(counts).fetch_add(1, Ordering::SeqCst);
        Self(counts.clone(), of)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::SeqCst);
    }
}

/// A silent stream, counted until its drop.
fn silent<T: Send + 'static>(open: Open) -> Stream<T> {
    Box::pin(Silent { _open: open, of: std::marker::PhantomData::<fn() -> T> })
}

struct Silent<T> {
    _open: Open,
    of: std::marker::PhantomData<fn() -> T>,
}

impl<T> tokio_stream::Stream for Silent<T> {
    type Item = Result<T, Status>;
    fn poll_next(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
        let _ = self.of;
        std::task::Poll::Pending
    }
}

pub(crate) async fn serve(kinds: String) -> ExitCode {
    let kinds = Kinds(Arc::new(kinds.split('+').map(str::to_owned).collect()));
    let counts = Arc::new(Counts::default());
    let driver = RawDriver { kinds: kinds.clone(), counts };
    let server = Server::builder()
        .add_service(BasePluginServer::new(RawBase(kinds.clone())))
        .add_service(DriverServer::new(driver))
        .add_optional_service(
            (kinds.are("stdio-floods") || kinds.are("no-headers"))
                .then(|| GrpcStdioServer::new(RawStdio(kinds.clone()))),
        );
    let served = if kinds.are("tcp") {
        let Ok(listener) = TcpListener::bind("127.0.0.1:0").await else { return ExitCode::FAILURE };
        let address = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
        say(&handshake::line(&Address::Tcp(address), false));
        server.serve_with_incoming(TcpListenerStream::new(listener)).await
    } else {
        let path = std::env::temp_dir().join(format!("plugin{}", std::process::id()));
        let Ok(listener) = UnixListener::bind(&path) else { return ExitCode::FAILURE };
        let line = handshake::line(&Address::Unix(path.to_string_lossy().into_owned()), false);
        // Old and new libraries end the line differently.
        let line = match (kinds.are("five-fields"), kinds.are("seven-fields")) {
            (true, _) => line.trim_end_matches('|').to_owned(),
            (_, true) => format!("{line}|true"),
            _ => line,
        };
        say(&line);
        server.serve_with_incoming(UnixListenerStream::new(listener)).await
    };
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Clone)]
struct Kinds(Arc<Vec<String>>);

impl Kinds {
    fn are(&self, kind: &str) -> bool {
        self.0.iter().any(|known| known == kind)
    }
}

struct RawStdio(Kinds);

#[tonic::async_trait]
impl GrpcStdio for RawStdio {
    type StreamStdioStream = Stream<StdioData>;
    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        if self.0.are("no-headers") {
            std::future::pending::<()>().await;
        }
        let chunk = |n: usize| {
            if n == 63 {
                let _ = std::fs::write(std::env::temp_dir().join("stdio.done"), "");
            }
            Ok(StdioData { channel: stdio_data::Channel::Stdout as i32, data: vec![b'x'; 1 << 20] })
        };
        Ok(Response::new(Box::pin(tokio_stream::iter((0..64).map(chunk)))))
    }
}

struct RawBase(Kinds);

#[tonic::async_trait]
impl BasePlugin for RawBase {
    async fn plugin_info(&self, _: Request<PluginInfoRequest>) -> Result<Response<PluginInfoResponse>, Status> {
        let is = |kind| self.0.are(kind);
        if is("hang") {
            std::future::pending::<()>().await;
        }
        if is("empty-info") {
            return Ok(Response::new(PluginInfoResponse::default()));
        }
        Ok(Response::new(PluginInfoResponse {
            r#type: if is("device") { PluginType::Device } else { PluginType::Driver } as i32,
            plugin_api_versions: match () {
                () if is("no-api") => vec![],
                () if is("api-9") => vec!["v9.9.9".into()],
                () => vec!["v0.1.0".into()],
            },
            plugin_version: if is("bad-version") { "latest" } else { "0.1.0" }.into(),
            name: "raw".into(),
        }))
    }
    async fn config_schema(&self, _: Request<ConfigSchemaRequest>) -> Result<Response<ConfigSchemaResponse>, Status> {
        let spec = match () {
            () if self.0.are("empty-config-schema") => Some(Spec { block: None }),
            () if self.0.are("deep-config-schema") => Some(deep(1000)),
            () => None,
        };
        Ok(Response::new(ConfigSchemaResponse { spec, ..Default::default() }))
    }
    async fn set_config(&self, request: Request<SetConfigRequest>) -> Result<Response<SetConfigResponse>, Status> {
        if self.0.are("bad-config") {
            return Err(Status::unknown("the region is not set"));
        }
        let driver = request.into_inner().nomad_config.and_then(|config| config.driver).unwrap_or_default();
        let topology = driver.topology.unwrap_or_default();
        let distances = topology.distances.unwrap_or_default();
        let square = distances.values.len() as u32 == distances.dimension * distances.dimension;
        if topology.cores.is_empty()
            || !square
            || driver.client_min_port == 0
            || driver.client_min_port > driver.client_max_port
        {
            return Err(Status::unknown("an agent's configuration that makes Go drivers crash"));
        }
        Ok(Response::new(SetConfigResponse {}))
    }
}

/// A schema nested so deep that a reader without a limit overflows its stack.
fn deep(levels: usize) -> Spec {
    (0..levels).fold(Spec { block: None }, |inner, _| Spec {
        block: Some(Kind::BlockValue(Box::new(hclspec::Block {
            name: "b".into(),
            required: false,
            nested: Some(Box::new(inner)),
        }))),
    })
}

struct RawDriver {
    kinds: Kinds,
    counts: Arc<Counts>,
}

#[tonic::async_trait]
impl WireDriver for RawDriver {
    async fn init(&self, _: Request<InitRequest>) -> Result<Response<InitResponse>, Status> {
        if self.kinds.are("init-fails") { Err(Status::unknown("no licence")) } else { absent() }
    }
    async fn task_config_schema(
        &self,
        _: Request<TaskConfigSchemaRequest>,
    ) -> Result<Response<TaskConfigSchemaResponse>, Status> {
        let literal = |text: String| Spec { block: Some(Kind::Literal(hclspec::Literal { value: text })) };
        let attr = |ty: String| Spec {
            block: Some(Kind::Attr(hclspec::Attr { name: "a".into(), r#type: ty, required: false })),
        };
        let spec = match () {
            () if self.kinds.are("no-task-schema") => None,
            () if self.kinds.are("empty-task-schema") => Some(Spec { block: None }),
            () if self.kinds.are("deep-task-schema") => Some(deep(1000)),
            () if self.kinds.are("deep-literal") => Some(literal("[".repeat(100_000))),
            () if self.kinds.are("deep-type") => Some(attr("list(".repeat(100_000))),
            () => Some(schema::object::<&str>([]).into_parts().0),
        };
        Ok(Response::new(TaskConfigSchemaResponse { spec, ..Default::default() }))
    }
    async fn capabilities(&self, _: Request<CapabilitiesRequest>) -> Result<Response<CapabilitiesResponse>, Status> {
        if self.kinds.are("no-capabilities") {
            return Ok(Response::new(CapabilitiesResponse { capabilities: None }));
        }
        let capabilities = Some(DriverCapabilities {
            fs_isolation: 99,
            mount_configs: 99,
            network_isolation_modes: vec![-1, 99, 0],
            ..Default::default()
        });
        Ok(Response::new(CapabilitiesResponse { capabilities }))
    }
    type FingerprintStream = Stream<FingerprintResponse>;
    async fn fingerprint(&self, _: Request<FingerprintRequest>) -> Result<Response<Self::FingerprintStream>, Status> {
        let calls = self.counts.fingerprints.fetch_add(1, Ordering::SeqCst) + 1;
        if self.kinds.are("fingerprint-fails") {
            return Err(Status::unknown("the runtime is on fire"));
        }
        let number = |n| Attribute { value: Some(attribute::Value::IntVal(n)), unit: String::new() };
        let events = self.counts.events.load(Ordering::SeqCst);
        let attributes = BTreeMap::from([("calls".into(), number(calls)), ("events".into(), number(events))]);
        let health = if self.kinds.are("wrong-enum") { 42 } else { 2 };
        let one = match () {
            () if self.kinds.are("empty-fingerprint") => FingerprintResponse::default(),
            () => FingerprintResponse { attributes, health, ..Default::default() },
        };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(one)]))))
    }
    async fn recover_task(&self, _: Request<RecoverTaskRequest>) -> Result<Response<RecoverTaskResponse>, Status> {
        absent()
    }
    async fn start_task(&self, _: Request<StartTaskRequest>) -> Result<Response<StartTaskResponse>, Status> {
        // Hosts ignore the enum: only the status counts.
        Ok(Response::new(StartTaskResponse {
            result: 77,
            driver_error_msg: "ignored by every host".into(),
            ..Default::default()
        }))
    }
    async fn wait_task(&self, request: Request<WaitTaskRequest>) -> Result<Response<WaitTaskResponse>, Status> {
        let answer = |result, err: &str| Ok(Response::new(WaitTaskResponse { result, err: err.into() }));
        let exit = Some(ExitResult { exit_code: 3, ..ExitResult::default() });
        match request.get_ref().task_id.as_str() {
            "closed" => answer(None, "channel closed"),
            "ended" => answer(exit, ""),
            "ended-badly" => answer(exit, "the log was lost"),
            "refused" => Err(Status::unknown("no such runtime")),
            "gone" => Err(Status::not_found("task not found for given id")),
            "for-ever" => {
                let _open = Open::new(&self.counts, |counts| &counts.waits_open);
                std::future::pending().await
            }
            _ => answer(None, ""),
        }
    }
    async fn stop_task(&self, request: Request<StopTaskRequest>) -> Result<Response<StopTaskResponse>, Status> {
        match request.get_ref().task_id.as_str() {
            "stuck" => std::future::pending().await,
            "obedient" => Ok(Response::new(StopTaskResponse {})),
            _ => absent(),
        }
    }
    async fn destroy_task(&self, _: Request<DestroyTaskRequest>) -> Result<Response<DestroyTaskResponse>, Status> {
        Err(Status::unknown("rpc error: task not found for given id"))
    }
    async fn inspect_task(
        &self,
        request: Request<InspectTaskRequest>,
    ) -> Result<Response<InspectTaskResponse>, Status> {
        let id = request.get_ref().task_id.as_str();
        if let Some(mib) = id.strip_prefix("mib:") {
            let attributes = BTreeMap::from([("a".into(), "x".repeat(mib.parse::<usize>().unwrap_or(0) << 20))]);
            return Ok(Response::new(InspectTaskResponse {
                driver: Some(TaskDriverStatus { attributes }),
                ..Default::default()
            }));
        }
        if id == "odd" {
            let never = Some(prost_types::Timestamp { seconds: i64::MIN, nanos: i32::MAX });
            let task =
                TaskStatus { state: 42, started_at: never, completed_at: never, result: None, ..TaskStatus::default() };
            return Ok(Response::new(InspectTaskResponse { task: Some(task), ..Default::default() }));
        }
        if id != "counts" {
            return Ok(Response::new(InspectTaskResponse::default()));
        }
        let counts = &self.counts;
        let attributes = [
            ("events", &counts.events),
            ("events_open", &counts.events_open),
            ("execs_open", &counts.execs_open),
            ("waits_open", &counts.waits_open),
            ("stats_open", &counts.stats_open),
        ];
        let attributes =
            attributes.map(|(name, count)| (name.to_owned(), count.load(Ordering::SeqCst).to_string())).into();
        Ok(Response::new(InspectTaskResponse { driver: Some(TaskDriverStatus { attributes }), ..Default::default() }))
    }
    type TaskStatsStream = Stream<TaskStatsResponse>;
    async fn task_stats(&self, request: Request<TaskStatsRequest>) -> Result<Response<Self::TaskStatsStream>, Status> {
        if request.get_ref().task_id == "for-ever" {
            return Ok(Response::new(silent(Open::new(&self.counts, |counts| &counts.stats_open))));
        }
        let odd = TaskStats {
            agg_resource_usage: Some(TaskResourceUsage {
                cpu: Some(CpuUsage { percent: f64::NAN, measured_fields: vec![-1, 99], ..CpuUsage::default() }),
                memory: None,
            }),
            ..TaskStats::default()
        };
        let odd = (request.get_ref().task_id == "odd").then_some(odd);
        Ok(Response::new(Box::pin(tokio_stream::iter([
            Ok(TaskStatsResponse { stats: None }),
            Ok(TaskStatsResponse { stats: odd }),
        ]))))
    }
    type TaskEventsStream = Stream<DriverTaskEvent>;
    async fn task_events(&self, _: Request<TaskEventsRequest>) -> Result<Response<Self::TaskEventsStream>, Status> {
        self.counts.events.fetch_add(1, Ordering::SeqCst);
        if self.kinds.are("no-headers") {
            std::future::pending::<()>().await;
        }
        if self.kinds.are("events-end") {
            return Ok(Response::new(Box::pin(tokio_stream::iter([]))));
        }
        if self.kinds.are("odd-events") {
            let huge = DriverTaskEvent {
                message: "é".repeat(1 << 20),
                task_id: "t".repeat(1 << 20),
                ..DriverTaskEvent::default()
            };
            return Ok(Response::new(Box::pin(tokio_stream::iter([Ok(DriverTaskEvent::default()), Ok(huge)]))));
        }
        if self.kinds.are("quiet-events") {
            return Ok(Response::new(silent(Open::new(&self.counts, |counts| &counts.events_open))));
        }
        absent()
    }
    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Result<Response<ShutdownResponse>, Status> {
        absent()
    }
    async fn signal_task(&self, request: Request<SignalTaskRequest>) -> Result<Response<SignalTaskResponse>, Status> {
        if request.get_ref().task_id == "slow" {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        absent()
    }
    async fn exec_task(&self, _: Request<ExecTaskRequest>) -> Result<Response<ExecTaskResponse>, Status> {
        Ok(Response::new(ExecTaskResponse::default()))
    }
    type ExecTaskStreamingStream = Stream<ExecTaskStreamingResponse>;
    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<ExecTaskStreamingRequest>>,
    ) -> Result<Response<Self::ExecTaskStreamingStream>, Status> {
        let mut requests = request.into_inner();
        let first = requests.message().await?.and_then(|message| message.setup).unwrap_or_default();
        if first.task_id == "for-ever" {
            // Like a sender of the Go helper: it lives as long as the client's side.
            let open = Open::new(&self.counts, |counts| &counts.execs_open);
            tokio::spawn(async move {
                let _open = open;
                while let Ok(Some(_)) = requests.message().await {}
            });
            return Ok(Response::new(silent(Open::new(&self.counts, |counts| &counts.execs_open))));
        }
        Ok(Response::new(Box::pin(tokio_stream::iter([]))))
    }
    async fn create_network(
        &self,
        request: Request<CreateNetworkRequest>,
    ) -> Result<Response<CreateNetworkResponse>, Status> {
        if self.kinds.are("empty-network") {
            return Ok(Response::new(CreateNetworkResponse::default()));
        }
        if !self.kinds.are("network") {
            return absent();
        }
        let CreateNetworkRequest { alloc_id, hostname } = request.into_inner();
        let isolation_spec =
            NetworkIsolationSpec { path: format!("/ns/{alloc_id}/{hostname}"), ..NetworkIsolationSpec::default() };
        Ok(Response::new(CreateNetworkResponse { isolation_spec: Some(isolation_spec), created: true }))
    }
    async fn destroy_network(
        &self,
        request: Request<DestroyNetworkRequest>,
    ) -> Result<Response<DestroyNetworkResponse>, Status> {
        if !self.kinds.are("network") {
            return absent();
        }
        let DestroyNetworkRequest { alloc_id, isolation_spec } = request.into_inner();
        match isolation_spec.is_some_and(|spec| spec.path.starts_with(&format!("/ns/{alloc_id}/"))) {
            true => Ok(Response::new(DestroyNetworkResponse {})),
            false => Err(Status::unknown("the network has no namespace")),
        }
    }
}
