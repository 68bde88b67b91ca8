//! Network namespaces: a thread of its own makes each, and the file that it is mounted on keeps it.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use rustix::thread::UnshareFlags;

use crate::{dirs, fingerprint::bring_up};

/// statfs magic number of namespace files.
const NSFS: i64 = 0x6e73_6673;
/// The loopback interface of every new namespace.
const LOOPBACK: u32 = 1;

/// Leaves the thread's namespace. Only for threads that end afterwards.
#[allow(
    deprecated,
    reason = "its successor is unsafe for the sake of flags about descriptors, which are not used here"
)]
fn leave() -> io::Result<()> {
    Ok(rustix::thread::unshare(UnshareFlags::NEWNET)?)
}

fn in_new_namespace<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("netns".into()).stack_size(128 * 1024).spawn(move || {
        leave()?;
        work()
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread broke off")))
}

/// Whether this process may make network namespaces.
pub fn supported() -> bool {
    rustix::process::geteuid().is_root() && in_new_namespace(|| Ok(())).is_ok()
}

/// Makes a namespace with its loopback interface up, and mounts it on `path`, which it creates. Blocking.
///
/// # Errors
/// When the file cannot be made, or the kernel refuses a namespace or the mount. The file stays for [`remove`].
pub fn create(path: &Path) -> io::Result<()> {
    File::create(path)?;
    let at = path.to_owned();
    in_new_namespace(move || {
        bring_up(LOOPBACK)?;
        Ok(rustix::mount::mount_bind("/proc/thread-self/ns/net", &at)?)
    })
}

/// Whether a namespace is mounted there. A file whose mount ended with the last boot is none.
pub fn is_namespace(path: &Path) -> bool {
    #[allow(clippy::unnecessary_cast, reason = "the field's width depends on the target")]
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type as i64 == NSFS)
}

/// Unmounts a namespace and removes its file. Idempotent, blocking.
///
/// # Errors
/// When the namespace cannot be unmounted or the file not removed.
pub fn remove(path: &Path) -> io::Result<()> {
    while is_namespace(path) {
        dirs::unmount(path)?;
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_lives_in_its_file_alone() {
        if !supported() {
            skip::cannot("network namespaces need root");
            return;
        }
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("ns");
        let own = fs::read_link("/proc/self/ns/net").expect("own namespace");
        create(&path).expect("create");
        assert!(is_namespace(&path));
        assert_eq!(fs::read_link("/proc/self/ns/net").expect("own namespace"), own, "this process stays where it is");
        remove(&path).expect("remove");
        remove(&path).expect("remove is idempotent");
        assert!(!path.exists());
        File::create(&path).expect("file");
        assert!(!is_namespace(&path), "the file alone is none");
    }
}
