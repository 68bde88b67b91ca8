//! Plugins for the tests of the host: a good one, one for remote tasks, and the bad ones.
//!
//! The first argument names the behaviour, see `main`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use driver_host::proto::base::base_plugin_server::{BasePlugin, BasePluginServer};
use driver_host::proto::base::*;
use driver_host::proto::driver::driver_server::{Driver as WireDriver, DriverServer};
use driver_host::proto::driver::*;
use driver_host::proto::handshake::{self, Address};
use driver_host::proto::structs::{Attribute, attribute};
use driver_sdk::{
    Description, Driver, Ensure, Ensured, Error, Instance, InstanceState, LogChunk, LogsQuery, Observation, Page, PluginInfo, RemoteDriver,
    RemoteError, RemoteHandle, Started, StopTask, TaskExit, schema,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, Streaming};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let argument = args.get(1).cloned().unwrap_or_default();
    // Tests check that nothing stays behind; TMPDIR is the host's socket directory.
    let _ = std::fs::write(std::env::temp_dir().join(format!("pid.{}", std::process::id())), "");
    match args.first().map(String::as_str).unwrap_or_default() {
        "mock" => driver_sdk::block_on(mock::serve()),
        "remote" => driver_sdk::block_on(driver_sdk::serve_remote(Remote::default())),
        "versioned" => driver_sdk::block_on(driver_sdk::serve(Versioned(argument))),
        "print" => {
            say(&argument);
            wait_for_ever()
        }
        "flood-before" => {
            say(&"x".repeat(10 << 20));
            wait_for_ever()
        }
        "silent" => wait_for_ever(),
        "exit" => {
            let _ = writeln!(std::io::stderr(), "cannot find libmissing.so");
            ExitCode::from(3)
        }
        "nobody-listens" => {
            say(&handshake::line(&Address::Unix("/nonexistent/socket".into()), false));
            wait_for_ever()
        }
        "noisy" => {
            noise();
            driver_sdk::block_on(mock::serve())
        }
        "raw" => driver_sdk::block_on(raw(argument)),
        other => {
            let _ = writeln!(std::io::stderr(), "no behaviour is called {other:?}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{line}");
    let _ = stdout.flush();
}

fn wait_for_ever() -> ExitCode {
    loop {
        std::thread::park();
    }
}

/// Log lines that have crashed hosts, and a flood of standard output that starts after the handshake.
fn noise() {
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "{}", "y".repeat(1 << 20));
    for line in [
        r#"{"@message":{"not":"a string"},"@level":17,"@timestamp":[]}"#,
        r#"{"@message":"fine","@level":"info","@timestamp":"2024-01-01T00:00:00.1Z"}"#,
        "[ERROR] plain",
        "{broken",
        "",
    ] {
        let _ = writeln!(stderr, "{line}");
    }
    let _ = stderr.write_all(b"\xff\xfe\x00\n");
    // The SDK gives descriptor 1 away; this copy goes on to the pipe.
    let stdout = rustix::io::dup(rustix::stdio::stdout()).expect("dup");
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        let mut file = std::fs::File::from(stdout);
        for _ in 0..10 {
            if file.write_all(&vec![b'z'; 1 << 20]).is_err() {
                return;
            }
        }
        let _ = std::fs::write(std::env::temp_dir().join("flood.done"), "");
    });
}

/// A driver that only has a version.
struct Versioned(String);

#[driver_sdk::async_trait]
impl Driver for Versioned {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("versioned", &self.0)
    }
    fn task_config_schema(&self) -> schema::Spec {
        schema::object::<&str>([])
    }
    async fn start_task(&self, _: TaskConfig) -> Result<Started, Error> {
        Err(Error::unsupported("tasks"))
    }
    async fn recover_task(&self, _: TaskHandle) -> Result<(), Error> {
        Err(Error::TaskNotFound)
    }
    async fn wait_task(&self, _: &str) -> Result<TaskExit, Error> {
        Err(Error::TaskNotFound)
    }
    async fn stop_task(&self, _: &str, _: StopTask) -> Result<(), Error> {
        Err(Error::TaskNotFound)
    }
    async fn destroy_task(&self, _: &str, _: bool) -> Result<(), Error> {
        Ok(())
    }
    async fn inspect_task(&self, _: &str) -> Result<driver_sdk::Inspection, Error> {
        Err(Error::TaskNotFound)
    }
}

/// Instances in memory.
#[derive(Default)]
struct Remote {
    instances: Mutex<HashMap<String, Instance>>,
    sealed: Mutex<HashSet<String>>,
}

impl Remote {
    fn change<T>(&self, handle: &RemoteHandle, epoch: Option<u64>, change: impl FnOnce(&mut Instance) -> T) -> Result<T, RemoteError> {
        let key = String::from_utf8_lossy(&handle.data).into_owned();
        let mut instances = self.instances.lock().expect("lock");
        let instance = instances.get_mut(&key).ok_or_else(|| RemoteError::gone("no such instance"))?;
        if let Some(given) = epoch {
            if given < instance.epoch {
                return Err(RemoteError::StaleEpoch { given, accepted: instance.epoch });
            }
            instance.epoch = given;
            instance.observed.epoch = given;
        }
        Ok(change(instance))
    }
}

#[driver_sdk::async_trait]
impl RemoteDriver for Remote {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("remote", "1.0.0")
    }
    fn task_config_schema(&self) -> schema::Spec {
        schema::object([("fail", schema::string())])
    }
    fn describe(&self) -> Description {
        Description {
            provider: "memory".into(),
            keyed_create: true,
            find: true,
            list: true,
            seal: true,
            logs: true,
            handle_schema_min: 1,
            handle_schema_max: 1,
            ..Description::default()
        }
    }
    fn watch_interval(&self) -> Duration {
        Duration::from_millis(20)
    }
    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError> {
        match request.task.env.get("FAIL").map(String::as_str) {
            Some("ask") => return Err(RemoteError::could_not_ask("throttled")),
            Some("wrong") => return Err(RemoteError::wrong_request("no such image")),
            Some("panic") => panic!("asked for"),
            _ => {}
        }
        let handle = RemoteHandle { schema: 1, data: request.key.clone().into_bytes() };
        let mut instances = self.instances.lock().expect("lock");
        let created = !instances.contains_key(&request.key);
        if created && self.sealed.lock().expect("lock").contains(&request.key) {
            return Err(RemoteError::sealed("it was stopped before"));
        }
        let instance = instances.entry(request.key.clone()).or_insert_with(|| Instance {
            key: request.key.clone(),
            owner: request.owner,
            slot: request.slot,
            epoch: request.epoch,
            handle: handle.clone(),
            observed: Observation {
                key: request.key.clone(),
                state: InstanceState::Running,
                provider_id: format!("memory-{}", request.key),
                started_at: Some(SystemTime::now()),
                epoch: request.epoch,
                ..Observation::default()
            },
        });
        if request.epoch < instance.epoch {
            return Err(RemoteError::StaleEpoch { given: request.epoch, accepted: instance.epoch });
        }
        Ok(Ensured { handle, observed: instance.observed.clone(), created })
    }
    async fn find(&self, key: &str, owner: &str) -> Result<(RemoteHandle, Observation), RemoteError> {
        let instances = self.instances.lock().expect("lock");
        let found = instances.get(key).filter(|instance| instance.owner == owner);
        let found = found.ok_or_else(|| RemoteError::gone("no such key"))?;
        Ok((found.handle.clone(), found.observed.clone()))
    }
    async fn list(&self, owner: &str, _: &str, _: usize) -> Result<Page, RemoteError> {
        let instances = self.instances.lock().expect("lock");
        let mine = instances.values().filter(|instance| instance.owner == owner).cloned();
        Ok(Page { instances: mine.collect(), next_page_token: String::new() })
    }
    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        let see = |handle: &RemoteHandle| match self.change(handle, None, |instance| instance.observed.clone()) {
            Ok(seen) => seen,
            Err(_) => Observation {
                key: String::from_utf8_lossy(&handle.data).into_owned(),
                state: InstanceState::Gone,
                ..Observation::default()
            },
        };
        Ok(handles.iter().map(see).collect())
    }
    async fn stop(&self, handle: &RemoteHandle, epoch: u64, _: StopTask) -> Result<Observation, RemoteError> {
        self.change(handle, Some(epoch), |instance| {
            instance.observed.state = InstanceState::Exited;
            instance.observed.exit = TaskExit::signal(15);
            instance.observed.finished_at = Some(SystemTime::now());
            instance.observed.clone()
        })
    }
    async fn seal(&self, key: &str, epoch: u64, owner: &str) -> Result<Option<(RemoteHandle, Observation)>, RemoteError> {
        self.sealed.lock().expect("lock").insert(key.to_owned());
        match self.find(key, owner).await {
            Ok((handle, _)) => self.change(&handle, Some(epoch), |instance| Some((instance.handle.clone(), instance.observed.clone()))),
            Err(_) => Ok(None),
        }
    }
    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Result<(), RemoteError> {
        self.change(handle, Some(epoch), |_| ())?;
        let key = String::from_utf8_lossy(&handle.data).into_owned();
        self.instances.lock().expect("lock").remove(&key);
        self.sealed.lock().expect("lock").insert(key);
        Ok(())
    }
    async fn logs(&self, handle: &RemoteHandle, query: LogsQuery, sink: mpsc::Sender<LogChunk>) -> Result<(), RemoteError> {
        self.change(handle, None, |_| ())?;
        let text = b"one\ntwo\n";
        let offset = query.offset.min(text.len() as u64);
        let data = text[offset as usize..].to_vec();
        let _ = sink.send(LogChunk { offset, data, file: "t.stdout.0".into() }).await;
        if query.follow {
            sink.closed().await;
        }
        Ok(())
    }
}

/// Answers by hand, without most services, and as badly as the argument says.
async fn raw(kind: String) -> ExitCode {
    let path = std::env::temp_dir().join(format!("plugin{}", std::process::id()));
    let Ok(listener) = UnixListener::bind(&path) else {
        return ExitCode::FAILURE;
    };
    say(&handshake::line(&Address::Unix(path.to_string_lossy().into_owned()), false));
    let served = tonic::transport::Server::builder()
        .add_service(BasePluginServer::new(RawBase(kind.clone())))
        .add_service(DriverServer::new(RawDriver { kind, fingerprints: AtomicI64::new(0) }))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await;
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct RawBase(String);

#[tonic::async_trait]
impl BasePlugin for RawBase {
    async fn plugin_info(&self, _: Request<PluginInfoRequest>) -> Result<Response<PluginInfoResponse>, Status> {
        let kind = self.0.as_str();
        if kind == "hang" {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(PluginInfoResponse {
            r#type: if kind == "device" { PluginType::Device } else { PluginType::Driver } as i32,
            plugin_api_versions: match kind {
                "no-api" => vec![],
                "api-9" => vec!["v9.9.9".into()],
                _ => vec!["v0.1.0".into()],
            },
            plugin_version: if kind == "bad-version" { "latest" } else { "0.1.0" }.into(),
            name: "raw".into(),
        }))
    }
    async fn config_schema(&self, _: Request<ConfigSchemaRequest>) -> Result<Response<ConfigSchemaResponse>, Status> {
        Ok(Response::new(ConfigSchemaResponse::default()))
    }
    async fn set_config(&self, request: Request<SetConfigRequest>) -> Result<Response<SetConfigResponse>, Status> {
        if self.0 == "bad-config" {
            return Err(Status::unknown("the region is not set"));
        }
        let driver = request.into_inner().nomad_config.and_then(|config| config.driver);
        let topology = driver.and_then(|driver| driver.topology).unwrap_or_default();
        if topology.cores.is_empty() {
            return Err(Status::unknown("no cores"));
        }
        Ok(Response::new(SetConfigResponse {}))
    }
}

struct RawDriver {
    kind: String,
    fingerprints: AtomicI64,
}

type Stream<T> = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

fn absent<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not here"))
}

#[tonic::async_trait]
impl WireDriver for RawDriver {
    async fn init(&self, _: Request<InitRequest>) -> Result<Response<InitResponse>, Status> {
        absent()
    }
    async fn task_config_schema(&self, _: Request<TaskConfigSchemaRequest>) -> Result<Response<TaskConfigSchemaResponse>, Status> {
        let spec = (self.kind != "no-task-schema").then(|| schema::object::<&str>([]).into_parts().0);
        Ok(Response::new(TaskConfigSchemaResponse { spec, ..Default::default() }))
    }
    async fn capabilities(&self, _: Request<CapabilitiesRequest>) -> Result<Response<CapabilitiesResponse>, Status> {
        let capabilities = Some(DriverCapabilities { fs_isolation: 99, mount_configs: 99, ..Default::default() });
        Ok(Response::new(CapabilitiesResponse { capabilities }))
    }
    type FingerprintStream = Stream<FingerprintResponse>;
    async fn fingerprint(&self, _: Request<FingerprintRequest>) -> Result<Response<Self::FingerprintStream>, Status> {
        let calls = self.fingerprints.fetch_add(1, Ordering::SeqCst) + 1;
        if self.kind == "fingerprint-fails" {
            return Err(Status::unknown("the runtime is on fire"));
        }
        let calls = Attribute { value: Some(attribute::Value::IntVal(calls)), unit: String::new() };
        let health = if self.kind == "wrong-enum" { 42 } else { 2 };
        let one = FingerprintResponse { attributes: BTreeMap::from([("calls".into(), calls)]), health, ..Default::default() };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(one)]))))
    }
    async fn recover_task(&self, _: Request<RecoverTaskRequest>) -> Result<Response<RecoverTaskResponse>, Status> {
        absent()
    }
    async fn start_task(&self, _: Request<StartTaskRequest>) -> Result<Response<StartTaskResponse>, Status> {
        Ok(Response::new(StartTaskResponse::default()))
    }
    async fn wait_task(&self, request: Request<WaitTaskRequest>) -> Result<Response<WaitTaskResponse>, Status> {
        let err = if request.get_ref().task_id == "closed" { "channel closed" } else { "" };
        Ok(Response::new(WaitTaskResponse { result: None, err: err.into() }))
    }
    async fn stop_task(&self, _: Request<StopTaskRequest>) -> Result<Response<StopTaskResponse>, Status> {
        absent()
    }
    async fn destroy_task(&self, _: Request<DestroyTaskRequest>) -> Result<Response<DestroyTaskResponse>, Status> {
        Err(Status::unknown("rpc error: task not found for given id"))
    }
    async fn inspect_task(&self, _: Request<InspectTaskRequest>) -> Result<Response<InspectTaskResponse>, Status> {
        Ok(Response::new(InspectTaskResponse::default()))
    }
    type TaskStatsStream = Stream<TaskStatsResponse>;
    async fn task_stats(&self, _: Request<TaskStatsRequest>) -> Result<Response<Self::TaskStatsStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(TaskStatsResponse { stats: None })]))))
    }
    type TaskEventsStream = Stream<DriverTaskEvent>;
    async fn task_events(&self, _: Request<TaskEventsRequest>) -> Result<Response<Self::TaskEventsStream>, Status> {
        absent()
    }
    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Result<Response<ShutdownResponse>, Status> {
        absent()
    }
    async fn signal_task(&self, _: Request<SignalTaskRequest>) -> Result<Response<SignalTaskResponse>, Status> {
        absent()
    }
    async fn exec_task(&self, _: Request<ExecTaskRequest>) -> Result<Response<ExecTaskResponse>, Status> {
        Ok(Response::new(ExecTaskResponse::default()))
    }
    type ExecTaskStreamingStream = Stream<ExecTaskStreamingResponse>;
    async fn exec_task_streaming(
        &self,
        _: Request<Streaming<ExecTaskStreamingRequest>>,
    ) -> Result<Response<Self::ExecTaskStreamingStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::iter([]))))
    }
    async fn create_network(&self, _: Request<CreateNetworkRequest>) -> Result<Response<CreateNetworkResponse>, Status> {
        absent()
    }
    async fn destroy_network(&self, _: Request<DestroyNetworkRequest>) -> Result<Response<DestroyNetworkResponse>, Status> {
        absent()
    }
}
