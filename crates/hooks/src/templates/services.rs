//! The services that the templates of one task read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use model::Namespace;
use template::ServiceQuery;
use tokio::sync::watch;

use crate::service_watch::{Following, Known, ServiceData, ServiceKey, ServiceWatches};

/// Services that a template has read, with the answers; `None` = unknown yet.
pub(super) type Asked = BTreeMap<ServiceKey, Option<Arc<ServiceData>>>;

/// Follows the services that a task's templates have read, for as long as it lives.
#[derive(Debug)]
pub struct TaskServices {
    watches: ServiceWatches,
    namespace: Namespace,
    region: String,
    following: Mutex<BTreeMap<ServiceKey, Following>>,
}

impl TaskServices {
    /// Follows nothing until the first read. `namespace` is the job's, `region` the node's.
    pub fn new(watches: ServiceWatches, namespace: Namespace, region: String) -> Self {
        Self { watches, namespace, region, following: Mutex::default() }
    }

    fn following(&self) -> MutexGuard<'_, BTreeMap<ServiceKey, Following>> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn here(&self, region: Option<&str>) -> Result<(), String> {
        match region {
            Some(other) if other != self.region => Err(format!(
                "services of the region {other:?} cannot be read here; this node belongs to the region {:?}",
                self.region
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn places(&self, query: &ServiceQuery) -> Result<ServiceKey, String> {
        self.here(query.region.as_deref())?;
        Ok(ServiceKey::Places {
            namespace: query.namespace.as_deref().map_or_else(|| self.namespace.clone(), Namespace::from),
            name: query.name.clone(),
            choose: query.choose.as_ref().map(|(count, key)| format!("{count}|{key}")),
        })
    }

    pub(super) fn names(&self, region: Option<&str>) -> Result<ServiceKey, String> {
        self.here(region)?;
        Ok(ServiceKey::Names { namespace: self.namespace.clone() })
    }

    /// The known state of a key; follows the key from now on. Needs a runtime.
    pub(super) fn known(&self, key: &ServiceKey) -> Known {
        let mut following = self.following();
        following.entry(key.clone()).or_insert_with(|| self.watches.follow(key.clone())).known()
    }

    /// Whether a service that a template has read is still unknown.
    pub(super) fn unknown(&self) -> bool {
        self.following().values().any(|f| f.known().data.is_none())
    }

    /// Whether a template has read any service.
    pub(super) fn any(&self) -> bool {
        !self.following().is_empty()
    }

    /// Whether the present answers differ from `asked`.
    pub(super) fn differ(&self, asked: &Asked) -> bool {
        asked.iter().any(|(key, before)| self.known(key).data != *before)
    }

    /// Changes when any followed service of this node does.
    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.watches.version()
    }

    /// The missing data of a template, with the reason why services are unknown.
    pub(super) fn explain(&self, mut what: BTreeSet<String>, asked: &Asked) -> BTreeSet<String> {
        let unknown = asked.iter().filter(|(_, data)| data.is_none());
        what.extend(unknown.filter_map(|(key, _)| self.known(key).trouble));
        what
    }
}
