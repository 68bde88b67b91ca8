//! Canaries: what is placed beside the old version, and what becomes of it.

use std::sync::Arc;

use model::{Allocation, ClientStatus, DeploymentStatus, Job, alloc::DesiredTransition, plan::DeploymentUpdate};
use scheduler::Coverage;
use state::Change;

use crate::world::{World, changed, key, node_id, rolling, service, slot};

fn with_canaries(count: i32, canaries: i32) -> Job {
    let mut job = rolling(service(count), 1);
    job.task_groups[0].update.as_mut().expect("set").canary = Some(canaries);
    job
}

/// The same of remote tasks.
fn remote_with_canaries(count: i32, canaries: i32) -> Job {
    let mut job = with_canaries(count, canaries);
    job.task_groups[0].tasks[0].driver = "ecs".into();
    job
}

impl World {
    fn deployment(&self) -> Arc<model::Deployment> {
        self.state.latest_deployment(&key()).expect("there is one").clone()
    }

    fn promote(&mut self) {
        let id = self.deployment().id;
        self.apply(vec![Change::DeploymentPromotion { id, groups: None }]);
    }

    fn end(&mut self, status: DeploymentStatus) {
        let id = self.deployment().id;
        self.apply(vec![Change::DeploymentStatus(DeploymentUpdate { id, status, description: String::new() })]);
    }

    fn canaries(&self) -> Vec<Arc<Allocation>> {
        self.live().into_iter().filter(|a| a.deployment_status.as_ref().is_some_and(|d| d.canary)).collect()
    }

    /// Index and version of what lives.
    fn versions(&self) -> Vec<(u32, u64)> {
        self.live().iter().map(|a| (a.index(), a.job_version)).collect()
    }

    /// Until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.all_healthy();
            if self.run().plan.is_no_op() {
                return;
            }
        }
        panic!("it goes on and on: {}", self.show());
    }

    /// The slots that the job does not want, of those whose instance lives.
    fn uncovered(&self) -> Vec<u32> {
        let job = self.state.job(&key()).expect("registered").clone();
        let coverage = Coverage::of(&self.state, &job);
        let count = job.task_groups[0].count();
        let records = self.state.remote_tasks_by_job(&key()).filter(|r| !r.observed.ended());
        records
            .filter(|r| !coverage.covers(&r.slot).map_or(r.slot.index < count, |c| c.is_ok()))
            .map(|r| r.slot.index)
            .collect()
    }
}

#[test]
fn a_version_is_tried_beside_the_old_one_and_rolled_out_after_its_promotion() {
    let job = with_canaries(3, 1);
    let mut w = World::with("n1\nn2\nn3", &job);
    assert!(w.canaries().is_empty(), "nothing to compare the first version with");
    w.settle();
    let d = w.submit(&changed(&job));
    assert_eq!((d.annotations["g"].canary, d.annotations["g"].destructive_update, d.plan.stops.len()), (1, 0, 0));
    assert_eq!(w.canaries()[0].name.to_string(), "web.g[0]", "beside the one of the same name");
    let deployment = w.deployment();
    assert_eq!(deployment.status_description, "Deployment is running but requires manual promotion");
    let g = &deployment.groups["g"];
    assert_eq!((g.desired_canaries, g.promoted, g.placed_canaries.len(), g.desired_total), (1, false, 1, 3));
    w.settle();
    assert_eq!(w.show().matches(":v0").count(), 3, "healthy canaries wait for their promotion: {}", w.show());
    w.promote();
    assert_eq!(w.deployment().status_description, "Deployment is running");
    assert!(w.canaries().is_empty(), "they are like any other now");
    w.run();
    assert_eq!(w.show().matches(":v0").count(), 1, "its old name goes, and the first step is made: {}", w.show());
    w.settle();
    assert_eq!(w.versions(), [(0, 1), (1, 1), (2, 1)]);
    assert_eq!(w.deployment().status, DeploymentStatus::Successful);
}

#[test]
fn groups_without_canaries_are_promoted_with_the_others() {
    for (named, promoted) in [(None, [true, true]), (Some(vec!["g".into()]), [true, false])] {
        let mut w = World::new("n1\nn2\nn3");
        let mut job = with_canaries(1, 1);
        let mut second = job.task_groups[0].clone();
        second.name = "h".into();
        second.update = Some(model::Update { canary: Some(0), ..second.update.unwrap_or_default() });
        job.task_groups.push(second);
        w.submit(&job);
        w.settle();
        job.task_groups[0].tasks[0].user = "u".into();
        job.task_groups[1].tasks[0].user = "u".into();
        w.submit(&job);
        w.all_healthy();
        let id = w.deployment().id;
        w.apply(vec![Change::DeploymentPromotion { id, groups: named }]);
        let d = w.deployment();
        assert_eq!(["g", "h"].map(|g| d.groups[g].promoted), promoted);
    }
}

#[test]
fn as_many_canaries_as_allocations_are_blue_and_green() {
    let job = with_canaries(2, 2);
    let mut w = World::with("n1\nn2\nn3", &job);
    w.settle();
    w.submit(&changed(&job));
    w.settle();
    assert_eq!(w.live().len(), 4);
    let green: Vec<_> = w.canaries().iter().map(|a| a.id).collect();
    w.promote();
    // All that is wanted is healthy: the deployment may be over before anybody has looked.
    w.end(DeploymentStatus::Successful);
    w.run();
    assert_eq!(w.live().iter().map(|a| a.id).collect::<Vec<_>>(), green);
    assert!(w.run().plan.is_no_op());
}

#[test]
fn canaries_of_a_version_that_was_given_up_are_stopped() {
    for end in [Some(DeploymentStatus::Failed), None] {
        let job = with_canaries(2, 1);
        let mut w = World::with("n1\nn2\nn3", &job);
        w.settle();
        w.submit(&changed(&job));
        match end {
            Some(status) => {
                w.end(status);
                w.run();
            }
            // Back to what it was.
            None => drop(w.submit(&job)),
        }
        w.all_healthy();
        w.run();
        let live = w.live();
        assert_eq!(live.len(), 2, "{end:?}: {}", w.show());
        assert!(live.iter().all(|a| a.job.as_ref().is_some_and(|j| j.task_groups[0].tasks[0].env.is_empty())));
    }
}

#[test]
fn while_canaries_are_tried_everything_else_stays_as_it_was() {
    let job = with_canaries(3, 1);
    let mut w = World::with("n1\nn2\nn3", &job);
    w.settle();
    w.submit(&changed(&job));
    w.all_healthy();
    // An old one is lost, and is replaced by its own version; so is one of a draining node.
    let canary_at = w.canaries()[0].node_name.to_string();
    let other = w.live().iter().map(|a| a.node_name.to_string()).find(|n| *n != canary_at).expect("spread out");
    w.node("n4");
    w.down(&other);
    w.run();
    assert_eq!((w.show().matches(":v0").count(), w.canaries().len()), (3, 1), "{}", w.show());
    assert!(w.run().plan.is_no_op());
    // The canary's node is lost: another canary, nothing else.
    w.down(&canary_at);
    w.run();
    assert_eq!((w.show().matches(":v0").count(), w.canaries().len()), (3, 1), "{}", w.show());
    assert_eq!(w.canaries()[0].job_version, 1);
    assert!(w.run().plan.is_no_op());
}

#[test]
fn a20_a_remote_canary_has_a_slot_of_its_own_and_is_adopted_with_it() {
    let line = |n: &str| format!("{n} driver=ecs:a:1-1:0:0");
    let job = remote_with_canaries(2, 1);
    let mut w = World::with(&line("n1"), &job);
    w.manage();
    w.settle();
    w.submit(&changed(&job));
    w.manage();
    assert_eq!(w.versions(), [(0, 0), (1, 0), (2, 1)]);
    assert_eq!(w.uncovered(), [0_u32; 0]);
    // Lost without room: everything is waited for, in its own version.
    w.down("n1");
    w.run();
    assert_eq!((w.show().as_str(), w.uncovered().len()), ("", 0));
    w.node(&line("n2"));
    w.run();
    assert_eq!(w.versions(), [(0, 0), (1, 0), (2, 1)], "{}", w.show());
    assert_eq!(w.canaries().iter().map(|a| a.index()).collect::<Vec<_>>(), [2]);
    w.manage();
    // The same by a drain.
    w.node(&line("n3"));
    w.drain("n2");
    w.run();
    assert_eq!(w.versions(), [(0, 0), (1, 0), (2, 1)], "{}", w.show());
    assert!(w.live().iter().all(|a| a.node_id == node_id("n3")));
    assert_eq!(w.canaries().iter().map(|a| a.index()).collect::<Vec<_>>(), [2]);
    w.manage();
    w.all_healthy();
    // Promoted, it stays where it is; one of the old ones goes.
    w.promote();
    w.run();
    w.manage();
    w.settle();
    let live = w.versions();
    assert!(live.len() == 2 && live.contains(&(2, 1)) && live.iter().all(|(_, v)| *v == 1), "{live:?}");
    assert_eq!(w.uncovered().len(), 1, "the one that has gone");
    assert_eq!(w.deployment().status, DeploymentStatus::Successful);
    // Later the slots are what they are, also while nobody manages them.
    w.apply(vec![Change::DeleteRemoteTask(slot(w.uncovered()[0]))]);
    w.manage();
    w.down("n3");
    w.run();
    assert_eq!(w.uncovered(), [0_u32; 0]);
    w.node(&line("n4"));
    w.run();
    assert_eq!(w.versions(), live);
}

/// A version without canaries takes nothing from what an earlier one has promoted, managed or not.
#[test]
fn a_promoted_remote_canary_outlives_versions_without_canaries() {
    let line = |n: &str| format!("{n} driver=ecs:a:1-1:0:0");
    let job = remote_with_canaries(1, 1);
    let mut w = World::with(&line("n1"), &job);
    w.manage();
    w.settle();
    let mut next = changed(&job);
    w.submit(&next);
    w.manage();
    w.all_healthy();
    w.promote();
    w.run();
    w.manage();
    w.settle();
    let indices = |w: &World| w.live().iter().map(|a| a.index()).collect::<Vec<_>>();
    assert_eq!(indices(&w), [1], "{}", w.show());
    w.apply(vec![Change::DeleteRemoteTask(slot(0))]);
    // The same tasks, no canaries: nothing is to be created anew.
    next.task_groups[0].update.as_mut().unwrap().canary = Some(0);
    w.submit(&next);
    w.manage();
    assert_eq!((indices(&w), w.uncovered()), (vec![1], vec![]), "{}", w.show());
    w.down("n1");
    w.run();
    assert_eq!(w.uncovered(), [0_u32; 0], "nobody manages it, and it is wanted");
    w.node(&line("n2"));
    w.run();
    w.manage();
    assert_eq!((indices(&w), w.uncovered()), (vec![1], vec![]), "adopted, not made again: {}", w.show());
}

/// Where there never was a canary the index alone says what is superfluous, also while nobody manages it.
#[test]
fn a_smaller_count_goes_by_the_index() {
    let mut w = World::new("n1 driver=ecs:a:1-1:0:0");
    let mut job = remote_with_canaries(3, 0);
    w.submit(&job);
    w.manage();
    w.settle();
    w.down("n1");
    w.run();
    job.task_groups[0].count = Some(1);
    w.submit(&job);
    assert_eq!(w.uncovered(), [1, 2]);
}

#[test]
fn a_remote_canary_that_is_given_up_is_wanted_by_nobody() {
    let job = remote_with_canaries(1, 1);
    let mut w = World::with("n1 driver=ecs:a:1-1:0:0", &job);
    w.manage();
    w.settle();
    w.submit(&changed(&job));
    w.manage();
    w.end(DeploymentStatus::Failed);
    assert_eq!(w.uncovered(), [1]);
    w.run();
    assert_eq!(w.show(), "0:n1:v0");
    assert_eq!(w.uncovered(), [1]);
}

#[test]
fn a_failed_canary_is_tried_again_when_the_watcher_allows_it() {
    let job = with_canaries(1, 1);
    let mut w = World::with("n1\nn2", &job);
    w.settle();
    w.submit(&changed(&job));
    let canary = w.canaries()[0].id;
    w.report(canary, ClientStatus::Failed, Some(false));
    w.mark(canary, DesiredTransition { reschedule: Some(true), ..DesiredTransition::default() });
    let d = w.run();
    let later = d.new_evals.first().expect("a follow-up: the policy has a pause");
    assert!(later.wait_until > w.now && w.canaries().is_empty(), "{}", w.show());
    w.now = later.wait_until;
    w.run_eval(later);
    let again = &w.canaries()[0];
    assert_eq!(
        (again.previous_allocation, again.reschedule_tracker.as_ref().map(|t| t.events.len())),
        (canary, Some(1))
    );
    assert_eq!(w.show().matches(":v0").count(), 1, "{}", w.show());
}

#[test]
fn a_failed_canary_is_not_tried_again_by_itself() {
    let job = with_canaries(1, 1);
    let mut w = World::with("n1\nn2", &job);
    w.settle();
    w.submit(&changed(&job));
    let canary = w.canaries()[0].id;
    w.report(canary, ClientStatus::Failed, Some(false));
    w.now += 7200 * crate::world::S;
    assert!(w.run().plan.is_no_op());
    w.end(DeploymentStatus::Failed);
    w.run();
    assert_eq!(w.show().matches(":v0").count(), 1, "{}", w.show());
    w.now += 7200 * crate::world::S;
    w.run();
    assert_eq!(w.live().len(), 1);
}

/// It would be one too many for ever: only a promotion makes an allocation of a canary.
#[test]
fn a_canary_of_before_the_promotion_is_not_placed_after_it() {
    let job = with_canaries(3, 2);
    let mut w = World::with("n1\nn2\nn3", &job);
    w.settle();
    w.submit(&changed(&job));
    w.all_healthy();
    let moving = w.canaries()[0].id;
    w.mark(moving, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    let eval = w.eval();
    let plan = scheduler::schedule(&w.state, &eval, w.now, 1).expect("a service").plan;
    assert_eq!(plan.placements.values().map(Vec::len).sum::<usize>(), 1);
    w.promote();
    let v = scheduler::verify_plan(&w.state, &plan);
    let why: Vec<&String> = v.refused.values().collect();
    assert_eq!(why, ["the deployment of a canary was promoted, or has ended"]);
    assert!(v.plan.placements.is_empty() && v.plan.stops.is_empty());
    w.apply(vec![Change::ApplyPlan(Box::new(v.plan))]);
    w.settle();
    assert_eq!((w.canaries().len(), w.versions()), (0, vec![(0, 1), (1, 1), (2, 1)]));
}
