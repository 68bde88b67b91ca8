//! The data of an ended allocation as a tar archive: `alloc/data` and each task's `local`, for the allocation that replaces it on another node.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use axum::{
    body::Body,
    extract::{Path as UrlPath, State},
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::find;
use crate::{client::ClientHandle, dirs::AllocDirs, error::RequestError};

/// How long an allocation may take to be over.
const PUT_AWAY: Duration = Duration::from_secs(30);
/// Bytes that are sent at once.
const PIECE: usize = 64 * 1024;

pub(super) async fn snapshot(State(handle): State<ClientHandle>, UrlPath(alloc): UrlPath<String>) -> Result<Response, RequestError> {
    let (id, at) = find(&handle, &alloc)?;
    let mut view = at.view.clone();
    // Its end is told to the servers a moment before everything of it is put away.
    let over = tokio::time::timeout(PUT_AWAY, view.wait_for(|view| view.over)).await;
    let tasks = match over {
        Ok(Ok(view)) => view.claims.keys().map(ToString::to_string).collect::<Vec<_>>(),
        _ => return Err(RequestError::Failed("the allocation still runs: its data is given away when it has ended".into())),
    };
    let dirs = AllocDirs::new(&handle.config().alloc_dir, id);
    let (sender, pieces) = mpsc::channel(8);
    tokio::task::spawn_blocking(move || {
        let mut to = io::BufWriter::with_capacity(PIECE, Sender(sender.clone()));
        if let Err(error) = write_tar(&dirs, &tasks, &mut to).and_then(|()| io::Write::flush(&mut to)) {
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

/// The parts of an allocation that go on, by their names in archives.
fn parts(tasks: &[String]) -> Vec<PathBuf> {
    let locals = tasks.iter().map(|task| Path::new(task).join("local"));
    std::iter::once(PathBuf::from("alloc/data")).chain(locals).collect()
}

/// Directories, files and links, with owners and modes. Sockets, pipes and devices stay.
pub(crate) fn write_tar(dirs: &AllocDirs, tasks: &[String], to: &mut impl io::Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(to);
    for part in parts(tasks) {
        add(&mut archive, &dirs.root.join(&part), &part)?;
    }
    archive.finish()
}

fn add(archive: &mut tar::Builder<impl io::Write>, path: &Path, name: &Path) -> io::Result<()> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", name.display()));
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(named)?,
    };
    let mut header = tar::Header::new_gnu();
    header.set_metadata(&meta);
    if meta.is_symlink() {
        let target = fs::read_link(path).map_err(named)?;
        header.set_size(0);
        return archive.append_link(&mut header, name, target).map_err(named);
    }
    if meta.is_file() {
        // What has become a link meanwhile is not followed.
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(named)?;
        header.set_size(meta.size());
        // As long as it was: an archive whose parts do not fit together is of no use.
        return archive.append_data(&mut header, name, Exactly { file, left: meta.size() }).map_err(named);
    }
    if meta.is_dir() {
        header.set_size(0);
        archive.append_data(&mut header, name, io::empty()).map_err(named)?;
        let mut entries: Vec<_> = fs::read_dir(path).map_err(named)?.collect::<io::Result<_>>().map_err(named)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            add(archive, &entry.path(), &name.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Not a byte more and not a byte less.
struct Exactly {
    file: fs::File,
    left: u64,
}

impl io::Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.file.read(&mut buffer[..most])?;
        if n == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has become shorter while it was read"));
        }
        self.left -= n as u64;
        Ok(n)
    }
}
