//! A handle on one workload.

use std::collections::HashMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use executor::contain::{self, Fate};
use executor::epoch;
use executor::process::ProcessStat;
use executor_proto::{
    Claim, ErrorCode, Hello, HelloReply, PROTOCOL_VERSION, Reply, Request, ResultRecord, StateRecord, StatsReply, Stop,
    Wait, encode_frame, files, reply, request, split_frame,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use crate::{Error, ExitResult};

/// Longest wait for an answer that takes an executor microseconds.
const ANSWER: Duration = Duration::from_secs(10);
/// Time after a stop's grace for killing and for storing the output and the result. Then the executor itself is killed.
const DEATH: Duration = Duration::from_secs(15);

type Outcome = Option<Result<ResultRecord, Arc<Error>>>;

/// One workload, running or ended. Clones are the same workload; a drop of all of them does not touch it.
#[derive(Clone)]
pub struct Executor {
    inner: Arc<Inner>,
    epoch: Option<u64>,
}

struct Inner {
    shared: Arc<Shared>,
    /// Task that reads the connection; `None` for a workload found ended.
    reader: Option<AbortHandle>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            reader.abort();
        }
    }
}

struct Shared {
    state_dir: PathBuf,
    hello: HelloReply,
    /// The record when the workload was found; serves if the file is gone.
    record: Option<StateRecord>,
    writer: tokio::sync::Mutex<Option<OwnedWriteHalf>>,
    pending: Mutex<HashMap<u64, oneshot::Sender<reply::Body>>>,
    next_id: AtomicU64,
    outcome: watch::Sender<Outcome>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("state_dir", &self.inner.shared.state_dir).field("epoch", &self.epoch).finish()
    }
}

impl Executor {
    /// Finds the workload of `state_dir`. If its executor was killed, first ends its leftovers, and [`Executor::ended`]
    /// says `lost`. [`Error::Absent`] when nothing ever started there.
    ///
    /// # Errors
    /// [`Error::Unresponsive`] and [`Error::Io`] say nothing about the workload, which may run. [`Error::Damaged`]:
    /// the executor was killed and its record cannot be read; [`Launcher::recover`](crate::Launcher::recover) ends the
    /// workload all the same. [`Error::Uncontained`]: processes of a killed executor's workload resist SIGKILL.
    pub async fn attach(state_dir: &Path) -> Result<Executor, Error> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match fate(state_dir, None).await? {
                Fate::Ended(result) => return Ok(Executor::finished(state_dir, result)),
                Fate::Alive => {}
            }
            match connect(state_dir).await {
                Ok((stream, buffer, hello)) => {
                    return Ok(Executor::connected(state_dir, stream, buffer, hello, None));
                }
                Err(Error::Io { .. }) if begun.elapsed() < ANSWER => {
                    // It is starting or leaving, or it has needed no socket so far.
                    contain::ask_for_socket(state_dir);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(100));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// A handle on a live connection.
    pub(crate) fn connected(
        state_dir: &Path,
        stream: UnixStream,
        buffer: Vec<u8>,
        hello: HelloReply,
        epoch: Option<u64>,
    ) -> Executor {
        let (read, write) = stream.into_split();
        let shared = Arc::new(Shared {
            state_dir: state_dir.to_owned(),
            hello,
            record: contain::read_record(state_dir).ok().flatten(),
            writer: tokio::sync::Mutex::new(Some(write)),
            pending: Mutex::default(),
            next_id: AtomicU64::new(1),
            outcome: watch::Sender::new(None),
        });
        let reader = tokio::spawn(watch_over(shared.clone(), read, buffer)).abort_handle();
        Executor { inner: Arc::new(Inner { shared, reader: Some(reader) }), epoch }
    }

    fn finished(state_dir: &Path, result: ResultRecord) -> Executor {
        let record = contain::read_record(state_dir).ok().flatten();
        let hello = HelloReply {
            id: record.as_ref().map(|r| r.id.clone()).unwrap_or_default(),
            executor_pid: record.as_ref().map_or(0, |r| r.executor_pid),
            workload_pid: record.as_ref().map_or(0, |r| r.workload_pid),
            started_at_ns: result.started_at_ns,
            ..HelloReply::default()
        };
        let shared = Arc::new(Shared {
            state_dir: state_dir.to_owned(),
            hello,
            record,
            writer: tokio::sync::Mutex::new(None),
            pending: Mutex::default(),
            next_id: AtomicU64::new(1),
            outcome: watch::Sender::new(Some(Ok(result))),
        });
        Executor { inner: Arc::new(Inner { shared, reader: None }), epoch: None }
    }

    /// The same workload, with calls that carry `epoch`.
    pub fn at_epoch(&self, epoch: u64) -> Executor {
        Executor { inner: self.inner.clone(), epoch: Some(epoch) }
    }

    /// Its state directory.
    pub fn state_dir(&self) -> &Path {
        &self.inner.shared.state_dir
    }

    /// The id given at launch.
    pub fn id(&self) -> &str {
        &self.inner.shared.hello.id
    }

    /// Pid of the workload's first process.
    pub fn pid(&self) -> i32 {
        self.inner.shared.hello.workload_pid
    }

    /// Pid of the executor.
    pub fn executor_pid(&self) -> i32 {
        self.inner.shared.hello.executor_pid
    }

    /// Protocol version of the executor; 0 for a workload found ended.
    pub fn protocol(&self) -> u32 {
        self.inner.shared.hello.protocol
    }

    /// Pid of the holder of the workload's namespaces, if it has its own.
    pub(crate) fn holder_pid(&self) -> Option<i32> {
        Some(self.inner.shared.hello.holder_pid).filter(|pid| *pid > 0)
    }

    /// Start of the workload, Unix time in nanoseconds.
    pub fn started_at_ns(&self) -> u64 {
        self.inner.shared.hello.started_at_ns
    }

    /// The result, if the workload is known to have ended.
    pub fn ended(&self) -> Option<ExitResult> {
        self.inner.shared.outcome.borrow().as_ref().and_then(|o| o.as_ref().ok().cloned())
    }

    /// Like [`Executor::ended`], but reads the state directory: never misses an end that another controller knows.
    ///
    /// # Errors
    /// When the stored result cannot be read or is damaged.
    pub fn look(&self) -> Result<Option<ExitResult>, Error> {
        match self.ended() {
            Some(result) => Ok(Some(result)),
            None => contain::read_result(&self.inner.shared.state_dir),
        }
    }

    /// The highest epoch that the workload has accepted.
    ///
    /// # Errors
    /// When the file of the epoch cannot be read.
    pub fn accepted_epoch(&self) -> Result<u64, Error> {
        let dir = &self.inner.shared.state_dir;
        epoch::load(dir).map_err(Error::io("read the epoch in", dir))
    }

    /// Returns when the workload and its tree have ended. Cancel safe; any number of callers may wait.
    ///
    /// # Errors
    /// [`Error::Fate`] when nobody can tell how it ended: the state directory is gone, or its record is damaged.
    pub async fn wait(&self) -> Result<ExitResult, Error> {
        let mut outcome = self.inner.shared.outcome.subscribe();
        let known = outcome.wait_for(Option::is_some).await.map(|o| o.clone());
        match known {
            Ok(Some(Ok(result))) => Ok(result),
            Ok(Some(Err(e))) => Err(Error::Fate(e)),
            // The sender lives in `inner`, which `self` holds; and the condition excludes `None`.
            Ok(None) | Err(_) => Err(Error::Absent { state_dir: self.inner.shared.state_dir.clone() }),
        }
    }

    /// Sends a signal to the workload's first process.
    ///
    /// # Errors
    /// [`Error::NotRunning`] after its end, [`Error::StaleEpoch`] when another manager has a higher epoch. After
    /// [`Error::Unresponsive`] the signal may still arrive.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.ask(request::Op::Signal(executor_proto::Signal { signal })).await.map(drop)
    }

    /// Records this handle's epoch, so that lower ones are refused from now on. Works on ended workloads, too.
    ///
    /// # Errors
    /// [`Error::StaleEpoch`] when a higher epoch was recorded. [`Error::Unresponsive`] when the executor stands still,
    /// or does not leave after its workload's end; the epoch may be recorded or not, and another call finds out.
    pub async fn claim(&self) -> Result<(), Error> {
        let Some(given) = self.epoch else {
            return Ok(());
        };
        let dir = &self.inner.shared.state_dir;
        let claimed = async {
            loop {
                if self.inner.shared.outcome.borrow().is_none() {
                    match self.ask(request::Op::Claim(Claim {})).await {
                        Err(Error::NotRunning { .. }) => {}
                        other => return other.map(drop),
                    }
                }
                // The executor leaves a moment after its last message.
                if let Some(_lock) = contain::try_lock(dir)? {
                    return contain::claim(dir, given);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        self.within(DEATH, claimed).await
    }

    /// Present resource use of the whole tree.
    ///
    /// # Errors
    /// [`Error::NotRunning`] after its end, [`Error::Unresponsive`] when the executor stands still.
    pub async fn stats(&self) -> Result<StatsReply, Error> {
        match self.ask(request::Op::Stats(executor_proto::Stats {})).await? {
            reply::Body::Stats(stats) => Ok(stats),
            _ => Err(self.unexpected()),
        }
    }

    /// Sends `signal`, gives the workload `grace` to end, then kills its whole tree. Returns when all of it has ended;
    /// for an ended workload at once.
    ///
    /// # Errors
    /// [`Error::StaleEpoch`] when another manager has a higher epoch: nothing was sent to the workload.
    /// [`Error::Unresponsive`] when something is left after the executor itself was killed; another call waits again.
    pub async fn stop(&self, signal: i32, grace: Duration) -> Result<ExitResult, Error> {
        if self.inner.shared.outcome.borrow().is_some() {
            self.claim().await?;
            return self.wait().await;
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let deadline = grace.saturating_add(DEATH);
        let outcome = tokio::time::timeout(deadline, async {
            match self.inner.shared.send(self.epoch, request::Op::Stop(Stop { signal, grace_ms }), &[]).await {
                Ok(answer) => match answer.await {
                    Ok(reply::Body::Exited(_)) | Err(_) => self.wait().await,
                    Ok(reply::Body::Failure(failure)) => {
                        match Error::refused(&self.inner.shared.state_dir, self.epoch, failure) {
                            Error::NotRunning { .. } => self.wait().await,
                            e => Err(e),
                        }
                    }
                    Ok(_) => Err(self.unexpected()),
                },
                Err(_) => self.wait().await,
            }
        })
        .await;
        match outcome {
            Ok(outcome) => outcome,
            // It hangs. Its death ends the workload's first process, and the watch ends the rest.
            Err(_) => {
                tracing::warn!(state_dir = %self.state_dir().display(), "the executor does not end its workload and \
                    is killed");
                if let Some(record) = &self.inner.shared.record {
                    contain::signal_executor(record, Signal::KILL);
                }
                let state_dir = self.inner.shared.state_dir.clone();
                let waited = tokio::time::timeout(DEATH, self.wait()).await;
                waited.map_err(|_| Error::Unresponsive { state_dir, seconds: deadline.as_secs() })?
            }
        }
    }

    /// Kills the whole tree at once.
    ///
    /// # Errors
    /// As [`Executor::stop`].
    pub async fn kill(&self) -> Result<ExitResult, Error> {
        self.stop(0, Duration::ZERO).await
    }

    /// Ends the workload if it runs, and removes its state directory. Output files stay.
    ///
    /// # Errors
    /// As [`Executor::stop`], and when the directory cannot be removed. What is left of it is found by another call.
    pub async fn destroy(&self) -> Result<(), Error> {
        self.kill().await?;
        remove(&self.inner.shared.state_dir).await
    }

    async fn ask(&self, op: request::Op) -> Result<reply::Body, Error> {
        self.ask_with(op, &[]).await
    }

    /// Sends a request with descriptors.
    pub(crate) async fn ask_with(&self, op: request::Op, fds: &[BorrowedFd<'_>]) -> Result<reply::Body, Error> {
        let state_dir = &self.inner.shared.state_dir;
        let answered = async {
            match self.inner.shared.send(self.epoch, op, fds).await?.await {
                Ok(reply::Body::Failure(failure)) => Err(Error::refused(state_dir, self.epoch, failure)),
                Ok(body) => Ok(body),
                // The connection has ended, and so has the executor.
                Err(_) => Err(Error::NotRunning { state_dir: state_dir.clone() }),
            }
        };
        self.within(ANSWER, answered).await
    }

    /// [`Error::Unresponsive`] where that much patience is not enough.
    async fn within<T>(&self, patience: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let state_dir = || self.inner.shared.state_dir.clone();
        let late = |_| Err(Error::Unresponsive { state_dir: state_dir(), seconds: patience.as_secs() });
        tokio::time::timeout(patience, work).await.unwrap_or_else(late)
    }

    fn unexpected(&self) -> Error {
        Error::Refused {
            state_dir: self.inner.shared.state_dir.clone(),
            code: ErrorCode::Unspecified,
            message: "it answered another question than the one asked".into(),
        }
    }
}

/// Whether a state directory claims a running workload: it has a record and no result. A killed executor leaves one
/// that says so, too.
pub fn is_live(state_dir: &Path) -> bool {
    state_dir.join(files::STATE).exists() && !state_dir.join(files::RESULT).exists()
}

/// Ends the workload of `state_dir`, if any, and removes the directory; ignores an absent one. For callers without a
/// handle. Kills an executor that does not answer.
///
/// # Errors
/// As [`Executor::attach`] and [`Executor::destroy`].
pub async fn destroy(state_dir: &Path) -> Result<(), Error> {
    match Executor::attach(state_dir).await {
        Ok(executor) => executor.destroy().await,
        Err(Error::Absent { .. }) => remove(state_dir).await,
        Err(Error::Unresponsive { .. }) => {
            if let Some(record) = contain::read_record(state_dir)? {
                contain::signal_executor(&record, Signal::KILL);
            }
            Executor::attach(state_dir).await?.destroy().await
        }
        Err(e) => Err(e),
    }
}

/// Removes a state directory after its executor has left.
async fn remove(state_dir: &Path) -> Result<(), Error> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let lock = match contain::try_lock(state_dir) {
            Err(Error::Absent { .. }) => return Ok(()),
            other => other?,
        };
        if lock.is_some() && begun_and_died(state_dir) {
            // Only its record names its cgroup and the processes in it. The lock is for the process that ends those.
            drop(lock);
            match fate(state_dir, None).await {
                Ok(_) | Err(Error::Absent { .. }) => continue,
                Err(e) => return Err(e),
            }
        }
        if lock.is_some() {
            return match std::fs::remove_dir_all(state_dir) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::io("remove the state directory", state_dir)(e))
                }
                _ => Ok(()),
            };
        }
        if begun.elapsed() > ANSWER {
            return Err(Error::Unresponsive { state_dir: state_dir.to_owned(), seconds: ANSWER.as_secs() });
        }
        // Busy loops of many callers would delay what they wait for.
        if !left(state_dir, ANSWER.saturating_sub(begun.elapsed())).await {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

/// An executor without any file at the earlier look may have begun since and may have been killed: then there is a
/// record and no result.
fn begun_and_died(state_dir: &Path) -> bool {
    matches!((contain::read_record(state_dir), contain::read_result(state_dir)), (Ok(Some(_)), Ok(None)))
}

/// Waits up to `patience` for the end of the executor's process. False when it is unknown or had ended before: then
/// another process has the lock.
async fn left(state_dir: &Path, patience: Duration) -> bool {
    let Ok(Some(record)) = contain::read_record(state_dir) else { return false };
    let Some(pid) = Pid::from_raw(record.executor_pid) else { return false };
    let Ok(process) = pidfd_open(pid, PidfdFlags::NONBLOCK) else { return false };
    // Compared with the descriptor open: from here on the number cannot be reused.
    if ProcessStat::of(record.executor_pid).is_none_or(|p| p.start != record.executor_start) {
        return false;
    }
    #[expect(deprecated, reason = "the descriptor is owned by the AsyncFd and never replaced, so this is sound")]
    let process = AsyncFd::with_interest(process, tokio::io::Interest::READABLE);
    let Ok(process) = process else { return false };
    tokio::time::timeout(patience, process.readable()).await.is_ok_and(|ended| ended.is_ok())
}

impl Shared {
    /// Sends a request. Its callers bound the wait: an executor that stands still reads nothing, until its socket is
    /// full, and the connection may be gone before the executor is found ended. Cancel safe: the kernel takes a frame
    /// whole or not at all.
    #[expect(clippy::await_holding_invalid_type, reason = "frames are written whole, one after the other")]
    async fn send(
        &self,
        epoch: Option<u64>,
        op: request::Op,
        fds: &[BorrowedFd<'_>],
    ) -> Result<oneshot::Receiver<reply::Body>, Error> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let mut frame = Vec::new();
        encode_frame(&Request { id, epoch, op: Some(op) }, &mut frame);
        let gone = || Error::NotRunning { state_dir: self.state_dir.clone() };
        loop {
            let mut writer = self.writer.lock().await;
            if let Some(half) = writer.as_mut() {
                self.awaits(id, answer);
                if write(half, &frame, fds).await.is_err() {
                    self.pending().remove(&id);
                    return Err(gone());
                }
                return Ok(answered);
            }
            drop(writer);
            if self.outcome.borrow().is_some() {
                return Err(gone());
            }
            // The connection has just ended; soon there is a new one, or the workload's end is known.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Somebody awaits the answer to a request; those who do not any more are forgotten.
    fn awaits(&self, id: u64, answer: oneshot::Sender<reply::Body>) {
        let mut pending = self.pending();
        pending.retain(|_, waiter| !waiter.is_closed());
        pending.insert(id, answer);
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<reply::Body>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes one frame; its descriptors travel with its first byte.
async fn write(half: &mut OwnedWriteHalf, frame: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut sent = 0;
    if !fds.is_empty() {
        let stream: &UnixStream = half.as_ref();
        sent = stream
            .async_io(tokio::io::Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                ancillary.push(SendAncillaryMessage::ScmRights(fds));
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                Ok(sendmsg(stream, &[IoSlice::new(frame)], &mut ancillary, flags)?)
            })
            .await?;
    }
    half.write_all(&frame[sent..]).await
}

/// Serves the connection and finds out why it ended. Returns at the workload's end.
async fn watch_over(shared: Arc<Shared>, mut read: OwnedReadHalf, mut buffer: Vec<u8>) {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(result) = serve(&shared, read, std::mem::take(&mut buffer)).await {
            shared.outcome.send_replace(Some(Ok(result)));
            return;
        }
        read = loop {
            match fate(&shared.state_dir, shared.record.as_ref()).await {
                Ok(Fate::Ended(result)) => {
                    shared.outcome.send_replace(Some(Ok(result)));
                    return;
                }
                Ok(Fate::Alive) => match connect(&shared.state_dir).await {
                    Ok((stream, rest, _)) => {
                        buffer = rest;
                        let (read, write) = stream.into_split();
                        *shared.writer.lock().await = Some(write);
                        break read;
                    }
                    // It is usually about to leave.
                    Err(e) => {
                        contain::ask_for_socket(&shared.state_dir);
                        tracing::trace!(error = %e, "reconnecting to an executor");
                    }
                },
                Err(e @ (Error::Absent { .. } | Error::Damaged { .. })) => {
                    shared.outcome.send_replace(Some(Err(Arc::new(e))));
                    return;
                }
                // Reporting an end while part of it runs would start a second one beside it.
                Err(e) => {
                    tracing::warn!(error = %e, "cannot end what a killed executor has left, trying again")
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        };
    }
}

/// Passes answers on until the connection ends; returns the result if it came over it.
async fn serve(shared: &Shared, mut read: OwnedReadHalf, mut buffer: Vec<u8>) -> Option<ResultRecord> {
    let waited = shared.send(None, request::Op::Wait(Wait {}), &[]).await;
    let mut result = None;
    if let Ok(mut waited) = waited {
        loop {
            match split_frame::<Reply>(&mut buffer) {
                Ok(Some(Reply { id, body: Some(body) })) => {
                    let waiter = shared.pending().remove(&id);
                    if let Some(waiter) = waiter {
                        let _ = waiter.send(body);
                    }
                    if let Ok(reply::Body::Exited(ended)) = waited.try_recv() {
                        result = Some(ended);
                        break;
                    }
                    continue;
                }
                Ok(Some(_)) => continue,
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!(error = %e, state_dir = %shared.state_dir.display(), "the executor's answers \
                        are damaged");
                    break;
                }
            }
            if !matches!(read.read_buf(&mut buffer).await, Ok(n) if n > 0) {
                break;
            }
        }
    }
    *shared.writer.lock().await = None;
    // The result first, so that a caller without an answer finds the result.
    if let Some(result) = &result {
        shared.outcome.send_replace(Some(Ok(result.clone())));
    }
    shared.pending().clear();
    result
}

/// See [`contain::fate`]; reading takes microseconds, containing may take seconds.
async fn fate(state_dir: &Path, known: Option<&StateRecord>) -> Result<Fate, Error> {
    if let Some(result) = contain::read_result(state_dir)? {
        return Ok(Fate::Ended(result));
    }
    let (dir, known) = (state_dir.to_owned(), known.cloned());
    let task = tokio::task::spawn_blocking(move || contain::fate(&dir, known.as_ref()));
    task.await.unwrap_or_else(|e| Err(Error::io("look into", state_dir)(std::io::Error::other(e))))
}

/// Connects and exchanges the hello.
async fn connect(state_dir: &Path) -> Result<(UnixStream, Vec<u8>, HelloReply), Error> {
    let failed = || Error::io("connect to the executor in", state_dir);
    // A socket address holds 107 bytes, and a state directory's path may be longer: go through its descriptor.
    let dir = std::fs::File::open(state_dir).map_err(failed())?;
    let address = format!("/proc/self/fd/{}/{}", dir.as_raw_fd(), files::SOCKET);
    let mut stream = UnixStream::connect(address).await.map_err(failed())?;
    let mut frame = Vec::new();
    encode_frame(
        &Request { id: 0, epoch: None, op: Some(request::Op::Hello(Hello { protocol: PROTOCOL_VERSION })) },
        &mut frame,
    );
    stream.write_all(&frame).await.map_err(failed())?;
    let mut buffer = Vec::new();
    let reply = tokio::time::timeout(ANSWER, receive(&mut stream, &mut buffer, state_dir)).await;
    let reply =
        reply.map_err(|_| Error::Unresponsive { state_dir: state_dir.to_owned(), seconds: ANSWER.as_secs() })??;
    match reply {
        Some(Reply { body: Some(reply::Body::Hello(hello)), .. }) => Ok((stream, buffer, hello)),
        Some(Reply { body: Some(reply::Body::Failure(failure)), .. }) => Err(Error::refused(state_dir, None, failure)),
        Some(_) | None => Err(failed()(std::io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Reads one reply; `None` at the end of the stream.
pub(crate) async fn receive(
    stream: &mut UnixStream,
    buffer: &mut Vec<u8>,
    state_dir: &Path,
) -> Result<Option<Reply>, Error> {
    loop {
        let split = split_frame(buffer);
        if let Some(reply) = split.map_err(|source| Error::Protocol { state_dir: state_dir.to_owned(), source })? {
            return Ok(Some(reply));
        }
        if stream.read_buf(buffer).await.map_err(Error::io("read from the executor in", state_dir))? == 0 {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any wait of a caller; of a paused clock.
    const EVER: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn an_executor_that_stands_still_holds_no_caller_up() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let executor = Executor::connected(dir.path(), ours, Vec::new(), HelloReply::default(), None);
        // As many as a socket takes, and more.
        for n in 0..600 {
            let answer = tokio::time::timeout(EVER, executor.signal(0)).await;
            assert!(matches!(answer, Ok(Err(Error::Unresponsive { .. }))), "request {n}: {answer:?}");
        }
        assert!(executor.inner.shared.pending().len() <= 2, "the wait of the connection, and the newest request");
        let stopped = tokio::time::timeout(EVER, executor.stop(15, Duration::from_secs(5))).await;
        assert!(matches!(stopped, Ok(Err(Error::Unresponsive { .. }))), "{stopped:?}");
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_an_ended_workload_waits_for_its_lock_but_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let executor = Executor::finished(dir.path(), ResultRecord::default()).at_epoch(3);
        let held = contain::try_lock(dir.path()).unwrap().unwrap();
        let claimed = tokio::time::timeout(EVER, executor.claim()).await;
        assert!(matches!(claimed, Ok(Err(Error::Unresponsive { .. }))), "{claimed:?}");
        drop(held);
        executor.claim().await.unwrap();
        assert_eq!(executor.accepted_epoch().unwrap(), 3);
    }

    /// Between two looks of the remover, an executor has made its cgroup and was killed.
    #[tokio::test]
    async fn what_a_begun_and_killed_executor_has_made_goes_with_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (state, cgroup) = (dir.path().join("state"), dir.path().join("drover/task-1"));
        std::fs::create_dir_all(&state).unwrap();
        std::fs::create_dir_all(&cgroup).unwrap();
        let record = StateRecord {
            boot_id: executor::process::boot_id().unwrap(),
            launching: true,
            cgroup: cgroup.display().to_string(),
            ..StateRecord::default()
        };
        std::fs::write(state.join(files::STATE), record.to_json()).unwrap();
        remove(&state).await.unwrap();
        assert!(!state.exists() && !cgroup.exists());
    }
}
