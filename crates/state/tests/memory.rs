//! What remote tasks cost in memory: `cargo test -p state --test memory -- --ignored --nocapture` prints it.

use std::sync::Arc;

use model::{
    AllocClientUpdate, AllocId, Allocation, Job, NodeId, RemoteTask,
    alloc::alloc_name,
    remote::{Manager, slot_of},
    resources::AllocatedResources,
};
use serde_json::{Value, json};
use state::{Batch, Change, State};

/// As many as the issue of what a server may take speaks of.
const MANY: u32 = 10_000;
/// Changes of one batch: what is read and thrown away for it should not count.
const BATCH: u32 = 50;

/// In no order, as ids are.
fn id(kind: u128, n: u32) -> uuid::Uuid {
    uuid::Uuid::from_u128(u128::from(n.wrapping_mul(0x9e37_79b1)) << 96 | kind << 32 | u128::from(n))
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    // As from the wire, not from a tree.
    serde_json::from_slice(value.to_string().as_bytes()).expect("reads")
}

fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("statistics of the process");
    pages.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number") * 4096
}

struct World {
    state: State,
    job: Arc<Job>,
    index: u64,
}

impl World {
    fn apply(&mut self, changes: Vec<Change>) {
        self.index += 1;
        self.state
            .apply(
                self.index,
                1_700_000_000_000_000_000 + i64::try_from(self.index).expect("small"),
                Batch::new(changes),
            )
            .expect("applies");
    }

    /// Changes for all, made and applied in batches.
    fn each(&mut self, change: impl Fn(&Self, u32) -> Change) {
        for from in (0..MANY).step_by(BATCH as usize) {
            let changes = (from..from + BATCH).map(|n| change(self, n)).collect();
            self.apply(changes);
        }
    }

    fn alloc(&self, n: u32) -> &Arc<Allocation> {
        self.state.alloc(AllocId(id(3, n))).expect("placed")
    }
}

fn event(kind: &str, time: u64, text: &str) -> Value {
    let details = if kind == "Task Setup" { json!({"message": text}) } else { json!({}) };
    let message = if kind == "Task Setup" { text } else { "" };
    json!({"Type": kind, "Time": time, "DisplayMessage": text, "Details": details, "Message": message,
        "FailsTask": false, "ExitCode": 0,
           "Signal": 0, "DriverError": "", "RestartReason": ""})
}

/// As a node tells of a remote task that runs.
fn report(n: u32) -> AllocClientUpdate {
    let time = 1_700_000_000_123_456_789 + u64::from(n);
    read(&json!({
        "ID": id(3, n), "ClientStatus": "running", "ClientDescription": "Tasks are running",
        "TaskStates": {"t": {
            "State": "running", "Failed": false, "Restarts": 0, "LastRestart": "0001-01-01T00:00:00Z",
            "StartedAt": format!("2026-11-21T08:00:00.{:09}Z", 100_000_001 + n), "FinishedAt": "0001-01-01T00:00:00Z",
            "Events": [
                event("Received", time, "Task received by client"),
                event("Task Setup", time + 1, "Building Task Directory"),
                event("Started", time + 2, "Task started by client"),
            ],
            "TaskHandle": null, "Paused": "",
        }},
        "DeploymentStatus": null, "NetworkStatus": null,
    }))
}

/// As the servers' loop writes it when the instance runs.
fn record(world: &World, n: u32) -> RemoteTask {
    let alloc = world.alloc(n);
    let (incarnation, node) = (id(5, n), id(1, n % 2));
    let time = 1_700_000_000_123_456_789_u64 + u64::from(n);
    let mut r: RemoteTask = read(&json!({
        "SpecHash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "Driver": "mock_remote",
        "IncarnationID": incarnation,
        "Provider": "mock:/var/lib/provider", "Desired": "run", "Epoch": 1, "IncarnationEpoch": 1, "AllocID": alloc.id,
        "Policy": {"Batch": false,
            "Restart": {"Attempts": 2, "Interval": 1_800_000_000_000_u64, "Delay": 15_000_000_000_u64, "Mode": "fail",
                   "RenderTemplates": false}, "KillSignal": "", "KillTimeout": 5_000_000_000_u64},
        "Handle": {"Schema": 1, "Data": "7b226b6579223a22".repeat(8)},
        "Observed": {"State": "Running"}, "Verdict": {"Kind": "Active"},
        "ProviderId": format!("mock-{}", &incarnation.to_string()[..8]),
        "Attributes": {"signals": ""}, "StartedAt": time,
        "History": [
            {"Time": time, "Epoch": 1, "Message": format!("incarnation {} committed \
                for node {}", &incarnation.to_string()[..8], &node.to_string()[..8])},
            {"Time": time + 1, "Epoch": 1, "Message": "being created"},
            {"Time": time + 2, "Epoch": 1, "Message": "running"},
        ],
    }));
    r.slot = slot_of(alloc, &world.job.task_groups[0].tasks[0].name);
    r.manager = Some(Manager { node_id: NodeId(node), alloc_id: alloc.id });
    r
}

#[test]
#[ignore = "prints figures, checks nothing"]
fn what_a_remote_task_costs() {
    let job: Job = read(&json!({
        "ID": "many", "Name": "many", "Namespace": "default", "Type": "service",
        "TaskGroups": [{"Name": "g", "Count": MANY, "Tasks": [{"Name": "t", "Driver": "mock_remote"}]}],
    }));
    let mut world = World { state: State::new(), job: Arc::new(job), index: 10 };
    world.apply(vec![Change::UpsertJob { job: Box::new(Job::clone(&world.job)), submission: None }]);
    world.job = world.state.job(&world.job.key()).expect("registered").clone();
    let resources: Arc<AllocatedResources> = Arc::new(read(&json!({"Tasks": {"t": {"Remote": true}}})));
    let node_name: Arc<str> = "node".into();
    let start = resident();
    world.each(|w, n| {
        let alloc = Allocation {
            id: AllocId(id(3, n)),
            namespace: w.job.namespace.clone(),
            name: alloc_name("many", "g", n).into(),
            node_id: NodeId(id(1, n % 2)),
            node_name: node_name.clone(),
            job_id: w.job.id.clone(),
            job: Some(w.job.clone()),
            task_group: w.job.task_groups[0].name.clone(),
            resources: resources.clone(),
            ..Allocation::default()
        };
        Change::UpsertAllocs(vec![alloc])
    });
    // Twice: with the second report, what the first one left is replaced.
    for _ in 0..2 {
        world.each(|_, n| Change::UpdateAllocsFromClient(vec![report(n)]));
    }
    let allocs = resident();
    for _ in 0..2 {
        world.each(|w, n| Change::PutRemoteTask(Box::new(record(w, n))));
    }
    let records = resident();
    let each = |bytes: u64| bytes / u64::from(MANY);
    eprintln!(
        "an allocation with its indexes: {} bytes, {} of them its own",
        each(allocs - start),
        size_of::<Allocation>()
    );
    eprintln!(
        "the record of its remote task with its indexes: {} bytes, {} of them its own",
        each(records - allocs),
        size_of::<RemoteTask>()
    );
    assert_eq!(world.state.remote_tasks().count(), MANY as usize);
}
