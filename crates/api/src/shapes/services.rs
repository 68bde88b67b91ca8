//! Services: `GET /v1/services`.

use model::Namespace;
use serde::{Deserialize, Serialize};

/// The services of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NamespaceServices {
    /// Namespace.
    pub namespace: Namespace,
    /// Its services, by name.
    pub services: Vec<ServiceStub>,
}

/// A service in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServiceStub {
    /// Name.
    pub service_name: String,
    /// Tags of any of its places, sorted.
    pub tags: Vec<String>,
}
