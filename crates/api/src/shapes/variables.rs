//! Variables, as the outside sees them.

use std::collections::BTreeMap;

use model::{Namespace, StoreIndex};
use serde::{Deserialize, Serialize};

/// A variable: with its items where one is read or written, without them in lists.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VariableView {
    /// Namespace.
    pub namespace: Namespace,
    /// Path.
    pub path: String,
    /// Index of its creation.
    pub create_index: StoreIndex,
    /// Index of its last change.
    pub modify_index: StoreIndex,
    /// When it was created, Unix ns.
    pub create_time: i64,
    /// When it was last changed, Unix ns.
    pub modify_time: i64,
    /// The items; None = they are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<BTreeMap<String, String>>,
    /// The lock of a request. This release has none, and refuses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<serde_json::Value>,
}

/// Without what its items hold: they may be secret.
impl std::fmt::Debug for VariableView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VariableView")
            .field("namespace", &self.namespace)
            .field("path", &self.path)
            .field("modify_index", &self.modify_index)
            .field("items", &self.items.as_ref().map(BTreeMap::len))
            .finish_non_exhaustive()
    }
}
