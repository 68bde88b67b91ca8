//! The cluster of the demo and of `drover check`: a server and nodes, each a process of this binary with its own
//! directory and log.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    net::TcpListener,
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use model::{GoDuration, RemoteTask};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{runtime::Runtime, sweep};
use crate::conn::Conn;
use server::join::JOIN_SECRET_FILE;

/// Name of the variable that the demo's agents get and hand down.
const MARK: &str = "DROVER_DEMO_DIR";

/// File that marks a directory as a demo's.
pub(crate) const MARKER: &str = "drover-demo";

/// A running demo cluster.
pub(crate) struct Cluster {
    dir: PathBuf,
    lease: GoDuration,
    runtime: Runtime,
    http_port: u16,
    rpc_port: u16,
    agents: BTreeMap<String, Child>,
    keep: bool,
    torn_down: bool,
}

/// Below the ports of tasks, and below those that the system gives to whoever asks for any: one of the latter may be
/// another program's before the server has it.
const PORTS: Range<u16> = 10_000..20_000;

/// Two ports that were free a moment ago.
fn free_ports() -> Result<(u16, u16)> {
    // Clusters that start at once look at different ones.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let of_this_process = usize::try_from(std::process::id())?.wrapping_mul(7_919);
    let first = of_this_process.wrapping_add(NEXT.fetch_add(2, Ordering::Relaxed)) % PORTS.len();
    let mut free =
        PORTS.cycle().skip(first).take(PORTS.len()).filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().zip(free.next()).context("no two ports are free on 127.0.0.1")
}

impl Cluster {
    /// Makes the directory of a demo; nothing runs yet.
    pub(crate) fn new(lease: GoDuration, runtime: Runtime) -> Result<Self> {
        let mut cluster = Self::below("drover-demo-", lease)?;
        cluster.runtime = runtime;
        fs::write(
            cluster.dir.join(MARKER),
            "The directory of a `drover demo`; `drover demo-stop DIRECTORY` ends what runs here.\n",
        )?;
        Ok(cluster)
    }
    /// The same with a directory of another name.
    pub(crate) fn below(prefix: &str, lease: GoDuration) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir()
            .context("could not make a directory for the cluster")?
            .keep();
        let (http_port, rpc_port) = free_ports()?;
        let (runtime, agents) = (Runtime::Here, BTreeMap::new());
        Ok(Self { dir, lease, runtime, http_port, rpc_port, agents, keep: false, torn_down: false })
    }
    /// Where everything lives.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
    /// The server's HTTP API.
    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.http_port)
    }
    /// A connection to the server.
    pub(crate) fn conn(&self) -> Result<Conn> {
        Conn::to(&self.address(), None, None)
    }
    /// Nothing is ended when this value goes.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
    }

    /// The configuration of a node that joins this cluster, without plugins.
    pub(crate) fn node_config(&self, name: &str) -> Value {
        json!({
            "data_dir": self.dir.join(name).join("data"),
            "name": name,
            "log_level": "info",
            "ports": {"http": 0},
            "client": {"enabled": true, "servers": [format!("127.0.0.1:{}", self.rpc_port)]},
            "drover": {"join_secret_file": self.dir.join("server/data/server").join(JOIN_SECRET_FILE)},
        })
    }

    /// Starts an agent with this configuration, HCL or JSON.
    pub(crate) fn spawn(&mut self, name: &str, config: &str) -> Result<()> {
        let home = self.dir.join(name);
        fs::create_dir_all(&home)?;
        let file = home.join(if config.starts_with('{') { "agent.json" } else { "agent.hcl" });
        fs::write(&file, config)?;
        let log = fs::OpenOptions::new().create(true).append(true).open(home.join("agent.log"))?;
        let program = std::env::current_exe().context("could not find this program's own file")?;
        let child = Command::new(program)
            .args(["agent", "-config"])
            .arg(&file)
            .env(MARK, &self.dir)
            // The demo is not steered by the environment of the person's own cluster.
            .env_remove("NOMAD_ADDR")
            .env_remove("DROVER_ADDR")
            .env_remove("DROVER_JOIN_SECRET")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("could not start {name}"))?;
        self.agents.insert(name.to_owned(), child);
        Ok(())
    }

    /// Starts the server.
    pub(crate) fn start_server(&mut self) -> Result<()> {
        let config = format!(
            "data_dir = {:?}\nname = \"server\"\nlog_level = \"info\"\nports {{\n  http = {}\n  rpc = {}\n}}\nserver \
                {{\n  enabled = true\n  \
             min_heartbeat_ttl = \"{}\"\n  heartbeat_grace = \"{}\"\n}}\n",
            self.dir.join("server/data"),
            self.http_port,
            self.rpc_port,
            self.lease,
            GoDuration(self.lease.nanos() / 10),
        );
        self.spawn("server", &config)
    }

    /// Starts a node.
    pub(crate) fn start_node(&mut self, name: &str) -> Result<()> {
        let mut config = self.node_config(name);
        self.runtime.configure(&self.dir, &mut config)?;
        self.spawn(name, &config.to_string())
    }

    /// What the remote task runs on.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Whether an agent was started whose name begins like this, and not ended.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.agents.keys().any(|known| known.starts_with(name))
    }

    /// Sends a signal to an agent and waits for its end.
    pub(crate) async fn end_agent(&mut self, name: &str, signal: Signal) -> Result<()> {
        let child = self.agents.get_mut(name).with_context(|| format!("{name} does not run"))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a pid")?;
        kill_process(pid, signal).with_context(|| format!("could not signal {name}"))?;
        let deadline = Instant::now() + Duration::from_secs(15);
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("{name} did not end within 15 s of {signal:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.agents.remove(name);
        Ok(())
    }

    /// Pid of a running agent.
    pub(crate) fn pid(&self, name: &str) -> Option<Pid> {
        let child = self.agents.get(name)?;
        Pid::from_raw(i32::try_from(child.id()).ok()?)
    }

    /// Pids of the plugin processes of the remote task's driver that belong to a node: children of its agent that serve
    /// the driver.
    pub(crate) fn plugin_pids(&self, node: &str) -> Vec<i32> {
        let Some(agent) = self.agents.get(node) else {
            return Vec::new();
        };
        let wanted = self.runtime.command();
        sweep::processes_of(&self.dir)
            .into_iter()
            .filter(|(pid, command)| command.ends_with(&wanted) && parent_of(*pid) == i32::try_from(agent.id()).ok())
            .map(|(pid, _)| pid)
            .collect()
    }

    /// The record of the only remote task.
    pub(crate) async fn remote_task(&self) -> Result<RemoteTask> {
        let tasks = self.conn()?.ask(api::call::remote_tasks().reading::<Vec<RemoteTask>>()).await?;
        tasks.into_iter().next().context("the server knows no remote task")
    }

    /// The last lines of each agent's log, on standard error.
    pub(crate) fn print_logs(&self, lines: usize) {
        eprintln!("{}", self.logs(lines));
    }

    /// The last lines of each agent's log.
    pub(crate) fn logs(&self, lines: usize) -> String {
        let mut told = String::new();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let Ok(text) = fs::read_to_string(entry.path().join("agent.log")) else {
                continue;
            };
            let all: Vec<&str> = text.lines().collect();
            let last = all[all.len().saturating_sub(lines)..].join("\n");
            let _ = write!(told, "\n--- log of {}\n{last}\n", entry.file_name().to_string_lossy());
        }
        told
    }

    /// Ends every process of the demo and removes its directory; returns what could not be ended.
    pub(crate) async fn tear_down(&mut self) -> BTreeMap<i32, String> {
        self.torn_down = true;
        // Agents first, and reaped: a dead child would otherwise stay as a zombie.
        for child in self.agents.values_mut() {
            drop(child.kill());
            drop(child.wait());
        }
        let dir = self.dir.clone();
        let left = tokio::task::spawn_blocking(move || sweep::end_everything_of(&dir)).await.unwrap_or_default();
        if left.is_empty()
            && let Err(error) = fs::remove_dir_all(&self.dir)
        {
            eprintln!("drover: could not remove {}: {error}", self.dir.display());
        }
        left
    }
}

impl Drop for Cluster {
    /// The last net, for panics: no grace, only an end.
    fn drop(&mut self) {
        if self.keep || self.torn_down {
            return;
        }
        for child in self.agents.values_mut() {
            drop(child.kill());
            drop(child.wait());
        }
        sweep::end_everything_of(&self.dir);
        drop(fs::remove_dir_all(&self.dir));
    }
}

/// The parent of a process.
pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold spaces and parentheses: fields are counted from the last one.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_cgroups_are_found_by_the_name_that_the_node_gives_them() {
        let data = Path::new("/tmp/demo/node-1/data");
        assert_eq!(sweep::node_name(data), client::ClientConfig::new(data, "").name_on_this_machine());
    }

    #[test]
    fn cgroups_to_which_no_process_leads_go_with_their_node() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("node/data");
        let id = |n: u8| format!("{:08x}-0000-4000-8000-{n:012x}", std::process::id());
        let alloc = id(1);
        fs::create_dir_all(data.join("alloc").join(&alloc)).expect("an allocation");
        let parents = ["/sys/fs/cgroup/freezer/nomad", "/sys/fs/cgroup/nomad.slice"].map(Path::new);
        let Some(parent) = parents.into_iter().find(|parent| fs::create_dir_all(parent).is_ok()) else {
            return skip::cannot("no cgroup can be made");
        };
        let names = [format!("{alloc}.task"), format!("plugin-{}.some", sweep::node_name(&data))];
        let left = names.map(|name| parent.join(name));
        let other = parent.join(format!("{}.task", id(2)));
        for cgroup in left.iter().chain([&other]) {
            fs::create_dir(cgroup).expect("a cgroup");
        }
        assert!(sweep::end_everything_of(dir.path()).is_empty());
        assert!(left.iter().all(|cgroup| !cgroup.exists()), "{left:?}");
        fs::remove_dir(&other).expect("what belongs to another node stays");
    }
}
