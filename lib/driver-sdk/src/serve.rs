//! From `main` to a served plugin: cookie, socket, handshake, signals, orderly end.

use std::future::Future;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use driver_proto::base::base_plugin_server::BasePluginServer;
use driver_proto::device::device_plugin_server::DevicePluginServer;
use driver_proto::driver::driver_server::DriverServer;
use driver_proto::handshake::{self, Address};
use driver_proto::health::health_server::HealthServer;
use driver_proto::plugin::grpc_broker_server::GrpcBrokerServer;
use driver_proto::plugin::grpc_controller_server::GrpcControllerServer;
use driver_proto::plugin::grpc_stdio_server::GrpcStdioServer;
use driver_proto::remote::remote_driver_server::RemoteDriverServer;
use futures::{FutureExt, StreamExt};
use tokio::io::DuplexStream;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;

use crate::base::{Alive, Base, Broker, Controller, Stdio};
use crate::devices::DeviceService;
use crate::observer::Observer;
use crate::plain_remote::PlainRemote;
use crate::plain_service::PlainService;
use crate::plugin::{OfDevices, OfDriver, Plugin};
use crate::remote_service::RemoteService;
use crate::{Context, DevicePlugin, Driver, RemoteDriver, log};

/// Hosts kill what has not ended two seconds after the order.
const SHUTDOWN_HOOK_MAX: Duration = Duration::from_millis(1000);
/// Long enough for the answer to the order to leave, which no host relies on.
const SHUTDOWN_FLUSH: Duration = Duration::from_millis(50);

/// How long a thread for blocking work waits for more. Work that comes every few seconds would keep all the threads of
/// a burst, each with its stack, for as long as the plugin runs: the idle ones take turns.
const IDLE_THREAD: Duration = Duration::from_secs(1);

/// Runs a plugin's future on a runtime of one thread: small, and enough for a process that mostly waits. What a burst
/// of calls has left free goes back to the system.
pub fn block_on(plugin: impl Future<Output = ExitCode>) -> ExitCode {
    heap::prepare();
    match tokio::runtime::Builder::new_current_thread().enable_all().thread_keep_alive(IDLE_THREAD).build() {
        Ok(runtime) => {
            let code = runtime.block_on(heap::beside(plugin));
            // Blocking work of the driver must not hold up the end.
            runtime.shutdown_background();
            code
        }
        Err(error) => complain(format_args!("cannot start the plugin's runtime: {error}")),
    }
}

/// Serves a driver to the host that started this program. Returns when the host wants the process to end.
pub async fn serve(driver: impl Driver) -> ExitCode {
    run(Served::Driver(Arc::new(driver), None)).await
}

/// Serves a remote driver, over the remote extension and as a plain driver at once.
pub async fn serve_remote(driver: impl RemoteDriver) -> ExitCode {
    let driver: Arc<dyn RemoteDriver> = Arc::new(driver);
    let observer = Arc::new(Observer::new(driver.clone()));
    let plain = Arc::new(PlainRemote::new(driver.clone(), observer.clone()));
    run(Served::Driver(plain, Some(RemoteService::new(driver, observer)))).await
}

/// Serves a device plugin to the host that started this program. Returns when the host wants the process to end.
pub async fn serve_devices(plugin: impl DevicePlugin) -> ExitCode {
    run(Served::Devices(Arc::new(plugin))).await
}

/// Serves a remote driver as a plain driver alone. For tests of hosts: those that know the extension get more from
/// [`serve_remote`].
pub async fn serve_remote_as_plain(driver: impl RemoteDriver) -> ExitCode {
    let driver: Arc<dyn RemoteDriver> = Arc::new(driver);
    let observer = Arc::new(Observer::new(driver.clone()));
    run(Served::Driver(Arc::new(PlainRemote::new(driver, observer)), None)).await
}

/// Serves a remote driver on connections from within the same process, until `end`: a simulation has no processes.
pub async fn serve_remote_within(
    driver: impl RemoteDriver,
    connections: UnboundedReceiver<DuplexStream>,
    end: CancellationToken,
) {
    let driver: Arc<dyn RemoteDriver> = Arc::new(driver);
    let observer = Arc::new(Observer::new(driver.clone()));
    let (plain, context) = (Arc::new(PlainRemote::new(driver.clone(), observer.clone())), Context::new());
    plain.attach(context.clone());
    let stop = CancellationToken::new();
    let server = services(Served::Driver(plain, Some(RemoteService::new(driver, observer))), context, &stop);
    let serving = server.serve_with_incoming(UnboundedReceiverStream::new(connections).map(Ok::<_, io::Error>));
    tokio::select! {
        // An error is the end of all connections, too.
        _ = serving => {}
        () = stop.cancelled() => {}
        () = end.cancelled() => {}
    }
    end.cancel();
}

/// What a program serves.
enum Served {
    Driver(Arc<dyn Driver>, Option<RemoteService>),
    Devices(Arc<dyn DevicePlugin>),
}

impl Served {
    fn plugin(&self) -> Arc<dyn Plugin> {
        match self {
            Self::Driver(driver, _) => Arc::new(OfDriver(driver.clone())),
            Self::Devices(devices) => Arc::new(OfDevices(devices.clone())),
        }
    }
}

async fn run(served: Served) -> ExitCode {
    if std::env::var(handshake::COOKIE_KEY).as_deref() != Ok(handshake::COOKIE_VALUE) {
        return complain(format_args!(
            "this program is the {} plugin {:?}. It is started by an agent and does nothing when run by hand: \
             put it into the agent's plugin directory and add a `plugin` block for it",
            if matches!(served, Served::Devices(_)) { "device" } else { "driver" },
            served.plugin().info().name
        ));
    }
    log::install();
    // Environments of tasks, with the secrets in them, pass through a plugin. A kernel that refuses changes nothing.
    let _ = undumpable::this_process_if_it_stays_found();
    match serve_until_told(served).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(format_args!("cannot serve the plugin: {error}")),
    }
}

/// To a person or to the host's log; nobody may be reading.
fn complain(message: std::fmt::Arguments<'_>) -> ExitCode {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::FAILURE
}

async fn serve_until_told(served: Served) -> io::Result<()> {
    let asked = |key| std::env::var(key).is_ok_and(|value| !value.is_empty());
    if !offered_versions().contains(&handshake::APP_VERSION) {
        // The host decides; the line tells it which version there is.
        tracing::warn!("the host offers no protocol version that this plugin speaks");
    }
    // A terminal's Ctrl-C reaches the whole foreground group; only the agent is meant.
    let mut interrupts = signal(SignalKind::interrupt())?;
    tokio::spawn(async move { while interrupts.recv().await.is_some() {} });
    let mut terminate = signal(SignalKind::terminate())?;

    let (listener, socket) = listen()?;
    let _removed_at_end = RemoveSocket(socket.path.clone());
    let stop = CancellationToken::new();
    let context = Context::new();
    if let Served::Driver(driver, _) = &served {
        driver.attach(context.clone());
    }

    let plugin = served.plugin();
    let server = services(served, context, &stop);
    // Hosts probe with connections that close before they speak; a failed accept ends nothing.
    let incoming = UnixListenerStream::new(listener).filter(|connection| std::future::ready(connection.is_ok()));
    let serving = tokio::spawn(server.serve_with_incoming(incoming));

    announce(&Address::Unix(socket.text), asked(handshake::MULTIPLEX_KEY))?;

    tokio::select! {
        () = stop.cancelled() => {}
        _ = terminate.recv() => {}
        ended = serving => {
            return match ended {
                Ok(Ok(())) => Err(io::Error::other("the listener has ended")),
                Ok(Err(error)) => Err(io::Error::other(error)),
                Err(error) => Err(io::Error::other(error)),
            };
        }
    }
    // Streams such as the fingerprint never end by themselves, so the server is not asked to finish them.
    let hook = AssertUnwindSafe(plugin.shutdown()).catch_unwind();
    if !matches!(tokio::time::timeout(SHUTDOWN_HOOK_MAX, hook).await, Ok(Ok(()))) {
        tracing::warn!("the plugin's shutdown did not finish in time");
    }
    tokio::time::sleep(SHUTDOWN_FLUSH).await;
    Ok(())
}

/// Everything that a plugin answers.
fn services(served: Served, context: Context, stop: &CancellationToken) -> Router {
    let limit = handshake::PLUGIN_DECODE_LIMIT;
    let router = tonic::transport::Server::builder()
        .add_service(BasePluginServer::new(Base(served.plugin())).max_decoding_message_size(limit))
        .add_service(GrpcControllerServer::new(Controller(stop.clone())))
        .add_service(GrpcStdioServer::new(Stdio))
        .add_service(GrpcBrokerServer::new(Broker))
        .add_service(HealthServer::new(Alive));
    match served {
        Served::Driver(driver, remote) => router
            .add_service(DriverServer::new(PlainService::new(driver, context)).max_decoding_message_size(limit))
            .add_optional_service(
                remote.map(|remote| RemoteDriverServer::new(remote).max_decoding_message_size(limit)),
            ),
        Served::Devices(plugin) => {
            router.add_service(DevicePluginServer::new(DeviceService(plugin)).max_decoding_message_size(limit))
        }
    }
}

fn offered_versions() -> Vec<u32> {
    let text = std::env::var(handshake::PROTOCOL_VERSIONS_KEY).unwrap_or_default();
    text.split(',').filter_map(|version| version.trim().parse().ok()).collect()
}

struct Socket {
    path: PathBuf,
    text: String,
}

struct RemoveSocket(PathBuf);

impl Drop for RemoveSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn listen() -> io::Result<(UnixListener, Socket)> {
    let dir = match std::env::var_os(handshake::SOCKET_DIR_KEY) {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => std::env::temp_dir(),
    };
    let (listener, path) = bind_fresh(&dir)?;
    match std::env::var(handshake::SOCKET_GROUP_KEY) {
        Ok(group) if !group.is_empty() => share_with(&path, &group)?,
        _ => std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?,
    }
    let text = path.to_str().map(str::to_owned).filter(|text| !text.contains(['|', '\n']));
    let text =
        text.ok_or_else(|| io::Error::other(format!("the socket path {path:?} cannot be written in a handshake")))?;
    Ok((listener, Socket { path, text }))
}

fn bind_fresh(dir: &Path) -> io::Result<(UnixListener, PathBuf)> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    for attempt in 0..100u32 {
        let number = clock.wrapping_add(std::process::id().rotate_left(12)).wrapping_add(attempt.wrapping_mul(7919));
        let path = dir.join(format!("plugin{number}"));
        if path.as_os_str().len() > handshake::SOCKET_PATH_MAX {
            let why = format!(
                "the socket path {path:?} is longer than {} bytes; choose a shorter directory",
                handshake::SOCKET_PATH_MAX
            );
            return Err(io::Error::other(why));
        }
        match UnixListener::bind(&path) {
            Ok(listener) => return Ok((listener, path)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("cannot listen on {path:?}: {error}")));
            }
        }
    }
    Err(io::Error::other(format!("no free socket name in {dir:?}")))
}

fn share_with(path: &Path, group: &str) -> io::Result<()> {
    let gid = match group.parse() {
        Ok(gid) => gid,
        Err(_) => gid_of(group).ok_or_else(|| io::Error::other(format!("no group is called {group:?} here")))?,
    };
    chown(path, None, Some(gid))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
}

fn gid_of(group: &str) -> Option<u32> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Prints the handshake, then gives standard output away: a stray print must neither confuse the host nor, once the
/// host is gone, end the process.
fn announce(address: &Address, multiplex_asked: bool) -> io::Result<()> {
    let mut line = handshake::line(address, multiplex_asked);
    line.push('\n');
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        let written = rustix::io::write(rustix::stdio::stdout(), rest)?;
        rest = &rest[written..];
    }
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(null)?;
    Ok(())
}
