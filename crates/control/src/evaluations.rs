//! Evaluations: new ones, and those that follow from others.

use std::collections::BTreeSet;

use model::{EvalId, EvalStatus, Evaluation, Job, TimestampNs, Trigger};
use state::{Batch, Change, State};

use crate::{Ids, Stamp};

/// A pending evaluation of a job as the state has it.
pub fn pending(job: &Job, trigger: Trigger, stamp: Stamp, ids: &mut Ids<'_>) -> Evaluation {
    Evaluation {
        id: EvalId(ids()),
        namespace: job.namespace.clone(),
        priority: job.priority,
        kind: job.kind.clone(),
        trigger,
        job_id: job.id.clone(),
        job_modify_index: job.modify_index,
        status: EvalStatus::Pending,
        create_time: stamp.now,
        modify_time: stamp.now,
        ..Evaluation::default()
    }
}

/// Evaluations to end without work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chores {
    /// Superseded by a newer evaluation of the same job, the second id.
    pub superseded: Vec<(EvalId, EvalId)>,
    /// Delivered too often.
    pub exhausted: Vec<EvalId>,
}

/// Ends these evaluations, each with the one that supersedes it or with a delayed follow-up.
pub fn end_chores(
    state: &State,
    chores: &Chores,
    limit: u32,
    rest: TimestampNs,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Batch {
    // A client that follows a superseded one continues with its successor.
    let superseded = chores.superseded.iter().map(|(id, by)| (*id, Some(*by)));
    let mut batch = cancel(state, superseded, "canceled: a newer evaluation of the job looks at the same");
    for eval in
        chores.exhausted.iter().filter_map(|id| state.eval(*id)).filter(|eval| eval.status == EvalStatus::Pending)
    {
        let why = format!("evaluation reached delivery limit ({limit})");
        batch.changes.extend(give_up(eval, why, Trigger::FailedFollowUp, rest, stamp, ids).changes);
    }
    batch
}

/// Blocked evaluations to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// There may be room for them now.
    pub wake: BTreeSet<EvalId>,
    /// Their job has a newer one.
    pub superseded: BTreeSet<EvalId>,
}

/// Ends blocked evaluations with a newer one of the same job, and wakes those for which there may be room.
#[must_use]
pub fn stir(state: &State, due: &Due, stamp: Stamp) -> Batch {
    let superseded = due.superseded.iter().map(|id| (*id, None));
    let mut batch = cancel(state, superseded, "canceled: the job has a newer blocked evaluation");
    batch.changes.extend(wake(state, &due.wake, stamp).changes);
    batch
}

/// Ends evaluations, each with its successor, if there is one.
fn cancel(state: &State, evals: impl Iterator<Item = (EvalId, Option<EvalId>)>, why: &str) -> Batch {
    let evals: Vec<Evaluation> = evals
        .filter_map(|(id, by)| Some((state.eval(id)?, by)))
        .filter(|(eval, _)| !eval.status.terminal())
        .map(|(eval, by)| Evaluation {
            status: EvalStatus::Canceled,
            status_description: why.to_owned(),
            next_eval: by.unwrap_or(eval.next_eval),
            ..Evaluation::clone(eval)
        })
        .collect();
    if evals.is_empty() { Batch::default() } else { Change::UpsertEvals(evals).into() }
}

/// Makes blocked evaluations pending again.
fn wake<'a>(state: &State, ids: impl IntoIterator<Item = &'a EvalId>, stamp: Stamp) -> Batch {
    let evals: Vec<Evaluation> = ids
        .into_iter()
        .filter_map(|id| state.eval(*id))
        .filter(|eval| eval.status == EvalStatus::Blocked)
        .map(|eval| Evaluation {
            status: EvalStatus::Pending,
            trigger: Trigger::QueuedAllocs,
            modify_time: stamp.now,
            ..Evaluation::clone(eval)
        })
        .collect();
    if evals.is_empty() { Batch::default() } else { Change::UpsertEvals(evals).into() }
}

/// Fails an evaluation and makes a follow-up that tries again after `rest`.
pub fn give_up(
    eval: &Evaluation,
    description: String,
    trigger: Trigger,
    rest: TimestampNs,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Batch {
    let follow_up = Evaluation {
        id: EvalId(ids()),
        namespace: eval.namespace.clone(),
        priority: eval.priority,
        kind: eval.kind.clone(),
        trigger,
        job_id: eval.job_id.clone(),
        job_modify_index: eval.job_modify_index,
        status: EvalStatus::Pending,
        wait_until: stamp.now + rest,
        previous_eval: eval.id,
        create_time: stamp.now,
        modify_time: stamp.now,
        ..Evaluation::default()
    };
    let failed = Evaluation {
        status: EvalStatus::Failed,
        status_description: description,
        next_eval: follow_up.id,
        ..eval.clone()
    };
    Change::UpsertEvals(vec![failed, follow_up]).into()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::fixture::counted;

    fn id(n: u128) -> EvalId {
        EvalId(Uuid::from_u128(n))
    }

    fn world(evals: &[(u128, EvalStatus)]) -> State {
        let mut state = State::new();
        let eval = |(n, status): &(u128, EvalStatus)| Evaluation {
            id: id(*n),
            namespace: "default".into(),
            job_id: "web".into(),
            status: *status,
            ..Evaluation::default()
        };
        state.apply(2, 1, Change::UpsertEvals(evals.iter().map(eval).collect()).into()).unwrap();
        state
    }

    fn after(mut state: State, batch: Batch) -> Vec<(EvalStatus, EvalId)> {
        state.apply(3, 2, batch).unwrap();
        let mut evals: Vec<_> = state.evals().map(|eval| (eval.id, eval.status, eval.next_eval)).collect();
        evals.sort_unstable_by_key(|(id, ..)| *id);
        evals.into_iter().map(|(_, status, next)| (status, next)).collect()
    }

    #[test]
    fn only_what_has_not_ended_is_cancelled_and_only_what_is_blocked_wakes() {
        let evals = [(1, EvalStatus::Pending), (2, EvalStatus::Complete), (3, EvalStatus::Blocked)];
        let state = world(&evals);
        let by = id(3);
        let batch = cancel(&state, [(id(1), Some(by)), (id(2), None), (id(9), None)].into_iter(), "superseded");
        let none = EvalId::NIL;
        assert_eq!(
            after(state, batch),
            [(EvalStatus::Canceled, by), (EvalStatus::Complete, none), (EvalStatus::Blocked, none)]
        );

        let state = world(&evals);
        let batch = wake(&state, &[id(1), id(2), id(3), id(9)], Stamp { index: 3, now: 2 });
        assert_eq!(
            after(state, batch),
            [(EvalStatus::Pending, none), (EvalStatus::Complete, none), (EvalStatus::Pending, none)]
        );
        assert!(wake(&world(&evals), &[id(1)], Stamp { index: 3, now: 2 }).is_empty(), "it is awake");
    }

    #[test]
    fn what_is_given_up_is_followed_by_one_that_rests_first() {
        let state = world(&[(1, EvalStatus::Pending)]);
        let eval = state.eval(id(1)).unwrap();
        let stamp = Stamp { index: 3, now: 100 };
        let batch = give_up(eval, "too often".to_owned(), Trigger::FailedFollowUp, 50, stamp, &mut counted(3));
        let Some(Change::UpsertEvals(evals)) = batch.changes.first() else { panic!("no evaluations: {batch:?}") };
        let [failed, next] = &evals[..] else { panic!("not two: {evals:?}") };
        assert_eq!((failed.status, failed.next_eval, next.previous_eval), (EvalStatus::Failed, next.id, id(1)));
        assert_eq!((next.status, next.wait_until), (EvalStatus::Pending, 150));
    }

    #[test]
    fn chores_are_of_pending_evaluations_and_blocked_ones_are_ended_or_woken() {
        let state = world(&[(1, EvalStatus::Pending), (2, EvalStatus::Pending), (3, EvalStatus::Complete)]);
        let stamp = Stamp { index: 3, now: 100 };
        let chores = Chores { superseded: vec![(id(1), id(2))], exhausted: vec![id(2), id(3), id(9)] };
        let batch = end_chores(&state, &chores, 3, 50, stamp, &mut counted(3));
        let ended = after(state, batch);
        assert_eq!(ended[0], (EvalStatus::Canceled, id(2)));
        assert_eq!(
            ended.iter().map(|(status, _)| *status).filter(|status| *status == EvalStatus::Failed).count(),
            1,
            "{ended:?}"
        );

        let state = world(&[(1, EvalStatus::Blocked), (2, EvalStatus::Blocked)]);
        let due = Due { superseded: [id(1)].into(), wake: [id(2)].into() };
        let batch = stir(&state, &due, stamp);
        assert_eq!(after(state, batch), [(EvalStatus::Canceled, EvalId::NIL), (EvalStatus::Pending, EvalId::NIL)]);
    }
}
