//! Preparations of creates: one at a time for each slot, for one incarnation and one allocation.
//!
//! A preparation may take for ever, for instance while a template waits for a service. The servers may have gone on
//! meanwhile. So the result for one incarnation must never serve the next, and an unwanted preparation must stop.

use std::sync::Arc;

use model::{AllocId, IncarnationId};
use tokio_util::sync::DropGuard;

use crate::prepared::Prepared;

/// The incarnation, and the allocation that supplies directory, job and tokens.
pub(crate) type For = (IncarnationId, AllocId);
/// `Err`: why there will never be a result.
pub(crate) type Outcome = Result<Arc<Prepared>, String>;

/// One preparation.
pub(crate) struct Preparing {
    of: For,
    state: State,
}

enum State {
    /// It waits for its allocation, which comes in a message of its own.
    Wanted,
    /// A drop of `_ends` ends the work.
    UnderWay { _ends: DropGuard },
    /// It has ended.
    Done(Outcome),
}

impl Preparing {
    pub(crate) fn wanted(of: For) -> Self {
        Self { of, state: State::Wanted }
    }

    pub(crate) fn under_way(of: For, ends: DropGuard) -> Self {
        Self { of, state: State::UnderWay { _ends: ends } }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        matches!(self.state, State::Wanted)
    }

    /// The target of the work; `None`: it is done.
    pub(crate) fn open(&self) -> Option<For> {
        (!matches!(self.state, State::Done(_))).then_some(self.of)
    }

    /// Takes the outcome of the work. False: it is the outcome of an earlier one.
    pub(crate) fn done(&mut self, of: For, outcome: Outcome) -> bool {
        let awaited = self.of == of && matches!(self.state, State::UnderWay { .. });
        if awaited {
            self.state = State::Done(outcome);
        }
        awaited
    }

    /// The outcome, if its target is `of`.
    pub(crate) fn outcome(&self, of: For) -> Option<&Outcome> {
        match &self.state {
            State::Done(outcome) if self.of == of => Some(outcome),
            _ => None,
        }
    }

    /// The preparation for that incarnation.
    pub(crate) fn made(&self, incarnation: IncarnationId) -> Option<&Arc<Prepared>> {
        match &self.state {
            State::Done(Ok(prepared)) if self.of.0 == incarnation => Some(prepared),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use uuid::Uuid;

    use super::*;

    fn of(incarnation: u128, alloc: u128) -> For {
        (IncarnationId(Uuid::from_u128(incarnation)), AllocId(Uuid::from_u128(alloc)))
    }

    fn refused() -> Outcome {
        Err("the job's fault".to_owned())
    }

    #[test]
    fn an_outcome_is_that_of_what_is_wanted_now() {
        let token = CancellationToken::new();
        let mut preparing = Preparing::under_way(of(2, 1), token.drop_guard());
        assert!(!preparing.done(of(1, 1), refused()), "of the incarnation before");
        assert!(!preparing.done(of(2, 7), refused()), "by another allocation");
        assert!(preparing.outcome(of(2, 1)).is_none() && preparing.open() == Some(of(2, 1)));
        assert!(preparing.done(of(2, 1), refused()));
        assert!(preparing.outcome(of(2, 1)).is_some() && preparing.open().is_none());
        assert!(preparing.outcome(of(3, 1)).is_none() && preparing.outcome(of(2, 7)).is_none());
        assert!(!preparing.done(of(2, 1), refused()), "there was one already");
    }

    #[test]
    fn whoever_is_at_it_ends_with_it() {
        let token = CancellationToken::new();
        let preparing = Preparing::under_way(of(1, 1), token.clone().drop_guard());
        assert!(!token.is_cancelled() && !preparing.is_wanted());
        drop(preparing);
        assert!(token.is_cancelled());
        let wanted = Preparing::wanted(of(1, 1));
        assert!(wanted.is_wanted() && wanted.open() == Some(of(1, 1)));
    }
}
