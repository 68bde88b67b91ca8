//! Commands beside a container's own.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use driver_sdk::exec::{ExecInput, ExecIo};
use driver_sdk::{ExecOutput, TaskExit};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::create::Place;
use crate::engine::types::{Created, ExecState};
use crate::engine::{Demux, Engine, EngineError, Stream, encode};

/// Output of a command that is taken as a whole.
const OUTPUT_MAX: usize = 16 << 20;
/// The engine tells the exit code a moment after the output has ended.
const CODE_WITHIN: Duration = Duration::from_secs(10);

/// How long a command whose client has gone is looked at until it has ended, and the first pause between two looks.
const ENDED_WITHIN: Duration = Duration::from_secs(20);
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// A command that is under way; ended when dropped before it has ended by itself.
struct Running {
    engine: Arc<Engine>,
    container: String,
    id: String,
    place: Place,
    /// A variable of the command and of what it starts, where it lives on another machine.
    mark: String,
    over: bool,
}

/// Ends what carries a mark, from within the container; twice, for what was being started.
const END_MARKED: &str = "for round in 1 2; do for d in /proc/[0-9]*; do \
    if grep -q \"$1\" \"$d/environ\" 2>/dev/null; then kill -9 \"${d#/proc/}\" 2>/dev/null; fi; done; done";

impl Drop for Running {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // Engines have no call for it. On this machine its process can be ended; elsewhere a command that ends it is
        // run, where the image has the programs for it. Without them it has lost its input and its terminal with the
        // connection.
        let (engine, container, id, mark) =
            (self.engine.clone(), self.container.clone(), self.id.clone(), self.mark.clone());
        let place = self.place;
        tokio::spawn(async move {
            let begun = tokio::time::Instant::now();
            let mut pause = FIRST_LOOK;
            // The engine may only be starting it: the client can be gone before the engine says that it runs.
            while begun.elapsed() < ENDED_WITHIN {
                match state(&engine, &id).await {
                    Ok(state) if state.running => end(&engine, &container, state.pid, place, &mark).await,
                    Ok(state) if state.exit_code.is_some() => return,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(container, %error, "a command whose client has gone cannot be looked at")
                    }
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            tracing::debug!(container, "a command whose client has gone was not seen to end");
        });
    }
}

async fn end(engine: &Engine, container: &str, pid: i64, place: Place, mark: &str) {
    if place == Place::Remote {
        if let Err(error) = end_marked(engine, container, mark).await {
            tracing::debug!(container, %error, "a command whose client has gone cannot be ended");
        }
    } else if belongs(pid, container)
        && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
    {
        let _ = kill_process(pid, Signal::KILL);
    }
}

async fn end_marked(engine: &Engine, container: &str, mark: &str) -> Result<(), EngineError> {
    let body = json!({"Cmd": ["/bin/sh", "-c", END_MARKED, "sh", mark]});
    let doing = "end a command whose client has gone";
    let made: Created = engine.post(doing, &format!("/containers/{}/exec", encode(container)), &body).await?;
    engine.tell(doing, &format!("/exec/{}/start", encode(&made.id)), &json!({"Detach": true})).await
}

/// Different in every call, on every node.
fn fresh_mark() -> String {
    // The standard library's hashers are seeded by the system, and differ from each other.
    format!(
        "DROVER_EXEC={:016x}{:016x}",
        RandomState::new().hash_one(0),
        RandomState::new().hash_one(std::process::id())
    )
}

/// Whether this machine's process of that number is one of the container's: an engine may count the processes of
/// another machine.
fn belongs(pid: i64, container: &str) -> bool {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    pid > 1 && container.len() >= 12 && cgroups.contains(container)
}

async fn state(engine: &Engine, id: &str) -> Result<ExecState, EngineError> {
    engine.get("look at the command", &format!("/exec/{}/json", encode(id))).await
}

async fn create(
    engine: &Arc<Engine>,
    container: &str,
    command: &[String],
    tty: bool,
    stdin: bool,
    place: Place,
) -> Result<Running, EngineError> {
    let mut body =
        json!({"AttachStdin": stdin, "AttachStdout": true, "AttachStderr": true, "Tty": tty, "Cmd": command});
    let mark = fresh_mark();
    if place == Place::Remote {
        body["Env"] = json!([mark]);
    }
    let made: Created =
        engine.post("make the command", &format!("/containers/{}/exec", encode(container)), &body).await?;
    Ok(Running { engine: engine.clone(), container: container.to_owned(), id: made.id, place, mark, over: false })
}

impl Running {
    async fn pipe(
        &self,
        tty: bool,
    ) -> Result<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + use<>, EngineError> {
        let body = json!({"Detach": false, "Tty": tty});
        self.engine.hijack("start the command", &format!("/exec/{}/start", encode(&self.id)), &body).await
    }

    async fn exit(mut self) -> Result<TaskExit, EngineError> {
        let begun = tokio::time::Instant::now();
        loop {
            let state = state(&self.engine, &self.id).await?;
            if !state.running {
                self.over = true;
                let code = state.exit_code.and_then(|c| i32::try_from(c).ok());
                return Ok(match code {
                    Some(code) => TaskExit::code(code),
                    None => TaskExit {
                        exit_code: -1,
                        error: Some("the engine does not know how the command ended".into()),
                        ..TaskExit::default()
                    },
                });
            }
            if begun.elapsed() > CODE_WITHIN {
                // It has closed its output and goes on.
                return Ok(TaskExit {
                    exit_code: -1,
                    error: Some("the command goes on without output and was ended".into()),
                    ..TaskExit::default()
                });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Runs a command to its end and takes its output.
pub(crate) async fn collect(
    engine: &Arc<Engine>,
    container: &str,
    command: &[String],
    place: Place,
) -> Result<ExecOutput, EngineError> {
    let running = create(engine, container, command, false, false, place).await?;
    let mut pipe = running.pipe(false).await?;
    let (mut demux, mut output) = (Demux::default(), ExecOutput::default());
    let mut buffer = vec![0; 32 << 10];
    loop {
        let read = pipe.read(&mut buffer).await.map_err(|e| engine.away("read the command's output", e))?;
        if read == 0 {
            break;
        }
        demux.feed(&buffer[..read]);
        while let Some(piece) = demux.next().map_err(|e| engine.garbage("read the command's output", e))? {
            let out = if piece.stream == Stream::Stdout { &mut output.stdout } else { &mut output.stderr };
            let room = OUTPUT_MAX.saturating_sub(out.len());
            out.extend_from_slice(&piece.data[..piece.data.len().min(room)]);
        }
    }
    output.exit = running.exit().await?;
    Ok(output)
}

/// Runs an interactive command until it ends or the client goes.
pub(crate) async fn stream(
    engine: &Arc<Engine>,
    container: &str,
    command: &[String],
    tty: bool,
    io: ExecIo,
    place: Place,
) -> Result<TaskExit, EngineError> {
    let ExecIo { mut input, output } = io;
    let running = create(engine, container, command, tty, true, place).await?;
    let pipe = running.pipe(tty).await?;
    let (mut from, mut to) = tokio::io::split(pipe);
    let doing = "carry the command's input and output";

    let reading = async {
        let mut demux = Demux::default();
        let mut buffer = vec![0; 32 << 10];
        loop {
            let read = match from.read(&mut buffer).await {
                Ok(0) => break,
                Ok(read) => read,
                Err(e) => return Err(engine.away(doing, e)),
            };
            // An error means that the client has gone; this call is dropped then.
            if tty {
                let _ = output.stdout(buffer[..read].to_vec()).await;
                continue;
            }
            demux.feed(&buffer[..read]);
            while let Some(piece) = demux.next().map_err(|e| engine.garbage(doing, e))? {
                let _ = match piece.stream {
                    Stream::Stdout => output.stdout(piece.data.to_vec()).await,
                    Stream::Stderr => output.stderr(piece.data.to_vec()).await,
                };
            }
        }
        let _ = output.stdout_closed().await;
        if !tty {
            let _ = output.stderr_closed().await;
        }
        Ok(())
    };
    let writing = async {
        while let Some(message) = input.recv().await {
            let done = match message {
                ExecInput::Stdin(bytes) => to.write_all(&bytes).await,
                ExecInput::StdinClosed => to.shutdown().await,
                ExecInput::Resize { width, height } => {
                    let path = format!("/exec/{}/resize?w={width}&h={height}", encode(&running.id));
                    if let Err(error) = engine.act("resize the terminal", &path).await {
                        tracing::debug!(%error, "the terminal keeps its size");
                    }
                    Ok(())
                }
            };
            // The command does not read any more; its output may go on.
            if done.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        read = reading => read?,
        () = writing => {}
    }
    running.exit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_others_are_not_ended() {
        let own = i64::from(std::process::id());
        for (pid, container) in [(own, "0123456789abcdef"), (own, ""), (1, "0123456789abcdef"), (0, "0123456789abcdef")]
        {
            assert!(!belongs(pid, container), "{pid} {container}");
        }
    }
}
