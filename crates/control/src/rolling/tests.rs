//! Turns of rolling restarts, without a server or a node.

use model::{AllocClientUpdate, AllocId, GoDuration, Map, TaskState, Update, alloc::alloc_name};
use proptest::prelude::*;
use state::Batch;
use uuid::Uuid;

use super::*;

const S: i64 = 1_000_000_000;

fn id(n: u32) -> AllocId {
    AllocId(Uuid::from_u128(0xa000 + u128::from(n)))
}

/// A job `web` whose allocations have run since the beginning, and what its nodes would do.
struct World {
    state: State,
    changed: Changed,
    now: i64,
}

impl World {
    fn new(kind: &str, count: u32, placed: u32, max_parallel: i32) -> Self {
        let mut world = Self { state: State::new(), changed: Changed::default(), now: 1_000 * S };
        let update = Update {
            max_parallel: Some(max_parallel),
            min_healthy_time: Some(GoDuration(10 * S)),
            ..Update::default()
        };
        let task = model::Task { name: "t".into(), ..model::Task::default() };
        let group = TaskGroup {
            name: "g".into(),
            count: Some(i32::try_from(count).expect("few")),
            update: Some(update),
            tasks: vec![task],
            ..TaskGroup::default()
        };
        let job = Job {
            namespace: "default".into(),
            id: "web".into(),
            kind: kind.into(),
            task_groups: vec![group].into(),
            ..Job::default()
        };
        world.apply(Change::UpsertJob { job: Box::new(job), submission: None }.into());
        for n in 0..placed {
            world.place(n);
            world.report(n, ClientStatus::Running, TaskState { started_at: S.into(), ..running() });
        }
        world.now += 100 * S;
        world
    }

    fn apply(&mut self, batch: Batch) {
        let applied = self.state.apply(self.state.latest_index() + 1, self.now, batch).expect("applied");
        self.changed.follow(&applied);
    }

    fn place(&mut self, n: u32) {
        let alloc = Allocation {
            id: id(n),
            namespace: "default".into(),
            job_id: "web".into(),
            name: alloc_name("web", "g", n).into(),
            task_group: "g".into(),
            ..Allocation::default()
        };
        self.apply(Change::UpsertAllocs(vec![alloc]).into());
    }

    fn report(&mut self, n: u32, client_status: ClientStatus, task: TaskState) {
        let task_states = Map::from_iter([("t".into(), task)]);
        let update = AllocClientUpdate { id: id(n), client_status, task_states, ..AllocClientUpdate::default() };
        self.apply(Change::UpdateAllocsFromClient(vec![update]).into());
    }

    fn task(&self, n: u32) -> TaskState {
        self.state.alloc(id(n)).expect("placed").task_states.values().next().cloned().expect("its task")
    }

    fn tells(&mut self, n: u32, restart: Option<RollingRestart>) {
        let task = TaskState { rolling_restart: restart.map(Box::new), ..self.task(n) };
        self.report(n, ClientStatus::Running, task);
    }

    /// New data come to an allocation, which waits.
    fn data(&mut self, n: u32) {
        let turn = self.state.alloc(id(n)).expect("placed").desired_transition.rolling_restart + 1;
        let restart = RollingRestart { turn, asked: self.now, changed: self.now, ..RollingRestart::default() };
        self.tells(n, Some(restart));
    }

    /// What the servers decide and commit: the allocations that have got their turn.
    fn look(&mut self) -> Vec<u32> {
        let before: Vec<_> = self.given();
        let jobs = self.changed.take(&self.state, self.now);
        let decision = decide(&self.state, &jobs, Stamp { index: self.state.latest_index() + 1, now: self.now });
        self.changed.rest(decision.wake_at);
        if !decision.batch.is_empty() {
            self.apply(decision.batch);
            let jobs = [self.job()].into();
            let again = decide(&self.state, &jobs, Stamp { index: self.state.latest_index() + 1, now: self.now });
            assert!(again.batch.is_empty(), "decided twice: {:?}", again.reasons);
        }
        self.given().into_iter().filter(|given| !before.contains(given)).map(|(n, _)| n).collect()
    }

    fn job(&self) -> JobKey {
        self.state.jobs().next().expect("a job").key()
    }

    fn why(&self) -> String {
        decide(&self.state, &[self.job()].into(), Stamp { index: 0, now: self.now }).reasons.join("; ")
    }

    fn given(&self) -> Vec<(u32, u8)> {
        let given = |alloc: &Arc<Allocation>| (alloc.index(), alloc.desired_transition.rolling_restart);
        let mut all: Vec<_> = self.state.allocs().map(given).filter(|(_, turn)| *turn != 0).collect();
        all.sort_unstable();
        all
    }

    fn begins(&mut self, n: u32) {
        let restart = RollingRestart { begun: self.now, ..*self.task(n).rolling_restart.expect("it was asked for") };
        let task = TaskState { rolling_restart: Some(Box::new(restart)), started_at: self.now.into(), ..running() };
        self.report(n, ClientStatus::Running, task);
    }

    fn healthy(&mut self, n: u32) {
        self.tells(n, None);
    }

    fn unhealthy(&mut self, n: u32) {
        let restart = RollingRestart { unhealthy: true, ..*self.task(n).rolling_restart.expect("it was asked for") };
        self.tells(n, Some(restart));
    }
}

fn running() -> TaskState {
    TaskState { state: TaskRunState::Running, ..TaskState::default() }
}

#[test]
fn one_restarts_after_the_other_is_healthy() {
    let mut w = World::new("service", 3, 3, 1);
    for n in [1, 0, 2] {
        w.data(n);
        w.now += 1;
    }
    assert_eq!(w.look(), [1], "who has waited longest");
    assert_eq!(w.look(), Vec::<u32>::new());
    w.begins(1);
    assert_eq!(w.look(), Vec::<u32>::new(), "it has restarted, and is not healthy yet");
    w.now += 10 * S;
    w.healthy(1);
    assert_eq!(w.look(), [0]);
    w.begins(0);
    w.now += 10 * S;
    w.healthy(0);
    assert_eq!(w.look(), [2]);
    w.begins(2);
    w.now += 10 * S;
    w.healthy(2);
    assert_eq!((w.look(), w.changed.waiting.len()), (vec![], 0));
}

#[test]
fn as_many_as_the_group_allows_restart_at_a_time() {
    for (max_parallel, turns) in [(1, 1), (2, 2), (0, 4)] {
        let mut w = World::new("service", 4, 4, max_parallel);
        (0..4).for_each(|n| w.data(n));
        assert_eq!(w.look().len(), turns, "max_parallel {max_parallel}");
    }
}

#[test]
fn data_that_do_no_good_stop_at_the_first_until_there_are_better() {
    let mut w = World::new("service", 4, 4, 2);
    (0..4).for_each(|n| w.data(n));
    assert_eq!(w.look(), [0, 1]);
    w.begins(0);
    w.begins(1);
    w.unhealthy(0);
    w.now += 10 * S;
    w.healthy(1);
    assert_eq!(w.look(), Vec::<u32>::new(), "one may be out of service besides, and still nobody follows");
    assert!(w.why().contains("is not healthy with its new templates"), "{}", w.why());
    // Better data: the ill one restarts at once, by itself.
    let restart = RollingRestart { turn: 2, asked: w.now, changed: w.now, begun: w.now, ..RollingRestart::default() };
    w.tells(0, Some(restart));
    w.now += 10 * S;
    w.healthy(0);
    assert_eq!(w.look(), [2, 3]);
}

#[test]
fn whoever_is_out_of_service_for_another_reason_counts() {
    // Missing.
    let mut w = World::new("service", 3, 2, 1);
    (0..2).for_each(|n| w.data(n));
    assert_eq!(w.look(), Vec::<u32>::new());
    assert!(w.why().contains("1 are out of service"), "{}", w.why());
    // It is placed, has failed, runs.
    w.place(2);
    assert_eq!(w.look(), Vec::<u32>::new());
    w.report(2, ClientStatus::Failed, TaskState { failed: true, state: TaskRunState::Dead, ..TaskState::default() });
    assert_eq!(w.look(), Vec::<u32>::new());
    w.report(2, ClientStatus::Running, TaskState { started_at: w.now.into(), ..running() });
    assert_eq!((w.look(), w.changed.next()), (vec![], Some(w.now + 10 * S)), "it may fail again at once");
    w.now += 10 * S;
    assert_eq!(w.look(), [0]);
    // A system job has as many as there are.
    let mut w = World::new("system", 1, 3, 1);
    (0..3).for_each(|n| w.data(n));
    w.report(2, ClientStatus::Unknown, w.task(2));
    assert_eq!(w.look(), Vec::<u32>::new());
    w.report(2, ClientStatus::Running, w.task(2));
    assert_eq!(w.look(), [0]);
    // Who leaves a draining node needs no turn: what follows begins with the new data.
    let mut w = World::new("service", 2, 2, 1);
    (0..2).for_each(|n| w.data(n));
    let migrate = DesiredTransition { migrate: Some(true), ..DesiredTransition::default() };
    w.apply(Change::AllocTransitions(vec![(id(0), migrate)]).into());
    assert_eq!(w.look(), [1]);
}

#[test]
fn whoever_has_failed_for_good_stops_those_with_the_same_data() {
    // A system job: nothing replaces it.
    let mut w = World::new("system", 1, 3, 1);
    (0..3).for_each(|n| w.data(n));
    assert_eq!(w.look(), [0]);
    w.begins(0);
    w.now += S;
    let restart = RollingRestart { unhealthy: true, ..*w.task(0).rolling_restart.expect("it was asked for") };
    let dead = TaskState {
        state: TaskRunState::Dead,
        failed: true,
        finished_at: w.now.into(),
        rolling_restart: Some(Box::new(restart)),
        ..TaskState::default()
    };
    w.report(0, ClientStatus::Failed, dead.clone());
    w.now += 100 * S;
    assert_eq!(w.look(), Vec::<u32>::new());
    assert!(w.why().contains("has failed with its new templates, 2 wait"), "{}", w.why());
    // Better data.
    let better = RollingRestart { changed: w.now, ..*w.task(1).rolling_restart.expect("it was asked for") };
    w.tells(1, Some(better));
    assert_eq!(w.look(), [1]);

    // A service: the replacement shows whether the data were to blame.
    let mut w = World::new("service", 3, 3, 2);
    (0..3).for_each(|n| w.data(n));
    assert_eq!(w.look(), [0, 1]);
    w.begins(0);
    w.begins(1);
    w.now += 10 * S;
    w.healthy(1);
    w.report(0, ClientStatus::Failed, TaskState { finished_at: w.now.into(), ..dead });
    w.place(3);
    let mut replaced = Allocation::clone(w.state.alloc(id(0)).expect("placed"));
    replaced.next_allocation = id(3);
    w.apply(Change::UpsertAllocs(vec![replaced]).into());
    w.report(3, ClientStatus::Running, TaskState { started_at: w.now.into(), ..running() });
    assert_eq!(w.look(), Vec::<u32>::new(), "one may be out of service besides");
    w.now += 10 * S;
    assert_eq!(w.look(), [2]);
}

#[test]
fn the_newest_data_need_a_turn_of_their_own() {
    let mut w = World::new("service", 2, 2, 1);
    w.data(0);
    assert_eq!(w.look(), [0]);
    w.begins(0);
    w.now += 10 * S;
    w.healthy(0);
    w.data(0);
    assert_eq!(w.look(), [0], "the former turn is over");
}

/// One step of a walk.
#[derive(Clone, Debug)]
enum Step {
    Data(u32),
    Go(u32),
    Fail(u32),
    Pass(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..5_u32).prop_map(Step::Data),
        (0..5_u32).prop_map(Step::Go),
        (0..5_u32).prop_map(Step::Go),
        (0..5_u32).prop_map(Step::Fail),
        (1..20_i64).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Nodes carry turns out, restart by themselves, and get new data in any order: never are more than `max_parallel`
    /// out of service because of a turn, and in the end everybody has the new data.
    #[test]
    fn never_too_many_and_never_nobody(steps in prop::collection::vec(step(), 1..80), max_parallel in 1..4_i32) {
        let mut w = World::new("service", 5, 5, max_parallel);
        let most = usize::try_from(max_parallel).unwrap();
        let look = |w: &mut World| {
            let out = (0..5).filter(|n| {
                let at = up_from(&w.state, w.state.jobs().next().unwrap(), w.state.alloc(id(*n)).unwrap(), 10 * S);
                at.is_none_or(|at| at > w.now)
            }).count();
            let given = w.look().len();
            prop_assert!(given == 0 || out + given <= most, "{given} besides {out}");
            Ok(())
        };
        let go = |w: &mut World, n: u32| match w.task(n).rolling_restart.as_deref() {
            Some(restart) if restart.begun != 0 => w.healthy(n),
            Some(restart) if w.given().contains(&(n, restart.turn)) => w.begins(n),
            _ => {}
        };
        for step in steps {
            match step {
                Step::Data(n) if w.task(n).rolling_restart.is_none() => w.data(n),
                Step::Data(_) => {}
                Step::Go(n) => go(&mut w, n),
                // Its restart policy starts it again, with the newest data.
                Step::Fail(n) => {
                    let restart = w.task(n).rolling_restart.filter(|restart| restart.begun != 0);
                    let task = TaskState { started_at: w.now.into(), rolling_restart: restart, ..running() };
                    w.report(n, ClientStatus::Running, task);
                }
                Step::Pass(s) => w.now += s * S,
            }
            look(&mut w)?;
        }
        for _ in 0..30 {
            w.now += 10 * S;
            (0..5).for_each(|n| go(&mut w, n));
            look(&mut w)?;
        }
        prop_assert!((0..5).all(|n| w.task(n).rolling_restart.is_none()), "{}", w.why());
    }
}
