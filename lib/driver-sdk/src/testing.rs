//! A small host for tests and tools: it starts a plugin program and calls it.
//!
//! ```no_run
//! # async fn test() -> Result<(), driver_sdk::testing::TestingError> {
//! use driver_sdk::proto::driver::CapabilitiesRequest;
//! let program = std::process::Command::new("target/debug/my-driver");
//! let mut plugin = driver_sdk::testing::Plugin::launch(program).await?;
//! let capabilities = plugin.driver.capabilities(CapabilitiesRequest {}).await?.into_inner().capabilities;
//! assert!(capabilities.is_some_and(|c| c.exec));
//! plugin.shut_down().await?;
//! # Ok(())
//! # }
//! ```

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use driver_proto::base::base_plugin_client::BasePluginClient;
use driver_proto::base::{ConfigSchemaRequest, PluginInfoRequest};
use driver_proto::driver::TaskConfigSchemaRequest;
use driver_proto::driver::driver_client::DriverClient;
use driver_proto::handshake::{self, Address, HOST_DECODE_LIMIT, HandshakeError};
use driver_proto::health::health_client::HealthClient;
use driver_proto::plugin::Empty;
use driver_proto::plugin::grpc_controller_client::GrpcControllerClient;
use driver_proto::remote::remote_driver_client::RemoteDriverClient;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::PluginInfo;
use crate::schema::Spec;

/// An agent's time limit for the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(60);
/// How long an agent waits for the end before it kills.
const AGENT_WAITS: Duration = Duration::from_secs(2);
/// How long this host waits: machines that run tests are busy. The conformance suite checks what an agent expects.
const END_MAX: Duration = Duration::from_secs(30);
/// Bytes kept of the standard error output.
const STDERR_MAX: usize = 1 << 20;

/// Error of the test host.
#[derive(Debug, thiserror::Error)]
pub enum TestingError {
    /// The program did not start, or its output could not be read.
    #[error("cannot run the plugin program: {0}")]
    Io(#[from] io::Error),
    /// The plugin sent no valid handshake.
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    /// The plugin ended or stayed silent instead of a handshake.
    #[error("the program printed no handshake {why}; on its standard error output: {stderr}")]
    Silent {
        /// Whether it ended or took too long.
        why: String,
        /// Its standard error output.
        stderr: String,
    },
    /// The plugin's socket refused the connection.
    #[error("cannot connect to the plugin: {0}")]
    Connect(#[from] tonic::transport::Error),
    /// A call failed.
    #[error("a call of the plugin failed: {}", .0.message())]
    Call(#[from] Status),
    /// The plugin did not end in time and was killed.
    #[error("the plugin did not end within {END_MAX:?} after Shutdown; an agent kills it after {AGENT_WAITS:?}")]
    NoEnd,
}

/// Identity and schemas of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// Name and version of the plugin.
    pub info: PluginInfo,
    /// Schema of the operator's configuration, if it is allowed.
    pub config: Option<Spec>,
    /// Schema of a task's configuration.
    pub task_config: Spec,
}

/// A running plugin with a client for each of its services. A drop kills the process.
#[derive(Debug)]
pub struct Plugin {
    /// Identity and operator configuration.
    pub base: BasePluginClient<Channel>,
    /// Tasks.
    pub driver: DriverClient<Channel>,
    /// Remote tasks, if the plugin offers them.
    pub remote: RemoteDriverClient<Channel>,
    /// Standard health service.
    pub health: HealthClient<Channel>,
    /// Client of the controller service, which ends the plugin.
    pub controller: GrpcControllerClient<Channel>,
    /// The connection, for services without a client here.
    pub channel: Channel,
    child: Child,
    stderr: JoinHandle<String>,
}

impl Plugin {
    /// Starts a program as an agent does and connects to it.
    ///
    /// # Errors
    /// Everything that would stop an agent from using it.
    pub async fn launch(program: std::process::Command) -> Result<Self, TestingError> {
        let mut command = Command::from(program);
        command
            .env(handshake::COOKIE_KEY, handshake::COOKIE_VALUE)
            .env(handshake::PROTOCOL_VERSIONS_KEY, handshake::APP_VERSION.to_string())
            .env(handshake::MIN_PORT_KEY, handshake::MIN_PORT_DEFAULT.to_string())
            .env(handshake::MAX_PORT_KEY, handshake::MAX_PORT_DEFAULT.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let pipes = child.stdout.take().zip(child.stderr.take());
        let (stdout, stderr) = pipes.ok_or_else(|| io::Error::other("the program's output is not ours"))?;
        let stderr = tokio::spawn(keep(stderr));
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        let silence = match timeout(HANDSHAKE_MAX, stdout.read_line(&mut line)).await {
            Ok(read) => (read? == 0).then(|| "before it ended".to_owned()),
            Err(_) => Some(format!("within {HANDSHAKE_MAX:?}")),
        };
        if let Some(why) = silence {
            child.kill().await?;
            return Err(TestingError::Silent { why, stderr: stderr.await.unwrap_or_default() });
        }
        // A full pipe must not block the plugin.
        tokio::spawn(async move { tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await });
        let endpoint = match handshake::parse(&line)? {
            Address::Unix(path) => Endpoint::from_shared(format!("unix://{path}"))?,
            Address::Tcp(address) => Endpoint::from_shared(format!("http://{address}"))?,
        };
        let channel = endpoint.connect().await?;
        let limit = HOST_DECODE_LIMIT;
        Ok(Self {
            base: BasePluginClient::new(channel.clone()).max_decoding_message_size(limit),
            driver: DriverClient::new(channel.clone()).max_decoding_message_size(limit),
            remote: RemoteDriverClient::new(channel.clone()).max_decoding_message_size(limit),
            health: HealthClient::new(channel.clone()),
            controller: GrpcControllerClient::new(channel.clone()),
            channel,
            child,
            stderr,
        })
    }

    /// Process id.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Identity and schemas.
    ///
    /// # Errors
    /// A call failed.
    pub async fn describe(&mut self) -> Result<Description, TestingError> {
        let info = self.base.plugin_info(PluginInfoRequest {}).await?.into_inner();
        let config = self.base.config_schema(ConfigSchemaRequest {}).await?.into_inner();
        let task = self.driver.task_config_schema(TaskConfigSchemaRequest {}).await?.into_inner();
        Ok(Description {
            info: PluginInfo::new(info.name, info.plugin_version),
            config: config.spec.map(|spec| Spec::from_parts(spec, config.drover_descriptions)),
            task_config: Spec::from_parts(task.spec.unwrap_or_default(), task.drover_descriptions),
        })
    }

    /// Ends the plugin as an agent does, with more patience. Its tasks keep running.
    ///
    /// # Errors
    /// It did not end in time; then it was killed.
    pub async fn shut_down(mut self) -> Result<ExitStatus, TestingError> {
        // The answer may be lost when the process ends; only its end counts.
        let _ = timeout(END_MAX, self.controller.shutdown(Empty {})).await;
        match timeout(END_MAX, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => {
                self.child.kill().await?;
                Err(TestingError::NoEnd)
            }
        }
    }

    /// Kills the plugin, as a crash would, and returns its log lines.
    ///
    /// # Errors
    /// The process could not be killed.
    pub async fn kill(mut self) -> Result<String, TestingError> {
        self.child.kill().await?;
        Ok(self.stderr.await.unwrap_or_default())
    }
}

/// Reads to the end and keeps the beginning.
async fn keep(mut from: impl tokio::io::AsyncRead + Unpin) -> String {
    let (mut kept, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let room = STDERR_MAX.saturating_sub(kept.len()).min(n);
        kept.extend_from_slice(&buffer[..room]);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
