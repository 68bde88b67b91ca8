//! The two systems: on each a server and the same nodes, as processes of their own, and the questions that one asks
//! them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    ends,
    interop::cluster::{Agent, program},
    local::until,
};

/// Elections and fingerprints of many agents at once take their time on two cores.
const START: Duration = Duration::from_secs(120);
const REQUEST: Duration = Duration::from_secs(40);

/// Nodes that everybody uses at once, and which stay up.
pub(super) const SHARED: &str = "shared";
/// Groups of nodes that one scenario at a time has to itself.
pub(super) const LANES: [&str; 3] = ["first", "second", "third"];
/// How many nodes a lane has.
pub(super) const NODES: usize = 3;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Stock,
    Drover,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Drover => "drover",
        }
    }
}

/// So often systems are started before a run gives up.
const STARTS: usize = 3;

/// What is started; again when something on the machine was in the way.
pub(super) fn started<T>(start: impl Fn() -> Result<T>) -> Result<T> {
    let mut started = start();
    for _ in 1..STARTS {
        if let Err(error) = &started
            && !ends::asked()
        {
            eprintln!("differ: the systems did not start, and are started again: {error:#}");
            started = start();
        }
    }
    started
}

/// A node and the agent that is its process.
struct Node {
    id: String,
    agent: Mutex<Agent>,
    dir: PathBuf,
}

/// One system.
pub(super) struct System {
    pub(super) kind: Kind,
    server: Agent,
    nodes: BTreeMap<String, Node>,
    http: ureq::Agent,
    /// Words of this run, longest first, and what stands for them in what is compared.
    known: Vec<(String, &'static str)>,
}

impl System {
    /// Starts the server and all nodes; they are ready afterwards.
    pub(super) fn start(kind: Kind, stock: &Path) -> Result<Self> {
        let program = match kind {
            Kind::Stock => stock.to_owned(),
            Kind::Drover => program(),
        };
        let named = |name: &str| format!("differ-{}-{name}", kind.name());
        let server = Agent::start_configured(&program, &named("server"), |ports, dir| {
            config(kind, "server", ports, dir, SERVER)
        })?;
        let http =
            ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(REQUEST)).build().new_agent();
        let mut known = vec![(server.dir().display().to_string(), "<server>")];
        let mut agents = Vec::new();
        for lane in [SHARED].into_iter().chain(LANES) {
            for n in 0..NODES {
                let name = format!("{lane}-{n}");
                let agent = Agent::start_configured(&program, &named(&name), |ports, dir| {
                    config(kind, &name, ports, dir, &node(lane, n, server.rpc_port(), dir))
                })?;
                known.push((agent.dir().display().to_string(), "<node>"));
                agents.push((name, agent));
            }
        }
        known.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        let mut system = Self { kind, server, nodes: BTreeMap::new(), http, known };
        for (name, agent) in agents {
            let id = until(&format!("{}: node {name} is ready", kind.name()), START, || {
                std::thread::sleep(Duration::from_millis(50));
                let nodes = system.get("/v1/nodes")?;
                let found = nodes.as_array().into_iter().flatten().find(|n| n["Name"] == name.as_str());
                let ready = found.filter(|n| n["Status"] == "ready" && n["Drivers"]["raw_exec"]["Healthy"] == true);
                Ok(ready.and_then(|n| n["ID"].as_str().map(str::to_owned)))
            })
            .with_context(|| {
                format!("the end of its log:\n{}\nand of the server's:\n{}", agent.log_tail(), system.server.log_tail())
            })?;
            let dir = agent.dir().to_owned();
            system.nodes.insert(name, Node { id, agent: Mutex::new(agent), dir });
        }
        Ok(system)
    }

    /// What stands for the words of this run.
    pub(super) fn known(&self) -> &[(String, &'static str)] {
        &self.known
    }

    /// A request, and its status and answer: null when it is none of JSON.
    pub(super) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value, String)> {
        let url = format!("{}{path}", self.server.address());
        let request = ureq::http::Request::builder().method(method).uri(&url);
        let answer = match body {
            Some(body) => self.http.run(request.body(body.to_string())?),
            None => self.http.run(request.body(())?),
        };
        let mut answer = answer.with_context(|| format!("{}: {method} {path}", self.kind.name()))?;
        let text = answer.body_mut().with_config().limit(64 << 20).read_to_string()?;
        Ok((answer.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::Null), text))
    }

    /// The answer to a GET; null when there is no such thing.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let (status, answer, text) = self.ask("GET", path, None)?;
        anyhow::ensure!(status == 200 || status == 404, "{}: GET {path} answered {status}: {text}", self.kind.name());
        Ok(if status == 200 { answer } else { Value::Null })
    }

    /// The list that a GET answers.
    pub(super) fn list(&self, path: &str) -> Result<Vec<Value>> {
        Ok(match self.get(path)? {
            Value::Array(all) => all,
            _ => Vec::new(),
        })
    }

    fn node(&self, name: &str) -> Result<&Node> {
        self.nodes.get(name).with_context(|| format!("there is no node {name}"))
    }

    /// The id of a node.
    pub(super) fn node_id(&self, name: &str) -> Result<&str> {
        Ok(&self.node(name)?.id)
    }

    /// The process of a node.
    pub(super) fn agent(&self, name: &str) -> Result<MutexGuard<'_, Agent>> {
        Ok(self.node(name)?.agent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets jobs of each type displace others of lower priority, or none.
    pub(super) fn let_jobs_displace(&self, on: bool) -> Result<()> {
        let path = "/v1/operator/scheduler/configuration";
        let mut config = self.get(path)?["SchedulerConfig"].take();
        for kind in ["System", "SysBatch", "Batch", "Service"] {
            config["PreemptionConfig"][format!("{kind}SchedulerEnabled")] = on.into();
        }
        let (status, _, text) = self.ask("PUT", path, Some(&config))?;
        ensure!(status == 200, "{}: PUT {path} answered {status}: {text}", self.kind.name());
        Ok(())
    }

    /// Where a node keeps an allocation.
    pub(super) fn alloc_dir(&self, node: &str, alloc: &str) -> Result<PathBuf> {
        Ok(self.node(node)?.dir.join("data/alloc").join(alloc))
    }
}

/// Nodes that are killed are missed soon, and busy ones are not missed. Nobody displaces others at first.
const SERVER: &str = "server {\n  enabled = true\n  bootstrap_expect = 1\n  min_heartbeat_ttl = \"2s\"\n  \
    heartbeat_grace = \"3s\"\n  \
                      default_scheduler_config {\n    preemption_config {\n      system_scheduler_enabled = \
                      false\n    }\n  }\n}\n";

fn node(lane: &str, n: usize, server: u16, dir: &Path) -> String {
    // Where everybody works there is room for everybody; elsewhere scenarios fill the nodes.
    let (cpu, memory) = if lane == SHARED { (400_000, 200_000) } else { (4_000, 4_000) };
    let volume = dir.join("volume");
    drop(std::fs::create_dir_all(&volume));
    format!(
        "client {{\n  enabled = true\n  servers = [\"127.0.0.1:{server}\"]\n  network_interface = \"lo\"\n  \
            node_class = \"class-{}\"\n\
         \x20 cpu_total_compute = {cpu}\n  memory_total_mb = {memory}\n  meta {{\n    rack = \"r{n}\"\n    number \
         = \"{n}\"\n    lane = \"{lane}\"\n  }}\n\
         \x20 host_volume \"shared\" {{\n    path = {volume:?}\n  }}\n\
         \x20 host_network \"named\" {{\n    interface = \"lo\"\n    cidr = \"127.0.0.0/8\"\n  }}\n}}\n",
        n % 2
    )
}

fn config(kind: Kind, name: &str, [http, rpc, serf]: [u16; 3], dir: &Path, more: &str) -> String {
    let lane = name.rsplit_once('-').map_or(name, |(lane, _)| lane);
    let own = match kind {
        Kind::Stock => format!(
            "disable_update_check = true\nports {{\n  http = {http}\n  rpc = {rpc}\n  serf = {serf}\n}}\n\
             advertise {{\n  http = \"127.0.0.1\"\n  rpc = \"127.0.0.1\"\n  serf = \"127.0.0.1\"\n}}\n\
             client {{\n  gc_disk_usage_threshold = 100\n  gc_inode_usage_threshold = 100\n  options = \
             {{\n    \"driver.denylist\" = \"docker,java,qemu,exec\"\n\
             \x20   \"fingerprint.denylist\" \
             = \"env_aws,env_azure,env_digitalocean,env_gce,consul,vault,cni,bridge\"\n  }}\n}}\n"
        ),
        Kind::Drover => format!("ports {{\n  http = {http}\n  rpc = {rpc}\n}}\n"),
    };
    // The stock reads several blocks of one kind as the last of them: what both share goes into the one.
    let (own, more) = match own.split_once("client {\n") {
        Some((before, options)) if more.starts_with("client {\n") => (
            before.to_owned(),
            more.replacen("client {\n", &format!("client {{\n{}", options.strip_suffix("}\n").unwrap_or(options)), 1),
        ),
        Some((before, _)) => (before.to_owned(), more.to_owned()),
        None => (own, more.to_owned()),
    };
    format!(
        "name = {name:?}\ndatacenter = {lane:?}\ndata_dir = {:?}\nbind_addr = \"127.0.0.1\"\nlog_level \
            = \"INFO\"\n{own}{more}\
         plugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n",
        dir.join("data")
    )
}
