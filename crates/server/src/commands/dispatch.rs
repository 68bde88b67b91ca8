//! Dispatching parameterized jobs.

use std::sync::Arc;

use model::{Job, Trigger, dispatch::LAUNCH_SUFFIX};
use state::{Batch, Change, State};

use super::{created, eval_of, jobs};
use crate::{
    clock::seed,
    commit::Decided,
    error::{Kind, ServerError},
    handle::ServerHandle,
    requests::{DispatchJob, Dispatched},
};

impl ServerHandle {
    /// Makes a job of a parameterized one and has it scheduled. The same idempotency token gives the same child, however often it is asked for.
    ///
    /// # Errors
    /// When there is no such job, it is no template, is stopped, or does not allow what the request brings.
    pub async fn dispatch_job(&self, request: DispatchJob) -> Result<Dispatched, ServerError> {
        let highest = self.config().job_max_priority;
        let asked = request.dispatch.priority.unwrap_or(1);
        if !(1..=highest).contains(&asked) {
            return Err(ServerError::InvalidArgument(format!("dispatch priority {asked} is not between 1 and {highest}")));
        }
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let DispatchJob { key, dispatch } = request;
                jobs::allowed_now(state, &key)?;
                let parent = state.job(&key).ok_or_else(|| ServerError::not_found(Kind::Job, &key))?;
                #[allow(clippy::cast_possible_truncation, reason = "any eight digits do")]
                let random = format!("{:08x}", seed() as u32);
                let mut child =
                    model::dispatch::child(parent, &dispatch, stamp.now / 1_000_000_000, &random).map_err(ServerError::Dispatch)?;
                if let Some(before) = same_token(state, parent, &dispatch.idempotency_token) {
                    let answer = Dispatched { job_id: before.id.clone(), job_create_index: before.create_index, ..Dispatched::default() };
                    return Ok(Decided { batch: Batch::default(), answer: Dispatched { index: before.modify_index, ..answer } });
                }
                if state.job(&child.key()).is_some() {
                    return Err(ServerError::Conflict(format!("job {} exists already: dispatch again", child.id)));
                }
                jobs::check_references(state, &child)?;
                model::scaling::number_policies(&mut child, None, stamp.index, jobs::new_policy_id);
                let eval = eval_of(&child, Trigger::JobRegister, None, stamp);
                let made = created(&eval, stamp.index, stamp);
                let answer = Dispatched {
                    job_id: child.id.clone(),
                    job_create_index: stamp.index,
                    eval_id: made.eval_id,
                    eval_create_index: made.eval_create_index,
                    index: stamp.index,
                };
                let batch = Batch::new(vec![
                    Change::UpsertJob { job: Box::new(Job { submit_time: stamp.now, ..child }), submission: None },
                    Change::UpsertEvals(vec![eval]),
                ]);
                Ok(Decided { batch, answer })
            })
            .await
    }
}

/// The child that a request with this token has made before, as long as the cluster knows it.
fn same_token(state: &State, parent: &Job, token: &str) -> Option<Arc<Job>> {
    if token.is_empty() {
        return None;
    }
    let prefix = format!("{}{LAUNCH_SUFFIX}", parent.id);
    let is = |job: &&Arc<Job>| job.parent_id == parent.id.as_str() && job.dispatch_idempotency_token == token;
    state.jobs_in(&parent.namespace, &prefix).find(is).cloned()
}
