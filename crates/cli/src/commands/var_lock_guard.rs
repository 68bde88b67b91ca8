//! The guard between `drover var lock` and its command: it ends the command, and all that the command has started, when
//! nobody can say any more that the lock is held.
//!
//! ```text
//! holder ── pipe: until when the lock is held ──► guard ── command ── …
//! ```
//! A holder that is killed closes the pipe; one that is stopped, or hangs, lets the time pass. Both would leave a
//! command behind that believes in a lock that somebody else gets after two times to live.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{ExitCode, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use executor::process::{ProcessStat, descendants_of};
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal, getpid, kill_process, set_child_subreaper},
    time::ClockId,
};
use tokio::{
    io::AsyncReadExt as _,
    net::unix::pipe,
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use crate::output;

/// How long the command may take to end when it is asked to, before all of it is killed.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// Longest time between two looks at the clock: timers stand still while the machine sleeps.
const LOOK: Duration = Duration::from_secs(1);
/// Pause between two looks at what still runs.
const PAUSE: Duration = Duration::from_millis(20);

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of the file that tells until when the lock is held
    holder: u32,
    /// The command
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

/// Time since the start of the machine, with the time that it slept.
pub(super) fn now() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// A message of the holder: the lock is held until then. Zero = it is lost.
pub(super) fn message(until: Duration) -> [u8; 8] {
    u64::try_from(until.as_nanos()).unwrap_or(u64::MAX).to_le_bytes()
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    set_child_subreaper(Some(getpid())).context("could not become the parent of orphans")?;
    // A pipe may be opened once more where the kernel shows it.
    let path = format!("/proc/self/fd/{}", args.holder);
    let holder = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let mut holder = pipe::Receiver::from_owned_fd(holder.context("could not open the pipe of the holder")?)?;
    let signals = |kind| signal(kind).context("could not wait for signals");
    let mut interrupt = signals(SignalKind::interrupt())?;
    let mut terminate = signals(SignalKind::terminate())?;
    let mut hang_up = signals(SignalKind::hangup())?;

    let [program, args @ ..] = args.command.as_slice() else { anyhow::bail!("no command to run") };
    let child = Command::new(program).args(args).stdin(Stdio::inherit()).spawn();
    let mut child = child.with_context(|| format!("could not start {program:?}"))?;
    let mut until = None;
    loop {
        let mut text = [0; 8];
        tokio::select! {
            status = child.wait() => return Ok(code(status?)),
            // The terminal has told the command as well; its end is waited for.
            _ = interrupt.recv() => {}
            _ = terminate.recv() => tell(&child, Signal::TERM),
            _ = hang_up.recv() => tell(&child, Signal::HUP),
            // Messages of eight bytes go through a pipe whole.
            read = holder.read(&mut text) => {
                until = match (read, u64::from_le_bytes(text)) {
                    (Ok(8), 0) => return ended(&mut child).await,
                    (Ok(8), nanos) => Some(Duration::from_nanos(nanos)),
                    _ => {
                        output::note("the holder of the lock is gone; its command is stopped");
                        return ended(&mut child).await;
                    }
                };
            }
            () = tokio::time::sleep(LOOK) => {
                if until.is_some_and(|until| now() >= until) {
                    output::note("the lock was not renewed in time; its command is stopped");
                    return ended(&mut child).await;
                }
            }
        }
    }
}

fn tell(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        // One that has ended needs no signal.
        let _ = kill_process(pid, signal);
    }
}

/// Stops the command and all below it.
async fn ended(child: &mut Child) -> Result<ExitCode> {
    end_all(GRACE).await;
    loop {
        match tokio::time::timeout(PAUSE, child.wait()).await {
            Ok(status) if below().is_empty() => return Ok(code(status?)),
            // Nothing outlives this process, whatever was missed.
            _ => end_all(Duration::ZERO).await,
        }
    }
}

fn below() -> Vec<ProcessStat> {
    descendants_of(getpid().as_raw_nonzero().get())
}

/// Ends what runs below this process: asked first, then killed. Returns when nothing does.
pub(super) async fn end_all(grace: Duration) {
    let signal = |signal| {
        for process in below() {
            if let Some(pid) = Pid::from_raw(process.pid) {
                // One that has ended needs no signal.
                let _ = kill_process(pid, signal);
            }
        }
    };
    signal(Signal::TERM);
    // One that is stopped hears it only when it goes on.
    signal(Signal::CONT);
    let patience = now() + grace;
    while !below().is_empty() {
        if now() >= patience {
            // What is started meanwhile is found by the next look.
            signal(Signal::KILL);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The exit code of a command, as shells tell it.
pub(super) fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}
