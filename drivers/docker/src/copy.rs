//! Brings a container's log into the fifos that the host reads, and remembers how far.
//!
//! The place is stored after what was written to the fifos, so a killed plugin repeats at most what it wrote last and
//! loses nothing: what the engine has logged meanwhile is read from the place on.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use driver_sdk::TaskConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use crate::beneath;
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
    /// The allocation's directory, in which the task may plant links.
    pub(crate) alloc: PathBuf,
}

impl Target {
    /// Of a task; `None` when nobody wants its output.
    pub(crate) fn of(task: &TaskConfig, container: &str) -> Option<Target> {
        let wanted = |path: &str| (!path.is_empty() && path != "/dev/null").then(|| PathBuf::from(path));
        let (stdout, stderr) = (wanted(&task.stdout_path), wanted(&task.stderr_path));
        let short = &container[..container.len().min(12)];
        let cursor = task_dir(task).join("private").join(format!("docker-log-{short}"));
        (stdout.is_some() || stderr.is_some()).then_some(Target {
            stdout,
            stderr,
            cursor,
            alloc: PathBuf::from(&task.alloc_dir),
        })
    }
}

/// One fifo. Opened for both directions: that never waits for a reader, and what a reader has not taken yet survives
/// the reader.
fn open(alloc: &Path, path: &Path) -> Option<pipe::Sender> {
    match sender(alloc, path) {
        Ok(fifo) => Some(fifo),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot open the fifo of the task's log");
            None
        }
    }
}

/// The task can write where its fifos lie, and could put a link to the fifo of another task in their place.
fn sender(alloc: &Path, path: &Path) -> io::Result<pipe::Sender> {
    let found = match path.strip_prefix(alloc) {
        Ok(below) => beneath::find(alloc, below, false, |_| Ok(()))?,
        Err(_) => beneath::at(path)?,
    };
    if !found.meta().file_type().is_fifo() {
        return Err(io::Error::other("it is no fifo"));
    }
    pipe::Sender::from_file(found.read_write()?)
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
    let open = |path: &PathBuf| open(&target.alloc, path);
    let (mut stdout, mut stderr) = (target.stdout.as_ref().and_then(open), target.stderr.as_ref().and_then(open));
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{OpenOptionsExt, symlink};

    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

    use super::*;

    fn fifo(path: &Path) {
        mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a fifo");
    }

    #[tokio::test]
    async fn a_link_leads_to_no_other_fifo() {
        let temp = tempfile::tempdir().expect("a directory");
        let (alloc, other) = (temp.path().join("a1"), temp.path().join("other"));
        let logs = alloc.join("alloc/logs");
        for dir in [&logs, &other] {
            std::fs::create_dir_all(dir).expect("a directory");
        }
        fifo(&other.join("out"));
        fifo(&other.join("fifo"));
        fifo(&logs.join("fifo"));
        symlink(other.join("fifo"), logs.join("out")).expect("a link");
        symlink(&other, alloc.join("alloc/moved")).expect("a link");
        std::fs::write(logs.join("file"), "").expect("a file");
        let mut reading = std::fs::OpenOptions::new();
        reading.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let mut victim = reading.open(other.join("fifo")).expect("open");
        for path in [logs.join("out"), alloc.join("alloc/moved/fifo"), logs.join("file"), logs.join("missing")] {
            if let Some(mut fifo) = open(&alloc, &path) {
                fifo.write_all(b"forged").await.expect("written");
                let mut got = [0; 16];
                panic!("{}: opened, {:?} bytes came out elsewhere", path.display(), victim.read(&mut got));
            }
        }
        // Not of our own host: the last name counts.
        symlink(other.join("fifo"), temp.path().join("link")).expect("a link");
        assert!(open(&alloc, &temp.path().join("link")).is_none());
        assert!(open(&alloc, &other.join("out")).is_some());
        let mut own = open(&alloc, &logs.join("fifo")).expect("the task's own");
        own.write_all(b"line").await.expect("written");
        assert_eq!(victim.read(&mut [0; 16]).ok(), Some(0), "nobody wrote there");
    }
}
