//! A server, three nodes in network namespaces, hosts with ssh servers in theirs, an engine and clusters; and what
//! people ask of the server.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testkit::{Dir, Guard};

use super::{
    clusters::{CLAIM, Clusters},
    net::{HOSTS, NODES, Net},
    truth::{Ends, Watch, script},
};
use crate::{
    interop::{
        cluster::{Agent, Place, Role},
        docker_remote::certificates,
        dockerd::{Daemon, IMAGE},
        kubernetes, sshd,
    },
    local::{self, processes_of, until},
};

pub(super) const BOUND: Duration = Duration::from_secs(90);
/// Port of the engine.
const ENGINE: u16 = 2376;

/// Everything of a run. What is dropped first is named first.
pub(super) struct World {
    pub(super) server: Agent,
    pub(super) nodes: Vec<Agent>,
    /// Ends with the hosts: by then nothing may be left to see.
    pub(super) watch: Watch,
    /// Servers of ssh by host.
    sshds: Vec<(&'static str, Guard)>,
    pub(super) engine: Option<Daemon>,
    pub(super) clusters: Option<Clusters>,
    pub(super) net: Net,
    pub(super) dir: Dir,
}

/// Instances carry this: other runs on the machine have other ones.
fn mark() -> String {
    std::process::id().to_string()
}

impl World {
    pub(super) fn start(with_engine: bool, with_clusters: bool) -> Result<Self> {
        let dir = Dir::for_all("chaosremote");
        let net = Net::lay()?;
        let witness = dir.path().join("witness");
        let watch = Watch::begin(&mark(), &witness, &net)?;
        let engine = with_engine.then(|| start_engine(&dir, &net)).transpose()?;
        let names: Vec<&str> = ["client"].into_iter().chain(HOSTS).collect();
        sshd::keys(dir.path(), &names)?;
        sshd::know_hosts(dir.path(), &HOSTS.map(|host| (host, net.provider(host))))?;
        let mut sshds = Vec::new();
        for host in HOSTS {
            fs::create_dir_all(dir.path().join(format!("host-{host}")))?;
            sshds.push((host, Guard(sshd::start(dir.path(), &net.namespace(host), host, host, &net.provider(host))?)));
        }
        let place = |name: &str, namespace| Place { namespace, address: net.control(name), ports: [4646, 4647] };
        let settings = "server {\n  heartbeat_grace = \"300ms\"\n  min_heartbeat_ttl = \"2s\"\n  \
            remote_sweep_interval = \"10s\"\n}";
        let server = Agent::start_in("chaosremote-server", place("server", None), Role::Server, &[], settings)?;
        let clusters = with_clusters.then(|| Clusters::start(&net, &witness.display().to_string())).transpose()?;
        let settings =
            plugins(&dir, &net, engine.is_some()) + &clusters.as_ref().map_or_else(String::new, Clusters::settings);
        let programs = Clusters::plugins();
        let programs: Vec<_> = programs.iter().map(|(name, program)| (*name, &**program)).collect();
        let programs = if with_clusters { &*programs } else { &[] };
        let mut nodes = Vec::new();
        for name in NODES {
            let place = place(name, Some(net.namespace(name)));
            nodes.push(Agent::start_in(
                &format!("chaosremote-{name}"),
                place,
                Role::Node(&server),
                programs,
                &settings,
            )?);
        }
        let world = Self { server, nodes, watch, sshds, engine, clusters, net, dir };
        world.until_nodes().with_context(|| world.tails())?;
        Ok(world)
    }

    /// Until the servers have every node ready, with every driver.
    pub(super) fn until_nodes(&self) -> Result<()> {
        until("ready nodes that reach every provider", BOUND, || {
            let nodes = self.server.list("/v1/nodes")?;
            let healthy = |n: &Value, driver: &str| n["Drivers"][driver]["Healthy"] == true;
            let ready = nodes.iter().filter(|n| {
                let fit = self.drivers().all(|driver| healthy(n, driver));
                n["Status"] == "ready" && n["SchedulingEligibility"] == "eligible" && fit
            });
            Ok((ready.count() == NODES.len()).then_some(()))
        })
    }

    /// Drivers whose runtimes there are.
    pub(super) fn drivers(&self) -> impl Iterator<Item = &'static str> {
        let engine = self.engine.as_ref().map(|_| "docker_remote");
        let clusters = self.clusters.as_ref().map(|_| ["slurm", "kubernetes"]);
        ["remote_exec"].into_iter().chain(engine).chain(clusters.into_iter().flatten())
    }

    pub(super) fn host_dir(&self, host: &str) -> PathBuf {
        self.dir.path().join(format!("host-{host}"))
    }

    /// Ends a host's listener and the connections that it has.
    pub(super) fn end_sshd(&mut self, host: &str) -> Result<()> {
        self.sshds.retain(|(name, _)| *name != host);
        sshd::end_all(&self.net.namespace(host))
    }

    pub(super) fn start_sshd(&mut self, host: &'static str) -> Result<()> {
        let child = sshd::start(self.dir.path(), &self.net.namespace(host), host, host, &self.net.provider(host))?;
        self.sshds.push((host, Guard(child)));
        Ok(())
    }

    /// Asks for a job; the witness is told before.
    pub(super) fn submit(&self, job: &Job<'_>, version: u32, count: u32) -> Result<()> {
        if job.ends == Ends::Never {
            self.watch.want(job.id, Some((version, count)));
        }
        let body = job.body(&self.dir.path().join("witness"), version, count);
        self.server.submit(&body)
    }

    pub(super) fn stop(&self, id: &str, purge: bool) -> Result<()> {
        self.watch.want(id, None);
        self.server.delete(&format!("/v1/job/{id}?purge={purge}")).map(drop)
    }

    pub(super) fn drain(&self, node: usize, on: bool) -> Result<()> {
        let spec = if on { json!({"Deadline": 60_000_000_000_i64}) } else { Value::Null };
        self.server.drain(self.nodes[node].name(), spec)
    }

    pub(super) fn records(&self) -> Result<Vec<Value>> {
        self.server.records()
    }

    /// Ends what a container has started and the engine does not see.
    pub(super) fn end_unseen(&self, container: &str) {
        let inside =
            |pid: u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default().contains(container);
        for seen in self.watch.live().into_iter().filter(|seen| inside(seen.process.pid)) {
            self.watch.excuse(seen.process.pid);
        }
        if let Some(engine) = &self.engine {
            engine.end_task(container);
        }
    }

    /// Looks after the clusters while everything is to come to rest; to be called again and again.
    pub(super) fn tend(&self) -> Result<()> {
        self.clusters.as_ref().map_or(Ok(()), Clusters::tend)
    }

    /// Asks the server about ends that have no cause by what is seen alone.
    pub(super) fn resolve_doubts(&self) -> Result<()> {
        self.watch.resolve(|alloc| {
            let found = self.server.list(&format!("/v1/allocations?prefix={alloc}"))?;
            let made = found.iter().find_map(|a| a["CreateTime"].as_u64()).map(Duration::from_nanos);
            Ok(made.and_then(|made| SystemTime::now().duration_since(UNIX_EPOCH + made).ok()))
        })
    }

    /// What must not be there when every job has been stopped.
    pub(super) fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for host in HOSTS {
            // Channels belong to the managers; they end with their connections.
            let processes =
                processes_of(&self.host_dir(host)).into_iter().filter(|(_, command)| !command.contains("serve-host"));
            left.extend(processes.map(|(pid, command)| format!("process {pid} on host {host}: {command}")));
            let instances = fs::read_dir(self.host_dir(host).join("runtime/instances")).into_iter().flatten().flatten();
            let there = instances.filter(|entry| entry.path().join("instance.json").exists());
            left.extend(there.map(|entry| entry.path().display().to_string()));
        }
        if let Some(engine) = &self.engine {
            left.extend(engine.containers(true)?.into_iter().map(|(_, name)| format!("container {name}")));
        }
        if let Some(clusters) = &self.clusters {
            left.extend(clusters.left()?);
        }
        left.extend(
            self.watch
                .live()
                .iter()
                .map(|seen| format!("process {} of {:?} on {}", seen.process.pid, seen.slot, seen.host)),
        );
        left.extend(self.records()?.iter().map(|record| format!("record {record}")));
        Ok(left)
    }

    pub(super) fn tails(&self) -> String {
        let agents = [&self.server].into_iter().chain(&self.nodes);
        agents.map(|agent| format!("--- {}\n{}", agent.name(), agent.log_tail())).collect::<Vec<_>>().join("\n")
    }

    /// Keeps the logs of everybody for a person, and says where.
    pub(super) fn keep_logs(&self, seed: u64, story: &[String]) -> Result<PathBuf> {
        let dir = local::target_dir().join("chaos").join(format!("remote-{seed}"));
        fs::create_dir_all(&dir)?;
        for agent in [&self.server].into_iter().chain(&self.nodes) {
            fs::write(dir.join(format!("{}.log", agent.name())), agent.log())?;
        }
        if let Some(clusters) = &self.clusters {
            clusters.keep_logs(&dir)?;
        }
        fs::write(dir.join("story"), story.join("\n"))?;
        fs::write(dir.join("violations"), self.watch.violations().join("\n"))?;
        fs::write(dir.join("records.json"), serde_json::to_vec_pretty(&self.records().unwrap_or_default())?)?;
        Ok(dir)
    }
}

/// An engine that the nodes reach over TLS.
fn start_engine(dir: &Dir, net: &Net) -> Result<Daemon> {
    let tls = dir.path().join("tls");
    let address = net.provider("engine");
    certificates(&tls, &address)?;
    let file = |name: &str| tls.join(name).display().to_string();
    let mut engine = Daemon::new(4)?;
    engine.listen_also(&[
        format!("--host=tcp://{address}:{ENGINE}"),
        "--tlsverify".into(),
        format!("--tlscacert={}", file("ca.pem")),
        format!("--tlscert={}", file("server.pem")),
        format!("--tlskey={}", file("server.key")),
    ]);
    engine.up()?;
    engine.import_image()?;
    Ok(engine)
}

/// What every node is told of the providers.
fn plugins(dir: &Dir, net: &Net, with_engine: bool) -> String {
    let root = dir.path().display();
    let hosts = HOSTS.map(|host| (host, net.provider(host), dir.path().join(format!("host-{host}/runtime"))));
    let ssh = sshd::plugin(dir.path(), hosts);
    let engine = format!(
        "plugin \"docker_remote\" {{\n  config {{\n    endpoint = \"tcp://{}:{ENGINE}\"\n    volumes {{\n      \
            enabled = true\n    }}\n    tls {{\n      \
         ca = \"{root}/tls/ca.pem\"\n      cert = \"{root}/tls/client.pem\"\n      key \
         = \"{root}/tls/client.key\"\n    }}\n  }}\n}}\n",
        net.provider("engine")
    );
    format!("{ssh}{}", if with_engine { engine } else { String::new() })
}

/// A job of one task.
pub(super) struct Job<'a> {
    pub(super) id: &'a str,
    pub(super) driver: &'static str,
    pub(super) ends: Ends,
}

impl Job<'_> {
    fn body(&self, witness: &Path, version: u32, count: u32) -> Value {
        let contained = ["docker_remote", "kubernetes"].contains(&self.driver);
        let mut config = script(if contained { "/witness" } else { witness.to_str().unwrap_or_default() }, self.ends);
        let (mut volumes, mut mounts) = (json!({}), json!([]));
        match self.driver {
            "docker_remote" => {
                config["image"] = IMAGE.into();
                config["init"] = true.into();
                config["volumes"] = json!([format!("{}:/witness", witness.display())]);
            }
            "kubernetes" => {
                config["image"] = kubernetes::IMAGE.into();
                config["grace_period"] = "1s".into();
                volumes = json!({CLAIM: {"Name": CLAIM, "Type": "host", "Source": CLAIM}});
                mounts = json!([{"Volume": CLAIM, "Destination": "/witness"}]);
            }
            _ => {}
        }
        let kind = if self.ends == Ends::Well { "batch" } else { "service" };
        json!({"Job": {
            "ID": self.id, "Name": self.id, "Type": kind, "Datacenters": ["*"],
            "TaskGroups": [{ "Name": "g", "Count": count,
                "RestartPolicy": {"Attempts": 10_000, "Interval": 3_600_000_000_000_i64, "Delay": 250_000_000,
                    "Mode": "delay"},
                "Volumes": volumes,
                "Tasks": [{ "Name": "t", "Driver": self.driver, "Config": config, "VolumeMounts": mounts,
                            "KillTimeout": 1_000_000_000_i64,
                            "Env": {"CHAOS_WORLD": mark(), "CHAOS_VERSION": version.to_string()},
                            "Resources": {"CPU": 20, "MemoryMB": 16} }] }]
        }})
    }
}
