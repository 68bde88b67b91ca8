//! Migration of an allocation's data from another node, when the group's `ephemeral_disk` says `migrate`.
//!
//! ```text
//! <alloc>/.migration/data-…   an incomplete download; without the mark, the next attempt removes it
//! <alloc>/.migration/done     it is in its place, or there is no data: never asked for again
//! ```
//!
//! The first task that starts waits until the previous allocation has ended. It receives the data as one archive
//! through a server, and puts the data in place when it is complete. If that fails, an event gives the reason, and the
//! tasks begin with empty directories.

use std::{
    fs,
    io::{self, Read},
    path::Path,
    time::{Duration, Instant},
};

use api::{ClientError, RequestOptions};
use bytes::{Buf, Bytes};
use host::{clock::now_ns, dirs::AllocDirs};
use lifecycle::alloc::{events, machine::StartFailure};
use model::{Allocation, ClientStatus, TaskGroup};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    archive::unpack,
    discovery::DiscoveryError,
    place::TaskPlace,
    sticky::{self, FormerData},
};

/// How long the node repeats a request to a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// How long one request for the previous allocation waits for a change.
const WAIT: Duration = Duration::from_secs(60);
/// The node gives up an archive that sends nothing for this long.
const STALLED: Duration = Duration::from_secs(60);
const PLACE: &str = ".migration";

/// Whether the group wants its data migrated.
fn wanted(group: &TaskGroup) -> bool {
    group.ephemeral_disk.as_ref().is_some_and(|disk| disk.migrate == Some(true))
}

impl FormerData {
    /// Brings the data of the previous allocation here, if it was on another node. Once per allocation.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "the tasks of an allocation wait for the one that brings its data"
    )]
    pub(super) async fn bring(
        &self,
        place: &TaskPlace,
        group: &TaskGroup,
        interrupted: &CancellationToken,
    ) -> Result<(), StartFailure> {
        let previous = place.alloc.previous_allocation;
        let here = self.env.dirs(previous).root.exists() || self.present.end_of(previous).is_some();
        if !wanted(group) || previous.is_nil() || here {
            return Ok(());
        }
        let brought = interrupted.run_until_cancelled(async {
            let mut moved = place.moved.lock().await;
            if *moved {
                return Ok(());
            }
            self.once(place, group).await.map(|()| *moved = true)
        });
        brought.await.ok_or(StartFailure::Interrupted)?.map_err(|e| StartFailure::Setup {
            why: format!("take over the data of the previous allocation {previous}: {e}"),
            recoverable: true,
        })
    }

    /// Errors concern this node's own disk; the start is repeated.
    async fn once(&self, place: &TaskPlace, group: &TaskGroup) -> io::Result<()> {
        let to = place.dirs.clone();
        let migration = to.root.join(PLACE);
        if migration.join("done").exists() {
            return Ok(());
        }
        let previous = place.alloc.previous_allocation;
        // A unique name: an interrupted attempt may still be writing its last piece.
        let staging = AllocDirs { root: migration.join(format!("data-{:x}", self.seeds.next())) };
        let made = (to.clone(), migration.clone(), staging.root.clone());
        blocking(move || {
            let (to, migration, staging) = made;
            to.create()?;
            match fs::remove_dir_all(&migration) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => fs::create_dir_all(&staging),
            }
        })
        .await?;
        let tasks: Vec<String> = group.tasks.iter().map(|t| t.name.to_string()).collect();
        let room = group.ephemeral_disk.as_ref().and_then(|d| d.size_mb).unwrap_or(300);
        let room = u64::try_from(room).unwrap_or(0) << 20;
        let received = async {
            self.wait_for_end(place).await?;
            self.receive(place, &staging.root, &tasks, room).await
        };
        match received.await {
            Ok(bytes) => {
                tracing::info!(alloc = %place.alloc.id, %previous, bytes, "data of the previous allocation received");
                tell(
                    place,
                    &format!(
                        "The data of the previous allocation {} has been copied from its node ({bytes} bytes)",
                        previous.short()
                    ),
                );
                let (from, to) = (staging.clone(), to.clone());
                blocking(move || sticky::move_data(&from, &to, &tasks)).await?;
            }
            Err(why) => {
                tracing::warn!(alloc = %place.alloc.id, %previous, why, "the data of the previous allocation \
                    stays behind");
                tell(
                    place,
                    &format!(
                        "The data of the previous allocation {} could not be had, the disk is empty: {why}",
                        previous.short()
                    ),
                );
            }
        }
        blocking(move || {
            fs::remove_dir_all(&staging.root)?;
            fs::File::create(migration.join("done"))?.sync_all()?;
            fs::File::open(&migration)?.sync_all()
        })
        .await
    }

    /// Waits until the previous allocation has ended on its node. An error says why it cannot wait.
    async fn wait_for_end(&self, place: &TaskPlace) -> Result<(), String> {
        let previous = place.alloc.previous_allocation;
        let path = format!("/v1/allocation/{previous}");
        let (mut index, mut told, mut silent) = (0, false, Instant::now());
        loop {
            let options = if index == 0 { RequestOptions::default() } else { RequestOptions::after(index, WAIT) };
            let options = options.in_namespace(place.job.namespace.to_string());
            let answer =
                async { Ok::<_, DiscoveryError>(self.discovery.client()?.query::<Allocation>(&path, &options).await?) };
            match answer.await {
                Ok(answer) => {
                    silent = Instant::now();
                    match answer.value.client_status {
                        ClientStatus::Complete | ClientStatus::Failed => return Ok(()),
                        ClientStatus::Lost => return Err("its node is lost".into()),
                        ClientStatus::Unknown => return Err("its node is cut off".into()),
                        _ => {}
                    }
                    if !told {
                        let what = format!(
                            "Waiting for the previous allocation {} to end: its data is copied from its node",
                            previous.short()
                        );
                        tell(place, &what);
                        told = true;
                    }
                    index = answer.meta.index;
                }
                Err(DiscoveryError::Client(ClientError::Status { message, .. })) => return Err(message),
                Err(e @ DiscoveryError::NoAddress) => return Err(e.to_string()),
                Err(e) if silent.elapsed() > PATIENCE => return Err(e.to_string()),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Receives the archive and unpacks it as it arrives. Returns its size in bytes.
    async fn receive(&self, place: &TaskPlace, into: &Path, tasks: &[String], room: u64) -> Result<u64, String> {
        let path = format!("/v1/client/allocation/{}/snapshot", place.alloc.previous_allocation);
        let options = RequestOptions::default().in_namespace(place.job.namespace.to_string());
        let client = self.discovery.client().map_err(|e| e.to_string())?;
        let opened = tokio::time::timeout(STALLED, client.stream(&path, &options)).await;
        let mut stream =
            opened.map_err(|_| format!("no answer came for {} s", STALLED.as_secs()))?.map_err(|e| e.to_string())?;
        let (pieces, received) = mpsc::channel::<Bytes>(8);
        let (into, tasks) = (into.to_owned(), tasks.to_vec());
        let unpacked = blocking::spawn(move || unpack(Pieces { received, now: Bytes::new() }, &into, &tasks, room));
        let fed = async {
            let mut bytes = 0;
            loop {
                let next = tokio::time::timeout(STALLED, stream.next()).await;
                let piece = next
                    .map_err(|_| format!("nothing came for {} s", STALLED.as_secs()))?
                    .map_err(|e| e.to_string())?;
                let Some(piece) = piece else { return Ok(bytes) };
                bytes += piece.len() as u64;
                // The unpacking side has given up, and reports why.
                if pieces.send(piece).await.is_err() {
                    return Ok(bytes);
                }
            }
        };
        let fed: Result<u64, String> = fed.await;
        drop(pieces);
        let unpacked = unpacked.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string());
        // A truncated archive may look complete.
        fed.and_then(|bytes| unpacked.map(|()| bytes))
    }
}

fn tell(place: &TaskPlace, text: &str) {
    place.tell(events::setup(now_ns(), text));
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    blocking::spawn(work).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// The arriving pieces as a reader.
struct Pieces {
    received: mpsc::Receiver<Bytes>,
    now: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.now.is_empty() {
            self.now = self.received.blocking_recv().unwrap_or_default();
        }
        let n = buffer.len().min(self.now.len());
        self.now.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}
