//! Work that blocks – files, databases, long computations – away from the threads of the runtime.
//!
//! A thread beside the runtime ends such work when it likes: before whoever has begun it looks at it for the first
//! time, or long after. A simulation repeats an order only if that does not count, so it says here which threads do
//! the work themselves.

use std::sync::OnceLock;

use tokio::task::JoinHandle;

static SIMULATED: OnceLock<fn() -> bool> = OnceLock::new();

/// As [`tokio::task::spawn_blocking`]; on a thread of a simulation the work is a task of its runtime. Cancel safe: a
/// drop of the handle lets the work go on.
///
/// # Panics
/// Outside of a runtime.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if SIMULATED.get().is_some_and(|simulated| simulated()) {
        return tokio::spawn(async move { work() });
    }
    tokio::task::spawn_blocking(work)
}

/// From now on `simulated` says whether the calling thread does such work itself. The first call counts.
pub fn simulate(simulated: fn() -> bool) {
    let _ = SIMULATED.set(simulated);
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, thread};

    use super::*;

    thread_local! {
        static HERE: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether the work runs on the thread that has spawned it.
    fn here() -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let own = thread::current().id();
        runtime.block_on(async { spawn(move || thread::current().id() == own).await.expect("the work's answer") })
    }

    #[test]
    fn a_simulated_thread_works_itself_and_the_others_have_a_thread_for_it() {
        simulate(|| HERE.get());
        assert!(!here());
        HERE.set(true);
        assert!(here());
        assert!(!thread::spawn(here).join().expect("the other thread"), "another thread");
    }
}
