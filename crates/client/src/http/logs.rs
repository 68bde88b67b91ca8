//! `fs/logs`: the output of a task over all its rotated files, or straight from the driver when the task lives elsewhere.

use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};
use driver_host::LogsQuery;
use executor_client::{Follow, RotatedLog};
use model::{TaskRunState, remote::slot_of};
use tokio::sync::watch;

use super::{
    Query, find,
    frames::{self, FRAME_BYTES, HEARTBEAT, Item, Sink},
    fs::{offset, origin_is_end},
    raw, text,
};
use crate::{alloc::AllocView, client::ClientHandle, dirs::AllocDirs, error::RequestError, remote::RemoteManager};

pub(super) async fn logs(State(handle): State<ClientHandle>, Path(alloc): Path<String>, query: Query) -> Result<Response, RequestError> {
    let (id, loop_handle) = find(&handle, &alloc)?;
    let task = query.get("task").to_owned();
    if task.is_empty() {
        return Err(RequestError::Invalid("must provide task name".into()));
    }
    let kind = query.get("type").to_owned();
    if kind != "stdout" && kind != "stderr" {
        return Err(RequestError::Invalid("must provide log type (stdout/stderr)".into()));
    }
    let (follow, plain) = (query.flag("follow")?, query.flag("plain")?);
    let (from_end, offset) = (origin_is_end(&query)?, offset(&query)?);
    let view = loop_handle.view.borrow().clone();
    let Some(state) = view.update.task_states.get(task.as_str()) else {
        return Ok(text(StatusCode::BAD_REQUEST, RequestError::unknown_task(&task).to_string()));
    };
    if state.started_at.is_empty() {
        return Err(RequestError::NotFound(format!("task {task:?} not started yet. No logs available")));
    }
    let (sink, body) = frames::channel(plain);
    if let Some(name) = view.remote.iter().find(|t| ***t == *task) {
        let from = Remote { manager: handle.inner.ctx.remote.clone(), slot: slot_of(&view.alloc, name), task, kind };
        tokio::spawn(from.run(loop_handle.view.clone(), offset, from_end, follow, sink));
    } else {
        let dirs = AllocDirs::new(&handle.config().alloc_dir, id);
        let log = RotatedLog::new(dirs.logs(), format!("{task}.{kind}"));
        tokio::spawn(local(log, loop_handle.view.clone(), task, offset, from_end, follow, sink));
    }
    Ok(raw(body))
}

/// The task has ended for good: nothing more will be written.
fn dead(view: &AllocView, task: &str) -> bool {
    view.update.task_states.get(task).is_none_or(|s| s.state == TaskRunState::Dead)
}

async fn local(
    log: RotatedLog,
    mut view: watch::Receiver<std::sync::Arc<AllocView>>,
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

struct Remote {
    manager: RemoteManager,
    slot: model::SlotKey,
    task: String,
    kind: String,
}

impl Remote {
    /// Reads on over plugin deaths and hand-overs by the absolute offset, so that no byte is missing and none comes twice.
    async fn run(self, mut view: watch::Receiver<std::sync::Arc<AllocView>>, offset: u64, from_end: bool, follow: bool, sink: Sink) {
        let mut query = LogsQuery { stderr: self.kind == "stderr", offset, follow, from_end };
        let mut told = false;
        loop {
            let Some(instance) = self.manager.instance(self.slot.clone()).await else {
                if !follow {
                    return drop(sink.send(Item::Trouble("this node does not know the instance of the task now".into())).await);
                }
                // Let go: whoever follows goes on where it is managed now.
                if dead(&view.borrow(), &self.task) {
                    return;
                }
                if pause(&sink, &mut view).await {
                    return;
                }
                continue;
            };
            let opened = match instance.driver.remote() {
                Some(remote) => remote.logs(crate::remote::wire_handle(&instance.handle), query.clone()).map_err(|e| e.to_string()),
                None if instance.driver.capabilities().is_some_and(|c| c.remote_tasks) => {
                    let why = "the driver of this task knows the plain driver protocol only, which carries no output: read it where the task runs";
                    return drop(sink.send(Item::Trouble(why.to_owned())).await);
                }
                None => Err("the plugin of its driver is not running".to_owned()),
            };
            let ended = match opened {
                Ok(mut stream) => loop {
                    tokio::select! {
                        item = stream.next() => match item {
                            Some(Ok(chunk)) => {
                                let end = chunk.offset + chunk.data.len() as u64;
                                query.offset = end;
                                query.from_end = false;
                                told = true;
                                let name = if chunk.file.is_empty() { format!("{}.{}.0", self.task, self.kind) } else { chunk.file };
                                if sink.send(Item::Data { file: format!("alloc/logs/{name}"), end, bytes: chunk.data }).await.is_err() {
                                    return;
                                }
                            }
                            Some(Err(error)) => break Some(error.to_string()),
                            None => break None,
                        },
                        () = tokio::time::sleep(HEARTBEAT) => {
                            if sink.send(Item::Heartbeat).await.is_err() {
                                return;
                            }
                        }
                        () = sink.closed() => return,
                    }
                },
                Err(why) => Some(why),
            };
            match ended {
                None if !follow || dead(&view.borrow(), &self.task) => return,
                Some(why) if !follow => {
                    if !told {
                        let _ = sink.send(Item::Trouble(format!("the logs of task {:?} cannot be read: {why}", self.task))).await;
                    }
                    return;
                }
                _ => {
                    if pause(&sink, &mut view).await {
                        return;
                    }
                }
            }
        }
    }
}

/// Waits a moment for a change; true when nobody listens any more.
async fn pause(sink: &Sink, view: &mut watch::Receiver<std::sync::Arc<AllocView>>) -> bool {
    tokio::select! {
        () = sink.closed() => true,
        changed = view.changed() => changed.is_err(),
        () = tokio::time::sleep(std::time::Duration::from_millis(200)) => false,
    }
}
