//! Commands beside a task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_proto::build;
use driver_proto::driver::exec_task_streaming_request::{Setup, TerminalSize};
use driver_proto::driver::*;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::check::table;
use crate::kit::Work;
use crate::lab::Lab;
use crate::outcome::{Outcome, Stop, failed, hold, not_applicable};
use crate::plugin::Plugin;
use crate::procs;
use crate::task::{Task, excerpt};

table! {
    "exec/plain", "H37", "ExecTask answers with the command's output and its result",
        "script checks of services fail; without a result Nomad agents crash", plain;
    "exec/streaming", "H28", "ExecTaskStreaming sends the output, closes it, and ends with the exit code though the \
        client keeps its side open",
        "a command beside a task seems to hang after it has ended, or its exit code is lost", streaming;
    "exec/stdin", "H28", "what the client sends reaches the command, heartbeats do not, and closing the input ends it",
        "nothing can be piped into a command, or it never ends", stdin;
    "exec/tty-resize", "H28", "with a terminal the command learns its size, and each change",
        "editors and shells are drawn for a window of another size", tty_resize;
    "exec/no-setup", "D7", "a session whose first message carries no set-up is refused",
        "a broken client leaves sessions that wait for ever", no_setup;
    "exec/no-program", "D7", "a command that cannot be run is an error or a result, not silence",
        "a typing error leaves people before a dead terminal", no_program;
    "exec/abort", "H28", "when the client goes away, the command ends",
        "each terminal window that is closed leaves a process in the task", abort;
}

/// A task to run commands beside, if the driver can.
async fn beside(lab: &Lab, plugin: &Plugin) -> Outcome<Task> {
    if !lab.profile().capabilities.exec {
        return not_applicable("the driver does not declare exec");
    }
    lab.task(plugin, Work::Runs).await
}

fn shell(lab: &Lab, script: &str) -> Outcome<Vec<String>> {
    match lab.kit()?.script {
        Some(_) => Ok(["/bin/sh", "-c", script].map(str::to_owned).to_vec()),
        None => not_applicable("the suite's tasks of this driver run no shell"),
    }
}

type Opened = Result<tonic::Response<Streaming<ExecTaskStreamingResponse>>, Status>;

struct Session {
    input: mpsc::Sender<ExecTaskStreamingRequest>,
    /// Some servers answer with headers only when there is something to say, so nobody waits for them.
    opening: Option<JoinHandle<Opened>>,
    output: Option<Streaming<ExecTaskStreamingResponse>>,
    seen: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    exit: Option<ExitResult>,
}

impl Session {
    async fn open(plugin: &Plugin, task: &Task, command: Vec<String>, tty: bool) -> Session {
        let setup = Setup { task_id: task.id.clone(), command, tty };
        Session::begin(plugin, ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() }).await
    }

    async fn begin(plugin: &Plugin, first: ExecTaskStreamingRequest) -> Session {
        let (input, messages) = mpsc::channel(8);
        // Fits into the channel.
        let _ = input.send(first).await;
        let mut driver = plugin.driver();
        let opening = tokio::spawn(async move { driver.exec_task_streaming(ReceiverStream::new(messages)).await });
        Session { input, opening: Some(opening), output: None, seen: Seen::default() }
    }

    async fn next(&mut self) -> Result<Option<ExecTaskStreamingResponse>, Status> {
        if let Some(opening) = &mut self.opening {
            let opened = opening.await.map_err(|error| Status::internal(error.to_string()))??;
            self.output = Some(opened.into_inner());
            self.opening = None;
        }
        match &mut self.output {
            Some(output) => output.message().await,
            None => Ok(None),
        }
    }

    async fn send(&self, message: ExecTaskStreamingRequest) {
        // When it has ended, what it has sent tells the rest.
        let _ = self.input.send(message).await;
    }

    async fn write(&self, data: &[u8], close: bool) {
        let stdin = Some(ExecTaskStreamingIoOperation { data: data.to_vec(), close });
        self.send(ExecTaskStreamingRequest { stdin, ..Default::default() }).await;
    }

    async fn resize(&self, height: i32, width: i32) {
        self.send(ExecTaskStreamingRequest { tty_size: Some(TerminalSize { height, width }), ..Default::default() })
            .await;
    }

    /// Reads until it is so; `None` when the stream ended first.
    async fn read_until(&mut self, lab: &Lab, so: impl Fn(&Seen) -> bool) -> Outcome<Option<()>> {
        let limit = lab.pace().patience;
        let begun = Instant::now();
        while !so(&self.seen) {
            let left = limit.saturating_sub(begun.elapsed());
            match tokio::time::timeout(left, self.next()).await {
                Err(_) => {
                    return failed(format!("the session sent nothing more within {limit:?}, so far {}", self.text()));
                }
                Ok(Err(status)) => return Err(ended_badly(&status)),
                Ok(Ok(None)) => return Ok(None),
                Ok(Ok(Some(message))) => {
                    self.seen.stdout.extend(message.stdout.map(|io| io.data).unwrap_or_default());
                    self.seen.stderr.extend(message.stderr.map(|io| io.data).unwrap_or_default());
                    if message.exited {
                        hold!(message.result.is_some(), "the message that tells of the exit carries no result");
                        self.seen.exit = message.result;
                    }
                }
            }
        }
        Ok(Some(()))
    }

    fn text(&self) -> String {
        let text = |bytes: &[u8]| excerpt(&String::from_utf8_lossy(bytes));
        format!("stdout {:?}, stderr {:?}, exit {:?}", text(&self.seen.stdout), text(&self.seen.stderr), self.seen.exit)
    }

    /// Reads to the end of the stream, which the server must bring about.
    async fn finish(&mut self, lab: &Lab) -> Outcome<ExitResult> {
        self.read_until(lab, |_| false).await?;
        match self.seen.exit {
            Some(exit) => Ok(exit),
            None => failed(format!("the session ended without an exit, {}", self.text())),
        }
    }
}

fn ended_badly(status: &Status) -> Stop {
    Stop::Failed(format!("the session ended with {:?}: {}", status.code(), status.message()))
}

async fn plain(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = beside(lab, &plugin).await?;
    let scripted = shell(lab, "echo to-stdout; echo to-stderr >&2; exit 5");
    let command = scripted.clone().unwrap_or_else(|_| vec!["echo".into(), "to-stdout".into()]);
    let timeout = Some(build::duration(Duration::from_secs(10)));
    let request = ExecTaskRequest { task_id: task.id.clone(), command, timeout };
    let answer = lab.call(&plugin, "ExecTask", plugin.driver().exec_task(request)).await?;
    let Some(result) = answer.result else {
        return failed("ExecTask answers without a result");
    };
    let out = String::from_utf8_lossy(&answer.stdout).into_owned();
    hold!(out.contains("to-stdout"), "the command's output is {:?}", excerpt(&out));
    if scripted.is_ok() {
        hold!(result.exit_code == 5, "the command ended with exit code 5, the result says {result:?}");
        // Some deliver both streams as one.
        let both = format!("{out}{}", String::from_utf8_lossy(&answer.stderr));
        hold!(
            both.contains("to-stderr"),
            "what the command printed on standard error is missing in {:?}",
            excerpt(&both)
        );
    }
    lab.destroy(&plugin, &task.id).await
}

async fn streaming(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let command = shell(lab, "echo to-stdout; echo to-stderr >&2; exit 5")?;
    let task = beside(lab, &plugin).await?;
    let mut session = Session::open(&plugin, &task, command, false).await;
    let exit = session.finish(lab).await?;
    hold!(exit.exit_code == 5, "the command ended with exit code 5, the session with {exit:?}");
    hold!(
        session.seen.stdout == b"to-stdout\n" && session.seen.stderr == b"to-stderr\n",
        "the session sent {}",
        session.text()
    );
    lab.destroy(&plugin, &task.id).await
}

async fn stdin(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = beside(lab, &plugin).await?;
    // A driver without a shell in its tasks echoes what it gets, as this command does.
    let mut session = Session::open(&plugin, &task, vec!["/bin/cat".into()], false).await;
    session.send(ExecTaskStreamingRequest::default()).await;
    session.write(b"one\n", false).await;
    let heard = |text: &'static [u8]| move |seen: &Seen| seen.stdout == text;
    if session.read_until(lab, heard(b"one\n")).await?.is_none() {
        return failed(format!("the session ended while its input was open, {}", session.text()));
    }
    session.send(ExecTaskStreamingRequest::default()).await;
    session.write(b"two\n", false).await;
    if session.read_until(lab, heard(b"one\ntwo\n")).await?.is_none() {
        return failed(format!("the session ended while its input was open, {}", session.text()));
    }
    session.write(b"", true).await;
    let exit = session.finish(lab).await?;
    hold!(exit.exit_code == 0, "at the end of its input the command ended with {exit:?}");
    lab.destroy(&plugin, &task.id).await
}

async fn tty_resize(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let command = shell(lab, "while :; do stty size; sleep 0.1; done")?;
    let task = beside(lab, &plugin).await?;
    let mut session = Session::open(&plugin, &task, command, true).await;
    for (height, width) in [(41, 121), (17, 63)] {
        session.resize(height, width).await;
        let wanted = format!("{height} {width}");
        let shown = |seen: &Seen| String::from_utf8_lossy(&seen.stdout).contains(&wanted);
        if session.read_until(lab, shown).await?.is_none() {
            return failed(format!("the session ended before it showed the size {wanted}, {}", session.text()));
        }
    }
    hold!(session.seen.stderr.is_empty(), "with a terminal something came on standard error: {}", session.text());
    drop(session);
    lab.destroy(&plugin, &task.id).await
}

async fn no_setup(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = beside(lab, &plugin).await?;
    let refused = async {
        let mut session = Session::begin(&plugin, ExecTaskStreamingRequest::default()).await;
        session.read_until(lab, |_| false).await
    };
    match refused.await {
        // A session that was never set up must not end as if it had been.
        Ok(_) => return failed("a session without set-up was ended as if all were well"),
        Err(Stop::Failed(seen)) if seen.contains("within") => return failed(seen),
        Err(_) => {}
    }
    lab.destroy(&plugin, &task.id).await
}

async fn no_program(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    shell(lab, "")?;
    let task = beside(lab, &plugin).await?;
    let ran = async {
        let mut session = Session::open(&plugin, &task, vec!["/nonexistent/program".into()], false).await;
        session.finish(lab).await
    };
    match ran.await {
        Ok(exit) => hold!(exit.exit_code != 0, "a program that does not exist ended with {exit:?}"),
        Err(Stop::Failed(seen)) if seen.contains("within") => return failed(seen),
        Err(_) => {}
    }
    lab.still_works(&plugin, "a command that does not exist").await?;
    lab.destroy(&plugin, &task.id).await
}

async fn abort(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    // Found by its words, because it need not have the task's environment.
    let word = format!("{}-abort", lab.mark);
    let command = shell(lab, &format!("echo started; while :; do sleep 1; done; echo {word}"))?;
    let task = beside(lab, &plugin).await?;
    let mut session = Session::open(&plugin, &task, command, false).await;
    if session.read_until(lab, |seen| seen.stdout.starts_with(b"started")).await?.is_none() {
        return failed(format!("the session ended by itself, {}", session.text()));
    }
    let running = || procs::mentioning(&word);
    let seen = running();
    drop(session);
    if seen.is_empty() {
        lab.destroy(&plugin, &task.id).await?;
        return not_applicable("the processes of a command cannot be seen from here");
    }
    let limit = lab.pace().patience.min(Duration::from_secs(10));
    let begun = Instant::now();
    while !running().is_empty() && begun.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left = running();
    if !left.is_empty() {
        let names = procs::names(&left);
        drop(lab.destroy(&plugin, &task.id).await);
        procs::kill(&left);
        return failed(format!("{limit:?} after its client went away the command still runs: {names}"));
    }
    lab.destroy(&plugin, &task.id).await
}
