//! The data of an allocation comes along from another node, when the group's `ephemeral_disk` says `migrate`.
//!
//! ```text
//! <alloc>/.migration/data-…   what is being received; thrown away by whoever finds it without the mark
//! <alloc>/.migration/done     it is in its place, or there is nothing to have: never asked for again
//! ```
//!
//! The first task that starts waits until the previous allocation has ended, receives its data as one archive by way of a server, and puts it in
//! place when it is complete. When that cannot be had, people read why, and the tasks begin with empty directories.

use std::{
    fs,
    io::{self, Read},
    path::{Component, Path},
    time::{Duration, Instant},
};

use api::{ClientError, RequestOptions};
use bytes::{Buf, Bytes};
use model::{Allocation, ClientStatus, TaskGroup};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    effects::Subject,
    machine::{Event, StartFailure},
    run::AllocCommand,
    sticky,
};
use crate::{context::now_ns, dirs::AllocDirs, discovery::DiscoveryError, events};

/// How long a server that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// How long one question about the previous allocation waits for a change.
const WAIT: Duration = Duration::from_secs(60);
/// An archive of which nothing comes for so long is given up.
const STALLED: Duration = Duration::from_secs(60);
const PLACE: &str = ".migration";

/// Whether an allocation has taken over what it is to have. Shared by its tasks, so that one of them does it.
pub(crate) type Moved = std::sync::Arc<tokio::sync::Mutex<bool>>;

/// Does the group have its data brought along?
fn wanted(group: &TaskGroup) -> bool {
    group.ephemeral_disk.as_ref().is_some_and(|disk| disk.migrate == Some(true))
}

/// Brings the data of the previous allocation here, when that was on another node. Once in the life of an allocation.
pub(super) async fn bring(subject: &Subject, group: &TaskGroup, interrupted: &CancellationToken) -> Result<(), StartFailure> {
    let previous = subject.alloc.previous_allocation;
    let here = AllocDirs::new(&subject.ctx.config.alloc_dir, previous).root.exists() || subject.ctx.alloc(previous).is_some();
    if !wanted(group) || previous.is_nil() || here {
        return Ok(());
    }
    let brought = interrupted.run_until_cancelled(async {
        let mut moved = subject.moved.lock().await;
        if *moved {
            return Ok(());
        }
        once(subject, group).await.map(|()| *moved = true)
    });
    brought.await.ok_or(StartFailure::Interrupted)?.map_err(|e| StartFailure::Setup {
        why: format!("take over the data of the previous allocation {previous}: {e}"),
        recoverable: true,
    })
}

fn tell(subject: &Subject, text: &str) {
    let event = Box::new(events::setup(now_ns(), text));
    let _ = subject.notes.send(AllocCommand::Event(Event::Noted { task: subject.task.clone(), event }));
}

/// Errors are those of this node's own disk: the start is tried again.
async fn once(subject: &Subject, group: &TaskGroup) -> io::Result<()> {
    let to = subject.dirs();
    let place = to.root.join(PLACE);
    if place.join("done").exists() {
        return Ok(());
    }
    let previous = subject.alloc.previous_allocation;
    // A name of its own: an attempt that was interrupted may be writing its last piece.
    let staging = AllocDirs { root: place.join(format!("data-{:x}", subject.ctx.seed())) };
    let made = (to.clone(), place.clone(), staging.root.clone());
    blocking(move || {
        let (to, place, staging) = made;
        to.create()?;
        match fs::remove_dir_all(&place) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => fs::create_dir_all(&staging),
        }
    })
    .await?;
    let tasks: Vec<String> = group.tasks.iter().map(|t| t.name.to_string()).collect();
    let room = group.ephemeral_disk.as_ref().and_then(|d| d.size_mb).unwrap_or(300);
    let room = u64::try_from(room).unwrap_or(0) << 20;
    let received = async {
        wait_for_end(subject).await?;
        receive(subject, &staging.root, &tasks, room).await
    };
    match received.await {
        Ok(bytes) => {
            tracing::info!(alloc = %subject.alloc.id, %previous, bytes, "data of the previous allocation received");
            tell(
                subject,
                &format!("The data of the previous allocation {} has been copied from its node ({bytes} bytes)", previous.short()),
            );
            let (from, to) = (staging.clone(), to.clone());
            blocking(move || sticky::move_data(&from, &to, &tasks)).await?;
        }
        Err(why) => {
            tracing::warn!(alloc = %subject.alloc.id, %previous, why, "the data of the previous allocation stays behind");
            tell(subject, &format!("The data of the previous allocation {} could not be had, the disk is empty: {why}", previous.short()));
        }
    }
    blocking(move || {
        fs::remove_dir_all(&staging.root)?;
        fs::File::create(place.join("done"))?.sync_all()?;
        fs::File::open(&place)?.sync_all()
    })
    .await
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Waits until the previous allocation has ended on its node. Says why that cannot be waited for.
async fn wait_for_end(subject: &Subject) -> Result<(), String> {
    let previous = subject.alloc.previous_allocation;
    let path = format!("/v1/allocation/{previous}");
    let (mut index, mut told, mut silent) = (0, false, Instant::now());
    loop {
        let options = if index == 0 { RequestOptions::default() } else { RequestOptions::after(index, WAIT) };
        let options = options.in_namespace(subject.job.namespace.to_string());
        let answer = async { Ok::<_, DiscoveryError>(subject.ctx.discovery.client()?.query::<Allocation>(&path, &options).await?) };
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
                    let what = format!("Waiting for the previous allocation {} to end: its data is copied from its node", previous.short());
                    tell(subject, &what);
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

/// Receives the archive and unpacks it as it comes. Answers with how many bytes it had.
async fn receive(subject: &Subject, into: &Path, tasks: &[String], room: u64) -> Result<u64, String> {
    let path = format!("/v1/client/allocation/{}/snapshot", subject.alloc.previous_allocation);
    let options = RequestOptions::default().in_namespace(subject.job.namespace.to_string());
    let client = subject.ctx.discovery.client().map_err(|e| e.to_string())?;
    let opened = tokio::time::timeout(STALLED, client.stream(&path, &options)).await;
    let mut stream = opened.map_err(|_| format!("no answer came for {} s", STALLED.as_secs()))?.map_err(|e| e.to_string())?;
    let (pieces, received) = mpsc::channel::<Bytes>(8);
    let (into, tasks) = (into.to_owned(), tasks.to_vec());
    let unpacked = tokio::task::spawn_blocking(move || unpack(Pieces { received, now: Bytes::new() }, &into, &tasks, room));
    let fed = async {
        let mut bytes = 0;
        loop {
            let next = tokio::time::timeout(STALLED, stream.next()).await;
            let piece = next.map_err(|_| format!("nothing came for {} s", STALLED.as_secs()))?.map_err(|e| e.to_string())?;
            let Some(piece) = piece else { return Ok(bytes) };
            bytes += piece.len() as u64;
            // Who unpacks has given up, and says why.
            if pieces.send(piece).await.is_err() {
                return Ok(bytes);
            }
        }
    };
    let fed: Result<u64, String> = fed.await;
    drop(pieces);
    let unpacked = unpacked.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string());
    // An archive that breaks off may look complete.
    fed.and_then(|bytes| unpacked.map(|()| bytes))
}

/// What arrives, as something to read.
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

/// Unpacks what belongs to the tasks: directories, files and links, with their owners where that is possible.
pub(crate) fn unpack(from: impl Read, into: &Path, tasks: &[String], room: u64) -> io::Result<()> {
    let root = rustix::process::geteuid().is_root();
    // One byte more tells that there was more.
    let mut from = from.take(room.saturating_add(ENVELOPE).saturating_add(1));
    let mut archive = tar::Archive::new(&mut from);
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(root);
    archive.set_overwrite(false);
    // Directories that a task has made unreadable get their modes when everything is in them.
    let mut directories = Vec::new();
    let result = (|| {
        for entry in archive.entries()? {
            let mut entry = entry?;
            let name = entry.path()?.into_owned();
            let parts: Option<Vec<&str>> =
                name.components().map(|c| if let Component::Normal(n) = c { n.to_str() } else { None }).collect();
            let known = match parts.as_deref() {
                Some(["alloc", "data", ..]) => true,
                Some([task, "local", ..]) => tasks.iter().any(|t| t == task),
                // A name that is no text is the task's own business, below what is known to be its own.
                _ => name.starts_with("alloc/data") || tasks.iter().any(|task| name.starts_with(Path::new(task).join("local"))),
            };
            let climbs = name.components().any(|c| !matches!(c, Component::Normal(_)));
            if climbs {
                return Err(io::Error::other(format!("the archive has the name {}, which leaves the directory", name.display())));
            }
            if !known {
                // Of a task that the job does not have any more.
                continue;
            }
            match entry.header().entry_type() {
                tar::EntryType::Directory => {
                    let mode = entry.header().mode().unwrap_or(0o755);
                    let owner = (entry.header().uid()?, entry.header().gid()?);
                    if leads_elsewhere(into, &name)? {
                        return Err(io::Error::other(format!("the archive has the directory {} behind a link", name.display())));
                    }
                    fs::create_dir_all(into.join(&name))?;
                    directories.push((into.join(&name), mode, owner));
                }
                tar::EntryType::Regular | tar::EntryType::Symlink => drop(entry.unpack_in(into)?),
                other => return Err(io::Error::other(format!("the archive has {} of the kind {other:?}", name.display()))),
            }
        }
        Ok(())
    })();
    let more = from.limit() == 0;
    if more {
        return Err(io::Error::other(format!("it is larger than the {} MiB of ephemeral_disk.size", room >> 20)));
    }
    result?;
    io::copy(&mut from, &mut io::sink())?;
    for (dir, mode, (uid, gid)) in directories.into_iter().rev() {
        let number = |id: u64| u32::try_from(id).ok().filter(|_| root);
        std::os::unix::fs::chown(&dir, number(uid), number(gid))?;
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(mode & 0o7777))?;
    }
    Ok(())
}

/// Is the name, or something on the way to it, a link? What is made, or given to an owner, through one lies outside.
fn leads_elsewhere(into: &Path, name: &Path) -> io::Result<bool> {
    let mut at = into.to_owned();
    for part in name.components() {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(meta) if meta.is_symlink() => return Ok(true),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}

/// Headers and padding of an archive, which are no data.
const ENVELOPE: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::http::write_tar;

    fn packed(dir: &Path, tasks: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let tasks: Vec<String> = tasks.iter().map(|t| (*t).to_owned()).collect();
        write_tar(&AllocDirs { root: dir.to_owned() }, &tasks, &mut bytes).expect("packed");
        bytes
    }

    #[test]
    fn an_allocation_looks_the_same_on_the_other_side() {
        let (from, to) = (tempfile::tempdir().expect("temp dir"), tempfile::tempdir().expect("temp dir"));
        let at = |name: &str| from.path().join(name);
        for dir in ["alloc/data/deep/er", "alloc/logs", "web/local", "web/secrets", "old/local"] {
            fs::create_dir_all(at(dir)).expect("directory");
        }
        for (file, text) in [("alloc/data/deep/er/f", "data"), ("web/local/run", "#!"), ("web/secrets/key", "k"), ("old/local/o", "o")] {
            fs::write(at(file), text).expect("file");
        }
        let long = "n".repeat(180);
        fs::write(at("web/local").join(&long), "long").expect("file");
        fs::set_permissions(at("web/local/run"), PermissionsExt::from_mode(0o750)).expect("mode");
        fs::set_permissions(at("alloc/data/deep"), PermissionsExt::from_mode(0o500)).expect("mode");
        symlink("../../alloc/data", at("web/local/link")).expect("link");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(at("alloc/data/deep/er/f"), Some(1234), Some(1235)).expect("given away");
        }
        let archive = packed(from.path(), &["web", "old", "missing"]);
        unpack(&archive[..], to.path(), &["web".to_owned()], 1 << 20).expect("unpacked");
        let here = |name: &str| to.path().join(name);
        assert_eq!(fs::read_to_string(here("alloc/data/deep/er/f")).expect("there"), "data");
        assert_eq!(fs::read_to_string(here("web/local").join(&long)).expect("there"), "long");
        assert_eq!(fs::read_link(here("web/local/link")).expect("a link"), Path::new("../../alloc/data"));
        let meta = |name: &str| fs::metadata(here(name)).expect("there");
        assert_eq!((meta("web/local/run").mode() & 0o7777, meta("alloc/data/deep").mode() & 0o7777), (0o750, 0o500));
        assert_eq!(meta("alloc/data/deep/er/f").uid(), fs::metadata(at("alloc/data/deep/er/f")).expect("there").uid());
        assert!(!here("web/secrets").exists() && !here("alloc/logs").exists() && !here("old").exists(), "no more than what goes on");
    }

    #[test]
    fn what_does_not_belong_there_is_refused() {
        let archive = |edit: &dyn Fn(&mut tar::Builder<Vec<u8>>)| {
            let mut builder = tar::Builder::new(Vec::new());
            edit(&mut builder);
            builder.into_inner().expect("archive")
        };
        let header = |kind, name: &str, size| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(size);
            header.set_mode(0o611);
            header.set_uid(0);
            header.set_gid(0);
            header.as_gnu_mut().expect("gnu").name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            header
        };
        let file = |name: &'static str| archive(&move |b| b.append(&header(tar::EntryType::Regular, name, 1), &b"x"[..]).expect("added"));
        let elsewhere = tempfile::tempdir().expect("temp dir");
        let through_link = |kind: tar::EntryType, name: &'static str| {
            archive(&|b| {
                let mut link = header(tar::EntryType::Symlink, "", 0);
                b.append_link(&mut link, "alloc/data/out", elsewhere.path()).expect("added");
                let content: &[u8] = if kind.is_file() { b"x" } else { b"" };
                b.append(&header(kind, name, content.len() as u64), content).expect("added");
            })
        };
        let device = archive(&|b| b.append(&header(tar::EntryType::Fifo, "alloc/data/p", 0), io::empty()).expect("added"));
        let large = archive(&|b| {
            let mut big = header(tar::EntryType::Regular, "", 40 << 20);
            b.append_data(&mut big, "alloc/data/big", io::repeat(7).take(40 << 20)).expect("added");
        });
        let mut cut = file("alloc/data/x");
        cut.truncate(512);
        for (name, bytes) in [
            ("climbs", file("alloc/data/../../../x")),
            ("a file behind a link", through_link(tar::EntryType::Regular, "alloc/data/out/evil")),
            ("a directory at a link", through_link(tar::EntryType::Directory, "alloc/data/out")),
            ("a directory behind a link", through_link(tar::EntryType::Directory, "alloc/data/out/new")),
            ("no file", device),
            ("too large", large),
            ("cut off", cut),
        ] {
            let around = tempfile::tempdir().expect("temp dir");
            let to = around.path().join("to");
            fs::create_dir(&to).expect("made");
            let error = unpack(&bytes[..], &to, &[], 1 << 20).expect_err(name);
            assert!(!around.path().join("x").exists(), "{name}: {error}");
            let untouched = fs::metadata(elsewhere.path()).expect("there").mode() & 0o777 != 0o611;
            assert!(untouched && fs::read_dir(elsewhere.path()).expect("there").next().is_none(), "{name}: {error}");
        }
    }
}
