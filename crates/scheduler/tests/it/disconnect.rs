//! Nodes that are cut off: what is waited for, what is replaced, and which one stays afterwards.

use std::sync::Arc;

use model::{
    AllocClientUpdate, AllocId, ClientStatus, DeploymentStatus, DesiredStatus, Disconnect, Evaluation, GoDuration,
    Happening, Job, NodeStatus, TaskRunState, TaskState, alloc::AllocStateChange, eval::Trigger,
};
use scheduler::node_patience;
use state::Change;

use crate::world::{S, World, batch, changed, node_id, rolling, service};

/// A job that waits a minute for its nodes.
fn patient(mut job: Job, replace: bool, reconcile: &str) -> Job {
    job.task_groups[0].disconnect = Some(Disconnect {
        lost_after: Some(GoDuration::from_secs(60)),
        stop_on_client_after: None,
        replace: Some(replace),
        reconcile: Some(reconcile.to_owned()),
    });
    job
}

impl World {
    /// What the servers do when its lease runs out.
    fn cut_off(&mut self, name: &str) -> NodeStatus {
        let patience = node_patience(&self.state, node_id(name), self.now);
        let status = if patience.is_some() { NodeStatus::Disconnected } else { NodeStatus::Down };
        self.apply(vec![Change::NodeStatus { id: node_id(name), status, description: String::new(), event: None }]);
        status
    }

    fn returns(&mut self, name: &str) {
        let change = Change::NodeStatus {
            id: node_id(name),
            status: NodeStatus::Ready,
            description: String::new(),
            event: None,
        };
        self.apply(vec![change]);
    }

    /// Everything that is wanted on the node runs, since that time.
    fn speaks(&mut self, name: &str, since: i64) {
        let ids: Vec<AllocId> = self.live().iter().filter(|a| *a.node_name == *name).map(|a| a.id).collect();
        let task = TaskState { state: TaskRunState::Running, started_at: since.into(), ..TaskState::default() };
        let update = |id: AllocId| AllocClientUpdate {
            id,
            client_status: ClientStatus::Running,
            task_states: [(Arc::from("t"), task.clone())].into(),
            ..AllocClientUpdate::default()
        };
        self.apply(vec![Change::UpdateAllocsFromClient(ids.into_iter().map(update).collect())]);
    }

    /// `index:node:status` of what is wanted.
    fn wanted(&self) -> String {
        let wanted =
            self.allocs().into_iter().filter(|a| a.desired_status == DesiredStatus::Run && !a.client_terminal());
        wanted.map(|a| format!("{}:{}:{:?}", a.index(), a.node_name, a.client_status)).collect::<Vec<_>>().join(" ")
    }

    /// The follow-up evaluation that waits.
    fn waiting(&self) -> Option<Evaluation> {
        let waits = |e: &&Arc<Evaluation>| !e.status.terminal() && e.wait_until > 0;
        self.state.evals().filter(waits).max_by_key(|e| e.wait_until).map(|e| Evaluation::clone(e))
    }
}

/// `n1` runs it, `n2` can take over.
fn two(job: &Job) -> World {
    let mut w = World::new("n1");
    w.submit(job);
    w.node("n2");
    let now = w.now;
    w.speaks("n1", now);
    w.now += 10 * S;
    w
}

#[test]
fn without_patience_a_node_is_down_and_what_it_had_is_lost() {
    let mut w = two(&service(1));
    assert_eq!(w.cut_off("n1"), NodeStatus::Down);
    w.run();
    assert_eq!(w.wanted(), "0:n2:Pending");
}

#[test]
fn what_is_waited_for_is_unknown_and_replaced_meanwhile() {
    let mut w = two(&patient(service(1), true, "keep_original"));
    let original = w.at(0).id;
    assert_eq!(w.cut_off("n1"), NodeStatus::Disconnected);
    let d = w.run();
    assert_eq!((d.annotations["g"].disconnect, d.annotations["g"].place), (1, 1));
    assert_eq!(w.wanted(), "0:n1:Unknown 0:n2:Pending");
    let a = w.state.alloc(original).expect("it stays").clone();
    assert!(a.alloc_states.last().is_some_and(|s| s.value == AllocStateChange::UNKNOWN && s.field == "ClientStatus"));
    let waiting = w.waiting().expect("somebody looks again");
    assert_eq!((waiting.trigger, waiting.wait_until), (Trigger::MaxDisconnectTimeout, w.now + 60 * S));
    assert_eq!(a.followup_eval_id, waiting.id);
    // Deciding again changes nothing.
    let now = w.now;
    w.speaks("n2", now);
    assert!(w.run().plan.is_no_op());
    // Its time is up.
    w.now = waiting.wait_until;
    w.run_eval(&waiting);
    assert_eq!(w.wanted(), "0:n2:Running");
    assert_eq!(w.state.alloc(original).expect("it").client_status, ClientStatus::Lost);
    assert_eq!(node_patience(&w.state, node_id("n1"), w.now), None, "nothing is left to wait for: the node is down");
}

#[test]
fn which_one_stays() {
    // policy, the original began before the replacement, node that stays
    for (reconcile, earlier, stays) in [
        ("keep_original", false, "n1"),
        ("keep_replacement", true, "n2"),
        ("longest_running", true, "n1"),
        ("longest_running", false, "n2"),
        ("best_score", true, "n1"),
    ] {
        let mut w = two(&patient(service(1), true, reconcile));
        w.cut_off("n1");
        w.run();
        let now = w.now;
        w.speaks("n2", now);
        w.returns("n1");
        assert!(w.run().plan.is_no_op(), "it has not spoken yet");
        assert_eq!(w.wanted(), "0:n1:Unknown 0:n2:Running");
        w.speaks("n1", if earlier { now - 5 * S } else { now + 5 * S });
        let d = w.run();
        assert_eq!(d.annotations["g"].reconnect, 1);
        assert_eq!(w.wanted(), format!("0:{stays}:Running"), "{reconcile}");
        assert!(w.run().plan.is_no_op());
    }
}

#[test]
fn the_better_score_stays() {
    let mut w = two(&patient(service(1), true, "best_score"));
    w.cut_off("n1");
    w.run();
    let now = w.now;
    w.speaks("n2", now);
    // The replacement was placed on a node that fits much better.
    let mut better = model::Allocation::clone(w.live().iter().find(|a| &*a.node_name == "n2").expect("placed"));
    let mut metrics = model::AllocMetric::clone(better.metrics.as_ref().expect("an account"));
    metrics.score_meta_data.iter_mut().for_each(|s| s.norm_score += 1.0);
    better.metrics = Some(Arc::new(metrics));
    w.apply(vec![Change::UpsertAllocs(vec![better])]);
    w.returns("n1");
    w.speaks("n1", now);
    w.run();
    assert_eq!(w.wanted(), "0:n2:Running");
}

#[test]
fn a_replacement_that_does_not_run_or_has_failed_makes_way() {
    for failed in [false, true] {
        let mut w = two(&patient(service(1), true, "keep_replacement"));
        w.cut_off("n1");
        w.run();
        if failed {
            let replacement = w.live().into_iter().find(|a| &*a.node_name == "n2").expect("placed").id;
            w.report(replacement, ClientStatus::Failed, None);
            w.run();
        }
        w.returns("n1");
        let now = w.now;
        w.speaks("n1", now);
        w.run();
        assert_eq!(w.wanted(), "0:n1:Running", "failed: {failed}");
        w.now += 7200 * S;
        assert!(w.run().plan.is_no_op(), "nobody tries the failed one again");
    }
}

#[test]
fn a_newer_version_stays_whatever_the_policy_says() {
    let mut job = patient(service(1), true, "keep_original");
    let mut w = two(&job);
    w.cut_off("n1");
    w.run();
    let now = w.now;
    w.speaks("n2", now);
    job.task_groups[0].tasks[0].env.insert("A".into(), "1".into());
    w.node("n3");
    w.submit(&job);
    for n in ["n2", "n3"] {
        w.speaks(n, now);
    }
    w.returns("n1");
    w.speaks("n1", now);
    w.run();
    assert_eq!(w.show().matches(":v1").count(), 1, "{}", w.show());
    assert_eq!(w.live().len(), 1, "{}", w.show());
}

#[test]
fn without_replacement_it_is_waited_for_in_its_place() {
    for older in [false, true] {
        let mut job = service(1);
        if older {
            job.task_groups[0].prevent_reschedule_on_lost = Some(true);
        } else {
            job = patient(job, false, "best_score");
            job.task_groups[0].disconnect.as_mut().expect("given").lost_after = None;
        }
        let mut w = two(&job);
        assert_eq!(w.cut_off("n1"), NodeStatus::Disconnected);
        w.run();
        assert_eq!(w.wanted(), "0:n1:Unknown");
        assert_eq!(w.waiting(), None, "as long as it takes");
        w.now += 86_400 * S;
        assert!(w.run().plan.is_no_op());
        // Not even an update replaces it.
        w.submit(&changed(&job));
        assert_eq!(w.wanted(), "0:n1:Unknown");
        w.returns("n1");
        let now = w.now;
        w.speaks("n1", now);
        w.run();
        assert_eq!(w.live().len(), 1);
        assert_eq!(w.at(0).job_version, 1, "now it follows");
    }
}

#[test]
fn a_drain_a_purge_a_stop_and_a_smaller_count_end_the_wait() {
    let job = patient(service(2), true, "keep_original");
    let cut = || {
        let mut w = two(&job);
        w.cut_off("n1");
        w.run();
        let now = w.now;
        w.speaks("n2", now);
        assert_eq!(w.wanted(), "0:n1:Unknown 0:n2:Running 1:n1:Unknown 1:n2:Running");
        w
    };
    let mut w = cut();
    w.drain("n1");
    w.run();
    assert_eq!(w.wanted(), "0:n2:Running 1:n2:Running");
    let mut w = cut();
    w.apply(vec![Change::DeleteNode(node_id("n1"))]);
    w.run();
    assert_eq!(w.wanted(), "0:n2:Running 1:n2:Running");
    let mut w = cut();
    let mut smaller = job.clone();
    smaller.task_groups[0].count = Some(1);
    w.submit(&smaller);
    assert_eq!(w.wanted(), "0:n1:Unknown 0:n2:Running");
    let mut w = cut();
    w.apply(vec![Change::StopJob(crate::world::key())]);
    w.run();
    assert_eq!(w.wanted(), "");
    // A node that drains is not waited for in the first place.
    let mut w = two(&job);
    w.drain("n1");
    assert_eq!(w.cut_off("n1"), NodeStatus::Down);
}

#[test]
fn what_its_node_stops_by_itself_is_replaced_after_that() {
    let mut job = service(2);
    job.task_groups[0].stop_after_client_disconnect = Some(GoDuration::from_secs(30));
    job.task_groups[0].tasks[0].kill_timeout = Some(GoDuration::from_secs(7));
    let mut w = two(&job);
    assert_eq!(w.cut_off("n1"), NodeStatus::Down);
    w.run();
    assert_eq!(w.wanted(), "", "lost, and not replaced while its node may run it");
    assert!(w.run().plan.is_no_op());
    let waiting = w.waiting().expect("somebody looks again");
    assert_eq!(waiting.wait_until, w.now + 37 * S, "and the time that stopping may take");
    w.now = waiting.wait_until;
    w.run_eval(&waiting);
    assert_eq!(w.wanted(), "0:n2:Pending 1:n2:Pending");
    assert!(w.live().iter().all(|a| !a.previous_allocation.is_nil()));
}

#[test]
fn a_result_of_a_batch_job_that_comes_back_ends_what_replaced_it() {
    let mut w = two(&patient(batch(1), true, "keep_replacement"));
    let original = w.at(0).id;
    w.cut_off("n1");
    w.run();
    let now = w.now;
    w.speaks("n2", now);
    w.returns("n1");
    w.report(original, ClientStatus::Complete, None);
    w.run();
    assert_eq!(w.wanted(), "", "the work is done");
}

#[test]
fn remote_tasks_change_their_manager_at_once_whatever_the_job_says() {
    for (replace, stop_after) in [(true, None), (false, None), (true, Some(30))] {
        let mut job = patient(service(1), replace, "keep_original");
        if let Some(after) = stop_after {
            let d = job.task_groups[0].disconnect.as_mut().expect("given");
            (d.lost_after, d.stop_on_client_after) = (None, Some(GoDuration::from_secs(after)));
        }
        job.task_groups[0].tasks[0].driver = "ecs".into();
        let mut w = World::with("n1 driver=ecs:a:1-1:0:0", &job);
        w.node("n2 driver=ecs:a:1-1:0:0");
        assert_eq!(w.cut_off("n1"), NodeStatus::Down);
        w.run();
        assert_eq!(w.wanted(), "0:n2:Pending");
        assert_eq!(w.waiting(), None);
        w.returns("n1");
        assert!(w.run().plan.is_no_op(), "coming back does nothing");
    }
}

#[test]
fn a_roll_out_goes_on_around_what_is_cut_off() {
    let job = patient(rolling(service(3), 3), true, "keep_replacement");
    let mut w = World::with("n1\nn2\nn3\nn4", &job);
    w.all_healthy();
    w.run();
    let gone = w.at(0).node_name.to_string();
    w.cut_off(&gone);
    w.run();
    w.all_healthy_but(&gone);
    w.submit(&changed(&job));
    for _ in 0..4 {
        w.all_healthy_but(&gone);
        w.run();
    }
    assert_eq!(w.show().matches(":v1").count(), 3, "{}", w.show());
    let d = w.state.latest_deployment(&crate::world::key()).expect("one").clone();
    assert_eq!(d.status, model::DeploymentStatus::Successful);
}

impl World {
    fn all_healthy_but(&mut self, node: &str) {
        for a in self.live().iter().filter(|a| &*a.node_name != node) {
            self.report(a.id, ClientStatus::Running, Some(true));
        }
    }
}

#[test]
fn what_takes_the_place_of_one_that_is_cut_off_has_it_on_record() {
    let mut w = World::with("n1", &patient(service(1), true, "best_score"));
    w.speaks("n1", w.now);
    let original = w.at(0).id;
    w.node("n2");
    w.cut_off("n1");
    w.run();
    let replacement = w.live().into_iter().find(|a| &*a.node_name == "n2").expect("replaced");
    let tracker = replacement.reschedule_tracker.as_ref().expect("an attempt");
    assert_eq!(tracker.last_reschedule, "ok");
    let events = &tracker.events;
    let attempts: Vec<_> = events.iter().map(|e| (e.prev_alloc_id, e.prev_node_id, e.time, e.delay)).collect();
    assert_eq!(attempts, [(original, node_id("n1"), w.now, GoDuration::from_secs(30))]);
}

/// Placements of one plan share an account, which shows the best nodes of the first of them.
#[test]
fn one_whose_node_no_account_shows_has_the_score_of_the_best() {
    let nodes: Vec<String> = (1..=8).map(|n| format!("n{n}")).collect();
    let lines: String = nodes.iter().map(|n| format!("{n} cpu=600\n")).collect();
    let mut w = World::with(&lines, &patient(service(8), true, "best_score"));
    let unseen = |a: &&Arc<model::Allocation>| {
        let m = a.metrics.as_ref().expect("an account");
        m.score_meta_data.iter().all(|s| s.node_id != a.node_id)
    };
    let original = w.live().iter().find(unseen).expect("one account shows five nodes").clone();
    for node in &nodes {
        w.speaks(node, w.now);
    }
    w.node("big cpu=40000 mem=80000");
    w.cut_off(&original.node_name);
    w.run();
    assert_eq!(w.by_node().get("big"), Some(&1), "nowhere else is room");
    w.speaks("big", w.now);
    w.returns(&original.node_name);
    w.speaks(&original.node_name, w.now);
    assert_eq!(w.run().annotations["g"].reconnect, 1);
    assert!(!w.by_node().contains_key("big"), "an empty large node scores less: {}", w.wanted());
}

#[test]
fn a_failure_does_not_count_on_the_follow_up_of_its_disconnection() {
    let mut w = two(&patient(service(1), false, "keep_original"));
    let id = w.at(0).id;
    w.cut_off("n1");
    w.run();
    assert_eq!(w.waiting().expect("somebody looks again").wait_until, w.now + 60 * S);
    w.returns("n1");
    w.report(id, ClientStatus::Failed, None);
    w.run();
    let followup = w.state.alloc(id).expect("a record").followup_eval_id;
    let followup = w.state.eval(followup).expect("one of its own").clone();
    assert_eq!((followup.trigger, followup.wait_until), (Trigger::AllocFailure, w.now + 30 * S));
    assert!(w.run().plan.is_no_op(), "one is enough");
}

#[test]
fn a_system_job_that_waits_for_nobody_any_more_gives_up_what_is_unknown() {
    let job = Job { kind: "system".into(), ..patient(service(1), false, "keep_original") };
    let mut w = World::with("n1", &job);
    let id = w.at(0).id;
    w.speaks("n1", w.now);
    assert_eq!(w.cut_off("n1"), NodeStatus::Disconnected);
    w.run();
    assert_eq!(w.wanted(), "0:n1:Unknown");
    let mut job = job;
    job.task_groups[0].disconnect = None;
    w.submit(&job);
    assert_eq!(w.state.alloc(id).expect("a record").client_status, ClientStatus::Lost);
}

/// One that its node stops when it is cut off for five seconds.
fn stopped_when_cut_off(job: Job) -> Job {
    let mut job = patient(job, false, "keep_original");
    let disconnect = job.task_groups[0].disconnect.as_mut().expect("given");
    (disconnect.lost_after, disconnect.stop_on_client_after) = (None, Some(GoDuration::from_secs(5)));
    job
}

/// Its node reports that it is complete, with these events of its task: `Killing*` has the mark of a node that was cut
/// off, `Killing!` another reason.
fn completes(w: &mut World, id: AllocId, events: &[&str]) {
    let event = |shown: &&str| {
        let kind = shown.trim_end_matches(['*', '!']);
        let detail = match &shown[kind.len()..] {
            "*" => Some(("cut_off".to_owned(), "true".to_owned())),
            "!" => Some(("kill_reason".to_owned(), "allocation exceeded max_run_duration".to_owned())),
            _ => None,
        };
        Happening { kind: kind.into(), details: detail.into_iter().collect(), ..Happening::default() }.at(w.now)
    };
    let events = events.iter().map(event).collect();
    let task = TaskState { state: TaskRunState::Dead, events, ..TaskState::default() };
    let update = AllocClientUpdate {
        id,
        client_status: ClientStatus::Complete,
        task_states: [(Arc::from("t"), task)].into(),
        ..AllocClientUpdate::default()
    };
    w.apply(vec![Change::UpdateAllocsFromClient(vec![update])]);
}

#[test]
fn batch_work_that_its_node_has_stopped_while_cut_off_is_done_again() {
    let shapes: [(&[&str], bool); 19] = [
        (&["Started", "Killing*", "Terminated", "Killed*"], true),
        // While its driver was to find it again.
        (&["Started", "Terminated", "Killed*"], true),
        // While it started, waited for its restart, or had not begun.
        (&["Received", "Task Setup", "Killed*"], true),
        (&["Received", "Task Setup", "Setup Failure", "Killed*"], true),
        (&["Started", "Terminated", "Restarting", "Killing*"], true),
        (&["Received", "Killing*"], true),
        // Instead of a restart that somebody had asked for.
        (&["Started", "Restart Signaled", "Killing*", "Terminated", "Killed*"], true),
        (&["Started", "Killing*", "Terminated", "Killed*", "Reconnected", "Driver"], true),
        (&["Started", "Killing*", "Started", "Killing*", "Terminated", "Killed*"], true),
        // It has ended by itself.
        (&["Started", "Terminated"], false),
        (&["Started", "Leader Task Dead", "Killing", "Terminated", "Killed"], false),
        (&["Started", "Restart Signaled", "Terminated", "Restarting", "Started", "Terminated"], false),
        // So after a stop that its agent has announced and not carried out.
        (&["Started", "Killing*", "Waiting for shutdown delay", "Terminated"], false),
        (&["Started", "Killing*", "Terminated", "Restarting", "Started", "Terminated"], false),
        // By its time, in each phase.
        (&["Started", "Killing!", "Terminated", "Killed"], false),
        (&["Received", "Task Setup", "Killed"], false),
        (&["Started", "Terminated", "Restarting", "Killing!"], false),
        (&["Started", "Terminated", "Killed"], false),
        // A node of an earlier release leaves no mark.
        (&["Started", "Killing", "Terminated", "Killed"], false),
    ];
    for (events, again) in shapes {
        let mut w = two(&stopped_when_cut_off(batch(1)));
        let id = w.at(0).id;
        completes(&mut w, id, events);
        w.run();
        let followed: Vec<AllocId> = w.live().iter().map(|a| a.previous_allocation).collect();
        assert_eq!(followed, if again { vec![id] } else { Vec::new() }, "{events:?}");
        assert!(w.run().plan.is_no_op(), "{events:?}: once");
    }
}

/// Its data and its history go on with it.
#[test]
fn what_replaces_work_that_its_node_has_stopped_follows_it() {
    let stopped = ["Started", "Killing*", "Terminated", "Killed*"];
    let sysbatch = Job { kind: "sysbatch".into(), ..service(1) };
    for job in [service(1), batch(1), sysbatch] {
        let job = stopped_when_cut_off(job);
        let mut w = World::with("n1", &job);
        let first = w.at(0).id;
        completes(&mut w, first, &stopped);
        w.run();
        let second = w.at(0);
        assert_eq!(second.previous_allocation, first, "{}", job.kind);
        assert_eq!(w.state.alloc(first).map(|a| a.next_allocation), Some(second.id), "{}", job.kind);
        // The job says nothing of it any more, and its node does not know yet.
        let mut changed = job.clone();
        changed.task_groups[0].disconnect = None;
        w.submit(&changed);
        assert_eq!(w.at(0).id, second.id, "{}: in place", job.kind);
        completes(&mut w, second.id, &stopped);
        w.run();
        assert_eq!(w.at(0).previous_allocation, second.id, "{}", job.kind);
    }
    // A service that has ended otherwise has nothing to hand on.
    let mut w = World::with("n1", &stopped_when_cut_off(service(1)));
    let first = w.at(0).id;
    completes(&mut w, first, &["Started", "Terminated"]);
    w.run();
    assert!(w.at(0).previous_allocation.is_nil());
}

#[test]
fn a_halted_roll_out_replaces_what_its_node_has_stopped() {
    let job = stopped_when_cut_off(rolling(service(2), 1));
    let mut w = World::with("n1", &job);
    let id = w.state.latest_deployment(&job.key()).expect("there is one").id;
    let failed = model::plan::DeploymentUpdate { id, status: DeploymentStatus::Failed, description: String::new() };
    w.apply(vec![Change::DeploymentStatus(failed)]);
    let stopped = w.at(1).id;
    completes(&mut w, stopped, &["Started", "Killing*", "Terminated", "Killed*"]);
    w.run();
    assert_eq!(w.at(1).previous_allocation, stopped);
}
