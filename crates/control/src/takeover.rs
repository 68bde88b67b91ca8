//! Recovery: what the servers take over from nodes and providers that know more than their state.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use lifecycle::remote::{
    Context,
    recovered::{Known, MadeFrom, named_anew, of_each_slot, take_over},
};
use model::{
    AllocClientUpdate, AllocId, Allocation, ClientStatus, DesiredStatus, DynamicVolume, EvalId, IncarnationId, Job,
    JobKey, Namespace, NodeId, RemoteInstance, RemoteOrder, RemotePolicy, RemoteTask, SlotKey, Trigger, VolumeState,
    job::job_type, proof::Point,
};
use state::{Batch, Change, NamespaceRecord, State};
use uuid::Uuid;

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

/// Whether the servers have told a node what it says to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// They have: their state got it at that point.
    Proven(Point),
    /// There is no proof.
    Without,
    /// Its proof was made under a root key that these servers do not have.
    UnknownKey(Uuid),
    /// Its proof is of something else: another node, allocation, job, order.
    OfSomethingElse,
}

/// Something that a node says to have, and what that is worth.
#[derive(Clone, Debug)]
pub struct Claimed<T> {
    /// What it says.
    pub what: T,
    /// Whether the servers have told it.
    pub standing: Standing,
}

/// All that a node has.
#[derive(Clone, Debug, Default)]
pub struct Has {
    /// Allocations with their jobs, in the state that they are in.
    pub allocs: Vec<Claimed<Allocation>>,
    /// Orders of remote slots as it follows them.
    pub orders: Vec<Claimed<RemoteOrder>>,
    /// Dynamic host volumes as it was told of them.
    pub volumes: Vec<Claimed<DynamicVolume>>,
}

/// What of a node's word counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// What the servers have proven, and what any node may report.
    Proofs,
    /// All: a person has decided so, or will decide on the whole.
    All,
}

/// What a node says to have and nothing proves. None of it is taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubted {
    /// Number of allocations.
    pub allocs: usize,
    /// Number of remote tasks.
    pub orders: usize,
    /// Number of host volumes.
    pub volumes: usize,
    /// A few of them, for people.
    pub examples: Vec<String>,
    /// Why there is no proof, each reason once, for people.
    pub why: BTreeSet<String>,
}

/// How many doubted things are named.
const EXAMPLES: usize = 5;

impl Doubted {
    /// Whether everything is proven.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allocs + self.orders + self.volumes == 0
    }

    fn add(&mut self, standing: &Standing, name: impl FnOnce() -> String) {
        let why = match standing {
            Standing::Proven(_) => return,
            Standing::Without => "there is no proof: the node got it from servers of a release that gave none, or it \
                is made up"
                .to_owned(),
            Standing::UnknownKey(key) => format!(
                "it was proven under the root key {key}, which these servers do not have: their state is older than \
                    the key, or it is made up"
            ),
            Standing::OfSomethingElse => {
                "its proof is of something else: another node, allocation, order or job".to_owned()
            }
        };
        self.why.insert(why);
        if self.examples.len() < EXAMPLES {
            self.examples.push(name());
        }
    }
}

/// What follows from a node's inventory.
#[derive(Debug, Default)]
pub struct Taken {
    /// What is taken over.
    pub batch: Batch,
    /// What is not, because nothing proves it.
    pub doubted: Doubted,
}

/// What becomes of something that the state does not know so.
enum Verdict {
    Take,
    Doubt,
    /// The state has had it and has forgotten it since, or it cannot be.
    Old,
}

/// `lacks` = the state has no record of it at all: what its history has had, the servers have removed since.
fn judge(state: &State, trust: Trust, standing: &Standing, lacks: bool) -> Verdict {
    match (trust, standing) {
        (Trust::All, _) => Verdict::Take,
        (Trust::Proofs, Standing::Proven(at)) if lacks && !is_news(state, *at) => Verdict::Old,
        (Trust::Proofs, Standing::Proven(_)) => Verdict::Take,
        (Trust::Proofs, _) => Verdict::Doubt,
    }
}

/// Whether the history of this state does not reach that point.
fn is_news(state: &State, at: Point) -> bool {
    at.index > state.cluster().history_of(at.generation, state.latest_index())
}

/// Names for people are short and in one line, whatever a node says.
fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// The namespace, where there is none of that name.
fn lacking(state: &State, name: &Namespace) -> Option<Change> {
    let record = || NamespaceRecord { name: name.clone(), ..NamespaceRecord::default() };
    state.namespace(name).is_none().then(|| Change::PutNamespace(record()))
}

/// Takes over a node's inventory, if the node has acted on a newer state than the servers'.
pub fn of_node(state: &State, node: NodeId, has: &Has, trust: Trust, stamp: Stamp, ids: &mut Ids<'_>) -> Taken {
    let Has { allocs, orders, volumes } = has;
    let (mut batch, mut doubted) = (Batch::default(), Doubted::default());
    for Claimed { what: volume, standing } in volumes.iter().filter(|claimed| lacks(state, node, &claimed.what)) {
        match judge(state, trust, standing, state.volume(volume.id).is_none()) {
            Verdict::Old => continue,
            Verdict::Doubt => {
                doubted.volumes += 1;
                doubted.add(standing, || format!("host volume {} ({})", volume.id.short(), short(&volume.name)));
                continue;
            }
            Verdict::Take => {}
        }
        batch.changes.extend(lacking(state, &volume.namespace));
        // It is there: its node has it.
        let volume = DynamicVolume { state: VolumeState::Ready, deleting: false, proof: None, ..volume.clone() };
        batch.push(Change::PutVolume(Box::new(volume)));
    }
    let mut evals: BTreeMap<JobKey, EvalId> = BTreeMap::new();
    let (mut upserts, mut updates) = (Vec::new(), Vec::new());
    // By allocation, for the orders: jobs that are believed, and others.
    let (mut jobs, mut doubted_jobs) = (HashMap::new(), HashMap::new());
    for Claimed { what: alloc, standing } in allocs.iter().filter(|claimed| claimed.what.node_id == node) {
        let Some(job) = alloc.job.as_ref().filter(|job| job.key() == alloc.job_key()) else { continue };
        let known = state.alloc(alloc.id);
        if known.is_some_and(|known| known.node_id != node) {
            // No allocation ever moves.
            continue;
        }
        // The servers have changed it since that state.
        let newer = known.is_none_or(|known| alloc.alloc_modify_index > known.alloc_modify_index);
        if !newer {
            updates.push(client_update(alloc));
            jobs.extend(known.and_then(|known| Some((alloc.id, known.job.as_ref()?))));
            continue;
        }
        // An ended allocation of a batch job records finished work; of other jobs it records nothing.
        if known.is_none() && alloc.terminal() && !job_type::finite(&job.kind) {
            continue;
        }
        match judge(state, trust, standing, known.is_none()) {
            Verdict::Old => continue,
            Verdict::Doubt => {
                doubted.allocs += 1;
                doubted_jobs.insert(alloc.id, job);
                doubted.add(standing, || {
                    let (job, namespace) = (short(alloc.job_id.as_str()), short(alloc.namespace.as_str()));
                    format!("allocation {} of job {job} in namespace {namespace}", alloc.id.short())
                });
                // What has become of its own allocation any node may say.
                if known.is_some() {
                    updates.push(client_update(alloc));
                }
                continue;
            }
            Verdict::Take => {}
        }
        jobs.insert(alloc.id, job);
        batch.changes.extend(lacking(state, &job.namespace));
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
        .filter(|alloc| !alloc.client_terminal() && !allocs.iter().any(|had| had.what.id == alloc.id))
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
    for Claimed { what: order, standing } in orders {
        let mut of = |jobs: &HashMap<AllocId, &Arc<Job>>| {
            of_order(state, node, jobs.get(&order.alloc_id).copied(), order, stamp, ids)
        };
        let record = of(&jobs);
        // With a job that nothing proves it may be more.
        if record.is_none() && of(&doubted_jobs).is_none() {
            continue;
        }
        let known = state.remote_task(&order.slot);
        match judge(state, trust, standing, known.is_none()) {
            _ if known.is_some_and(|known| may_say(known, node, order)) => {}
            Verdict::Old => continue,
            // Only an epoch, told by a node that the record does not name: a manager that meets it is refused with it,
            // and the servers go on from there.
            Verdict::Doubt if order.driver.is_empty() => continue,
            Verdict::Doubt => {
                doubted.orders += 1;
                doubted.add(standing, || {
                    format!("epoch {} of remote task {}", order.epoch, short(&order.slot.to_string()))
                });
                continue;
            }
            Verdict::Take => {}
        }
        batch.changes.extend(record.map(|record| Change::PutRemoteTask(Box::new(record))));
    }
    Taken { batch, doubted }
}

/// Epochs that a slot can have been given while the servers' state was lost, far beyond any.
const EPOCHS: u64 = 1 << 32;

/// Whether a node may say that of a slot whatever proves it, as in any report: its manager finds the handle of the same
/// incarnation, or knows that a later epoch was acted under. The record goes on from that epoch.
fn may_say(known: &RemoteTask, node: NodeId, order: &RemoteOrder) -> bool {
    let names = [known.manager, known.successor].into_iter().flatten().any(|who| who.node_id == node);
    let same = order.incarnation == known.incarnation && order.epoch == known.epoch;
    names && (same || (order.driver.is_empty() && order.epoch <= known.epoch.saturating_add(EPOCHS)))
}

/// New facts in a node's inventory, if any: a live allocation that the state lacks, the order of a slot under a higher
/// epoch, or a host volume.
#[must_use]
pub fn unknown_of(state: &State, node: NodeId, has: &Has) -> Option<String> {
    let Has { allocs, orders, volumes } = has;
    // What it was told in this history is not new, also where the servers have forgotten it.
    let old = |standing: &Standing| matches!(standing, Standing::Proven(at) if !is_news(state, *at));
    let of_alloc = |claimed: &&Claimed<Allocation>| {
        let alloc = &claimed.what;
        match state.alloc(alloc.id) {
            Some(known) => alloc.alloc_modify_index > known.alloc_modify_index,
            None => !alloc.terminal() && !old(&claimed.standing),
        }
    };
    let of_order = |claimed: &&Claimed<RemoteOrder>| match state.remote_task(&claimed.what.slot) {
        Some(known) => claimed.what.epoch > known.epoch,
        None => !old(&claimed.standing),
    };
    let of_volume = |claimed: &&Claimed<DynamicVolume>| {
        let volume = &claimed.what;
        lacks(state, node, volume) && (state.volume(volume.id).is_some() || !old(&claimed.standing))
    };
    let alloc = allocs.iter().filter(|claimed| claimed.what.node_id == node).find(of_alloc);
    let alloc =
        alloc.map(|Claimed { what, .. }| format!("allocation {} of index {}", what.id, what.alloc_modify_index));
    alloc.or_else(|| {
        let order = orders.iter().find(of_order);
        let order = order
            .map(|order| format!("epoch {} of remote task {}", order.what.epoch, short(&order.what.slot.to_string())));
        order.or_else(|| {
            let volume = volumes.iter().find(of_volume);
            volume.map(|volume| format!("host volume {} of revision {}", volume.what.id, volume.what.revision))
        })
    })
}

/// Whether the state knows less of a node's volume than the node. A volume stays where it is.
fn lacks(state: &State, node: NodeId, volume: &DynamicVolume) -> bool {
    let newer = |known: &Arc<DynamicVolume>| known.node_id == node && volume.revision > known.revision;
    volume.node_id == node && state.volume(volume.id).is_none_or(newer)
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

/// The record of a slot of which a node knows more. `job` = that of the order's allocation, if the node has it.
fn of_order(
    state: &State,
    node: NodeId,
    job: Option<&Arc<Job>>,
    order: &RemoteOrder,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Option<RemoteTask> {
    // The job of another slot says nothing of this one.
    let job = job.filter(|job| job.key() == order.slot.job()).or_else(|| state.job(&order.slot.job()));
    let known = Known::of_order(order, made_from(job, &order.slot), format!("node {}", node.short()));
    take_over(&order.slot, state.remote_task(&order.slot).map(|record| &**record), &known, context(stamp, ids))
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
mod tests;
