//! A command beside an instance: between the person at the one end and the host at the other.

use driver_sdk::exec::{ExecInput, ExecIo};
use driver_sdk::{RemoteError, TaskExit};
use executor_client::host::host_request::Op;
use executor_client::host::{HostExec, HostInput, HostOutput, host_reply::Body};

use crate::pool::Target;
use crate::wire;

/// Runs a command. Dropping the future ends it.
pub(crate) async fn run(
    target: &Target,
    epoch: u64,
    command: Vec<String>,
    tty: bool,
    io: ExecIo,
) -> Result<TaskExit, RemoteError> {
    let channel = target.channel().await?;
    let ExecIo { mut input, output } = io;
    let mut call = channel.call(Op::Exec(HostExec { key: target.key.clone(), epoch, command, tty }));
    // Typed faster than it is read over there: the person waits, the output does not.
    let mut typed: Vec<u8> = Vec::new();
    let mut typing = true;
    loop {
        typed.drain(..call.send_some(&typed));
        tokio::select! {
            next = call.step() => match next.map_err(|e| wire::failed(&target.host, epoch, e))? {
                None => {}
                Some(Body::Output(HostOutput { stderr, data })) => {
                    let length = data.len();
                    let sent = match (stderr, length) {
                        (false, 0) => output.stdout_closed().await,
                        (true, 0) => output.stderr_closed().await,
                        (false, _) => output.stdout(data).await,
                        (true, _) => output.stderr(data).await,
                    };
                    if sent.is_err() {
                        return Err(RemoteError::could_not_ask("the client has gone, the command was ended"));
                    }
                    call.taken(length);
                }
                Some(Body::Exited(exit)) => {
                    return Ok(TaskExit { exit_code: exit.exit_code, signal: exit.signal, ..TaskExit::default() });
                }
                Some(_) => return Err(wire::unexpected(&target.host)),
            },
            more = input.recv(), if typing && typed.is_empty() => match more {
                Some(ExecInput::Stdin(data)) => typed = data,
                Some(ExecInput::Resize { width, height }) => {
                    call.input(HostInput { columns: width.into(), rows: height.into(), ..HostInput::default() });
                }
                // The client has ended its side; one that has gone altogether drops this future.
                Some(ExecInput::StdinClosed) | None => {
                    typing = false;
                    call.input(HostInput { end: true, ..HostInput::default() });
                }
            },
        }
    }
}
