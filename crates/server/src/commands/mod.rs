//! The write API: each command reads its request, lets `control` decide on the newest state, and answers once that is
//! durable.

mod acl;
mod allocs;
mod deployments;
mod drivers;
mod introductions;
mod jobs;
pub(crate) mod keyring;
pub(crate) mod login;
mod nodes;
mod operator;
mod services;
mod spaces;
pub(crate) mod variables;
pub(crate) mod volumes;

use control::{Decided, Ids, Refused, Stamp};
use state::State;

use crate::{clock::new_id, error::ServerError, handle::ServerHandle};

impl ServerHandle {
    /// Commits a decision.
    async fn decide<R: Send + 'static>(
        &self,
        decide: impl FnOnce(&State, Stamp, &mut Ids<'_>) -> Result<Decided<R>, Refused> + Send + 'static,
    ) -> Result<R, ServerError> {
        self.inner.queue.commit(move |state, stamp| Ok(decide(state, stamp, &mut new_id)?)).await
    }
}
