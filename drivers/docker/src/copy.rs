//! Brings a container's log into the fifos that the host reads, and remembers how far.
//!
//! The place is stored after what was written to the fifos, so a killed plugin repeats at most what it wrote last and
//! loses nothing: what the engine has logged meanwhile is read from the place on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use driver_sdk::TaskConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use crate::engine::types::Container;
use crate::engine::{Engine, EngineError, Stream, encode};
use crate::logs::{Cursor, LogReader, Streams};
use crate::mounts::task_dir;

const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Where the output goes and where its place is stored.
pub(crate) struct Target {
    pub(crate) stdout: Option<PathBuf>,
    pub(crate) stderr: Option<PathBuf>,
    pub(crate) cursor: PathBuf,
}

impl Target {
    /// Of a task; `None` when nobody wants its output.
    pub(crate) fn of(task: &TaskConfig, container: &str) -> Option<Target> {
        let wanted = |path: &str| (!path.is_empty() && path != "/dev/null").then(|| PathBuf::from(path));
        let (stdout, stderr) = (wanted(&task.stdout_path), wanted(&task.stderr_path));
        let short = &container[..container.len().min(12)];
        let cursor = task_dir(task).join("private").join(format!("docker-log-{short}"));
        (stdout.is_some() || stderr.is_some()).then_some(Target { stdout, stderr, cursor })
    }
}

/// One fifo. Opened for both directions: that never waits for a reader, and what a reader has not taken yet survives
/// the reader.
fn open(path: &Path) -> Option<pipe::Sender> {
    match pipe::OpenOptions::new().read_write(true).open_sender(path) {
        Ok(fifo) => Some(fifo),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot open the fifo of the task's log");
            None
        }
    }
}

fn load(path: &Path) -> Cursor {
    let stored = std::fs::read(path).ok();
    stored.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn store(path: &Path, cursor: &Cursor) {
    // Replaced in one step: a half-written place would begin again from the start.
    let fresh = path.with_extension("new");
    let written =
        serde_json::to_vec(cursor).map_err(std::io::Error::other).and_then(|bytes| std::fs::write(&fresh, bytes));
    if let Err(error) = written.and_then(|()| std::fs::rename(&fresh, path)) {
        tracing::warn!(path = %path.display(), %error, "cannot store how far the log was read; after a restart parts \
            of it are repeated");
    }
}

/// Copies until the container has ended and all of its log is written, or nobody wants it any more.
pub(crate) async fn copy(engine: Arc<Engine>, container: String, tty: bool, target: Target, stop: CancellationToken) {
    tokio::select! {
        () = copy_all(&engine, &container, tty, &target) => {}
        () = stop.cancelled() => {}
    }
}

async fn copy_all(engine: &Engine, container: &str, tty: bool, target: &Target) {
    let mut stdout = target.stdout.as_deref().and_then(open);
    let mut stderr = target.stderr.as_deref().and_then(open);
    if let Some(dir) = target.cursor.parent() {
        // Hosts other than ours may not have made it.
        let _ = std::fs::create_dir_all(dir);
    }
    let mut cursor = load(&target.cursor);
    let streams = Streams { stdout: stdout.is_some(), stderr: stderr.is_some() && !tty };
    if !streams.stdout && !streams.stderr {
        return;
    }
    loop {
        let outcome = async {
            let mut log = LogReader::open(engine, container, tty, streams, cursor.clone(), true).await?;
            while let Some(mut entry) = log.next(engine).await? {
                // All that has arrived goes at once; the place is stored before the next wait.
                loop {
                    let fifo = if entry.stream == Stream::Stdout { &mut stdout } else { &mut stderr };
                    if let Some(fifo) = fifo
                        && let Err(error) = fifo.write_all(&entry.data).await
                    {
                        tracing::warn!(container, %error, "cannot write the task's log");
                    }
                    match log.arrived(engine)? {
                        Some(next) => entry = next,
                        None => break,
                    }
                }
                cursor = log.cursor().clone();
                store(&target.cursor, &cursor);
            }
            Ok::<(), EngineError>(())
        };
        match outcome.await {
            Ok(()) => match engine
                .get::<Container>("look at the container", &format!("/containers/{}/json", encode(container)))
                .await
            {
                Ok(seen) if seen.state.running => {}
                Err(e) if e.is_away() => {}
                _ => return,
            },
            Err(e) if e.is_absent() => return,
            // Some logging drivers keep nothing that could be read; asking again changes nothing.
            Err(e) if !e.is_away() => return tracing::warn!(container, error = %e, "the task's log cannot be read"),
            Err(e) => tracing::debug!(container, error = %e, "the log broke off, will go on from there"),
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}
