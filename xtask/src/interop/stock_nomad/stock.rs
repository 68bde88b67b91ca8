//! A stock agent with our plugins, and what one asks it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::super::{api::text, cluster::Agent, job::Job, stock_cli::Cli};
use crate::{
    local::{self, kill, processes_of, target_dir},
    peer::Release,
};

/// A restart of a stock agent takes seconds, on a busy machine many.
const BOUND: Duration = Duration::from_secs(90);

/// Asks until the answer is there, without flooding the agent's log with requests.
pub(super) fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    local::until(what, BOUND, || {
        let answer = ask();
        if !matches!(answer, Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(25));
        }
        answer
    })
}

/// Files of `plugin_dir` and the binaries that they are. The name of a file is that of its `plugin` block.
const PLUGINS: [(&str, &str); 3] = [
    ("raw_exec", "drover-driver-raw-exec"),
    ("mock", "drover-driver-mock"),
    ("remote_exec", "drover-driver-remote-exec"),
];

/// What the agent writes when it dies of a plugin.
const DEATH_CRIES: [&str; 4] = ["panic: ", "fatal error: ", "nil pointer dereference", "[signal SIG"];

/// The agent and what the stories share.
pub(super) struct Stock {
    pub(super) release: &'static Release,
    pub(super) agent: Agent,
    program: PathBuf,
    /// Allocations that were seen.
    allocs: BTreeSet<String>,
    /// Plugin processes that were killed: they cannot remove their sockets.
    killed: usize,
}

/// Starts an agent with our plugins.
pub(super) fn agent(program: &Path, name: &str, server: Option<u16>, remote_root: &Path) -> Result<Agent> {
    let binaries = PLUGINS.map(|(file, binary)| (file, target_dir().join("debug").join(binary)));
    let plugins: Vec<(&str, &Path)> = binaries.iter().map(|(file, from)| (*file, from.as_path())).collect();
    let more = format!(
        "plugin \"raw_exec\" {{\n config {{\n enabled = true\n }}\n}}\nplugin \"mock\" {{\n}}\n\
         plugin \"remote_exec\" {{\n config {{\n root = {remote_root:?}\n }}\n}}\n"
    );
    Agent::start_stock(program, name, &plugins, server, &more)
}

impl Stock {
    /// Starts server and node.
    pub(super) fn start(release: &'static Release, program: PathBuf) -> Result<Self> {
        let name = format!("nomad-{}", release.name);
        // Outside every node's own directory, and yet found with it.
        let root = std::env::temp_dir().join(format!("drover-interop-{name}-{}/remote", std::process::id()));
        let agent = agent(&program, &name, None, &root)?;
        Ok(Self { release, agent, program, allocs: BTreeSet::new(), killed: 0 })
    }

    /// Another node of the same cluster, with the same remote runtime.
    pub(super) fn second_node(&self) -> Result<Agent> {
        agent(
            &self.program,
            &format!("nomad-{}-second", self.release.name),
            Some(self.agent.rpc_port()),
            &self.remote_root(),
        )
    }
    /// The directory of the remote runtime.
    pub(super) fn remote_root(&self) -> PathBuf {
        self.agent.dir().join("remote")
    }

    /// Registers a job of one group and one task.
    pub(super) fn run(&self, job: &Value) -> Result<()> {
        self.agent.put("/v1/jobs", job).with_context(|| format!("registering {}", job["Job"]["ID"]))?;
        Ok(())
    }
    /// The newest allocation of a job, when it has this status.
    pub(super) fn alloc(&mut self, job: &str, status: &str) -> Result<String> {
        let id = until(&format!("an allocation of {job} that is {status}"), || {
            let allocs = self.agent.allocs(job)?;
            let Some(newest) = allocs.iter().max_by_key(|a| a["CreateIndex"].as_u64()) else { return Ok(None) };
            if newest["ClientStatus"] != status {
                bail!("it is {}: {}", newest["ClientStatus"], newest["TaskStates"]["t"]["Events"]);
            }
            Ok(newest["ID"].as_str().map(str::to_owned))
        })?;
        self.allocs.insert(id.clone());
        Ok(id)
    }
    /// Runs a job and waits until its allocation has this status.
    pub(super) fn run_until(&mut self, job: &Value, status: &str) -> Result<String> {
        self.run(job)?;
        self.alloc(job["Job"]["ID"].as_str().unwrap_or_default(), status)
    }
    /// The state of an allocation's task.
    pub(super) fn task_state(&self, alloc: &str) -> Result<Value> {
        self.agent.task(alloc)
    }
    /// Waits for an event of an allocation's task.
    pub(super) fn event(&self, alloc: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        until(&format!("{what} among the events"), || {
            let events = self.agent.events(alloc)?;
            match events.iter().find(|e| wanted(e)) {
                Some(event) => Ok(Some(event.clone())),
                None => bail!("there are {events:?}"),
            }
        })
    }
    /// Waits until a log says what is wanted.
    pub(super) fn log(&self, alloc: &str, stream: &str, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        until(&format!("{what} on {stream}"), || {
            let text = self.agent.output(alloc, stream)?;
            if wanted(&text) { Ok(Some(text)) } else { bail!("it reads {text:?}") }
        })
    }
    /// A sample of an allocation's task.
    pub(super) fn stats(&self, alloc: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        until("a sample of resource use", || match self.agent.stats(alloc)? {
            Some(task) if wanted(&task) => Ok(Some(task)),
            last => bail!("the last one was {last:?}"),
        })
    }
    /// Stops a job and waits for the end of its allocation.
    pub(super) fn stop(&mut self, job: &str) -> Result<()> {
        self.agent.delete(&format!("/v1/job/{job}"))?;
        until(&format!("the end of {job}"), || {
            let over = |a: &Value| matches!(a["ClientStatus"].as_str(), Some("complete" | "failed" | "lost"));
            Ok(self.agent.allocs(job)?.iter().all(over).then_some(()))
        })
    }

    /// The process of a plugin.
    pub(super) fn plugin(&self, agent: &Agent, file: &str) -> Option<u32> {
        let path = agent.dir().join("plugins").join(file);
        agent.processes().into_iter().find(|(_, command)| Path::new(command.trim()) == path).map(|(pid, _)| pid)
    }
    /// SIGKILL for a plugin; returns when another one serves.
    pub(super) fn kill_plugin(&mut self, file: &str) -> Result<()> {
        let before = self.plugin(&self.agent, file).context("the plugin does not run")?;
        self.killed += 1;
        kill(before)?;
        until(&format!("another process of {file}"), || Ok(self.plugin(&self.agent, file).filter(|p| *p != before)))
            .map(drop)
    }
    /// Takes note that a plugin process was or will be killed otherwise.
    pub(super) fn note_killed_plugins(&mut self, count: usize) {
        self.killed += count;
    }
    /// Processes of workloads whose command line ends with `what`.
    pub(super) fn workloads(&self, what: &str) -> Vec<u32> {
        let like = self.agent.pids(|command| command.ends_with(what));
        // A shell's child looks like the shell until it has become its command.
        like.iter().copied().filter(|pid| !like.contains(&parent(*pid))).collect()
    }
    /// The one workload like this.
    pub(super) fn workload(&self, what: &str) -> Result<u32> {
        until(&format!("one process like {what:?}"), || match self.workloads(what).as_slice() {
            [one] => Ok(Some(*one)),
            other => bail!("there are {other:?}"),
        })
    }
    /// Waits until no workload is like this.
    pub(super) fn no_workload(&self, what: &str) -> Result<()> {
        until(&format!("no process like {what:?}"), || Ok(self.workloads(what).is_empty().then_some(())))
    }

    /// Waits until the node is ready and the drivers healthy.
    pub(super) fn ready(&self) -> Result<()> {
        until("a ready node with our drivers", || {
            let here = self.agent.node(&format!("nomad-{}", self.release.name))?;
            let healthy = PLUGINS.iter().all(|(file, _)| here["Drivers"][*file]["Healthy"] == true);
            Ok((here["Status"] == "ready" && healthy).then_some(()))
        })
    }
    /// The node's id.
    pub(super) fn node_id(&self, name: &str) -> Result<String> {
        until(&format!("a ready node {name}"), || {
            let node = self.agent.node(name)?;
            Ok((node["Status"] == "ready").then(|| text(&node["ID"])))
        })
    }

    /// The stock command line, asking this agent.
    pub(super) fn cli(&self) -> Cli {
        Cli { program: self.program.clone(), address: self.agent.address(), token: String::new() }
    }

    /// The agent has not ended by itself, and nothing in its log is a crash.
    pub(super) fn is_well(&mut self) -> Result<()> {
        ensure!(self.agent.is_alive()?, "the agent has ended by itself");
        let log = self.agent.log();
        // Lines of plugins are theirs: one of the drivers panics where the job asks for it.
        let cry = log
            .lines()
            .find(|l| !l.contains("plugin") && !l.contains("driver=") && DEATH_CRIES.iter().any(|c| l.contains(c)));
        ensure!(cry.is_none(), "the agent's log has a crash: {}", cry.unwrap_or_default());
        Ok(())
    }

    /// Stops and forgets all jobs; then only the agent and its plugins are left.
    pub(super) fn nothing_is_left(&mut self) -> Result<()> {
        for job in self.agent.list("/v1/jobs")? {
            self.agent.delete(&format!("/v1/job/{}?purge=true", text(&job["ID"])))?;
        }
        until("only plugins and executors' files left", || {
            // Its answer has no body.
            self.agent.put_text("/v1/system/gc", &json!({}))?;
            let ours: Vec<String> = self
                .agent
                .processes()
                .into_iter()
                .filter(|(pid, command)| *pid != self.agent.pid() && !of_a_plugin(command))
                .map(|(pid, command)| format!("process {pid}: {command}"))
                .chain(self.mounts())
                .chain(self.alloc_dirs())
                .chain(self.cgroups())
                .collect();
            if ours.is_empty() { Ok(Some(())) } else { bail!("there are {ours:?}") }
        })?;
        let executors =
            self.agent.processes().values().filter(|c| c.contains("drover-executor") && !of_a_plugin(c)).count();
        ensure!(executors == 0, "{executors} executors are left");
        self.agent.stop()?;
        until("the end of the plugins", || {
            let left = processes_of(self.agent.dir());
            if left.is_empty() { Ok(Some(())) } else { bail!("there are {left:?}") }
        })?;
        let sockets: Vec<_> = fs::read_dir(self.agent.dir().join("tmp"))?.flatten().map(|e| e.file_name()).collect();
        // The agent kills a plugin that needs longer than two seconds to end, and says so.
        let forced = self.agent.log().matches("plugin failed to exit gracefully").count();
        ensure!(
            sockets.len() <= self.killed + forced,
            "{} plugins were killed, {forced} of them by the agent, yet there are {sockets:?}",
            self.killed + forced
        );
        let own = self.remote_root().join("instances");
        let instances = fs::read_dir(&own).map(|d| d.count()).unwrap_or_default();
        eprintln!("  nothing is left ({instances} acknowledged remote instances keep their mark)");
        Ok(())
    }
    fn mounts(&self) -> Vec<String> {
        let dir = self.agent.dir().to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        mounts.lines().filter(|l| l.contains(&dir)).map(|l| format!("mount {l}")).collect()
    }
    fn alloc_dirs(&self) -> Vec<String> {
        let dirs = fs::read_dir(self.agent.dir().join("data/alloc")).into_iter().flatten().flatten();
        // The executors' program lies beside the allocations, once per release.
        dirs.map(|d| d.file_name().to_string_lossy().into_owned())
            .filter(|n| n != ".executors")
            .map(|n| format!("allocation {n}"))
            .collect()
    }
    fn cgroups(&self) -> Vec<String> {
        fn walk(dir: &Path, allocs: &BTreeSet<String>, found: &mut Vec<String>) {
            for entry in
                fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
            {
                let name = entry.file_name().to_string_lossy().into_owned();
                if allocs.iter().any(|a| name.contains(a.as_str())) {
                    found.push(format!("cgroup {}", entry.path().display()));
                }
                walk(&entry.path(), allocs, found);
            }
        }
        let mut found = Vec::new();
        walk(Path::new("/sys/fs/cgroup"), &self.allocs, &mut found);
        found
    }
}

/// A plugin, or the runtime that remote_exec keeps on this host and that ends with it.
fn of_a_plugin(command: &str) -> bool {
    command.contains(" serve-host ") || PLUGINS.iter().any(|(file, _)| command.ends_with(&format!("plugins/{file}")))
}

fn parent(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix("PPid:")?.trim().parse().ok()).unwrap_or(0)
}

/// A job of one group with one task, tried once.
pub(super) fn job(id: &str, kind: &str, driver: &str, config: &Value) -> Value {
    let job =
        Job::new(id, kind, driver, config.clone()).once().group(json!({"EphemeralDisk": {"SizeMB": 20}})).task(json!({
            "KillTimeout": 5_000_000_000_i64, "Resources": {"CPU": 50, "MemoryMB": 64},
            "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": 2}
        }));
    if kind == "service" { job.undeployed() } else { job }.body()
}

/// A job that runs a script of the shell.
pub(super) fn script(id: &str, kind: &str, driver: &str, text: &str) -> Value {
    job(id, kind, driver, &json!({"command": "/bin/sh", "args": ["-c", text]}))
}
