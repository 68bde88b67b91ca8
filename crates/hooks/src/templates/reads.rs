//! The services and variables that the templates of one task read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use model::{AllocId, Namespace};
use template::{SecretQuery, ServiceQuery, VariableQuery};
use tokio::sync::watch;

use crate::{
    cluster_watch::{ClusterData, ClusterKey, ClusterWatches, Following, Known},
    vault::Reader,
};

/// What a template has read, with the answers; `None` = unknown yet.
pub(super) type Asked = BTreeMap<ClusterKey, Option<Arc<ClusterData>>>;

/// Follows the services and variables that a task's templates have read, for as long as it lives.
#[derive(Debug)]
pub struct TaskReads {
    watches: ClusterWatches,
    reader: Reader,
    namespace: Namespace,
    region: String,
    following: Mutex<BTreeMap<ClusterKey, Following>>,
}

impl TaskReads {
    /// Follows nothing until the first read. `namespace` is the job's, `region` the node's. The task reads variables
    /// with the rights of its default identity.
    pub fn new(watches: ClusterWatches, alloc: AllocId, task: &str, namespace: Namespace, region: String) -> Self {
        let reader = Reader { alloc, task: task.to_owned() };
        Self { watches, reader, namespace, region, following: Mutex::default() }
    }

    fn following(&self) -> MutexGuard<'_, BTreeMap<ClusterKey, Following>> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn here(&self, what: &str, region: Option<&str>) -> Result<(), String> {
        match region {
            Some(other) if other != self.region => Err(format!(
                "{what} of the region {other:?} cannot be read here; this node belongs to the region {:?}",
                self.region
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn places(&self, query: &ServiceQuery) -> Result<ClusterKey, String> {
        self.here("services", query.region.as_deref())?;
        Ok(ClusterKey::Places {
            namespace: query.namespace.as_deref().map_or_else(|| self.namespace.clone(), Namespace::from),
            name: query.name.clone(),
            choose: query.choose.as_ref().map(|(count, key)| format!("{count}|{key}")),
        })
    }

    pub(super) fn names(&self, region: Option<&str>) -> Result<ClusterKey, String> {
        self.here("services", region)?;
        Ok(ClusterKey::Names { namespace: self.namespace.clone() })
    }

    fn namespace(&self, query: &VariableQuery) -> Namespace {
        query.namespace.as_deref().map_or_else(|| self.namespace.clone(), Namespace::from)
    }

    pub(crate) fn variable(&self, query: &VariableQuery) -> Result<ClusterKey, String> {
        self.here("variables", query.region.as_deref())?;
        let (reader, namespace) = (self.reader.clone(), self.namespace(query));
        Ok(ClusterKey::Variable { reader, namespace, path: query.path.clone() })
    }

    pub(super) fn variables(&self, query: &VariableQuery) -> Result<ClusterKey, String> {
        self.here("variables", query.region.as_deref())?;
        let (reader, namespace) = (self.reader.clone(), self.namespace(query));
        Ok(ClusterKey::Variables { reader, namespace, prefix: query.path.clone() })
    }

    pub(crate) fn secret(&self, query: &SecretQuery) -> ClusterKey {
        ClusterKey::Secret { reader: self.reader.clone(), query: query.clone() }
    }

    pub(super) fn secret_names(&self, path: &str) -> ClusterKey {
        ClusterKey::SecretNames { reader: self.reader.clone(), path: path.to_owned() }
    }

    /// The known state of a key; follows the key from now on. Needs a runtime.
    pub(crate) fn known(&self, key: &ClusterKey) -> Known {
        let mut following = self.following();
        following.entry(key.clone()).or_insert_with(|| self.watches.follow(key.clone())).known()
    }

    /// Whether a template has read anything.
    pub(super) fn any(&self) -> bool {
        !self.following().is_empty()
    }

    /// Whether the present answers differ from `asked`.
    pub(super) fn differ(&self, asked: &Asked) -> bool {
        asked.iter().any(|(key, before)| self.known(key).data != *before)
    }

    /// Changes when anything followed on this node does.
    pub(crate) fn version(&self) -> watch::Receiver<u64> {
        self.watches.version()
    }

    /// The missing data of a template, with the reason why it is unknown.
    pub(super) fn explain(&self, mut what: BTreeSet<String>, asked: &Asked) -> BTreeSet<String> {
        let unknown = asked.iter().filter(|(_, data)| data.is_none());
        what.extend(unknown.filter_map(|(key, _)| self.known(key).trouble));
        what
    }
}
