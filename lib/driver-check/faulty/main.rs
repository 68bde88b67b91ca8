//! A driver plugin over the raw protocol that does everything right, but for the one fault that `DRIVER_CHECK_FAULT`
//! names: usually the id of the check that must find it. Its tasks are real processes under `root`, held by a shell
//! that outlives the plugin and writes the exit code down.

mod base;
mod driver;
mod remote;
mod world;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use driver_proto::base::base_plugin_server::BasePluginServer;
use driver_proto::driver::driver_server::DriverServer;
use driver_proto::handshake::{self, PLUGIN_DECODE_LIMIT};
use driver_proto::health::health_server::HealthServer;
use driver_proto::plugin::grpc_controller_server::GrpcControllerServer;
use driver_proto::plugin::grpc_stdio_server::GrpcStdioServer;
use driver_proto::remote::remote_driver_server::RemoteDriverServer;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::world::World;

/// Whether this is the fault of this process.
fn fault(name: &str) -> bool {
    std::env::var("DRIVER_CHECK_FAULT").is_ok_and(|fault| fault == name)
}

/// A line that hosts can parse; nobody may be listening.
fn log(message: &str) {
    let line =
        format!("{{\"@level\":\"info\",\"@message\":\"{message}\",\"@timestamp\":\"2026-01-02T03:04:05.123456Z\"}}\n");
    let line = if fault("log/hclog") { format!("{message}\n") } else { line };
    if std::io::stderr().write_all(line.as_bytes()).is_err() && fault("launch/closed-stderr") {
        std::process::exit(4);
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    drop(out.write_all(line.as_bytes()).and_then(|()| out.flush()));
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    let cookie = std::env::var(handshake::COOKIE_KEY);
    if cookie.as_deref() != Ok(handshake::COOKIE_VALUE) && !fault("launch/no-cookie") {
        drop(std::io::stderr().write_all(b"this is a plugin; it is started by an agent\n"));
        return std::process::ExitCode::FAILURE;
    }
    match serve().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            log(&format!("cannot serve: {error}"));
            std::process::ExitCode::FAILURE
        }
    }
}

fn socket() -> PathBuf {
    let asked = std::env::var_os(handshake::SOCKET_DIR_KEY).filter(|_| !fault("launch/socket-dir"));
    asked.map_or_else(std::env::temp_dir, PathBuf::from).join(format!("plugin{}", std::process::id()))
}

fn announce(path: &Path) {
    let mut line = format!("1|2|unix|{}|grpc|", path.display());
    if fault("launch/handshake") {
        line.pop();
    }
    if fault("launch/handshake#banner") {
        line.insert_str(0, "welcome\n");
    }
    if fault("launch/other-version") {
        let offered = std::env::var(handshake::PROTOCOL_VERSIONS_KEY).unwrap_or_default();
        line = line.replace("1|2|", &format!("1|{offered}|"));
    }
    if std::env::var_os(handshake::MULTIPLEX_KEY).is_some() && !fault("launch/seventh-field") {
        line.push_str("|false");
    }
    say(&format!("{line}\n"));
}

async fn serve() -> std::io::Result<()> {
    // Heard in both cases: what a shell starts in the background ignores it, and would hide the fault.
    let mut interrupts = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        while interrupts.recv().await.is_some() {
            if fault("launch/sigint") {
                std::process::exit(130);
            }
        }
    });
    let mut terminate = signal(SignalKind::terminate())?;
    let path = socket();
    let listener = UnixListener::bind(&path)?;
    let world = Arc::new(World::default());
    let stop = Arc::new(Notify::new());
    let base = BasePluginServer::new(base::Base(world.clone())).max_decoding_message_size(PLUGIN_DECODE_LIMIT);
    let driver = DriverServer::new(driver::Plain(world.clone())).max_decoding_message_size(PLUGIN_DECODE_LIMIT);
    let server = tonic::transport::Server::builder()
        .add_service(base::Inspect(base))
        .add_service(base::Inspect(driver))
        .add_service(GrpcControllerServer::new(base::Controller(world.clone(), stop.clone())))
        .add_service(GrpcStdioServer::new(base::Stdio))
        .add_service(HealthServer::new(base::Alive))
        .add_service(RemoteDriverServer::new(remote::Remote(world)))
        .add_optional_service(fault("base/unknown-call").then_some(base::CallsOfTheFuture));
    // With the fault it listens no longer once some have knocked.
    let knocks = if fault("launch/bare-probe") { 3 } else { usize::MAX };
    let incoming = futures::stream::unfold((listener, 0), move |(listener, count)| async move {
        if count >= knocks {
            drop(listener);
            return std::future::pending().await;
        }
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, (listener, count + 1)))
    });
    let serving = tokio::spawn(server.serve_with_incoming(incoming));
    announce(&path);
    let ignore_term = fault("launch/sigterm");
    let term = async {
        terminate.recv().await;
        if ignore_term {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = stop.notified() => {}
        () = term => {}
        _ = serving => {}
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    if !fault("leaves-socket") {
        drop(std::fs::remove_file(&path));
    }
    Ok(())
}
