//! What a job file makes the mock drivers do, over their plugin processes.

mod local;
mod remote;

use std::path::Path;
use std::process::Command;

use driver_host::encode_config;
use driver_sdk::proto::driver::{StartTaskRequest, TaskConfig, TaskHandle};
use driver_sdk::testing::Plugin;
use serde_json::Value;
use testkit::soon;
use tonic::Status;

async fn launch(program: &str, dir: &Path) -> Plugin {
    let mut command = Command::new(program);
    command.env("TMPDIR", dir);
    soon(Plugin::launch(command)).await.expect("starts")
}

/// A task as a host describes it; the configuration goes through the schema.
async fn task(plugin: &mut Plugin, id: &str, config: Value) -> TaskConfig {
    let schema = plugin.describe().await.expect("described").task_config;
    TaskConfig {
        id: id.into(),
        name: "task".into(),
        alloc_id: "alloc".into(),
        msgpack_driver_config: encode_config(schema.wire(), &config, &Default::default()).expect("fits"),
        ..TaskConfig::default()
    }
}

async fn start(plugin: &Plugin, task: &TaskConfig) -> Result<TaskHandle, Status> {
    let mut driver = plugin.driver.clone();
    let answer = soon(driver.start_task(StartTaskRequest { task: Some(task.clone()) })).await?;
    Ok(answer.into_inner().handle.expect("a handle"))
}
