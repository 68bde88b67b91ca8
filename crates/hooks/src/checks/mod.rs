//! Runs of checks. Each check of a registered service has a loop of its own, which reports results to the allocation's
//! loop.
//!
//! Some failures are the node's own: the driver's plugin is away, or this node may not act on a remote instance. Such a
//! run has no outcome, because it says nothing about the task.

mod grpc;
mod tls;

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use driver_host::{ExecOutput, ExecSession};
use host::clock::now_ns;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use lifecycle::{
    alloc::{inbox::Inbox, machine::Event, record::CheckRun},
    checks::Outcome,
};
use model::SlotKey;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use self::grpc::authority;
pub(crate) use self::tls::Tls;
use crate::drivers::Drivers;

/// Largest output of a run that is kept, in bytes.
const OUTPUT_MAX: usize = 3 * 1024;

/// How a check is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub(crate) ask: Ask,
    /// Pause from the end of one run to the next.
    pub interval: Duration,
    /// Time limit of one run.
    pub timeout: Duration,
}

/// What a check asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Http {
        host: String,
        port: u16,
        method: String,
        path: String,
        headers: Vec<(String, String)>,
        body: String,
        tls: Option<Tls>,
    },
    /// By the standard health service; an empty service is the whole server.
    Grpc {
        host: String,
        port: u16,
        service: String,
        tls: Option<Tls>,
    },
    Tcp {
        host: String,
        port: u16,
    },
    Script {
        within: Within,
        command: Vec<String>,
    },
}

/// Where a script runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Within {
    /// In a run of a local task, through its driver.
    Local {
        /// Name of the driver.
        driver: String,
        /// Name of the run.
        run: String,
    },
    /// In the instance of a slot.
    Remote(SlotKey),
}

/// The loop of a check; dropping it ends the check.
#[derive(Debug)]
pub struct Running {
    /// The definition that it follows.
    pub probe: Probe,
    _loop: AbortOnDropHandle<()>,
}

/// Runs commands in the instances of remote tasks that this node manages.
pub trait RemoteExec: Send + Sync {
    /// Begins a command in the instance of a slot. An error says why it cannot begin now, and nothing about the task.
    fn exec(&self, slot: SlotKey, command: Vec<String>) -> Begun<'_>;
}

/// The session of a command, or why it could not begin.
pub type Begun<'a> = Pin<Box<dyn Future<Output = Result<ExecSession, String>> + Send + 'a>>;

/// Runs checks.
pub struct Checks {
    /// Runs scripts in tasks of this node.
    pub drivers: Arc<Drivers>,
    /// Runs scripts in remote instances.
    pub remote: Box<dyn RemoteExec>,
}

/// Outcome, code, output.
type Found = (Option<Outcome>, i32, String);

impl Checks {
    /// Starts the loop of a check, after `pause`.
    pub fn start(self: &Arc<Self>, key: String, probe: Probe, pause: Duration, inbox: Inbox) -> Running {
        let (checks, asked) = (self.clone(), probe.clone());
        let running = async move {
            tokio::time::sleep(pause).await;
            loop {
                let (outcome, code, output) = checks.run(&asked).await;
                let run = CheckRun { code, output, at: now_ns() };
                if inbox.send(Event::Checked { key: key.clone(), outcome, run }).is_err() {
                    return;
                }
                tokio::time::sleep(asked.interval).await;
            }
        };
        Running { probe, _loop: AbortOnDropHandle::new(tokio::spawn(running)) }
    }

    async fn run(&self, probe: &Probe) -> Found {
        let limit = probe.timeout;
        let late = || format!("no answer within {}", model::GoDuration::from(limit));
        let asked = async {
            match &probe.ask {
                Ask::Tcp { host, port } => match TcpStream::connect((host.as_str(), *port)).await {
                    Ok(_) => (Some(Outcome::Pass), 0, "nomad: tcp ok".to_owned()),
                    Err(e) => (Some(Outcome::Fail), 0, format!("connect to {}: {e}", authority(host, *port))),
                },
                Ask::Http { .. } => http(&probe.ask).await,
                Ask::Grpc { host, port, service, tls } => {
                    let (outcome, said) = grpc::ask(host, *port, service, tls.as_ref()).await;
                    (Some(outcome), 0, said)
                }
                Ask::Script { within, command } => self.script(within, command.clone(), limit).await,
            }
        };
        match &probe.ask {
            // The driver enforces the time limit of a script, and this loop must hear its end.
            Ask::Script { .. } => asked.await,
            Ask::Http { .. } | Ask::Grpc { .. } | Ask::Tcp { .. } => {
                tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| (Some(Outcome::Fail), 0, late()))
            }
        }
    }

    async fn script(&self, within: &Within, command: Vec<String>, limit: Duration) -> Found {
        let not_run = |why: String| (None, 0, format!("the check was not run: {why}"));
        match within {
            Within::Local { driver, run } => {
                let Some(driver) = self.drivers.now(driver) else {
                    return not_run(format!("the plugin of driver {driver:?} is not running"));
                };
                match driver.exec_task(run, command, limit).await {
                    Ok(done) => {
                        let said = [done.stdout, done.stderr].concat();
                        match done.exit.error {
                            Some(why) => (Some(Outcome::Fail), done.exit.exit_code, why),
                            None => (Some(of_exit(done.exit.exit_code)), done.exit.exit_code, shortened(&said)),
                        }
                    }
                    // The driver enforces the time limit. An error that comes with an answer concerns the task; any
                    // other concerns the plugin.
                    Err(e) if e.is_plugin_gone() || e.is_disconnected() || e.is_task_not_found() => {
                        not_run(e.to_string())
                    }
                    Err(e) => (Some(Outcome::Fail), 0, e.to_string()),
                }
            }
            Within::Remote(slot) => match self.remote.exec(slot.clone(), command).await {
                Ok(session) => match tokio::time::timeout(limit, collect(session)).await {
                    Ok(found) => found,
                    Err(_) => (
                        Some(Outcome::Fail),
                        0,
                        format!("the script did not end within {}", model::GoDuration::from(limit)),
                    ),
                },
                Err(why) => not_run(why),
            },
        }
    }
}

/// Below 400 passes, as in Nomad; 429 warns; any other status fails. Redirects count as answers and are not followed.
fn of_status(status: u16) -> Outcome {
    match status {
        ..400 => Outcome::Pass,
        429 => Outcome::Warn,
        _ => Outcome::Fail,
    }
}

async fn http(ask: &Ask) -> Found {
    let Ask::Http { host, port, method, path, headers, body, tls } = ask else { return (None, 0, String::new()) };
    let failed = |why: String| (Some(Outcome::Fail), 0, why);
    let at = authority(host, *port);
    let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap_or_default()).uri(path);
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header(header::HOST, &at);
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = match request.body(Full::new(Bytes::from(body.clone()))) {
        Ok(request) => request,
        Err(e) => return failed(format!("the check makes no valid request: {e}")),
    };
    let stream = match TcpStream::connect((host.as_str(), *port)).await {
        Ok(stream) => stream,
        Err(e) => return failed(format!("connect to {at}: {e}")),
    };
    let sent = match tls {
        None => send(TokioIo::new(stream), request).await.map_err(|e| format!("{method} http://{at}{path}: {e}")),
        Some(tls) => match tls.connect(stream, host, ::tls::Protocol::Http1).await {
            Ok(stream) => {
                send(TokioIo::new(stream), request).await.map_err(|e| format!("{method} https://{at}{path}: {e}"))
            }
            Err(why) => Err(why),
        },
    };
    // The connection closes with this future.
    let (response, _connection) = match sent {
        Ok(sent) => sent,
        Err(why) => return failed(why),
    };
    let status = response.status().as_u16();
    if status == 200 {
        return (Some(Outcome::Pass), 200, "nomad: http ok".to_owned());
    }
    let mut body = response.into_body();
    let mut said = Vec::new();
    while said.len() < OUTPUT_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        said.extend_from_slice(frame.data_ref().map_or(&[][..], |d| d));
    }
    (Some(of_status(status)), status.into(), shortened(&said))
}

/// Sends a request. Returns the response with its connection, which must live while the body is read.
async fn send<S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<(hyper::Response<hyper::body::Incoming>, AbortOnDropHandle<hyper::Result<()>>), hyper::Error> {
    let (mut sender, connection) = http1::handshake(stream).await?;
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    Ok((sender.send_request(request).await?, connection))
}

/// Exit code 0 passes, 1 warns, anything else fails.
fn of_exit(code: i32) -> Outcome {
    match code {
        0 => Outcome::Pass,
        1 => Outcome::Warn,
        _ => Outcome::Fail,
    }
}

async fn collect(mut session: ExecSession) -> Found {
    let mut said = Vec::new();
    loop {
        match session.next().await {
            Some(Ok(ExecOutput::Stdout(data) | ExecOutput::Stderr(data))) => {
                if said.len() < OUTPUT_MAX {
                    said.extend_from_slice(&data);
                }
            }
            Some(Ok(ExecOutput::Exited(exit))) => {
                return (Some(of_exit(exit.exit_code)), exit.exit_code, shortened(&said));
            }
            Some(Ok(_)) => {}
            Some(Err(e)) => return (None, 0, format!("the check was not run: {e}")),
            None => return (None, 0, "the check was not run to its end: the session broke".to_owned()),
        }
    }
}

fn shortened(said: &[u8]) -> String {
    String::from_utf8_lossy(&said[..said.len().min(OUTPUT_MAX)]).into_owned()
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpSocket},
    };

    use super::*;

    #[test]
    fn answers_become_outcomes() {
        for (status, outcome) in [
            (200, Outcome::Pass),
            (204, Outcome::Pass),
            (302, Outcome::Pass),
            (404, Outcome::Fail),
            (429, Outcome::Warn),
            (500, Outcome::Fail),
        ] {
            assert_eq!(of_status(status), outcome, "{status}");
        }
        for (code, outcome) in
            [(0, Outcome::Pass), (1, Outcome::Warn), (2, Outcome::Fail), (-1, Outcome::Fail), (137, Outcome::Fail)]
        {
            assert_eq!(of_exit(code), outcome, "{code}");
        }
    }

    /// Answers each connection with the same bytes, and hands the requests back.
    async fn server(answer: &'static str) -> (u16, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("address").port();
        let (tx, rx) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut asked = vec![0; 4096];
                let n = stream.read(&mut asked).await.unwrap_or(0);
                let _ = tx.send(String::from_utf8_lossy(&asked[..n]).into_owned());
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        (port, rx)
    }

    fn ask(port: u16) -> Ask {
        Ask::Http {
            host: "127.0.0.1".into(),
            port,
            method: "POST".into(),
            path: "/health?x=1".into(),
            headers: vec![("X-A".into(), "b".into())],
            body: "hello".into(),
            tls: None,
        }
    }

    #[tokio::test]
    async fn requests_are_what_the_job_says_and_answers_are_kept_in_part() {
        let (port, mut asked) = server("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        assert_eq!(http(&ask(port)).await, (Some(Outcome::Pass), 200, "nomad: http ok".to_owned()));
        let text = asked.recv().await.expect("asked").to_lowercase();
        for part in
            ["post /health?x=1 http/1.1\r\n", "x-a: b\r\n", &format!("host: 127.0.0.1:{port}\r\n"), "\r\n\r\nhello"]
        {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        let (port, _asked) = server("HTTP/1.1 503 Busy\r\ncontent-length: 5\r\n\r\nlater").await;
        assert_eq!(http(&ask(port)).await, (Some(Outcome::Fail), 503, "later".to_owned()));
        let (port, _asked) = server("nonsense\r\n\r\n").await;
        let (outcome, code, said) = http(&ask(port)).await;
        assert_eq!((outcome, code), (Some(Outcome::Fail), 0), "{said}");
    }

    #[tokio::test]
    async fn a_server_without_tls_fails_a_check_over_https() {
        let (port, _asked) = server("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        let Ask::Http { host, method, path, headers, body, .. } = ask(port) else { panic!("not over HTTP") };
        let tls = Some(Tls { server_name: String::new(), skip_verify: true });
        let (outcome, code, said) = http(&Ask::Http { host, port, method, path, headers, body, tls }).await;
        assert!(outcome == Some(Outcome::Fail) && code == 0 && said.contains("TLS with 127.0.0.1"), "{said}");
    }

    #[tokio::test]
    async fn nobody_listening_fails_and_says_where() {
        // Bound, so that nobody else gets it, and nobody listens.
        let taken = TcpSocket::new_v4().expect("a socket");
        taken.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let port = taken.local_addr().expect("address").port();
        let (outcome, _, said) = http(&ask(port)).await;
        assert_eq!(outcome, Some(Outcome::Fail));
        assert!(said.contains(&format!("connect to 127.0.0.1:{port}")), "{said}");
    }
}
