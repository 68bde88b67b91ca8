//! Interactive commands in a task.

use std::convert::Infallible;
use std::sync::Arc;

use driver_proto::driver::exec_task_streaming_request::{Setup, TerminalSize};
use driver_proto::driver::{ExecTaskStreamingIoOperation, ExecTaskStreamingRequest, ExecTaskStreamingResponse};
use driver_proto::remote;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use crate::driver::Driver;
use crate::error::CallError;
use crate::session::Session;
use crate::types::TaskExit;

/// Input of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecInput {
    /// Bytes for standard input.
    Stdin(Vec<u8>),
    /// Standard input ends.
    CloseStdin,
    /// The terminal's new size.
    Resize {
        /// Columns.
        width: u16,
        /// Rows.
        height: u16,
    },
    /// Keeps intermediaries from closing an idle session.
    Heartbeat,
}

/// Output of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecOutput {
    /// Bytes of standard output.
    Stdout(Vec<u8>),
    /// Standard output has ended.
    StdoutClosed,
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// Standard error has ended.
    StderrClosed,
    /// The command has ended; nothing follows.
    Exited(TaskExit),
}

/// Both directions of a session. Dropping it ends the command.
#[derive(Debug)]
pub struct ExecSession {
    /// Input; bounded, so that a command that does not read slows its sender.
    pub input: mpsc::Sender<ExecInput>,
    output: mpsc::Receiver<Result<ExecOutput, CallError>>,
}

impl ExecSession {
    /// The next output; `None` after the end.
    pub async fn next(&mut self) -> Option<Result<ExecOutput, CallError>> {
        self.output.recv().await
    }

    /// Input and output as two halves, for two loops.
    pub fn split(self) -> (mpsc::Sender<ExecInput>, mpsc::Receiver<Result<ExecOutput, CallError>>) {
        (self.input, self.output)
    }
}

impl Driver {
    /// Starts an interactive command in a task.
    ///
    /// # Errors
    /// [`CallError::NotReady`]. All others come as the last output.
    pub fn exec_streaming(&self, id: &str, command: Vec<String>, tty: bool) -> Result<ExecSession, CallError> {
        let session = self.session()?;
        let setup = Setup { task_id: id.to_owned(), command, tty };
        Ok(open_plain(self.clone(), session, setup))
    }
}

fn request(input: ExecInput) -> ExecTaskStreamingRequest {
    let stdin = |data, close| ExecTaskStreamingRequest {
        stdin: Some(ExecTaskStreamingIoOperation { data, close }),
        ..Default::default()
    };
    match input {
        ExecInput::Stdin(data) => stdin(data, false),
        ExecInput::CloseStdin => stdin(Vec::new(), true),
        ExecInput::Resize { width, height } => ExecTaskStreamingRequest {
            tty_size: Some(TerminalSize { height: height.into(), width: width.into() }),
            ..Default::default()
        },
        ExecInput::Heartbeat => ExecTaskStreamingRequest::default(),
    }
}

/// The outputs in one message, in order; the flag marks the last message.
fn outputs(message: ExecTaskStreamingResponse) -> (Vec<ExecOutput>, bool) {
    let mut outputs = Vec::new();
    if let Some(stdout) = message.stdout {
        if !stdout.data.is_empty() {
            outputs.push(ExecOutput::Stdout(stdout.data));
        }
        if stdout.close {
            outputs.push(ExecOutput::StdoutClosed);
        }
    }
    if let Some(stderr) = message.stderr {
        if !stderr.data.is_empty() {
            outputs.push(ExecOutput::Stderr(stderr.data));
        }
        if stderr.close {
            outputs.push(ExecOutput::StderrClosed);
        }
    }
    if message.exited {
        // Without a result its end is unknown.
        let exit = message.result.map_or(TaskExit { exit_code: -2, ..TaskExit::default() }, Into::into);
        outputs.push(ExecOutput::Exited(exit));
    }
    (outputs, message.exited)
}

type Opened = Result<Response<Streaming<ExecTaskStreamingResponse>>, Status>;

/// Runs a session: `first` has been sent into `requests`, whose other end `opening` reads.
fn open<M: Send + 'static>(
    driver: Driver,
    session: Arc<Session>,
    task: String,
    requests: mpsc::Sender<M>,
    wrap: fn(ExecTaskStreamingRequest) -> M,
    opening: impl Future<Output = Opened> + Send + 'static,
) -> ExecSession {
    let (input, mut from_person) = mpsc::channel(16);
    let (out, output) = mpsc::channel(16);
    tokio::spawn(async move {
        let failed = |status: Status| driver.stream_error("ExecTaskStreaming", &task, &session, status);
        let pump = async {
            let mut stream = match opening.await {
                Ok(stream) => stream.into_inner(),
                Err(status) => return Some(failed(status).await),
            };
            loop {
                let (items, last) = match stream.message().await {
                    Ok(Some(message)) => outputs(message),
                    Ok(None) => {
                        return Some(CallError::BadAnswer {
                            driver: driver.shared.driver.clone(),
                            call: "ExecTaskStreaming",
                            missing: "the command's end",
                        });
                    }
                    Err(status) => return Some(failed(status).await),
                };
                for item in items {
                    if out.send(Ok(item)).await.is_err() {
                        return None;
                    }
                }
                if last {
                    return None;
                }
            }
        };
        let forward = async {
            while let Some(input) = from_person.recv().await {
                if requests.send(wrap(request(input))).await.is_err() {
                    break;
                }
            }
            // The person's side may end before the command; the stream to the driver must not.
            std::future::pending::<Infallible>().await
        };
        let error = tokio::select! {
            error = pump => error,
            never = forward => match never {},
            () = session.process.exited().cancelled() => Some(driver.gone("ExecTaskStreaming", &session)),
            () = out.closed() => None,
        };
        if let Some(error) = error {
            let _ = out.send(Err(error)).await;
        }
    });
    ExecSession { input, output }
}

/// A channel that holds its first message.
fn channel_with<M>(first: M) -> (mpsc::Sender<M>, ReceiverStream<M>) {
    let (sender, receiver) = mpsc::channel(16);
    // There is room: the channel is new and its receiver is here.
    let _ = sender.try_send(first);
    (sender, ReceiverStream::new(receiver))
}

/// A session over the plain driver service.
fn open_plain(driver: Driver, session: Arc<Session>, setup: Setup) -> ExecSession {
    let task = setup.task_id.clone();
    let (sender, requests) = channel_with(ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() });
    let mut client = session.driver_client();
    let opening = async move { client.exec_task_streaming(requests).await };
    open(driver, session, task, sender, |frame| frame, opening)
}

/// A session over the remote extension.
pub(crate) fn open_remote(
    driver: Driver,
    session: Arc<Session>,
    handle: remote::Handle,
    epoch: u64,
    command: Vec<String>,
    tty: bool,
) -> ExecSession {
    let setup = Setup { task_id: String::new(), command, tty };
    let frame = Some(ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() });
    let (sender, requests) = channel_with(remote::ExecRequest { handle: Some(handle), epoch, frame });
    let mut client = session.remote_client();
    let opening = async move { client.exec(requests).await };
    let wrap = |frame| remote::ExecRequest { handle: None, epoch: 0, frame: Some(frame) };
    open(driver, session, String::new(), sender, wrap, opening)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_in_order_and_an_end_without_result_is_said() {
        let io = |data: &[u8], close| Some(ExecTaskStreamingIoOperation { data: data.to_vec(), close });
        let message =
            ExecTaskStreamingResponse { stdout: io(b"a", true), stderr: io(b"b", false), exited: true, result: None };
        let (items, last) = outputs(message);
        assert!(last);
        let end = TaskExit { exit_code: -2, ..TaskExit::default() };
        assert_eq!(
            items,
            [
                ExecOutput::Stdout(b"a".to_vec()),
                ExecOutput::StdoutClosed,
                ExecOutput::Stderr(b"b".to_vec()),
                ExecOutput::Exited(end)
            ]
        );
        assert_eq!(outputs(ExecTaskStreamingResponse::default()), (vec![], false));
    }
}
