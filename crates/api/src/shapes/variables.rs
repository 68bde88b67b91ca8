//! Variables, as the outside sees them.

use std::collections::BTreeMap;

use model::{GoDuration, Namespace, StoreIndex};
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
    /// The lock that somebody holds; None = nobody does, or it is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockView>,
}

/// A lock on a variable. What a request leaves out, it does not say.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct LockView {
    /// What its holder shows.
    #[serde(rename = "ID")]
    pub id: String,
    /// The holder renews it within that time.
    #[serde(rename = "TTL", with = "text")]
    pub ttl: GoDuration,
    /// How long nobody gets the lock after its end.
    #[serde(with = "text")]
    pub lock_delay: GoDuration,
}

/// Without its id, which opens the lock.
impl std::fmt::Debug for LockView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockView").field("ttl", &self.ttl).field("lock_delay", &self.lock_delay).finish_non_exhaustive()
    }
}

/// A duration as text; empty = zero. Numbers of nanoseconds are read as well.
mod text {
    use model::GoDuration;
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(GoDuration),
    }

    pub(super) fn serialize<S: Serializer>(of: &GoDuration, to: S) -> Result<S::Ok, S::Error> {
        match *of {
            GoDuration::ZERO => to.serialize_str(""),
            of => to.collect_str(&of),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GoDuration, D::Error> {
        match Option::<Written>::deserialize(from)? {
            None => Ok(GoDuration::ZERO),
            Some(Written::Text(text)) if text.is_empty() => Ok(GoDuration::ZERO),
            Some(Written::Text(text)) => text.parse().map_err(serde::de::Error::custom),
            Some(Written::Number(number)) => Ok(number),
        }
    }
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
