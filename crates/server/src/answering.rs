//! What the HTTP API tells its server: that it is there, how long an answer took, that a handler has panicked.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use futures::FutureExt as _;

use crate::{
    handle::ServerHandle,
    loops,
    progress::{Turns, said},
    samples::name,
};

/// The HTTP API as its server knows it: a loop of health and the watchdog, a sample of the metrics,
/// a counter of defects.
#[derive(Clone, Debug)]
pub struct Answering {
    server: ServerHandle,
    turns: Arc<Turns>,
}

impl ServerHandle {
    /// To be called by whatever serves the HTTP API: from then on health shows it among the loops.
    #[must_use]
    pub fn answering(&self) -> Answering {
        let turns = self.inner.runner.turns(&loops::HTTP);
        turns.waits("requests");
        Answering { server: self.clone(), turns }
    }
}

impl Answering {
    /// An answer that has begun then is made: it counts among the samples.
    pub fn answered(&self, begun: Instant) {
        self.server.inner.samples.since(name::HTTP, begun);
    }

    /// Runs a handler. A defect of it costs its request an answer, and nobody else anything. Cancel safe when
    /// the handler is.
    ///
    /// # Errors
    /// What the handler has said when it panicked; that is counted.
    pub async fn guarded<T>(&self, handler: impl Future<Output = T>) -> Result<T, String> {
        let run = async {
            self.turns.stumble();
            handler.await
        };
        AssertUnwindSafe(run).catch_unwind().await.map_err(|panic| {
            self.server.inner.handler_panics.fetch_add(1, Ordering::Relaxed);
            said(&*panic).to_owned()
        })
    }
}
