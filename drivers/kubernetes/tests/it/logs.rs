//! Logs by byte offset: every reader counts alike, whatever it begins with.

use axum::http::Method;
use driver_sdk::{LogChunk, LogStream, LogsQuery, RemoteDriver as _, RemoteHandle};
use kubernetes::Driver;
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::fake::{Api, Said, ensure};

const POD: &str = "drover-k";

async fn running() -> (Api, Arc<Driver>, RemoteHandle) {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    (api, driver, made.handle)
}

/// A line, so many milliseconds after midnight.
fn line(at: u64, text: &str) -> String {
    format!("2026-01-01T00:{:02}:{:02}.{:03}000001Z {text}\n", at / 60_000, at / 1000 % 60, at % 1000)
}

/// Long lines, a part of a second after each other.
fn long(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|n| line(n * 30, &format!("{n:07}.").repeat(4 << 10))).collect()
}

/// The log itself.
fn output(lines: &[String]) -> String {
    lines.iter().filter_map(|line| line.split_once(' ')).map(|(_, text)| text).collect()
}

fn query(offset: u64, follow: bool, from_end: bool) -> LogsQuery {
    LogsQuery { stream: LogStream::Stdout, offset, follow, from_end }
}

async fn read(driver: &Driver, handle: &RemoteHandle, offset: u64, from_end: bool) -> Vec<LogChunk> {
    let (sink, mut heard) = mpsc::channel(1 << 10);
    driver.logs(handle, query(offset, false, from_end), sink).await.expect("read");
    let mut chunks = Vec::new();
    while let Some(chunk) = heard.recv().await {
        chunks.push(chunk);
    }
    chunks
}

/// That chunks are this part of the log, each where it stands. Short ones are shown whole.
fn stand(chunks: &[LogChunk], whole: &str, from: usize, case: &str) {
    let mut at = from;
    for chunk in chunks {
        let offset = usize::try_from(chunk.offset).expect("small");
        assert_eq!(offset, at, "{case}");
        at += chunk.data.len();
        let text = String::from_utf8_lossy(&chunk.data[..chunk.data.len().min(80)]);
        assert!(whole.as_bytes().get(offset..at) == Some(&chunk.data), "{case}: at {offset} stands {text}");
    }
    assert_eq!(at, whole.len(), "{case}");
}

#[tokio::test]
async fn a_log_that_is_read_from_a_mark_on_is_neither_doubled_nor_shifted() {
    let (api, driver, handle) = running().await;
    let mut lines = long(0..40);
    let whole = output(&lines);
    api.store().log = lines.concat();
    stand(&read(&driver, &handle, 0, false).await, &whole, 0, "the first reader");
    assert!(api.store().pods[POD]["metadata"]["annotations"]["drover.dev/log"].is_string(), "it leaves marks");
    for from in [0, 5, whole.len() / 2, whole.len() - 9, whole.len()] {
        stand(&read(&driver, &handle, from as u64, false).await, &whole, from, "by offset");
        let before = (whole.len() - from) as u64;
        stand(&read(&driver, &handle, before, true).await, &whole, from, "from the end");
    }
    // Who reads on leaves no wrong mark to those after it.
    lines.extend(long(40..80));
    let whole = output(&lines);
    api.store().log = lines.concat();
    for reader in ["the one that goes on", "the next one"] {
        stand(&read(&driver, &handle, 9, true).await, &whole, whole.len() - 9, reader);
    }
}

/// A reader that follows, and what it has heard.
struct Follower {
    heard: mpsc::Receiver<LogChunk>,
    text: String,
    reading: tokio::task::JoinHandle<()>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Follower {
    fn of(driver: &Arc<Driver>, handle: &RemoteHandle) -> Self {
        let (sink, heard) = mpsc::channel(64);
        let (driver, handle) = (driver.clone(), handle.clone());
        let reading = async move {
            let _ = driver.logs(&handle, query(0, true, false), sink).await;
        };
        Self { heard, text: String::new(), reading: tokio::spawn(reading) }
    }

    /// Waits until it has heard this, all in all.
    async fn hears(&mut self, whole: &str) {
        while self.text != whole {
            let next = tokio::time::timeout(std::time::Duration::from_secs(20), self.heard.recv()).await;
            let chunk = next.unwrap_or_else(|_| panic!("heard {:?}, not {whole:?}", self.text)).expect("it goes on");
            assert_eq!(chunk.offset, self.text.len() as u64, "after {:?}", self.text);
            self.text += std::str::from_utf8(&chunk.data).expect("text");
            assert!(whole.starts_with(&self.text), "heard {:?}, not {whole:?}", self.text);
        }
    }
}

/// Times that the log was asked for.
fn asked(api: &Api) -> usize {
    api.store().calls.iter().filter(|call| call.contains("/log")).count()
}

#[tokio::test]
async fn a_follow_goes_on_after_reopenings_without_a_doubled_or_lost_line() {
    let (api, driver, handle) = running().await;
    let mut lines = vec![line(1000, "a"), line(1001, "b"), line(1001, "c")];
    api.store().log = lines.concat();
    let mut follower = Follower::of(&driver, &handle);
    follower.hears("a\nb\nc\n").await;
    // Each answer of this server ends; some say nothing, or only a part of what was had.
    let before = asked(&api);
    api.say(Method::GET, "/log", Said::Text(502, "away"), false, 1);
    testkit::eventually("reopenings", || asked(&api) >= before + 2).await;
    api.store().log = lines[..2].concat();
    let before = asked(&api);
    testkit::eventually("a short one", || asked(&api) >= before + 2).await;
    lines.extend([line(1002, "d"), line(1500, "e")]);
    api.store().log = lines.concat();
    follower.hears("a\nb\nc\nd\ne\n").await;
    // What was written between the last reading and the end.
    api.say(Method::GET, "/log", Said::Text(502, "away"), false, 1);
    lines.push(line(1501, "f"));
    api.store().log = lines.concat();
    api.ends(POD, 0);
    follower.hears("a\nb\nc\nd\ne\nf\n").await;
}

#[tokio::test]
async fn the_rest_of_a_long_line_comes_when_it_is_there_and_stops_nobody() {
    let (api, driver, handle) = running().await;
    // The runtime has written a part; the line has no end yet.
    let mut lines = vec![line(1000, "a"), line(1200, "begins-\\")];
    api.store().log = lines.concat();
    let mut follower = Follower::of(&driver, &handle);
    follower.hears("a\nbegins-").await;
    lines.push(line(3000, "goes-\\"));
    api.store().log = lines.concat();
    follower.hears("a\nbegins-goes-").await;
    lines.extend([line(5000, "ends"), line(5010, "b")]);
    api.store().log = lines.concat();
    follower.hears("a\nbegins-goes-ends\nb\n").await;
    // Read on from there, the beginning of the line is too old to come, and its rest comes without a time.
    lines.push(line(5020, "c"));
    api.store().log = lines.concat();
    follower.hears("a\nbegins-goes-ends\nb\nc\n").await;
}

#[tokio::test]
async fn after_a_rotation_every_reader_counts_as_those_before_it() {
    let (api, driver, handle) = running().await;
    let mut lines = long(0..80);
    let whole = output(&lines);
    api.store().log = lines.concat();
    stand(&read(&driver, &handle, 0, false).await, &whole, 0, "before it");
    // The newest file begins in the middle of the log.
    for first in [7, 33, 50] {
        api.store().log = lines[first..].concat();
        let begin = output(&lines[..first]).len();
        let chunks = read(&driver, &handle, 0, false).await;
        let note = String::from_utf8_lossy(&chunks[0].data);
        let length = note.find('\n').expect("a note") + 1;
        assert!(note.starts_with("[drover: output before this"), "{note:.80}");
        assert_eq!(usize::try_from(chunks[0].offset).expect("small") + length, begin, "{first}");
        let mut rest = chunks;
        rest[0].data.drain(..length);
        rest[0].offset += length as u64;
        stand(&rest, &whole, begin, "from the beginning");
        let there = whole.len() - 100;
        stand(&read(&driver, &handle, there as u64, false).await, &whole, there, "by offset");
        stand(&read(&driver, &handle, 100, true).await, &whole, there, "from the end");
    }
    // What comes after it stands where it stands for all.
    lines.extend(long(80..120));
    let whole = output(&lines);
    api.store().log = lines[50..].concat();
    let begin = output(&lines[..50]).len();
    for _ in 0..2 {
        stand(&read(&driver, &handle, begin as u64, false).await, &whole, begin, "what is left, and what is new");
    }
}
