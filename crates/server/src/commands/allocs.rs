//! Commands on allocations.

use control::jobs::stop_alloc;
use model::AllocId;

use crate::{error::ServerError, handle::ServerHandle, requests::EvalCreated};

impl ServerHandle {
    /// Stops an allocation; its job gets another one. With `reschedule` that counts as an attempt of the policy, and
    /// another node is preferred.
    ///
    /// # Errors
    /// When there is no such allocation.
    pub async fn stop_alloc(
        &self,
        id: AllocId,
        no_shutdown_delay: bool,
        reschedule: bool,
    ) -> Result<EvalCreated, ServerError> {
        self.decide(move |state, stamp, ids| stop_alloc(state, id, (no_shutdown_delay, reschedule), stamp, ids)).await
    }
}
