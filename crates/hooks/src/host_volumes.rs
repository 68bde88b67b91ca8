//! Plugins of dynamic host volumes: `mkdir`, which every node has, and executables (facts: dynamic host volumes).
//!
//! Each operation may be repeated: an agent that dies within one leaves nothing half made that a repetition does not
//! complete. An executable that outlives its agent holds a lock, and the next agent waits for it.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use host::node_env::NodeEnv;
use model::{DynamicVolume, VolumeId, volume::MKDIR};
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use tokio::{process::Command, time::Instant};

use crate::process_group;

/// How long an executable may take, and how long one of a former agent is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The plugins of a node.
#[derive(Clone, Debug)]
pub struct VolumePlugins {
    /// Knows the node.
    pub env: NodeEnv,
    /// Directory of the volumes that plugins make.
    pub volumes_dir: PathBuf,
    /// Directory of the executables.
    pub plugin_dir: PathBuf,
    /// Directory of the locks.
    pub lock_dir: PathBuf,
}

/// What a plugin has made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Made {
    /// Absolute path of the directory.
    pub path: String,
    /// Capacity in bytes; 0 = it does not say.
    #[serde(default)]
    pub bytes: i64,
}

impl VolumePlugins {
    /// Makes a volume, or finds that it is there; one that was registered has to be. Cancel safe: a drop ends the
    /// executable, and the next call repeats what it was at.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub async fn create(&self, volume: &DynamicVolume) -> Result<Made, String> {
        if volume.registered {
            let path = Path::new(&volume.host_path);
            return match path.is_dir() {
                true => Ok(Made { path: volume.host_path.clone(), bytes: volume.capacity_bytes }),
                false => Err(format!("{} is no directory of this node", path.display())),
            };
        }
        if volume.plugin_id == MKDIR {
            let (dir, volume) = (self.volumes_dir.clone(), volume.clone());
            return working(move || mkdir(&dir, &volume)).await;
        }
        let answer = self.ask("create", volume).await?;
        let made: Made = serde_json::from_slice(&answer)
            .map_err(|e| format!("plugin {:?}: its answer to create is not as it has to be: {e}", volume.plugin_id))?;
        if !Path::new(&made.path).is_absolute() || !Path::new(&made.path).is_dir() {
            return Err(format!("plugin {:?} names {:?}, which is no directory", volume.plugin_id, made.path));
        }
        Ok(made)
    }

    /// Removes a volume with what is in it, or finds that it is gone. One that was registered stays. Cancel safe as
    /// [`Self::create`].
    ///
    /// # Errors
    /// Why it is still there, for people.
    pub async fn remove(&self, volume: &DynamicVolume) -> Result<(), String> {
        if volume.registered {
            return Ok(());
        }
        if volume.plugin_id == MKDIR {
            let (dir, id) = (self.volumes_dir.clone(), volume.id);
            return working(move || unmake(&dir, id)).await;
        }
        self.ask("delete", volume).await.map(drop)
    }

    /// Asks an executable for an operation.
    async fn ask(&self, operation: &str, volume: &DynamicVolume) -> Result<Vec<u8>, String> {
        let plugin = &volume.plugin_id;
        if Path::new(plugin).file_name() != Some(plugin.as_ref()) {
            return Err(format!("{plugin:?} is no name of a plugin"));
        }
        let program = self.plugin_dir.join(plugin);
        let lock = self.lock(volume.id).await?;
        let node = self.env.node();
        let mut command = Command::new(&program);
        command.arg(operation).env_clear().current_dir("/");
        command.env("DHV_OPERATION", operation).env("DHV_VOLUMES_DIR", &self.volumes_dir);
        command.env("DHV_PLUGIN_DIR", &self.plugin_dir).env("DHV_NODE_ID", node.id.to_string());
        command.env("DHV_NODE_POOL", &node.pool).env("DHV_NAMESPACE", volume.namespace.as_str());
        command.env("DHV_VOLUME_NAME", &volume.name).env("DHV_VOLUME_ID", volume.id.to_string());
        command.env("DHV_CAPACITY_MIN_BYTES", volume.requested_capacity_min_bytes.to_string());
        command.env("DHV_CAPACITY_MAX_BYTES", volume.requested_capacity_max_bytes.to_string());
        command.env("DHV_PARAMETERS", serde_json::to_string(&volume.parameters).unwrap_or_default());
        if operation == "delete" {
            command.env("DHV_CREATED_PATH", &volume.host_path);
        }
        // Whoever has it as its input has the lock.
        command.stdin(Stdio::from(lock));
        let (said, status) = process_group::answer(command, PATIENCE).await?;
        match status {
            Some(status) if status.success() => Ok(said),
            Some(status) => Err(format!("{} ({status}): {}", program.display(), reason(&said))),
            None => Err(format!("{}: {}", program.display(), reason(&said))),
        }
    }

    /// The lock of a volume: no two executables work on one.
    async fn lock(&self, id: VolumeId) -> Result<File, String> {
        let path = self.lock_dir.join(format!("{id}.lock"));
        let failed = |e: io::Error| format!("lock {}: {e}", path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&self.lock_dir).map_err(failed)?;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err("its plugin, which a former agent has started, has not ended yet".to_owned());
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    /// Forgets the locks of volumes that are not these.
    pub fn forget_locks(&self, known: &[VolumeId]) {
        let names: Vec<_> = known.iter().map(|id| format!("{id}.lock")).collect();
        for entry in fs::read_dir(&self.lock_dir).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| !names.iter().any(|known| known == name)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

async fn working<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, String> {
    match blocking::spawn(work).await {
        Ok(done) => done.map_err(|e| e.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// The reason in an answer.
fn reason(said: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Failed {
        error: String,
    }
    match serde_json::from_slice::<Failed>(said) {
        Ok(Failed { error }) => error,
        Err(_) => "it gives no reason".to_owned(),
    }
}

fn wrong(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Makes a directory with the mode and the owners of the parameters: beside its place, and then there as a whole.
fn mkdir(volumes: &Path, volume: &DynamicVolume) -> io::Result<Made> {
    let (mut mode, mut owners) = (0o700, [None, None]);
    for (name, value) in &volume.parameters {
        let number = |radix| {
            let bad = |e| wrong(format!("parameter {name:?} of plugin mkdir: {value:?}: {e}"));
            u32::from_str_radix(value, radix).map_err(bad)
        };
        match name.as_str() {
            "mode" => mode = number(8)? & 0o7777,
            "uid" => owners[0] = Some(number(10)?),
            "gid" => owners[1] = Some(number(10)?),
            _ => return Err(wrong(format!("plugin mkdir has no parameter {name:?}: there are mode, uid, gid"))),
        }
    }
    let dir = volumes.join(volume.id.to_string());
    let made = Made { path: dir.display().to_string(), bytes: 0 };
    if dir.is_dir() {
        return Ok(made);
    }
    // Tasks of other users pass through it.
    DirBuilder::new().recursive(true).mode(0o711).create(volumes)?;
    let new = volumes.join(format!(".{}.new", volume.id));
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    DirBuilder::new().mode(0o700).create(&new)?;
    std::os::unix::fs::chown(&new, owners[0], owners[1])?;
    fs::set_permissions(&new, Permissions::from_mode(mode))?;
    fs::rename(&new, &dir)?;
    File::open(volumes)?.sync_all()?;
    Ok(made)
}

/// Removes such a directory: it is out of its place first, so that nobody mounts a half of it.
fn unmake(volumes: &Path, id: VolumeId) -> io::Result<()> {
    let gone = volumes.join(format!(".{id}.gone"));
    match fs::rename(volumes.join(id.to_string()), &gone) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for rest in [gone, volumes.join(format!(".{id}.new"))] {
        match fs::remove_dir_all(rest) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(parameters: &[(&str, &str)]) -> DynamicVolume {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        DynamicVolume {
            id: VolumeId(uuid::Uuid::from_u128(7)),
            name: "data".into(),
            plugin_id: MKDIR.into(),
            parameters,
            ..DynamicVolume::default()
        }
    }

    #[test]
    fn a_directory_is_made_once_with_its_mode_and_goes_with_what_is_in_it() {
        let dir = tempfile::tempdir().expect("temp dir");
        let volumes = dir.path().join("volumes");
        let asked = volume(&[("mode", "0750")]);
        // What an agent that has died left half made.
        fs::create_dir_all(volumes.join(format!(".{}.new/inner", asked.id))).expect("a half");
        let made = mkdir(&volumes, &asked).expect("made");
        assert_eq!(made, Made { path: volumes.join(asked.id.to_string()).display().to_string(), bytes: 0 });
        let mode = || fs::metadata(&made.path).expect("it is there").permissions().mode() & 0o7777;
        assert_eq!(mode(), 0o750);
        fs::write(Path::new(&made.path).join("data"), "kept").expect("write");
        assert_eq!(mkdir(&volumes, &volume(&[("mode", "0700")])).expect("again"), made);
        assert_eq!(mode(), 0o750, "what is there stays as it is");
        unmake(&volumes, asked.id).expect("removed");
        unmake(&volumes, asked.id).expect("it is gone");
        assert_eq!(fs::read_dir(&volumes).expect("list").count(), 0);
    }

    #[test]
    fn parameters_that_say_nothing_to_mkdir_are_refused_by_name() {
        let dir = tempfile::tempdir().expect("temp dir");
        for (parameters, part) in [
            (&[("mode", "rwx")][..], "\"mode\""),
            (&[("uid", "-1")], "\"uid\""),
            (&[("size", "1")], "no parameter \"size\""),
        ] {
            let why = mkdir(dir.path(), &volume(parameters)).expect_err("refused").to_string();
            assert!(why.contains(part), "{why}");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 0);
    }
}
