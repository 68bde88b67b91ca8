//! Artifacts of a task that runs elsewhere. The node fetches them into the allocation's directory, reads them for each
//! create, and removes them with the preparation.
//!
//! ```text
//! <alloc_dir>/<alloc id>/<task>/private/bundle-<run>/<task>/local    what travels
//! ```
//! In all else they are like artifacts of local tasks. They stay on disk until they are sent: thousands of creates may
//! wait for their turn.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use driver_host::BundleFile;
use host::{
    dirs::{AllocDirs, Keeper},
    node_env::TaskSpec,
};
use lifecycle::alloc::{inbox::Inbox, machine::StartFailure};
use tokio::sync::OwnedSemaphorePermit;

use crate::ports::{Supplies, Unprepared};

/// Prefix of the directories of preparations.
const PREFIX: &str = "bundle-";
/// The only directory of a task in which artifacts travel.
const LOCAL: &str = "local";

/// One file or empty directory of the bundle, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Path in the bundle; a directory's ends with a slash.
    path: String,
    mode: u32,
    bytes: u64,
}

/// Fetched artifacts. A drop removes their directory.
#[derive(Debug)]
pub(crate) struct Fetched {
    dir: Dir,
    entries: Vec<Entry>,
    /// A permit that bounds the artifacts on the disk at the same time. A create gives it back when it was attempted or
    /// waits for something else. So creates that have to wait for long, such as for an absent host, hold up no others.
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

/// A directory; a drop removes it.
#[derive(Debug)]
struct Dir {
    root: PathBuf,
    task: PathBuf,
}

impl Drop for Dir {
    fn drop(&mut self) {
        let root = std::mem::take(&mut self.root);
        // The removal of the allocation's directory covers a failure.
        let remove = move || drop(fs::remove_dir_all(root));
        match tokio::runtime::Handle::try_current() {
            Ok(_) => drop(blocking::spawn(remove)),
            Err(_) => remove(),
        }
    }
}

/// The inputs of a fetch.
pub(crate) struct Fetching<'a> {
    pub(crate) of: TaskSpec<'a>,
    /// The allocation's directories.
    pub(crate) dirs: AllocDirs,
    pub(crate) run: &'a str,
    /// Hears that the fetch begins; `None`: it was told before.
    pub(crate) tell: Option<&'a Inbox>,
    pub(crate) turn: OwnedSemaphorePermit,
}

impl Fetching<'_> {
    /// Fetches the task's artifacts into a new directory below the task's. Cancel safe: a drop removes partial results.
    pub(crate) async fn fetch(self, supplies: &dyn Supplies) -> Result<Fetched, Unprepared> {
        let name = &self.of.task.name;
        let private = self.dirs.task(name).root.join("private");
        let unique = format!("{PREFIX}{}-{:x}", self.run.rsplit('/').next().unwrap_or_default(), host::clock::now_ns());
        let dirs = AllocDirs { root: private.join(unique) };
        let task_dirs = dirs.task(name);
        let dir = Dir { root: dirs.root.clone(), task: task_dirs.root.clone() };
        let unmade = |e: io::Error| Unprepared::Later(format!("make a directory for artifacts: {e}"));
        let former = private.clone();
        blocking(move || remove_former(&former)).await.map_err(unmade)?;
        // In this thread: once this future is dropped, no other thread can still make the directory.
        fs::create_dir_all(&task_dirs.root)
            .and_then(|()| fs::set_permissions(&private, fs::Permissions::from_mode(0o700)))
            .and_then(|()| task_dirs.create(Keeper::Agent))
            .map_err(unmade)?;
        supplies.artifacts(self.of, dirs, self.run, self.tell).await.map_err(|failure| match failure {
            StartFailure::Artifact { why, recoverable: true } | StartFailure::Setup { why, recoverable: true } => {
                Unprepared::Later(why)
            }
            StartFailure::Artifact { why, .. }
            | StartFailure::Setup { why, .. }
            | StartFailure::Validation(why)
            | StartFailure::Driver { why, .. } => Unprepared::Refused(why),
            StartFailure::Interrupted => Unprepared::Later("the download was interrupted".to_owned()),
        })?;
        let task = dir.task.clone();
        let entries = blocking(move || list(&task))
            .await
            .map_err(|e| Unprepared::Later(format!("look through the artifacts: {e}")))?;
        let entries = entries.map_err(Unprepared::Refused)?;
        Ok(Fetched { dir, entries, turn: Mutex::new(Some(self.turn)) })
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    blocking::spawn(work).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Removes the preparations of a former agent. This agent has one at a time.
fn remove_former(private: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(private) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            match fs::remove_dir_all(entry.path()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Files and empty directories below `local`, in order. The inner error names what cannot travel, for people.
fn list(task: &Path) -> io::Result<Result<Vec<Entry>, String>> {
    let local = task.join(LOCAL).canonicalize()?;
    let (mut found, mut open) = (Vec::new(), vec![(local.clone(), LOCAL.to_owned())]);
    while let Some((dir, below)) = open.pop() {
        let mut empty = true;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            empty = false;
            let Ok(name) = entry.file_name().into_string() else {
                return Ok(Err(format!("an artifact has a name below {below:?} that is not UTF-8, and cannot travel")));
            };
            let path = format!("{below}/{name}");
            if entry.file_type()?.is_dir() {
                open.push((entry.path(), path));
                continue;
            }
            // A link to a file travels as that file; the fetch has refused links that lead out of their artifact.
            let target = entry.path().canonicalize().ok().filter(|target| target.starts_with(&local));
            let Some(meta) = target.and_then(|target| fs::metadata(target).ok()).filter(fs::Metadata::is_file) else {
                return Ok(Err(format!(
                    "{path:?} of an artifact is a link that leads to no file of it, and only files travel to where \
                        the task runs"
                )));
            };
            found.push(Entry { path, mode: meta.permissions().mode() & 0o777, bytes: meta.len() });
        }
        if empty && dir != local {
            found.push(Entry {
                path: format!("{below}/"),
                mode: fs::metadata(&dir)?.permissions().mode() & 0o777,
                bytes: 0,
            });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Ok(found))
}

impl Fetched {
    /// Total size of the files in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }

    /// Gives the permit back: others may fetch theirs.
    pub(crate) fn end_turn(&self) {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Leaves out these paths: a template's output replaces fetched files.
    pub(crate) fn without(&mut self, paths: &BTreeSet<&str>) {
        self.entries.retain(|entry| !paths.contains(entry.path.as_str()));
    }

    /// The files with their content.
    ///
    /// # Errors
    /// When the files have changed since: something else has written to the directory.
    pub(crate) fn read(&self) -> io::Result<Vec<BundleFile>> {
        let read = |entry: &Entry| {
            let directory = entry.path.ends_with('/');
            let data = if directory { Vec::new() } else { fs::read(self.dir.task.join(&entry.path))? };
            if data.len() as u64 != entry.bytes {
                let why = format!("{:?} had {} bytes and has {}", entry.path, entry.bytes, data.len());
                return Err(io::Error::other(why));
            }
            Ok(BundleFile { path: entry.path.clone(), mode: entry.mode, data })
        };
        let files = self.entries.iter().map(read).collect();
        self.end_turn();
        files
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, sync::Arc};

    use tokio::sync::Semaphore;

    use super::*;

    fn task() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let task = dir.path().join("t");
        fs::create_dir_all(task.join("local/sub/empty")).expect("directories");
        fs::write(task.join("local/run"), "#!").expect("a file");
        fs::set_permissions(task.join("local/run"), fs::Permissions::from_mode(0o755)).expect("its mode");
        fs::write(task.join("local/sub/b"), "bb").expect("a file");
        (dir, task)
    }

    fn paths(task: &Path) -> Result<Vec<String>, String> {
        list(task).expect("listed").map(|entries| entries.into_iter().map(|entry| entry.path).collect())
    }

    #[test]
    fn files_and_empty_directories_travel_and_links_as_what_they_lead_to() {
        let (_dir, task) = task();
        symlink("sub/b", task.join("local/link")).expect("a link");
        assert_eq!(
            paths(&task),
            Ok(["local/link", "local/run", "local/sub/b", "local/sub/empty/"].map(String::from).to_vec())
        );
        for (target, what) in [("sub", "a directory"), ("/etc/passwd", "out of it"), ("nothing", "nowhere")] {
            symlink(target, task.join("local/bad")).expect("a link");
            assert!(paths(&task).is_err_and(|why| why.contains("local/bad")), "a link to {what}");
            fs::remove_file(task.join("local/bad")).expect("removed");
        }
    }

    #[test]
    fn what_is_read_is_what_was_listed_and_goes_with_the_value() {
        let (dir, task) = task();
        let turns = Arc::new(Semaphore::new(1));
        let turn = || turns.clone().try_acquire_owned().expect("a turn");
        let entries = list(&task).expect("listed").expect("travels");
        let mut fetched = Fetched {
            dir: Dir { root: dir.path().into(), task: task.clone() },
            entries,
            turn: Mutex::new(Some(turn())),
        };
        assert_eq!(fetched.bytes(), 4);
        fetched.without(&BTreeSet::from(["local/sub/b"]));
        assert_eq!(turns.available_permits(), 0);
        let files = fetched.read().expect("read");
        assert_eq!(turns.available_permits(), 1, "others may fetch theirs while this create is tried");
        let seen: Vec<_> = files.iter().map(|f| (f.path.as_str(), f.mode, f.data.as_slice())).collect();
        assert_eq!(seen, [("local/run", 0o755, b"#!".as_slice()), ("local/sub/empty/", 0o755, b"")]);
        fs::write(task.join("local/run"), "#!/").expect("changed");
        assert!(fetched.read().is_err_and(|e| e.to_string().contains("had 2 bytes and has 3")));
        drop(fetched);
        assert!(!task.exists());
    }
}
