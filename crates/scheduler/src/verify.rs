//! The last check before the commit of a plan: whether it still fits the newest state.
//!
//! Several plans are made on snapshots at a time, and two must not take the same room. The check refuses a node as a
//! whole if its placements no longer fit, with the reason. The rest of the plan stands, and the scheduler runs its
//! evaluation again for the refused part. A placement that others have overtaken is refused as well: of work that was
//! done after all, or of a canary after the promotion.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use model::{
    alloc::Allocation,
    ids::{AllocId, NodeId},
    job::job_type,
    node::{Node, NodeStatus},
    plan::{Plan, PlannedStop},
};
use state::{NodeCapacity, NodeUse, State};

use crate::{
    canary::is_canary,
    cores,
    devices::{self, Taken},
    limits, outcome,
    pools::{PoolAsk, Pools},
    volumes,
};

/// The accepted part of a plan.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// For the commit; empty when nothing is left.
    pub plan: Plan,
    /// Nodes with refused placements, with the reason.
    pub refused: BTreeMap<NodeId, String>,
}

/// Checks a plan against the newest state. Without refusals, returns the plan unchanged.
#[must_use]
pub fn verify_plan(state: &State, plan: &Plan) -> Verified {
    let stopped: HashSet<AllocId> = plan.stops.iter().map(|s| s.id).collect();
    let mut stops_by_node: BTreeMap<NodeId, Vec<AllocId>> = BTreeMap::new();
    for s in &plan.stops {
        stops_by_node.entry(s.node_id).or_default().push(s.id);
    }
    let mut refused = BTreeMap::new();
    let mut pools = None;
    let done = done_meanwhile(state, plan);
    for (node, allocs) in &plan.placements {
        if let Some(why) = allocs.iter().find_map(|a| overtaken(state, a, &done)) {
            refused.insert(*node, why.to_owned());
            continue;
        }
        let leaving = stops_by_node.get(node).map_or(&[][..], Vec::as_slice);
        if let Err(why) = check_node(state, *node, allocs, leaving, &stopped, &mut pools) {
            refused.insert(*node, why);
        }
    }
    // A refusal keeps what the refused placements replace, which takes room in the namespace.
    while limits::concern(state, plan) {
        let more = limits::refusals(state, &without(plan, &refused));
        if more.is_empty() {
            break;
        }
        refused.extend(more);
    }
    if refused.is_empty() {
        return Verified { plan: plan.clone(), refused };
    }
    let mut left = without(plan, &refused);
    left.stops.retain(|s| !done.contains(&s.id));
    Verified { plan: left, refused }
}

/// Allocations of a batch job that a plan replaces, and that have done their work since its snapshot.
fn done_meanwhile(state: &State, plan: &Plan) -> HashSet<AllocId> {
    let batch = |a: &&Allocation| a.job.as_ref().is_some_and(|job| job.kind == job_type::BATCH);
    let version = |a: &Allocation| a.job.as_ref().map(|job| (job.create_index, job.version));
    let replacing = plan.placements.values().flatten().filter(batch).filter(|a| state.alloc(a.id).is_none());
    let replaced = replacing.filter_map(|a| {
        // A newer version does its work anew.
        state.alloc(a.previous_allocation).filter(|previous| version(previous) >= version(a))
    });
    replaced.filter(|previous| outcome::stands(state, previous)).map(|previous| previous.id).collect()
}

/// Why nothing may come of a new placement any more, whatever room there is.
fn overtaken(state: &State, a: &Allocation, done: &HashSet<AllocId>) -> Option<&'static str> {
    if state.alloc(a.id).is_some() {
        return None;
    }
    if done.contains(&a.previous_allocation) {
        return Some("what is to be replaced has done its work");
    }
    // It would be one too many, and nobody would promote it.
    let deployment = state.deployment(a.deployment_id).filter(|_| is_canary(a))?;
    let promoted = deployment.groups.get(&a.task_group).is_some_and(|group| group.promoted);
    (promoted || !deployment.status.active()).then_some("the deployment of a canary was promoted, or has ended")
}

/// What is left of a plan. Of one that is all or nothing, nothing is.
fn without(plan: &Plan, refused: &BTreeMap<NodeId, String>) -> Plan {
    if refused.is_empty() {
        return plan.clone();
    }
    if plan.all_at_once {
        return Plan {
            eval_id: plan.eval_id,
            priority: plan.priority,
            all_at_once: true,
            job: plan.job.clone(),
            snapshot_index: plan.snapshot_index,
            ..Plan::default()
        };
    }
    let mut left = plan.clone();
    left.placements.retain(|n, _| !refused.contains_key(n));
    // An allocation stays for now if its replacement was refused.
    let placed: HashSet<AllocId> = left.placements.values().flatten().map(|a| a.previous_allocation).collect();
    let replaced: HashSet<AllocId> =
        plan.placements.values().flatten().map(|a| a.previous_allocation).filter(|p| !p.is_nil()).collect();
    left.stops.retain(|s| s.client_status.is_some() || !replaced.contains(&s.id) || placed.contains(&s.id));
    // Nobody is displaced for an allocation that does not come.
    let coming: HashSet<AllocId> = left.placements.values().flatten().map(|a| a.id).collect();
    left.stops.retain(|s| s.preempted_by.is_nil() || coming.contains(&s.preempted_by));
    left
}

/// Leaves out of a plan that is about to be committed the displacement of what has ended meanwhile: its room is free.
pub fn without_ended(state: &State, plan: &mut Plan) {
    let over = |s: &PlannedStop| !s.preempted_by.is_nil() && state.alloc(s.id).is_none_or(|a| a.terminal());
    let gone: HashSet<AllocId> = plan.stops.iter().filter(|s| over(s)).map(|s| s.id).collect();
    if gone.is_empty() {
        return;
    }
    plan.stops.retain(|s| !gone.contains(&s.id));
    for preemption in plan.placements.values_mut().flatten().filter_map(|a| a.preemption.as_mut()) {
        preemption.preempted_allocations.retain(|id| !gone.contains(id));
    }
}

fn check_node(
    state: &State,
    id: NodeId,
    allocs: &[Allocation],
    leaving: &[AllocId],
    stopped: &HashSet<AllocId>,
    pools: &mut Option<Pools>,
) -> Result<(), String> {
    let Some(node) = state.node(id) else { return Err("the node is not registered any more".to_owned()) };
    let fresh: Vec<&Allocation> = allocs.iter().filter(|a| state.alloc(a.id).is_none()).collect();
    if !fresh.is_empty() && !node.ready() {
        return Err(not_ready(node));
    }
    let mut taken = state.usage(id);
    for a in leaving.iter().filter_map(|a| state.alloc(*a)).filter(|a| a.node_id == id && a.occupies()) {
        taken.remove(a);
    }
    // An update in place keeps its resources, unless the plan says otherwise.
    for a in allocs.iter().filter_map(|a| state.alloc(a.id)).filter(|a| a.occupies()) {
        taken.remove(a);
    }
    let capacity = state.fleet().slot(id).and_then(|s| state.fleet().capacity(s));
    let Some(capacity) = capacity else { return Err("the node is not registered any more".to_owned()) };
    for a in allocs.iter().filter(|a| !a.terminal()) {
        add(capacity, &mut taken, a, &fresh)?;
    }
    if allocs.iter().any(|a| cores::of(a).next().is_some()) {
        check_cores(state, id, allocs, stopped)?;
    }
    if allocs.iter().any(|a| devices::of(a).next().is_some()) {
        check_devices(state, id, allocs, stopped)?;
    }
    volumes::check(state, node, &fresh, stopped)?;
    check_pools(state, node, &fresh, stopped, pools)
}

fn not_ready(node: &Node) -> String {
    if node.status != NodeStatus::Ready {
        return "the node is not ready".to_owned();
    }
    if node.drain.is_some() { "the node is draining".to_owned() } else { "the node is not eligible".to_owned() }
}

/// Adds the resources of an allocation. Only a new one can exceed the capacity.
fn add(capacity: &NodeCapacity, taken: &mut NodeUse, a: &Allocation, fresh: &[&Allocation]) -> Result<(), String> {
    let new = fresh.iter().any(|f| f.id == a.id);
    if new {
        for p in a.resources.shared.ports.iter().filter(|p| !p.ignore_collision) {
            let port = u16::try_from(p.value).unwrap_or(0);
            if taken.ports.contains(&p.host_ip, port) || capacity.port_reserved(&p.host_ip, port) {
                return Err(format!("port {}={} is taken", p.label, p.value));
            }
        }
    }
    taken.add(a);
    if !new {
        return Ok(());
    }
    let u = a.resources.usage();
    for (what, taken, ask, capacity) in [
        ("cpu", taken.cpu, u.cpu, capacity.cpu),
        ("memory", taken.memory_mb, u.memory_mb, capacity.memory_mb),
        ("disk", taken.disk_mb, u.disk_mb, capacity.disk_mb),
        (
            "remote sessions",
            i64::from(taken.sessions),
            limited(capacity.sessions, a.resources.sessions()),
            i64::from(capacity.sessions),
        ),
        (
            "room for allocations",
            i64::from(taken.allocs),
            limited(capacity.max_allocs, 1),
            i64::from(capacity.max_allocs),
        ),
    ] {
        // An empty request does not make it worse.
        if ask > 0 && taken > capacity {
            return Err(format!("not enough {what}: {taken} of {capacity} would be taken"));
        }
    }
    Ok(())
}

/// A request for a resource that may be unlimited.
fn limited(limit: u32, ask: u32) -> i64 {
    if limit == 0 { 0 } else { i64::from(ask) }
}

fn check_cores(state: &State, id: NodeId, allocs: &[Allocation], stopped: &HashSet<AllocId>) -> Result<(), String> {
    let own: HashSet<AllocId> = allocs.iter().map(|a| a.id).collect();
    let live = state.allocs_by_node(id).filter(|a| a.occupies() && !stopped.contains(&a.id) && !own.contains(&a.id));
    let mut taken: BTreeSet<u16> = live.flat_map(|a| cores::of(a).collect::<Vec<_>>()).collect();
    for core in allocs.iter().flat_map(cores::of) {
        if !taken.insert(core) {
            return Err(format!("core {core} is taken"));
        }
    }
    Ok(())
}

fn check_devices(state: &State, id: NodeId, allocs: &[Allocation], stopped: &HashSet<AllocId>) -> Result<(), String> {
    let own: HashSet<AllocId> = allocs.iter().map(|a| a.id).collect();
    let live = state.allocs_by_node(id).filter(|a| a.occupies() && !stopped.contains(&a.id) && !own.contains(&a.id));
    let mut taken: Taken = live.flat_map(|a| devices::of(a)).collect();
    for (group, device) in allocs.iter().filter(|a| !a.terminal()).flat_map(devices::of) {
        if !taken.insert((group.clone(), device.clone())) {
            return Err(format!("device {device} of {group} is taken"));
        }
    }
    Ok(())
}

/// Adopted instances have their room already.
fn check_pools(
    state: &State,
    node: &Arc<Node>,
    fresh: &[&Allocation],
    stopped: &HashSet<AllocId>,
    pools: &mut Option<Pools>,
) -> Result<(), String> {
    for a in fresh.iter().filter(|a| a.remote.is_empty()) {
        let ask = PoolAsk::of(a, node);
        if ask.is_empty() {
            continue;
        }
        let pools = pools.get_or_insert_with(|| {
            let mut p = Pools::of(state);
            for s in stopped.iter().filter_map(|id| state.alloc(*id)).filter(|a| !a.terminal()) {
                if let Some(n) = state.node(s.node_id) {
                    p.remove(&PoolAsk::of(s, n));
                }
            }
            p
        });
        pools.fits(&ask).map_err(|what| format!("not enough {what}"))?;
        pools.add(&ask);
    }
    Ok(())
}
