//! Processes that drivers have left behind: who they belong to, and their end.
//!
//! Our own executors are found by their state directories below the task directory. What drivers written for Nomad start is
//! found in `/proc`, by any of
//! - the command line of their executors, `[binary] executor {"LogFile":"<task dir>/…"}`,
//! - the environment of workloads, which names allocation and task, and a working directory below the task directory,
//! - such a working directory of processes that carry the environment of a plugin of this node, or that do not answer when they are asked;
//!
//! and with each of them everything below it. Processes in the task's cgroups are ended by `cgroup.rs`; whose those are that our own drivers have put into one
//! is told by its name, without asking them: a fork bomb takes its time to answer.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use driver_proto::handshake::SOCKET_DIR_KEY;
use model::AllocId;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::Mutex;

use crate::{cgroup_names, config::ClientConfig};

/// How long processes may take to disappear after SIGKILL.
const DEATH: Duration = Duration::from_secs(5);
/// Begins the names of our executors' programs.
const EXECUTOR: &str = "drover-executor";

/// Ends the executors, with their workloads, whose state lies in a task directory.
pub(crate) async fn end_own_executors(task_dir: &Path) {
    let parent = task_dir.join("private/executor");
    for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
        if let Err(error) = executor_client::destroy(&entry.path()).await {
            tracing::warn!(state_dir = %entry.path().display(), %error, "an executor that was left behind stays");
        }
    }
    // Only an empty one goes.
    let _ = fs::remove_dir(&parent);
}

/// Where this node's tasks live, in every spelling that processes may use.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) alloc_dirs: Vec<PathBuf>,
    socket_dirs: Vec<PathBuf>,
    pub(crate) collector_dirs: Vec<PathBuf>,
}

impl Places {
    pub(crate) fn of(config: &ClientConfig) -> Self {
        let spellings = |path: &Path| {
            let mut all = vec![path.to_owned()];
            all.extend(path.canonicalize().ok().filter(|canonical| canonical != path));
            all
        };
        Self {
            alloc_dirs: spellings(&config.alloc_dir),
            socket_dirs: spellings(&config.plugin_socket_dir()),
            collector_dirs: spellings(&config.state_dir).into_iter().map(|dir| dir.join("run/c")).collect(),
        }
    }

    /// Allocation and task of a path below the task's directory.
    pub(crate) fn task_of(&self, path: &Path) -> Option<Owner> {
        let below = self.alloc_dirs.iter().find_map(|dir| path.strip_prefix(dir).ok())?;
        let mut parts = below.components().map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        Some(Owner { alloc: parts.next()??.parse().ok()?, task: parts.next()??.to_owned() })
    }
}

/// Whom a process serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) alloc: AllocId,
    pub(crate) task: String,
}

/// What `/proc` says of a process, as far as it tells its owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) start: u64,
    /// The command line, words separated by blanks.
    pub(crate) line: String,
    /// State directory of an executor of ours, or of a log collector.
    pub(crate) state_dir: Option<PathBuf>,
    /// Of a Go executor.
    log_file: Option<PathBuf>,
    /// `NOMAD_ALLOC_ID` and `NOMAD_TASK_NAME`.
    workload_of: Option<Owner>,
    /// The socket directory that its plugin was given.
    socket_dir: Option<PathBuf>,
    /// Where it works.
    cwd: Option<PathBuf>,
    /// It is in a cgroup of our own drivers, and was not asked.
    pub(crate) confined: bool,
    /// It was asked and has not answered.
    silent: bool,
}

impl Seen {
    /// What the kernel tells without asking the process.
    fn look(pid: i32) -> Option<Self> {
        let stat = executor_client::ProcessStat::of(pid).filter(executor_client::ProcessStat::is_alive)?;
        Some(Self { pid, parent: stat.ppid, start: stat.start, ..Self::default() })
    }

    /// Its name, as the kernel keeps it. It can be had of one that does not answer.
    fn name(&self) -> String {
        fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default().trim_end().to_owned()
    }

    fn working_dir(&self) -> Option<PathBuf> {
        let link = fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()?;
        let text = link.to_str()?;
        Some(text.strip_suffix(" (deleted)").unwrap_or(text).into())
    }

    /// Told by a cgroup of our own drivers. False: it has to be asked. `above` are the names of the agent's own cgroups.
    fn told_by_cgroup(&mut self, above: &HashSet<&str>) -> bool {
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
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

    /// False for a thread of the kernel.
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
        self.line = String::from_utf8_lossy(&words.line).replace('\0', " ").trim_end().to_owned();
        !words.line.is_empty()
    }

    /// Whom it serves. The environment alone is enough only for tasks that are known to live on this node (`local`): an instance in a remote
    /// runtime has the names of the allocation that created it, wherever its runtime is and whoever manages it now.
    pub(crate) fn owner(&self, places: &Places, local: bool) -> Option<Owner> {
        let works_for = self.cwd.as_ref().and_then(|dir| places.task_of(dir));
        let of_this_node = self.socket_dir.as_ref().is_some_and(|dir| places.socket_dirs.contains(dir));
        self.log_file
            .as_ref()
            .and_then(|path| places.task_of(path))
            .or_else(|| self.workload_of.clone().filter(|owner| local || works_for.as_ref() == Some(owner)))
            // One that does not answer is taken for what works there.
            .or_else(|| works_for.filter(|_| of_this_node || self.silent))
    }
}

/// Of what is in a cgroup of ours, by its program: executors say where their state is and are asked wherever they are, and so is what they have forked and has
/// not become the workload yet. It belongs to a start, whose outcome its driver tells.
fn is_workload(program: &Path) -> bool {
    // One that has no program any more ends.
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

pub(crate) type Table = Arc<Vec<Seen>>;

/// All processes, as they were at some moment after `since`. Many tasks that end together share one look.
pub(crate) async fn table(since: Instant) -> Table {
    static LAST: Mutex<Option<(Instant, Table)>> = Mutex::const_new(None);
    let mut last = LAST.lock().await;
    if let Some((at, table)) = &*last
        && *at >= since
    {
        return table.clone();
    }
    let at = Instant::now();
    let before = last.as_ref().map(|(_, table)| table.clone()).unwrap_or_default();
    let table = tokio::task::spawn_blocking(move || Arc::new(scan(&before))).await.unwrap_or_default();
    *last = Some((at, table.clone()));
    table
}

fn scan(before: &[Seen]) -> Vec<Seen> {
    let me = std::process::id().cast_signed();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
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
                // What it said before is still true, unless it runs another program by now: that is seen by the next look.
                Some(former) => seen = Seen { parent: seen.parent, ..(*former).clone() },
                None => {
                    seen.line = format!("[{}]", seen.name());
                    seen.cwd = seen.working_dir();
                    seen.silent = true;
                    silent.push(format!("{} {}", seen.pid, seen.line));
                }
            }
            table.push(seen);
        }
    }
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

/// What became of a search for leftovers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) killed: usize,
    /// Still there some seconds after SIGKILL.
    pub(crate) resisting: Vec<i32>,
}

/// Ends what serves a task of this node, and everything below it, until nothing is left.
pub(crate) async fn end_task(places: &Places, alloc: AllocId, task: &str) -> Ended {
    end_where(places, true, |owner| owner.alloc == alloc && owner.task == task).await
}

/// Ends everything that serves an allocation: its directory is about to go.
pub(crate) async fn end_alloc(places: &Places, alloc: AllocId) -> Ended {
    let root = places.alloc_dirs.first().map(|dir| crate::dirs::AllocDirs::new(dir, alloc).root);
    for entry in root.and_then(|root| fs::read_dir(root).ok()).into_iter().flatten().flatten() {
        end_own_executors(&entry.path()).await;
    }
    end_where(places, false, |owner| owner.alloc == alloc).await
}

/// Ends what serves none of the `live` tasks: every process found at the start of an agent must belong to a recorded handle.
pub(crate) async fn end_unclaimed(places: &Places, live: &HashSet<Owner>) -> Ended {
    end_where(places, false, |owner| !live.contains(owner)).await
}

async fn end_where(places: &Places, local: bool, wanted: impl Fn(&Owner) -> bool) -> Ended {
    let root = |seen: &Seen| seen.owner(places, local).is_some_and(|owner| wanted(&owner));
    // What serves somebody else by its own words is not taken along.
    let spared = |seen: &Seen| seen.owner(places, false).is_some_and(|owner| !wanted(&owner));
    end_trees(root, spared).await
}

/// Ends what was seen as unclaimed, and everything below it but what is claimed. Pids and start times.
pub(crate) async fn end_these(unclaimed: &HashSet<(i32, u64)>, claimed: &HashSet<(i32, u64)>) -> Ended {
    end_trees(|seen| unclaimed.contains(&(seen.pid, seen.start)), |seen| claimed.contains(&(seen.pid, seen.start))).await
}

async fn end_trees(root: impl Fn(&Seen) -> bool, spared: impl Fn(&Seen) -> bool) -> Ended {
    let deadline = Instant::now() + DEATH;
    let mut killed = HashSet::new();
    loop {
        let table = table(Instant::now()).await;
        let mut doomed: Vec<&Seen> = table.iter().filter(|seen| root(seen)).collect();
        let mut at = 0;
        while let Some(parent) = doomed.get(at).map(|seen| seen.pid) {
            at += 1;
            let children: Vec<&Seen> =
                table.iter().filter(|s| s.parent == parent && !spared(s) && !doomed.iter().any(|d| d.pid == s.pid)).collect();
            doomed.extend(children);
        }
        if doomed.is_empty() {
            return Ended { killed: killed.len(), resisting: Vec::new() };
        }
        if Instant::now() > deadline {
            return Ended { killed: killed.len(), resisting: doomed.iter().map(|seen| seen.pid).collect() };
        }
        // Executors are stopped first, so that they neither report nor restart anything while their children die.
        for signal in [Signal::STOP, Signal::KILL] {
            for seen in doomed.iter().filter(|seen| signal == Signal::KILL || seen.log_file.is_some()) {
                if send(seen, signal) && signal == Signal::KILL {
                    killed.insert((seen.pid, seen.start));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sends a signal to the very process that was seen.
fn send(seen: &Seen, signal: Signal) -> bool {
    let Some(fd) = Pid::from_raw(seen.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    // Compared after opening: the descriptor cannot mean anybody who gets the number later.
    let same = executor_client::ProcessStat::of(seen.pid).is_some_and(|now| now.start == seen.start);
    same && pidfd_send_signal(&fd, signal).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(dir: &Path) -> Places {
        Places { alloc_dirs: vec![dir.join("alloc")], socket_dirs: vec![dir.join("p")], collector_dirs: vec![dir.join("c")] }
    }

    #[test]
    fn only_executors_with_a_log_file_are_recognised() {
        let line = |parts: &[&str]| parts.join("\0").into_bytes();
        for (parts, expected) in [
            (&["/p/driver", "executor", r#"{"LogFile":"/a/t/executor.out","LogLevel":"debug"}"#][..], Some("/a/t/executor.out")),
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
        let cases = [
            ("an executor", Seen { log_file: Some(in_task("/executor.out")), ..Seen::default() }, true, true),
            ("a foreign executor", Seen { log_file: Some("/other/alloc/x/executor.out".into()), ..Seen::default() }, false, false),
            ("a workload", Seen { cwd: Some(in_task("/local")), ..workload.clone() }, true, true),
            ("a workload that has gone elsewhere", Seen { cwd: Some("/".into()), ..workload.clone() }, true, false),
            ("an instance of a remote runtime", Seen { cwd: Some("/runtime/i/t".into()), ..workload }, true, false),
            ("one that is silent", Seen { cwd: Some(in_task("/local")), silent: true, ..Seen::default() }, true, true),
            ("one that is silent, elsewhere", Seen { cwd: Some("/".into()), silent: true, ..Seen::default() }, false, false),
            ("offspring of a plugin", plugin("/d/p", in_task("/local")), true, true),
            ("of a foreign plugin", plugin("/e/p", in_task("")), false, false),
            ("a plugin", plugin("/d/p", "/".into()), false, false),
            ("in the allocation", plugin("/d/p", format!("/d/alloc/{id}").into()), false, false),
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
            let all = fs::read_dir("/proc").expect("proc").flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
            all.filter_map(executor_client::ProcessStat::of).filter(|p| p.ppid == parent.cast_signed()).count()
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while (children(executor.id()) == 0 || children(neighbour.id()) == 0) && Instant::now() < deadline {
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
