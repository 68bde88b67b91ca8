//! Load on an HTTP API from connections that are kept, with as little work of the client's own as can be: client and
//! server share the machine, so whatever the client does would hide what is measured.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::agent::CONNECTIONS;

/// One connection.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    head: String,
    body: Vec<u8>,
}

/// A request, ready to be sent.
pub(super) struct Request(Vec<u8>);

impl Request {
    /// A request with a token's secret and a body; both may be empty.
    pub(super) fn new(method: &str, path: &str, secret: &str, body: &Value) -> Self {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let token = if secret.is_empty() { String::new() } else { format!("X-Nomad-Token: {secret}\r\n") };
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{token}Content-Length: {length}\r\n\r\n");
        Self((head + &body).into_bytes())
    }
}

impl Connection {
    /// A new connection to the API at this port.
    pub(super) fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self { stream: BufReader::with_capacity(64 * 1024, stream), head: String::new(), body: Vec::new() })
    }

    /// Sends a request and gives the body of its answer, which is one of success.
    pub(super) fn send(&mut self, request: &Request) -> Result<&[u8]> {
        self.stream.get_mut().write_all(&request.0)?;
        self.head.clear();
        self.stream.read_line(&mut self.head)?;
        let status: u16 = self.head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status line")?;
        let (mut length, mut chunked) = (0, false);
        loop {
            self.head.clear();
            ensure!(self.stream.read_line(&mut self.head)? > 0, "the answer ended in its head");
            let line = self.head.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
            chunked |= name.eq_ignore_ascii_case("transfer-encoding");
        }
        self.body.clear();
        if chunked {
            self.read_chunks()?;
        } else {
            self.body.resize(length, 0);
            self.stream.read_exact(&mut self.body)?;
        }
        if status >= 300 {
            bail!("status {status}: {}", String::from_utf8_lossy(&self.body));
        }
        Ok(&self.body)
    }

    fn read_chunks(&mut self) -> Result<()> {
        loop {
            self.head.clear();
            self.stream.read_line(&mut self.head)?;
            let size = usize::from_str_radix(self.head.trim_end(), 16)?;
            let start = self.body.len();
            self.body.resize(start + size + 2, 0);
            self.stream.read_exact(&mut self.body[start..])?;
            self.body.truncate(start + size);
            if size == 0 {
                return Ok(());
            }
        }
    }
}

/// Does something for each number, over so many connections.
pub(super) fn each(
    port: u16,
    connections: usize,
    many: usize,
    act: impl Fn(&mut Connection, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let client = || {
            let mut connection = Connection::open(port)?;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= many {
                    return Ok(());
                }
                act(&mut connection, n)?;
            }
        };
        let clients: Vec<_> = (0..connections).map(|_| scope.spawn(client)).collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// What a number of connections got done in a time.
pub(super) struct Done {
    /// How long each request took.
    pub(super) took: Vec<Duration>,
    /// From the first request to the last answer.
    pub(super) time: Duration,
}

impl Done {
    /// Requests each second.
    #[allow(clippy::cast_precision_loss, reason = "a count of requests")]
    pub(super) fn rate(&self) -> f64 {
        self.took.len() as f64 / self.time.as_secs_f64()
    }
}

/// Sends one request after another for a time, over a few connections. `act` gets the number of its connection and of
/// its turn there.
pub(super) fn for_a_time(
    port: u16,
    time: Duration,
    act: impl Fn(&mut Connection, usize, usize) -> Result<()> + Sync,
) -> Result<Done> {
    while_it_lasts(port, CONNECTIONS, |started| started.elapsed() < time, act)
}

/// The same, over so many connections and for as long as `goes_on`, which is told when it began.
pub(super) fn while_it_lasts(
    port: u16,
    connections: usize,
    goes_on: impl Fn(Instant) -> bool + Sync,
    act: impl Fn(&mut Connection, usize, usize) -> Result<()> + Sync,
) -> Result<Done> {
    let started = Instant::now();
    let (act, goes_on) = (&act, &goes_on);
    let took = thread::scope(|scope| {
        let client = |which| {
            move || -> Result<Vec<Duration>> {
                let (mut connection, mut took) = (Connection::open(port)?, Vec::new());
                while goes_on(started) {
                    let asked = Instant::now();
                    act(&mut connection, which, took.len())?;
                    took.push(asked.elapsed());
                }
                Ok(took)
            }
        };
        let clients: Vec<_> = (0..connections).map(|which| scope.spawn(client(which))).collect();
        let mut all = Vec::new();
        for client in clients {
            all.extend(client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        anyhow::Ok(all)
    })?;
    Ok(Done { took, time: started.elapsed() })
}
