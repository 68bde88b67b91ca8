//! The gRPC services that every plugin serves: base, controller, stdio, broker, health.

use std::pin::Pin;
use std::sync::Arc;

use driver_proto::base::base_plugin_server::BasePlugin;
use driver_proto::base::{
    ConfigSchemaRequest, ConfigSchemaResponse, PluginInfoRequest, PluginInfoResponse, SetConfigRequest,
    SetConfigResponse,
};
use driver_proto::handshake::{API_VERSION, HEALTH_SERVICE};
use driver_proto::health::health_check_response::ServingStatus;
use driver_proto::health::health_server::Health;
use driver_proto::health::{HealthCheckRequest, HealthCheckResponse};
use driver_proto::plugin::grpc_broker_server::GrpcBroker;
use driver_proto::plugin::grpc_controller_server::GrpcController;
use driver_proto::plugin::grpc_stdio_server::GrpcStdio;
use driver_proto::plugin::{ConnInfo, Empty, StdioData};
use futures::{Stream, StreamExt, stream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::AgentConfig;
use crate::config::Config;
use crate::guard::guarded;
use crate::plugin::Plugin;
use crate::schema::Spec;

type StreamOf<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Identity and operator configuration.
pub(crate) struct Base(pub(crate) Arc<dyn Plugin>);

#[tonic::async_trait]
impl BasePlugin for Base {
    async fn plugin_info(&self, _: Request<PluginInfoRequest>) -> Result<Response<PluginInfoResponse>, Status> {
        let info = guarded(async { Ok::<_, Status>(self.0.info()) }).await?;
        Ok(Response::new(PluginInfoResponse {
            r#type: self.0.kind() as i32,
            plugin_api_versions: vec![API_VERSION.into()],
            plugin_version: info.version,
            name: info.name,
        }))
    }

    async fn config_schema(&self, _: Request<ConfigSchemaRequest>) -> Result<Response<ConfigSchemaResponse>, Status> {
        let spec = guarded(async { Ok::<_, Status>(self.0.config_schema()) }).await?;
        let (spec, drover_descriptions) = spec.map(Spec::into_parts).unzip();
        Ok(Response::new(ConfigSchemaResponse { spec, drover_descriptions: drover_descriptions.unwrap_or_default() }))
    }

    async fn set_config(&self, request: Request<SetConfigRequest>) -> Result<Response<SetConfigResponse>, Status> {
        let request = request.into_inner();
        let agent = request.nomad_config.and_then(|config| config.driver).map(|driver| AgentConfig {
            port_min: driver.client_min_port,
            port_max: driver.client_max_port,
            topology: driver.topology,
        });
        guarded(self.0.set_config(Config::new(request.msgpack_config), agent)).await?;
        Ok(Response::new(SetConfigResponse {}))
    }
}

/// Takes the host's order to shut down.
pub(crate) struct Controller(pub(crate) CancellationToken);

#[tonic::async_trait]
impl GrpcController for Controller {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.0.cancel();
        Ok(Response::new(Empty {}))
    }
}

/// Standard output is the null device after the handshake, so there is nothing to send. The stream stays open because
/// hosts reopen one that ends.
pub(crate) struct Stdio;

#[tonic::async_trait]
impl GrpcStdio for Stdio {
    type StreamStdioStream = StreamOf<StdioData>;

    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        Ok(Response::new(stream::pending().boxed()))
    }
}

/// Drivers announce no further listeners.
pub(crate) struct Broker;

#[tonic::async_trait]
impl GrpcBroker for Broker {
    type StartStreamStream = StreamOf<ConnInfo>;

    async fn start_stream(&self, _: Request<Streaming<ConnInfo>>) -> Result<Response<Self::StartStreamStream>, Status> {
        Ok(Response::new(stream::pending().boxed()))
    }
}

/// A live plugin is healthy: finer states belong to the fingerprint.
pub(crate) struct Alive;

fn status_of(service: &str) -> Result<HealthCheckResponse, Status> {
    if service.is_empty() || service == HEALTH_SERVICE {
        Ok(HealthCheckResponse { status: ServingStatus::Serving as i32 })
    } else {
        Err(Status::not_found("unknown service"))
    }
}

#[tonic::async_trait]
impl Health for Alive {
    type WatchStream = StreamOf<HealthCheckResponse>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        status_of(&request.get_ref().service).map(Response::new)
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let first = status_of(&request.get_ref().service)
            .unwrap_or(HealthCheckResponse { status: ServingStatus::ServiceUnknown as i32 });
        Ok(Response::new(stream::iter([Ok(first)]).chain(stream::pending()).boxed()))
    }
}
