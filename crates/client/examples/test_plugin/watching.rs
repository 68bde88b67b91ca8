//! A remote driver of the plain protocol that does what the one for ECS does that is written in Go for a stock host: it
//! keeps its tasks in a map of its process; a watch for each, begun by StartTask or RecoverTask, looks at the instance
//! at intervals and ends with the first look that fails, with the first that sees the end, or when it is cancelled.
//! Only a cancelled one notes that the task has ended; RecoverTask of a task that is in the map does nothing.
//!
//! An instance is a directory: `status` is what the runtime says of it, `looks` has a byte for each look at it, `stops`
//! one for each order to stop it. While `fault` is there, looks fail.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use driver_sdk::{
    Capabilities, Error, Inspection, PluginInfo, Started, StopTask, TaskConfig, TaskExit, TaskHandle, TaskStatus,
    async_trait, handle, schema,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(200);

/// A task's `config`, and what is found again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct State {
    instance: PathBuf,
}

#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    exited: bool,
    code: i32,
    detach: bool,
}

#[derive(Debug)]
struct Watch {
    instance: PathBuf,
    stdout: String,
    noted: Mutex<Noted>,
    cancelled: watch::Sender<bool>,
    done: watch::Sender<bool>,
}

fn mark(instance: &Path, name: &str) {
    let file = fs::File::options().create(true).append(true).open(instance.join(name));
    file.and_then(|mut file| file.write_all(b".")).expect("writable");
}

fn look(instance: &Path) -> Option<String> {
    mark(instance, "looks");
    if instance.join("fault").exists() {
        return None;
    }
    fs::read_to_string(instance.join("status")).ok()
}

impl Watch {
    fn begin(instance: PathBuf, stdout: String) -> Arc<Self> {
        let watch = Self {
            instance,
            stdout,
            noted: Mutex::default(),
            cancelled: watch::Sender::new(false),
            done: watch::Sender::new(false),
        };
        let watch = Arc::new(watch);
        let (runs, runtime) = (watch.clone(), tokio::runtime::Handle::current());
        std::thread::spawn(move || {
            runs.run(&runtime);
            runs.done.send_replace(true);
        });
        watch
    }

    fn run(&self, runtime: &tokio::runtime::Handle) {
        // Waits until somebody reads.
        let Ok(mut stdout) = fs::File::options().write(true).open(&self.stdout) else {
            self.noted.lock().expect("lock").code = 1;
            return;
        };
        let mut cancelled = self.cancelled.subscribe();
        while !*cancelled.borrow_and_update() {
            if runtime.block_on(async { tokio::time::timeout(INTERVAL, cancelled.changed()).await }).is_ok() {
                continue;
            }
            let Some(status) = look(&self.instance) else {
                self.noted.lock().expect("lock").code = 1;
                return;
            };
            let line = format!(
                "[now] - client is remotely monitoring ECS task: {} with status {status}\n",
                self.instance.display()
            );
            let _ = stdout.write_all(line.as_bytes());
            if status != "RUNNING" {
                self.noted.lock().expect("lock").code = 1;
                return;
            }
        }
        let mut noted = self.noted.lock().expect("lock");
        if !noted.detach {
            mark(&self.instance, "stops");
            // Whoever else watches it sees no half of a word.
            let draft = self.instance.join("draft");
            fs::write(&draft, "STOPPED")
                .and_then(|()| fs::rename(draft, self.instance.join("status")))
                .expect("writable");
        }
        noted.exited = true;
    }

    fn stop(&self, detach: bool) {
        self.noted.lock().expect("lock").detach |= detach;
        self.cancelled.send_replace(true);
    }

    async fn over(&self) {
        self.done.subscribe().wait_for(|done| *done).await.expect("the sender is here");
    }
}

/// The driver.
#[derive(Default)]
pub(crate) struct Driver {
    tasks: Mutex<HashMap<String, Arc<Watch>>>,
}

impl Driver {
    fn task(&self, id: &str) -> Result<Arc<Watch>, Error> {
        self.tasks.lock().expect("lock").get(id).cloned().ok_or(Error::TaskNotFound)
    }
}

#[async_trait]
impl driver_sdk::Driver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("watching", "1.0.0")
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
            .and_then(|()| fs::write(state.instance.join("status"), "RUNNING"))
            .map_err(Error::failed)?;
        let driver_state = handle::encode(&state)?;
        self.tasks.lock().expect("lock").insert(task.id, Watch::begin(state.instance, task.stdout_path));
        Ok(Started { driver_state, version: 1, network: None })
    }

    async fn recover_task(&self, task: TaskHandle) -> Result<(), Error> {
        let state: State = handle::decode(&task.driver_state)?;
        let config = task.config.unwrap_or_default();
        self.tasks
            .lock()
            .expect("lock")
            .entry(config.id)
            .or_insert_with(|| Watch::begin(state.instance, config.stdout_path));
        Ok(())
    }

    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> {
        let task = self.task(id)?;
        task.over().await;
        let noted = *task.noted.lock().expect("lock");
        Ok(TaskExit::code(noted.code))
    }

    async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error> {
        let task = self.task(id)?;
        let detach = stop.signal == "DETACH";
        task.stop(detach);
        match tokio::time::timeout(stop.timeout, task.over()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::failed(format!("timed out waiting for ecs task (id={id}) to stop (detach={detach})"))),
        }
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), Error> {
        let task = self.task(id)?;
        if !task.noted.lock().expect("lock").exited && !force {
            return Err(Error::failed("cannot destroy running task"));
        }
        task.stop(false);
        self.tasks.lock().expect("lock").remove(id);
        Ok(())
    }

    async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> {
        let task = self.task(id)?;
        let status = if task.noted.lock().expect("lock").exited { TaskStatus::Exited } else { TaskStatus::Running };
        let attributes = BTreeMap::from([("arn".to_owned(), task.instance.display().to_string())]);
        Ok(Inspection { status, attributes, ..Inspection::default() })
    }
}
