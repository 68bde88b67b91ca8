//! Commands beside a task: a step of its job, by `srun --overlap`.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use driver_sdk::exec::{ExecInput, ExecIo, ExecOutputSink};
use driver_sdk::{RemoteError, TaskExit};
use hpc::Answer;
use hpc::command::become_user;
use hpc::files::{read, unique};
use hpc::rights::as_owner;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::place::Place;
use crate::site::{Site, on_disk};

/// Until the client says how large its window is.
const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
/// What ends the input of a program at a terminal.
const END_OF_TRANSMISSION: u8 = 4;
/// `srun` passes a new size on once its step has begun, and says nothing of one before: it is told again.
const SIZE_AGAIN: Duration = Duration::from_secs(1);
/// How often.
const SIZE_TIMES: u32 = 10;

/// Ends a command that nobody waits for any more: `srun` ends its step at SIGTERM, and leaves it at SIGKILL.
struct Ends(Option<Pid>);

impl Drop for Ends {
    fn drop(&mut self) {
        send(self.0, Signal::TERM);
    }
}

fn send(pid: Option<Pid>, signal: Signal) {
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal);
    }
}

fn unclear(why: io::Error) -> RemoteError {
    let told = format!("srun cannot be run: {why}");
    match why.kind() {
        // Also with `rest`: slurmrestd has no such call.
        io::ErrorKind::NotFound => RemoteError::wrong_request(format!(
            "{told}; a command in a task needs Slurm's commands on the node that manages it: install them, or set \
                `bin_dir`"
        )),
        _ => RemoteError::could_not_ask(told),
    }
}

/// Runs a command in the job with this run directory. A drop ends it.
///
/// # Errors
/// [`RemoteError::CouldNotAsk`]: `srun` cannot be run, or the client has gone.
pub(crate) async fn run(
    site: &Site,
    place: &Place,
    job: u64,
    command: &[String],
    tty: bool,
    io: ExecIo,
) -> Answer<TaskExit> {
    let dir = &place.dir;
    let result = dir.join(format!(".exec.{}", unique()));
    let mut srun = site.commands.command("srun");
    if let Some(user) = site.user_of_place(place).await? {
        become_user(&mut srun, &user);
    }
    // Slurm looks for the directory of `srun` on the compute node.
    srun.current_dir(dir);
    srun.arg(format!("--jobid={job}")).args(["--overlap", "--nodes=1", "--ntasks=1"]);
    srun.arg(if tty { "--pty" } else { "--input=0" });
    srun.arg("/bin/sh").arg(dir.join("beside.sh")).arg(&result).args(command);
    let ExecIo { input, output } = io;
    let status = if tty { at_terminal(srun, input, &output).await } else { piped(srun, input, &output).await }?;
    let dir = dir.to_owned();
    let code = on_disk(move || {
        as_owner(&dir, || {
            // Whatever became of it, `srun` has a code as well.
            let code = read(&result).ok().flatten().and_then(|text| text.trim().parse().ok());
            let _ = std::fs::remove_file(&result);
            Ok(code)
        })
    })
    .await?;
    Ok(TaskExit { exit_code: code.or(status.code()).unwrap_or(-1), ..TaskExit::default() })
}

fn ends(child: &Child) -> Ends {
    Ends(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
}

/// The end of a command and of its output, unless the client goes before.
async fn until_end(
    mut ends: Ends,
    ended: impl Future<Output = io::Result<ExitStatus>>,
    typing: impl Future<Output = ()>,
) -> Answer<ExitStatus> {
    let status = tokio::select! {
        status = ended => status.map_err(unclear)?,
        () = typing => return Err(RemoteError::could_not_ask("the client has gone")),
    };
    ends.0 = None;
    Ok(status)
}

async fn piped(mut srun: Command, mut input: mpsc::Receiver<ExecInput>, output: &ExecOutputSink) -> Answer<ExitStatus> {
    srun.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = srun.spawn().map_err(unclear)?;
    let ends = ends(&child);
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let typing = async move {
        while let Some(typed) = input.recv().await {
            match typed {
                ExecInput::Stdin(data) => {
                    if let Some(pipe) = &mut stdin
                        && pipe.write_all(&data).await.is_err()
                    {
                        stdin = None;
                    }
                }
                ExecInput::StdinClosed => stdin = None,
                ExecInput::Resize { .. } => {}
            }
        }
    };
    let ended = async {
        let out = async {
            let Some(mut pipe) = stdout else { return };
            while let Some(data) = next(&mut pipe).await
                && output.stdout(data).await.is_ok()
            {}
        };
        let err = async {
            let Some(mut pipe) = stderr else { return };
            while let Some(data) = next(&mut pipe).await
                && output.stderr(data).await.is_ok()
            {}
        };
        tokio::join!(out, err, child.wait()).2
    };
    until_end(ends, ended, typing).await
}

/// What a pipe has next.
async fn next(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 16 << 10];
    let n = from.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
    buffer.truncate(n);
    Some(buffer)
}

/// As at a terminal of a login node: `srun --pty` makes the terminal of the command, and follows the size of ours.
async fn at_terminal(
    mut srun: Command,
    mut input: mpsc::Receiver<ExecInput>,
    output: &ExecOutputSink,
) -> Answer<ExitStatus> {
    let (master, far) = terminal().map_err(unclear)?;
    let copies = (far.try_clone().map_err(unclear)?, far.try_clone().map_err(unclear)?);
    srun.stdin(far).stdout(copies.0).stderr(copies.1);
    let mut child = srun.spawn().map_err(unclear)?;
    // The last one who has the far end ends the output.
    drop(srun);
    let ends = ends(&child);
    let pid = ends.0;
    // Not pipes, but used in the same way.
    let mut sender = pipe::Sender::from_owned_fd_unchecked(master.try_clone().map_err(unclear)?).map_err(unclear)?;
    let receiver = pipe::Receiver::from_owned_fd_unchecked(master.try_clone().map_err(unclear)?).map_err(unclear)?;
    let typing = async move {
        let (mut again, mut left) = (tokio::time::interval(SIZE_AGAIN), 0_u32);
        loop {
            let typed = tokio::select! {
                typed = input.recv() => typed,
                _ = again.tick(), if left > 0 => {
                    left -= 1;
                    send(pid, Signal::WINCH);
                    continue;
                }
            };
            let Some(typed) = typed else { return };
            // What nobody reads any more is no reason to end: the command's own end is.
            match typed {
                ExecInput::Stdin(data) => drop(sender.write_all(&data).await),
                ExecInput::StdinClosed => drop(sender.write_all(&[END_OF_TRANSMISSION]).await),
                ExecInput::Resize { width, height } => {
                    let _ = rustix::termios::tcsetwinsize(&master, Winsize { ws_row: height, ws_col: width, ..SIZE });
                    send(pid, Signal::WINCH);
                    left = SIZE_TIMES;
                }
            }
        }
    };
    let out = async {
        let mut buffer = vec![0; 16 << 10];
        // Not `read`, which takes a short read for the last one; that is wrong for terminals.
        while receiver.readable().await.is_ok() {
            match receiver.try_read(&mut buffer) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                Ok(n @ 1..) if output.stdout(buffer[..n].to_vec()).await.is_ok() => {}
                // At the end of a terminal there is an error.
                _ => return,
            }
        }
    };
    let ended = async { tokio::join!(out, child.wait()).1 };
    until_end(ends, ended, typing).await
}

/// Both ends of a terminal that is nobody's controlling one.
fn terminal() -> io::Result<(OwnedFd, File)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let master = rustix::fs::open("/dev/ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let far = rustix::pty::ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::termios::tcsetwinsize(&master, SIZE)?;
    Ok((master, far.into()))
}
