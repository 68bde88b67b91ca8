//! The dry run of a registration: registers the job in a copy of the state and lets the scheduler decide there.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    AllocMetric, Allocation, Evaluation, Job, StoreIndex, TimestampNs, Trigger, diff::JobDiff, plan::DesiredUpdates,
};
use state::{Batch, Change, State};

use crate::{
    Ids, Stamp,
    jobs::{check_parent, eval_of},
};

/// A dry run of a registration.
#[derive(Clone, Debug, Default)]
pub struct PlanJob {
    /// The job as it would be submitted.
    pub job: Job,
    /// Compare with the registered version.
    pub diff: bool,
}

/// Effects of a registration.
#[derive(Clone, Debug, Default)]
pub struct PlanPreview {
    /// Counts by group.
    pub desired_updates: BTreeMap<Arc<str>, DesiredUpdates>,
    /// Allocations of other jobs that would be displaced.
    pub displaced: Vec<Arc<Allocation>>,
    /// Groups without room.
    pub failed_groups: BTreeMap<Arc<str>, AllocMetric>,
    /// Index of the registered job; 0 = it is new.
    pub job_modify_index: StoreIndex,
    /// Evaluations that would follow.
    pub created_evals: Vec<Evaluation>,
    /// The difference, if requested.
    pub diff: Option<JobDiff>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Index of the snapshot behind it.
    pub index: StoreIndex,
}

/// Computes the effects of registering an admitted job.
///
/// # Errors
/// Why the scheduler cannot compute them, or the job would not be registered.
pub fn preview(
    state: &State,
    PlanJob { mut job, diff }: PlanJob,
    most_of_a_job: u32,
    (now, seed): (TimestampNs, u64),
    ids: &mut Ids<'_>,
) -> Result<PlanPreview, String> {
    check_parent(state, &job).map_err(|refused| refused.to_string())?;
    let key = job.key();
    let known = state.job(&key).cloned();
    model::scaling::number_policies(&mut job, known.as_deref(), state.latest_index() + 1, || ids().to_string());
    let index = state.latest_index();
    let stamp = Stamp { index: index + 1, now };
    let eval = Evaluation { annotate_plan: true, ..eval_of(&job, Trigger::JobRegister, None, stamp, ids) };
    let mut imagined = state.clone();
    let batch = Batch::new(vec![
        Change::UpsertJob { job: Box::new(job.clone()), submission: None },
        Change::UpsertEvals(vec![eval.clone()]),
    ]);
    imagined.apply(stamp.index, stamp.now, batch).map_err(|error| error.to_string())?;
    // A template is never scheduled itself: only its changes are shown.
    let decision = match job.is_template() {
        true => model::plan::Decision::default(),
        false => {
            let bounds = scheduler::Bounds { most_of_a_job, ..scheduler::Bounds::default() };
            scheduler::schedule_within(&imagined, &eval, stamp.now, seed, bounds, &mut scheduler::Memory::default())
                .map_err(|error| error.to_string())?
        }
    };
    let displaced = decision.plan.stops.iter().filter(|stop| !stop.preempted_by.is_nil());
    let displaced = displaced.filter_map(|stop| state.alloc(stop.id).cloned()).collect();
    let diff = diff.then(|| {
        let before = known.as_deref();
        let mut diff = model::diff::diff(before, Some(&job), true);
        model::diff::annotate(&mut diff, before, Some(&job), &decision.annotations);
        diff
    });
    Ok(PlanPreview {
        desired_updates: decision.annotations,
        displaced,
        failed_groups: decision.failed_groups,
        job_modify_index: known.map_or(0, |job| job.job_modify_index),
        created_evals: decision.new_evals,
        diff,
        warnings: Vec::new(),
        index,
    })
}
