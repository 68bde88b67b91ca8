//! The services that the templates of one task read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use model::Namespace;
use template::ServiceQuery;
use tokio::sync::watch;

use crate::service_watch::{Following, Known, ServiceData, ServiceKey, ServiceWatches};

/// Services that a template has asked for, with what it was told; None = not known yet.
pub(super) type Asked = BTreeMap<ServiceKey, Option<Arc<ServiceData>>>;

/// What a task's templates have asked for is followed for as long as this lives.
#[derive(Debug)]
pub struct TaskServices {
    watches: ServiceWatches,
    namespace: Namespace,
    region: String,
    following: Mutex<BTreeMap<ServiceKey, Following>>,
}

impl TaskServices {
    /// Nothing is followed before it is asked for. `namespace` is the job's, `region` the node's.
    pub fn new(watches: ServiceWatches, namespace: Namespace, region: String) -> Self {
        Self { watches, namespace, region, following: Mutex::default() }
    }

    fn following(&self) -> MutexGuard<'_, BTreeMap<ServiceKey, Following>> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn here(&self, region: Option<&str>) -> Result<(), String> {
        match region {
            Some(other) if other != self.region => {
                Err(format!("services of the region {other:?} cannot be read here; this node belongs to the region {:?}", self.region))
            }
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

    /// What is known; it is followed from now on. Needs a runtime.
    pub(super) fn known(&self, key: &ServiceKey) -> Known {
        let mut following = self.following();
        following.entry(key.clone()).or_insert_with(|| self.watches.follow(key.clone())).known()
    }

    /// Something that was asked for is not known yet.
    pub(super) fn unknown(&self) -> bool {
        self.following().values().any(|f| f.known().data.is_none())
    }

    /// Something was asked for.
    pub(super) fn any(&self) -> bool {
        !self.following().is_empty()
    }

    /// Something is known now that was not known in this way then.
    pub(super) fn differ(&self, asked: &Asked) -> bool {
        asked.iter().any(|(key, before)| self.known(key).data != *before)
    }

    /// Changes when something on this node does.
    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.watches.version()
    }

    /// What a template waits for, with the reason why services are not known.
    pub(super) fn explain(&self, mut what: BTreeSet<String>, asked: &Asked) -> BTreeSet<String> {
        let unknown = asked.iter().filter(|(_, data)| data.is_none());
        what.extend(unknown.filter_map(|(key, _)| self.known(key).trouble));
        what
    }
}
