//! Metadata of the node: the operator's configuration, and later changes through the API.

use std::collections::BTreeMap;

use model::node::Attributes;
use serde_json::{Value, json};

use crate::store::{LocalStore, Write};

const NAME: &str = "dynamic_meta";

/// Both layers. A dynamic `None` hides a configured key.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    fixed: BTreeMap<String, String>,
    dynamic: BTreeMap<String, Option<String>>,
}

impl Metadata {
    /// The stored changes of the API over `fixed`, the configuration.
    pub fn load(store: &LocalStore, fixed: BTreeMap<String, String>) -> Self {
        let dynamic = store.meta(NAME).and_then(|t| serde_json::from_str(&t).ok()).unwrap_or_default();
        Self { fixed, dynamic }
    }

    /// Applies changes of the API; `None` removes a key.
    pub fn change(&mut self, changes: BTreeMap<String, Option<String>>) {
        for (key, value) in changes {
            if value.is_none() && !self.fixed.contains_key(&key) {
                self.dynamic.remove(&key);
            } else {
                self.dynamic.insert(key, value);
            }
        }
    }

    /// The metadata as jobs see it.
    pub fn merged(&self) -> Attributes {
        let fixed = self.fixed.iter().filter(|(key, _)| !self.dynamic.contains_key(*key));
        let dynamic = self.dynamic.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        fixed.chain(dynamic).map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect()
    }

    /// The write that stores the changes for the next start.
    pub fn write(&self) -> Write {
        Write::Meta(NAME, serde_json::to_string(&self.dynamic).unwrap_or_default())
    }

    /// The API's form: the merged metadata and both layers.
    pub fn to_json(&self) -> Value {
        json!({ "Meta": self.merged(), "Dynamic": self.dynamic, "Static": self.fixed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_lie_over_the_configuration() {
        let mut m = Metadata { fixed: BTreeMap::from([("a".to_owned(), "1".to_owned())]), ..Metadata::default() };
        let some = |v: &str| Some(v.to_owned());
        m.change(BTreeMap::from([("a".to_owned(), None), ("b".to_owned(), some("2")), ("c".to_owned(), None)]));
        assert_eq!(m.merged(), Attributes::from([("b".into(), "2".into())]));
        m.change(BTreeMap::from([("a".to_owned(), some("3")), ("b".to_owned(), None)]));
        assert_eq!(m.merged(), Attributes::from([("a".into(), "3".into())]));
        assert!(!m.dynamic.contains_key("b"));
    }
}
