//! Services, as typed calls.

use std::collections::BTreeMap;

use model::{AllocId, CheckResult, ServiceRegistration};
use serde_json::Value;

use super::{Answer, ApiClient, ClientError, RequestOptions};
use crate::{query::percent_encode, shapes::NamespaceServices};

impl ApiClient {
    /// The services, by namespace.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn services(&self, options: &RequestOptions) -> Result<Answer<Vec<NamespaceServices>>, ClientError> {
        self.query("/v1/services", options).await
    }

    /// The places of a service. With `index` in the options the answer waits for a change of this service.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn service(&self, name: &str, options: &RequestOptions) -> Result<Answer<Vec<ServiceRegistration>>, ClientError> {
        self.query(&format!("/v1/service/{}", percent_encode(name)), options).await
    }

    /// Forgets a registration. A node that still stands by it registers it again.
    ///
    /// # Errors
    /// See [`ClientError`]; not found when there is no such registration.
    pub async fn delete_service(&self, name: &str, id: &str) -> Result<(), ClientError> {
        let path = format!("/v1/service/{}/{}", percent_encode(name), percent_encode(id));
        self.delete::<Value>(&path, &RequestOptions::default()).await.map(drop)
    }

    /// The newest results of the checks of an allocation, by id of the check.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn alloc_checks(&self, id: AllocId) -> Result<BTreeMap<String, CheckResult>, ClientError> {
        self.get(&format!("/v1/client/allocation/{id}/checks")).await
    }
}
