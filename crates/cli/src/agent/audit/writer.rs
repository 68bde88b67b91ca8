//! The thread of a sink: takes what waits in the queue together, and says of each line what came of it.

use std::{sync::Arc, time::SystemTime};

use server_http::{Counts, Order, Orders};
use tokio::sync::{mpsc::error::TryRecvError, oneshot};

use super::Target;

/// Lines that are written together.
const TOGETHER: usize = 256;

pub(super) struct Writer {
    name: String,
    target: Box<dyn Target>,
}

type Line = (Arc<[u8]>, Option<oneshot::Sender<Result<(), String>>>);

impl Writer {
    pub(super) fn new(name: String, target: Box<dyn Target>) -> Self {
        Self { name, target }
    }

    /// Until the queue is closed and empty.
    pub(super) fn run(mut self, mut orders: Orders) {
        let mut lines: Vec<Line> = Vec::new();
        loop {
            let order = match orders.queue.try_recv() {
                Ok(order) => Some(order),
                Err(TryRecvError::Disconnected) => None,
                Err(TryRecvError::Empty) => {
                    self.write(&mut lines, &orders.counts);
                    orders.queue.blocking_recv()
                }
            };
            match order {
                Some(Order::Write(line, done)) => lines.push((line, done)),
                Some(Order::Reopen) => {
                    self.write(&mut lines, &orders.counts);
                    self.reopen();
                }
                Some(Order::Flush(done)) => {
                    self.write(&mut lines, &orders.counts);
                    // Who waited may have given up.
                    let _ = done.send(());
                }
                None => return self.write(&mut lines, &orders.counts),
            }
            if lines.len() >= TOGETHER {
                self.write(&mut lines, &orders.counts);
            }
        }
    }

    fn reopen(&mut self) {
        match self.target.reopen(SystemTime::now()) {
            Ok(()) => tracing::info!(sink = self.name, "the audit log is opened anew"),
            Err(error) => {
                let goes_on = "the audit log could not be opened anew, the old one goes on";
                tracing::error!(sink = self.name, %error, "{goes_on}");
            }
        }
    }

    fn write(&mut self, lines: &mut Vec<Line>, counts: &Counts) {
        let now = SystemTime::now();
        let together: Vec<u8> = lines.iter().flat_map(|(line, _)| line.iter().copied()).collect();
        let all = lines.is_empty() || self.target.append(&together, now).is_ok();
        for (line, done) in lines.drain(..) {
            // Where there is no room for all of them there may be some for one.
            let written = if all { Ok(()) } else { self.target.append(&line, now).map_err(|error| error.to_string()) };
            match &written {
                Ok(()) => counts.written(&self.name),
                Err(why) => counts.lost(&self.name, why),
            }
            if let Some(done) = done {
                // Who waited may have given up.
                let _ = done.send(written);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Mutex, PoisonError},
    };

    use server_http::{Guarantee, Sink};

    use super::*;

    /// Has room for so many bytes at once.
    struct Narrow(Arc<Mutex<Vec<String>>>, usize);

    impl Target for Narrow {
        fn append(&mut self, lines: &[u8], _: SystemTime) -> io::Result<()> {
            if lines.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(String::from_utf8_lossy(lines).into_owned());
            Ok(())
        }
        fn reopen(&mut self, _: SystemTime) -> io::Result<()> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push("reopened".into());
            Ok(())
        }
    }

    #[test]
    fn each_line_is_told_what_came_of_it() {
        let (sink, orders) = Sink::new("s", Guarantee::Enforced);
        let queue = sink.queue();
        let mut waiting = Vec::new();
        let write = |text: &str, waiting: &mut Vec<_>| {
            let (done, written) = oneshot::channel();
            queue.try_send(Order::Write(text.as_bytes().into(), Some(done))).expect("room");
            waiting.push(written);
        };
        for text in ["one\n", "much too long\n", "two\n"] {
            write(text, &mut waiting);
        }
        queue.try_send(Order::Reopen).expect("room");
        for text in ["a\n", "b\n"] {
            write(text, &mut waiting);
        }
        let written = Arc::new(Mutex::new(Vec::new()));
        let counts = orders.counts.clone();
        drop((sink, queue));
        Writer::new("s".into(), Box::new(Narrow(written.clone(), 8))).run(orders);
        let said: Vec<bool> = waiting.into_iter().map(|w| w.blocking_recv().expect("an answer").is_ok()).collect();
        assert_eq!(said, [true, false, true, true, true]);
        assert_eq!(counts.lost_so_far(), 1);
        assert_eq!(*written.lock().expect("lock"), ["one\n", "two\n", "reopened", "a\nb\n"]);
    }
}
