//! Launches by the clock, without a server.

use jiff::tz::TimeZone;
use model::{EvalStatus, job::Periodic};
use proptest::prelude::*;

use super::*;
use crate::fixture::counted;

/// 2026-01-01, midnight, Unix seconds.
const MIDNIGHT: i64 = 1_767_225_600;

fn zones(name: &str) -> Option<TimeZone> {
    (name == "Test/Late").then(|| TimeZone::posix("LATE-3").expect("a zone"))
}

fn job(id: &str, spec: &str) -> Job {
    let group = model::TaskGroup { name: "g".into(), count: Some(1), ..model::TaskGroup::default() };
    Job {
        namespace: "default".into(),
        id: id.into(),
        kind: "batch".into(),
        priority: 50,
        node_pool: "default".into(),
        periodic: Some(Periodic { spec: Some(spec.into()), ..Periodic::default() }),
        task_groups: vec![group].into(),
        ..Job::default()
    }
}

fn key(id: &str) -> JobKey {
    JobKey::new("default", id)
}

/// A state and a clock.
struct World {
    state: State,
    upcoming: Upcoming,
    now: i64,
}

impl World {
    fn at(now: i64) -> Self {
        Self { state: State::new(), upcoming: Upcoming::new(zones), now }
    }

    fn with(job: Job) -> Self {
        let mut world = Self::at(MIDNIGHT);
        world.registers(job);
        world
    }

    fn apply(&mut self, batch: impl Into<Batch>) {
        let index = self.state.latest_index() + 1;
        let applied = self.state.apply(index, self.now * SECOND, batch.into()).expect("it applies");
        self.upcoming.follow(&self.state, &applied);
    }

    fn registers(&mut self, job: Job) {
        self.apply(Change::UpsertJob { job: Box::new(job), submission: None });
    }

    /// As the servers do it at this time; returns the reasons.
    fn looks(&mut self, now: i64) -> Vec<String> {
        self.now = now;
        let stamp = Stamp { index: self.state.latest_index() + 1, now: now * SECOND };
        let due = self.upcoming.due(stamp.now, 100);
        let decision = decide(&self.state, &due, zones, stamp, &mut counted(stamp.index));
        if !decision.batch.is_empty() {
            self.apply(decision.batch);
        }
        decision.reasons
    }

    /// Times of the children of a job.
    fn launched(&self, id: &str) -> Vec<i64> {
        let beginning = format!("{id}{LAUNCH_SUFFIX}");
        let seconds = |job: &std::sync::Arc<Job>| job.id.as_str()[beginning.len()..].parse().expect("seconds");
        self.state.jobs_in(&"default".into(), &beginning).map(seconds).collect()
    }

    /// Every evaluation of a child ends, and with it the child.
    fn ends(&mut self) {
        let open = self.state.evals().filter(|eval| eval.status == EvalStatus::Pending);
        let ended = open.map(|eval| Evaluation { status: EvalStatus::Complete, ..Evaluation::clone(eval) }).collect();
        self.apply(Change::UpsertEvals(ended));
    }
}

#[test]
fn a_launch_makes_a_child_with_its_evaluation_once() {
    let mut world = World::with(job("hourly", "@hourly"));
    let first = MIDNIGHT + 3_600;
    assert_eq!(next(&world.state, &key("hourly"), zones), Some(first));
    assert_eq!(world.upcoming.wake_at(), Some(first * SECOND));
    assert!(world.looks(first - 1).is_empty());
    assert_eq!(world.looks(first).len(), 1);
    assert!(world.looks(first).is_empty() && world.looks(first + 1).is_empty(), "once");
    assert_eq!(world.launched("hourly"), [first]);
    let child = world.state.job(&key(&format!("hourly/periodic-{first}"))).expect("the child");
    assert_eq!((child.parent_id.as_str(), &*child.kind, child.periodic.is_none()), ("hourly", "batch", true));
    let evals: Vec<_> = world.state.evals_by_job(&child.key()).collect();
    assert_eq!((evals.len(), evals[0].trigger), (1, Trigger::PeriodicJob));
    assert_eq!(next(&world.state, &key("hourly"), zones), Some(first + 3_600));
}

#[test]
fn of_the_launches_that_a_dead_server_missed_the_latest_is_made() {
    let mut world = World::with(job("minutely", "* * * * *"));
    world.looks(MIDNIGHT + 60);
    // The next server remembers nothing.
    world.upcoming = Upcoming::new(zones);
    world.upcoming.fill(&world.state);
    world.looks(MIDNIGHT + 3_601);
    world.looks(MIDNIGHT + 3_660);
    assert_eq!(world.launched("minutely"), [60, 3_600, 3_660].map(|s| MIDNIGHT + s));
}

#[test]
fn who_forbids_overlap_is_left_out_while_it_runs() {
    let mut quiet = job("quiet", "* * * * *");
    quiet.periodic.as_mut().expect("periodic").prohibit_overlap = Some(true);
    let mut world = World::with(quiet);
    world.registers(job("quiet-2", "* * * * *"));
    world.looks(MIDNIGHT + 60);
    let reasons = world.looks(MIDNIGHT + 120);
    assert!(reasons.iter().any(|why| why.contains("left out") && why.contains("has not ended")), "{reasons:?}");
    assert_eq!((world.launched("quiet").len(), world.launched("quiet-2").len()), (1, 2));
    world.ends();
    // Nothing makes up for the one that was left out.
    world.looks(MIDNIGHT + 130);
    assert_eq!(world.launched("quiet"), [MIDNIGHT + 60]);
    world.looks(MIDNIGHT + 180);
    assert_eq!(world.launched("quiet"), [MIDNIGHT + 60, MIDNIGHT + 180]);
}

#[test]
fn a_changed_stopped_or_disabled_job_has_the_times_of_its_newest_version() {
    let mut world = World::with(job("j", "@yearly"));
    world.now = MIDNIGHT + 600;
    world.registers(job("j", "* * * * *"));
    assert!(world.looks(MIDNIGHT + 659).is_empty(), "minutes before the change are not due");
    assert_eq!(world.looks(MIDNIGHT + 660).len(), 1);
    let off = Periodic { enabled: Some(false), ..job("j", "* * * * *").periodic.expect("periodic") };
    world.registers(Job { periodic: Some(off), ..job("j", "* * * * *") });
    assert!(world.looks(MIDNIGHT + 720).is_empty() && world.upcoming.wake_at().is_none());
    world.registers(job("j", "* * * * *"));
    world.apply(Change::StopJob(key("j")));
    assert!(world.looks(MIDNIGHT + 900).is_empty() && world.upcoming.wake_at().is_none());
    assert_eq!(world.launched("j"), [MIDNIGHT + 660], "its child stays");
}

#[test]
fn zones_shift_the_times() {
    let mut late = job("late", "0 12 * * *");
    late.periodic.as_mut().expect("periodic").time_zone = Some("Test/Late".into());
    let world = World::with(late);
    assert_eq!(next(&world.state, &key("late"), zones), Some(MIDNIGHT + 9 * 3_600));
}

#[test]
fn a_person_launches_a_job_beside_its_times() {
    let mut quiet = job("quiet", "@hourly");
    quiet.periodic.as_mut().expect("periodic").prohibit_overlap = Some(true);
    let mut world = World::with(quiet);
    let force = |world: &World, id: &str| {
        let stamp = Stamp { index: world.state.latest_index() + 1, now: world.now * SECOND };
        super::force(&world.state, &key(id), stamp, &mut counted(stamp.index))
    };
    for wait in [10, 20] {
        world.now = MIDNIGHT + wait;
        let made = force(&world, "quiet").expect("launched");
        assert!(!made.answer.eval_id.is_nil());
        world.apply(made.batch);
    }
    let again = force(&world, "quiet").expect_err("in the same second").to_string();
    assert!(again.contains("in this second"), "{again}");
    assert_eq!(world.launched("quiet").len(), 2);
    assert_eq!(next(&world.state, &key("quiet"), zones), Some(MIDNIGHT + 3_600), "its times stay");
    world.registers(Job { periodic: None, ..job("plain", "") });
    let off = Periodic { enabled: Some(false), ..Periodic::default() };
    world.registers(Job { periodic: Some(off), ..job("off", "") });
    for (id, why) in [("plain", "non-periodic job \"plain\""), ("off", "it is disabled"), ("none", "job not found")] {
        let error = force(&world, id).expect_err(id).to_string();
        assert!(error.contains(why), "{error}");
    }
}

proptest! {
    /// Whenever servers look, die and forget: no launch is made twice, each one that was looked at in its time is made,
    /// and after a pause exactly the latest one is.
    #[test]
    fn no_launch_is_doubled_and_none_is_missed(
        looks in prop::collection::vec((1i64..400, any::<bool>()), 1..40), step in 1u32..30,
    ) {
        let mut world = World::with(job("j", &format!("*/{step} * * * *")));
        let job = world.state.job(&key("j")).expect("it is registered").clone();
        let schedule = Schedule::of(job.launches().expect("it is periodic"), zones).expect("valid");
        let (mut now, mut expected) = (MIDNIGHT, Vec::new());
        for (wait, dies) in looks {
            let before = now;
            now += wait;
            expected.extend(schedule.due(before, now));
            if dies {
                world.upcoming = Upcoming::new(zones);
                world.upcoming.fill(&world.state);
            }
            world.looks(now);
        }
        prop_assert_eq!(world.launched("j"), expected);
    }
}

#[test]
fn who_registers_a_job_again_after_a_clock_that_was_ahead_hears_of_it_soon() {
    let ahead = MIDNIGHT + 30 * 86_400;
    for changed in [false, true] {
        let mut world = World::at(ahead);
        world.registers(job("hourly", "@hourly"));
        world.looks(ahead + 3_600);
        assert_eq!(world.launched("hourly"), [ahead + 3_600]);
        // The clock is right again.
        world.now = MIDNIGHT;
        world.registers(job("hourly", if changed { "0 * * * *" } else { "@hourly" }));
        assert_eq!(world.upcoming.wake_at(), Some((MIDNIGHT + 3_600) * SECOND), "changed: {changed}");
        world.looks(MIDNIGHT + 3_600);
        assert_eq!(world.launched("hourly"), [MIDNIGHT + 3_600, ahead + 3_600]);
    }
}
