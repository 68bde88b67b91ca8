//! How much a listener takes, and how long it waits.

use std::time::Duration;

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of one client address at a time, of this machine itself ten times as many; 0 = as many as it likes.
    pub connections_per_client: usize,
    /// Connections of all clients together; 0 = as many as there are descriptors.
    pub connections: usize,
    /// Time for a TLS handshake; None = as long as it takes.
    pub handshake_timeout: Option<Duration>,
    /// Time for the head of a request to arrive.
    pub header_read_timeout: Duration,
    /// Time in which a client must take something of an answer that waits for it; streams, files and logs wait for
    /// as long as it likes.
    pub write_stall_timeout: Duration,
    /// Time that running requests get when the listener ends.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_per_client: 100,
            connections: 10_000,
            handshake_timeout: Some(Duration::from_secs(5)),
            header_read_timeout: Duration::from_secs(30),
            write_stall_timeout: Duration::from_secs(60),
            shutdown_grace: Duration::from_secs(2),
        }
    }
}
