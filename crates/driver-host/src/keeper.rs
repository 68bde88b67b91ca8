//! The parent of a plugin where there is no cgroup: a process that outlives plugin and agent, and adopts the orphans of
//! what the plugin starts. Its own side is `keep` of `drover-executor`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::options::PluginSpec;
use crate::scope::KEEP;

/// How long the keeper may take to report the plugin's exit status.
const STATUS: Duration = Duration::from_secs(5);

/// The connection to a keeper.
#[derive(Debug)]
pub(crate) struct Keeper {
    line: BufReader<UnixStream>,
}

/// The command of a keeper for a plugin, whose arguments and standard input are set.
pub(crate) fn command(program: &Path, spec: &PluginSpec) -> io::Result<(Command, Keeper)> {
    let (ours, theirs) = Pair::pair()?;
    ours.set_nonblocking(true)?;
    let program_of_it = spec.command.to_str().ok_or_else(|| io::Error::other("its path is not UTF-8"))?;
    let plugin = serde_json::json!({"name": spec.name, "command": program_of_it, "args": spec.args});
    let mut command = Command::new(program);
    command
        .arg(String::from_utf8_lossy(KEEP).as_ref())
        .arg(plugin.to_string())
        .stdin(Stdio::from(OwnedFd::from(theirs)));
    Ok((command, Keeper { line: BufReader::new(UnixStream::from_std(ours)?) }))
}

impl Keeper {
    /// Pid of the plugin that the keeper has started.
    pub(crate) async fn pid(&mut self) -> io::Result<u32> {
        let told = self.next().await?;
        told.parse().map_err(|_| io::Error::other(told.strip_prefix("error ").unwrap_or(&told).to_owned()))
    }

    /// Confirms the pid: from now on the keeper waits for its plugin.
    pub(crate) async fn answer(&mut self) -> io::Result<()> {
        self.line.get_mut().write_all(b"\n").await
    }

    async fn next(&mut self) -> io::Result<String> {
        let mut told = String::new();
        match self.line.read_line(&mut told).await? {
            0 => Err(io::Error::other("the process that should keep it has ended")),
            _ => Ok(told.trim_end().to_owned()),
        }
    }

    /// Exit status of the plugin.
    pub(crate) async fn status(mut self) -> Option<ExitStatus> {
        let told = timeout(STATUS, self.next()).await.ok()?.ok()?;
        told.parse().ok().map(ExitStatus::from_raw)
    }
}
