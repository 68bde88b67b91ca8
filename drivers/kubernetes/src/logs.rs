//! Output by byte offset.
//!
//! The API has no offsets: a log is read from a time on, and what the kubelet has rotated away cannot be read at all.
//! So the driver counts bytes itself, from the first line, and leaves in the pod at which offset which time was: every
//! manager then counts alike, also after a rotation. `count.rs` counts.

use driver_sdk::{LogChunk, LogStream, LogsQuery, RemoteError};
use futures::{AsyncBufRead, AsyncBufReadExt as _};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::time::Duration;
use tokio::sync::mpsc;

use crate::answer::Answer;
use crate::answer::Trouble;
use crate::api::SILENCE;
use crate::exec::not_begun;
use crate::marks::{self, Marks};
use crate::site::{HandleV1, Site, annotation};
use count::{Counter, Found, Mark, News, Survey, before};

mod count;

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
/// Stands before the first line that can be read, for who has asked for more.
const ROTATED: &str = "[drover: output before this was rotated away before it was read]\n";

/// The marks that a pod carries.
fn kept(pod: &Pod) -> Vec<Mark> {
    let text = pod.metadata.annotations.as_ref().and_then(|all| all.get(marks::LOG));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Takes news to whoever listens, in chunks.
struct Outlet<'a> {
    /// `None`: only counted.
    sink: Option<&'a mpsc::Sender<LogChunk>>,
    /// What comes from here on is news to who listens.
    from: u64,
    chunk: LogChunk,
}

impl<'a> Outlet<'a> {
    fn new(sink: Option<&'a mpsc::Sender<LogChunk>>, from: u64, file: &str) -> Self {
        Self { sink, from, chunk: LogChunk { offset: from, data: Vec::new(), file: file.to_owned() } }
    }

    /// False when nobody listens any more. `more`: the next piece is there already.
    async fn tell(&mut self, news: News, more: bool) -> bool {
        if self.sink.is_none() {
            return true;
        }
        let skip = usize::try_from(self.from.saturating_sub(news.offset)).unwrap_or(usize::MAX).min(news.data.len());
        let offset = news.offset + skip as u64;
        if offset != self.chunk.offset + self.chunk.data.len() as u64 {
            if !self.flush().await {
                return false;
            }
            self.chunk.offset = offset;
        }
        self.chunk.data.extend_from_slice(&news.data[skip..]);
        self.from = self.from.max(news.offset + news.data.len() as u64);
        (more && self.chunk.data.len() < CHUNK) || self.flush().await
    }

    /// Sends what waits for more. False when nobody listens any more.
    async fn flush(&mut self) -> bool {
        let Some(sink) = self.sink.filter(|_| !self.chunk.data.is_empty()) else { return true };
        let offset = self.chunk.offset + self.chunk.data.len() as u64;
        let next = LogChunk { offset, data: Vec::new(), file: self.chunk.file.clone() };
        sink.send(std::mem::replace(&mut self.chunk, next)).await.is_ok()
    }

    /// Says that what was asked for is gone up to this offset.
    async fn rotated(&mut self, offset: u64) -> bool {
        match offset.checked_sub(ROTATED.len() as u64).filter(|at| *at >= self.from) {
            Some(at) => self.tell(News { offset: at, data: ROTATED.into() }, true).await,
            None => true,
        }
    }
}

/// A log from a mark on.
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
    /// The log from the mark on; `None` while it has not begun.
    async fn open(&self, mark: &Mark, follow: bool) -> Answer<Option<impl AsyncBufRead + use<>>> {
        let since = mark.since().map(|time| time.to_string());
        match self.site.api.log(&self.handle.name, since.as_deref(), follow).await {
            Ok(log) => Ok(Some(log)),
            Err(trouble) if not_begun(&trouble) => Ok(None),
            Err(Trouble::Absent) => {
                Err(RemoteError::gone(format!("the pod {} and its log are gone", self.handle.name)))
            }
            // The kubelet that has it cannot be reached, or has it no longer.
            Err(Trouble::Wrong(why)) => Err(RemoteError::could_not_ask(why)),
            Err(other) => Err(other.into()),
        }
    }

    fn cut(&self, why: &std::io::Error) -> RemoteError {
        RemoteError::could_not_ask(format!("the log of the pod {} was cut: {why}", self.handle.name))
    }

    /// Reads once, from the last whole line that was counted. `marks`: those in the pod. If other readers were ahead,
    /// and what comes next here is rotated away, it goes on as they have counted.
    async fn go_on(&mut self, marks: &[Mark], follow: bool, outlet: &mut Outlet<'_>) -> Answer<End> {
        if let Some(survey) = Survey::new(self.counter.at(), marks) {
            match self.survey(survey).await? {
                None => return Ok(End::NotBegun),
                Some(Found::Had) => {}
                Some(Found::FirstLine(offset)) => {
                    self.counter = Counter::new(Mark::at_first_line(offset));
                    if !outlet.rotated(offset).await {
                        return Ok(End::Unheard);
                    }
                }
                Some(Found::Newest(mark)) => self.counter = Counter::new(mark),
            }
        }
        self.read(follow, outlet).await
    }

    /// `None` while the log has not begun.
    async fn survey(&self, mut survey: Survey) -> Answer<Option<Found>> {
        let Some(log) = self.open(&self.counter.at(), false).await? else { return Ok(None) };
        let mut log = std::pin::pin!(log);
        while let Some((piece, _)) = next_piece(&mut log, Duration::ZERO).await.map_err(|why| self.cut(&why))? {
            if let Some(found) = survey.take(&piece).map_err(RemoteError::could_not_ask)? {
                return Ok(Some(found));
            }
        }
        Ok(Some(survey.end()))
    }

    async fn read(&mut self, follow: bool, outlet: &mut Outlet<'_>) -> Answer<End> {
        self.counter = self.counter.anew();
        let Some(log) = self.open(&self.counter.at(), follow).await? else { return Ok(End::NotBegun) };
        let end = self.take_all(log, outlet).await;
        // Also before an error: it is counted, and nobody reads it again.
        if outlet.flush().await { end } else { Ok(End::Unheard) }
    }

    async fn take_all(&mut self, log: impl AsyncBufRead, outlet: &mut Outlet<'_>) -> Answer<End> {
        let mut log = std::pin::pin!(log);
        let mut gap = false;
        loop {
            let piece = next_piece(&mut log, SETTLE).await.map_err(|why| self.cut(&why))?;
            let Some((piece, more)) = piece else {
                self.counter.end().map_err(RemoteError::could_not_ask)?;
                return Ok(End::All);
            };
            let news = self.counter.take(&piece).map_err(RemoteError::could_not_ask)?;
            gap |= news.len() > 1;
            for one in news {
                if !outlet.tell(one, more).await {
                    return Ok(End::Unheard);
                }
            }
            if !more && !outlet.flush().await {
                return Ok(End::Unheard);
            }
            let is_due = gap || self.counter.offset() >= self.marked + MARK_EVERY;
            if is_due && self.counter.is_between_lines() {
                gap = false;
                self.leave_mark().await;
            }
        }
    }

    /// Leaves the present offset in the pod. Whoever else reads it counts the same; a mark that fails is made later.
    async fn leave_mark(&mut self) {
        let mark = self.counter.at();
        self.marked = mark.offset;
        let Ok(Some((pod, _))) = self.site.look_at(self.handle).await else { return };
        let mut all = kept(&pod);
        if all.iter().any(|m| m.offset >= self.marked) {
            return;
        }
        all.push(mark);
        all.drain(..all.len().saturating_sub(MARKS_MAX));
        let old = pod.metadata.annotations.as_ref().and_then(|a| a.get(marks::LOG));
        let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": self.handle.uid})];
        operations.extend(old.map(|old| annotation("test", marks::LOG, old)));
        operations.push(annotation("add", marks::LOG, &json!(all).to_string()));
        if let Err(why) = self.site.api.patch_pod(&self.handle.name, &operations).await {
            tracing::debug!(pod = self.handle.name, ?why, "the offset of the log cannot be left in the pod now");
        }
    }
}

/// The next part of the log, up to the end of a line, and whether more comes within `settle`; `None` at the end. Not
/// cancel safe: a part that was read is lost.
///
/// # Errors
/// The connection ended early, or nothing came for [`SILENCE`].
async fn next_piece(
    log: &mut (impl AsyncBufRead + Unpin),
    settle: Duration,
) -> std::io::Result<Option<(Vec<u8>, bool)>> {
    let part = tokio::time::timeout(SILENCE, log.fill_buf()).await.map_err(|_| {
        std::io::Error::new(std::io::ErrorKind::TimedOut, format!("nothing came for {} s", SILENCE.as_secs()))
    })??;
    if part.is_empty() {
        return Ok(None);
    }
    let length = part.iter().position(|byte| *byte == b'\n').map_or(part.len(), |at| at + 1);
    let piece = part[..length].to_vec();
    log.consume_unpin(length);
    let more = matches!(tokio::time::timeout(settle, log.fill_buf()).await, Ok(Ok(rest)) if !rest.is_empty());
    Ok(Some((piece, more)))
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
        let mut marks = kept(&pod);
        let newest = before(&marks, u64::MAX);
        let marked = newest.offset;
        let mut from = query.offset;
        if query.from_end {
            let mut all = Reading { site: self, handle, marked, counter: Counter::new(newest) };
            all.read(false, &mut Outlet::new(None, 0, &file)).await?;
            from = all.counter.offset().saturating_sub(query.offset);
        }
        let counter = Counter::new(before(&marks, from));
        let mut reading = Reading { site: self, handle, counter, marked };
        let mut outlet = Outlet::new(Some(sink), from, &file);
        let mut over = is_over(&pod, &found);
        loop {
            let end = tokio::select! {
                end = reading.go_on(&marks, query.follow, &mut outlet) => end,
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
            // What ends only after the reading has written after it as well.
            if all && over {
                sink.closed().await;
                return Ok(());
            }
            if let Ok(Some((pod, found))) = self.look_at(handle).await {
                over = is_over(&pod, &found);
                marks = kept(&pod);
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
