//! Files of a run directory, whose user may put anything there; and those of a task: brought before its start, renewed
//! while it runs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::{Bundle, BundleFile, RemoteError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::Answer;

/// Bytes of a file that is read whole: ours are far shorter, whatever its user makes of it.
const LONGEST: u64 = 1 << 20;
/// How long somebody may hold the lock of a program that was just written: a process that starts has it for a moment,
/// and a user who locks it holds nobody up for ever.
const LOCKED: Duration = Duration::from_secs(10);
/// How often the lock is tried.
const TRY: Duration = Duration::from_millis(2);

/// Why something could not be done to a path, as an answer.
pub fn unclear(what: &str, path: &Path) -> impl FnOnce(io::Error) -> RemoteError {
    let text = format!("could not {what} {}", path.display());
    move |why| RemoteError::could_not_ask(format!("{text}: {why}"))
}

/// A name that nobody else uses, on any node.
pub fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}.{}.{now}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Opens a regular file of a run directory. Its user may have put a link there, or a pipe at which an open waits for
/// ever.
///
/// # Errors
/// Those of the system; `InvalidData` for anything but a regular file.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidData, "it is no regular file")),
    }
}

/// The first characters of a text that the user of a run directory may have written: it is kept for each task.
#[must_use]
pub fn short(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// The text of a file that may be missing. Opened by name, which makes a network file system ask the server.
///
/// # Errors
/// [`RemoteError::CouldNotAsk`]: it cannot be read.
pub fn read(path: &Path) -> Answer<Option<String>> {
    let mut text = String::new();
    let read = open(path, OpenOptions::new().read(true)).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text)),
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        Err(why) => Err(unclear("read", path)(why)),
    }
}

/// Writes a file at once: readers see all of it or what was there. One with a mode of a program can be executed from
/// then on.
///
/// # Errors
/// [`RemoteError::CouldNotAsk`]: it cannot be written.
pub fn put(path: &Path, mode: u32, data: &[u8]) -> Answer<()> {
    put_by(path, mode, |file| file.write_all(data))
}

/// [`put`], whose content `write` writes.
fn put_by(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> Answer<()> {
    let temporary = path.with_extension(format!("tmp.{}", unique()));
    let put = write_new(&temporary, mode, is_program(mode), write).and_then(|()| fs::rename(&temporary, path));
    put.map_err(|why| {
        let _ = fs::remove_file(&temporary);
        unclear("write", path)(why)
    })
}

/// Whether a file of this mode may be executed.
fn is_program(mode: u32) -> bool {
    mode & 0o111 != 0
}

/// Writes a new file, whole and synced.
///
/// A process that another thread forks meanwhile inherits the open file until it executes its own command, and until
/// then the kernel executes the written one for nobody (ETXTBSY). So a program is written under a lock, which is that
/// of the open file, whoever has inherited it: this returns afterwards. Without file locks there is nothing to wait
/// for.
fn write_new(
    path: &Path,
    mode: u32,
    executable: bool,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    if executable {
        let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    }
    write(&mut file)?;
    file.sync_all()?;
    drop(file);
    if executable && let Ok(file) = open(path, OpenOptions::new().read(true)) {
        let begun = Instant::now();
        while rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
            && begun.elapsed() < LOCKED
        {
            std::thread::sleep(TRY);
        }
    }
    Ok(())
}

/// Leaves a result in the place of a run that could not: one that is there already, or comes meanwhile, stays. What is
/// there and `is_whole` does not take for a result, such as the empty file of a full disk, is replaced.
///
/// # Errors
/// [`RemoteError::CouldNotAsk`]: it cannot be read or written.
pub fn put_unless_there(path: &Path, data: &[u8], is_whole: impl FnOnce(&str) -> bool) -> Answer<()> {
    let temporary = path.with_extension(unique());
    put(&temporary, 0o600, data)?;
    let link = || -> Answer<()> {
        if read(path)?.is_some_and(|text| !is_whole(&text)) {
            remove(path).map_err(unclear("remove", path))?;
        }
        match fs::hard_link(&temporary, path) {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => Err(unclear("make", path)(why)),
            _ => Ok(()),
        }
    };
    let linked = link();
    let _ = fs::remove_file(&temporary);
    linked
}

/// Whether somebody holds a lock on a file, on any node; a missing file is free. What has closed all files that it was
/// given is not seen.
///
/// # Errors
/// [`RemoteError::CouldNotAsk`]: it cannot be opened or locked.
pub fn held(path: &Path) -> Answer<bool> {
    let file = match open(path, OpenOptions::new().read(true).write(true)) {
        Ok(file) => file,
        // No gate has been here, or one of an older release.
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(false),
        Err(why) => return Err(unclear("open", path)(why)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // Not by a close: a command that is being started may have the file for a moment.
        Ok(()) => match rustix::fs::flock(&file, FlockOperation::Unlock) {
            Ok(()) => Ok(false),
            Err(why) => Err(unclear("unlock", path)(why.into())),
        },
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(why) => Err(unclear("lock", path)(why.into())),
    }
}

/// Writes into a directory, which makes a network file system forget what it kept of it.
///
/// # Errors
/// [`RemoteError::CouldNotAsk`]: it cannot be written into.
pub fn probe(dir: &Path) -> Answer<()> {
    let path = dir.join(format!(".look.{}", unique()));
    fs::write(&path, b"").and_then(|()| fs::remove_file(&path)).map_err(unclear("write into", dir))
}

/// Removes a file, or a directory with all that is in it, through no link. A missing one is removed.
///
/// # Errors
/// Those of the system.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => match fs::remove_dir_all(path) {
            // Tasks leave directories that not even they can write into, such as a module cache of Go.
            Err(why) if why.kind() == ErrorKind::PermissionDenied => {
                let _ = make_writable(path);
                fs::remove_dir_all(path)
            }
            removed => removed,
        },
        Ok(_) => fs::remove_file(path),
        Err(why) => Err(why),
    };
    match removed {
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Lets the owner of a directory write into it and all below it. What a link leads to is left alone.
///
/// # Errors
/// Those of the system.
pub fn make_writable(dir: &Path) -> io::Result<()> {
    let mode = fs::symlink_metadata(dir)?.permissions().mode();
    fs::set_permissions(dir, fs::Permissions::from_mode(mode | 0o700))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_writable(&entry.path())?;
        }
    }
    Ok(())
}

/// Refuses paths that are not plainly below a directory.
fn plain(path: &str) -> Answer<&Path> {
    let relative = Path::new(path);
    if !path.is_empty() && relative.components().all(|c| matches!(c, Component::Normal(_))) {
        return Ok(relative);
    }
    Err(RemoteError::wrong_request(format!("the bundle holds {path:?}, which is not a plain relative path")))
}

/// Files below `secrets` are private, whatever their mode was.
fn mode_of(file: &BundleFile) -> u32 {
    let secret = Path::new(&file.path).starts_with("secrets");
    file.mode & if secret { 0o700 } else { 0o7777 }
}

/// Lays out the directories of a task and its files in a run directory. Nothing else uses them yet.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: a file is not plainly below the task's directory. [`RemoteError::CouldNotAsk`]: it
/// cannot be written.
pub fn lay_out(dir: &Path, bundle: &Bundle) -> Answer<()> {
    let task = dir.join("task");
    let unclear = |path: &Path| {
        let text = path.display().to_string();
        move |why: std::io::Error| RemoteError::could_not_ask(format!("could not write {text}: {why}"))
    };
    for part in ["task/local", "task/secrets", "task/tmp", "alloc/data", "alloc/tmp"] {
        let part = dir.join(part);
        fs::create_dir_all(&part).map_err(unclear(&part))?;
    }
    let secrets = task.join("secrets");
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o700)).map_err(unclear(&secrets))?;
    for file in &bundle.files {
        let target = task.join(plain(&file.path)?);
        let permissions = fs::Permissions::from_mode(mode_of(file));
        if file.path.ends_with('/') {
            fs::create_dir_all(&target)
                .and_then(|()| fs::set_permissions(&target, permissions))
                .map_err(unclear(&target))?;
            continue;
        }
        let write = || {
            fs::create_dir_all(target.parent().unwrap_or(&task))?;
            let staged = dir.join(format!(".staged.{}", unique()));
            write_new(&staged, 0o600, is_program(mode_of(file)), |open| open.write_all(&file.data))?;
            fs::set_permissions(&staged, permissions.clone())?;
            fs::rename(&staged, &target)
        };
        write().map_err(unclear(&target))?;
    }
    Ok(())
}

/// Replaces files of a running task, each by a rename and through no link.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: something else is in the way. [`RemoteError::CouldNotAsk`]: it cannot be written.
pub fn renew(dir: &Path, bundle: &Bundle) -> Answer<()> {
    for file in &bundle.files {
        plain(&file.path)?;
        if file.path.ends_with('/') {
            return Err(RemoteError::wrong_request(format!(
                "{:?} is a directory; files are renewed, and directories made for them",
                file.path
            )));
        }
    }
    let task = dir.join("task");
    let root = directory(CWD, &task)
        .map_err(|why| RemoteError::could_not_ask(format!("could not open {}: {why}", task.display())))?;
    for file in &bundle.files {
        let staged = dir.join(format!(".staged.{}", unique()));
        let renewed = stage(&staged, file).and_then(|()| replace(&root, &staged, plain_or_whole(&file.path)));
        if let Err(why) = renewed {
            let _ = fs::remove_file(&staged);
            return Err(match why {
                Errno::NOTDIR | Errno::LOOP | Errno::ISDIR => RemoteError::wrong_request(format!(
                    "{:?} cannot be renewed: the task has put something else in its way, a link or a file where a \
                        directory belongs ({why})",
                    file.path
                )),
                why => RemoteError::could_not_ask(format!("could not renew {:?}: {why}", file.path)),
            });
        }
    }
    Ok(())
}

/// The path, which was checked.
fn plain_or_whole(path: &str) -> &Path {
    Path::new(path)
}

fn stage(staged: &Path, file: &BundleFile) -> rustix::io::Result<()> {
    let write = || {
        write_new(staged, 0o600, is_program(mode_of(file)), |open| open.write_all(&file.data))?;
        fs::set_permissions(staged, fs::Permissions::from_mode(mode_of(file)))
    };
    write().map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))
}

/// Opens a directory, but no link.
fn directory(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Moves a complete file to its place below `root`, step by step; makes missing directories.
fn replace(root: &OwnedFd, source: &Path, path: &Path) -> rustix::io::Result<()> {
    let mut parent = root.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    for step in path.parent().into_iter().flat_map(Path::components) {
        let step = Path::new(step.as_os_str());
        parent = match directory(&parent, step) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&parent, step, Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(why) => return Err(why),
                }
                directory(&parent, step)?
            }
            opened => opened?,
        };
    }
    rustix::fs::renameat(CWD, source, &parent, path.file_name().map_or(path, Path::new))
}

/// A key as a name of a job and of a directory: other characters than `[a-z0-9-]` become `_` and their hexadecimal
/// number, so that no two keys share a name.
pub fn name(key: &str) -> String {
    key.bytes().fold(String::new(), |mut name, byte| {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => name.push(char::from(byte)),
            other => name.push_str(&format!("_{other:02x}")),
        }
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(files: &[(&str, u32, &str)]) -> Bundle {
        let files = files.iter().map(|(path, mode, data)| BundleFile {
            path: (*path).into(),
            mode: *mode,
            data: data.as_bytes().to_vec(),
        });
        Bundle::new(files.collect())
    }

    #[test]
    fn files_arrive_private_where_they_are_secret_and_are_renewed_through_no_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let run = dir.path().join("run");
        lay_out(&run, &bundle(&[("secrets/token", 0o644, "old"), ("local/tool", 0o755, "x"), ("local/d/", 0o750, "")]))
            .expect("laid out");
        let mode = |path: &str| fs::metadata(run.join("task").join(path)).expect("there").permissions().mode() & 0o777;
        assert_eq!(
            (mode("secrets"), mode("secrets/token"), mode("local/tool"), mode("local/d")),
            (0o700, 0o600, 0o755, 0o750)
        );
        renew(&run, &bundle(&[("secrets/token", 0o644, "new"), ("local/made/x", 0o640, "made")])).expect("renewed");
        let read = |path: &str| fs::read_to_string(run.join("task").join(path)).expect("read");
        assert_eq!(
            (read("secrets/token"), read("local/made/x"), mode("secrets/token")),
            ("new".into(), "made".into(), 0o600)
        );
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).expect("made");
        std::os::unix::fs::symlink(&elsewhere, run.join("task/out")).expect("linked");
        for hostile in ["out/x", "../x", "/x", "secrets/../../x", "local/d", "local/d/", "secrets/token/x"] {
            let refused = renew(&run, &bundle(&[(hostile, 0o644, "stolen")]));
            assert!(matches!(refused, Err(RemoteError::WrongRequest(_))), "{hostile}: {refused:?}");
        }
        assert_eq!(fs::read_dir(&elsewhere).expect("listed").count(), 0);
        let staged = fs::read_dir(&run)
            .expect("listed")
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with(".staged"));
        assert_eq!(staged.count(), 0);
    }

    /// A process that is being started has the files of this one until it executes its own command.
    #[test]
    fn a_program_is_in_its_place_when_no_process_that_starts_can_write_to_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("task.sh");
        let (inherits, inherited) = std::sync::mpsc::channel();
        let putting = std::thread::spawn({
            let program = program.clone();
            move || {
                put_by(&program, 0o700, |file| {
                    file.write_all(b"#!/bin/sh\nexit 3\n")?;
                    inherits.send(file.try_clone()?).map_err(io::Error::other)
                })
            }
        });
        let inherited = inherited.recv().expect("written");
        // Long enough for all that comes after the content.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!program.exists() && !putting.is_finished(), "nobody could execute it");
        drop(inherited);
        assert_eq!(putting.join().expect("ran"), Ok(()));
        let ended = std::process::Command::new(&program).status().expect("executed");
        assert_eq!(ended.code(), Some(3));
    }

    #[test]
    fn no_two_keys_share_a_name() {
        assert_eq!(name("0a1b-c2"), "0a1b-c2");
        assert_eq!(name("a/b"), "a_2fb");
        assert_eq!(name("../x"), "_2e_2e_2fx");
        assert_ne!(name("a_2fb"), name("a/b"));
        assert_ne!(name("A"), name("a"));
    }
}
