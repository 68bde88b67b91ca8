//! Directories of an allocation.
//!
//! ```text
//! <alloc_dir>/<alloc id>/alloc/{logs,tmp,data}
//! <alloc_dir>/<alloc id>/<task>/{local,secrets,private,tmp}
//! ```
//! Tasks may create files beside these directories. They must not replace the directories by links: the next start
//! would follow such links with the node's rights. So the parent directories are sticky.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use model::AllocId;

/// Paths of one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocDirs {
    /// `<alloc_dir>/<alloc id>`.
    pub root: PathBuf,
}

/// Paths of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskDirs {
    /// `<alloc_dir>/<alloc id>/<task>`.
    pub root: PathBuf,
    /// Shared by the tasks.
    pub alloc: PathBuf,
    /// `<root>/local`.
    pub local: PathBuf,
    /// `<root>/secrets`, for its [`Keeper`] alone.
    pub secrets: PathBuf,
}

/// Who may open a task's secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The agent's own user, as whom the task runs.
    Agent,
    /// The user with this uid and gid.
    User(u32, u32),
    /// The task's user comes from its image, and this node does not know the uid. Every user who reaches the directory
    /// may open it. On this node only the agent's user does: the task's directory stops all others. The task has the
    /// secrets mounted.
    Image,
}

impl Keeper {
    /// Uid and gid, where they are not the agent's.
    #[must_use]
    pub fn ids(self) -> Option<(u32, u32)> {
        if let Self::User(uid, gid) = self { Some((uid, gid)) } else { None }
    }

    /// Mode of the directory.
    #[must_use]
    pub fn directory_mode(self) -> u32 {
        if self == Self::Image { 0o777 } else { 0o700 }
    }

    /// Mode of a read-only file in it.
    #[must_use]
    pub fn file_mode(self) -> u32 {
        if self == Self::Image { 0o644 } else { 0o600 }
    }
}

impl AllocDirs {
    /// Names the paths; nothing is made yet.
    #[must_use]
    pub fn new(alloc_dir: &Path, alloc: AllocId) -> Self {
        Self { root: alloc_dir.join(alloc.to_string()) }
    }

    /// The `alloc` directory that all tasks of the allocation share.
    #[must_use]
    pub fn shared(&self) -> PathBuf {
        self.root.join("alloc")
    }

    /// The directory of rotated log files.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.root.join("alloc/logs")
    }

    /// Paths of a task.
    #[must_use]
    pub fn task(&self, task: &str) -> TaskDirs {
        let root = self.root.join(task);
        TaskDirs { alloc: self.shared(), local: root.join("local"), secrets: root.join("secrets"), root }
    }

    /// Makes the shared directories. Blocking, idempotent.
    ///
    /// # Errors
    /// When the file system refuses; the error names the path.
    pub fn create(&self) -> io::Result<()> {
        make(&self.root, 0o755)?;
        make(&self.shared(), 0o1777)?;
        for (name, mode) in [("logs", 0o1777), ("tmp", 0o1777), ("data", 0o777)] {
            make(&self.shared().join(name), mode)?;
        }
        Ok(())
    }

    /// Removes everything, also below directories that a task has made unreadable. Blocking, idempotent.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn destroy(&self) -> io::Result<()> {
        // Mounts come first: a removal through a mount would delete files that belong elsewhere.
        let roots: Vec<PathBuf> =
            [Some(self.root.clone()), self.root.canonicalize().ok()].into_iter().flatten().collect();
        for (_, point) in mounts_below(&roots, &fs::read_to_string("/proc/self/mountinfo")?).into_iter().rev() {
            unmount(&point).map_err(named("unmount", &point))?;
        }
        match fs::remove_dir_all(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                open_up(&self.root);
                fs::remove_dir_all(&self.root)
            }
            other => other,
        }
    }
}

impl TaskDirs {
    /// Makes the directories. Blocking, idempotent.
    ///
    /// # Errors
    /// When the file system refuses; the error names the path.
    pub fn create(&self, keeper: Keeper) -> io::Result<()> {
        make(&self.root, 0o1777)?;
        make(&self.local, 0o777)?;
        make(&self.secrets, 0o700)?;
        // A former task may have laid a link in the place of a directory that was given to it.
        let secrets = opened(&self.secrets)?;
        if keeper == Keeper::Image {
            // Another task may have made the root. The agent closes it to others before it opens the secrets.
            for (dir, path, mode) in
                [(&opened(&self.root)?, &self.root, 0o700), (&secrets, &self.secrets, keeper.directory_mode())]
            {
                let set = dir.set_permissions(fs::Permissions::from_mode(mode));
                set.map_err(named("set the mode of", path))?;
            }
        }
        make(&self.root.join("private"), 0o700)?;
        make(&self.root.join("tmp"), 0o1777)?;
        if let Some((uid, gid)) = keeper.ids() {
            std::os::unix::fs::fchown(&secrets, Some(uid), Some(gid)).map_err(named("give away", &self.secrets))?;
        }
        Ok(())
    }
}

/// Mounts at or below any of the directories, with their ids, in the order in which they were made.
pub fn mounts_below(dirs: &[PathBuf], mountinfo: &str) -> Vec<(String, PathBuf)> {
    // id parent dev root mountpoint options…
    let mounts = mountinfo.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (id, point) = (fields.next()?, fields.nth(3)?);
        Some((id.to_owned(), unescaped(point)))
    });
    mounts.filter(|(_, point)| dirs.iter().any(|dir| point.starts_with(dir))).collect()
}

/// Decodes a mount point: `mountinfo` writes blanks and backslashes as three octal digits.
fn unescaped(point: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(point.len());
    let mut rest = point.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let octal = rest.get(1..4).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal.filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Detaches a mount. A process that still uses it keeps it until it lets go.
///
/// # Errors
/// When nothing is mounted there, or the agent may not unmount.
pub fn unmount(point: &Path) -> io::Result<()> {
    use rustix::mount::{UnmountFlags, unmount};
    Ok(unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

fn named(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let path = path.to_owned();
    move |e| io::Error::new(e.kind(), format!("{doing} {}: {e}", path.display()))
}

fn make(path: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {
            // The umask has reduced the mode.
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(named("set the mode of", path))
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(named("create the directory", path)(e)),
    }
}

/// Opens a directory, and not what a link in its place leads to.
fn opened(path: &Path) -> io::Result<fs::File> {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    opened.map_err(named("open", path))
}

/// Gives the owner back the right to list and to delete. Errors show up at the removal that follows.
fn open_up(dir: &Path) {
    let _ = fs::set_permissions(dir, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            open_up(&entry.path());
        }
    }
}

/// Uid and gid of a user in `/etc/passwd`; `name` may be a number itself.
#[must_use]
pub fn find_user(name: &str) -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let (user, uid, gid) = (fields.first()?, fields.get(2)?, fields.get(3)?);
        if *user == name || *uid == name { Some((uid.parse().ok()?, gid.parse().ok()?)) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn layout_and_modes() {
        let dir = tempfile::tempdir().expect("temp dir");
        let dirs = AllocDirs::new(dir.path(), AllocId(uuid::Uuid::new_v4()));
        let task = dirs.task("web");
        for _ in 0..2 {
            dirs.create().expect("alloc");
            task.create(Keeper::Agent).expect("task");
        }
        let mode = |p: &Path| fs::metadata(p).expect("exists").permissions().mode() & 0o7777;
        assert_eq!(mode(&dirs.logs()), 0o1777);
        assert_eq!(mode(&dirs.shared().join("tmp")), 0o1777);
        assert_eq!(mode(&dirs.shared().join("data")), 0o777);
        assert_eq!(mode(&task.local), 0o777);
        assert_eq!(mode(&task.secrets), 0o700);
        assert_eq!(mode(&task.root.join("private")), 0o700);
        assert_eq!(mode(&task.root), 0o1777);
        // The user of an image can open its secrets. No other user of this node reaches them, whoever has made the
        // directory.
        for _ in 0..2 {
            task.create(Keeper::Image).expect("task");
            assert_eq!((mode(&task.root), mode(&task.secrets)), (0o700, 0o777));
        }
        dirs.destroy().expect("destroy");
        dirs.destroy().expect("destroy is idempotent");
        assert!(!dirs.root.exists());
    }

    #[test]
    fn what_a_link_in_the_place_of_a_directory_leads_to_is_left_alone() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (dirs, target) = (AllocDirs::new(dir.path(), AllocId(uuid::Uuid::new_v4())), dir.path().join("etc"));
        dirs.create().expect("alloc");
        let task = dirs.task("web");
        task.create(Keeper::Image).expect("task");
        fs::create_dir(&target).expect("a directory of the host");
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).expect("mode");
        fs::remove_dir(&task.secrets).expect("moved away");
        std::os::unix::fs::symlink(&target, &task.secrets).expect("a link");
        for keeper in [Keeper::Image, Keeper::User(65534, 65534)] {
            let error = task.create(keeper).expect_err("refused").to_string();
            assert!(error.contains("secrets"), "{error}");
        }
        let meta = fs::metadata(&target).expect("there");
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (rustix::process::getuid().as_raw(), 0o755));
    }

    #[test]
    fn mounts_are_found_by_their_points() {
        let info = "22 1 0:21 / / rw - ext4 a rw\n\
                    40 22 0:5 / /d/alloc/x/t/secrets rw - tmpfs b rw\n\
                    41 22 0:5 /v /d/alloc/x/t/my\\040data rw - ext4 c rw\n\
                    42 22 0:5 / /d/allocated rw - tmpfs b rw\n";
        let found = mounts_below(&[PathBuf::from("/d/alloc")], info);
        let expected = [("40", "/d/alloc/x/t/secrets"), ("41", "/d/alloc/x/t/my data")];
        assert_eq!(found, expected.map(|(id, point)| (id.to_owned(), PathBuf::from(point))));
    }

    #[test]
    fn what_is_mounted_below_a_directory_survives_its_removal() {
        use rustix::mount::{UnmountFlags, mount_bind, unmount as undo};
        if !rustix::process::geteuid().is_root() {
            skip::cannot("mounting needs root");
            return;
        }
        let dir = tempfile::tempdir().expect("temp dir");
        let dirs = AllocDirs::new(dir.path(), AllocId(uuid::Uuid::new_v4()));
        let (volume, point) = (dir.path().join("volume"), dirs.root.join("t/volume"));
        fs::create_dir_all(&volume).expect("volume");
        fs::create_dir_all(&point).expect("point");
        fs::write(volume.join("precious"), "").expect("file");
        if let Err(error) = mount_bind(&volume, &point) {
            skip::cannot(&format!("nothing can be mounted here: {error}"));
            return;
        }
        let destroyed = dirs.destroy();
        let _ = undo(&point, UnmountFlags::DETACH);
        destroyed.expect("destroy");
        assert!(!dirs.root.exists() && volume.join("precious").exists());
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let dir = tempfile::tempdir().expect("temp dir");
        let dirs = AllocDirs::new(dir.path(), AllocId(uuid::Uuid::new_v4()));
        fs::write(&dirs.root, b"").expect("file");
        let error = dirs.create().expect_err("refused").to_string();
        assert!(error.contains(&dirs.root.display().to_string()), "{error}");
    }
}
