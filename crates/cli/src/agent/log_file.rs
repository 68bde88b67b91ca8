//! `log_file`: the log beside standard error, in a file that is replaced by age and size. Existing tools look for the
//! names that it has.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tracing_subscriber::fmt::MakeWriter;

/// Name of the file where `log_file` names a directory.
const DEFAULT_NAME: &str = "nomad.log";

/// Where the log is kept, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rotation {
    /// The file.
    pub(crate) path: PathBuf,
    /// A file that is older is put aside.
    pub(crate) age: Duration,
    /// A file that has reached this many bytes is put aside; 0 = any size.
    pub(crate) bytes: u64,
    /// How many are kept aside; `None` = all.
    pub(crate) keep: Option<usize>,
}

impl Rotation {
    /// `log_file` as it is written: a path that ends with a slash names a directory.
    pub(crate) fn path_of(text: &str) -> PathBuf {
        if text.ends_with('/') { Path::new(text).join(DEFAULT_NAME) } else { PathBuf::from(text) }
    }

    pub(super) fn due(&self, written: u64, age: Duration) -> bool {
        (self.bytes > 0 && written >= self.bytes) || age >= self.age
    }

    /// What stands before and after the time in the names of files that were put aside.
    fn around(&self) -> (String, String) {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let extension = self.path.extension().map_or_else(|| "log".to_owned(), |e| e.to_string_lossy().into_owned());
        (format!("{stem}-"), format!(".{extension}"))
    }

    pub(super) fn directory(&self) -> &Path {
        self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Where the file is put aside now: a name that is not taken.
    pub(super) fn free_aside(&self, now: SystemTime) -> PathBuf {
        let (before, after) = self.around();
        let mut nanos = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        loop {
            let path = self.directory().join(format!("{before}{nanos}{after}"));
            if !path.exists() {
                return path;
            }
            nanos += 1;
        }
    }

    /// Removes what is put aside and one too many.
    pub(super) fn remove_surplus(&self) -> io::Result<()> {
        let entries = fs::read_dir(self.directory())?.flatten();
        for name in self.surplus(entries.map(|entry| entry.file_name().to_string_lossy().into_owned())) {
            fs::remove_file(self.directory().join(name))?;
        }
        Ok(())
    }

    /// Which of the files of the directory are put aside and one too many; the oldest ones go.
    fn surplus(&self, names: impl IntoIterator<Item = String>) -> Vec<String> {
        let (before, after) = self.around();
        let Some(keep) = self.keep else { return Vec::new() };
        let aside = |name: &String| {
            let time = name.strip_prefix(&before).and_then(|rest| rest.strip_suffix(&after));
            time.is_some_and(|time| !time.is_empty() && time.bytes().all(|b| b.is_ascii_digit()))
        };
        let mut aside: Vec<String> = names.into_iter().filter(aside).collect();
        aside.sort();
        aside.truncate(aside.len().saturating_sub(keep));
        aside
    }
}

struct Open {
    file: File,
    written: u64,
    since: SystemTime,
}

/// The file of a log. What cannot be written there is lost there: standard error has it, too.
#[derive(Clone)]
pub(crate) struct LogFile(Arc<(Rotation, Mutex<Open>)>);

impl LogFile {
    /// Opens the file; what is in it stays.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn open(rotation: Rotation) -> io::Result<Self> {
        fs::create_dir_all(rotation.directory())?;
        let open = open(&rotation.path)?;
        Ok(Self(Arc::new((rotation, Mutex::new(open)))))
    }
}

fn open(path: &Path) -> io::Result<Open> {
    let file = OpenOptions::new().create(true).append(true).mode(0o640).open(path)?;
    let meta = file.metadata()?;
    let since = if meta.len() == 0 { SystemTime::now() } else { meta.created().or_else(|_| meta.modified())? };
    Ok(Open { file, written: meta.len(), since })
}

fn rotate(rotation: &Rotation, open_file: &mut Open) -> io::Result<()> {
    fs::rename(&rotation.path, rotation.free_aside(SystemTime::now()))?;
    *open_file = open(&rotation.path)?;
    rotation.remove_surplus()
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let (rotation, open) = &*self.0;
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back makes no file old.
        let age = SystemTime::now().duration_since(open.since).unwrap_or_default();
        if open.written > 0 && rotation.due(open.written, age) {
            // A file that cannot be put aside goes on.
            let _ = rotate(rotation, &mut open);
        }
        let written = open.file.write(line)?;
        open.written += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, path::PathBuf, time::Duration};

    use super::{LogFile, Rotation};

    fn rotation(path: impl Into<PathBuf>, keep: Option<usize>) -> Rotation {
        Rotation { path: path.into(), age: Duration::from_secs(3600), bytes: 10, keep }
    }

    #[test]
    fn names_and_limits() {
        assert_eq!(Rotation::path_of("/var/log/"), PathBuf::from("/var/log/nomad.log"));
        assert_eq!(Rotation::path_of("/var/log/x"), PathBuf::from("/var/log/x"));
        assert_eq!(rotation("/var/log/x", None).around(), ("x-".to_owned(), ".log".to_owned()));
        let r = rotation("/v/a.txt", Some(1));
        for (written, seconds, due) in [(9, 0, false), (10, 0, true), (0, 3600, true)] {
            assert_eq!(r.due(written, Duration::from_secs(seconds)), due, "{written} {seconds}");
        }
        assert!(!Rotation { bytes: 0, ..r.clone() }.due(1 << 40, Duration::ZERO), "0 bytes are no limit");
        let names = ["a.txt", "a-2.txt", "a-1.txt", "a-3.txt", "a-b.txt", "other-1.txt"].map(str::to_owned);
        assert_eq!(r.surplus(names.clone()), ["a-1.txt", "a-2.txt"]);
        assert!(Rotation { keep: None, ..r }.surplus(names).is_empty());
    }

    #[test]
    fn a_full_file_is_put_aside_and_the_oldest_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("logs/agent.log");
        let mut log = LogFile::open(rotation(&path, Some(2))).expect("a file");
        for line in 0..5 {
            // Whole lines, as the log hands them over.
            log.write_all(format!("line number {line}\n").as_bytes()).expect("written");
        }
        assert_eq!(fs::read_to_string(&path).expect("the file"), "line number 4\n");
        let mut aside: Vec<_> = fs::read_dir(dir.path().join("logs"))
            .expect("the directory")
            .flatten()
            .map(|e| e.path())
            .filter(|p| *p != path)
            .collect();
        aside.sort();
        let texts: Vec<String> = aside.iter().map(|p| fs::read_to_string(p).expect("readable")).collect();
        assert_eq!(texts, ["line number 2\n", "line number 3\n"]);
        // Another agent goes on where this one was.
        let mut next = LogFile::open(Rotation { bytes: 0, ..rotation(&path, None) }).expect("the file");
        next.write_all(b"more\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "line number 4\nmore\n");
    }
}
