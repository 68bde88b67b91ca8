//! The driver service over [`Driver`].

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use driver_proto::driver::driver_server::Driver as Wire;
use driver_proto::driver::fingerprint_response::HealthState;
use driver_proto::driver::*;
use driver_proto::{build, structs};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::exec::{ExecInput, ExecIo, ExecOutputSink};
use crate::guard::{finished, guarded};
use crate::types::{self, CpuUsage, Fingerprint, Health, MemoryUsage, StopTask, TaskUsage, Usage};
use crate::{Context, Driver};

type StreamOf<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

/// Serves one driver.
pub(crate) struct PlainService {
    driver: Arc<dyn Driver>,
    context: Context,
}

impl PlainService {
    pub(crate) fn new(driver: Arc<dyn Driver>, context: Context) -> Self {
        Self { driver, context }
    }
}

/// The driver's state in wire form.
fn fingerprint_response(fingerprint: Fingerprint, gone: Vec<String>) -> FingerprintResponse {
    let health = match fingerprint.health {
        Health::Undetected => HealthState::Undetected,
        Health::Unhealthy => HealthState::Unhealthy,
        Health::Healthy => HealthState::Healthy,
    };
    let attribute = |text: String| structs::Attribute {
        value: Some(structs::attribute::Value::StringVal(text)),
        unit: String::new(),
    };
    // An attribute disappears only when it is sent empty.
    let gone = gone.into_iter().map(|name| (name, attribute(String::new())));
    let present = fingerprint.attributes.into_iter().map(|(name, value)| (name, attribute(value)));
    FingerprintResponse {
        attributes: gone.chain(present).collect(),
        health: health as i32,
        health_description: fingerprint.description,
        err: String::new(),
    }
}

async fn look(driver: &dyn Driver) -> Fingerprint {
    guarded(async { Ok::<_, Status>(driver.fingerprint().await) })
        .await
        .unwrap_or_else(|status| Fingerprint::unhealthy(status.message()))
}

/// Sends the first fingerprint at once, then every change, as long as the host listens.
async fn fingerprints(
    driver: Arc<dyn Driver>,
    context: Context,
    out: mpsc::Sender<Result<FingerprintResponse, Status>>,
) {
    let due = context.fingerprint_due();
    let mut last: Option<Fingerprint> = None;
    loop {
        // Registered before the look, so that it misses no change.
        let asked = due.notified();
        let now = look(driver.as_ref()).await;
        if last.as_ref() != Some(&now) {
            let before = last.as_ref().map(|f| &f.attributes);
            let gone = before.into_iter().flat_map(|a| a.keys()).filter(|name| !now.attributes.contains_key(*name));
            let gone = gone.cloned().collect();
            if out.send(Ok(fingerprint_response(now.clone(), gone))).await.is_err() {
                return;
            }
            last = Some(now);
        }
        tokio::select! {
            () = tokio::time::sleep(driver.fingerprint_interval()) => {}
            () = asked => {}
            () = out.closed() => return,
        }
    }
}

async fn samples(
    driver: Arc<dyn Driver>,
    id: String,
    every: Duration,
    out: mpsc::Sender<Result<TaskStatsResponse, Status>>,
) {
    loop {
        match guarded(driver.task_stats(&id)).await {
            Ok(Some(usage)) => {
                if out.send(Ok(stats_response(usage))).await.is_err() {
                    return;
                }
            }
            // Hosts take the end of the stream for an error and ask again for ever. So it stays open until the task is
            // unknown.
            Ok(None) => {}
            Err(status) => {
                let _ = out.send(Err(status)).await;
                return;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = out.closed() => return,
        }
    }
}

pub(crate) fn stats_response(usage: TaskUsage) -> TaskStatsResponse {
    let by_pid = usage.by_pid.iter().map(|(pid, usage)| (pid.to_string(), wire_usage(usage))).collect();
    build::stats_response(usage.at.unwrap_or_else(SystemTime::now), wire_usage(&usage.total), by_pid)
}

fn wire_usage(usage: &Usage) -> TaskResourceUsage {
    TaskResourceUsage { cpu: Some(wire_cpu(&usage.cpu)), memory: Some(wire_memory(&usage.memory)) }
}

fn wire_cpu(cpu: &CpuUsage) -> driver_proto::driver::CpuUsage {
    use driver_proto::driver::cpu_usage::Fields;
    let measured = [
        (cpu.system_mode.is_some(), Fields::SystemMode),
        (cpu.user_mode.is_some(), Fields::UserMode),
        (cpu.total_ticks.is_some(), Fields::TotalTicks),
        (cpu.throttled_periods.is_some(), Fields::ThrottledPeriods),
        (cpu.throttled_time.is_some(), Fields::ThrottledTime),
        (cpu.percent.is_some(), Fields::Percent),
    ];
    driver_proto::driver::CpuUsage {
        system_mode: cpu.system_mode.unwrap_or_default(),
        user_mode: cpu.user_mode.unwrap_or_default(),
        total_ticks: cpu.total_ticks.unwrap_or_default(),
        throttled_periods: cpu.throttled_periods.unwrap_or_default(),
        throttled_time: cpu.throttled_time.unwrap_or_default(),
        percent: cpu.percent.unwrap_or_default(),
        measured_fields: measured.into_iter().filter(|(yes, _)| *yes).map(|(_, field)| field as i32).collect(),
    }
}

fn wire_memory(memory: &MemoryUsage) -> driver_proto::driver::MemoryUsage {
    use driver_proto::driver::memory_usage::Fields;
    let measured = [
        (memory.rss.is_some(), Fields::Rss),
        (memory.cache.is_some(), Fields::Cache),
        (memory.max_usage.is_some(), Fields::MaxUsage),
        (memory.kernel_usage.is_some(), Fields::KernelUsage),
        (memory.kernel_max_usage.is_some(), Fields::KernelMaxUsage),
        (memory.usage.is_some(), Fields::Usage),
        (memory.swap.is_some(), Fields::Swap),
    ];
    driver_proto::driver::MemoryUsage {
        rss: memory.rss.unwrap_or_default(),
        cache: memory.cache.unwrap_or_default(),
        max_usage: memory.max_usage.unwrap_or_default(),
        kernel_usage: memory.kernel_usage.unwrap_or_default(),
        kernel_max_usage: memory.kernel_max_usage.unwrap_or_default(),
        usage: memory.usage.unwrap_or_default(),
        swap: memory.swap.unwrap_or_default(),
        measured_fields: measured.into_iter().filter(|(yes, _)| *yes).map(|(_, field)| field as i32).collect(),
    }
}

/// The inputs in a client message; none for a heartbeat. Data and close in one message are two inputs, in that order.
fn exec_inputs(message: ExecTaskStreamingRequest) -> Vec<ExecInput> {
    let mut inputs = Vec::new();
    if let Some(stdin) = message.stdin {
        if !stdin.data.is_empty() {
            inputs.push(ExecInput::Stdin(stdin.data));
        }
        if stdin.close {
            inputs.push(ExecInput::StdinClosed);
        }
    }
    if let Some(size) = message.tty_size {
        let cells = |n: i32| n.clamp(0, i32::from(u16::MAX)) as u16;
        inputs.push(ExecInput::Resize { width: cells(size.width), height: cells(size.height) });
    }
    inputs
}

/// Runs a session: `first` may already hold input; forwards the client's further messages until the client goes.
pub(crate) fn exec_session<S, F, R>(
    first: ExecTaskStreamingRequest,
    mut rest: S,
    run: F,
) -> StreamOf<ExecTaskStreamingResponse>
where
    S: Stream<Item = Result<ExecTaskStreamingRequest, Status>> + Send + Unpin + 'static,
    F: FnOnce(ExecIo) -> R,
    R: Future<Output = Result<types::TaskExit, Status>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(16);
    let (forward, input) = mpsc::channel(16);
    let session = run(ExecIo { input, output: ExecOutputSink { sender: sender.clone() } });
    tokio::spawn(async move {
        let pump = async {
            for input in exec_inputs(first) {
                if forward.send(input).await.is_err() {
                    return;
                }
            }
            while let Some(Ok(message)) = rest.next().await {
                for input in exec_inputs(message) {
                    if forward.send(input).await.is_err() {
                        return;
                    }
                }
            }
            // The client has closed its side: the driver sees the end of the input.
            drop(forward);
        };
        let ended = async {
            let last = guarded(session).await.map(|exit| ExecTaskStreamingResponse {
                exited: true,
                result: Some(ExitResult::from(&exit)),
                ..Default::default()
            });
            let _ = sender.send(last).await;
        };
        let ended = std::pin::pin!(ended);
        let pump = std::pin::pin!(pump);
        // Clients never close their side after the command's exit, so only the session's end counts. When the client
        // stops reading, the session is dropped.
        let both = futures::future::select(ended, pump);
        tokio::select! {
            done = both => if let futures::future::Either::Right(((), ended)) = done {
                tokio::select! { () = ended => {}, () = sender.closed() => {} }
            },
            () = sender.closed() => {}
        }
    });
    ReceiverStream::new(receiver).boxed()
}

#[tonic::async_trait]
impl Wire for PlainService {
    async fn init(&self, _: Request<InitRequest>) -> Reply<InitResponse> {
        guarded(self.driver.init()).await?;
        Ok(Response::new(InitResponse {}))
    }

    async fn task_config_schema(&self, _: Request<TaskConfigSchemaRequest>) -> Reply<TaskConfigSchemaResponse> {
        let spec = guarded(async { Ok::<_, Status>(self.driver.task_config_schema()) }).await?;
        let (spec, drover_descriptions) = spec.into_parts();
        Ok(Response::new(TaskConfigSchemaResponse { spec: Some(spec), drover_descriptions }))
    }

    async fn capabilities(&self, _: Request<CapabilitiesRequest>) -> Reply<CapabilitiesResponse> {
        let own = guarded(async { Ok::<_, Status>(self.driver.capabilities()) }).await?;
        Ok(Response::new(CapabilitiesResponse { capabilities: Some(own.into()) }))
    }

    type FingerprintStream = StreamOf<FingerprintResponse>;

    async fn fingerprint(&self, _: Request<FingerprintRequest>) -> Reply<Self::FingerprintStream> {
        let (out, receiver) = mpsc::channel(1);
        tokio::spawn(fingerprints(self.driver.clone(), self.context.clone(), out));
        Ok(Response::new(ReceiverStream::new(receiver).boxed()))
    }

    async fn recover_task(&self, request: Request<RecoverTaskRequest>) -> Reply<RecoverTaskResponse> {
        let handle = request.into_inner().handle;
        let handle = handle.ok_or_else(|| Status::invalid_argument("RecoverTask came without a handle"))?;
        let driver = self.driver.clone();
        finished(async move { driver.recover_task(handle).await }).await?;
        Ok(Response::new(RecoverTaskResponse {}))
    }

    async fn start_task(&self, request: Request<StartTaskRequest>) -> Reply<StartTaskResponse> {
        let task = request.into_inner().task;
        let mut task = task.ok_or_else(|| Status::invalid_argument("StartTask came without a task"))?;
        build::fill_resources(&mut task);
        let (driver, wanted) = (self.driver.clone(), task.clone());
        let started = finished(async move { driver.start_task(wanted).await }).await?;
        let network = started.network.map(Into::into);
        Ok(Response::new(build::start_response(task, started.version, started.driver_state, network)))
    }

    async fn wait_task(&self, request: Request<WaitTaskRequest>) -> Reply<WaitTaskResponse> {
        let id = request.into_inner().task_id;
        let exit = guarded(self.driver.wait_task(&id)).await?;
        Ok(Response::new(build::wait_response((&exit).into(), exit.error.unwrap_or_default())))
    }

    async fn stop_task(&self, request: Request<StopTaskRequest>) -> Reply<StopTaskResponse> {
        let request = request.into_inner();
        let stop = StopTask { signal: request.signal, timeout: build::std_duration(request.timeout.as_ref()) };
        let driver = self.driver.clone();
        finished(async move { driver.stop_task(&request.task_id, stop).await }).await?;
        Ok(Response::new(StopTaskResponse {}))
    }

    async fn destroy_task(&self, request: Request<DestroyTaskRequest>) -> Reply<DestroyTaskResponse> {
        let request = request.into_inner();
        let driver = self.driver.clone();
        finished(async move { driver.destroy_task(&request.task_id, request.force).await }).await?;
        Ok(Response::new(DestroyTaskResponse {}))
    }

    async fn inspect_task(&self, request: Request<InspectTaskRequest>) -> Reply<InspectTaskResponse> {
        let id = request.into_inner().task_id;
        let seen = guarded(self.driver.inspect_task(&id)).await?;
        Ok(Response::new(seen.into()))
    }

    type TaskStatsStream = StreamOf<TaskStatsResponse>;

    async fn task_stats(&self, request: Request<TaskStatsRequest>) -> Reply<Self::TaskStatsStream> {
        let request = request.into_inner();
        let every = match build::std_duration(request.collection_interval.as_ref()) {
            Duration::ZERO => Duration::from_secs(1),
            every => every.max(Duration::from_millis(10)),
        };
        let (out, receiver) = mpsc::channel(1);
        tokio::spawn(samples(self.driver.clone(), request.task_id, every, out));
        Ok(Response::new(ReceiverStream::new(receiver).boxed()))
    }

    type TaskEventsStream = StreamOf<DriverTaskEvent>;

    async fn task_events(&self, _: Request<TaskEventsRequest>) -> Reply<Self::TaskEventsStream> {
        // The context lives in the stream, so the sender lives and the stream never ends.
        let state = (self.context.events(), self.context.clone());
        let stream = futures::stream::unfold(state, |(mut events, context)| async move {
            loop {
                match events.recv().await {
                    Ok(event) => return Some((Ok(event), (events, context))),
                    Err(tokio::sync::broadcast::error::RecvError::Lagged(lost)) => {
                        tracing::warn!(lost, "task events were lost because the host did not read them");
                    }
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => std::future::pending().await,
                }
            }
        });
        Ok(Response::new(stream.boxed()))
    }

    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Reply<ShutdownResponse> {
        // The order that ends the process follows on the controller service; the driver's hook runs there, once.
        Ok(Response::new(ShutdownResponse {}))
    }

    async fn signal_task(&self, request: Request<SignalTaskRequest>) -> Reply<SignalTaskResponse> {
        let request = request.into_inner();
        let driver = self.driver.clone();
        finished(async move { driver.signal_task(&request.task_id, &request.signal).await }).await?;
        Ok(Response::new(SignalTaskResponse {}))
    }

    async fn exec_task(&self, request: Request<ExecTaskRequest>) -> Reply<ExecTaskResponse> {
        let request = request.into_inner();
        let timeout = build::std_duration(request.timeout.as_ref());
        let output = guarded(self.driver.exec_task(&request.task_id, request.command, timeout)).await?;
        Ok(Response::new(build::exec_response(output.stdout, output.stderr, (&output.exit).into())))
    }

    type ExecTaskStreamingStream = StreamOf<ExecTaskStreamingResponse>;

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<ExecTaskStreamingRequest>>,
    ) -> Reply<Self::ExecTaskStreamingStream> {
        let mut messages = request.into_inner();
        let mut first = messages.message().await?.unwrap_or_default();
        let setup = first.setup.take();
        let setup = setup.ok_or_else(|| Status::invalid_argument("the first exec message must carry the set-up"))?;
        let driver = self.driver.clone();
        let stream = exec_session(first, messages, move |io| async move {
            driver.exec_streaming(&setup.task_id, setup.command, setup.tty, io).await.map_err(Status::from)
        });
        Ok(Response::new(stream))
    }

    async fn create_network(&self, request: Request<CreateNetworkRequest>) -> Reply<CreateNetworkResponse> {
        let request = request.into_inner();
        let driver = self.driver.clone();
        let create = async move { driver.create_network(&request.alloc_id, &request.hostname).await };
        let (spec, created) = finished(create).await?;
        Ok(Response::new(CreateNetworkResponse { isolation_spec: Some(spec), created }))
    }

    async fn destroy_network(&self, request: Request<DestroyNetworkRequest>) -> Reply<DestroyNetworkResponse> {
        let request = request.into_inner();
        let driver = self.driver.clone();
        finished(async move { driver.destroy_network(&request.alloc_id, request.isolation_spec).await }).await?;
        Ok(Response::new(DestroyNetworkResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::schema::{self, Spec};
    use crate::types::{ExecOutput, Inspection, PluginInfo, Started, TaskExit};

    /// Returns the minimum that the types allow; panics in `exec_task` on request.
    struct Bare;

    #[crate::async_trait]
    impl Driver for Bare {
        fn info(&self) -> PluginInfo {
            PluginInfo::new("bare", "1.0.0")
        }
        fn task_config_schema(&self) -> Spec {
            schema::object::<&str>([])
        }
        async fn fingerprint(&self) -> Fingerprint {
            panic!("no look");
        }
        async fn start_task(&self, _: TaskConfig) -> Result<Started, Error> {
            Ok(Started::default())
        }
        async fn recover_task(&self, _: TaskHandle) -> Result<(), Error> {
            Ok(())
        }
        async fn wait_task(&self, _: &str) -> Result<TaskExit, Error> {
            Ok(TaskExit { error: Some("lost".into()), ..TaskExit::default() })
        }
        async fn stop_task(&self, _: &str, _: StopTask) -> Result<(), Error> {
            Err(Error::recoverable("busy"))
        }
        async fn destroy_task(&self, _: &str, _: bool) -> Result<(), Error> {
            Err(Error::TaskNotFound)
        }
        async fn inspect_task(&self, _: &str) -> Result<Inspection, Error> {
            Ok(Inspection::default())
        }
        async fn task_stats(&self, _: &str) -> Result<Option<TaskUsage>, Error> {
            let by_pid = [(1, Usage::default())].into();
            Ok(Some(TaskUsage { by_pid, ..TaskUsage::default() }))
        }
        async fn exec_task(&self, id: &str, _: Vec<String>, _: Duration) -> Result<ExecOutput, Error> {
            assert!(id != "panic", "on request");
            Ok(ExecOutput::default())
        }
    }

    fn service() -> PlainService {
        PlainService::new(Arc::new(Bare), Context::new())
    }

    #[tokio::test]
    async fn every_answer_is_complete_because_hosts_do_not_check() {
        let service = service();
        let task = TaskConfig { id: "a/b/c".into(), ..TaskConfig::default() };
        let request = Request::new(StartTaskRequest { task: Some(task) });
        let handle = service.start_task(request).await.expect("starts").into_inner().handle.expect("handle");
        assert!(handle.version >= 1);
        let config = handle.config.expect("the configuration is echoed");
        assert!(config.id == "a/b/c" && config.resources.is_some_and(|r| r.linux_resources.is_some()));

        let waited = service.wait_task(Request::new(WaitTaskRequest::default())).await.expect("ends").into_inner();
        assert!(waited.result.is_some() && waited.err == "lost");
        let inspected = service.inspect_task(Request::new(InspectTaskRequest::default())).await.expect("inspected");
        let status = inspected.into_inner().task.expect("task");
        assert!(status.result.is_some());
        assert_eq!((status.started_at, status.completed_at), (Some(build::ZERO_TIME), Some(build::ZERO_TIME)));
        let executed = service.exec_task(Request::new(ExecTaskRequest::default())).await.expect("runs").into_inner();
        assert!(executed.result.is_some());
        let mut stats =
            service.task_stats(Request::new(TaskStatsRequest::default())).await.expect("opens").into_inner();
        let sample = stats.next().await.expect("one").expect("fine").stats.expect("stats");
        assert!(sample.timestamp.is_some_and(|at| at.seconds > 0) && sample.agg_resource_usage.is_some());
        assert!(sample.resource_usage_by_pid["1"].cpu.is_some() && sample.resource_usage_by_pid["1"].memory.is_some());
        let capabilities = service.capabilities(Request::new(CapabilitiesRequest {})).await.expect("constant");
        assert!(capabilities.into_inner().capabilities.is_some());
    }

    #[tokio::test]
    async fn failures_have_the_form_that_hosts_read() {
        let service = service();
        let stop = service.stop_task(Request::new(StopTaskRequest::default())).await.expect_err("busy");
        assert_eq!(driver_proto::errors::recoverable(&stop), Some(true));
        let destroy = service.destroy_task(Request::new(DestroyTaskRequest::default())).await.expect_err("unknown");
        assert!(driver_proto::errors::is_task_not_found(&destroy));
        let signal = service.signal_task(Request::new(SignalTaskRequest::default())).await.expect_err("not offered");
        assert_eq!(signal.code(), tonic::Code::Unimplemented);
        let request = ExecTaskRequest { task_id: "panic".into(), ..ExecTaskRequest::default() };
        let panic = service.exec_task(Request::new(request)).await.expect_err("panics");
        assert!(panic.message().contains("on request"), "{panic:?}");
        for request in [RecoverTaskRequest::default(), RecoverTaskRequest { task_id: "x".into(), handle: None }] {
            assert!(service.recover_task(Request::new(request)).await.is_err());
        }
        assert!(service.start_task(Request::new(StartTaskRequest { task: None })).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_stay_open_even_for_a_driver_that_panics() {
        let service = service();
        let mut looks = service.fingerprint(Request::new(FingerprintRequest {})).await.expect("opens").into_inner();
        let first = looks.next().await.expect("at once").expect("fine");
        assert!(first.health() == HealthState::Unhealthy && first.health_description.contains("no look"), "{first:?}");
        let mut events = service.task_events(Request::new(TaskEventsRequest {})).await.expect("opens").into_inner();
        // For hours nothing changes and nothing ends.
        let silence =
            tokio::time::timeout(Duration::from_secs(10_000), futures::future::select(looks.next(), events.next()));
        assert!(silence.await.is_err());
        service.context.emit(crate::TaskEvent { message: "hello".into(), ..Default::default() });
        let event = events.next().await.expect("open").expect("fine");
        assert!(event.message == "hello" && event.timestamp.is_some());
    }

    #[tokio::test]
    async fn what_changes_something_is_finished_when_nobody_waits_any_more() {
        struct Slow(Arc<tokio::sync::Notify>, mpsc::Sender<&'static str>);
        #[crate::async_trait]
        impl Driver for Slow {
            fn info(&self) -> PluginInfo {
                PluginInfo::new("slow", "1.0.0")
            }
            fn task_config_schema(&self) -> Spec {
                schema::object::<&str>([])
            }
            async fn start_task(&self, _: TaskConfig) -> Result<Started, Error> {
                let _ = self.1.send("begins").await;
                self.0.notified().await;
                let _ = self.1.send("ends").await;
                Ok(Started::default())
            }
            async fn recover_task(&self, _: TaskHandle) -> Result<(), Error> {
                Ok(())
            }
            async fn wait_task(&self, _: &str) -> Result<TaskExit, Error> {
                std::future::pending().await
            }
            async fn stop_task(&self, _: &str, _: StopTask) -> Result<(), Error> {
                Ok(())
            }
            async fn destroy_task(&self, _: &str, _: bool) -> Result<(), Error> {
                Ok(())
            }
        }
        let (said, mut says) = mpsc::channel(2);
        let go = Arc::new(tokio::sync::Notify::new());
        let driver: Arc<dyn Driver> = Arc::new(Slow(go.clone(), said));
        let service = PlainService::new(driver.clone(), Context::new());
        let request = Request::new(StartTaskRequest { task: Some(TaskConfig::default()) });
        tokio::select! {
            _ = service.start_task(request) => panic!("nobody let it go on"),
            begun = says.recv() => assert_eq!(begun, Some("begins")),
        }
        go.notify_one();
        assert_eq!(says.recv().await, Some("ends"));
        // A wait is dropped with its caller, and so are the sources of streams.
        let quiet = Arc::strong_count(&driver);
        let mut looks = service.fingerprint(Request::new(FingerprintRequest {})).await.expect("opens").into_inner();
        looks.next().await.expect("one").expect("fine");
        let events = service.task_events(Request::new(TaskEventsRequest {})).await.expect("opens");
        assert!(Arc::strong_count(&driver) > quiet && service.context.listeners() == 1);
        drop((looks, events));
        while Arc::strong_count(&driver) > quiet || service.context.listeners() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
