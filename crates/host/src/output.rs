//! Kept output of ended remote tasks. It lies in the directory of their allocation and goes with it.
//!
//! ```text
//! <alloc_dir>/<alloc id>/.output/<task>/<incarnation>/<task>.{stdout,stderr}.N   mode 0700, against other tasks
//!                                                    /complete                  written last, when complete
//! <alloc_dir>/<alloc id>/alloc/logs/<task>.{stdout,stderr}.N                    links at the usual place
//! ```
//!
//! The node keeps one incarnation per task, the last one that has ended. Positions are those of the instance, the same
//! at every node.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use executor_client::{LogWriter, RotatedLog};
use model::{IncarnationId, task::LogConfig};
use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat, unlinkat};
use serde::{Deserialize, Serialize};

use crate::dirs::AllocDirs;

const MARK: &str = "complete";
const MIB: u64 = 1 << 20;

/// The two streams, as files and requests name them.
pub const KINDS: [&str; 2] = ["stdout", "stderr"];

/// Limits of the kept output of each stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    files: u32,
    file_bytes: u64,
}

impl Limits {
    /// The limits of the task's log settings; they bound a local task's files the same way.
    pub fn of(logs: &LogConfig) -> Self {
        let or = |value: Option<i64>, default: i64| value.filter(|v| *v > 0).unwrap_or(default);
        let files = u32::try_from(or(logs.max_files, 10)).unwrap_or(u32::MAX);
        let file_bytes = u64::try_from(or(logs.max_file_size_mb, 10)).unwrap_or(10).saturating_mul(MIB);
        Self { files, file_bytes }
    }

    /// Bytes kept of each stream.
    pub fn bytes(self) -> u64 {
        self.file_bytes.saturating_mul(u64::from(self.files))
    }
}

/// Reason for missing output, by the kind of stream.
pub type Missing = BTreeMap<String, String>;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Mark {
    missing: Missing,
}

/// Kept output of one incarnation.
#[derive(Debug)]
pub struct Kept {
    /// The incarnation whose output this is.
    pub incarnation: IncarnationId,
    /// Missing output, by stream.
    pub missing: Missing,
    dir: PathBuf,
    task: Arc<str>,
}

impl Kept {
    /// The kept output of a task, if any. Blocking.
    pub fn find(dirs: &AllocDirs, task: &Arc<str>) -> Option<Self> {
        let home = home(dirs, task);
        let mut newest: Option<(SystemTime, Self)> = None;
        for entry in fs::read_dir(home).ok()?.flatten() {
            let Some(incarnation) = entry.file_name().to_str().and_then(|name| name.parse::<IncarnationId>().ok())
            else {
                continue;
            };
            let (dir, mark) = (entry.path(), entry.path().join(MARK));
            // If there are two, the later one counts: the agent was killed between keeping the new one and removing the
            // old one.
            let (Ok(text), Ok(at)) = (fs::read(&mark), fs::metadata(&mark).and_then(|m| m.modified())) else {
                continue;
            };
            if newest.as_ref().is_none_or(|(before, _)| *before < at) {
                let Mark { missing } = serde_json::from_slice(&text).unwrap_or_default();
                newest = Some((at, Self { incarnation, missing, dir, task: task.clone() }));
            }
        }
        newest.map(|(_, kept)| kept)
    }

    /// The rotated log of one of its streams.
    pub fn log(&self, kind: &str) -> RotatedLog {
        RotatedLog::new(&self.dir, format!("{}.{kind}", self.task))
    }
}

/// Output that the node is fetching. Every method blocks.
pub struct Draft {
    dirs: AllocDirs,
    task: Arc<str>,
    dir: PathBuf,
    limits: Limits,
    writers: BTreeMap<&'static str, (LogWriter, u64)>,
}

impl Draft {
    /// Begins to keep the output of an incarnation; `None` when it is kept already. Discards an interrupted attempt.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn begin(
        dirs: &AllocDirs,
        task: &Arc<str>,
        incarnation: IncarnationId,
        limits: Limits,
    ) -> io::Result<Option<Self>> {
        dirs.create()?;
        let dir = home(dirs, task).join(incarnation.to_string());
        let draft = Self { dirs: dirs.clone(), task: task.clone(), dir, limits, writers: BTreeMap::new() };
        if draft.dir.join(MARK).exists() {
            draft.show();
            return Ok(None);
        }
        match fs::remove_dir_all(&draft.dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&draft.dir)?;
        Ok(Some(draft))
    }

    /// The position where the stream goes on; `None` while it is empty.
    pub fn end(&self, kind: &str) -> Option<u64> {
        self.writers.get(kind).map(|(_, end)| *end)
    }

    /// Appends bytes of a stream in order; `offset` is the absolute position of the first byte.
    ///
    /// # Errors
    /// When the file system refuses, or when bytes are missing before `offset`.
    pub fn append(&mut self, kind: &'static str, offset: u64, data: &[u8]) -> io::Result<()> {
        if !self.writers.contains_key(kind) {
            let Limits { files, file_bytes } = self.limits;
            let writer = LogWriter::begin(&self.dir, &format!("{}.{kind}", self.task), offset, files, file_bytes)?;
            self.writers.insert(kind, (writer, offset));
        }
        let Some((writer, end)) = self.writers.get_mut(kind) else { return Ok(()) };
        if offset > *end {
            return Err(io::Error::other(format!(
                "the provider leaves out what is between position {end} and {offset}"
            )));
        }
        // A stream that broke off may repeat bytes.
        let known = usize::try_from(*end - offset).unwrap_or(usize::MAX);
        let mut rest = data.get(known..).unwrap_or_default();
        while !rest.is_empty() {
            let written = writer.write(rest)?;
            *end += written as u64;
            rest = &rest[written..];
        }
        Ok(())
    }

    /// Marks the output as complete, durably, and removes the output of earlier incarnations.
    ///
    /// # Errors
    /// When the file system refuses; then nothing counts as kept.
    pub fn finish(self, missing: Missing) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            fs::File::open(entry?.path())?.sync_all()?;
        }
        let draft = self.dir.join("mark");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&serde_json::to_vec(&Mark { missing }).unwrap_or_default())?;
        file.sync_all()?;
        fs::rename(&draft, self.dir.join(MARK))?;
        let mut above = self.dir.as_path();
        while above.starts_with(&self.dirs.root) {
            fs::File::open(above)?.sync_all()?;
            let Some(parent) = above.parent() else { break };
            above = parent;
        }
        self.show();
        Ok(())
    }

    /// Removes older incarnations and links this one into the allocation's logs. A failure here has no other effect.
    fn show(&self) {
        let home = home(&self.dirs, &self.task);
        for entry in fs::read_dir(&home).into_iter().flatten().flatten() {
            if entry.path() != self.dir
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                tracing::debug!(dir = %entry.path().display(), %error, "output of an earlier instance was not removed");
            }
        }
        if let Err(error) = self.link() {
            tracing::debug!(dir = %self.dir.display(), %error, "kept output is not shown among the logs of the \
                allocation");
        }
    }

    /// Works through descriptors: other tasks may write to the directory of the links, and may have put links of their
    /// own there.
    fn link(&self) -> io::Result<()> {
        let open = |at: &dyn std::os::fd::AsFd, name: &Path| {
            openat(at.as_fd(), name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        };
        let root = fs::File::open(&self.dirs.root)?;
        let logs = open(&open(&root, Path::new("alloc"))?, Path::new("logs"))?;
        let own = fs::File::open(&self.dir)?;
        let of_stream = |name: &str| {
            KINDS.iter().any(|kind| {
                let number = name
                    .strip_prefix(&*self.task)
                    .and_then(|n| n.strip_prefix('.')?.strip_prefix(kind)?.strip_prefix('.'));
                number.is_some_and(|n| n.parse::<u64>().is_ok())
            })
        };
        for entry in rustix::fs::Dir::read_from(&logs)? {
            let entry = entry?;
            if entry.file_name().to_str().is_ok_and(of_stream) {
                unlinkat(&logs, entry.file_name(), AtFlags::empty())?;
            }
        }
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            if name.to_str().is_some_and(of_stream) {
                linkat(&own, &name, &logs, &name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

fn home(dirs: &AllocDirs, task: &str) -> PathBuf {
    dirs.root.join(".output").join(task)
}

#[cfg(test)]
mod tests {
    use model::AllocId;

    use super::*;

    struct Place {
        _dir: tempfile::TempDir,
        dirs: AllocDirs,
        task: Arc<str>,
    }

    fn place() -> Place {
        let dir = tempfile::tempdir().expect("temp dir");
        let dirs = AllocDirs::new(dir.path(), AllocId(uuid::Uuid::new_v4()));
        Place { _dir: dir, dirs, task: "t".into() }
    }

    fn incarnation() -> IncarnationId {
        IncarnationId(uuid::Uuid::new_v4())
    }

    fn limits() -> Limits {
        Limits::of(&LogConfig::default())
    }

    impl Place {
        fn begin(&self, incarnation: IncarnationId) -> Option<Draft> {
            Draft::begin(&self.dirs, &self.task, incarnation, limits()).expect("begin")
        }

        fn keep(&self, incarnation: IncarnationId, text: &str) {
            let mut draft = self.begin(incarnation).expect("not kept yet");
            draft.append("stdout", 0, text.as_bytes()).expect("append");
            draft.finish(Missing::new()).expect("finish");
        }

        fn found(&self) -> Option<(IncarnationId, String)> {
            let kept = Kept::find(&self.dirs, &self.task)?;
            let chunk = kept.log("stdout").read(0, 1 << 20).expect("read");
            Some((kept.incarnation, String::from_utf8(chunk.data).expect("text")))
        }
    }

    #[test]
    fn what_is_complete_is_found_and_what_was_interrupted_is_begun_anew() {
        let (p, one) = (place(), incarnation());
        let mut draft = p.begin(one).expect("not kept yet");
        draft.append("stdout", 0, b"half").expect("append");
        drop(draft);
        assert_eq!(p.found(), None, "an interrupted attempt is no output");
        p.keep(one, "whole\n");
        assert_eq!(p.found(), Some((one, "whole\n".into())));
        assert!(p.begin(one).is_none(), "kept already");
        let shown = fs::read_to_string(p.dirs.logs().join("t.stdout.0")).expect("shown among the logs");
        assert_eq!(shown, "whole\n");
    }

    #[test]
    fn the_last_incarnation_takes_the_place_of_the_one_before() {
        let (p, one, two) = (place(), incarnation(), incarnation());
        p.keep(one, "first\n");
        let draft = p.begin(two).expect("not kept yet");
        assert_eq!(p.found(), Some((one, "first\n".into())), "readable until the next one is complete");
        drop(draft);
        p.keep(two, "second\n");
        assert_eq!(p.found(), Some((two, "second\n".into())));
        assert_eq!(fs::read_dir(home(&p.dirs, &p.task)).expect("home").count(), 1);
        assert_eq!(fs::read_to_string(p.dirs.logs().join("t.stdout.0")).expect("shown"), "second\n");
        p.dirs.destroy().expect("destroy");
        assert!(!p.dirs.root.exists(), "it goes with its allocation");
    }

    #[test]
    fn bytes_keep_their_positions_come_once_and_are_not_left_out_in_silence() {
        let (p, one) = (place(), incarnation());
        let mut draft = p.begin(one).expect("not kept yet");
        draft.append("stdout", 1000, b"abcd").expect("append");
        draft.append("stdout", 1002, b"cdef").expect("what came before is skipped");
        draft.append("stdout", 1000, b"ab").expect("what came before is skipped");
        assert_eq!(draft.end("stdout"), Some(1006));
        let error = draft.append("stdout", 1010, b"x").expect_err("a gap").to_string();
        assert!(error.contains("1006") && error.contains("1010"), "{error}");
        draft.finish(Missing::from([("stderr".to_owned(), "refused".to_owned())])).expect("finish");
        let kept = Kept::find(&p.dirs, &p.task).expect("kept");
        assert_eq!(kept.missing.get("stderr").map(String::as_str), Some("refused"));
        let chunk = kept.log("stdout").read(0, 100).expect("read");
        assert_eq!((chunk.offset, &*chunk.data), (1000, &b"abcdef"[..]));
    }

    /// Another task owns the directory of logs: it must not redirect the node's writes.
    #[test]
    fn links_of_a_task_beside_it_are_not_followed() {
        let (p, one, elsewhere) = (place(), incarnation(), tempfile::tempdir().expect("temp dir"));
        p.dirs.create().expect("dirs");
        fs::remove_dir(p.dirs.logs()).expect("remove");
        std::os::unix::fs::symlink(elsewhere.path(), p.dirs.logs()).expect("symlink");
        let mut draft = p.begin(one).expect("not kept yet");
        draft.append("stdout", 0, b"x").expect("append");
        draft.finish(Missing::new()).expect("finish");
        assert_eq!(fs::read_dir(elsewhere.path()).expect("elsewhere").count(), 0);
        assert_eq!(p.found(), Some((one, "x".into())));
    }
}
