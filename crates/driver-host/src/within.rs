//! Plugins within this process: a simulation runs many nodes on one thread, and no process of their own.
//!
//! The host speaks to them as to any other, over a connection in memory. Programs never use this: a plugin is untrusted
//! code.

use std::fmt;
use std::sync::Arc;

use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Bytes in the buffer of a connection, each way.
const BUFFER: usize = 256 * 1024;

/// Where a started plugin takes connections.
pub type Connections = mpsc::UnboundedSender<DuplexStream>;

type Start = dyn Fn(CancellationToken) -> Connections + Send + Sync;

/// A plugin within this process.
#[derive(Clone)]
pub struct Within(Arc<Start>);

impl Within {
    /// `start` starts the plugin once more. It serves the connections until the token is cancelled, which is its death,
    /// and cancels the token if it ends by itself.
    pub fn new(start: impl Fn(CancellationToken) -> Connections + Send + Sync + 'static) -> Self {
        Self(Arc::new(start))
    }

    pub(crate) fn start(&self, exited: CancellationToken) -> Connections {
        (self.0)(exited)
    }
}

impl fmt::Debug for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Within")
    }
}

impl PartialEq for Within {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Connects to a plugin.
pub(crate) fn connect(plugin: &Connections) -> std::io::Result<DuplexStream> {
    let (here, there) = tokio::io::duplex(BUFFER);
    plugin.send(there).map_err(|_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
    Ok(here)
}
