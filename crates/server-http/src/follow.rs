//! Answers that take their time end with the right to read them.

use std::{
    io::{Error, ErrorKind},
    time::Duration,
};

use axum::body::{Body, HttpBody as _};
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::connections::{follows, plain};

/// How often the right is judged again.
const EVERY: Duration = Duration::from_secs(2);
/// An answer of so many bytes is sent at once: nobody judges meanwhile.
const SHORT: u64 = 64 * 1024;

/// What becomes of an answer when the right to it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It ends: it has no end of its own.
    Quiet,
    /// It is broken off, so that nobody takes a part for the whole.
    Broken,
}

/// How the answer under this path ends with the right to it; `None`: the right is not judged again.
pub(crate) fn ending(path: &str) -> Option<Ending> {
    if follows(path) {
        return Some(Ending::Quiet);
    }
    let path = plain(path);
    // A file may grow as fast as it is read, and an archive is large.
    let files = path.starts_with("/v1/client/fs/")
        || (path.starts_with("/v1/client/allocation/") && path.ends_with("/snapshot"));
    files.then_some(Ending::Broken)
}

/// The same body, which ends when `stands` says that the right to it is gone.
pub(crate) fn while_it_stands(body: Body, ending: Ending, stands: impl Fn() -> bool + Send + 'static) -> Body {
    if body.size_hint().upper().is_some_and(|bytes| bytes <= SHORT) {
        return body;
    }
    let mut every = interval_at(Instant::now() + EVERY, EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begin = Some((body.into_data_stream(), every, stands));
    Body::from_stream(stream::unfold(begin, move |going| async move {
        let (mut data, mut every, stands) = going?;
        loop {
            tokio::select! {
                // First, so that no flood of data puts it off.
                biased;
                _ = every.tick() => {
                    if !stands() {
                        return (ending == Ending::Broken).then(|| (Err(gone()), None));
                    }
                }
                piece = data.next() => return piece.map(|piece| (piece, Some((data, every, stands)))),
            }
        }
    }))
}

/// Why an answer is broken off.
fn gone() -> axum::Error {
    axum::Error::new(Error::new(ErrorKind::PermissionDenied, "the right to read this has ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_judged_again() {
        for (path, expected) in [
            ("/v1/event/stream", Some(Ending::Quiet)),
            ("/v1/agent/monitor", Some(Ending::Quiet)),
            ("/v1/client/fs/stream/x", Some(Ending::Quiet)),
            ("/v1/client/fs/logs/x", Some(Ending::Quiet)),
            ("/v1/client/fs/cat/x", Some(Ending::Broken)),
            ("/v1/client/fs/re%61dat/x", Some(Ending::Broken)),
            ("/v1/client/allocation/x/snapshot", Some(Ending::Broken)),
            ("/v1/client/allocation/x/snapsho%74", Some(Ending::Broken)),
            ("/v1/client/allocation/x/exec", None),
            ("/v1/client/stats", None),
            ("/v1/jobs", None),
        ] {
            assert_eq!(ending(path), expected, "{path}");
        }
    }
}
