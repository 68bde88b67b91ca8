//! Memory that bursts of work have left to the process goes back to the system.

use rustix::time::{ClockId, clock_gettime};

use crate::{Burst, LOOK_EVERY, arenas, limit_arenas, part_large_pieces, trim};

/// Sets the allocator up for a process that stays: call it before any thread starts.
pub fn prepare() {
    limit_arenas(arenas(std::thread::available_parallelism().map_or(1, Into::into)));
    part_large_pieces();
}

/// Looks whether a burst is over, and gives back what it has left; for ever. Cancel safe.
async fn give_back() {
    let mut burst = Burst::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let used = clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default();
        if burst.over(used) {
            trim();
        }
    }
}

/// Runs `work`; until it ends, memory goes back to the system whenever a burst is over.
pub async fn beside<T>(work: impl Future<Output = T>) -> T {
    tokio::select! {
        done = work => done,
        () = give_back() => std::future::pending().await,
    }
}
