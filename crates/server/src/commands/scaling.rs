//! Scaling groups: a new count, or only a word about it; either is put on record.

use model::{Job, JobKey, TaskGroup, Trigger, job::job_type, scaling::ScalingEvent};
use state::{Batch, Change, State};

use super::{
    job_of,
    jobs::{self, Admitted},
};
use crate::{
    commit::Decided,
    error::ServerError,
    handle::ServerHandle,
    requests::{EvalCreated, ScaleJob},
};

impl ServerHandle {
    /// Changes the count of a group, or records a message about it.
    ///
    /// # Errors
    /// When there is no such job or group, the count is out of bounds, the job is at another index, or it is rolling out a version.
    pub async fn scale_job(&self, request: ScaleJob) -> Result<EvalCreated, ServerError> {
        if request.error && request.count.is_some() {
            return Err(ServerError::BadRequest("scaling action should not contain count if error is true".to_owned()));
        }
        let config = self.config().clone();
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let key = &request.key;
                jobs::allowed_now(state, key)?;
                let job = job_of(state, key)?;
                let group = job.group(&request.group).ok_or_else(|| no_group(&request.group))?;
                let mut event = ScalingEvent {
                    time: stamp.now,
                    count: request.count,
                    previous_count: i64::from(group.count()),
                    message: request.message.clone(),
                    error: request.error,
                    meta: request.meta.clone(),
                    ..ScalingEvent::default()
                };
                let (mut batch, answer) = match request.count {
                    Some(count) => {
                        let count = check_count(state, job, group, count)?;
                        if request.job_modify_index.is_some() {
                            jobs::enforce(state, key, request.job_modify_index)?;
                        }
                        let Admitted { job, .. } = jobs::admit(with_count(job, &group.name, count), &config)?;
                        let Decided { batch, answer } = jobs::register(state, job, Trigger::JobScaling, None, None, stamp)?;
                        (batch, answer)
                    }
                    None => {
                        let answer = EvalCreated { job_modify_index: job.modify_index, index: stamp.index, ..EvalCreated::default() };
                        (Batch::default(), answer)
                    }
                };
                event.eval_id = Some(answer.eval_id).filter(|id| !id.is_nil());
                batch.push(Change::RecordScaling { key: key.clone(), group: group.name.clone(), event: Box::new(event) });
                Ok(Decided { batch, answer })
            })
            .await
    }
}

fn with_count(job: &Job, group: &str, count: i32) -> Job {
    let mut job = job.clone();
    for scaled in job.task_groups.iter_mut().filter(|scaled| &*scaled.name == group) {
        scaled.count = Some(count);
    }
    job
}

/// May the group have this count now?
fn check_count(state: &State, job: &Job, group: &TaskGroup, count: i64) -> Result<i32, ServerError> {
    let refused = |why: String| Err(ServerError::BadRequest(why));
    let Some(small) = i32::try_from(count).ok().filter(|count| *count >= 0) else {
        return refused(format!("count {count} is not between 0 and {}", i32::MAX));
    };
    if job_type::everywhere(&job.kind) && small > 1 {
        return refused(format!("jobs of type {:?} run once on every node: they can only be scaled between 0 and 1", job.kind));
    }
    let bounds = group.scaling.as_ref();
    if let Some(min) = bounds.and_then(|s| s.min).filter(|min| count < *min) {
        return refused(format!("group count was less than scaling policy minimum: {count} < {min}"));
    }
    if let Some(max) = bounds.and_then(|s| s.max).filter(|max| count > *max) {
        return refused(format!("group count was greater than scaling policy maximum: {count} > {max}"));
    }
    let key: JobKey = job.key();
    let rolling_out = state.latest_deployment(&key).is_some_and(|d| d.status.active() && d.job_create_index == job.create_index);
    if rolling_out {
        return refused("job scaling blocked due to active deployment".to_owned());
    }
    Ok(small)
}

fn no_group(name: &str) -> ServerError {
    ServerError::BadRequest(format!("task group {name:?} specified for scaling does not exist in job"))
}
