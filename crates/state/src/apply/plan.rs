//! Committing a plan.

use std::{collections::HashMap, sync::Arc};

use model::{
    alloc::{AllocStateChange, Allocation, ClientStatus, DesiredStatus},
    ids::AllocId,
    job::{Job, TaskGroup},
    metrics::AllocMetric,
    node::NodeStatus,
    plan::{Plan, PlannedStop},
    resources::AllocatedResources,
    volume::host_requests,
};

use super::{Applier, allocs::note_status};
use crate::{applied::Cause, tables::Shared};

/// The values of a placement that others may share.
struct Placed {
    id: AllocId,
    resources: Arc<AllocatedResources>,
    metrics: Option<Arc<AllocMetric>>,
}

/// Which jobs have groups that stay with their volumes: asked of each placement, and looked for once in each job.
#[derive(Default)]
struct StickyJobs(HashMap<usize, bool>);

impl StickyJobs {
    fn has(&mut self, job: Option<&Arc<Job>>) -> bool {
        let Some(job) = job else { return false };
        let sticky = |group: &TaskGroup| host_requests(group).any(|request| request.sticky);
        *self.0.entry(Arc::as_ptr(job).addr()).or_insert_with(|| job.task_groups.iter().any(sticky))
    }
}

impl Applier<'_> {
    pub(super) fn apply_plan(&mut self, plan: Plan) {
        // First, so that placements find their deployment and count there.
        if let Some(d) = &plan.deployment {
            self.planned_deployment(d);
        }
        // One that has ended since the snapshot, by a person's word perhaps, keeps that end.
        for u in &plan.deployment_updates {
            if self.state.deployments.get(&u.id).is_some_and(|d| d.status.active()) {
                self.deployment_status(u);
            }
        }
        // Before the stops: an update is a copy from the planner's snapshot and must not undo a stop.
        for a in plan.attribute_updates {
            self.place(plan.job.as_ref(), a);
        }
        for stop in &plan.stops {
            self.stop_alloc(stop);
        }
        let mut placed = Vec::new();
        let mut sticky = StickyJobs::default();
        for a in plan.placements.into_values().flatten() {
            if sticky.has(a.job.as_ref().or(plan.job.as_ref())) && !self.state.allocs.contains_key(&a.id) {
                self.claim_volumes(&a, plan.job.as_ref());
            }
            placed.push(Placed { id: a.id, resources: a.resources.clone(), metrics: a.metrics.clone() });
            self.place(plan.job.as_ref(), a);
        }
        self.share_values(&placed);
    }

    fn stop_alloc(&mut self, stop: &PlannedStop) {
        let Some(entry) = self.state.allocs.get(&stop.id) else { return };
        // A node's word on an end, since the snapshot, is worth more than the guess that all there is lost. Of remote
        // tasks it says nothing: whoever lets go of them has ended too.
        let local = !entry.alloc.resources.tasks.values().any(|task| task.remote);
        if stop.client_status.is_some() && local && entry.alloc.client_terminal() {
            return;
        }
        let mut alloc = Allocation::clone(&entry.alloc);
        if stop.preempted_by.is_nil() {
            alloc.desired_status = DesiredStatus::Stop;
        } else {
            alloc.desired_status = DesiredStatus::Evict;
            alloc.preemption.get_or_insert_default().preempted_by_allocation = stop.preempted_by;
        }
        alloc.desired_description = stop.description.as_str().into();
        if let Some(status) = stop.client_status {
            alloc.client_status = status;
            alloc.client_description = stop.description.as_str().into();
        }
        if !stop.followup_eval_id.is_nil() {
            alloc.followup_eval_id = stop.followup_eval_id;
        }
        alloc.alloc_modify_index = self.index;
        alloc.modify_time = self.now;
        self.put_alloc(alloc, Cause::PlanResult);
        self.forget_orphan(stop.id);
    }

    /// Writes a new allocation, or the servers' fields of an existing one: the node's reports since the snapshot stay.
    fn place(&mut self, job: Option<&Arc<Job>>, mut alloc: Allocation) {
        if alloc.job.is_none() {
            alloc.job = job.cloned().filter(|j| j.version == alloc.job_version && j.id == alloc.job_id);
        }
        if let Some(now) = self.state.allocs.get(&alloc.id).map(|e| &e.alloc) {
            // The node owns the status, unless it is disconnected and still is.
            let cut_off = self.state.nodes.get(&now.node_id).is_some_and(|n| n.status == NodeStatus::Disconnected);
            alloc.alloc_states.clone_from(&now.alloc_states);
            if alloc.client_status == ClientStatus::Unknown && cut_off && !now.client_terminal() {
                if now.client_status != ClientStatus::Unknown {
                    note_status(&mut alloc, AllocStateChange::UNKNOWN, self.now);
                }
            } else {
                alloc.client_status = now.client_status;
                alloc.client_description.clone_from(&now.client_description);
            }
            alloc.task_states.clone_from(&now.task_states);
            alloc.network_status.clone_from(&now.network_status);
            alloc.next_allocation = now.next_allocation;
            // What was ordered since the snapshot stays ordered: a stop, a displacement, a mark.
            alloc.desired_transition.clone_from(&now.desired_transition);
            if now.server_terminal() {
                alloc.desired_status = now.desired_status;
                alloc.desired_description.clone_from(&now.desired_description);
                alloc.preemption.clone_from(&now.preemption);
            }
            if alloc.deployment_id == now.deployment_id {
                alloc.deployment_status.clone_from(&now.deployment_status);
            }
            if alloc.resources == now.resources {
                alloc.resources = now.resources.clone();
            }
        } else if !alloc.previous_allocation.is_nil()
            && let Some(previous) = self.state.allocs.get(&alloc.previous_allocation)
        {
            let mut previous = Allocation::clone(&previous.alloc);
            previous.next_allocation = alloc.id;
            previous.modify_time = self.now;
            self.put_alloc(previous, Cause::PlanResult);
        }
        alloc.alloc_modify_index = self.index;
        alloc.modify_time = self.now;
        self.put_alloc(alloc, Cause::PlanResult);
    }

    /// Gives values that several placements of the plan share rows of their own, so that 10,000 equal allocations do
    /// not write 10,000 copies.
    fn share_values(&mut self, placed: &[Placed]) {
        let mut users: HashMap<usize, (u32, u64)> = HashMap::new();
        for a in placed {
            users.entry(Arc::as_ptr(&a.resources).addr()).or_default().0 += 1;
            if let Some(m) = &a.metrics {
                users.entry(Arc::as_ptr(m).addr()).or_default().0 += 1;
            }
        }
        for a in placed {
            let mut id_of = |addr: usize, value: Shared, s: &mut Self| match users.get_mut(&addr) {
                Some((n, id)) if *n > 1 => {
                    if *id == 0 {
                        *id = s.share(value);
                    }
                    *id
                }
                _ => 0,
            };
            let Some(entry) = self.state.allocs.get(&a.id).cloned() else { continue };
            let (mut resources, mut metrics) = (entry.resources_ref, entry.metrics_ref);
            if resources == 0 && Arc::ptr_eq(&entry.alloc.resources, &a.resources) {
                resources = id_of(Arc::as_ptr(&a.resources).addr(), Shared::Resources(a.resources.clone()), self);
                self.use_shared(resources);
            }
            if metrics == 0
                && let Some(m) = &a.metrics
            {
                metrics = id_of(Arc::as_ptr(m).addr(), Shared::Metrics(m.clone()), self);
                self.use_shared(metrics);
            }
            if let Some(e) = self.state.allocs.get_mut(&a.id) {
                (e.resources_ref, e.metrics_ref) = (resources, metrics);
            }
        }
    }
}
