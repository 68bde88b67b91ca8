//! What is placed, stopped, migrated, replaced, changed in place and rescheduled.

use model::{
    ClientStatus, DeploymentStatus, DesiredStatus, GoDuration, alloc::DesiredTransition, eval::Trigger,
    policy::Reschedule,
};
use scheduler::Memory;
use state::Change;

use crate::world::{S, World, batch, changed, key, node_id, rolling, service};

const THREE: &str = "n1\nn2\nn3";

#[test]
fn counts_and_names() {
    let mut w = World::new(THREE);
    let d = w.submit(&service(3));
    assert_eq!(d.annotations["g"].place, 3);
    assert_eq!(w.live().iter().map(|a| a.name.to_string()).collect::<Vec<_>>(), ["web.g[0]", "web.g[1]", "web.g[2]"]);
    w.submit(&service(5));
    assert_eq!(w.live().len(), 5);
    assert!(w.live().iter().all(|a| a.job_version == 1), "a changed count is taken over in place: {}", w.show());
    let d = w.submit(&service(2));
    assert_eq!(d.annotations["g"].stop, 3);
    assert_eq!(w.live().iter().map(|a| a.index()).collect::<Vec<_>>(), [0, 1], "the highest indexes go");
    // A hole is filled with the lowest free index.
    let gone = w.at(0).id;
    w.report(gone, ClientStatus::Complete, None);
    w.run();
    assert_eq!(w.live().iter().map(|a| a.index()).collect::<Vec<_>>(), [0, 1]);
    w.apply(vec![Change::StopJob(key())]);
    let d = w.run();
    assert_eq!(d.plan.stops.len(), 2);
    assert_eq!(w.show(), "");
    assert!(w.run().plan.is_no_op());
}

#[test]
fn groups_that_are_gone_are_stopped() {
    let mut w = World::new(THREE);
    let mut job = service(1);
    let mut second = job.task_groups[0].clone();
    second.name = "h".into();
    job.task_groups.push(second);
    w.submit(&job);
    assert_eq!(w.live().len(), 2);
    job.task_groups.pop();
    let d = w.submit(&job);
    assert_eq!(d.annotations["h"].stop, 1);
    assert_eq!(w.live().iter().map(|a| a.name.to_string()).collect::<Vec<_>>(), ["web.g[0]"]);
}

#[test]
fn a_changed_task_replaces_and_a_changed_policy_does_not() {
    let mut w = World::new(THREE);
    let mut job = service(2);
    w.submit(&job);
    let before: Vec<_> = w.live().iter().map(|a| a.id).collect();
    job.task_groups[0].tasks[0].kill_timeout = Some(GoDuration::from_secs(9));
    let d = w.submit(&job);
    assert_eq!((d.annotations["g"].in_place_update, d.plan.stops.len()), (2, 0));
    assert_eq!(w.live().iter().map(|a| a.id).collect::<Vec<_>>(), before);
    assert!(w.live().iter().all(|a| a.job_version == 1 && a.job.as_ref().is_some_and(|j| j.version == 1)));
    let d = w.submit(&changed(&job));
    assert_eq!(d.annotations["g"].destructive_update, 2);
    let replaced: Vec<_> = w.live().iter().map(|a| a.previous_allocation).collect();
    assert_eq!(replaced, before, "same names, and each knows what it replaces");
    assert!(before.iter().all(|id| {
        w.state.alloc(*id).is_some_and(|a| a.desired_status == DesiredStatus::Stop && !a.next_allocation.is_nil())
    }));
}

#[test]
fn a_constraint_that_the_node_no_longer_meets_replaces() {
    let mut w = World::new("n1 meta.a=1\nn2 meta.a=2");
    let mut job = service(1);
    w.submit(&job);
    let other = if &*w.at(0).node_name == "n1" { "2" } else { "1" };
    job.constraints.push(model::Constraint { left: "${meta.a}".into(), operator: "=".into(), right: other.into() });
    let d = w.submit(&job);
    assert_eq!(d.annotations["g"].destructive_update, 1);
    assert_eq!(w.show(), format!("0:n{other}:v1"));
}

#[test]
fn a_rolling_update_goes_step_by_step() {
    let mut w = World::new(THREE);
    let mut job = rolling(service(4), 2);
    let d = w.submit(&job);
    let first = d.plan.deployment.expect("a service with an update policy has a deployment").id;
    assert_eq!(w.live().len(), 4, "the first version is placed at once");
    assert_eq!(
        w.state.deployment(first).map(|d| (d.groups["g"].desired_total, d.groups["g"].placed_allocs)),
        Some((4, 4))
    );
    w.all_healthy();
    let d = w.run();
    assert_eq!(d.plan.deployment_updates.first().map(|u| u.status), Some(DeploymentStatus::Successful));
    assert!(w.state.job(&key()).is_some_and(|j| j.stable));

    job.task_groups[0].tasks[0].user = "u".into();
    let d = w.submit(&job);
    assert_eq!((d.annotations["g"].destructive_update, d.annotations["g"].ignore), (2, 2));
    assert_eq!(w.live().iter().map(|a| a.job_version).collect::<Vec<_>>(), [1, 1, 0, 0]);
    assert!(w.run().plan.is_no_op(), "nothing is healthy yet");
    let id = w.at(0).id;
    w.report(id, ClientStatus::Running, Some(true));
    w.run();
    assert_eq!(w.live().iter().map(|a| a.job_version).collect::<Vec<_>>(), [1, 1, 1, 0], "one healthy, one more");
    // An unhealthy one stops the roll-out.
    let id = w.at(1).id;
    w.report(id, ClientStatus::Running, Some(false));
    assert!(w.run().plan.is_no_op());
    assert_eq!(w.state.latest_deployment(&key()).map(|d| d.status), Some(DeploymentStatus::Running));

    // A newer version cancels it and goes on from there.
    job.task_groups[0].tasks[0].user = "v".into();
    let d = w.submit(&job);
    assert_eq!(d.plan.deployment_updates[0].description, "Cancelled due to newer version of job");
    assert_eq!(w.live().iter().filter(|a| a.job_version == 2).count(), 2);
    for _ in 0..4 {
        w.all_healthy();
        w.run();
    }
    assert!(w.live().iter().all(|a| a.job_version == 2));
    assert_eq!(w.state.latest_deployment(&key()).map(|d| d.status), Some(DeploymentStatus::Successful));
}

#[test]
fn a_paused_or_failed_deployment_goes_no_further_but_losses_are_replaced() {
    for status in [DeploymentStatus::Paused, DeploymentStatus::Failed] {
        let mut w = World::new(THREE);
        let mut job = rolling(service(3), 1);
        w.submit(&job);
        w.all_healthy();
        w.run();
        job.task_groups[0].tasks[0].user = "u".into();
        w.submit(&job);
        w.all_healthy();
        let id = w.state.latest_deployment(&key()).expect("there is one").id;
        w.apply(vec![Change::DeploymentStatus(model::plan::DeploymentUpdate {
            id,
            status,
            description: String::new(),
        })]);
        assert!(w.run().plan.is_no_op(), "{status:?}");
        let lost = w.at(2);
        w.down(&lost.node_name);
        w.run();
        assert_eq!(w.at(2).previous_allocation, lost.id);
    }
}

#[test]
fn lost_nodes() {
    let mut w = World::with(THREE, &service(3));
    let lost: Vec<_> = w.live().into_iter().filter(|a| &*a.node_name == "n1").collect();
    w.down("n1");
    let d = w.run();
    assert!(d.plan.stops.iter().all(|s| s.client_status == Some(ClientStatus::Lost)));
    assert_eq!(d.plan.stops.len(), lost.len());
    for old in &lost {
        let new = w.at(old.index());
        assert_eq!((new.previous_allocation, new.name.clone()), (old.id, old.name.clone()));
        assert_eq!(w.state.alloc(old.id).map(|a| a.client_status), Some(ClientStatus::Lost));
    }
    assert_eq!(w.live().len(), 3);
    assert!(w.run().plan.is_no_op());
    // A node that is gone altogether is a lost node, too.
    let name = w.at(0).node_name.clone();
    w.apply(vec![Change::DeleteNode(node_id(&name))]);
    w.run();
    assert_ne!(w.at(0).node_name, name);
}

#[test]
fn what_was_told_to_stop_on_a_lost_node_is_lost() {
    let mut w = World::with("n1", &service(1));
    let id = w.at(0).id;
    w.apply(vec![Change::StopJob(key())]);
    w.run();
    assert_eq!(w.state.alloc(id).map(|a| a.client_status), Some(ClientStatus::Pending));
    w.down("n1");
    w.run();
    assert_eq!(w.state.alloc(id).map(|a| a.client_status), Some(ClientStatus::Lost));
    assert!(w.run().plan.is_no_op());
}

#[test]
fn a_drain_moves_what_is_marked() {
    let mut w = World::with("n1\nn2", &service(4));
    let there: Vec<_> = w.live().into_iter().filter(|a| &*a.node_name == "n1").collect();
    w.drain("n1");
    assert!(w.run().plan.is_no_op(), "the drainer says when");
    w.mark(there[0].id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    let d = w.run();
    assert_eq!(d.annotations["g"].migrate, 1);
    let new = w.at(there[0].index());
    assert_eq!((&*new.node_name, new.previous_allocation), ("n2", there[0].id));
    assert_eq!(
        w.state.alloc(there[0].id).map(|a| a.desired_description.clone()).as_deref(),
        Some("alloc is being migrated")
    );
}

#[test]
fn a_stop_may_count_as_an_attempt_to_reschedule() {
    let attempts = |reschedule: Option<bool>| {
        let mut w = World::with("n1\nn2", &service(1));
        let old = w.at(0);
        w.mark(old.id, DesiredTransition { migrate: Some(true), reschedule, ..DesiredTransition::default() });
        w.run();
        let new = w.at(0);
        assert_eq!(new.previous_allocation, old.id);
        let nodes: Vec<_> = new.reschedule_tracker.iter().flat_map(|t| &t.events).map(|e| e.prev_node_id).collect();
        (nodes == [old.node_id], nodes.len(), new.node_id == old.node_id)
    };
    assert_eq!(attempts(Some(true)), (true, 1, false), "put on record, and on another node");
    assert_eq!(attempts(None).1, 0, "a plain stop is no attempt");
}

#[test]
fn a_drain_without_room_breaks_nothing() {
    let mut w = World::with("n1", &service(1));
    w.drain("n1");
    let id = w.at(0).id;
    w.mark(id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    let d = w.run();
    assert!(d.plan.stops.is_empty());
    assert_eq!(d.queued["g"], 1);
    assert_eq!(w.at(0).id, id);
    let blocked = w.blocked();
    assert_eq!(blocked.len(), 1);
    w.run();
    assert_eq!(w.blocked().iter().map(|e| e.id).collect::<Vec<_>>(), [blocked[0].id], "one is enough");
    w.node("n2");
    w.run();
    assert_eq!(w.show(), "0:n2:v0");
    assert!(w.blocked().is_empty(), "nothing is left to wait for");
}

#[test]
fn failures_are_rescheduled_after_a_pause() {
    let mut w = World::new(THREE);
    let mut job = service(1);
    job.task_groups[0].reschedule =
        Some(Reschedule { delay: Some(GoDuration::from_secs(30)), ..Reschedule::defaults() });
    w.submit(&job);
    let failed = w.fail(0);
    let node = w.state.alloc(failed).expect("there").node_name.clone();
    let d = w.run();
    assert_eq!(d.annotations["g"].reschedule_later, 1);
    assert_eq!(d.new_evals.len(), 1);
    let later = d.new_evals[0].clone();
    assert_eq!((later.trigger, later.wait_until), (Trigger::AllocFailure, w.now + 30 * S));
    assert_eq!(w.state.alloc(failed).map(|a| a.followup_eval_id), Some(later.id));
    assert!(w.run().new_evals.is_empty(), "it is on its way");
    w.now += 30 * S;
    let d = w.run_eval(&later);
    assert_eq!(d.annotations["g"].reschedule_now, 1);
    let new = w.at(0);
    assert_eq!(new.previous_allocation, failed);
    assert_ne!(new.node_name, node, "where it has failed is the last choice");
    let events = &new.reschedule_tracker.as_ref().expect("it has a history").events;
    assert_eq!((events.len(), events[0].prev_alloc_id, events[0].delay), (1, failed, GoDuration::from_secs(30)));
    // The second pause is twice as long.
    w.now += S;
    w.fail(0);
    assert_eq!(w.run().new_evals[0].wait_until, w.now + 60 * S);
}

#[test]
fn what_waits_in_an_older_version_is_no_part_of_a_deployment() {
    let mut w = World::new(THREE);
    let mut job = rolling(service(2), 1);
    let hour = Some(GoDuration::from_secs(3600));
    job.task_groups[0].reschedule =
        Some(Reschedule { delay: hour, delay_function: Some("constant".into()), ..Reschedule::defaults() });
    w.submit(&job);
    w.all_healthy();
    w.run();
    let failed = w.fail(0);
    assert_eq!(w.run().annotations["g"].reschedule_later, 1);
    job.stop = true;
    w.submit(&job);
    job.stop = false;
    // The same again: what has failed waits for its time, and the deployment is about the other one.
    let d = w.submit(&job);
    assert_eq!(d.plan.deployment.map(|d| d.groups["g"].desired_total), Some(1));
    assert_eq!((w.live().len(), w.live()[0].index()), (1, 1));
    w.all_healthy();
    assert_eq!(w.run().plan.deployment_updates.first().map(|u| u.status), Some(DeploymentStatus::Successful));
    assert!(w.state.alloc(failed).is_some_and(|a| a.next_allocation.is_nil()));
}

#[test]
fn failures_beyond_the_policy_stay() {
    let mut w = World::with(THREE, &batch(1));
    w.fail(0);
    let later = w.run().new_evals[0].clone();
    w.now += 5 * S;
    w.run_eval(&later);
    w.fail(0);
    let d = w.run();
    assert!(d.plan.is_no_op() && d.new_evals.is_empty(), "one attempt in a day");
    assert_eq!(w.show(), "");
    // A person may insist.
    let id = w.allocs().last().expect("there").id;
    w.mark(id, DesiredTransition { force_reschedule: Some(true), ..DesiredTransition::default() });
    w.run();
    assert_eq!(w.live().len(), 1);
}

/// A person does not wait; the pauses grow all the same.
#[test]
fn a_forced_attempt_counts_with_the_pause_that_the_policy_would_have_had() {
    let mut w = World::with(THREE, &service(1));
    for (attempt, pause) in [30, 60].into_iter().enumerate() {
        w.now += S;
        let failed = w.fail(0);
        assert_eq!(w.run().new_evals[0].wait_until, w.now + pause * S);
        w.mark(failed, DesiredTransition { force_reschedule: Some(true), ..DesiredTransition::default() });
        w.run();
        let new = w.at(0);
        let events = &new.reschedule_tracker.as_ref().expect("it has a history").events;
        assert_eq!((new.previous_allocation, events.len()), (failed, attempt + 1));
        assert_eq!((events[attempt].delay, events[attempt].time), (GoDuration::from_secs(pause), w.now));
    }
}

#[test]
fn within_a_deployment_the_watcher_decides_about_failures() {
    let mut w = World::with(THREE, &rolling(service(2), 1));
    let failed = w.fail(0);
    w.now += 60 * S;
    assert!(w.run().plan.is_no_op());
    w.mark(failed, DesiredTransition { reschedule: Some(true), ..DesiredTransition::default() });
    w.run();
    assert_eq!(w.at(0).previous_allocation, failed);
}

/// What was cut short by a drain or by a person has not done its work, however politely it went.
#[test]
fn a_batch_task_that_was_ended_is_run_again() {
    let mut w = World::with("n1\nn2", &batch(1));
    let first = w.at(0);
    w.drain(&first.node_name);
    w.mark(first.id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    w.run();
    w.killed(first.id);
    w.run();
    let second = w.at(0);
    assert_eq!((w.live().len(), second.previous_allocation), (1, first.id), "{}", w.show());
    assert!(w.run().plan.is_no_op(), "and stays");
    // Nor does it stand in for what replaced it.
    w.down(&second.node_name);
    w.node("n3");
    w.run();
    let second = w.at(0);
    assert_eq!((w.live().len(), &*second.node_name), (1, "n3"), "{}", w.show());
    // One that had ended before it was told to has done it.
    w.mark(second.id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
    w.report(second.id, ClientStatus::Complete, None);
    w.run();
    assert_eq!(w.show(), "");
}

#[test]
fn batch_success_stands_for_good() {
    let mut w = World::new(THREE);
    let job = batch(2);
    w.submit(&job);
    let id = w.at(0).id;
    w.report(id, ClientStatus::Complete, None);
    assert!(w.run().plan.is_no_op());
    let id = w.at(1).id;
    w.report(id, ClientStatus::Complete, None);
    w.down("n1");
    w.down("n2");
    assert!(w.run().plan.is_no_op(), "what has ended cannot be lost");
    assert_eq!(w.state.job(&key()).map(|j| j.status.clone()).as_deref(), Some("dead"));
    // A new version runs again, as a whole.
    w.submit(&changed(&job));
    assert_eq!(w.live().len(), 2);
}

#[test]
fn a_service_that_ends_is_started_again() {
    let mut w = World::with(THREE, &service(1));
    let id = w.at(0).id;
    w.report(id, ClientStatus::Complete, None);
    w.run();
    assert_ne!(w.at(0).id, id);
}

#[test]
fn a_destructive_update_fits_into_its_own_room() {
    let mut w = World::new("n1 cpu=600");
    let mut job = service(1);
    w.submit(&job);
    job.task_groups[0].tasks[0].user = "u".into();
    let d = w.submit(&job);
    assert!(d.failed_groups.is_empty());
    assert_eq!(w.show(), "0:n1:v1");
    // Too large for the node: the old one stays.
    job.task_groups[0].tasks[0].resources.cpu = Some(700);
    let d = w.submit(&job);
    assert_eq!(d.failed_groups["g"].dimension_exhausted.get("cpu"), Some(&1));
    assert_eq!(w.show(), "0:n1:v1");
    w.check_room();
}

#[test]
fn what_is_to_stop_leaves_its_room_to_others_when_it_has_ended() {
    let mut w = World::new("n1 cpu=600 cores=2");
    let mut job = service(1);
    let port = model::network::Port { label: "hack".into(), value: 7234, ..model::network::Port::default() };
    job.task_groups[0].networks = vec![model::Network { reserved_ports: vec![port], ..model::Network::default() }];
    w.submit(&job);
    let first = w.at(0).id;
    w.report(first, ClientStatus::Running, None);
    let mut stopped = job.clone();
    stopped.stop = true;
    w.submit(&stopped);
    // It runs on for its shutdown_delay, with its port and its share.
    for (dimension, change) in [("network: reserved port collision hack=7234", 50), ("cpu", 550)] {
        let mut other = job.clone();
        other.id = format!("other-{change}").into();
        other.task_groups[0].tasks[0].resources.cpu = Some(change);
        if change == 550 {
            other.task_groups[0].networks.clear();
        }
        let d = w.submit_as(&other);
        assert_eq!(d.queued["g"], 1, "{dimension}: {d:?}");
        let exhausted = &d.failed_groups["g"].dimension_exhausted;
        assert!(exhausted.len() == 1 && exhausted.keys().all(|k| k.contains(dimension)), "{dimension}: {exhausted:?}");
    }
    w.killed(first);
    let mut other = job;
    other.id = "after".into();
    let d = w.submit_as(&other);
    assert!(d.failed_groups.is_empty(), "{:?}", d.failed_groups);
}

#[test]
fn all_at_once_places_all_or_nothing() {
    let mut w = World::new("n1 cpu=1200");
    let mut job = service(3);
    job.all_at_once = true;
    let d = w.submit(&job);
    assert_eq!((w.show().as_str(), d.queued["g"]), ("", 3));
    w.node("n2");
    w.run();
    assert_eq!(w.live().len(), 3);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let mut w = World::new("n1");
    let mut job = service(1);
    job.kind = "odd".into();
    w.register(&job);
    let eval = w.eval();
    let e = scheduler::schedule(&w.state, &eval, 0, 0).expect_err("no such kind");
    assert!(e.to_string().contains("\"odd\""), "{e}");
}

#[test]
fn what_was_lost_without_room_comes_back_even_in_a_failed_deployment() {
    let mut w = World::with("n1", &rolling(service(2), 1));
    let id = w.state.latest_deployment(&key()).expect("there is one").id;
    let failed = model::plan::DeploymentUpdate { id, status: DeploymentStatus::Failed, description: String::new() };
    w.apply(vec![Change::DeploymentStatus(failed)]);
    let lost: Vec<_> = w.live().iter().map(|a| a.id).collect();
    w.down("n1");
    let d = w.run();
    assert_eq!((w.show().as_str(), d.queued["g"]), ("", 2));
    assert_eq!(w.run().queued["g"], 2, "they are not forgotten");
    w.node("n2");
    w.run();
    assert_eq!(w.live().iter().map(|a| a.previous_allocation).collect::<Vec<_>>(), lost);
}

#[test]
fn a_count_that_nobody_can_hold_costs_nothing() {
    // Such a job may have been stored before there was a limit.
    let mut w = World::new("n1 cpu=1000");
    let mut job = service(100_000_000);
    let mut other = job.task_groups[0].clone();
    other.name = "h".into();
    job.task_groups.push(other);
    let d = w.submit(&job);
    assert_eq!(w.live().len(), 2, "what fits is placed");
    assert_eq!((d.queued["g"], d.queued["h"]), (99_999_998, 100_000_000), "the rest is counted");
    assert_eq!(d.annotations["g"].place, 100_000_000);
    let why = &d.failed_groups["h"].quota_exhausted;
    assert!(why.len() == 1 && why[0].contains("job_max_count"), "{why:?}");
    assert_eq!(d.new_evals.len(), 1, "one evaluation waits for all of it");

    // Where a node has room without an end, the limit is what there is at most, over all groups, also in later
    // evaluations.
    let mut w = World::new("n1 driver=ecs:a:1-1:0:0");
    for group in &mut job.task_groups {
        group.tasks[0].driver = "ecs".into();
    }
    w.register(&job);
    let within = |w: &mut World| {
        let eval = w.eval();
        let d = scheduler::schedule_within(&w.state, &eval, w.now, w.seed, most(30), &mut Memory::default())
            .expect("a service");
        w.apply(vec![Change::ApplyPlan(Box::new(d.plan.clone()))]);
        d
    };
    let d = within(&mut w);
    assert_eq!((w.live().len(), d.queued["g"], d.queued["h"]), (30, 99_999_970, 100_000_000));
    within(&mut w);
    assert_eq!(w.live().len(), 30);
    // It can be made smaller, and stopped.
    for group in &mut job.task_groups {
        group.count = Some(10);
    }
    w.register(&job);
    within(&mut w);
    assert_eq!(w.live().len(), 20);
}

#[test]
fn canaries_beyond_what_a_job_may_have_are_not_made() {
    let mut w = World::new("n1 cpu=100000 mem=100000");
    let mut job = rolling(service(2), 1);
    w.submit(&job);
    job.task_groups[0].update.as_mut().expect("rolling").canary = Some(100_000_000);
    job.task_groups[0].tasks[0].user = "u".into();
    w.register(&job);
    let eval = w.eval();
    let d =
        scheduler::schedule_within(&w.state, &eval, w.now, w.seed, most(5), &mut Memory::default()).expect("a service");
    let placed: usize = d.plan.placements.values().map(Vec::len).sum();
    assert_eq!((placed, d.annotations["g"].canary), (3, 3));
}

fn most(most_of_a_job: u32) -> scheduler::Bounds {
    scheduler::Bounds { most_of_a_job, ..scheduler::Bounds::default() }
}
