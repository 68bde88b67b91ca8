//! What the loops and handles of one server share.

use std::{net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use model::{ClusterId, StoreIndex};
use state::State;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{config::ServerConfig, events::EventLog, requests::ServerStats};

/// What the loops and handles of one server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) cluster_id: ClusterId,
    pub(crate) rpc_addr: SocketAddr,
    pub(crate) published: ArcSwap<State>,
    pub(crate) published_index: watch::Sender<StoreIndex>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) stopping: CancellationToken,
}

impl Shared {
    pub(crate) fn stats(&self) -> ServerStats {
        ServerStats::default()
    }
}
