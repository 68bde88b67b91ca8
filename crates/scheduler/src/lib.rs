//! Where allocations run: `(snapshot, evaluation, now, seed) → plan + reasons`.
//!
//! Two questions, each a module. [`reconcile`] compares a job's wishes with its allocations and decides what to place,
//! stop and change. [`rank`] finds the best feasible node for each placement. [`verify_plan`] is the servers' last
//! check before a commit. README.md beside this crate's manifest states the abstract problem and the tested properties.
//!
//! This crate must never know: time of day, randomness, files, network, an async runtime. The same arguments give the
//! same decision.
//!
//! Begin reading at [`schedule`].

mod canary;
mod cores;
mod deployment;
mod devices;
mod disconnect;
mod feasible;
mod ids;
pub mod limits;
mod network;
mod outcome;
mod overlay;
mod place;
mod pools;
mod preempt;
pub mod rank;
pub mod reconcile;
mod remote;
pub mod reschedule;
mod rules;
mod spread;
mod system;
mod target;
mod verify;
mod version;
mod volumes;

pub use canary::Coverage;
pub use disconnect::node_patience;
pub use feasible::{in_scope, meets};
use model::{
    eval::{EvalStatus, Evaluation},
    ids::{EvalId, JobKey, TimestampNs},
    job::job_type,
    plan::{Decision, Plan},
};
pub use outcome::stopped_by_node;
pub use place::Memory;
pub use rules::rule_mistakes;
use state::State;
pub use system::mixed_groups;
pub use verify::{Verified, verify_plan, without_ended};
pub use version::{VersionConstraint, VersionRules};

/// Why the scheduler cannot decide an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerError {
    /// It does not schedule jobs of that kind.
    #[error(
        "cannot schedule job {job}: there are no jobs of type {kind:?} (there are service, batch, system and sysbatch)"
    )]
    UnsupportedKind {
        /// Job.
        job: JobKey,
        /// Its kind.
        kind: String,
    },
}

/// Default limit of a job's allocations; registrations have the same limit (`job_max_count`).
pub const MOST_OF_A_JOB: u32 = 50_000;

/// What bounds a decision.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Allocations that a job has at most. The decision only counts those beyond. So a count from before there was a
    /// limit costs neither memory nor time.
    pub most_of_a_job: u32,
    /// Allocations may be displaced, where the scheduler configuration says so. False while a server of an older
    /// release could not read that.
    pub displaces: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { most_of_a_job: MOST_OF_A_JOB, displaces: true }
    }
}

/// Decides on an evaluation as [`schedule_within`] does, with the default bounds.
///
/// # Errors
/// When the scheduler does not support the job.
pub fn schedule(state: &State, eval: &Evaluation, now: TimestampNs, seed: u64) -> Result<Decision, SchedulerError> {
    schedule_within(state, eval, now, seed, Bounds::default(), &mut Memory::default())
}

/// Decides on an evaluation. Nothing but the arguments has an influence; `seed` breaks ties and makes new ids. What
/// `memory` has from evaluations before makes it quicker, and changes nothing.
///
/// # Errors
/// When the scheduler does not support the job.
pub fn schedule_within(
    state: &State,
    eval: &Evaluation,
    now: TimestampNs,
    seed: u64,
    bounds: Bounds,
    memory: &mut Memory,
) -> Result<Decision, SchedulerError> {
    let key = eval.job_key();
    let job = state.job(&key).cloned();
    let scheduled = [job_type::SERVICE, job_type::BATCH, job_type::SYSTEM, job_type::SYSBATCH];
    if let Some(job) = job.as_ref().filter(|j| !j.stop && !scheduled.contains(&j.kind.as_str())) {
        return Err(SchedulerError::UnsupportedKind { job: key, kind: job.kind.clone() });
    }
    let mut ids = ids::Ids::new(seed, eval.id.0);
    let system = job_type::everywhere(job.as_ref().map_or(&*eval.kind, |j| &*j.kind));
    let wanted = if system {
        system::reconcile(state, job.as_ref(), eval, now, &mut ids)
    } else {
        reconcile::reconcile(state, job.as_ref(), eval, now, bounds.most_of_a_job, &mut ids)
    };
    let mut decision = Decision {
        plan: Plan {
            eval_id: eval.id,
            priority: eval.priority,
            all_at_once: job.as_ref().is_some_and(|j| j.all_at_once),
            job: job.clone(),
            snapshot_index: state.latest_index(),
            ..Plan::default()
        },
        ..Decision::default()
    };
    let asked = place::Asked { state, eval, now, displaces: bounds.displaces };
    place::place(asked, wanted, &mut ids, memory, &mut decision);
    Ok(decision)
}

/// The evaluation after its decision was carried out: complete, with its failed placements. One that was blocked
/// already becomes blocked again.
#[must_use]
pub fn completed(eval: &Evaluation, decision: &Decision) -> Evaluation {
    if let Some(again) = decision.new_evals.iter().find(|e| e.id == eval.id) {
        return again.clone();
    }
    let blocked = decision.new_evals.iter().find(|e| e.status == EvalStatus::Blocked).map_or(EvalId::NIL, |e| e.id);
    Evaluation {
        status: EvalStatus::Complete,
        status_description: String::new(),
        failed_groups: decision.failed_groups.clone(),
        queued: decision.queued.clone(),
        blocked_eval: blocked,
        // The blocked one says it.
        limit_reached: model::Namespace::default(),
        deployment_id: decision.plan.deployment.as_ref().map_or(eval.deployment_id, |d| d.id),
        snapshot_index: decision.plan.snapshot_index,
        ..eval.clone()
    }
}
