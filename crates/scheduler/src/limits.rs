//! Limits of a namespace: what its jobs may use together.
//!
//! What is in use counts the allocations that are to run. A plan never takes it beyond a limit. Where it is beyond one
//! already, because somebody has lowered the limit, a plan may replace and stop, but not take more.

use std::collections::BTreeMap;

use model::{
    Job,
    alloc::Allocation,
    ids::{Namespace, NodeId},
    job::job_type,
    plan::Plan,
    records::{NamespaceLimits, NamespaceUse},
    resources::AllocatedResources,
};
use state::{NamespaceRecord, State};

/// What is left of the limits of a namespace, as a plan under way would leave it.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    namespace: Namespace,
    limits: NamespaceLimits,
    /// In use before the plan.
    before: NamespaceUse,
    now: NamespaceUse,
}

impl Room {
    /// None = the namespace has no limits.
    pub(crate) fn of(state: &State, namespace: &Namespace) -> Option<Self> {
        let limits = *state.namespace_limits(namespace)?;
        let before = state.namespace_use(namespace);
        Some(Self { namespace: namespace.clone(), limits, before, now: before })
    }

    /// An allocation of the state goes.
    pub(crate) fn release(&mut self, alloc: &Allocation) {
        if !alloc.terminal() && alloc.namespace == self.namespace {
            self.now = self.now.plus(&NamespaceUse::of(&alloc.resources), -1);
        }
    }

    /// An allocation comes.
    pub(crate) fn take(&mut self, resources: &AllocatedResources) {
        self.now = self.now.plus(&NamespaceUse::of(resources), 1);
    }

    /// Whether there is room for that much.
    ///
    /// # Errors
    /// Which limit leaves none, with the numbers.
    pub(crate) fn fits(&self, ask: &NamespaceUse) -> Result<(), String> {
        let after = self.now.plus(ask, 1);
        for ((what, unit, limit, (before, now)), (.., (ask, after))) in
            self.limits.each(&self.before, &self.now).zip(self.limits.each(ask, &after))
        {
            if ask > 0 && after > limit.max(before) {
                return Err(format!(
                    "{what} of namespace {}: {now} of {limit}{unit} in use, {ask} more asked for",
                    self.namespace
                ));
            }
        }
        Ok(())
    }
}

/// Whether the namespace of a plan has limits.
pub(crate) fn concern(state: &State, plan: &Plan) -> bool {
    let first = plan.placements.values().flatten().next();
    first.is_some_and(|alloc| state.namespace_limits(&alloc.namespace).is_some())
}

/// The nodes of a plan with placements that the limits of its namespace leave no room for, and why.
pub(crate) fn refusals(state: &State, plan: &Plan) -> BTreeMap<NodeId, String> {
    let mut refused = BTreeMap::new();
    let first = plan.placements.values().flatten().next();
    let Some(mut room) = first.and_then(|alloc| Room::of(state, &alloc.namespace)) else { return refused };
    for stop in plan.stops.iter().filter_map(|stop| state.alloc(stop.id)) {
        room.release(stop);
    }
    // What is updated in place keeps its room, and is counted before what is new.
    for (new, old) in plan.placements.values().flatten().filter_map(|a| Some((a, state.alloc(a.id)?))) {
        room.release(old);
        if !new.terminal() {
            room.take(&new.resources);
        }
    }
    for (node, allocs) in &plan.placements {
        let mut with = room.clone();
        let mut take = |new: &Allocation| {
            // An instance that is adopted runs already.
            if new.remote.is_empty() {
                with.fits(&NamespaceUse::of(&new.resources))?;
            }
            with.take(&new.resources);
            Ok(())
        };
        let mut fresh = allocs.iter().filter(|a| !a.terminal() && state.alloc(a.id).is_none());
        match fresh.try_for_each(&mut take) {
            Ok(()) => room = with,
            Err(why) => drop(refused.insert(*node, why)),
        }
    }
    refused
}

/// Why a job can never run whole within the limits of its namespace, with the numbers. Empty = it may. Allocations of
/// batch and system jobs run one after the other if need be, so that each must fit alone; all of a service must fit
/// together. `remote` says which drivers run tasks elsewhere.
#[must_use]
pub fn never_fits(namespace: &NamespaceRecord, job: &Job, remote: impl Fn(&str) -> bool) -> Vec<String> {
    let Some(limits) = &namespace.limits else { return Vec::new() };
    let mut total = NamespaceUse::default();
    let mut found = Vec::new();
    let mut compare = |whose: &str, ask: &NamespaceUse| {
        for (what, unit, limit, (ask, _)) in limits.each(ask, ask) {
            if ask > limit {
                found.push(format!(
                    "{whose} {ask}{unit} of {what}, and namespace {:?} is limited to {limit}{unit}",
                    namespace.name.as_str()
                ));
            }
        }
    };
    for group in &job.task_groups {
        let mut one = NamespaceUse { allocations: 1, ..NamespaceUse::default() };
        for task in &group.tasks {
            let resources = &task.resources;
            // How many MHz cores are depends on the node.
            let cpu = if resources.cores.unwrap_or(0) > 0 { 0 } else { resources.cpu.unwrap_or(0) };
            one.cpu = one.cpu.saturating_add(cpu);
            one.memory_mb = one.memory_mb.saturating_add(resources.memory_mb.unwrap_or(0));
            one.remote_tasks += i64::from(remote(&task.driver));
        }
        let count = i64::from(group.count());
        total = total.plus(&one, count);
        if &*job.kind != job_type::SERVICE && (count > 0 || job_type::everywhere(&job.kind)) {
            compare(&format!("an allocation of group {:?} asks for", &*group.name), &one);
        }
    }
    if &*job.kind == job_type::SERVICE {
        compare("it asks for", &total);
    }
    found
}
