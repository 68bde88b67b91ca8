//! System jobs: one on each node, one at each provider.

use std::sync::Arc;

use model::{
    ClientStatus, DesiredStatus, Eligibility, GoDuration, Job, NodeStatus, RemoteTask, alloc::DesiredTransition,
    eval::Trigger, policy::Update,
};
use scheduler::Coverage;
use state::Change;

use crate::world::{S, World, changed, key, node_id, service};

fn system() -> Job {
    let mut job = service(1);
    job.kind = "system".into();
    job.task_groups[0].reschedule = None;
    job
}

impl World {
    fn places(&self) -> String {
        let mut all: Vec<_> = self.live().iter().map(|a| format!("{}:v{}", a.node_name, a.job_version)).collect();
        all.sort();
        all.join(" ")
    }

    fn eligible(&mut self, node: &str, eligibility: Eligibility) {
        self.apply(vec![Change::NodeEligibility { id: node_id(node), eligibility, event: None }]);
    }

    /// `slot:provider` of what lives, those that are not wanted in brackets.
    fn slots(&self) -> String {
        let job = self.state.job(&key()).expect("registered").clone();
        let coverage = Coverage::of(&self.state, &job);
        let one = |r: &Arc<RemoteTask>| {
            let text = format!("{}:{}", r.slot.index, r.provider);
            if coverage.covers(&r.slot).is_some_and(|c| c.is_ok()) { text } else { format!("({text})") }
        };
        self.state.remote_tasks_by_job(&key()).map(one).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn every_node_that_may_have_one_has_one() {
    let mut w = World::new("n1\nn2 dc=dc2\nn3 nodriver\nn4 ineligible\nn5 down");
    let mut job = system();
    job.datacenters = vec!["dc1".into()];
    let d = w.submit(&job);
    assert_eq!(w.places(), "n1:v0");
    assert!(d.failed_groups.is_empty() && w.blocked().is_empty(), "who is not asked says nothing: {d:?}");
    assert_eq!(w.live()[0].name.to_string(), "web.g[0]");
    assert!(w.run().plan.is_no_op());
    w.node("n6");
    w.eligible("n4", Eligibility::Eligible);
    w.run();
    assert_eq!(w.places(), "n1:v0 n4:v0 n6:v0");
    // Constraints say no in silence; a version that does not want a node leaves it.
    let mut job = job.clone();
    job.constraints.push(model::Constraint {
        left: "${node.unique.name}".into(),
        operator: "!=".into(),
        right: "n4".into(),
    });
    let d = w.submit(&job);
    assert_eq!(w.places(), "n1:v1 n6:v1");
    assert!(d.failed_groups.is_empty());
    assert_eq!(d.annotations["g"].in_place_update, 2);
    w.apply(vec![Change::StopJob(key())]);
    w.run();
    assert_eq!(w.places(), "");
}

#[test]
fn a_node_without_room_is_reported_and_served_when_it_has_some() {
    let mut w = World::new("n1 cpu=400\nn2");
    let d = w.submit(&system());
    assert_eq!((w.places().as_str(), d.queued["g"]), ("n2:v0", 1));
    assert_eq!(d.failed_groups["g"].dimension_exhausted.get("cpu"), Some(&1), "{d:?}");
    assert_eq!(w.blocked().len(), 1);
    w.node("n1 cpu=4000");
    w.run();
    assert_eq!(w.places(), "n1:v0 n2:v0");
}

#[test]
fn what_is_lost_with_its_node_is_not_placed_elsewhere() {
    let mut w = World::with("n1\nn2", &system());
    w.down("n1");
    w.run();
    assert_eq!(w.places(), "n2:v0");
    assert!(w.run().plan.is_no_op());
    w.node("n1");
    w.run();
    assert_eq!(w.places(), "n1:v0 n2:v0");
}

#[test]
fn what_was_lost_knows_its_successor_although_its_returned_node_still_runs_it() {
    let mut w = World::with("n1", &system());
    let lost = w.live()[0].id;
    w.down("n1");
    w.run();
    w.node("n1");
    w.report(lost, ClientStatus::Running, None);
    w.run();
    let successor = w.state.allocs().find(|a| a.id != lost).expect("it is placed again");
    assert_eq!(successor.previous_allocation, lost);
}

#[test]
fn it_stays_on_a_draining_node_until_it_is_told_to_leave() {
    let mut w = World::with("n1\nn2", &system());
    w.drain("n1");
    w.run();
    assert_eq!(w.places(), "n1:v0 n2:v0");
    let id = w.live().iter().find(|a| &*a.node_name == "n1").expect("there").id;
    w.mark(id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    w.run();
    assert_eq!(w.places(), "n2:v0");
    assert!(w.run().plan.is_no_op());
    // An ineligible node keeps what it has, also in its old version.
    w.eligible("n2", Eligibility::Ineligible);
    w.submit(&changed(&system()));
    assert_eq!(w.places(), "n2:v0");
}

#[test]
fn without_a_limit_an_update_comes_to_all_at_once() {
    let mut w = World::new("n1\nn2\nn3");
    let mut job = system();
    w.submit(&job);
    w.submit(&changed(&job));
    assert_eq!(w.places(), "n1:v1 n2:v1 n3:v1", "nobody says otherwise");
    job.task_groups[0].update = Some(Update { max_parallel: Some(0), ..Update::defaults() });
    w.submit(&job);
    assert_eq!(w.places(), "n1:v2 n2:v2 n3:v2");
    assert!(w.state.latest_deployment(&key()).is_none());
}

#[test]
fn a_failed_one_is_tried_again_when_somebody_looks() {
    let mut w = World::with("n1", &system());
    let failed = w.live()[0].id;
    w.report(failed, ClientStatus::Failed, None);
    w.run();
    assert_eq!(w.places(), "n1:v0");
    assert_eq!(w.live()[0].previous_allocation, failed);
    let before = w.state.alloc(failed).expect("it is kept");
    assert_eq!(
        (before.desired_status, &*before.desired_description),
        (DesiredStatus::Run, ""),
        "nobody has stopped it"
    );
    assert!(w.run().plan.is_no_op());
}

#[test]
fn a28_remote_tasks_are_one_for_each_provider() {
    let line = |n: &str, provider: &str| format!("{n} driver=ecs:{provider}:1-1:0:0");
    let mut w = World::new(&line("n1", "east"));
    w.node(&line("n2", "east"));
    w.node(&line("n3", "west"));
    let mut job = system();
    job.task_groups[0].tasks[0].driver = "ecs".into();
    w.submit(&job);
    w.manage();
    assert_eq!((w.live().len(), w.slots().as_str()), (2, "0:east 1:west"));
    assert!(w.run().plan.is_no_op());
    // Loss: another that reaches the provider takes it over, without one it waits, unmanaged and wanted.
    let east = w.at(0).node_name.to_string();
    w.down(&east);
    w.down("n3");
    w.run();
    w.manage();
    assert_eq!((w.live().len(), w.at(0).node_name.starts_with('n'), w.slots().as_str()), (1, true, "0:east 1:west"));
    w.node(&line("n4", "west"));
    w.run();
    w.manage();
    assert_eq!((&*w.at(1).node_name, w.slots().as_str()), ("n4", "0:east 1:west"));
    // Drain: at once, with room and without.
    w.node(&line("n5", "west"));
    w.drain("n4");
    w.run();
    w.manage();
    assert_eq!((&*w.at(1).node_name, w.live().len()), ("n5", 2));
    w.drain("n5");
    w.run();
    assert_eq!((w.live().len(), w.slots().as_str()), (1, "0:east 1:west"));
    // A new node of a third provider gets one of its own, one of a known provider none.
    w.node(&line("n6", "north"));
    w.node(&line("n7", "east"));
    w.run();
    w.manage();
    assert_eq!((w.live().len(), w.slots().as_str()), (2, "0:east 1:west 2:north"));
    w.node(&line("n8", "west"));
    w.run();
    w.manage();
    assert_eq!((&*w.at(1).node_name, w.slots().as_str()), ("n8", "0:east 1:west 2:north"));
    assert!(w.run().plan.is_no_op());
}

#[test]
fn groups_with_both_kinds_of_tasks_are_named_and_placed_nowhere() {
    let mut w = World::new("n1 driver=ecs:east:1-1:0:0");
    let mut job = system();
    let mut second = job.task_groups[0].tasks[0].clone();
    (second.name, second.driver) = ("far".into(), "ecs".into());
    job.task_groups[0].tasks.push(second);
    w.submit(&job);
    assert_eq!(w.places(), "");
    assert_eq!(scheduler::mixed_groups(&w.state, &job).count(), 1);
}

/// Ends on a node, as the node says.
fn end(w: &mut World, node: &str, status: ClientStatus) {
    let id = w.live().iter().find(|a| &*a.node_name == node).expect("lives there").id;
    w.report(id, status, None);
}

fn sysbatch() -> Job {
    Job { kind: "sysbatch".into(), ..system() }
}

#[test]
fn a_sysbatch_job_runs_once_on_every_node_whatever_becomes_of_it() {
    let job = sysbatch();
    let mut w = World::with("n1\nn2\nn3", &job);
    assert_eq!(w.places(), "n1:v0 n2:v0 n3:v0");
    end(&mut w, "n1", ClientStatus::Complete);
    end(&mut w, "n2", ClientStatus::Failed);
    assert!(w.run().plan.is_no_op(), "neither the end nor the failure is an occasion to begin again");
    // A new node gets one, also when all the others have ended.
    end(&mut w, "n3", ClientStatus::Complete);
    w.node("n4");
    w.run();
    assert_eq!(w.places(), "n4:v0");
    assert!(w.run().plan.is_no_op());
    // A person can have the failed one tried again.
    let failed =
        w.state.allocs_by_job(&key()).find(|a| a.client_status == ClientStatus::Failed).expect("there is one").id;
    w.mark(failed, DesiredTransition { force_reschedule: Some(true), ..DesiredTransition::default() });
    w.run();
    assert_eq!(w.places(), "n2:v0 n4:v0");
    // The next version runs everywhere.
    w.submit(&changed(&job));
    assert_eq!(w.places(), "n1:v1 n2:v1 n3:v1 n4:v1");
}

#[test]
fn what_a_sysbatch_job_has_not_done_to_its_end_is_done_again() {
    let mut w = World::with("n1\nn2\nn3", &sysbatch());
    // Lost with its node, and stopped by a drain.
    w.down("n1");
    w.drain("n2");
    let id = w.live().iter().find(|a| &*a.node_name == "n2").expect("there").id;
    w.mark(id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    w.run();
    w.killed(id);
    assert_eq!(w.places(), "n3:v0");
    w.node("n1");
    w.apply(vec![Change::NodeDrain {
        id: node_id("n2"),
        drain: None,
        mark_eligible: true,
        last_drain: None,
        event: None,
    }]);
    w.run();
    assert_eq!(w.places(), "n1:v0 n2:v0 n3:v0");
    assert!(w.run().plan.is_no_op());
}

#[test]
fn a_sysbatch_job_of_remote_tasks_runs_once_at_each_provider() {
    let line = |n: &str, provider: &str| format!("{n} driver=ecs:{provider}:1-1:0:0");
    let mut w = World::new(&line("n1", "east"));
    w.node(&line("n2", "west"));
    let mut job = sysbatch();
    job.task_groups[0].tasks[0].driver = "ecs".into();
    w.submit(&job);
    w.manage();
    assert_eq!((w.live().len(), w.slots().as_str()), (2, "0:east 1:west"));
    end(&mut w, "n1", ClientStatus::Complete);
    w.node(&line("n3", "east"));
    w.run();
    assert_eq!(w.live().len(), 1, "another node of the provider is no other place");
    w.node(&line("n4", "north"));
    w.run();
    assert_eq!(w.live().iter().filter(|a| &*a.node_name == "n4").count(), 1);
    assert!(w.run().plan.is_no_op());
}

#[test]
fn a_job_that_no_node_may_have_says_why() {
    let mut w = World::new("n1 attr.kernel=linux\nn2 attr.kernel=linux");
    let mut job = system();
    job.constraints =
        vec![model::Constraint { left: "${attr.kernel}".into(), operator: "=".into(), right: "windows".into() }];
    let d = w.submit(&job);
    let why = &d.failed_groups["g"];
    assert_eq!((why.nodes_filtered, why.constraint_filtered.get("${attr.kernel} = windows")), (2, Some(&2)), "{why:?}");
    assert!(d.queued["g"] == 0 && d.new_evals.is_empty(), "nothing waits for room: {:?}", d.new_evals);
    let eval = w.state.evals().next().expect("one").clone();
    assert!(eval.failed_groups.contains_key("g"));
    // A node that may have it ends that.
    w.node("n3 attr.kernel=windows");
    assert!(w.run().failed_groups.is_empty());
    assert_eq!(w.places(), "n3:v0");
    // And one that may not is no failure.
    w.node("n4 attr.kernel=linux");
    assert!(w.run().failed_groups.is_empty());
}

#[test]
fn a_node_that_is_cut_off_keeps_what_it_has_until_it_is_down() {
    let disconnected = |w: &mut World, status| {
        w.apply(vec![Change::NodeStatus { id: node_id("n1"), status, description: String::new(), event: None }]);
    };
    let mut w = World::with("n1\nn2", &system());
    w.all_healthy();
    disconnected(&mut w, NodeStatus::Disconnected);
    let d = w.run();
    assert!(d.plan.is_no_op(), "{:?}", d.plan);
    assert_eq!(w.places(), "n1:v0 n2:v0");
    disconnected(&mut w, NodeStatus::Down);
    w.run();
    assert_eq!(w.places(), "n2:v0");
}

#[test]
fn one_that_is_waited_for_is_unknown_meanwhile() {
    let mut w = World::new("n1\nn2");
    let mut job = system();
    job.task_groups[0].disconnect =
        Some(model::Disconnect { lost_after: Some(GoDuration::from_secs(60)), ..model::Disconnect::default() });
    w.submit(&job);
    w.all_healthy();
    w.apply(vec![Change::NodeStatus {
        id: node_id("n1"),
        status: NodeStatus::Disconnected,
        description: String::new(),
        event: None,
    }]);
    let d = w.run();
    let unknown = w.live().into_iter().find(|a| &*a.node_name == "n1").expect("it is waited for");
    assert_eq!(unknown.client_status, ClientStatus::Unknown);
    let later = d.new_evals.first().expect("somebody looks again").clone();
    assert_eq!((later.wait_until, later.trigger), (w.now + 60 * S, Trigger::MaxDisconnectTimeout));
    assert!(w.run().plan.is_no_op(), "once is enough");
    w.now += 60 * S;
    w.run_eval(&later);
    assert_eq!(w.places(), "n2:v0");
}

#[test]
fn a_changed_sysbatch_job_runs_again_and_its_former_run_is_done_with() {
    let mut w = World::new("n1");
    let mut job = system();
    job.kind = "sysbatch".into();
    w.submit(&job);
    let first = w.live()[0].id;
    w.report(first, ClientStatus::Complete, None);
    assert!(w.run().plan.is_no_op());
    w.submit(&changed(&job));
    assert_eq!(w.places(), "n1:v1");
    let first = w.state.alloc(first).expect("kept").clone();
    assert_eq!(
        (first.desired_status, &*first.desired_description),
        (DesiredStatus::Stop, "alloc is being updated due to job update")
    );
}
