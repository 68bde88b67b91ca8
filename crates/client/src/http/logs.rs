//! `fs/logs`: the output of a task over all its rotated files. When the task lives elsewhere, straight from the driver;
//! from what was kept of it once it has ended.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};
use driver_host::LogsQuery;
use executor_client::{Follow, RotatedLog};
use hooks::task_config::logs_disabled;
use host::{
    dirs::AllocDirs,
    output::{KINDS, Kept},
};
use model::{IncarnationId, TaskRunState, remote::slot_of};
use remote_manager::{Instance, RemoteManager};
use tokio::sync::watch;

use super::{
    answer::{Query, find, raw, text},
    frames::{self, FRAME_BYTES, HEARTBEAT, Item, Sink},
    fs::{offset, origin_is_end},
};
use crate::{alloc::AllocView, error::RequestError, handle::ClientHandle};

pub(super) async fn logs(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
) -> Result<Response, RequestError> {
    let (id, loop_handle) = find(&handle, &alloc)?;
    let task = query.get("task").to_owned();
    if task.is_empty() {
        return Err(RequestError::Invalid("must provide task name".into()));
    }
    let Some(kind) = KINDS.into_iter().find(|kind| *kind == query.get("type")) else {
        return Err(RequestError::Invalid("must provide log type (stdout/stderr)".into()));
    };
    let (follow, plain) = (query.flag("follow")?, query.flag("plain")?);
    let (from_end, offset) = (origin_is_end(&query)?, offset(&query)?);
    let view = loop_handle.view.borrow().clone();
    let Some(state) = view.update.task_states.get(task.as_str()) else {
        return Ok(text(StatusCode::BAD_REQUEST, RequestError::unknown_task(&task).to_string()));
    };
    let group = view.job.group(&view.alloc.task_group);
    if group.and_then(|g| g.task(&task)).is_some_and(logs_disabled) {
        return Err(RequestError::NotFound(format!(
            "log entry for task {task:?} and log type {kind:?} not found: its logs are disabled"
        )));
    }
    if state.started_at.is_unset() {
        return Err(RequestError::NotFound(format!("task {task:?} not started yet. No logs available")));
    }
    let (sink, body) = frames::channel(plain);
    let dirs = AllocDirs::new(&handle.config().alloc_dir, id);
    let elsewhere = match view.remote.iter().find(|t| ***t == *task) {
        Some(name) => (!collected(dirs.clone(), name.clone()).await).then(|| name.clone()),
        None => None,
    };
    if let Some(name) = elsewhere {
        let from = Remote {
            manager: handle.inner.remote.clone(),
            slot: slot_of(&view.alloc, &name),
            dirs,
            task: name,
            kind,
            sink,
            view: loop_handle.view.clone(),
            follow,
        };
        tokio::spawn(from.run(offset, from_end));
    } else {
        let log = RotatedLog::new(dirs.logs(), format!("{task}.{kind}"));
        tokio::spawn(local(log, loop_handle.view.clone(), task, offset, from_end, follow, sink));
    }
    Ok(raw(body))
}

/// The output of a remote task is collected here, because its driver has nothing but FIFOs to write to: it is read as
/// that of a local one.
async fn collected(dirs: AllocDirs, task: Arc<str>) -> bool {
    let work = move || {
        let collected = KINDS
            .iter()
            .any(|kind| RotatedLog::new(dirs.logs(), format!("{task}.{kind}")).segments().is_ok_and(|s| !s.is_empty()));
        collected && Kept::find(&dirs, &task).is_none()
    };
    blocking::spawn(work).await.unwrap_or_default()
}

/// The task has ended for good: nothing more will be written.
fn dead(view: &AllocView, task: &str) -> bool {
    view.update.task_states.get(task).is_none_or(|s| s.state == TaskRunState::Dead)
}

async fn local(
    log: RotatedLog,
    mut view: watch::Receiver<Arc<AllocView>>,
    task: String,
    offset: u64,
    from_end: bool,
    follow: bool,
    sink: Sink,
) {
    let start = if from_end { log.end().map(|end| end.saturating_sub(offset)) } else { Ok(offset) };
    let opened = start.and_then(|at| Follow::new(log.clone(), at));
    let mut reader = match opened {
        Ok(reader) => reader,
        Err(e) => {
            return drop(sink.send(Item::Trouble(format!("read the logs of task {task:?}: {e}"))).await);
        }
    };
    let data = |chunk: executor_client::Chunk| Item::Data {
        file: format!("alloc/logs/{}", chunk.file),
        end: chunk.offset + chunk.data.len() as u64,
        bytes: chunk.data,
    };
    let mut last = false;
    let mut pulse = tokio::time::interval(HEARTBEAT);
    pulse.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    pulse.reset();
    loop {
        match reader.available(FRAME_BYTES) {
            Ok(Some(chunk)) => {
                if sink.send(data(chunk)).await.is_err() {
                    return;
                }
                pulse.reset();
                continue;
            }
            Ok(None) if !follow || last => return,
            Ok(None) => {}
            Err(e) => {
                return drop(sink.send(Item::Trouble(format!("read the logs of task {task:?}: {e}"))).await);
            }
        }
        if dead(&view.borrow_and_update(), &task) {
            // The end was seen before what was written last was read: one more round.
            last = true;
            continue;
        }
        tokio::select! {
            chunk = reader.next(FRAME_BYTES) => match chunk {
                Ok(chunk) => {
                    if sink.send(data(chunk)).await.is_err() {
                        return;
                    }
                    pulse.reset();
                }
                Err(e) => return drop(sink.send(Item::Trouble(format!("read the logs of task {task:?}: {e}"))).await),
            },
            changed = view.changed() => last = changed.is_err(),
            _ = pulse.tick() => {
                if sink.send(Item::Heartbeat).await.is_err() {
                    return;
                }
            }
            () = sink.closed() => return,
        }
    }
}

/// The log of a task that lives elsewhere: that of its present instance, or of the last one that has ended.
struct Remote {
    manager: RemoteManager,
    slot: model::SlotKey,
    dirs: AllocDirs,
    task: Arc<str>,
    kind: &'static str,
    sink: Sink,
    view: watch::Receiver<Arc<AllocView>>,
    follow: bool,
}

/// How far a reader has come.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// In the output of which instance; None before the first byte.
    of: Option<IncarnationId>,
    offset: u64,
    from_end: bool,
}

/// What became of reading a source.
enum Read {
    /// It has been read to its end.
    End,
    /// It broke off.
    Broken(String),
    /// Nobody listens any more.
    Unheard,
}

impl Remote {
    /// Reads on over plugin deaths, hand-overs, and the move of the output from the provider to this node by the
    /// absolute offset, so that no byte is missing and none comes twice. What follows in the same allocation begins at
    /// its own beginning.
    async fn run(mut self, offset: u64, from_end: bool) {
        let mut place = Place { of: None, offset, from_end };
        // What was kept of it has been read to its end.
        let mut done = None;
        loop {
            let instance = self.manager.instance(self.slot.clone()).await;
            // Looked for after the instance: it is kept before the provider forgets it.
            let kept = self.find().await.filter(|kept| {
                let begun = place.of == Some(kept.incarnation) && done != place.of;
                begun || instance.as_ref().is_none_or(|i| i.incarnation == kept.incarnation)
            });
            let read = match (kept, instance) {
                (Some(kept), _) => {
                    place = place.within(kept.incarnation);
                    let read = self.kept(&kept, &mut place).await;
                    if matches!(read, Read::End) {
                        done = place.of;
                    }
                    match (&read, kept.missing.get(self.kind)) {
                        (Read::End, Some(why)) if !self.follow || self.dead() => {
                            return self.say(format!("the logs of task {:?} are incomplete: {why}", self.task)).await;
                        }
                        (Read::Broken(why), _) => return self.say(self.unreadable(why)).await,
                        _ => read,
                    }
                }
                (None, Some(instance)) => {
                    place = place.within(instance.incarnation);
                    match self.live(&instance, &mut place).await {
                        Ok(Read::Broken(why)) if !self.follow => {
                            // It may have come to this node meanwhile.
                            if self.find().await.is_none_or(|kept| place.of != Some(kept.incarnation)) {
                                return self.say(self.unreadable(&why)).await;
                            }
                            continue;
                        }
                        Ok(read) => read,
                        Err(never) => return self.say(never).await,
                    }
                }
                (None, None) if self.follow && !self.dead() => Read::Broken(String::new()),
                // Let go: whoever follows goes on where it is managed now.
                (None, None) if self.follow && place.of.is_some() => return,
                (None, None) => return self.say(self.nowhere()).await,
            };
            match read {
                Read::Unheard => return,
                Read::End if !self.follow || self.dead() => return,
                Read::End | Read::Broken(_) => {
                    if pause(&self.sink, &mut self.view).await {
                        return;
                    }
                }
            }
        }
    }

    async fn find(&self) -> Option<Kept> {
        let (dirs, task) = (self.dirs.clone(), self.task.clone());
        blocking::spawn(move || Kept::find(&dirs, &task)).await.unwrap_or_default()
    }

    fn unreadable(&self, why: &str) -> String {
        format!("the logs of task {:?} cannot be read: {why}", self.task)
    }

    fn dead(&self) -> bool {
        dead(&self.view.borrow(), &self.task)
    }

    async fn say(&self, why: String) {
        // Without a listener nobody needs to know.
        let _ = self.sink.send(Item::Trouble(why)).await;
    }

    fn nowhere(&self) -> String {
        let view = self.view.borrow();
        let next = view.alloc.next_allocation;
        if next.is_nil() {
            "this node does not know the instance of the task now, and has not kept its output: another node manages \
                it, or managed its end"
                .to_owned()
        } else {
            format!("the task went on with allocation {next}: its output is read there")
        }
    }

    async fn kept(&self, kept: &Kept, place: &mut Place) -> Read {
        let log = kept.log(self.kind);
        loop {
            let (log, at) = (log.clone(), *place);
            let read = blocking::spawn(move || {
                let from = if at.from_end { log.end()?.saturating_sub(at.offset) } else { at.offset };
                log.read(from, FRAME_BYTES)
            });
            let chunk = match read.await {
                Ok(Ok(chunk)) => chunk,
                Ok(Err(error)) => return Read::Broken(error.to_string()),
                Err(error) => return Read::Broken(error.to_string()),
            };
            if chunk.data.is_empty() {
                return Read::End;
            }
            if !self.data(place, chunk.offset, chunk.data, chunk.file).await {
                return Read::Unheard;
            }
        }
    }

    /// Straight from the driver; an error when it will never show anything.
    async fn live(&self, instance: &Instance, place: &mut Place) -> Result<Read, String> {
        let query = LogsQuery {
            stderr: self.kind == "stderr",
            offset: place.offset,
            follow: self.follow,
            from_end: place.from_end,
        };
        let opened = match instance.driver.remote() {
            Some(remote) => {
                remote.logs(remote_manager::wire_handle(&instance.handle), query).map_err(|e| e.to_string())
            }
            None if instance.driver.capabilities().is_some_and(|c| c.remote_tasks) => {
                return Err(
                    "the driver of this task knows the plain driver protocol only, and collects no output: read it \
                        where the task runs"
                        .to_owned(),
                );
            }
            None => Err("the plugin of its driver is not running".to_owned()),
        };
        let mut stream = match opened {
            Ok(stream) => stream,
            Err(why) => return Ok(Read::Broken(why)),
        };
        loop {
            tokio::select! {
                item = stream.next() => match item {
                    Some(Ok(chunk)) => {
                        let name = if chunk.file.is_empty() { format!("{}.{}.0", self.task,
                            self.kind) } else { chunk.file };
                        if !self.data(place, chunk.offset, chunk.data, name).await {
                            return Ok(Read::Unheard);
                        }
                    }
                    Some(Err(error)) => return Ok(Read::Broken(error.to_string())),
                    None => return Ok(Read::End),
                },
                () = tokio::time::sleep(HEARTBEAT) => {
                    if self.sink.send(Item::Heartbeat).await.is_err() {
                        return Ok(Read::Unheard);
                    }
                }
                () = self.sink.closed() => return Ok(Read::Unheard),
            }
        }
    }

    async fn data(&self, place: &mut Place, offset: u64, bytes: Vec<u8>, file: String) -> bool {
        let end = offset + bytes.len() as u64;
        (place.offset, place.from_end) = (end, false);
        self.sink.send(Item::Data { file: format!("alloc/logs/{file}"), end, bytes }).await.is_ok()
    }
}

impl Place {
    /// The place in the output of that instance: that of another one is read from its beginning.
    fn within(self, incarnation: IncarnationId) -> Self {
        match self.of {
            Some(of) if of != incarnation => Self { of: Some(incarnation), offset: 0, from_end: false },
            _ => Self { of: Some(incarnation), ..self },
        }
    }
}

/// Waits a moment for a change; true when nobody listens any more.
async fn pause(sink: &Sink, view: &mut watch::Receiver<Arc<AllocView>>) -> bool {
    tokio::select! {
        () = sink.closed() => true,
        changed = view.changed() => changed.is_err(),
        () = tokio::time::sleep(std::time::Duration::from_millis(200)) => false,
    }
}
