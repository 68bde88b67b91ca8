//! Collection, without a server.

use model::{AllocClientUpdate, ClientStatus, Evaluation, Node, TaskGroup, alloc::alloc_name};
use uuid::Uuid;

use super::*;

const NOW: i64 = 1_000_000_000_000_000;
const HOUR: i64 = 3_600_000_000_000;

fn eval_id() -> EvalId {
    EvalId(Uuid::from_u128(0xe000))
}

fn apply(state: &mut State, at: i64, batch: impl Into<Batch>) {
    let index = state.latest_index() + 1;
    state.apply(index, at, batch.into()).unwrap();
}

/// A stopped job without running allocations, and a running one, on the same node.
fn world() -> State {
    let mut state = State::new();
    let node = NodeId(Uuid::from_u128(0xf001));
    apply(&mut state, NOW, Change::RegisterNode(Box::new(Node { id: node, ..Node::default() })));
    for (n, (name, stop)) in [("old", true), ("new", false)].into_iter().enumerate() {
        let group = TaskGroup { name: "g".into(), count: Some(1), ..TaskGroup::default() };
        let job = Job {
            namespace: "default".into(),
            id: name.into(),
            kind: "service".into(),
            task_groups: vec![group].into(),
            ..Job::default()
        };
        apply(&mut state, NOW, Change::UpsertJob { job: Box::new(Job { stop, ..job }), submission: None });
        let id = AllocId(Uuid::from_u128(0xa000 + n as u128));
        let alloc = Allocation {
            id,
            namespace: "default".into(),
            job_id: name.into(),
            name: alloc_name(name, "g", 0).into(),
            task_group: "g".into(),
            node_id: node,
            eval_id: if stop { eval_id() } else { EvalId(Uuid::from_u128(0xe001)) },
            desired_status: if stop { DesiredStatus::Stop } else { DesiredStatus::Run },
            ..Allocation::default()
        };
        let eval = Evaluation {
            id: alloc.eval_id,
            namespace: "default".into(),
            kind: "service".into(),
            job_id: name.into(),
            status: EvalStatus::Complete,
            create_time: NOW,
            modify_time: NOW,
            ..Evaluation::default()
        };
        apply(&mut state, NOW, vec![Change::UpsertEvals(vec![eval]), Change::UpsertAllocs(vec![alloc])]);
        let client_status = if stop { ClientStatus::Complete } else { ClientStatus::Running };
        let update = AllocClientUpdate { id, client_status, ..AllocClientUpdate::default() };
        apply(&mut state, NOW, Change::UpdateAllocsFromClient(vec![update]));
    }
    state
}

#[test]
fn what_has_ended_goes_when_it_is_old_and_once() {
    let hour = Duration::from_secs(3600);
    let ages = Ages { eval: hour, batch_eval: hour, job: hour * 4, deployment: hour, node: hour };
    let mut state = world();
    let none = Collected::default();
    assert_eq!(decide(&state, Before::aged(&ages, NOW + HOUR / 2)).answer, none, "nothing is old");
    let Decided { batch, answer: collected } = decide(&state, Before::aged(&ages, NOW + HOUR * 2));
    assert_eq!(collected, Collected { evals: 1, allocs: 1, ..none }, "the job itself is kept for longer");
    apply(&mut state, NOW + HOUR * 2, batch);
    assert_eq!(state.eval(eval_id()), None);
    assert!(decide(&state, Before::aged(&ages, NOW + HOUR * 2)).batch.is_empty(), "once");
    assert_eq!(decide(&state, Before::aged(&ages, NOW + HOUR * 5)).answer, Collected { jobs: 1, ..none });

    let mut state = world();
    let Decided { batch, answer: collected } = decide(&state, Before::forced(NOW));
    assert_eq!(collected, Collected { evals: 1, allocs: 1, jobs: 1, ..none }, "forced, all at once");
    apply(&mut state, NOW, batch);
    assert!(decide(&state, Before::forced(NOW)).batch.is_empty(), "what runs stays");
}

/// Ages with which everything is old in its turn.
const AGES: Ages = Ages {
    eval: Duration::from_secs(3600),
    batch_eval: Duration::from_secs(2 * 3600),
    job: Duration::from_secs(4 * 3600),
    deployment: Duration::from_secs(3600),
    node: Duration::from_secs(3600),
};

/// A state with the memory that follows it.
struct Followed {
    state: State,
    aging: Aging,
    now: i64,
}

impl Followed {
    fn apply(&mut self, batch: impl Into<Batch>) {
        let (before, index) = (self.state.clone(), self.state.latest_index() + 1);
        let applied = self.state.apply(index, self.now, batch.into()).unwrap();
        self.aging.follow(&before, &self.state, &applied);
    }

    /// One collection: how many candidates it has looked at.
    fn collect(&mut self) -> usize {
        let mut looks = 0;
        while self.aging.is_due(self.now) {
            let candidates = self.aging.take(self.now, 3);
            looks += candidates.len();
            let before = Before::aged(&AGES, self.now);
            let (decided, stay) = decide_among(&self.state, before, candidates);
            self.apply(decided.batch);
            self.aging.stay(&self.state, stay, self.now, Duration::from_secs(60));
        }
        looks
    }
}

fn numbered(n: u128, job: &str) -> (Evaluation, Allocation) {
    let eval = Evaluation {
        id: EvalId(Uuid::from_u128(0xe100 + n)),
        namespace: "default".into(),
        kind: if job == "batch" { "batch" } else { "service" }.into(),
        job_id: job.into(),
        status: EvalStatus::Complete,
        ..Evaluation::default()
    };
    let alloc = Allocation {
        id: AllocId(Uuid::from_u128(0xa100 + n)),
        namespace: "default".into(),
        job_id: job.into(),
        name: alloc_name(job, "g", u32::try_from(n).unwrap()).into(),
        task_group: "g".into(),
        node_id: NodeId(Uuid::from_u128(0xf001)),
        eval_id: eval.id,
        desired_status: DesiredStatus::Run,
        ..Allocation::default()
    };
    (eval, alloc)
}

/// The work is counted: what runs costs nothing, however much it is.
#[test]
fn a_collection_looks_at_what_has_ended() {
    const RUNNING: u128 = 200;
    let mut w = Followed { state: world(), aging: Aging::new(AGES), now: NOW };
    w.aging.fill(&world());
    for n in 0..RUNNING {
        let (eval, alloc) = numbered(n, "new");
        w.apply(vec![Change::UpsertEvals(vec![eval]), Change::UpsertAllocs(vec![alloc])]);
    }
    w.now = NOW + 2 * HOUR;
    assert!(w.collect() as u128 >= RUNNING, "each evaluation has ended, and is looked at once");
    w.now = NOW + 9 * HOUR;
    w.collect();
    assert_eq!(w.state.allocs().count() as u128, RUNNING + 1, "what runs is there");
    assert_eq!(w.collect(), 0, "and is not looked at again");

    // One of them is replaced and ends: its evaluation is the only one that is looked at.
    let (_, stopped) = numbered(7, "new");
    let (id, eval_id) = (stopped.id, stopped.eval_id);
    let (desired_status, modify_time) = (DesiredStatus::Stop, w.now);
    w.apply(Change::UpsertAllocs(vec![Allocation { desired_status, modify_time, ..stopped }]));
    let update = AllocClientUpdate { id, client_status: ClientStatus::Complete, ..AllocClientUpdate::default() };
    w.apply(Change::UpdateAllocsFromClient(vec![update]));
    assert_eq!(w.collect(), 0, "it is not old");
    w.now += 2 * HOUR;
    assert_eq!(w.collect(), 1);
    assert!(w.state.alloc(id).is_none() && w.state.eval(eval_id).is_none());
    assert_eq!(w.aging.len(), 0, "nothing is remembered of what is gone or runs");
}

/// Whatever happens, the memory finds what a search of everything finds.
#[test]
fn what_is_remembered_is_all_that_a_search_finds() {
    let mut dice = 1_u64;
    let mut roll = move |n: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % n
    };
    let mut w = Followed { state: world(), aging: Aging::new(AGES), now: NOW };
    w.aging.fill(&world());
    for step in 0..600 {
        // Two evaluations of each job, and an allocation of each.
        let n = roll(6);
        let job = ["old", "new", "batch"][usize::try_from(n % 3).unwrap()];
        let (mut eval, mut alloc) = numbered(u128::from(n), job);
        let of_job = EvalId(Uuid::from_u128(0xe100 + u128::from((n + 3 * roll(2)) % 6)));
        alloc.modify_time = w.now;
        let status =
            [ClientStatus::Running, ClientStatus::Complete, ClientStatus::Failed][usize::try_from(roll(3)).unwrap()];
        match roll(9) {
            0 => {
                eval.status = [EvalStatus::Pending, EvalStatus::Complete][usize::try_from(roll(2)).unwrap()];
                w.apply(Change::UpsertEvals(vec![eval]));
            }
            1 => w.apply(vec![Change::UpsertEvals(vec![eval]), Change::UpsertAllocs(vec![alloc])]),
            2 => {
                alloc.desired_status = DesiredStatus::Stop;
                alloc.eval_id = of_job;
                w.apply(Change::UpsertAllocs(vec![alloc]));
            }
            3 => {
                let update = AllocClientUpdate { id: alloc.id, client_status: status, ..AllocClientUpdate::default() };
                w.apply(Change::UpdateAllocsFromClient(vec![update]));
            }
            4 => {
                alloc.next_allocation = AllocId(Uuid::from_u128(1));
                alloc.client_status = status;
                alloc.followup_eval_id = of_job;
                w.apply(Change::UpsertAllocs(vec![alloc]));
            }
            5 => w.apply(Change::StopJob(JobKey::new("default", job))),
            6 => {
                let kind = if job == "batch" { "batch" } else { "service" };
                let job = Job {
                    namespace: "default".into(),
                    id: job.into(),
                    kind: kind.into(),
                    priority: i32::try_from(roll(50)).unwrap(),
                    task_groups: vec![TaskGroup { name: "g".into(), count: Some(1), ..TaskGroup::default() }].into(),
                    ..Job::default()
                };
                w.apply(Change::UpsertJob { job: Box::new(job), submission: None });
            }
            7 => w.apply(Change::DeleteJob(JobKey::new("default", job))),
            _ => {
                let id = NodeId(Uuid::from_u128(0xf001));
                let status = if roll(2) == 0 { NodeStatus::Down } else { NodeStatus::Ready };
                w.apply(match roll(4) {
                    0 => Change::RegisterNode(Box::new(Node { id, ..Node::default() })),
                    1 => Change::DeleteNode(id),
                    _ => Change::NodeStatus { id, status, description: String::new(), event: None },
                });
            }
        }
        w.now += HOUR / 3;
        // What was put off until the next collection is due by then.
        w.collect();
        w.now += 60_000_000_000;
        w.collect();
        let left = decide(&w.state, Before::aged(&AGES, w.now));
        assert_eq!(left.answer, Collected::default(), "step {step}: {:?}", left.batch);
    }
}

/// What a batch job has done counts for as long as somebody may ask for it again.
#[test]
fn finished_work_is_known_as_long_as_its_job_is_there() {
    let hour = Duration::from_secs(3600);
    let ages = Ages { eval: hour, batch_eval: hour, job: hour * 4, deployment: hour, node: hour };
    for stop in [false, true] {
        let mut state = State::new();
        let (node, id) = (NodeId(Uuid::from_u128(0xf001)), AllocId(Uuid::from_u128(0xa000)));
        apply(&mut state, NOW, Change::RegisterNode(Box::new(Node { id: node, ..Node::default() })));
        let group = TaskGroup { name: "g".into(), count: Some(1), ..TaskGroup::default() };
        let (namespace, name) = (model::Namespace::from("default"), "import");
        let job = Job {
            namespace: namespace.clone(),
            id: name.into(),
            kind: "batch".into(),
            stop,
            task_groups: vec![group].into(),
            ..Job::default()
        };
        apply(&mut state, NOW, Change::UpsertJob { job: Box::new(job), submission: None });
        let eval = |id: EvalId, at: i64| Evaluation {
            id,
            namespace: namespace.clone(),
            kind: "batch".into(),
            job_id: name.into(),
            status: EvalStatus::Complete,
            create_time: at,
            modify_time: at,
            ..Evaluation::default()
        };
        let alloc = Allocation {
            id,
            namespace: namespace.clone(),
            job_id: name.into(),
            name: alloc_name(name, "g", 0).into(),
            task_group: "g".into(),
            node_id: node,
            eval_id: eval_id(),
            ..Allocation::default()
        };
        apply(
            &mut state,
            NOW,
            vec![Change::UpsertEvals(vec![eval(eval_id(), NOW)]), Change::UpsertAllocs(vec![alloc])],
        );
        let update = AllocClientUpdate { id, client_status: ClientStatus::Complete, ..AllocClientUpdate::default() };
        apply(&mut state, NOW, Change::UpdateAllocsFromClient(vec![update]));
        // Somebody registers it again each hour: nothing is left to do.
        let later = NOW + HOUR * 24;
        let again: Vec<EvalId> = (1..3).map(|n| EvalId(Uuid::from_u128(0xe100 + n))).collect();
        for (id, at) in again.iter().zip([NOW + HOUR, later]) {
            apply(&mut state, at, Change::UpsertEvals(vec![eval(*id, at)]));
        }
        let Decided { batch, answer: collected } = decide(&state, Before::aged(&ages, later));
        let kept = Collected { evals: 1, ..Collected::default() };
        assert_eq!(collected, if stop { Collected { evals: 2, allocs: 1, ..kept } } else { kept }, "stop: {stop}");
        apply(&mut state, later, batch);
        assert_eq!((state.alloc(id).is_some(), state.eval(again[0]).is_some()), (!stop, false));
        // It goes as a whole.
        let all = decide(&state, Before::aged(&ages, later + HOUR * 5)).answer;
        assert_eq!((all.jobs, all.allocs), (1, usize::from(!stop)));
    }
}
