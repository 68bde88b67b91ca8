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
        let job = Job { namespace: "default".into(), id: name.into(), kind: "service".into(), task_groups: vec![group], ..Job::default() };
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
