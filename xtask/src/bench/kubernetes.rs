//! `cargo xtask bench kubernetes`: the driver `kubernetes` with the API server of a real cluster. The first pods run
//! on a real kubelet; of the others only objects are there, and a loop here says what a kubelet would.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    DRIVERS,
    agent::Kind,
    measure::{cpu_ticks, f, ms, pss_kib},
    remote::{BOUND, CREATED, MANY, PEACE, SETTLED, cost, drain, job, managed, until_managed},
    table::{self, Row},
};
use crate::{
    interop::{
        cluster::{Agent, Role},
        kubernetes::{self, Cluster, IMAGE, NAMESPACE},
    },
    local::{free_ports, kill, target_dir, until},
    process::Run,
    workspace,
};

/// The node of pods that are only objects.
const NOWHERE: &str = "nowhere";
/// Starts that are measured.
const STARTS: usize = 20;
/// Lines whose lag is measured.
const LINES: usize = 60;
/// How long one watch for pods without a node goes on.
const KUBELET_LOOK: Duration = Duration::from_secs(5);
/// Pods that are placed at the same time. The driver creates 128 at once, and a busy API server gives each request its
/// share.
const KUBELETS: usize = 64;

/// Measures, and prints the table.
pub(crate) fn run() -> Result<()> {
    kubernetes::need()?;
    let programs = kubernetes::programs()?;
    Run::new("cargo", DRIVERS).dir(workspace::root()).run()?;
    let cluster = Cluster::start(&programs)?;
    let api = Api::start(&cluster)?;
    let mut fleet = Fleet::start()?;
    fleet.join(&cluster)?;
    let mut rows = starts(&fleet, &api)?;
    rows.extend(logs(&fleet, &cluster)?);
    // From here on nobody else says how nodes and pods are.
    for part in ["kube-controller-manager", "kube-scheduler"] {
        cluster.kill(part)?;
    }
    api.make_nowhere()?;
    let kubelet = Kubelet::start(api.clone());
    rows.extend(many(&mut fleet, &cluster)?);
    drop(kubelet);
    table::print(&rows);
    Ok(())
}

/// The API server through `kubectl proxy`, which has the credentials.
#[derive(Clone)]
struct Api {
    port: u16,
    /// Keeps connections.
    agent: ureq::Agent,
    _proxy: Arc<Proxy>,
}

struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Api {
    fn start(cluster: &Cluster) -> Result<Self> {
        let [port] = free_ports()?;
        let mut command = Command::new(&cluster.kubectl);
        command.args(["proxy", "--port", &port.to_string(), "--kubeconfig"]).arg(cluster.kubeconfig());
        let proxy = command.stdout(Stdio::null()).spawn().context("could not start kubectl proxy")?;
        let api = Self { port, agent: ureq::Agent::new_with_defaults(), _proxy: Arc::new(Proxy(proxy)) };
        until("kubectl proxy", BOUND, || Ok(api.get("/version").ok()))?;
        Ok(api)
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn get(&self, path: &str) -> Result<Value> {
        Ok(ureq::get(self.url(path)).call()?.body_mut().with_config().limit(u64::MAX).read_json()?)
    }

    fn post(&self, path: &str, body: &Value) -> Result<()> {
        // Read to its end, or the connection is not used again.
        self.agent.post(self.url(path)).send_json(body)?.body_mut().read_to_vec()?;
        Ok(())
    }

    fn merge(&self, path: &str, body: &Value) -> Result<()> {
        let kind = "application/merge-patch+json";
        let asked = self.agent.patch(self.url(path)).header("content-type", kind);
        asked.send(body.to_string())?.body_mut().read_to_vec()?;
        Ok(())
    }

    /// A node with room for everything, and nothing behind it.
    fn make_nowhere(&self) -> Result<()> {
        self.post("/api/v1/nodes", &json!({"metadata": {"name": NOWHERE}}))?;
        self.merge(&format!("/api/v1/nodes/{NOWHERE}"), &json!({"spec": {"taints": null}}))
    }
}

/// A server, and nodes that reach the cluster.
struct Fleet {
    server: Agent,
    nodes: Vec<Agent>,
}

impl Fleet {
    fn start() -> Result<Self> {
        let server = Agent::start_build(Kind::drover().program(), "bench-server", Role::Server, &[], "")?;
        until("the server's answer", BOUND, || Ok(server.get("/v1/nodes").ok()))?;
        Ok(Self { server, nodes: Vec::new() })
    }

    fn join(&mut self, cluster: &Cluster) -> Result<()> {
        let (name, plugin) = (format!("bench-n{}", self.nodes.len() + 1), "release/drover-driver-kubernetes");
        let plugins = [("kubernetes", &*target_dir().join(plugin))];
        let (program, role) = (Kind::drover(), Role::Node(&self.server));
        self.nodes.push(Agent::start_build(program.program(), &name, role, &plugins, &cluster.settings())?);
        self.server.until_healthy(&["kubernetes"], self.nodes.len())
    }

    fn submit(&self, id: &str, count: usize, script: &str) -> Result<()> {
        let config = json!({"image": IMAGE, "command": "/bin/sh", "args": ["-c", script], "grace_period": "1s"});
        self.server.submit(&job(id, count, "kubernetes", &config))
    }

    /// Until so many of a job run. The list of all is not asked for: with thousands, server and bench would be busy
    /// with it.
    fn until_running(&self, id: &str, count: usize) -> Result<()> {
        let path = format!("/v1/job/{id}/summary");
        let mut told = Instant::now();
        until("running pods", CREATED, || {
            let running = self.server.get(&path)?["Summary"]["g"]["Running"].as_u64().unwrap_or_default();
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                eprintln!("xtask: {running} of {count} run");
            }
            std::thread::sleep(Duration::from_millis(100));
            Ok((running >= count as u64).then_some(()))
        })
    }

    fn end(&self, id: &str) -> Result<()> {
        self.server.delete(&format!("/v1/job/{id}"))?;
        self.server.until_no_record()
    }
}

/// From the registration of a job to the event that its pod is there; beside it what the API needs for a pod by itself.
fn starts(fleet: &Fleet, api: &Api) -> Result<Vec<Row>> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let watch = ureq::get(api.url(&format!("{path}?watch=1"))).call()?;
    let mut events = BufReader::with_capacity(256, watch.into_body().into_reader()).lines();
    let mut until_added = || -> Result<Instant> {
        loop {
            let event: Value = serde_json::from_str(&events.next().context("the watch has ended")??)?;
            if event["type"] == "ADDED" {
                return Ok(Instant::now());
            }
        }
    };
    let (mut ours, mut alone) = (Vec::new(), Vec::new());
    for n in 0..STARTS {
        let asked = Instant::now();
        fleet.submit(&format!("start-{n}"), 1, "exec sleep 1000")?;
        ours.push(ms(until_added()?.duration_since(asked)));
        let pod = json!({"metadata": {"name": format!("alone-{n}")},
            "spec": {"schedulingGates": [{"name": "bench/never"}], "containers": [{"name": "c", "image": IMAGE}]}});
        let asked = Instant::now();
        api.post(&path, &pod)?;
        alone.push(ms(until_added()?.duration_since(asked)));
    }
    for n in 0..STARTS {
        fleet.server.delete(&format!("/v1/job/start-{n}"))?;
    }
    fleet.server.until_no_record()?;
    Ok(vec![
        Row::new("job run -> its pod is created", "drover", "ms", ours),
        Row::new("  a create and its event, by the API alone", "drover", "ms", alone),
    ])
}

/// How late a line of a pod comes, followed at Drover and by `kubectl`. Both are on this machine: its uptime is the
/// clock, to ten milliseconds.
fn logs(fleet: &Fleet, cluster: &Cluster) -> Result<Vec<Row>> {
    fleet.submit("writer", 1, "while :; do read up rest < /proc/uptime; echo $up; usleep 53000; done")?;
    let alloc = until("a running writer", BOUND, || fleet.server.serving("writer"))?;
    let path = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true&follow=true&origin=end&offset=0");
    let answer = ureq::get(format!("{}{path}", fleet.server.address())).call()?;
    let ours = lag(answer.into_body().into_reader())?;
    let record = fleet.server.records()?.into_iter().next().context("a record")?;
    let pod = record["ProviderId"].as_str().and_then(|id| id.split_once('/')).context("a pod")?.1.to_owned();
    let mut command = Command::new(&cluster.kubectl);
    command.args(["logs", "-f", "--tail=0", "-n", NAMESPACE, &pod, "--kubeconfig"]).arg(cluster.kubeconfig());
    let mut follower = command.stdout(Stdio::piped()).spawn()?;
    let theirs = lag(follower.stdout.take().context("no output")?);
    follower.kill()?;
    follower.wait()?;
    fleet.end("writer")?;
    Ok(vec![
        Row::new("logs -f of a pod: lag of a line", "drover", "ms", ours),
        Row::new("  the same by kubectl logs -f", "drover", "ms", theirs?),
    ])
}

fn lag(output: impl std::io::Read) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for line in BufReader::with_capacity(256, output).lines() {
        let Ok(written) = line?.trim().parse::<f64>() else { continue };
        let now = std::fs::read_to_string("/proc/uptime")?;
        let now: f64 = now.split(' ').next().and_then(|up| up.parse().ok()).context("an uptime")?;
        all.push((now - written).max(0.0) * 1e3);
        if all.len() == LINES {
            break;
        }
    }
    Ok(all)
}

/// Hand-overs of one and of five hundred, and what many cost in peace. `DROVER_BENCH_PODS` is another number than ten
/// thousand.
fn many(fleet: &mut Fleet, cluster: &Cluster) -> Result<Vec<Row>> {
    let many = std::env::var("DROVER_BENCH_PODS").ok().and_then(|n| n.parse().ok()).unwrap_or(MANY);
    let mut rows = Vec::new();
    fleet.join(cluster)?;
    for (more, count, runs) in [(1, 1, 7), (499, 500, 3)] {
        fleet.submit(&format!("moved-{count}"), more, "")?;
        until_managed(&fleet.server, count, "", CREATED)?;
        let mut drained = Vec::new();
        for _ in 0..runs {
            let by = managed(&fleet.server)?.into_values().fold(BTreeMap::new(), |mut all, (name, _)| {
                *all.entry(name).or_insert(0) += 1;
                all
            });
            let old = by.into_iter().max_by_key(|(_, n)| *n).context("a manager")?.0;
            let asked = Instant::now();
            drain(&fleet.server, &old, true)?;
            until_managed(&fleet.server, count, &old, BOUND)?;
            drained.push(ms(asked.elapsed()));
            drain(&fleet.server, &old, false)?;
        }
        rows.push(Row::new(format!("drain -> re-managed, {count} pods"), "drover", "ms", drained));
    }
    // One node has all of them from here on.
    let away = fleet.nodes.remove(0);
    let name = away.name().to_owned();
    drain(&fleet.server, &name, true)?;
    until_managed(&fleet.server, 500, &name, BOUND)?;
    drop(away);
    // What the hand-overs have left is nothing that a pod needs.
    anew(&mut fleet.nodes[0])?;
    // A plugin gives back what its start has taken once it has rested for half a minute.
    std::thread::sleep(SETTLED * 2);
    let before = cost(&fleet.nodes[0], None);
    tell("before", &fleet.nodes[0]);
    let asked = Instant::now();
    fleet.submit("many", many - 500, "")?;
    fleet.until_running("many", many - 500)?;
    let created = asked.elapsed().as_secs_f64();
    tell("all are seen running", &fleet.nodes[0]);
    until_managed(&fleet.server, many, "", BOUND)?;
    std::thread::sleep(SETTLED);
    let (calm, begun) = (cost(&fleet.nodes[0], None), Instant::now());
    std::thread::sleep(PEACE);
    let now = cost(&fleet.nodes[0], None);
    tell("in peace", &fleet.nodes[0]);
    // A tick is 10 ms.
    let share = f(now.ticks.saturating_sub(calm.ticks)) / begun.elapsed().as_secs_f64();
    let each = (f(now.kib) - f(before.kib)) / f((many - 500) as u64);
    rows.extend([
        Row::new(format!("{} further pods: created and seen running", many - 500), "drover", "s", vec![created]),
        Row::new(format!("{many} pods: steady CPU of agent and plugin"), "drover", "%", vec![share]),
        Row::new("  memory of agent and plugin per pod", "drover", "KiB", vec![each]),
    ]);
    // The first listing of a new plugin is what it needs most for.
    anew(&mut fleet.nodes[0])?;
    std::thread::sleep(SETTLED);
    tell("after a restart", &fleet.nodes[0]);
    let again = cost(&fleet.nodes[0], None);
    let spent = f(again.ticks) / 100.0;
    rows.extend([
        Row::new(format!("{many} pods: time of agent and plugin after a restart"), "drover", "s", vec![spent]),
        Row::new("  most memory of the plugin", "drover", "MiB", vec![f(most_kib(&fleet.nodes[0])) / 1024.0]),
    ]);
    Ok(rows)
}

/// Another agent and another plugin; a plugin outlives its agent.
fn anew(node: &mut Agent) -> Result<()> {
    node.crash()?;
    node.processes().into_keys().try_for_each(kill)?;
    node.restart()
}

/// What each process of a node takes.
fn tell(when: &str, node: &Agent) {
    for (pid, command) in node.processes() {
        let (kib, seconds) = (pss_kib(pid), f(cpu_ticks(pid)) / 100.0);
        let name = command.split_whitespace().next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        eprintln!("xtask: {when}: {name} {} MiB, at most {} MiB, {seconds:.1} s", kib / 1024, peak_kib(pid) / 1024);
    }
}

/// The most that the plugin of a node ever had.
fn most_kib(node: &Agent) -> u64 {
    let plugins = node.processes().into_iter().filter(|(_, command)| command.contains("/plugins/kubernetes"));
    plugins.map(|(pid, _)| peak_kib(pid)).max().unwrap_or_default()
}

fn peak_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    text.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

/// Says of pods that nothing runs what a kubelet would say of running ones.
struct Kubelet {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Kubelet {
    fn start(api: Api) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                drop(serve(&api));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { over, thread: Some(thread) }
    }
}

/// Takes the pods that may be placed, for [`KUBELET_LOOK`]. A watch tells of them: a listing of those without a node
/// makes the API server read all pods there are. It begins with what waits, so what has failed is tried again.
fn serve(api: &Api) -> Result<()> {
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let selector = "fieldSelector=spec.nodeName%3D&labelSelector=drover.dev%2Fowner";
    let look = format!("{pods}?watch=1&resourceVersion=0&timeoutSeconds={}&{selector}", KUBELET_LOOK.as_secs());
    let events = ureq::get(api.url(&look)).call()?.into_body().into_reader();
    let (free, waiting) = std::sync::mpsc::channel::<String>();
    let waiting = Mutex::new(waiting);
    let next = || waiting.lock().ok()?.recv().ok();
    std::thread::scope(|scope| {
        for _ in 0..KUBELETS {
            scope.spawn(|| {
                while let Some(name) = next() {
                    drop(runs(api, &format!("{pods}/{name}"), &name));
                }
            });
        }
        // The threads end with it.
        let free = free;
        for line in BufReader::new(events).lines() {
            let event: Value = serde_json::from_str(&line?)?;
            let (kind, pod) = (event["type"].as_str().unwrap_or_default(), &event["object"]);
            let is_gated = pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
            if matches!(kind, "ADDED" | "MODIFIED") && !is_gated {
                free.send(pod["metadata"]["name"].as_str().context("a name")?.to_owned())?;
            }
        }
        Ok(())
    })
}

/// Places a pod, and says that it runs.
fn runs(api: &Api, path: &str, name: &str) -> Result<()> {
    let target = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": NOWHERE}});
    api.post(&format!("{path}/binding"), &target)?;
    let is = |kind: &str| json!({"type": kind, "status": "True"});
    let container = json!({"name": "task", "image": IMAGE, "imageID": "", "ready": true, "restartCount": 0,
        "containerID": "fake://1", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}});
    let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [container],
        "conditions": [is("PodScheduled"), is("ContainersReady"), is("Ready")]}});
    api.merge(&format!("{path}/status"), &status)
}
