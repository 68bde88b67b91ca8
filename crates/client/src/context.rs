//! What all loops of a node share.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use executor_client::Launcher;
use model::{Node, TimestampNs};
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    alloc::AllocHandle,
    config::ClientConfig,
    discovery::Discovery,
    drivers::Drivers,
    fingerprint::Cpu,
    lease::Lease,
    leftovers::Places,
    node::{self, Allocs},
    outbox::Outbox,
    remote::RemoteManager,
    service_watch::ServiceWatches,
    store::LocalStore,
    task_api::TaskApis,
    tokens::Tokens,
};

/// Shared by reference; each part has its own synchronisation.
pub(crate) struct NodeContext {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) store: LocalStore,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) node: watch::Sender<Arc<Node>>,
    pub(crate) drivers: Drivers,
    /// Where processes of this node's tasks are recognised by.
    pub(crate) places: Places,
    pub(crate) remote: RemoteManager,
    pub(crate) lease: Lease,
    /// Services of the cluster, for what tasks are told of them.
    pub(crate) discovery: Discovery,
    /// Those of them that templates read.
    pub(crate) services: ServiceWatches,
    /// Tokens of the tasks' identities.
    pub(crate) tokens: Tokens,
    /// The agent's environment as tasks may see it.
    pub(crate) inherited: BTreeMap<String, String>,
    pub(crate) cpu: Cpu,
    /// Who is kept off cores that others have for themselves.
    pub(crate) cores: tokio::sync::Mutex<crate::cpuset::Bound>,
    /// Allocations whose tasks have cores for themselves.
    pub(crate) reserving: Arc<AtomicUsize>,
    /// Somebody could not be kept off, and is to be tried again.
    pub(crate) unbound: tokio::sync::Notify,
    /// The sockets through which tasks reach the HTTP API.
    pub(crate) task_apis: TaskApis,
    pub(crate) stop: CancellationToken,
    pub(crate) launcher: OnceCell<Launcher>,
    pub(crate) seeds: AtomicU64,
    /// Loops of this node's allocations.
    pub(crate) allocs: Allocs,
}

impl NodeContext {
    /// The node as it is registered now.
    pub(crate) fn node(&self) -> Arc<Node> {
        self.node.borrow().clone()
    }

    /// The loop of an allocation of this node.
    pub(crate) fn alloc(&self, id: model::AllocId) -> Option<AllocHandle> {
        node::handle(&self.allocs, id)
    }

    /// A number that no other call gets.
    pub(crate) fn seed(&self) -> u64 {
        lifecycle::restart::mix(self.seeds.fetch_add(1, Ordering::Relaxed))
    }

    /// The launcher of log collectors; the executor is installed at the first use, most nodes never need it.
    pub(crate) async fn launcher(&self) -> Result<&Launcher, String> {
        let dir = self.config.state_dir.join("bin");
        self.launcher
            .get_or_try_init(|| async move {
                tokio::task::spawn_blocking(move || Launcher::new(dir))
                    .await
                    .map_err(|e| e.to_string())?
                    .map_err(|e| format!("install the executor for log collection: {e}"))
            })
            .await
    }

    /// State directory of a task's log collector. Short, because a socket lives in it.
    pub(crate) fn collector_dir(&self, alloc: model::AllocId, task: &str) -> PathBuf {
        let digest = Sha256::digest(format!("{alloc}/{task}"));
        let name: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
        self.config.collectors_dir().join(name)
    }
}

/// Unix ns.
pub(crate) fn now_ns() -> TimestampNs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
