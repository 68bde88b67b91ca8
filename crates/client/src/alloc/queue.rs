//! The queue of an allocation's loop.
//!
//! A channel of tokio has room for 32 messages before the first one, and its ends lie apart for processors that use
//! them at the same time: nine hundred bytes, most of the time for nothing. A node has thousands of such loops, each
//! with a message now and then. This queue takes memory for what waits in it.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lifecycle::alloc::inbox::LoopEnded;
use tokio::sync::Notify;

struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    news: Notify,
}

struct Waiting<T> {
    messages: VecDeque<T>,
    /// Nobody takes any more.
    ended: bool,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that many send to.
pub(crate) struct Sender<T>(Arc<Queue<T>>);

/// The end of the loop; what is sent after its drop is refused.
pub(crate) struct Receiver<T>(Arc<Queue<T>>);

/// A new, empty queue.
pub(crate) fn queue<T>() -> (Sender<T>, Receiver<T>) {
    let waiting = Mutex::new(Waiting { messages: VecDeque::new(), ended: false });
    let queue = Arc::new(Queue { waiting, news: Notify::new() });
    (Sender(queue.clone()), Receiver(queue))
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> Sender<T> {
    /// Adds a message behind all others.
    ///
    /// # Errors
    /// When the receiver is gone.
    pub(crate) fn send(&self, message: T) -> Result<(), LoopEnded> {
        let mut waiting = self.0.lock();
        if waiting.ended {
            return Err(LoopEnded);
        }
        waiting.messages.push_back(message);
        drop(waiting);
        self.0.news.notify_one();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// The next message, in the order in which they were sent. Waits for ever where nobody sends. Cancel safe.
    pub(crate) async fn recv(&mut self) -> T {
        // A loop with a thousand messages lets others have their turn, as it would with a channel of tokio.
        tokio::task::coop::consume_budget().await;
        loop {
            if let Some(message) = self.take() {
                return message;
            }
            self.0.news.notified().await;
        }
    }

    fn take(&mut self) -> Option<T> {
        let mut waiting = self.0.lock();
        let message = waiting.messages.pop_front();
        if waiting.messages.is_empty() {
            waiting.messages = VecDeque::new();
        }
        message
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.ended = true;
        let left = std::mem::take(&mut waiting.messages);
        drop(waiting);
        // After the lock, for a message may hold a sender, or an answer that somebody waits for.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn messages_come_in_order_and_none_is_lost_by_a_receiver_that_gives_up() {
        let (sender, mut receiver) = queue();
        assert!(receiver.recv().now_or_never().is_none(), "nothing was sent");
        sender.send(1).expect("taken");
        sender.clone().send(2).expect("taken");
        assert_eq!((receiver.recv().await, receiver.recv().await), (1, 2));
        // Given up while it waits, before and after the message has come.
        for early in [true, false] {
            let mut waits = Box::pin(receiver.recv());
            assert!(waits.as_mut().now_or_never().is_none());
            if early {
                drop(waits);
                sender.send(3).expect("taken");
            } else {
                sender.send(3).expect("taken");
                drop(waits);
            }
            assert_eq!(receiver.recv().await, 3);
        }
        let waits = tokio::spawn(async move { (receiver.recv().await, receiver) });
        tokio::time::sleep(Duration::from_millis(1)).await;
        sender.send(4).expect("taken");
        let (message, receiver) = waits.await.expect("no panic");
        assert_eq!(message, 4);
        drop(receiver);
        assert!(sender.send(5).is_err(), "nobody takes it");
    }

    #[test]
    fn a_queue_in_peace_has_no_room_for_messages() {
        let (sender, mut receiver) = queue();
        (0..100).for_each(|n| sender.send(n).expect("taken"));
        (0..100).for_each(|n| assert_eq!(receiver.take(), Some(n)));
        assert_eq!(sender.0.lock().messages.capacity(), 0);
        assert!(size_of::<Queue<Box<u8>>>() <= 96, "{}", size_of::<Queue<Box<u8>>>());
    }
}
