//! Three servers, three members of etcd, three nodes and two hosts of remote tasks, each in a network namespace and on
//! a small disk of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::Guard;

use super::{
    net::{HOSTS, MEMBERS, NODES, Net, SERVERS},
    truth::{KINDS, Watch},
};
use crate::{
    interop::{
        cluster::{Agent, Place, Role},
        etcd::{EtcdMember, Seat},
        sshd,
    },
    local::{self, until},
    process::Run,
    small_disk::SmallDisk,
};

pub(super) const BOUND: Duration = Duration::from_secs(90);
/// Who does not answer within this is asked no longer.
pub(super) const ANSWER: Duration = Duration::from_secs(4);
/// Before each of the looks that go on until something is there.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Room of a member of etcd, of a server, of a node and of a host, in MiB.
const ROOM: [u32; 4] = [640, 16, 160, 16];

/// Somebody to whom something can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Who {
    Server(usize),
    Member(usize),
    Node(usize),
    Host(usize),
}

impl Who {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Server(n) => SERVERS[n],
            Self::Member(n) => MEMBERS[n],
            Self::Node(n) => NODES[n],
            Self::Host(n) => HOSTS[n],
        }
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        let count = |n: usize| 0..n;
        let servers = count(SERVERS.len()).map(Self::Server);
        let nodes = count(NODES.len()).map(Self::Node).chain(count(HOSTS.len()).map(Self::Host));
        servers.chain(count(MEMBERS.len()).map(Self::Member)).chain(nodes)
    }
}

/// Ends what names its directory, when dropped: tasks outlive their agents.
struct Workloads(PathBuf);

impl Drop for Workloads {
    fn drop(&mut self) {
        drop(local::end_all(&self.0));
    }
}

/// Removed when dropped.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        local::remove(&self.0);
    }
}

/// Everything of a run. What is dropped first is named first.
pub(super) struct World {
    pub(super) servers: Vec<Agent>,
    pub(super) nodes: Vec<Agent>,
    pub(super) etcd: Vec<EtcdMember>,
    /// Servers of ssh by host.
    sshds: Vec<Guard>,
    disks: Vec<(&'static str, SmallDisk)>,
    _workloads: Workloads,
    pub(super) watch: Arc<Watch>,
    pub(super) net: Net,
    /// What the servers call the nodes.
    pub(super) node_ids: Vec<String>,
    dir: Directory,
}

/// The directory of a run of this process; `former` knows it by its name.
fn place_of(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("drover-interop-chaoscluster-{process}"))
}

impl World {
    pub(super) fn start() -> Result<Self> {
        let dir = place_of(std::process::id());
        local::remove(&dir);
        fs::create_dir_all(dir.join("witness"))?;
        let net = Net::lay()?;
        let watch = Arc::new(Watch::begin(&dir.join("witness"))?);
        let mut world = Self {
            servers: Vec::new(),
            nodes: Vec::new(),
            etcd: Vec::new(),
            sshds: Vec::new(),
            disks: Vec::new(),
            _workloads: Workloads(dir.clone()),
            watch,
            net,
            node_ids: Vec::new(),
            dir: Directory(dir),
        };
        world.fill().with_context(|| world.tails())?;
        Ok(world)
    }

    fn fill(&mut self) -> Result<()> {
        let dir = self.dir.0.clone();
        for (names, room) in [&MEMBERS[..], &SERVERS, &NODES, &HOSTS].into_iter().zip(ROOM) {
            for name in names {
                self.disks.push((name, SmallDisk::mount(&dir.join(name), room)?));
            }
        }
        // After the disks: they see what is mounted when they start.
        self.start_hosts()?;
        let place = |net: &Net, name: &str| Place {
            namespace: Some(net.namespace(name)),
            address: net.address(name),
            ports: [4646, 4647],
        };
        let seat = |name: &str| Seat {
            namespace: Some(self.net.namespace(name)),
            address: self.net.address(name),
            ports: [2379, 2380],
            data: dir.join(name).join("data"),
        };
        // Few and short files, so that they change often, and leave room.
        let more = ["--snapshot-count", "3000", "--max-wals", "2", "--max-snapshots", "2"].map(str::to_owned);
        self.etcd = EtcdMember::cluster_at(&dir, "e", MEMBERS.map(seat).into(), &more, "http")?;
        let endpoints: Vec<&str> = self.etcd.iter().map(|member| member.url.as_str()).collect();
        for name in SERVERS {
            let more = format!(
                "server {{\n  data_dir = {:?}\n  store = \"etcd\"\n  endpoints = {}\n  \
                 encrypt = \"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\"\n  \
                 heartbeat_grace = \"5s\"\n  min_heartbeat_ttl = \"3s\"\n  remote_sweep_interval = \"10s\"\n}}\n",
                dir.join(name).join("data"),
                json!(endpoints)
            );
            let place = place(&self.net, name);
            self.servers.push(Agent::start_in(&format!("chaoscluster-{name}"), place, Role::Server, &[], &more)?);
        }
        let addresses = SERVERS.map(|name| format!("{}:4647", self.net.address(name)));
        let hosts = HOSTS.map(|host| (host, self.net.address(host), dir.join(host).join("runtime")));
        let hosts = sshd::plugin(&dir, hosts);
        for name in NODES {
            let own = dir.join(name);
            let more = format!(
                "client {{\n  servers = {}\n  state_dir = {:?}\n  alloc_dir = {:?}\n}}\n{hosts}",
                json!(addresses),
                own.join("state"),
                own.join("allocs"),
            );
            let (place, role) = (place(&self.net, name), Role::Node(&self.servers[0]));
            self.nodes.push(Agent::start_in(&format!("chaoscluster-{name}"), place, role, &[], &more)?);
        }
        self.until_whole()?;
        let nodes = until("the list of nodes", BOUND, || self.ask(0, "/v1/nodes").map(Some))?;
        let id = |name: &str| {
            let of = nodes.as_array().into_iter().flatten().find(|n| n["Name"] == format!("chaoscluster-{name}"));
            of.and_then(|node| node["ID"].as_str()).map(str::to_owned).context("a node without an id")
        };
        self.node_ids = NODES.iter().map(|name| id(name)).collect::<Result<_>>()?;
        for kind in KINDS {
            self.watch.want(kind, 0);
            // The same a second time is no change.
            let body = kind.body(self.watch.dir(), 0);
            until("an answer to a new job", BOUND, || self.put(1, "/v1/jobs", &body).map(Some))?;
        }
        Ok(())
    }

    fn start_hosts(&mut self) -> Result<()> {
        sshd::keys(self.dir(), &["client", HOSTS[0], HOSTS[1]])?;
        sshd::know_hosts(self.dir(), &HOSTS.map(|host| (host, self.net.address(host))))?;
        for host in HOSTS {
            let started = self.start_sshd(host)?;
            self.sshds.push(started);
        }
        Ok(())
    }

    fn start_sshd(&self, host: &str) -> Result<Guard> {
        sshd::start(self.dir(), &self.net.namespace(host), host, host, &self.net.address(host)).map(Guard)
    }

    /// Everything of the run is in it.
    pub(super) fn dir(&self) -> &Path {
        &self.dir.0
    }

    /// GET at a server.
    pub(super) fn ask(&self, server: usize, path: &str) -> Result<Value> {
        ask(&self.servers[server].address(), path)
    }

    /// PUT at a server.
    pub(super) fn put(&self, server: usize, path: &str, body: &Value) -> Result<Value> {
        put(&self.servers[server].address(), path, body)
    }

    /// Addresses of the servers' HTTP APIs.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(Agent::address).collect()
    }

    /// The place of the leader, when all servers say the same.
    pub(super) fn leader(&self) -> Result<Option<usize>> {
        std::thread::sleep(LOOK);
        let said: Vec<Value> = (0..SERVERS.len()).map(|n| self.ask(n, "/v1/status/leader")).collect::<Result<_>>()?;
        let of = |name: &str| said[0] == format!("{}:4647", self.net.address(name));
        Ok(SERVERS.iter().position(|name| of(name)).filter(|_| said.iter().all(|one| *one == said[0])))
    }

    /// Until all servers name one leader and each other, and every node is ready with its drivers.
    pub(super) fn until_whole(&self) -> Result<()> {
        until("one leader, told by all servers", BOUND, || self.leader())?;
        until("all servers as members", BOUND, || {
            std::thread::sleep(LOOK);
            let count = |server| self.ask(server, "/v1/agent/members").map(|m| m["Members"].as_array().map(Vec::len));
            let counts: Vec<_> = (0..SERVERS.len()).map(count).collect::<Result<_>>()?;
            Ok(counts.iter().all(|count| *count == Some(SERVERS.len())).then_some(()))
        })?;
        let mut last = Vec::new();
        until("ready nodes with their drivers", BOUND, || {
            std::thread::sleep(LOOK);
            let nodes = self.ask(0, "/v1/nodes")?;
            let nodes = nodes.as_array().cloned().unwrap_or_default();
            for node in nodes.iter().filter(|node| node["SchedulingEligibility"] != "eligible") {
                // A request of a drain may have come late.
                self.drain(0, node["ID"].as_str().unwrap_or_default(), false)?;
            }
            let healthy = |n: &Value, driver: &str| n["Drivers"][driver]["Healthy"] == true;
            let fit = |n: &&Value| {
                let ready = n["Status"] == "ready" && n["SchedulingEligibility"] == "eligible" && n["Drain"] == false;
                ready && healthy(n, "raw_exec") && healthy(n, "remote_exec")
            };
            let all = nodes.iter().filter(fit).count() == NODES.len();
            last = nodes;
            Ok(all.then_some(()))
        })
        .with_context(|| format!("the nodes are {}", json!(last)))
    }

    /// Drains a node but for what is on every node, or ends that.
    pub(super) fn drain(&self, server: usize, id: &str, on: bool) -> Result<()> {
        drain(&self.servers[server].address(), id, on)
    }

    pub(super) fn disk(&self, who: Who) -> Result<&SmallDisk> {
        let found = self.disks.iter().find(|(name, _)| *name == who.name()).map(|(_, disk)| disk);
        found.context("no disk has that name")
    }

    fn agent(&mut self, who: Who) -> Option<&mut Agent> {
        match who {
            Who::Server(n) => self.servers.get_mut(n),
            Who::Node(n) => self.nodes.get_mut(n),
            Who::Member(_) | Who::Host(_) => None,
        }
    }

    pub(super) fn is_alive(&mut self, who: Who) -> Result<bool> {
        match who {
            Who::Member(n) => self.etcd[n].is_alive(),
            Who::Host(n) => Ok(self.sshds[n].try_wait()?.is_none()),
            who => self.agent(who).context("no such agent")?.is_alive(),
        }
    }

    /// SIGKILL for that process alone; of a host it is the server of ssh with its connections.
    pub(super) fn kill(&mut self, who: Who) -> Result<()> {
        match who {
            Who::Member(n) => self.etcd[n].kill(),
            Who::Host(n) => {
                sshd::end_all(&self.net.namespace(HOSTS[n]))?;
                self.sshds[n].wait().map(drop).map_err(Into::into)
            }
            who => self.agent(who).context("no such agent")?.crash(),
        }
    }

    /// Ends it as an operator does.
    pub(super) fn stop(&mut self, who: Who) -> Result<()> {
        match who {
            Who::Member(n) => self.etcd[n].stop(),
            Who::Host(_) => self.kill(who),
            who => self.agent(who).context("no such agent")?.stop(),
        }
    }

    pub(super) fn start_again(&mut self, who: Who) -> Result<()> {
        match who {
            Who::Member(n) => {
                // One that has ended by itself is to be reaped.
                self.etcd[n].kill()?;
                self.etcd[n].start()
            }
            Who::Host(n) => {
                // What it has left behind holds the port.
                self.kill(who)?;
                self.sshds[n] = self.start_sshd(HOSTS[n])?;
                Ok(())
            }
            who => self.agent(who).context("no such agent")?.restart(),
        }
    }

    pub(super) fn signal(&mut self, who: Who, signal: Signal) -> Result<()> {
        match who {
            Who::Member(n) => self.etcd[n].signal(signal),
            Who::Host(n) => local::signal(self.sshds[n].id(), signal),
            who => local::signal(self.agent(who).context("no such agent")?.pid(), signal),
        }
    }

    /// What is wrong with the remote tasks' records.
    pub(super) fn unmanaged(&self) -> Result<Vec<String>> {
        let records = self.ask(0, "/v1/remote/tasks")?;
        let records = records.as_array().cloned().unwrap_or_default();
        let odd = records.iter().filter(|r| {
            let settled = r["Observed"]["State"] == "Running" && r["Desired"] == "run" && r["Successor"].is_null();
            !settled || r["Manager"].is_null()
        });
        Ok(odd.map(Value::to_string).collect())
    }

    /// Ends every job; then nothing of them may live.
    pub(super) fn end_jobs(&self) -> Result<()> {
        for kind in KINDS {
            self.watch.want(kind, u32::MAX);
            let url = format!("{}/v1/job/{}?purge=true", self.servers[0].address(), kind.id());
            until(&format!("the purge of {}", kind.id()), BOUND, || {
                let request = ureq::delete(&url).config().timeout_global(Some(ANSWER));
                let status = request.http_status_as_error(false).build().call()?.status().as_u16();
                // Gone by a request before, whose answer has come too late.
                ensure!(matches!(status, 200 | 404), "it was answered with {status}");
                Ok(Some(()))
            })?;
        }
        let mut last = Vec::new();
        until("an end of everything", BOUND, || {
            std::thread::sleep(LOOK);
            last = self.watch.live().iter().map(|one| format!("{one:?}")).collect();
            last.extend(self.ask(1, "/v1/remote/tasks")?.as_array().into_iter().flatten().map(Value::to_string));
            Ok(last.is_empty().then_some(()))
        })
        .with_context(|| format!("left: {last:#?}"))?;
        let instances = HOSTS.map(|host| self.dir.0.join(host).join("runtime/instances"));
        let entries = instances.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
        let left: Vec<_> = entries.filter(|entry| entry.path().join("instance.json").exists()).collect();
        ensure!(left.is_empty(), "instances are left on the hosts: {left:?}");
        Ok(())
    }

    fn logs(&self) -> impl Iterator<Item = (String, String)> {
        let agents = self.servers.iter().chain(&self.nodes).map(|agent| (agent.name().to_owned(), agent.log()));
        let members = self.etcd.iter().zip(MEMBERS).map(|(member, name)| {
            let log = fs::read(member.log()).unwrap_or_default();
            (name.to_owned(), String::from_utf8_lossy(&log).into_owned())
        });
        let sshd = fs::read(self.dir.0.join("sshd.log")).unwrap_or_default();
        agents.chain(members).chain([("sshd".to_owned(), String::from_utf8_lossy(&sshd).into_owned())])
    }

    pub(super) fn tails(&self) -> String {
        const LINES: usize = 25;
        let tail = |(name, log): (String, String)| {
            let lines: Vec<&str> = log.lines().collect();
            format!("--- {name}\n{}\n", lines[lines.len().saturating_sub(LINES)..].join("\n"))
        };
        self.logs().map(tail).collect()
    }

    /// Keeps everybody's logs for a person, and says where.
    pub(super) fn keep_logs(&self, seed: u64, story: &[String]) -> Result<PathBuf> {
        let dir = local::target_dir().join("chaos").join(format!("cluster-{seed}"));
        fs::create_dir_all(&dir)?;
        for (name, log) in self.logs() {
            fs::write(dir.join(format!("{name}.log")), log)?;
        }
        fs::write(dir.join("story"), story.join("\n"))?;
        fs::write(dir.join("violations"), self.watch.violations().join("\n"))?;
        for (file, path) in [("allocs.json", "/v1/allocations"), ("records.json", "/v1/remote/tasks")] {
            let said = (0..SERVERS.len()).find_map(|server| self.ask(server, path).ok());
            fs::write(dir.join(file), serde_json::to_vec_pretty(&said)?)?;
        }
        drop(fs::copy(self.watch.dir().join("tasks"), dir.join("tasks")));
        let runtimes = HOSTS.map(|host| self.dir.0.join(host).into_os_string());
        let seen = Run::new("ls", ["-lR".into()].into_iter().chain(runtimes)).output().unwrap_or_default();
        fs::write(dir.join("hosts"), seen)?;
        Ok(dir)
    }
}

/// GET with a bound.
pub(super) fn ask(address: &str, path: &str) -> Result<Value> {
    let request = ureq::get(format!("{address}{path}")).config().timeout_global(Some(ANSWER)).build();
    Ok(request.call()?.body_mut().with_config().limit(u64::MAX).read_json()?)
}

/// PUT with a bound; a refusal is an error with its reason.
pub(super) fn put(address: &str, path: &str, body: &Value) -> Result<Value> {
    let request = ureq::put(format!("{address}{path}")).config();
    let mut answer = request.timeout_global(Some(ANSWER)).http_status_as_error(false).build().send_json(body)?;
    let (status, text) = (answer.status().as_u16(), answer.body_mut().read_to_string()?);
    ensure!(status == 200, "{path} was answered with {status} {text}");
    Ok(serde_json::from_str(&text)?)
}

/// Drains a node but for what is on every node, or ends that.
pub(super) fn drain(address: &str, id: &str, on: bool) -> Result<()> {
    let spec = json!({"Deadline": 60_000_000_000_i64, "IgnoreSystemJobs": true});
    let body = json!({"MarkEligible": !on, "DrainSpec": if on { spec } else { Value::Null }});
    put(address, &format!("/v1/node/{id}/drain"), &body).map(drop)
}

/// Removes what a run that was killed has left.
pub(crate) fn sweep(process: u32) {
    let dir = place_of(process);
    drop(local::end_all(&dir));
    drop(Net::of(process));
    local::remove(&dir);
}
