//! Placements per second on this machine: scheduling, verification, application and rows, without a store.
//!
//! `cargo run --release -p scheduler --example placements [nodes] [plain|preempt|full|load|lost]`, where `plain` leaves
//! out jobs with ports, `preempt` places on full nodes instead, where each placement displaces another, `full` in a
//! cluster in which five of six nodes are full, and `load` twice as many jobs of ten as there are nodes, whose rows are
//! read. `lost` has ten times as many jobs of ten and loses a twentieth of the nodes, all at once.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures and reports")]

use std::time::Instant;

use model::{
    Evaluation, Node, NodeStatus,
    alloc::{AllocClientUpdate, ClientStatus},
    ids::{EvalId, JobId, JobKey, NodeId},
    job::{Job, TaskGroup},
    network::{Network, Port},
    node::DriverInfo,
    resources::{NodeAddress, NodeNetwork},
    task::Task,
};
use state::{Batch, Change, State};

fn id(kind: u64, n: u64) -> uuid::Uuid {
    // Distributed like random ids, because indexes receive such ids.
    uuid::Builder::from_random_bytes(
        (u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) ^ u128::from(kind) << 64)
            .to_be_bytes(),
    )
    .into_uuid()
}

fn node(n: u64) -> Node {
    let mut node = Node {
        id: NodeId(id(1, n)),
        name: format!("node-{n}").into(),
        datacenter: format!("dc{}", n % 4),
        status: NodeStatus::Ready,
        ..Node::default()
    };
    node.resources.cpu.cpu_shares = 16_000;
    node.resources.cpu.total_cpu_cores = 8;
    node.resources.memory.memory_mb = 32_768;
    node.resources.disk.disk_mb = 200_000;
    node.resources.node_networks = vec![NodeNetwork {
        addresses: vec![NodeAddress {
            alias: "default".into(),
            address: format!("10.0.{}.{}", n / 250, n % 250),
            ..NodeAddress::default()
        }],
        ..NodeNetwork::default()
    }];
    for (k, v) in [("kernel.name", "linux"), ("cpu.arch", "amd64"), ("os.name", "debian"), ("kernel.version", "6.1.0")]
    {
        node.attributes.insert(k.into(), v.into());
    }
    node.attributes.insert("unique.hostname".into(), node.name.clone());
    node.drivers.insert("mock".into(), DriverInfo { detected: true, healthy: true, ..DriverInfo::default() });
    node
}

fn job(name: &str, count: i32, ports: bool) -> Job {
    let mut task = Task { name: "t".into(), driver: "mock".into(), ..Task::default() };
    task.resources.cpu = Some(100);
    task.resources.memory_mb = Some(128);
    let mut group = TaskGroup { name: "g".into(), count: Some(count), tasks: vec![task], ..TaskGroup::default() };
    if ports {
        let dynamic_ports = vec![Port { label: "http".into(), ..Port::default() }];
        group.networks.push(Network { mode: "host".into(), dynamic_ports, ..Network::default() });
    }
    Job {
        id: JobId::from(name),
        namespace: "default".into(),
        kind: "service".into(),
        priority: 50,
        region: "global".into(),
        node_pool: "default".into(),
        datacenters: vec!["*".into()],
        constraints: vec![model::Constraint {
            left: "${attr.kernel.name}".into(),
            operator: "=".into(),
            right: "linux".into(),
        }],
        task_groups: vec![group].into(),
        ..Job::default()
    }
}

fn resident_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = text.split_whitespace().nth(1).and_then(|p| p.parse().ok()).unwrap_or(0.0);
    pages * 4096.0 / 1048576.0
}

struct Bench {
    state: State,
    /// The rows of a store.
    disk: std::collections::BTreeMap<(state::Table, Vec<u8>), Vec<u8>>,
    index: u64,
    bytes: usize,
    rows: usize,
    /// Number of evaluations so far, for their ids.
    evals: u64,
    memory: scheduler::Memory,
}

impl Bench {
    fn apply(&mut self, batch: impl Into<Batch>) {
        self.index += 1;
        // As in a server: readers keep the old snapshot during the change.
        let mut next = self.state.clone();
        let applied = next.apply(self.index, 1, batch.into()).expect("no conditions");
        let rows = applied.rows(&next);
        self.rows += rows.len();
        self.bytes += rows.iter().map(|r| r.key.len() + r.value.as_ref().map_or(0, Vec::len)).sum::<usize>();
        for r in rows {
            match r.value {
                Some(v) => drop(self.disk.insert((r.table, r.key), v)),
                None => drop(self.disk.remove(&(r.table, r.key))),
            }
        }
        self.state = next;
    }

    fn run(&mut self, name: &str, jobs: u64, count: i32, ports: bool) {
        self.run_jobs(name, jobs, |name| job(name, count, ports));
    }

    fn run_jobs(&mut self, name: &str, jobs: u64, job: impl Fn(&str) -> Job) {
        for n in 0..jobs {
            self.apply(Change::UpsertJob { job: Box::new(job(&format!("{name}-{n}"))), submission: None });
        }
        self.evaluate(name, (0..jobs).map(|n| JobKey::new("default", format!("{name}-{n}").as_str())).collect());
    }

    /// One evaluation of each job.
    fn evaluate(&mut self, name: &str, jobs: Vec<JobKey>) {
        let before = resident_mib();
        (self.rows, self.bytes) = (0, 0);
        let (mut schedule, mut verify, mut apply) = (0.0, 0.0, 0.0);
        let (mut placed, many) = (0, jobs.len() as u64);
        for (n, key) in (0..).zip(jobs) {
            let eval = Evaluation {
                id: EvalId(id(2, self.evals + n)),
                namespace: key.namespace.clone(),
                job_id: key.id.clone(),
                kind: "service".into(),
                priority: self.state.job(&key).map_or(50, |job| job.priority),
                ..Evaluation::default()
            };
            let t = Instant::now();
            let bounds = scheduler::Bounds::default();
            let decision = scheduler::schedule_within(&self.state, &eval, 1, n, bounds, &mut self.memory);
            let decision = decision.expect("a service");
            schedule += t.elapsed().as_secs_f64();
            let t = Instant::now();
            let verified = scheduler::verify_plan(&self.state, &decision.plan);
            verify += t.elapsed().as_secs_f64();
            assert!(verified.refused.is_empty());
            placed += verified.plan.placements.values().map(Vec::len).sum::<usize>();
            let t = Instant::now();
            let done = scheduler::completed(&eval, &decision);
            self.apply(vec![Change::ApplyPlan(Box::new(verified.plan)), Change::UpsertEvals(vec![done])]);
            apply += t.elapsed().as_secs_f64();
        }
        self.evals += many;
        let total = schedule + verify + apply;
        println!(
            "{name:<12} {placed:>6} placed in {many} evaluations  {:>9.0}/s  schedule {:>6.1} ms  verify {:>5.1} ms  \
                apply+rows {:>6.1} ms  {} rows, {:.1} MB, {:.0} B/alloc in memory",
            placed as f64 / total,
            schedule * 1e3,
            verify * 1e3,
            apply * 1e3,
            self.rows,
            self.bytes as f64 / 1e6,
            (resident_mib() - before) * 1048576.0 / placed as f64,
        );
    }
}

/// A job of this priority whose tasks take a quarter of a node each.
fn quarters(name: &str, count: i32, priority: i32) -> Job {
    let mut job = job(name, count, false);
    job.priority = priority;
    let asked = &mut job.task_groups[0].tasks[0].resources;
    (asked.cpu, asked.memory_mb) = (Some(4_000), Some(8_000));
    job
}

fn main() {
    let nodes: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5_000);
    let mut b = Bench {
        state: State::new(),
        disk: std::collections::BTreeMap::new(),
        index: 1,
        bytes: 0,
        rows: 0,
        evals: 0,
        memory: scheduler::Memory::default(),
    };
    let t = Instant::now();
    for n in 0..nodes {
        b.apply(Change::RegisterNode(Box::new(node(n))));
    }
    println!(
        "{nodes} nodes registered one by one in {:.2} s, {:.0} MiB resident",
        t.elapsed().as_secs_f64(),
        resident_mib()
    );
    if std::env::args().nth(2).as_deref() == Some("preempt") {
        let mut config = model::SchedulerConfig::clone(b.state.scheduler_config());
        config.preemption_config.service_scheduler_enabled = true;
        b.apply(Change::SetSchedulerConfig(config));
        let each = i32::try_from(nodes / 5).unwrap_or(1_000);
        b.run_jobs("fill", 20, |name| quarters(name, each, 20));
        b.run_jobs("one-big", 1, |name| quarters(name, each * 5, 70));
        b.run_jobs("many-small", 100, |name| quarters(name, each / 20, 70));
        return;
    }
    if std::env::args().nth(2).as_deref() == Some("full") {
        b.run_jobs("fill", 1, |name| quarters(name, i32::try_from(nodes * 4 / 6 * 5).unwrap_or(10_000), 20));
        b.run("many-small", 300, 10, false);
        b.run("small-ports", 300, 10, true);
        return;
    }
    if std::env::args().nth(2).as_deref() == Some("lost") {
        b.run("many-small", nodes * 10, 10, false);
        let running = b.state.allocs().map(|alloc| AllocClientUpdate {
            id: alloc.id,
            client_status: ClientStatus::Running,
            ..AllocClientUpdate::default()
        });
        let running: Vec<_> = running.collect();
        for chunk in running.chunks(64) {
            b.apply(Change::UpdateAllocsFromClient(chunk.to_vec()));
        }
        let lost: Vec<NodeId> = (0..nodes / 20).map(|n| NodeId(id(1, n * 20))).collect();
        let of = |id| b.state.allocs_by_node(id).map(|alloc| alloc.job_key()).collect::<Vec<_>>();
        let jobs: std::collections::BTreeSet<JobKey> = lost.iter().flat_map(|id| of(*id)).collect();
        let down = |id: &NodeId| Change::NodeStatus {
            id: *id,
            status: NodeStatus::Down,
            description: String::new(),
            event: None,
        };
        b.apply(lost.iter().map(down).collect::<Vec<_>>());
        b.evaluate("lost", jobs.into_iter().collect());
        return;
    }
    match std::env::args().nth(2).as_deref() {
        Some("load") => b.run("many-small", nodes * 2, 10, false),
        mode => {
            b.run("one-big", 1, 10_000, false);
            b.run("many-small", 1_000, 10, false);
            if mode != Some("plain") {
                b.run("big-ports", 1, 10_000, true);
                b.run("small-ports", 1_000, 10, true);
            }
        }
    }
    println!("{:.0} MiB resident with {} allocations", resident_mib(), b.state.alloc_count());
    let running: Vec<_> = b
        .state
        .allocs()
        .map(|a| AllocClientUpdate { id: a.id, client_status: ClientStatus::Running, ..AllocClientUpdate::default() })
        .collect();
    let t = Instant::now();
    let n = running.len();
    for chunk in running.chunks(64) {
        b.apply(Change::UpdateAllocsFromClient(chunk.to_vec()));
    }
    println!("{n} client updates in batches of 64: {:.0}/s", n as f64 / t.elapsed().as_secs_f64());
    let rows = b.disk.into_iter().map(|((table, key), value)| state::Row { table, key, value: Some(value) });
    let before = resident_mib();
    let t = Instant::now();
    let loaded = State::load(rows).expect("rows that were written");
    println!(
        "{} allocations loaded in {:.0} ms, {:+.0} MiB",
        loaded.alloc_count(),
        t.elapsed().as_secs_f64() * 1e3,
        resident_mib() - before
    );
}
