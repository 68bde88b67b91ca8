//! Input and output of an interactive command.

use driver_proto::driver::{ExecTaskStreamingIoOperation, ExecTaskStreamingResponse};
use tokio::sync::mpsc;
use tonic::Status;

/// Input of an interactive session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecInput {
    /// Bytes for standard input.
    Stdin(Vec<u8>),
    /// Standard input ends.
    StdinClosed,
    /// The terminal's new size.
    Resize {
        /// Columns.
        width: u16,
        /// Rows.
        height: u16,
    },
}

/// Both directions of one session.
#[derive(Debug)]
pub struct ExecIo {
    /// Input of the client. It ends when the client is gone: end the command then.
    pub input: mpsc::Receiver<ExecInput>,
    /// Takes the command's output.
    pub output: ExecOutputSink,
}

/// Bytes kept of each stream of a collected command: the end of its output, where a check gives its reason.
const KEPT: usize = 64 * 1024;

/// Runs a session without a person: sends no input and keeps the output. Returns the result, and of standard output and
/// standard error the last 64 KiB each.
///
/// Cancel safe as far as `run` is; what was kept is lost.
pub async fn collect<T, F: Future<Output = T>>(run: impl FnOnce(ExecIo) -> F) -> (T, Vec<u8>, Vec<u8>) {
    let (typing, input) = mpsc::channel(1);
    let (sender, mut written) = mpsc::channel(16);
    // A new channel has room for one. The sender stays: its end would mean that the client has gone.
    let _ = typing.try_send(ExecInput::StdinClosed);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut keep = |message: Result<ExecTaskStreamingResponse, Status>| {
        let message = message.unwrap_or_default();
        for (kept, part) in [(&mut stdout, message.stdout), (&mut stderr, message.stderr)] {
            kept.extend(part.unwrap_or_default().data);
            kept.drain(..kept.len().saturating_sub(KEPT));
        }
    };
    let mut session = std::pin::pin!(run(ExecIo { input, output: ExecOutputSink { sender } }));
    let result = loop {
        tokio::select! {
            biased;
            Some(message) = written.recv() => keep(message),
            result = &mut session => break result,
        }
    };
    while let Ok(message) = written.try_recv() {
        keep(message);
    }
    (result, stdout, stderr)
}

/// Sends output to the client; waits while the client does not read.
#[derive(Debug, Clone)]
pub struct ExecOutputSink {
    pub(crate) sender: mpsc::Sender<Result<ExecTaskStreamingResponse, Status>>,
}

/// The client is gone; nothing more can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the exec client has gone")]
pub struct ClientGone;

impl ExecOutputSink {
    async fn send(&self, message: ExecTaskStreamingResponse) -> Result<(), ClientGone> {
        self.sender.send(Ok(message)).await.map_err(|_| ClientGone)
    }

    /// Bytes of standard output.
    ///
    /// # Errors
    /// [`ClientGone`]; the program may be ended.
    pub async fn stdout(&self, data: Vec<u8>) -> Result<(), ClientGone> {
        let stdout = Some(ExecTaskStreamingIoOperation { data, close: false });
        self.send(ExecTaskStreamingResponse { stdout, ..Default::default() }).await
    }

    /// Bytes of standard error.
    ///
    /// # Errors
    /// [`ClientGone`]; the program may be ended.
    pub async fn stderr(&self, data: Vec<u8>) -> Result<(), ClientGone> {
        let stderr = Some(ExecTaskStreamingIoOperation { data, close: false });
        self.send(ExecTaskStreamingResponse { stderr, ..Default::default() }).await
    }

    /// Standard output has ended.
    ///
    /// # Errors
    /// [`ClientGone`]; the program may be ended.
    pub async fn stdout_closed(&self) -> Result<(), ClientGone> {
        let stdout = Some(ExecTaskStreamingIoOperation { data: Vec::new(), close: true });
        self.send(ExecTaskStreamingResponse { stdout, ..Default::default() }).await
    }

    /// Standard error has ended.
    ///
    /// # Errors
    /// [`ClientGone`]; the program may be ended.
    pub async fn stderr_closed(&self) -> Result<(), ClientGone> {
        let stderr = Some(ExecTaskStreamingIoOperation { data: Vec::new(), close: true });
        self.send(ExecTaskStreamingResponse { stderr, ..Default::default() }).await
    }
}
