//! What the nodes have told of their drivers' schemas, so that a job's configuration is checked before a node is
//! chosen.
//!
//! Nothing here is stored: every session tells it anew. Until the nodes have come back after a restart of the server,
//! a job is checked against what is known; what a ready node has not told of a driver makes its findings warnings.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::node_rpc;
use hcl_lang::hclspec::{Checked, Spec};
use model::NodeId;
use state::Object;

use crate::commit::Commit;

/// Largest schema, most of them that one node may tell, and most different ones that are kept of a driver. What is
/// beyond counts as not told.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;
const SCHEMAS_MAX: usize = 64;
const DIFFERENT_MAX: usize = 32;

/// One schema of a driver, and who has it.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// As it was told; equal schemas are kept once.
    pub(crate) document: Arc<serde_json::Value>,
    pub(crate) checked: Arc<Checked>,
    /// The version of the plugin, by node.
    pub(crate) versions: BTreeMap<NodeId, Arc<str>>,
}

impl Known {
    /// The versions of the plugin that have it, newest first.
    pub(crate) fn plugin_versions(&self) -> Vec<Arc<str>> {
        let mut all: Vec<Arc<str>> = self.versions.values().collect::<BTreeSet<_>>().into_iter().cloned().collect();
        all.sort_by_cached_key(|version| std::cmp::Reverse(age(version)));
        all
    }
}

/// By driver, then by the schema's text.
type ByDriver = BTreeMap<String, BTreeMap<Arc<[u8]>, Known>>;

/// The schemas of the cluster's drivers.
#[derive(Debug, Default)]
pub(crate) struct DriverSchemas {
    known: Mutex<ByDriver>,
}

impl DriverSchemas {
    fn lock(&self) -> MutexGuard<'_, ByDriver> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node has told all that it has; what it has told before is forgotten.
    pub(crate) fn told(&self, node: NodeId, message: node_rpc::DriverSchemas) {
        let mut known = self.lock();
        forget(&mut known, node);
        for told in message.schemas.into_iter().take(SCHEMAS_MAX) {
            let node_rpc::DriverSchema { driver, version, schema_json } = told;
            if driver.is_empty() || schema_json.len() > SCHEMA_BYTES_MAX {
                continue;
            }
            let of_driver = known.entry(driver).or_default();
            let version: Arc<str> = version.into();
            if let Some(same) = of_driver.get_mut(&*schema_json) {
                same.versions.insert(node, version);
                continue;
            }
            // A schema that is broken, or of a newer release, is as good as not told: the node itself tells what is
            // wrong with it.
            let Ok(document) = serde_json::from_slice::<serde_json::Value>(&schema_json) else { continue };
            let Some(checked) = Spec::from_document(&document).ok().and_then(|spec| spec.check().ok()) else {
                continue;
            };
            if of_driver.len() < DIFFERENT_MAX {
                let entry =
                    Known { document: document.into(), checked: checked.into(), versions: [(node, version)].into() };
                of_driver.insert(schema_json.into(), entry);
            }
        }
        known.retain(|_, schemas| !schemas.is_empty());
    }

    /// Forgets nodes that are no more.
    pub(crate) fn follow(&self, commit: &Commit) {
        let mut gone =
            commit.applied.changes.iter().filter(|change| change.deleted).filter_map(|change| match &change.object {
                Object::Node(node) => Some(node.id),
                _ => None,
            });
        if let Some(first) = gone.next() {
            let mut known = self.lock();
            std::iter::once(first).chain(gone).for_each(|node| forget(&mut known, node));
        }
    }

    /// The different schemas of a driver, newest version first.
    pub(crate) fn of(&self, driver: &str) -> Vec<Known> {
        let mut all: Vec<Known> = self.lock().get(driver).into_iter().flat_map(BTreeMap::values).cloned().collect();
        all.sort_by_cached_key(|known| std::cmp::Reverse(known.plugin_versions().first().map(|version| age(version))));
        all
    }

    /// The drivers of which anything is known.
    pub(crate) fn drivers(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }
}

fn forget(known: &mut ByDriver, node: NodeId) {
    for schemas in known.values_mut() {
        schemas.retain(|_, schema| {
            schema.versions.remove(&node);
            !schema.versions.is_empty()
        });
    }
    known.retain(|_, schemas| !schemas.is_empty());
}

/// Orders versions: by their numbers, then by the text.
fn age(version: &str) -> (Vec<u64>, String) {
    let numbers = version.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
    (numbers.take(3).collect(), version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(attributes: &[&str]) -> Vec<u8> {
        let attr = || Spec::Attr { name: String::new(), ty: "string".into(), required: false };
        Spec::Object(attributes.iter().map(|name| ((*name).to_owned(), attr())).collect())
            .to_document()
            .to_string()
            .into_bytes()
    }

    fn told(driver: &str, version: &str, schema_json: Vec<u8>) -> node_rpc::DriverSchemas {
        node_rpc::DriverSchemas {
            schemas: vec![node_rpc::DriverSchema { driver: driver.into(), version: version.into(), schema_json }],
        }
    }

    #[test]
    fn schemas_are_kept_once_and_go_with_those_who_have_them() {
        let [a, b, c] = [1, 2, 3].map(|n| NodeId(uuid::Uuid::from_u128(n)));
        let schemas = DriverSchemas::default();
        let shown = || -> Vec<(Vec<Arc<str>>, usize)> {
            schemas.of("d").iter().map(|known| (known.plugin_versions(), known.versions.len())).collect()
        };
        schemas.told(a, told("d", "1.9.0", schema(&["x"])));
        schemas.told(b, told("d", "1.10.0", schema(&["x"])));
        schemas.told(c, told("d", "2.0.0", schema(&["x", "y"])));
        assert_eq!(shown(), [(vec!["2.0.0".into()], 1), (vec!["1.10.0".into(), "1.9.0".into()], 2)]);
        // The plugin of a node is replaced; another one loses its driver.
        schemas.told(c, told("d", "1.9.0", schema(&["x"])));
        schemas.told(b, node_rpc::DriverSchemas::default());
        assert_eq!(shown(), [(vec!["1.9.0".into()], 2)]);
        forget(&mut schemas.lock(), a);
        forget(&mut schemas.lock(), c);
        assert_eq!((shown(), schemas.drivers()), (vec![], vec![]));
    }

    #[test]
    fn what_a_node_says_is_bounded_and_may_be_nonsense() {
        let schemas = DriverSchemas::default();
        let node = |n: usize| NodeId(uuid::Uuid::from_u128(n as u128 + 1));
        for nonsense in [
            b"{".to_vec(),
            b"null".to_vec(),
            br#"{"Kind":"attr","Type":"no type"}"#.to_vec(),
            vec![b' '; SCHEMA_BYTES_MAX + 1],
        ] {
            schemas.told(node(0), told("d", "1", nonsense));
            assert_eq!(schemas.drivers(), Vec::<String>::new());
        }
        for n in 0..2 * DIFFERENT_MAX {
            schemas.told(node(n), told("d", "1", schema(&[&format!("a{n}")])));
        }
        assert_eq!(schemas.of("d").len(), DIFFERENT_MAX);
        let many = (0..2 * SCHEMAS_MAX).flat_map(|n| told(&format!("d{n}"), "1", schema(&["x"])).schemas);
        schemas.told(node(0), node_rpc::DriverSchemas { schemas: many.collect() });
        assert_eq!(schemas.drivers().len(), SCHEMAS_MAX + 1);
    }
}
