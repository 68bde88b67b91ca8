//! Commands on allocations.

use model::{AllocId, DesiredTransition, Trigger};
use state::{Batch, Change};

use super::{created, eval_of};
use crate::{
    commit::Decided,
    error::{Kind, ServerError},
    handle::ServerHandle,
    requests::EvalCreated,
};

impl ServerHandle {
    /// Stops an allocation; its job gets another one. With `reschedule` that counts as an attempt of the policy, and another node is preferred.
    ///
    /// # Errors
    /// When there is no such allocation.
    pub async fn stop_alloc(&self, id: AllocId, no_shutdown_delay: bool, reschedule: bool) -> Result<EvalCreated, ServerError> {
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let alloc = state.alloc(id).ok_or_else(|| ServerError::not_found(Kind::Alloc, id))?;
                let job =
                    state.job(&alloc.job_key()).or(alloc.job.as_ref()).ok_or_else(|| ServerError::not_found(Kind::Job, alloc.job_key()))?;
                let eval = eval_of(job, Trigger::AllocStop, None, stamp);
                let answer = created(&eval, job.job_modify_index, stamp);
                let transition = DesiredTransition {
                    migrate: Some(true),
                    reschedule: reschedule.then_some(true),
                    no_shutdown_delay: no_shutdown_delay.then_some(true),
                    ..DesiredTransition::default()
                };
                let mut batch = Batch::default();
                if !alloc.terminal() {
                    batch.push(Change::AllocTransitions(vec![(id, transition)]));
                }
                batch.push(Change::UpsertEvals(vec![eval]));
                Ok(Decided { batch, answer })
            })
            .await
    }
}
