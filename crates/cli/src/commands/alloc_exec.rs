//! `drover alloc exec`: a command beside a task, with this terminal as its own.

use std::{
    io::{IsTerminal, Read, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, bail};
use api::{
    Call, call,
    call::Raw,
    client::ExecSocket,
    shapes::{ExecInput, ExecIo, TtySize},
};
use rustix::termios::{OptionalActions, Termios};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{
    ApiArgs,
    resolve::{Intent, Operand, allocation, only_task},
};
use crate::conn::Conn;

/// Signs of life while nobody types.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Name of the task; optional if there is only one
    #[arg(long)]
    task: Option<String>,
    /// Treat the operand as a job name and choose one of the job's allocations
    #[arg(long)]
    job: bool,
    /// Choose an allocation of this task group
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    session: Session,
    /// An allocation id or its prefix, or a job name for the job's newest running allocation
    #[arg(value_name = "ALLOC|JOB")]
    id: String,
    /// Command and arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

/// What this terminal is to the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Session {
    /// Pass standard input to the command
    #[arg(short, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_name = "BOOL")]
    interactive: bool,
    /// Allocate a terminal; default: only if standard input and output are terminals
    #[arg(short, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "BOOL")]
    tty: Option<bool>,
    /// Escape character: at the start of a line, followed by a dot, it ends the session; "none" disables it
    #[arg(short, default_value = "~", value_name = "CHARACTER")]
    escape: String,
}

impl Session {
    /// Whether the command gets a terminal.
    pub(crate) fn tty(&self) -> Result<bool> {
        let terminals = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let tty = self.tty.unwrap_or(terminals && self.interactive);
        if tty && !self.interactive {
            bail!("-t needs -i: a terminal without input is of no use");
        }
        self.escape()?;
        Ok(tty)
    }

    fn escape(&self) -> Result<Option<u8>> {
        match self.escape.as_bytes() {
            b"none" => Ok(None),
            [one] => Ok(Some(*one)),
            _ => bail!("-e takes one character or \"none\", not {:?}", self.escape),
        }
    }
}

/// Runs the command; its exit code becomes ours.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let tty = args.session.tty()?;
    let conn = args.api.conn()?;
    let operand = Operand { text: &args.id, job: args.job, group: args.group.as_deref(), intent: Intent::Enter };
    let alloc = allocation(&conn, operand).await?;
    let task = match args.task {
        Some(task) => task,
        None => only_task(&conn, &alloc).await?,
    };
    let exec = call::alloc_exec(alloc.id)
        .with("task", task)
        .with("tty", tty)
        .with("command", serde_json::to_string(&args.command)?)
        .in_namespace(&alloc.namespace);
    attached(&conn, exec, &args.session, tty).await
}

/// Opens the session that a call asks for, with this terminal as its own.
pub(crate) async fn attached(conn: &Conn, call: Call<Raw>, with: &Session, tty: bool) -> Result<ExitCode> {
    let escape = with.escape()?;
    let mut socket = conn.exec(call).await?;
    // Given back on every way out of this function.
    let raw = if tty && std::io::stdin().is_terminal() { Some(RawTerminal::enter()?) } else { None };
    let code = session(&mut socket, with.interactive, raw.is_some(), escape.filter(|_| raw.is_some())).await;
    drop(raw);
    code
}

async fn session(socket: &mut ExecSocket, interactive: bool, terminal: bool, escape: Option<u8>) -> Result<ExitCode> {
    let mut typed = if interactive { typed(escape) } else { mpsc::channel(1).1 };
    let mut typing = true;
    let mut resized = signal(SignalKind::window_change())?;
    let mut heartbeat = tokio::time::interval(HEARTBEAT);
    if terminal {
        socket.send(&size()).await?;
    }
    loop {
        tokio::select! {
            output = socket.next() => {
                let Some(output) = output? else { bail!("the session ended before the command did") };
                if let Some(io) = output.stdout.filter(|io| !io.data.is_empty()) {
                    crate::output::bytes(&io.data);
                }
                if let Some(io) = output.stderr.filter(|io| !io.data.is_empty()) {
                    // Nobody may be reading our standard error; the command's output is not worth less for it.
                    let _ = std::io::stderr().write_all(&io.data);
                }
                if output.exited {
                    let code = output.result.map_or(1, |r| r.exit_code);
                    // Codes of processes have eight bits; a negative one means that nobody knows.
                    return Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)));
                }
            }
            item = typed.recv(), if typing => match item {
                Some(Typed::Bytes(data)) => socket.send(&stdin(ExecIo::bytes(data))).await?,
                Some(Typed::Leave) => return Ok(ExitCode::from(1)),
                None => {
                    typing = false;
                    socket.send(&stdin(ExecIo::end())).await?;
                }
            },
            _ = resized.recv(), if terminal => socket.send(&size()).await?,
            _ = heartbeat.tick() => socket.send(&ExecInput::default()).await?,
        }
    }
}

fn stdin(io: ExecIo) -> ExecInput {
    ExecInput { stdin: Some(io), tty_size: None }
}

fn size() -> ExecInput {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).map(|w| TtySize { height: w.ws_row, width: w.ws_col });
    ExecInput { stdin: None, tty_size: Some(size.unwrap_or(TtySize { height: 24, width: 80 })) }
}

/// What comes from standard input.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    Bytes(Vec<u8>),
    /// The escape sequence.
    Leave,
}

/// Reads standard input in a thread: a read of a terminal cannot be cancelled, and the process ends without waiting
/// for the thread.
fn typed(escape: Option<u8>) -> mpsc::Receiver<Typed> {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut watch = Escape::new(escape);
        let mut buffer = vec![0; 16 * 1024];
        loop {
            match std::io::stdin().lock().read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    let (pass, leave) = watch.feed(&buffer[..n]);
                    if !pass.is_empty() && sender.blocking_send(Typed::Bytes(pass)).is_err() {
                        return;
                    }
                    if leave {
                        // Either it is heard or the session is over.
                        let _ = sender.blocking_send(Typed::Leave);
                        return;
                    }
                }
            }
        }
    });
    receiver
}

/// Looks for the escape sequence: the character at the beginning of a line, then a dot. Twice the character is the
/// character.
struct Escape {
    character: Option<u8>,
    line_start: bool,
    pending: bool,
}

impl Escape {
    fn new(character: Option<u8>) -> Self {
        Self { character, line_start: true, pending: false }
    }

    /// What to pass on, and whether to leave.
    fn feed(&mut self, input: &[u8]) -> (Vec<u8>, bool) {
        let Some(character) = self.character else {
            return (input.to_vec(), false);
        };
        let mut pass = Vec::with_capacity(input.len() + 1);
        for byte in input {
            if self.pending {
                self.pending = false;
                match *byte {
                    b'.' => return (pass, true),
                    b if b == character => {}
                    _ => pass.push(character),
                }
            } else if self.line_start && *byte == character {
                (self.pending, self.line_start) = (true, false);
                continue;
            }
            pass.push(*byte);
            self.line_start = matches!(byte, b'\r' | b'\n');
        }
        (pass, false)
    }
}

/// This terminal without line editing, echo and signals; as it was when dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Result<Self> {
        let before = rustix::termios::tcgetattr(std::io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing back.
        let _ = rustix::termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::Escape;

    #[test]
    fn the_escape_sequence_is_found_at_the_beginning_of_a_line_only() {
        for (chunks, passed, leaves) in [
            (&["ls\r", "~."][..], "ls\r", true),
            (&["~", "."], "", true),
            (&["a~."], "a~.", false),
            (&["~~."], "~.", false),
            (&["~x\r~"], "~x\r", false),
            (&["echo ~/x\n"], "echo ~/x\n", false),
        ] {
            let mut escape = Escape::new(Some(b'~'));
            let (mut out, mut left) = (Vec::new(), false);
            for chunk in chunks {
                let (pass, leave) = escape.feed(chunk.as_bytes());
                out.extend(pass);
                left |= leave;
            }
            assert_eq!((String::from_utf8_lossy(&out).as_ref(), left), (passed, leaves), "{chunks:?}");
        }
        assert_eq!(Escape::new(None).feed(b"~.").0, b"~.");
    }
}
