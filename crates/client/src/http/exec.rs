//! `alloc exec`: a command beside a task, over a websocket. The task may live here or in a remote runtime that this
//! node manages.

use std::time::Duration;

use api::client::Gate;
use api::shapes::{ExecHandshake, ExecInput as Input, ExecIo, ExecOutput as Output, ExecResult};
use axum::{
    extract::{
        Path, State, WebSocketUpgrade,
        ws::{CloseFrame, Message, WebSocket},
    },
    http::StatusCode,
    response::Response,
};
use driver_host::{ExecInput, ExecOutput, ExecSession};
use futures::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use hooks::task_config::{action_command, path_view};
use host::{env::PathView, node_env::TaskSpec};
use model::remote::slot_of;
use tokio::sync::mpsc;

use super::answer::{Query, find, text};
use crate::{alloc::AllocView, error::RequestError, handle::ClientHandle};

/// Largest message from the person; clients send a few KiB at a time.
const MAX_MESSAGE: usize = 1 << 20;
/// How long the person's end may take to answer the close.
const FAREWELL: Duration = Duration::from_secs(5);
/// Bytes of a close frame's reason that the protocol has room for.
const MAX_REASON: usize = 123;

/// Whose page may open one is decided where the agent's requests come in: `crates/server-http/src/guard.rs`.
pub(super) async fn exec(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
    gate: Option<axum::Extension<Gate>>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return text(StatusCode::BAD_REQUEST, format!("exec needs a websocket: {rejection}")),
    };
    // What is wrong with the request is said after the upgrade: clients read the reason of the close frame.
    upgrade
        .max_message_size(MAX_MESSAGE)
        .on_upgrade(move |socket| async move { serve(socket, &handle, &alloc, &query, gate.map(|gate| gate.0)).await })
}

async fn serve(mut socket: WebSocket, handle: &ClientHandle, alloc: &str, query: &Query, gate: Option<Gate>) {
    let session = match open(&mut socket, handle, alloc, query, gate).await {
        Ok(session) => session,
        Err(error) => {
            let (mut sink, mut stream) = socket.split();
            return close(&mut sink, &mut stream, code_of(&error), &error.to_string()).await;
        }
    };
    // Dropping either half ends the command.
    let (input, mut output) = session.split();
    let (mut sink, mut stream) = socket.split();
    let reading = async {
        while let Some(message) = stream.next().await {
            match message {
                Ok(Message::Text(text)) => {
                    let message: Input =
                        serde_json::from_str(&text).map_err(|e| format!("not a message of an exec session: {e}"))?;
                    if forward(&input, message).await.is_err() {
                        // The command has ended; the other loop says how.
                        return std::future::pending().await;
                    }
                }
                Ok(Message::Close(_)) | Err(_) => break,
                Ok(_) => {}
            }
        }
        Ok::<(), String>(())
    };
    let writing = async {
        while let Some(item) = output.recv().await {
            match item {
                Ok(item) => {
                    let last = matches!(item, ExecOutput::Exited(_));
                    if send(&mut sink, &message(item)).await.is_err() || last {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    };
    let (code, reason) = tokio::select! {
        read = reading => match read {
            Ok(()) => return,
            Err(why) => (axum::extract::ws::close_code::POLICY, why),
        },
        written = writing => match written {
            Ok(()) => (axum::extract::ws::close_code::NORMAL, String::new()),
            Err(why) => (axum::extract::ws::close_code::ERROR, why),
        },
    };
    drop((input, output));
    close(&mut sink, &mut stream, code, &reason).await;
}

/// Finds the task and starts the command.
async fn open(
    socket: &mut WebSocket,
    handle: &ClientHandle,
    alloc: &str,
    query: &Query,
    gate: Option<Gate>,
) -> Result<ExecSession, RequestError> {
    let mut token = String::new();
    if query.flag("ws_handshake")? {
        let first = match socket.recv().await {
            Some(Ok(Message::Text(text))) => serde_json::from_str::<ExecHandshake>(&text).ok(),
            _ => None,
        };
        match first {
            Some(ExecHandshake { version: 1, auth_token }) => token = auth_token,
            Some(other) => return Err(RequestError::Invalid(format!("unexpected handshake value: {}", other.version))),
            None => return Err(RequestError::Invalid("no handshake has come first".into())),
        }
    }
    if gate.is_some_and(|gate| !gate.admits(token.trim())) {
        return Err(RequestError::Failed("Permission denied".to_owned()));
    }
    if handle.config().disable_remote_exec {
        let why = "Permission denied: commands in tasks are turned off on this node (client.disable_remote_exec)";
        return Err(RequestError::Invalid(why.into()));
    }
    let tty = query.flag("tty")?;
    let (_, loop_handle) = find(handle, alloc)?;
    let view = loop_handle.view.borrow().clone();
    let task = match query.get("task") {
        "" => match view.update.task_states.keys().collect::<Vec<_>>()[..] {
            [only] => only.to_string(),
            _ => return Err(RequestError::Invalid("the allocation has several tasks: name one".into())),
        },
        task if view.update.task_states.contains_key(task) => task.to_owned(),
        task => return Err(RequestError::unknown_task(task)),
    };
    let inner = &handle.inner;
    let command = match query.get("action") {
        "" => serde_json::from_str(query.get("command"))
            .map_err(|e| RequestError::Invalid(format!("the parameter command must be a JSON list of strings: {e}")))?,
        name => action(handle, &view, &task, name)?,
    };
    if command.first().is_none_or(String::is_empty) {
        return Err(RequestError::Invalid("the command is empty".into()));
    }
    if let Some(name) = view.remote.iter().find(|t| ***t == *task) {
        let instance = inner.remote.instance(slot_of(&view.alloc, name)).await;
        let instance = instance.ok_or_else(|| {
            RequestError::Failed(format!("this node does not manage the instance of task {task:?} now"))
        })?;
        if !instance.may_mutate {
            return Err(RequestError::Failed(
                "this node may not act on the instance now: it has no lease or only observes it".into(),
            ));
        }
        return inner.remote.exec(&instance, command, tty).await.map_err(RequestError::Failed);
    }
    let run =
        view.runs.get(task.as_str()).ok_or_else(|| RequestError::Failed(format!("task {task:?} is not running")))?;
    let name = view
        .job
        .group(&view.alloc.task_group)
        .and_then(|g| g.task(&task))
        .map(|t| t.driver.clone())
        .unwrap_or_default();
    let driver = inner
        .drivers
        .now(&name)
        .ok_or_else(|| RequestError::Failed(format!("the plugin of driver {name:?} is not running")))?;
    driver.exec_streaming(run, command, tty).map_err(|e| RequestError::Failed(e.to_string()))
}

/// The command of an action, as the allocation's version of the job has it, with what stands in `${…}`.
fn action(handle: &ClientHandle, view: &AllocView, task: &str, name: &str) -> Result<Vec<String>, RequestError> {
    let group = view.job.group(&view.alloc.task_group);
    let found = group.and_then(|group| Some((group, group.task(task)?)));
    let (group, of) = found.ok_or_else(|| RequestError::unknown_task(task))?;
    let Some(action) = of.actions.iter().find(|action| action.name == name) else {
        let known: Vec<&str> = of.actions.iter().map(|action| action.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(RequestError::Invalid(format!("task {task:?} has no action {name:?}; it has {known}")));
    };
    let env = &handle.inner.env;
    let seen = handle.inner.drivers.now(&of.driver).and_then(|driver| driver.capabilities());
    let seen = seen.map_or(PathView::Image, |capabilities| path_view(&capabilities));
    let spec = TaskSpec { alloc: &view.alloc, job: &view.job, group, task: of };
    Ok(action_command(env, spec, seen, action))
}

/// Passes a message on, in order. Fails when the command has ended.
async fn forward(input: &mpsc::Sender<ExecInput>, message: Input) -> Result<(), mpsc::error::SendError<ExecInput>> {
    let mut nothing = true;
    if let Some(size) = message.tty_size {
        nothing = false;
        input.send(ExecInput::Resize { width: size.width, height: size.height }).await?;
    }
    if let Some(stdin) = message.stdin {
        nothing = false;
        if !stdin.data.is_empty() {
            input.send(ExecInput::Stdin(stdin.data)).await?;
        }
        if stdin.close {
            input.send(ExecInput::CloseStdin).await?;
        }
    }
    if nothing {
        input.send(ExecInput::Heartbeat).await?;
    }
    Ok(())
}

fn message(output: ExecOutput) -> Output {
    match output {
        ExecOutput::Stdout(data) => Output { stdout: Some(ExecIo::bytes(data)), ..Output::default() },
        ExecOutput::StdoutClosed => Output { stdout: Some(ExecIo::end()), ..Output::default() },
        ExecOutput::Stderr(data) => Output { stderr: Some(ExecIo::bytes(data)), ..Output::default() },
        ExecOutput::StderrClosed => Output { stderr: Some(ExecIo::end()), ..Output::default() },
        ExecOutput::Exited(exit) => {
            let exit_code = if exit.signal > 0 { 128 + exit.signal } else { exit.exit_code };
            Output { exited: true, result: Some(ExecResult { exit_code }), ..Output::default() }
        }
    }
}

async fn send(sink: &mut SplitSink<WebSocket, Message>, output: &Output) -> Result<(), axum::Error> {
    let text = serde_json::to_string(output).map_err(axum::Error::new)?;
    sink.send(Message::Text(text.into())).await
}

fn code_of(error: &RequestError) -> u16 {
    match error {
        RequestError::Failed(_) => axum::extract::ws::close_code::ERROR,
        RequestError::NotFound(_) | RequestError::Invalid(_) => axum::extract::ws::close_code::POLICY,
    }
}

/// Says how the session ended, and reads until the other end has heard it: a connection that is dropped with input
/// unread is reset, and what was said last is lost with it.
async fn close(sink: &mut SplitSink<WebSocket, Message>, stream: &mut SplitStream<WebSocket>, code: u16, reason: &str) {
    let frame = CloseFrame { code, reason: shortened(reason).into() };
    // The person may have gone.
    if sink.send(Message::Close(Some(frame))).await.is_err() {
        return;
    }
    let heard = async { while let Some(Ok(_)) = stream.next().await {} };
    let _ = tokio::time::timeout(FAREWELL, heard).await;
}

/// As much of a reason as a close frame holds.
fn shortened(reason: &str) -> String {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_fits_into_a_close_frame() {
        assert_eq!(shortened("short"), "short");
        let long = "é".repeat(100);
        assert_eq!(shortened(&long).len(), 122);
    }
}
