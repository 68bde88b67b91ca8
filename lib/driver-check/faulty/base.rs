//! Everything but tasks.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use driver_proto::base::base_plugin_server::BasePlugin;
use driver_proto::base::*;
use driver_proto::hclspec::spec::Block as Kind;
use driver_proto::hclspec::{self, Spec};
use driver_proto::health::health_check_response::ServingStatus;
use driver_proto::health::health_server::Health;
use driver_proto::health::{HealthCheckRequest, HealthCheckResponse};
use driver_proto::plugin::grpc_controller_server::GrpcController;
use driver_proto::plugin::grpc_stdio_server::GrpcStdio;
use driver_proto::plugin::{Empty, StdioData};
use futures::Stream;
use http_body_util::{BodyExt, Full};
use tokio::sync::Notify;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Request, Response, Status};

use crate::world::World;
use crate::{fault, log, say};

type StreamOf<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// An optional attribute.
pub(crate) fn attr(name: &str, ty: &str, required: bool) -> Spec {
    Spec { block: Some(Kind::Attr(hclspec::Attr { name: name.into(), r#type: ty.into(), required })) }
}

pub(crate) fn object(fields: Vec<(&str, Spec)>) -> Spec {
    let attributes: BTreeMap<String, Spec> = fields.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect();
    Spec { block: Some(Kind::Object(hclspec::Object { attributes })) }
}

pub(crate) struct Base(pub(crate) Arc<World>);

#[tonic::async_trait]
impl BasePlugin for Base {
    async fn plugin_info(&self, _: Request<PluginInfoRequest>) -> Result<Response<PluginInfoResponse>, Status> {
        let versions = if fault("base/info") { Vec::new() } else { vec!["v0.1.0".into()] };
        Ok(Response::new(PluginInfoResponse {
            r#type: PluginType::Driver as i32,
            plugin_api_versions: versions,
            plugin_version: "1.2.3".into(),
            name: "faulty".into(),
        }))
    }

    async fn config_schema(&self, _: Request<ConfigSchemaRequest>) -> Result<Response<ConfigSchemaResponse>, Status> {
        let mut fields = vec![("root", attr("root", "string", false))];
        if fault("base/config-schema") {
            fields.push(("empty", Spec { block: None }));
        }
        Ok(Response::new(ConfigSchemaResponse { spec: Some(object(fields)), ..Default::default() }))
    }

    async fn set_config(&self, request: Request<SetConfigRequest>) -> Result<Response<SetConfigResponse>, Status> {
        let request = request.into_inner();
        log("SetConfig");
        if fault("launch/stdout-quiet") {
            say("configured\n");
        }
        let decoded = rmpv::decode::read_value(&mut request.msgpack_config.as_slice());
        let root = match &decoded {
            Ok(rmpv::Value::Map(fields)) => {
                fields.iter().find(|(key, _)| key.as_str() == Some("root")).and_then(|(_, v)| v.as_str())
            }
            _ if request.msgpack_config.is_empty() || fault("base/set-config-junk") => None,
            _ => return Err(Status::unknown("the configuration cannot be read")),
        };
        let validating = request.nomad_config.is_none();
        if (validating && fault("base/set-config-twice")) || (!validating && fault("leaves-process")) {
            drop(std::process::Command::new("sleep").arg("60").spawn());
        }
        if fault("base/set-config-live") {
            self.0.kill_all();
        }
        self.0.configure(root);
        Ok(Response::new(SetConfigResponse {}))
    }
}

pub(crate) struct Controller(pub(crate) Arc<World>, pub(crate) Arc<Notify>);

#[tonic::async_trait]
impl GrpcController for Controller {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        if fault("launch/shutdown-keeps-tasks") {
            self.0.kill_all();
        }
        if !fault("launch/shutdown") {
            self.1.notify_one();
        }
        Ok(Response::new(Empty {}))
    }
}

pub(crate) struct Stdio;

#[tonic::async_trait]
impl GrpcStdio for Stdio {
    type StreamStdioStream = StreamOf<StdioData>;

    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        if fault("stream/stdio-open") {
            return Ok(Response::new(Box::pin(futures::stream::empty())));
        }
        Ok(Response::new(Box::pin(futures::stream::pending())))
    }
}

pub(crate) struct Alive;

#[tonic::async_trait]
impl Health for Alive {
    type WatchStream = StreamOf<HealthCheckResponse>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let unknown = fault("launch/health") && request.get_ref().service == "plugin";
        let status = if unknown { ServingStatus::ServiceUnknown } else { ServingStatus::Serving };
        Ok(Response::new(HealthCheckResponse { status: status as i32 }))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(futures::stream::pending())))
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, std::convert::Infallible>> + Send>>;

/// A service whose requests are looked at as bytes, for the faults that only show there.
#[derive(Clone)]
pub(crate) struct Inspect<S>(pub(crate) S);

impl<S: NamedService> NamedService for Inspect<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Inspect<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = std::convert::Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let mut inner = self.0.clone();
        if !fault("base/unknown-fields") && !fault("base/oversized") {
            return Box::pin(inner.call(request));
        }
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            if fault("base/oversized") && bytes.len() > 4 << 20 {
                std::process::exit(5);
            }
            if fault("base/unknown-fields") && bytes.windows(7).any(|w| w == b"what is") {
                return Ok(Status::invalid_argument("unknown field 4711").into_http());
            }
            inner.call(http::Request::from_parts(head, Body::new(Full::new(bytes)))).await
        })
    }
}

/// Answers what nobody knows.
#[derive(Clone)]
pub(crate) struct CallsOfTheFuture;

impl NamedService for CallsOfTheFuture {
    const NAME: &'static str = "service.of.the.Future";
}

impl Service<http::Request<Body>> for CallsOfTheFuture {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Answer {
        Box::pin(async { Ok(Status::internal("what is this").into_http()) })
    }
}
