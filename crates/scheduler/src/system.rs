//! System jobs: one allocation on every feasible node, or one per provider pool for remote tasks.
//!
//! Nodes outside the job's scope or constraints are skipped silently. The reasons name nodes that are feasible but lack
//! room. Allocations of a lost node are not placed elsewhere; a slot of remote tasks is handed over like every slot.
//!
//! A sysbatch job is the same with an end. Where an allocation of the newest version has ended by itself, well or
//! badly, nothing more is to do. One that was stopped, moved or lost has not ended by itself, and runs again where
//! there is a place for it.
//!
//! A new version of a system job is rolled out by a deployment ([`rollout`]).

mod rollout;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    alloc::{Allocation, ClientStatus},
    deployment::Deployment,
    eval::{EvalStatus, Evaluation, Trigger},
    ids::{EvalId, NodeId, TimestampNs},
    job::{Job, TaskGroup, job_type},
    node::{Node, NodeStatus},
    plan::DesiredUpdates,
};
use state::State;

use crate::{
    canary,
    deployment::find_deployment,
    disconnect::{self, Contact},
    feasible::GroupRules,
    ids::Ids,
    outcome,
    reconcile::{Request, Wanted, by_group, node_lost, stop, stop_allocs, stop_job, why},
    remote,
};

/// The place of one allocation of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Node(NodeId),
    /// The providers of its tasks.
    Pool(Vec<String>),
}

/// The group's place on that node; `None` if some of its tasks would be local there and others remote.
fn place_of(node: &Node, group: &TaskGroup) -> Option<Place> {
    let provider = |t: &model::Task| node.drivers.get(&t.driver)?.remote.as_ref().map(|r| r.provider.clone());
    let providers: Vec<String> = group.tasks.iter().filter_map(provider).collect();
    if providers.is_empty() {
        Some(Place::Node(node.id))
    } else {
        (providers.len() == group.tasks.len()).then_some(Place::Pool(providers))
    }
}

/// Groups of a system job that fit nowhere: some of their tasks are local on a node and others remote.
pub fn mixed_groups<'a>(state: &'a State, job: &'a Job) -> impl Iterator<Item = &'a TaskGroup> {
    // Most groups have no remote driver, and there are thousands of nodes.
    let far = |group: &TaskGroup| group.tasks.iter().any(|t| state.fleet().runtimes(&t.driver).next().is_some());
    let mixed =
        move |group: &TaskGroup| state.nodes().any(|n| n.status == NodeStatus::Ready && place_of(n, group).is_none());
    job.task_groups.iter().filter(move |group| far(group) && mixed(group))
}

/// What a group asks for, before the deployment has its say.
#[derive(Default)]
struct Step {
    /// Allocations that have to leave their node.
    moving: Vec<Request>,
    /// Places without an allocation.
    missing: Vec<Request>,
    /// Allocations that the newest version replaces.
    outdated: Vec<Request>,
}

struct System<'a> {
    state: &'a State,
    job: &'a Arc<Job>,
    eval: &'a Evaluation,
    now: TimestampNs,
    out: Wanted,
    /// The deployment of this version, unless it has ended well.
    deployment: Option<Arc<Deployment>>,
    /// The new deployment of this version.
    new_deployment: Option<Deployment>,
    /// How many allocations a group of the deployment has at success, where that has changed.
    totals: BTreeMap<Arc<str>, i32>,
}

/// Compares a system job with its allocations.
pub(crate) fn reconcile(
    state: &State,
    job: Option<&Arc<Job>>,
    eval: &Evaluation,
    now: TimestampNs,
    ids: &mut Ids,
) -> Wanted {
    let key = eval.job_key();
    let allocs: Vec<Arc<Allocation>> = state.allocs_by_job(&key).cloned().collect();
    let Some(job) = job.filter(|j| !j.stop) else {
        return stop_job(state, &key, &allocs);
    };
    let mut by_group = by_group(allocs);
    let mut s = System {
        state,
        job,
        eval,
        now,
        out: Wanted::default(),
        deployment: None,
        new_deployment: None,
        totals: BTreeMap::new(),
    };
    (s.deployment, s.out.deployment_updates) = find_deployment(state, job);
    for group in &job.task_groups {
        let allocs = by_group.remove(&group.name).unwrap_or_default();
        if group.count() == 0 {
            by_group.insert(group.name.clone(), allocs);
        } else {
            s.group(group, allocs, ids);
        }
    }
    for (group, allocs) in by_group {
        let mut counts = DesiredUpdates::default();
        stop_allocs(state, &allocs, &mut s.out.stops, &mut counts);
        if counts.stop > 0 {
            s.out.annotations.insert(group, counts);
        }
    }
    s.finish_deployment();
    s.out
}

impl System<'_> {
    fn group(&mut self, group: &TaskGroup, allocs: Vec<Arc<Allocation>>, ids: &mut Ids) {
        let mut counts = DesiredUpdates::default();
        let rules = GroupRules::new(self.state, self.job, group);
        let mut places: BTreeMap<Place, BTreeSet<NodeId>> = BTreeMap::new();
        // Where one is, its devices are given already.
        let there: BTreeSet<NodeId> = allocs.iter().filter(|a| !a.terminal()).map(|a| a.node_id).collect();
        let meets = |n: &Node| if there.contains(&n.id) { rules.still_meets(n) } else { rules.node_meets(n).is_ok() };
        for node in self.state.nodes().filter(|n| n.ready() && meets(n)) {
            if let Some(place) = place_of(node, group) {
                places.entry(place).or_default().insert(node.id);
            }
        }
        let mut live = self.live(group, &allocs, &mut counts, ids);
        if places.is_empty() && live.is_empty() && self.state.nodes().any(|n| n.ready()) {
            self.out.nowhere.push(group.name.clone());
        }
        let mut step = Step::default();
        let mut taken: BTreeSet<u32> = live.values().flatten().map(|a| a.index()).collect();
        for (place, nodes) in &places {
            let among = Arc::new(nodes.clone());
            let here = live.remove(place).unwrap_or_default();
            let Some((first, more)) = here.split_first() else {
                if self.has_run(place, nodes, group, &allocs) {
                    counts.ignore += 1;
                    continue;
                }
                step.missing.push(self.missing(group, place, among, &allocs, &mut taken));
                continue;
            };
            for a in more {
                self.out.stops.push(stop(a, why::NOT_NEEDED, None));
                counts.stop += 1;
            }
            self.existing(group, &rules, first, among, &mut step, &mut counts);
        }
        // Without new placements, present allocations stay; those that must leave still leave.
        for a in live.into_values().flatten() {
            if a.desired_transition.migrate == Some(true) || self.leaves(&a) {
                self.let_go(&a, &mut counts);
            } else if self.state.node(a.node_id).is_some_and(|n| n.ready()) && a.job_version != self.job.version {
                // The newest version does not want it there.
                self.out.stops.push(stop(&a, why::NOT_NEEDED, None));
                counts.stop += 1;
            } else {
                counts.ignore += 1;
            }
        }
        self.roll(group, step, &allocs, &mut counts, ids);
        self.out.annotations.insert(group.name.clone(), counts);
    }

    /// Live allocations by place; the first of each is to stay.
    fn live(
        &mut self,
        group: &TaskGroup,
        allocs: &[Arc<Allocation>],
        counts: &mut DesiredUpdates,
        ids: &mut Ids,
    ) -> BTreeMap<Place, Vec<Arc<Allocation>>> {
        let mut live: BTreeMap<Place, Vec<Arc<Allocation>>> = BTreeMap::new();
        for a in allocs.iter().filter(|a| !a.client_terminal()) {
            if self.is_lost(group, a, counts, ids) {
                counts.stop += u64::from(!a.server_terminal());
                self.out.stops.push(stop(a, why::LOST, Some(ClientStatus::Lost)));
                continue;
            }
            let place = self.state.node(a.node_id).and_then(|n| place_of(n, group)).unwrap_or(Place::Node(a.node_id));
            if !a.server_terminal() {
                live.entry(place).or_default().push(a.clone());
            }
        }
        for list in live.values_mut() {
            list.sort_by_key(|a| (self.leaves(a), a.index(), a.id));
        }
        live
    }

    /// Whether its node is gone. A disconnected one loses nothing that could run elsewhere, except the management of
    /// remote tasks. If the job sets a wait, the allocation is marked as unknown meanwhile.
    fn is_lost(&mut self, group: &TaskGroup, a: &Arc<Allocation>, counts: &mut DesiredUpdates, ids: &mut Ids) -> bool {
        let cut_off = self.state.node(a.node_id).is_some_and(|n| n.status == NodeStatus::Disconnected);
        if !cut_off || remote::has_remote(a) || a.server_terminal() {
            return node_lost(self.state, a.node_id);
        }
        let until = match disconnect::contact(self.state, group, a, self.now, 0) {
            Contact::Away { until, .. } => until,
            // The wait is over, or the job does not wait any more.
            Contact::Lost => return a.client_status == ClientStatus::Unknown,
            Contact::Present | Contact::Returning => return false,
        };
        if a.client_status != ClientStatus::Unknown {
            counts.disconnect += 1;
            let mut a = Allocation::clone(a);
            a.client_status = ClientStatus::Unknown;
            a.client_description = why::UNKNOWN.into();
            if let Some(until) = until {
                a.followup_eval_id =
                    self.look_again(until, Trigger::MaxDisconnectTimeout, "created to give up what stays cut off", ids);
            }
            self.out.attribute_updates.push(a);
        }
        false
    }

    /// A follow-up evaluation at that time.
    fn look_again(&mut self, at: TimestampNs, trigger: Trigger, description: &str, ids: &mut Ids) -> EvalId {
        if let Some(e) = self.out.followups.iter().find(|e| e.trigger == trigger && e.wait_until == at) {
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

    /// Whether an allocation of a sysbatch job has ended there.
    fn has_run(&self, place: &Place, nodes: &BTreeSet<NodeId>, group: &TaskGroup, allocs: &[Arc<Allocation>]) -> bool {
        // The provider's former manager may be gone, and with it the knowledge which provider it was: better none there
        // than two.
        let there = |a: &Allocation| match self.state.node(a.node_id) {
            Some(node) => nodes.contains(&a.node_id) || place_of(node, group).as_ref() == Some(place),
            None => matches!(place, Place::Pool(_)),
        };
        self.job.kind == job_type::SYSBATCH && allocs.iter().any(|a| there(a) && self.has_ended(a))
    }

    /// Whether it belongs to a former version, or to a former job of that name.
    fn is_older(&self, a: &Allocation) -> bool {
        a.job_version != self.job.version || a.job.as_ref().is_some_and(|j| j.create_index != self.job.create_index)
    }

    /// Whether it has ended by itself, under the newest version, and nobody has asked for another try.
    fn has_ended(&self, a: &Allocation) -> bool {
        if self.is_older(a) {
            return false;
        }
        let force = a.desired_transition.force_reschedule == Some(true);
        match a.client_status {
            // Otherwise a stopped one looks like a good end.
            ClientStatus::Complete if !a.server_terminal() => !outcome::stopped_by_node(a, &a.task_states),
            ClientStatus::Complete => outcome::done(self.state, a) && !outcome::was_killed(a),
            ClientStatus::Failed => !a.server_terminal() && !force,
            ClientStatus::Pending | ClientStatus::Running | ClientStatus::Lost | ClientStatus::Unknown => false,
        }
    }

    /// Whether its node drains: a slot of remote tasks moves at once.
    fn leaves(&self, a: &Allocation) -> bool {
        let draining = self.state.node(a.node_id).is_some_and(|n| n.drain.is_some());
        draining && (a.desired_transition.migrate == Some(true) || remote::has_remote(a))
    }

    /// Lets it go without a successor: local tasks end, remote ones continue.
    fn let_go(&mut self, a: &Allocation, counts: &mut DesiredUpdates) {
        let why = if remote::only_remote(a) { why::UNMANAGED } else { why::TAINTED };
        self.out.stops.push(stop(a, why, None));
        counts.stop += 1;
    }

    fn differs(&self, group: &TaskGroup, a: &Allocation) -> bool {
        let older = |old: &Arc<Job>| old.create_index != self.job.create_index || old.version != self.job.version;
        a.job
            .as_ref()
            .filter(|old| older(old))
            .is_some_and(|old| model::tasks_updated(old, self.job, &group.name).is_some())
    }

    /// Continues it under the newest version.
    fn follow(&mut self, a: &Arc<Allocation>, counts: &mut DesiredUpdates) {
        if !self.is_older(a) {
            counts.ignore += 1;
            return;
        }
        let mut a = Allocation::clone(a);
        a.job = Some(self.job.clone());
        a.job_version = self.job.version;
        a.eval_id = self.eval.id;
        if let Some(d) = self.active_deployment(&a.task_group)
            && a.deployment_id != d.id
        {
            (a.deployment_id, a.deployment_status) = (d.id, None);
        }
        counts.in_place_update += 1;
        self.out.in_place.push(a);
    }

    fn existing(
        &mut self,
        group: &TaskGroup,
        rules: &GroupRules,
        a: &Arc<Allocation>,
        among: Arc<BTreeSet<NodeId>>,
        step: &mut Step,
        counts: &mut DesiredUpdates,
    ) {
        let replacing = |why, release_anyway| Request {
            stop: Some(stop(a, why, None)),
            release_anyway,
            tracker: None,
            penalty: Vec::new(),
            among: Some(among.clone()),
            ..Request::replacing(a.clone())
        };
        if self.leaves(a) || a.desired_transition.migrate == Some(true) {
            counts.migrate += 1;
            step.moving.push(replacing(why::MIGRATING, remote::only_remote(a)));
            return;
        }
        let fits = self.state.node(a.node_id).is_some_and(|n| rules.still_meets(n));
        let older = a.job_version != self.job.version;
        if !self.differs(group, a) && (fits || !older) {
            self.follow(a, counts);
            return;
        }
        step.outdated.push(replacing(why::UPDATED, false));
    }

    /// Placements for empty places.
    fn missing(
        &self,
        group: &TaskGroup,
        place: &Place,
        among: Arc<BTreeSet<NodeId>>,
        allocs: &[Arc<Allocation>],
        taken: &mut BTreeSet<u32>,
    ) -> Request {
        let ended = |index: Option<u32>| {
            // A lost one that was stopped may run still, and its returned node have said so.
            let over = |a: &Allocation| a.client_terminal() || index.is_none() && a.server_terminal();
            let of = |a: &&Arc<Allocation>| over(a) && a.next_allocation.is_nil();
            let here = |a: &&Arc<Allocation>| index.map_or_else(|| among.contains(&a.node_id), |i| a.index() == i);
            allocs.iter().filter(|a| of(a) && here(a)).max_by_key(|a| (a.create_index, a.id)).cloned()
        };
        let (index, previous, living) = match place {
            Place::Node(_) => (0, ended(None), false),
            Place::Pool(providers) => {
                let slots = canary::living(self.state, self.job, group);
                let mut records =
                    self.state.remote_tasks_by_job(&self.job.key()).filter(|r| r.slot.group == group.name);
                let bound = records.find(|r| {
                    slots.contains(&r.slot.index)
                        && !taken.contains(&r.slot.index)
                        && providers.iter().any(|p| *p == r.provider)
                });
                let reserved = self.state.remote_tasks_by_job(&self.job.key()).filter(|r| r.slot.group == group.name);
                let reserved: BTreeSet<u32> = reserved.map(|r| r.slot.index).collect();
                let free = || (0..u32::MAX).find(|i| !taken.contains(i) && !reserved.contains(i)).unwrap_or(0);
                let index = bound.map_or_else(free, |r| r.slot.index);
                (index, ended(Some(index)), bound.is_some())
            }
        };
        taken.insert(index);
        let wanted = previous.as_ref().filter(|a| !a.server_terminal());
        // The results of a sysbatch job's former version do not count. A failure stays as it is: no reschedule follows.
        let older = wanted.filter(|a| self.job.kind == job_type::SYSBATCH && self.is_older(a));
        let stop = older.map(|a| stop(a, why::UPDATED, None));
        let request = previous.clone().map_or_else(
            || Request::new(index),
            |p| Request { tracker: None, penalty: Vec::new(), ..Request::replacing(p) },
        );
        Request { index, stop, living, among: Some(among), ..request }
    }
}
