//! `fs/ls`, `stat`, `cat`, `readat`, `stream`.

use std::{os::unix::fs::FileExt, path::PathBuf, time::Duration};

use axum::{
    extract::{Path, State},
    response::Response,
};
use host::dirs::AllocDirs;

use super::{
    answer::{Query, find, json, raw},
    files,
    frames::{self, FRAME_BYTES, HEARTBEAT, Item, Sink},
};
use crate::{error::RequestError, handle::ClientHandle};

/// A followed file is looked at this often.
const LOOK: Duration = Duration::from_millis(50);

fn root(handle: &ClientHandle, alloc: &str) -> Result<PathBuf, RequestError> {
    let (id, _) = find(handle, alloc)?;
    Ok(AllocDirs::new(&handle.config().alloc_dir, id).root)
}

fn path(query: &Query, required: bool) -> Result<String, RequestError> {
    match query.get("path") {
        "" if required => Err(RequestError::Invalid("must provide a file name".into())),
        "" => Ok("/".into()),
        path => Ok(path.to_owned()),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, files::FileError> + Send + 'static,
) -> Result<T, RequestError> {
    match blocking::spawn(work).await {
        Ok(result) => result.map_err(|e| RequestError::Failed(e.to_string())),
        Err(e) => Err(RequestError::Failed(e.to_string())),
    }
}

pub(super) async fn ls(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
) -> Result<Response, RequestError> {
    let (root, path) = (root(&handle, &alloc)?, path(&query, false)?);
    Ok(json(&blocking(move || files::list(&root, &path)).await?, query.pretty()))
}

pub(super) async fn stat(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
) -> Result<Response, RequestError> {
    let (root, path) = (root(&handle, &alloc)?, path(&query, true)?);
    Ok(json(&blocking(move || files::stat(&root, &path)).await?, query.pretty()))
}

pub(super) async fn cat(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
) -> Result<Response, RequestError> {
    let (root, path) = (root(&handle, &alloc)?, path(&query, true)?);
    Ok(raw(whole(root, path, 0, None)))
}

pub(super) async fn readat(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
) -> Result<Response, RequestError> {
    let (root, path) = (root(&handle, &alloc)?, path(&query, true)?);
    let offset = query.number("offset")?.unwrap_or(0);
    let limit = query.number("limit")?.unwrap_or(0);
    let offset = u64::try_from(offset).map_err(|_| RequestError::Invalid("offset must not be negative".into()))?;
    // Zero and negative limits mean the rest of the file.
    let limit = u64::try_from(limit).ok().filter(|l| *l > 0);
    Ok(raw(whole(root, path, offset, limit)))
}

/// The bytes of a file; what goes wrong is said in the body, the headers have left by then.
fn whole(root: PathBuf, path: String, offset: u64, limit: Option<u64>) -> axum::body::Body {
    let (sink, body) = frames::channel(true);
    blocking::spawn(move || {
        let (file, _) = match files::open_file(&root, &path) {
            Ok(open) => open,
            Err(e) => return drop(sink.blocking_send(Item::Trouble(e.to_string()))),
        };
        let mut at = offset;
        let end = limit.map(|l| offset.saturating_add(l));
        loop {
            let left = end
                .map_or(FRAME_BYTES, |e| usize::try_from(e.saturating_sub(at)).unwrap_or(FRAME_BYTES).min(FRAME_BYTES));
            let mut bytes = vec![0; left];
            match file.read_at(&mut bytes, at) {
                Ok(0) => return,
                Ok(n) => {
                    bytes.truncate(n);
                    at += n as u64;
                    if sink.blocking_send(Item::Data { file: path.clone(), end: at, bytes }).is_err() {
                        return;
                    }
                }
                Err(e) => {
                    return drop(sink.blocking_send(Item::Trouble(format!("read {path}: {e}"))));
                }
            }
        }
    });
    body
}

/// `start` or `end`; anything else is refused.
pub(super) fn origin_is_end(query: &Query) -> Result<bool, RequestError> {
    match query.get("origin") {
        "" | "start" => Ok(false),
        "end" => Ok(true),
        _ => Err(RequestError::Invalid("origin must be start or end".into())),
    }
}

pub(super) fn offset(query: &Query) -> Result<u64, RequestError> {
    let offset = query.number("offset")?.unwrap_or(0);
    u64::try_from(offset).map_err(|_| RequestError::Invalid("offset must not be negative".into()))
}

pub(super) async fn stream(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
) -> Result<Response, RequestError> {
    let (root, path) = (root(&handle, &alloc)?, path(&query, true)?);
    // Followed unless the client says no, as the API documents it.
    let follow = if query.get("follow").is_empty() { true } else { query.flag("follow")? };
    let (from_end, offset) = (origin_is_end(&query)?, offset(&query)?);
    let (sink, body) = frames::channel(false);
    tokio::spawn(follow_file(root, path, offset, from_end, follow, sink));
    Ok(raw(body))
}

async fn follow_file(root: PathBuf, path: String, offset: u64, from_end: bool, follow: bool, sink: Sink) {
    let trouble = |why: String| Item::Trouble(why);
    let opened = blocking({
        let (root, path) = (root.clone(), path.clone());
        move || files::open_file(&root, &path)
    });
    let (file, size) = match opened.await {
        Ok(open) => open,
        Err(e) => return drop(sink.send(trouble(e.to_string())).await),
    };
    let mut at = if from_end { size.saturating_sub(offset) } else { offset };
    let mut idle = tokio::time::Instant::now();
    loop {
        let mut bytes = vec![0; FRAME_BYTES];
        match file.read_at(&mut bytes, at) {
            Ok(0) => {}
            Ok(n) => {
                bytes.truncate(n);
                at += n as u64;
                idle = tokio::time::Instant::now();
                if sink.send(Item::Data { file: path.clone(), end: at, bytes }).await.is_err() {
                    return;
                }
                continue;
            }
            Err(e) => return drop(sink.send(trouble(format!("read {path}: {e}"))).await),
        }
        if !follow {
            return;
        }
        let event = match file.metadata() {
            Ok(m) if std::os::unix::fs::MetadataExt::nlink(&m) == 0 => Some("file deleted"),
            Ok(m) if m.len() < at => Some("file truncated"),
            _ => None,
        };
        if let Some(event) = event {
            let gone = event == "file deleted";
            at = 0;
            if sink.send(Item::Event { file: path.clone(), offset: 0, event }).await.is_err() || gone {
                return;
            }
            continue;
        }
        if idle.elapsed() >= HEARTBEAT {
            idle = tokio::time::Instant::now();
            if sink.send(Item::Heartbeat).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
