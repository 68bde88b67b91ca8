//! Cluster-wide scheduler settings.

use serde::{Deserialize, Serialize};

use crate::{ids::StoreIndex, job::job_type};

/// Scheduler settings, `/v1/operator/scheduler/configuration`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SchedulerConfig {
    /// `binpack` or `spread`.
    pub scheduler_algorithm: String,
    /// Which kinds of job may displace others.
    pub preemption_config: PreemptionConfig,
    /// `memory_max` has an effect.
    pub memory_oversubscription_enabled: bool,
    /// Only management tokens may register jobs.
    pub reject_job_registration: bool,
    /// No evaluation is handed out.
    pub pause_eval_broker: bool,
    /// How many nodes are scored where it costs most; 0 = as many as the scheduler likes. Refused otherwise: every
    /// node that fits is scored.
    pub node_limit_for_feasibility_checks: u64,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            scheduler_algorithm: "binpack".into(),
            preemption_config: PreemptionConfig::default(),
            memory_oversubscription_enabled: false,
            reject_job_registration: false,
            pause_eval_broker: false,
            node_limit_for_feasibility_checks: 0,
            create_index: 0,
            modify_index: 0,
        }
    }
}

/// Which kinds of job may displace allocations of lower priority where no node has room for theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PreemptionConfig {
    /// System jobs.
    pub system_scheduler_enabled: bool,
    /// Sysbatch jobs.
    pub sys_batch_scheduler_enabled: bool,
    /// Batch jobs.
    pub batch_scheduler_enabled: bool,
    /// Service jobs.
    pub service_scheduler_enabled: bool,
}

impl PreemptionConfig {
    /// Whether jobs of this type may displace others.
    #[must_use]
    pub fn allows(&self, kind: &str) -> bool {
        match kind {
            job_type::SYSTEM => self.system_scheduler_enabled,
            job_type::SYSBATCH => self.sys_batch_scheduler_enabled,
            job_type::BATCH => self.batch_scheduler_enabled,
            _ => self.service_scheduler_enabled,
        }
    }
}
