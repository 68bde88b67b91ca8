//! The SDK's own answers for any driver: the base services, streams, unknown messages.

use std::time::Duration;

use driver_sdk::proto::base::{NomadConfig, SetConfigRequest};
use driver_sdk::proto::driver::fingerprint_response::HealthState;
use driver_sdk::proto::driver::{
    FingerprintRequest, InitRequest, ShutdownRequest, StopTaskResponse, TaskEventsRequest, TaskStatsRequest,
};
use driver_sdk::proto::errors;
use driver_sdk::proto::health::health_check_response::ServingStatus;
use driver_sdk::proto::health::{HealthCheckRequest, HealthCheckResponse};
use driver_sdk::testing::{Plugin, TestingError};
use futures::StreamExt;
use serde_json::json;
use tonic::{Code, Request, Status};

use crate::support::{Place, destroy, soon, start};

/// A call without a generated client.
async fn call<Q, A>(plugin: &Plugin, path: &'static str, message: Q) -> Result<A, Status>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    let mut client = tonic::client::Grpc::new(plugin.channel.clone());
    client.ready().await.expect("connected");
    let codec = tonic_prost::ProstCodec::<Q, A>::default();
    client
        .unary(Request::new(message), tonic::codegen::http::uri::PathAndQuery::from_static(path), codec)
        .await
        .map(|a| a.into_inner())
}

/// A stop order of a future host.
#[derive(Clone, PartialEq, prost::Message)]
struct FutureStop {
    #[prost(string, tag = "1")]
    task_id: String,
    #[prost(string, tag = "3999")]
    mood: String,
}

#[tokio::test]
async fn strangers_are_understood_as_far_as_possible() {
    let place = Place::new();
    let mut plugin = place.plugin("script").await;
    let unknown =
        call::<(), ()>(&plugin, "/hashicorp.nomad.plugins.drivers.proto.Driver/Dance", ()).await.expect_err("unknown");
    assert_eq!(unknown.code(), Code::Unimplemented);
    let future = FutureStop { task_id: "none".into(), mood: "good".into() };
    let stopped =
        call::<_, StopTaskResponse>(&plugin, "/hashicorp.nomad.plugins.drivers.proto.Driver/StopTask", future).await;
    assert!(errors::is_task_not_found(&stopped.expect_err("no such task")), "the unknown field is skipped");
    plugin.driver.init(InitRequest {}).await.expect("answered");
    plugin.driver.shutdown(ShutdownRequest {}).await.expect("answered");
    // Also twice, and without the host's own part, as in a mere check.
    for nomad_config in [None, None, Some(NomadConfig::default())] {
        let request = SetConfigRequest { nomad_config, ..SetConfigRequest::default() };
        plugin.base.set_config(request).await.expect("accepted");
    }
    for service in ["", "plugin"] {
        let seen: HealthCheckResponse =
            plugin.health.check(HealthCheckRequest { service: service.into() }).await.expect("known").into_inner();
        assert_eq!(seen.status(), ServingStatus::Serving);
    }
    let other = plugin.health.check(HealthCheckRequest { service: "other".into() }).await;
    assert_eq!(other.expect_err("unknown").code(), Code::NotFound);
    plugin.shut_down().await.expect("ends by itself");
}

#[tokio::test]
async fn streams_begin_at_once_and_stay() {
    let place = Place::new();
    let mut plugin = place.plugin("script").await;
    let task = place.task(&mut plugin, "1", &json!({ "script": "exec sleep 1000" })).await;
    start(&mut plugin, &task).await;
    let mut looks = plugin.driver.fingerprint(FingerprintRequest {}).await.expect("opens").into_inner();
    let first = soon(looks.next()).await.expect("one").expect("fine");
    assert_eq!(first.health(), HealthState::Healthy);
    let mut events = plugin.driver.task_events(TaskEventsRequest {}).await.expect("opens").into_inner();
    // This driver measures nothing: the stream is idle, not ended.
    let stats = TaskStatsRequest { task_id: task.id.clone(), ..TaskStatsRequest::default() };
    let mut stats = plugin.driver.task_stats(stats).await.expect("opens").into_inner();
    let any = async { tokio::join!(looks.next(), events.next(), stats.next()) };
    assert!(tokio::time::timeout(Duration::from_millis(300), any).await.is_err(), "a stream has ended");
    destroy(&mut plugin, &task, true).await.expect("destroys");
}

#[tokio::test]
async fn a_program_that_is_no_plugin_is_told_apart() {
    let shell = |script: &str| {
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    };
    let silent = Plugin::launch(shell("echo missing library >&2; exit 1")).await.expect_err("silent");
    assert!(matches!(&silent, TestingError::Silent { stderr, .. } if stderr == "missing library\n"), "{silent}");
    let talks = Plugin::launch(shell("echo hello; exec sleep 1000")).await.expect_err("no handshake");
    assert!(matches!(talks, TestingError::Handshake(_)), "{talks}");
}
