//! What an executable of the node says about itself.

use std::{
    io::Read,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest text, in bytes. A line or two, which the pipe buffers.
const TEXT_MAX: u64 = 4096;

/// Where it speaks.
pub(super) enum On {
    Stdout,
    Stderr,
}

/// Runs it and gives its words. Blocking. Nothing that it has started is left: what keeps the pipe open would hold up
/// the start of the agent.
///
/// # Errors
/// Why there are none, for people.
pub(super) fn said(command: &mut Command, on: &On) -> Result<String, String> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    match on {
        On::Stdout => command.stdout(Stdio::piped()),
        On::Stderr => command.stderr(Stdio::piped()),
    };
    let mut child = command.spawn().map_err(|e| format!("it does not start: {e}"))?;
    let group = Pid::from_child(&child);
    // Until the child is reaped, the kernel does not reuse its number.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let deadline = Instant::now() + PATIENCE;
    let runs = || matches!(waitid(WaitId::Pid(group), look), Ok(None));
    let mut in_time = true;
    while in_time && runs() {
        std::thread::sleep(Duration::from_millis(2));
        // It may have answered while this process stood still.
        in_time = Instant::now() < deadline || !runs();
    }
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    if !in_time {
        return Err(format!("it has not answered for {} s", PATIENCE.as_secs()));
    }
    let mut text = String::new();
    let read = match on {
        On::Stdout => child.stdout.take().map(|pipe| pipe.take(TEXT_MAX).read_to_string(&mut text)),
        On::Stderr => child.stderr.take().map(|pipe| pipe.take(TEXT_MAX).read_to_string(&mut text)),
    };
    read.transpose().map_err(|e| e.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of waits that do not depend on [`PATIENCE`]; the machine may be busy.
    const BOUND: Duration = Duration::from_secs(60);

    fn sh(script: &str, on: &On) -> Result<String, String> {
        said(Command::new("/bin/sh").args(["-c", script]), on)
    }

    #[test]
    fn words_come_from_the_output_that_is_asked_for_and_nobody_keeps_it_open() {
        assert_eq!(sh("echo out; echo err >&2", &On::Stdout), Ok("out\n".to_owned()));
        assert_eq!(sh("echo out; echo err >&2", &On::Stderr), Ok("err\n".to_owned()));
        let begun = Instant::now();
        let said = sh("sleep 600 & echo $!", &On::Stdout).expect("a pid");
        assert!(begun.elapsed() < BOUND, "the child that holds the pipe was waited for");
        let child = Pid::from_raw(said.trim().parse().expect("a pid")).expect("a pid");
        let gone = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero())).unwrap_or_default();
            state.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
        };
        let killed = Instant::now();
        while !gone() {
            assert!(killed.elapsed() < BOUND, "{said} lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
