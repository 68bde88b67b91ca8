//! Commands beside a task: interactive ones and those whose output is collected.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use driver_sdk::exec::{ExecInput, ExecIo, ExecOutputSink};
use driver_sdk::{Error, ExecOutput, TaskExit};
use executor_client::{ExecExit, ExecSession, ExecSpec, Executor, SessionInput, SessionOutput};

/// How much is passed on at a time.
const CHUNK: usize = 16 * 1024;
/// How much of a collected command's output is kept: its end, where a check says what is wrong.
const KEPT: usize = 64 * 1024;
/// After the program's end: how long output may take that its background processes hold open.
const DRAIN: Duration = Duration::from_millis(100);

fn spec(command: Vec<String>, tty: bool) -> Result<ExecSpec, Error> {
    let mut words = command.into_iter();
    let command =
        words.next().filter(|c| !c.is_empty()).ok_or_else(|| Error::invalid("the command to run is empty"))?;
    Ok(ExecSpec { command: command.into(), args: words.map(Into::into).collect(), tty })
}

fn failed(error: executor_client::Error) -> Error {
    match error {
        executor_client::Error::NotRunning { .. } => Error::failed("the task is not running"),
        e @ executor_client::Error::Outdated { .. } => Error::unsupported(e.to_string()),
        e => Error::failed(e),
    }
}

fn task_exit(exit: ExecExit) -> TaskExit {
    TaskExit { exit_code: exit.exit_code, signal: exit.signal, ..TaskExit::default() }
}

/// Runs a command with its streams at a client. Dropping the future ends the command.
pub(crate) async fn stream(
    executor: &Executor,
    command: Vec<String>,
    tty: bool,
    io: ExecIo,
) -> Result<TaskExit, Error> {
    let ExecSession { stdin, stdout, stderr, mut end } = executor.exec(spec(command, tty)?).await.map_err(failed)?;
    let ExecIo { input, output } = io;
    let feed = feed(stdin, input);
    let copies = async { tokio::join!(copy(stdout, &output, false), copy(stderr, &output, true)) };
    let (mut feed, mut copies) = (std::pin::pin!(feed), std::pin::pin!(copies));
    let (mut fed, mut copied) = (false, false);
    let exit = loop {
        tokio::select! {
            exit = end.wait() => break exit.map_err(failed)?,
            went = &mut feed, if !fed => {
                fed = true;
                went?;
            }
            _ = &mut copies, if !copied => copied = true,
        }
    };
    if !copied {
        let _ = tokio::time::timeout(DRAIN, copies).await;
    }
    Ok(task_exit(exit))
}

/// Passes on what the client types. An error when it has gone, which ends the session.
async fn feed(mut stdin: SessionInput, mut input: tokio::sync::mpsc::Receiver<ExecInput>) -> Result<(), Error> {
    while let Some(input) = input.recv().await {
        let done = match input {
            ExecInput::Stdin(data) => stdin.write(&data).await,
            ExecInput::StdinClosed => stdin.close().await,
            ExecInput::Resize { width, height } => stdin.resize(width, height),
        };
        done.map_err(|e| Error::failed(format!("pass input on to the command: {e}")))?;
    }
    // The client has ended its side; one that has gone altogether drops the call.
    let _ = stdin.close().await;
    Ok(())
}

async fn copy(mut from: SessionOutput, to: &ExecOutputSink, is_stderr: bool) {
    while let Ok(data) = from.read(CHUNK).await {
        let end = data.is_empty();
        let sent = match (is_stderr, end) {
            (false, false) => to.stdout(data).await,
            (true, false) => to.stderr(data).await,
            (false, true) => to.stdout_closed().await,
            (true, true) => to.stderr_closed().await,
        };
        if end || sent.is_err() {
            return;
        }
    }
}

/// Runs a command and collects what it writes, both streams as one: hosts of the protocol show standard output alone.
///
/// After `timeout` it is killed, which is an error.
pub(crate) async fn collect(executor: &Executor, command: Vec<String>, timeout: Duration) -> Result<ExecOutput, Error> {
    let session = executor.exec(spec(command, false)?).await.map_err(failed)?;
    let ExecSession { mut stdin, mut stdout, mut stderr, mut end } = session;
    let _ = stdin.close().await;
    let kept = Mutex::new(Vec::new());
    let run = async {
        let mut copies = std::pin::pin!(async { tokio::join!(keep(&mut stdout, &kept), keep(&mut stderr, &kept)) });
        let mut copied = false;
        let exit = loop {
            tokio::select! {
                exit = end.wait() => break exit,
                _ = &mut copies, if !copied => copied = true,
            }
        };
        if !copied {
            let _ = tokio::time::timeout(DRAIN, copies).await;
        }
        exit
    };
    let exit = tokio::time::timeout(timeout, run).await;
    let exit = exit.map_err(|_| Error::failed(format!("the command did not end within {timeout:?} and was killed")))?;
    let stdout = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(ExecOutput { exit: task_exit(exit.map_err(failed)?), stdout, stderr: Vec::new() })
}

/// Reads to the end and keeps the last bytes.
async fn keep(from: &mut SessionOutput, kept: &Mutex<Vec<u8>>) {
    while let Ok(data) = from.read(CHUNK).await {
        if data.is_empty() {
            return;
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(data);
        let beyond = kept.len().saturating_sub(KEPT);
        kept.drain(..beyond);
    }
}
