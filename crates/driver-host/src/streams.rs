//! Streams of a plugin that are followed for as long as its process lives.

use std::{convert::Infallible, future::Future, time::Duration};

use tokio::time::Instant;
use tonic::{Response, Status, Streaming};

use crate::{
    backoff::{Backoff, jitter},
    error::broken_connection,
    session::Session,
    supervisor::Common,
};

/// Delays before a stream is opened again.
const REOPEN: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(120) };
/// A stream that was open this long has a clean record.
const STABLE: Duration = Duration::from_secs(60);

/// The end of a stream.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Why; `None` = the plugin has ended it.
    pub(crate) why: Option<Status>,
    /// How many ends in a row.
    pub(crate) failures: u32,
    /// When it is opened again.
    pub(crate) delay: Duration,
}

/// Follows a stream and opens it again whenever it ends. `take` gets its messages, `ended` each of its ends.
pub(crate) async fn follow<T, F>(
    common: &Common,
    session: &Session,
    open: impl Fn() -> F,
    take: impl Fn(T),
    ended: impl Fn(Ended),
) -> Infallible
where
    F: Future<Output = Result<Response<Streaming<T>>, Status>>,
{
    let mut failures = 0;
    loop {
        let opened = Instant::now();
        let why = match open().await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(message)) => take(message),
                        Ok(None) => break None,
                        Err(status) => break Some(status),
                    }
                }
            }
            Err(status) => Some(status),
        };
        if opened.elapsed() >= STABLE {
            failures = 0;
        }
        failures += 1;
        let delay = REOPEN.delay(failures, jitter());
        if why.as_ref().is_some_and(broken_connection) {
            // If the process is dead, its supervisor drops this and reports the death.
            session.process.ended_within(common.timing.death_race).await;
        }
        ended(Ended { why, failures, delay });
        tokio::time::sleep(delay).await;
    }
}
