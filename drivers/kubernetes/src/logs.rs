//! Output by byte offset.
//!
//! The API has no offsets: a log is read from a time on, and what the kubelet has rotated away cannot be read at all.
//! So the driver counts bytes itself, from the first line, and leaves in the pod at which offset which time was: every
//! manager then counts alike, also after a rotation.

use driver_sdk::{LogChunk, LogStream, LogsQuery, RemoteError};
use futures::{AsyncBufRead, AsyncBufReadExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;

use crate::answer::Answer;
use crate::answer::Trouble;
use crate::api::SILENCE;
use crate::exec::not_begun;
use crate::marks::{self, Marks};
use crate::site::{HandleV1, Site};

/// How far times of neighbouring lines may be out of order.
const NEAR: Duration = Duration::from_millis(100);
/// Bytes of one message.
const CHUNK: usize = 32 << 10;
/// Bytes after which a mark is left.
const MARK_EVERY: u64 = 512 << 10;
/// Marks that are kept: a kubelet keeps no more than its rotation size readable, 10 MiB by default.
const MARKS_MAX: usize = 24;
/// What comes within this time goes out together.
const SETTLE: Duration = Duration::from_millis(25);
/// How often a log that is not there yet, or was cut, is asked for again.
const AGAIN: Duration = Duration::from_millis(500);

/// A place in a log. Two streams are written to one file, so times do not grow strictly; but the file itself only
/// grows, and so does what is left of it when lines before a time are taken out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Bytes before it.
    offset: u64,
    /// The newest time before it; `None` at the beginning of the log.
    last: Option<Timestamp>,
    /// Lines before it that are no older than [`NEAR`] before `last`.
    lines: usize,
}

impl Mark {
    /// The time from which `lines` count.
    fn since(&self) -> Option<Timestamp> {
        self.last.map(|last| last.saturating_sub(NEAR).unwrap_or(last))
    }
}

/// The marks that a pod carries.
fn kept(pod: &Pod) -> Vec<Mark> {
    let text = pod.metadata.annotations.as_ref().and_then(|all| all.get(marks::LOG));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Where to begin for an offset.
fn before(marks: &[Mark], offset: u64) -> Mark {
    marks.iter().filter(|m| m.offset <= offset).max_by_key(|m| m.offset).cloned().unwrap_or_default()
}

/// Counts lines as they come.
#[derive(Debug)]
struct Counter {
    /// Lines up to here were counted before.
    had: Mark,
    /// Those of `had.lines` that have come again.
    again: usize,
    /// Nothing that comes now was counted before.
    past: bool,
    offset: u64,
    last: Option<Timestamp>,
    /// Times of the lines near `last`.
    near: VecDeque<Timestamp>,
}

/// A line that is news.
#[derive(Debug, PartialEq)]
struct News {
    offset: u64,
    data: Vec<u8>,
}

impl Counter {
    fn new(had: Mark) -> Self {
        let (offset, last, past) = (had.offset, had.last, had.last.is_none());
        Self { had, again: 0, past, offset, last, near: VecDeque::new() }
    }

    /// Where it is now.
    fn at(&self) -> Mark {
        let mut mark = Mark { offset: self.offset, last: self.last, lines: 0 };
        mark.lines = self.near.iter().filter(|time| Some(**time) >= mark.since()).count();
        mark
    }

    /// What a line adds; a note first where lines before it may have been rotated away.
    fn take(&mut self, line: &[u8]) -> Result<Vec<News>, String> {
        let text = || String::from_utf8_lossy(line).trim().to_owned();
        let space = line.iter().position(|b| *b == b' ');
        let time = space.and_then(|n| std::str::from_utf8(&line[..n]).ok()).and_then(|t| t.parse::<Timestamp>().ok());
        // Errors of the kubelet come in place of a log, without a time.
        let (Some(space), Some(time)) = (space, time) else { return Err(text()) };
        let mut news = Vec::new();
        if !self.past && Some(time) < self.had.since() {
            return Ok(news);
        }
        if !self.past && Some(time) <= self.had.last && self.again < self.had.lines {
            self.again += 1;
            self.near.push_back(time);
            return Ok(news);
        }
        if let Some(last) = self.had.last.filter(|_| !self.past && self.again == 0) {
            let note =
                format!("[drover: output from {last} to {time} may have been rotated away before it was read]\n");
            news.push(self.count(note.into_bytes()));
        }
        self.past = true;
        self.last = self.last.max(Some(time));
        self.near.push_back(time);
        let near = Mark { last: self.last, ..Mark::default() }.since();
        while self.near.front().is_some_and(|front| Some(*front) < near) {
            self.near.pop_front();
        }
        news.push(self.count(line[space + 1..].to_vec()));
        Ok(news)
    }

    fn count(&mut self, data: Vec<u8>) -> News {
        let offset = self.offset;
        self.offset += data.len() as u64;
        News { offset, data }
    }
}

/// Takes news to whoever listens, in chunks.
struct Outlet<'a> {
    /// `None`: only counted.
    sink: Option<&'a mpsc::Sender<LogChunk>>,
    from: u64,
    chunk: LogChunk,
}

impl<'a> Outlet<'a> {
    fn new(sink: Option<&'a mpsc::Sender<LogChunk>>, from: u64, file: &str) -> Self {
        Self { sink, from, chunk: LogChunk { offset: from, data: Vec::new(), file: file.to_owned() } }
    }

    /// False when nobody listens any more. `more`: the next line is there already.
    async fn tell(&mut self, news: News, more: bool) -> bool {
        let Some(sink) = self.sink else { return true };
        let skip = usize::try_from(self.from.saturating_sub(news.offset)).unwrap_or(usize::MAX).min(news.data.len());
        let chunk = &mut self.chunk;
        if chunk.data.is_empty() {
            chunk.offset = news.offset + skip as u64;
        }
        chunk.data.extend_from_slice(&news.data[skip..]);
        if chunk.data.is_empty() || (more && chunk.data.len() < CHUNK) {
            return true;
        }
        let next = LogChunk { offset: 0, data: Vec::new(), file: chunk.file.clone() };
        sink.send(std::mem::replace(chunk, next)).await.is_ok()
    }
}

/// A log from a mark on, read once.
struct Reading<'a> {
    site: &'a Site,
    handle: &'a HandleV1,
    counter: Counter,
    /// The newest mark in the pod.
    marked: u64,
}

/// Why a reading ended.
#[derive(Debug, PartialEq)]
enum End {
    /// The log has no more now.
    All,
    /// Nobody listens.
    Unheard,
    NotBegun,
}

impl Reading<'_> {
    async fn read(&mut self, follow: bool, outlet: &mut Outlet<'_>) -> Answer<End> {
        let mark = self.counter.at();
        let since = mark.since().map(|time| time.to_string());
        self.counter = Counter::new(mark);
        let log = match self.site.api.log(&self.handle.name, since.as_deref(), follow).await {
            Ok(log) => log,
            Err(trouble) if not_begun(&trouble) => return Ok(End::NotBegun),
            Err(Trouble::Absent) => {
                return Err(RemoteError::gone(format!("the pod {} and its log are gone", self.handle.name)));
            }
            // The kubelet that has it cannot be reached, or has it no longer.
            Err(Trouble::Wrong(why)) => return Err(RemoteError::could_not_ask(why)),
            Err(other) => return Err(other.into()),
        };
        let mut log = std::pin::pin!(log);
        loop {
            let line = next_line(&mut log).await.map_err(|why| {
                RemoteError::could_not_ask(format!("the log of the pod {} was cut: {why}", self.handle.name))
            })?;
            let Some((line, more)) = line else { return Ok(End::All) };
            let news = self.counter.take(&line).map_err(RemoteError::could_not_ask)?;
            let gap = news.len() > 1;
            for one in news {
                if !outlet.tell(one, more).await {
                    return Ok(End::Unheard);
                }
            }
            if gap || self.counter.offset >= self.marked + MARK_EVERY {
                self.leave_mark().await;
            }
        }
    }

    /// Leaves the present offset in the pod. Whoever else reads it counts the same; a mark that fails is made later.
    async fn leave_mark(&mut self) {
        self.marked = self.counter.offset;
        let Ok(Some((pod, _))) = self.site.look_at(self.handle).await else { return };
        let mut all = kept(&pod);
        if all.iter().any(|m| m.offset >= self.marked) {
            return;
        }
        all.push(self.counter.at());
        all.drain(..all.len().saturating_sub(MARKS_MAX));
        let path = format!("/metadata/annotations/{}", marks::LOG.replace('/', "~1"));
        let old = pod.metadata.annotations.as_ref().and_then(|a| a.get(marks::LOG));
        let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": self.handle.uid})];
        operations.extend(old.map(|old| json!({"op": "test", "path": path, "value": old})));
        operations.push(json!({"op": "add", "path": path, "value": json!(all).to_string()}));
        if let Err(why) = self.site.api.patch_pod(&self.handle.name, &operations).await {
            tracing::debug!(pod = self.handle.name, ?why, "the offset of the log cannot be left in the pod now");
        }
    }
}

/// The next line, and whether more came with it; `None` at the end. Not cancel safe: the part of a line that was read
/// is lost.
///
/// # Errors
/// The connection ended early, or nothing came for [`SILENCE`].
async fn next_line(log: &mut (impl AsyncBufRead + Unpin)) -> std::io::Result<Option<(Vec<u8>, bool)>> {
    let mut line = Vec::new();
    // The time is that of a part: a long line may take longer.
    while !line.ends_with(b"\n") {
        let part = tokio::time::timeout(SILENCE, log.fill_buf()).await.map_err(|_| {
            std::io::Error::new(std::io::ErrorKind::TimedOut, format!("nothing came for {} s", SILENCE.as_secs()))
        })??;
        if part.is_empty() {
            break;
        }
        let length = part.iter().position(|byte| *byte == b'\n').map_or(part.len(), |at| at + 1);
        line.extend_from_slice(&part[..length]);
        log.consume_unpin(length);
    }
    if line.is_empty() {
        return Ok(None);
    }
    let more = matches!(tokio::time::timeout(SETTLE, log.fill_buf()).await, Ok(Ok(rest)) if !rest.is_empty());
    Ok(Some((line, more)))
}

impl Site {
    /// Sends what a query asks for.
    pub(crate) async fn logs(&self, handle: &HandleV1, query: LogsQuery, sink: &mpsc::Sender<LogChunk>) -> Answer<()> {
        let Some((pod, found)) = self.look_at(handle).await?.filter(|(_, marks)| marks.done.is_none()) else {
            return Err(RemoteError::gone(format!("there is no instance {}", handle.key)));
        };
        // The API gives both streams as one.
        if query.stream == LogStream::Stderr {
            if query.follow {
                sink.closed().await;
            }
            return Ok(());
        }
        let file = format!("{}.stdout.0", found.task);
        let mut from = query.offset;
        if query.from_end {
            let marks = kept(&pod);
            let newest = before(&marks, u64::MAX);
            let mut all = Reading { site: self, handle, marked: newest.offset, counter: Counter::new(newest) };
            all.read(false, &mut Outlet::new(None, 0, &file)).await?;
            from = all.counter.offset.saturating_sub(query.offset);
        }
        let start = before(&kept(&pod), from);
        let marked = before(&kept(&pod), u64::MAX).offset;
        let mut reading = Reading { site: self, handle, counter: Counter::new(start), marked };
        let mut outlet = Outlet::new(Some(sink), from, &file);
        loop {
            let end = tokio::select! {
                end = reading.read(query.follow, &mut outlet) => end,
                () = sink.closed() => return Ok(()),
            };
            let all = end == Ok(End::All);
            match end {
                Ok(End::Unheard) => return Ok(()),
                Ok(_) if !query.follow => return Ok(()),
                Ok(End::All | End::NotBegun) => {}
                // Cut while it was followed: it goes on from where it was.
                Err(RemoteError::CouldNotAsk(why)) if query.follow => {
                    tracing::debug!(pod = handle.name, why, "the log is asked for again");
                }
                Err(why) => return Err(why),
            }
            if let Ok(Some((pod, marks))) = self.look_at(handle).await
                && all
                && is_over(&pod, &marks)
            {
                sink.closed().await;
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(AGAIN) => {}
                () = sink.closed() => return Ok(()),
            }
        }
    }
}

fn is_over(pod: &Pod, marks: &Marks) -> bool {
    let seen = crate::look::observation(pod, marks, std::time::SystemTime::now());
    matches!(seen.state, driver_sdk::InstanceState::Exited | driver_sdk::InstanceState::Gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(second: u32, text: &str) -> Vec<u8> {
        format!("2026-01-01T00:00:0{second}.000000001Z {text}\n").into_bytes()
    }

    fn all(counter: &mut Counter, lines: &[Vec<u8>]) -> String {
        let news = lines.iter().flat_map(|line| counter.take(line).expect("a line"));
        news.map(|n| String::from_utf8(n.data).expect("text")).collect()
    }

    #[test]
    fn reading_on_from_any_place_misses_nothing_and_doubles_nothing() {
        let log = [line(1, "a"), line(1, "b"), line(1, "c"), line(2, "d"), line(2, "e"), line(3, "f")];
        // Two streams in one file: the line of a later time comes first.
        let mut swapped = log.to_vec();
        swapped[3] = b"2026-01-01T00:00:02.000000009Z d\n".to_vec();
        for log in [log.to_vec(), swapped] {
            for cut in 0..=log.len() {
                for again in cut..=log.len() {
                    let mut first = Counter::new(Mark::default());
                    let mut text = all(&mut first, &log[..cut]);
                    // What is near that time comes again; whole seconds bring even more.
                    let mut second = Counter::new(first.at());
                    text += &all(&mut second, &log[..again]);
                    let mut third = Counter::new(second.at());
                    text += &all(&mut third, &log);
                    assert_eq!(text, "a\nb\nc\nd\ne\nf\n", "cut after {cut} and {again}");
                    assert_eq!(third.offset, 12);
                }
            }
        }
    }

    #[test]
    fn what_may_have_been_rotated_away_is_said() {
        let mut counter = Counter::new(Mark::default());
        all(&mut counter, &[line(1, "a"), line(1, "b")]);
        let mut later = Counter::new(counter.at());
        let text = all(&mut later, &[line(4, "x")]);
        assert!(text.starts_with("[drover: output from") && text.ends_with("x\n"), "{text}");
        // Whoever reads on from there counts alike.
        let mut next = Counter::new(later.at());
        assert_eq!(all(&mut next, &[line(4, "x"), line(5, "y")]), "y\n");
        assert_eq!(next.offset, later.offset + 2);
        // While something is there that was counted, nothing after it is missing.
        let mut partly = Counter::new(counter.at());
        assert_eq!(all(&mut partly, &[line(1, "b"), line(4, "x")]), "x\n");
    }

    #[test]
    fn an_error_in_place_of_a_log_is_no_output() {
        let mut counter = Counter::new(Mark::default());
        assert!(counter.take(b"unable to retrieve container logs for containerd://0c").is_err());
        assert!(counter.take(b"\n").is_err());
    }

    #[test]
    fn marks_are_found_by_offset() {
        let marks = [10, 30, 20].map(|offset| Mark { offset, ..Mark::default() });
        assert_eq!(before(&marks, 25).offset, 20);
        assert_eq!(before(&marks, 5), Mark::default());
        assert_eq!(before(&marks, u64::MAX).offset, 30);
    }
}
