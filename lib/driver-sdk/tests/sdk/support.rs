//! The example drivers as processes, and tasks for them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use driver_host::encode_config;
use driver_sdk::proto::build;
use driver_sdk::proto::driver::{
    DestroyTaskRequest, LogPolicy, RecoverTaskRequest, StartTaskRequest, StopTaskRequest, TaskConfig, TaskHandle,
    WaitTaskRequest, WaitTaskResponse,
};
use driver_sdk::testing::Plugin;
use serde_json::Value;
pub(crate) use testkit::{eventually, soon};
use tonic::Status;

/// A directory with an allocation's directories. A drop kills its remaining processes.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("temporary directory"));
        for dir in ["a/alloc/alloc/logs", "a/alloc/task/private", "s"] {
            std::fs::create_dir_all(place.path().join(dir)).expect("creates");
        }
        place
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The driver, as an agent starts it.
    pub(crate) async fn plugin(&self, name: &str) -> Plugin {
        let mut command = Command::new(testkit::beside_the_tests(name));
        command.env("TMPDIR", self.path().join("s"));
        soon(Plugin::launch(command)).await.expect("starts")
    }

    /// A task whose environment identifies its processes.
    pub(crate) async fn task(&self, plugin: &mut Plugin, start: &str, config: &Value) -> TaskConfig {
        let schema = plugin.describe().await.expect("described").task_config;
        TaskConfig {
            // As unique as the temporary directory, because cgroups are named after it.
            id: format!("{}/task/{start}", self.mark()),
            name: "task".into(),
            alloc_id: "alloc".into(),
            alloc_dir: self.path().join("a/alloc").display().to_string(),
            msgpack_driver_config: encode_config(schema.wire(), config, &Default::default()).expect("fits"),
            env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned()), ("MARK".to_owned(), self.mark())].into(),
            drover_log: Some(LogPolicy {
                dir: self.path().join("a/alloc/alloc/logs").display().to_string(),
                stdout_name: "task.stdout".into(),
                stderr_name: "task.stderr".into(),
                max_files: 3,
                max_file_size_bytes: 1 << 20,
                disabled: false,
            }),
            ..TaskConfig::default()
        }
    }

    fn mark(&self) -> String {
        self.path().file_name().expect("name").to_string_lossy().trim_start_matches('.').to_owned()
    }

    /// Processes of tasks.
    pub(crate) fn workloads(&self) -> Vec<i32> {
        let mark = format!("MARK={}", self.mark());
        testkit::pids().filter(|pid| testkit::environment(*pid).contains(&mark)).collect()
    }

    pub(crate) fn log(&self, stream: &str) -> String {
        let file = self.path().join(format!("a/alloc/alloc/logs/task.{stream}.0"));
        std::fs::read_to_string(file).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for pid in self.workloads() {
            let _ = testkit::try_signal(pid, rustix::process::Signal::KILL);
        }
    }
}

pub(crate) async fn start(plugin: &mut Plugin, task: &TaskConfig) -> TaskHandle {
    let request = StartTaskRequest { task: Some(task.clone()) };
    soon(plugin.driver.start_task(request)).await.expect("starts").into_inner().handle.expect("a handle")
}

pub(crate) async fn wait(plugin: &Plugin, task: &TaskConfig) -> Result<WaitTaskResponse, Status> {
    let mut driver = plugin.driver.clone();
    soon(driver.wait_task(WaitTaskRequest { task_id: task.id.clone() })).await.map(|answer| answer.into_inner())
}

pub(crate) async fn recover(plugin: &mut Plugin, handle: &TaskHandle) -> Result<(), Status> {
    let request = RecoverTaskRequest { task_id: String::new(), handle: Some(handle.clone()) };
    soon(plugin.driver.recover_task(request)).await.map(drop)
}

pub(crate) async fn stop(
    plugin: &mut Plugin,
    task: &TaskConfig,
    signal: &str,
    timeout: Duration,
) -> Result<(), Status> {
    let request =
        StopTaskRequest { task_id: task.id.clone(), timeout: Some(build::duration(timeout)), signal: signal.into() };
    soon(plugin.driver.stop_task(request)).await.map(drop)
}

pub(crate) async fn destroy(plugin: &mut Plugin, task: &TaskConfig, force: bool) -> Result<(), Status> {
    soon(plugin.driver.destroy_task(DestroyTaskRequest { task_id: task.id.clone(), force })).await.map(drop)
}
