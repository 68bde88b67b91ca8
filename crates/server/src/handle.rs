//! The cheap handle through which everything outside the loops uses a server: snapshots, waiting for change, the write API, events.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use model::{
    AllocId, ClusterId, DeploymentId, Eligibility, JobKey, NodeId, SlotKey, StoreIndex,
};
use state::State;
use tokio_util::sync::CancellationToken;

use crate::{
    config::ServerConfig,
    error::ServerError,
    events::{EventFilter, EventSubscription},
    requests::{
        Collected, DeploymentChanged, DeregisterJob, DrainNode, EvalCreated, JobVerdict, NodeChanged, PlanJob, PlanPreview, RegisterJob,
        ScaleJob, SchedulerConfigSet, ServerStats, SetHealth, SetSchedulerConfig,
    },
    shared::Shared,
};

/// A server, as seen from the outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    pub(crate) shared: Arc<Shared>,
}

/// Reading.
impl ServerHandle {
    /// The newest durable state.
    #[must_use]
    pub fn snapshot(&self) -> Arc<State> {
        self.shared.published.load_full()
    }
    /// The settings that the server runs with.
    #[must_use]
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
    }
    /// Identity of the cluster; the owner tag at every provider.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.shared.cluster_id
    }
    /// Where nodes reach the server.
    #[must_use]
    pub fn rpc_addr(&self) -> SocketAddr {
        self.shared.rpc_addr
    }
    /// Cancelled when the server stops: long answers end then.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.shared.stopping.clone()
    }
    /// Numbers about the server at work.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// A blocking query: waits until `index_of` (the index of the watched table or object) is above `min_index`, at most for `wait`, and gives
    /// the newest snapshot either way. Returns at once when `min_index` is 0 or the server stops. Cancel safe.
    pub async fn wait_for(&self, min_index: StoreIndex, wait: Duration, index_of: impl Fn(&State) -> StoreIndex) -> Arc<State> {
        if min_index == 0 {
            return self.snapshot();
        }
        self.wait_until(wait, |state| index_of(state) > min_index).await.unwrap_or_else(|state| state)
    }

    /// Waits until the state meets a condition; the newest state as an error when it did not in time. Cancel safe.
    ///
    /// # Errors
    /// The newest snapshot when the time is up or the server stops.
    pub async fn wait_until(&self, wait: Duration, condition: impl Fn(&State) -> bool) -> Result<Arc<State>, Arc<State>> {
        let mut changed = self.shared.published_index.subscribe();
        let deadline = tokio::time::sleep(wait);
        tokio::pin!(deadline);
        loop {
            changed.mark_unchanged();
            let state = self.snapshot();
            if condition(&state) {
                return Ok(state);
            }
            tokio::select! {
                result = changed.changed() => if result.is_err() { return Err(state) },
                () = &mut deadline => return Err(self.snapshot()),
                () = self.shared.stopping.cancelled() => return Err(state),
            }
        }
    }

    /// Subscribes to events from `index` on; 0 = all that is kept.
    #[must_use]
    pub fn subscribe(&self, filter: EventFilter, index: StoreIndex) -> EventSubscription {
        EventSubscription::new(self.shared.events.clone(), filter, index, self.shared.stopping.clone())
    }
}

/// Writing. Every call answers after its commit is durable.
impl ServerHandle {
    /// Registers a job or a new version of it.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn register_job(&self, request: RegisterJob) -> Result<EvalCreated, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Checks a job without registering it; never fails for an invalid job.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn validate_job(&self, job: model::Job) -> Result<JobVerdict, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Stops a job, and forgets it when purged.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn deregister_job(&self, request: DeregisterJob) -> Result<EvalCreated, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Schedules a job again; `force_reschedule` also replaces failed allocations whose policy has given up.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn evaluate_job(&self, key: JobKey, force_reschedule: bool) -> Result<EvalCreated, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Changes the count of a group.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn scale_job(&self, request: ScaleJob) -> Result<EvalCreated, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Registers an older version again as the newest one.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn revert_job(&self, key: JobKey, version: u64, enforce_prior_version: Option<u64>) -> Result<EvalCreated, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Marks a version as stable or not.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn set_job_stability(&self, key: JobKey, version: u64, stable: bool) -> Result<StoreIndex, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// What a registration would do.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn plan_job(&self, request: PlanJob) -> Result<PlanPreview, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Stops an allocation; its job gets another one.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn stop_alloc(&self, id: AllocId, no_shutdown_delay: bool) -> Result<EvalCreated, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Starts, changes or ends a drain.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn drain_node(&self, request: DrainNode) -> Result<NodeChanged, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Lets allocations be placed on a node or not.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn set_node_eligibility(&self, id: NodeId, eligibility: Eligibility) -> Result<NodeChanged, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Forgets a node; what ran there is lost.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn purge_node(&self, id: NodeId) -> Result<NodeChanged, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Schedules every job that has to do with a node.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn evaluate_node(&self, id: NodeId) -> Result<NodeChanged, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Holds a deployment or lets it go on.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn pause_deployment(&self, id: DeploymentId, pause: bool) -> Result<DeploymentChanged, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Fails a deployment.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn fail_deployment(&self, id: DeploymentId) -> Result<DeploymentChanged, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Promotes canaries: refused, canaries come with a later release.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn promote_deployment(&self, id: DeploymentId) -> Result<DeploymentChanged, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Sets the health of allocations by hand.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn set_deployment_health(&self, request: SetHealth) -> Result<DeploymentChanged, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Changes the scheduler's settings.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn set_scheduler_config(&self, request: SetSchedulerConfig) -> Result<SchedulerConfigSet, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Collects everything that has ended, whatever its age.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn collect_garbage(&self) -> Result<Collected, ServerError> {
        Err(ServerError::ShuttingDown)
    }
    /// Gives up a remote task for good: its record ends although its absence was not confirmed.
    ///
    /// # Errors
    /// See [`ServerError`]; nothing was changed then.
    pub async fn forget_remote(&self, slot: SlotKey) -> Result<StoreIndex, ServerError> {
        Err(ServerError::ShuttingDown)
    }
}
