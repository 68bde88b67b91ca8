//! The executor's life.
//!
//! ```text
//! start ──> Running ──exit of the workload──> Ending ──tree gone, output stored──> result on disk ──> told ──> gone
//!              │                                ▲
//!              └── stop: signal, grace, kill ───┘          (a collector is Running until it is stopped)
//! ```
//!
//! One loop around `poll`: SIGCHLD, the control socket, connections, two output pipes, the nearest deadline.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use executor_proto::{
    Done, ErrorCode, Failure, HelloReply, Launched, PROTOCOL_VERSION, Reply, Request, ResultRecord, Spec, StateRecord,
    files, reply, request,
};
use prost::Message;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions, kill_process};

use crate::connection::{Connection, listen};
use crate::disk::{Durability, release, replace, reserve};
use crate::launch::{Started, Surroundings, launch, os_failure};
use crate::pump::{BUFFER, Pump};
use crate::session::Session;
use crate::sys::Fork;
use crate::{epoch, process, stats, sys};

/// Longest wait for output after the tree is gone: only a process elsewhere with a copy of the pipe can cause it.
const DRAIN: Duration = Duration::from_secs(1);
/// Longest wait for a controller to take its last answer; the result is on disk anyway.
const FAREWELL: Duration = Duration::from_secs(1);
/// After this long with processes left, killing by cgroup counts as insufficient. Not sooner: on a busy machine
/// namespaces take a while to go, and a look at each process would add to the load.
const ESCALATE: Duration = Duration::from_secs(1);
/// How long an exec session may run before it enters the version 1 limits. That takes the kernel up to 15 ms per
/// hierarchy, during which the executor serves nobody, and most sessions end earlier.
const GATHER: Duration = Duration::from_millis(50);

/// Interval at which a collector checks whether a controller can still find it.
const LOOK_AROUND: Duration = Duration::from_secs(15);

/// The purpose of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Holds a workload.
    Workload,
    /// Stores the output of two FIFOs.
    Collector,
}

/// Runs the executor for `state_dir`. Returns in the first process as soon as the second one is independent. The second
/// one reports its result on the socket that is its standard input.
pub fn main(role: Role, state_dir: &Path) -> ExitCode {
    sys::close_from(3);
    // The environment of the workload, with the secrets in it, passes through this process. A kernel that refuses
    // changes nothing.
    let _ = undumpable::this_process_if_it_stays_found();
    let control = sys::inherited(0).ok().filter(|fd| rustix::net::sockopt::socket_type(fd).is_ok());
    let mut control = control.map(Connection::new);
    let fail = |failure: Failure, lock: Option<OwnedFd>, control: Option<Connection>| {
        eprintln!("drover-executor: {}", failure.message);
        // A controller that reads the failure may try again at once.
        if let Some(lock) = lock {
            let _ = rustix::fs::flock(&lock, FlockOperation::Unlock);
        }
        if let Some(mut connection) = control {
            connection.send(&Reply { id: 0, body: Some(reply::Body::Failure(failure)) });
        }
        ExitCode::FAILURE
    };
    // The lock makes this process the executor of the directory; it ends with the process, for any reason.
    let (lock, spec) = match take(role, state_dir, control.as_mut()) {
        Ok(taken) => taken,
        Err(failure) => return fail(failure, None, control),
    };
    match sys::fork() {
        Ok(Fork::Parent) => sys::exit_now(0),
        Ok(Fork::Child) => {}
        Err(e) => return fail(os_failure("fork", &e), Some(lock), control),
    }
    if spec.epoch > 0 {
        // A remote task may fill its disk, and then its end must still be told.
        let _ = reserve(Path::new("."), files::RESULT);
    }
    let started = settle().map_err(|e| os_failure("settle", &e)).and_then(|signals| Ok((signals, launch(&spec)?)));
    let (signals, started) = match started {
        Ok(started) => started,
        Err(failure) => {
            release(Path::new("."), files::RESULT);
            return fail(failure, Some(lock), control);
        }
    };
    let epoch = epoch::load(Path::new(".")).unwrap_or(u64::MAX);
    let mut executor = Executor::new(signals, started, epoch, lock);
    if spec.listen {
        executor.listen();
    }
    // The environment may hold secrets and is no longer needed.
    drop(spec);
    if let Some(mut connection) = control {
        let body = reply::Body::Launched(Launched { hello: Some(executor.hello()) });
        connection.send(&Reply { id: 0, body: Some(body) });
        executor.connections.push(connection);
    }
    executor.run()
}

/// Takes the directory's lock and reads the spec in it.
fn take(role: Role, state_dir: &Path, control: Option<&mut Connection>) -> Result<(OwnedFd, Spec), Failure> {
    let failed = |doing: &str, e: io::Error| os_failure(&format!("{doing} {}", state_dir.display()), &e);
    std::env::set_current_dir(state_dir).map_err(|e| failed("change to", e))?;
    let lock = rustix::fs::open(".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed("open", e.into()))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let message = format!("another executor holds {}", state_dir.display());
            return Err(Failure { code: ErrorCode::Held.into(), message, errno: 0, epoch: 0 });
        }
        Err(e) => return Err(failed("lock", e.into())),
    }
    if Path::new(files::RESULT).exists() {
        let message = format!("the workload in {} has already run and ended", state_dir.display());
        return Err(Failure { code: ErrorCode::NotRunning.into(), message, errno: 0, epoch: 0 });
    }
    if Path::new(files::STATE).exists() {
        // A killed executor's leftovers must end before anything else happens here.
        let message = format!("{} was left behind by a killed executor", state_dir.display());
        return Err(Failure { code: ErrorCode::Held.into(), message, errno: 0, epoch: 0 });
    }
    let invalid = |message: String| Failure { code: ErrorCode::Invalid.into(), message, errno: 0, epoch: 0 };
    let spec = match control {
        Some(control) => control.receive_spec().map_err(|e| failed("receive the spec for", e))?,
        None => {
            let bytes = std::fs::read(files::SPEC).map_err(|e| failed("read the spec in", e))?;
            std::fs::remove_file(files::SPEC).map_err(|e| failed("remove the spec in", e))?;
            Spec::decode(bytes.as_slice()).map_err(|e| invalid(format!("the spec is damaged: {e}")))?
        }
    };
    if spec.collect.is_some() != (role == Role::Collector) {
        return Err(invalid("the spec is for the other role of run and collect".into()));
    }
    if spec.epoch > 0 {
        admit(Some(spec.epoch))?;
    }
    Ok((lock, spec))
}

/// Judges a mutation's epoch, and records a higher one before the mutation takes effect.
fn admit(given: Option<u64>) -> Result<(), Failure> {
    let Some(given) = given else { return Ok(()) };
    match epoch::claim(Path::new("."), given) {
        Ok(epoch::Verdict::Current | epoch::Verdict::Raise) => Ok(()),
        Ok(epoch::Verdict::Stale(current)) => Err(Failure {
            code: ErrorCode::StaleEpoch.into(),
            message: format!("epoch {given} is stale: {current} has been accepted"),
            errno: 0,
            epoch: current,
        }),
        Err(e) => Err(os_failure("record the epoch", &e)),
    }
}

/// Cuts all ties to the process that started this one.
fn settle() -> io::Result<OwnedFd> {
    rustix::process::setsid()?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::panic::set_hook(Box::new(|info| {
        let _ = std::fs::write(files::PANIC, format!("{info}\n"));
    }));
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    sys::signal_fd()
}

/// How the workload's own process ended.
#[derive(Clone, Copy)]
struct Ended {
    exit_code: i32,
    signal: i32,
    at_ns: u64,
    seen: Instant,
}

struct Executor {
    signals: OwnedFd,
    /// Listens for controllers; made when one first looks for it.
    socket: Option<OwnedFd>,
    connections: Vec<Connection>,
    pumps: Vec<Pump>,
    sessions: Vec<Session>,
    record: StateRecord,
    surroundings: Surroundings,
    epoch: u64,
    /// When new processes are brought into the version 1 limits.
    gather_at: Option<Instant>,
    /// When a stop's grace ends.
    kill_at: Option<Instant>,
    ended: Option<Ended>,
    /// Whether there are children to reap.
    has_children: bool,
    /// When the last process of the tree was gone.
    empty_since: Option<Instant>,
    /// Next look at a tree that dies slowly, and the pause after it.
    check: Option<(Instant, Duration)>,
    reason: String,
    /// The state directory; its lock makes this process its executor.
    lock: OwnedFd,
}

impl Executor {
    fn new(signals: OwnedFd, started: Started, epoch: u64, lock: OwnedFd) -> Executor {
        let Started { record, surroundings, pumps } = started;
        Executor {
            signals,
            socket: None,
            connections: Vec::new(),
            pumps,
            sessions: Vec::new(),
            gather_at: cgroup::needs_gathering(&surroundings.paths).then(Instant::now),
            has_children: record.workload_pid != 0,
            record,
            surroundings,
            epoch,
            kill_at: None,
            ended: None,
            empty_since: None,
            check: None,
            reason: String::new(),
            lock,
        }
    }

    fn is_collector(&self) -> bool {
        self.record.workload_pid == 0
    }

    fn run(mut self) -> ExitCode {
        let mut buffer = [0u8; BUFFER];
        loop {
            let now = Instant::now();
            if self.gather_at.is_some_and(|at| at <= now) {
                self.gather();
            }
            self.reap();
            let now = Instant::now();
            for pump in &mut self.pumps {
                pump.run(&mut buffer, now, self.ended.is_some());
            }
            if self.advance(now) {
                return self.finish();
            }
            // The next controller will look for it; a task that ends under its first controller never needs it.
            if self.connections.is_empty() && self.socket.is_none() {
                self.listen();
            }
            self.wait_for_events(now);
        }
    }

    fn gather(&mut self) {
        self.gather_at = None;
        if let Err(e) = cgroup::gather(&self.surroundings.paths) {
            // It must not run on without its requested limit.
            self.reason = format!("killed because its limits could not be applied: {e}");
            self.kill_tree();
        }
    }

    /// Sleeps until the next event and takes it in.
    fn wait_for_events(&mut self, now: Instant) {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(self.socket.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        let first_connection = fds.len();
        for connection in &self.connections {
            let out = if connection.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&connection.fd, PollFlags::IN | out));
        }
        let first_session = fds.len();
        fds.extend(self.sessions.iter().map(|session| PollFd::new(&session.control, PollFlags::IN)));
        fds.extend(self.pumps.iter().filter_map(Pump::poll_fd).map(|fd| PollFd::new(fd, PollFlags::IN)));
        let deadlines = [
            self.kill_at,
            self.gather_at,
            self.check.map(|(at, _)| at),
            self.empty_since.map(|at| at + DRAIN),
            self.is_collector().then(|| now + LOOK_AROUND),
        ];
        let pumps = self.pumps.iter().filter_map(Pump::again_at);
        let next = deadlines.into_iter().flatten().chain(pumps).min();
        // Relative to `now`, which has passed: the kernel wakes us after the deadline, so the loop does not spin before
        // it.
        let timeout = next.map(|at| at.saturating_duration_since(now));
        let timeout = timeout
            .map(|d| rustix::time::Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] && sys::take_signals(&self.signals) {
            // A controller has found no socket and asks for one.
            self.listen();
        }
        let mut requests = Vec::new();
        for (n, connection) in self.connections.iter_mut().enumerate() {
            if ready[first_connection + n] {
                connection.flush();
                requests.extend(connection.receive().into_iter().map(|(request, fds)| (n, request, fds)));
            }
        }
        let mut session_ready = ready[first_session..].iter();
        self.sessions.retain(|session| {
            let abandoned = session_ready.next().is_some_and(|ready| *ready) && session.is_abandoned();
            if abandoned {
                session.kill(&self.surroundings);
            }
            !abandoned
        });
        if first_connection == 2
            && ready[1]
            && let Some(socket) = &self.socket
            && let Ok(fd) = rustix::net::accept_with(socket, rustix::net::SocketFlags::CLOEXEC)
        {
            self.connections.push(Connection::new(fd));
        }
        for (n, request, fds) in requests {
            self.answer(n, request, fds);
        }
        self.connections.retain(|connection| connection.open);
    }

    /// Makes the socket, also when the file of an existing one was removed. A failure shows as its absence: controllers
    /// ask again.
    fn listen(&mut self) {
        if let Ok(socket) = listen(files::SOCKET) {
            self.socket = Some(socket);
        }
    }

    fn hello(&self) -> HelloReply {
        HelloReply {
            protocol: PROTOCOL_VERSION,
            id: self.record.id.clone(),
            executor_pid: self.record.executor_pid,
            workload_pid: self.record.workload_pid,
            started_at_ns: self.record.started_at_ns,
            epoch: self.epoch,
            version: env!("CARGO_PKG_VERSION").into(),
            holder_pid: self.surroundings.holder.as_ref().map_or(0, |holder| holder.pid),
        }
    }

    fn answer(&mut self, connection: usize, request: Request, fds: Vec<OwnedFd>) {
        let body = match self.perform(&request, fds) {
            Ok(Some(body)) => body,
            Ok(None) => {
                self.connections[connection].waiting.push(request.id);
                return;
            }
            Err(failure) => reply::Body::Failure(failure),
        };
        self.connections[connection].send(&Reply { id: request.id, body: Some(body) });
    }

    /// Handles a request. `None` = answered at the end of the workload.
    fn perform(&mut self, request: &Request, fds: Vec<OwnedFd>) -> Result<Option<reply::Body>, Failure> {
        use request::Op;
        let unsupported = || Failure {
            code: ErrorCode::Unsupported.into(),
            message: format!("this executor ({}) does not know the request", env!("CARGO_PKG_VERSION")),
            errno: 0,
            epoch: 0,
        };
        if matches!(request.op, Some(Op::Signal(_) | Op::Stop(_) | Op::Claim(_) | Op::Exec(_))) {
            admit(request.epoch)?;
            self.epoch = self.epoch.max(request.epoch.unwrap_or(0));
        }
        match request.op.as_ref().ok_or_else(unsupported)? {
            Op::Hello(_) => Ok(Some(reply::Body::Hello(self.hello()))),
            Op::Wait(_) => Ok(None),
            Op::Claim(_) => Ok(Some(reply::Body::Done(Done {}))),
            Op::Stats(_) => Ok(Some(reply::Body::Stats(stats::measure(&self.surroundings, self.record.executor_pid)))),
            Op::Signal(signal) => {
                self.signal(signal.signal)?;
                Ok(Some(reply::Body::Done(Done {})))
            }
            Op::Exec(exec) => {
                self.exec(exec, fds)?;
                Ok(Some(reply::Body::Done(Done {})))
            }
            Op::Stop(stop) => {
                self.stop(stop.signal, Duration::from_millis(stop.grace_ms))?;
                Ok(None)
            }
        }
    }

    fn exec(&mut self, exec: &executor_proto::Exec, fds: Vec<OwnedFd>) -> Result<(), Failure> {
        if self.ended.is_some() || self.is_collector() {
            let message = "there is no running workload to join".into();
            return Err(Failure { code: ErrorCode::NotRunning.into(), message, errno: 0, epoch: 0 });
        }
        let session = Session::start(exec, fds, self.sessions.len(), &self.surroundings)?;
        self.sessions.push(session);
        if cgroup::needs_gathering(&self.surroundings.paths) {
            self.gather_at.get_or_insert(Instant::now() + GATHER);
        }
        Ok(())
    }

    fn signal(&self, number: i32) -> Result<(), Failure> {
        let failure = |code: ErrorCode, message: String| Failure { code: code.into(), message, errno: 0, epoch: 0 };
        let signal = Signal::from_named_raw(number)
            .ok_or_else(|| failure(ErrorCode::Invalid, format!("there is no signal {number}")))?;
        // Before the reap the kernel cannot reuse the pid, and the reap sets `ended`.
        match Pid::from_raw(self.record.workload_pid).filter(|_| self.ended.is_none()) {
            Some(pid) => kill_process(pid, signal).map_err(|e| os_failure("signal the workload", &e.into())),
            None => Err(failure(ErrorCode::NotRunning, "the workload has ended".into())),
        }
    }

    fn stop(&mut self, signal: i32, grace: Duration) -> Result<(), Failure> {
        if self.ended.is_some() {
            return Ok(());
        }
        if self.is_collector() {
            self.kill_at = Some(Instant::now() + grace);
            return Ok(());
        }
        if signal != 0 && !grace.is_zero() {
            self.signal(signal)?;
        }
        let deadline = Instant::now() + if signal == 0 { Duration::ZERO } else { grace };
        self.kill_at = Some(self.kill_at.map_or(deadline, |at| at.min(deadline)));
        Ok(())
    }

    /// Reaps every ended child, including orphans of the tree.
    fn reap(&mut self) {
        while self.has_children {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.record.workload_pid => {
                    let signal = status.terminating_signal().unwrap_or(0);
                    self.ended = Some(Ended {
                        exit_code: status.exit_status().unwrap_or(128 + signal),
                        signal,
                        at_ns: process::now_ns(),
                        seen: Instant::now(),
                    });
                }
                Ok(Some((pid, status))) => {
                    if let Some(n) = self.sessions.iter().position(|session| session.is(pid)) {
                        self.sessions.swap_remove(n).ended(status);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => self.has_children = false,
            }
        }
    }

    fn kill_tree(&mut self) {
        self.kill_boundary();
        if self.ended.is_none()
            && let Some(pid) = Pid::from_raw(self.record.workload_pid)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Kills by the tree's boundary: its pid namespace, its cgroup.
    fn kill_boundary(&self) {
        if let Some(holder) = &self.surroundings.holder {
            holder.kill();
        }
        cgroup::kill(&self.surroundings.paths);
    }

    /// Does what is due; true when everything is over.
    fn advance(&mut self, now: Instant) -> bool {
        if self.is_collector() {
            return self.advance_collector(now);
        }
        let Some(ended) = self.ended else {
            if self.kill_at.is_some_and(|at| at <= now) {
                self.kill_at = None;
                self.kill_tree();
            }
            return false;
        };
        self.kill_at = None;
        if self.empty_since.is_none() {
            // A subreaper without children has no descendants. The cgroup may also hold processes that others put
            // there.
            let empty = !self.has_children
                && (self.surroundings.paths.is_empty() || !cgroup::is_populated(&self.surroundings.paths));
            if empty {
                self.empty_since = Some(now);
                self.check = None;
            } else if self.check.is_none_or(|(at, _)| at <= now) {
                self.kill_boundary();
                if self.surroundings.paths.is_empty() || now.duration_since(ended.seen) > ESCALATE {
                    self.kill_descendants();
                }
                let pause = self.check.map_or(Duration::from_millis(1), |(_, pause)| pause * 2);
                let pause = pause.min(Duration::from_millis(500));
                self.check = Some((now + pause, pause));
            }
        }
        match self.empty_since {
            Some(since) => self.pumps.iter().all(Pump::is_finished) || now.duration_since(since) >= DRAIN,
            None => false,
        }
    }

    fn advance_collector(&mut self, now: Instant) -> bool {
        let Some(deadline) = self.kill_at else {
            // Without its directory no controller can find it, and its output belongs to nobody.
            let orphaned = rustix::fs::fstat(&self.lock).is_ok_and(|stat| stat.st_nlink == 0);
            if orphaned {
                self.kill_at = Some(now);
            }
            return false;
        };
        if self.ended.is_none() {
            // From here on an end is final, so writers that have gone do not delay the stop.
            self.ended = Some(Ended { exit_code: 0, signal: 0, at_ns: process::now_ns(), seen: now });
            let mut buffer = [0u8; BUFFER];
            for pump in &mut self.pumps {
                pump.run(&mut buffer, now, true);
            }
        }
        now >= deadline || self.pumps.iter().all(Pump::is_finished)
    }

    /// Kills the tree process by process. Stops all before it kills any, so that none can fork away.
    fn kill_descendants(&self) {
        let mut stopped: Vec<i32> = Vec::new();
        for _ in 0..64 {
            let living = process::descendants_of(self.record.executor_pid);
            let new: Vec<i32> = living.iter().map(|p| p.pid).filter(|pid| !stopped.contains(pid)).collect();
            if new.is_empty() {
                break;
            }
            for pid in new {
                stopped.push(pid);
                if let Some(pid) = Pid::from_raw(pid) {
                    let _ = kill_process(pid, Signal::STOP);
                }
            }
        }
        for pid in stopped.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Stores the result, answers all controllers, and cleans up.
    fn finish(mut self) -> ExitCode {
        let Some(ended) = self.ended else {
            return ExitCode::FAILURE;
        };
        let result = ResultRecord {
            exit_code: ended.exit_code,
            signal: ended.signal,
            oom_killed: cgroup::oom_kills(&self.surroundings.paths) > 0,
            started_at_ns: self.record.started_at_ns,
            finished_at_ns: ended.at_ns,
            lost: false,
            reason: std::mem::take(&mut self.reason),
            log_bytes_lost: self.pumps.iter().map(Pump::held_bytes).sum(),
        };
        if !self.store_result(&result) {
            return ExitCode::FAILURE;
        }
        for connection in &mut self.connections {
            for id in std::mem::take(&mut connection.waiting) {
                connection.send(&Reply { id, body: Some(reply::Body::Exited(result.clone())) });
            }
        }
        if self.socket.is_some() {
            let _ = rustix::fs::unlink(files::SOCKET);
        }
        let _ = cgroup::remove(&self.surroundings.paths);
        let until = Instant::now() + FAREWELL;
        while self.connections.iter().any(Connection::has_unsent) && Instant::now() < until {
            let unsent = self.connections.iter().filter(|c| c.has_unsent());
            let mut fds: Vec<PollFd<'_>> = unsent.map(|c| PollFd::new(&c.fd, PollFlags::OUT)).collect();
            let _ = poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 }));
            drop(fds);
            self.connections.iter_mut().for_each(Connection::flush);
        }
        ExitCode::SUCCESS
    }

    /// Waits on a full disk: a result reported but not stored could count twice after a crash. Gives up only when the
    /// directory was removed, because then nobody wants the result.
    fn store_result(&mut self, result: &ResultRecord) -> bool {
        let json = result.to_json();
        loop {
            match replace(Path::new("."), files::RESULT, json.as_bytes(), Durability::Durable) {
                Ok(()) => return true,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return false,
                Err(_) => std::thread::sleep(Duration::from_millis(250)),
            }
        }
    }
}
