//! Exec sessions: programs in a workload, with their standard streams in this process.
//!
//! This module makes the pipes, or the terminal, and passes their far ends to the executor. So the bytes of a session
//! go directly between the program and this process. A drop of [`ExecSession::end`] ends the session.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use executor_proto::{EXEC_SINCE, Exec, SessionEnd, request, split_frame};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::{Error, Executor};

/// The terminal's end-of-input character.
const END_OF_TRANSMISSION: u8 = 4;
/// Size of a terminal until the caller sets another one.
const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// A program to run in a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecSpec {
    /// A path as the workload sees it, or a name to search along its `PATH`.
    pub command: OsString,
    /// Arguments after the program's own name.
    pub args: Vec<OsString>,
    /// Give it a terminal.
    pub tty: bool,
}

/// A running session. Its parts are used concurrently.
#[derive(Debug)]
pub struct ExecSession {
    /// Standard input of the program.
    pub stdin: SessionInput,
    /// Standard output; all output of a terminal.
    pub stdout: SessionOutput,
    /// Standard error; with a terminal at its end from the start.
    pub stderr: SessionOutput,
    /// Controls its end; a drop ends the session.
    pub end: SessionControl,
}

/// Standard input of a session.
#[derive(Debug)]
pub struct SessionInput {
    /// A pipe, or the master side of a terminal; `None` when it has no reader any more.
    sender: Option<pipe::Sender>,
    terminal: bool,
}

impl SessionInput {
    /// Passes on all of `data`, waiting while the program does not read. Drops data without a reader.
    ///
    /// # Errors
    /// When the pipe or terminal fails otherwise than by its reader's end. Part of the data may have been passed on.
    pub async fn write(&mut self, data: &[u8]) -> io::Result<()> {
        let Some(sender) = &mut self.sender else {
            return Ok(());
        };
        match write_all(sender, data).await {
            Err(e) if is_gone(&e) => {
                self.sender = None;
                Ok(())
            }
            other => other,
        }
    }

    /// Ends the input. A terminal stays open and gets its end-of-input character.
    ///
    /// # Errors
    /// As [`SessionInput::write`], for a terminal.
    pub async fn close(&mut self) -> io::Result<()> {
        if self.terminal {
            return self.write(&[END_OF_TRANSMISSION]).await;
        }
        self.sender = None;
        Ok(())
    }

    /// Sets the size of the program's terminal; does nothing without one.
    ///
    /// # Errors
    /// When the terminal does not take the size.
    pub fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        if let Some(master) = self.sender.as_ref().filter(|_| self.terminal) {
            rustix::termios::tcsetwinsize(master, Winsize { ws_row: rows, ws_col: columns, ..SIZE })?;
        }
        Ok(())
    }
}

/// Output of a session.
#[derive(Debug)]
pub struct SessionOutput(Option<pipe::Receiver>);

impl SessionOutput {
    /// The next bytes, at most `max`; none at the end. Cancel safe.
    ///
    /// # Errors
    /// When the pipe or terminal fails; its end is none.
    pub async fn read(&mut self, max: usize) -> io::Result<Vec<u8>> {
        let Some(receiver) = &mut self.0 else {
            return Ok(Vec::new());
        };
        let mut buffer = vec![0; max];
        loop {
            // Not `read`, which takes a short read for the last one; that is wrong for terminals.
            receiver.readable().await?;
            match receiver.try_read(&mut buffer) {
                Ok(n) => buffer.truncate(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                // The last program has closed the terminal.
                Err(e) if is_gone(&e) => buffer.clear(),
                Err(e) => return Err(e),
            }
            return Ok(buffer);
        }
    }
}

async fn write_all(sender: &pipe::Sender, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        sender.writable().await?;
        match sender.try_write(data) {
            Ok(n) => data = &data[n..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether the error only means that the other side has closed.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// How a session's program ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecExit {
    /// Exit status; 128 + signal when a signal ended it.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
}

/// Holds a session; a drop kills its processes.
#[derive(Debug)]
pub struct SessionControl {
    stream: UnixStream,
    received: Vec<u8>,
    executor: Executor,
}

impl SessionControl {
    /// Returns when the session's program has ended. Its output may still be on its way. Cancel safe.
    ///
    /// # Errors
    /// [`Error::NotRunning`] when the executor has gone without a message, and the workload with it.
    pub async fn wait(&mut self) -> Result<ExecExit, Error> {
        let state_dir = self.executor.state_dir();
        loop {
            let end = split_frame::<SessionEnd>(&mut self.received);
            if let Some(end) = end.map_err(|source| Error::Protocol { state_dir: state_dir.to_owned(), source })? {
                return Ok(ExecExit { exit_code: end.exit_code, signal: end.signal });
            }
            let read = self.stream.read_buf(&mut self.received).await;
            if read.map_err(Error::io("read from the executor in", state_dir))? == 0 {
                // The executor has gone without a message, and the workload with it.
                return Err(Error::NotRunning { state_dir: state_dir.to_owned() });
            }
        }
    }
}

impl Executor {
    /// Runs a program in the cgroup and isolation of the workload, as its user, with the workload's environment and
    /// directory.
    ///
    /// # Errors
    /// [`Error::Outdated`] when the executor is of a release without sessions, [`Error::Exec`] when the program cannot
    /// be executed, [`Error::NotRunning`] after the workload's end. After [`Error::Unresponsive`] the program may
    /// still be started; it ends at once then, because nobody holds its session.
    pub async fn exec(&self, spec: ExecSpec) -> Result<ExecSession, Error> {
        if self.protocol() < EXEC_SINCE {
            return Err(Error::Outdated {
                state_dir: self.state_dir().to_owned(),
                wanted: "run commands beside the workload",
            });
        }
        let failed = |doing: &'static str| Error::io(doing, self.state_dir());
        let (ours, control) =
            std::os::unix::net::UnixStream::pair().map_err(failed("create a socket for a session of"))?;
        ours.set_nonblocking(true).map_err(failed("prepare a socket for a session of"))?;
        let stream = UnixStream::from_std(ours).map_err(failed("register a socket for a session of"))?;
        let (stdin, stdout, stderr, theirs) = match spec.tty {
            true => terminal(self.holder_pid()).map_err(failed("open a terminal for a session of"))?,
            false => pipes().map_err(failed("create pipes for a session of"))?,
        };
        let fds: Vec<_> = std::iter::once(OwnedFd::from(control)).chain(theirs).collect();
        let args = spec.args.into_iter().map(OsStringExt::into_vec).collect();
        let command = spec.command.clone().into_vec();
        let op = request::Op::Exec(Exec { command, args, tty: spec.tty });
        let asked = self.ask_with(op, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>()).await;
        asked.map_err(|e| e.in_starting(&spec.command))?;
        Ok(ExecSession {
            stdin,
            stdout,
            stderr,
            end: SessionControl { stream, received: Vec::new(), executor: self.clone() },
        })
    }
}

type Streams = (SessionInput, SessionOutput, SessionOutput, Vec<OwnedFd>);

fn pipes() -> io::Result<Streams> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    // Only our ends: the program expects blocking reads and writes.
    let ours = |fd: OwnedFd| rustix::io::ioctl_fionbio(&fd, true).map(|()| fd);
    let (stdin, stdin_far) = pipe().map(|(read, write)| (write, read))?;
    let ((stdout, stdout_far), (stderr, stderr_far)) = (pipe()?, pipe()?);
    let output = |fd: OwnedFd| Ok::<_, io::Error>(SessionOutput(Some(pipe::Receiver::from_owned_fd(ours(fd)?)?)));
    let input = SessionInput { sender: Some(pipe::Sender::from_owned_fd(ours(stdin)?)?), terminal: false };
    Ok((input, output(stdout)?, output(stderr)?, vec![stdin_far, stdout_far, stderr_far]))
}

/// A terminal; of the workload's own devpts instance if process `holder` holds its mounts, so that the program finds
/// its name.
fn terminal(holder: Option<i32>) -> io::Result<Streams> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let master = match holder {
        // Follows no link of the workload out of its root.
        Some(pid) => {
            let root = rustix::fs::open(format!("/proc/{pid}/root"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::openat2(root, "dev/pts/ptmx", flags, Mode::empty(), ResolveFlags::IN_ROOT)?
        }
        None => rustix::fs::open("/dev/ptmx", flags, Mode::empty())?,
    };
    rustix::pty::unlockpt(&master)?;
    let far = rustix::pty::ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::termios::tcsetwinsize(&master, SIZE)?;
    // Not pipes, but used in the same way.
    let output = SessionOutput(Some(pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?));
    let input = SessionInput { sender: Some(pipe::Sender::from_owned_fd_unchecked(master)?), terminal: true };
    Ok((input, output, SessionOutput(None), vec![far]))
}
