//! Runs the commands of Slurm.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use driver_sdk::RemoteError;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::answer::last_lines;
use crate::config::PluginConfig;
use crate::users::User;

/// What a command has said.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    /// It ended with code 0.
    pub(crate) success: bool,
    /// The code it ended with; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// The output, if it succeeded.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`] with what the command complained about.
    pub(crate) fn output(self, command: &str) -> Result<String, RemoteError> {
        match self.success {
            true => Ok(self.stdout),
            false => Err(RemoteError::could_not_ask(format!("{command}: {}", last_lines(&self.stderr)))),
        }
    }
}

/// Variables that commands get from the agent: where programs, libraries and the configuration are, and who runs them.
const PASSED_ON: [&str; 7] = ["PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "HOME", "USER", "LOGNAME", "TERM"];

/// How the commands are found and what they are told.
#[derive(Debug, Clone)]
pub(crate) struct Commands {
    config: PluginConfig,
}

impl Commands {
    pub(crate) fn new(config: &PluginConfig) -> Self {
        Self { config: config.clone() }
    }

    /// A command with the cluster's option, before its own.
    pub(crate) fn command(&self, name: &str) -> Command {
        let program = self.config.bin_dir.as_ref().map_or_else(|| PathBuf::from(name), |dir| dir.join(name));
        let mut command = Command::new(program);
        // What the agent knows concerns neither Slurm nor the users as whom some commands run, and defaults of the
        // person who started it would change what the commands do.
        command.env_clear();
        command.envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.env("LC_ALL", "C").stdin(Stdio::null());
        if let Some(conf) = &self.config.conf {
            command.env("SLURM_CONF", conf);
        }
        if let Some(cluster) = self.config.cluster.as_ref().filter(|c| !c.is_empty()) {
            command.arg("-M").arg(cluster);
        }
        command
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: it cannot be started, or took too long. What it was asked may still happen.
    ///
    /// A drop ends the command.
    pub(crate) async fn run(&self, name: &str, args: &[String]) -> Result<Said, RemoteError> {
        self.run_in((None, Path::new("/")), name, args, "").await
    }

    /// The same for a command that is none of Slurm's.
    pub(crate) async fn plain(&self, name: &str, args: &[String]) -> Result<Said, RemoteError> {
        let mut command = Command::new(name);
        command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::null()).args(args);
        self.to_its_end(command, name, "").await
    }

    /// The same as a user and in a directory, which Slurm tells the job as SLURM_SUBMIT_DIR. `input` is what the
    /// command reads.
    pub(crate) async fn run_in(
        &self,
        (user, dir): (Option<&User>, &Path),
        name: &str,
        args: &[String],
        input: &str,
    ) -> Result<Said, RemoteError> {
        let mut command = self.command(name);
        command.current_dir(dir).args(args);
        if let Some(user) = user {
            become_user(&mut command, user);
        }
        self.to_its_end(command, name, input).await
    }

    async fn to_its_end(&self, mut command: Command, name: &str, input: &str) -> Result<Said, RemoteError> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        if !input.is_empty() {
            command.stdin(Stdio::piped());
        }
        let limit = self.config.command_timeout;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let run = async {
            let mut child = command.spawn()?;
            let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            let typing = async {
                // A command that reads no further says why by itself.
                if let Some(mut typed) = pipes.0 {
                    let _ = typed.write_all(input.as_bytes()).await;
                }
                Ok(())
            };
            let read = tokio::try_join!(typing, all_of(pipes.1, &mut stdout), all_of(pipes.2, &mut stderr));
            read.and(child.wait().await)
        };
        let ended = tokio::time::timeout(limit, run).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&stdout), text(&stderr));
        let status = match ended {
            Ok(Ok(status)) => status,
            Ok(Err(why)) => {
                return Err(RemoteError::could_not_ask(format!(
                    "{name} cannot be run: {why}; install Slurm's commands on this node, or set `bin_dir`"
                )));
            }
            Err(_) => {
                // `sbatch` waits so for room at a full cluster.
                let said = if stderr.is_empty() { String::new() } else { format!(": {}", last_lines(&stderr)) };
                return Err(RemoteError::could_not_ask(format!(
                    "{name} gave no answer within {} s (`command_timeout`){said}",
                    limit.as_secs_f64()
                )));
            }
        };
        tracing::trace!(name, args = ?command.as_std().get_args(), code = status.code(), "ran");
        Ok(Said { success: status.success(), code: status.code(), stdout, stderr })
    }
}

/// Lets a command run as this user, with no group but its first. The controller looks its other groups up itself.
pub(crate) fn become_user(command: &mut Command, user: &User) {
    command.uid(user.owner.uid).gid(user.owner.gid);
    command.env("USER", &user.name).env("LOGNAME", &user.name).env("HOME", &user.home);
}

/// Everything that comes out of a pipe.
async fn all_of(pipe: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> io::Result<()> {
    match pipe {
        Some(mut pipe) => pipe.read_to_end(into).await.map(drop),
        None => Ok(()),
    }
}
