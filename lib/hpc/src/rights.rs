//! User rights for file work. A run directory belongs to the user of its job, who may put anything there, such as
//! a link to a file of root. So an agent that runs as root does all work in it with the rights of that user.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use driver_sdk::RemoteError;
use rustix::process::{Gid, Uid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::Answer;

/// Numbers of a user and of its first group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Number of the user.
    pub uid: u32,
    /// Number of its first group.
    pub gid: u32,
}

/// The owner of a directory; `None` where there is no such directory.
///
/// # Errors
/// Those of the system.
pub fn owner(dir: &Path) -> io::Result<Option<Owner>> {
    match fs::symlink_metadata(dir) {
        Ok(found) => Ok(Some(Owner { uid: found.uid(), gid: found.gid() })),
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

/// Works in a directory with the rights of its owner, if this thread has those of root. Only root may be able to
/// replace the directory itself. The work must not leave the thread.
///
/// # Errors
/// Those of the work, and [`RemoteError::CouldNotAsk`] when the owner is not known or the rights cannot be taken.
pub fn as_owner<T>(dir: &Path, work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    if !geteuid().is_root() {
        return work();
    }
    let unclear = |why: io::Error| RemoteError::could_not_ask(format!("could not look at {}: {why}", dir.display()));
    match owner(dir).map_err(unclear)? {
        Some(owner) if owner.uid != 0 => {
            let _rights = Rights::of(owner).map_err(|why| {
                RemoteError::could_not_ask(format!("could not take the rights of the user {}: {why}", owner.uid))
            })?;
            work()
        }
        _ => work(),
    }
}

/// Rights of another user, which this thread has until the drop. Real and saved numbers stay those of root, so that the
/// user can neither signal nor trace the process.
struct Rights {
    groups: Vec<Gid>,
    gid: Gid,
}

impl Rights {
    fn of(owner: Owner) -> io::Result<Self> {
        let before = Self { groups: getgroups()?, gid: rustix::process::getegid() };
        let taken = set_thread_groups(&[])
            .and_then(|()| set_thread_res_gid(None, Gid::from_raw(owner.gid), None))
            .and_then(|()| set_thread_res_uid(None, Uid::from_raw(owner.uid), None));
        // A drop gives back what was taken until then.
        taken.map(|()| before).map_err(io::Error::from)
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        let given_back = set_thread_res_uid(None, Uid::ROOT, None)
            .and_then(|()| set_thread_res_gid(None, self.gid, None))
            .and_then(|()| set_thread_groups(&self.groups));
        if let Err(why) = given_back {
            // Whatever this thread does next would be done as somebody else.
            tracing::error!(%why, "the rights of root cannot be taken back");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    /// A user that nobody has.
    const SOMEBODY: Owner = Owner { uid: 54_321, gid: 54_322 };

    #[test]
    fn work_in_a_directory_of_somebody_has_no_rights_of_root() {
        if !geteuid().is_root() {
            return skip::cannot("only root can take the rights of others");
        }
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).expect("open to all");
        let (theirs, secret) = (dir.path().join("theirs"), dir.path().join("secret"));
        fs::create_dir(&theirs).expect("made");
        chown(&theirs, Some(SOMEBODY.uid), Some(SOMEBODY.gid)).expect("given");
        fs::write(&secret, "of root").expect("written");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("private");
        symlink(&secret, theirs.join("out")).expect("linked");

        let read = || Ok(fs::read_to_string(theirs.join("out")).map_err(|why| why.kind()));
        assert_eq!(as_owner(&theirs, read), Ok(Err(ErrorKind::PermissionDenied)));
        as_owner(&theirs, || {
            // Work within work.
            as_owner(&theirs, || fs::write(theirs.join("made"), "x").map_err(RemoteError::could_not_ask))
        })
        .expect("done");
        let made = owner(&theirs.join("made")).expect("looked at");
        assert_eq!(made, Some(SOMEBODY));

        // Root again, also after a panic.
        assert_eq!(read(), Ok(Ok("of root".to_owned())));
        let panics = std::panic::AssertUnwindSafe(|| as_owner::<()>(&theirs, || panic!("in the work")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(read(), Ok(Ok("of root".to_owned())));
    }
}
