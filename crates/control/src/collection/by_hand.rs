//! Evaluations that a person deletes, with their allocations, while nothing is scheduled: what a queue that has grown
//! by mistake is emptied with.

use model::{EvalId, StoreIndex};
use state::{Batch, Change, State};

use super::{Need, need};
use crate::{Decided, Kind, Refused, Stamp};

/// The answer to a deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Evaluations that are gone.
    pub evals: usize,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// Whether nobody may need the evaluation and its allocations any more: each of them has ended, and no later decision
/// depends on it. An evaluation that waits has no allocations.
fn deletable(state: &State, id: EvalId) -> bool {
    state.allocs_by_eval(id).all(|alloc| matches!(need(state, alloc), Need::None))
}

/// Deletes evaluations with their allocations. With `all` it is these or none; else those that are still needed, or are
/// gone already, are left out.
///
/// # Errors
/// While evaluations are worked off. With `all` when one is unknown or still needed; each is named.
pub fn delete(state: &State, ids: &[EvalId], all: bool, stamp: Stamp) -> Result<Decided<Deleted>, Refused> {
    if !state.scheduler_config().pause_eval_broker {
        return Err(Refused::Invalid(
            "eval broker is enabled; eval broker must be paused to delete evals: `operator scheduler set-config \
                -pause-eval-broker=true`"
                .to_owned(),
        ));
    }
    let (mut evals, mut allocs) = (Vec::new(), Vec::new());
    for id in ids {
        match (state.eval(*id).is_some(), deletable(state, *id)) {
            (true, true) => {
                evals.push(*id);
                allocs.extend(state.allocs_by_eval(*id).map(|alloc| alloc.id));
            }
            (false, _) if all => return Err(Refused::NotFound { kind: Kind::Eval, name: id.to_string() }),
            (true, false) if all => {
                return Err(Refused::Invalid(format!(
                    "eval {id} is not safe to delete: it has allocations that run, or that later decisions depend on"
                )));
            }
            _ => {}
        }
    }
    let mut batch = Batch::default();
    let answer = Deleted { evals: evals.len(), index: stamp.index };
    if !allocs.is_empty() {
        batch.push(Change::DeleteAllocs(allocs));
    }
    if !evals.is_empty() {
        batch.push(Change::DeleteEvals(evals));
    }
    Ok(Decided { batch, answer })
}
