//! The queue to a sink, and what is known of how it goes. The thread at its other end belongs to the agent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

/// Events that may wait for a sink.
const QUEUE: usize = 4096;
/// How long a request waits for its event to be written.
const PATIENCE: Duration = Duration::from_secs(10);

/// What becomes of a request whose event cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// It is refused.
    Enforced,
    /// It is answered, and the event is dropped.
    BestEffort,
}

/// What a sink is told.
#[derive(Debug)]
pub enum Order {
    /// Writes a line, and says what came of it to whoever waits.
    Write(Arc<[u8]>, Option<oneshot::Sender<Result<(), String>>>),
    /// Opens the file anew, for tools that have moved it away.
    Reopen,
    /// Says when everything before it is written.
    Flush(oneshot::Sender<()>),
}

/// The figures of a sink.
#[derive(Debug, Default)]
pub struct Counts {
    lost: AtomicU64,
    failing: AtomicBool,
}

impl Counts {
    /// An event was not written. One line of the log tells it, until events are written again.
    pub fn lost(&self, sink: &str, why: &str) {
        self.lost.fetch_add(1, Relaxed);
        if !self.failing.swap(true, Relaxed) {
            tracing::error!(sink, why, "an event of the audit log could not be written, nor may those that follow");
        }
    }

    /// An event was written.
    pub fn written(&self, sink: &str) {
        if self.failing.load(Relaxed) && self.failing.swap(false, Relaxed) {
            let lost = self.lost.load(Relaxed);
            tracing::warn!(sink, lost, "events of the audit log are written again; some are lost since the start");
        }
    }

    /// Events since the start that were not written.
    #[must_use]
    pub fn lost_so_far(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// The end of the queue that a sink's thread reads.
#[derive(Debug)]
pub struct Orders {
    /// What is to be done, in order; closed when the agent ends.
    pub queue: mpsc::Receiver<Order>,
    /// To be told of each write.
    pub counts: Arc<Counts>,
}

/// A place where events go.
#[derive(Clone, Debug)]
pub struct Sink {
    pub(super) name: Arc<str>,
    guarantee: Guarantee,
    queue: mpsc::Sender<Order>,
    pub(super) counts: Arc<Counts>,
}

impl Sink {
    /// A sink, and what its thread reads. The name is that of its block in the configuration.
    #[must_use]
    pub fn new(name: &str, guarantee: Guarantee) -> (Self, Orders) {
        Self::with_queue(name, guarantee, QUEUE)
    }

    fn with_queue(name: &str, guarantee: Guarantee, places: usize) -> (Self, Orders) {
        let (sender, queue) = mpsc::channel(places);
        let counts = Arc::new(Counts::default());
        (Self { name: name.into(), guarantee, queue: sender, counts: counts.clone() }, Orders { queue, counts })
    }

    /// Its queue, for whoever has further orders.
    #[must_use]
    pub fn queue(&self) -> mpsc::Sender<Order> {
        self.queue.clone()
    }

    /// Hands over a line. With [`Guarantee::Enforced`] it waits until the line is written.
    ///
    /// # Errors
    /// Why the line is not written, where that is enforced.
    pub(super) async fn write(&self, line: Arc<[u8]>) -> Result<(), String> {
        if self.guarantee == Guarantee::BestEffort {
            self.hand_over(line);
            return Ok(());
        }
        let (done, written) = oneshot::channel();
        let write = async {
            // A sink ends with its agent only.
            self.queue.send(Order::Write(line, Some(done))).await.map_err(|_| ENDED.to_owned())?;
            written.await.map_err(|_| ENDED.to_owned())?
        };
        match tokio::time::timeout(PATIENCE, write).await {
            Ok(written) => written,
            Err(_) => {
                let why = format!("it has not taken the event for {} s", PATIENCE.as_secs());
                self.counts.lost(&self.name, &why);
                Err(why)
            }
        }
    }

    /// Hands over a line that nobody waits for.
    pub(super) fn hand_over(&self, line: Arc<[u8]>) {
        match self.queue.try_send(Order::Write(line, None)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.counts.lost(&self.name, "its queue is full: it is slower than requests"),
            Err(TrySendError::Closed(_)) => self.counts.lost(&self.name, ENDED),
        }
    }

    /// Has its file opened anew, after the events that it was given before.
    pub(super) async fn reopen(&self) {
        // Without a thread there is nothing to open.
        let _ = self.queue.send(Order::Reopen).await;
    }

    /// Waits until everything so far is written, for a time.
    pub(super) async fn flush(&self) {
        let flush = async {
            let (done, flushed) = oneshot::channel();
            if self.queue.send(Order::Flush(done)).await.is_ok() {
                let _ = flushed.await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, flush).await;
    }
}

const ENDED: &str = "the agent is about to end";

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Arc<[u8]> {
        Arc::from(&b"x\n"[..])
    }

    #[tokio::test(start_paused = true)]
    async fn who_enforces_waits_and_is_told_what_came_of_it() {
        let (sink, mut orders) = Sink::with_queue("s", Guarantee::Enforced, 1);
        let answer = async {
            for said in [Ok(()), Err("no space left".to_owned())] {
                let Some(Order::Write(_, Some(done))) = orders.queue.recv().await else { panic!("no order") };
                done.send(said).expect("somebody waits");
            }
            orders
        };
        let ask = async { (sink.write(line()).await, sink.write(line()).await) };
        let (said, orders) = tokio::join!(ask, answer);
        assert_eq!(said, (Ok(()), Err("no space left".to_owned())));
        // A thread that is stuck holds nobody for ever.
        assert_eq!(sink.write(line()).await, Err("it has not taken the event for 10 s".to_owned()));
        assert_eq!(sink.counts.lost_so_far(), 1);
        drop(orders);
        assert_eq!(sink.write(line()).await, Err(ENDED.to_owned()));
    }

    #[tokio::test]
    async fn best_effort_waits_for_nobody_and_counts_what_it_drops() {
        let (sink, orders) = Sink::with_queue("s", Guarantee::BestEffort, 2);
        for _ in 0..5 {
            assert_eq!(sink.write(line()).await, Ok(()));
        }
        assert_eq!((orders.queue.len(), orders.counts.lost_so_far()), (2, 3));
    }
}
