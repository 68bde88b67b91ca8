//! Random histories: the state after batches equals the state loaded from their rows, and every index agrees with a
//! search.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    AllocDeploymentStatus, AllocId, Allocation, ClientStatus, Deployment, DeploymentId, DeploymentStatus,
    DesiredStatus, EvalId, EvalStatus, Evaluation, Job, JobKey, Map, Node, NodeId, NodeStatus, Plan, SlotKey,
    SlotParts,
    alloc::{AllocClientUpdate, DesiredTransition, alloc_name},
    deployment::DeploymentGroup,
    job::{TaskGroup, VersionTag, job_status},
    metrics::{AllocMetric, NodeScore},
    network::AllocatedPort,
    node::{DriverInfo, RemoteProvider},
    plan::{DeploymentUpdate, PlannedStop},
    remote::{Manager, RemoteTask},
    resources::{AllocatedResources, AllocatedTask},
    service::{RemoteServices, ServiceEntry},
};
use proptest::prelude::*;

use self::{
    acl::{AclStep, acl_changes, acl_step, acl_view, check_acl},
    volumes::{VolumeStep, check_volumes, sticky, volume_changes, volume_step, volume_view},
};

use crate::{
    ApplyError, Batch, Cause, Change, Expect, NamespaceUse, NodeUse, Row, State, Submission, Table, codec::object_key,
    tables::JobCounts,
};

fn uuid(kind: u8, n: u8) -> uuid::Uuid {
    uuid::Uuid::from_bytes([kind, n, 3, 4, 5, 6, 0x40, 8, 0x80, 10, 11, 12, 13, 14, 15, n])
}

fn key(job: u8) -> JobKey {
    JobKey::new("default", format!("job{job}").as_str())
}

fn job(n: u8, count: i32) -> Job {
    let k = key(n);
    Job {
        namespace: k.namespace,
        id: k.id,
        kind: "service".into(),
        task_groups: vec![TaskGroup { name: "g".into(), count: Some(count), ..TaskGroup::default() }].into(),
        ..Job::default()
    }
}

/// One random step, small enough to shrink; becomes changes of the present state.
#[derive(Clone, Debug)]
enum Step {
    /// Whether it is ready, and the provider of its remote driver with its health.
    Node(u8, bool, Option<(u8, bool)>),
    DropNode(u8),
    Job(u8, i32),
    Stop(u8),
    Purge(u8),
    Tag(u8),
    Eval(u8, u8, u8),
    DropEval(u8),
    Plan {
        job: u8,
        allocs: Vec<(u8, u8, i32)>,
        stops: Vec<(u8, bool)>,
        deployment: Option<u8>,
        shared: bool,
    },
    Client(u8, u8, Option<bool>),
    Migrate(u8),
    DropAlloc(u8),
    Deployment(u8, u8),
    DropDeployment(u8),
    Remote(u8, Option<u8>, Option<u8>),
    DropRemote(u8),
    Services {
        alloc: u8,
        local: Option<Vec<u8>>,
        remote: Option<(u64, Vec<u8>)>,
    },
    DropService(u8),
    Acl(AclStep),
    Volume(VolumeStep),
}

fn step() -> impl Strategy<Value = Step> {
    let small = || 0..4_u8;
    prop_oneof![
        3 => (small(), any::<bool>(),
            prop::option::of((0..2_u8, any::<bool>()))).prop_map(|(n, up, far)| Step::Node(n, up, far)),
        1 => small().prop_map(Step::DropNode),
        4 => (small(), 1..4).prop_map(|(n, c)| Step::Job(n, c)),
        1 => small().prop_map(Step::Stop),
        1 => small().prop_map(Step::Purge),
        1 => small().prop_map(Step::Tag),
        3 => (small(), small(), 0..4_u8).prop_map(|(e, j, s)| Step::Eval(e, j, s)),
        1 => small().prop_map(Step::DropEval),
        6 => (
            small(),
            prop::collection::vec((0..12_u8, small(), 0..3), 0..4),
            prop::collection::vec((0..12_u8, any::<bool>()), 0..2),
            prop::option::of(0..3_u8),
            any::<bool>()
        )
            .prop_map(|(job, allocs, stops, deployment, shared)| Step::Plan { job, allocs, stops, deployment, shared }),
        5 => (0..12_u8, 0..6_u8, prop::option::of(any::<bool>())).prop_map(|(a, s, h)| Step::Client(a, s, h)),
        1 => (0..12_u8).prop_map(Step::Migrate),
        2 => (0..12_u8).prop_map(Step::DropAlloc),
        1 => (0..3_u8, small()).prop_map(|(d, j)| Step::Deployment(d, j)),
        1 => (0..3_u8).prop_map(Step::DropDeployment),
        2 => (small(), prop::option::of(small()),
            prop::option::of(small())).prop_map(|(s, m, n)| Step::Remote(s, m, n)),
        1 => small().prop_map(Step::DropRemote),
        6 => (0..4_u8, prop::option::of(names()), prop::option::of((0..3_u64, names())))
            .prop_map(|(alloc, local, remote)| Step::Services { alloc, local, remote }),
        1 => (0..8_u8).prop_map(Step::DropService),
        6 => acl_step().prop_map(Step::Acl),
        4 => volume_step().prop_map(Step::Volume),
    ]
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::btree_set(0..3_u8, 0..3).prop_map(|s| s.into_iter().collect())
}

fn entry(n: u8) -> ServiceEntry {
    ServiceEntry {
        suffix: format!("g-{n}"),
        name: format!("s{}", n % 2),
        port: i32::from(n),
        ..ServiceEntry::default()
    }
}

fn slot(n: u8) -> SlotKey {
    let k = key(n % 2);
    SlotParts { namespace: k.namespace, job_id: k.id, group: "g".into(), index: u32::from(n), task: "t".into() }.into()
}

fn remote(n: u8, manager: Option<u8>, successor: Option<u8>) -> RemoteTask {
    let managed = |m: u8| Manager { node_id: NodeId(uuid(1, m)), alloc_id: AllocId(uuid(4, m)) };
    let json = r#"{"JobVersion":0,"SpecHash":"","Driver":"d","IncarnationID":"","Provider":"p","Desired":"run","Epoch":1,"ProviderID":""}"#;
    let mut value: serde_json::Value = serde_json::from_str(json).expect("constant");
    value["Slot"] = serde_json::to_value(slot(n)).expect("plain data");
    for (name, v) in [
        ("UnmanagedSince", "0"),
        ("Observed", r#"{"State":"Running"}"#),
        ("Attributes", "{}"),
        ("PortMap", "{}"),
        ("History", "[]"),
    ] {
        value[name] = serde_json::from_str(v).expect("constant");
    }
    for name in ["StartedAt", "Restarts", "Handovers", "CreateIndex", "ModifyIndex"] {
        value[name] = 0.into();
    }
    for name in ["ExitAcknowledged", "Address"] {
        value[name] = if name == "Address" { "".into() } else { false.into() };
    }
    let mut r: RemoteTask = serde_json::from_value(value).expect("a record");
    r.started_at = 1;
    r.manager = manager.map(managed);
    r.successor = successor.map(managed);
    r
}

fn changes(state: &State, step: &Step) -> Vec<Change> {
    match step {
        Step::Node(n, up, far) => {
            let (id, name) = (NodeId(uuid(1, *n)), format!("n{n}").into());
            let status = if *up { NodeStatus::Ready } else { NodeStatus::Down };
            let remote = |p: &u8| Some(RemoteProvider { provider: format!("p{p}"), ..RemoteProvider::default() });
            let driver = |(p, healthy): &(u8, bool)| DriverInfo {
                healthy: *healthy,
                remote: remote(p),
                ..DriverInfo::default()
            };
            let mut drivers =
                model::Map::from([("here".to_owned(), DriverInfo { healthy: true, ..DriverInfo::default() })]);
            drivers.extend(far.iter().map(|far| ("far".to_owned(), driver(far))));
            // Some take their volumes along.
            let gc_volumes = n % 2 == 0;
            vec![Change::RegisterNode(Box::new(Node { id, name, status, drivers, gc_volumes, ..Node::default() }))]
        }
        Step::DropNode(n) => vec![Change::DeleteNode(NodeId(uuid(1, *n)))],
        Step::Job(n, count) => {
            let submission = Submission { source: format!("count = {count}"), ..Submission::default() };
            let mut job = job(*n, *count);
            if *count == 3 {
                job.task_groups[0].volumes = sticky();
            }
            vec![Change::UpsertJob { job: Box::new(job), submission: Some(Box::new(submission)) }]
        }
        Step::Stop(n) => vec![Change::StopJob(key(*n))],
        Step::Purge(n) => vec![Change::DeleteJob(key(*n))],
        Step::Tag(n) => {
            let version = state.job(&key(*n)).map_or(0, |j| j.version);
            let tag = Some(VersionTag { name: "good".into(), ..VersionTag::default() });
            let event =
                Box::new(model::scaling::ScalingEvent { count: Some(1), ..model::scaling::ScalingEvent::default() });
            vec![
                Change::JobVersionTag { key: key(*n), version, tag },
                Change::JobStability { key: key(*n), version, stable: true },
                Change::RecordScaling { key: key(*n), group: "g".into(), event },
            ]
        }
        Step::Eval(e, j, s) => {
            let status =
                [EvalStatus::Pending, EvalStatus::Blocked, EvalStatus::Complete, EvalStatus::Failed][usize::from(*s)];
            // An evaluation never changes its job.
            let id = EvalId(uuid(2, e * 4 + j));
            let queued = Map::from([(Arc::from("g"), i64::from(*s))]);
            vec![Change::UpsertEvals(vec![Evaluation {
                id,
                namespace: key(*j).namespace,
                job_id: key(*j).id,
                status,
                queued,
                ..Evaluation::default()
            }])]
        }
        Step::DropEval(e) => vec![Change::DeleteEvals(vec![EvalId(uuid(2, *e))])],
        Step::Plan { job, allocs, stops, deployment, shared } => plan(state, *job, allocs, stops, *deployment, *shared),
        Step::Client(a, s, healthy) => {
            let client_status = crate::codec::CLIENT[usize::from(*s)];
            let deployment_status =
                healthy.map(|h| AllocDeploymentStatus { healthy: Some(h), ..AllocDeploymentStatus::default() });
            let task_states = model::Map::from([(
                Arc::from("t"),
                model::TaskState { restarts: u64::from(*s), ..model::TaskState::default() },
            )]);
            let id = AllocId(uuid(4, *a));
            vec![Change::UpdateAllocsFromClient(vec![AllocClientUpdate {
                id,
                client_status,
                deployment_status,
                task_states,
                ..AllocClientUpdate::default()
            }])]
        }
        Step::Migrate(a) => {
            vec![Change::AllocTransitions(vec![(
                AllocId(uuid(4, *a)),
                DesiredTransition { migrate: Some(true), ..DesiredTransition::default() },
            )])]
        }
        Step::DropAlloc(a) => vec![Change::DeleteAllocs(vec![AllocId(uuid(4, *a))])],
        Step::Deployment(d, s) => {
            let status = [
                DeploymentStatus::Running,
                DeploymentStatus::Successful,
                DeploymentStatus::Failed,
                DeploymentStatus::Paused,
            ][usize::from(*s)];
            vec![Change::DeploymentStatus(DeploymentUpdate {
                id: DeploymentId(uuid(3, *d)),
                status,
                description: "x".into(),
            })]
        }
        Step::DropDeployment(d) => vec![Change::DeleteDeployments(vec![DeploymentId(uuid(3, *d))])],
        Step::Remote(s, m, n) => vec![Change::PutRemoteTask(Box::new(remote(*s, *m, *n)))],
        Step::DropRemote(s) => vec![Change::DeleteRemoteTask(slot(*s))],
        Step::Services { alloc, local, remote } => {
            let id = AllocId(uuid(4, *alloc));
            let entries = |names: &Vec<u8>| names.iter().map(|n| entry(*n)).collect::<Vec<_>>();
            let remote = remote
                .iter()
                .map(|(epoch, names)| (Arc::from("t"), RemoteServices { epoch: *epoch, entries: entries(names) }));
            vec![Change::UpdateAllocsFromClient(vec![AllocClientUpdate {
                id,
                client_status: state.alloc(id).map_or(ClientStatus::Running, |a| a.client_status),
                services: local.as_ref().map(entries),
                remote_services: remote.collect(),
                ..AllocClientUpdate::default()
            }])]
        }
        Step::Acl(step) => acl_changes(state, step),
        Step::Volume(step) => volume_changes(state, step),
        Step::DropService(n) => {
            state.services().nth(usize::from(*n)).map(|r| Change::DeleteService(r.id.clone())).into_iter().collect()
        }
    }
}

fn plan(
    state: &State,
    j: u8,
    allocs: &[(u8, u8, i32)],
    stops: &[(u8, bool)],
    deployment: Option<u8>,
    shared: bool,
) -> Vec<Change> {
    let Some(job) = state.job(&key(j)).cloned() else { return Vec::new() };
    let deployment = deployment.map(|d| Deployment {
        id: DeploymentId(uuid(3, d)),
        namespace: job.namespace.clone(),
        job_id: job.id.clone(),
        groups: Map::from([(Arc::from("g"), DeploymentGroup { desired_total: 3, ..DeploymentGroup::default() })]),
        job_version: job.version,
        job_create_index: job.create_index,
        ..Deployment::default()
    });
    // A deployment never changes its job, nor an allocation its job and node. A new one never has the id of one that is
    // gone, which allocations may still name.
    let deployment = deployment.filter(|d| match state.deployment(d.id) {
        Some(known) => known.job_id == d.job_id,
        None => state.allocs_by_deployment(d.id).next().is_none(),
    });
    let common = Arc::new(AllocatedResources {
        tasks: model::Map::from([(Arc::from("t"), AllocatedTask::default())]),
        ..AllocatedResources::default()
    });
    // A parser that only comes close changes the last digit of this score.
    let score = NodeScore { norm_score: 0.014_176_662_875_983_995, ..NodeScore::default() };
    let metrics = shared.then(|| Arc::new(AllocMetric { score_meta_data: vec![score], ..AllocMetric::default() }));
    let mut p = Plan { eval_id: EvalId(uuid(2, j)), job: Some(job.clone()), deployment, ..Plan::default() };
    for (a, n, port) in allocs {
        let id = AllocId(uuid(4, *a));
        let node_id = NodeId(uuid(1, *n));
        if state.alloc(id).is_some_and(|o| o.job_id != job.id || o.node_id != node_id) {
            continue;
        }
        let resources = if shared {
            common.clone()
        } else {
            let mut r = AllocatedResources::clone(&common);
            let t = r.tasks.get_mut("t").expect("just made");
            t.cpu.cpu_shares = i64::from(*port) * 100;
            r.shared.ports = vec![AllocatedPort {
                label: "p".into(),
                value: 8000 + port,
                host_ip: "10.0.0.1".into(),
                ..AllocatedPort::default()
            }];
            Arc::new(r)
        };
        p.placements.entry(node_id).or_default().push(Allocation {
            id,
            namespace: job.namespace.clone(),
            job_id: job.id.clone(),
            job_version: job.version,
            eval_id: p.eval_id,
            name: alloc_name(job.id.as_str(), "g", u32::from(*a)).into(),
            node_id,
            node_name: "n".into(),
            task_group: "g".into(),
            job: Some(job.clone()),
            resources,
            metrics: metrics.clone(),
            deployment_id: p.deployment.as_ref().map_or(DeploymentId::NIL, |d| d.id),
            previous_allocation: if *port == 2 { AllocId(uuid(4, 11)) } else { AllocId::NIL },
            ..Allocation::default()
        });
    }
    for (a, lost) in stops {
        p.stops.push(PlannedStop {
            id: AllocId(uuid(4, *a)),
            node_id: NodeId::NIL,
            description: "stopped".into(),
            client_status: lost.then_some(ClientStatus::Lost),
            followup_eval_id: EvalId::NIL,
            preempted_by: AllocId::NIL,
        });
    }
    vec![Change::ApplyPlan(Box::new(p))]
}

#[derive(Default)]
struct Disk(BTreeMap<(Table, Vec<u8>), Vec<u8>>);

impl Disk {
    fn write(&mut self, rows: Vec<Row>) {
        let mut seen = BTreeSet::new();
        for r in rows {
            assert!(seen.insert((r.table, r.key.clone())), "row {:?} of {} appears twice", r.key, r.table);
            match r.value {
                Some(v) => self.0.insert((r.table, r.key), v),
                None => self.0.remove(&(r.table, r.key)),
            };
        }
    }
    fn load(&self) -> State {
        let rows = self.0.iter().rev().map(|((table, key), v)| Row {
            table: *table,
            key: key.clone(),
            value: Some(v.clone()),
        });
        State::load(rows).expect("rows that were written")
    }
}

/// Everything relevant about a state, without traces of its history.
fn view(s: &State) -> Vec<String> {
    let mut out = vec![format!("{:?}", s.table_index)];
    let job = |j: &Arc<Job>| serde_json::to_string(j).expect("plain data");
    out.extend(s.nodes.values().map(|n| format!("{n:?} {:?}", s.usage(n.id))));
    out.extend(s.namespace_use.iter().map(|x| format!("{x:?}")));
    out.extend(s.jobs.values().map(job));
    out.extend(s.versions.iter().map(|(k, j)| format!("{k:?} {}", job(j))));
    out.extend(s.retained.iter().map(|(k, j)| format!("{k:?} {}", job(j))));
    out.extend(s.submissions.iter().map(|x| format!("{x:?}")));
    out.extend(s.summaries.iter().map(|x| format!("{x:?}")));
    out.extend(s.scaling_events.iter().map(|x| format!("{x:?}")));
    out.extend(s.counts.iter().map(|x| format!("{x:?}")));
    out.extend(s.evals.iter().map(|x| format!("{x:?}")));
    out.extend(s.allocs.values().map(|e| {
        let mut a = Allocation::clone(&e.alloc);
        let of = a.job.take().map(|j| (j.create_index, j.version));
        format!("{of:?} {} {} {a:?}", e.resources_ref, e.metrics_ref)
    }));
    out.extend(s.shared.iter().map(|(k, v)| format!("{k} {v:?}")));
    out.extend(s.deployments.iter().map(|x| format!("{x:?}")));
    out.extend(s.remote.iter().map(|x| format!("{x:?}")));
    out.extend(s.allocs_by_job.iter().map(|x| format!("{x:?}")));
    out.extend(s.allocs_by_creation.iter().map(|x| format!("{x:?}")));
    out.extend(s.evals_by_creation.iter().map(|x| format!("{x:?}")));
    out.extend(s.deployments_by_creation.iter().map(|x| format!("{x:?}")));
    out.extend(s.active_deployments.iter().map(|x| format!("active {x:?}")));
    out.extend(s.system_jobs.iter().map(|x| format!("system {x:?}")));
    out.extend(s.allocs_by_node.iter().map(|x| format!("{x:?}")));
    out.extend(s.allocs_by_eval.iter().map(|x| format!("{x:?}")));
    out.extend(s.allocs_by_deployment.iter().map(|x| format!("{x:?}")));
    out.extend(s.live_by_place.iter().map(|x| format!("{x:?}")));
    out.extend(s.evals_by_job.iter().map(|x| format!("{x:?}")));
    out.extend(s.deployments_by_job.iter().map(|x| format!("{x:?}")));
    out.extend(s.remote_by_manager.iter().map(|x| format!("{x:?}")));
    out.extend(s.services.iter().map(|x| format!("{x:?}")));
    out.extend(s.services_by_name.iter().map(|x| format!("{x:?}")));
    out.extend(s.services_by_alloc.iter().map(|x| format!("{x:?}")));
    out.extend(s.services_by_node.iter().map(|x| format!("{x:?}")));
    out.extend(s.services_by_job.iter().map(|x| format!("{x:?}")));
    out.extend(s.services_by_slot.iter().map(|x| format!("{x:?}")));
    out.extend(s.pools.iter().map(|x| format!("{x:?}")));
    out.extend(s.signing_keys.iter().map(|x| format!("{x:?}")));
    out.extend(acl_view(s));
    out.extend(volume_view(s));
    out.push(format!("{:?}", s.fleet.runtimes));
    out
}

/// Lists by creation hold everything, sorted, from any place on and in both directions.
fn check_creation(s: &State) {
    fn check<I: Ord + Copy + std::fmt::Debug>(
        sorted: Vec<(u64, I)>,
        read: impl Fn(Option<(u64, I)>, bool) -> Vec<(u64, I)>,
    ) {
        assert_eq!(read(None, false), sorted);
        for (n, at) in sorted.iter().enumerate() {
            assert_eq!(read(Some(*at), false), sorted[n..]);
            assert_eq!(read(Some(*at), true), sorted[..=n].iter().rev().copied().collect::<Vec<_>>());
        }
    }
    fn sorted<I: Ord>(keys: impl Iterator<Item = (u64, I)>) -> Vec<(u64, I)> {
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        keys
    }
    check(sorted(s.allocs().map(|a| (a.create_index, a.id))), |from, reverse| {
        s.allocs_by_creation(from, reverse).map(|a| (a.create_index, a.id)).collect()
    });
    check(sorted(s.evals().map(|e| (e.create_index, e.id))), |from, reverse| {
        s.evals_by_creation(from, reverse).map(|e| (e.create_index, e.id)).collect()
    });
    check(sorted(s.deployments().map(|d| (d.create_index, d.id))), |from, reverse| {
        s.deployments_by_creation(from, reverse).map(|d| (d.create_index, d.id)).collect()
    });
    let active = |d: &&Arc<Deployment>| d.status.active();
    let ids = |d: &Arc<Deployment>| d.id;
    assert_eq!(
        s.active_deployments().map(ids).collect::<Vec<_>>(),
        s.deployments().filter(active).map(ids).collect::<Vec<_>>()
    );
    let ids: Vec<_> = s.allocs().map(|a| a.id).collect();
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(s.allocs_onward(Some(*id), false).map(|a| a.id).collect::<Vec<_>>(), ids[n..]);
        assert_eq!(
            s.allocs_onward(Some(*id), true).map(|a| a.id).collect::<Vec<_>>(),
            ids[..=n].iter().rev().copied().collect::<Vec<_>>()
        );
    }
}

fn check_indexes(s: &State) {
    check_acl(s);
    check_volumes(s);
    check_creation(s);
    let all: Vec<_> = s.allocs().cloned().collect();
    let mut by_namespace = BTreeMap::new();
    for a in all.iter().filter(|a| !a.terminal()) {
        let sum: &mut NamespaceUse = by_namespace.entry(a.namespace.clone()).or_default();
        *sum = sum.plus(&NamespaceUse::of(&a.resources), 1);
    }
    let kept: BTreeMap<_, _> = s.namespace_use.iter().map(|(name, sum)| (name.clone(), *sum)).collect();
    assert_eq!(kept, by_namespace, "use of namespaces");
    for n in 0..4 {
        let node = NodeId(uuid(1, n));
        let by: Vec<_> = s.allocs_by_node(node).map(|a| a.id).collect();
        assert_eq!(
            by,
            all.iter().filter(|a| a.node_id == node).map(|a| a.id).collect::<Vec<_>>(),
            "allocations of node {n}"
        );
        let mut u = NodeUse::default();
        all.iter().filter(|a| a.node_id == node && a.occupies() && s.node(node).is_some()).for_each(|a| u.add(a));
        assert_eq!(s.usage(node), u, "use of node {n}");
        let remote: BTreeSet<_> = s.remote_tasks_by_node(node).map(|r| r.slot.clone()).collect();
        let managed = |r: &RemoteTask| r.manager.iter().chain(&r.successor).any(|m| m.node_id == node);
        assert_eq!(
            remote,
            s.remote_tasks().filter(|r| managed(r)).map(|r| r.slot.clone()).collect(),
            "remote tasks of node {n}"
        );

        let k = key(n);
        let of_job: Vec<_> = all.iter().filter(|a| a.job_id == k.id).collect();
        assert_eq!(
            s.allocs_by_job(&k).map(|a| a.id).collect::<Vec<_>>(),
            of_job.iter().map(|a| a.id).collect::<Vec<_>>()
        );
        let evals: Vec<_> = s.evals().filter(|e| e.job_id == k.id).collect();
        assert_eq!(
            s.evals_by_job(&k).map(|e| e.id).collect::<Vec<_>>(),
            evals.iter().map(|e| e.id).collect::<Vec<_>>()
        );
        let number = |n: usize| u32::try_from(n).expect("few");
        let counts = JobCounts {
            allocs: number(of_job.len()),
            live_allocs: number(of_job.iter().filter(|a| !a.terminal()).count()),
            evals: number(evals.len()),
            open_evals: number(evals.iter().filter(|e| !e.status.terminal()).count()),
            remote: number(s.remote_tasks_by_job(&k).filter(|r| r.stands()).count()),
        };
        assert_eq!(s.counts.get(&k).copied().unwrap_or_default(), counts, "counts of job {n}");
        if let Some(j) = s.job(&k) {
            let runs = counts.live_allocs > 0 || counts.remote > 0;
            assert_eq!(j.status == job_status::RUNNING, runs, "status {} of job {n} with {counts:?}", j.status);
            assert!(s.job_versions(&k).filter(|v| v.version_tag.is_none()).count() <= crate::JOB_VERSIONS_KEPT + 1);
        }
        if let Some(j) = s.job(&k) {
            let summary = s.job_summary(&k).and_then(|s| s.summary.get("g").copied()).unwrap_or_default();
            // Allocations that have outlived a job of the same name belong to another job.
            let own = |a: &&&Arc<Allocation>| a.job.as_ref().is_some_and(|of| of.create_index == j.create_index);
            let count = |status| of_job.iter().filter(own).filter(|a| a.client_status == status).count() as i64;
            assert_eq!(summary.running, count(ClientStatus::Running), "running of job {n}");
            assert_eq!(summary.starting, count(ClientStatus::Pending), "starting of job {n}");
            assert_eq!(summary.unknown, count(ClientStatus::Unknown), "unknown of job {n}");
        }
        let d = DeploymentId(uuid(3, n));
        let of: Vec<_> = all.iter().filter(|a| a.deployment_id == d).map(|a| a.id).collect();
        assert_eq!(s.allocs_by_deployment(d).map(|a| a.id).collect::<Vec<_>>(), of);
        // Whoever asks the counters and the index of a deployment first need not read its allocations.
        if let Some(d) = s.deployment(d) {
            let healthy = all.iter().filter(|a| a.deployment_id == d.id && a.healthy() == Some(true));
            let news = healthy.clone().filter_map(|a| Some(a.deployment_status.as_ref()?.modify_index)).max();
            assert!(d.groups["g"].healthy_allocs as usize >= healthy.count(), "{d:?}");
            assert!(news.unwrap_or(0) <= d.modify_index, "{news:?} {d:?}");
        }
    }
    for a in &all {
        let j = a.job.as_ref().expect("every allocation knows its job");
        assert_eq!((j.version, &j.id), (a.job_version, &a.job_id));
    }
    check_runtimes(s);
    let live = || all.iter().filter(|a| !a.terminal());
    assert_eq!(s.live_by_place.len(), live().count(), "places of allocations that have ended");
    for a in live() {
        let slot = model::remote::slot_of(a, &"t".into());
        let there =
            live().filter(|b| (&b.job_id, b.index()) == (&a.job_id, a.index())).map(|b| b.id).collect::<Vec<_>>();
        assert_eq!(s.live_allocs_at(&slot).map(|b| b.id).collect::<Vec<_>>(), there, "allocations at {slot}");
    }
    for v in s.shared.values() {
        assert!(v.users > 0, "a shared value that nobody uses");
    }
}

/// The counted providers of a driver equal those from a look at every node.
fn check_runtimes(s: &State) {
    let mut found: BTreeMap<&RemoteProvider, bool> = BTreeMap::new();
    for node in s.nodes() {
        let Some(driver) = node.drivers.get("far") else { continue };
        let Some(provider) = &driver.remote else { continue };
        *found.entry(provider).or_default() |= node.status == NodeStatus::Ready && driver.healthy;
    }
    let said: Vec<_> = s.fleet().runtimes("far").map(|r| (r.provider, r.usable)).collect();
    assert_eq!(said, found.into_iter().collect::<Vec<_>>(), "runtimes");
    for other in ["", "fa", "farther", "here"] {
        assert_eq!(s.fleet().runtimes(other).count(), 0, "{other:?} has no runtime");
    }
}

/// Every registration stands for a reason, and every index finds it.
fn check_services(s: &State) {
    for r in s.services() {
        match &r.slot {
            None => {
                let alloc = s.alloc(r.alloc_id).expect("a local registration goes with its allocation");
                assert!(!alloc.client_terminal(), "{r:?} of an ended allocation");
                assert!(s.node(r.node_id).is_some_and(|n| n.status != NodeStatus::Down), "{r:?} of a lost node");
            }
            Some(slot) => {
                let record = s.remote_task(slot).expect("a remote registration goes with its record");
                assert!(
                    !record.observed.ended() && record.desired == model::DesiredRemote::Run,
                    "{r:?} of an ended instance"
                );
                assert!(
                    record.manager.is_none_or(|m| (m.alloc_id, m.node_id) == (r.alloc_id, r.node_id)),
                    "{r:?} of a former manager"
                );
            }
        }
        let by_name = s.services_by_name(&r.namespace, &r.service_name).any(|o| o.id == r.id);
        let by_slot = r.slot.as_ref().is_none_or(|slot| s.services_by_slot(slot).any(|o| o.id == r.id));
        let by_job = s.services_by_job(&r.job_key()).any(|o| o.id == r.id);
        let by_rest = s.services_by_alloc(r.alloc_id).any(|o| o.id == r.id)
            && s.services_by_node(r.node_id).any(|o| o.id == r.id);
        assert!(by_name && by_slot && by_job && by_rest && s.services_in(&r.namespace).any(|o| o.id == r.id), "{r:?}");
        assert!(s.service_index(&r.namespace, &r.service_name) >= r.modify_index);
    }
    let n = s.services.len();
    let sizes = [
        s.services_by_name.len(),
        s.services_by_alloc.len(),
        s.services_by_node.len(),
        s.services_by_job.len(),
        s.services().count(),
    ];
    assert_eq!(sizes, [n; 5]);
    assert_eq!(s.services_by_slot.len(), s.services().filter(|r| r.slot.is_some()).count());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn loaded_is_applied_and_indexes_are_right(batches in prop::collection::vec(prop::collection::vec(step(), 1..3),
        1..40)) {
        let (mut state, mut disk, mut followed) = (State::new(), Disk::default(), State::new());
        for (n, steps) in batches.iter().enumerate() {
            let before = state.clone();
            let mut batch = Batch::default();
            // Each step builds on the effects of the earlier ones.
            let mut scratch = state.clone();
            for s in steps {
                let of_step = changes(&scratch, s);
                apply(&mut scratch, of_step.clone());
                batch.changes.extend(of_step);
            }
            let index = state.latest_index() + 1;
            let mut next = state.clone();
            let set = next.apply(index, n as i64 * 1_000_000_000, batch).expect("no conditions");
            for t in Table::ALL {
                prop_assert!(next.index(*t) >= before.index(*t));
                prop_assert_eq!(next.index(*t) == index, set.tables.contains(*t));
            }
            let heard = followed.follow(index, &set.rows_told(&next)).expect("rows of a batch");
            prop_assert_eq!((heard.index, heard.tables), (set.index, set.tables));
            prop_assert!(heard.now == set.now || set.is_empty());
            let was = Disk(disk.0.clone());
            disk.write(set.rows(&next));
            prop_assert_eq!(told(&heard, &was, &disk), told(&set, &was, &disk), "the same changes");
            prop_assert_eq!(deleted(&heard, &was, &disk), deleted(&set, &was, &disk));
            prop_assert_eq!(view(&followed), view(&next), "a follower has the same state");
            check_indexes(&followed);
            check_services(&followed);
            prop_assert_eq!(view(&state), view(&before), "the old snapshot is untouched");
            for name in ["s0", "s1"] {
                let (was, is) =
                    (before.service_index(&"default".into(), name), next.service_index(&"default".into(), name));
                let ids = |s: &State| s.services_by_name(&"default".into(),
                    name).map(|r| (r.id.clone(), r.modify_index)).collect::<Vec<_>>();
                prop_assert!(is >= was, "the index of a service goes back");
                prop_assert!(is == index || ids(&before) == ids(&next), "a change of a service that nobody is told of");
            }
            state = next;
            check_indexes(&state);
            check_services(&state);
        }
        let loaded = disk.load();
        check_indexes(&loaded);
        check_services(&loaded);
        prop_assert_eq!(view(&loaded), view(&state));
        let mut saved = Disk::default();
        saved.write(followed.all_rows());
        for (at, value) in &disk.0 {
            prop_assert_eq!(saved.0.get(at), Some(value), "a follower saves {:?}", at);
        }
        prop_assert_eq!(view(&saved.load()), view(&state), "what a follower saves is the same state");
    }
}

/// The changes of a batch. Of an object that came and went in it there is no trace in its rows.
fn told(set: &crate::AppliedSet, before: &Disk, after: &Disk) -> Vec<(Cause, Table, Vec<u8>)> {
    let all = set.changes.iter().map(|c| (c.cause, c.object.table(), object_key(&c.object)));
    let known = |at: &(Table, Vec<u8>)| [before, after].iter().any(|disk| disk.0.contains_key(at));
    all.filter(|(_, table, key)| known(&(*table, key.clone()))).collect()
}

/// What is gone after a batch.
fn deleted(set: &crate::AppliedSet, before: &Disk, after: &Disk) -> BTreeSet<(Table, Vec<u8>)> {
    let gone = set.changes.iter().filter(|c| c.deleted).map(|c| (c.object.table(), object_key(&c.object)));
    gone.filter(|at| before.0.contains_key(at) && !after.0.contains_key(at)).collect()
}

fn apply(state: &mut State, changes: Vec<Change>) -> crate::AppliedSet {
    let index = state.latest_index() + 1;
    state.apply(index, 5_000_000_000, Batch::new(changes)).expect("no conditions")
}

fn put_job(state: &mut State, count: i32) {
    apply(state, vec![Change::UpsertJob { job: Box::new(job(0, count)), submission: None }]);
}

mod acl;
mod cases;
mod volumes;
