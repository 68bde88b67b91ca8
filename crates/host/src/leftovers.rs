//! Leftover processes of drivers: their owners, and their end.
//!
//! State directories below the task directory identify our own executors. For drivers written for Nomad, any of these
//! in `/proc` identifies a process and everything below it:
//! - the command line of their executors, `[binary] executor {"LogFile":"<task dir>/…"}`;
//! - the environment of a workload, which names allocation and task, together with a working directory below the task
//!   directory;
//! - such a working directory alone, if the process carries the environment of a plugin of this node, or hangs when it
//!   is inspected;
//! - the FIFOs of the task's output, as standard output or error;
//! - the executor below which the node saw it last, or whose session it is in. That executor may be dead. Without
//!   cgroups the node notes the session for later agents.
//!
//! [`take_in`] puts the processes of a start into the task's cgroup as soon as the driver has answered. From then on
//! the kernel identifies all their descendants, even those that change environment, directory, output and parents. A
//! process that shed all of these earlier counts as its plugin's. The plugin's cgroup identifies it or, without
//! cgroups, the plugin's keeper, which adopts orphans. The books show it as the plugin's, and it ends with the plugin's
//! last task.
//!
//! `cgroup.rs` ends the processes in the task's cgroups. For cgroups of our own drivers, the name alone tells the
//! owner: nothing reads from the processes, because a fork bomb answers slowly.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
    sync::{Arc, LazyLock, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use driver_proto::handshake::SOCKET_DIR_KEY;
use model::AllocId;
use node_config::ClientConfig;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::Mutex;

use crate::{cgroup::TaskCgroup, cgroup_names, dirs::AllocDirs, owner::Owner};

/// How long processes may take to disappear after SIGKILL.
const DEATH: Duration = Duration::from_secs(5);
/// Prefix of the program names of our executors.
const EXECUTOR: &str = "drover-executor";

/// Ends the executors whose state lies in a task directory, together with their workloads.
pub async fn end_own_executors(task_dir: &Path) {
    let parent = task_dir.join("private/executor");
    for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
        if let Err(error) = executor_client::destroy(&entry.path()).await {
            tracing::warn!(state_dir = %entry.path().display(), %error, "an executor that was left behind stays");
        }
    }
    // This removes an empty directory only.
    let _ = fs::remove_dir(&parent);
}

/// Directories of this node's tasks, in every spelling that processes may use.
#[derive(Clone, Debug)]
pub struct Places {
    /// The directory of allocations, in each spelling.
    pub alloc_dirs: Vec<PathBuf>,
    socket_dirs: Vec<PathBuf>,
    /// The directory of log collectors, in each spelling.
    pub collector_dirs: Vec<PathBuf>,
    /// Names of this node in the names of cgroups; they tell it from other nodes of the machine.
    pub node: [String; 2],
}

impl Places {
    /// The places of the node with this configuration.
    pub fn of(config: &ClientConfig) -> Self {
        let spellings = |path: &Path| {
            let mut all = vec![path.to_owned()];
            all.extend(path.canonicalize().ok().filter(|canonical| canonical != path));
            all
        };
        Self {
            alloc_dirs: spellings(&config.alloc_dir),
            socket_dirs: spellings(&config.plugin_socket_dir()),
            collector_dirs: spellings(&config.state_dir).into_iter().map(|dir| dir.join("run/c")).collect(),
            node: config.names_on_this_machine(),
        }
    }

    /// Allocation and task of a path below the task's directory.
    pub fn task_of(&self, path: &Path) -> Option<Owner> {
        let below = self.alloc_dirs.iter().find_map(|dir| path.strip_prefix(dir).ok())?;
        let mut parts = below.components().map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        Some(Owner { alloc: parts.next()??.parse().ok()?, task: parts.next()??.to_owned() })
    }

    /// Allocation and task of a FIFO of a task's output.
    fn writes_for(&self, fifo: &Path) -> Option<Owner> {
        let below = self.alloc_dirs.iter().find_map(|dir| fifo.strip_prefix(dir).ok())?;
        let (dir, task) = (below.parent()?, task_of_fifo(fifo)?);
        let alloc = dir.parent().and_then(Path::parent).filter(|_| dir.ends_with("alloc/logs"))?;
        Some(Owner { alloc: alloc.to_str()?.parse().ok()?, task: task.to_owned() })
    }
}

/// The task of a FIFO of its output, `.<task>.stdout.fifo`.
fn task_of_fifo(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?.strip_prefix('.')?;
    [".stdout.fifo", ".stderr.fifo"].iter().find_map(|end| name.strip_suffix(end)).filter(|task| !task.is_empty())
}

/// Facts of `/proc` about a process that help to identify its owner.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The pid.
    pub pid: i32,
    /// Pid of its parent.
    pub parent: i32,
    /// Start time, in ticks since boot; tells it from a later process with the same pid.
    pub start: u64,
    session: i32,
    /// The command line, words separated by blanks.
    pub line: String,
    /// State directory of an executor of ours, or of a log collector.
    pub state_dir: Option<PathBuf>,
    /// Log file of a Go executor.
    log_file: Option<PathBuf>,
    /// The owner that `NOMAD_ALLOC_ID` and `NOMAD_TASK_NAME` name.
    workload_of: Option<Owner>,
    /// The socket directory in the environment that it has from its plugin.
    socket_dir: Option<PathBuf>,
    /// Working directory.
    cwd: Option<PathBuf>,
    /// The FIFO of a task's output that it writes to.
    output: Option<PathBuf>,
    /// The log file of the Go executor below which it is, or was when the node saw it last.
    under: Option<Arc<Path>>,
    /// The log file of the Go executor that leads or led its session, itself or through a descendant.
    session_of: Option<Arc<Path>>,
    /// It is in a cgroup of our own drivers; its memory was not read.
    pub confined: bool,
    /// The plugin cgroup that it is in, of any node.
    pub plugin_cgroup: Option<String>,
    /// It is the keeper of a plugin and its orphans.
    pub keeper: bool,
    /// Reading its command line and environment timed out.
    silent: bool,
}

impl Seen {
    /// The facts that the kernel gives without a read of the process's memory.
    fn look(pid: i32) -> Option<Self> {
        let stat = executor_client::ProcessStat::of(pid).filter(executor_client::ProcessStat::is_alive)?;
        Some(Self { pid, parent: stat.ppid, start: stat.start, session: stat.session, ..Self::default() })
    }

    /// Its name as the kernel keeps it; readable even if the process hangs.
    fn name(&self) -> String {
        fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default().trim_end().to_owned()
    }

    fn working_dir(&self) -> Option<PathBuf> {
        let link = fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()?;
        let text = link.to_str()?;
        Some(text.strip_suffix(" (deleted)").unwrap_or(text).into())
    }

    /// The FIFO of a task's output that is its standard output or error.
    fn output(&self) -> Option<PathBuf> {
        [1, 2].into_iter().find_map(|number| {
            let link = fs::read_link(format!("/proc/{}/fd/{number}", self.pid)).ok()?;
            let text = link.to_str()?;
            let path = Path::new(text.strip_suffix(" (deleted)").unwrap_or(text));
            task_of_fifo(path).map(|_| path.to_owned())
        })
    }

    /// Identifies it by a cgroup of our own drivers. False: its memory must be read. `above` are the names of the
    /// agent's own cgroups.
    fn told_by_cgroup(&mut self, above: &HashSet<&str>) -> bool {
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        self.plugin_cgroup =
            cgroup_names::names(&cgroups).find(|name| cgroup_names::is_of_plugin(name)).map(str::to_owned);
        let program = || fs::read_link(format!("/proc/{}/exe", self.pid)).unwrap_or_default();
        let Some(owner) = cgroup_names::confined_to(&cgroups, above).filter(|_| is_workload(&program())) else {
            return false;
        };
        self.line = format!("[{}]", self.name());
        self.cwd = self.working_dir();
        self.workload_of = Some(owner);
        self.confined = true;
        true
    }

    /// Fills in the facts of its command line and environment. False for a kernel thread.
    fn told_by_itself(&mut self, words: &processes::Words) -> bool {
        let variable = |name: &str| {
            let mut entries = words.environment.split(|b| *b == 0);
            std::str::from_utf8(entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?).ok()
        };
        self.workload_of = (|| {
            let alloc: AllocId = variable("NOMAD_ALLOC_ID")?.parse().ok()?;
            Some(Owner { alloc, task: variable("NOMAD_TASK_NAME")?.to_owned() })
        })();
        self.socket_dir = variable(SOCKET_DIR_KEY).map(PathBuf::from);
        self.cwd = if self.workload_of.is_some() || self.socket_dir.is_some() { self.working_dir() } else { None };
        self.state_dir = state_dir(&words.line);
        self.log_file = log_file(&words.line);
        self.keeper = is_keeper(&words.line);
        // A log collector has them open as well.
        self.output = if self.workload_of.is_none() && self.state_dir.is_none() { self.output() } else { None };
        self.line = String::from_utf8_lossy(&words.line).replace('\0', " ").trim_end().to_owned();
        !words.line.is_empty()
    }

    /// The task that it serves. The environment alone is enough only for tasks that live on this node (`local`). An
    /// instance in a remote runtime carries the names of the allocation that created it, wherever it runs and whichever
    /// node manages it.
    pub fn owner(&self, places: &Places, local: bool) -> Option<Owner> {
        let works_for = self.cwd.as_ref().and_then(|dir| places.task_of(dir));
        let of_this_node = self.socket_dir.as_ref().is_some_and(|dir| places.socket_dirs.contains(dir));
        self.log_file
            .as_deref()
            .or(self.under.as_deref())
            .and_then(|path| places.task_of(path))
            .or_else(|| self.output.as_ref().and_then(|path| places.writes_for(path)))
            .or_else(|| self.workload_of.clone().filter(|owner| local || works_for.as_ref() == Some(owner)))
            // A process that hangs counts for the task whose directory it works in.
            .or_else(|| works_for.filter(|_| of_this_node || self.silent))
    }
}

/// Whether a process in a cgroup of ours is a workload, by its program. Executors tell their state directory, so the
/// node inspects them wherever they are. The same holds for their forks that have not executed the workload yet: such a
/// fork belongs to a start, and the driver reports its outcome.
fn is_workload(program: &Path) -> bool {
    // A process without a program is ending.
    program.file_name().and_then(|name| name.to_str()).is_some_and(|name| !name.starts_with(EXECUTOR))
}

/// The state directory in the arguments of an executor of ours.
fn state_dir(command_line: &[u8]) -> Option<PathBuf> {
    let mut args = command_line.split(|b| *b == 0);
    let binary = args.next()?;
    let name = binary.rsplit(|b| *b == b'/').next()?;
    let verb = args.next()?;
    let known = name.starts_with(EXECUTOR.as_bytes()) && (verb == b"run" || verb == b"collect");
    known.then(|| args.next()).flatten().map(|dir| PathBuf::from(std::ffi::OsStr::from_bytes(dir)))
}

/// Whether an executor's program keeps a plugin.
fn is_keeper(command_line: &[u8]) -> bool {
    let mut args = command_line.split(|b| *b == 0);
    let name = args.next().and_then(|binary| binary.rsplit(|b| *b == b'/').next()).unwrap_or_default();
    name.starts_with(EXECUTOR.as_bytes()) && args.next() == Some(b"keep")
}

/// The log file in the arguments of a Go executor.
fn log_file(command_line: &[u8]) -> Option<PathBuf> {
    let mut args = command_line.split(|b| *b == 0);
    let _binary = args.next()?;
    if args.next()? != b"executor" {
        return None;
    }
    let config: serde_json::Value = serde_json::from_slice(args.next()?).ok()?;
    config.get("LogFile")?.as_str().map(PathBuf::from)
}

/// All processes at one moment.
pub type Table = Arc<Vec<Seen>>;

/// All processes, as they were at some moment after `since`. Tasks that end together share one look.
#[expect(clippy::await_holding_invalid_type, reason = "who comes meanwhile waits for this look and shares it")]
pub async fn table(since: Instant) -> Table {
    static LAST: Mutex<Option<(Instant, Table)>> = Mutex::const_new(None);
    let mut last = LAST.lock().await;
    if let Some((at, table)) = &*last
        && *at >= since
    {
        return table.clone();
    }
    let at = Instant::now();
    let before = last.as_ref().map(|(_, table)| table.clone()).unwrap_or_default();
    let table = blocking::spawn(move || Arc::new(scan(&before))).await.unwrap_or_default();
    *last = Some((at, table.clone()));
    table
}

fn scan(before: &[Seen]) -> Vec<Seen> {
    let me = std::process::id().cast_signed();
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let looked = pids.filter(|pid| *pid != me).filter_map(Seen::look);
    let (mut table, mut ask): (Vec<Seen>, Vec<Seen>) = (Vec::new(), Vec::new());
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let above: HashSet<&str> = cgroup_names::names(&own).collect();
    for mut seen in looked {
        if seen.told_by_cgroup(&above) { table.push(seen) } else { ask.push(seen) }
    }
    let heard = processes::listen(ask.iter().map(|seen| seen.pid.cast_unsigned()));
    let known: HashMap<(i32, u64), &Seen> = before.iter().map(|seen| ((seen.pid, seen.start), seen)).collect();
    let mut silent = Vec::new();
    for mut seen in ask {
        let pid = seen.pid.cast_unsigned();
        if let Some(words) = heard.words.get(&pid) {
            if seen.told_by_itself(words) {
                table.push(seen);
            }
        } else if heard.silent.contains(&pid) {
            match known.get(&(seen.pid, seen.start)) {
                // Earlier facts still hold, unless it runs another program by now. The next look sees that.
                Some(former) => {
                    seen = Seen { parent: seen.parent, plugin_cgroup: seen.plugin_cgroup, ..(*former).clone() }
                }
                None => {
                    seen.line = format!("[{}]", seen.name());
                    seen.cwd = seen.working_dir();
                    seen.output = seen.output();
                    seen.silent = true;
                    silent.push(format!("{} {}", seen.pid, seen.line));
                }
            }
            table.push(seen);
        }
    }
    remember_executors(&mut table, &known, &noted());
    if !silent.is_empty() {
        let names = silent.join(", ");
        tracing::warn!(
            n = silent.len(),
            names,
            "processes do not answer when they are asked for their command line: whose they are is not known now"
        );
    }
    table
}

/// Records for each process the Go executor above it, or the last one seen above it. A process never seen below an
/// executor may be in a session that an executor, or a descendant of one, leads or led. A session holds descendants of
/// its leader only. Notes of former agents count for orphans that a plugin's keeper has adopted.
fn remember_executors(table: &mut [Seen], before: &HashMap<(i32, u64), &Seen>, noted: &HashMap<i32, Arc<Path>>) {
    let parents: HashMap<i32, (i32, Option<Arc<Path>>)> =
        table.iter().map(|seen| (seen.pid, (seen.parent, seen.log_file.as_deref().map(Arc::from)))).collect();
    let told_otherwise = |seen: &Seen| seen.log_file.is_some() || seen.state_dir.is_some() || seen.confined;
    for seen in table.iter_mut().filter(|seen| !told_otherwise(seen)) {
        let mut at = seen.parent;
        // A bound, because parents change while the table is read.
        let above = (0..parents.len()).find_map(|_| {
            let (parent, executor) = parents.get(&at)?;
            at = *parent;
            executor.clone()
        });
        seen.under = above.or_else(|| before.get(&(seen.pid, seen.start)).and_then(|former| former.under.clone()));
    }
    let leads = |seen: &Seen| {
        (seen.session == seen.pid).then(|| seen.log_file.as_deref().map(Arc::from).or_else(|| seen.under.clone()))
    };
    let led: HashMap<i32, Option<Arc<Path>>> = table.iter().filter_map(|seen| Some((seen.pid, leads(seen)?))).collect();
    // Sessions whose leader has gone. The kernel does not reuse the number while the session has members.
    let was_led: HashMap<i32, Arc<Path>> = before
        .values()
        .filter_map(|seen| Some((seen.session, leads(seen).unwrap_or_else(|| seen.session_of.clone())?)))
        .collect();
    let keepers: HashSet<i32> = table.iter().filter(|seen| seen.keeper).map(|seen| seen.pid).collect();
    let is_kept = |seen: &Seen| {
        let above = std::iter::successors(Some(seen.parent), |at| Some(parents.get(at)?.0));
        above.take(parents.len()).any(|at| keepers.contains(&at))
    };
    for seen in table.iter_mut() {
        seen.session_of = match led.get(&seen.session) {
            Some(executor) => executor.clone(),
            None if parents.contains_key(&seen.session) => None,
            None => was_led.get(&seen.session).or_else(|| noted.get(&seen.session).filter(|_| is_kept(seen))).cloned(),
        };
        if !told_otherwise(seen) && seen.under.is_none() {
            seen.under.clone_from(&seen.session_of);
        }
    }
}

/// File below a task's directory: the session that its executor leads, and the boot of the machine. Without cgroups it
/// lets a later agent identify the orphans of an executor that has died meanwhile.
const SESSION: &str = "private/session";

/// Session notes of former agents.
fn noted() -> MutexGuard<'static, HashMap<i32, Arc<Path>>> {
    static NOTED: LazyLock<std::sync::Mutex<HashMap<i32, Arc<Path>>>> = LazyLock::new(Default::default);
    NOTED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Best effort: without the note, orphans count as their plugin's.
fn note_session(places: &Places, owner: &Owner, session: i32) {
    let Some(dir) = places.alloc_dirs.first() else { return };
    let file = dir.join(owner.alloc.to_string()).join(&owner.task).join(SESSION);
    let made = file
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&file, format!("{} {session}\n", boot())));
    if let Err(error) = made {
        tracing::debug!(file = %file.display(), %error, "cannot note the session of a task's executor");
    }
}

fn read_sessions(places: &Places, boot: &str) -> HashMap<i32, Arc<Path>> {
    let below = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let allocs = places.alloc_dirs.first().into_iter().flat_map(|dir| below(dir));
    let tasks = allocs.flat_map(|alloc| below(&alloc).collect::<Vec<_>>()).map(|task| task.join(SESSION));
    let session = |file: PathBuf| {
        let text = fs::read_to_string(&file).ok()?;
        let (of_boot, session) = text.trim_end().split_once(' ')?;
        Some((session.parse().ok().filter(|_| of_boot == boot)?, Arc::from(file)))
    };
    tasks.filter_map(session).collect()
}

/// Reads the session notes that former agents have left for this node's tasks.
pub async fn recall(places: &Places) {
    let places = places.clone();
    let read = blocking::spawn(move || read_sessions(&places, &boot()));
    let read = read.await.unwrap_or_default();
    noted().extend(read);
}

/// How often a search repeats, to catch processes forked meanwhile.
const LOOKS: usize = 4;

/// Puts the processes of a start into the task's cgroup, except those that the driver has put into a cgroup of its
/// choice. Best effort: the other marks still identify a process that stays outside.
pub async fn take_in(places: &Places, owner: &Owner, cgroup: Option<TaskCgroup>) {
    for _ in 0..LOOKS {
        // Even without a cgroup the look has a use: it records which process is below which executor.
        let table = table(Instant::now()).await;
        let Some(cgroup) = cgroup.clone() else {
            let leads = |seen: &&Seen| {
                seen.log_file.is_some() && seen.session == seen.pid && seen.owner(places, true).as_ref() == Some(owner)
            };
            if let Some(session) = table.iter().filter(leads).max_by_key(|seen| seen.start).map(|seen| seen.pid) {
                let (places, owner) = (places.clone(), owner.clone());
                drop(blocking::spawn(move || note_session(&places, &owner, session)).await);
            }
            return;
        };
        let of_task = |seen: &&Seen| {
            seen.log_file.is_none() && seen.state_dir.is_none() && seen.owner(places, true).as_ref() == Some(owner)
        };
        let node = places.node.clone();
        let found: Vec<(i32, u64)> = table.iter().filter(of_task).map(|seen| (seen.pid, seen.start)).collect();
        let moved = blocking::spawn(move || {
            found
                .into_iter()
                .filter(|(pid, start)| {
                    // The kernel may have reused the pid.
                    executor_client::ProcessStat::of(*pid).is_some_and(|now| now.start == *start)
                        && cgroup.take_in(*pid, &node)
                })
                .count()
        });
        if moved.await.unwrap_or_default() == 0 {
            return;
        }
    }
}

/// Outcome of a search for leftovers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Number of processes killed.
    pub killed: usize,
    /// Pids that are still there some seconds after SIGKILL.
    pub resisting: Vec<i32>,
}

/// Ends the processes that serve a task of this node, and everything below them, until none is left.
pub async fn end_task(places: &Places, alloc: AllocId, task: &str) -> Ended {
    end_where(places, true, |owner| owner.alloc == alloc && owner.task == task).await
}

/// Ends every process that serves an allocation, before its directory goes.
pub async fn end_alloc(places: &Places, alloc: AllocId) -> Ended {
    let root = places.alloc_dirs.first().map(|dir| AllocDirs::new(dir, alloc).root);
    for entry in root.and_then(|root| fs::read_dir(root).ok()).into_iter().flatten().flatten() {
        end_own_executors(&entry.path()).await;
    }
    end_where(places, false, |owner| owner.alloc == alloc).await
}

/// Ends every process that serves none of the `live` tasks: at the start of an agent, each process must belong to a
/// recorded handle.
pub async fn end_unclaimed(places: &Places, live: &HashSet<Owner>) -> Ended {
    end_where(places, false, |owner| !live.contains(owner)).await
}

async fn end_where(places: &Places, local: bool, wanted: impl Fn(&Owner) -> bool) -> Ended {
    let root = |seen: &Seen| seen.owner(places, local).is_some_and(|owner| wanted(&owner));
    // A process that itself names another owner is spared.
    let spared = |seen: &Seen| seen.owner(places, false).is_some_and(|owner| !wanted(&owner));
    end_trees(root, spared).await
}

/// Ends unclaimed processes and everything below them, except claimed ones. Both sets hold pids and start times.
pub async fn end_these(unclaimed: &HashSet<(i32, u64)>, claimed: &HashSet<(i32, u64)>) -> Ended {
    end_trees(|seen| unclaimed.contains(&(seen.pid, seen.start)), |seen| claimed.contains(&(seen.pid, seen.start)))
        .await
}

async fn end_trees(root: impl Fn(&Seen) -> bool, spared: impl Fn(&Seen) -> bool) -> Ended {
    // From the first signal on: a machine that stood still before it has resisted nothing.
    let mut deadline = None;
    let mut killed = HashSet::new();
    loop {
        let table = table(Instant::now()).await;
        let mut doomed: Vec<&Seen> = table.iter().filter(|seen| root(seen)).collect();
        let mut at = 0;
        while let Some(parent) = doomed.get(at).map(|seen| seen.pid) {
            at += 1;
            let children: Vec<&Seen> = table
                .iter()
                .filter(|s| s.parent == parent && !spared(s) && !doomed.iter().any(|d| d.pid == s.pid))
                .collect();
            doomed.extend(children);
        }
        if doomed.is_empty() {
            return Ended { killed: killed.len(), resisting: Vec::new() };
        }
        if deadline.is_some_and(|at| Instant::now() > at) {
            return Ended { killed: killed.len(), resisting: doomed.iter().map(|seen| seen.pid).collect() };
        }
        // Stop executors first, so that they neither report nor restart anything while their children die.
        for signal in [Signal::STOP, Signal::KILL] {
            for seen in doomed.iter().filter(|seen| signal == Signal::KILL || seen.log_file.is_some()) {
                if send(seen, signal) && signal == Signal::KILL {
                    killed.insert((seen.pid, seen.start));
                }
            }
        }
        deadline.get_or_insert_with(|| Instant::now() + DEATH);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sends a signal to exactly the process that was seen.
fn send(seen: &Seen, signal: Signal) -> bool {
    let Some(fd) = Pid::from_raw(seen.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    // Compared after opening: the descriptor cannot refer to a later process with the same pid.
    let same = executor_client::ProcessStat::of(seen.pid).is_some_and(|now| now.start == seen.start);
    same && pidfd_send_signal(&fd, signal).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(dir: &Path) -> Places {
        Places {
            alloc_dirs: vec![dir.join("alloc")],
            socket_dirs: vec![dir.join("p")],
            collector_dirs: vec![dir.join("c")],
            node: ["n".into(), "former".into()],
        }
    }

    #[test]
    fn only_executors_with_a_log_file_are_recognised() {
        let line = |parts: &[&str]| parts.join("\0").into_bytes();
        for (parts, expected) in [
            (
                &["/p/driver", "executor", r#"{"LogFile":"/a/t/executor.out","LogLevel":"debug"}"#][..],
                Some("/a/t/executor.out"),
            ),
            (&["/p/driver", "executor", "{}"], None),
            (&["/p/driver", "executor", "not json"], None),
            (&["/p/driver", "other", r#"{"LogFile":"/a"}"#], None),
            (&["/p/driver"], None),
        ] {
            assert_eq!(log_file(&line(parts)).as_deref(), expected.map(Path::new), "{parts:?}");
        }
    }

    #[test]
    fn executors_of_ours_name_their_state_directory() {
        let line = |parts: &[&str]| parts.join("\0").into_bytes();
        for (parts, expected) in [
            (&["/s/bin/drover-executor-0a", "run", "/d/alloc/x"][..], Some("/d/alloc/x")),
            (&["drover-executor", "collect", "/d/c/1"], Some("/d/c/1")),
            (&["drover-executor", "serve-host", "/d"], None),
            (&["/bin/other", "run", "/d"], None),
            (&["drover-executor", "run"], None),
        ] {
            assert_eq!(state_dir(&line(parts)).as_deref(), expected.map(Path::new), "{parts:?}");
        }
    }

    #[test]
    fn the_session_of_an_executor_is_known_to_the_next_agent_until_the_machine_starts_again() {
        let dir = tempfile::tempdir().expect("temp dir");
        let places = places(dir.path());
        let owner = Owner { alloc: AllocId(uuid::Uuid::new_v4()), task: "t".into() };
        fs::create_dir_all(dir.path().join("alloc/other")).expect("directory");
        note_session(&places, &owner, 41);
        note_session(&places, &owner, 42);
        let read = read_sessions(&places, &boot());
        assert_eq!(read.keys().collect::<Vec<_>>(), [&42]);
        assert_eq!(places.task_of(&read[&42]), Some(owner));
        assert!(read_sessions(&places, "another").is_empty());
    }

    #[test]
    fn a_keeper_is_known_by_its_verb() {
        let line = |parts: &[&str]| parts.join("\0").into_bytes();
        for (parts, expected) in [
            (&["/s/bin/drover-executor-0a", "keep", "{}"][..], true),
            (&["/s/bin/drover-executor-0a", "run", "/d"], false),
            (&["/bin/other", "keep", "{}"], false),
        ] {
            assert_eq!(is_keeper(&line(parts)), expected, "{parts:?}");
        }
    }

    #[test]
    fn orphans_are_known_by_the_session_that_their_executor_led() {
        let file = Path::new("/d/executor.out");
        let one = |pid, parent, session| Seen { pid, parent, session, start: 1, ..Seen::default() };
        // The agent leads a session with the plugin in it. The executor leads one with a workload, which has made a
        // session of its own.
        let agent = || [one(10, 1, 10), one(11, 10, 10), Seen { log_file: Some(file.into()), ..one(20, 11, 20) }];
        let look = |now: Vec<Seen>, before: &[Seen]| {
            let mut now = now;
            remember_executors(
                &mut now,
                &before.iter().map(|seen| ((seen.pid, seen.start), seen)).collect(),
                &HashMap::new(),
            );
            now
        };
        let found = |table: &[Seen]| -> Vec<i32> {
            table.iter().filter(|s| s.under.as_deref() == Some(file)).map(|s| s.pid).collect()
        };
        let first = look(agent().into_iter().chain([one(21, 20, 21), one(22, 21, 21)]).collect(), &[]);
        assert_eq!(found(&first), [21, 22]);
        // Executor and workload have died. Their forks are in one of the sessions; newcomers are in neither.
        let orphans =
            || vec![one(10, 1, 10), one(11, 10, 10), one(30, 1, 20), one(31, 1, 21), one(32, 1, 32), one(33, 11, 10)];
        let second = look(orphans(), &first);
        assert_eq!(found(&second), [30, 31]);
        assert_eq!(found(&look([orphans(), vec![one(34, 30, 20)]].concat(), &second)), [30, 31, 34]);
        // The number of an ended session belongs to the leader of the next one.
        assert_eq!(found(&look(vec![one(10, 1, 10), one(20, 10, 20), one(40, 20, 20)], &first)), [] as [i32; 0]);
        // A new agent has seen none of that. The notes count for orphans that the plugin's keeper has adopted.
        let keeper = Seen { keeper: true, ..one(9, 1, 10) };
        let mut later = vec![keeper, one(11, 9, 10), one(30, 9, 20), one(34, 30, 20), one(36, 1, 20), one(37, 9, 37)];
        remember_executors(&mut later, &HashMap::new(), &HashMap::from([(20, Arc::from(file))]));
        assert_eq!(found(&later), [30, 34]);
        // A process that leads no session says nothing about the session that it is in.
        let within = |log: Option<&Path>| Seen { log_file: log.map(Into::into), ..one(20, 11, 10) };
        let third = look(vec![one(10, 1, 10), one(11, 10, 10), within(Some(file)), one(21, 20, 10)], &[]);
        assert_eq!(found(&look(vec![one(10, 1, 10), one(11, 10, 10), one(21, 1, 10), one(35, 11, 10)], &third)), [21]);
    }

    #[test]
    fn what_an_executor_has_forked_is_no_workload_yet() {
        for (program, expected) in [
            ("/bin/sleep", true),
            ("/usr/bin/tool (deleted)", true),
            ("/d/state/bin/drover-executor-0a1b", false),
            ("/d/state/bin/drover-executor-0a1b (deleted)", false),
            ("", false),
        ] {
            assert_eq!(is_workload(Path::new(program)), expected, "{program}");
        }
    }

    #[test]
    fn owners_are_told_by_log_file_environment_and_directory() {
        let places = places(Path::new("/d"));
        let id = "11111111-2222-3333-4444-555555555555";
        let owner = Owner { alloc: id.parse().expect("uuid"), task: "t".into() };
        let in_task = |rest: &str| PathBuf::from(format!("/d/alloc/{id}/t{rest}"));
        let workload = Seen { workload_of: Some(owner.clone()), ..Seen::default() };
        let plugin = |dir: &str, cwd: PathBuf| Seen { socket_dir: Some(dir.into()), cwd: Some(cwd), ..Seen::default() };
        let writes = |path: &str| Seen { output: Some(path.into()), ..Seen::default() };
        let cases = [
            ("an executor", Seen { log_file: Some(in_task("/executor.out")), ..Seen::default() }, true, true),
            (
                "a foreign executor",
                Seen { log_file: Some("/other/alloc/x/executor.out".into()), ..Seen::default() },
                false,
                false,
            ),
            ("a workload", Seen { cwd: Some(in_task("/local")), ..workload.clone() }, true, true),
            ("a workload that has gone elsewhere", Seen { cwd: Some("/".into()), ..workload.clone() }, true, false),
            ("an instance of a remote runtime", Seen { cwd: Some("/runtime/i/t".into()), ..workload }, true, false),
            ("one that is silent", Seen { cwd: Some(in_task("/local")), silent: true, ..Seen::default() }, true, true),
            (
                "one that is silent, elsewhere",
                Seen { cwd: Some("/".into()), silent: true, ..Seen::default() },
                false,
                false,
            ),
            ("offspring of a plugin", plugin("/d/p", in_task("/local")), true, true),
            ("of a foreign plugin", plugin("/e/p", in_task("")), false, false),
            ("a plugin", plugin("/d/p", "/".into()), false, false),
            ("in the allocation", plugin("/d/p", format!("/d/alloc/{id}").into()), false, false),
            (
                "below an executor",
                Seen { under: Some(Path::new(&in_task("/executor.out")).into()), ..Seen::default() },
                true,
                true,
            ),
            (
                "below another node's",
                Seen { under: Some(Path::new("/e/alloc/x/t/executor.out").into()), ..Seen::default() },
                false,
                false,
            ),
            ("writes the task's output", writes(&format!("/d/alloc/{id}/alloc/logs/.t.stdout.fifo")), true, true),
            ("writes its errors", writes(&format!("/d/alloc/{id}/alloc/logs/.t.stderr.fifo")), true, true),
            ("writes a log", writes(&format!("/d/alloc/{id}/alloc/logs/t.stdout.0")), false, false),
            ("writes elsewhere", writes(&format!("/d/alloc/{id}/t/local/.t.stdout.fifo")), false, false),
            ("writes another node's output", writes(&format!("/e/alloc/{id}/alloc/logs/.t.stdout.fifo")), false, false),
            ("somebody", Seen::default(), false, false),
        ];
        for (what, seen, local, anywhere) in cases {
            assert_eq!(seen.owner(&places, true), local.then(|| owner.clone()), "{what}");
            assert_eq!(seen.owner(&places, false), anywhere.then(|| owner.clone()), "{what}, anywhere");
        }
    }

    #[tokio::test]
    async fn an_executor_and_its_workload_are_ended_and_the_neighbour_is_not() {
        let dir = tempfile::tempdir().expect("temp dir");
        let places = places(dir.path());
        let alloc = AllocId(uuid::Uuid::new_v4());
        // A shell that runs a script of that name has the command line of a Go executor.
        fs::write(dir.path().join("executor"), "sleep 600 &\nwait\n").expect("script");
        let start = |task: &str| {
            let config = format!(r#"{{"LogFile":"{}/alloc/{alloc}/{task}/executor.out"}}"#, dir.path().display());
            std::process::Command::new("sh").current_dir(dir.path()).args(["executor", &config]).spawn().expect("sh")
        };
        let (mut executor, mut neighbour) = (start("t"), start("u"));
        let children = |parent: u32| {
            let all = fs::read_dir("/proc")
                .expect("proc")
                .flatten()
                .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
            all.filter_map(executor_client::ProcessStat::of).filter(|p| p.ppid == parent.cast_signed()).count()
        };
        let begun = Instant::now();
        while children(executor.id()) == 0 || children(neighbour.id()) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the shells start nothing");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(end_task(&places, alloc, "t").await, Ended { killed: 2, resisting: Vec::new() });
        executor.wait().expect("reaped");
        assert!(neighbour.try_wait().expect("asked").is_none());
        assert_eq!(end_task(&places, alloc, "t").await, Ended::default());
        let live = HashSet::from([Owner { alloc, task: "u".into() }]);
        assert_eq!(end_unclaimed(&places, &live).await, Ended::default());
        assert_eq!(end_alloc(&places, alloc).await.killed, 2);
        neighbour.wait().expect("reaped");
    }
}
