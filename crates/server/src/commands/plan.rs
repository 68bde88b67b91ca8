//! The dry run of a registration: registers the job in a copy of the state and lets the scheduler decide there.

use model::{Evaluation, Job, Trigger};
use state::{Batch, Change, State};

use super::{
    eval_of,
    jobs::{Admitted, admit, check_references},
};
use crate::{
    clock::{now_ns, seed},
    commit::Stamp,
    error::ServerError,
    handle::ServerHandle,
    requests::{PlanJob, PlanPreview},
};

impl ServerHandle {
    /// What a registration would do.
    ///
    /// # Errors
    /// When the job is invalid or uses what this release refuses.
    pub async fn plan_job(&self, request: PlanJob) -> Result<PlanPreview, ServerError> {
        let Admitted { job, mut warnings } = admit(request.job, self.config())?;
        let state = self.snapshot();
        warnings.extend(super::jobs::cluster_warnings(&state, &job));
        check_references(&state, &job)?;
        let diff = request.diff;
        // Scoring every node takes a while on large clusters.
        let preview = tokio::task::spawn_blocking(move || preview(&state, job, diff)).await;
        let mut preview = preview.map_err(|error| ServerError::Internal { what: "the dry run", why: error.to_string() })??;
        preview.warnings = warnings;
        Ok(preview)
    }
}

fn preview(state: &State, job: Job, with_diff: bool) -> Result<PlanPreview, ServerError> {
    let internal = |why: String| ServerError::Internal { what: "the dry run", why };
    let key = job.key();
    let known = state.job(&key).cloned();
    let mut job = job;
    model::scaling::number_policies(&mut job, known.as_deref(), state.latest_index() + 1, super::jobs::new_policy_id);
    let index = state.latest_index();
    let stamp = Stamp { index: index + 1, now: now_ns() };
    let eval = Evaluation { annotate_plan: true, ..eval_of(&job, Trigger::JobRegister, None, stamp) };
    let mut imagined = state.clone();
    let batch =
        Batch::new(vec![Change::UpsertJob { job: Box::new(job.clone()), submission: None }, Change::UpsertEvals(vec![eval.clone()])]);
    imagined.apply(stamp.index, stamp.now, batch).map_err(|error| internal(error.to_string()))?;
    // A template is never scheduled itself: only what changes of it is shown.
    let decision = match job.is_template() {
        true => model::plan::Decision::default(),
        false => scheduler::schedule(&imagined, &eval, stamp.now, seed()).map_err(|error| internal(error.to_string()))?,
    };
    let diff = with_diff.then(|| {
        let before = known.as_deref();
        let mut diff = model::diff::diff(before, Some(&job), true);
        model::diff::annotate(&mut diff, before, Some(&job), &decision.annotations);
        diff
    });
    Ok(PlanPreview {
        desired_updates: decision.annotations,
        failed_groups: decision.failed_groups,
        job_modify_index: known.map_or(0, |job| job.job_modify_index),
        created_evals: decision.new_evals,
        diff,
        warnings: Vec::new(),
        index,
    })
}
