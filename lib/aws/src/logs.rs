//! Logs by byte offset, from a service that knows tokens only.
//!
//! Bytes are counted from the first event that the service keeps, each event being a line. The count is the same
//! wherever it is made, so a reader goes on at another node where it stopped at this one. The place that was reached
//! last is remembered with its token, so that whoever goes on there does not
//! count again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use driver_sdk::{LogChunk, LogStream, LogsQuery, RemoteError};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::session::Session;

/// Tokens of the service live for a day.
const TOKEN_LIVES: Duration = Duration::from_secs(20 * 3600);
/// How often a reader that has read everything looks again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After how many such looks it asks whether the task has ended.
const LOOKS_BETWEEN_ENDS: u32 = 5;
/// How long output may be on its way to the service after the end of a task.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Where the output of a task is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogPlace {
    /// Log group.
    pub group: String,
    /// Its region. Empty = that of the session.
    pub region: String,
    /// Log stream.
    pub stream: String,
}

/// How far a log was read.
#[derive(Clone, Debug)]
struct Place {
    offset: u64,
    token: Option<String>,
    at: Instant,
}

impl Place {
    fn start() -> Self {
        Self { offset: 0, token: None, at: Instant::now() }
    }
}

/// The furthest place of each log.
#[derive(Debug, Default)]
pub struct Places(Mutex<HashMap<LogPlace, Place>>);

/// One page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Read {
    data: Vec<u8>,
    /// Where to go on; `None` when the end is reached for now.
    next: Option<String>,
}

/// Messages as lines.
fn lines<'m>(messages: impl Iterator<Item = &'m str>) -> Vec<u8> {
    let mut out = Vec::new();
    for message in messages {
        out.extend_from_slice(message.as_bytes());
        if !message.ends_with('\n') {
            out.push(b'\n');
        }
    }
    out
}

/// The part of a page that is not before `wanted`.
fn behind(begin: u64, data: Vec<u8>, wanted: u64) -> Option<LogChunk> {
    let skip = usize::try_from(wanted.saturating_sub(begin)).unwrap_or(usize::MAX);
    (skip < data.len()).then(|| LogChunk {
        offset: begin + skip as u64,
        data: data[skip..].to_vec(),
        file: String::new(),
    })
}

/// Whether the task whose log it is has ended, and how long ago as far as the service tells.
#[driver_sdk::async_trait]
pub trait Ended: Send + Sync {
    /// `None`: it has not. Without a time, [`Duration::MAX`].
    async fn ended(&self) -> Result<Option<Duration>, RemoteError>;
}

impl Places {
    fn places(&self) -> std::sync::MutexGuard<'_, HashMap<LogPlace, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to begin for an offset: at the place, if it is not behind.
    fn begin(&self, log: &LogPlace, offset: u64) -> Place {
        let fit = |p: &&Place| p.offset <= offset && p.at.elapsed() < TOKEN_LIVES;
        self.places().get(log).filter(fit).cloned().unwrap_or_else(Place::start)
    }

    fn reached(&self, log: &LogPlace, place: &Place) {
        let mut places = self.places();
        match places.get(log) {
            Some(known) if known.offset > place.offset && known.at.elapsed() < TOKEN_LIVES => {}
            _ => drop(places.insert(log.clone(), place.clone())),
        }
    }

    /// The instance is no more.
    pub fn forget(&self, log: &LogPlace) {
        self.places().remove(log);
    }

    async fn read<C>(session: &Session<C>, log: &LogPlace, place: &mut Place) -> Result<Read, RemoteError> {
        match session.events(log, place.token.clone()).await {
            Ok(page) => {
                // The token that was given comes back at the end, without events.
                let next = page.next_forward_token().filter(|t| place.token.as_deref() != Some(t)).map(str::to_owned);
                Ok(Read { data: lines(page.events().iter().filter_map(|e| e.message())), next })
            }
            // A container that has not said anything yet has no stream.
            Err(trouble) if trouble.is("ResourceNotFoundException") => Ok(Read::default()),
            // A token that has grown too old: counted from the beginning again.
            Err(trouble) if trouble.is("InvalidParameterException") && place.token.is_some() => {
                *place = Place::start();
                Ok(Read { data: Vec::new(), next: Some(String::new()) })
            }
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Sends what the query asks for.
    ///
    /// # Errors
    /// Those of [`Session::events`] and of `task`.
    pub async fn send<C>(
        &self,
        session: &Session<C>,
        log: &LogPlace,
        query: LogsQuery,
        sink: &mpsc::Sender<LogChunk>,
        task: &dyn Ended,
    ) -> Result<(), RemoteError> {
        if query.stream == LogStream::Stderr {
            // The service has one stream for both.
            while query.follow && task.ended().await?.is_none() {
                tokio::select! {
                    () = sink.closed() => break,
                    () = tokio::time::sleep(LAST_WORDS) => {}
                }
            }
            return Ok(());
        }
        let mut wanted = query.offset;
        if query.from_end {
            let mut place = self.begin(log, u64::MAX);
            while self.step(session, log, &mut place).await?.1 {}
            wanted = place.offset.saturating_sub(query.offset);
        }
        let (mut place, mut idle, mut last) = (self.begin(log, wanted), 0, false);
        loop {
            let begin = place.offset;
            let (data, more) = self.step(session, log, &mut place).await?;
            // While an old log is counted anew, what was sent already is not sent again.
            if let Some(chunk) = behind(begin, data, wanted) {
                wanted = place.offset;
                idle = 0;
                if sink.send(chunk).await.is_err() {
                    return Ok(());
                }
            }
            if more {
                continue;
            }
            if last {
                return Ok(());
            }
            if !query.follow {
                // Whoever reads the log of a task that has just ended wants its last words, too: they are all that will
                // be kept.
                if task.ended().await?.is_none_or(|ago| ago >= LAST_WORDS) {
                    return Ok(());
                }
                last = true;
                tokio::select! {
                    () = sink.closed() => return Ok(()),
                    () = tokio::time::sleep(LAST_WORDS) => continue,
                }
            }
            idle += 1;
            let mut pause = LOOK_EVERY;
            if idle % LOOKS_BETWEEN_ENDS == 0 && task.ended().await?.is_some() {
                (last, pause) = (true, LAST_WORDS);
            }
            tokio::select! {
                () = sink.closed() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reads a page: its bytes, and whether there may be more at once.
    async fn step<C>(
        &self,
        session: &Session<C>,
        log: &LogPlace,
        place: &mut Place,
    ) -> Result<(Vec<u8>, bool), RemoteError> {
        let read = Self::read(session, log, place).await?;
        let Some(next) = read.next else {
            return Ok((Vec::new(), false));
        };
        if !next.is_empty() {
            *place = Place { offset: place.offset + read.data.len() as u64, token: Some(next), at: Instant::now() };
            self.reached(log, place);
        }
        Ok((read.data, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> LogPlace {
        LogPlace { group: "g".into(), region: String::new(), stream: "s".into() }
    }

    #[test]
    fn events_are_lines() {
        assert_eq!(lines(["a", "b\n", ""].into_iter()), b"a\nb\n\n");
    }

    #[test]
    fn readers_get_what_is_not_before_their_offset() {
        let at = |wanted| behind(100, b"abcdef".to_vec(), wanted).map(|c| (c.offset, c.data));
        assert_eq!(at(0), Some((100, b"abcdef".to_vec())));
        assert_eq!(at(102), Some((102, b"cdef".to_vec())));
        assert_eq!(at(106), None);
    }

    #[test]
    fn places_serve_readers_at_or_behind_them() {
        let places = Places::default();
        let place = |offset, token: &str| Place { offset, token: Some(token.into()), at: Instant::now() };
        places.reached(&log(), &place(50, "f/50"));
        places.reached(&log(), &place(20, "f/20"));
        assert_eq!(places.begin(&log(), 60).token.as_deref(), Some("f/50"));
        assert_eq!(places.begin(&log(), 50).offset, 50);
        assert_eq!(places.begin(&log(), 49).token, None);
        // A place of the same offset with a newer token lives longer.
        places.reached(&log(), &place(50, "f/51"));
        assert_eq!(places.begin(&log(), 60).token.as_deref(), Some("f/51"));
        places.forget(&log());
        assert_eq!(places.begin(&log(), 60).offset, 0);
    }
}
