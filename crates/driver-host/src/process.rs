//! One plugin process: start it, learn its address, notice its death, end it – and never touch a stranger.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use driver_proto::handshake::{self, Address};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, Interest};
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::error::LaunchError;
use crate::keeper::{self, Keeper};
use crate::options::{AgentConfig, PluginSpec};
use crate::scope::{self, Mark};
use crate::stat::{Birth, Stat};
use crate::stderr::{Tail, drain};
use crate::within::{Connections, Within};

/// The longest handshake line: a socket path and a few words.
const HANDSHAKE_MAX: usize = 4096;
/// After the process's death: how long its last output may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// How to reach a process.
#[derive(Debug, Clone)]
enum At {
    Pidfd(Arc<AsyncFd<OwnedFd>>),
    /// It is a part of this one.
    Within(Connections),
}

/// A watched process, started by us or found again.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    at: At,
    exited: CancellationToken,
    status: Arc<OnceLock<ExitStatus>>,
    pub(crate) stderr: Tail,
    /// The mark of its offspring.
    mark: Option<Arc<Mark>>,
}

impl Process {
    /// Cancelled when the process has ended.
    pub(crate) fn exited(&self) -> &CancellationToken {
        &self.exited
    }

    /// How it ended, for people.
    pub(crate) fn epitaph(&self) -> String {
        match self.status.get() {
            Some(status) => describe(*status),
            None if self.exited.is_cancelled() => "ended".into(),
            None => "runs".into(),
        }
    }

    /// Ends it at once. Only this process: its children live on.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        match &self.at {
            // An error only means that it has ended already; the descriptor cannot refer to another process.
            At::Pidfd(pidfd) => drop(pidfd_send_signal(pidfd.get_ref(), signal)),
            At::Within(_) => self.exited.cancel(),
        }
    }

    /// Where it takes connections, if it is a part of this process.
    pub(crate) fn within(&self) -> Option<&Connections> {
        match &self.at {
            At::Pidfd(_) => None,
            At::Within(connections) => Some(connections),
        }
    }

    /// Starts a part of this process.
    fn start_within(plugin: &Within) -> Self {
        let exited = CancellationToken::new();
        let at = At::Within(plugin.start(exited.clone()));
        Self { pid: 0, at, exited, status: Arc::default(), stderr: Tail::default(), mark: None }
    }

    /// Waits for its end, at most this long.
    pub(crate) async fn ended_within(&self, limit: Duration) -> bool {
        timeout(limit, self.exited.cancelled()).await.is_ok()
    }

    /// Ends the helpers of the ended process. Executors, workloads and processes outside its group stay.
    pub(crate) async fn bury(&self) {
        let (pid, Some(mark)) = (self.pid, self.mark.clone()) else { return };
        let left = blocking::spawn(move || scope::helpers(pid, &mark)).await.unwrap_or_default();
        for helper in left {
            if let Ok(Some(process)) = find(helper.pid, helper.birth, Tail::default()) {
                tracing::info!(
                    plugin = helper.mark.plugin,
                    pid = helper.pid,
                    "ending a helper process that the plugin left behind"
                );
                process.kill();
            }
        }
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn watch(pid: u32, pidfd: OwnedFd, parent: Parent, stderr: Tail, mark: Option<Mark>) -> io::Result<Self> {
        #[expect(deprecated, reason = "the descriptor is owned by the AsyncFd and never replaced, so this is sound")]
        let pidfd = Arc::new(AsyncFd::with_interest(pidfd, Interest::READABLE)?);
        let mark = mark.map(Arc::new);
        let at = At::Pidfd(pidfd.clone());
        let process = Self { pid, at, exited: CancellationToken::new(), status: Arc::default(), stderr, mark };
        let watched = process.clone();
        tokio::spawn(async move {
            // A pidfd becomes readable once: at the process's end.
            while pidfd.readable().await.is_err() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let status = match parent {
                Parent::Us(mut child) => child.wait().ok(),
                Parent::Keeper(keeper) => keeper.status().await,
                Parent::Another => None,
            };
            if let Some(status) = status {
                let _ = watched.status.set(status);
            }
            watched.exited.cancel();
        });
        Ok(process)
    }
}

/// The parent of a process, which gets its exit status.
#[derive(Debug)]
enum Parent {
    /// This agent.
    Us(Child),
    /// Its keeper.
    Keeper(Keeper),
    /// A former agent, or that agent's keeper.
    Another,
}

/// Ends a process whose start is abandoned, for any reason.
#[derive(Debug)]
pub(crate) struct KillOnDrop(Option<Process>);

impl KillOnDrop {
    pub(crate) fn new(process: &Process) -> Self {
        Self(Some(process.clone()))
    }

    /// Gives the process to another owner.
    pub(crate) fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(process) = self.0.take() {
            process.kill();
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown status".into(),
    }
}

/// The pipes of a plugin's output. They have names, so that a restarted agent can open them again. The plugin holds
/// both ends: without an agent, a broken pipe does not kill it.
#[derive(Debug, Clone)]
pub(crate) struct OutputPipes {
    stdout: PathBuf,
    stderr: PathBuf,
}

impl OutputPipes {
    pub(crate) fn new(state_dir: &Path, plugin: &str) -> Self {
        Self { stdout: state_dir.join(format!("{plugin}.stdout")), stderr: state_dir.join(format!("{plugin}.stderr")) }
    }

    fn create(path: &Path) -> io::Result<(pipe::Receiver, File)> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let reader = pipe::OpenOptions::new().open_receiver(path)?;
        let writer = File::options().read(true).write(true).open(path)?;
        Ok((reader, writer))
    }

    /// Continues to read the output of a process that an earlier agent started.
    pub(crate) fn reopen(&self, plugin: &str, tail: &Tail) {
        if let Ok(stderr) = pipe::OpenOptions::new().open_receiver(&self.stderr) {
            tokio::spawn(drain(plugin.to_owned(), stderr, tail.clone()));
        }
        if let Ok(stdout) = pipe::OpenOptions::new().open_receiver(&self.stdout) {
            tokio::spawn(discard(stdout));
        }
    }

    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.stdout);
        let _ = std::fs::remove_file(&self.stderr);
    }
}

async fn discard(mut from: impl AsyncRead + Unpin) {
    let mut buffer = vec![0; 8 << 10];
    while let Ok(1..) = from.read(&mut buffer).await {}
}

/// Directories and mark for the start of a plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) agent: &'a AgentConfig,
    pub(crate) socket_dir: &'a Path,
    pub(crate) pipes: &'a OutputPipes,
    pub(crate) mark: &'a Mark,
}

/// Starts a plugin and reads its handshake; `on_spawn` gets the process before anything else happens. After a failure
/// the process is gone.
pub(crate) async fn launch(
    spec: &PluginSpec,
    place: Place<'_>,
    limit: Duration,
    on_spawn: impl FnOnce(&Process),
) -> Result<(Process, Address), LaunchError> {
    if let Some(plugin) = &spec.within {
        let process = Process::start_within(plugin);
        on_spawn(&process);
        return Ok((process, Address::Unix(String::new())));
    }
    let Place { agent, socket_dir, pipes, mark } = place;
    let (mark_name, mark_value) = mark.variable();
    let deadline = Instant::now() + limit;
    let cannot = |reason: String| LaunchError::Spawn { command: spec.command.clone(), reason };
    let (stdout, stdout_end) =
        OutputPipes::create(&pipes.stdout).map_err(|e| cannot(format!("no pipe for its output: {e}")))?;
    let (stderr, stderr_end) =
        OutputPipes::create(&pipes.stderr).map_err(|e| cannot(format!("no pipe for its output: {e}")))?;
    // Room for log output while no agent reads; a refusal only means less room.
    let _ = rustix::pipe::fcntl_setpipe_size(&stderr, 256 << 10);
    let (mut command, keeper) = match &spec.keeper {
        None => (Command::new(&spec.command), None),
        Some(program) => keeper::command(program, spec)
            .map(|(c, k)| (c, Some(k)))
            .map_err(|e| cannot(format!("it cannot be kept: {e}")))?,
    };
    if keeper.is_none() {
        command.args(&spec.args).stdin(Stdio::null());
    }
    command
        .envs(&spec.env)
        .env(handshake::COOKIE_KEY, handshake::COOKIE_VALUE)
        .env(handshake::PROTOCOL_VERSIONS_KEY, handshake::APP_VERSION.to_string())
        .env(handshake::MIN_PORT_KEY, agent.port_min.to_string())
        .env(handshake::MAX_PORT_KEY, agent.port_max.to_string())
        // Executors inherit these; both must lead to a directory that outlives every task.
        .env(handshake::SOCKET_DIR_KEY, socket_dir)
        .env("TMPDIR", socket_dir)
        // Identifies everything that it starts.
        .env(mark_name, mark_value)
        // Members of this group that outlive the plugin are its helpers.
        .process_group(0)
        // Executors inherit these too and cannot meet them.
        .env_remove(handshake::CLIENT_CERT_KEY)
        .env_remove(handshake::MULTIPLEX_KEY)
        .env_remove(handshake::SOCKET_GROUP_KEY)
        // A built-in plugin inherits the agent's raised limit, and must give its tasks the agent's original one.
        .env_remove(open_files::VARIABLE)
        .envs(open_files::variable().filter(|_| spec.builtin))
        // For agents only.
        .env_remove("DROVER_JOIN_SECRET")
        .env_remove("NOMAD_CLIENT_INTRO_TOKEN")
        .stdout(stdout_end)
        .stderr(stderr_end);
    let spawned = command.spawn();
    // The command holds our copies of the write ends; with them the pipes would never end.
    drop(command);
    let child = spawned.map_err(|error| cannot(hindrance(&spec.command).unwrap_or_else(|| error.to_string())))?;
    let tail = Tail::default();
    let last_words = tokio::spawn(drain(spec.name.clone(), stderr, tail.clone()));
    let unwatched = |error: io::Error| cannot(format!("cannot watch the process: {error}"));
    let process = match keeper {
        None => adopt_child(child, tail.clone(), mark.clone()).map_err(unwatched)?,
        Some(keeper) => {
            let plugin = timeout_at(deadline, kept(keeper, child, tail.clone(), mark.clone())).await;
            // Its standard error has the reason.
            let late = |_| Err(io::Error::other("its keeper says nothing"));
            plugin
                .unwrap_or_else(late)
                .map_err(|error| cannot(hindrance(&spec.command).unwrap_or_else(|| error.to_string())))?
        }
    };

    let guard = KillOnDrop::new(&process);
    on_spawn(&process);
    // It starts nothing before the first request.
    if !spec.builtin {
        open_files::give_back(process.pid);
    }
    if let Some(procs) = &spec.procs
        && let Err(error) = std::fs::write(procs, process.pid.to_string())
    {
        tracing::warn!(plugin = spec.name, procs = %procs.display(), %error, "the plugin is not in a cgroup \
            of its own");
    }
    let mut stdout = stdout;
    let mut line = Vec::new();
    let read = tokio::select! {
        read = timeout_at(deadline, first_line(&mut stdout, &mut line)) => read.ok(),
        () = process.exited.cancelled() => None,
    };
    let read = match read {
        // Its last output may still be in the pipe.
        None if process.exited.is_cancelled() => timeout(LAST_WORDS, first_line(&mut stdout, &mut line)).await.ok(),
        read => read,
    };
    let parsed = match read {
        Some(Ok(())) => Ok(handshake::parse(&String::from_utf8_lossy(&line))),
        // The end of the output is the end of the process, which may become visible a moment later.
        Some(Err(_)) if process.ended_within(LAST_WORDS).await => Err(true),
        None | Some(Err(_)) => Err(process.exited.is_cancelled()),
    };
    let failure = match parsed {
        Ok(Ok(address)) => {
            tokio::spawn(discard(stdout));
            guard.release();
            return Ok((process, address));
        }
        Ok(Err(error)) => Failure::Line(error),
        Err(true) => Failure::Exit,
        Err(false) => Failure::Silence,
    };
    process.kill();
    process.ended_within(Duration::from_secs(5)).await;
    process.bury().await;
    let _ = timeout(LAST_WORDS, last_words).await;
    let stderr = tail.text();
    Err(match failure {
        Failure::Line(error) => LaunchError::Handshake { error, stderr },
        Failure::Exit => LaunchError::EarlyExit { status: process.epitaph(), stderr },
        Failure::Silence => LaunchError::Silent { after: limit, stderr },
    })
}

/// Advice for a file that cannot be executed, where the kernel's error says little.
fn hindrance(command: &Path) -> Option<String> {
    if command.as_os_str().is_empty() {
        return Some(
            "its `plugin` block names no built-in driver, and there is no plugin_dir in which its file could be"
                .to_owned(),
        );
    }
    match std::fs::metadata(command) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some("there is no such file; put the plugin there, or remove its `plugin` block".to_owned())
        }
        Ok(meta) if meta.is_dir() => Some("it is a directory".to_owned()),
        Ok(meta) if meta.permissions().mode() & 0o111 == 0 => {
            Some(format!("it is not executable; use `chmod +x {}`", command.display()))
        }
        _ => None,
    }
}

enum Failure {
    Line(handshake::HandshakeError),
    Exit,
    Silence,
}

fn adopt_child(mut child: Child, tail: Tail, mark: Mark) -> io::Result<Process> {
    let pid = child.id();
    let opened = pid_of(pid).and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
    match opened {
        // Our own child without a wait: the kernel cannot have reused the number.
        Ok(pidfd) => Process::watch(pid, pidfd, Parent::Us(child), tail, Some(mark)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// The plugin under a keeper.
async fn kept(mut keeper: Keeper, child: Child, tail: Tail, mark: Mark) -> io::Result<Process> {
    let parent = child.id();
    // Reaped at its end, which may be long after the plugin's.
    drop(adopt_child(child, Tail::default(), mark.clone())?);
    let pid = keeper.pid().await?;
    let pidfd = pidfd_open(pid_of(pid)?, PidfdFlags::empty())?;
    // The keeper does not reap the plugin before our confirmation, so the number is still the plugin's.
    if Stat::of(pid).is_some_and(|stat| stat.parent != parent) {
        return Err(io::Error::other(format!("process {pid} is no child of the keeper")));
    }
    keeper.answer().await?;
    Process::watch(pid, pidfd, Parent::Keeper(keeper), tail, Some(mark))
}

/// Finds a process again; `None` unless it is the same one.
pub(crate) fn find(pid: u32, birth: Birth, tail: Tail) -> io::Result<Option<Process>> {
    let Ok(pidfd) = pid_of(pid).and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?)) else {
        return Ok(None);
    };
    // Compared after opening: the descriptor then refers to the process with this start time.
    if Birth::of(pid) != Some(birth) {
        return Ok(None);
    }
    Process::watch(pid, pidfd, Parent::Another, tail, Mark::of(pid)).map(Some)
}

fn pid_of(pid: u32) -> io::Result<Pid> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    raw.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a process id"))
}

/// Reads into `line` up to the first line end. Cancel safe: another call continues.
async fn first_line(from: &mut (impl AsyncRead + Unpin), line: &mut Vec<u8>) -> io::Result<()> {
    let mut byte = [0];
    // Byte by byte: a plugin may continue to print, and this happens once per process.
    while line.len() < HANDSHAKE_MAX {
        match from.read(&mut byte).await? {
            0 if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            _ if byte[0] == b'\n' => break,
            _ => line.push(byte[0]),
        }
    }
    Ok(())
}
