//! A look that is taken again and again on a thread of its own while a check goes on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Result, anyhow};

/// The thread; it ends when this is dropped.
pub(crate) struct Watch<T> {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Default + Send + 'static> Watch<T> {
    /// Begins to look, at least once and with a pause after each look, which adds to what was seen.
    pub(crate) fn begin(pause: Duration, mut look: impl FnMut(&mut T) + Send + 'static) -> Self {
        let over = Arc::<AtomicBool>::default();
        let ended = over.clone();
        let thread = std::thread::spawn(move || {
            let mut seen = T::default();
            loop {
                look(&mut seen);
                if ended.load(Ordering::Relaxed) {
                    return seen;
                }
                std::thread::sleep(pause);
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl<T> Watch<T> {
    /// Ends it: what was seen.
    pub(crate) fn end(mut self) -> Result<T> {
        self.over.store(true, Ordering::Relaxed);
        let seen = self.thread.take().map(JoinHandle::join);
        seen.and_then(std::thread::Result::ok).ok_or_else(|| anyhow!("a watch has panicked"))
    }
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_there_in_the_end() {
        let (tx, looked) = std::sync::mpsc::channel();
        let watch = Watch::begin(Duration::ZERO, move |looks: &mut u64| {
            *looks += 1;
            let _ = tx.send(());
        });
        (0..3).for_each(|_| looked.recv().expect("it looks again"));
        assert!(watch.end().expect("no panic") >= 3);
        let broken = Watch::begin(Duration::ZERO, |(): &mut ()| panic!("a look that fails"));
        assert!(broken.end().is_err());
    }
}
