//! The plain driver service.

use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use driver_proto::build;
use driver_proto::driver::driver_server::Driver;
use driver_proto::driver::fingerprint_response::HealthState;
use driver_proto::driver::*;
use driver_proto::structs::{Attribute, attribute};
use futures::Stream;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::base::{attr, object};
use crate::world::{Instance, Meta, Options, PLAIN, Task, World, lock, number, time};
use crate::{fault, log};

type StreamOf<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

pub(crate) struct Plain(pub(crate) Arc<World>);

/// What a handle holds.
#[derive(Serialize, Deserialize)]
struct State {
    key: String,
    /// For the fault of starting anew.
    command: String,
    args: Vec<String>,
}

fn done<T>(value: T) -> Reply<T> {
    Ok(Response::new(value))
}

/// Tells the others when its caller goes away.
struct Caller(Option<Arc<Task>>);

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.disturbed.send_replace(true);
        }
    }
}

/// An open file for each stream, for ever.
fn leak() {
    if fault("stream/cancel")
        && let Ok(file) = std::fs::File::open("/dev/null")
    {
        std::mem::forget(file);
    }
}

#[tonic::async_trait]
impl Driver for Plain {
    async fn init(&self, _: Request<InitRequest>) -> Reply<InitResponse> {
        if fault("base/init-shutdown") {
            return Err(Status::internal("not now"));
        }
        done(InitResponse {})
    }

    async fn task_config_schema(&self, _: Request<TaskConfigSchemaRequest>) -> Reply<TaskConfigSchemaResponse> {
        let mut fields = vec![
            ("command", attr("command", "string", true)),
            ("args", attr("args", "list(string)", false)),
            ("note", attr("note", "string", false)),
            ("count", attr("count", "number", false)),
        ];
        if fault("base/task-schema") && self.0.configured() {
            fields.push(("late", attr("late", "string", false)));
        }
        done(TaskConfigSchemaResponse { spec: Some(object(fields)), ..Default::default() })
    }

    async fn capabilities(&self, _: Request<CapabilitiesRequest>) -> Reply<CapabilitiesResponse> {
        done(CapabilitiesResponse {
            capabilities: Some(DriverCapabilities {
                send_signals: true,
                exec: true,
                remote_tasks: true,
                disable_log_collection: fault("logs/fifos-untouched"),
                must_create_network: fault("network/create") || fault("network/destroy"),
                ..DriverCapabilities::default()
            }),
        })
    }

    type FingerprintStream = StreamOf<FingerprintResponse>;

    async fn fingerprint(&self, _: Request<FingerprintRequest>) -> Reply<Self::FingerprintStream> {
        use futures::StreamExt;
        leak();
        let value = (!fault("stream/fingerprint-attributes")).then_some(attribute::Value::BoolVal(true));
        let health = if fault("stream/fingerprint-first") { 9 } else { HealthState::Healthy as i32 };
        let attributes = [("driver.faulty".to_owned(), Attribute { value, unit: String::new() })].into();
        let first =
            futures::stream::iter([Ok(FingerprintResponse { attributes, health, ..FingerprintResponse::default() })]);
        if fault("stream/fingerprint-open") {
            return done(Box::pin(first));
        }
        done(Box::pin(first.chain(futures::stream::pending())))
    }

    async fn recover_task(&self, request: Request<RecoverTaskRequest>) -> Reply<RecoverTaskResponse> {
        let Some(handle) = request.into_inner().handle else {
            return Err(Status::invalid_argument("no handle"));
        };
        let config = handle.config.unwrap_or_default();
        let known = lock(&self.0.tasks).contains_key(&config.id);
        if known && !fault("recover/known") {
            return done(RecoverTaskResponse {});
        }
        if known {
            return Err(Status::unknown("it is here already"));
        }
        if handle.version != 1 && !fault("recover/other-version") {
            return Err(Status::unknown(format!("handles of version {} are not known", handle.version)));
        }
        let state: State = match serde_json::from_slice(&handle.driver_state) {
            Ok(state) => state,
            Err(_) if fault("recover/junk") => std::process::exit(6),
            Err(error) => return Err(Status::unknown(error.to_string())),
        };
        if fault("recover/empty-config") && config.msgpack_driver_config.is_empty() {
            return Err(Status::unknown("how is the task configured?"));
        }
        let mut instance = self.0.instance(&state.key);
        let Some(meta) = instance.meta() else {
            return Err(Status::unknown("task not found for given id"));
        };
        let anew = fault("recover/running") || (fault("recover/finished") && instance.exit().is_some());
        if anew {
            let key = format!("{}-again-{}", meta.key, std::process::id());
            let options = Options { command: state.command, args: state.args };
            instance = Instance { dir: self.0.root().join(&key) };
            std::fs::create_dir_all(&instance.dir)?;
            // A second after the first, so that it shows.
            let meta = Meta { key, started_ns: meta.started_ns + 1_000_000_000, ..meta };
            self.0.launch(&instance, meta, &options, &config).await?;
        }
        if fault("recover/twice-killed") {
            drop(std::fs::rename(instance.dir.join("meta.json"), instance.dir.join("meta.old")));
        }
        self.0.manage(config, instance);
        done(RecoverTaskResponse {})
    }

    async fn start_task(&self, request: Request<StartTaskRequest>) -> Reply<StartTaskResponse> {
        let Some(mut config) = request.into_inner().task.filter(|task| !task.id.is_empty()) else {
            if fault("base/junk-requests") {
                std::process::exit(2);
            }
            return Err(Status::invalid_argument("no task"));
        };
        log("StartTask");
        let known = lock(&self.0.tasks).contains_key(&config.id);
        if known && !fault("start/twice") {
            return Err(Status::unknown("this task runs already"));
        }
        if lock(&self.0.failed).contains(&config.id) {
            return Err(Status::unknown("this task has failed already"));
        }
        if fault("logs/disabled") && config.stdout_path == "/dev/null" {
            return Err(Status::unknown("/dev/null is no fifo"));
        }
        let key = config.id.replace('/', "-");
        let meta =
            Meta { key: key.clone(), owner: PLAIN.into(), task_id: config.id.clone(), epoch: 1, ..Meta::default() };
        if let Err(status) = self.0.create(&key, meta, &config).await {
            if fault("start/after-failure") {
                lock(&self.0.failed).insert(config.id.clone());
            }
            return Err(status);
        }
        let Options { command, args } = Options::decode(&config.msgpack_driver_config)?;
        let state = State { key: key.clone(), command, args };
        let driver_state = serde_json::to_vec(&state).unwrap_or_default();
        if !known {
            self.0.manage(config.clone(), self.0.instance(&key));
        }
        config.device_env.clear();
        let network = NetworkOverride {
            port_map: [("http".to_owned(), 0)].into(),
            addr: "127.0.0.1".into(),
            auto_advertise: true,
        };
        let mut answer = build::start_response(config, 1, driver_state, fault("start/network").then_some(network));
        if fault("start/handle")
            && let Some(handle) = &mut answer.handle
        {
            handle.version = 0;
        }
        done(answer)
    }

    async fn wait_task(&self, request: Request<WaitTaskRequest>) -> Reply<WaitTaskResponse> {
        let task = self.0.task(&request.into_inner().task_id)?;
        if task.waited.fetch_add(1, Ordering::Relaxed) > 0 {
            if fault("wait/concurrent") && task.instance.exit().is_none() {
                return Err(Status::unknown("somebody waits already"));
            }
            if fault("wait/after-exit") {
                return Err(Status::unknown("task not found for given id"));
            }
        }
        let mut one_has_ended = self.0.one_has_ended.subscribe();
        let mut caller = Caller(fault("wait/cancelled").then(|| task.clone()));
        let (mut gone, mut detached, mut disturbed) =
            (task.gone.subscribe(), task.detached.subscribe(), task.disturbed.subscribe());
        tokio::select! {
            () = task.instance.wait() => {}
            _ = one_has_ended.wait_for(|ended| *ended && fault("start/two-tasks")) => {}
            _ = gone.wait_for(|gone| *gone) => return Err(Status::unknown("task not found for given id")),
            _ = detached.wait_for(|detached| *detached) => {}
            _ = disturbed.wait_for(|disturbed| *disturbed) => return Err(Status::unknown("somebody went away")),
        }
        caller.0 = None;
        let exit = task.instance.exit();
        if exit.is_some() {
            self.0.one_has_ended.send_replace(true);
        }
        let result = exit.unwrap_or_default();
        done(WaitTaskResponse { result: (!fault("wait/exit-code")).then_some(result), err: String::new() })
    }

    async fn stop_task(&self, request: Request<StopTaskRequest>) -> Reply<StopTaskResponse> {
        let request = request.into_inner();
        let task = self.0.task(&request.task_id)?;
        if request.signal == "DETACH" && !fault("remote/detach") {
            task.detached.send_replace(true);
            return done(StopTaskResponse {});
        }
        if fault("stop/ended") && task.instance.exit().is_some() {
            return Err(Status::unknown("it has ended"));
        }
        let timeout = build::std_duration(request.timeout.as_ref());
        if fault("stop/ends") {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(3)).await;
                task.instance.stop(&request.signal, timeout).await;
            });
        } else {
            task.instance.stop(&request.signal, timeout).await;
        }
        done(StopTaskResponse {})
    }

    async fn destroy_task(&self, request: Request<DestroyTaskRequest>) -> Reply<DestroyTaskResponse> {
        let request = request.into_inner();
        let Ok(task) = self.0.task(&request.task_id) else {
            if fault("destroy/again") {
                return Err(Status::unknown("task not found for given id"));
            }
            return done(DestroyTaskResponse {});
        };
        if task.instance.exit().is_none() && !request.force && !fault("destroy/running") {
            return Err(Status::unknown("cannot destroy running task"));
        }
        if !*task.detached.borrow() {
            task.instance.kill().await;
            drop(std::fs::remove_dir_all(&task.instance.dir));
        }
        if !fault("wait/destroyed") {
            lock(&self.0.tasks).remove(&request.task_id);
        }
        task.gone.send_replace(true);
        done(DestroyTaskResponse {})
    }

    async fn inspect_task(&self, request: Request<InspectTaskRequest>) -> Reply<InspectTaskResponse> {
        let task = self.0.task(&request.into_inner().task_id)?;
        let exit = task.instance.exit();
        let meta = task.instance.meta().unwrap_or_default();
        let status = TaskStatus {
            id: task.config.id.clone(),
            name: task.config.name.clone(),
            state: if exit.is_some() { TaskState::Exited } else { TaskState::Running } as i32,
            started_at: Some(build::timestamp(Some(time(meta.started_ns)))),
            completed_at: exit.map(|_| build::timestamp(Some(SystemTime::now()))),
            result: exit,
        };
        let mut answer = build::inspect_response(status, Default::default(), None);
        if fault("start/inspect")
            && let Some(task) = &mut answer.task
        {
            task.result = None;
        }
        done(answer)
    }

    type TaskStatsStream = StreamOf<TaskStatsResponse>;

    async fn task_stats(&self, request: Request<TaskStatsRequest>) -> Reply<Self::TaskStatsStream> {
        let request = request.into_inner();
        let task = self.0.task(&request.task_id)?;
        let every = build::std_duration(request.collection_interval.as_ref());
        let (out, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut gone = task.gone.subscribe();
            loop {
                if out.send(Ok(sample())).await.is_err() {
                    return;
                }
                if fault("stats/goes-on") {
                    return out.closed().await;
                }
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    _ = gone.wait_for(|gone| *gone), if !fault("stats/ends") => return,
                    () = out.closed() => return,
                }
            }
        });
        done(Box::pin(ReceiverStream::new(receiver)))
    }

    type TaskEventsStream = StreamOf<DriverTaskEvent>;

    async fn task_events(&self, _: Request<TaskEventsRequest>) -> Reply<Self::TaskEventsStream> {
        leak();
        if fault("stream/events-open") {
            return done(Box::pin(futures::stream::empty()));
        }
        done(Box::pin(futures::stream::pending()))
    }

    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Reply<ShutdownResponse> {
        done(ShutdownResponse {})
    }

    async fn signal_task(&self, request: Request<SignalTaskRequest>) -> Reply<SignalTaskResponse> {
        let request = request.into_inner();
        let task = self.0.task(&request.task_id)?;
        if !fault("signal/delivers") {
            task.instance.signal(number(&request.signal));
        }
        done(SignalTaskResponse {})
    }

    async fn exec_task(&self, request: Request<ExecTaskRequest>) -> Reply<ExecTaskResponse> {
        let request = request.into_inner();
        self.0.task(&request.task_id)?;
        let [program, args @ ..] = request.command.as_slice() else {
            return Err(Status::invalid_argument("no command"));
        };
        let output = tokio::process::Command::new(program).args(args).stdin(Stdio::null()).output().await?;
        let exit = ExitResult { exit_code: output.status.code().unwrap_or(-1), ..ExitResult::default() };
        let mut answer = build::exec_response(output.stdout, output.stderr, exit);
        if fault("exec/plain") {
            answer.result = None;
        }
        done(answer)
    }

    type ExecTaskStreamingStream = StreamOf<ExecTaskStreamingResponse>;

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<ExecTaskStreamingRequest>>,
    ) -> Reply<Self::ExecTaskStreamingStream> {
        let mut input = request.into_inner();
        let first = input.message().await?.unwrap_or_default();
        let Some(setup) = first.setup else {
            if fault("exec/no-setup") {
                return done(Box::pin(futures::stream::empty()));
            }
            return Err(Status::invalid_argument("no set-up"));
        };
        self.0.task(&setup.task_id)?;
        let (out, receiver) = mpsc::channel(16);
        tokio::spawn(async move {
            if setup.tty {
                return terminal(input, out).await;
            }
            let last = match session(setup.command, input, out.clone()).await {
                Ok(Some(exit)) => {
                    Ok(ExecTaskStreamingResponse { exited: true, result: Some(exit), ..Default::default() })
                }
                Ok(None) => return,
                Err(error) if fault("exec/no-program") => {
                    log(&error.to_string());
                    Ok(ExecTaskStreamingResponse {
                        exited: true,
                        result: Some(ExitResult::default()),
                        ..Default::default()
                    })
                }
                Err(error) => Err(Status::unknown(error.to_string())),
            };
            drop(out.send(last).await);
        });
        done(Box::pin(ReceiverStream::new(receiver)))
    }

    /// A directory stands for the namespace: nobody enters it.
    async fn create_network(&self, request: Request<CreateNetworkRequest>) -> Reply<CreateNetworkResponse> {
        let CreateNetworkRequest { alloc_id, .. } = request.into_inner();
        let path = std::env::temp_dir().join(format!("ns-{alloc_id}"));
        let path = if fault("network/create") && path.exists() { path.with_extension("another") } else { path };
        std::fs::create_dir_all(&path)?;
        let spec = NetworkIsolationSpec {
            mode: network_isolation_spec::NetworkIsolationMode::Group as i32,
            path: path.display().to_string(),
            ..NetworkIsolationSpec::default()
        };
        done(CreateNetworkResponse { isolation_spec: Some(spec), created: true })
    }

    async fn destroy_network(&self, request: Request<DestroyNetworkRequest>) -> Reply<DestroyNetworkResponse> {
        let path = request.into_inner().isolation_spec.unwrap_or_default().path;
        match std::fs::remove_dir(path) {
            Err(error) if fault("network/destroy") => Err(Status::unknown(error.to_string())),
            _ => done(DestroyNetworkResponse {}),
        }
    }
}

fn sample() -> TaskStatsResponse {
    let percent = if fault("stats/units") { 0.5 } else { 50.0 };
    let cpu = CpuUsage { percent, measured_fields: vec![cpu_usage::Fields::Percent as i32], ..CpuUsage::default() };
    let memory =
        MemoryUsage { rss: 1 << 20, measured_fields: vec![memory_usage::Fields::Rss as i32], ..MemoryUsage::default() };
    let mut answer = build::stats_response(
        SystemTime::now(),
        TaskResourceUsage { cpu: Some(cpu), memory: Some(memory) },
        Default::default(),
    );
    if fault("stats/first")
        && let Some(stats) = &mut answer.stats
    {
        stats.timestamp = None;
    }
    answer
}

type Out = mpsc::Sender<Result<ExecTaskStreamingResponse, Status>>;

fn chunk(data: &[u8], stderr: bool) -> ExecTaskStreamingResponse {
    let io = Some(ExecTaskStreamingIoOperation { data: data.to_vec(), close: false });
    if stderr {
        ExecTaskStreamingResponse { stderr: io, ..Default::default() }
    } else {
        ExecTaskStreamingResponse { stdout: io, ..Default::default() }
    }
}

/// Not a terminal, but it looks like one in which somebody asks for its size all the time.
async fn terminal(mut input: Streaming<ExecTaskStreamingRequest>, out: Out) {
    drop(out.send(Ok(chunk(b"24 80\r\n", false))).await);
    while let Ok(Some(message)) = input.message().await {
        if let Some(size) = message.tty_size.filter(|_| !fault("exec/tty-resize")) {
            drop(out.send(Ok(chunk(format!("{} {}\r\n", size.height, size.width).as_bytes(), false))).await);
        }
    }
}

/// Runs a command; `None` when the client has gone.
async fn session(
    command: Vec<String>,
    mut input: Streaming<ExecTaskStreamingRequest>,
    out: Out,
) -> std::io::Result<Option<ExitResult>> {
    let [program, args @ ..] = command.as_slice() else {
        return Err(std::io::Error::other("no command"));
    };
    let mut child = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(!fault("exec/abort"))
        .spawn()?;
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    tokio::spawn(async move {
        while let Ok(Some(message)) = input.message().await {
            let heartbeat = message == ExecTaskStreamingRequest::default();
            if heartbeat && fault("exec/stdin") {
                stdin = None;
            }
            let io = message.stdin.unwrap_or_default();
            if let Some(pipe) = &mut stdin {
                drop(pipe.write_all(&io.data).await);
            }
            if io.close {
                stdin = None;
            }
        }
    });
    async fn copy(from: Option<impl tokio::io::AsyncRead + Unpin>, out: &Out, stderr: bool) {
        let Some(mut from) = from else { return };
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            drop(out.send(Ok(chunk(&buffer[..n], stderr))).await);
        }
    }
    let work = async {
        tokio::join!(copy(stdout, &out, false), copy(stderr, &out, true));
        child.wait().await
    };
    tokio::select! {
        status = work => {
            let code = if fault("exec/streaming") { 0 } else { status?.code().unwrap_or(-1) };
            Ok(Some(ExitResult { exit_code: code, ..ExitResult::default() }))
        }
        () = out.closed() => Ok(None),
    }
}
