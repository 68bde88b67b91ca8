//! From requests to a plan: finds a node for each request, or gives the reason.

mod class;
mod context;
mod group;
mod memory;
mod rooms;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use context::{Blocked, Context, JobUse, Progress, counts};
use group::GroupPlacer;
pub use memory::Memory;
use model::{
    deployment::Deployment,
    eval::{EvalStatus, Evaluation, Trigger},
    ids::{AllocId, DeploymentId, EvalId, TimestampNs},
    job::{Job, job_type},
    plan::{Decision, Plan, PlannedStop},
};
use rooms::Displaced;
use state::State;

use crate::{
    ids::Ids,
    limits::Room,
    overlay::Overlay,
    reconcile::{GroupRequests, Wanted, why},
};

/// What is placed for which evaluation, when.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) state: &'a State,
    pub(crate) eval: &'a Evaluation,
    pub(crate) now: TimestampNs,
    /// The bounds let allocations be displaced.
    pub(crate) displaces: bool,
}

/// Places the requests and adds them to the decision.
pub(crate) fn place(asked: Asked<'_>, wanted: Wanted, ids: &mut Ids, memory: &mut Memory, decision: &mut Decision) {
    let Asked { state, eval, now, displaces } = asked;
    let Wanted {
        groups,
        stops,
        in_place,
        attribute_updates,
        deployment,
        deployment_updates,
        followups,
        annotations,
        nowhere,
    } = wanted;
    decision.plan.stops = stops;
    decision.plan.attribute_updates = attribute_updates;
    decision.plan.deployment = deployment;
    decision.plan.deployment_updates = deployment_updates;
    decision.new_evals = followups;
    decision.annotations = annotations;
    for a in in_place {
        decision.plan.placements.entry(a.node_id).or_default().push(a);
    }
    let job = decision.plan.job.clone();
    let Some(job) = &job else { return };
    decision.queued = job.task_groups.iter().map(|g| (g.name.clone(), 0)).collect();
    if groups.is_empty() && nowhere.is_empty() {
        return;
    }
    let displaces = displaces && state.scheduler_config().preemption_config.allows(&job.kind);
    let cx = Context { state, eval, job, now, displaces };
    let mut progress = Progress {
        overlay: Overlay::new(state),
        job_use: JobUse::new(state, &eval.job_key()),
        room: Room::of(state, &job.namespace),
        displaced: Displaced::default(),
        memory,
    };
    for name in nowhere {
        let Some(group) = job.group(&name) else { continue };
        let nothing = GroupRequests {
            group: name.clone(),
            requests: Vec::new(),
            beyond: 0,
            deployment: DeploymentId::NIL,
            job: None,
        };
        let placer = GroupPlacer::new(cx, group, &nothing, &mut progress, ids);
        decision.failed_groups.insert(name, placer.failure(1));
        placer.end();
    }
    if groups.is_empty() {
        return;
    }
    for s in &decision.plan.stops {
        release(state, s.id, &mut progress);
    }
    let mut blocked = Blocked::default();
    let mut paired: Vec<PlannedStop> = Vec::new();
    let mut full: BTreeMap<Arc<str>, i32> = BTreeMap::new();
    for g in &groups {
        let cx = Context { job: g.job.as_ref().unwrap_or(job), ..cx };
        let without = place_group(cx, g, &mut progress, &mut blocked, &mut paired, ids, decision);
        *full.entry(g.group.clone()).or_default() += without;
    }
    if job_type::everywhere(&job.kind) {
        leave_out(state, &mut decision.plan, &full);
    }
    if decision.plan.all_at_once && !decision.failed_groups.is_empty() {
        // All or nothing: lost or surplus allocations still go, everything else waits.
        for list in decision.plan.placements.values_mut() {
            list.retain(|a| state.alloc(a.id).is_some());
        }
        decision.plan.placements.retain(|_, l| !l.is_empty());
        for g in &job.task_groups {
            let waiting = decision
                .annotations
                .get(&g.name)
                .map_or(0, |c| c.place + c.reschedule_now + c.migrate + c.destructive_update);
            decision.queued.insert(g.name.clone(), i64::try_from(waiting).unwrap_or(i64::MAX));
        }
    } else {
        decision.plan.stops.append(&mut paired);
        decision.displaced = displaced_evals(state, eval, &progress.displaced.stops, ids);
        decision.plan.stops.append(&mut progress.displaced.stops);
    }
    // A group without any possible node waits for no room: a change of nodes triggers the next look.
    if decision.queued.values().any(|n| *n > 0) {
        decision.new_evals.push(blocked_eval(state, eval, job, blocked, decision, ids));
    }
}

/// Nodes without room for an allocation of a system job have no part in its deployment: it neither waits for them nor
/// fails by them. One that has nothing left to prove does not begin, and one under way does not end well by that.
fn leave_out(state: &State, plan: &mut Plan, full: &BTreeMap<Arc<str>, i32>) {
    let Some(d) = &mut plan.deployment else { return };
    let before = state.deployment(d.id);
    let least = i32::from(before.is_some());
    for (group, n) in full {
        if let Some(g) = d.groups.get_mut(group) {
            g.desired_total = (g.desired_total - n).max(least);
        }
    }
    let totals = |d: &Deployment| d.groups.values().map(|g| g.desired_total).collect::<Vec<_>>();
    let nothing = before.is_none() && totals(d).iter().all(|total| *total == 0);
    if nothing || before.is_some_and(|before| totals(before) == totals(d)) {
        plan.deployment = None;
    }
}

/// One evaluation for each job that loses allocations: it looks for room elsewhere.
fn displaced_evals(state: &State, eval: &Evaluation, stops: &[PlannedStop], ids: &mut Ids) -> Vec<Evaluation> {
    let jobs: BTreeSet<_> = stops.iter().filter_map(|stop| state.alloc(stop.id)).map(|a| a.job_key()).collect();
    let jobs = jobs.iter().filter_map(|key| state.job(key));
    jobs.map(|job| Evaluation {
        id: EvalId(ids.uuid()),
        namespace: job.namespace.clone(),
        priority: job.priority,
        kind: job.kind.clone(),
        trigger: Trigger::Preemption,
        job_id: job.id.clone(),
        job_modify_index: job.modify_index,
        status: EvalStatus::Pending,
        previous_eval: eval.id,
        ..Evaluation::default()
    })
    .collect()
}

fn release(state: &State, id: AllocId, progress: &mut Progress<'_, '_>) {
    if let (Some(room), Some(a)) = (&mut progress.room, state.alloc(id)) {
        room.release(a);
    }
    if let Some(a) = state.alloc(id).filter(|a| a.occupies())
        && let Some(slot) = progress.overlay.remove(a)
        && counts(a)
    {
        progress.job_use.remove(&a.task_group, slot);
    }
}

/// Places the requests of a group. Returns how many of them that replace nothing have found no room.
fn place_group<'a>(
    cx: Context<'a>,
    wanted: &GroupRequests,
    progress: &mut Progress<'a, '_>,
    blocked: &mut Blocked,
    paired: &mut Vec<PlannedStop>,
    ids: &mut Ids,
    decision: &mut Decision,
) -> i32 {
    let mut without = 0;
    let Some(group) = cx.job.group(&wanted.group) else { return without };
    let displaced_before = progress.displaced.stops.len();
    let mut placer = GroupPlacer::new(cx, group, wanted, progress, ids);
    let mut failed = 0;
    for request in &wanted.requests {
        if let Some(alloc) = placer.place(request) {
            // Most nodes get one allocation: capacity for four would quadruple the plan of a large job.
            decision.plan.placements.entry(alloc.node_id).or_insert_with(|| Vec::with_capacity(1)).push(alloc);
            paired.extend(request.stop.clone());
        } else {
            failed += 1;
            without += i32::from(request.stop.is_none());
            if request.release_anyway {
                paired
                    .extend(request.stop.clone().map(|s| PlannedStop { description: why::UNMANAGED.to_owned(), ..s }));
            }
        }
    }
    let beyond = i64::try_from(wanted.beyond).unwrap_or(i64::MAX);
    failed += beyond;
    if failed > 0 {
        *decision.queued.or_default(group.name.clone()) += failed;
        let mut why = placer.failure(failed);
        if beyond > 0 {
            why.quota_exhausted.push(format!("job_max_count: {beyond} more are asked for than a job may have"));
        }
        decision.failed_groups.insert(group.name.clone(), why);
        blocked.limited |= placer.limited();
        placer.eligibility(blocked);
    }
    placer.end();
    let displaced = progress.displaced.stops.len() - displaced_before;
    if displaced > 0 {
        decision.annotations.entry(group.name.clone()).or_default().preemptions += displaced as u64;
    }
    without
}

/// Blocks the requests without room. A job has one such evaluation: an existing one is renewed instead of a second one.
/// A woken one that still lacks room stays blocked.
fn blocked_eval(
    state: &State,
    eval: &Evaluation,
    job: &Job,
    blocked: Blocked,
    decision: &Decision,
    ids: &mut Ids,
) -> Evaluation {
    let key = job.key();
    let waiting = state
        .evals_by_job(&key)
        .filter(|e| e.status == EvalStatus::Blocked && e.id != eval.id)
        .max_by_key(|e| (e.create_index, e.id));
    let woken = (eval.trigger == Trigger::QueuedAllocs && waiting.is_none()).then_some(eval);
    let before = waiting.map(|e| &**e).or(woken);
    Evaluation {
        id: before.map_or_else(|| EvalId(ids.uuid()), |e| e.id),
        namespace: key.namespace,
        priority: job.priority,
        kind: job.kind.clone(),
        trigger: Trigger::QueuedAllocs,
        job_id: key.id,
        job_modify_index: job.modify_index,
        status: EvalStatus::Blocked,
        status_description: "created to place remaining allocations".into(),
        previous_eval: woken.map_or(eval.id, |e| e.previous_eval),
        limit_reached: if blocked.limited { job.namespace.clone() } else { model::Namespace::default() },
        class_eligibility: if blocked.escaped { BTreeMap::new() } else { blocked.classes },
        escaped_computed_class: blocked.escaped,
        failed_groups: decision.failed_groups.clone(),
        queued: decision.queued.clone(),
        snapshot_index: state.latest_index(),
        create_index: before.map_or(0, |e| e.create_index),
        create_time: before.map_or(0, |e| e.create_time),
        ..Evaluation::default()
    }
}
