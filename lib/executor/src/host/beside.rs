//! A command in an instance, with its streams at the manager.
//!
//! This module makes the pipes, or the terminal, and passes their far ends to the executor. The executor starts the
//! command in the instance's cgroup and as its user. When the manager goes, the control socket closes and the executor
//! ends the command.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use executor_proto::host::{HOST_CHUNK, HostExec, HostExit, HostInput, HostOutput, host_reply::Body};
use executor_proto::{EXEC_SINCE, Exec, SessionEnd, request, split_frame};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use super::call::Call;
use super::controller::{self, Controller, Found};
use super::refusal::{Answer, Refusal};
use super::runtime::Runtime;
use crate::error::Error;

/// The terminal's end-of-input character.
const END_OF_TRANSMISSION: u8 = 4;
/// Size of a terminal until the manager sets another one.
const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
/// How often waiting threads check for the end. It also bounds the wait for output that background processes hold open
/// after the command's end.
const LOOK: Duration = Duration::from_millis(100);

/// Our ends of a command's streams.
struct Streams {
    input: File,
    outputs: Vec<(File, bool)>,
    theirs: Vec<OwnedFd>,
}

/// Runs the command until it ends or the call is cancelled.
pub(super) fn run(runtime: &Runtime, request: &HostExec, call: &Call) -> Answer<HostExit> {
    let (place, _) = runtime.find(&request.key)?;
    let state_dir = place.state_dir();
    let not_running = || Refusal::WrongRequest(format!("instance {} does not run", request.key));
    let Some(Found::Running(mut executor)) = controller::attach(&state_dir)? else {
        return Err(not_running());
    };
    if executor.protocol < EXEC_SINCE {
        return Err(Error::Outdated { state_dir, wanted: "run commands beside the workload" }.into());
    }
    let Some((command, args)) = request.command.split_first().filter(|(command, _)| !command.is_empty()) else {
        return Err(Refusal::WrongRequest("the command to run is empty".into()));
    };
    let unclear =
        |e: io::Error| Refusal::CouldNotAsk(format!("prepare a command beside instance {}: {e}", request.key));
    let Streams { input, outputs, theirs } =
        if request.tty { terminal(&executor) } else { pipes() }.map_err(unclear)?;
    let (mut control, far) = UnixStream::pair().map_err(unclear)?;
    let fds: Vec<OwnedFd> = std::iter::once(OwnedFd::from(far)).chain(theirs).collect();
    let op = request::Op::Exec(Exec {
        command: command.clone().into_bytes(),
        args: args.iter().map(|a| a.clone().into_bytes()).collect(),
        tty: request.tty,
    });
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    match executor.ask_with(&state_dir, Some(request.epoch), op, &borrowed) {
        Ok(_) => {}
        Err(Error::NotRunning { .. }) => return Err(not_running()),
        Err(e) => return Err(e.in_starting(std::ffi::OsStr::new(command)).into()),
    }
    drop(borrowed);
    drop(fds);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (file, stderr) in outputs {
            let over = &over;
            scope.spawn(move || copy(file, stderr, call, over));
        }
        scope.spawn(|| feed(input, request.tty, call, &over));
        let end = wait(&mut control, call);
        over.store(true, Ordering::Release);
        call.wake();
        // The close ends the remaining processes, if the command itself has not ended.
        drop(control);
        match end {
            Some(SessionEnd { exit_code, signal }) => Ok(HostExit { exit_code, signal }),
            None if call.is_cancelled() => {
                Err(Refusal::CouldNotAsk("nobody waits for the command any more, it was ended".into()))
            }
            None => Err(not_running()),
        }
    })
}

/// The end of the command; `None` when its executor or the manager goes first.
fn wait(control: &mut UnixStream, call: &Call) -> Option<SessionEnd> {
    let mut received = Vec::new();
    let mut buffer = [0u8; 64];
    while !call.is_cancelled() {
        if !is_readable(control, LOOK) {
            continue;
        }
        match control.read(&mut buffer) {
            Ok(n) if n > 0 => received.extend_from_slice(&buffer[..n]),
            _ => return None,
        }
        if let Ok(Some(end)) = split_frame::<SessionEnd>(&mut received) {
            return Some(end);
        }
    }
    None
}

fn is_readable(fd: &impl AsFd, longest: Duration) -> bool {
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(longest.subsec_nanos()) };
    matches!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)), Ok(n) if n > 0)
}

fn copy(mut from: File, stderr: bool, call: &Call, over: &AtomicBool) {
    let mut buffer = vec![0; HOST_CHUNK / 4];
    loop {
        let was_over = over.load(Ordering::Acquire);
        if !is_readable(&from, LOOK) {
            if was_over || call.is_cancelled() {
                break;
            }
            continue;
        }
        // A terminal without programs returns an error.
        let Ok(n) = from.read(&mut buffer) else { break };
        if n == 0 {
            break;
        }
        call.send_data(n as u64, Body::Output(HostOutput { stderr, data: buffer[..n].to_vec() }));
    }
    call.send(Body::Output(HostOutput { stderr, data: Vec::new() }));
}

/// Passes on the manager's input until the command has ended.
fn feed(to: File, tty: bool, call: &Call, over: &AtomicBool) {
    let mut to = Some(to);
    while let Some(HostInput { data, end, columns, rows }) = call.input_until(over) {
        let Some(file) = &mut to else { continue };
        if tty && columns > 0 {
            let size = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
            let _ =
                rustix::termios::tcsetwinsize(&*file, Winsize { ws_row: size(rows), ws_col: size(columns), ..SIZE });
        }
        let typed = if end && tty { [&data[..], &[END_OF_TRANSMISSION]].concat() } else { data };
        // Input without a reader is dropped.
        if write(file, &typed, over).is_err() || (end && !tty) {
            to = None;
        }
    }
}

/// Writes everything, unless the command ends first.
fn write(file: &mut File, mut data: &[u8], over: &AtomicBool) -> io::Result<()> {
    while !data.is_empty() {
        match file.write(data) {
            Ok(n) => data = &data[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && !over.load(Ordering::Acquire) => {
                let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
                let _ = poll(&mut [PollFd::new(&*file, PollFlags::OUT)], Some(&timeout));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn pipes() -> io::Result<Streams> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC);
    let ((stdin_far, stdin), (stdout, stdout_far), (stderr, stderr_far)) = (pipe()?, pipe()?, pipe()?);
    // A command that does not read must not block the writer for ever.
    rustix::io::ioctl_fionbio(&stdin, true)?;
    Ok(Streams {
        input: stdin.into(),
        outputs: vec![(stdout.into(), false), (stderr.into(), true)],
        theirs: vec![stdin_far, stdout_far, stderr_far],
    })
}

fn terminal(executor: &Controller) -> io::Result<Streams> {
    // The command must find its terminal's name in its own mounts.
    let path = match executor.holder_pid {
        0 => "/dev/ptmx".to_owned(),
        pid => format!("/proc/{pid}/root/dev/pts/ptmx"),
    };
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let far = rustix::pty::ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::termios::tcsetwinsize(&master, SIZE)?;
    Ok(Streams { input: File::from(master.try_clone()?), outputs: vec![(master.into(), false)], theirs: vec![far] })
}
