//! Requests to executors, one at a time.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use executor_proto::{
    Claim, ErrorCode, Hello, PROTOCOL_VERSION, Reply, Request, ResultRecord, Spec, Stop, encode_frame, files, reply,
    request, split_frame,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;

use crate::contain::{self, Fate};
use crate::error::Error;

/// Longest wait for an answer that takes an executor microseconds.
const ANSWER: Duration = Duration::from_secs(10);
/// Time after a stop's grace for killing and for storing the output and the result. Then the executor itself is killed.
const DEATH: Duration = Duration::from_secs(15);
/// A start takes milliseconds; a disk that hangs must not block the caller for ever.
const START: Duration = Duration::from_secs(30);

/// The content of a state directory.
pub(super) enum Found {
    /// A running workload, with a connection to its executor.
    Running(Controller),
    /// An ended workload.
    Ended(ResultRecord),
}

/// A connection to an executor.
pub(super) struct Controller {
    stream: UnixStream,
    received: Vec<u8>,
    /// Protocol version of the executor.
    pub(super) protocol: u32,
    /// Pid of the holder of the workload's mounts; 0 when they are the host's.
    pub(super) holder_pid: i32,
}

/// Finds the workload of `state_dir`; `None` when nothing ever started there. First ends a killed executor's leftovers.
pub(super) fn attach(state_dir: &Path) -> Result<Option<Found>, Error> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match contain::fate(state_dir, None) {
            Ok(Fate::Ended(result)) => return Ok(Some(Found::Ended(result))),
            Ok(Fate::Alive) => {}
            Err(Error::Absent { .. }) => return Ok(None),
            Err(e) => return Err(e),
        }
        match Controller::connect(state_dir) {
            Ok(controller) => return Ok(Some(Found::Running(controller))),
            Err(Error::Io { .. }) if begun.elapsed() < ANSWER => {
                // It is starting or leaving, or it has needed no socket so far.
                contain::ask_for_socket(state_dir);
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            Err(e) => return Err(e),
        }
    }
}

/// Records an epoch for the workload of `state_dir`, running or ended; lower ones are refused from now on.
pub(super) fn claim(state_dir: &Path, epoch: u64) -> Result<(), Error> {
    loop {
        if let Some(Found::Running(mut controller)) = attach(state_dir)? {
            match controller.ask(state_dir, Some(epoch), request::Op::Claim(Claim {}), ANSWER) {
                Err(Error::NotRunning { .. } | Error::Io { .. }) => {}
                other => return other.map(drop),
            }
        }
        // The executor leaves a moment after its last message.
        if let Some(_lock) = contain::try_lock(state_dir)? {
            return contain::claim(state_dir, epoch);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends the workload of `state_dir` and returns when its whole tree has ended; `None` when nothing ever started there.
pub(super) fn stop(state_dir: &Path, epoch: u64, signal: i32, grace: Duration) -> Result<Option<ResultRecord>, Error> {
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let longest = grace.saturating_add(DEATH);
    let begun = Instant::now();
    let mut killed = false;
    loop {
        let mut controller = match attach(state_dir)? {
            None => return Ok(None),
            Some(Found::Ended(result)) => {
                claim(state_dir, epoch)?;
                return Ok(Some(result));
            }
            Some(Found::Running(controller)) => controller,
        };
        let left = longest.saturating_sub(begun.elapsed());
        match controller.ask(
            state_dir,
            Some(epoch),
            request::Op::Stop(Stop { signal, grace_ms }),
            left.max(Duration::from_millis(10)),
        ) {
            Ok(reply::Body::Exited(result)) => return Ok(Some(result)),
            // It has gone or is about to: the next look says how.
            Ok(_) | Err(Error::NotRunning { .. } | Error::Io { .. }) => {}
            Err(Error::Unresponsive { .. }) if !killed => {
                killed = true;
                // It hangs. Its death ends the workload's first process, and the next look ends the rest.
                if let Some(record) = contain::read_record(state_dir)? {
                    contain::signal_executor(&record, Signal::KILL);
                }
            }
            Err(e) => return Err(e),
        }
        if begun.elapsed() > longest.saturating_add(DEATH) {
            return Err(Error::Unresponsive { state_dir: state_dir.to_owned(), seconds: begun.elapsed().as_secs() });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts the executor `binary` for `spec`. False when `state_dir` already held a workload, which stays as it is.
pub(super) fn launch(binary: &Path, state_dir: &Path, spec: &Spec) -> Result<bool, Error> {
    let begun = Instant::now();
    loop {
        if contain::read_result(state_dir)?.is_some() {
            return Ok(false);
        }
        let (ours, theirs) = UnixStream::pair().map_err(Error::io("create a socket for", state_dir))?;
        let mut child = spawn(binary, state_dir, theirs)?;
        let mut controller = Controller { stream: ours, received: Vec::new(), protocol: 0, holder_pid: 0 };
        let mut frame = Vec::new();
        encode_frame(spec, &mut frame);
        // If the executor exits early, its own reason is better than this error.
        let _ = controller.stream.write_all(&frame);
        let first = controller.receive(state_dir, START);
        // It has forked; this half exits at once and must not stay a zombie.
        let _ = child.wait();
        let failure = match first? {
            Some(Reply { body: Some(reply::Body::Launched(_)), .. }) => return Ok(true),
            Some(Reply { body: Some(reply::Body::Failure(failure)), .. }) => failure,
            other => {
                let what = if other.is_some() {
                    "it answered out of turn"
                } else {
                    "it ended without a word; executor.panic there may say why"
                };
                return Err(Error::Launch { state_dir: state_dir.to_owned(), message: what.into(), errno: 0 });
            }
        };
        match failure.code() {
            ErrorCode::Held | ErrorCode::NotRunning => {
                // Another start was faster, or another process only looked at the directory.
                if attach(state_dir)?.is_some() {
                    return Ok(false);
                }
                if begun.elapsed() > START {
                    return Err(Error::Unresponsive { state_dir: state_dir.to_owned(), seconds: START.as_secs() });
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            ErrorCode::Exec => {
                let command = std::ffi::OsString::from(String::from_utf8_lossy(&spec.command).into_owned());
                return Err(Error::Exec { command: command.into(), message: failure.message, errno: failure.errno });
            }
            ErrorCode::StaleEpoch => return Err(Error::refused(state_dir, Some(spec.epoch), failure)),
            _ => {
                return Err(Error::Launch {
                    state_dir: state_dir.to_owned(),
                    message: failure.message,
                    errno: failure.errno,
                });
            }
        }
    }
}

fn spawn(binary: &Path, state_dir: &Path, control: UnixStream) -> Result<std::process::Child, Error> {
    let start = |program: &Path| -> std::io::Result<std::process::Child> {
        let control = control.try_clone()?;
        Command::new(program)
            .arg("run")
            .arg(state_dir)
            .env_clear()
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(control)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    };
    match start(binary) {
        // The file was deleted; this process still is that program.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => start(Path::new("/proc/self/exe")),
        other => other,
    }
    .map_err(Error::io("start the executor", binary))
}

impl Controller {
    fn connect(state_dir: &Path) -> Result<Controller, Error> {
        let failed = || Error::io("connect to the executor in", state_dir);
        // A socket address holds 107 bytes, and a state directory's path may be longer: go through its descriptor.
        let dir = std::fs::File::open(state_dir).map_err(failed())?;
        let address = format!("/proc/self/fd/{}/{}", dir.as_raw_fd(), files::SOCKET);
        let stream = UnixStream::connect(address).map_err(failed())?;
        let mut controller = Controller { stream, received: Vec::new(), protocol: 0, holder_pid: 0 };
        let hello =
            controller.ask(state_dir, None, request::Op::Hello(Hello { protocol: PROTOCOL_VERSION }), ANSWER)?;
        if let reply::Body::Hello(hello) = hello {
            (controller.protocol, controller.holder_pid) = (hello.protocol, hello.holder_pid);
        }
        Ok(controller)
    }

    /// Sends a request and waits for the answer.
    pub(super) fn ask(
        &mut self,
        state_dir: &Path,
        epoch: Option<u64>,
        op: request::Op,
        longest: Duration,
    ) -> Result<reply::Body, Error> {
        self.exchange(state_dir, epoch, op, &[], longest)
    }

    /// Sends a request with descriptors.
    pub(super) fn ask_with(
        &mut self,
        state_dir: &Path,
        epoch: Option<u64>,
        op: request::Op,
        fds: &[BorrowedFd<'_>],
    ) -> Result<reply::Body, Error> {
        self.exchange(state_dir, epoch, op, fds, ANSWER)
    }

    fn exchange(
        &mut self,
        state_dir: &Path,
        epoch: Option<u64>,
        op: request::Op,
        fds: &[BorrowedFd<'_>],
        longest: Duration,
    ) -> Result<reply::Body, Error> {
        let mut frame = Vec::new();
        encode_frame(&Request { id: 1, epoch, op: Some(op) }, &mut frame);
        send_with(&mut self.stream, &frame, fds).map_err(Error::io("write to the executor in", state_dir))?;
        match self.receive(state_dir, longest)? {
            Some(Reply { body: Some(reply::Body::Failure(failure)), .. }) => {
                Err(Error::refused(state_dir, epoch, failure))
            }
            Some(Reply { body: Some(body), .. }) => Ok(body),
            // The connection has ended, and so has the executor.
            Some(_) | None => Err(Error::Io {
                doing: "read from the executor in",
                path: state_dir.to_owned(),
                source: std::io::ErrorKind::UnexpectedEof.into(),
            }),
        }
    }

    /// As [`Controller::ask`], with the default time limit.
    pub(super) fn ask_now(
        &mut self,
        state_dir: &Path,
        epoch: Option<u64>,
        op: request::Op,
    ) -> Result<reply::Body, Error> {
        self.ask(state_dir, epoch, op, ANSWER)
    }

    fn receive(&mut self, state_dir: &Path, longest: Duration) -> Result<Option<Reply>, Error> {
        let begun = Instant::now();
        let mut buffer = [0u8; 4096];
        loop {
            let split = split_frame(&mut self.received);
            if let Some(reply) = split.map_err(|source| Error::Protocol { state_dir: state_dir.to_owned(), source })? {
                return Ok(Some(reply));
            }
            let late = || Error::Unresponsive { state_dir: state_dir.to_owned(), seconds: longest.as_secs() };
            let left = longest.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(late());
            }
            self.stream.set_read_timeout(Some(left)).map_err(Error::io("prepare the socket for", state_dir))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                    return Err(late());
                }
                Err(e) => return Err(Error::io("read from the executor in", state_dir)(e)),
            }
        }
    }
}

/// Writes one frame; its descriptors travel with its first byte.
fn send_with(stream: &mut UnixStream, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(&*stream, &[IoSlice::new(frame)], &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.write_all(&frame[sent..])
}
