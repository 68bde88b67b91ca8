//! Runs the commands of a batch system.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use driver_sdk::RemoteError;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::users::User;

/// What a command has said.
#[derive(Debug, Clone)]
pub struct Said {
    /// It ended with code 0.
    pub success: bool,
    /// The code it ended with; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its output, as UTF-8 as far as it is.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl Said {
    /// The output, if it succeeded.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`] with what the command complained about.
    pub fn output(self, command: &str) -> Result<String, RemoteError> {
        match self.success {
            true => Ok(self.stdout),
            false => Err(RemoteError::could_not_ask(format!("{command}: {}", last_lines(&self.stderr)))),
        }
    }
}

/// Variables that commands get from the agent: where programs and libraries are, and who runs them.
const PASSED_ON: [&str; 6] = ["PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "TERM"];

/// How the commands are found and what they are told.
#[derive(Debug, Clone)]
pub struct Commands {
    /// The batch system, for people.
    pub product: &'static str,
    /// Where they are; without it they are looked for along `PATH`.
    pub bin_dir: Option<PathBuf>,
    /// How long a command may take.
    pub timeout: Duration,
    /// The batch system's own variable that names its configuration file, which the agent may have …
    pub conf_variable: &'static str,
    /// … unless it is this one.
    pub conf: Option<PathBuf>,
    /// Arguments before the others.
    pub first: Vec<String>,
}

impl Commands {
    /// A command with what it is always told, before its own arguments.
    pub fn command(&self, name: &str) -> Command {
        let program = self.bin_dir.as_ref().map_or_else(|| PathBuf::from(name), |dir| dir.join(name));
        let mut command = Command::new(program);
        // What the agent knows concerns neither the batch system nor the users as whom some commands run, and defaults
        // of the person who started it would change what the commands do.
        command.env_clear();
        let passed_on = PASSED_ON.iter().chain([&self.conf_variable]);
        command.envs(passed_on.filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.env("LC_ALL", "C").stdin(Stdio::null());
        if let Some(conf) = &self.conf {
            command.env(self.conf_variable, conf);
        }
        command.args(&self.first);
        command
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: it cannot be started, or took too long. What it was asked may still happen.
    ///
    /// A drop ends the command.
    pub async fn run(&self, name: &str, args: &[String]) -> Result<Said, RemoteError> {
        self.run_in((None, Path::new("/")), name, args, "").await
    }

    /// The same for a command that is not the batch system's.
    ///
    /// # Errors
    /// Those of [`Commands::run`].
    pub async fn plain(&self, name: &str, args: &[String]) -> Result<Said, RemoteError> {
        let mut command = Command::new(name);
        command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::null()).args(args);
        self.to_its_end(command, name, "").await
    }

    /// The same as a user and in a directory. `input` is what the command reads.
    ///
    /// # Errors
    /// Those of [`Commands::run`].
    pub async fn run_in(
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
        let limit = self.timeout;
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
                    "{name} cannot be run: {why}; install the commands of {} on this node, or set `bin_dir`",
                    self.product
                )));
            }
            Err(_) => {
                // A submission waits so for room at a full cluster.
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

/// The end of what a command has written, on one line and without stars round it.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(|line| line.trim_matches(['*', ' ', '\t'])).collect();
    let lines: Vec<&str> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    let told: String = lines[lines.len().saturating_sub(3)..].join("; ").chars().take(400).collect();
    if told.is_empty() { "it gave no reason".to_owned() } else { told }
}

/// Lets a command run as this user, with no group but its first. The batch system looks its other groups up itself.
pub fn become_user(command: &mut Command, user: &User) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_what_is_told() {
        assert_eq!(last_lines("\n a \n\nb\n"), "a; b");
        assert_eq!(last_lines("x is DOWN\n*****\n** RESTORE IT **\n*****\n"), "x is DOWN; RESTORE IT");
        assert_eq!(last_lines(""), "it gave no reason");
    }
}
