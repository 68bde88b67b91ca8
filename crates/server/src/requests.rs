//! What the server is asked to change, and what it answers: the typed shapes of the write API. Transports translate
//! to and from these.

use std::collections::BTreeMap;

pub use control::{
    collection::{Collected, by_hand::Deleted},
    deployments::{DeploymentChanged, SetHealth},
    dispatch::{DispatchJob, Dispatched},
    drains::{
        DrainNode,
        preview::{Affected, Fate, Happens},
    },
    jobs::{DeregisterJob, EvalCreated, RegisterJob, tags::TagVersion},
    nodes::NodeChanged,
    plan::{PlanJob, PlanPreview},
    scaling::ScaleJob,
};
use model::{Job, SchedulerConfig, StoreIndex, TimestampNs};

/// The source text of a job.
pub use state::Submission;

/// The verdict on a job without registering it.
#[derive(Clone, Debug, Default)]
pub struct JobVerdict {
    /// The job with every default filled in.
    pub job: Job,
    /// Each rule that it breaks, one to a line.
    pub errors: Vec<String>,
    /// The same as one text; empty when it is valid.
    pub error: String,
    /// Things that work but deserve a look.
    pub warnings: Vec<String>,
    /// Every task's configuration was checked against the schemas that its driver has on the nodes.
    pub drivers_checked: bool,
}

/// Changes the scheduler's settings.
#[derive(Clone, Debug)]
pub struct SetSchedulerConfig {
    /// The new settings.
    pub config: SchedulerConfig,
    /// Only when the settings are at this ModifyIndex.
    pub cas: Option<StoreIndex>,
}

/// The answer to [`SetSchedulerConfig`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SchedulerConfigSet {
    /// False when `cas` did not match.
    pub updated: bool,
    /// Index of the commit, or of the settings when nothing was changed.
    pub index: StoreIndex,
}

/// Numbers about the server at work, for metrics and `agent-info`.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    /// Evaluations ready to be handed out, by scheduler type.
    pub broker_ready: BTreeMap<String, usize>,
    /// Evaluations that workers hold.
    pub broker_unacked: usize,
    /// Evaluations that wait for another one of the same job.
    pub broker_pending: usize,
    /// Evaluations that wait for their time.
    pub broker_waiting: usize,
    /// Evaluations that wait for room.
    pub blocked_evals: usize,
    /// Open node sessions.
    pub sessions: usize,
    /// Plans committed since the start.
    pub plans_committed: u64,
    /// Plans of which a part was refused.
    pub plans_partial: u64,
    /// Allocations and remote tasks that node sessions have looked at since the start, to see whether their node
    /// knows them as they are.
    pub session_looks: u64,
    /// How often a commit has woken a blocking query since the start.
    pub watches_woken: u64,
    /// Slots that the supervision of remote tasks has looked at since the start.
    pub slot_looks: u64,
    /// Handlers of the HTTP API that have panicked since the start.
    pub handler_panics: u64,
    /// Nodes that were refused, or taken with a warning, for what they show, since the start.
    pub introduction_violations: u64,
    /// Allocations that points of [`crate::ServerHandle::trends`] have counted as placed since the start.
    pub placed: u64,
    /// Hand-overs that those points have counted since the start.
    pub hand_overs: u64,
    /// Batches that were made durable since the start.
    pub commits: u64,
    /// fsyncs that this took.
    pub syncs: u64,
    /// Bytes that this wrote.
    pub bytes_written: u64,
    /// How long things take.
    pub samples: Vec<crate::samples::Sample>,
    /// When the server started.
    pub started_at: TimestampNs,
}
