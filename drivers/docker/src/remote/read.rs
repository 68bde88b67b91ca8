//! Logs by offset, from an engine that knows times only: bytes are counted from the beginning of what it keeps, and the
//! place that was reached last is remembered, so that whoever goes on reading there does not count again.

use std::collections::HashMap;
use std::sync::Mutex;

use driver_sdk::{LogChunk, LogStream, LogsQuery, RemoteError};
use tokio::sync::mpsc;

use super::names::answer;
use crate::engine::types::Container;
use crate::engine::{Engine, EngineError};
use crate::local::lock;
use crate::logs::{Cursor, LogReader, Streams};
use crate::watch::{has_ended, inspect};

/// Bytes that travel at once.
const CHUNK: usize = 64 << 10;

/// How far a log was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    offset: u64,
    cursor: Cursor,
}

/// The last place of each log.
#[derive(Default)]
pub(crate) struct Places(Mutex<HashMap<(String, bool), Place>>);

impl Places {
    /// The container is no more.
    pub(crate) fn forget(&self, container: &str) {
        lock(&self.0).retain(|(c, _), _| c != container);
    }

    /// Where to begin for an offset: at the place, if it is not behind.
    fn begin(&self, key: &(String, bool), offset: u64) -> Place {
        lock(&self.0).get(key).filter(|place| place.offset <= offset).cloned().unwrap_or_default()
    }

    fn reached(&self, key: &(String, bool), place: &Place) {
        let mut places = lock(&self.0);
        match places.get_mut(key) {
            // Readers of the same log at different places: the furthest serves the ones that follow.
            Some(known) if known.offset >= place.offset => {}
            _ => drop(places.insert(key.clone(), place.clone())),
        }
    }

    /// Sends what the query asks for.
    pub(crate) async fn send(
        &self,
        engine: &Engine,
        seen: &Container,
        query: LogsQuery,
        sink: mpsc::Sender<LogChunk>,
    ) -> Result<(), RemoteError> {
        let stderr = query.stream == LogStream::Stderr;
        if stderr && seen.config.tty {
            // A terminal has one stream.
            if query.follow && !has_ended(seen) {
                sink.closed().await;
            }
            return Ok(());
        }
        let key = (seen.id.clone(), stderr);
        let (tty, streams) = (seen.config.tty, Streams { stdout: !stderr, stderr });
        let mut wanted = query.offset;
        if query.from_end {
            let mut place = self.begin(&key, u64::MAX);
            let mut log =
                LogReader::open(engine, &seen.id, tty, streams, place.cursor.clone(), false).await.map_err(unread)?;
            while let Some(entry) = log.next(engine).await.map_err(unread)? {
                place.offset += entry.data.len() as u64;
                place.cursor = log.cursor().clone();
            }
            self.reached(&key, &place);
            wanted = place.offset.saturating_sub(query.offset);
        }
        let mut place = self.begin(&key, wanted);
        loop {
            let mut log = LogReader::open(engine, &seen.id, tty, streams, place.cursor.clone(), query.follow)
                .await
                .map_err(unread)?;
            loop {
                let entry = tokio::select! {
                    entry = log.next(engine) => entry.map_err(unread)?,
                    () = sink.closed() => return Ok(()),
                };
                let Some(entry) = entry else {
                    break;
                };
                let mut chunk = Vec::new();
                let begin = place.offset;
                let mut next = Some(entry);
                // What has arrived travels together.
                while let Some(entry) = next {
                    place.offset += entry.data.len() as u64;
                    chunk.extend_from_slice(&entry.data);
                    place.cursor = log.cursor().clone();
                    next = if chunk.len() < CHUNK { log.arrived(engine).map_err(unread)? } else { None };
                }
                if let Some(chunk) = behind(begin, chunk, wanted)
                    && sink.send(chunk).await.is_err()
                {
                    return Ok(());
                }
                self.reached(&key, &place);
            }
            if !query.follow {
                return Ok(());
            }
            // The stream ends with the container, or with the engine.
            match inspect(engine, &seen.id).await {
                Ok(now) if now.state.running => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
                Ok(_) => return Ok(()),
                Err(e) if e.is_absent() => return Ok(()),
                Err(e) => return Err(answer(e)),
            }
        }
    }
}

/// The part of a chunk that is not before `wanted`.
fn behind(begin: u64, data: Vec<u8>, wanted: u64) -> Option<LogChunk> {
    let skip = usize::try_from(wanted.saturating_sub(begin)).unwrap_or(usize::MAX);
    if skip >= data.len() {
        return None;
    }
    Some(LogChunk { offset: begin + skip as u64, data: data[skip..].to_vec(), file: String::new() })
}

fn unread(error: EngineError) -> RemoteError {
    match error {
        e if e.is_away() => RemoteError::could_not_ask(e),
        // A logging driver that keeps nothing: asking again changes nothing.
        e => RemoteError::wrong_request(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_get_what_is_not_before_their_offset() {
        let at = |wanted| behind(100, b"abcdef".to_vec(), wanted).map(|c| (c.offset, c.data));
        assert_eq!(at(0), Some((100, b"abcdef".to_vec())));
        assert_eq!(at(102), Some((102, b"cdef".to_vec())));
        assert_eq!(at(106), None);
        assert_eq!(at(u64::MAX), None);
    }

    #[test]
    fn places_serve_readers_at_or_behind_them() {
        let places = Places::default();
        let key = ("c".to_owned(), false);
        let place = Place { offset: 50, cursor: Cursor { at: "t".into(), seen: 1 } };
        places.reached(&key, &place);
        places.reached(&key, &Place { offset: 20, cursor: Cursor::default() });
        assert_eq!(places.begin(&key, 60), place);
        assert_eq!(places.begin(&key, 49), Place::default());
        assert_eq!(places.begin(&("c".to_owned(), true), 60), Place::default());
        places.forget("c");
        assert_eq!(places.begin(&key, 60), Place::default());
    }
}
