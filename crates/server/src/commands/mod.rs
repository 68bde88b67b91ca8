//! The write API: each command is a decision on the newest state, answered once it is durable.

mod allocs;
mod deployments;
mod dispatch;
mod drivers;
mod jobs;
mod keyring;
mod nodes;
mod operator;
mod plan;
mod scaling;
mod services;
mod templates;

use model::{EvalStatus, Evaluation, Job, JobKey, StoreIndex, Trigger};
use state::State;

use crate::{
    clock::new_id,
    commit::Stamp,
    error::{Kind, ServerError},
    requests::EvalCreated,
};

/// A pending evaluation of a job.
fn eval_of(job: &Job, trigger: Trigger, priority: Option<i32>, stamp: Stamp) -> Evaluation {
    Evaluation {
        id: new_id(),
        namespace: job.namespace.clone(),
        priority: priority.unwrap_or(job.priority),
        kind: job.kind.clone(),
        trigger,
        job_id: job.id.clone(),
        job_modify_index: stamp.index,
        status: EvalStatus::Pending,
        create_time: stamp.now,
        modify_time: stamp.now,
        ..Evaluation::default()
    }
}

/// The answer that names an evaluation which is committed with it.
fn created(eval: &Evaluation, job_modify_index: StoreIndex, stamp: Stamp) -> EvalCreated {
    EvalCreated { eval_id: eval.id, eval_create_index: stamp.index, job_modify_index, index: stamp.index, warnings: Vec::new() }
}

fn job_of<'a>(state: &'a State, key: &JobKey) -> Result<&'a std::sync::Arc<Job>, ServerError> {
    state.job(key).ok_or_else(|| ServerError::not_found(Kind::Job, key))
}
