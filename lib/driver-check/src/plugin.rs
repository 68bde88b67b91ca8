//! One plugin process as a host sees it: started, shaken hands with, connected to.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use driver_proto::base::base_plugin_client::BasePluginClient;
use driver_proto::driver::driver_client::DriverClient;
use driver_proto::handshake::{self, Address, HOST_DECODE_LIMIT};
use driver_proto::health::health_client::HealthClient;
use driver_proto::plugin::grpc_controller_client::GrpcControllerClient;
use driver_proto::plugin::grpc_stdio_client::GrpcStdioClient;
use driver_proto::remote::remote_driver_client::RemoteDriverClient;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Command;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use crate::outcome::{Outcome, failed};
use crate::procs::MARK;
use crate::subject::Subject;

/// How much of an output is kept.
const OUTPUT_MAX: usize = 4 << 20;

/// What differs between launches.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) cookie: Option<&'static str>,
    pub(crate) versions: &'static str,
    pub(crate) env: Vec<(&'static str, String)>,
}

impl Default for Launch {
    fn default() -> Self {
        Self { cookie: Some(handshake::COOKIE_VALUE), versions: "2", env: Vec::new() }
    }
}

/// What a process has printed so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Reads on until the end, whoever looks.
    fn drain(&self, mut from: impl AsyncRead + Unpin + Send + 'static) -> AbortHandle {
        let kept = self.clone();
        tokio::spawn(async move {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(n @ 1..) = from.read(&mut buffer).await {
                let mut bytes = kept.bytes();
                let room = OUTPUT_MAX.saturating_sub(bytes.len()).min(n);
                bytes.extend_from_slice(&buffer[..room]);
            }
        })
        .abort_handle()
    }
}

/// A started program.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    readers: [AbortHandle; 2],
    kill: mpsc::Sender<()>,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts the subject the way agents do: their environment and these additions, no session of its own, no standard
    /// input.
    pub(crate) fn spawn(subject: &Subject, launch: &Launch, mark: &str, temp: &Path) -> Outcome<Process> {
        let mut command = Command::new(&subject.command);
        command
            .args(&subject.args)
            .env_remove(handshake::CLIENT_CERT_KEY)
            .env_remove(handshake::MULTIPLEX_KEY)
            .env_remove(handshake::SOCKET_GROUP_KEY)
            .env_remove(handshake::SOCKET_DIR_KEY)
            .env_remove(handshake::COOKIE_KEY)
            .env(handshake::PROTOCOL_VERSIONS_KEY, launch.versions)
            .env(handshake::MIN_PORT_KEY, handshake::MIN_PORT_DEFAULT.to_string())
            .env(handshake::MAX_PORT_KEY, handshake::MAX_PORT_DEFAULT.to_string())
            .env(MARK, mark)
            // Reaches the sockets of plugins and executors of every age.
            .env("TMPDIR", temp)
            .envs(subject.env.iter().map(|(name, value)| (name, value)))
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(cookie) = launch.cookie {
            command.env(handshake::COOKIE_KEY, cookie);
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return failed(format!("{} cannot be started: {error}", subject.command.display())),
        };
        let pid = child.id().unwrap_or_default();
        let (stdout, stderr) = (Output::default(), Output::default());
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            return failed("the process has no pipes");
        };
        let readers = [stdout.drain(out), stderr.drain(err)];
        let (kill, mut kills) = mpsc::channel(1);
        let (ended, exit) = watch::channel(None);
        tokio::spawn(async move {
            let status = tokio::select! {
                status = child.wait() => status,
                _ = kills.recv() => {
                    // An error only says that it has ended already.
                    let _ = child.start_kill();
                    child.wait().await
                }
            };
            ended.send_replace(status.ok());
        });
        Ok(Process { pid, stdout, stderr, readers, kill, exit })
    }

    pub(crate) fn alive(&self) -> bool {
        self.exit.borrow().is_none()
    }

    /// Waits for its end, at most this long.
    pub(crate) async fn ended(&self, limit: Duration) -> Option<ExitStatus> {
        let mut exit = self.exit.clone();
        let waited = timeout(limit, exit.wait_for(Option::is_some)).await;
        waited.ok()?.ok().and_then(|status| *status)
    }

    /// SIGKILL, and its end.
    pub(crate) async fn kill(&self) {
        let _ = self.kill.try_send(());
        self.ended(Duration::from_secs(10)).await;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
            && self.alive()
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Nobody reads its output any more, as after the death of its agent.
    pub(crate) fn close_outputs(&self) {
        self.readers.iter().for_each(AbortHandle::abort);
    }

    /// Waits until all that it has printed before its end was read, at most this long: others may hold its pipes open.
    pub(crate) async fn drained(&self, limit: Duration) {
        let begun = Instant::now();
        while !self.readers.iter().all(AbortHandle::is_finished) && begun.elapsed() < limit {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The first line of its output, without the line end.
    pub(crate) async fn first_line(&self, limit: Duration) -> Outcome<String> {
        let line = || self.stdout.text().split_once('\n').map(|(line, _)| line.to_owned());
        let waiting = async {
            loop {
                if let Some(line) = line() {
                    return Some(line);
                }
                if !self.alive() {
                    self.drained(limit / 2).await;
                    return line();
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        match timeout(limit, waiting).await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => failed(format!(
                "the process ended ({}) before it printed a handshake; {}",
                self.epitaph(),
                self.last_words()
            )),
            Err(_) => failed(format!("no handshake on standard output within {limit:?}; {}", self.last_words())),
        }
    }

    pub(crate) fn epitaph(&self) -> String {
        match *self.exit.borrow() {
            Some(status) => status.to_string(),
            None => "still running".into(),
        }
    }

    /// The end of its standard error, for error texts.
    pub(crate) fn last_words(&self) -> String {
        let text = self.stderr.text();
        let text = text.trim();
        let start = text.char_indices().rev().nth(400).map_or(0, |(at, _)| at);
        if text.is_empty() {
            "its standard error is empty".into()
        } else {
            format!("its standard error ends with: {}", &text[start..])
        }
    }
}

/// A connected plugin.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) process: Process,
    pub(crate) address: Address,
    pub(crate) channel: Channel,
}

macro_rules! clients {
    ($($name:ident: $client:ident;)+) => {
        $(pub(crate) fn $name(&self) -> $client<Channel> {
            $client::new(self.channel.clone()).max_decoding_message_size(HOST_DECODE_LIMIT)
        })+
    };
}

impl Plugin {
    /// Connects to a process that has shaken hands.
    pub(crate) async fn connect(process: Process, address: Address, limit: Duration) -> Outcome<Plugin> {
        let target = address.clone();
        let connector = tower::service_fn(move |_| {
            let target = target.clone();
            async move { dial(&target).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static(handshake::AUTHORITY);
        match timeout(limit, endpoint.connect_with_connector(connector)).await {
            Ok(Ok(channel)) => Ok(Plugin { process, address, channel }),
            Ok(Err(error)) => {
                failed(format!("nobody answers at {address} right after the handshake: {}", chain(&error)))
            }
            Err(_) => failed(format!("connecting to {address} took longer than {limit:?}")),
        }
    }

    clients! {
        base: BasePluginClient;
        driver: DriverClient;
        health: HealthClient;
        controller: GrpcControllerClient;
        stdio: GrpcStdioClient;
        remote: RemoteDriverClient;
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// Either kind of stream.
pub(crate) trait Stream: AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

pub(crate) async fn dial(address: &Address) -> std::io::Result<Box<dyn Stream>> {
    Ok(match address {
        Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Address::Tcp(addr) => Box::new(TcpStream::connect(addr).await?),
    })
}
