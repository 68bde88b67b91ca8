//! `remote_exec` over a real sshd: four hosts in network namespaces of their own, one of them behind another, a server
//! and two nodes; the lines to the hosts are cut in the middle of everything.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::Child,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    api::text,
    cluster::{Agent, Role, drover, example},
    job::Job,
    sshd::{self, ip},
    suite,
};
use crate::{
    local::{self, BOUND, kill, processes_of, until},
    packages,
    process::Run,
};

/// What an agent is called on this machine.
fn named(agent: &str) -> String {
    format!("ssh-{agent}")
}

/// Hosts that the root namespace has a line to. `d` lies behind `a`.
const NEAR: [&str; 3] = ["a", "b", "c"];

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_root("network namespaces need root")?;
    packages::need(&sshd::PACKAGES)?;
    let mut world = World::new()?;
    let result = story(&mut world).with_context(|| format!("the ends of the agents' logs:\n{}", world.logs()));
    // Everything was stopped by the story; what is left is a fault of its own.
    let left = if result.is_ok() { world.left() } else { Vec::new() };
    drop(world);
    result?;
    ensure!(left.is_empty(), "left behind on the hosts: {left:?}");
    Ok(())
}

/// Namespaces, servers of ssh, agents; all ended when dropped.
struct World {
    dir: PathBuf,
    tag: String,
    daemons: Vec<Child>,
    agents: BTreeMap<&'static str, Agent>,
}

impl World {
    fn new() -> Result<World> {
        let id = std::process::id();
        let dir = std::env::temp_dir().join(format!("drover-interop-ssh-{id}"));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(&dir)?;
        let mut world = World { dir, tag: format!("dv{id}"), daemons: Vec::new(), agents: BTreeMap::new() };
        world.lay_lines()?;
        sshd::keys(&world.dir, &["client", "stranger", "a", "b", "c", "d", "changed"])?;
        sshd::know_hosts(&world.dir, &["a", "b", "c", "d"].map(|host| (host, World::address(host))))?;
        for host in ["a", "b", "c", "d"] {
            fs::create_dir_all(world.home(host))?;
        }
        // A small disk, mounted before the namespaces' servers are started, whose mounts are their own.
        Run::new(
            "mount",
            [
                "-t".into(),
                "tmpfs".into(),
                "-o".into(),
                "size=6m".into(),
                "drover-interop".into(),
                world.home("c").into_os_string(),
            ],
        )
        .run()?;
        for host in ["a", "b", "c", "d"] {
            world.start_sshd(host, host)?;
        }
        Ok(world)
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}{host}", self.tag)
    }

    /// The end of the line to a host that lies in the root namespace.
    fn line(&self, host: &str) -> String {
        format!("{}-{host}", self.tag)
    }

    fn address(host: &str) -> String {
        match host {
            "a" => "10.213.1.2".into(),
            "b" => "10.213.2.2".into(),
            "c" => "10.213.3.2".into(),
            _ => "10.213.9.2".into(),
        }
    }

    fn home(&self, host: &str) -> PathBuf {
        self.dir.join(format!("host-{host}"))
    }

    fn lay_lines(&self) -> Result<()> {
        for host in ["a", "b", "c", "d"] {
            let namespace = self.namespace(host);
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        for (n, host) in NEAR.iter().enumerate() {
            let (line, namespace) = (self.line(host), self.namespace(host));
            ip(&format!("link add {line} type veth peer name eth0 netns {namespace}"))?;
            ip(&format!("addr add 10.213.{}.1/30 dev {line}", n + 1))?;
            ip(&format!("link set {line} up"))?;
            ip(&format!("-n {namespace} addr add 10.213.{}.2/30 dev eth0", n + 1))?;
            ip(&format!("-n {namespace} link set eth0 up"))?;
        }
        let (a, d) = (self.namespace("a"), self.namespace("d"));
        ip(&format!("-n {a} link add eth9 type veth peer name eth0 netns {d}"))?;
        ip(&format!("-n {a} addr add 10.213.9.1/30 dev eth9"))?;
        ip(&format!("-n {a} link set eth9 up"))?;
        ip(&format!("-n {d} addr add 10.213.9.2/30 dev eth0"))?;
        ip(&format!("-n {d} link set eth0 up"))
    }

    /// Cuts or mends the line to a host.
    fn set_line(&self, host: &str, state: &str) -> Result<()> {
        ip(&format!("link set {} {state}", self.line(host)))
    }

    /// A server of ssh for a host, with one of the keys.
    fn start_sshd(&mut self, host: &str, key: &str) -> Result<()> {
        let child = sshd::start(&self.dir, &self.namespace(host), host, key, &World::address(host))?;
        self.daemons.push(child);
        Ok(())
    }

    /// Ends the last started server of ssh and the connections that it holds.
    fn end_sshd(&mut self, host: &str) -> Result<()> {
        sshd::end_all(&self.namespace(host))
    }

    /// Starts the server, or a node of it.
    fn start_agent(&mut self, name: &'static str, more: &str) -> Result<()> {
        let role = self.agents.get("server").map_or(Role::Server, Role::Node);
        let agent = Agent::start_as(&named(name), role, &[], more)?;
        self.agents.insert(name, agent);
        self.answers(name)
    }

    fn answers(&self, name: &str) -> Result<()> {
        until("an agent's answer", BOUND, || Ok(self.agents[name].get("/v1/agent/self").is_ok().then_some(())))
    }

    fn server(&self) -> &Agent {
        &self.agents["server"]
    }

    /// The inventory as a node is told it; `identity` names the key for host `b`, which `names` may name more than
    /// once.
    fn plugin(&self, identity: &str, names: &[(&str, &str)]) -> String {
        let mut hosts = String::new();
        for (name, host) in names.iter().copied() {
            let jump = if host == "d" { format!("jump = \"{}\"", World::address("a")) } else { String::new() };
            let identity = if host == "b" { identity } else { "client" };
            hosts.push_str(&format!(
                "    host {name:?} {{\n      address = \"{}\"\n      identity_file = \"{}/keys/{identity}\"\n      \
                    dir = {:?}\n      labels = {{\n        zone = {:?}\n      }}\n      capacity {{\n        sessions \
                    = 20\n      }}\n      {jump}\n    }}\n",
                World::address(host),
                self.dir.display(),
                self.home(host).join("runtime"),
                if host == "d" { "far" } else { "east" },
            ));
        }
        format!(
            "plugin \"remote_exec\" {{\n  config {{\n    transport = \"ssh\"\n    pool = \"interop\"\n    ssh_config \
                = \"{0}/ssh_config\"\n    known_hosts = \"{0}/keys/known_hosts\"\n    keepalive_seconds = 2\n{hosts}  \
                }}\n}}\n",
            self.dir.display()
        )
    }

    /// The record of a job's one remote task.
    fn record(&self, job: &str) -> Result<Option<Value>> {
        Ok(self.server().records()?.into_iter().find(|r| r["Slot"]["JobID"] == job))
    }

    fn until_record(&self, what: &str, job: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        until(what, BOUND, || {
            let record = self.record(job)?;
            last = record.clone().unwrap_or_default();
            Ok(record.filter(|r| holds(r)))
        })
        .with_context(|| format!("the record is {last:#}"))
    }

    fn running(&self, job: &str) -> Result<Value> {
        self.until_record("a running instance", job, |r| r["Observed"]["State"] == "Running" && !r["Manager"].is_null())
    }

    /// The instances of a job that exist anywhere: directories with an intent and without a result.
    fn instances(&self) -> Vec<PathBuf> {
        let homes = ["a", "b", "c", "d"].map(|h| self.home(h).join("runtime/instances"));
        let all = homes.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten()).map(|e| e.path());
        all.filter(|dir| dir.join("instance.json").exists()).collect()
    }

    /// What must not be there any more when every job has been stopped.
    fn left(&self) -> Vec<String> {
        let homes = ["a", "b", "c", "d"].map(|h| self.home(h));
        let processes = homes
            .iter()
            .flat_map(|h| processes_of(h))
            .filter(|(_, c)| !c.contains("serve-host"))
            .map(|(pid, c)| format!("{pid} {c}"));
        processes.chain(self.instances().iter().map(|dir| dir.display().to_string())).collect()
    }

    fn logs(&self) -> String {
        let agents = self.agents.values().map(|agent| format!("--- {}\n{}", agent.name(), agent.log_tail()));
        agents.chain([fs::read_to_string(self.dir.join("sshd.log")).unwrap_or_default()]).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.agents.clear();
        for child in &mut self.daemons {
            drop(child.kill());
            drop(child.wait());
        }
        for host in ["a", "b", "c", "d"] {
            sshd::remove_namespace(&self.namespace(host));
        }
        local::remove(&self.dir);
    }
}

/// Removes the namespaces of a run that was killed.
pub(super) fn sweep(pid: u32) {
    for host in ["a", "b", "c", "d"] {
        let namespace = format!("dv{pid}{host}");
        if Path::new("/run/netns").join(&namespace).exists() {
            sshd::remove_namespace(&namespace);
        }
    }
}

/// A job that counts for ever, on a named host or anywhere in a zone.
fn job(id: &str, place: Value) -> Value {
    let script = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done";
    let mut config = json!({ "command": "/bin/sh", "args": ["-c", script] });
    for (key, value) in place.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    let task =
        json!({"KillTimeout": 1_000_000_000_i64, "KillSignal": "SIGTERM", "Resources": {"CPU": 20, "MemoryMB": 16}});
    Job::new(id, "service", "remote_exec", config).task(task).body()
}

/// What must never change while nobody asks for it: the process, and its counting.
struct Held {
    pid: String,
    counter: u64,
    log: PathBuf,
}

impl Held {
    fn begin(world: &World, job: &str) -> Result<Held> {
        let record = world.running(job)?;
        let (key, host) = (text(&record["IncarnationID"]), text(&record["Attributes"]["host"]));
        let log = world.home(&host).join("runtime/instances").join(&key).join("logs/t.stdout.0");
        let mut held = Held { pid: text(&record["Attributes"]["pid"]), counter: 0, log };
        held.check("its start")?;
        Ok(held)
    }

    /// The same process, and it has gone on counting without a gap.
    fn check(&mut self, after: &str) -> Result<()> {
        let before = self.counter;
        until(&format!("more output after {after}"), BOUND, || {
            let text = fs::read_to_string(&self.log)?;
            let lines: Vec<u64> = text.lines().filter_map(|l| l.parse().ok()).collect();
            let whole = lines.iter().zip(1..).all(|(line, n)| *line == n);
            ensure!(whole || text.is_empty(), "the counter began again or skipped");
            self.counter = lines.last().copied().unwrap_or(0);
            Ok((self.counter > before).then_some(()))
        })?;
        ensure!(Path::new(&format!("/proc/{}", self.pid)).exists(), "process {} has ended after {after}", self.pid);
        Ok(())
    }
}

/// Follows a log over the API until it is told to stop.
struct Follower {
    lines: Arc<Mutex<Vec<u64>>>,
    thread: std::thread::JoinHandle<()>,
}

impl Follower {
    fn begin(world: &World, job: &str) -> Result<Follower> {
        let alloc = text(&world.record(job)?.context("a record")?["AllocID"]);
        let url =
            format!("{}/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true&follow=true", world.server().address());
        let lines: Arc<Mutex<Vec<u64>>> = Arc::default();
        let seen = lines.clone();
        let thread = std::thread::spawn(move || {
            let Ok(answer) = ureq::get(url).call() else { return };
            for line in BufReader::new(answer.into_body().into_reader()).lines().map_while(Result::ok) {
                if let (Ok(line), Ok(mut seen)) = (line.parse(), seen.lock()) {
                    seen.push(line);
                }
            }
        });
        Ok(Follower { lines, thread })
    }

    fn lines(&self) -> Vec<u64> {
        self.lines.lock().map(|lines| lines.clone()).unwrap_or_default()
    }

    /// It still reads, and has read every line once, up to what the instance has written by now.
    fn check(&self, counter: u64) -> Result<()> {
        until("the follower's last line", BOUND, || {
            Ok((self.lines().last().copied().unwrap_or(0) >= counter).then_some(()))
        })?;
        let lines = self.lines();
        let gap = lines.iter().zip(1..).find(|(line, n)| *line != n);
        ensure!(gap.is_none(), "the followed log skips or repeats at {gap:?} of {}", lines.len());
        ensure!(!self.thread.is_finished(), "the follower has ended");
        Ok(())
    }
}

fn story(world: &mut World) -> Result<()> {
    let each = ["a", "b", "c", "d"].map(|host| (host, host));
    // The inventories differ: the second node knows one host by two names.
    let twice = [&each[..], &[("b-again", "b")]].concat();
    let (once, twice) = (world.plugin("client", &each), world.plugin("client", &twice));
    world.start_agent("server", "server {\n  heartbeat_grace = \"2s\"\n  min_heartbeat_ttl = \"2s\"\n}\n")?;
    world.start_agent("n1", &once)?;
    world.start_agent("n2", &twice)?;
    world.server().until_healthy(&["remote_exec"], 2)?;

    until("that two names lead to one host", BOUND, || {
        let said = world.server().get("/v1/nodes")?.to_string();
        Ok(said.contains("host b-again is the same host as b").then_some(()))
    })?;

    let configuration = world.agents["n1"].dir().join("agent.hcl");
    suite::doctor(&configuration, Path::new("remote_exec"), &["host a", "host b", "host c", "host d"])?;

    step("the example as it stands, through the command line");
    let address = world.server().address();
    drover(&address, &["job", "run", &example("remote-ssh.nomad.hcl")])?;
    let hosts: Vec<String> = world.server().records()?.iter().map(|r| text(&r["Attributes"]["host"])).collect();
    ensure!(
        hosts.len() == 2 && !hosts.iter().any(|host| host == "d"),
        "the example wants two instances in the zone \"east\", they are on {hosts:?}"
    );
    drover(&address, &["job", "stop", "-purge", "crunch"])?;
    until("the end of the example", BOUND, || Ok(world.left().is_empty().then_some(())))?;

    step("run on a named host, behind a jump host, and anywhere in a zone");
    for (id, place) in [
        ("on-a", json!({"host": "a"})),
        ("on-b", json!({"host": "b"})),
        ("jump", json!({"labels": {"zone": "far"}})),
        ("any", json!({"labels": {"zone": "east"}})),
    ] {
        world.server().submit(&job(id, place))?;
    }
    let jobs = ["on-a", "on-b", "jump", "any"];
    let mut held = BTreeMap::new();
    for id in jobs {
        held.insert(id, Held::begin(world, id)?);
    }
    ensure!(text(&world.running("jump")?["Attributes"]["host"]) == "d", "the far host was not chosen");
    ensure!(world.instances().len() == 4, "four instances expected: {:?}", world.instances());
    let all_held = |world: &World, held: &mut BTreeMap<&str, Held>, after: &str| -> Result<()> {
        for one in held.values_mut() {
            one.check(after)?;
        }
        ensure!(world.instances().len() == held.len(), "after {after} there are {:?}", world.instances());
        Ok(())
    };
    let follow = |world: &World, job: &str| -> Result<String> {
        let alloc = text(&world.record(job)?.context("a record")?["AllocID"]);
        world.server().output(&alloc, "stdout")
    };
    until("the log over the API", BOUND, || Ok(follow(world, "jump")?.starts_with("1\n2\n").then_some(())))?;

    step("kill -9 of a node's agent and plugin");
    let node = text(&world.running("on-a")?["ManagerName"]);
    let (name, other) = if node == named("n1") { ("n1", "n2") } else { ("n2", "n1") };
    world.agents[name]
        .pids(|command| command.contains("agent") || command.contains("driver"))
        .into_iter()
        .try_for_each(kill)?;
    world.until_record("another manager", "on-a", |r| {
        r["ManagerName"] != node && r["Observed"]["State"] == "Running" && !r["Manager"].is_null()
    })?;
    all_held(world, &mut held, "kill -9 of a node")?;
    world.agents.get_mut(name).context("the node")?.crash_and_restart()?;
    world.answers(name)?;

    step("drain of the other node");
    until("the first node is back", BOUND, || {
        let first = world.server().node(&node)?;
        Ok((first["Status"] == "ready" && first["Drivers"]["remote_exec"]["Healthy"] == true).then_some(()))
    })?;
    world.server().drain(&named(other), json!({"Deadline": 60_000_000_000_i64}))?;
    for id in jobs {
        world.until_record("a manager that is not drained", id, |r| {
            r["ManagerName"] == node && r["Observed"]["State"] == "Running"
        })?;
    }
    all_held(world, &mut held, "a drain")?;
    world.server().drain(&named(other), Value::Null)?;

    step("a cut line: unknown with the reason, and the same instance afterwards");
    world.set_line("a", "down")?;
    for id in ["on-a", "jump"] {
        let record = world.until_record("an unknown instance", id, |r| r["Observed"]["State"] == "Unknown")?;
        let why = record["Observed"]["Why"].to_string();
        ensure!(why.contains("host"), "no reason that names the host: {why}");
    }
    ensure!(world.running("on-b")?["Observed"]["State"] == "Running", "another host is not touched");
    world.set_line("a", "up")?;
    for id in ["on-a", "jump"] {
        world.running(id)?;
    }
    all_held(world, &mut held, "a cut line")?;

    let follower = Follower::begin(world, "on-b")?;
    follower.check(1)?;
    step("a line cut in the middle of creates");
    for round in 0..4 {
        let id = format!("create-{round}");
        world.server().submit(&job(&id, json!({"host": "b"})))?;
        std::thread::sleep(Duration::from_millis(40 * round));
        world.set_line("b", "down")?;
        std::thread::sleep(Duration::from_millis(3_000));
        world.set_line("b", "up")?;
        let key = text(&world.running(&id)?["IncarnationID"]);
        let with_key = world.instances().into_iter().filter(|dir| dir.ends_with(&key)).count();
        ensure!(with_key == 1 && world.instances().len() == 5, "one instance expected: {:?}", world.instances());
        // And in the middle of its stop.
        world.server().delete(&format!("/v1/job/{id}"))?;
        std::thread::sleep(Duration::from_millis(30 * round));
        world.set_line("b", "down")?;
        std::thread::sleep(Duration::from_millis(500));
        world.set_line("b", "up")?;
        until("the end of the stopped one", BOUND, || Ok((world.instances().len() == 4).then_some(())))?;
    }
    all_held(world, &mut held, "cuts in creates and stops")?;
    follower.check(held["on-b"].counter)?;

    step("a host whose key has changed");
    world.end_sshd("b")?;
    world.start_sshd("b", "changed")?;
    let record = world.until_record("the changed key", "on-b", |r| {
        r["Observed"]["Why"].to_string().contains("the host's key has changed")
    })?;
    ensure!(record["Observed"]["State"] == "Unknown", "{record:#}");
    world.end_sshd("b")?;
    world.start_sshd("b", "b")?;
    world.running("on-b")?;
    all_held(world, &mut held, "a changed host key")?;

    step("wrong credentials");
    let authorized = world.dir.join("keys/authorized");
    fs::copy(world.dir.join("keys/stranger.pub"), &authorized)?;
    world.end_sshd("b")?;
    world.start_sshd("b", "b")?;
    world.until_record("the refused credentials", "on-b", |r| {
        r["Observed"]["Why"].to_string().contains("credentials")
    })?;
    fs::copy(world.dir.join("keys/client.pub"), &authorized)?;
    world.running("on-b")?;
    all_held(world, &mut held, "wrong credentials")?;

    step("a full disk");
    let filler = world.home("c").join("filler");
    // Until nothing more fits; the failure of the last write is the point.
    drop(
        Run::new("dd", ["if=/dev/zero".to_owned(), format!("of={}", filler.display()), "bs=4k".to_owned()])
            .quiet()
            .run(),
    );
    drop(Run::new("sh", ["-c".to_owned(), format!("cat /dev/zero >> {}", filler.display())]).quiet().run());
    world.server().submit(&job("full", json!({"host": "c"})))?;
    let why = world.until_record("the full disk", "full", |r| r.to_string().contains("No space left"));
    fs::remove_file(&filler)?;
    why?;
    held.insert("full", Held::begin(world, "full")?);
    all_held(world, &mut held, "a full disk")?;

    step("stop everything");
    for id in held.keys() {
        world.server().delete(&format!("/v1/job/{id}?purge=true"))?;
    }
    until("nothing left on the hosts", BOUND, || Ok(world.left().is_empty().then_some(())))
        .with_context(|| format!("{:?}", world.left()))?;
    if held.is_empty() {
        bail!("nothing was held");
    }
    Ok(())
}

fn step(what: &str) {
    eprintln!("interop ssh: {what}");
}
