//! Standard error of a plugin: drained for its whole life and logged by the agent; its end is kept for error texts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::hclog::{Level, Line, Lines, parse};

const TAIL_MAX: usize = 4 << 10;
const LINE_MAX: usize = 64 << 10;
/// Bounds the node's work on a flood; further lines are counted and dropped.
const LINES_PER_SECOND: u32 = 2000;

/// The end of a plugin's output.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = &bytes[bytes.len().saturating_sub(TAIL_MAX)..];
        let excess = (tail.len() + bytes.len()).saturating_sub(TAIL_MAX);
        tail.drain(..excess);
        tail.extend(bytes);
    }

    /// As text.
    pub(crate) fn text(&self) -> String {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(tail.make_contiguous()).into_owned()
    }
}

struct Budget {
    since: Instant,
    used: u32,
    dropped: u64,
}

impl Budget {
    /// Whether one more line fits; at the start of a new second also the number of dropped lines.
    fn take(&mut self, now: Instant) -> (bool, u64) {
        let mut missed = 0;
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            missed = std::mem::take(&mut self.dropped);
            (self.since, self.used) = (now, 0);
        }
        if self.used < LINES_PER_SECOND {
            self.used += 1;
            (true, missed)
        } else {
            self.dropped += 1;
            (false, missed)
        }
    }
}

/// Reads until the end of the stream.
pub(crate) async fn drain(plugin: String, mut from: impl AsyncRead + Unpin, tail: Tail) {
    let mut lines = Lines::new(LINE_MAX);
    let mut crashing = false;
    let mut budget = Budget { since: Instant::now(), used: 0, dropped: 0 };
    let mut buffer = vec![0; 8 << 10];
    let mut each = |line: &[u8]| {
        let (fits, missed) = budget.take(Instant::now());
        if missed > 0 {
            tracing::warn!(target: "plugin", plugin, missed, "log lines of the plugin were dropped, it writes \
                too many");
        }
        if fits {
            emit(&plugin, &parse(line, &mut crashing));
        }
    };
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        tail.push(&buffer[..n]);
        lines.feed(&buffer[..n], &mut each);
    }
    lines.finish(&mut each);
}

fn emit(plugin: &str, line: &Line) {
    let Line { level, message, module, fields } = line;
    macro_rules! at {
        ($level:ident) => {
            tracing::event!(target: "plugin", tracing::Level::$level, plugin, module, fields, "{message}")
        };
    }
    match level {
        Level::Trace => at!(TRACE),
        Level::Debug => at!(DEBUG),
        Level::Info => at!(INFO),
        Level::Warn => at!(WARN),
        Level::Error => at!(ERROR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_keeps_the_last_bytes() {
        let tail = Tail::default();
        tail.push(&vec![b'a'; 10_000]);
        tail.push(b"end");
        let text = tail.text();
        assert_eq!(text.len(), TAIL_MAX);
        assert!(text.ends_with("aend"));
    }

    #[test]
    fn a_flood_is_counted_not_shown() {
        let start = Instant::now();
        let mut budget = Budget { since: start, used: 0, dropped: 0 };
        let shown = (0..10_000).filter(|_| budget.take(start).0).count();
        assert_eq!(shown as u32, LINES_PER_SECOND);
        let (fits, missed) = budget.take(start + Duration::from_secs(1));
        assert!(fits);
        assert_eq!(missed, 10_000 - u64::from(LINES_PER_SECOND));
    }
}
