//! Commands of operators: scheduler settings, collection, verbs on remote tasks.

use lifecycle::remote::Event;
use model::{SlotKey, StoreIndex};
use state::{Batch, Change};

use crate::{
    collect,
    commit::Decided,
    error::ServerError,
    handle::ServerHandle,
    remote,
    requests::{Collected, SchedulerConfigSet, SetSchedulerConfig},
    sweep::{self, ProviderSweep},
};

impl ServerHandle {
    /// Changes the scheduler's settings.
    ///
    /// # Errors
    /// When a setting has no such value, or asks for preemption.
    pub async fn set_scheduler_config(&self, request: SetSchedulerConfig) -> Result<SchedulerConfigSet, ServerError> {
        let SetSchedulerConfig { mut config, cas } = request;
        if config.scheduler_algorithm.is_empty() {
            config.scheduler_algorithm = "binpack".to_owned();
        }
        if !["binpack", "spread"].contains(&&*config.scheduler_algorithm) {
            return Err(ServerError::InvalidArgument(format!(
                "invalid scheduler algorithm {:?}: it is binpack or spread",
                config.scheduler_algorithm
            )));
        }
        if let Some(switch) = config.preemption_config.switched_on() {
            return Err(ServerError::InvalidArgument(format!(
                "PreemptionConfig.{switch} cannot be true: no job displaces another in this release; set it to false, or leave it out"
            )));
        }
        self.shared
            .queue()
            .commit(move |state, stamp| {
                let now = state.scheduler_config().modify_index;
                if cas.is_some_and(|cas| cas != now) {
                    return Ok(Decided { batch: Batch::default(), answer: SchedulerConfigSet { updated: false, index: now } });
                }
                let answer = SchedulerConfigSet { updated: true, index: stamp.index };
                Ok(Decided { batch: Change::SetSchedulerConfig(config).into(), answer })
            })
            .await
    }

    /// Collects everything that has ended, whatever its age.
    ///
    /// # Errors
    /// When the store refuses the commit.
    pub async fn collect_garbage(&self) -> Result<Collected, ServerError> {
        collect::collect(&self.shared, true).await
    }

    /// Gives up a remote task for good: its record ends although its absence was not confirmed.
    ///
    /// # Errors
    /// When there is no record of the slot.
    pub async fn forget_remote(&self, slot: SlotKey) -> Result<StoreIndex, ServerError> {
        remote::order(&self.shared, slot, Event::Forget { why: "ordered by an operator".to_owned() }).await
    }

    /// Declares that no instance of a remote task exists: the way out when its provider cannot tell.
    ///
    /// # Errors
    /// When there is no record of the slot, or the instance is observed alive.
    pub async fn declare_remote_gone(&self, slot: SlotKey) -> Result<StoreIndex, ServerError> {
        remote::order(&self.shared, slot, Event::DeclareGone { why: "declared by an operator".to_owned() }).await
    }

    /// What the last sweep of each provider has found.
    #[must_use]
    pub fn remote_sweeps(&self) -> Vec<ProviderSweep> {
        self.shared.sweeps.found()
    }

    /// Asks every provider now what this cluster has there. Cancel safe.
    pub async fn sweep_remote(&self) -> Vec<ProviderSweep> {
        self.shared.sweeps.now().await;
        self.shared.sweeps.found()
    }

    /// Takes an instance that no record knows for what its slot's job wants there.
    ///
    /// # Errors
    /// When the sweep knows no such instance, no job wants its slot, or the slot has another one.
    pub async fn adopt_remote(&self, key: &str) -> Result<StoreIndex, ServerError> {
        sweep::adopt(&self.shared, key).await
    }

    /// Stops an instance that no record knows: the order lasts until its absence is confirmed.
    ///
    /// # Errors
    /// When the sweep knows no such instance, or it was not created by this cluster's servers.
    pub async fn stop_unbound_remote(&self, key: &str) -> Result<StoreIndex, ServerError> {
        sweep::stop(&self.shared, key).await
    }

    /// Reports an instance that no record knows no more, until the servers start again.
    ///
    /// # Errors
    /// When the sweep knows no such instance.
    pub fn forget_unbound_remote(&self, key: &str) -> Result<(), ServerError> {
        sweep::forget(&self.shared, key)
    }

    /// Restarts a remote task: its instance is stopped, another one of the same specification follows.
    ///
    /// # Errors
    /// When there is no record of the slot, or nothing of it runs.
    pub async fn restart_remote(&self, slot: SlotKey) -> Result<StoreIndex, ServerError> {
        remote::order(&self.shared, slot, Event::Restart { why: "ordered by an operator".to_owned() }).await
    }
}
