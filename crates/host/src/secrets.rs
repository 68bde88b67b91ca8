//! The secrets directory of a task is in memory, on a file system of its own. It never reaches a disk, nor swap space
//! where the kernel can exclude that.
//!
//! The node mounts it before a start. It stays until the task is dead or its directory goes; an agent that finds it
//! mounted leaves it as it is. A reboot loses it with its content, and the next start makes it anew. Where this node
//! may not mount, the directory is on disk. The node's attributes `secrets.memory` and `secrets.problem` say so.

use std::{ffi::CString, fs, io, os::unix::fs::MetadataExt, path::Path, sync::LazyLock};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, fsconfig_create, fsmount, fsopen, mount};

use crate::dirs::{Keeper, unmount};

/// Name of the API socket in the secrets directory.
pub const API_SOCKET: &str = "api.sock";

/// Size in MiB when the job names none.
const DEFAULT_MIB: i64 = 1;
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Whether this node may mount, or the reason why not. Tried once, with a mount that is attached nowhere.
///
/// # Errors
/// The reason, as a sentence.
pub fn supported() -> Result<(), &'static str> {
    static TRIED: LazyLock<Result<(), String>> = LazyLock::new(|| {
        let tried = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)
            .and_then(|context| fsconfig_create(&context).map(|()| context))
            .and_then(|context| fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()));
        match tried {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::PERM) => {
                Err("the agent may not mount file systems; run it as root for secrets that stay in memory".into())
            }
            Err(e) => Err(format!("tmpfs cannot be mounted: {e}")),
        }
    });
    TRIED.as_ref().copied().map_err(String::as_str)
}

/// Whether `dir` is the root of a file system of its own.
pub fn is_mounted(dir: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).map(|m| m.dev()).ok();
    let own = device(dir);
    own.is_some() && own != dir.parent().and_then(device)
}

/// Mounts a memory file system on the directory, unless one is mounted or this node may not mount. `before` runs first,
/// so that an interruption repeats it. Blocking, idempotent.
///
/// # Errors
/// When the kernel refuses, or when the job asks for a size that this node cannot provide.
pub fn mount_at(
    dir: &Path,
    mib: Option<i64>,
    keeper: Keeper,
    before: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    if is_mounted(dir) {
        return Ok(());
    }
    let asked = mib.filter(|mib| *mib > 0);
    if let Err(why) = supported() {
        return match asked {
            None => Ok(()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("resources.secrets cannot be had on this node: {why}"),
            )),
        };
    }
    // The loop of an earlier agent's task listens there; the next start listens anew. A failed removal shows up in the
    // next call.
    let _ = fs::remove_file(dir.join(API_SOCKET));
    if fs::read_dir(dir)?.next().is_some() {
        // An earlier agent kept the secrets on disk: a mount would hide what the task has put there.
        return Ok(());
    }
    before()?;
    let (uid, gid) = keeper.ids().unwrap_or((rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
    let options =
        format!("mode={:04o},uid={uid},gid={gid},size={}m", keeper.directory_mode(), asked.unwrap_or(DEFAULT_MIB));
    let try_with =
        |options: String| mount(c"tmpfs", dir, c"tmpfs", FLAGS, CString::new(options).unwrap_or_default().as_c_str());
    // Kernels before 6.4 do not know the option.
    match try_with(format!("{options},noswap")) {
        Err(rustix::io::Errno::INVAL) => try_with(options),
        other => other,
    }
    .map_err(|e| {
        io::Error::new(io::Error::from(e).kind(), format!("mount the secrets directory {}: {e}", dir.display()))
    })
}

/// Unmounts it; its content is lost. Blocking, idempotent.
///
/// # Errors
/// When the kernel refuses.
pub fn unmount_at(dir: &Path) -> io::Result<()> {
    if is_mounted(dir) { unmount(dir) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Unmounted<'a>(&'a Path);

    impl Drop for Unmounted<'_> {
        fn drop(&mut self) {
            let _ = unmount_at(self.0);
        }
    }

    #[test]
    fn secrets_are_memory_of_their_size() {
        if let Err(why) = supported() {
            skip::cannot(&format!("nothing can be mounted here: {why}"));
            return;
        }
        let parent = tempfile::tempdir().expect("temp dir");
        let dir = parent.path().join("secrets");
        fs::create_dir(&dir).expect("directory");
        let _unmounted = Unmounted(&dir);
        let mut prepared = 0;
        for _ in 0..2 {
            mount_at(&dir, Some(2), Keeper::User(1234, 1235), || {
                prepared += 1;
                Ok(())
            })
            .expect("mounted");
            let meta = fs::metadata(&dir).expect("there");
            assert_eq!((meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777), (1234, 1235, 0o700));
            // Repeated calls keep the content.
            fs::write(dir.join("key"), "k").expect("a file");
        }
        assert_eq!(prepared, 1, "mounted once");
        assert_eq!(
            fs::write(dir.join("big"), vec![0; 3 << 20]).expect_err("too much").kind(),
            io::ErrorKind::StorageFull
        );
        unmount_at(&dir).expect("unmounted");
        unmount_at(&dir).expect("idempotent");
        assert!(
            !is_mounted(&dir) && fs::read_dir(&dir).expect("there").next().is_none(),
            "nothing is left on the disk"
        );
        // The files of an agent that did not mount stay visible.
        fs::write(dir.join("old"), "o").expect("a file");
        mount_at(&dir, None, Keeper::Agent, || panic!("nothing is mounted")).expect("left as it is");
        assert!(!is_mounted(&dir));
        fs::remove_file(dir.join("old")).expect("removed");
        mount_at(&dir, None, Keeper::Image, || Ok(())).expect("mounted");
        assert_eq!(fs::metadata(&dir).expect("there").permissions().mode() & 0o7777, 0o777);
    }
}
