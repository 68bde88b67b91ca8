//! Counts the bytes of a log, of which the kubelet gives lines from a time on, each after its time.
//!
//! What a reader has to expect of the API:
//! - The kubelet takes a time in whole seconds, so lines from before it come as well.
//! - A runtime writes a long line in parts of 16 KiB, each with a time of its own. The kubelet joins them, and gives
//!   the time of the first part. If that part is too old, the rest comes without any time.
//! - Only the newest file of a rotated log comes.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How far times of neighbouring lines may be out of order.
const NEAR: Duration = Duration::from_millis(100);
/// Bytes within which a line has its time: `2026-01-01T00:00:00.000000000+00:00` and a blank.
const TIME_MAX: usize = 64;

/// A place in a log, always between two lines. Two streams are written to one file, so times do not grow strictly; but
/// the file itself only grows, and so does what is left of it when lines before a time are taken out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// Bytes before it.
    pub(super) offset: u64,
    /// The newest time before it; `None` at the beginning of what can be read.
    pub(super) last: Option<Timestamp>,
    /// Lines before it that are no older than [`NEAR`] before `last`.
    lines: usize,
}

impl Mark {
    /// The first line that can be read, with so many bytes before it.
    pub(super) fn at_first_line(offset: u64) -> Self {
        Self { offset, ..Self::default() }
    }

    /// The time from which `lines` count.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.last.map(|last| last.saturating_sub(NEAR).unwrap_or(last))
    }

    fn counts(&self, time: Timestamp) -> bool {
        self.since() <= Some(time) && Some(time) <= self.last
    }
}

/// Where to begin for an offset.
pub(super) fn before(marks: &[Mark], offset: u64) -> Mark {
    marks.iter().filter(|m| m.offset <= offset).max_by_key(|m| m.offset).cloned().unwrap_or_default()
}

/// What a part of a line says while its time is not known yet.
enum Begun<'a> {
    NotYet,
    /// The time, and what came of the line itself.
    At(Timestamp, &'a [u8]),
    WithoutTime,
}

fn begun(head: &[u8]) -> Begun<'_> {
    let Some(blank) = head.iter().position(|byte| *byte == b' ') else {
        let is_time = head.len() < TIME_MAX && !head.ends_with(b"\n");
        return if is_time { Begun::NotYet } else { Begun::WithoutTime };
    };
    let time = std::str::from_utf8(&head[..blank]).ok().and_then(|text| text.parse().ok());
    time.map_or(Begun::WithoutTime, |time| Begun::At(time, &head[blank + 1..]))
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim().to_owned()
}

/// The line under way.
#[derive(Debug)]
enum Line {
    /// Its time is not there whole.
    Begins(Vec<u8>),
    /// It was counted before, and is not among those that are counted again.
    Old,
    /// One of the lines of the mark.
    Again(Timestamp),
    News(Timestamp),
}

impl Line {
    fn next() -> Self {
        Line::Begins(Vec::new())
    }
}

/// Counts lines as they come.
#[derive(Debug)]
pub(super) struct Counter {
    /// Lines up to here were counted before.
    had: Mark,
    /// Up to where a line after `had` was counted, of which the rest has not come.
    begun: u64,
    /// Those of `had.lines` that have come again.
    again: usize,
    /// Nothing that comes now was counted before.
    past: bool,
    line: Line,
    /// What came last without a time.
    timeless: Option<String>,
    /// With what has come of the line under way.
    offset: u64,
    /// Without it; `None` before the first whole line that is news.
    whole: Option<u64>,
    last: Option<Timestamp>,
    /// Times of the lines near `last`.
    near: VecDeque<Timestamp>,
}

/// Bytes that are news.
#[derive(Debug, PartialEq)]
pub(super) struct News {
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

impl Counter {
    /// Counts what comes from [`Mark::since`] on.
    pub(super) fn new(had: Mark) -> Self {
        Self {
            begun: had.offset,
            again: 0,
            past: had.last.is_none(),
            line: Line::next(),
            timeless: None,
            offset: had.offset,
            whole: None,
            last: had.last,
            near: VecDeque::new(),
            had,
        }
    }

    /// One for another reading, which begins after the last whole line of this one.
    pub(super) fn anew(&self) -> Self {
        Self { begun: self.begun.max(self.offset), ..Self::new(self.at()) }
    }

    /// The place after the last whole line. What was only counted again leaves it where it was.
    pub(super) fn at(&self) -> Mark {
        let Some(offset) = self.whole else { return self.had.clone() };
        let mut mark = Mark { offset, last: self.last, lines: 0 };
        mark.lines = self.near.iter().filter(|time| mark.counts(**time)).count();
        mark
    }

    /// Bytes up to here, with those of a line that has not ended.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the last piece has ended a line.
    pub(super) fn is_between_lines(&self) -> bool {
        matches!(&self.line, Line::Begins(head) if head.is_empty())
    }

    /// What a piece adds: a line with its end, or a part of one. A note comes first where lines before it may have been
    /// rotated away.
    ///
    /// # Errors
    /// The piece itself: the kubelet says something in place of a log.
    pub(super) fn take(&mut self, piece: &[u8]) -> Result<Vec<News>, String> {
        let mut news = Vec::new();
        if let Line::Begins(head) = &mut self.line {
            head.extend_from_slice(piece);
            let head = std::mem::take(head);
            match begun(&head) {
                Begun::NotYet => self.line = Line::Begins(head),
                Begun::WithoutTime if self.past => return Err(text(&head)),
                // The rest of a line that begins before the mark, and so ends before it.
                Begun::WithoutTime => {
                    self.timeless = Some(text(&head));
                    self.line = Line::Old;
                }
                Begun::At(time, rest) => {
                    self.timeless = None;
                    self.line = self.begin(time, &mut news);
                    self.add(rest, &mut news);
                }
            }
        } else {
            self.add(piece, &mut news);
        }
        if piece.ends_with(b"\n") {
            self.end_line();
        }
        Ok(news)
    }

    /// What a reading that has come to its end was.
    ///
    /// # Errors
    /// As of [`Counter::take`]: the rest of a line is never the last thing in a log.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.timeless.take().map_or(Ok(()), Err)
    }

    fn begin(&mut self, time: Timestamp, news: &mut Vec<News>) -> Line {
        if self.past {
            return Line::News(time);
        }
        if Some(time) < self.had.since() {
            return Line::Old;
        }
        if Some(time) <= self.had.last && self.again < self.had.lines {
            return Line::Again(time);
        }
        if let Some(last) = self.had.last.filter(|_| self.again == 0) {
            // The rest of a line that was under way is gone as well.
            self.offset = self.offset.max(self.begun);
            // As long for every reader.
            let note =
                format!("[drover: output from {last:.9} to {time:.9} may have been rotated away before it was read]\n");
            news.push(self.count(note.into_bytes()));
        }
        Line::News(time)
    }

    fn add(&mut self, data: &[u8], news: &mut Vec<News>) {
        if matches!(self.line, Line::News(_)) && !data.is_empty() {
            news.push(self.count(data.to_vec()));
        }
    }

    fn count(&mut self, data: Vec<u8>) -> News {
        let offset = self.offset;
        self.offset += data.len() as u64;
        News { offset, data }
    }

    fn end_line(&mut self) {
        match std::mem::replace(&mut self.line, Line::next()) {
            Line::Begins(_) | Line::Old => {}
            Line::Again(time) => {
                self.again += 1;
                self.near.push_back(time);
            }
            Line::News(time) => {
                self.past = true;
                self.whole = Some(self.offset);
                self.last = self.last.max(Some(time));
                self.near.push_back(time);
                let near = Mark { last: self.last, ..Mark::default() }.since();
                while self.near.front().is_some_and(|front| Some(*front) < near) {
                    self.near.pop_front();
                }
            }
        }
    }
}

/// Where a reading begins that other readers are ahead of.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    /// What the reader has had is in the log: it goes on from there.
    Had,
    /// It is rotated away, and the first line of the log is there.
    FirstLine(u64),
    /// It is rotated away, and so is every place that is marked, but perhaps this one.
    Newest(Mark),
}

/// A mark on its way to be found.
#[derive(Debug)]
struct Sought {
    mark: Mark,
    lines: usize,
    /// None of the mark's lines can be missing: the log begins before them.
    sure: bool,
}

/// Looks where a log begins, by the marks that other readers have left. With [`Mark::last`] as the reader has it, the
/// log comes from there on; else from its first line on.
#[derive(Debug)]
pub(super) struct Survey {
    had: Mark,
    /// Those that are ahead, in order.
    ahead: Vec<Mark>,
    sought: Option<Vec<Sought>>,
    head: Vec<u8>,
    time: Option<Timestamp>,
    bytes: u64,
}

impl Survey {
    /// `None`: nobody has left a mark ahead of the reader.
    pub(super) fn new(had: Mark, marks: &[Mark]) -> Option<Self> {
        let mut ahead: Vec<Mark> = marks.iter().filter(|mark| mark.offset > had.offset).cloned().collect();
        ahead.sort_by_key(|mark| mark.offset);
        let new = |ahead| Self { had, ahead, sought: None, head: Vec::new(), time: None, bytes: 0 };
        (!ahead.is_empty()).then(|| new(ahead))
    }

    /// Takes a piece as [`Counter::take`] does.
    ///
    /// # Errors
    /// As of [`Counter::take`].
    pub(super) fn take(&mut self, piece: &[u8]) -> Result<Option<Found>, String> {
        if self.time.is_some() {
            self.bytes += piece.len() as u64;
        } else {
            self.head.extend_from_slice(piece);
            match begun(&self.head) {
                Begun::NotYet => return Ok(None),
                // The rest of an old line: so the log goes further back than the reader.
                Begun::WithoutTime if self.had.last.is_some() && self.sought.is_none() => return Ok(Some(Found::Had)),
                Begun::WithoutTime => return Err(text(&self.head)),
                Begun::At(time, rest) => {
                    self.bytes += rest.len() as u64;
                    self.time = Some(time);
                    self.head.clear();
                    if self.sought.is_none() {
                        if self.had.last.is_some_and(|last| time <= last) {
                            return Ok(Some(Found::Had));
                        }
                        self.sought = Some(self.seek(time));
                    }
                }
            }
        }
        if !piece.ends_with(b"\n") {
            return Ok(None);
        }
        let Some(time) = self.time.take() else { return Ok(None) };
        Ok(self.line(time))
    }

    /// When the log has ended before anything was found.
    pub(super) fn end(self) -> Found {
        match (self.sought, self.ahead.last()) {
            (Some(_), Some(newest)) => Found::Newest(newest.clone()),
            _ => Found::Had,
        }
    }

    /// What is looked for in a log whose first line has this time.
    fn seek(&self, first: Timestamp) -> Vec<Sought> {
        let sought = |mark: &Mark, sure| Sought { mark: mark.clone(), lines: 0, sure };
        let sure = self.ahead.iter().find(|mark| mark.since() > Some(first)).map(|mark| sought(mark, true));
        // All is there if the first mark is just as far from the first line as from the beginning.
        let whole = self.ahead.first().filter(|_| self.had.last.is_none()).map(|mark| sought(mark, false));
        whole.into_iter().chain(sure).collect()
    }

    fn line(&mut self, time: Timestamp) -> Option<Found> {
        let (bytes, begin) = (self.bytes, self.had.offset);
        let sought = self.sought.get_or_insert_default();
        let mut found = None;
        sought.retain_mut(|one| {
            one.lines += usize::from(one.mark.counts(time));
            if one.lines < one.mark.lines || one.mark.lines == 0 {
                return true;
            }
            let first = one.mark.offset.saturating_sub(bytes);
            if one.sure || first == begin {
                found = found.take().or(Some(Found::FirstLine(first)));
            }
            false
        });
        match (found, sought.is_empty()) {
            (None, true) => self.ahead.last().cloned().map(Found::Newest),
            (found, _) => found,
        }
    }
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
                for again in 0..=log.len() {
                    let mut first = Counter::new(Mark::default());
                    let mut text = all(&mut first, &log[..cut]);
                    // What is near that time comes again, perhaps not all of it; whole seconds bring even more.
                    let mut second = first.anew();
                    text += &all(&mut second, &log[..again]);
                    let mut third = second.anew().anew();
                    text += &all(&mut third, &log);
                    assert_eq!(text, "a\nb\nc\nd\ne\nf\n", "cut after {cut} and {again}");
                    assert_eq!(third.offset(), 12);
                    // As who reads on from a mark in the pod.
                    let mut other = Counter::new(first.at());
                    all(&mut other, &log);
                    assert_eq!(other.offset(), 12, "from the mark after {cut}");
                }
            }
        }
    }

    #[test]
    fn a_line_is_counted_as_it_comes_and_again_when_it_is_cut() {
        let log = [line(1, "a"), line(2, "long"), line(3, "b")].concat();
        for cut in 0..log.len() {
            let mut first = Counter::new(Mark::default());
            let told = |counter: &mut Counter, bytes: &[u8]| {
                let pieces = bytes.split_inclusive(|byte| *byte == b'\n');
                pieces.flat_map(|piece| counter.take(piece).expect("a line")).collect::<Vec<News>>()
            };
            let mut text = Vec::new();
            let mut all = told(&mut first, &log[..cut]);
            let mut second = first.anew();
            all.extend(told(&mut second, &log));
            // What comes again stands where it stood.
            for news in all {
                let at = usize::try_from(news.offset).expect("small");
                assert!(at <= text.len(), "cut after {cut}");
                text.truncate(at);
                text.extend(news.data);
            }
            assert_eq!(text, b"a\nlong\nb\n", "cut after {cut}");
        }
    }

    #[test]
    fn the_rest_of_a_long_line_without_a_time_is_no_error_of_the_kubelet() {
        let mut first = Counter::new(Mark::default());
        all(&mut first, &[line(1, "long"), line(3, "a")]);
        let mut second = first.anew();
        assert_eq!(all(&mut second, &[b"ng\n".to_vec(), line(3, "a"), line(4, "b")]), "b\n");
        assert_eq!((second.offset(), second.end()), (9, Ok(())));
        // Alone it is one.
        let mut alone = first.anew();
        assert_eq!(all(&mut alone, &[b"unable to retrieve container logs\n".to_vec()]), "");
        assert_eq!(alone.end(), Err("unable to retrieve container logs".into()));
    }

    #[test]
    fn what_may_have_been_rotated_away_is_said() {
        let mut counter = Counter::new(Mark::default());
        all(&mut counter, &[line(1, "a"), line(1, "b")]);
        let mut later = counter.anew();
        let text = all(&mut later, &[line(4, "x")]);
        assert!(text.starts_with("[drover: output from") && text.ends_with("x\n"), "{text}");
        // Whoever reads on from there counts alike.
        let mut next = later.anew();
        assert_eq!(all(&mut next, &[line(4, "x"), line(5, "y")]), "y\n");
        assert_eq!(next.offset(), later.offset() + 2);
        // While something is there that was counted, nothing after it is missing.
        let mut partly = counter.anew();
        assert_eq!(all(&mut partly, &[line(1, "b"), line(4, "x")]), "x\n");
        // A line was under way: the note does not stand in its place.
        counter.take(&line(2, "long")[..35]).expect("a part");
        let (begun, mut later) = (counter.offset(), counter.anew());
        let news = later.take(&line(4, "x")).expect("a line");
        assert!(begun > counter.at().offset && news[0].offset == begun, "{news:?}");
    }

    #[test]
    fn an_error_in_place_of_a_log_is_no_output() {
        for said in ["unable to retrieve container logs for containerd://0c", "\n"] {
            let mut counter = Counter::new(Mark::default());
            assert!(counter.take(said.as_bytes()).is_err());
        }
    }

    #[test]
    fn marks_are_found_by_offset() {
        let marks = [10, 30, 20].map(|offset| Mark { offset, ..Mark::default() });
        assert_eq!(before(&marks, 25).offset, 20);
        assert_eq!(before(&marks, 5), Mark::default());
        assert_eq!(before(&marks, u64::MAX).offset, 30);
    }

    #[test]
    fn a_reader_behind_the_others_finds_where_a_rotated_log_begins() {
        let log: Vec<Vec<u8>> = (0..9).map(|second| line(second, "x")).collect();
        let mark = |lines: usize| {
            let mut counter = Counter::new(Mark::default());
            all(&mut counter, &log[..lines]);
            counter.at()
        };
        let survey = |had: Mark, marks: &[Mark], log: &[Vec<u8>]| {
            let mut survey = Survey::new(had, marks).expect("somebody is ahead");
            let found = log.iter().find_map(|line| survey.take(line).expect("a line"));
            found.unwrap_or_else(|| survey.end())
        };
        let marks = [mark(3), mark(6)];
        assert!(Survey::new(mark(6), &marks).is_none());
        for rotated in 0..log.len() {
            let found = survey(Mark::default(), &marks, &log[rotated..]);
            let expected = match rotated {
                0..5 => Found::FirstLine(2 * rotated as u64),
                _ => Found::Newest(mark(6)),
            };
            assert_eq!(found, expected, "{rotated}");
        }
        // Whose own lines are there goes on from them.
        assert_eq!(survey(mark(1), &marks, &log), Found::Had);
        assert_eq!(survey(mark(1), &marks, &log[2..]), Found::FirstLine(4));
        assert_eq!(survey(mark(1), &marks, &[]), Found::Had);
    }
}
