//! What happens to nodes: registration, changes of their facts, readiness, loss.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use model::{Allocation, EvalStatus, Evaluation, Job, JobKey, Node, NodeId, NodeStatus, Trigger, job::job_type, node::NodeEvent};
use state::{ALL_NODE_POOL, Batch, Change, NodePool, State};

use crate::{
    clock::{new_id, rfc3339},
    commit::{Decided, Stamp},
    error::{Kind, ServerError},
    shared::Shared,
};

/// After a refused commit the loss of a node is tried again this much later.
const RETRY: Duration = Duration::from_secs(1);

/// A node that is cut off is looked at again this much later at the earliest.
const WATCH: Duration = Duration::from_millis(100);

/// An event on a node's record.
pub(crate) fn event(message: impl Into<String>, subsystem: &str, stamp: Stamp) -> NodeEvent {
    NodeEvent { message: message.into(), subsystem: subsystem.to_owned(), timestamp: rfc3339(stamp.now), ..NodeEvent::default() }
}

/// One evaluation for each job that still has something on the node.
pub(crate) fn evals_for(state: &State, node: NodeId, trigger: Trigger, stamp: Stamp) -> Vec<Evaluation> {
    evals_where(state, node, trigger, stamp, |_| true)
}

/// The same for jobs that have such an allocation there.
pub(crate) fn evals_where(
    state: &State,
    node: NodeId,
    trigger: Trigger,
    stamp: Stamp,
    concerns: impl Fn(&Allocation) -> bool,
) -> Vec<Evaluation> {
    let mut evals: BTreeMap<JobKey, Evaluation> = BTreeMap::new();
    for alloc in state.allocs_by_node(node).filter(|alloc| !alloc.client_terminal() && concerns(alloc)) {
        // A purged job is known from its allocations only.
        let Some(job) = state.job(&alloc.job_key()).or(alloc.job.as_ref()) else { continue };
        evals.entry(alloc.job_key()).or_insert_with(|| node_eval(job, node, trigger, stamp));
    }
    evals.into_values().collect()
}

/// One evaluation of a job because of a node.
fn node_eval(job: &Job, node: NodeId, trigger: Trigger, stamp: Stamp) -> Evaluation {
    Evaluation {
        id: new_id(),
        namespace: job.namespace.clone(),
        priority: job.priority,
        kind: job.kind.clone(),
        trigger,
        job_id: job.id.clone(),
        job_modify_index: job.modify_index,
        node_id: node,
        node_modify_index: stamp.index,
        status: EvalStatus::Pending,
        create_time: stamp.now,
        modify_time: stamp.now,
        ..Evaluation::default()
    }
}

/// Evaluations of the system jobs, which have something to do on a node that has come or changed; without those that are made already, and
/// those that do not speak of its datacenter or pool: an evaluation starts what has failed again, on other nodes too.
/// `changes` are those that are made of the node at the same time.
pub(crate) fn system_evals(state: &State, node: NodeId, changes: &[Change], made: &[Evaluation], stamp: Stamp) -> Vec<Evaluation> {
    let registered = changes.iter().rev().find_map(|change| match change {
        Change::RegisterNode(facts) if facts.id == node => Some(&**facts),
        _ => None,
    });
    let facts = registered.or_else(|| state.node(node).map(|node| &**node));
    let jobs = state.jobs().filter(|job| job_type::everywhere(&job.kind) && !job.stopped() && !job.is_template());
    let concerned = jobs.filter(|job| facts.is_none_or(|facts| scheduler::in_scope(job, facts)));
    let new = concerned.filter(|job| !made.iter().any(|eval| eval.job_id == job.id && eval.namespace == job.namespace));
    new.map(|job| node_eval(job, node, Trigger::NodeUpdate, stamp)).collect()
}

/// A node says hello: it is registered, its facts are brought up to date, and it is ready.
pub(crate) async fn register(shared: &Arc<Shared>, node: Node) -> Result<(), ServerError> {
    shared
        .queue()
        .commit(move |state, stamp| {
            let known = state.node(node.id);
            if known.is_some_and(|known| known.secret_id != node.secret_id) {
                return Err(ServerError::InvalidArgument(format!(
                    "node {} is registered with another secret: it is either another machine with a copied data directory (give it its own), or \
                     its secret was lost (remove the node from the servers first)",
                    node.id
                )));
            }
            let mut batch = Batch::default();
            let id = node.id;
            update_facts(state, node, &mut batch)?;
            make_ready(state, id, stamp, &mut batch);
            Ok(Decided { batch, answer: () })
        })
        .await
}

/// A node's facts have changed.
pub(crate) fn update(shared: &Arc<Shared>, mut node: Node) -> impl Future<Output = Result<(), ServerError>> + Send + 'static {
    let stored = shared.queue().queue_commit(move |state, stamp| {
        let known = state.node(node.id).ok_or_else(|| ServerError::not_found(Kind::Node, node.id))?;
        node.secret_id.clone_from(&known.secret_id);
        let mut batch = Batch::default();
        let id = node.id;
        update_facts(state, node, &mut batch)?;
        if !batch.is_empty() {
            let evals = system_evals(state, id, &batch.changes, &[], stamp);
            if !evals.is_empty() {
                batch.push(Change::UpsertEvals(evals));
            }
        }
        Ok(Decided { batch, answer: () })
    });
    async move { stored.await.map_err(|_| ServerError::ShuttingDown)? }
}

/// Writes the facts when they differ: a node that only comes back must not look like a changed one.
fn update_facts(state: &State, mut node: Node, batch: &mut Batch) -> Result<(), ServerError> {
    if node.pool == ALL_NODE_POOL {
        return Err(ServerError::InvalidArgument(format!(
            "node {} cannot join the node pool {ALL_NODE_POOL:?}, which holds every node; name another one in its configuration",
            node.id
        )));
    }
    let pool = if node.pool.is_empty() { state::DEFAULT_NODE_POOL } else { &node.pool };
    if state.node_pool(pool).is_none() {
        batch.push(Change::PutNodePool(NodePool { name: pool.into(), ..NodePool::default() }));
    }
    if let Some(known) = state.node(node.id) {
        let same = Node {
            computed_class: known.computed_class.clone(),
            drain: known.drain.clone(),
            last_drain: known.last_drain.clone(),
            eligibility: known.eligibility,
            status: known.status,
            status_description: known.status_description.clone(),
            status_updated_at: known.status_updated_at,
            events: known.events.clone(),
            create_index: known.create_index,
            modify_index: known.modify_index,
            ..node.clone()
        };
        if same == **known {
            return Ok(());
        }
        // Facts are the node's, its status is ours.
        node.status = known.status;
        node.status_description.clone_from(&known.status_description);
    }
    batch.push(Change::RegisterNode(Box::new(node)));
    Ok(())
}

fn make_ready(state: &State, id: NodeId, stamp: Stamp, batch: &mut Batch) {
    let before = state.node(id).map(|node| node.status);
    if before == Some(NodeStatus::Ready) {
        return;
    }
    let event = match before {
        // The registration itself says so.
        None => None,
        Some(NodeStatus::Initializing) => Some(event("Node registered", "Cluster", stamp)),
        Some(_) => Some(event("Node re-registered", "Cluster", stamp)),
    };
    batch.push(Change::NodeStatus { id, status: NodeStatus::Ready, description: "the node holds a lease".to_owned(), event });
    let mut evals = evals_for(state, id, Trigger::NodeUpdate, stamp);
    evals.extend(system_evals(state, id, &batch.changes, &evals, stamp));
    if !evals.is_empty() {
        batch.push(Change::UpsertEvals(evals));
    }
}

/// A node that was taken for lost is heard from again. Queued when this returns, so that it is decided after the loss.
pub(crate) fn ready_again(shared: &Arc<Shared>, id: NodeId) -> impl Future<Output = Result<(), ServerError>> + Send + 'static {
    let stored = shared.queue().queue_commit(move |state, stamp| {
        if state.node(id).is_none() {
            return Err(ServerError::not_found(Kind::Node, id));
        }
        let mut batch = Batch::default();
        make_ready(state, id, stamp, &mut batch);
        Ok(Decided { batch, answer: () })
    });
    async move { stored.await.map_err(|_| ServerError::ShuttingDown)? }
}

/// Something that a node has seen of itself.
pub(crate) fn record_event(
    shared: &Arc<Shared>,
    id: NodeId,
    event: NodeEvent,
) -> impl Future<Output = Result<(), ServerError>> + Send + 'static {
    let stored = shared.queue().queue_commit(move |_, _| Ok(Decided { batch: Change::NodeEvents(id, vec![event]).into(), answer: () }));
    async move { stored.await.map_err(|_| ServerError::ShuttingDown)? }
}

/// After a start every node that was ready gets time to come back.
pub(crate) fn wait_for_all(shared: &Shared, state: &State) {
    let wait = shared.lease_wait() + shared.config.startup_grace;
    for node in state.nodes() {
        match node.status {
            NodeStatus::Down => {}
            NodeStatus::Disconnected => shared.leases.watch(node.id, wait),
            NodeStatus::Initializing | NodeStatus::Ready => shared.leases.grant(node.id, wait),
        }
    }
}

/// The loop of the leases: wakes when the next one runs out.
pub(crate) async fn lease_loop(shared: Arc<Shared>) {
    loop {
        let expired = shared.clone();
        let next = shared.leases.expire(Instant::now(), move |nodes| lose(&expired, nodes));
        let wait = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {}
            () = shared.leases.changed.notified() => {}
            () = shared.stopping.cancelled() => return,
        }
    }
}

/// The leases of these nodes have run out, margin included. Queued at once: whatever a node says from now on is decided afterwards.
fn lose(shared: &Arc<Shared>, nodes: Vec<NodeId>) {
    tracing::warn!(nodes = ?nodes, "leases ran out, or the wait for nodes that are cut off is over");
    let lost = nodes.clone();
    let own = shared.clone();
    let stored = shared.queue().queue_commit(move |state, stamp| {
        let mut batch = Batch::default();
        let mut evals: BTreeMap<JobKey, Evaluation> = BTreeMap::new();
        for id in lost {
            let Some(before) = state.node(id).map(|node| node.status).filter(|status| *status != NodeStatus::Down) else { continue };
            let patience = scheduler::node_patience(state, id, stamp.now);
            if let Some(until) = patience {
                if let Some(at) = until {
                    own.leases.watch(id, Duration::from_nanos(u64::try_from(at - stamp.now).unwrap_or(0)).max(WATCH));
                }
                if before == NodeStatus::Disconnected {
                    continue;
                }
            }
            let (status, description, message) = if patience.is_some() {
                let description = "the node was not heard from within its lease, and allocations on it are waited for";
                (NodeStatus::Disconnected, description, "Node disconnected: heartbeat missed")
            } else {
                (NodeStatus::Down, "the node was not heard from within its lease", "Node heartbeat missed")
            };
            batch.push(Change::NodeStatus {
                id,
                status,
                description: description.to_owned(),
                event: Some(event(message, "Cluster", stamp)),
            });
            evals.extend(evals_for(state, id, Trigger::NodeUpdate, stamp).into_iter().map(|eval| (eval.job_key(), eval)));
        }
        if !evals.is_empty() {
            batch.push(Change::UpsertEvals(evals.into_values().collect()));
        }
        Ok(Decided { batch, answer: () })
    });
    let shared = shared.clone();
    let tasks = shared.tasks.clone();
    tasks.spawn(async move {
        if let Ok(Err(error)) = stored.await {
            tracing::error!(error = %error, "the loss of nodes was not stored; trying again");
            let state = shared.published.load_full();
            for id in nodes {
                match state.node(id).map(|node| node.status) {
                    None | Some(NodeStatus::Down) => {}
                    Some(NodeStatus::Disconnected) => shared.leases.watch(id, RETRY),
                    Some(NodeStatus::Initializing | NodeStatus::Ready) => shared.leases.grant(id, RETRY),
                }
            }
        }
    });
}
