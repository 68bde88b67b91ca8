//! The remote example, over both of its protocols.

use std::path::Path;
use std::time::Duration;

use driver_host::encode_config;
use driver_sdk::DETACH_SIGNAL;
use driver_sdk::proto::base::SetConfigRequest;
use driver_sdk::proto::driver::{CapabilitiesRequest, TaskConfig};
use driver_sdk::proto::remote::{
    AcknowledgeRequest, DescribeRequest, EnsureRequest, EnsureResponse, Handle, InstanceState, Observation,
    ObserveRequest, StopRequest,
};
use driver_sdk::proto::{build, errors};
use driver_sdk::testing::Plugin;
use serde_json::json;
use tonic::{Code, Status};

use crate::support::{Place, destroy, eventually, recover, soon, start, stop, wait};

/// A node with the driver, configured for this provider.
async fn node(place: &Place, provider: &Path) -> Plugin {
    let mut plugin = place.plugin("spool").await;
    let schema = plugin.describe().await.expect("described").config.expect("a schema");
    let msgpack_config = encode_config(schema.wire(), &json!({ "dir": provider }), &Default::default()).expect("fits");
    plugin.base.set_config(SetConfigRequest { msgpack_config, ..SetConfigRequest::default() }).await.expect("accepted");
    plugin
}

async fn ensure(plugin: &mut Plugin, task: &TaskConfig, key: &str, epoch: u64) -> Result<EnsureResponse, Status> {
    let request = EnsureRequest { key: key.into(), epoch, task: Some(task.clone()), ..EnsureRequest::default() };
    soon(plugin.remote.ensure(request)).await.map(|answer| answer.into_inner())
}

async fn observe(plugin: &mut Plugin, handle: &Handle) -> Result<Observation, Status> {
    let request = ObserveRequest { handles: vec![handle.clone()] };
    let answer = soon(plugin.remote.observe(request)).await?.into_inner();
    Ok(answer.observations.into_iter().next().expect("one for each"))
}

async fn seen(plugin: &mut Plugin, handle: &Handle, wanted: InstanceState) -> Observation {
    testkit::poll(&format!("{wanted:?}"), async || {
        let seen = observe(plugin, handle).await.expect("answered");
        if seen.state() == wanted { Ok(seen) } else { Err(seen) }
    })
    .await
}

/// The shell around a script ends right after it has written how that has ended.
async fn nothing_runs(place: &Place) {
    eventually("the end of all processes", || match place.workloads() {
        none if none.is_empty() => Ok(()),
        left => Err(left),
    })
    .await;
}

#[tokio::test]
async fn an_instance_goes_from_node_to_node() {
    let place = Place::new();
    let provider = place.path().join("provider");
    std::fs::create_dir(&provider).expect("creates");
    let mut first = node(&place, &provider).await;
    let described = first.remote.describe(DescribeRequest {}).await.expect("described").into_inner();
    assert!(described.keyed_create && described.conditional_writes && described.handle_schema_max == 1);
    let task = place.task(&mut first, "1", &json!({ "script": "echo started >>count; exec sleep 1000" })).await;
    let made = ensure(&mut first, &task, "key", 1).await.expect("created");
    let handle = made.handle.expect("a handle");
    assert!(made.created);
    seen(&mut first, &handle, InstanceState::Running).await;
    first.kill().await.expect("killed");

    // Another node adopts it; after a lost reply, the create is repeated.
    let mut second = node(&place, &provider).await;
    let again = ensure(&mut second, &task, "key", 2).await.expect("found");
    assert_eq!((again.created, again.handle.as_ref()), (false, Some(&handle)));
    let running = seen(&mut second, &handle, InstanceState::Running).await;
    assert_eq!((running.key.as_str(), running.epoch), ("key", 2));
    // Its shell is there before its script.
    let count = || std::fs::read_to_string(provider.join("key/count")).unwrap_or_default();
    eventually("the script", || !count().is_empty()).await;
    assert_eq!(count(), "started\n", "one instance");

    // A late manager is refused, with the newer epoch.
    let mut late = node(&place, &provider).await;
    let request = |epoch| StopRequest {
        handle: Some(handle.clone()),
        epoch,
        timeout: Some(build::duration(Duration::from_secs(10))),
        ..StopRequest::default()
    };
    let stale = soon(late.remote.stop(request(1))).await.expect_err("stale");
    assert_eq!((stale.code(), errors::accepted_epoch(&stale)), (Code::Aborted, Some(2)));
    let acknowledge = |epoch| AcknowledgeRequest { handle: Some(handle.clone()), epoch };
    let early = second.remote.acknowledge(acknowledge(2)).await.expect_err("it runs");
    assert_eq!(early.code(), Code::InvalidArgument);

    let stopped =
        soon(second.remote.stop(request(2))).await.expect("stopped").into_inner().observed.expect("an observation");
    assert_eq!((stopped.state(), stopped.exit_code), (InstanceState::Exited, 143));
    nothing_runs(&place).await;
    for _ in 0..2 {
        second.remote.acknowledge(acknowledge(2)).await.expect("idempotent");
    }
    assert_eq!(observe(&mut second, &handle).await.expect("answered").state(), InstanceState::Gone);

    // Without the provider nothing is known; that is not "gone".
    std::fs::rename(&provider, place.path().join("elsewhere")).expect("renamed");
    assert_eq!(observe(&mut second, &handle).await.expect("answered").state(), InstanceState::Unknown);
    assert_eq!(ensure(&mut second, &task, "other", 1).await.expect_err("unreachable").code(), Code::Unavailable);
    let mut newer = handle.clone();
    newer.schema = 2;
    assert_eq!(observe(&mut second, &newer).await.expect("answered").state(), InstanceState::Unknown);
}

#[tokio::test]
async fn hosts_without_the_extension_have_a_plain_driver() {
    let place = Place::new();
    let provider = place.path().join("provider");
    std::fs::create_dir(&provider).expect("creates");
    let mut first = node(&place, &provider).await;
    let capabilities =
        first.driver.capabilities(CapabilitiesRequest {}).await.expect("answered").into_inner().capabilities;
    assert!(capabilities.expect("capabilities").remote_tasks);
    let task = place.task(&mut first, "1", &json!({ "script": "exec sleep 1000" })).await;
    let handle = start(&mut first, &task).await;
    stop(&mut first, &task, DETACH_SIGNAL, Duration::ZERO).await.expect("detached");
    wait(&first, &task).await.expect("let go");
    destroy(&mut first, &task, true).await.expect("forgotten here");

    let mut second = node(&place, &provider).await;
    let fresh = place.task(&mut second, "2", &json!({ "script": "exec sleep 1000" })).await;
    let mut moved = handle;
    moved.config = Some(fresh.clone());
    recover(&mut second, &moved).await.expect("found again");
    eventually("it runs", || !place.workloads().is_empty()).await;
    stop(&mut second, &fresh, "SIGTERM", Duration::from_secs(10)).await.expect("stopped");
    assert_eq!(wait(&second, &fresh).await.expect("ended").result.expect("result").exit_code, 143);
    nothing_runs(&place).await;
    destroy(&mut second, &fresh, true).await.expect("acknowledged");
    assert_eq!(std::fs::read_dir(&provider).expect("lists").count(), 1, "nothing but the lock is left");
}
