//! Decisions on deployments, without a server.

use model::{
    AllocClientUpdate, AllocDeploymentStatus, Allocation, ClientStatus, DeploymentId, EvalStatus, GoDuration,
    Reschedule, TaskGroup,
    alloc::{RescheduleEvent, RescheduleTracker, alloc_name},
};

use super::*;
use crate::fixture::counted;

const S: i64 = 1_000_000_000;

fn id() -> DeploymentId {
    DeploymentId(uuid::Uuid::from_u128(0xd000))
}

fn all(state: &State) -> BTreeSet<DeploymentId> {
    state.deployments().map(|d| d.id).collect()
}

fn alloc_id(n: u128) -> AllocId {
    AllocId(uuid::Uuid::from_u128(0xa000 + n))
}

fn key() -> model::JobKey {
    model::JobKey::new("default", "web")
}

/// A deployment that wants two of each group, with a stable version before it.
struct World {
    state: State,
    now: TimestampNs,
}

impl World {
    /// Groups by name, progress deadline in seconds, and `auto_revert`.
    fn new(groups: &[(&str, i64, bool)]) -> Self {
        let mut world = Self { state: State::new(), now: 1_000 * S };
        let group = |(name, ..): &(&str, i64, bool)| TaskGroup {
            name: (*name).into(),
            count: Some(2),
            reschedule: Some(Reschedule::defaults()),
            ..TaskGroup::default()
        };
        let mut job = Job {
            namespace: "default".into(),
            id: "web".into(),
            kind: "service".into(),
            task_groups: groups.iter().map(group).collect(),
            ..Job::default()
        };
        world.apply(Change::UpsertJob { job: Box::new(job.clone()), submission: None });
        world.apply(Change::JobStability { key: key(), version: 0, stable: true });
        job.priority = 70;
        world.apply(Change::UpsertJob { job: Box::new(job), submission: None });
        let of = |(name, deadline, auto_revert): &(&str, i64, bool)| {
            let group = DeploymentGroup {
                auto_revert: *auto_revert,
                progress_deadline: GoDuration::from_secs(*deadline),
                desired_total: 2,
                ..DeploymentGroup::default()
            };
            (Arc::from(*name), group)
        };
        let create_index = world.state.job(&key()).unwrap().create_index;
        let deployment = Deployment {
            id: id(),
            namespace: "default".into(),
            job_id: "web".into(),
            job_version: 1,
            job_create_index: create_index,
            groups: groups.iter().map(of).collect(),
            ..Deployment::default()
        };
        world.apply(Change::UpsertDeployment(Box::new(deployment)));
        world
    }

    fn apply(&mut self, change: Change) {
        self.commit(change.into());
    }

    fn commit(&mut self, batch: Batch) {
        let index = self.state.latest_index() + 1;
        self.state.apply(index, self.now, batch).unwrap();
    }

    fn place(&mut self, n: u128, group: &str) {
        self.place_after(n, group, 0);
    }

    /// The same after this many attempts.
    fn place_after(&mut self, n: u128, group: &str, attempts: usize) {
        let event = RescheduleEvent { time: self.now, ..RescheduleEvent::default() };
        let tracker = RescheduleTracker { events: vec![event; attempts], ..RescheduleTracker::default() };
        self.apply(Change::UpsertAllocs(vec![Allocation {
            id: alloc_id(n),
            namespace: "default".into(),
            job_id: "web".into(),
            job_version: 1,
            name: alloc_name("web", group, 0).into(),
            task_group: group.into(),
            deployment_id: id(),
            reschedule_tracker: (attempts > 0).then(|| Box::new(tracker)),
            ..Allocation::default()
        }]));
    }

    fn report(&mut self, n: u128, healthy: bool) {
        let status = AllocDeploymentStatus { healthy: Some(healthy), ..AllocDeploymentStatus::default() };
        self.apply(Change::UpdateAllocsFromClient(vec![AllocClientUpdate {
            id: alloc_id(n),
            client_status: if healthy { ClientStatus::Running } else { ClientStatus::Failed },
            deployment_status: Some(status),
            ..AllocClientUpdate::default()
        }]));
    }

    /// The allocation leaves its node.
    fn stop(&mut self, n: u128) {
        let stop = model::plan::PlannedStop {
            id: alloc_id(n),
            node_id: model::NodeId::NIL,
            description: "alloc is being migrated".to_owned(),
            client_status: None,
            followup_eval_id: model::EvalId::NIL,
            preempted_by: AllocId::NIL,
        };
        self.apply(Change::ApplyPlan(Box::new(model::Plan { stops: vec![stop], ..model::Plan::default() })));
    }

    fn fate(&self) -> Fate {
        fate(&self.state, self.state.deployment(id()).unwrap(), self.now)
    }

    /// The watcher's present decision.
    fn watch(&mut self) {
        let all = all(&self.state);
        let decision = decide(
            &self.state,
            &all,
            Stamp { index: self.state.latest_index() + 1, now: self.now },
            &mut counted(self.state.latest_index()),
        );
        assert_eq!(decision.batch.is_empty(), decision.reasons.is_empty(), "whatever is decided has a reason");
        self.commit(decision.batch);
        let index = self.state.latest_index() + 1;
        let again = decide(&self.state, &all, Stamp { index, now: self.now }, &mut counted(index));
        assert!(again.batch.is_empty(), "carried out, and asked for again: {:?}", again.reasons);
    }

    fn deadline(&self) -> Option<i64> {
        deadline(&self.state, id()).map(|at| (at - 1_000 * S) / S)
    }

    fn ended(&self) -> (DeploymentStatus, String, u64) {
        let d = self.state.deployment(id()).unwrap();
        (d.status, d.status_description.clone(), self.state.job(&key()).unwrap().version)
    }
}

#[test]
fn what_waits_for_room_misses_no_deadline() {
    let mut w = World::new(&[("a", 10, false), ("b", 20, false)]);
    w.now += 3_600 * S;
    assert_eq!((w.deadline(), w.fate()), (None, Fate::Nothing), "nothing is placed: no clock runs");
    w.place(1, "a");
    assert_eq!(w.deadline(), Some(3_610));
    w.now += 5 * S;
    w.place(2, "a");
    assert_eq!(w.deadline(), Some(3_610), "only the first one starts it");
    w.report(1, true);
    assert_eq!(w.deadline(), Some(3_615), "each healthy one extends it");
    w.report(2, true);
    assert_eq!(w.deadline(), None, "the group is complete, and the other one still waits for room");
    w.now += 3_600 * S;
    w.watch();
    assert_eq!(w.ended().0, DeploymentStatus::Running);
    w.place(3, "b");
    w.now += 20 * S;
    w.watch();
    assert_eq!(w.ended(), (DeploymentStatus::Failed, "Failed due to progress deadline".to_owned(), 1));
}

/// A canary that has waited longer than the deadline leaves its node. Its replacement has its own time, and no clock
/// runs while it waits for room.
#[test]
fn a_canary_that_has_to_move_begins_its_time_anew() {
    let mut w = World::new(&[("a", 10, false)]);
    let mut d = Deployment::clone(w.state.deployment(id()).unwrap());
    d.groups.get_mut("a").unwrap().desired_canaries = 1;
    w.apply(Change::UpsertDeployment(Box::new(d)));
    let running = |w: &mut World| {
        w.watch();
        w.ended().0 == DeploymentStatus::Running
    };
    w.place(1, "a");
    assert_eq!(w.deadline(), Some(10));
    w.report(1, true);
    w.now += 3_600 * S;
    assert!(running(&mut w), "it waits for its promotion");
    w.stop(1);
    assert_eq!(w.deadline(), None, "the next one waits for room");
    w.now += 100 * S;
    assert!(running(&mut w));
    w.place(2, "a");
    assert_eq!(w.deadline(), Some(3_710), "from its own placement");
    w.now += 5 * S;
    w.report(2, false);
    assert!(running(&mut w), "it is tried again");
    w.now += 2 * S;
    w.place_after(3, "a", 1);
    assert_eq!(w.deadline(), Some(3_710), "a further attempt has no more time");
    w.report(3, true);
    assert_eq!(w.deadline(), None);
    // Once more, and this one never becomes healthy.
    w.now += 3_600 * S;
    w.stop(3);
    w.place(4, "a");
    w.now += 9 * S;
    assert!(running(&mut w));
    w.now += S;
    w.watch();
    assert_eq!(w.ended(), (DeploymentStatus::Failed, "Failed due to progress deadline".to_owned(), 1));
}

/// Older servers have started the clock with the deployment.
#[test]
fn one_of_a_group_that_got_there_may_move_at_any_time() {
    let mut w = World::new(&[("a", 10, true), ("b", 10, true)]);
    for n in [1, 2] {
        w.place(n, "a");
        w.report(n, true);
    }
    // The other group waits for room.
    w.now += 3600 * S;
    w.stop(1);
    assert!(!matches!(w.fate(), Fate::Fails { .. }), "{:?}", w.fate());
    w.place(3, "a");
    assert_eq!(w.deadline(), Some(3_610), "ten seconds from its own placement");
    w.now += 11 * S;
    assert!(matches!(w.fate(), Fate::Fails { .. }), "the replacement had its time");
}

#[test]
fn a_clock_that_began_too_early_counts_for_nothing() {
    let mut w = World::new(&[]);
    let group = DeploymentGroup {
        progress_deadline: GoDuration::from_secs(10),
        require_progress_by_ns: w.now + 10 * S,
        desired_total: 1,
        ..DeploymentGroup::default()
    };
    let d = Deployment {
        id: id(),
        groups: [("a".into(), group)].into(),
        ..w.state.deployment(id()).unwrap().as_ref().clone()
    };
    w.apply(Change::DeleteDeployments(vec![id()]));
    w.apply(Change::UpsertDeployment(Box::new(d)));
    w.now += 60 * S;
    assert_eq!(w.fate(), Fate::Nothing);
    w.place(1, "a");
    assert_eq!(w.deadline(), Some(70));
}

#[test]
fn a_pause_does_not_count_and_starts_no_clock() {
    let mut w = World::new(&[("a", 10, false), ("b", 20, false)]);
    w.place(1, "a");
    w.now += 5 * S;
    w.apply(Change::DeploymentProgress(id()));
    assert_eq!(w.deadline(), Some(15));
    assert_eq!(w.state.deployment(id()).unwrap().groups["b"].require_progress_by_ns, 0);
}

#[test]
fn unhealthy_ones_are_replaced_until_progress_is_due() {
    let mut w = World::new(&[("a", 10, true)]);
    w.place(1, "a");
    w.report(1, false);
    assert_eq!(w.fate(), Fate::Replace(vec![alloc_id(1)]));
    w.watch();
    assert_eq!(w.state.alloc(alloc_id(1)).unwrap().desired_transition.reschedule, Some(true));
    assert!(
        w.state
            .evals_by_job(&key())
            .any(|e| e.trigger == Trigger::DeploymentWatcher && e.status == EvalStatus::Pending)
    );
    assert_eq!(w.fate(), Fate::Nothing, "once is enough");
    w.place_after(2, "a", 1);
    w.report(2, false);
    w.watch();
    assert_eq!(w.ended().0, DeploymentStatus::Running);
    w.now += 10 * S;
    w.watch();
    let rolled_back = "Failed due to progress deadline - rolling back to job version 0";
    assert_eq!(w.ended(), (DeploymentStatus::Failed, rolled_back.to_owned(), 2));
}

#[test]
fn without_a_deadline_or_another_attempt_the_first_unhealthy_one_is_the_end() {
    let mut w = World::new(&[("a", 0, false)]);
    w.place(1, "a");
    w.report(1, false);
    w.watch();
    assert_eq!(w.ended(), (DeploymentStatus::Failed, UNHEALTHY.to_owned(), 1));

    let mut w = World::new(&[("a", 600, false)]);
    let mut job = Job::clone(w.state.job(&key()).unwrap());
    job.task_groups[0].reschedule = Some(Reschedule {
        attempts: Some(1),
        interval: Some(GoDuration::from_secs(3_600)),
        unlimited: Some(false),
        ..Reschedule::defaults()
    });
    w.apply(Change::UpsertJob { job: Box::new(job), submission: None });
    let d = Deployment { job_version: 2, ..w.state.deployment(id()).unwrap().as_ref().clone() };
    w.apply(Change::UpsertDeployment(Box::new(d)));
    w.place(1, "a");
    w.report(1, false);
    assert_eq!(w.fate(), Fate::Replace(vec![alloc_id(1)]));
    w.watch();
    w.place_after(2, "a", 1);
    w.report(2, false);
    w.watch();
    assert_eq!(w.ended(), (DeploymentStatus::Failed, UNHEALTHY.to_owned(), 2));
}

#[test]
fn only_a_group_that_has_failed_asks_for_the_stable_version() {
    // Only the healthy one has `auto_revert`, not the failed one.
    let mut w = World::new(&[("bad", 0, false), ("good", 0, true)]);
    w.place(1, "bad");
    w.report(1, false);
    w.watch();
    assert_eq!(w.ended(), (DeploymentStatus::Failed, UNHEALTHY.to_owned(), 1));
    // The same at the deadline.
    let mut w = World::new(&[("bad", 10, false), ("good", 10, true)]);
    w.place(1, "bad");
    for n in [2, 3] {
        w.place(n, "good");
        w.report(n, true);
    }
    w.now += 10 * S;
    w.watch();
    assert_eq!(w.ended(), (DeploymentStatus::Failed, "Failed due to progress deadline".to_owned(), 1));
    // And the other way round.
    let mut w = World::new(&[("bad", 0, true), ("good", 0, false)]);
    w.place(1, "bad");
    w.report(1, false);
    w.watch();
    assert_eq!(w.ended().2, 2, "back to the stable version");
}

/// A plan knows the deployment as it was at its snapshot.
#[test]
fn what_a_person_has_failed_stays_failed() {
    let mut w = World::new(&[("a", 10, true)]);
    let end =
        |status, description: &str| model::plan::DeploymentUpdate { id: id(), status, description: description.into() };
    w.apply(Change::DeploymentStatus(end(DeploymentStatus::Failed, "by a person")));
    let plan =
        model::Plan { deployment_updates: vec![end(DeploymentStatus::Successful, "done")], ..model::Plan::default() };
    w.apply(Change::ApplyPlan(Box::new(plan)));
    let d = w.state.deployment(id()).expect("a record");
    assert_eq!((d.status, &*d.status_description), (DeploymentStatus::Failed, "by a person"));
    assert!(!w.state.job_version(&key(), 1).expect("a version").stable);
}

#[test]
fn what_becomes_healthy_is_seen_by_an_evaluation_that_looks() {
    let soon = 1_000 * S + 5 * S;
    // Status, time to wait for, how much newer than the news its snapshot is, and what follows.
    for (status, wait_until, newer, fate) in [
        (EvalStatus::Pending, 0, 0, Fate::Nothing),
        (EvalStatus::Pending, 1_000 * S + S, 0, Fate::Nothing),
        (EvalStatus::Pending, soon, 0, Fate::Next),
        (EvalStatus::Blocked, 0, -1, Fate::Next),
        (EvalStatus::Blocked, 0, 0, Fate::Nothing),
        (EvalStatus::Complete, 0, -1, Fate::Next),
        (EvalStatus::Complete, 0, 0, Fate::Nothing),
        (EvalStatus::Failed, 0, 0, Fate::Next),
    ] {
        let mut w = World::new(&[("a", 10, false)]);
        w.place(1, "a");
        w.report(1, true);
        assert_eq!(w.fate(), Fate::Next, "nobody has looked");
        let news = w.state.latest_index();
        w.apply(Change::UpsertEvals(vec![Evaluation {
            id: model::EvalId(uuid::Uuid::from_u128(0xe000)),
            namespace: "default".into(),
            job_id: "web".into(),
            status,
            wait_until,
            snapshot_index: news.saturating_add_signed(newer),
            ..Evaluation::default()
        }]));
        assert_eq!(w.fate(), fate, "{status:?} {wait_until} {newer}");
    }
}
