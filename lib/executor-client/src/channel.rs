//! A channel to the runtime of a host: `drover-executor serve-host` at the other end of a child's standard input and
//! output.
//!
//! The child is that program itself, or an ssh that starts it elsewhere. Output before our greeting comes from others
//! (a login shell's profile, a banner) and is kept for the error message only. When the child ends, or is silent for
//! too long, the channel closes for good; callers open another one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use executor_proto::host::{
    HOST_CHUNK, HOST_WINDOW, HostCredit, HostFailure, HostHello, HostInput, HostNothing, HostReply, HostRequest,
    host_reply::Body, host_request::Op,
};
use executor_proto::{encode_frame, split_frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// Time limits for the far end.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For its greeting.
    pub greeting: Duration,
    /// For any message afterwards; then the channel closes. The channel asks for one five times as often.
    pub silence: Duration,
}

/// How often a far end that is silent is asked for a word before it is given up.
const ASKED: u32 = 5;
/// Limit of other output before the greeting, in bytes.
const MAX_NOISE: usize = 256 * 1024;
/// Bytes kept of the child's last output.
const LAST_WORDS: usize = 2048;
/// How long a refusing far end may take to give its reason and to clean up, before it is killed.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why a channel could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The far end gave this reason.
    #[error("{0}")]
    Refused(String),
    /// Our executor does not run on the machine's architecture.
    #[error("the host is {found}, this release's executor runs on {wanted} only")]
    Architecture {
        /// The host's architecture.
        found: String,
        /// The executor's architecture.
        wanted: &'static str,
    },
    /// The child ended, or sent no greeting.
    #[error("{0}")]
    Ended(String),
    /// It took too long.
    #[error("no greeting within {seconds} s{said}")]
    Late {
        /// How long the caller waited.
        seconds: u64,
        /// Other output, for people.
        said: String,
    },
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The channel has closed; whether the call took effect is unknown.
    #[error("{0}")]
    Closed(String),
    /// The runtime refused.
    #[error("{}", .0.message)]
    Refused(HostFailure),
}

/// A channel to one host. Clones share it; it closes with the last one.
#[derive(Clone)]
pub struct HostChannel {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    hello: HostHello,
    tasks: Vec<AbortHandle>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

struct Shared {
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    calls: Mutex<HashMap<u64, mpsc::UnboundedSender<Body>>>,
    next_id: AtomicU64,
    /// Why the channel has closed.
    closed: watch::Sender<Option<String>>,
    /// How far the host's clock is ahead, in milliseconds.
    ahead_ms: AtomicI64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now_ns() -> u64 {
    executor::process::now_ns()
}

impl std::fmt::Debug for HostChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostChannel").field("root", &self.inner.hello.root).finish()
    }
}

impl HostChannel {
    /// Waits for the greeting of a child with piped standard input, output and error, and takes the child over. Sends
    /// the executor to a far end that lacks this release's.
    ///
    /// # Errors
    /// [`OpenError`]. The child has ended then, or is killed.
    pub async fn open(mut child: Child, nonce: &str, patience: Patience) -> Result<HostChannel, OpenError> {
        let (Some(mut stdin), Some(mut stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(OpenError::Ended("the child was started without pipes".into()));
        };
        let words = Arc::new(Mutex::new(String::new()));
        let listening = tokio::spawn(listen(stderr, words.clone()));
        let until = tokio::time::Instant::now() + patience.greeting;
        let opened = tokio::time::timeout_at(until, greet(&mut stdin, &mut stdout, nonce)).await;
        let (hello, received) = match opened {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(Greeting::Told(error))) => {
                // It exits by itself, or when it sees the end of input, and cleans up; the reason may come last, by the
                // other pipe.
                drop(stdin);
                let _ = tokio::time::timeout(FAREWELL, listening).await;
                let _ = child.start_kill();
                return Err(with_words(error, &words));
            }
            Ok(Err(Greeting::Ended(noise))) => {
                let end = match tokio::time::timeout_at(until, child.wait()).await {
                    Ok(end) => end.map(|status| status.to_string()).unwrap_or_default(),
                    Err(_) => {
                        let _ = child.start_kill();
                        "its end of the pipe is closed, but it runs on".into()
                    }
                };
                let _ = tokio::time::timeout(FAREWELL, listening).await;
                return Err(OpenError::Ended(ended(&end, &lock(&words), &noise)));
            }
            Err(_) => {
                let _ = child.start_kill();
                let said = lock(&words).clone();
                let said = if said.is_empty() { String::new() } else { format!("; it said: {said}") };
                return Err(OpenError::Late { seconds: patience.greeting.as_secs(), said });
            }
        };
        let (outgoing, queue) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            outgoing,
            calls: Mutex::default(),
            next_id: AtomicU64::new(1),
            closed: watch::Sender::new(None),
            ahead_ms: AtomicI64::new(ahead_ms(now_ns(), hello.now_ns)),
        });
        let line = Line { child, stdin, stdout, received, queue, words, silence: patience.silence };
        let tasks = vec![tokio::spawn(line.serve(shared.clone())).abort_handle(), listening.abort_handle()];
        Ok(HostChannel { inner: Arc::new(Inner { shared, hello, tasks }) })
    }

    /// The far end's identity.
    pub fn hello(&self) -> &HostHello {
        &self.inner.hello
    }

    /// How far the host's clock is ahead of this machine's, in milliseconds; negative when behind.
    pub fn clock_ahead_ms(&self) -> i64 {
        self.inner.shared.ahead_ms.load(Ordering::Relaxed)
    }

    /// Whether the channel has closed.
    pub fn is_closed(&self) -> bool {
        self.inner.shared.closed.borrow().is_some()
    }

    /// Returns the reason when the channel has closed. Cancel safe.
    pub async fn closed(&self) -> String {
        let mut closed = self.inner.shared.closed.subscribe();
        match closed.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the channel was dropped".into(),
        }
    }

    /// Begins a call.
    pub fn call(&self, op: Op) -> HostCall {
        let id = self.inner.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, replies) = mpsc::unbounded_channel();
        lock(&self.inner.shared.calls).insert(id, sender);
        // A channel that closed meanwhile has cleared its calls, perhaps before this one.
        if self.inner.shared.closed.borrow().is_some() {
            lock(&self.inner.shared.calls).remove(&id);
        }
        let call = HostCall { id, channel: self.clone(), replies, credit: HOST_WINDOW, over: false };
        call.send(op);
        call
    }

    /// Sends a request with a single answer.
    ///
    /// # Errors
    /// As [`HostCall::next`].
    pub async fn ask(&self, op: Op) -> Result<Body, CallError> {
        self.call(op).next().await
    }
}

/// One call under way; a drop cancels it at the host.
pub struct HostCall {
    id: u64,
    channel: HostChannel,
    replies: mpsc::UnboundedReceiver<Body>,
    credit: u64,
    over: bool,
}

impl Drop for HostCall {
    fn drop(&mut self) {
        if !self.over {
            lock(&self.channel.inner.shared.calls).remove(&self.id);
            self.send(Op::Cancel(HostNothing {}));
        }
    }
}

impl HostCall {
    fn send(&self, op: Op) {
        let mut frame = Vec::new();
        encode_frame(&HostRequest { id: self.id, op: Some(op) }, &mut frame);
        // If this fails the channel has closed, as the next read reports.
        let _ = self.channel.inner.shared.outgoing.send(frame);
    }

    /// The next part of the answer. Cancel safe. [`HostCall::taken`] lets the host send more data.
    ///
    /// # Errors
    /// [`CallError::Refused`] is the host's answer. After [`CallError::Closed`] nobody knows whether the host has done
    /// what it was asked for.
    pub async fn next(&mut self) -> Result<Body, CallError> {
        loop {
            if let Some(body) = self.step().await? {
                return Ok(body);
            }
        }
    }

    /// As [`HostCall::next`]; `None` when the host takes more data now. Cancel safe.
    ///
    /// # Errors
    /// As [`HostCall::next`].
    pub async fn step(&mut self) -> Result<Option<Body>, CallError> {
        loop {
            let Some(body) = self.replies.recv().await else {
                self.over = true;
                return Err(CallError::Closed(self.channel.closed().await));
            };
            if let Body::Credit(HostCredit { bytes }) = body {
                self.credit += bytes;
                return Ok(None);
            }
            let reply = HostReply { id: self.id, body: Some(body) };
            self.over = reply.is_last();
            match reply.body {
                Some(Body::Failure(failure)) => return Err(CallError::Refused(failure)),
                Some(body) => return Ok(Some(body)),
                None => {}
            }
        }
    }

    /// Reports that `bytes` of the received data were passed on.
    pub fn taken(&self, bytes: usize) {
        self.send(Op::Credit(HostCredit { bytes: bytes as u64 }));
    }

    /// Sends as much of `data` as the host takes now, and returns that length.
    pub fn send_some(&mut self, data: &[u8]) -> usize {
        let mut sent = 0;
        while sent < data.len() && self.credit > 0 {
            let part = (data.len() - sent).min(HOST_CHUNK).min(usize::try_from(self.credit).unwrap_or(usize::MAX));
            self.credit -= part as u64;
            self.send(Op::Input(HostInput { data: data[sent..sent + part].to_vec(), ..HostInput::default() }));
            sent += part;
        }
        sent
    }

    /// Sends data as fast as the host takes it. Returns an answer that comes before everything was sent.
    ///
    /// # Errors
    /// As [`HostCall::next`]. How much of the data has arrived is not known then.
    pub async fn send_all(&mut self, mut data: &[u8]) -> Result<Option<Body>, CallError> {
        loop {
            data = &data[self.send_some(data)..];
            if data.is_empty() {
                return Ok(None);
            }
            if let Some(early) = self.step().await? {
                return Ok(Some(early));
            }
        }
    }

    /// Sends a small input, such as the end of the data or a terminal's new size.
    pub fn input(&self, input: HostInput) {
        self.send(Op::Input(input));
    }
}

enum Greeting {
    Told(OpenError),
    Ended(String),
}

/// Reads up to and including the hello; sends the executor on request.
async fn greet(
    stdin: &mut ChildStdin,
    stdout: &mut ChildStdout,
    nonce: &str,
) -> Result<(HostHello, Vec<u8>), Greeting> {
    let mark = format!("DROVER {nonce} ");
    let mut received: Vec<u8> = Vec::new();
    let mut noise = Vec::new();
    loop {
        if let Some(at) = received.windows(mark.len()).position(|w| w == mark.as_bytes())
            && let Some(end) = received[at..].iter().position(|b| *b == b'\n')
        {
            noise.extend_from_slice(&received[..at]);
            let line = String::from_utf8_lossy(&received[at + mark.len()..at + end]).trim().to_owned();
            received.drain(..=at + end);
            match line.split_once(' ').unwrap_or((&line, "")) {
                ("READY", _) => break,
                ("SEND", found) => {
                    let wanted = std::env::consts::ARCH;
                    if found != wanted {
                        return Err(Greeting::Told(OpenError::Architecture { found: found.to_owned(), wanted }));
                    }
                    // A far end that stops reading gives its reason, or exits.
                    let _ = stdin.write_all(crate::install::binary()).await;
                    let _ = stdin.flush().await;
                }
                ("FAILED", why) => return Err(Greeting::Told(OpenError::Refused(why.to_owned()))),
                _ => return Err(Greeting::Told(OpenError::Refused(format!("it answered {line:?}")))),
            }
            continue;
        }
        if received.len() > MAX_NOISE {
            let text =
                format!("the host's login shell writes without end before our program runs: {}", short(&received));
            return Err(Greeting::Told(OpenError::Refused(text)));
        }
        if !matches!(stdout.read_buf(&mut received).await, Ok(n) if n > 0) {
            noise.extend_from_slice(&received);
            return Err(Greeting::Ended(short(&noise)));
        }
    }
    loop {
        match split_frame::<HostReply>(&mut received) {
            Ok(Some(HostReply { id: 0, body: Some(Body::Hello(hello)) })) => return Ok((hello, received)),
            Ok(Some(_)) => return Err(Greeting::Told(OpenError::Refused("its first frame is no greeting".into()))),
            Ok(None) => {}
            Err(e) => return Err(Greeting::Told(OpenError::Refused(e.to_string()))),
        }
        if !matches!(stdout.read_buf(&mut received).await, Ok(n) if n > 0) {
            return Err(Greeting::Ended(short(&received)));
        }
    }
}

/// The end of untrusted text, on one line: long enough for ssh's warning about a changed key.
fn short(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(1000)..]).into_owned();
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn with_words(error: OpenError, words: &Mutex<String>) -> OpenError {
    let words = lock(words).clone();
    match error {
        OpenError::Refused(text) if !words.is_empty() => OpenError::Refused(format!("{text} ({words})")),
        other => other,
    }
}

/// Describes a child's end for people: its last output first.
fn ended(end: &str, words: &str, noise: &str) -> String {
    let mut text = if words.is_empty() { format!("the connection ended ({end})") } else { format!("{words} ({end})") };
    if !noise.is_empty() {
        text.push_str(&format!("; the host wrote: {noise}"));
    }
    text
}

/// Keeps the end of the child's standard error.
async fn listen(mut stderr: ChildStderr, words: Arc<Mutex<String>>) {
    let mut all = Vec::new();
    while matches!(stderr.read_buf(&mut all).await, Ok(n) if n > 0) {
        if all.len() > LAST_WORDS {
            all.drain(..all.len() - LAST_WORDS);
        }
        *lock(&words) = short(&all);
    }
}

fn ahead_ms(ours_ns: u64, theirs_ns: u64) -> i64 {
    let difference = i128::from(theirs_ns) - i128::from(ours_ns);
    i64::try_from(difference / 1_000_000).unwrap_or(i64::MAX)
}

/// The child of a channel, after the greeting.
struct Line {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// Data after the greeting.
    received: Vec<u8>,
    queue: mpsc::UnboundedReceiver<Vec<u8>>,
    words: Arc<Mutex<String>>,
    silence: Duration,
}

impl Line {
    /// Serves a channel until it closes.
    async fn serve(self, shared: Arc<Shared>) {
        let Line { mut child, stdin, stdout, received, queue, words, silence } = self;
        let heard = Mutex::new(Instant::now());
        let why = tokio::select! {
            why = read(&shared, stdout, received, &heard) => why,
            () = write(stdin, queue) => None,
            why = ask_again(&shared, &heard, silence) => Some(why),
        };
        let _ = child.start_kill();
        let why = match why {
            Some(why) => why,
            None => {
                let end = tokio::time::timeout(Duration::from_secs(5), child.wait()).await;
                let end = end
                    .ok()
                    .and_then(Result::ok)
                    .map(|status| status.to_string())
                    .unwrap_or_else(|| "it does not end".into());
                // Its last output arrives with its end.
                tokio::task::yield_now().await;
                ended(&end, &lock(&words), "")
            }
        };
        shared.closed.send_replace(Some(why));
        lock(&shared.calls).clear();
    }
}

/// Passes replies on until the stream ends; returns a reason only if the stream is at fault.
async fn read(
    shared: &Shared,
    mut stdout: ChildStdout,
    mut received: Vec<u8>,
    heard: &Mutex<Instant>,
) -> Option<String> {
    loop {
        match split_frame::<HostReply>(&mut received) {
            Ok(Some(reply)) => {
                let last = reply.is_last();
                let Some(body) = reply.body else { continue };
                if let Body::Pong(pong) = &body {
                    shared.ahead_ms.store(ahead_ms(now_ns(), pong.now_ns), Ordering::Relaxed);
                    continue;
                }
                let mut calls = lock(&shared.calls);
                let call = if last { calls.remove(&reply.id) } else { calls.get(&reply.id).cloned() };
                if let Some(call) = call {
                    let _ = call.send(body);
                }
                continue;
            }
            Ok(None) => {}
            Err(e) => return Some(format!("the host's answers are damaged: {e}")),
        }
        if !matches!(stdout.read_buf(&mut received).await, Ok(n) if n > 0) {
            return None;
        }
        *lock(heard) = Instant::now();
    }
}

async fn write(mut stdin: ChildStdin, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(frame) = queue.recv().await {
        if stdin.write_all(&frame).await.is_err() {
            break;
        }
        if queue.is_empty() && stdin.flush().await.is_err() {
            break;
        }
    }
    // The reader reports the end.
    std::future::pending::<()>().await;
}

/// Returns when the far end has been silent for too long. Unanswered questions count, not the clock: a manager that
/// was held up itself would give up every host at once.
async fn ask_again(shared: &Shared, heard: &Mutex<Instant>, patience: Duration) -> String {
    let mut unanswered = 0;
    while unanswered < ASKED {
        let asked = Instant::now();
        let mut frame = Vec::new();
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        encode_frame(&HostRequest { id, op: Some(Op::Ping(HostNothing {})) }, &mut frame);
        let _ = shared.outgoing.send(frame);
        tokio::time::sleep(patience / ASKED).await;
        unanswered = if *lock(heard) >= asked { 0 } else { unanswered + 1 };
    }
    format!("the host has not answered for {} s", lock(heard).elapsed().as_secs())
}
