//! What the tests of both transports ask of a driver, and how they end what a failing test leaves.

use std::path::Path;
use std::time::Duration;

use driver_sdk::{
    Ensure, LogChunk, LogStream, LogsQuery, Observation, RemoteDriver as _, RemoteHandle, StopTask, TaskConfig,
};
use remote_exec::Driver;
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::mpsc;

/// Keys are unique in the machine because cgroups are named by them.
pub(crate) fn key(world: &Path, name: &str) -> String {
    format!("{}-{name}", world.file_name().unwrap().to_string_lossy().trim_start_matches('.'))
}

pub(crate) fn ensure(world: &Path, name: &str, epoch: u64, options: &Value) -> Ensure {
    Ensure {
        key: key(world, name),
        epoch,
        owner: "cluster-1".into(),
        slot: format!("default/job.group[0]/{name}"),
        task: TaskConfig {
            id: format!("alloc/{name}/0123abcd"),
            name: name.into(),
            msgpack_driver_config: rmp_serde::to_vec_named(options).unwrap(),
            ..TaskConfig::default()
        },
        ..Ensure::default()
    }
}

/// What an executor has written down in its directory of state; null where it has not.
pub(crate) fn record(state: &Path) -> Value {
    let text = std::fs::read_to_string(state.join("executor.json")).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Ends a workload that has left no result.
pub(crate) fn end_workload(state: &Path) {
    if let Some(pid) = record(state)["workload_pid"].as_i64().filter(|_| !state.join("result.json").exists()) {
        let _ = testkit::try_signal(pid, Signal::KILL);
    }
}

pub(crate) async fn observe(driver: &Driver, handle: &RemoteHandle) -> Observation {
    driver.observe(std::slice::from_ref(handle)).await.unwrap().remove(0)
}

/// Where the output begins, and the output.
pub(crate) async fn read_log(driver: &Driver, handle: &RemoteHandle, offset: u64, from_end: bool) -> (u64, String) {
    let (sink, mut chunks) = mpsc::channel::<LogChunk>(4);
    let query = LogsQuery { stream: LogStream::Stdout, offset, follow: false, from_end };
    let (read, (at, text)) = tokio::join!(driver.logs(handle, query, sink), async {
        let (mut at, mut text) = (None, Vec::new());
        while let Some(chunk) = chunks.recv().await {
            at.get_or_insert(chunk.offset);
            text.extend(chunk.data);
        }
        (at.unwrap_or(0), String::from_utf8(text).unwrap())
    });
    read.unwrap();
    (at, text)
}

pub(crate) fn now() -> StopTask {
    StopTask { signal: "SIGKILL".into(), timeout: Duration::ZERO }
}
