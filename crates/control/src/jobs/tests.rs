//! Requests about jobs, without a server.

use model::{SchedulerConfig, TaskGroup, job::Parameterized};
use uuid::Uuid;

use super::*;
use crate::{
    dispatch::{self, DispatchJob},
    fixture::counted,
    scaling::{self, ScaleJob},
};

const RULES: Rules<'static> =
    Rules { region: "global", default_priority: 50, max_priority: 80, max_count: 10, zones: |_| None, vault: None };

fn job() -> Job {
    let task = model::Task { name: "t".into(), driver: "mock".into(), ..model::Task::default() };
    let group = TaskGroup { name: "g".into(), count: Some(1), tasks: vec![task], ..TaskGroup::default() };
    Job { id: "web".into(), datacenters: vec!["dc1".into()], task_groups: vec![group].into(), ..Job::default() }
}

fn key() -> JobKey {
    JobKey::new("default", "web")
}

/// A state in which the test decides requests one after another.
#[derive(Default)]
struct World(State);

impl World {
    fn decides<R>(
        &mut self,
        decide: impl FnOnce(&State, Stamp, &mut Ids<'_>) -> Result<Decided<R>, Refused>,
    ) -> Result<R, Refused> {
        let stamp = Stamp { index: self.0.latest_index() + 1, now: 1_000_000_000 };
        let decided = decide(&self.0, stamp, &mut counted(stamp.index))?;
        if !decided.batch.is_empty() {
            self.0.apply(stamp.index, stamp.now, decided.batch).expect("it applies");
        }
        Ok(decided.answer)
    }

    fn registers(&mut self, request: RegisterJob) -> Result<EvalCreated, Refused> {
        let (request, _) = admit(request, &RULES)?;
        self.decides(|state, stamp, ids| register(state, request, RULES.max_count, stamp, ids))
    }

    fn with(job: Job) -> Self {
        let mut world = Self(State::new());
        world.registers(RegisterJob { job, ..RegisterJob::default() }).expect("it is registered");
        world
    }

    fn scales(&mut self, count: Option<i64>, error: bool) -> Result<EvalCreated, Refused> {
        let request = ScaleJob { key: key(), group: "g".to_owned(), count, error, ..ScaleJob::default() };
        self.decides(|state, stamp, ids| scaling::scale(state, request, &RULES, stamp, ids))
    }
}

#[test]
fn a_registration_holds_to_what_it_demands_of_the_state() {
    let mut world = World(State::new());
    let at = |enforce_index| RegisterJob { job: job(), enforce_index, ..RegisterJob::default() };
    assert_eq!(world.registers(at(Some(7))).unwrap_err(), Refused::EnforceIndex { expected: 7, actual: None });
    let first = world.registers(at(Some(0))).unwrap();
    assert_eq!((first.job_modify_index, first.eval_create_index), (first.index, first.index));
    assert_eq!(
        world.registers(at(Some(0))).unwrap_err(),
        Refused::EnforceIndex { expected: 0, actual: Some(first.index) }
    );
    // Repeating it makes no new version, but an evaluation.
    let again = world.registers(at(Some(first.index))).unwrap();
    assert!(again.job_modify_index == first.index && again.index > first.index && !again.eval_id.is_nil(), "{again:?}");
    let other = Job { kind: "batch".into(), ..job() };
    let refused = world.registers(RegisterJob { job: other, ..RegisterJob::default() }).unwrap_err();
    assert!(refused.to_string().starts_with("cannot update job web from type \"service\" to \"batch\""), "{refused}");
    let config = SchedulerConfig { reject_job_registration: true, ..SchedulerConfig::default() };
    world.0.apply(world.0.latest_index() + 1, 1, Change::SetSchedulerConfig(config).into()).unwrap();
    assert_eq!(world.registers(at(None)).unwrap_err(), Refused::RegistrationDisabled(key()));
}

#[test]
fn a_registration_keeps_counts_when_it_is_asked_to() {
    let mut world = World::with(job());
    world.scales(Some(4), false).unwrap();
    let count = |world: &World| world.0.job(&key()).unwrap().task_groups[0].count;
    world.registers(RegisterJob { job: job(), preserve_counts: true, ..RegisterJob::default() }).unwrap();
    assert_eq!(count(&world), Some(4));
    world.registers(RegisterJob { job: job(), ..RegisterJob::default() }).unwrap();
    assert_eq!(count(&world), Some(1));
}

#[test]
fn a_template_is_not_scheduled_and_its_dispatch_makes_one_child_for_a_token() {
    let mut world = World(State::new());
    let parameterized_job = Some(Parameterized { payload: "optional".to_owned(), ..Parameterized::default() });
    let job = Job { kind: "batch".into(), parameterized_job, ..job() };
    let made = world.registers(RegisterJob { job, ..RegisterJob::default() }).unwrap();
    assert!(made.eval_id.is_nil() && made.eval_create_index == 0 && world.0.evals().next().is_none(), "{made:?}");
    let refused = world.decides(|state, stamp, ids| evaluate(state, &key(), false, stamp, ids)).unwrap_err();
    assert!(refused.to_string().contains("is a template"), "{refused}");
    let mut dispatches = |priority| {
        let dispatch =
            model::dispatch::Dispatch { idempotency_token: "once".to_owned(), priority, ..Default::default() };
        let request = DispatchJob { key: key(), dispatch };
        world.decides(|state, stamp, ids| dispatch::dispatch(state, &request, &RULES, stamp, ids))
    };
    assert!(dispatches(Some(81)).unwrap_err().to_string().contains("dispatch priority 81 is not between 1 and 80"));
    let (first, second) = (dispatches(None).unwrap(), dispatches(None).unwrap());
    assert!(
        first.job_id == second.job_id && !first.eval_id.is_nil() && second.eval_id.is_nil(),
        "{first:?} {second:?}"
    );
}

#[test]
fn what_is_stopped_twice_is_stopped_and_an_old_version_comes_back_as_a_new_one() {
    let mut world = World::with(job());
    world.registers(RegisterJob { job: Job { priority: 70, ..job() }, ..RegisterJob::default() }).unwrap();
    let mut reverts = |version, enforced| {
        world
            .decides(|state, stamp, ids| revert(state, &key(), (version, enforced), &RULES, stamp, ids))
            .map_err(|e| e.to_string())
    };
    assert_eq!(reverts(0, Some(3)).unwrap_err(), "Current job has version 1; enforcing version 3");
    assert_eq!(reverts(1, None).unwrap_err(), "can't revert to current version of job default/web: 1");
    assert!(reverts(9, None).unwrap_err().ends_with("at version 9 not found"));
    assert!(reverts(0, Some(1)).is_ok());
    let job = world.0.job(&key()).unwrap();
    assert_eq!((job.version, job.priority), (2, 50));
    assert!(world.decides(|state, stamp, _| mark(state, key(), 9, true, stamp)).is_err());
    world.decides(|state, stamp, _| mark(state, key(), 2, true, stamp)).unwrap();
    assert!(world.0.job(&key()).unwrap().stable);

    let mut halts = || {
        let request = DeregisterJob { key: key(), purge: false, eval_priority: None, no_shutdown_delay: false };
        let answer = world.decides(|state, stamp, ids| deregister(state, request, RULES.max_priority, stamp, ids));
        (answer.unwrap().job_modify_index, world.0.job(&key()).unwrap().job_modify_index)
    };
    for (answered, actual) in [halts(), halts()] {
        assert_eq!(answered, actual, "a request can be made against the index that is answered");
    }

    let mut stops = |eval_priority| {
        let request = DeregisterJob { key: key(), purge: true, eval_priority, no_shutdown_delay: false };
        world.decides(|state, stamp, ids| deregister(state, request, RULES.max_priority, stamp, ids))
    };
    assert!(stops(Some(81)).unwrap_err().to_string().contains("81 is not between 1 and 80"));
    let first = stops(None).unwrap();
    let second = stops(None).unwrap();
    assert!(!first.eval_id.is_nil() && second.eval_id.is_nil() && second.index == first.index, "{first:?} {second:?}");
    let nobody = AllocId(Uuid::from_u128(9));
    let refused = world.decides(|state, stamp, ids| stop_alloc(state, nobody, (false, false), stamp, ids)).unwrap_err();
    assert!(matches!(refused, Refused::NotFound { kind: Kind::Alloc, .. }), "{refused:?}");
}

#[test]
fn a_count_is_scaled_within_bounds_and_every_word_is_on_record() {
    let mut world = World::with(job());
    for (count, error, why) in [
        (Some(2), true, "should not contain count"),
        (Some(-1), false, "is not between 0"),
        (Some(11), false, "at most 10 are allowed"),
    ] {
        let refused = world.scales(count, error).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert!(world.scales(None, true).unwrap().eval_id.is_nil());
    let scaled = world.scales(Some(3), false).unwrap();
    assert!(!scaled.eval_id.is_nil() && world.0.job(&key()).unwrap().task_groups[0].count == Some(3), "{scaled:?}");
}

#[test]
fn a_source_text_that_is_too_large_is_left_out_and_told() {
    let submission = Some(Submission { source: "x".repeat(33), ..Submission::default() });
    let mut request = RegisterJob { submission, ..RegisterJob::default() };
    assert_eq!(drop_large_source(&mut request, 33), None);
    let told = drop_large_source(&mut request, 32).unwrap();
    assert!(
        told.starts_with("job source size of 33 B exceeds maximum of 32 B") && request.submission.is_none(),
        "{told}"
    );
    assert_eq!(drop_large_source(&mut request, 32), None);
    for (bytes, text) in
        [(33, "33 B"), (2_000_300, "2.0 MB"), (1 << 20, "1.0 MB"), (15_400, "15 kB"), (3_200_000_000, "3.2 GB")]
    {
        assert_eq!(size_text(bytes), text);
    }
}

#[test]
fn a_job_names_no_parent_but_its_own() {
    let mut world = World::with(job());
    let child =
        |parent: &str| RegisterJob { job: Job { parent_id: parent.to_owned(), ..job() }, ..RegisterJob::default() };
    let refused = world.registers(child("db")).unwrap_err().to_string();
    assert!(refused.starts_with("job \"web\" has ParentID \"db\""), "{refused}");
    let unknown = Job { id: "new".into(), parent_id: "db".to_owned(), ..job() };
    let refused = world.registers(RegisterJob { job: unknown, ..RegisterJob::default() }).unwrap_err().to_string();
    assert!(refused.starts_with("job \"new\" has ParentID \"db\""), "{refused}");
    let plan = crate::plan::PlanJob { job: child("db").job, diff: false };
    let refused = crate::plan::preview(&world.0, plan, 100, (1, 1), &mut counted(9)).unwrap_err();
    assert!(refused.starts_with("job \"web\" has ParentID \"db\""), "{refused}");
    // What was made from a template, read and registered again.
    let made = |parent: &str| {
        let mut job = Job { id: "db/dispatch-1".into(), ..child(parent).job };
        job.canonicalize();
        job
    };
    let change = Change::UpsertJob { job: Box::new(made("db")), submission: None };
    world.0.apply(world.0.latest_index() + 1, 1, change.into()).unwrap();
    world.registers(RegisterJob { job: made("db"), ..RegisterJob::default() }).unwrap();
    assert!(world.registers(RegisterJob { job: made("web"), ..RegisterJob::default() }).is_err());
}
