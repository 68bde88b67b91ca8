//! `drover check-line`: stands between a node and a driver plugin, notes the calls that matter and lets them go wrong
//! as a file in its directory says. The node takes it for the plugin; the plugin takes it for the node.
//!
//! Whatever it does to a call happens to any driver in the same way: an answer is lost after the effect, the plugin
//! dies before it can answer, a call waits on its way.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    error::Error,
    ffi::OsString,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use driver_proto::{
    handshake::{self, Address},
    remote::{EnsureRequest, EnsureResponse},
};
use futures::SinkExt;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2::SendRequest,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader},
    net::{TcpStream, UnixListener, UnixStream},
    process::Command,
};

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the line: its faults and its notes
    dir: PathBuf,
    /// The plugin program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Fault {
    /// It does not arrive: the provider could not be asked.
    Fail,
    /// It does not arrive: there were too many.
    Throttle,
    /// It takes effect and its answer is lost, once.
    Lose,
    /// It takes effect and the plugin is killed before it can answer, once.
    Die,
    /// It waits on its way until this fault is taken away, whoever still waits for it.
    Hold,
    /// It takes some seconds longer.
    Slow,
}

/// How long a slow call waits: longer than the lease of the check.
const SLOW: Duration = Duration::from_secs(6);
/// How often a call on its way, and an open stream, look for faults.
const LOOK: Duration = Duration::from_millis(50);
/// In the environment of a plugin behind a line.
const LINE: &str = "DROVER_CHECK_LINE";
const FAULTS: &str = "faults.json";
const CALLS: &str = "calls.jsonl";
/// Calls of the plain protocol and of the remote extension that are noted, and may go wrong.
const NOTED: &[&str] = &["Ensure", "Find", "List", "Observe", "Stop", "Seal", "Acknowledge", "StartTask", "StopTask"];

/// A call as it is noted, when it is over or held.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(super) struct Call {
    /// Name of the method.
    pub(super) method: String,
    /// Key of a create.
    pub(super) key: String,
    /// Epoch of a create.
    pub(super) epoch: u64,
    /// The driver says that this create has made an instance.
    pub(super) created: bool,
    /// The fault that it met.
    pub(super) fault: Option<Fault>,
    /// Status that the driver has answered with; 0 is success. None while it is on its way, or when it never arrived.
    pub(super) status: Option<u16>,
}

/// Sets what goes wrong from now on in the line of this directory.
pub(super) fn set(dir: &Path, faults: &BTreeMap<&str, Fault>) -> Result<()> {
    fs::create_dir_all(dir)?;
    let fresh = dir.join("faults.new");
    fs::write(&fresh, serde_json::to_vec(faults)?)?;
    Ok(fs::rename(fresh, dir.join(FAULTS))?)
}

/// What the line of this directory has noted.
pub(super) fn calls(dir: &Path) -> Vec<Call> {
    let text = fs::read_to_string(dir.join(CALLS)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

type Body = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn streamed(body: Incoming) -> Body {
    body.map_err(Into::into).boxed_unsync()
}

/// The headers, or trailers, that end a call without an answer.
fn status(code: u16, why: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from(code));
    headers.insert("grpc-message", HeaderValue::from_static(why));
    headers
}

const UNAVAILABLE: (u16, &str) = (14, "the-check-has-cut-the-line-to-the-provider");
const EXHAUSTED: (u16, &str) = (8, "the-check-lets-the-provider-refuse-calls");

fn refused((code, why): (u16, &'static str)) -> Response<Body> {
    let mut answer = Response::new(full(Bytes::new()));
    answer.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    answer.headers_mut().extend(status(code, why));
    answer
}

/// The message of a call with one message, without its frame.
fn message(bytes: &Bytes) -> &[u8] {
    bytes.get(5..).unwrap_or_default()
}

/// Between one node and one plugin process.
struct Line {
    dir: PathBuf,
    plugin: Option<Pid>,
}

impl Line {
    fn fault(&self, method: &str) -> Option<Fault> {
        let text = fs::read(self.dir.join(FAULTS)).ok()?;
        let faults: BTreeMap<String, Fault> = serde_json::from_slice(&text).ok()?;
        faults.get(method).copied()
    }

    /// Whether this process is the first to meet a fault that comes once.
    fn first(&self, method: &str) -> bool {
        File::create_new(self.dir.join(format!("met-{method}"))).is_ok()
    }

    fn note(&self, call: &Call) {
        let Ok(mut line) = serde_json::to_vec(call) else { return };
        line.push(b'\n');
        // The check sees what is missing: it fails for that.
        let file = File::options().create(true).append(true).open(self.dir.join(CALLS));
        drop(file.and_then(|mut file| file.write_all(&line)));
    }

    async fn pass(
        self: Arc<Self>,
        mut plugin: SendRequest<Body>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Box<dyn Error + Send + Sync>> {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        if method == "Watch" {
            return self.watch(plugin, request).await;
        }
        if !NOTED.contains(&method.as_str()) {
            let answer = plugin.send_request(request.map(streamed)).await?;
            return Ok(answer.map(streamed));
        }
        let (head, body) = request.into_parts();
        let asked = body.collect().await?.to_bytes();
        let mut call = Call { method: method.clone(), ..Call::default() };
        if method == "Ensure" {
            let ensure = EnsureRequest::decode(message(&asked)).unwrap_or_default();
            (call.key, call.epoch) = (ensure.key, ensure.epoch);
        }
        call.fault = self.fault(&method).filter(|fault| match fault {
            Fault::Lose | Fault::Die => self.first(&method),
            _ => true,
        });
        match call.fault {
            Some(Fault::Fail | Fault::Throttle) => {
                self.note(&call);
                return Ok(refused(if call.fault == Some(Fault::Fail) { UNAVAILABLE } else { EXHAUSTED }));
            }
            Some(Fault::Hold) => {
                self.note(&call);
                while self.fault(&method) == Some(Fault::Hold) {
                    tokio::time::sleep(LOOK).await;
                }
            }
            Some(Fault::Slow) => {
                self.note(&call);
                tokio::time::sleep(SLOW).await;
            }
            Some(Fault::Lose | Fault::Die) | None => {}
        }
        let (answer, body) = plugin.send_request(Request::from_parts(head, full(asked))).await?.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().cloned();
        let told = body.to_bytes();
        let code = trailers.as_ref().and_then(|t| t.get("grpc-status")).or_else(|| answer.headers.get("grpc-status"));
        call.status = code.and_then(|code| code.to_str().ok()?.parse().ok());
        call.created = match method.as_str() {
            "Ensure" => EnsureResponse::decode(message(&told)).unwrap_or_default().created,
            "StartTask" => call.status == Some(0),
            _ => false,
        };
        self.note(&call);
        match call.fault {
            Some(Fault::Lose) => return Ok(refused(UNAVAILABLE)),
            Some(Fault::Die) => {
                if let Some(plugin) = self.plugin {
                    let _ = kill_process(plugin, Signal::KILL);
                }
                std::process::exit(1);
            }
            _ => {}
        }
        let body = full(told);
        Ok(Response::from_parts(
            answer,
            match trailers {
                Some(trailers) => body.with_trailers(async { Some(Ok(trailers)) }).boxed_unsync(),
                None => body,
            },
        ))
    }

    /// A stream: it ends when the line is cut, and a new one is refused until that is over.
    async fn watch(
        self: Arc<Self>,
        mut plugin: SendRequest<Body>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Box<dyn Error + Send + Sync>> {
        let cut = |line: &Self| match line.fault("Watch") {
            Some(Fault::Fail) => Some(UNAVAILABLE),
            Some(Fault::Throttle) => Some(EXHAUSTED),
            _ => None,
        };
        if let Some(answer) = cut(&self) {
            return Ok(refused(answer));
        }
        let (answer, mut body) = plugin.send_request(request.map(streamed)).await?.into_parts();
        let (mut out, frames) = futures::channel::mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let frame = tokio::select! {
                    frame = body.frame() => match frame {
                        Some(frame) => frame.map_err(Into::into),
                        None => return,
                    },
                    () = tokio::time::sleep(LOOK) => match cut(&self) {
                        Some((code, why)) => Ok(Frame::trailers(status(code, why))),
                        None if out.is_closed() => return,
                        None => continue,
                    },
                };
                let last = frame.as_ref().map_or(true, Frame::is_trailers);
                if out.send(frame).await.is_err() || last {
                    return;
                }
            }
        });
        Ok(Response::from_parts(answer, StreamBody::new(frames).boxed_unsync()))
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn connect(address: &Address) -> std::io::Result<Box<dyn Stream>> {
    Ok(match address {
        Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Address::Tcp(address) => Box::new(TcpStream::connect(address).await?),
    })
}

/// One connection of the node, with one of its own to the plugin.
async fn connection(line: Arc<Line>, node: UnixStream, address: Address) -> Result<()> {
    let upstream = TokioIo::new(connect(&address).await?);
    let (plugin, driving) = hyper::client::conn::http2::handshake(TokioExecutor::new(), upstream).await?;
    tokio::spawn(driving);
    let service = hyper::service::service_fn(move |request| {
        // A call that nobody waits for any more goes on.
        let passed = tokio::spawn(line.clone().pass(plugin.clone(), request));
        async move {
            match passed.await {
                Ok(Ok(answer)) => Ok::<_, Infallible>(answer),
                _ => Ok(refused(UNAVAILABLE)),
            }
        }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    Ok(server.serve_connection(TokioIo::new(node), service).await?)
}

/// Serves the plugin until it ends.
///
/// # Errors
/// When the program cannot be started, or there is no place for the socket.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let (program, words) = args.program.split_first().context("no plugin program")?;
    fs::create_dir_all(&args.dir)?;
    let mut child = Command::new(program)
        .args(words)
        .env(LINE, &args.dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("could not start {}", program.display()))?;
    let mut out = BufReader::new(child.stdout.take().context("the plugin has no standard output")?);
    let mut first = String::new();
    out.read_line(&mut first).await?;
    let Ok(address) = handshake::parse(&first) else {
        // The node says what is wrong with it.
        crate::output::line(first.trim_end());
        child.wait().await?;
        return Ok(ExitCode::FAILURE);
    };
    tokio::spawn(async move { tokio::io::copy(&mut out, &mut tokio::io::sink()).await });
    let place = std::env::var_os(handshake::SOCKET_DIR_KEY).map_or_else(std::env::temp_dir, PathBuf::from);
    let socket = place.join(format!("line{}", std::process::id()));
    let listener = UnixListener::bind(&socket).with_context(|| format!("could not listen at {}", socket.display()))?;
    crate::output::line(&format!("1|2|unix|{}|grpc|", socket.display()));
    let plugin = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let line = Arc::new(Line { dir: args.dir, plugin });
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (node, _) = accepted?;
                tokio::spawn(connection(line.clone(), node, address.clone()));
            }
            _ = terminate.recv() => {
                if let Some(plugin) = plugin {
                    let _ = kill_process(plugin, Signal::TERM);
                }
            }
            _ = child.wait() => {
                // Its last answers may still be on their way.
                tokio::time::sleep(LOOK).await;
                drop(fs::remove_file(&socket));
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}
