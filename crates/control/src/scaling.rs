//! Scaling: a new count of a group, or only a message about it. Both make scaling events.

use std::collections::BTreeMap;

use model::{Job, JobKey, StoreIndex, TaskGroup, Trigger, job::job_type, scaling::ScalingEvent};
use state::{Batch, Change, State};

use crate::{
    Decided, Ids, Refused, Stamp,
    admission::{self, Admitted, Rules, admit},
    jobs::{EvalCreated, allowed_now, enforce, job_of, put},
};

/// Changes the count of a group.
#[derive(Clone, Debug, Default)]
pub struct ScaleJob {
    /// The job.
    pub key: JobKey,
    /// The group.
    pub group: String,
    /// New count; `None` records the message only.
    pub count: Option<i64>,
    /// The reason.
    pub message: String,
    /// The message reports a failure: no count changes.
    pub error: bool,
    /// User metadata of the scaling event.
    pub meta: BTreeMap<String, serde_json::Value>,
    /// Require that the job is at this JobModifyIndex when its count changes.
    pub job_modify_index: Option<StoreIndex>,
}

/// Changes the count of a group, or records a message about it.
///
/// # Errors
/// When there is no such job or group, or the count is out of bounds. Also when the job is at another index, or has an
/// active deployment.
pub fn scale(
    state: &State,
    request: ScaleJob,
    rules: &Rules<'_>,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<EvalCreated>, Refused> {
    let ScaleJob { key, group, count, message, error, meta, job_modify_index } = request;
    if error && count.is_some() {
        return Err(Refused::BadRequest("scaling action should not contain count if error is true".to_owned()));
    }
    allowed_now(state, &key)?;
    let job = job_of(state, &key)?;
    let group = job.group(&group).ok_or_else(|| no_group(&group))?;
    let previous_count = i64::from(group.count());
    let mut decided = match count {
        Some(count) => {
            let count = check_count(state, job, group, count, rules.max_count)?;
            enforce(state, &key, job_modify_index)?;
            let Admitted { job, .. } = admit(with_count(job, &group.name, count), rules)?;
            put(state, job, (Trigger::JobScaling, None), None, stamp, ids)?
        }
        None => {
            let answer =
                EvalCreated { job_modify_index: job.modify_index, index: stamp.index, ..EvalCreated::default() };
            Decided { batch: Batch::default(), answer }
        }
    };
    let eval_id = Some(decided.answer.eval_id).filter(|id| !id.is_nil());
    let event = ScalingEvent {
        time: stamp.now,
        count,
        previous_count,
        message,
        error,
        meta,
        eval_id,
        ..ScalingEvent::default()
    };
    decided.batch.push(Change::RecordScaling { key, group: group.name.clone(), event: Box::new(event) });
    Ok(decided)
}

fn with_count(job: &Job, group: &str, count: i32) -> Job {
    let mut job = job.clone();
    for scaled in job.task_groups.iter_mut().filter(|scaled| &*scaled.name == group) {
        scaled.count = Some(count);
    }
    job
}

/// Checks whether the group may have this count now.
fn check_count(state: &State, job: &Job, group: &TaskGroup, count: i64, most: u32) -> Result<i32, Refused> {
    let refused = |why: String| Err(Refused::BadRequest(why));
    let Some(small) = i32::try_from(count).ok().filter(|count| *count >= 0) else {
        return refused(format!("count {count} is not between 0 and {}", i32::MAX));
    };
    if job_type::everywhere(&job.kind) && small > 1 {
        return refused(format!(
            "jobs of type {:?} run once on every node: they can only be scaled between 0 and 1",
            job.kind
        ));
    }
    let bounds = group.scaling.as_ref();
    if let Some(min) = bounds.and_then(|s| s.min).filter(|min| count < *min) {
        return refused(format!("group count was less than scaling policy minimum: {count} < {min}"));
    }
    if let Some(max) = bounds.and_then(|s| s.max).filter(|max| count > *max) {
        return refused(format!("group count was greater than scaling policy maximum: {count} > {max}"));
    }
    admission::check_count(&with_count(job, &group.name, small), most)?;
    let key: JobKey = job.key();
    let rolling_out =
        state.latest_deployment(&key).is_some_and(|d| d.status.active() && d.job_create_index == job.create_index);
    if rolling_out {
        return refused("job scaling blocked due to active deployment".to_owned());
    }
    Ok(small)
}

fn no_group(name: &str) -> Refused {
    Refused::BadRequest(format!("task group {name:?} specified for scaling does not exist in job"))
}
