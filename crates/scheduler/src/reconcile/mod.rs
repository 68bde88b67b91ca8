//! A job's wishes compared with its allocations: what to place, stop, migrate, replace, change in place, and when to
//! look again.
//!
//! ```text
//! allocation ─┬─ ignored     stopped by the servers, replaced already, or of an older run of a batch job
//!             ├─ kept        runs, or ended in a way that still counts (batch success, failure without further
//! attempt)
//!             ├─ lost        its node is down or gone
//!             ├─ away        its node is cut off and the job waits for it, with a replacement meanwhile
//!             ├─ migrating   marked by the drainer; with remote tasks as soon as its node drains
//!             └─ rescheduled failed and its policy says now, or later (a follow-up evaluation)
//! ```
//!
//! This module does not know the room on nodes: a request with `stop` stops the earlier allocation only when the new
//! one has a place.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use model::{
    alloc::{Allocation, ClientStatus, RescheduleEvent, RescheduleTracker},
    deployment::{Deployment, DeploymentStatus},
    eval::{EvalStatus, Evaluation, Trigger},
    go_duration::GoDuration,
    ids::{AllocId, DeploymentId, EvalId, JobKey, NodeId, TimestampNs},
    job::{Job, TaskGroup, job_type},
    node::NodeStatus,
    plan::{DeploymentUpdate, DesiredUpdates, PlannedStop},
    policy::Reschedule,
};
use state::State;

mod away;
pub(crate) mod rollout;

use crate::{
    canary::{self, is_canary},
    deployment::find_deployment,
    disconnect::{self, Contact},
    feasible,
    ids::Ids,
    outcome, remote,
    reschedule::{self, Verdict},
};

/// Descriptions of stopped allocations.
pub mod why {
    /// The count or the groups of the job have changed, it was stopped, or a canary's version was given up.
    pub const NOT_NEEDED: &str = "alloc not needed due to job update";
    /// Its node is draining.
    pub const MIGRATING: &str = "alloc is being migrated";
    /// It is of a system job, and its node is draining.
    pub const TAINTED: &str = "alloc not needed as node is tainted";
    /// A newer version replaces it.
    pub const UPDATED: &str = "alloc is being updated due to job update";
    /// Its node is down or gone.
    pub const LOST: &str = "alloc is lost since its node is down";
    /// It has failed and has a replacement.
    pub const RESCHEDULED: &str = "alloc was rescheduled because it failed";
    /// Its node is disconnected.
    pub const UNKNOWN: &str = "alloc is unknown since its node is disconnected";
    /// Its node came back, and its replacement stays.
    pub const RECONNECTED: &str = "alloc not needed due to disconnected client reconnect";
    /// Its remote tasks stay until a node can manage them.
    pub const UNMANAGED: &str = "node is draining and no other can manage the remote tasks: they run on unmanaged";
}

/// Failed allocations that become due within this span share a follow-up evaluation.
const FOLLOWUP_WINDOW: i64 = 5_000_000_000;
/// Anything due within this span is done now.
const RESCHEDULE_WINDOW: i64 = 1_000_000_000;

/// One allocation to be placed.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) index: u32,
    /// The allocation that it replaces.
    pub(crate) previous: Option<Arc<Allocation>>,
    /// Stop of the earlier one, which takes effect only with a placement.
    pub(crate) stop: Option<PlannedStop>,
    /// With only remote tasks: the earlier one lets go even without a placement.
    pub(crate) release_anyway: bool,
    /// Nodes on which it has failed before.
    pub(crate) penalty: Vec<NodeId>,
    pub(crate) tracker: Option<Box<RescheduleTracker>>,
    /// The slot's remote instance lives, without a manager.
    pub(crate) living: bool,
    /// A canary of the new version.
    pub(crate) canary: bool,
    /// Nodes that it may be placed on; `None` = all.
    pub(crate) among: Option<Arc<BTreeSet<NodeId>>>,
}

impl Request {
    pub(crate) fn new(index: u32) -> Self {
        Self {
            index,
            previous: None,
            stop: None,
            release_anyway: false,
            penalty: Vec::new(),
            tracker: None,
            living: false,
            canary: false,
            among: None,
        }
    }

    pub(crate) fn replacing(previous: Arc<Allocation>) -> Self {
        let tracker = previous.reschedule_tracker.clone();
        // For any replacement, avoid nodes where it or a predecessor has failed.
        let mut penalty: Vec<NodeId> = tracker.iter().flat_map(|t| &t.events).map(|e| e.prev_node_id).collect();
        if previous.client_status == ClientStatus::Failed {
            penalty.push(previous.node_id);
        }
        Self { previous: Some(previous.clone()), tracker, penalty, ..Self::new(previous.index()) }
    }
}

/// The placements of a group.
#[derive(Clone, Debug)]
pub(crate) struct GroupRequests {
    pub(crate) group: Arc<str>,
    pub(crate) requests: Vec<Request>,
    /// Number of wanted allocations above the job's limit: counted without requests.
    pub(crate) beyond: usize,
    /// New allocations belong to this deployment.
    pub(crate) deployment: DeploymentId,
    /// The version of the job that they run; `None` = the newest.
    pub(crate) job: Option<Arc<Job>>,
}

/// The outcome for a whole job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) groups: Vec<GroupRequests>,
    pub(crate) stops: Vec<PlannedStop>,
    /// Existing allocations that get the newest version without a restart.
    pub(crate) in_place: Vec<Allocation>,
    pub(crate) attribute_updates: Vec<Allocation>,
    pub(crate) deployment: Option<Deployment>,
    pub(crate) deployment_updates: Vec<DeploymentUpdate>,
    pub(crate) followups: Vec<Evaluation>,
    pub(crate) annotations: BTreeMap<Arc<str>, DesiredUpdates>,
    /// Groups without any possible node: they do not wait for room, and people get the reason.
    pub(crate) nowhere: Vec<Arc<str>>,
}

/// The fate of one allocation.
enum Fate {
    Ignore,
    Keep,
    Lost,
    Away { replace: bool, until: Option<TimestampNs> },
    Returning,
    Migrate,
    RescheduleNow(Box<RescheduleTracker>),
    RescheduleLater(TimestampNs),
}

/// The allocations of a group by [`Fate`].
#[derive(Default)]
struct Sorted {
    keep: Vec<Arc<Allocation>>,
    lost: Vec<Arc<Allocation>>,
    /// Disconnected, with a replacement meanwhile.
    away: Vec<Arc<Allocation>>,
    /// Lost, by index; not replaced before their nodes have stopped them.
    stopping: BTreeSet<u32>,
    /// All of the group by index, if one of them was disconnected once.
    names: HashMap<u32, Vec<Arc<Allocation>>>,
    /// Canaries without a replacement that were lost, or that their nodes have stopped while they were cut off.
    lost_canaries: Vec<Arc<Allocation>>,
    /// Indexes reserved for canaries.
    reserved: BTreeSet<u32>,
    migrate: Vec<Arc<Allocation>>,
    now: Vec<(Arc<Allocation>, Box<RescheduleTracker>)>,
    /// Due for a later reschedule; among the kept.
    later: Vec<(Arc<Allocation>, TimestampNs)>,
    /// Without a replacement: lost earlier, or stopped by their nodes while they were cut off. By index.
    unreplaced: BTreeMap<u32, Arc<Allocation>>,
}

impl Sorted {
    /// Later placements with the same name.
    fn successors(&self, a: &Allocation) -> impl Iterator<Item = &Arc<Allocation>> {
        let (id, created, canary) = (a.id, a.create_index, is_canary(a));
        let later = move |r: &&Arc<Allocation>| r.id != id && r.create_index > created && (canary || !is_canary(r));
        self.names.get(&a.index()).into_iter().flatten().filter(later)
    }

    fn forget(&mut self, id: AllocId) {
        let other = |a: &Arc<Allocation>| a.id != id;
        self.keep.retain(other);
        self.away.retain(other);
        self.lost.retain(other);
        self.migrate.retain(other);
        self.now.retain(|(a, _)| a.id != id);
        self.later.retain(|(a, _)| a.id != id);
    }
}

struct Reconciler<'a> {
    state: &'a State,
    job: &'a Arc<Job>,
    eval: &'a Evaluation,
    now: TimestampNs,
    batch: bool,
    /// The deployment of this version, unless it has ended well.
    deployment: Option<Arc<Deployment>>,
    /// The new deployment of this version.
    new_deployment: Option<Deployment>,
    /// How many more allocations the job's limit allows.
    room: usize,
    out: Wanted,
}

pub(crate) fn stop(a: &Allocation, description: &str, client_status: Option<ClientStatus>) -> PlannedStop {
    PlannedStop {
        id: a.id,
        node_id: a.node_id,
        description: description.to_owned(),
        client_status,
        followup_eval_id: EvalId::NIL,
        preempted_by: AllocId::NIL,
    }
}

/// Whether its node is gone or has lost its lease.
pub(crate) fn node_lost(state: &State, node: NodeId) -> bool {
    state.node(node).is_none_or(|n| matches!(n.status, NodeStatus::Down | NodeStatus::Disconnected))
}

/// When the allocation failed: the end of its last task, else its last change.
fn failed_at(a: &Allocation) -> TimestampNs {
    a.task_states.values().filter_map(|t| t.finished_at.ns()).max().unwrap_or(a.modify_time)
}

/// A job's allocations by the name of their group.
pub(crate) fn by_group(allocs: Vec<Arc<Allocation>>) -> BTreeMap<Arc<str>, Vec<Arc<Allocation>>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for a in allocs {
        groups.entry(a.task_group.clone()).or_default().push(a);
    }
    groups
}

/// Compares a job with its allocations; `most` is its limit of allocations.
pub(crate) fn reconcile(
    state: &State,
    job: Option<&Arc<Job>>,
    eval: &Evaluation,
    now: TimestampNs,
    most: u32,
    ids: &mut Ids,
) -> Wanted {
    let key = eval.job_key();
    let allocs: Vec<Arc<Allocation>> = state.allocs_by_job(&key).cloned().collect();
    let Some(job) = job.filter(|j| !j.stop) else {
        return stop_job(state, &key, &allocs);
    };
    let mut by_group = by_group(allocs);
    let mut r = Reconciler {
        state,
        job,
        eval,
        now,
        batch: job.kind == job_type::BATCH,
        deployment: None,
        new_deployment: None,
        room: most as usize,
        out: Wanted::default(),
    };
    (r.deployment, r.out.deployment_updates) = find_deployment(state, job);
    let mut complete = true;
    for group in &job.task_groups {
        let allocs = by_group.remove(&group.name).unwrap_or_default();
        complete &= r.group(group, allocs, ids);
    }
    for (group, allocs) in by_group {
        let mut counts = DesiredUpdates::default();
        stop_allocs(state, &allocs, &mut r.out.stops, &mut counts);
        if counts.stop > 0 {
            r.out.annotations.insert(group, counts);
        }
    }
    r.finish_deployment(complete);
    r.out
}

pub(crate) fn stop_allocs(
    state: &State,
    allocs: &[Arc<Allocation>],
    stops: &mut Vec<PlannedStop>,
    counts: &mut DesiredUpdates,
) {
    for a in allocs.iter().filter(|a| !a.client_terminal()) {
        let lost = node_lost(state, a.node_id);
        if lost {
            stops.push(stop(a, why::LOST, Some(ClientStatus::Lost)));
        } else if !a.server_terminal() {
            stops.push(stop(a, why::NOT_NEEDED, None));
        } else {
            continue;
        }
        counts.stop += u64::from(!a.server_terminal());
    }
}

pub(crate) fn stop_job(state: &State, key: &JobKey, allocs: &[Arc<Allocation>]) -> Wanted {
    let mut out = Wanted::default();
    for a in allocs {
        let counts = out.annotations.entry(a.task_group.clone()).or_default();
        stop_allocs(state, std::slice::from_ref(a), &mut out.stops, counts);
    }
    out.annotations.retain(|_, c| *c != DesiredUpdates::default());
    for d in state.deployments_by_job(key).filter(|d| d.status.active()) {
        out.deployment_updates.push(DeploymentUpdate {
            id: d.id,
            status: DeploymentStatus::Cancelled,
            description: "Cancelled because job is stopped".into(),
        });
    }
    out
}

impl Reconciler<'_> {
    fn fate(&self, group: &TaskGroup, a: &Allocation) -> Fate {
        let older =
            a.job.as_ref().is_none_or(|j| j.create_index < self.job.create_index || j.version < self.job.version);
        if self.batch && older && a.terminal() {
            return Fate::Ignore;
        }
        if a.server_terminal() {
            return if self.batch && outcome::done(self.state, a) { Fate::Keep } else { Fate::Ignore };
        }
        match a.client_status {
            ClientStatus::Failed => self.fate_of_failed(group, a),
            ClientStatus::Complete => {
                // The success of a batch allocation stands; a service must not end.
                let stands = self.batch && !outcome::stopped_by_node(a, &a.task_states);
                if stands { Fate::Keep } else { Fate::Ignore }
            }
            ClientStatus::Lost => Fate::Ignore,
            ClientStatus::Pending | ClientStatus::Running | ClientStatus::Unknown => {
                match disconnect::contact(self.state, group, a, self.now, RESCHEDULE_WINDOW) {
                    Contact::Lost => return Fate::Lost,
                    Contact::Away { replace, until } => return Fate::Away { replace, until },
                    // Unknown yet whether it runs: earlier decisions stand.
                    Contact::Returning => return Fate::Returning,
                    Contact::Present => {}
                }
                let draining = self.state.node(a.node_id).is_some_and(|n| n.drain.is_some());
                if a.desired_transition.migrate == Some(true) || (draining && remote::has_remote(a)) {
                    return Fate::Migrate;
                }
                Fate::Keep
            }
        }
    }

    /// The attempts of an allocation, including its present replacement.
    fn attempted(&self, group: &TaskGroup, a: &Allocation, delay: GoDuration) -> Box<RescheduleTracker> {
        let mut tracker = a.reschedule_tracker.clone().unwrap_or_default();
        tracker.events.push(RescheduleEvent { time: self.now, prev_alloc_id: a.id, prev_node_id: a.node_id, delay });
        // Unlimited policies would grow the list without bound; older attempts do not affect the next pause.
        let surplus = tracker.events.len().saturating_sub(self.tracked_events(group));
        tracker.events.drain(..surplus);
        "ok".clone_into(&mut tracker.last_reschedule);
        tracker
    }

    /// The replacement of an allocation that leaves its node. A person may let that count as a reschedule attempt,
    /// elsewhere.
    fn moving(&self, group: &TaskGroup, a: Arc<Allocation>) -> Request {
        let stop = Some(stop(&a, why::MIGRATING, None));
        let mut request = Request { stop, release_anyway: remote::only_remote(&a), ..Request::replacing(a.clone()) };
        if a.desired_transition.reschedule == Some(true) {
            let tracker = self.attempted(group, &a, GoDuration::ZERO);
            request.penalty = tracker.events.iter().map(|e| e.prev_node_id).collect();
            request.tracker = Some(tracker);
        }
        request
    }

    fn fate_of_failed(&self, group: &TaskGroup, a: &Allocation) -> Fate {
        if !a.next_allocation.is_nil() {
            return Fate::Ignore;
        }
        let t = &a.desired_transition;
        let at = failed_at(a);
        let tracker = |delay| self.attempted(group, a, delay);
        if t.force_reschedule == Some(true) {
            // Recorded with the policy's pause: the next one grows from it.
            let delay = group
                .reschedule
                .as_ref()
                .map_or(GoDuration::ZERO, |p| reschedule::next_delay(p, a.reschedule_tracker.as_deref(), at));
            return Fate::RescheduleNow(tracker(delay));
        }
        // Within a deployment, the deployment watcher decides on another attempt.
        let within = self.deployment.as_ref().is_some_and(|d| d.status.active() && d.id == a.deployment_id);
        if within && t.reschedule != Some(true) {
            return Fate::Keep;
        }
        match reschedule::next(group.reschedule.as_ref(), a.reschedule_tracker.as_deref(), at) {
            Verdict::Never { .. } => Fate::Keep,
            Verdict::At { time, delay } => {
                if a.followup_eval_id == self.eval.id || time <= self.now.saturating_add(RESCHEDULE_WINDOW) {
                    Fate::RescheduleNow(tracker(delay))
                } else {
                    Fate::RescheduleLater(time)
                }
            }
        }
    }

    /// The attempts for the replacement of a disconnected allocation.
    fn tracked_away(&self, group: &TaskGroup, a: &Allocation) -> Option<Box<RescheduleTracker>> {
        let policy = group.reschedule.as_ref()?;
        let delay = reschedule::next_delay(policy, a.reschedule_tracker.as_deref(), self.now);
        Some(self.attempted(group, a, delay))
    }

    fn tracked_events(&self, group: &TaskGroup) -> usize {
        let p = group.reschedule.clone().unwrap_or_else(Reschedule::defaults);
        if p.unlimited() { 5 } else { usize::try_from(p.attempts()).unwrap_or(0).max(5) }
    }

    /// Sorts the allocations of a group by their fate.
    fn sort(
        &mut self,
        group: &TaskGroup,
        allocs: Vec<Arc<Allocation>>,
        counts: &mut DesiredUpdates,
        ids: &mut Ids,
    ) -> Sorted {
        let mut s = Sorted::default();
        if allocs.iter().any(|a| a.was_unknown()) {
            for a in &allocs {
                s.names.entry(a.index()).or_default().push(a.clone());
            }
        }
        for a in allocs {
            match self.fate(group, &a) {
                Fate::Away { replace, until } => {
                    self.note_unknown(&a, until, counts, ids);
                    if replace { s.away.push(a) } else { s.keep.push(a) }
                }
                Fate::Returning => {
                    let replaced = s.successors(&a).any(|r| !r.terminal());
                    if replaced { s.away.push(a) } else { s.keep.push(a) }
                }
                Fate::Ignore => {
                    // An allocation told to stop on a lost node will never report its end.
                    if a.server_terminal() && !a.client_terminal() && node_lost(self.state, a.node_id) {
                        self.out.stops.push(stop(&a, why::LOST, Some(ClientStatus::Lost)));
                    }
                    let of_this_job = a.job.as_ref().is_some_and(|j| j.create_index == self.job.create_index);
                    let lost = a.client_status == ClientStatus::Lost;
                    let cut_short = lost
                        || a.client_status == ClientStatus::Complete && outcome::stopped_by_node(&a, &a.task_states);
                    if of_this_job && cut_short && a.next_allocation.is_nil() {
                        if is_canary(&a) {
                            s.lost_canaries.push(a);
                        } else {
                            if lost && self.is_stopping(&a) {
                                s.stopping.insert(a.index());
                            }
                            s.unreplaced.insert(a.index(), a);
                        }
                    }
                }
                Fate::Keep => s.keep.push(a),
                Fate::Lost => s.lost.push(a),
                Fate::Migrate => s.migrate.push(a),
                Fate::RescheduleNow(t) => s.now.push((a, t)),
                Fate::RescheduleLater(at) => {
                    s.later.push((a.clone(), at));
                    s.keep.push(a);
                }
            }
        }
        self.stop_lost(group, &mut s, ids);
        s
    }

    /// The missing allocations: rescheduled, lost, and new ones up to the count. Also the number above the job's limit.
    fn missing(&mut self, group: &TaskGroup, s: &mut Sorted, counts: &mut DesiredUpdates) -> (Vec<Request>, usize) {
        let count = group.count() as usize;
        let mut taken: BTreeSet<u32> =
            s.keep.iter().chain(&s.migrate).chain(s.now.iter().map(|(a, _)| a)).map(|a| a.index()).collect();
        let existing = s.keep.len() + s.migrate.len() + s.now.len();
        let mut place = Vec::new();
        for (a, tracker) in s.now.drain(..) {
            let stop = Some(stop(&a, why::RESCHEDULED, None));
            let penalty = tracker.events.iter().map(|e| e.prev_node_id).collect();
            place.push(Request { stop, penalty, tracker: Some(tracker), ..Request::replacing(a) });
            counts.reschedule_now += 1;
        }
        s.stopping.retain(|i| *i < group.count() && !taken.contains(i));
        taken.extend(&s.stopping);
        taken.extend(&s.reserved);
        let count = count.saturating_sub(s.stopping.len());
        let away: BTreeSet<AllocId> = s.away.iter().map(|a| a.id).collect();
        s.lost.append(&mut s.away);
        // A lost allocation may share its name with a live one; then the name is not free.
        s.lost.retain(|a| !taken.contains(&a.index()));
        s.lost.sort_by_key(|a| (a.index(), a.id));
        let replaced = count.saturating_sub(existing).min(s.lost.len());
        for a in s.lost.drain(replaced..).filter(|a| away.contains(&a.id)) {
            // Nobody wants its name any more: if it comes back, it must stop.
            self.out.stops.push(stop(&a, why::NOT_NEEDED, None));
            counts.stop += 1;
        }
        for a in s.lost.drain(..) {
            if taken.insert(a.index()) {
                let tracker = away.contains(&a.id).then(|| self.tracked_away(group, &a)).flatten();
                let request = Request::replacing(a);
                place.push(Request { tracker: tracker.or(request.tracker.clone()), ..request });
            }
        }
        let had = s.keep.len() + s.migrate.len() + place.len();
        let wanted = count.saturating_sub(had);
        let living = self.living_slots(group);
        self.room = self.room.saturating_sub(had);
        // A live instance gets its manager, however many there are.
        let rest = wanted.min(self.room.max(living.len()));
        self.room = self.room.saturating_sub(rest);
        for index in free_indexes(&taken, &living, rest) {
            let request = s.unreplaced.remove(&index).map_or_else(|| Request::new(index), Request::replacing);
            place.push(Request { living: living.contains(&index), ..request });
        }
        (place, wanted - rest)
    }

    /// Reconciles one group. True when nothing is left to do.
    fn group(&mut self, group: &TaskGroup, allocs: Vec<Arc<Allocation>>, ids: &mut Ids) -> bool {
        let count = group.count() as usize;
        let mut counts = DesiredUpdates::default();
        let current = |j: &Arc<Job>| j.version == self.job.version && j.create_index == self.job.create_index;
        let had_running = allocs.iter().any(|a| a.job.as_ref().is_some_and(current));
        let mut s = self.sort(group, allocs, &mut counts, ids);
        self.settle_returned(group, &mut s, &mut counts);
        let canaries = self.take_canaries(group, &mut s, &mut counts);
        self.drop_ended_surplus(count, &mut s);
        self.stop_surplus(group, &mut s.keep, &mut s.migrate, &mut counts);
        let kept = || s.keep.iter().chain(canaries.kept()).map(|a| a.id).collect();
        let kept: BTreeSet<AllocId> = if s.later.is_empty() { BTreeSet::new() } else { kept() };
        s.later.retain(|(a, _)| kept.contains(&a.id));
        // Requests outside the deployment do not delay its end.
        let under_way = self.active_deployment(&group.name).map_or(DeploymentId::NIL, |d| d.id);
        let later_here = s.later.iter().filter(|(a, _)| under_way.is_nil() || a.deployment_id == under_way).count();
        self.follow_up(std::mem::take(&mut s.later), &mut counts, ids);

        let (place, mut beyond) = self.missing(group, &mut s, &mut counts);
        let (destructive, in_place) = self.updates(group, &s.keep, &mut counts);
        // Failed in an older version with the same specification: its policy decides when this version replaces it.
        let replaced: BTreeSet<AllocId> = destructive.iter().map(|a| a.id).collect();
        let of = self.active_deployment(&group.name).map_or(DeploymentId::NIL, |d| d.id);
        let waits = |a: &&Arc<Allocation>| {
            a.client_terminal() && (of.is_nil() || a.deployment_id != of) && !replaced.contains(&a.id)
        };
        let waiting = s.keep.iter().filter(waits).count();
        let (replacing, updating) = (!destructive.is_empty(), !in_place.is_empty());
        self.make_deployment(group, (replacing, updating), count.saturating_sub(waiting), had_running, ids);
        let tries = self.canaries_wanted(group);
        let left = place.len() + beyond + destructive.len() + s.migrate.len() + in_place.len();
        let mut limit = self.limit(group, &s.keep, destructive.len());
        let mut requests = place;
        if self.deployment.as_ref().is_none_or(|d| d.status == DeploymentStatus::Running) {
            if self.rolling(group).is_some() {
                // Other new placements, and in-place updates of the roll-out, are not known to be healthy yet either.
                limit = limit.saturating_sub(requests.len() + in_place.len());
            }
        } else {
            // A halted roll-out goes no further. But lost or failed allocations outside of it come back, and live
            // remote instances get a manager.
            let id = self.deployment.as_ref().map_or(DeploymentId::NIL, |d| d.id);
            let paused = self.deployment.as_ref().is_some_and(|d| d.status == DeploymentStatus::Paused);
            requests.retain(|r| {
                r.living || r.previous.as_ref().is_some_and(|p| paused || r.stop.is_none() || p.deployment_id != id)
            });
            (limit, beyond) = (0, 0);
        }
        if tries.is_some() {
            // Before promotion, the new version has its canaries only.
            requests.retain(|r| r.living || r.previous.is_some());
            (limit, beyond) = (0, 0);
        }
        counts.place += ((requests.len() + beyond) as u64).saturating_sub(counts.reschedule_now);
        counts.ignore += destructive.len().saturating_sub(limit) as u64;
        for a in destructive.iter().take(limit).cloned() {
            counts.destructive_update += 1;
            let stop = Some(stop(&a, why::UPDATED, None));
            // A new version begins without recorded failures.
            requests.push(Request { stop, tracker: None, ..Request::replacing(a) });
        }
        for a in std::mem::take(&mut s.migrate) {
            counts.migrate += 1;
            requests.push(self.moving(group, a));
        }
        let deployment = self.active_deployment(&group.name).map_or(DeploymentId::NIL, |d| d.id);
        if let Some(wanted) = tries {
            self.place_as_they_were(group, requests);
            requests = self.canary_requests(group, &s, &destructive, canaries, wanted.min(self.room), &mut counts);
        }
        self.out.in_place.extend(in_place);
        self.out.annotations.insert(group.name.clone(), counts);
        if !requests.is_empty() || beyond > 0 {
            self.out.groups.push(GroupRequests { group: group.name.clone(), requests, beyond, deployment, job: None });
        }
        // The deployment's counters include healthy ones that have gone since; only present ones count here.
        let healthy =
            |a: &Allocation| a.deployment_id == deployment && a.healthy() == Some(true) && !a.client_terminal();
        let settled =
            deployment.is_nil() || s.keep.iter().filter(|a| healthy(a)).count() >= count.saturating_sub(waiting);
        tries.is_none() && left == 0 && later_here == 0 && settled
    }

    /// A follow-up evaluation at that time. Those due at nearly the same time for the same reason share it.
    fn follow_up_at(&mut self, at: TimestampNs, trigger: Trigger, description: &str, ids: &mut Ids) -> EvalId {
        let shares =
            |e: &&Evaluation| e.trigger == trigger && e.wait_until <= at && at - e.wait_until < RESCHEDULE_WINDOW;
        if let Some(e) = self.out.followups.last().filter(shares) {
            return e.id;
        }
        let id = EvalId(ids.uuid());
        self.out.followups.push(Evaluation {
            id,
            namespace: self.eval.namespace.clone(),
            priority: self.eval.priority,
            kind: self.job.kind.clone(),
            trigger,
            job_id: self.eval.job_id.clone(),
            job_modify_index: self.job.modify_index,
            status: EvalStatus::Pending,
            status_description: description.to_owned(),
            wait_until: at,
            previous_eval: self.eval.id,
            ..Evaluation::default()
        });
        id
    }

    /// Follow-up evaluations for failed allocations that become due.
    fn follow_up(
        &mut self,
        mut later: Vec<(Arc<Allocation>, TimestampNs)>,
        counts: &mut DesiredUpdates,
        ids: &mut Ids,
    ) {
        later.sort_by_key(|(a, at)| (*at, a.id));
        counts.reschedule_later += later.len() as u64;
        let mut open: Option<(TimestampNs, EvalId)> = None;
        for (a, at) in later {
            // Another reason to look again, or a later time, is none of this failure: the end of a wait for its node.
            let own = |e: &Evaluation| e.trigger == Trigger::AllocFailure && e.wait_until <= at;
            let waits = |e: &Evaluation| e.status == EvalStatus::Pending && own(e);
            if self.state.eval(a.followup_eval_id).is_some_and(|e| waits(e)) {
                continue;
            }
            let id = match open {
                Some((from, id)) if at - from <= FOLLOWUP_WINDOW => id,
                _ => {
                    // It runs when the first of them is due; it also covers those due a little later.
                    let id = self.follow_up_at(at, Trigger::AllocFailure, "created for delayed rescheduling", ids);
                    open = Some((at, id));
                    id
                }
            };
            let mut a = Allocation::clone(&a);
            a.followup_eval_id = id;
            self.out.attribute_updates.push(a);
        }
    }

    /// Ended allocations make room first: successes silently, failures with a stop, so that no reschedule follows.
    fn drop_ended_surplus(&mut self, count: usize, s: &mut Sorted) {
        let Sorted { keep, now, migrate, .. } = s;
        let surplus = (keep.len() + now.len() + migrate.len()).saturating_sub(count);
        let mut ended: Vec<_> =
            keep.iter().filter(|a| a.terminal()).chain(now.iter().map(|(a, _)| a)).cloned().collect();
        ended.sort_by_key(|a| (std::cmp::Reverse(a.index()), a.id));
        ended.truncate(surplus);
        let gone: BTreeSet<AllocId> = ended.iter().map(|a| a.id).collect();
        if gone.is_empty() {
            return;
        }
        for a in ended {
            if a.client_status == ClientStatus::Failed && !a.server_terminal() {
                self.out.stops.push(stop(&a, why::NOT_NEEDED, None));
            }
        }
        keep.retain(|a| !gone.contains(&a.id));
        now.retain(|(a, _)| !gone.contains(&a.id));
    }

    /// Stops allocations above the count: first those that would have to move anyway, then duplicate names, then the
    /// highest indexes.
    ///
    /// A live instance without a manager counts as well: its slot is not given up for one beyond the count.
    fn stop_surplus(
        &mut self,
        group: &TaskGroup,
        keep: &mut Vec<Arc<Allocation>>,
        migrate: &mut Vec<Arc<Allocation>>,
        counts: &mut DesiredUpdates,
    ) {
        let count = group.count() as usize;
        let live: Vec<u32> = keep.iter().filter(|a| !a.terminal()).chain(&*migrate).map(|a| a.index()).collect();
        let beyond = live.iter().filter(|i| **i >= group.count()).count();
        let unmanaged =
            if beyond == 0 { 0 } else { self.living_slots(group).iter().filter(|i| !live.contains(i)).count() };
        let mut surplus =
            live.len().saturating_sub(count).max((live.len() + unmanaged).saturating_sub(count).min(beyond));
        if surplus == 0 {
            return;
        }
        let mut seen = BTreeSet::new();
        // Promoted canaries replace the earlier allocations, even when that has ended their deployment.
        let promoted = canary::wanted(group) > 0;
        let older = |a: &Allocation| a.job_version < self.job.version;
        let moving = migrate.iter().map(|a| (a.clone(), true));
        let mut all: Vec<_> = keep.iter().filter(|a| !a.terminal()).map(|a| (a.clone(), false)).chain(moving).collect();
        if promoted {
            all.sort_by_key(|(a, _)| older(a));
        }
        let mut order: Vec<_> = all
            .into_iter()
            .map(|(a, moving)| {
                let twice = !seen.insert(a.index());
                (
                    std::cmp::Reverse((
                        moving && a.index() as usize >= count,
                        promoted && older(&a),
                        twice,
                        a.index(),
                        moving,
                    )),
                    a,
                )
            })
            .collect();
        order.sort_by(|(x, a), (y, b)| x.cmp(y).then(a.id.cmp(&b.id)));
        let mut gone: BTreeSet<AllocId> = BTreeSet::new();
        for (_, a) in order {
            if surplus == 0 {
                break;
            }
            surplus -= 1;
            counts.stop += 1;
            gone.insert(a.id);
            self.out.stops.push(stop(&a, why::NOT_NEEDED, None));
        }
        keep.retain(|a| !gone.contains(&a.id));
        migrate.retain(|a| !gone.contains(&a.id));
    }

    /// Slots of remote tasks whose instance lives or may live.
    fn living_slots(&self, group: &TaskGroup) -> BTreeSet<u32> {
        canary::living(self.state, self.job, group)
    }

    /// The kept ones that the newest version replaces, and those that it changes in place.
    fn updates(
        &self,
        group: &TaskGroup,
        keep: &[Arc<Allocation>],
        counts: &mut DesiredUpdates,
    ) -> (Vec<Arc<Allocation>>, Vec<Allocation>) {
        let (mut destructive, mut in_place) = (Vec::new(), Vec::new());
        let mut verdicts: BTreeMap<(u64, u64), bool> = BTreeMap::new();
        let mut rules = None;
        for a in keep {
            let Some(old) = a.job.as_ref() else {
                counts.ignore += 1;
                continue;
            };
            if old.create_index == self.job.create_index && old.version == self.job.version {
                counts.ignore += 1;
                continue;
            }
            let differs = *verdicts
                .entry((old.create_index, old.version))
                .or_insert_with(|| model::tasks_updated(old, self.job, &group.name).is_some());
            // A disconnected allocation cannot follow an update.
            if (a.terminal() && (self.batch || !differs)) || a.client_status == ClientStatus::Unknown {
                counts.ignore += 1;
                continue;
            }
            let rules = rules.get_or_insert_with(|| feasible::GroupRules::new(self.state, self.job, group));
            let fits = !differs && self.state.node(a.node_id).is_some_and(|n| rules.still_meets(n));
            if fits {
                counts.in_place_update += 1;
                let mut a = Allocation::clone(a);
                a.job = Some(self.job.clone());
                a.job_version = self.job.version;
                a.eval_id = self.eval.id;
                if let Some(d) = self.active_deployment(&group.name)
                    && a.deployment_id != d.id
                {
                    a.deployment_id = d.id;
                    a.deployment_status = None;
                }
                in_place.push(a);
            } else {
                destructive.push(a.clone());
            }
        }
        destructive.sort_by_key(|a| (a.index(), a.id));
        (destructive, in_place)
    }
}

/// The lowest free indexes, but first those of slots with a live instance, which wait for a manager.
fn free_indexes(taken: &BTreeSet<u32>, living: &BTreeSet<u32>, n: usize) -> Vec<u32> {
    let waiting = living.iter().copied().filter(|i| !taken.contains(i));
    let others = (0..u32::MAX).filter(|i| !taken.contains(i) && !living.contains(i));
    waiting.chain(others).take(n).collect()
}
