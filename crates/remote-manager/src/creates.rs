//! Creates go to a driver a few at a time; nothing else waits for them.
//!
//! A node may get thousands at once. A request holds the task's whole configuration for as long as the provider takes:
//! here, on the wire and in the plugin. A request that was not sent can be dropped without a trace.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Creates under way at a driver at the same time.
pub(crate) const AT_ONCE: usize = 128;
/// Tasks of a driver whose artifacts are being fetched, or lie on this node's disk until the attempt of their create.
const FETCHED_AT_ONCE: usize = 32;
/// Total size of the artifacts in a driver's creates under way, in KiB. A bundle is no larger.
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

/// A create in the queue; first come, first served.
#[derive(Debug)]
pub(crate) struct Waiting {
    queue: Arc<Queue>,
    let_go: CancellationToken,
}

/// The turn of a create; ends with its drop.
#[derive(Debug)]
pub(crate) struct Turn {
    _one: OwnedSemaphorePermit,
    _kib: Option<OwnedSemaphorePermit>,
}

impl Creates {
    fn of(&mut self, driver: &str) -> &Arc<Queue> {
        self.by_driver.entry(driver.to_owned()).or_insert_with(|| {
            let places = |n| Arc::new(Semaphore::new(n));
            Arc::new(Queue {
                turns: places(AT_ONCE),
                fetched: places(FETCHED_AT_ONCE),
                kib: places(KIB_AT_ONCE as usize),
            })
        })
    }

    /// Permits to prepare artifacts for a driver. A preparation holds one until the attempt of its create.
    pub(crate) fn fetching(&mut self, driver: &str) -> Arc<Semaphore> {
        self.of(driver).fetched.clone()
    }

    /// Queues a create at its driver. A drop of the second value removes it, unless its turn has come.
    pub(crate) fn queue(&mut self, driver: &str) -> (Waiting, DropGuard) {
        let (queue, let_go) = (self.of(driver).clone(), CancellationToken::new());
        (Waiting { queue, let_go: let_go.clone() }, let_go.drop_guard())
    }
}

impl Waiting {
    /// Waits for the turn of a create with artifacts of so many bytes; `None` if it was removed before. Cancel safe: it
    /// gives its place up.
    pub(crate) async fn turn(self, bytes: u64) -> Option<Turn> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(KIB_AT_ONCE);
        let turn = async {
            // Size first, so that creates without artifacts do not wait behind large ones. Nothing closes the
            // semaphores.
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

    /// As many turns as possible, with their guards.
    async fn all_turns(creates: &mut Creates, driver: &str) -> (Vec<Option<Turn>>, Vec<DropGuard>) {
        let (waiting, wishes): (Vec<_>, Vec<_>) = (0..AT_ONCE).map(|_| creates.queue(driver)).unzip();
        (join_all(waiting.into_iter().map(|waiting| waiting.turn(0))).await, wishes)
    }

    // Unconstrained (no cooperative budget): the only reason for not being ready is the lack of a turn.
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
        // Even with a free turn.
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
        // More than the limit: it gets all of it.
        let turn = first.turn(heavy * 2).await.expect("nobody else is there");
        let mut second = Box::pin(unconstrained(second.turn(1)));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(light.turn(0).await.is_some());
        drop(turn);
        assert!(second.await.is_some());
    }
}
