//! The network between nodes and servers: connections in memory with a delay, that a partition swallows or a fault
//! breaks.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf},
    sync::mpsc,
};

use crate::{plan::NODES, signal::Signal};

const BUFFER: usize = 256 * 1024;

/// Where a server that runs now takes connections; None = it does not, and its machine refuses them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    at: Arc<Mutex<Option<mpsc::UnboundedSender<DuplexStream>>>>,
    line: Signal<ServerLine>,
}

/// What the line of one server does now.
#[derive(Clone, Copy, Debug, Default)]
struct ServerLine {
    /// The server stands still.
    frozen: bool,
    /// How many cuts keep everything from each node.
    cuts: [u32; NODES],
    /// How often its connections were broken.
    breaks: u64,
}

impl ServerLine {
    fn carries(self, node: usize) -> bool {
        !self.frozen && self.cuts[node] == 0
    }
}

impl Server {
    pub(crate) fn listens(&self, at: Option<mpsc::UnboundedSender<DuplexStream>>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Stands still, or goes on: what was said to it and by it waits.
    pub(crate) fn set_frozen(&self, frozen: bool) {
        self.line.change(|line| line.frozen = frozen);
    }

    /// Cuts it off from one node, or ends one of these cuts.
    pub(crate) fn set_cut(&self, node: usize, cut: bool) {
        self.line.change(|line| {
            let cuts = &mut line.cuts[node];
            *cuts = if cut { *cuts + 1 } else { cuts.saturating_sub(1) };
        });
    }

    /// Breaks all its connections.
    pub(crate) fn break_all(&self) {
        self.line.change(|line| line.breaks += 1);
    }

    fn take(&self, connection: DuplexStream) -> io::Result<()> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner).clone();
        at.ok_or_else(refused)?.send(connection).map_err(|_| refused())
    }
}

/// What a line does now.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// Nothing passes; what was sent waits.
    hole: bool,
    /// How often its connections were broken.
    breaks: u64,
}

/// The line of one agent to the servers.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    line: Signal<Line>,
    delay: Duration,
    node: usize,
}

impl Link {
    pub(crate) fn new(node: usize, delay: Duration) -> Self {
        Self { line: Signal::default(), delay, node }
    }

    /// Begins or ends a partition.
    pub(crate) fn set_hole(&self, hole: bool) {
        self.line.change(|line| line.hole = hole);
    }

    /// Breaks the open connections; others may be opened.
    pub(crate) fn break_all(&self) {
        self.line.change(|line| line.breaks += 1);
    }

    /// Opens a connection; waits for the end of a partition.
    pub(crate) async fn open(self, server: Server) -> io::Result<DuplexStream> {
        let (line, there, node) = (self.line, server.line.clone(), self.node);
        let breaks = line.until(|line| !line.hole).await.breaks;
        let far_breaks = there.until(|there| there.carries(node)).await.breaks;
        tokio::time::sleep(self.delay).await;
        let (own_end, near) = tokio::io::duplex(BUFFER);
        let (far, far_end) = tokio::io::duplex(BUFFER);
        server.take(far_end)?;
        let ((from_node, to_node), (from_server, to_server)) = (tokio::io::split(near), tokio::io::split(far));
        let way = Way { line, breaks, there, far_breaks, node, delay: self.delay };
        tokio::spawn(carry(from_node, to_server, way.clone()));
        tokio::spawn(carry(from_server, to_node, way));
        Ok(own_end)
    }
}

/// What a connection goes through.
#[derive(Clone)]
struct Way {
    line: Signal<Line>,
    breaks: u64,
    there: Signal<ServerLine>,
    far_breaks: u64,
    node: usize,
    delay: Duration,
}

/// Carries bytes one way until one side closes or the line breaks, which both sides see as the end.
async fn carry(mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>, way: Way) {
    let Way { line, breaks, there, far_breaks, node, delay } = way;
    let carried = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            tokio::time::sleep(delay).await;
            line.until(|line| !line.hole).await;
            there.until(|there| there.carries(node)).await;
            if to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        _ = line.until(|line| line.breaks != breaks) => {}
        _ = there.until(|there| there.breaks != far_breaks) => {}
        () = carried => {}
    }
    let _ = to.shutdown().await;
}
