//! Deployments of system jobs: a version comes to all nodes, as many at a time as `max_parallel` says, and first to a
//! share of them, if the job asks for canaries.
//!
//! Nodes without an allocation get one at once. `max_parallel` bounds the replaced ones that are not healthy yet.
//! `canary` is a percentage of the nodes whose allocation has to be replaced. A canary takes the place of the former
//! allocation of its node, where a service has both for a while: so one that is given up is replaced like any other.
//!
//! Rules of Nomad since 1.11. Two are ours: while canaries are tried, and after a deployment has failed, what is placed
//! besides runs the version that it has had, or that runs on the other nodes; and a node without room delays no
//! deployment and fails none.

use std::sync::Arc;

use model::{
    RemoteTask,
    alloc::Allocation,
    deployment::{Deployment, DeploymentStatus},
    ids::{AllocId, DeploymentId},
    job::{Job, TaskGroup, job_type},
    plan::DesiredUpdates,
    policy::Update,
};

use super::{Step, System};
use crate::{
    canary::is_canary,
    deployment::{new_deployment, new_group},
    ids::Ids,
    reconcile::{GroupRequests, Request, rollout::begin},
};

/// Canaries among so many allocations that have to be replaced.
fn canaries(update: &Update, outdated: usize) -> i32 {
    let outdated = i64::try_from(outdated).unwrap_or(i64::MAX);
    let share = (outdated.saturating_mul(update.canary().into()) + 99) / 100;
    i32::try_from(share.min(update.max_parallel().into())).unwrap_or(i32::MAX)
}

impl System<'_> {
    fn rolling(&self, group: &TaskGroup) -> Option<Update> {
        let update = group.update.as_ref().or(self.job.update.as_ref())?;
        (self.job.kind == job_type::SYSTEM && update.max_parallel() > 0).then(|| update.clone())
    }

    pub(super) fn active_deployment(&self, group: &str) -> Option<&Arc<Deployment>> {
        self.deployment.as_ref().filter(|d| d.status.active() && d.groups.contains_key(group))
    }

    /// Asks for as much of it as may happen now.
    pub(super) fn roll(
        &mut self,
        group: &TaskGroup,
        step: Step,
        allocs: &[Arc<Allocation>],
        counts: &mut DesiredUpdates,
        ids: &mut Ids,
    ) {
        let Step { moving, missing, outdated } = step;
        counts.place += missing.len() as u64;
        let mut requests = moving;
        requests.extend(missing);
        let Some(update) = self.rolling(group) else {
            counts.destructive_update += outdated.len() as u64;
            requests.extend(outdated);
            self.ask(group, requests, None);
            return;
        };
        let current = self.deployment.as_ref().map_or(DeploymentId::NIL, |d| d.id);
        // Those of a version that was given up go at once.
        let stale = |r: &Request| r.previous.as_ref().is_some_and(|a| is_canary(a) && a.deployment_id != current);
        let (given_up, outdated): (Vec<Request>, Vec<Request>) = outdated.into_iter().partition(stale);
        let in_place = self.out.in_place.iter().filter(|a| a.task_group == group.name).count();
        let leaves: Vec<AllocId> =
            self.out.stops.iter().chain(requests.iter().filter_map(|r| r.stop.as_ref())).map(|stop| stop.id).collect();
        // What stays of the deployment under way.
        let stays = |a: &&Arc<Allocation>| {
            !current.is_nil() && a.deployment_id == current && !a.terminal() && !leaves.contains(&a.id)
        };
        let in_this: Vec<&Arc<Allocation>> = allocs.iter().filter(stays).collect();
        let total = requests.len() + given_up.len() + outdated.len() + in_place + in_this.len();
        self.begin_or_follow(group, &update, (total, outdated.len()), allocs, ids);

        let of_group =
            self.new_deployment.as_ref().or(self.deployment.as_deref()).and_then(|d| d.groups.get(&group.name));
        let wanted = of_group.map_or(0, |g| if g.promoted { 0 } else { g.desired_canaries });
        let halted = self.deployment.as_ref().is_some_and(|d| d.status != DeploymentStatus::Running);
        let max = usize::try_from(update.max_parallel()).unwrap_or(1);
        let limit = match (halted, wanted) {
            (true, _) => 0,
            (false, 0) => {
                let open = in_this.iter().filter(|a| a.healthy() != Some(true)).count();
                max.saturating_sub(open + in_place)
            }
            (false, wanted) => {
                let live = in_this.iter().filter(|a| is_canary(a)).count();
                let again = requests.iter().filter(|r| self.is_tried(group, r, current)).count();
                usize::try_from(wanted).unwrap_or(0).saturating_sub(live + again)
            }
        };
        counts.ignore += outdated.len().saturating_sub(limit) as u64;
        let replaced: Vec<Request> = outdated.into_iter().take(limit).collect();
        if wanted > 0 {
            counts.canary += replaced.len() as u64;
        } else {
            counts.destructive_update += replaced.len() as u64;
        }
        counts.destructive_update += given_up.len() as u64;
        let ended = self.deployment.as_ref().is_some_and(|d| !d.status.active());
        if halted || wanted > 0 {
            let mut newest = Vec::new();
            for r in requests {
                if !ended && self.is_tried(group, &r, current) {
                    newest.push(Request { canary: true, ..r });
                    continue;
                }
                match self.version_of(group, &r, allocs) {
                    Some(version) => self.ask(group, vec![r], Some(version)),
                    None => newest.push(r),
                }
            }
            requests = newest;
        }
        requests.extend(given_up);
        requests.extend(replaced.into_iter().map(|r| Request { canary: wanted > 0, ..r }));
        self.ask(group, requests, None);
    }

    /// Begins a deployment of this version, or counts again what the one under way has to reach.
    fn begin_or_follow(
        &mut self,
        group: &TaskGroup,
        update: &Update,
        (total, outdated): (usize, usize),
        allocs: &[Arc<Allocation>],
        ids: &mut Ids,
    ) {
        if let Some(d) = &self.deployment {
            if let Some(g) = d.groups.get(&group.name).filter(|_| d.status.active()) {
                // Without any node nothing is proven.
                let total = i32::try_from(total).unwrap_or(i32::MAX).max(1);
                if total != g.desired_total {
                    self.totals.insert(group.name.clone(), total);
                }
            }
            return;
        }
        // A node that comes later begins none.
        let known = allocs.iter().any(|a| !self.is_older(a));
        let in_place = self.out.in_place.iter().any(|a| a.task_group == group.name);
        if total == 0 || known && outdated == 0 && !in_place {
            return;
        }
        let (job, eval) = (self.job, self.eval);
        let d = self.new_deployment.get_or_insert_with(|| new_deployment(job, eval, ids));
        d.groups.insert(group.name.clone(), new_group(update, total, canaries(update, outdated)));
    }

    /// The remote instance at the place of a request.
    fn instance(&self, group: &TaskGroup, r: &Request) -> Option<&RemoteTask> {
        let mut records = self.state.remote_tasks_by_job(&self.job.key()).filter(|t| t.slot.group == group.name);
        records.find(|t| t.slot.index == r.index && !t.observed.ended()).map(|t| &**t)
    }

    /// Whether the place is that of a canary of the deployment under way.
    fn is_tried(&self, group: &TaskGroup, r: &Request, current: DeploymentId) -> bool {
        let served = || self.state.alloc(self.instance(group, r)?.alloc_id);
        let canary = |a: &Arc<Allocation>| is_canary(a) && a.deployment_id == current;
        r.previous.as_ref().is_some_and(canary) || served().is_some_and(canary)
    }

    /// The former version that a place keeps while the newest one is held back: that of its remote instance or of the
    /// allocation that leaves, else the newest of those that run elsewhere. `None` = there is none.
    fn version_of(&self, group: &TaskGroup, r: &Request, allocs: &[Arc<Allocation>]) -> Option<Arc<Job>> {
        if let Some(instance) = self.instance(group, r) {
            let version = self.state.job_version(&self.job.key(), instance.job_version);
            return version.filter(|job| job.version != self.job.version).cloned();
        }
        let former = |a: &&Arc<Allocation>| self.is_older(a) && !is_canary(a);
        if let Some(leaves) = r.previous.as_ref().filter(|_| r.stop.is_some()).filter(former) {
            return leaves.job.clone();
        }
        let live = allocs.iter().filter(|a| !a.terminal()).filter(former);
        live.filter_map(|a| a.job.as_ref()).max_by_key(|job| (job.create_index, job.version)).cloned()
    }

    fn ask(&mut self, group: &TaskGroup, requests: Vec<Request>, job: Option<Arc<Job>>) {
        if requests.is_empty() {
            return;
        }
        let deployment = match &job {
            None => self.active_deployment(&group.name).map_or(DeploymentId::NIL, |d| d.id),
            Some(_) => DeploymentId::NIL,
        };
        self.out.groups.push(GroupRequests { group: group.name.clone(), requests, beyond: 0, deployment, job });
    }

    pub(super) fn finish_deployment(&mut self) {
        if let Some(d) = self.new_deployment.take() {
            begin(d, &mut self.out);
        } else if let Some(d) = self.deployment.as_ref().filter(|_| !self.totals.is_empty()) {
            let mut d = Deployment::clone(d);
            for (group, total) in std::mem::take(&mut self.totals) {
                if let Some(g) = d.groups.get_mut(&group) {
                    g.desired_total = total;
                }
            }
            self.out.deployment = Some(d);
        }
    }
}
