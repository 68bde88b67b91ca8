//! Answers that go on for as long as their reader likes end with the right to read them.

use std::time::Duration;

use axum::body::Body;
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// How often the right is judged again.
const EVERY: Duration = Duration::from_secs(2);

/// The same body, which ends when `stands` says that the right to it is gone.
pub(crate) fn while_it_stands(body: Body, stands: impl Fn() -> bool + Send + 'static) -> Body {
    let mut every = interval_at(Instant::now() + EVERY, EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begin = (body.into_data_stream(), every, stands);
    Body::from_stream(stream::unfold(begin, |(mut data, mut every, stands)| async move {
        loop {
            tokio::select! {
                // First, so that no flood of data puts it off.
                biased;
                _ = every.tick() => {
                    if !stands() {
                        return None;
                    }
                }
                piece = data.next() => return piece.map(|piece| (piece, (data, every, stands))),
            }
        }
    }))
}
