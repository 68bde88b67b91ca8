//! Dispatching parameterized jobs.

use std::sync::Arc;

use model::{EvalId, Job, JobId, JobKey, StoreIndex, Trigger, dispatch::LAUNCH_SUFFIX};
use state::{Batch, Change, State};

use crate::{
    Decided, Ids, Refused, Stamp,
    admission::{Rules, check_count, check_references},
    jobs::{allowed_now, eval_of, job_of},
};

/// Creates a child of a parameterized job.
#[derive(Clone, Debug, Default)]
pub struct DispatchJob {
    /// The parameterized job.
    pub key: JobKey,
    /// Payload and metadata of the child.
    pub dispatch: model::dispatch::Dispatch,
}

/// The child of a dispatch, new or from an earlier one with the same token.
#[derive(Clone, Debug, Default)]
pub struct Dispatched {
    /// Its id.
    pub job_id: JobId,
    /// Index of its registration.
    pub job_create_index: StoreIndex,
    /// The evaluation; nil for an existing child.
    pub eval_id: EvalId,
    /// Its index; 0 for an existing child.
    pub eval_create_index: StoreIndex,
    /// Index of the commit.
    pub index: StoreIndex,
}

/// Creates a child of a parameterized job and an evaluation for it. The same idempotency token gives the same child at
/// every call.
///
/// # Errors
/// When there is no such job, it is not parameterized, is stopped, or does not allow the request's content.
pub fn dispatch(
    state: &State,
    request: &DispatchJob,
    rules: &Rules<'_>,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<Dispatched>, Refused> {
    let DispatchJob { key, dispatch } = request;
    let (asked, highest) = (dispatch.priority.unwrap_or(1), rules.max_priority);
    if !(1..=highest).contains(&asked) {
        return Err(Refused::Invalid(format!("dispatch priority {asked} is not between 1 and {highest}")));
    }
    allowed_now(state, key)?;
    let parent = job_of(state, key)?;
    #[allow(clippy::cast_possible_truncation, reason = "any eight digits do")]
    let random = format!("{:08x}", ids().as_u64_pair().0 as u32);
    let mut child = model::dispatch::child(parent, dispatch, stamp.now / 1_000_000_000, &random)?;
    if let Some(before) = same_token(state, parent, &dispatch.idempotency_token) {
        let answer =
            Dispatched { job_id: before.id.clone(), job_create_index: before.create_index, ..Dispatched::default() };
        return Ok(Decided { batch: Batch::default(), answer: Dispatched { index: before.modify_index, ..answer } });
    }
    if state.job(&child.key()).is_some() {
        return Err(Refused::Conflict(format!("job {} exists already: dispatch again", child.id)));
    }
    check_references(state, &child)?;
    check_count(&child, rules.max_count)?;
    model::scaling::number_policies(&mut child, None, stamp.index, || ids().to_string());
    let eval = eval_of(&child, Trigger::JobRegister, None, stamp, ids);
    let mut answer = Dispatched {
        job_id: child.id.clone(),
        job_create_index: stamp.index,
        index: stamp.index,
        ..Dispatched::default()
    };
    // The clock launches a child that is periodic itself.
    let scheduled = !child.is_template();
    let child = Box::new(Job { submit_time: stamp.now, ..child });
    let mut batch = Batch::from(Change::UpsertJob { job: child, submission: None });
    if scheduled {
        (answer.eval_id, answer.eval_create_index) = (eval.id, stamp.index);
        batch.push(Change::UpsertEvals(vec![eval]));
    }
    Ok(Decided { batch, answer })
}

/// The child that an earlier request with this token has created, as long as the cluster knows it.
fn same_token(state: &State, parent: &Job, token: &str) -> Option<Arc<Job>> {
    if token.is_empty() {
        return None;
    }
    let prefix = format!("{}{LAUNCH_SUFFIX}", parent.id);
    let is = |job: &&Arc<Job>| job.parent_id == parent.id.as_str() && job.dispatch_idempotency_token == token;
    state.jobs_in(&parent.namespace, &prefix).find(is).cloned()
}
