//! Creates go to a driver a few at a time; nothing else waits for that.
//!
//! A node may be given thousands at once. A request holds the whole configuration of its task, here, on the wire and in the plugin, for as long as the
//! provider takes; and what has not been sent can be let go without a trace.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Creates that a driver has at the same time.
pub(super) const AT_ONCE: usize = 128;

/// The queues, one for each driver.
#[derive(Debug, Default)]
pub(super) struct Creates {
    by_driver: HashMap<String, Arc<Semaphore>>,
}

/// A create that waits for its turn; first come, first served.
#[derive(Debug)]
pub(super) struct Waiting {
    turns: Arc<Semaphore>,
    let_go: CancellationToken,
}

impl Creates {
    /// Puts a create into the queue of its driver. Dropping the second value lets it go, unless it has had its turn.
    pub(super) fn queue(&mut self, driver: &str) -> (Waiting, DropGuard) {
        let turns = match self.by_driver.get(driver) {
            Some(turns) => turns.clone(),
            None => self.by_driver.entry(driver.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))).clone(),
        };
        let let_go = CancellationToken::new();
        (Waiting { turns, let_go: let_go.clone() }, let_go.drop_guard())
    }
}

impl Waiting {
    /// Waits for the turn, which lasts until the value is dropped; `None` when the create was let go before. Cancel safe: the place is given up.
    pub(super) async fn turn(self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = self.let_go.cancelled() => None,
            // The semaphore is never closed.
            turn = self.turns.acquire_owned() => turn.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::join_all};
    use tokio::task::unconstrained;

    use super::*;

    /// As many as may be, with the wishes for them.
    async fn all_turns(creates: &mut Creates, driver: &str) -> (Vec<Option<OwnedSemaphorePermit>>, Vec<DropGuard>) {
        let (waiting, wishes): (Vec<_>, Vec<_>) = (0..AT_ONCE).map(|_| creates.queue(driver)).unzip();
        (join_all(waiting.into_iter().map(Waiting::turn)).await, wishes)
    }

    // Unconstrained: that something is not ready is to have no other reason than that it has no turn.
    #[tokio::test]
    async fn what_exceeds_the_limit_waits_for_its_own_driver_only() {
        let mut creates = Creates::default();
        let (mut turns, _wanted) = all_turns(&mut creates, "a").await;
        assert!(turns.iter().all(Option::is_some));
        let ((next, _next), (other, _other)) = (creates.queue("a"), creates.queue("b"));
        let mut next = Box::pin(unconstrained(next.turn()));
        assert!(next.as_mut().now_or_never().is_none(), "one too many");
        assert!(unconstrained(other.turn()).now_or_never().flatten().is_some(), "another driver has turns of its own");
        turns.pop();
        assert!(next.now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn what_is_let_go_before_its_turn_has_none_and_takes_nobody_s() {
        let mut creates = Creates::default();
        let (mut turns, _wanted) = all_turns(&mut creates, "a").await;
        let ((dropped, wish), (next, _next)) = (creates.queue("a"), creates.queue("a"));
        let (mut dropped, mut next) = (Box::pin(unconstrained(dropped.turn())), Box::pin(unconstrained(next.turn())));
        assert!(dropped.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(wish);
        turns.pop();
        assert!(dropped.await.is_none());
        assert!(next.await.is_some());
        // Even where there is a turn.
        turns.clear();
        let (late, wish) = creates.queue("a");
        drop(wish);
        assert!(late.turn().await.is_none());
    }
}
