//! The remote extension.

use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use driver_proto::build;
use driver_proto::driver::ExecTaskStreamingResponse;
use driver_proto::errors::stale_epoch;
use driver_proto::remote::remote_driver_server::RemoteDriver;
use driver_proto::remote::*;
use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::fault;
use crate::world::{Instance, Meta, World, lock, number, time};

type StreamOf<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

pub(crate) struct Remote(pub(crate) Arc<World>);

const SCHEMA: u32 = 1;

fn done<T>(value: T) -> Reply<T> {
    Ok(Response::new(value))
}

fn handle(key: &str) -> Handle {
    Handle { schema: SCHEMA, data: format!("key:{key}").into_bytes() }
}

fn observed(instance: &Instance, key: &str) -> Observation {
    let Some(meta) = instance.meta() else {
        return Observation { key: key.into(), state: InstanceState::Gone as i32, ..Observation::default() };
    };
    let exit = instance.exit();
    let result = exit.unwrap_or_default();
    Observation {
        key: meta.key.clone(),
        state: if exit.is_some() { InstanceState::Exited } else { InstanceState::Running } as i32,
        exit_code: if fault("remote/exit-result") { 0 } else { result.exit_code },
        signal: result.signal,
        started_at: Some(build::timestamp(Some(time(meta.started_ns)))),
        provider_id: instance.pid().unwrap_or_default().to_string(),
        epoch: meta.epoch,
        ..Observation::default()
    }
}

impl Remote {
    /// The instance of a handle; its key when there is none any more.
    fn found(&self, handle: Option<&Handle>) -> Result<(String, Instance), Status> {
        let handle = handle.filter(|handle| handle.schema == SCHEMA);
        let text = handle.and_then(|handle| std::str::from_utf8(&handle.data).ok());
        let key = text
            .and_then(|text| text.strip_prefix("key:"))
            .ok_or_else(|| Status::invalid_argument("what handle is that?"))?;
        Ok((key.to_owned(), self.0.instance(key)))
    }

    /// Refuses older epochs, keeps newer ones.
    fn admit(&self, instance: &Instance, epoch: u64) -> Result<(), Status> {
        let _one_at_a_time = lock(&self.0.epochs);
        let Some(mut meta) = instance.meta() else { return Ok(()) };
        if epoch < meta.epoch && !fault("remote/stale-epoch") {
            return Err(stale_epoch(epoch, meta.epoch));
        }
        if epoch > meta.epoch {
            meta.epoch = epoch;
            instance.write(&meta)?;
        }
        Ok(())
    }

    /// The task's directory of an instance; beside the instances, whose directories are made by creating them.
    fn files(&self, key: &str) -> PathBuf {
        self.0.root().with_extension("files").join(key)
    }

    /// What is left of a key that must not create any more.
    fn seal_empty(&self, instance: &Instance) -> Result<(), Status> {
        std::fs::create_dir_all(&instance.dir)?;
        Ok(std::fs::write(instance.dir.join("sealed"), "")?)
    }
}

/// Puts files into a directory, each whole, but for the fault of writing over what somebody reads.
fn deliver(dir: &Path, bundle: &Bundle) -> Result<(), Status> {
    let digest = build::bundle_digest(bundle.files.iter().map(|f| (f.path.as_str(), f.mode, f.data.as_slice())));
    if !bundle.files.is_empty() && digest != bundle.digest {
        return Err(Status::invalid_argument("the digest is another"));
    }
    for BundleFile { path, data, .. } in &bundle.files {
        if !Path::new(path).components().all(|c| matches!(c, Component::Normal(_))) {
            return Err(Status::invalid_argument(format!("{path:?} is no plain path")));
        }
        let target = dir.join(path);
        target.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        if fault("remote/refresh") && target.exists() {
            std::fs::write(&target, &data[..data.len() / 2])?;
            std::thread::sleep(Duration::from_secs(1));
            std::fs::write(&target, data)?;
            continue;
        }
        let fresh = target.with_extension("new");
        std::fs::write(&fresh, data)?;
        std::fs::rename(&fresh, &target)?;
    }
    Ok(())
}

#[tonic::async_trait]
impl RemoteDriver for Remote {
    async fn describe(&self, _: Request<DescribeRequest>) -> Reply<DescribeResponse> {
        let mut provider = self.0.root().display().to_string();
        if fault("remote/survives") {
            provider = format!("{provider}-{}", std::process::id());
        }
        done(DescribeResponse {
            provider,
            keyed_create: true,
            find: true,
            list: true,
            list_owners: true,
            conditional_writes: true,
            retained_exit_results: true,
            logs: true,
            signals: true,
            file_upload: true,
            refresh: true,
            watch: true,
            seal: true,
            handle_schema_min: if fault("remote/describe") { 0 } else { SCHEMA },
            handle_schema_max: SCHEMA,
            ..DescribeResponse::default()
        })
    }

    async fn ensure(&self, request: Request<EnsureRequest>) -> Reply<EnsureResponse> {
        let request = request.into_inner();
        let mut task = request.task.unwrap_or_default();
        let mut key = request.key.clone();
        if fault("remote/ensure-twice") && self.0.instance(&key).meta().is_some() {
            key.push_str("-other");
        }
        self.admit(&self.0.instance(&key), request.epoch)?;
        let files = self.files(&key);
        if self.0.instance(&key).meta().is_none() {
            deliver(&files, &request.bundle.unwrap_or_default())?;
        }
        task.env.insert("NOMAD_SECRETS_DIR".into(), files.join("secrets").display().to_string());
        let meta = Meta {
            key: key.clone(),
            owner: request.owner,
            slot: request.slot,
            epoch: request.epoch,
            ..Meta::default()
        };
        let created = self.0.create(&key, meta, &task).await?;
        let observed = Observation { key: request.key, ..observed(&self.0.instance(&key), &key) };
        done(EnsureResponse {
            handle: Some(handle(&key)),
            observed: Some(observed),
            created,
            ..EnsureResponse::default()
        })
    }

    async fn find(&self, request: Request<FindRequest>) -> Reply<FindResponse> {
        let key = request.into_inner().key;
        let instance = self.0.instance(&key);
        if instance.meta().is_none() {
            return Err(if fault("remote/find") {
                Status::unavailable("not now")
            } else {
                Status::not_found("no such key")
            });
        }
        done(FindResponse { handle: Some(handle(&key)), observed: Some(observed(&instance, &key)) })
    }

    async fn list(&self, request: Request<ListRequest>) -> Reply<ListResponse> {
        let request = request.into_inner();
        let all = self.0.instances().into_iter().filter_map(|(key, instance)| Some((key, instance.meta()?, instance)));
        let mut wanted: Vec<ListedInstance> = all
            .filter(|(_, meta, _)| request.owner.is_empty() || meta.owner == request.owner || fault("remote/list"))
            .filter(|(key, ..)| *key > request.page_token)
            .map(|(key, meta, instance)| ListedInstance {
                owner: meta.owner,
                slot: meta.slot,
                epoch: meta.epoch,
                handle: Some(handle(&key)),
                observed: Some(observed(&instance, &key)),
                key,
            })
            .collect();
        let size = if request.page_size == 0 { 100 } else { request.page_size as usize };
        let more = wanted.len() > size;
        wanted.truncate(size);
        let next_page_token =
            if more { wanted.last().map(|last| last.key.clone()).unwrap_or_default() } else { String::new() };
        done(ListResponse { instances: wanted, next_page_token, ..ListResponse::default() })
    }

    async fn observe(&self, request: Request<ObserveRequest>) -> Reply<ObserveResponse> {
        let mut observations = Vec::new();
        for handle in &request.into_inner().handles {
            match self.found(Some(handle)) {
                Ok((key, instance)) => observations.push(observed(&instance, &key)),
                Err(_) if fault("remote/unknown-handle") => {
                    observations.push(observed(&self.0.instance("none"), "none"))
                }
                Err(status) => return Err(status),
            }
        }
        if fault("remote/observe") {
            observations.retain(|seen| seen.state() != InstanceState::Gone);
        }
        done(ObserveResponse { observations })
    }

    type WatchStream = StreamOf<Observation>;

    async fn watch(&self, request: Request<ObserveRequest>) -> Reply<Self::WatchStream> {
        let handles = request.into_inner().handles;
        let watched = handles.iter().map(|handle| self.found(Some(handle))).collect::<Result<Vec<_>, _>>()?;
        let (out, receiver) = mpsc::channel(16);
        tokio::spawn(async move {
            let mut last = vec![None; watched.len()];
            while !out.is_closed() {
                for (known, (key, instance)) in last.iter_mut().zip(&watched) {
                    let seen = observed(instance, key);
                    if known.as_ref() != Some(&seen) {
                        drop(out.send(Ok(seen.clone())).await);
                        *known = Some(seen);
                    }
                }
                if fault("remote/watch") {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        done(Box::pin(ReceiverStream::new(receiver)))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Reply<StopResponse> {
        let request = request.into_inner();
        let (key, instance) = self.found(request.handle.as_ref())?;
        self.admit(&instance, request.epoch)?;
        let timeout = build::std_duration(request.timeout.as_ref());
        if fault("remote/stop") {
            // As it is before the signal: it may end before anybody looks again.
            let seen = observed(&instance, &key);
            instance.signal(number(&request.signal));
            return done(StopResponse { observed: Some(seen) });
        }
        if instance.meta().is_some() {
            instance.stop(&request.signal, timeout).await;
        }
        done(StopResponse { observed: Some(observed(&instance, &key)) })
    }

    async fn seal(&self, request: Request<SealRequest>) -> Reply<SealResponse> {
        let request = request.into_inner();
        let instance = self.0.instance(&request.key);
        let exists = instance.meta().is_some();
        if exists {
            self.admit(&instance, request.epoch)?;
        } else if !fault("remote/seal") {
            self.seal_empty(&instance)?;
        }
        done(SealResponse {
            observed: Some(observed(&instance, &request.key)),
            handle: exists.then(|| handle(&request.key)),
        })
    }

    async fn acknowledge(&self, request: Request<AcknowledgeRequest>) -> Reply<AcknowledgeResponse> {
        let request = request.into_inner();
        let (_, instance) = self.found(request.handle.as_ref())?;
        self.admit(&instance, request.epoch)?;
        if instance.meta().is_some() && instance.exit().is_none() && !fault("remote/acknowledge") {
            return Err(Status::failed_precondition("it runs"));
        }
        if instance.meta().is_some() {
            std::fs::remove_dir_all(&instance.dir)?;
            if !fault("remote/seal-acknowledged") {
                self.seal_empty(&instance)?;
            }
        }
        done(AcknowledgeResponse {})
    }

    type LogsStream = StreamOf<LogChunk>;

    async fn logs(&self, request: Request<LogsRequest>) -> Reply<Self::LogsStream> {
        let request = request.into_inner();
        let (_, instance) = self.found(request.handle.as_ref())?;
        let bytes = std::fs::read(instance.dir.join("stdout")).unwrap_or_default();
        let offset = if fault("remote/logs") { 0 } else { request.offset };
        let rest = bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let chunks = rest.chunks(100).scan(offset, |at, data| {
            let chunk = LogChunk { offset: *at, data: data.to_vec(), file: "t.stdout.0".into() };
            *at += data.len() as u64;
            Some(Ok(chunk))
        });
        done(Box::pin(futures::stream::iter(chunks.collect::<Vec<_>>())))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Reply<SignalResponse> {
        let request = request.into_inner();
        let (_, instance) = self.found(request.handle.as_ref())?;
        self.admit(&instance, request.epoch)?;
        instance.signal(number(&request.signal));
        done(SignalResponse {})
    }

    async fn refresh(&self, request: Request<RefreshRequest>) -> Reply<RefreshResponse> {
        let request = request.into_inner();
        let (key, instance) = self.found(request.handle.as_ref())?;
        self.admit(&instance, request.epoch)?;
        if instance.meta().is_none() {
            return Err(Status::not_found("no such instance"));
        }
        if instance.exit().is_some() && !fault("remote/refresh#ended") {
            return Err(Status::failed_precondition("it has ended"));
        }
        let files = self.files(&key);
        deliver(&files, &request.bundle.unwrap_or_default())?;
        done(RefreshResponse {})
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Reply<StatsResponse> {
        done(StatsResponse { stats: None })
    }

    async fn examine(&self, _: Request<ExamineRequest>) -> Reply<ExamineResponse> {
        Err(Status::unimplemented("nothing to tell"))
    }

    type ExecStream = StreamOf<ExecTaskStreamingResponse>;

    async fn exec(&self, _: Request<Streaming<ExecRequest>>) -> Reply<Self::ExecStream> {
        Err(Status::unimplemented("not beside instances"))
    }
}
