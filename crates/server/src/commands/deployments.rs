//! Commands on deployments: hold, promote, fail, set health by hand.

use control::deployments;
use model::DeploymentId;

use crate::{
    error::ServerError,
    handle::ServerHandle,
    requests::{DeploymentChanged, SetHealth},
};

impl ServerHandle {
    /// Holds a deployment or lets it go on.
    ///
    /// # Errors
    /// When there is no such deployment or it has ended.
    pub async fn pause_deployment(&self, id: DeploymentId, pause: bool) -> Result<DeploymentChanged, ServerError> {
        self.decide(move |state, stamp, ids| deployments::pause(state, id, pause, stamp, ids)).await
    }

    /// Fails a deployment; its job returns to the last stable version when it says so.
    ///
    /// # Errors
    /// When there is no such deployment or it has ended.
    pub async fn fail_deployment(&self, id: DeploymentId) -> Result<DeploymentChanged, ServerError> {
        self.decide(move |state, stamp, ids| deployments::give_up(state, id, stamp, ids)).await
    }

    /// Promotes the canaries of these groups, or of all: from now on they are rolled out like any version.
    ///
    /// # Errors
    /// When there is no such deployment or group, it has ended, there is nothing to promote, or a canary is not
    /// healthy yet.
    pub async fn promote_deployment(
        &self,
        id: DeploymentId,
        groups: Option<Vec<String>>,
    ) -> Result<DeploymentChanged, ServerError> {
        self.decide(move |state, stamp, ids| deployments::promote(state, id, groups.as_deref(), stamp, ids)).await
    }

    /// Sets the health of allocations by hand.
    ///
    /// # Errors
    /// When there is no such deployment, it has ended, or an allocation is not part of it.
    pub async fn set_deployment_health(&self, request: SetHealth) -> Result<DeploymentChanged, ServerError> {
        self.decide(move |state, stamp, ids| deployments::set_health(state, request, stamp, ids)).await
    }
}
