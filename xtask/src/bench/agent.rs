//! A dev agent of either kind, as a process in a directory of its own, and its HTTP API.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::local::{self, free_ports, processes_of, until};

/// Which agent, and where its program is.
#[derive(Clone)]
pub(crate) struct Kind {
    name: &'static str,
    program: PathBuf,
}

impl Kind {
    /// The release build of this workspace.
    pub(crate) fn drover() -> Self {
        Self { name: "drover", program: local::target_dir().join("release/drover") }
    }
    /// A stock Nomad.
    pub(crate) fn nomad(program: PathBuf) -> Self {
        Self { name: "nomad", program }
    }
    /// Its program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }
    /// `drover` or `nomad`.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

/// A running agent; ended with everything it started when dropped.
pub(crate) struct Agent {
    kind: Kind,
    dir: PathBuf,
    port: u16,
    child: Child,
    /// Keeps its connections: what is measured is the agent, not how fast it accepts.
    http: ureq::Agent,
}

/// Connections that are kept, and so how many requests are worth sending at once.
pub(crate) const CONNECTIONS: usize = 4;

impl Agent {
    /// Starts a dev agent (server and node in one) and waits for its node.
    pub(crate) fn start(kind: Kind) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("drover-bench-{}-{}", kind.name, std::process::id()));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(&dir)?;
        let [http, rpc, serf] = free_ports()?;
        let config = match kind.name {
            "nomad" => format!(
                "data_dir = {:?}\nports {{\n http = {http}\n rpc = {rpc}\n serf = {serf}\n}}\nserver {{\n enabled = true\n bootstrap_expect = 1\n}}\n\
                 client {{\n enabled = true\n servers = [\"127.0.0.1:{rpc}\"]\n}}\nplugin \"raw_exec\" {{\n config {{\n enabled = true\n }}\n}}\nbind_addr = \"127.0.0.1\"\n\
                 advertise {{\n http = \"127.0.0.1\"\n rpc = \"127.0.0.1\"\n serf = \"127.0.0.1\"\n}}\n",
                dir.join("data")
            ),
            _ => format!(
                "data_dir = {:?}\nports {{\n http = {http}\n rpc = {rpc}\n}}\nserver {{\n enabled = true\n}}\nclient {{\n enabled = true\n}}\n",
                dir.join("data")
            ),
        };
        fs::write(dir.join("agent.hcl"), config)?;
        let child = spawn(&kind, &dir)?;
        let connections = ureq::Agent::config_builder().max_idle_connections_per_host(CONNECTIONS).build();
        let agent = Self { kind, dir, port: http, child, http: connections.into() };
        agent.wait_for_node()?;
        Ok(agent)
    }

    /// Which one it is.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name
    }
    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Until the node is ready and its raw_exec driver healthy.
    pub(crate) fn wait_for_node(&self) -> Result<()> {
        self.wait_for_driver("raw_exec")
    }

    /// Until the node is ready and one of its drivers healthy.
    pub(crate) fn wait_for_driver(&self, driver: &str) -> Result<()> {
        until(&format!("a ready node with {driver}"), Duration::from_secs(60), || {
            let nodes = self.get("/v1/nodes")?;
            let ready = nodes.as_array().into_iter().flatten().any(|n| n["Status"] == "ready" && n["Drivers"][driver]["Healthy"] == true);
            Ok(ready.then_some(()))
        })
    }

    /// SIGKILL for the agent process alone, then a new one on the same directory. Returns when the new one was started.
    pub(crate) fn crash_and_restart(&mut self) -> Result<Instant> {
        self.child.kill()?;
        self.child.wait()?;
        let started = Instant::now();
        self.child = spawn(&self.kind, &self.dir)?;
        Ok(started)
    }

    /// Its HTTP port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
    /// GET.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        Ok(self.http.get(self.url(path)).call()?.body_mut().with_config().limit(u64::MAX).read_json()?)
    }
    /// PUT.
    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Value> {
        Ok(self.http.put(self.url(path)).send_json(body)?.body_mut().read_json()?)
    }
    /// DELETE.
    pub(crate) fn delete(&self, path: &str) -> Result<Value> {
        Ok(self.http.delete(self.url(path)).call()?.body_mut().read_json()?)
    }
    /// Lines of an endless answer.
    pub(crate) fn lines(&self, path: &str) -> Result<impl Iterator<Item = std::io::Result<String>> + Send + 'static> {
        let body = ureq::get(self.url(path)).call()?.into_body();
        Ok(BufReader::with_capacity(256, body.into_reader()).lines())
    }

    /// Every process that belongs to the agent: pid → command line.
    pub(crate) fn processes(&self) -> BTreeMap<u32, String> {
        processes_of(&self.dir)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        // Executors and workloads outlive their agent, in both systems: they are found by the directory that only they name.
        local::remove(&self.dir);
    }
}

fn spawn(kind: &Kind, dir: &Path) -> Result<Child> {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("agent.log"))?;
    Command::new(&kind.program)
        .args(["agent", "-config"])
        .arg(dir.join("agent.hcl"))
        .env("DROVER_BENCH_DIR", dir)
        // Sockets of plugins go with the directory instead of staying in the system's.
        .env("TMPDIR", dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("could not start {}", kind.program.display()))
}
