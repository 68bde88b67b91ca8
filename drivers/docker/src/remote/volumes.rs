//! Volumes of the engine that jobs mount by name. An engine would make one that is missing, empty: a wrong name would
//! look like lost data.

use driver_sdk::{RemoteError, TaskConfig};
use serde::de::IgnoredAny;

use super::names::answer;
use crate::engine::{Engine, encode};

/// Refuses a task that mounts what the engine does not have.
pub(crate) async fn present(engine: &Engine, task: &TaskConfig) -> Result<(), RemoteError> {
    for mount in &task.mounts {
        let name = &mount.host_path;
        let doing = format!("look for volume {name:?}");
        match engine.get::<IgnoredAny>(&doing, &format!("/volumes/{}", encode(name))).await {
            Ok(_) => {}
            Err(e) if e.is_absent() => {
                return Err(RemoteError::wrong_request(format!(
                    "volume {:?}: the engine has no volume {name:?}; its operator makes it there (docker volume \
                        create {name})",
                    mount.request_name
                )));
            }
            Err(e) => return Err(answer(e)),
        }
    }
    Ok(())
}
