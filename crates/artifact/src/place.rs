//! From staging to the destination: everything is looked at first, then moved, each file by one rename.

use std::{
    ffi::{OsStr, OsString},
    io::{self},
};

use rustix::fs::{FileType, Mode};

use crate::{
    error::FetchError,
    tree::{Dir, MAX_DEPTH, link_stays},
};

/// What was placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// The directory in which the node keeps its own files of the task, such as what it knows of running processes. No
/// artifact gets there. Compared by what it is: a file system may know it by more than one spelling.
pub(crate) struct Own {
    identity: (u64, u64),
    name: String,
}

impl Own {
    /// The second directory on the way to the staging directory, which lies below: `<task>/private`.
    pub(crate) fn of(root: &Dir, staging: &[String]) -> Result<Option<Self>, FetchError> {
        let [task, name, ..] = staging else { return Ok(None) };
        let opened = root.child(OsStr::new(task)).and_then(|dir| dir.child(OsStr::new(name)));
        let identity = opened.and_then(|dir| dir.identity()).map_err(FetchError::io("look at the node's own files"))?;
        Ok(Some(Self { identity, name: name.clone() }))
    }

    /// Refuses a destination that lies in it.
    pub(crate) fn keep_out(&self, root: &Dir, destination: &[String]) -> Result<(), FetchError> {
        let [task, name, ..] = destination else { return Ok(()) };
        // What is missing, or no directory, is not it.
        let there = root.child(OsStr::new(task)).and_then(|dir| dir.child(OsStr::new(name)));
        if there.and_then(|dir| dir.identity()).is_ok_and(|identity| identity == self.identity) {
            return Err(FetchError::Place(format!("destination {:?} is the node's own", destination.join("/"))));
        }
        Ok(())
    }

    /// Refuses names that would get into it, or in its place, in the directory where they are put.
    pub(crate) fn keep_off(&self, to: &Dir, names: &[OsString]) -> Result<(), FetchError> {
        for name in names {
            if to.identity_of(name).map_err(failed("look at", name))? == Some(self.identity) {
                return Err(FetchError::Place(format!(
                    "the artifact has {:?} at its top, and in the task's directory {:?} is the node's own: give the \
                        artifact a destination below local/",
                    name.to_string_lossy(),
                    self.name
                )));
            }
        }
        Ok(())
    }
}

fn failed(doing: &str, name: &OsStr) -> impl FnOnce(io::Error) -> FetchError {
    let doing = format!("{doing} {:?}", name.to_string_lossy());
    move |source| match source.kind() {
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            FetchError::Place(format!("{doing}: a file, a link or a directory is in the way at the destination"))
        }
        _ => FetchError::Io { doing, source },
    }
}

/// Looks at a staged tree: every link must stay below it, nothing but files, directories and links may be in it, and
/// all is given to its owner.
pub(crate) fn inspect(tree: &Dir, owner: Option<(u32, u32)>) -> Result<Placed, FetchError> {
    let mut seen = Placed::default();
    inspect_below(tree, 0, owner, &mut seen)?;
    Ok(seen)
}

fn inspect_below(dir: &Dir, depth: usize, owner: Option<(u32, u32)>, seen: &mut Placed) -> Result<(), FetchError> {
    if depth > MAX_DEPTH {
        return Err(FetchError::Place(format!("the artifact is more than {MAX_DEPTH} directories deep")));
    }
    for name in dir.names().map_err(FetchError::io("list what was fetched"))? {
        match dir.kind(&name).map_err(failed("look at", &name))? {
            Some(FileType::Directory) => {
                inspect_below(&dir.child(&name).map_err(failed("open", &name))?, depth + 1, owner, seen)?
            }
            Some(FileType::Symlink) => {
                let target = dir.link_target(&name).map_err(failed("read the link", &name))?;
                link_stays(&target, depth).map_err(|why| {
                    FetchError::Place(format!(
                        "{:?} is {why}: such a link is not given to a task",
                        name.to_string_lossy()
                    ))
                })?;
            }
            Some(FileType::RegularFile) => {
                let length = dir.file(&name).and_then(|f| f.metadata()).map_err(failed("look at", &name))?.len();
                seen.files += 1;
                seen.bytes += length;
            }
            other => {
                return Err(FetchError::Place(format!(
                    "{:?} is no file, directory or link but {other:?}",
                    name.to_string_lossy()
                )));
            }
        }
        if let Some(owner) = owner {
            dir.give(&name, owner).map_err(failed("give away", &name))?;
        }
    }
    Ok(())
}

/// Moves what is in one directory into another, over what is there. `made` sees new directories.
pub(crate) fn merge(from: &Dir, to: &Dir) -> Result<(), FetchError> {
    for name in from.names().map_err(FetchError::io("list what was fetched"))? {
        if from.kind(&name).map_err(failed("look at", &name))? == Some(FileType::Directory) {
            merge_directory(from, &name, to)?;
        } else {
            move_one(from, &name, to, &name)?;
        }
    }
    Ok(())
}

fn merge_directory(from: &Dir, name: &OsStr, to: &Dir) -> Result<(), FetchError> {
    if to.kind(name).map_err(failed("look at", name))?.is_none() {
        // As a whole, when that is possible.
        match rustix::fs::renameat(from, name, to, name) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::XDEV) => {}
            Err(e) => return Err(failed("place", name)(e.into())),
        }
    }
    let source = from.child(name).map_err(failed("open", name))?;
    let (target, made) = to.ensure(name).map_err(failed("place", name))?;
    if made {
        let stat = rustix::fs::fstat(&source).map_err(|e| failed("look at", name)(e.into()))?;
        rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o777))
            .map_err(|e| failed("place", name)(e.into()))?;
        if rustix::process::geteuid().is_root() {
            target.give_self((stat.st_uid, stat.st_gid)).map_err(failed("give away", name))?;
        }
    }
    merge(&source, &target)
}

/// Moves a file or link over whatever file or link has the name there.
pub(crate) fn move_one(from: &Dir, name: &OsStr, to: &Dir, as_name: &OsStr) -> Result<(), FetchError> {
    match rustix::fs::renameat(from, name, to, as_name) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::XDEV) => copy_one(from, name, to, as_name),
        Err(e) => Err(failed("place", as_name)(e.into())),
    }
}

/// Across file systems: under another name first, so that nobody sees a part.
fn copy_one(from: &Dir, name: &OsStr, to: &Dir, as_name: &OsStr) -> Result<(), FetchError> {
    let mut part = OsStr::new(".drover-part-").to_owned();
    part.push(as_name);
    let place = |doing: io::Result<()>| doing.map_err(failed("place", as_name));
    if to.kind(&part).map_err(failed("look at", &part))?.is_some() {
        place(to.unlink(&part))?;
    }
    if from.kind(name).map_err(failed("look at", name))? == Some(FileType::Symlink) {
        let target = from.link_target(name).map_err(failed("read the link", name))?;
        place(to.symlink(&target, &part))?;
    } else {
        let mut source = from.file(name).map_err(failed("open", name))?;
        let stat = rustix::fs::fstat(&source).map_err(|e| failed("look at", name)(e.into()))?;
        let mut target = to.create(&part).map_err(failed("place", as_name))?;
        place(io::copy(&mut source, &mut target).map(drop))?;
        place(rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(Into::into))?;
        if rustix::process::geteuid().is_root() {
            place(to.give(&part, (stat.st_uid, stat.st_gid)))?;
        }
    }
    place(rustix::fs::renameat(to, &part, to, as_name).map_err(Into::into))?;
    place(from.unlink(name))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn trees_are_merged_over_what_is_there() {
        let temp = tempfile::tempdir().expect("temp dir");
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        fs::create_dir_all(from.join("d/e")).expect("dir");
        fs::create_dir_all(to.join("d")).expect("dir");
        for (path, text) in
            [("from/a", "new"), ("from/d/b", "b"), ("from/d/e/c", "c"), ("to/a", "old"), ("to/d/kept", "k")]
        {
            fs::write(temp.path().join(path), text).expect("file");
        }
        symlink("e/c", from.join("d/link")).expect("link");
        let staged = Dir::open(&from).expect("open");
        assert_eq!(inspect(&staged, None).expect("fine"), Placed { files: 3, bytes: 5 });
        merge(&staged, &Dir::open(&to).expect("open")).expect("merged");
        for (path, text) in [("a", "new"), ("d/b", "b"), ("d/e/c", "c"), ("d/link", "c"), ("d/kept", "k")] {
            assert_eq!(fs::read_to_string(to.join(path)).expect(path), text);
        }
    }

    #[test]
    fn links_that_leave_are_found_before_anything_is_placed() {
        let temp = tempfile::tempdir().expect("temp dir");
        fs::create_dir(temp.path().join("d")).expect("dir");
        symlink("../../x", temp.path().join("d/l")).expect("link");
        let error = inspect(&Dir::open(temp.path()).expect("open"), None).expect_err("it leaves").to_string();
        assert!(error.contains("../../x"), "{error}");
    }

    #[test]
    fn a_link_in_the_destination_is_not_written_through() {
        let temp = tempfile::tempdir().expect("temp dir");
        for dir in ["from/d", "to", "outside"] {
            fs::create_dir_all(temp.path().join(dir)).expect("dir");
        }
        fs::write(temp.path().join("from/d/x"), "x").expect("file");
        symlink("../outside", temp.path().join("to/d")).expect("link");
        let open = |name: &str| Dir::open(&temp.path().join(name)).expect("open");
        let error = merge(&open("from"), &open("to")).expect_err("refused").to_string();
        assert!(error.contains("in the way"), "{error}");
        assert!(fs::read_dir(temp.path().join("outside")).expect("list").next().is_none());
    }
}
