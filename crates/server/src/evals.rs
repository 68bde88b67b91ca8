//! The chores of evaluations: waking the blocked ones, ending those that are superseded or were delivered too often.

use std::{sync::Arc, time::Duration};

use model::{EvalId, EvalStatus, Evaluation, Trigger};
use state::{Batch, Change, State};

use crate::{
    clock::{now_ns, ns},
    commit::{Decided, Stamp},
    shared::Shared,
    worker::give_up,
};

/// After a refused commit the chores are done again this much later.
const RETRY: Duration = Duration::from_secs(1);

/// Follows the broker: moves on what waits and commits its chores.
pub(crate) async fn broker_loop(shared: Arc<Shared>) {
    loop {
        let (chores, next) = shared.broker.tick(now_ns());
        if !chores.superseded.is_empty() || !chores.exhausted.is_empty() {
            let rest = ns(shared.config.failed_follow_up);
            let limit = shared.config.delivery_limit;
            let stored = shared
                .queue()
                .commit(move |state, stamp| {
                    // Whoever follows a superseded one goes on with the one that does its work.
                    let superseded = chores.superseded.iter().map(|(id, by)| (*id, Some(*by)));
                    let mut batch = cancel(state, superseded, "canceled: a newer evaluation of the job looks at the same");
                    for id in &chores.exhausted {
                        if let Some(eval) = state.eval(*id).filter(|eval| eval.status == EvalStatus::Pending) {
                            let why = format!("evaluation reached delivery limit ({limit})");
                            batch.changes.extend(give_up(eval, why, Trigger::FailedFollowUp, stamp.now, rest).changes);
                        }
                    }
                    Ok(Decided { batch, answer: () })
                })
                .await;
            if let Err(error) = stored {
                tracing::error!(error = %error, "ending evaluations failed; trying again");
                tokio::time::sleep(RETRY).await;
                shared.broker.fill(&shared.queue().newest());
            }
        }
        let timer = async {
            match next {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.broker.chore.notified() => {}
            () = timer => {}
            () = shared.stopping.cancelled() => return,
        }
    }
}

/// Follows the blocked evaluations: those that room may have appeared for become pending again.
pub(crate) async fn blocked_loop(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = shared.blocked.due.notified() => {}
            () = shared.stopping.cancelled() => return,
        }
        let due = shared.blocked.take();
        let stored = shared
            .queue()
            .commit(move |state, stamp| {
                let superseded = due.superseded.into_iter().map(|id| (id, None));
                let mut batch = cancel(state, superseded, "canceled: the job has a newer blocked evaluation");
                batch.changes.extend(wake(state, due.wake, stamp).changes);
                Ok(Decided { batch, answer: () })
            })
            .await;
        if let Err(error) = stored {
            tracing::error!(error = %error, "waking blocked evaluations failed; trying again");
            tokio::time::sleep(RETRY).await;
            shared.blocked.fill(&shared.queue().newest());
        }
    }
}

/// Ends evaluations, each with the one that does its work instead, if there is one.
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

fn wake(state: &State, ids: impl IntoIterator<Item = EvalId>, stamp: Stamp) -> Batch {
    let evals: Vec<Evaluation> = ids
        .into_iter()
        .filter_map(|id| state.eval(id))
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
