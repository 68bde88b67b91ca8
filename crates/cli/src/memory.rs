//! Memory that bursts of work have left to the process goes back to the system: of the agent, server and node alike,
//! and of the plugins in this binary.

use heap::{Burst, LOOK_EVERY};
use rustix::time::{ClockId, clock_gettime};

/// Looks whether a burst is over, and gives back what it has left; for ever. Cancel safe.
pub(crate) async fn give_back() {
    let mut burst = Burst::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let used = clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default();
        if burst.over(used) {
            heap::trim();
        }
    }
}

/// Runs `work`, and [`give_back`] until that ends.
pub(crate) async fn beside<T>(work: impl Future<Output = T>) -> T {
    tokio::select! {
        done = work => done,
        () = give_back() => std::future::pending().await,
    }
}
