//! Recovery: what the servers take over from nodes and providers that know more than their state.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use lifecycle::remote::{
    Context,
    recovered::{Known, MadeFrom, named_anew, of_each_slot, take_over},
};
use model::{
    AllocClientUpdate, Allocation, ClientStatus, DesiredStatus, DynamicVolume, EvalId, IncarnationId, Job, JobKey,
    NodeId, RemoteInstance, RemoteOrder, RemotePolicy, RemoteTask, SlotKey, Trigger, VolumeState, job::job_type,
};
use state::{Batch, Change, NamespaceRecord, State};

use crate::{Ids, Stamp, pending};

/// Orphaned instances that a sweep has found at a provider.
#[derive(Clone, Copy, Debug)]
pub struct Unbound<'a> {
    /// The driver that listed them.
    pub driver: &'a str,
    /// Identity of the provider.
    pub provider: &'a str,
    /// The instances.
    pub instances: &'a [RemoteInstance],
}

/// The incarnations in records.
fn incarnations(state: &State) -> HashSet<IncarnationId> {
    state.remote_tasks().map(|record| record.incarnation).collect()
}

/// All that a node has.
#[derive(Clone, Debug, Default)]
pub struct Has {
    /// Allocations with their jobs, in the state that they are in.
    pub allocs: Vec<Allocation>,
    /// Orders of remote slots as it follows them.
    pub orders: Vec<RemoteOrder>,
    /// Dynamic host volumes as it was told of them.
    pub volumes: Vec<DynamicVolume>,
}

/// Takes over a node's inventory, if the node has acted on a newer state than the servers'.
pub fn of_node(state: &State, node: NodeId, has: &Has, stamp: Stamp, ids: &mut Ids<'_>) -> Batch {
    let Has { allocs, orders, volumes } = has;
    let mut batch = Batch::default();
    for volume in volumes.iter().filter(|volume| volume.node_id == node && lacks(state, volume)) {
        if state.namespace(&volume.namespace).is_none() {
            let name = volume.namespace.clone();
            batch.push(Change::PutNamespace(NamespaceRecord { name, ..NamespaceRecord::default() }));
        }
        // It is there: its node has it.
        let volume = DynamicVolume { state: VolumeState::Ready, deleting: false, ..volume.clone() };
        batch.push(Change::PutVolume(Box::new(volume)));
    }
    let mut evals: BTreeMap<JobKey, EvalId> = BTreeMap::new();
    let mut upserts = Vec::new();
    let mut updates = Vec::new();
    for alloc in allocs.iter().filter(|alloc| alloc.node_id == node) {
        let Some(job) = &alloc.job else { continue };
        let known = state.alloc(alloc.id);
        // The servers have changed it since that state.
        let newer = known.is_none_or(|known| alloc.alloc_modify_index > known.alloc_modify_index);
        if !newer {
            updates.push(client_update(alloc));
            continue;
        }
        // An ended allocation of a batch job records finished work; of other jobs it records nothing.
        if known.is_none() && alloc.terminal() && !job_type::finite(&job.kind) {
            continue;
        }
        if state.namespace(&job.namespace).is_none() {
            batch.push(Change::PutNamespace(NamespaceRecord {
                name: job.namespace.clone(),
                ..NamespaceRecord::default()
            }));
        }
        let wanted =
            alloc.desired_status == DesiredStatus::Run && (!alloc.client_terminal() || job_type::finite(&job.kind));
        batch.push(Change::RecoverJob { job: job.clone(), current: wanted });
        let eval_id = *evals.entry(alloc.job_key()).or_insert_with(|| {
            let eval = pending(job, Trigger::NodeUpdate, stamp, ids);
            let id = eval.id;
            batch.push(Change::UpsertEvals(vec![eval]));
            id
        });
        // Its evaluation and deployment are unknown.
        let kept = known.map(|known| known.eval_id).unwrap_or(eval_id);
        let deployment_id = if state.deployment(alloc.deployment_id).is_some() {
            alloc.deployment_id
        } else {
            model::DeploymentId::NIL
        };
        upserts.push(Allocation { eval_id: kept, deployment_id, job: Some(same_version(state, job)), ..alloc.clone() });
    }
    for alloc in state
        .allocs_by_node(node)
        .filter(|alloc| !alloc.client_terminal() && !allocs.iter().any(|had| had.id == alloc.id))
    {
        upserts.push(Allocation {
            desired_status: DesiredStatus::Stop,
            desired_description: "its node has it no more: told in the recovery of the servers".into(),
            client_status: ClientStatus::Lost,
            client_description: "the node has it no more: told in the recovery of the servers".into(),
            ..Allocation::clone(alloc)
        });
    }
    if !upserts.is_empty() {
        batch.push(Change::UpsertAllocs(upserts));
    }
    if !updates.is_empty() {
        batch.push(Change::UpdateAllocsFromClient(updates));
    }
    for record in of_orders(state, node, allocs, orders, stamp, ids) {
        batch.push(Change::PutRemoteTask(Box::new(record)));
    }
    batch
}

/// New facts in a node's inventory, if any: a live allocation that the state lacks, the order of a slot under a higher
/// epoch, or a host volume.
#[must_use]
pub fn unknown_of(state: &State, node: NodeId, has: &Has) -> Option<String> {
    let Has { allocs, orders, volumes } = has;
    let of_alloc = |alloc: &&Allocation| {
        let known = state.alloc(alloc.id);
        known.map_or(!alloc.terminal(), |known| alloc.alloc_modify_index > known.alloc_modify_index)
    };
    let of_order = |order: &&RemoteOrder| state.remote_task(&order.slot).is_none_or(|known| order.epoch > known.epoch);
    let alloc = allocs.iter().filter(|alloc| alloc.node_id == node).find(of_alloc);
    let alloc = alloc.map(|alloc| format!("allocation {} of index {}", alloc.id, alloc.alloc_modify_index));
    alloc.or_else(|| {
        let order = orders.iter().find(of_order);
        let order = order.map(|order| format!("epoch {} of remote task {}", order.epoch, order.slot));
        order.or_else(|| {
            let volume = volumes.iter().find(|volume| volume.node_id == node && lacks(state, volume));
            volume.map(|volume| format!("host volume {} of revision {}", volume.id, volume.revision))
        })
    })
}

/// Whether the state knows less of a volume than its node.
fn lacks(state: &State, volume: &DynamicVolume) -> bool {
    state.volume(volume.id).is_none_or(|known| volume.revision > known.revision)
}

/// The state's own copy of that job version, so that both share it.
fn same_version(state: &State, job: &Arc<Job>) -> Arc<Job> {
    let known = state.job_version(&job.key(), job.version).filter(|known| known.create_index == job.create_index);
    known.unwrap_or(job).clone()
}

fn client_update(alloc: &Allocation) -> AllocClientUpdate {
    AllocClientUpdate {
        id: alloc.id,
        client_status: alloc.client_status,
        client_description: alloc.client_description.clone(),
        task_states: alloc.task_states.clone(),
        deployment_status: alloc.deployment_status.clone(),
        ..AllocClientUpdate::default()
    }
}

/// The records of slots of which a node knows more.
fn of_orders(
    state: &State,
    node: NodeId,
    allocs: &[Allocation],
    orders: &[RemoteOrder],
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Vec<RemoteTask> {
    let mut record = |order: &RemoteOrder| {
        let job = allocs.iter().find(|alloc| alloc.id == order.alloc_id).and_then(|alloc| alloc.job.as_ref());
        let made_from = made_from(job.or_else(|| state.job(&order.slot.job())), &order.slot);
        let known = Known::of_order(order, made_from, format!("node {}", node.short()));
        take_over(&order.slot, state.remote_task(&order.slot).map(|record| &**record), &known, context(stamp, ids))
    };
    orders.iter().filter_map(&mut record).collect()
}

fn context(stamp: Stamp, ids: &mut Ids<'_>) -> Context {
    Context { now: stamp.now, fresh: IncarnationId(ids()), held: false }
}

fn made_from(job: Option<&Arc<Job>>, slot: &SlotKey) -> Option<MadeFrom> {
    let job = job?;
    let group = job.group(&slot.group)?;
    let task = group.task(&slot.task)?;
    Some(MadeFrom {
        job_version: job.version,
        spec_hash: model::updates::spec_hash(job, group, task).into(),
        policy: RemotePolicy::of(job, group, task).into(),
    })
}

/// Names new managers, at the end of a recovery, for incarnations that nobody has seen: [`named_anew`].
pub fn of_the_unseen(state: &State, stamp: Stamp, ids: &mut Ids<'_>) -> Vec<RemoteTask> {
    state.remote_tasks().filter_map(|record| named_anew(record, context(stamp, ids))).collect()
}

/// The records of slots with orphaned instances from sweeps: the one with the highest epoch becomes the slot's. Others
/// stay unbound, and nothing begins in their slot before a person has decided.
pub fn of_sweeps<'a>(
    state: &State,
    sweeps: impl IntoIterator<Item = Unbound<'a>>,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Vec<RemoteTask> {
    let known = incarnations(state);
    let candidates = sweeps.into_iter().flat_map(|sweep| {
        let known = &known;
        sweep.instances.iter().filter(|instance| instance.alive()).filter_map(move |instance| {
            let (incarnation, slot) = (instance.key.parse().ok()?, instance.slot.parse::<SlotKey>().ok()?);
            if known.contains(&incarnation) {
                return None;
            }
            let job = state.job(&slot.job());
            let wanted = job
                .and_then(|job| job.group(&slot.group)?.task(&slot.task))
                .is_some_and(|task| task.driver == sweep.driver);
            let made_from = made_from(job, &slot).filter(|_| wanted);
            let found = Known::of_instance(instance, incarnation, (sweep.driver, sweep.provider), made_from);
            Some((slot, found))
        })
    });
    let best = of_each_slot(candidates);
    let record = |(slot, found): (SlotKey, Known)| {
        take_over(&slot, state.remote_task(&slot).map(|r| &**r), &found, context(stamp, ids))
    };
    best.into_iter().filter_map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::counted;

    #[test]
    fn a_node_brings_back_the_volumes_that_the_servers_have_forgotten() {
        let node = NodeId(uuid::Uuid::from_u128(1));
        let volume = |id, revision| DynamicVolume {
            id: model::VolumeId(uuid::Uuid::from_u128(id)),
            namespace: "team".into(),
            node_id: node,
            revision,
            host_path: format!("/v/{id}"),
            ..DynamicVolume::default()
        };
        let mut state = State::new();
        state.apply(50, 0, Change::PutVolume(Box::new(volume(1, 40))).into()).expect("it applies");
        let elsewhere = DynamicVolume { node_id: NodeId::NIL, ..volume(4, 60) };
        let has = Has { volumes: vec![volume(1, 40), volume(2, 60), volume(3, 61), elsewhere], ..Has::default() };
        let known = Has { volumes: vec![volume(1, 40)], ..Has::default() };
        assert_eq!(unknown_of(&state, node, &known), None);
        let unknown = unknown_of(&state, node, &has).expect("two of them");
        assert!(unknown.contains("host volume") && unknown.contains("of revision 60"), "{unknown}");
        let stamp = Stamp { index: 70, now: 0 };
        let batch = of_node(&state, node, &has, stamp, &mut counted(70));
        state.apply(70, 0, batch).expect("it applies");
        let all: Vec<_> = state.volumes_onward(None, false).map(|v| (v.revision, v.state, &*v.host_path)).collect();
        let (pending, ready) = (VolumeState::Pending, VolumeState::Ready);
        assert_eq!(all, [(40, pending, "/v/1"), (60, ready, "/v/2"), (61, ready, "/v/3")]);
        assert!(state.namespace(&"team".into()).is_some());
    }
}
