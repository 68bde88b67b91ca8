//! Deployments of system jobs: a version comes to all nodes step by step, perhaps to a share of them first.

use std::sync::Arc;

use model::{Allocation, ClientStatus, Deployment, DeploymentStatus, Job, plan::DeploymentUpdate, policy::Update};
use state::Change;

use crate::world::{World, changed, key, service};

fn system(max_parallel: i32, canary: i32) -> Job {
    let mut job = service(1);
    job.kind = "system".into();
    job.task_groups[0].reschedule = None;
    let update = Update { max_parallel: Some(max_parallel), canary: Some(canary), ..Update::defaults() };
    job.task_groups[0].update = Some(update);
    job
}

/// Another change of the job.
fn other(job: &Job) -> Job {
    let mut job = changed(job);
    job.task_groups[0].tasks[0].env.insert("OTHER".into(), "yes".into());
    job
}

impl World {
    fn rollout(&self) -> Arc<Deployment> {
        self.state.latest_deployment(&key()).expect("there is one").clone()
    }

    fn rollout_is(&mut self, status: DeploymentStatus) {
        let id = self.rollout().id;
        self.apply(vec![Change::DeploymentStatus(DeploymentUpdate { id, status, description: String::new() })]);
    }

    /// How many run each version, from the first on.
    fn of_versions(&self, versions: usize) -> Vec<usize> {
        let live = self.live();
        (0..versions).map(|v| live.iter().filter(|a| a.job_version == v as u64).count()).collect()
    }

    fn tried(&self) -> Vec<Arc<Allocation>> {
        let canary = |a: &Arc<Allocation>| a.deployment_status.as_ref().is_some_and(|d| d.canary);
        self.live().into_iter().filter(canary).collect()
    }
}

#[test]
fn the_first_version_is_deployed_at_once_and_nodes_that_come_meanwhile_belong_to_it() {
    let mut w = World::with("n1\nn2", &system(1, 0));
    let d = w.rollout();
    assert_eq!((w.of_versions(1), d.groups["g"].desired_total, d.groups["g"].placed_allocs), (vec![2], 2, 2));
    assert!(w.live().iter().all(|a| a.deployment_id == d.id));
    w.node("n3");
    w.run();
    let d = w.rollout();
    assert_eq!((d.groups["g"].desired_total, d.groups["g"].placed_allocs), (3, 3));
    w.all_healthy();
    w.rollout_is(DeploymentStatus::Successful);
    // One that comes later begins no deployment.
    w.node("n4");
    w.run();
    assert_eq!((w.of_versions(1), w.rollout().id), (vec![4], d.id));
    assert!(w.run().plan.is_no_op());
}

#[test]
fn as_many_are_replaced_as_may_be_without_health() {
    let mut w = World::with("n1\nn2\nn3\nn4\nn5", &system(2, 0));
    w.all_healthy();
    w.rollout_is(DeploymentStatus::Successful);
    w.submit(&changed(&system(2, 0)));
    assert_eq!((w.of_versions(2), w.rollout().groups["g"].desired_total), (vec![3, 2], 5));
    assert!(w.run().plan.is_no_op(), "nobody says that they are healthy");
    let first = w.live().iter().find(|a| a.job_version == 1).expect("one").id;
    w.report(first, ClientStatus::Running, Some(true));
    w.run();
    assert_eq!(w.of_versions(2), [2, 3], "one more");
    for expected in [[0, 5], [0, 5]] {
        w.all_healthy();
        w.run();
        assert_eq!(w.of_versions(2), expected);
    }
    w.rollout_is(DeploymentStatus::Paused);
    assert!(w.run().plan.is_no_op());
}

#[test]
fn a_change_in_place_waits_for_its_health_as_well() {
    let mut w = World::with("n1\nn2", &system(1, 0));
    w.all_healthy();
    w.rollout_is(DeploymentStatus::Successful);
    let mut job = system(1, 0);
    job.priority = 60;
    w.submit(&job);
    let d = w.rollout();
    assert_eq!((w.of_versions(2), d.job_version, d.groups["g"].desired_total), (vec![0, 2], 1, 2));
    assert!(w.live().iter().all(|a| a.deployment_id == d.id && a.healthy().is_none()));
}

#[test]
fn canaries_are_a_share_of_what_is_replaced_and_the_rest_waits_for_their_promotion() {
    // 30 % of five are two.
    let mut w = World::with("n1\nn2\nn3\nn4\nn5", &system(3, 30));
    assert_eq!(w.rollout().groups["g"].desired_canaries, 0, "nothing is replaced");
    w.all_healthy();
    w.rollout_is(DeploymentStatus::Successful);
    let d = w.submit(&changed(&system(3, 30)));
    assert_eq!((d.annotations["g"].canary, d.annotations["g"].destructive_update), (2, 0));
    let d = w.rollout();
    assert_eq!((w.of_versions(2), w.tried().len(), d.groups["g"].desired_canaries), (vec![3, 2], 2, 2));
    assert_eq!(d.groups["g"].placed_canaries.len(), 2);
    assert_eq!(d.status_description, "Deployment is running but requires manual promotion");
    w.all_healthy();
    assert!(w.run().plan.is_no_op(), "they wait");
    // Who comes now runs what most run.
    w.node("n6");
    w.run();
    assert_eq!((w.of_versions(2), w.rollout().groups["g"].desired_total), (vec![4, 2], 6));
    w.apply(vec![Change::DeploymentPromotion { id: d.id, groups: None }]);
    w.run();
    assert_eq!(w.of_versions(2), [1, 5], "three at a time");
    w.all_healthy();
    w.run();
    assert_eq!(w.of_versions(2), [0, 6]);
    // No more than max_parallel are tried.
    w.all_healthy();
    w.rollout_is(DeploymentStatus::Successful);
    w.submit(&other(&system(3, 100)));
    assert_eq!((w.tried().len(), w.rollout().groups["g"].desired_canaries), (3, 3));
}

#[test]
fn a_version_that_is_given_up_leaves_at_once_and_needs_no_trial_of_its_successor() {
    let first = system(1, 20);
    let mut w = World::with("n1\nn2\nn3\nn4\nn5", &first);
    w.all_healthy();
    w.rollout_is(DeploymentStatus::Successful);
    w.submit(&changed(&first));
    assert_eq!(w.of_versions(2), [4, 1]);
    w.rollout_is(DeploymentStatus::Failed);
    assert!(w.run().plan.is_no_op(), "what has failed goes no further");
    let failed = w.tried()[0].id;
    w.report(failed, ClientStatus::Failed, None);
    w.run();
    assert_eq!(w.of_versions(2), [5, 0], "its node runs what the others run");
    w.node("n6");
    w.run();
    assert_eq!(w.of_versions(2), [6, 0]);

    w.submit(&other(&first));
    assert_eq!((w.of_versions(3), w.tried().len()), (vec![5, 0, 1], 1));
    // The job returns to what it was: the canary is replaced, the others are changed in place.
    w.submit(&first);
    assert_eq!((w.of_versions(4), w.tried().len()), (vec![0, 0, 0, 6], 0));
    assert_eq!(w.rollout().groups["g"].desired_canaries, 0);
}

#[test]
fn nodes_without_room_are_no_part_of_a_deployment() {
    let mut job = system(1, 0);
    job.task_groups[0].tasks[0].resources.cpu = Some(500);
    let mut w = World::new("n1 cpu=1000\nn2 cpu=100");
    let d = w.submit(&job);
    assert_eq!((d.queued["g"], w.rollout().groups["g"].desired_total), (1, 1));
    let before = w.rollout();
    let d = w.run();
    assert!(d.plan.deployment.is_none() && w.rollout() == before, "nothing has changed");
    // Room comes while the deployment goes on.
    w.node("n2 cpu=1000");
    w.run();
    assert_eq!((w.of_versions(1), w.rollout().groups["g"].desired_total), (vec![2], 2));
    // Nor does it end well because every node has gone.
    w.down("n1");
    w.down("n2");
    w.run();
    assert_eq!((w.of_versions(1), w.rollout().groups["g"].desired_total), (vec![0], 1));

    // Where nothing has room nothing is deployed, until there is some.
    let mut w = World::new("n1 cpu=100");
    w.submit(&job);
    assert!(w.state.latest_deployment(&key()).is_none());
    w.node("n1 cpu=1000");
    w.run();
    assert_eq!((w.of_versions(1), w.rollout().groups["g"].desired_total), (vec![1], 1));
}

#[test]
fn what_moves_while_canaries_are_tried_keeps_its_version_and_a_canary_stays_one() {
    let line = |n: &str, provider: &str| format!("{n} driver=ecs:{provider}:1-1:0:0");
    let mut w = World::new(&line("e1", "east"));
    for (node, provider) in [("e2", "east"), ("w1", "west"), ("w2", "west")] {
        w.node(&line(node, provider));
    }
    let mut job = system(1, 50);
    job.task_groups[0].tasks[0].driver = "ecs".into();
    w.submit(&job);
    w.manage();
    w.all_healthy();
    w.rollout_is(DeploymentStatus::Successful);
    w.submit(&changed(&job));
    assert_eq!((w.of_versions(2), w.tried().len()), (vec![1, 1], 1));
    // What its new manager creates.
    w.manage();
    let node_of = |w: &World, canary: bool| {
        let of = |a: &&Arc<Allocation>| a.deployment_status.as_ref().is_some_and(|d| d.canary) == canary;
        w.live().iter().find(of).expect("there is one").node_name.to_string()
    };
    // Both managers are lost, one after the other.
    for canary in [false, true] {
        let before = node_of(&w, canary);
        w.down(&before);
        w.run();
        assert_eq!((w.of_versions(2), w.tried().len()), (vec![1, 1], 1), "{canary}");
        assert_ne!(node_of(&w, canary), before);
        w.manage();
    }
    assert_eq!(w.tried()[0].deployment_id, w.rollout().id);
    assert!(w.run().plan.is_no_op());
}
