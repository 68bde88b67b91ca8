//! The mark of a running server: a small file in memory (tmpfs), where neither a backup nor a start of the machine
//! carries it. [`control::continuity`] says what it proves; this file reads and writes it.
//!
//! It is written after a commit is durable and before anybody hears of the commit. So a state that lacks what the mark
//! has is from the past. A mark that cannot be written any more is removed: an old one would prove too much.

use std::{
    fs::File,
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use control::continuity::{Clocks, Doubt, Found, RunMark, Unbroken};
use model::{ClusterId, StoreIndex};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use state::{ClusterMeta, Mark};

use crate::{clock::time_of_day, loops, runner::Runner};

/// How often the mark says that the server is alive.
const BEAT: Duration = Duration::from_secs(5);

/// Marks of servers that were silent for so long prove nothing: they are removed.
const OLD: Duration = Duration::from_mins(10);

/// `f_type` of a tmpfs, `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;

/// Where marks are kept, and for which state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The directory.
    pub(crate) dir: &'a Path,
    /// The directory of the state.
    pub(crate) data_dir: &'a Path,
    /// The cluster.
    pub(crate) cluster: ClusterId,
}

/// The mark of this server.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// None = none is kept.
    kept: Mutex<Option<Kept>>,
    unbroken: Duration,
}

#[derive(Debug)]
struct Kept {
    file: File,
    dir: File,
    name: String,
    mark: RunMark,
    /// When this server has begun, since the machine's start.
    began: Duration,
}

/// The text of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    cluster: ClusterId,
    generation: model::GenerationId,
    index: StoreIndex,
    since: Option<Duration>,
    boot: Duration,
    day: i64,
}

impl Keeper {
    /// Looks for the mark of a former server and keeps one from now on. What is found stays as it is until
    /// [`Self::durable`].
    ///
    /// `meta`, `latest`: of the state at the start. `founded`: this server has founded the cluster. `within`: see
    /// [`control::continuity::unbroken`].
    pub(crate) fn begin(
        place: Place<'_>,
        (meta, latest): (&ClusterMeta, StoreIndex),
        founded: bool,
        within: Duration,
    ) -> (Self, Result<Unbroken, Doubt>) {
        let now = clocks();
        let (opened, found) = match open(place) {
            Ok((dir, name, file)) => {
                let found = read(&file);
                (Some((dir, name, file)), found)
            }
            Err(why) => (None, Found::NoPlace(why)),
        };
        let verdict = if founded {
            Ok(Unbroken::SinceFounded)
        } else {
            control::continuity::unbroken(found, meta, latest, now, within)
        };
        let mark = RunMark::begin(place.cluster, &verdict, now);
        let kept = opened.map(|(dir, name, file)| Kept { file, dir, name, mark, began: now.boot });
        let unbroken = verdict.as_ref().map_or(Duration::ZERO, |unbroken| unbroken.time());
        (Self { kept: Mutex::new(kept), unbroken }, verdict)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long the state has gone on unbroken at the start of this server.
    pub(crate) fn unbroken(&self) -> Duration {
        self.unbroken
    }

    /// This state is durable, and nobody has heard of it.
    pub(crate) fn durable(&self, meta: &ClusterMeta, index: StoreIndex) {
        self.change(|kept| kept.mark = kept.mark.durable(meta.generation, index, clocks()));
    }

    /// The server is alive.
    fn beat(&self) {
        self.change(|kept| kept.mark = kept.mark.beat(clocks()));
    }

    /// The state is from the past: it goes on since the start of this server at most.
    pub(crate) fn doubt(&self) {
        self.change(|kept| kept.mark.since = kept.mark.since.max(Some(kept.began)));
    }

    fn change(&self, change: impl FnOnce(&mut Kept)) {
        let mut own = self.lock();
        let Some(kept) = own.as_mut() else { return };
        change(kept);
        // Before the first commit there is nothing to say, and what the server before has said holds.
        if kept.mark.mark.generation.is_nil() {
            return;
        }
        if let Err(error) = kept.file.write_all_at(&line(&kept.mark), 0) {
            let removed = rustix::fs::unlinkat(&kept.dir, &*kept.name, AtFlags::empty());
            tracing::warn!(error = %error, removed = removed.is_ok(), "the mark of the running server could not be \
                written, and none is kept; after the next start new remote tasks wait until their providers show all");
            *own = None;
        }
    }

    /// The loop: says that the server is alive.
    pub(crate) async fn run(self: Arc<Self>, runner: Arc<Runner>) {
        let turns = runner.turns(&loops::RUN_MARK);
        while self.lock().is_some() {
            turns.waits("its next beat");
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                () = runner.stopping().cancelled() => return self.beat(),
            }
            turns.works("the mark");
            self.beat();
        }
        turns.waits("nothing: no mark is kept");
        runner.stopping().cancelled().await;
    }
}

fn clocks() -> Clocks {
    Clocks { boot: ::clock::boot_now(), day: time_of_day() }
}

fn failed(what: &Path) -> impl Fn(Errno) -> String + '_ {
    move |error| format!("{}: {}", what.display(), io::Error::from(error))
}

/// The directory, and the file of the mark in it, with its name.
fn open(place: Place<'_>) -> Result<(File, String, File), String> {
    let dir = place.dir;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(CWD, dir, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            // Nothing is left on a disk.
            let above = dir.parent().unwrap_or(dir);
            in_memory(&rustix::fs::openat(CWD, above, flags, Mode::empty()).map_err(failed(above))?, above)?;
            match rustix::fs::mkdirat(CWD, dir, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(dir)(error)),
            }
            rustix::fs::openat(CWD, dir, flags, Mode::empty())
        }
        opened => opened,
    };
    let opened = File::from(opened.map_err(failed(dir))?);
    in_memory(&opened, dir)?;
    let facts = opened.metadata().map_err(|error| format!("{}: {error}", dir.display()))?;
    if facts.uid() != rustix::process::geteuid().as_raw() || facts.mode() & 0o022 != 0 {
        return Err(format!("others may write in {}", dir.display()));
    }
    let name = name(place);
    remove_old(&opened, dir, &name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = dir.join(&name);
    let file = rustix::fs::openat(&opened, &*name, flags, Mode::RUSR | Mode::WUSR).map_err(failed(&path))?;
    Ok((opened, name, File::from(file)))
}

fn in_memory(dir: &impl std::os::fd::AsFd, path: &Path) -> Result<(), String> {
    let found = rustix::fs::fstatfs(dir).map_err(failed(path))?;
    if i128::from(found.f_type) == i128::from(TMPFS) {
        return Ok(());
    }
    Err(format!("{} is no tmpfs: what lies there may come from a backup", path.display()))
}

/// One file for each state: a copy of a state elsewhere has another one.
fn name(place: Place<'_>) -> String {
    let of: PathBuf = place.data_dir.canonicalize().unwrap_or_else(|_| place.data_dir.to_owned());
    format!("{}-{:08x}.mark", place.cluster, crc32fast::hash(of.as_os_str().as_bytes()))
}

/// Removes the marks of other servers that prove nothing any more.
fn remove_old(opened: &File, dir: &Path, own: &str) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let silent = entry.metadata().and_then(|facts| facts.modified()).ok().and_then(|at| at.elapsed().ok());
        if name != own && name.as_encoded_bytes().ends_with(b".mark") && silent.is_some_and(|time| time > OLD) {
            // It is in nobody's way.
            let _ = rustix::fs::unlinkat(opened, name, AtFlags::empty());
        }
    }
}

fn read(file: &File) -> Found {
    let mut text = [0; LEN];
    match file.metadata() {
        Ok(facts) if facts.len() == 0 => return Found::Nothing,
        Ok(_) => {}
        Err(_) => return Found::Unreadable,
    }
    let read = file.read_exact_at(&mut text, 0).ok();
    read.and_then(|()| parse(&text)).map_or(Found::Unreadable, Found::Mark)
}

/// Bytes of the file: JSON filled up with spaces, and the checksum.
const LEN: usize = 512;

/// Bytes of the checksum.
const SUM: usize = 9;

fn line(mark: &RunMark) -> Vec<u8> {
    let RunMark { cluster, mark: Mark { generation, index }, since, at: Clocks { boot, day } } = *mark;
    let written = Written { cluster, generation, index, since, boot, day };
    let mut text = serde_json::to_vec(&written).unwrap_or_default();
    text.resize(LEN - SUM, b' ');
    text.extend(sum(&text).into_bytes());
    text
}

fn sum(text: &[u8]) -> String {
    format!("{:08x}\n", crc32fast::hash(text))
}

fn parse(text: &[u8; LEN]) -> Option<RunMark> {
    let (body, said) = text.split_at(LEN - SUM);
    if *said != *sum(body).as_bytes() {
        return None;
    }
    let Written { cluster, generation, index, since, boot, day } = serde_json::from_slice(body).ok()?;
    Some(RunMark { cluster, mark: Mark { generation, index }, since, at: Clocks { boot, day } })
}
