//! A value that tasks wait on.
//!
//! It wakes them in the order in which they began to wait. The `watch` of tokio wakes its receivers in an order that it
//! draws by itself, and a simulation of which two parts hear of something at once would not repeat.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

/// The value, shared by its clones.
#[derive(Debug)]
pub(crate) struct Signal<T>(Arc<Mutex<Inner<T>>>);

#[derive(Debug)]
struct Inner<T> {
    now: T,
    /// By the turns of those that wait.
    waiting: BTreeMap<u64, Waker>,
    turns: u64,
}

impl<T> Clone for Signal<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Copy + Default> Default for Signal<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inner { now: T::default(), waiting: BTreeMap::new(), turns: 0 })))
    }
}

impl<T> Signal<T> {
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the value and wakes all who wait.
    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        let mut inner = self.lock();
        change(&mut inner.now);
        let waiting = mem::take(&mut inner.waiting);
        drop(inner);
        waiting.into_values().for_each(Waker::wake);
    }
}

impl<T: Copy> Signal<T> {
    pub(crate) fn now(&self) -> T {
        self.lock().now
    }

    /// Waits for a value, which is the answer. Cancel safe.
    pub(crate) async fn until(&self, holds: impl Fn(T) -> bool) -> T {
        let turn = {
            let mut inner = self.lock();
            inner.turns += 1;
            inner.turns
        };
        let leaves = Turn { signal: self, turn };
        poll_fn(|context| {
            let mut inner = leaves.signal.lock();
            if holds(inner.now) {
                return Poll::Ready(inner.now);
            }
            inner.waiting.insert(turn, context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Of somebody who waits.
struct Turn<'a, T> {
    signal: &'a Signal<T>,
    turn: u64,
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.signal.lock().waiting.remove(&self.turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_wait_go_on_in_their_order() {
        let (signal, order) = (Signal::<u32>::default(), Arc::new(Mutex::new(Vec::new())));
        let tasks: Vec<_> = (0..20)
            .map(|n| {
                let (signal, order) = (signal.clone(), order.clone());
                tokio::spawn(async move {
                    assert_eq!(signal.until(|now| now > 1).await, 2);
                    order.lock().unwrap().push(n);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(signal.lock().waiting.len(), 20);
        signal.change(|now| *now = 2);
        for task in tasks {
            task.await.unwrap();
        }
        assert!(order.lock().unwrap().iter().copied().eq(0..20));
        // Who no longer waits leaves nothing behind.
        let late = tokio::time::timeout(std::time::Duration::from_millis(1), signal.until(|now| now > 2)).await;
        assert!(late.is_err() && signal.lock().waiting.is_empty());
    }
}
