//! A cluster in a few lines of text, and the loop that a server runs: schedule, verify, apply.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    AllocDeploymentStatus, AllocId, Allocation, ClientStatus, Evaluation, Happening, IncarnationId, Job, JobKey, Node,
    NodeId, NodeStatus, Observed, RemoteTask, SlotKey, SlotParts, TaskState,
    alloc::{AllocClientUpdate, DesiredTransition},
    eval::EvalStatus,
    ids::{EvalId, JobId},
    job::TaskGroup,
    node::{DrainStrategy, DriverInfo, Eligibility, RemoteProvider},
    plan::Decision,
    policy::{Reschedule, Update},
    remote::{Manager, RemoteHandle},
    resources::{NodeAddress, NodeDevice, NodeDevices, NodeNetwork},
    task::Task,
};
use state::{AppliedSet, Change, State};

pub(crate) const S: i64 = 1_000_000_000;

/// So many cases, or as many as `PROPTEST_CASES` says.
pub(crate) fn cases(n: u32) -> proptest::test_runner::Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(n);
    proptest::test_runner::Config { cases, ..Default::default() }
}

pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) now: i64,
    pub(crate) seed: u64,
    evals: u64,
    memory: scheduler::Memory,
}

pub(crate) fn id_of(name: &str) -> uuid::Uuid {
    let mut bytes = [0; 16];
    for (i, b) in name.bytes().enumerate() {
        bytes[i % 16] ^= b.wrapping_mul(31).wrapping_add(u8::try_from(i).unwrap_or(0));
    }
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

pub(crate) fn node_id(name: &str) -> NodeId {
    NodeId(id_of(name))
}

/// `name key=value…`, e.g. `n1 dc=dc2 cpu=4000 mem=8000 class=big attr.kernel=5.1 meta.rack=r1
/// driver=ecs:account-a:1-3:0:0 down`.
pub(crate) fn node(line: &str) -> Node {
    let mut words = line.split_whitespace();
    let name = words.next().expect("a name");
    let mut n = Node {
        id: node_id(name),
        name: name.into(),
        datacenter: "dc1".into(),
        pool: "default".into(),
        status: NodeStatus::Ready,
        ..Node::default()
    };
    n.resources.cpu.cpu_shares = 4000;
    n.resources.cpu.total_cpu_cores = 4;
    n.resources.cpu.reservable_cpu_cores = (0..4).collect();
    n.resources.memory.memory_mb = 8000;
    n.resources.disk.disk_mb = 100_000;
    let address = NodeAddress { alias: "default".into(), address: format!("ip-of-{name}"), ..NodeAddress::default() };
    n.resources.node_networks = vec![NodeNetwork { addresses: vec![address], ..NodeNetwork::default() }];
    let up = DriverInfo { detected: true, healthy: true, ..DriverInfo::default() };
    n.drivers.insert("mock".into(), up.clone());
    for w in words {
        let (k, v) = w.split_once('=').unwrap_or((w, ""));
        match k {
            "dc" => n.datacenter = v.into(),
            "pool" => n.pool = v.into(),
            "class" => n.class = v.into(),
            "cpu" => n.resources.cpu.cpu_shares = v.parse().expect(w),
            "mem" => n.resources.memory.memory_mb = v.parse().expect(w),
            "disk" => n.resources.disk.disk_mb = v.parse().expect(w),
            "cores" => {
                n.resources.cpu.total_cpu_cores = v.parse().expect(w);
                n.resources.cpu.reservable_cpu_cores = (0..n.resources.cpu.total_cpu_cores).collect();
            }
            // nvidia/gpu/T4:a+b
            "devices" => {
                let (group, ids) = v.split_once(':').expect(w);
                let [vendor, kind, name] = group.splitn(3, '/').collect::<Vec<_>>()[..] else { panic!("{w}") };
                let instance = |id: &str| NodeDevice { id: id.into(), healthy: true, ..NodeDevice::default() };
                n.resources.devices.push(NodeDevices {
                    vendor: vendor.into(),
                    kind: kind.into(),
                    name: name.into(),
                    instances: ids.split('+').map(instance).collect(),
                    ..NodeDevices::default()
                });
            }
            "unreservable" => n.resources.cpu.reservable_cpu_cores.clear(),
            "reserved" => n.reserved.networks.reserved_host_ports = v.into(),
            "dynamic" => {
                let (a, b) = v.split_once('-').expect(w);
                (n.resources.min_dynamic_port, n.resources.max_dynamic_port) =
                    (a.parse().expect(w), b.parse().expect(w));
            }
            "volume" => drop(n.host_volumes.insert(v.into(), Default::default())),
            "down" => n.status = NodeStatus::Down,
            "ineligible" => n.eligibility = Eligibility::Ineligible,
            "nodriver" => n.drivers.clear(),
            "max_allocs" => n.max_allocs = v.parse().expect(w),
            "sessions" => n.resources.remote_sessions = v.parse().expect(w),
            "driver" => {
                let parts: Vec<_> = v.split(':').collect();
                let (low, high) = parts[2].split_once('-').expect(w);
                let remote = RemoteProvider {
                    provider: parts[1].into(),
                    handle_schema_min: low.parse().expect(w),
                    handle_schema_max: high.parse().expect(w),
                    pool_cpu: parts[3].parse().expect(w),
                    pool_memory_mb: parts[4].parse().expect(w),
                    ..RemoteProvider::default()
                };
                n.drivers.insert(parts[0].into(), DriverInfo { remote: Some(remote), ..up.clone() });
            }
            "volumes_of" => n.drivers.get_mut(v).and_then(|d| d.remote.as_mut()).expect(w).volumes = true,
            _ => {
                if let Some(name) = k.strip_prefix("attr.") {
                    n.attributes.insert(name.into(), v.into());
                } else if let Some(name) = k.strip_prefix("meta.") {
                    n.meta.insert(name.into(), v.into());
                } else {
                    panic!("unknown word {w}");
                }
            }
        }
    }
    n
}

/// A service `web` with one group `g` of one task: 500 MHz, 256 MiB.
pub(crate) fn service(count: i32) -> Job {
    let mut task = Task { name: "t".into(), driver: "mock".into(), ..Task::default() };
    task.resources.cpu = Some(500);
    task.resources.memory_mb = Some(256);
    let group = TaskGroup { name: "g".into(), count: Some(count), tasks: vec![task], ..TaskGroup::default() };
    let mut job = Job {
        id: JobId::from("web"),
        namespace: "default".into(),
        kind: "service".into(),
        priority: 50,
        region: "global".into(),
        node_pool: "default".into(),
        datacenters: vec!["*".into()],
        task_groups: vec![group].into(),
        ..Job::default()
    };
    job.task_groups[0].reschedule = Some(Reschedule::defaults());
    job
}

pub(crate) fn batch(count: i32) -> Job {
    let mut job = service(count);
    job.kind = "batch".into();
    job.task_groups[0].reschedule = Some(Reschedule {
        attempts: Some(1),
        interval: Some(model::GoDuration::from_secs(86_400)),
        delay: Some(model::GoDuration::from_secs(5)),
        delay_function: Some("constant".into()),
        unlimited: Some(false),
        ..Reschedule::default()
    });
    job
}

/// The same with a rolling update of `n` at a time.
pub(crate) fn rolling(mut job: Job, n: i32) -> Job {
    job.task_groups[0].update = Some(Update { max_parallel: Some(n), ..Update::defaults() });
    job
}

/// The same in another version: its task has another environment.
pub(crate) fn changed(job: &Job) -> Job {
    let mut job = job.clone();
    job.task_groups[0].tasks[0].env.insert("A".into(), "1".into());
    job
}

/// The slot of the task of a job `web` with that index.
pub(crate) fn slot(index: u32) -> SlotKey {
    SlotParts { namespace: "default".into(), job_id: "web".into(), group: "g".into(), index, task: "t".into() }.into()
}

/// The record of a slot whose instance can be told from others'.
pub(crate) fn record(slot: SlotKey) -> RemoteTask {
    let incarnation = IncarnationId(id_of(&format!("incarnation of {}", slot.index)));
    RemoteTask { slot, incarnation, ..RemoteTask::default() }
}

pub(crate) fn key() -> JobKey {
    JobKey::new("default", "web")
}

impl World {
    pub(crate) fn new(nodes: &str) -> Self {
        let mut w =
            Self { state: State::new(), now: 1_000_000 * S, seed: 7, evals: 0, memory: scheduler::Memory::default() };
        for line in nodes.lines().map(str::trim).filter(|l| !l.is_empty()) {
            w.node(line);
        }
        w
    }

    /// One in which this job was registered, and scheduled once.
    pub(crate) fn with(nodes: &str, job: &Job) -> Self {
        let mut w = Self::new(nodes);
        w.submit(job);
        w
    }

    pub(crate) fn apply(&mut self, changes: Vec<Change>) -> AppliedSet {
        let index = self.state.latest_index() + 1;
        self.state.apply(index, self.now, changes.into()).expect("no conditions")
    }

    pub(crate) fn node(&mut self, line: &str) {
        let n = node(line);
        let (id, eligibility) = (n.id, n.eligibility);
        self.apply(vec![Change::RegisterNode(Box::new(n)), Change::NodeEligibility { id, eligibility, event: None }]);
    }

    pub(crate) fn down(&mut self, name: &str) {
        self.apply(vec![Change::NodeStatus {
            id: node_id(name),
            status: NodeStatus::Down,
            description: String::new(),
            event: None,
        }]);
    }

    pub(crate) fn drain(&mut self, name: &str) {
        let drain = Some(DrainStrategy::default());
        self.apply(vec![Change::NodeDrain {
            id: node_id(name),
            drain,
            mark_eligible: false,
            last_drain: None,
            event: None,
        }]);
    }

    pub(crate) fn register(&mut self, job: &Job) {
        self.apply(vec![Change::UpsertJob { job: Box::new(job.clone()), submission: None }]);
    }

    pub(crate) fn eval(&mut self) -> Evaluation {
        self.evals += 1;
        let job = self.state.job(&key());
        Evaluation {
            id: EvalId(id_of(&format!("evaluation-{}", self.evals))),
            namespace: "default".into(),
            job_id: "web".into(),
            kind: job.map_or_else(|| "service".into(), |j| j.kind.clone()),
            priority: 50,
            ..Evaluation::default()
        }
    }

    /// One evaluation, carried out.
    pub(crate) fn run(&mut self) -> Decision {
        let eval = self.eval();
        self.run_eval(&eval)
    }

    pub(crate) fn run_eval(&mut self, eval: &Evaluation) -> Decision {
        let decision = scheduler::schedule(&self.state, eval, self.now, self.seed).expect("a kind that is supported");
        let bounds = scheduler::Bounds::default();
        let remembering = scheduler::schedule_within(&self.state, eval, self.now, self.seed, bounds, &mut self.memory);
        let remembering = remembering.expect("a kind that is supported");
        assert_eq!(format!("{remembering:#?}"), format!("{decision:#?}"), "a memory changes no decision");
        let verified = scheduler::verify_plan(&self.state, &decision.plan);
        assert!(verified.refused.is_empty(), "a plan made on the newest state fits it: {:?}", verified.refused);
        let mut evals = decision.new_evals.clone();
        evals.push(scheduler::completed(eval, &decision));
        self.apply(vec![Change::ApplyPlan(Box::new(verified.plan)), Change::UpsertEvals(evals)]);
        decision
    }

    /// Registers and runs.
    pub(crate) fn submit(&mut self, job: &Job) -> Decision {
        self.register(job);
        self.run()
    }

    /// The same for a job of another name.
    pub(crate) fn submit_as(&mut self, job: &Job) -> Decision {
        self.register(job);
        let eval = Evaluation { job_id: job.id.clone(), priority: job.priority, ..self.eval() };
        self.run_eval(&eval)
    }

    /// Live allocations of a job by node.
    pub(crate) fn by_node_of(&self, job: &str) -> BTreeMap<String, usize> {
        let mut by = BTreeMap::new();
        for a in self.state.allocs_by_job(&JobKey::new("default", job)).filter(|a| !a.terminal()) {
            *by.entry(a.node_name.to_string()).or_default() += 1;
        }
        by
    }

    pub(crate) fn allocs(&self) -> Vec<Arc<Allocation>> {
        let mut all: Vec<_> = self.state.allocs_by_job(&key()).cloned().collect();
        all.sort_by_key(|a| (a.task_group.clone(), a.index(), a.create_index, a.id));
        all
    }

    pub(crate) fn live(&self) -> Vec<Arc<Allocation>> {
        self.allocs().into_iter().filter(|a| !a.terminal()).collect()
    }

    /// The live allocation of that index.
    pub(crate) fn at(&self, index: u32) -> Arc<Allocation> {
        self.live()
            .into_iter()
            .find(|a| a.index() == index)
            .unwrap_or_else(|| panic!("no live allocation {index}: {}", self.show()))
    }

    /// `index:node:version` of what lives, in order.
    pub(crate) fn show(&self) -> String {
        let one = |a: &Arc<Allocation>| format!("{}:{}:v{}", a.index(), a.node_name, a.job_version);
        self.live().iter().map(one).collect::<Vec<_>>().join(" ")
    }

    /// Live allocations by node.
    pub(crate) fn by_node(&self) -> BTreeMap<String, usize> {
        let mut by = BTreeMap::new();
        for a in self.live() {
            *by.entry(a.node_name.to_string()).or_default() += 1;
        }
        by
    }

    pub(crate) fn report(&mut self, id: AllocId, status: ClientStatus, healthy: Option<bool>) {
        let mut task = TaskState { failed: status == ClientStatus::Failed, ..TaskState::default() };
        if status.terminal() {
            task.finished_at = self.now.into();
        }
        task.state = if status.terminal() { model::TaskRunState::Dead } else { model::TaskRunState::Running };
        let update = AllocClientUpdate {
            id,
            client_status: status,
            task_states: model::Map::from([(Arc::from("t"), task)]),
            deployment_status: healthy
                .map(|h| AllocDeploymentStatus { healthy: Some(h), ..AllocDeploymentStatus::default() }),
            ..AllocClientUpdate::default()
        };
        self.apply(vec![Change::UpdateAllocsFromClient(vec![update])]);
    }

    /// As a node tells of a task that it was told to end, and that did so without complaint.
    pub(crate) fn killed(&mut self, id: AllocId) {
        let killed = Happening { kind: "Killing".into(), ..Happening::default() }.at(self.now);
        let task = TaskState { state: model::TaskRunState::Dead, events: vec![killed], ..TaskState::default() };
        let update = AllocClientUpdate {
            id,
            client_status: ClientStatus::Complete,
            task_states: model::Map::from([(Arc::from("t"), task)]),
            ..AllocClientUpdate::default()
        };
        self.apply(vec![Change::UpdateAllocsFromClient(vec![update])]);
    }

    /// Everything that lives runs and is healthy.
    pub(crate) fn all_healthy(&mut self) {
        for a in self.live() {
            self.report(a.id, ClientStatus::Running, Some(true));
        }
    }

    pub(crate) fn fail(&mut self, index: u32) -> AllocId {
        let id = self.at(index).id;
        self.report(id, ClientStatus::Failed, None);
        id
    }

    pub(crate) fn mark(&mut self, id: AllocId, t: DesiredTransition) {
        self.apply(vec![Change::AllocTransitions(vec![(id, t)])]);
    }

    /// What the servers write when what lives runs, at the provider that its node reaches.
    pub(crate) fn manage(&mut self) {
        self.manage_with(1);
    }

    /// The same under handles of that schema.
    pub(crate) fn manage_with(&mut self, schema: u32) {
        for a in self.live() {
            let slot = slot(a.index());
            let mut r = self.state.remote_task(&slot).map_or_else(|| record(slot), |r| RemoteTask::clone(r));
            let reached =
                self.state.node(a.node_id).and_then(|n| n.drivers["ecs"].remote.clone()).expect("reaches one");
            assert!(r.provider.is_empty() || r.provider == reached.provider, "a slot stays at its provider");
            (r.provider, r.driver, r.job_version) = (reached.provider.into(), "ecs".into(), a.job_version);
            r.handle = Some(RemoteHandle { schema, data: [1].into() });
            r.observed = Observed::Running;
            r.manager = Some(Manager { node_id: a.node_id, alloc_id: a.id });
            r.alloc_id = a.id;
            self.apply(vec![Change::PutRemoteTask(Box::new(r))]);
        }
    }

    pub(crate) fn blocked(&self) -> Vec<Arc<Evaluation>> {
        self.state.evals().filter(|e| e.status == EvalStatus::Blocked).cloned().collect()
    }

    /// No node has more than it can give. What is to stop is not counted: what takes its place waits for it there.
    pub(crate) fn check_room(&self) {
        for n in self.state.nodes() {
            let mut u = state::NodeUse::default();
            self.state.allocs_by_node(n.id).filter(|a| !a.terminal()).for_each(|a| u.add(a));
            let live = self.state.allocs_by_node(n.id).filter(|a| a.occupies());
            let given = live.flat_map(|a| a.resources.tasks.values()).flat_map(|t| &t.devices);
            let mut devices: Vec<_> =
                given.flat_map(|d| d.device_ids.iter().map(|id| format!("{} {id}", d.id()))).collect();
            devices.sort();
            assert!(devices.windows(2).all(|w| w[0] != w[1]), "a device of {} is given twice: {devices:?}", n.name);
            let c = state::NodeCapacity::of(n);
            assert!(
                u.cpu <= c.cpu && u.memory_mb <= c.memory_mb && u.disk_mb <= c.disk_mb,
                "{} is over-committed: {u:?} of {c:?}",
                n.name
            );
            for ip in c.networks.iter().map(|n| &n.ip) {
                assert!(
                    u.ports.ports(ip).windows(2).all(|w| w[0] < w[1]),
                    "a port of {} is given twice: {:?}",
                    n.name,
                    u.ports
                );
            }
        }
    }
}
