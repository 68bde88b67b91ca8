//! Files of a task: brought before its start, renewed while it runs.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path};

use driver_sdk::{Bundle, BundleFile, RemoteError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::place::{Answer, Place, unique};

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

/// Lays out the directories of a task and its files. Nothing else uses them yet.
pub(crate) fn lay_out(place: &Place, bundle: &Bundle) -> Answer<()> {
    let task = place.dir.join("task");
    let unclear = |path: &Path| {
        let text = path.display().to_string();
        move |why: std::io::Error| RemoteError::could_not_ask(format!("could not write {text}: {why}"))
    };
    for dir in ["task/local", "task/secrets", "task/tmp", "alloc/data", "alloc/tmp"] {
        let dir = place.dir.join(dir);
        fs::create_dir_all(&dir).map_err(unclear(&dir))?;
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
            let staged = place.dir.join(format!(".staged.{}", unique()));
            let mut open = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staged)?;
            open.write_all(&file.data)?;
            open.sync_all()?;
            fs::set_permissions(&staged, permissions.clone())?;
            fs::rename(&staged, &target)
        };
        write().map_err(unclear(&target))?;
    }
    Ok(())
}

/// Replaces files of a running task, each by a rename and through no link.
pub(crate) fn renew(place: &Place, bundle: &Bundle) -> Answer<()> {
    for file in &bundle.files {
        plain(&file.path)?;
        if file.path.ends_with('/') {
            return Err(RemoteError::wrong_request(format!(
                "{:?} is a directory; files are renewed, and directories made for them",
                file.path
            )));
        }
    }
    let task = place.dir.join("task");
    let root = directory(CWD, &task)
        .map_err(|why| RemoteError::could_not_ask(format!("could not open {}: {why}", task.display())))?;
    for file in &bundle.files {
        let staged = place.dir.join(format!(".staged.{}", unique()));
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
        let mut open = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(staged)?;
        open.write_all(&file.data)?;
        open.sync_all()?;
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
        let place = Place { dir: dir.path().join("run"), given: dir.path().join("given") };
        lay_out(
            &place,
            &bundle(&[("secrets/token", 0o644, "old"), ("local/tool", 0o755, "x"), ("local/d/", 0o750, "")]),
        )
        .expect("laid out");
        let mode =
            |path: &str| fs::metadata(place.dir.join("task").join(path)).expect("there").permissions().mode() & 0o777;
        assert_eq!(
            (mode("secrets"), mode("secrets/token"), mode("local/tool"), mode("local/d")),
            (0o700, 0o600, 0o755, 0o750)
        );
        renew(&place, &bundle(&[("secrets/token", 0o644, "new"), ("local/made/x", 0o640, "made")])).expect("renewed");
        let read = |path: &str| fs::read_to_string(place.dir.join("task").join(path)).expect("read");
        assert_eq!(
            (read("secrets/token"), read("local/made/x"), mode("secrets/token")),
            ("new".into(), "made".into(), 0o600)
        );
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).expect("made");
        std::os::unix::fs::symlink(&elsewhere, place.dir.join("task/out")).expect("linked");
        for hostile in ["out/x", "../x", "/x", "secrets/../../x", "local/d", "local/d/", "secrets/token/x"] {
            let refused = renew(&place, &bundle(&[(hostile, 0o644, "stolen")]));
            assert!(matches!(refused, Err(RemoteError::WrongRequest(_))), "{hostile}: {refused:?}");
        }
        assert_eq!(fs::read_dir(&elsewhere).expect("listed").count(), 0);
        let staged = fs::read_dir(&place.dir)
            .expect("listed")
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with(".staged"));
        assert_eq!(staged.count(), 0);
    }
}
