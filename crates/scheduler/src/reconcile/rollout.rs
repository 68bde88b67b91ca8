//! Deployments: how a new version replaces the old one, in steps or behind canaries.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    alloc::{Allocation, ClientStatus, RescheduleTracker},
    deployment::{Deployment, DeploymentStatus},
    ids::DeploymentId,
    job::{Job, TaskGroup, job_type},
    plan::{DeploymentUpdate, DesiredUpdates},
    policy::Update,
};

use super::{GroupRequests, Reconciler, Request, Sorted, Wanted, node_lost, stop, why};
use crate::{
    canary::is_canary,
    deployment::{new_deployment, new_group},
    ids::Ids,
    remote,
};

/// Puts a new deployment into effect: what is placed or changed in this version belongs to it.
pub(crate) fn begin(mut d: Deployment, out: &mut Wanted) {
    if let Some(how) = d.awaited_promotion() {
        how.clone_into(&mut d.status_description);
    }
    for g in &mut out.groups {
        if d.groups.contains_key(&g.group) && g.job.is_none() {
            g.deployment = d.id;
        }
    }
    for a in &mut out.in_place {
        if d.groups.contains_key(&a.task_group) {
            a.deployment_id = d.id;
            a.deployment_status = None;
        }
    }
    out.deployment = Some(d);
}

impl Reconciler<'_> {
    /// Marks success when everything is in place and healthy.
    pub(super) fn finish_deployment(&mut self, complete: bool) {
        if let Some(d) = self.new_deployment.take() {
            begin(d, &mut self.out);
        } else if let Some(d) = self.deployment.as_ref().filter(|d| complete && d.status == DeploymentStatus::Running) {
            self.out.deployment_updates.push(DeploymentUpdate {
                id: d.id,
                status: DeploymentStatus::Successful,
                description: "Deployment completed successfully".into(),
            });
        }
    }

    pub(super) fn active_deployment(&self, group: &str) -> Option<&Arc<Deployment>> {
        self.deployment.as_ref().filter(|d| d.status.active() && d.groups.contains_key(group))
    }

    pub(super) fn rolling(&self, group: &TaskGroup) -> Option<Update> {
        let update = group.update.as_ref().or(self.job.update.as_ref())?;
        (self.job.kind == job_type::SERVICE && update.max_parallel() > 0).then(|| update.clone())
    }

    /// `total` is the group's number of allocations in this version at success.
    pub(super) fn make_deployment(
        &mut self,
        group: &TaskGroup,
        (replacing, in_place): (bool, bool),
        total: usize,
        had_running: bool,
        ids: &mut Ids,
    ) {
        let Some(update) = self.rolling(group) else { return };
        if self.deployment.is_some() || total == 0 || (had_running && !replacing && !in_place) {
            return;
        }
        let (job, eval) = (self.job, self.eval);
        let d = self.new_deployment.get_or_insert_with(|| new_deployment(job, eval, ids));
        let canaries = if replacing { update.canary() } else { 0 };
        d.groups.insert(group.name.clone(), new_group(&update, total, canaries));
    }

    /// How many allocations may be replaced now.
    pub(super) fn limit(&self, group: &TaskGroup, keep: &[Arc<Allocation>], destructive: usize) -> usize {
        let Some(update) = self.rolling(group) else { return destructive };
        let max = usize::try_from(update.max_parallel()).unwrap_or(1);
        let Some(d) = &self.deployment else { return max };
        if d.status != DeploymentStatus::Running {
            return 0;
        }
        let mut open = max;
        for a in keep.iter().filter(|a| a.deployment_id == d.id) {
            match a.healthy() {
                // The new version has an unhealthy allocation: no more of it.
                Some(false) => return 0,
                Some(true) => {}
                None => open = open.saturating_sub(1),
            }
        }
        open
    }

    /// Number of canaries until their promotion; `None` when there are none to try.
    pub(super) fn canaries_wanted(&self, group: &TaskGroup) -> Option<usize> {
        let d = self.new_deployment.as_ref().or(self.deployment.as_deref())?;
        let g = d.groups.get(&group.name).filter(|g| g.desired_canaries > 0 && !g.promoted)?;
        Some(usize::try_from(g.desired_canaries).unwrap_or(0))
    }

    /// Takes the canaries out of the group, because they do not belong to its count. Stops those of abandoned versions.
    pub(super) fn take_canaries(&mut self, group: &TaskGroup, s: &mut Sorted, counts: &mut DesiredUpdates) -> Canaries {
        let of = self.active_deployment(&group.name).map_or(DeploymentId::NIL, |d| d.id);
        let mut own = Canaries::default();
        let mut stale = Vec::new();
        let mut take = |list: &mut Vec<Arc<Allocation>>| -> Vec<Arc<Allocation>> {
            let all: Vec<_> = list.extract_if(.., |a| is_canary(a)).collect();
            let (own, other) = all.into_iter().partition(|a| a.deployment_id == of);
            stale.extend::<Vec<_>>(other);
            own
        };
        own.keep = take(&mut s.keep);
        own.migrate = take(&mut s.migrate);
        own.lost = take(&mut s.lost);
        own.lost.extend(take(&mut s.lost_canaries));
        own.lost.extend(take(&mut s.away));
        own.now = s.now.extract_if(.., |(a, _)| is_canary(a) && a.deployment_id == of).collect();
        stale.extend(s.now.extract_if(.., |(a, _)| is_canary(a)).map(|(a, _)| a));
        for a in stale {
            if !a.server_terminal() && (!a.client_terminal() || a.client_status == ClientStatus::Failed) {
                let lost = (!a.client_terminal() && node_lost(self.state, a.node_id)).then_some(ClientStatus::Lost);
                self.out.stops.push(stop(&a, why::NOT_NEEDED, lost));
                counts.stop += 1;
            }
        }
        if self.has_slots(group, s) {
            s.reserved = own.all().map(|a| a.index()).collect();
        }
        own
    }

    /// Whether the group has remote tasks, each with a slot.
    fn has_slots(&self, group: &TaskGroup, s: &Sorted) -> bool {
        let of = |list: &[Arc<Allocation>]| list.iter().any(|a| remote::has_remote(a));
        of(&s.keep)
            || of(&s.migrate)
            || self.state.remote_tasks_by_job(&self.job.key()).any(|r| r.slot.group == group.name)
    }

    /// Places requests in their former version while canaries are tried.
    pub(super) fn place_as_they_were(&mut self, group: &TaskGroup, requests: Vec<Request>) {
        let key = self.job.key();
        let mut by_version: BTreeMap<u64, (Arc<Job>, Vec<Request>)> = BTreeMap::new();
        for r in requests {
            let job = match &r.previous {
                Some(p) => p.job.clone(),
                None => {
                    let mut records = self.state.remote_tasks_by_job(&key).filter(|t| t.slot.group == group.name);
                    let version = records.find(|t| t.slot.index == r.index).map(|t| t.job_version);
                    version.and_then(|v| self.state.job_version(&key, v)).cloned()
                }
            };
            // If that version is unknown, the request waits for the new one.
            if let Some(job) = job.filter(|j| j.group(&group.name).is_some()) {
                by_version.entry(job.version).or_insert_with(|| (job, Vec::new())).1.push(r);
            }
        }
        for (job, requests) in by_version.into_values() {
            let job = (job.version != self.job.version).then_some(job);
            self.out.groups.push(GroupRequests {
                group: group.name.clone(),
                requests,
                beyond: 0,
                deployment: DeploymentId::NIL,
                job,
            });
        }
    }

    /// Requests for canaries that are missing or have to move.
    pub(super) fn canary_requests(
        &self,
        group: &TaskGroup,
        s: &Sorted,
        destructive: &[Arc<Allocation>],
        canaries: Canaries,
        wanted: usize,
        counts: &mut DesiredUpdates,
    ) -> Vec<Request> {
        let slots = self.has_slots(group, s);
        let mut taken: BTreeSet<u32> = canaries.keep.iter().chain(&canaries.migrate).map(|a| a.index()).collect();
        taken.extend(canaries.now.iter().map(|(a, _)| a.index()));
        let mut have = canaries.keep.len() + canaries.migrate.len() + canaries.now.len();
        let halted = self.deployment.as_ref().is_some_and(|d| d.status != DeploymentStatus::Running);
        let ended = self.deployment.as_ref().is_some_and(|d| !d.status.active());
        let mut requests = Vec::new();
        if ended {
            return requests;
        }
        for a in canaries.migrate {
            counts.migrate += 1;
            requests.push(self.moving(group, a));
        }
        for (a, tracker) in canaries.now {
            counts.reschedule_now += 1;
            let stop = Some(stop(&a, why::RESCHEDULED, None));
            let penalty = tracker.events.iter().map(|e| e.prev_node_id).collect();
            requests.push(Request { stop, penalty, tracker: Some(tracker), ..Request::replacing(a) });
        }
        for a in canaries.lost {
            // One that came back, or has a replacement already, holds its name.
            if have < wanted && taken.insert(a.index()) {
                have += 1;
                counts.canary += 1;
                requests.push(Request::replacing(a));
            }
        }
        if !halted {
            let others =
                s.keep.iter().map(|a| a.index()).chain(self.living_slots(group)).chain(s.stopping.iter().copied());
            let others: BTreeSet<u32> =
                if slots { others.chain(self.placed_indexes(group)).collect() } else { BTreeSet::new() };
            let names = destructive.iter().map(|a| a.index()).filter(|_| !slots).chain(0..u32::MAX);
            let mut free = names.filter(|i| !others.contains(i));
            while have < wanted
                && let Some(index) = free.next()
            {
                if taken.insert(index) {
                    have += 1;
                    counts.canary += 1;
                    requests.push(Request::new(index));
                }
            }
        }
        requests.into_iter().map(|r| Request { canary: true, ..r }).collect()
    }

    /// Indexes of the group's placements in this plan.
    fn placed_indexes(&self, group: &TaskGroup) -> Vec<u32> {
        self.out.groups.iter().filter(|g| g.group == group.name).flat_map(|g| &g.requests).map(|r| r.index).collect()
    }
}

/// The canaries of the deployment under way.
#[derive(Default)]
pub(super) struct Canaries {
    keep: Vec<Arc<Allocation>>,
    migrate: Vec<Arc<Allocation>>,
    /// On lost or disconnected nodes.
    lost: Vec<Arc<Allocation>>,
    now: Vec<(Arc<Allocation>, Box<RescheduleTracker>)>,
}

impl Canaries {
    /// Those that stay for now.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        self.keep.iter()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        self.keep.iter().chain(&self.migrate).chain(&self.lost).chain(self.now.iter().map(|(a, _)| a))
    }
}
