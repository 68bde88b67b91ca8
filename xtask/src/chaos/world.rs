//! A server and a node, tasks on it, and what must be true of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    interop::{
        api::text,
        cluster::{Agent, Role, program},
        job::Job,
    },
    local::{kill, processes_of, until},
};

/// Every wait ends after this long.
pub(super) const BOUND: Duration = Duration::from_secs(60);
/// So soon the workload of a dead executor has ended: at once, by a machine that has time for it.
const CONTAINED: Duration = Duration::from_secs(20);

/// What violations there were.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) lost: usize,
    pub(super) duplicated: usize,
    pub(super) leaked: usize,
    pub(super) wrong: usize,
}

/// A process, told from a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    start: u64,
}

impl Process {
    pub(super) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        (!matches!(*fields.first()?, "Z" | "X")).then_some(Self { pid, start: fields.get(19)?.parse().ok()? })
    }
    pub(super) fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
    /// By the kernel's clock of 10 ms, which tells it from others that had its number.
    pub(super) fn is_younger_than(self, other: Self) -> bool {
        self.start > other.start
    }
}

/// A job of one task `t`.
#[derive(Clone)]
pub(super) struct Spec {
    pub(super) driver: &'static str,
    /// Run by a shell after the start was noted.
    pub(super) script: String,
    pub(super) restarts: u32,
    pub(super) kill_timeout: Duration,
    /// Log files and their size in MiB.
    pub(super) logs: (u32, u32),
    /// Further configuration of the driver.
    pub(super) config: Value,
    /// What is fetched before the start.
    pub(super) artifacts: Value,
    pub(super) batch: bool,
}

impl Spec {
    /// A service of `raw_exec`.
    pub(super) fn new(script: impl Into<String>) -> Self {
        Self {
            driver: "raw_exec",
            script: script.into(),
            restarts: 0,
            kill_timeout: Duration::from_secs(2),
            logs: (2, 1),
            config: json!({}),
            artifacts: Value::Null,
            batch: false,
        }
    }
    /// Runs until it is stopped.
    pub(super) fn endless() -> Self {
        Self::new("exec sleep 98765")
    }
    /// Runs until the file `go` appears beside its other data, and ends with this code.
    pub(super) fn until_go(code: i32) -> Self {
        Self::new(format!("while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.05; done; exit {code}"))
    }
    pub(super) fn driver(mut self, driver: &'static str) -> Self {
        self.driver = driver;
        self
    }
    pub(super) fn restarts(mut self, restarts: u32) -> Self {
        self.restarts = restarts;
        self
    }
}

/// Both drivers in turn.
pub(super) fn driver(n: usize) -> &'static str {
    ["raw_exec", "exec"][n % 2]
}

/// Everything that a run works on.
pub(super) struct World {
    pub(super) server: Agent,
    pub(super) node: Agent,
    pub(super) cycles: usize,
    jobs: BTreeMap<String, Spec>,
    submitted: usize,
    tally: Tally,
    violations: Vec<String>,
    /// How many nodes there were.
    nodes: usize,
    /// Where the present node lives: its state and its allocations.
    roots: (PathBuf, PathBuf),
    /// Allocations whose remains are looked for.
    seen: BTreeSet<String>,
    /// How often plugins were killed under the present agent.
    plugin_kills: usize,
}

/// Where a node lives that is told nothing else.
fn usual_roots(node: &Agent) -> (PathBuf, PathBuf) {
    (node.dir().join("data/client"), node.dir().join("data/alloc"))
}

impl World {
    pub(super) fn start(cycles: usize) -> Result<Self> {
        let server = Agent::start_as("chaos-server", Role::Server, &[], "")?;
        let node = Agent::start_as("chaos-0", Role::Node(&server), &[], "")?;
        let roots = usual_roots(&node);
        let world = Self {
            roots,
            seen: BTreeSet::new(),
            plugin_kills: 0,
            server,
            node,
            cycles,
            jobs: BTreeMap::new(),
            submitted: 0,
            tally: Tally::default(),
            violations: Vec::new(),
            nodes: 1,
        };
        world.wait_for_node()?;
        Ok(world)
    }

    /// Another node for one fault, which lives in a directory that is given.
    pub(super) fn with_node(&mut self, root: &Path, story: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (state, alloc) = (root.join("state"), root.join("alloc"));
        let more = format!("client {{\n  state_dir = {state:?}\n  alloc_dir = {alloc:?}\n}}\n");
        let name = format!("chaos-{}", self.nodes);
        self.nodes += 1;
        let other = Agent::start_as(&name, Role::Node(&self.server), &[], &more)?;
        let usual = std::mem::replace(&mut self.node, other);
        self.roots = (state, alloc);
        let told = self.wait_for_node().and_then(|()| story(self)).and_then(|()| self.clean_up());
        let told = told.with_context(|| format!("the end of the node's log:\n{}", self.node.log_tail()));
        // The node goes before what it lives on.
        self.node = usual;
        self.roots = usual_roots(&self.node);
        for job in std::mem::take(&mut self.jobs).into_keys() {
            let _ = self.server.delete(&format!("/v1/job/{job}?purge=true"));
        }
        self.seen.clear();
        told
    }

    /// A fresh node: what a broken run has left goes with the former one.
    pub(super) fn start_over(&mut self) -> Result<()> {
        for job in std::mem::take(&mut self.jobs).into_keys() {
            let _ = self.server.delete(&format!("/v1/job/{job}?purge=true"));
        }
        let name = format!("chaos-{}", self.nodes);
        self.nodes += 1;
        self.node = Agent::start_as(&name, Role::Node(&self.server), &[], "")?;
        self.roots = usual_roots(&self.node);
        self.seen.clear();
        self.plugin_kills = 0;
        self.wait_for_node()
    }

    /// Records, sockets and identity of the node.
    pub(super) fn state_dir(&self) -> &Path {
        &self.roots.0
    }

    pub(super) fn violations(&self) -> &[String] {
        &self.violations
    }
    pub(super) fn note(&mut self, what: String) {
        self.violations.push(what);
    }
    pub(super) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }
    pub(super) fn lost(&mut self, what: String) {
        self.tally.lost += 1;
        self.note(format!("lost: {what}"));
    }
    pub(super) fn duplicated(&mut self, what: String) {
        self.tally.duplicated += 1;
        self.note(format!("duplicated: {what}"));
    }
    pub(super) fn leaked(&mut self, what: String) {
        self.tally.leaked += 1;
        self.note(format!("leaked: {what}"));
    }
    pub(super) fn wrong(&mut self, what: String) {
        self.tally.wrong += 1;
        self.note(format!("wrong: {what}"));
    }

    /// Copies the logs of server and node to where they outlive this run.
    pub(super) fn keep_logs(&self, fault: &str, run: usize) -> Result<PathBuf> {
        let dir = crate::local::target_dir().join("chaos").join(format!("{fault}-{run}"));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("server.log"), self.server.log())?;
        fs::write(dir.join("node.log"), self.node.log())?;
        fs::write(dir.join("violations"), self.violations.join("\n"))?;
        Ok(dir)
    }

    /// Until the servers have this node ready, with both drivers.
    pub(super) fn wait_for_node(&self) -> Result<()> {
        until("a ready node with its drivers", BOUND, || Ok(self.is_ready()?.then_some(())))
    }

    fn is_ready(&self) -> Result<bool> {
        let nodes = self.server.list("/v1/nodes")?;
        Ok(nodes.iter().any(|n| {
            let healthy = |driver: &str| n["Drivers"][driver]["Healthy"] == true;
            n["Name"] == self.node.name() && n["Status"] == "ready" && healthy("raw_exec") && healthy("exec")
        }))
    }

    /// As [`World::wait_for_node`], of an agent that may have refused to begin where it could not write: then it is
    /// started once more. How it had ended, which may be later than what it could not write was made good.
    pub(super) fn wait_for_node_that_refused(&mut self) -> Result<Option<ExitStatus>> {
        let mut refused = None;
        until("a ready node, whose agent may have refused to begin", BOUND, || {
            if let Some(ended) = self.node.ended()? {
                if refused.is_none() {
                    refused = Some(ended);
                    self.node.restart()?;
                }
                bail!("the agent has ended with {ended}");
            }
            // The servers may still take the node for ready that was there before.
            self.node.get("/v1/client/metadata")?;
            Ok(self.is_ready()?.then_some(()))
        })?;
        Ok(refused)
    }

    /// Who the node says it is.
    pub(super) fn node_id(&self) -> Result<String> {
        until("the node's own id", BOUND, || {
            let audit = self.node.get("/v1/client/audit")?;
            Ok(audit["NodeID"].as_str().map(str::to_owned))
        })
    }

    // ---- tasks

    /// Submits a job of its own name; returns that.
    pub(super) fn submit(&mut self, spec: &Spec) -> Result<String> {
        self.submitted += 1;
        let id = format!("chaos-{}-{}", std::process::id(), self.submitted);
        self.jobs.insert(id.clone(), spec.clone());
        self.server.put("/v1/jobs", &self.job(&id, spec))?;
        Ok(id)
    }

    fn job(&self, id: &str, spec: &Spec) -> Value {
        let mut config = spec.config.clone();
        config["command"] = "/bin/sh".into();
        config["args"] = json!(["-c", format!("echo $$ >> $NOMAD_ALLOC_DIR/data/starts; {}", spec.script)]);
        let kind = if spec.batch { "batch" } else { "service" };
        let update = if spec.batch { Value::Null } else { json!({"MaxParallel": 0}) };
        let group = json!({
            "Constraints": [{"LTarget": "${node.unique.name}", "RTarget": self.node.name(), "Operand": "="}],
            "Update": update,
            "RestartPolicy": {"Attempts": spec.restarts, "Mode": "fail", "Interval": 600_000_000_000_i64,
                "Delay": 50_000_000},
            "EphemeralDisk": {"SizeMB": 10 + spec.logs.0 * spec.logs.1 * 2},
        });
        let task = json!({
            "Artifacts": spec.artifacts, "Resources": {"CPU": 10, "MemoryMB": 64},
            "KillTimeout": i64::try_from(spec.kill_timeout.as_nanos()).unwrap_or(i64::MAX),
            "LogConfig": {"MaxFiles": spec.logs.0, "MaxFileSizeMB": spec.logs.1},
        });
        Job::new(id, kind, spec.driver, config).once().group(group).task(task).body()
    }

    /// The one allocation of a job; None before it was placed.
    pub(super) fn alloc(&self, job: &str) -> Result<Option<Value>> {
        let mut all = self.server.allocs(job)?;
        ensure!(all.len() <= 1, "job {job} has {} allocations", all.len());
        Ok(all.pop())
    }

    pub(super) fn alloc_id(&self, job: &str) -> Result<String> {
        until("the allocation", BOUND, || Ok(self.alloc(job)?.map(|a| text(&a["ID"]))))
    }

    pub(super) fn alloc_dir(&self, job: &str) -> Result<PathBuf> {
        Ok(self.roots.1.join(self.alloc_id(job)?))
    }

    /// Submits and waits until it runs.
    pub(super) fn start_task(&mut self, spec: &Spec) -> Result<(String, Process)> {
        let job = self.submit(spec)?;
        let process = self.running(&job)?;
        Ok((job, process))
    }

    /// Waits until the servers see a job running and its workload has noted its start.
    pub(super) fn running(&self, job: &str) -> Result<Process> {
        let dir = self.alloc_dir(job)?;
        until("the running task", BOUND, || {
            let alloc = self.alloc(job)?;
            if alloc.as_ref().is_some_and(|a| a["ClientStatus"] == "failed") {
                bail!("the task has failed: {}", self.events(job)?.join("; "));
            }
            let running = alloc.is_some_and(|a| a["ClientStatus"] == "running");
            Ok((running && self.starts(&dir) > 0).then(|| self.workload(&dir)).flatten())
        })
    }

    /// How often the workload has begun.
    pub(super) fn starts(&self, alloc_dir: &Path) -> usize {
        fs::read_to_string(alloc_dir.join("alloc/data/starts")).unwrap_or_default().lines().count()
    }

    fn records(&self, alloc_dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(alloc_dir.join("t/private/executor")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join("executor.json")).collect()
    }

    fn pid_in(&self, alloc_dir: &Path, field: &str) -> Option<Process> {
        self.records(alloc_dir).iter().find_map(|path| {
            let record: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
            Process::of(u32::try_from(record[field].as_u64()?).ok().filter(|pid| *pid > 0)?)
        })
    }

    /// The workload's first process, by its executor's record.
    pub(super) fn workload(&self, alloc_dir: &Path) -> Option<Process> {
        self.pid_in(alloc_dir, "workload_pid")
    }
    /// Its executor.
    pub(super) fn executor(&self, alloc_dir: &Path) -> Option<Process> {
        self.pid_in(alloc_dir, "executor_pid")
    }

    /// Lets tasks of [`Spec::until_go`] end.
    pub(super) fn go(&self, job: &str) -> Result<()> {
        Ok(fs::write(self.alloc_dir(job)?.join("alloc/data/go"), "")?)
    }

    /// Live processes of a job that have no parent of the same job: one for each instance.
    pub(super) fn instances(&self, job: &str) -> Vec<u32> {
        let wanted = format!("NOMAD_JOB_ID={job}");
        let of_job = |pid: u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes())
        };
        let pids = crate::local::pids();
        let found: Vec<u32> = pids.filter(|pid| of_job(*pid) && Process::of(*pid).is_some()).collect();
        let parent = |pid: u32| -> Option<u32> {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
        };
        // One that has ended meanwhile has no parent to be read any more, and is none.
        found.iter().copied().filter(|pid| parent(*pid).is_some_and(|parent| !found.contains(&parent))).collect()
    }

    /// Texts of the task's events.
    pub(super) fn events(&self, job: &str) -> Result<Vec<String>> {
        let events = self.server.events(&self.alloc_id(job)?)?;
        Ok(events.iter().map(|e| format!("{} {}", text(&e["Type"]), text(&e["DisplayMessage"]))).collect())
    }

    // ---- processes of the node

    /// Plugin processes by driver.
    pub(super) fn plugin(&self, driver: &str) -> Option<Process> {
        let ending = format!("driver {driver}");
        self.node.pids(|line| line.ends_with(&ending)).first().and_then(|pid| Process::of(*pid))
    }

    pub(super) fn kill_plugins(&mut self) -> Result<()> {
        self.plugin_kills += 1;
        self.node.pids(|line| line.contains(" driver ")).into_iter().try_for_each(kill)
    }

    /// SIGKILL for every executor of the node.
    pub(super) fn kill_executors(&self) -> Result<()> {
        self.node.pids(|line| line.contains("drover-executor") && line.contains(" run ")).into_iter().try_for_each(kill)
    }

    /// Plugins that die again and again are started with growing pauses. That is right, and not what the next run is
    /// about: a new agent begins to count anew.
    pub(super) fn rest(&mut self) -> Result<()> {
        if self.plugin_kills > 2 {
            self.node.stop()?;
            self.restart_node()?;
            until("the plugins", BOUND, || {
                Ok((self.plugin("raw_exec").is_some() && self.plugin("exec").is_some()).then_some(()))
            })?;
            self.wait_for_node()?;
        }
        Ok(())
    }

    /// Starts the agent that was killed, and waits for its node.
    pub(super) fn restart_node(&mut self) -> Result<()> {
        self.plugin_kills = 0;
        self.node.restart()?;
        until("an answer of the node", BOUND, || Ok(self.node.get("/v1/client/metadata").is_ok().then_some(())))
    }

    // ---- what must be true

    /// The node follows the task again, and it is the same process, once.
    pub(super) fn must_run_on(&mut self, job: &str, before: Process) -> Result<()> {
        self.must_run_on_with(job, before, 1)
    }

    /// As before, of a task with several processes that have no parent in it.
    pub(super) fn must_run_on_with(&mut self, job: &str, before: Process, most: usize) -> Result<()> {
        let id = self.alloc_id(job)?;
        let attached = until("the node to follow the task", BOUND, || {
            let alloc = self.alloc(job)?.unwrap_or_default();
            if alloc["ClientStatus"] != "running" && alloc["ClientStatus"] != "unknown" {
                return Ok(Some(false));
            }
            Ok(self.node.stats(&id)?.map(|_| true))
        });
        let alive = before.is_alive();
        if !alive || !attached.as_ref().is_ok_and(|a| *a) {
            let events = self.events(job)?.join("; ");
            self.lost(format!("{job} (process {} {}): {events}", before.pid, if alive { "alive" } else { "dead" }));
        }
        attached?;
        let (instances, starts) = (self.instances(job), self.starts(&self.alloc_dir(job)?));
        if instances.len() > most || starts > 1 {
            self.duplicated(format!("{job}: instances {instances:?}, {starts} starts"));
        }
        Ok(())
    }

    /// It comes to its end with this code, and that is what everybody is told.
    pub(super) fn must_end_with(&mut self, job: &str, code: i64) -> Result<()> {
        let id = self.alloc_id(job)?;
        until("the end of the task", BOUND, || {
            let alloc = self.alloc(job)?.unwrap_or_default();
            Ok(matches!(alloc["ClientStatus"].as_str(), Some("complete" | "failed")).then_some(()))
        })?;
        let events = self.server.events(&id)?;
        let ends: Vec<i64> =
            events.iter().filter(|e| e["Type"] == "Terminated").filter_map(|e| e["ExitCode"].as_i64()).collect();
        if ends != [code] {
            let told = self.events(job)?.join("; ");
            self.wrong(format!("{job} ended with {code}, told is {ends:?}: {told}"));
        }
        Ok(())
    }

    /// A workload without its executor ends soon.
    pub(super) fn must_be_contained(&mut self, job: &str, workload: Process, since: Instant) {
        while workload.is_alive() && since.elapsed() < CONTAINED {
            std::thread::sleep(Duration::from_millis(2));
        }
        if workload.is_alive() {
            self.leaked(format!("{job}: process {} lives {:?} after its executor", workload.pid, since.elapsed()));
        }
    }

    /// Some event of the task says so.
    pub(super) fn must_be_told(&mut self, job: &str, text: &str) -> Result<()> {
        let told = until("the event", BOUND, || Ok(self.events(job)?.iter().any(|e| e.contains(text)).then_some(())));
        if told.is_err() {
            let events = self.events(job)?.join("; ");
            self.wrong(format!("{job}: no event says {text:?}: {events}"));
        }
        Ok(())
    }

    /// No more than one instance of the job now, and no more starts than this.
    pub(super) fn must_not_be_doubled(&mut self, job: &str, starts: usize) -> Result<()> {
        let (instances, begun) = (self.instances(job), self.starts(&self.alloc_dir(job)?));
        if instances.len() > 1 || begun > starts {
            self.duplicated(format!("{job}: instances {instances:?}, {begun} starts where {starts} are right"));
        }
        Ok(())
    }

    /// Stops a job and waits for its end.
    pub(super) fn stop(&mut self, job: &str) -> Result<()> {
        self.server.delete(&format!("/v1/job/{job}"))?;
        self.wait_stopped(job)
    }

    pub(super) fn wait_stopped(&mut self, job: &str) -> Result<()> {
        until("the end of the stopped task", BOUND, || {
            Ok(self
                .alloc(job)?
                .is_none_or(|a| matches!(a["ClientStatus"].as_str(), Some("complete" | "failed")))
                .then_some(()))
        })
    }

    /// Stops and purges everything; then nothing may be left.
    pub(super) fn clean_up(&mut self) -> Result<()> {
        self.stop_all()?;
        self.balance()
    }

    /// Stops and purges everything.
    pub(super) fn stop_all(&mut self) -> Result<()> {
        for job in std::mem::take(&mut self.jobs).into_keys() {
            self.stop(&job)?;
            self.seen.extend(self.alloc(&job)?.map(|a| text(&a["ID"])));
            let live = self.instances(&job);
            if !live.is_empty() {
                self.leaked(format!("{job} has ended, by its status, and processes {live:?} live"));
            }
            self.server.delete(&format!("/v1/job/{job}?purge=true"))?;
        }
        Ok(())
    }

    /// The node's books must be empty but for its plugins, and so must be what can be seen without them.
    fn balance(&mut self) -> Result<()> {
        let mut left = Vec::new();
        let until = Instant::now() + BOUND;
        while Instant::now() < until {
            self.server.put_text("/v1/system/gc", &json!({}))?;
            left = self.left()?;
            if left.is_empty() {
                self.seen.clear();
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for what in left {
            self.leaked(what);
        }
        // The next run begins on a clean table.
        self.node.put("/v1/client/audit", &json!({}))?;
        Ok(())
    }

    fn left(&self) -> Result<Vec<String>> {
        let audit = self.node.get("/v1/client/audit")?;
        let nobody = "00000000-0000-0000-0000-000000000000";
        let mut left: Vec<String> = audit["Findings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|f| {
                f["AllocID"].as_str().is_some_and(|id| id != nobody && !id.is_empty()) || f["Status"] != "claimed"
            })
            .map(|f| format!("in the books: {} {} {} ({})", f["Status"], f["Kind"], f["What"], f["Reason"]))
            .collect();
        let agent = self.node.pid();
        let foreign = |pid: u32, line: &str| pid != agent && !line.contains(" driver ") && !line.contains("serve-host");
        let mut processes = self.node.processes();
        processes.extend(processes_of(&self.roots.1));
        left.extend(
            processes.into_iter().filter(|(p, line)| foreign(*p, line)).map(|(p, line)| format!("process {p} {line}")),
        );
        let dirs = fs::read_dir(&self.roots.1).into_iter().flatten().flatten();
        left.extend(dirs.map(|entry| format!("directory {}", entry.path().display())));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let below = self.roots.1.display().to_string() + "/";
        left.extend(mounts.lines().filter(|line| line.contains(&below)).map(|line| format!("mount {line}")));
        cgroups_of(Path::new("/sys/fs/cgroup"), &self.seen, 0, &mut left);
        Ok(left)
    }

    /// What an operator would see in the end.
    pub(super) fn audit_by_command(&self) -> Result<()> {
        let output = Command::new(program())
            .args(["node", "audit", "-v", "-address", &self.node.address()])
            .stdin(Stdio::null())
            .output()
            .context("could not run `drover node audit`")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() && text.contains("The books balance"),
            "`drover node audit` in the end: {} {text}",
            output.status
        );
        Ok(())
    }
}

/// Cgroups that are named by one of the allocations, in any hierarchy.
fn cgroups_of(dir: &Path, allocs: &BTreeSet<String>, depth: usize, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if allocs.iter().any(|alloc| name.contains(alloc.as_str())) {
            found.push(format!("cgroup {}", entry.path().display()));
        }
        if depth < 5 {
            cgroups_of(&entry.path(), allocs, depth + 1, found);
        }
    }
}
