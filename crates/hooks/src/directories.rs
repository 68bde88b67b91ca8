//! Directories, secrets and cgroups of a task, and the payload of its dispatch.

use std::path::Path;

use base64::{Engine, prelude::BASE64_STANDARD};
use host::secrets;
use lifecycle::alloc::machine::StartFailure;
use node_record::store::{LocalStore, Write};

use crate::{
    artifacts,
    files::{Look, Root},
    hook::{Given, Hook, Prepared, Starting},
};

/// Makes the directories and cgroups of a task on this node.
pub struct Directories {
    /// Records the claim on a cgroup before the cgroup is made.
    pub store: LocalStore,
}

impl Hook for Directories {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, _: &'a mut Given) -> Prepared<'a> {
        Box::pin(self.make(starting))
    }
}

impl Directories {
    /// Makes directories, payload and cgroups. Records what lies outside the allocation's directory before it makes it.
    async fn make(&self, starting: &Starting<'_>) -> Result<(), StartFailure> {
        let Starting { place, spec, keeper, cgroup, .. } = *starting;
        if cgroup.is_some() {
            let key = format!("{}.{}", place.alloc.id, place.task);
            let claim = self.store.commit(vec![Write::Claim { kind: "cgroup", key }]).await;
            claim.map_err(|e| StartFailure::Setup { why: e.to_string(), recoverable: true })?;
        }
        let (dirs, task_dirs, cgroup) = (place.dirs.clone(), place.task_dirs(), cgroup.cloned());
        let size = spec.task.resources.secrets_mb;
        let payload =
            spec.task.dispatch_payload.clone().map(|p| (p.file, spec.job.payload.clone().unwrap_or_default()));
        let work = move || -> Result<(), String> {
            dirs.create().map_err(|e| e.to_string())?;
            task_dirs.create(keeper).map_err(|e| e.to_string())?;
            secrets::mount_at(&task_dirs.secrets, size, keeper, || artifacts::forget_secret(&task_dirs.root))
                .map_err(|e| e.to_string())?;
            if let Some((file, payload)) = payload {
                write_payload(&task_dirs.root, &file, &payload)?;
            }
            if let Some(cgroup) = cgroup {
                cgroup.create().map_err(|e| format!("create the task's cgroups: {e}"))?;
            }
            Ok(())
        };
        let done = blocking::spawn(work)
            .await
            .map_err(|e| StartFailure::Setup { why: format!("the preparation broke off: {e}"), recoverable: true })?;
        done.map_err(|why| StartFailure::Setup { why, recoverable: true })
    }
}

/// The task may have run before and may have put links in the way.
fn write_payload(task_root: &Path, file: &str, payload: &str) -> Result<(), String> {
    let relative = Path::new(file);
    if file.is_empty() || !relative.components().all(|c| matches!(c, std::path::Component::Normal(_))) {
        return Err(format!("dispatch_payload.file {file:?} must be a path below local/"));
    }
    let bytes = BASE64_STANDARD.decode(payload).map_err(|e| format!("the dispatch payload is not base64: {e}"))?;
    let write =
        |root: Root| root.write(&Path::new("local").join(relative), &bytes, Look { mode: 0o644, uid: None, gid: None });
    Root::open(task_root).and_then(write).map(drop).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_written_through_no_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let (task, host) = (dir.path().join("t"), dir.path().join("host"));
        std::fs::create_dir_all(task.join("local/sub")).expect("directories");
        std::fs::write(&host, "the host's").expect("a file");
        std::os::unix::fs::symlink(&host, task.join("local/in.json")).expect("a link");
        std::os::unix::fs::symlink(dir.path(), task.join("local/up")).expect("a link");
        write_payload(&task, "in.json", "e30=").expect("put in the place of the link");
        assert_eq!(std::fs::read_to_string(task.join("local/in.json")).expect("there"), "{}");
        write_payload(&task, "sub/new/in.json", "e30=").expect("below directories of its own");
        assert!(write_payload(&task, "up/host", "e30=").is_err_and(|why| why.contains("links are not followed")));
        assert_eq!(std::fs::read_to_string(&host).expect("there"), "the host's");
        for bad in ["", "/etc/x", "../x", "a/../../x"] {
            assert!(write_payload(&task, bad, "e30=").is_err(), "{bad:?}");
        }
    }
}
