//! The log that the engine keeps of a container, read from a place that can be stored.
//!
//! Every entry comes with its time. Entries of one time keep their order, so (time, number of entries read of that
//! time) is a place.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use crate::engine::{Demux, Engine, EngineError, Stream, encode};

/// Length of `2026-11-20T09:32:41.479808463Z ` with its blank.
const STAMP: usize = 31;
/// Engines cut lines that are longer; the parts have one time.
const PART: usize = 16 << 10;

/// A place in a log: everything up to here was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// Time of the last entry.
    pub(crate) at: String,
    /// Entries of that time.
    pub(crate) seen: u32,
}

impl Cursor {
    fn advance(&mut self, at: &str) {
        if self.at == at {
            self.seen += 1;
        } else {
            *self = Cursor { at: at.to_owned(), seen: 1 };
        }
    }

    /// As engines want it: seconds since the epoch with nine digits behind the point.
    fn since(&self) -> Option<String> {
        let at: jiff::Timestamp = self.at.parse().ok()?;
        Some(format!("{}.{:09}", at.as_second(), at.subsec_nanosecond()))
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) stream: Stream,
    pub(crate) at: String,
    pub(crate) data: Bytes,
}

/// Which streams to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// Reads a log.
pub(crate) struct LogReader {
    body: Incoming,
    split: Splitter,
    cursor: Cursor,
    /// Entries of the cursor's time that were read before.
    skip: u32,
    ended: bool,
}

impl LogReader {
    /// Opens the log behind `after`; with `follow` it ends when the container does.
    pub(crate) async fn open(
        engine: &Engine,
        container: &str,
        tty: bool,
        streams: Streams,
        after: Cursor,
        follow: bool,
    ) -> Result<LogReader, EngineError> {
        let Streams { stdout, stderr } = streams;
        let since = after.since().map(|s| format!("&since={s}")).unwrap_or_default();
        let path = format!(
            "/containers/{}/logs?stdout={stdout}&stderr={stderr}&follow={follow}&timestamps=true{since}",
            encode(container)
        );
        let body = engine.stream("read the container's log", &path).await?;
        let split = if tty { Splitter::Tty(TtySplitter::default()) } else { Splitter::Framed(Demux::default()) };
        Ok(LogReader { body, split, skip: after.seen, cursor: after, ended: false })
    }

    /// Behind what was returned so far.
    pub(crate) fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// An entry that has already arrived.
    pub(crate) fn arrived(&mut self, engine: &Engine) -> Result<Option<Entry>, EngineError> {
        loop {
            let entry = self.split.next(self.ended).map_err(|why| engine.garbage("read the container's log", why))?;
            let Some(entry) = entry else {
                return Ok(None);
            };
            if self.skip > 0 {
                if entry.at == self.cursor.at {
                    self.skip -= 1;
                    continue;
                }
                self.skip = 0;
            }
            self.cursor.advance(&entry.at);
            return Ok(Some(entry));
        }
    }

    /// The next entry; `None` at the end. Nothing is lost when the call is dropped.
    pub(crate) async fn next(&mut self, engine: &Engine) -> Result<Option<Entry>, EngineError> {
        loop {
            if let Some(entry) = self.arrived(engine)? {
                return Ok(Some(entry));
            }
            if self.ended {
                return Ok(None);
            }
            match self.body.frame().await {
                None => self.ended = true,
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.split.feed(data);
                    }
                }
                Some(Err(e)) => return Err(engine.away("read the container's log", e)),
            }
        }
    }
}

enum Splitter {
    Framed(Demux),
    Tty(TtySplitter),
}

impl Splitter {
    fn feed(&mut self, bytes: &[u8]) {
        match self {
            Splitter::Framed(demux) => demux.feed(bytes),
            Splitter::Tty(tty) => tty.buffer.extend_from_slice(bytes),
        }
    }

    fn next(&mut self, ended: bool) -> Result<Option<Entry>, String> {
        match self {
            Splitter::Framed(demux) => {
                let Some(piece) = demux.next().map_err(|e| e.to_string())? else {
                    return Ok(None);
                };
                let (at, data) = stamped(piece.data)?;
                Ok(Some(Entry { stream: piece.stream, at, data }))
            }
            Splitter::Tty(tty) => tty.next(ended),
        }
    }
}

fn is_stamp(bytes: &[u8]) -> bool {
    bytes.len() >= STAMP
        && bytes[STAMP - 1] == b' '
        && bytes[STAMP - 2] == b'Z'
        && bytes[4] == b'-'
        && bytes[10] == b'T'
        && bytes[19] == b'.'
}

fn stamped(mut data: Bytes) -> Result<(String, Bytes), String> {
    if !is_stamp(&data) {
        let begin = String::from_utf8_lossy(&data[..data.len().min(40)]).into_owned();
        return Err(format!("an entry has no time in front: {begin:?}"));
    }
    let stamp = data.split_to(STAMP);
    Ok((String::from_utf8_lossy(&stamp[..STAMP - 1]).into_owned(), data))
}

/// With a terminal nothing is framed: an entry ends with its line, or after as much as engines put into one.
#[derive(Default)]
struct TtySplitter {
    buffer: BytesMut,
}

impl TtySplitter {
    fn next(&mut self, ended: bool) -> Result<Option<Entry>, String> {
        let text = self.buffer.get(STAMP..).unwrap_or_default();
        let limit = text.len().min(PART);
        let end = match text[..limit].iter().position(|b| *b == b'\n') {
            Some(at) => at + 1,
            // The rest of a long line begins with the same time again.
            None if text.len() >= PART + STAMP && is_stamp(&text[PART..]) => PART,
            None if ended && !self.buffer.is_empty() => text.len(),
            None if text.len() > PART + STAMP => {
                // Longer than engines make them: up to the end of the line, whenever it comes.
                match text.iter().position(|b| *b == b'\n') {
                    Some(at) => at + 1,
                    None => return Ok(None),
                }
            }
            None => return Ok(None),
        };
        let (at, data) = stamped(self.buffer.split_to((STAMP + end).min(self.buffer.len())).freeze())?;
        Ok(Some(Entry { stream: Stream::Stdout, at, data }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(n: u32) -> String {
        format!("2026-11-20T09:32:41.{n:09}Z")
    }

    fn tty(wire: &[u8], step: usize) -> Vec<(String, Vec<u8>)> {
        let (mut split, mut found) = (TtySplitter::default(), Vec::new());
        for part in wire.chunks(step) {
            split.buffer.extend_from_slice(part);
            while let Some(e) = split.next(false).expect("entries") {
                found.push((e.at, e.data.to_vec()));
            }
        }
        while let Some(e) = split.next(true).expect("entries") {
            found.push((e.at, e.data.to_vec()));
        }
        found
    }

    #[test]
    fn a_terminals_log_is_split_into_lines_parts_and_a_rest() {
        let long = vec![b'x'; PART];
        let mut wire = Vec::new();
        for (n, text) in [(1, &b"a\x00b\x01\r\n"[..]), (2, &long), (2, b"rest\n"), (3, b"$ ")] {
            wire.extend_from_slice(format!("{} ", stamp(n)).as_bytes());
            wire.extend_from_slice(text);
        }
        let wanted: Vec<(String, Vec<u8>)> = vec![
            (stamp(1), b"a\x00b\x01\r\n".to_vec()),
            (stamp(2), long),
            (stamp(2), b"rest\n".to_vec()),
            (stamp(3), b"$ ".to_vec()),
        ];
        for step in [1, 7, 31, 4096, wire.len()] {
            assert_eq!(tty(&wire, step), wanted, "{step}");
        }
    }

    #[test]
    fn cursors_count_entries_of_one_time() {
        let mut cursor = Cursor::default();
        assert_eq!(cursor.since(), None);
        for at in [1, 1, 2, 2, 2] {
            cursor.advance(&stamp(at));
        }
        assert_eq!(cursor, Cursor { at: stamp(2), seen: 3 });
        assert_eq!(cursor.since().as_deref(), Some("1795167161.000000002"));
        assert!(stamped(Bytes::from_static(b"no time here, only a rather long text")).is_err());
    }
}
