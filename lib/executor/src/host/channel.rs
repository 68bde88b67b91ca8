//! Many concurrent requests over standard input and output.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use executor_proto::host::{
    HOST_PROTOCOL, HostFile, HostHello, HostNothing, HostObservations, HostPong, HostReply, HostRequest, HostStats,
    host_reply::Body, host_request::Op,
};
use executor_proto::{encode_frame, split_frame};

use super::call::{Call, Output, lock};
use super::files::{Staged, Upload};
use super::refusal::{Answer, Refusal};
use super::runtime::Runtime;
use super::{beside, logs, watch};
use crate::{process, sys};

/// A manager sends something every few seconds. After this silence it counts as cut off without notice.
const SILENCE: Duration = Duration::from_secs(60);
/// Interval of looks for what killed processes have left of their uploads.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// How long this process may take to remove its own.
const FAREWELL: Duration = Duration::from_secs(1);
/// Limit of concurrent requests.
const MAX_CALLS: usize = 512;
const STACK: usize = 256 * 1024;

/// Serves the runtime in `root` until standard input ends. `nonce` marks the beginning of our output, because a login
/// shell may have written before.
pub fn main(root: &Path, nonce: &str) -> ExitCode {
    let (Ok(input), Ok(output)) = (sys::inherited(0), sys::inherited(1)) else {
        return ExitCode::FAILURE;
    };
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let (mut input, mut output) = (File::from(input), File::from(output));
    let runtime = match Runtime::open(root) {
        Ok(runtime) => runtime,
        Err(refusal) => {
            let _ = writeln!(output, "DROVER {nonce} FAILED {}", refusal.into_wire().message.replace('\n', " "));
            return ExitCode::FAILURE;
        }
    };
    let mut greeting = format!("DROVER {nonce} READY\n").into_bytes();
    encode_frame(&HostReply { id: 0, body: Some(Body::Hello(hello(&runtime))) }, &mut greeting);
    if output.write_all(&greeting).is_err() {
        return ExitCode::FAILURE;
    }
    let session = Arc::new(Session {
        runtime,
        output: Arc::new(Output::new(output)),
        calls: Mutex::default(),
        heard_at: AtomicU64::new(0),
    });
    let begun = Instant::now();
    let watched = session.clone();
    let watcher = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        loop {
            std::thread::sleep(SILENCE / 12);
            let silent =
                begun.elapsed().saturating_sub(Duration::from_millis(watched.heard_at.load(Ordering::Relaxed)));
            if silent > SILENCE {
                leave(&watched.runtime);
            }
        }
    });
    // Not the watcher: a disk that hangs must not keep it from its work.
    let tidied = session.clone();
    let tidier = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        loop {
            std::thread::sleep(TIDY_EVERY);
            Upload::tidy(&tidied.runtime.root);
        }
    });
    if watcher.is_err() || tidier.is_err() {
        return ExitCode::FAILURE;
    }
    let mut received = Vec::new();
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => leave(&session.runtime),
            Ok(n) => received.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => sys::exit_now(1),
        }
        session.heard_at.store(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        loop {
            match split_frame::<HostRequest>(&mut received) {
                Ok(Some(HostRequest { id, op })) => session.take(id, op),
                Ok(None) => break,
                Err(_) => sys::exit_now(1),
            }
        }
    }
}

/// Ends this process. Requests under way may be interrupted anywhere, but secrets of a cut upload do not stay.
fn leave(runtime: &Runtime) -> ! {
    let root = runtime.root.clone();
    let (done, ended) = std::sync::mpsc::channel();
    let spawned = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        Upload::give_up(&root);
        let _ = done.send(());
    });
    if spawned.is_ok() {
        // On a disk that hangs the next channel does it.
        let _ = ended.recv_timeout(FAREWELL);
    }
    sys::exit_now(0)
}

fn hello(runtime: &Runtime) -> HostHello {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let mhz = cpuinfo.lines().find(|l| l.starts_with("cpu MHz")).and_then(|l| l.split(':').nth(1)?.trim().parse().ok());
    let meminfo = read("/proc/meminfo");
    let memory = meminfo
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    HostHello {
        protocol: HOST_PROTOCOL,
        version: env!("CARGO_PKG_VERSION").into(),
        runtime: runtime.id.clone(),
        root: runtime.root.display().to_string(),
        boot_id: process::boot_id().unwrap_or_default(),
        now_ns: process::now_ns(),
        core_mhz: mhz.unwrap_or(1000.0),
        cores: std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
        memory_mib: memory.unwrap_or(0) / 1024,
        cgroups: runtime.cgroups.mode().name().into(),
    }
}

struct Session {
    runtime: Runtime,
    output: Arc<Output>,
    calls: Mutex<HashMap<u64, Arc<Call>>>,
    /// Milliseconds since the start.
    heard_at: AtomicU64,
}

impl Session {
    /// Handles one frame of the manager. Must not wait for anything but the output.
    fn take(self: &Arc<Self>, id: u64, op: Option<Op>) {
        let known = || lock(&self.calls).get(&id).cloned();
        match op {
            None => {
                let why = format!("this executor ({}) does not know the request", env!("CARGO_PKG_VERSION"));
                self.output.send(id, Body::Failure(Refusal::WrongRequest(why).into_wire()));
            }
            Some(Op::Ping(_)) => self.output.send(id, Body::Pong(HostPong { now_ns: process::now_ns() })),
            Some(Op::Input(input)) => {
                known().into_iter().for_each(|call| call.change(|state| state.input.push_back(input.clone())))
            }
            Some(Op::Credit(credit)) => {
                known().into_iter().for_each(|call| call.change(|state| state.credit += credit.bytes))
            }
            Some(Op::Cancel(_)) => known().into_iter().for_each(|call| call.change(|state| state.cancelled = true)),
            Some(op) => {
                let call = Arc::new(Call::new(id, self.output.clone()));
                let full = {
                    let mut calls = lock(&self.calls);
                    let full = calls.len() >= MAX_CALLS;
                    if !full {
                        calls.insert(id, call.clone());
                    }
                    full
                };
                let session = self.clone();
                let run = move || {
                    let body = perform(&session.runtime, &call, op)
                        .unwrap_or_else(|refusal| Body::Failure(refusal.into_wire()));
                    lock(&session.calls).remove(&id);
                    session.output.send(id, body);
                };
                let started = !full && std::thread::Builder::new().stack_size(STACK).spawn(run).is_ok();
                if !started {
                    lock(&self.calls).remove(&id);
                    let why = "the host has too many requests under way; ask again".to_owned();
                    self.output.send(id, Body::Failure(Refusal::CouldNotAsk(why).into_wire()));
                }
            }
        }
    }
}

/// Carries out a request and returns its last frame.
fn perform(runtime: &Runtime, call: &Call, op: Op) -> Answer<Body> {
    let observed = |seen: Vec<_>| Body::Observed(HostObservations { seen });
    let done = || Body::Done(HostNothing {});
    let mut receive = |runtime: &Runtime, files: &[HostFile], digest: &str| {
        call.send(Body::SendFiles(HostNothing {}));
        let next = || call.input().filter(|input| !input.end || !input.data.is_empty()).map(|input| input.data);
        Staged::receive(runtime, files, digest, next)
    };
    Ok(match op {
        Op::Ensure(request) => Body::Ensured(runtime.ensure(&request, &mut receive)?),
        Op::Refresh(request) => {
            runtime.refresh(&request, &mut receive)?;
            done()
        }
        Op::Find(request) => observed(vec![runtime.found(&request)?]),
        Op::List(request) => Body::Listed(runtime.list(&request)?),
        Op::Observe(keys) => observed(keys.keys.iter().map(|key| runtime.look_or_unknown(key)).collect()),
        Op::Watch(keys) => {
            watch::watch(runtime, &keys.keys, call);
            done()
        }
        Op::Stop(request) => observed(vec![runtime.stop(&request)?]),
        Op::Seal(request) => observed(runtime.seal(&request)?.into_iter().collect()),
        Op::Acknowledge(request) => {
            runtime.acknowledge(&request)?;
            done()
        }
        Op::Logs(request) => {
            logs::send(runtime, &request, call)?;
            done()
        }
        Op::Signal(request) => {
            runtime.signal(&request)?;
            done()
        }
        Op::Stats(request) => Body::Stats(HostStats { stats: runtime.stats(&request.key)? }),
        Op::Used(_) => Body::Used(runtime.used("")?),
        Op::Exec(request) => Body::Exited(beside::run(runtime, &request, call)?),
        Op::Input(_) | Op::Credit(_) | Op::Cancel(_) | Op::Ping(_) => done(),
    })
}
