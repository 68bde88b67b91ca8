//! Commands of operators: scheduler settings, collection, verbs on remote tasks.

use api::shapes::RemoteSweep;
use control::{
    Decided,
    collection::{self, Before, by_hand},
};
use lifecycle::remote::Event;
use model::{EvalId, NodeId, SlotKey, StoreIndex};
use state::{Batch, Change};

use crate::{
    error::ServerError,
    handle::ServerHandle,
    requests::{Collected, Deleted, SchedulerConfigSet, SetSchedulerConfig},
    sweep::{Adopted, Which},
};

impl ServerHandle {
    /// Changes the scheduler's settings.
    ///
    /// # Errors
    /// When a setting has no such value.
    pub async fn set_scheduler_config(&self, request: SetSchedulerConfig) -> Result<SchedulerConfigSet, ServerError> {
        let SetSchedulerConfig { mut config, cas } = request;
        if config.scheduler_algorithm.is_empty() {
            config.scheduler_algorithm = "binpack".to_owned();
        }
        if !["binpack", "spread"].contains(&&*config.scheduler_algorithm) {
            return Err(ServerError::invalid(format!(
                "invalid scheduler algorithm {:?}: it is binpack or spread",
                config.scheduler_algorithm
            )));
        }
        self.decide(move |state, stamp, _| {
            let now = state.scheduler_config().modify_index;
            if cas.is_some_and(|cas| cas != now) {
                return Ok(Decided {
                    batch: Batch::default(),
                    answer: SchedulerConfigSet { updated: false, index: now },
                });
            }
            let answer = SchedulerConfigSet { updated: true, index: stamp.index };
            Ok(Decided { batch: Change::SetSchedulerConfig(config).into(), answer })
        })
        .await
    }

    /// Ends a recovery although not all have answered.
    ///
    /// # Errors
    /// When there is none, or the store refuses the commit.
    pub async fn end_recovery(&self) -> Result<(), ServerError> {
        self.inner.recovering.end(true).await
    }

    /// Waits for a node no longer in a recovery: it is taken for down.
    ///
    /// # Errors
    /// When there is no recovery or no such node, or it is not waited for.
    pub async fn excuse_node(&self, id: NodeId) -> Result<(), ServerError> {
        self.inner.recovering.excuse(id).await
    }

    /// Believes what a node says to have although nothing proves it: it is taken over.
    ///
    /// # Errors
    /// When there is no recovery, or no such node waits for that.
    pub async fn accept_node(&self, id: NodeId) -> Result<(), ServerError> {
        self.inner.recovering.accept(id).await
    }

    /// Collects everything that has ended, whatever its age.
    ///
    /// # Errors
    /// When the store refuses the commit.
    pub async fn collect_garbage(&self) -> Result<Collected, ServerError> {
        self.decide(|state, stamp, _| Ok(collection::decide(state, Before::forced(stamp.now)))).await
    }

    /// Deletes evaluations with their allocations while the broker is paused. With `all` it is these or none; else
    /// those that are still needed are left out.
    ///
    /// # Errors
    /// While evaluations are worked off. With `all` when one is unknown or still needed.
    pub async fn delete_evals(&self, ids: Vec<EvalId>, all: bool) -> Result<Deleted, ServerError> {
        self.decide(move |state, stamp, _| by_hand::delete(state, &ids, all, stamp)).await
    }

    /// Gives up a remote task for good: its record ends although its absence was not confirmed.
    ///
    /// # Errors
    /// When there is no record of the slot.
    pub async fn forget_remote(&self, slot: SlotKey) -> Result<StoreIndex, ServerError> {
        self.inner.parts.supervision.order(slot, Event::Forget { why: "ordered by an operator".to_owned() }).await
    }

    /// Declares that no instance of a remote task exists: the way out when its provider cannot tell.
    ///
    /// # Errors
    /// When there is no record of the slot, or the instance is observed alive.
    pub async fn declare_remote_gone(&self, slot: SlotKey) -> Result<StoreIndex, ServerError> {
        self.inner.parts.supervision.order(slot, Event::DeclareGone { why: "declared by an operator".to_owned() }).await
    }

    /// What the last sweep of each provider has found.
    #[must_use]
    pub fn remote_sweeps(&self) -> Vec<RemoteSweep> {
        self.inner.parts.sweeps.found()
    }

    /// Asks every provider now what this cluster has there. Cancel safe.
    pub async fn sweep_remote(&self) -> Vec<RemoteSweep> {
        self.inner.parts.sweeps.now().await;
        self.inner.parts.sweeps.found()
    }

    /// Asks every provider now what other clusters have there; what is known of this one's comes with it. Cancel safe.
    pub async fn sweep_all_owners(&self) -> Vec<RemoteSweep> {
        self.inner.sweeper.others().await;
        self.inner.parts.sweeps.found()
    }

    /// Takes an instance that no record knows, or one of another cluster, for what its slot's job wants there.
    ///
    /// # Errors
    /// When the sweep knows no such instance, it belongs to another cluster that was not named, no job wants its
    /// slot, or the slot has another one.
    pub async fn adopt_remote(&self, which: &Which) -> Result<Adopted, ServerError> {
        self.inner.sweeper.adopt(which).await
    }

    /// Stops an instance that no record knows, or one of another cluster: the order lasts until its absence is
    /// confirmed.
    ///
    /// # Errors
    /// When the sweep knows no such instance, it belongs to another cluster that was not named, or no servers of ours
    /// have created it.
    pub async fn stop_unbound_remote(&self, which: &Which) -> Result<StoreIndex, ServerError> {
        self.inner.sweeper.stop(which).await
    }

    /// Reports an instance that no record knows no more, until the servers start again.
    ///
    /// # Errors
    /// When the sweep knows no such instance.
    pub fn forget_unbound_remote(&self, key: &str) -> Result<(), ServerError> {
        self.inner.sweeper.forget(key)
    }

    /// Restarts a remote task: its instance is stopped, another one of the same specification follows.
    ///
    /// # Errors
    /// When there is no record of the slot, or nothing of it runs.
    pub async fn restart_remote(&self, slot: SlotKey) -> Result<StoreIndex, ServerError> {
        self.inner.parts.supervision.order(slot, Event::Restart { why: "ordered by an operator".to_owned() }).await
    }
}
