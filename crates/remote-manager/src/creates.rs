//! Creates go to a driver a few at a time; nothing else waits for that.
//!
//! A node may be given thousands at once. A request holds the whole configuration of its task, here, on the wire and in
//! the plugin, for as long as the provider takes; and what has not been sent can be let go without a trace.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Creates that a driver has at the same time.
pub(crate) const AT_ONCE: usize = 128;
/// Tasks of a driver whose artifacts are fetched, or lie on this node's disk until their create is tried.
const FETCHED_AT_ONCE: usize = 32;
/// What the artifacts in creates that a driver has at the same time weigh together, in KiB. A bundle has no more.
const KIB_AT_ONCE: u32 = 64 << 10;

/// The queues, one for each driver.
#[derive(Debug, Default)]
pub(crate) struct Creates {
    by_driver: HashMap<String, Arc<Queue>>,
}

#[derive(Debug)]
struct Queue {
    turns: Arc<Semaphore>,
    fetched: Arc<Semaphore>,
    kib: Arc<Semaphore>,
}

/// A create that waits for its turn; first come, first served.
#[derive(Debug)]
pub(crate) struct Waiting {
    queue: Arc<Queue>,
    let_go: CancellationToken,
}

/// The turn of a create, which lasts until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _one: OwnedSemaphorePermit,
    _kib: Option<OwnedSemaphorePermit>,
}

impl Creates {
    fn of(&mut self, driver: &str) -> &Arc<Queue> {
        self.by_driver.entry(driver.to_owned()).or_insert_with(|| {
            let places = |n| Arc::new(Semaphore::new(n));
            Arc::new(Queue { turns: places(AT_ONCE), fetched: places(FETCHED_AT_ONCE), kib: places(KIB_AT_ONCE as usize) })
        })
    }

    /// Of these, whoever prepares artifacts for a driver needs one, and has it until their create is tried.
    pub(crate) fn fetching(&mut self, driver: &str) -> Arc<Semaphore> {
        self.of(driver).fetched.clone()
    }

    /// Puts a create into the queue of its driver. Dropping the second value lets it go, unless it has had its turn.
    pub(crate) fn queue(&mut self, driver: &str) -> (Waiting, DropGuard) {
        let (queue, let_go) = (self.of(driver).clone(), CancellationToken::new());
        (Waiting { queue, let_go: let_go.clone() }, let_go.drop_guard())
    }
}

impl Waiting {
    /// Waits for the turn of a create with artifacts of so many bytes; `None` when it was let go before. Cancel safe:
    /// the place is given up.
    pub(crate) async fn turn(self, bytes: u64) -> Option<Turn> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(KIB_AT_ONCE);
        let turn = async {
            // First what it weighs: those that carry nothing do not wait behind it. The semaphores are never closed.
            let heavy = if kib == 0 { None } else { Some(self.queue.kib.clone().acquire_many_owned(kib).await.ok()?) };
            Some(Turn { _one: self.queue.turns.clone().acquire_owned().await.ok()?, _kib: heavy })
        };
        tokio::select! {
            biased;
            () = self.let_go.cancelled() => None,
            turn = turn => turn,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::join_all};
    use tokio::task::unconstrained;

    use super::*;

    /// As many as may be, with the wishes for them.
    async fn all_turns(creates: &mut Creates, driver: &str) -> (Vec<Option<Turn>>, Vec<DropGuard>) {
        let (waiting, wishes): (Vec<_>, Vec<_>) = (0..AT_ONCE).map(|_| creates.queue(driver)).unzip();
        (join_all(waiting.into_iter().map(|waiting| waiting.turn(0))).await, wishes)
    }

    // Unconstrained: that something is not ready is to have no other reason than that it has no turn.
    #[tokio::test]
    async fn what_exceeds_the_limit_waits_for_its_own_driver_only() {
        let mut creates = Creates::default();
        let (mut turns, _wanted) = all_turns(&mut creates, "a").await;
        assert!(turns.iter().all(Option::is_some));
        let ((next, _next), (other, _other)) = (creates.queue("a"), creates.queue("b"));
        let mut next = Box::pin(unconstrained(next.turn(0)));
        assert!(next.as_mut().now_or_never().is_none(), "one too many");
        assert!(unconstrained(other.turn(0)).now_or_never().flatten().is_some(), "another driver has turns of its own");
        turns.pop();
        assert!(next.now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn what_is_let_go_before_its_turn_has_none_and_takes_nobody_s() {
        let mut creates = Creates::default();
        let (mut turns, _wanted) = all_turns(&mut creates, "a").await;
        let ((dropped, wish), (next, _next)) = (creates.queue("a"), creates.queue("a"));
        let (mut dropped, mut next) = (Box::pin(unconstrained(dropped.turn(0))), Box::pin(unconstrained(next.turn(0))));
        assert!(dropped.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(wish);
        turns.pop();
        assert!(dropped.await.is_none());
        assert!(next.await.is_some());
        // Even where there is a turn.
        turns.clear();
        let (late, wish) = creates.queue("a");
        drop(wish);
        assert!(late.turn(0).await.is_none());
    }

    #[tokio::test]
    async fn what_is_heavy_waits_for_what_is_heavy_and_holds_up_nothing_else() {
        let mut creates = Creates::default();
        let heavy = u64::from(KIB_AT_ONCE) * 1024;
        let ((first, _a), (second, _b), (light, _c)) = (creates.queue("a"), creates.queue("a"), creates.queue("a"));
        // More than there is: it has all of it.
        let turn = first.turn(heavy * 2).await.expect("nobody else is there");
        let mut second = Box::pin(unconstrained(second.turn(1)));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(light.turn(0).await.is_some());
        drop(turn);
        assert!(second.await.is_some());
    }
}
