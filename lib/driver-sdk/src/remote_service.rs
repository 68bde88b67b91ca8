//! The remote extension over [`RemoteDriver`].

use std::pin::Pin;
use std::sync::Arc;

use driver_proto::build;
use driver_proto::driver::ExecTaskStreamingResponse;
use driver_proto::remote::remote_driver_server::RemoteDriver as Wire;
use driver_proto::remote::*;
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::exec::ExecIo;
use crate::guard::{finished, guarded};
use crate::handle::{INTENT_MAX_BYTES, REMOTE_HANDLE_MAX_BYTES};
use crate::observer::Observer;
use crate::plain_service::{exec_session, stats_response};
use crate::types::StopTask;
use crate::{RemoteDriver, RemoteError, Verdict, remote};

type StreamOf<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

/// Serves one remote driver.
pub(crate) struct RemoteService {
    driver: Arc<dyn RemoteDriver>,
    observer: Arc<Observer>,
}

impl RemoteService {
    pub(crate) fn new(driver: Arc<dyn RemoteDriver>, observer: Arc<Observer>) -> Self {
        Self { driver, observer }
    }
}

fn wire_handle(handle: remote::RemoteHandle) -> Result<Handle, Status> {
    if handle.data.len() > REMOTE_HANDLE_MAX_BYTES {
        let size = handle.data.len();
        return Err(Status::internal(format!(
            "the driver made a handle of {size} bytes, at most {REMOTE_HANDLE_MAX_BYTES} are allowed; keep only what \
                finds the instance again"
        )));
    }
    Ok(Handle { schema: handle.schema, data: handle.data })
}

fn bounded_intent(intent: Vec<u8>) -> Result<Vec<u8>, Status> {
    match intent.len() {
        // Nothing would be stored, and the same call repeated.
        0 => Err(Status::internal("the driver made an empty intent; answer None where nothing needs to be kept")),
        1..=INTENT_MAX_BYTES => Ok(intent),
        size => Err(Status::internal(format!(
            "the driver made an intent of {size} bytes, at most {INTENT_MAX_BYTES} are kept; keep only what finds the \
                create again"
        ))),
    }
}

fn own_handle(handle: Option<Handle>) -> Result<remote::RemoteHandle, Status> {
    let handle = handle.ok_or_else(|| Status::invalid_argument("the request came without a handle"))?;
    Ok(remote::RemoteHandle { schema: handle.schema, data: handle.data })
}

fn own_bundle(bundle: Option<Bundle>) -> remote::Bundle {
    let Bundle { digest, files } = bundle.unwrap_or_default();
    let own = |f: BundleFile| remote::BundleFile { path: f.path, mode: f.mode, data: f.data };
    remote::Bundle { digest, files: files.into_iter().map(own).collect() }
}

fn wire_observation(seen: remote::Observation) -> Observation {
    let state = match seen.state {
        remote::InstanceState::Unknown => InstanceState::Unknown,
        remote::InstanceState::Creating => InstanceState::Creating,
        remote::InstanceState::Running => InstanceState::Running,
        remote::InstanceState::Exited => InstanceState::Exited,
        remote::InstanceState::Gone => InstanceState::Gone,
    };
    Observation {
        key: seen.key,
        state: state as i32,
        exit_code: seen.exit.exit_code,
        signal: seen.exit.signal,
        oom_killed: seen.exit.oom_killed,
        reason: if seen.reason.is_empty() { seen.exit.error.unwrap_or_default() } else { seen.reason },
        started_at: seen.started_at.map(|at| build::timestamp(Some(at))),
        finished_at: seen.finished_at.map(|at| build::timestamp(Some(at))),
        provider_id: seen.provider_id,
        address: seen.address,
        port_map: seen.port_map,
        attributes: seen.attributes,
        epoch: seen.epoch,
    }
}

fn wire_instance(instance: remote::Instance) -> Result<ListedInstance, Status> {
    Ok(ListedInstance {
        key: instance.key,
        owner: instance.owner,
        slot: instance.slot,
        epoch: instance.epoch,
        handle: Some(wire_handle(instance.handle)?),
        observed: Some(wire_observation(instance.observed)),
    })
}

/// Forwards the driver's items; the driver's error ends the stream with its kind.
fn pushed<T, W, F>(wire: fn(T) -> W, run: impl FnOnce(mpsc::Sender<T>) -> F) -> StreamOf<W>
where
    T: Send + 'static,
    W: Send + 'static,
    F: Future<Output = Result<(), RemoteError>> + Send + 'static,
{
    let (sink, mut pushed) = mpsc::channel(16);
    let (out, receiver) = mpsc::channel(16);
    let work = run(sink);
    tokio::spawn(async move {
        let forward = async {
            while let Some(item) = pushed.recv().await {
                if out.send(Ok(wire(item))).await.is_err() {
                    return;
                }
            }
        };
        let both = async {
            let (result, ()) = tokio::join!(guarded(work), forward);
            if let Err(status) = result {
                let _ = out.send(Err(status)).await;
            }
        };
        // When the host goes, the driver's work is dropped at its next await.
        tokio::select! {
            () = both => {}
            () = out.closed() => {}
        }
    });
    ReceiverStream::new(receiver).boxed()
}

#[tonic::async_trait]
impl Wire for RemoteService {
    async fn describe(&self, _: Request<DescribeRequest>) -> Reply<DescribeResponse> {
        let own = guarded(async { Ok::<_, Status>(self.driver.describe()) }).await?;
        Ok(Response::new(DescribeResponse {
            provider: own.provider,
            keyed_create: own.keyed_create,
            find: own.find,
            list: own.list,
            list_owners: own.list_owners,
            conditional_writes: own.conditional_writes,
            retained_exit_results: own.retained_exit_results,
            logs: own.logs,
            exec: own.exec,
            signals: own.signals,
            stats: own.stats,
            file_upload: own.file_upload,
            watch: own.watch,
            handle_schema_min: own.handle_schema_min,
            handle_schema_max: own.handle_schema_max,
            pool_cpu_mhz: own.pool_cpu_mhz,
            pool_memory_mib: own.pool_memory_mib,
            seal: own.seal,
            refresh: own.refresh,
            volumes: own.volumes,
            stale_seconds: own.staleness.as_secs(),
        }))
    }

    async fn ensure(&self, request: Request<EnsureRequest>) -> Reply<EnsureResponse> {
        let request = request.into_inner();
        let wrong = |what| Status::invalid_argument(format!("Ensure came without {what}"));
        if request.key.is_empty() {
            return Err(wrong("a key"));
        }
        let mut task = request.task.ok_or_else(|| wrong("a task"))?;
        build::fill_resources(&mut task);
        let ensure = remote::Ensure {
            key: request.key,
            epoch: request.epoch,
            owner: request.owner,
            slot: request.slot,
            task,
            bundle: own_bundle(request.bundle),
            first: request.first,
            intent: request.intent,
        };
        if request.keeps_intent
            && let Some(intent) = guarded(self.driver.intent(&ensure)).await?
        {
            return Ok(Response::new(EnsureResponse { intent: bounded_intent(intent)?, ..EnsureResponse::default() }));
        }
        // Outside of the part that runs to its end: a host that no longer waits withdraws its create.
        self.observer.create_turn().await?;
        let driver = self.driver.clone();
        let ensured = finished(async move { driver.ensure(ensure).await }).await?;
        Ok(Response::new(EnsureResponse {
            handle: Some(wire_handle(ensured.handle)?),
            observed: Some(wire_observation(ensured.observed)),
            created: ensured.created,
            intent: Vec::new(),
        }))
    }

    async fn find(&self, request: Request<FindRequest>) -> Reply<FindResponse> {
        let request = request.into_inner();
        let (handle, seen) = guarded(self.driver.look_up(remote::Lookup {
            key: request.key,
            owner: request.owner,
            intent: request.intent,
            epoch: request.epoch,
            create_follows: request.create_follows,
        }))
        .await?;
        Ok(Response::new(FindResponse { handle: Some(wire_handle(handle)?), observed: Some(wire_observation(seen)) }))
    }

    async fn list(&self, request: Request<ListRequest>) -> Reply<ListResponse> {
        let request = request.into_inner();
        let size = match request.page_size {
            0 => 100,
            size => size.min(1000) as usize,
        };
        if request.owner.is_empty() && !guarded(async { Ok::<_, Status>(self.driver.describe()) }).await?.list_owners {
            return Err(Status::invalid_argument(
                "List came without an owner, and the driver does not list the instances of all owners",
            ));
        }
        let page = guarded(self.observer.in_turn(self.driver.list(&request.owner, &request.page_token, size))).await?;
        let instances = page.instances.into_iter().map(wire_instance).collect::<Result<_, _>>()?;
        Ok(Response::new(ListResponse {
            instances,
            next_page_token: page.next_page_token,
            incomplete: page.incomplete,
        }))
    }

    async fn observe(&self, request: Request<ObserveRequest>) -> Reply<ObserveResponse> {
        let handles = own_handles(request.into_inner());
        let seen = guarded(self.observer.observe(handles)).await?;
        Ok(Response::new(ObserveResponse { observations: seen.into_iter().map(wire_observation).collect() }))
    }

    type WatchStream = StreamOf<Observation>;

    async fn watch(&self, request: Request<ObserveRequest>) -> Reply<Self::WatchStream> {
        let handles = own_handles(request.into_inner());
        let observer = self.observer.clone();
        let stream = pushed(wire_observation, move |sink| async move { observer.watch(handles, sink).await });
        Ok(Response::new(stream))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Reply<StopResponse> {
        let request = request.into_inner();
        let handle = own_handle(request.handle)?;
        let stop = StopTask { signal: request.signal, timeout: build::std_duration(request.timeout.as_ref()) };
        let driver = self.driver.clone();
        self.observer.spent();
        let seen = finished(async move { driver.stop(&handle, request.epoch, stop).await }).await?;
        Ok(Response::new(StopResponse { observed: Some(wire_observation(seen)) }))
    }

    async fn seal(&self, request: Request<SealRequest>) -> Reply<SealResponse> {
        let request = request.into_inner();
        if request.key.is_empty() {
            return Err(Status::invalid_argument("Seal came without a key"));
        }
        let gone =
            remote::Observation { key: request.key.clone(), state: remote::InstanceState::Gone, ..Default::default() };
        let driver = self.driver.clone();
        self.observer.spent();
        let seal = async move { driver.seal(&request.key, request.epoch, &request.owner, &request.intent).await };
        let (handle, seen) = match finished(seal).await? {
            Some((handle, seen)) => (Some(wire_handle(handle)?), seen),
            None => (None, gone),
        };
        Ok(Response::new(SealResponse { observed: Some(wire_observation(seen)), handle }))
    }

    async fn acknowledge(&self, request: Request<AcknowledgeRequest>) -> Reply<AcknowledgeResponse> {
        let request = request.into_inner();
        let handle = own_handle(request.handle)?;
        let driver = self.driver.clone();
        self.observer.spent();
        finished(async move { driver.acknowledge(&handle, request.epoch).await }).await?;
        Ok(Response::new(AcknowledgeResponse {}))
    }

    type LogsStream = StreamOf<LogChunk>;

    async fn logs(&self, request: Request<LogsRequest>) -> Reply<Self::LogsStream> {
        let request = request.into_inner();
        let stream = match request.stream() {
            LogStream::Stdout => remote::LogStream::Stdout,
            LogStream::Stderr => remote::LogStream::Stderr,
        };
        let query =
            remote::LogsQuery { stream, offset: request.offset, follow: request.follow, from_end: request.from_end };
        let handle = own_handle(request.handle)?;
        let driver = self.driver.clone();
        let wire = |chunk: remote::LogChunk| LogChunk { offset: chunk.offset, data: chunk.data, file: chunk.file };
        let stream = pushed(wire, move |sink| async move { driver.logs(&handle, query, sink).await });
        Ok(Response::new(stream))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Reply<SignalResponse> {
        let request = request.into_inner();
        let handle = own_handle(request.handle)?;
        let driver = self.driver.clone();
        self.observer.spent();
        finished(async move { driver.signal(&handle, request.epoch, &request.signal).await }).await?;
        Ok(Response::new(SignalResponse {}))
    }

    async fn refresh(&self, request: Request<RefreshRequest>) -> Reply<RefreshResponse> {
        let request = request.into_inner();
        let handle = own_handle(request.handle)?;
        let bundle = own_bundle(request.bundle);
        bundle.verify()?;
        let driver = self.driver.clone();
        self.observer.spent();
        finished(async move { driver.refresh(&handle, request.epoch, bundle).await }).await?;
        Ok(Response::new(RefreshResponse {}))
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Reply<StatsResponse> {
        let handle = own_handle(request.into_inner().handle)?;
        let usage = guarded(self.driver.stats(&handle)).await?;
        Ok(Response::new(StatsResponse { stats: usage.and_then(|usage| stats_response(usage).stats) }))
    }

    async fn examine(&self, _: Request<ExamineRequest>) -> Reply<ExamineResponse> {
        let findings = guarded(async { Ok::<_, Status>(self.driver.examine().await) }).await?;
        let findings = findings.into_iter().map(|finding| Finding {
            what: finding.what,
            verdict: match finding.verdict {
                Verdict::Pass => finding::Verdict::Pass,
                Verdict::Warning => finding::Verdict::Warning,
                Verdict::Fail => finding::Verdict::Fail,
            }
            .into(),
            found: finding.found,
            remedy: finding.remedy,
        });
        Ok(Response::new(ExamineResponse { findings: findings.collect() }))
    }

    type ExecStream = StreamOf<ExecTaskStreamingResponse>;

    async fn exec(&self, request: Request<Streaming<ExecRequest>>) -> Reply<Self::ExecStream> {
        let mut messages = request.into_inner();
        let first = messages.message().await?.unwrap_or_default();
        let (handle, epoch) = (own_handle(first.handle)?, first.epoch);
        let mut frame = first.frame.unwrap_or_default();
        let setup = frame.setup.take();
        let setup = setup.ok_or_else(|| Status::invalid_argument("the first exec message must carry the set-up"))?;
        let driver = self.driver.clone();
        let frames = messages.map(|message| message.map(|message| message.frame.unwrap_or_default()));
        let stream = exec_session(frame, frames, move |io: ExecIo| async move {
            driver.exec(&handle, epoch, setup.command, setup.tty, io).await.map_err(Status::from)
        });
        Ok(Response::new(stream))
    }
}

fn own_handles(request: ObserveRequest) -> Vec<remote::RemoteHandle> {
    request.handles.into_iter().map(|h| remote::RemoteHandle { schema: h.schema, data: h.data }).collect()
}
