//! What the loops of a node's allocations work with, put together once.

use std::{sync::Arc, time::Duration};

use hooks::{checks::Checks, identities::Identities, network::Networks, templates::Templates, vault::VaultTokens};
use host::{cpuset::CoreBinder, node_env::NodeEnv, seeds::Seeds};
use node_record::{outbox::Outbox, store::LocalStore};
use remote_manager::RemoteManager;
use tokio_util::sync::CancellationToken;

use super::{effects::Runs, outputs::Outputs, start::Starter};

/// Made once, where the node is put together. Nobody but the loops sees all of it.
pub(crate) struct Parts {
    pub(crate) store: LocalStore,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) remote: RemoteManager,
    pub(crate) env: NodeEnv,
    pub(crate) seeds: Seeds,
    pub(crate) stop: CancellationToken,
    pub(crate) max_kill_timeout: Duration,
    pub(crate) cores: Arc<CoreBinder>,
    pub(crate) networks: Arc<Networks>,
    pub(crate) checks: Arc<Checks>,
    pub(crate) templates: Arc<Templates>,
    pub(crate) identities: Arc<Identities>,
    pub(crate) vault: Arc<VaultTokens>,
    pub(crate) outputs: Arc<Outputs>,
    pub(crate) starter: Arc<Starter>,
    pub(crate) runs: Arc<Runs>,
}
