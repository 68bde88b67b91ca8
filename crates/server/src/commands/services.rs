//! Commands on registrations of services.

use model::{Namespace, StoreIndex};
use state::Change;

use crate::{
    commit::Decided,
    error::{Kind, Refused, ServerError},
    handle::ServerHandle,
};

impl ServerHandle {
    /// Forgets a registration. The node of a service that still stands registers it again with its next full report.
    ///
    /// # Errors
    /// When there is no such registration.
    pub async fn delete_service(
        &self,
        namespace: Namespace,
        name: String,
        id: String,
    ) -> Result<StoreIndex, ServerError> {
        self.decide(move |state, stamp, _| {
            let found = state.service(&id).filter(|r| r.namespace == namespace && *r.service_name == *name);
            let found = found.ok_or_else(|| Refused::not_found(Kind::Service, &id))?;
            Ok(Decided { batch: Change::DeleteService(found.id.clone()).into(), answer: stamp.index })
        })
        .await
    }
}
