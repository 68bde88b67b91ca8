//! A remote driver of the plain protocol, as one that is written in Go for a stock host: its tasks live in a "cloud", a
//! directory, whatever becomes of plugins and nodes, and it writes what they say to the paths that it is given.
//!
//! An instance is a directory: `output` is all that it has said, `read` how much of that has been passed on, `turn` is
//! locked by who passes it on, `ended` is its exit code.

use std::{
    collections::HashMap,
    fs,
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use driver_sdk::{
    Capabilities, Error, Inspection, PluginInfo, Started, StopTask, TaskConfig, TaskExit, TaskHandle, TaskStatus,
    async_trait, handle, schema,
};
use serde::{Deserialize, Serialize};

const POLL: Duration = Duration::from_millis(5);

/// A task's `config`, and what is found again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct State {
    instance: PathBuf,
}

struct Known {
    instance: PathBuf,
    /// Its output is passed on until this is set.
    detached: Arc<AtomicBool>,
}

/// The driver.
#[derive(Default)]
pub(crate) struct Driver {
    tasks: Mutex<HashMap<String, Known>>,
}

impl Driver {
    fn instance(&self, id: &str) -> Result<PathBuf, Error> {
        self.tasks.lock().expect("lock").get(id).map(|known| known.instance.clone()).ok_or(Error::TaskNotFound)
    }

    fn know(&self, id: String, instance: PathBuf, stdout: &str) {
        let mut tasks = self.tasks.lock().expect("lock");
        // As its models do: what is known is not looked at again.
        if tasks.contains_key(&id) {
            return;
        }
        let detached = Arc::new(AtomicBool::new(false));
        let (from, to, over) = (instance.clone(), PathBuf::from(stdout), detached.clone());
        std::thread::spawn(move || pass_on(&from, &to, &over));
        tasks.insert(id, Known { instance, detached });
    }
}

/// Copies what the instance says until it is detached.
fn pass_on(instance: &Path, to: &Path, detached: &AtomicBool) {
    let mut to = fs::File::options().write(true).open(to).expect("a path for output");
    let (place, draft) = (instance.join("read"), instance.join("read.new"));
    let turn = fs::File::create(instance.join("turn")).expect("writable");
    loop {
        // The next manager's plugin may be at it already.
        turn.lock().expect("a turn");
        if detached.load(Ordering::Relaxed) {
            return;
        }
        let read: u64 = fs::read_to_string(&place).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut new = Vec::new();
        let mut output = fs::File::open(instance.join("output")).expect("there");
        output.seek(SeekFrom::Start(read)).and_then(|_| output.read_to_end(&mut new)).expect("readable");
        if !new.is_empty() {
            to.write_all(&new).expect("somebody reads");
            // Whole or not at all, whenever this process is killed.
            let read = (read + new.len() as u64).to_string();
            fs::write(&draft, read).and_then(|()| fs::rename(&draft, &place)).expect("writable");
        }
        turn.unlock().expect("the turn ends");
        if new.is_empty() {
            std::thread::sleep(POLL);
        }
    }
}

fn exit(instance: &Path) -> Option<i32> {
    fs::read_to_string(instance.join("ended")).ok()?.trim().parse().ok()
}

#[async_trait]
impl driver_sdk::Driver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("cloud", "1.0.0")
    }

    fn config_schema(&self) -> Option<schema::Spec> {
        Some(schema::object::<&str>([]))
    }

    async fn set_config(&self, _: driver_sdk::config::Config, _: Option<driver_sdk::AgentConfig>) -> Result<(), Error> {
        Ok(())
    }

    fn task_config_schema(&self) -> schema::Spec {
        schema::object([("instance", schema::string())])
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { remote_tasks: true, ..Capabilities::default() }
    }

    async fn start_task(&self, task: TaskConfig) -> Result<Started, Error> {
        let state: State = driver_sdk::config::Config::new(task.msgpack_driver_config.clone()).decode()?;
        fs::create_dir(&state.instance)
            .and_then(|()| fs::write(state.instance.join("output"), "begin\n"))
            .map_err(Error::failed)?;
        let driver_state = handle::encode(&state)?;
        self.know(task.id, state.instance, &task.stdout_path);
        Ok(Started { driver_state, version: 1, network: None })
    }

    async fn recover_task(&self, task: TaskHandle) -> Result<(), Error> {
        let state: State = handle::decode(&task.driver_state)?;
        if !state.instance.exists() {
            return Err(Error::TaskNotFound);
        }
        let config = task.config.unwrap_or_default();
        self.know(config.id, state.instance, &config.stdout_path);
        Ok(())
    }

    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> {
        loop {
            if let Some(code) = exit(&self.instance(id)?) {
                return Ok(TaskExit::code(code));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error> {
        let instance = self.instance(id)?;
        if stop.signal == "DETACH" {
            if let Some(known) = self.tasks.lock().expect("lock").remove(id) {
                known.detached.store(true, Ordering::Relaxed);
            }
            return Ok(());
        }
        fs::write(instance.join("ended"), "7").map_err(Error::failed)
    }

    async fn destroy_task(&self, id: &str, _: bool) -> Result<(), Error> {
        match self.tasks.lock().expect("lock").remove(id) {
            Some(known) => {
                known.detached.store(true, Ordering::Relaxed);
                Ok(())
            }
            None => Err(Error::TaskNotFound),
        }
    }

    async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> {
        let status = if exit(&self.instance(id)?).is_some() { TaskStatus::Exited } else { TaskStatus::Running };
        Ok(Inspection { status, ..Inspection::default() })
    }
}
