//! Completes a driver's answers: hosts use some parts without a check, so every answer needs them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use driver_proto::driver::driver_server::Driver as Wire;
use driver_proto::driver::*;
use futures::StreamExt;
use proptest::prelude::*;
use tonic::Request;

use crate::plain_service::PlainService;
use crate::schema::{self, Spec};
use crate::types::{
    CpuUsage, ExecOutput, Inspection, MemoryUsage, NetworkOverride, PluginInfo, Started, TaskExit, TaskUsage, Usage,
};
use crate::{Context, Driver, Error, StopTask, TaskEvent};

/// Returns its prepared answers.
#[derive(Debug, Clone)]
struct Given {
    started: Started,
    exit: TaskExit,
    inspection: Inspection,
    output: ExecOutput,
    usage: TaskUsage,
}

#[crate::async_trait]
impl Driver for Given {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("given", "1.0.0")
    }
    fn task_config_schema(&self) -> Spec {
        schema::object::<&str>([])
    }
    async fn start_task(&self, _: TaskConfig) -> Result<Started, Error> {
        Ok(self.started.clone())
    }
    async fn recover_task(&self, _: TaskHandle) -> Result<(), Error> {
        Ok(())
    }
    async fn wait_task(&self, _: &str) -> Result<TaskExit, Error> {
        Ok(self.exit.clone())
    }
    async fn stop_task(&self, _: &str, _: StopTask) -> Result<(), Error> {
        Ok(())
    }
    async fn destroy_task(&self, _: &str, _: bool) -> Result<(), Error> {
        Ok(())
    }
    async fn inspect_task(&self, _: &str) -> Result<Inspection, Error> {
        Ok(self.inspection.clone())
    }
    async fn task_stats(&self, _: &str) -> Result<Option<TaskUsage>, Error> {
        Ok(Some(self.usage.clone()))
    }
    async fn exec_task(&self, _: &str, _: Vec<String>, _: Duration) -> Result<ExecOutput, Error> {
        Ok(self.output.clone())
    }
}

/// The range that the other side's conversion accepts.
fn valid(at: Option<driver_proto::Timestamp>) -> Result<(), TestCaseError> {
    let at = at.ok_or_else(|| TestCaseError::fail("no time"))?;
    // From year 1 to the end of 9999.
    prop_assert!(
        (-62_135_596_800..=253_402_300_799).contains(&at.seconds) && (0..1_000_000_000).contains(&at.nanos),
        "{:?}",
        at
    );
    Ok(())
}

async fn check(given: Given, task: TaskConfig, event: TaskEvent) -> Result<(), TestCaseError> {
    let context = Context::new();
    let service = PlainService::new(Arc::new(given), context.clone());
    let failed = |status: tonic::Status| TestCaseError::fail(status.to_string());

    let started = service
        .start_task(Request::new(StartTaskRequest { task: Some(task.clone()) }))
        .await
        .map_err(failed)?
        .into_inner();
    let handle = started.handle.ok_or_else(|| TestCaseError::fail("no handle"))?;
    let echoed = handle.config.clone().unwrap_or_default();
    prop_assert!(handle.version >= 1 && handle.state() != TaskState::Unknown, "{:?}", handle);
    prop_assert_eq!((&echoed.id, &echoed.msgpack_driver_config), (&task.id, &task.msgpack_driver_config));
    prop_assert!(echoed.resources.is_some_and(|r| r.linux_resources.is_some() && r.allocated_resources.is_some()));

    let waited = service.wait_task(Request::new(WaitTaskRequest::default())).await.map_err(failed)?.into_inner();
    prop_assert!(waited.result.is_some());

    let inspected =
        service.inspect_task(Request::new(InspectTaskRequest::default())).await.map_err(failed)?.into_inner();
    let status = inspected.task.ok_or_else(|| TestCaseError::fail("no status"))?;
    prop_assert!(status.result.is_some() && inspected.driver.is_some());
    valid(status.started_at)?;
    valid(status.completed_at)?;

    let executed = service.exec_task(Request::new(ExecTaskRequest::default())).await.map_err(failed)?.into_inner();
    prop_assert!(executed.result.is_some());

    let mut samples = service.task_stats(Request::new(TaskStatsRequest::default())).await.map_err(failed)?.into_inner();
    let sample = samples.next().await.ok_or_else(|| TestCaseError::fail("no sample"))?.map_err(failed)?;
    let stats = sample.stats.ok_or_else(|| TestCaseError::fail("an empty sample"))?;
    valid(stats.timestamp)?;
    for usage in stats.agg_resource_usage.iter().chain(stats.resource_usage_by_pid.values()) {
        prop_assert!(usage.cpu.is_some() && usage.memory.is_some());
    }
    prop_assert!(stats.agg_resource_usage.is_some());

    let mut events = service.task_events(Request::new(TaskEventsRequest {})).await.map_err(failed)?.into_inner();
    context.emit(event);
    valid(events.next().await.ok_or_else(|| TestCaseError::fail("no event"))?.map_err(failed)?.timestamp)?;

    let mut looks = service.fingerprint(Request::new(FingerprintRequest {})).await.map_err(failed)?.into_inner();
    let look = looks.next().await.ok_or_else(|| TestCaseError::fail("no fingerprint"))?.map_err(failed)?;
    prop_assert!(look.attributes.values().all(|attribute| attribute.value.is_some()));
    let capabilities = service.capabilities(Request::new(CapabilitiesRequest {})).await.map_err(failed)?.into_inner();
    prop_assert!(capabilities.capabilities.is_some());
    let schema =
        service.task_config_schema(Request::new(TaskConfigSchemaRequest {})).await.map_err(failed)?.into_inner();
    prop_assert!(schema.spec.is_some_and(|spec| spec.block.is_some()));
    Ok(())
}

/// Includes times outside every calendar.
fn time() -> impl Strategy<Value = Option<SystemTime>> {
    let seconds = prop_oneof![any::<i32>().prop_map(i64::from), -99_000_000_000..300_000_000_000i64];
    proptest::option::of((seconds, 0..1_000_000_000u32).prop_filter_map(
        "a time of this machine",
        |(seconds, nanos)| {
            let whole = Duration::from_secs(seconds.unsigned_abs());
            let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
            base?.checked_add(Duration::from_nanos(nanos.into()))
        },
    ))
}

prop_compose! {
    fn exit()(exit_code: i32, signal: i32, oom_killed: bool, error: Option<String>) -> TaskExit {
        TaskExit { exit_code, signal, oom_killed, error }
    }
}

prop_compose! {
    fn usage()(percent: Option<f64>, system_mode: Option<f64>, rss: Option<u64>, swap: Option<u64>) -> Usage {
        Usage {
            cpu: CpuUsage { percent, system_mode, ..CpuUsage::default() },
            memory: MemoryUsage { rss, swap, ..MemoryUsage::default() },
        }
    }
}

prop_compose! {
    fn given()(
        (version, driver_state, address) in (any::<u16>(), any::<Vec<u8>>(), any::<Option<String>>()),
        (one, other) in (exit(), proptest::option::of(exit())),
        (id, started_at, completed_at) in (any::<String>(), time(), time()),
        (at, total, by_pid) in (time(), usage(), proptest::collection::btree_map(any::<u32>(), usage(), 0..3)),
        stdout in any::<Vec<u8>>(),
    ) -> Given {
        let network = address.map(|address| NetworkOverride { address, ..NetworkOverride::default() });
        Given {
            started: Started { driver_state, version, network: network.clone() },
            inspection: Inspection { id, started_at, completed_at, exit: other, network, ..Inspection::default() },
            output: ExecOutput { stdout, exit: one.clone(), ..ExecOutput::default() },
            exit: one,
            usage: TaskUsage { at, total, by_pid },
        }
    }
}

prop_compose! {
    fn task()(id: String, name: String, msgpack_driver_config: Vec<u8>, resources: bool) -> TaskConfig {
        TaskConfig { id, name, msgpack_driver_config, resources: resources.then(Resources::default),
            ..TaskConfig::default() }
    }
}

proptest! {
    #[test]
    fn every_part_that_hosts_rely_on_is_there(given in given(), task in task(), message: String) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(check(given, task, TaskEvent { message, ..TaskEvent::default() }))?;
    }
}
