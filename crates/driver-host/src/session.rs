//! One connection to one running plugin process: connect, identify, configure.

use std::sync::Arc;
use std::time::Duration;

use driver_proto::base::base_plugin_client::BasePluginClient;
use driver_proto::base::{
    ConfigSchemaRequest, NomadConfig, NomadDriverConfig, PluginInfoRequest, PluginInfoResponse, PluginType,
    SetConfigRequest,
};
use driver_proto::device::device_plugin_client::DevicePluginClient;
use driver_proto::driver::driver_client::DriverClient;
use driver_proto::driver::{CapabilitiesRequest, InitRequest, ShutdownRequest, TaskConfigSchemaRequest};
use driver_proto::handshake::{API_VERSION, AUTHORITY, Address, HEALTH_SERVICE, HOST_DECODE_LIMIT};
use driver_proto::hclspec::Spec;
use driver_proto::health::HealthCheckRequest;
use driver_proto::health::health_check_response::ServingStatus;
use driver_proto::health::health_client::HealthClient;
use driver_proto::plugin::Empty;
use driver_proto::plugin::grpc_controller_client::GrpcControllerClient;
use driver_proto::plugin::grpc_stdio_client::GrpcStdioClient;
use driver_proto::remote::DescribeRequest;
use driver_proto::remote::remote_driver_client::RemoteDriverClient;
use hcl_lang::hclspec::Checked;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Response, Status};

use crate::config::{self, ConfigError, Variables};
use crate::error::{LaunchError, bounded, broken_connection, chain};
use crate::options::{AgentConfig, PluginSpec, Timing};
use crate::process::Process;
use crate::types::{Capabilities, Description};
use crate::within;

/// What a device plugin's name begins with wherever drivers have theirs: no driver's name can have it.
pub(crate) const DEVICES: &str = "device/";

/// A plugin that is up and configured.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) generation: u64,
    pub(crate) driver: String,
    pub(crate) version: semver::Version,
    pub(crate) process: Process,
    pub(crate) channel: Channel,
    pub(crate) capabilities: Capabilities,
    pub(crate) task_schema: Arc<Spec>,
    pub(crate) checked: Arc<Result<Checked, ConfigError>>,
    pub(crate) remote: Option<Description>,
    pub(crate) address: Address,
    /// Digest of its command and configuration.
    pub(crate) digest: String,
}

/// A plugin's own account of its identity.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Identity {
    /// The driver; of a device plugin [`DEVICES`] and its name.
    pub(crate) driver: String,
    pub(crate) version: semver::Version,
    /// The API version in the plugin's own spelling, which it wants back.
    pub(crate) api_version: String,
}

/// A plugin that runs and has identified itself.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) channel: Channel,
    pub(crate) process: Process,
    pub(crate) identity: Identity,
    pub(crate) address: Address,
    pub(crate) digest: String,
    /// Just started and not configured yet.
    pub(crate) fresh: bool,
}

impl Session {
    pub(crate) fn driver_client(&self) -> DriverClient<Channel> {
        DriverClient::new(self.channel.clone()).max_decoding_message_size(HOST_DECODE_LIMIT)
    }

    pub(crate) fn device_client(&self) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(self.channel.clone()).max_decoding_message_size(HOST_DECODE_LIMIT)
    }

    /// Whether it offers devices instead of running tasks.
    pub(crate) fn has_devices(&self) -> bool {
        self.driver.starts_with(DEVICES)
    }

    pub(crate) fn remote_client(&self) -> RemoteDriverClient<Channel> {
        RemoteDriverClient::new(self.channel.clone()).max_decoding_message_size(HOST_DECODE_LIMIT)
    }
}

/// Connects. One HTTP/2 connection carries everything; it is made again if it breaks while the process lives.
pub(crate) async fn connect(address: &Address, process: &Process, limit: Duration) -> Result<Channel, LaunchError> {
    let failed = |reason: String| LaunchError::Connect { address: address.to_string(), reason };
    // No keep-alive pings: servers written in Go answer frequent ones by closing the connection.
    let endpoint = Endpoint::from_static(AUTHORITY).connect_timeout(limit);
    let (target, within) = (address.clone(), process.within().cloned());
    let connector = tower::service_fn(move |_: Uri| {
        let (target, within) = (target.clone(), within.clone());
        async move {
            let io: Box<dyn Io> = match (within, target) {
                (Some(plugin), _) => Box::new(within::connect(&plugin)?),
                (None, Address::Unix(path)) => Box::new(UnixStream::connect(path).await?),
                (None, Address::Tcp(addr)) => Box::new(TcpStream::connect(addr).await?),
            };
            Ok::<_, std::io::Error>(TokioIo::new(io))
        }
    });
    match timeout(limit, endpoint.connect_with_connector(connector)).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(failed(chain(&error))),
        Err(_) => Err(failed(format!("no answer within {limit:?}"))),
    }
}

trait Io: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Io for T {}

async fn call<T>(
    name: &'static str,
    limit: Duration,
    process: &Process,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Result<T, Status>, LaunchError> {
    let failed = |reason: String| LaunchError::Setup { call: name, reason };
    tokio::select! {
        answer = timeout(limit, answer) => match answer {
            Ok(answer) => Ok(answer.map(Response::into_inner)),
            Err(_) => Err(failed(format!("no answer within {limit:?}"))),
        },
        () = process.exited().cancelled() => {
            let (epitaph, stderr) = (process.epitaph(), process.stderr.text());
            Err(failed(format!("the plugin ended ({epitaph}); the end of its standard error: {}", stderr.trim())))
        }
    }
}

fn refused(call: &'static str, status: &Status) -> LaunchError {
    LaunchError::Setup { call, reason: format!("{:?}: {}", status.code(), bounded(status.message())) }
}

/// Drains the plugin's output for ever: unread output blocks the plugin. Headers come with the first byte, so this runs
/// in the background.
pub(crate) fn drain_stdio(channel: &Channel) {
    let mut client = GrpcStdioClient::new(channel.clone()).max_decoding_message_size(HOST_DECODE_LIMIT);
    tokio::spawn(async move {
        if let Ok(stream) = client.stream_stdio(()).await {
            let mut stream = stream.into_inner();
            while let Ok(Some(_)) = stream.message().await {}
        }
    });
}

/// Whether this very process listens at the address, according to the kernel; for sockets in the file system.
pub(crate) async fn is_listener(address: &Address, pid: u32) -> bool {
    match address {
        Address::Unix(path) => {
            let Ok(probe) = UnixStream::connect(path).await else {
                return false;
            };
            probe.peer_cred().is_ok_and(|peer| peer.pid() == i32::try_from(pid).ok())
        }
        Address::Tcp(_) => true,
    }
}

/// Asks the health service whether a plugin answers; for processes found again.
pub(crate) async fn is_serving(channel: &Channel, process: &Process, limit: Duration) -> bool {
    let mut client = HealthClient::new(channel.clone());
    let request = HealthCheckRequest { service: HEALTH_SERVICE.into() };
    let answer = call("Health.Check", limit, process, client.check(request)).await;
    matches!(answer, Ok(Ok(response)) if response.status() == ServingStatus::Serving)
}

/// Whether the plugin answers at all: a refusal counts as an answer.
pub(crate) async fn answers(channel: &Channel, limit: Duration) -> bool {
    let mut client = HealthClient::new(channel.clone());
    let request = HealthCheckRequest { service: HEALTH_SERVICE.into() };
    match timeout(limit, client.check(request)).await {
        Ok(Ok(_)) => true,
        Ok(Err(status)) => !broken_connection(&status),
        Err(_) => false,
    }
}

/// Asks for name and versions.
pub(crate) async fn identify(channel: &Channel, process: &Process, limit: Duration) -> Result<Identity, LaunchError> {
    let mut client = BasePluginClient::new(channel.clone()).max_decoding_message_size(HOST_DECODE_LIMIT);
    let answer = call("PluginInfo", limit, process, client.plugin_info(PluginInfoRequest {})).await?;
    judge(&answer.map_err(|status| refused("PluginInfo", &status))?)
}

fn judge(info: &PluginInfoResponse) -> Result<Identity, LaunchError> {
    let unsuitable = |why: String| Err(LaunchError::Unsuitable(bounded(&why)));
    let (kind, prefix) = match info.r#type() {
        PluginType::Driver => ("driver", ""),
        PluginType::Device => ("device plugin's", DEVICES),
        PluginType::Unknown => {
            return unsuitable(format!("it is of type {}, neither a driver nor a device plugin", info.r#type));
        }
    };
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if info.name.is_empty() || info.name.len() > 128 || !info.name.chars().all(usable) {
        return unsuitable(format!("its {kind} name {:?} is not made of letters, digits, '-', '_' and '.'", info.name));
    }
    let wanted = lenient_version(API_VERSION);
    let same = |spelled: &&String| lenient_version(spelled).is_some() && lenient_version(spelled) == wanted;
    let Some(api_version) = info.plugin_api_versions.iter().find(same) else {
        return unsuitable(format!(
            "it speaks plugin API {:?}, this host speaks {API_VERSION}",
            info.plugin_api_versions
        ));
    };
    let Some(version) = lenient_version(&info.plugin_version) else {
        return unsuitable(format!("its version {:?} cannot be read; use a form like 1.2.3", info.plugin_version));
    };
    Ok(Identity { driver: format!("{prefix}{}", info.name), version, api_version: api_version.clone() })
}

/// `v1.2`, `1`, `1.2.3-rc1+x`: missing parts are zero.
fn lenient_version(text: &str) -> Option<semver::Version> {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let numbers = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(numbers);
    let dots = numbers.split('.').count();
    let padded = match dots {
        1 => format!("{numbers}.0.0"),
        2 => format!("{numbers}.0"),
        _ => numbers.to_owned(),
    };
    semver::Version::parse(&format!("{padded}{rest}")).ok()
}

/// Hands the operator's and the agent's configuration to a new process.
pub(crate) async fn configure(
    running: &Running,
    spec: &PluginSpec,
    agent: &AgentConfig,
    timing: &Timing,
) -> Result<(), LaunchError> {
    let Running { channel, process, identity, .. } = running;
    let limit = timing.setup_call;
    let mut client = BasePluginClient::new(channel.clone()).max_decoding_message_size(HOST_DECODE_LIMIT);
    let answer = call("ConfigSchema", limit, process, client.config_schema(ConfigSchemaRequest {})).await?;
    let schema = answer.map_err(|status| refused("ConfigSchema", &status))?.spec;
    let msgpack_config = match (&schema, &spec.config) {
        (Some(schema), given) => {
            let empty = serde_json::Value::Object(serde_json::Map::new());
            let schema = config::check(schema).map_err(|error| LaunchError::Unsuitable(error.to_string()))?;
            config::encode(&schema, given.as_ref().unwrap_or(&empty), &Variables::default())
                .map_err(|error| LaunchError::Config(error.to_string()))?
        }
        (None, Some(given)) if !is_empty(given) => {
            return Err(LaunchError::Config("the plugin takes no configuration, and one is given".into()));
        }
        (None, _) => Vec::new(),
    };
    let driver = NomadDriverConfig {
        client_max_port: agent.port_max.into(),
        client_min_port: agent.port_min.into(),
        topology: Some(agent.topology.wire()),
    };
    let request = SetConfigRequest {
        msgpack_config,
        nomad_config: Some(NomadConfig { driver: Some(driver) }),
        plugin_api_version: identity.api_version.clone(),
    };
    let answer = call("SetConfig", limit, process, client.set_config(request)).await?;
    answer.map_err(|status| LaunchError::Refused(bounded(status.message())))?;
    Ok(())
}

fn is_empty(config: &serde_json::Value) -> bool {
    match config {
        serde_json::Value::Null => true,
        serde_json::Value::Object(object) => object.is_empty(),
        serde_json::Value::Array(array) => array.iter().all(is_empty),
        _ => false,
    }
}

/// Asks for the driver's facts. `Init` and the remote extension are optional.
pub(crate) async fn open(running: &Running, timing: &Timing) -> Result<Session, LaunchError> {
    let Running { channel, process, identity, address, digest, .. } = running.clone();
    let limit = timing.setup_call;
    let session = Session {
        // Set with the driver name.
        generation: 0,
        driver: identity.driver.clone(),
        version: identity.version,
        process: process.clone(),
        channel: channel.clone(),
        capabilities: Capabilities::default(),
        task_schema: Arc::default(),
        checked: Arc::new(Err(ConfigError::NoSchema(identity.driver.clone()))),
        remote: None,
        address,
        digest,
    };
    if session.has_devices() {
        return Ok(session);
    }
    let mut client = DriverClient::new(channel.clone()).max_decoding_message_size(HOST_DECODE_LIMIT);
    match call("Init", limit, &process, client.init(InitRequest {})).await? {
        Err(status) if status.code() != Code::Unimplemented => {
            return Err(refused("Init", &status));
        }
        _ => {}
    }
    let answer = call("Capabilities", limit, &process, client.capabilities(CapabilitiesRequest {})).await?;
    let capabilities = answer.map_err(|status| refused("Capabilities", &status))?.capabilities;
    let answer =
        call("TaskConfigSchema", limit, &process, client.task_config_schema(TaskConfigSchemaRequest {})).await?;
    let spec = answer.map_err(|status| refused("TaskConfigSchema", &status))?.spec;
    let spec = spec.ok_or_else(|| LaunchError::Unsuitable("it has no schema for the configuration of tasks".into()))?;
    let mut remote = RemoteDriverClient::new(channel.clone()).max_decoding_message_size(HOST_DECODE_LIMIT);
    let remote = match call("Describe", limit, &process, remote.describe(DescribeRequest {})).await? {
        Ok(description) => Some(description),
        Err(status) if status.code() == Code::Unimplemented => None,
        Err(status) => return Err(refused("Describe", &status)),
    };
    Ok(Session {
        capabilities: capabilities.unwrap_or_default().into(),
        // A broken schema affects tasks that need it, but not running ones.
        checked: Arc::new(config::check(&spec)),
        task_schema: Arc::new(spec),
        remote,
        ..session
    })
}

/// Orders the process to end and ensures that it does. Its tasks continue.
pub(crate) async fn stop(channel: Option<&Channel>, process: &Process, grace: Duration) {
    if let Some(channel) = channel {
        let orders = async {
            let mut driver = DriverClient::new(channel.clone());
            // Newer drivers clean up here; others do not know the call.
            let _ = timeout(grace, driver.shutdown(ShutdownRequest {})).await;
            // The answer is usually lost with the server, so only the process counts.
            let _ = timeout(grace, GrpcControllerClient::new(channel.clone()).shutdown(Empty {})).await;
        };
        tokio::select! {
            () = orders => {}
            () = process.exited().cancelled() => {}
        }
        if !process.ended_within(grace).await {
            process.kill();
        }
    } else {
        process.kill();
    }
    // A process in an uninterruptible system call can resist; its watch continues, and the host moves on.
    process.ended_within(grace).await;
    process.bury().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(kind: i32, api: &[&str], version: &str, name: &str) -> PluginInfoResponse {
        PluginInfoResponse {
            r#type: kind,
            plugin_api_versions: api.iter().map(|v| (*v).to_owned()).collect(),
            plugin_version: version.into(),
            name: name.into(),
        }
    }

    #[test]
    fn plugins_are_taken_or_refused_for_their_reason() {
        let cases = [
            (info(2, &["v0.1.0"], "0.1.0", "raw_exec"), Ok("v0.1.0")),
            (info(2, &["v9.9.9", "0.1.0"], "v1.2", "my-driver.2"), Ok("0.1.0")),
            (info(2, &["0.1"], "1.0.0-dev+abc", "x"), Ok("0.1")),
            (info(3, &["v0.1.0"], "0.1.0", "gpu"), Ok("v0.1.0")),
            (info(3, &["v0.1.0"], "0.1.0", "a/b"), Err("device plugin's name")),
            (info(77, &["v0.1.0"], "0.1.0", "x"), Err("type 77")),
            (info(2, &[], "0.1.0", "x"), Err("plugin API []")),
            (info(2, &["v9.9.9", "junk"], "0.1.0", "x"), Err("v9.9.9")),
            (info(2, &["v0.1.0"], "latest", "x"), Err("latest")),
            (info(2, &["v0.1.0"], "", "x"), Err("version")),
            (info(2, &["v0.1.0"], "0.1.0", ""), Err("driver name")),
            (info(2, &["v0.1.0"], "0.1.0", "a/b"), Err("driver name")),
        ];
        for (info, expected) in cases {
            match (judge(&info), expected) {
                (Ok(identity), Ok(api)) => {
                    assert_eq!(identity.api_version, api);
                    assert_eq!(identity.driver.starts_with(DEVICES), info.r#type() == PluginType::Device);
                }
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (got, expected) => panic!("{info:?}: {got:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn versions_are_compared_as_versions() {
        let read = |text| lenient_version(text).expect("version");
        assert!(read("1.10") > read("v1.9.9"));
        assert!(read("1.0.0") > read("1.0.0-rc1"));
        assert_eq!(read("0.1"), read("v0.1.0"));
        assert_eq!(lenient_version("1.x"), None);
    }
}
