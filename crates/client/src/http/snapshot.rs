//! The data of an ended allocation as a tar archive: `alloc/data` and each task's `local`, for the allocation that
//! replaces it on another node.

use std::{io, time::Duration};

use axum::{
    body::Body,
    extract::{Path as UrlPath, State},
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use hooks::archive;
use host::dirs::AllocDirs;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::answer::find;
use crate::{error::RequestError, handle::ClientHandle};

/// How long an allocation may take to be over.
const PUT_AWAY: Duration = Duration::from_secs(30);
/// Bytes that are sent at once.
const PIECE: usize = 64 * 1024;

pub(super) async fn snapshot(
    State(handle): State<ClientHandle>,
    UrlPath(alloc): UrlPath<String>,
) -> Result<Response, RequestError> {
    let (id, at) = find(&handle, &alloc)?;
    let mut view = at.view.clone();
    // Its end is told to the servers a moment before everything of it is put away.
    let over = tokio::time::timeout(PUT_AWAY, view.wait_for(|view| view.over)).await;
    let tasks = match over {
        Ok(Ok(view)) => view.claims.keys().map(ToString::to_string).collect::<Vec<_>>(),
        _ => {
            return Err(RequestError::Failed(
                "the allocation still runs: its data is given away when it has ended".into(),
            ));
        }
    };
    let dirs = AllocDirs::new(&handle.config().alloc_dir, id);
    if !dirs.root.exists() {
        return Err(RequestError::NotFound(format!("the data of allocation {} is gone from its node", id.short())));
    }
    if hooks::migrate::unfinished(&dirs) {
        let id = id.short();
        return Err(RequestError::NotFound(format!("allocation {id} never received the data of the one before it")));
    }
    let (sender, pieces) = mpsc::channel(8);
    blocking::spawn(move || {
        let mut to = io::BufWriter::with_capacity(PIECE, Sender(sender.clone()));
        if let Err(error) = archive::pack(&dirs, &tasks, &mut to).and_then(|()| io::Write::flush(&mut to)) {
            // The answer is broken off: what was received is not taken for complete.
            tracing::warn!(alloc = %id, %error, "the data of an allocation could not be given away");
            let _ = sender.blocking_send(Err(error));
        }
    });
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], Body::from_stream(ReceiverStream::new(pieces))).into_response())
}

/// Writes into the body; a client that has gone is an error.
struct Sender(mpsc::Sender<io::Result<Bytes>>);

impl io::Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
