//! Commands in the container, over the websocket of the API.

use std::sync::PoisonError;
use std::time::Duration;

use driver_sdk::exec::{ExecInput, ExecIo};
use driver_sdk::{RemoteError, TaskExit};
use futures::SinkExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess, TerminalSize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use crate::answer::Answer;
use crate::answer::{Trouble, reason, trouble};
use crate::api::Api;
use crate::marks::CONTAINER;

/// How long what a session has brought is taken on after it was cut.
const REST: Duration = Duration::from_secs(1);

/// How a command ended, as the last frame of its session says.
fn exit(status: Status) -> Answer<TaskExit> {
    if status.status.as_deref() == Some("Success") {
        return Ok(TaskExit::default());
    }
    let message = status.message.clone().unwrap_or_default();
    let causes = status.details.and_then(|d| d.causes).unwrap_or_default();
    let code = causes.into_iter().find(|c| c.reason.as_deref() == Some("ExitCode")).and_then(|c| c.message);
    match code.and_then(|code| code.parse().ok()) {
        Some(code) => Ok(TaskExit::code(code)),
        // A command that the image does not have comes as an error of the runtime in words.
        None if message.contains("executable file not found") || message.contains("no such file or directory") => {
            Err(RemoteError::wrong_request(message))
        }
        None => Err(RemoteError::could_not_ask(format!("the command could not be run: {message}"))),
    }
}

/// How the command of a session ended, or why its session ended before it. `status`: the last frame, if one came.
async fn end(process: AttachedProcess, status: Option<Status>) -> Answer<TaskExit> {
    if let Some(status) = status {
        return exit(status);
    }
    // Without a last frame the client has ended the session, and knows why.
    let why = match process.join().await {
        Ok(()) => "the API server has closed it".to_owned(),
        Err(why) => reason(&why),
    };
    Err(RemoteError::could_not_ask(format!(
        "the session was cut before it was said how the command ended ({why}); the command may run on: look for it in \
            the container before you run it again"
    )))
}

/// The last frame of a session; `None` when it was cut. `pumps` take what it brings, and end after the last frame.
async fn last_frame(status: impl Future<Output = Option<Status>>, pumps: impl Future<Output = ()>) -> Option<Status> {
    let (mut status, mut pumps) = (std::pin::pin!(status), std::pin::pin!(pumps));
    let status = tokio::select! {
        status = &mut status => status,
        () = &mut pumps => return status.await,
    };
    match status {
        Some(_) => pumps.await,
        // The client leaves the streams of a session that was cut open, so there is only what came before.
        None => drop(tokio::time::timeout(REST, pumps).await),
    }
    status
}

/// Opens the session of a command within the time limit of a request.
async fn attach(api: &Api, pod: &str, command: Vec<String>, stdin: bool, tty: bool) -> Answer<AttachedProcess> {
    let pods: kube::Api<Pod> = kube::Api::namespaced(api.client(), &api.namespace);
    // With a terminal both streams are one.
    let params = AttachParams::default()
        .container(CONTAINER)
        .stdin(stdin)
        .stdout(true)
        .stderr(!tty)
        .tty(tty)
        .max_stdin_buf_size(16 << 10)
        .max_stdout_buf_size(16 << 10)
        .max_stderr_buf_size(16 << 10);
    let opened = tokio::time::timeout(api.limit, pods.exec(pod, command, &params)).await.map_err(|_| {
        RemoteError::could_not_ask(format!(
            "the API server has not opened the session of the command within {} s; the command may run all the same",
            api.limit.as_secs().max(1)
        ))
    })?;
    opened.map_err(|why| trouble(&why, Some(pod)).into())
}

async fn pump<F: Future<Output = bool>>(from: Option<impl AsyncRead + Unpin>, to: impl Fn(Vec<u8>) -> F) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if !to(buffer[..n].to_vec()).await {
            return;
        }
    }
}

/// Runs a command with input and output. It may take as long as it likes: the client pings its session every minute,
/// and a server that answers nothing any more ends it.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: the container has no such command; [`RemoteError::CouldNotAsk`]: the session was not
/// opened in time or was cut, and the command may run.
pub(crate) async fn run(api: &Api, pod: &str, command: Vec<String>, tty: bool, io: ExecIo) -> Answer<TaskExit> {
    let mut process = attach(api, pod, command, true, tty).await?;
    let ExecIo { mut input, output } = io;
    let (mut stdin, stdout, stderr) = (process.stdin(), process.stdout(), process.stderr());
    let mut size = process.terminal_size();
    let status = process.take_status();
    let typing = async {
        while let Some(typed) = input.recv().await {
            match typed {
                ExecInput::Stdin(data) => {
                    if let Some(pipe) = &mut stdin
                        && pipe.write_all(&data).await.is_err()
                    {
                        stdin = None;
                    }
                }
                ExecInput::StdinClosed => {
                    if let Some(mut pipe) = stdin.take() {
                        let _ = pipe.shutdown().await;
                    }
                }
                ExecInput::Resize { width, height } => {
                    if let Some(size) = &mut size {
                        let _ = size.send(TerminalSize { width, height }).await;
                    }
                }
            }
        }
    };
    let ended = async {
        let status = async {
            match status {
                Some(status) => status.await,
                None => None,
            }
        };
        let out = pump(stdout, async |data| output.stdout(data).await.is_ok());
        let err = pump(stderr, async |data| output.stderr(data).await.is_ok());
        last_frame(status, async { ((), ()) = tokio::join!(out, err) }).await
    };
    tokio::select! {
        status = ended => end(process, status).await,
        () = typing => Err(RemoteError::could_not_ask("the client has gone")),
    }
}

/// Sends a signal to the first process of the container, within the time limit of a request. The API has no call for
/// it, so the image needs `kill`.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: the image has no `kill`, or it does not know the signal;
/// [`RemoteError::CouldNotAsk`]: the signal may have been sent or not.
pub(crate) async fn signal(api: &Api, pod: &str, name: &str) -> Answer<()> {
    let sent = tokio::time::timeout(api.limit, kill(api, pod, name)).await;
    sent.unwrap_or_else(|_| {
        Err(RemoteError::could_not_ask(format!(
            "`kill -{name} 1` has not ended in the container within {} s, so the signal may have been sent or not",
            api.limit.as_secs().max(1)
        )))
    })
}

async fn kill(api: &Api, pod: &str, name: &str) -> Answer<()> {
    let command = vec!["kill".to_owned(), format!("-{name}"), "1".to_owned()];
    let mut process = attach(api, pod, command, false, false).await?;
    let (out, err) = (process.stdout(), process.stderr());
    let status = process.take_status();
    let said = std::sync::Mutex::new(String::new());
    let keep = async |data: Vec<u8>| {
        said.lock().unwrap_or_else(PoisonError::into_inner).push_str(&String::from_utf8_lossy(&data));
        true
    };
    let status = async {
        match status {
            Some(status) => status.await,
            None => None,
        }
    };
    let pumps = async { ((), ()) = tokio::join!(pump(out, keep), pump(err, keep)) };
    let status = last_frame(status, pumps).await;
    match end(process, status).await {
        Ok(exit) if exit.successful() => Ok(()),
        Ok(exit) => Err(RemoteError::wrong_request(format!(
            "`kill -{name} 1` ended with code {} in the container: {}",
            exit.exit_code,
            said.lock().unwrap_or_else(PoisonError::into_inner).trim()
        ))),
        Err(RemoteError::WrongRequest(why)) => Err(RemoteError::wrong_request(format!(
            "Kubernetes has no signals, and the image has no `kill` to send one with: {why}"
        ))),
        Err(other) => Err(other),
    }
}

/// Whether a log or a session cannot be had because the container has not begun.
pub(crate) fn not_begun(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Wrong(why) if why.contains("waiting to start") || why.contains("is not available")
        || why.contains("does not have a host assigned") || why.contains("ContainerCreating"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(status: serde_json::Value) -> Answer<TaskExit> {
        exit(serde_json::from_value(status).expect("a status"))
    }

    #[test]
    fn the_last_frame_says_how_a_command_ended() {
        assert_eq!(of(json!({"status": "Success"})), Ok(TaskExit::default()));
        let failed = json!({"status": "Failure", "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": "5"}]}});
        assert_eq!(of(failed).map(|exit| exit.exit_code), Ok(5));
        let none = json!({"status": "Failure", "reason": "InternalError",
            "message": "exec: \"x\": executable file not found in $PATH"});
        assert!(matches!(of(none), Err(RemoteError::WrongRequest(_))));
    }
}
