//! `drover var lock`: holds the lock of a variable while a command runs.

use std::{
    fs::File,
    io::Write as _,
    os::{fd::AsRawFd as _, unix::process::ExitStatusExt as _},
    process::{ExitCode, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    call,
    client::ClientError,
    shapes::{LockView, VariableView},
};
use http::StatusCode;
use model::GoDuration;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, getpid, kill_process, set_child_subreaper},
};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use super::{
    ApiArgs,
    var_lock_guard::{GRACE, code, end_all, message, now},
    var_spec::{Given, Language},
};
use crate::{conn::Conn, output};

/// How soon a renewal that the servers could not answer is tried again, at the latest.
const AGAIN: Duration = Duration::from_secs(1);

/// The least that `-backoff` may say.
const LEAST_BACKOFF: Duration = Duration::from_millis(100);

/// How much longer than the command's own time its guard may take to end it.
const MARGIN: Duration = Duration::from_secs(2);

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Time to live of the lock, which the command renews; 10s to 24h
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    ttl: GoDuration,
    /// How long nobody gets the lock after it was lost
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    delay: GoDuration,
    /// How often a renewal that the servers could not answer is tried again; never for longer than the time to live
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    max_retry: u32,
    /// Wait so long before somebody else's lock is tried again
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    backoff: GoDuration,
    /// Fail instead of waiting when somebody else holds the lock
    #[arg(long)]
    early_return: bool,
    /// Run the command in a shell, $SHELL or /bin/sh
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    shell: bool,
    /// Language of a file whose name does not end in .hcl or .json
    #[arg(long = "in", value_name = "LANGUAGE")]
    language: Option<Language>,
    /// Tell on standard error what is done
    #[arg(long)]
    verbose: bool,
    /// Path of the variable, or @FILE that describes it
    path: String,
    /// The command, after @FILE if the path comes first
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// What follows from a renewal.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The lock is held for another time to live.
    Held,
    /// Nobody knows; ask again.
    Retry,
    Lost(String),
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = super::var::one_namespace(&args.api)?;
    let verbose = |text: &str| {
        if args.verbose {
            output::note(text);
        }
    };
    let (operands, command) = parted(&args.path, &args.command);
    ensure!(
        args.backoff.to_std() >= LEAST_BACKOFF,
        "-backoff must be at least {LEAST_BACKOFF:?}: each try asks the servers"
    );
    ensure!(!command.is_empty(), "no command to run while the lock is held");
    let mut variable = described(operands, args.language, args.api.namespace.as_deref())?;
    variable.lock = Some(LockView { ttl: args.ttl, lock_delay: args.delay, ..LockView::default() });

    let signals = |kind| signal(kind).context("could not wait for signals");
    let mut interrupt = signals(SignalKind::interrupt())?;
    let mut terminate = signals(SignalKind::terminate())?;
    let mut hang_up = signals(SignalKind::hangup())?;
    let (held, mut since) = loop {
        let asked = now();
        match acquire(&conn, &variable).await? {
            Some(id) => break (id, asked),
            None if args.early_return => bail!("somebody else holds the lock of {:?}", variable.path),
            None => verbose(&format!("somebody else holds the lock of {:?}; trying again", variable.path)),
        }
        tokio::select! {
            () = tokio::time::sleep(args.backoff.to_std()) => {}
            _ = interrupt.recv() => bail!("interrupted; the lock was not acquired"),
            _ = terminate.recv() => bail!("terminated; the lock was not acquired"),
        }
    };
    verbose(&format!("the lock of {:?} is held", variable.path));
    let lock = VariableView {
        namespace: variable.namespace.clone(),
        path: variable.path.clone(),
        lock: Some(LockView { id: held, ..LockView::default() }),
        ..VariableView::default()
    };
    let (mut child, mut guard) = match started(command, args.shell) {
        Ok(started) => started,
        Err(error) => {
            release(&conn, &lock).await;
            return Err(error);
        }
    };

    let ttl = args.ttl.to_std();
    hold(&mut guard, since + ttl);
    let (mut failures, mut wait) = (0, ttl / 2);
    let (status, lost) = loop {
        tokio::select! {
            status = child.wait() => {
                let status = status?;
                if status.signal().is_some() {
                    // Somebody has killed the guard.
                    end_all(GRACE).await;
                }
                let late = now().saturating_sub(since) >= ttl;
                break (status, late.then(|| "it could not be renewed in time".to_owned()));
            }
            // The terminal has told the command as well; its end is waited for.
            _ = interrupt.recv() => {}
            _ = terminate.recv() => tell(&child, Signal::TERM),
            _ = hang_up.recv() => tell(&child, Signal::HUP),
            () = tokio::time::sleep(wait) => {
                let asked = now();
                let patience = ttl.saturating_sub(now().saturating_sub(since));
                let answer = tokio::time::timeout(patience, renew(&conn, &lock)).await;
                let said = answer.unwrap_or_else(|_| Next::Lost("it could not be renewed in time".to_owned()));
                match next(said, failures, args.max_retry, now().saturating_sub(since), ttl) {
                    Next::Held => {
                        (since, failures, wait) = (asked, 0, ttl / 2);
                        hold(&mut guard, since + ttl);
                    }
                    Next::Retry => {
                        failures += 1;
                        wait = AGAIN.min(ttl / 10);
                        verbose(&format!("could not renew the lock, try {failures}"));
                    }
                    Next::Lost(why) => break (ended(&mut child, &mut guard).await?, Some(why)),
                }
            }
        }
    };
    match lost {
        Some(why) => bail!("the lock of {:?} is lost: {why}; the command was stopped", lock.path),
        None => {
            release(&conn, &lock).await;
            Ok(code(status))
        }
    }
}

/// Operands that say which variable it is, and the command.
fn parted<'a>(path: &'a String, rest: &'a [String]) -> (Vec<&'a String>, &'a [String]) {
    match rest {
        [file, command @ ..] if file.starts_with('@') && !path.starts_with('@') => (vec![path, file], command),
        _ => (vec![path], rest),
    }
}

/// The variable that is locked. Without a description it keeps its items, and has none when it is made.
fn described(operands: Vec<&String>, language: Option<Language>, namespace: Option<&str>) -> Result<VariableView> {
    match operands.as_slice() {
        [path] if !path.starts_with('@') => Ok(VariableView {
            namespace: namespace.unwrap_or_default().into(),
            path: super::var_spec::clean(path),
            ..VariableView::default()
        }),
        operands => {
            let operands: Vec<String> = operands.iter().map(|operand| (*operand).clone()).collect();
            Ok(Given::read(&operands, language)?.variable(namespace)?.0)
        }
    }
}

/// The id of the lock; None while somebody else holds it.
async fn acquire(conn: &Conn, variable: &VariableView) -> Result<Option<String>> {
    let call = call::variable_put(&variable.path, variable).with("lock-acquire", "");
    match conn.ask(call).await {
        Ok(held) => {
            let lock = held.lock.context("the agent has acquired the lock and does not tell its id")?;
            Ok(Some(lock.id))
        }
        Err(error) if status(&error) == Some(StatusCode::CONFLICT) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn renew(conn: &Conn, lock: &VariableView) -> Next {
    match conn.tell(call::variable_put(&lock.path, lock).with("lock-renew", "")).await {
        Ok(()) => Next::Held,
        // Servers that are in trouble say nothing about the lock.
        Err(error) if status(&error).is_none_or(|status| status.is_server_error() || status.as_u16() == 429) => {
            Next::Retry
        }
        Err(error) => Next::Lost(crate::failure::text(&error)),
    }
}

/// What follows, with so many failures before and so long after the last success. The servers give the lock to somebody
/// else no earlier than one time to live after that.
fn next(said: Next, failures: u32, most: u32, since: Duration, ttl: Duration) -> Next {
    match said {
        Next::Retry if failures >= most => Next::Lost(format!("{} renewals failed", failures + 1)),
        Next::Retry if since >= ttl => Next::Lost("it could not be renewed in time".to_owned()),
        said => said,
    }
}

/// Gives the lock back. It ends by itself as well, so a failure is only told.
async fn release(conn: &Conn, lock: &VariableView) {
    if let Err(error) = conn.tell(call::variable_put(&lock.path, lock).with("lock-release", "")).await {
        output::note(&format!("could not release the lock of {:?}; it ends by itself", lock.path));
        crate::failure::tell(&error);
    }
}

fn status(error: &anyhow::Error) -> Option<StatusCode> {
    error.downcast_ref::<ClientError>().and_then(ClientError::status)
}

/// The command under its guard, and the pipe that tells the guard until when the lock is held.
fn started(command: &[String], shell: bool) -> Result<(Child, File)> {
    let words = match (shell, command) {
        (true, words) => {
            let shell = std::env::var("SHELL").ok().filter(|shell| !shell.is_empty());
            vec![shell.unwrap_or_else(|| "/bin/sh".to_owned()), "-c".to_owned(), words.join(" ")]
        }
        (false, words) => words.to_vec(),
    };
    // If somebody kills the guard, what it guards is found below this process.
    set_child_subreaper(Some(getpid())).context("could not become the parent of orphans")?;
    let (guarded, told) = pipe_with(PipeFlags::CLOEXEC).context("could not make a pipe")?;
    fcntl_setfd(&guarded, FdFlags::empty()).context("could not hand a pipe on")?;
    let mut guard = Command::new("/proc/self/exe");
    guard.args(["var", "lock-guard", &guarded.as_raw_fd().to_string(), "--"]).args(words);
    let guard = guard.stdin(Stdio::inherit()).kill_on_drop(true).spawn().context("could not start the guard")?;
    Ok((guard, File::from(told)))
}

fn tell(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        // One that has ended needs no signal.
        let _ = kill_process(pid, signal);
    }
}

/// Tells the guard until when the lock is held; zero = it is lost.
fn hold(guard: &mut File, until: Duration) {
    // A guard that is gone has ended its command, or is missed where its end is waited for.
    let _ = guard.write_all(&message(until));
}

/// Stops the command.
async fn ended(child: &mut Child, guard: &mut File) -> Result<ExitStatus> {
    hold(guard, Duration::ZERO);
    if let Ok(status) = tokio::time::timeout(GRACE + MARGIN, child.wait()).await {
        return Ok(status?);
    }
    child.kill().await?;
    let status = child.wait().await?;
    end_all(Duration::ZERO).await;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_lost_after_too_many_failures_or_too_long() {
        let ttl = Duration::from_secs(10);
        let at = |said, failures, seconds| next(said, failures, 2, Duration::from_secs(seconds), ttl);
        assert_eq!(at(Next::Retry, 1, 9), Next::Retry);
        assert!(matches!(at(Next::Retry, 2, 1), Next::Lost(why) if why == "3 renewals failed"));
        assert!(matches!(at(Next::Retry, 0, 10), Next::Lost(_)));
        assert_eq!(at(Next::Held, 2, 10), Next::Held);
    }

    #[test]
    fn the_command_begins_after_the_description() {
        let text = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        for (path, rest, operands, command) in [
            ("a", &["echo", "@x"][..], &["a"][..], &["echo", "@x"][..]),
            ("a", &["@spec.hcl", "echo", "-n"], &["a", "@spec.hcl"], &["echo", "-n"]),
            ("@spec.hcl", &["@echo"], &["@spec.hcl"], &["@echo"]),
        ] {
            let (path, rest) = (path.to_owned(), text(rest));
            let (got, ran) = parted(&path, &rest);
            assert_eq!((got.into_iter().cloned().collect::<Vec<_>>(), ran), (text(operands), &*text(command)));
        }
    }
}
