//! Common properties of all decisions: the same state, time and ids give the same changes. A carried-out decision asks
//! for nothing more, so a loop that repeats its decision comes to rest.

use std::{cell::Cell, collections::BTreeSet, sync::Arc, time::Duration};

use control::{Ids, Stamp, collection, deployments, drains, nodes};
use model::{
    AllocClientUpdate, AllocDeploymentStatus, AllocId, Allocation, ClientStatus, Deployment, DeploymentId,
    DesiredStatus, DrainStrategy, EvalId, EvalStatus, Evaluation, GoDuration, Job, Node, NodeId, NodeStatus,
    Reschedule, TaskGroup, Trigger,
    alloc::alloc_name,
    deployment::DeploymentGroup,
    policy::{Disconnect, Migrate},
};
use proptest::prelude::*;
use state::{Batch, Change, State};
use uuid::Uuid;

const NOW: i64 = 1_000_000_000_000_000;
const KINDS: [&str; 4] = ["service", "batch", "system", "sysbatch"];
/// Most allocations of a world. A group's surplus leaves a draining node in steps: no decision needs more.
const ALLOCS: usize = 12;

#[derive(Clone, Debug)]
struct AJob {
    kind: usize,
    count: i32,
    max_parallel: i32,
    stop: bool,
    stable: bool,
    waits: bool,
    /// `auto_revert`, `auto_promote`, canaries, deadline in seconds.
    deployment: Option<(bool, bool, i32, i64)>,
}

#[derive(Clone, Debug)]
struct ANode {
    status: NodeStatus,
    /// Its deadline has passed; system jobs stay.
    drain: Option<(bool, bool)>,
}

#[derive(Clone, Debug)]
struct AnAlloc {
    job: usize,
    node: usize,
    client: ClientStatus,
    stopped: bool,
    healthy: Option<bool>,
    evaluated: bool,
}

fn jobs() -> impl Strategy<Value = Vec<AJob>> {
    let deployment =
        proptest::option::of((any::<bool>(), any::<bool>(), 0..2, prop_oneof![Just(0_i64), Just(10), Just(10_000)]));
    let job = (0..KINDS.len(), 1..4_i32, 1..3_i32, any::<bool>(), any::<bool>(), any::<bool>(), deployment);
    let of = |(kind, count, max_parallel, stop, stable, waits, deployment)| AJob {
        kind,
        count,
        max_parallel,
        stop,
        stable,
        waits,
        deployment,
    };
    proptest::collection::vec(job.prop_map(of), 1..4)
}

fn some_nodes() -> impl Strategy<Value = Vec<ANode>> {
    let status = prop_oneof![Just(NodeStatus::Ready), Just(NodeStatus::Disconnected), Just(NodeStatus::Down)];
    let node = (status, proptest::option::of((any::<bool>(), any::<bool>())))
        .prop_map(|(status, drain)| ANode { status, drain });
    proptest::collection::vec(node, 1..4)
}

fn allocs() -> impl Strategy<Value = Vec<AnAlloc>> {
    let client = prop_oneof![
        Just(ClientStatus::Pending),
        Just(ClientStatus::Running),
        Just(ClientStatus::Complete),
        Just(ClientStatus::Failed),
    ];
    let alloc = (0..4_usize, 0..4_usize, client, any::<bool>(), proptest::option::of(any::<bool>()), any::<bool>());
    let of =
        |(job, node, client, stopped, healthy, evaluated)| AnAlloc { job, node, client, stopped, healthy, evaluated };
    proptest::collection::vec(alloc.prop_map(of), 0..=ALLOCS)
}

fn node_id(n: usize) -> NodeId {
    NodeId(Uuid::from_u128(0xf000 + n as u128))
}

fn deployment_id(n: usize) -> DeploymentId {
    DeploymentId(Uuid::from_u128(0xd000 + n as u128))
}

fn apply(state: &mut State, batch: impl Into<Batch>) {
    let index = state.latest_index() + 1;
    state.apply(index, NOW, batch.into()).expect("it applies");
}

fn world(jobs: &[AJob], nodes: &[ANode], allocs: &[AnAlloc]) -> State {
    let mut state = State::new();
    for (n, node) in nodes.iter().enumerate() {
        let id = node_id(n);
        apply(&mut state, Change::RegisterNode(Box::new(Node { id, ..Node::default() })));
        apply(&mut state, Change::NodeStatus { id, status: node.status, description: String::new(), event: None });
        let drain = node.drain.map(|(due, ignore_system_jobs)| {
            let force_deadline_ns = if due { NOW } else { 0 };
            DrainStrategy { ignore_system_jobs, force_deadline_ns, ..DrainStrategy::default() }
        });
        apply(&mut state, Change::NodeDrain { id, drain, mark_eligible: false, last_drain: None, event: None });
    }
    for (n, job) in jobs.iter().enumerate() {
        put_job(&mut state, n, job);
    }
    for (n, alloc) in allocs.iter().enumerate() {
        put_alloc(&mut state, n, alloc, jobs, nodes.len());
    }
    state
}

fn put_job(state: &mut State, n: usize, of: &AJob) {
    let lost_after = Some(GoDuration::from_secs(60));
    let group = TaskGroup {
        name: "g".into(),
        count: Some(of.count),
        migrate: Some(Migrate { max_parallel: Some(of.max_parallel), ..Migrate::default() }),
        disconnect: of.waits.then(|| Disconnect { lost_after, replace: Some(false), ..Disconnect::default() }),
        reschedule: Some(Reschedule::defaults()),
        ..TaskGroup::default()
    };
    let name = format!("job{n}");
    let job = Job {
        namespace: "default".into(),
        id: name.as_str().into(),
        kind: KINDS[of.kind].into(),
        submit_time: NOW,
        task_groups: vec![group].into(),
        ..Job::default()
    };
    let key = job.key();
    apply(state, Change::UpsertJob { job: Box::new(job.clone()), submission: None });
    apply(state, Change::JobStability { key: key.clone(), version: 0, stable: of.stable });
    apply(state, Change::UpsertJob { job: Box::new(Job { priority: 70, ..job }), submission: None });
    if let Some((auto_revert, auto_promote, desired_canaries, deadline)) = of.deployment {
        let group = DeploymentGroup {
            auto_revert,
            auto_promote,
            desired_canaries,
            progress_deadline: GoDuration::from_secs(deadline),
            desired_total: of.count,
            ..DeploymentGroup::default()
        };
        let groups = [(Arc::from("g"), group)].into();
        let job_create_index = state.job(&key).expect("there").create_index;
        let d = Deployment {
            id: deployment_id(n),
            namespace: "default".into(),
            job_id: name.as_str().into(),
            job_version: 1,
            job_create_index,
            groups,
            ..Deployment::default()
        };
        apply(state, Change::UpsertDeployment(Box::new(d)));
    }
    if of.stop {
        apply(state, Change::StopJob(key));
    }
}

fn put_alloc(state: &mut State, n: usize, of: &AnAlloc, jobs: &[AJob], nodes: usize) {
    let job = of.job % jobs.len();
    let name = format!("job{job}");
    let id = AllocId(Uuid::from_u128(0xa000 + n as u128));
    let eval_id = EvalId(Uuid::from_u128(0xe000 + n as u128));
    let eval = Evaluation {
        id: eval_id,
        namespace: "default".into(),
        kind: KINDS[jobs[job].kind].into(),
        trigger: Trigger::JobRegister,
        job_id: name.as_str().into(),
        status: if of.evaluated { EvalStatus::Complete } else { EvalStatus::Pending },
        create_time: NOW,
        modify_time: NOW,
        ..Evaluation::default()
    };
    let alloc = Allocation {
        id,
        namespace: "default".into(),
        job_id: name.as_str().into(),
        job_version: 1,
        name: alloc_name(&name, "g", u32::try_from(n).expect("a small number")).into(),
        task_group: "g".into(),
        node_id: node_id(of.node % nodes),
        eval_id,
        deployment_id: if jobs[job].deployment.is_some() { deployment_id(job) } else { DeploymentId::NIL },
        desired_status: if of.stopped { DesiredStatus::Stop } else { DesiredStatus::Run },
        ..Allocation::default()
    };
    apply(state, vec![Change::UpsertEvals(vec![eval]), Change::UpsertAllocs(vec![alloc])]);
    let deployment_status =
        of.healthy.map(|healthy| AllocDeploymentStatus { healthy: Some(healthy), ..AllocDeploymentStatus::default() });
    let update = AllocClientUpdate { id, client_status: of.client, deployment_status, ..AllocClientUpdate::default() };
    apply(state, Change::UpdateAllocsFromClient(vec![update]));
}

/// Carries a decision out until it asks for nothing more.
fn settles(
    name: &str,
    mut state: State,
    decide: impl Fn(&State, Stamp, &mut Ids<'_>) -> Batch,
) -> Result<(), TestCaseError> {
    for _ in 0..=ALLOCS {
        let stamp = Stamp { index: state.latest_index() + 1, now: NOW };
        let drawn = Cell::new(0);
        let once = || {
            drawn.set(0);
            let mut ids = || {
                drawn.set(drawn.get() + 1);
                Uuid::from_u64_pair(stamp.index, drawn.get())
            };
            decide(&state, stamp, &mut ids)
        };
        let (batch, same) = (once(), once());
        prop_assert_eq!(format!("{batch:?}"), format!("{same:?}"), "{} decides otherwise on the same state", name);
        if batch.is_empty() {
            return Ok(());
        }
        apply(&mut state, batch);
    }
    let stamp = Stamp { index: state.latest_index() + 1, now: NOW };
    let left = decide(&state, stamp, &mut || Uuid::from_u64_pair(stamp.index, 1));
    prop_assert!(left.is_empty(), "{} does not come to rest: {:?}", name, left);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_decision_is_a_function_of_its_arguments_and_comes_to_rest(jobs in jobs(), some in some_nodes(),
        allocs in allocs()) {
        let state = world(&jobs, &some, &allocs);
        let all: Vec<NodeId> = (0..some.len()).map(node_id).collect();
        let draining: BTreeSet<NodeId> = all.iter().copied().collect();
        let watched: BTreeSet<_> = state.deployments().map(|d| d.id).collect();
        settles("deployments", state.clone(), |state, stamp, ids|
            deployments::decide(state, &watched, stamp, ids).batch)?;
        settles("drains", state.clone(), |state, stamp, ids| drains::decide(state, &draining, stamp, ids).batch)?;
        settles("the loss of nodes", state.clone(), |state, stamp, ids| nodes::lose(state, &all, stamp, ids).batch)?;
        settles("the collection", state.clone(), |state, _,
            _| collection::decide(state, collection::Before::forced(NOW)).batch)?;
        let hour = Duration::from_secs(3600);
        let ages = collection::Ages { eval: hour, batch_eval: hour, job: hour, deployment: hour, node: hour };
        prop_assert!(collection::decide(&state, collection::Before::aged(&ages, NOW)).batch.is_empty(),
            "nothing of it is old");
    }
}
