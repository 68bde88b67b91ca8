//! A remote driver that pushes what it sees, and whose provider may be out of reach.
//!
//! An instance is a directory: `ended` is its exit code. While `deaf` is there, streams break and none can be opened;
//! while `away` is there, nobody can ask the provider at all.

use std::{fs, path::PathBuf, time::Duration};

use driver_sdk::{
    Description, Ensure, Ensured, InstanceState, Observation, ObservationSink, PluginInfo, RemoteError, RemoteHandle,
    StopTask, TaskExit, async_trait, handle, schema,
};
use serde::{Deserialize, Serialize};

const LOOK: Duration = Duration::from_millis(10);

/// A task's `config`, and what is found again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct State {
    instance: PathBuf,
    key: String,
}

impl State {
    fn of(handle: &RemoteHandle) -> Result<Self, RemoteError> {
        handle::decode(&handle.data).map_err(RemoteError::wrong_request)
    }

    fn look(&self) -> Result<Observation, RemoteError> {
        if self.instance.join("away").exists() {
            return Err(RemoteError::could_not_ask("the provider is away"));
        }
        let ended = fs::read_to_string(self.instance.join("ended")).ok().and_then(|code| code.parse().ok());
        Ok(Observation {
            key: self.key.clone(),
            state: if ended.is_some() { InstanceState::Exited } else { InstanceState::Running },
            exit: ended.map(TaskExit::code).unwrap_or_default(),
            ..Observation::default()
        })
    }
}

/// The driver.
pub(crate) struct Driver;

#[async_trait]
impl driver_sdk::RemoteDriver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("pushing", "1.0.0")
    }

    fn config_schema(&self) -> Option<schema::Spec> {
        Some(schema::object::<&str>([]))
    }

    fn task_config_schema(&self) -> schema::Spec {
        schema::object([("instance", schema::string())])
    }

    fn describe(&self) -> Description {
        Description {
            provider: "pushing".to_owned(),
            keyed_create: true,
            watch: true,
            handle_schema_min: 1,
            handle_schema_max: 1,
            ..Description::default()
        }
    }

    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError> {
        let config: State = handle::decode(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        let state = State { key: request.key, ..config };
        fs::create_dir_all(&state.instance).map_err(RemoteError::could_not_ask)?;
        let handle = RemoteHandle { schema: 1, data: handle::encode(&state).map_err(RemoteError::wrong_request)? };
        Ok(Ensured { handle, observed: state.look()?, created: true })
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        handles.iter().map(|handle| State::of(handle)?.look()).collect()
    }

    async fn watch(&self, handles: Vec<RemoteHandle>, sink: ObservationSink) -> Result<(), RemoteError> {
        let mut told = vec![None; handles.len()];
        while !sink.is_closed() {
            for (handle, told) in handles.iter().zip(&mut told) {
                let state = State::of(handle)?;
                if state.instance.join("deaf").exists() {
                    return Err(RemoteError::could_not_ask("the provider takes no stream"));
                }
                let seen = Some(state.look()?);
                if *told != seen {
                    told.clone_from(&seen);
                    if let Some(seen) = seen {
                        let _ = sink.send(seen).await;
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn stop(&self, handle: &RemoteHandle, _: u64, _: StopTask) -> Result<Observation, RemoteError> {
        let state = State::of(handle)?;
        fs::write(state.instance.join("ended"), "0").map_err(RemoteError::could_not_ask)?;
        state.look()
    }

    async fn acknowledge(&self, _: &RemoteHandle, _: u64) -> Result<(), RemoteError> {
        Ok(())
    }
}
