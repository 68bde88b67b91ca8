//! A socket of another machine through the system's `ssh`: configuration, agents and jump hosts work as on the command
//! line.
//!
//! One `ssh` process per engine forwards a socket of ours to the engine's. It runs `cat` over there, whose input we
//! hold: when this process dies, in whatever way, `cat` ends and the whole chain with it.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

const UP_WITHIN: Duration = Duration::from_secs(14);
/// What is kept of the words of a failing `ssh`.
const WORDS_MAX: usize = 500;

/// The forwarding to one engine; started when it is first needed and again when it has broken.
pub(crate) struct Tunnel {
    /// Configuration file instead of the user's; empty = the user's.
    config: String,
    up: Mutex<Option<Up>>,
}

struct Up {
    child: Child,
    dir: OwnDir,
    /// The first words of `ssh` on its standard error.
    said: Arc<std::sync::Mutex<String>>,
}

/// A directory of our own, named so that the next process finds and removes what a killed one has left.
struct OwnDir(PathBuf);

impl Drop for OwnDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl OwnDir {
    fn new() -> io::Result<OwnDir> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        for n in 0..1000 {
            let dir = parent.join(format!("drover-docker-{}-{n}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(OwnDir(dir)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(io::Error::new(e.kind(), format!("create {}: {e}", dir.display()))),
            }
        }
        Err(io::Error::other(format!("no free directory name in {}", parent.display())))
    }
}

/// Removes directories of processes that are no more.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix("drover-docker-")?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl Tunnel {
    /// A forwarding that is not there yet.
    pub(crate) fn new(config: &str) -> Tunnel {
        Tunnel { config: config.to_owned(), up: Mutex::default() }
    }

    /// A connection to `socket` on `host`.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "who comes meanwhile waits for the connection that is being made"
    )]
    pub(crate) async fn connect(
        &self,
        user: Option<&str>,
        host: &str,
        port: Option<u16>,
        socket: &Path,
    ) -> io::Result<UnixStream> {
        let mut up = self.up.lock().await;
        if let Some(standing) = up.as_mut() {
            if standing.child.try_wait()?.is_none()
                && let Ok(stream) = UnixStream::connect(standing.dir.0.join("s")).await
            {
                return Ok(stream);
            }
            *up = None;
        }
        let mut fresh = start(&self.config, user, host, port, socket)?;
        let local = fresh.dir.0.join("s");
        let begun = tokio::time::Instant::now();
        loop {
            if let Some(status) = fresh.child.try_wait()? {
                // What it said may still be on its way through the pipe.
                tokio::time::sleep(Duration::from_millis(50)).await;
                let said = fresh.said.lock().unwrap_or_else(PoisonError::into_inner).trim().to_owned();
                let why = if said.is_empty() { "no reason given" } else { said.as_str() };
                return Err(io::Error::other(format!("ssh to {host} ended ({status}): {why}")));
            }
            match UnixStream::connect(&local).await {
                Ok(stream) => {
                    *up = Some(fresh);
                    return Ok(stream);
                }
                Err(_) if begun.elapsed() < UP_WITHIN => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(e) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, format!("ssh to {host} has not come up: {e}")));
                }
            }
        }
    }
}

fn start(config: &str, user: Option<&str>, host: &str, port: Option<u16>, socket: &Path) -> io::Result<Up> {
    let dir = OwnDir::new()?;
    let mut command = Command::new("ssh");
    if !config.is_empty() {
        command.args(["-F", config]);
    }
    command.args([
        "-o",
        "BatchMode=yes",
        "-o",
        "ExitOnForwardFailure=yes",
        "-o",
        "ServerAliveInterval=5",
        "-o",
        "ServerAliveCountMax=3",
    ]);
    // A shared connection of the user's would outlive us and keep the forwarding.
    command.args(["-o", "ControlMaster=no", "-o", "ControlPath=none", "-T"]);
    command.arg("-L").arg(format!("{}:{}", dir.0.join("s").display(), socket.display()));
    if let Some(user) = user {
        command.args(["-l", user]);
    }
    if let Some(port) = port {
        command.args(["-p", &port.to_string()]);
    }
    command.args(["--", host, "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("start ssh: {e}; is the OpenSSH client installed?")))?;
    let said: Arc<std::sync::Mutex<String>> = Arc::default();
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(listen(stderr, said.clone()));
    }
    Ok(Up { child, dir, said })
}

/// Reads to the end, so that `ssh` never waits for us, and keeps the beginning.
async fn listen(mut stderr: tokio::process::ChildStderr, said: Arc<std::sync::Mutex<String>>) {
    let mut buffer = vec![0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() < WORDS_MAX {
            said.push_str(&String::from_utf8_lossy(&buffer[..read.min(WORDS_MAX)]));
        }
    }
}
