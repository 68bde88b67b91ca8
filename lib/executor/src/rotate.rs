//! Output files `<name>.0`, `<name>.1`, …. The newest `max_files` are kept, and none exceeds `max_bytes`. A file ends
//! at a line end if there is one near the limit.
//!
//! `.<name>.index` records the absolute offset in the stream at which each file begins, one line `number base` per kept
//! file. It is written before the file that it announces, and not before the first rotation: without it the oldest file
//! begins at 0. So an absolute offset always means the same byte, whatever has been purged.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use crate::log_dir::LogDir;

/// How many bytes before the limit a line end is close enough for a cut.
const CUT_WINDOW: u64 = 32 * 1024;

/// The first offsets of kept files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    entries: Vec<(u64, u64)>,
}

impl Index {
    /// Reads the index of stream `name`; an absent one is empty, and unreadable lines are skipped.
    ///
    /// # Errors
    /// When the index is there and cannot be read.
    pub fn load(dir: &Path, name: &str) -> io::Result<Index> {
        Index::load_from(&LogDir::open(dir)?, name)
    }

    fn load_from(dir: &LogDir, name: &str) -> io::Result<Index> {
        match dir.text(&index_name(name)) {
            Ok(text) => Ok(Index::parse(&text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Index::default()),
            Err(e) => Err(e),
        }
    }

    fn parse(text: &str) -> Index {
        let entries = text.lines().filter_map(|line| {
            let (number, base) = line.split_once(' ')?;
            Some((number.parse().ok()?, base.parse().ok()?))
        });
        Index { entries: entries.collect() }
    }

    /// Absolute offset at which file `number` begins, if recorded.
    pub fn base(&self, number: u64) -> Option<u64> {
        self.entries.iter().find(|(n, _)| *n == number).map(|(_, base)| *base)
    }

    fn store(&self, dir: &LogDir, name: &str) -> io::Result<()> {
        use std::fmt::Write;
        let mut text = String::new();
        for (number, base) in &self.entries {
            let _ = writeln!(text, "{number} {base}");
        }
        dir.replace(&index_name(name), text.as_bytes())
    }
}

/// One kept file of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of the file.
    pub number: u64,
    /// Absolute offset of its first byte.
    pub base: u64,
    /// Its present size in bytes.
    pub size: u64,
}

fn index_name(name: &str) -> String {
    format!(".{name}.index")
}

fn file_name(name: &str, number: u64) -> String {
    format!("{name}.{number}")
}

/// Present files of the stream, oldest first.
///
/// # Errors
/// When the directory cannot be read.
pub fn segments(dir: &Path, name: &str) -> io::Result<Vec<Segment>> {
    segments_in(&LogDir::open(dir)?, name)
}

pub(crate) fn segments_in(dir: &LogDir, name: &str) -> io::Result<Vec<Segment>> {
    // The index comes first: a file of a rotation in between only follows the known ones.
    let index = Index::load_from(dir, name)?;
    let number_of = |file: &String| file.strip_prefix(name)?.strip_prefix('.')?.parse::<u64>().ok();
    let mut numbers: Vec<u64> = dir.names()?.iter().filter_map(number_of).collect();
    numbers.sort_unstable();
    let mut segments: Vec<Segment> = Vec::with_capacity(numbers.len());
    for number in numbers {
        // Purged since the listing, or a foreign file.
        let Some(size) = dir.size(&file_name(name, number))? else { continue };
        let follows = segments.last().map_or(0, |s| s.base + s.size);
        segments.push(Segment { number, base: index.base(number).unwrap_or(follows), size });
    }
    Ok(segments)
}

/// The writing end of one stream.
#[derive(Debug)]
pub struct Writer {
    dir: LogDir,
    name: String,
    max_files: u64,
    max_bytes: u64,
    number: u64,
    base: u64,
    size: u64,
    /// The present file is full; the next byte goes to a new one.
    full: bool,
    file: File,
}

impl Writer {
    /// Continues the newest file of the stream, or begins the first.
    ///
    /// # Errors
    /// When the directory cannot be read or the newest file not opened for writing.
    pub fn open(dir: &Path, name: &str, max_files: u32, max_bytes: u64) -> io::Result<Writer> {
        let dir = LogDir::open(dir)?;
        let newest = segments_in(&dir, name)?.last().copied().unwrap_or(Segment { number: 0, base: 0, size: 0 });
        let mut file = dir.write(&file_name(name, newest.number))?;
        let size = file.seek(SeekFrom::End(0))?;
        let max_bytes = max_bytes.max(1);
        Ok(Writer {
            dir,
            name: name.to_owned(),
            max_files: u64::from(max_files.max(1)),
            max_bytes,
            number: newest.number,
            base: newest.base,
            size,
            full: size >= max_bytes,
            file,
        })
    }

    /// Begins an empty stream whose first byte has the absolute offset `base`; earlier bytes are not kept.
    ///
    /// # Errors
    /// As [`Writer::open`], and when the index cannot be written.
    pub fn begin(dir: &Path, name: &str, base: u64, max_files: u32, max_bytes: u64) -> io::Result<Writer> {
        let mut writer = Writer::open(dir, name, max_files, max_bytes)?;
        Index { entries: vec![(writer.number, base)] }.store(&writer.dir, name)?;
        writer.base = base;
        Ok(writer)
    }

    /// Writes a first part of `data` and returns its length: less than all where a file ends.
    ///
    /// # Errors
    /// When the file cannot be written, or the next one not begun. What was written before stays, and the next call
    /// goes on after it.
    pub fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.full {
            self.rotate()?;
        }
        let room = usize::try_from(self.max_bytes - self.size).unwrap_or(usize::MAX);
        let fitting = &data[..data.len().min(room)];
        let cut = self.cut(fitting);
        let piece = &fitting[..cut.unwrap_or(fitting.len())];
        let written = self.file.write(piece)?;
        if written == 0 && !piece.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.size += written as u64;
        self.full = self.size >= self.max_bytes || (cut.is_some() && written == piece.len());
        Ok(written)
    }

    /// Length up to and including the last line end near the limit.
    fn cut(&self, fitting: &[u8]) -> Option<usize> {
        let window_from = self.max_bytes - CUT_WINDOW.min(self.max_bytes / 8);
        if self.size + (fitting.len() as u64) < window_from {
            return None;
        }
        let end = fitting.iter().rposition(|b| *b == b'\n')? + 1;
        (self.size + end as u64 >= window_from).then_some(end)
    }

    /// Bytes that may go into [`Writer::file`] without a search for a cut.
    pub fn unseen_room(&self) -> u64 {
        if self.full { 0 } else { (self.max_bytes - CUT_WINDOW.min(self.max_bytes / 8)).saturating_sub(self.size) }
    }

    /// The present file, positioned at its end, for a splice of at most [`Writer::unseen_room`] bytes.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// `bytes` have been spliced into the file.
    pub fn spliced(&mut self, bytes: u64) {
        self.size += bytes;
    }

    fn rotate(&mut self) -> io::Result<()> {
        let number = self.number + 1;
        let base = self.base + self.size;
        let oldest_kept = (number + 1).saturating_sub(self.max_files);
        let mut index = Index::load_from(&self.dir, &self.name)?;
        let known = [(self.number, self.base), (number, base)];
        index.entries.retain(|(n, _)| *n >= oldest_kept && known.iter().all(|k| k.0 != *n));
        index.entries.extend(known.iter().filter(|(n, _)| *n >= oldest_kept));
        index.store(&self.dir, &self.name)?;
        self.file = self.dir.write(&file_name(&self.name, number))?;
        self.number = number;
        self.base = base;
        self.size = 0;
        self.full = false;
        // Usually one file; more if an earlier run's policy kept more.
        for segment in segments_in(&self.dir, &self.name)?.iter().filter(|s| s.number < oldest_kept) {
            let _ = self.dir.remove(&file_name(&self.name, segment.number));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn feed(writer: &mut Writer, mut data: &[u8]) {
        while !data.is_empty() {
            data = &data[writer.write(data).unwrap()..];
        }
    }

    fn contents(dir: &Path, name: &str) -> Vec<Vec<u8>> {
        let read = |s: &Segment| std::fs::read(dir.join(file_name(name, s.number))).unwrap();
        segments(dir, name).unwrap().iter().map(read).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn every_byte_once_in_order(
            chunks in proptest::collection::vec(proptest::collection::vec(prop_oneof![4 => Just(b'x'),
                1 => Just(b'\n')], 0..200), 0..40),
            max_bytes in 1u64..600,
            reopen in 0usize..40,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = Writer::open(dir.path(), "t", 10_000, max_bytes).unwrap();
            for (n, chunk) in chunks.iter().enumerate() {
                if n == reopen {
                    writer = Writer::open(dir.path(), "t", 10_000, max_bytes).unwrap();
                }
                feed(&mut writer, chunk);
            }
            let files = contents(dir.path(), "t");
            prop_assert_eq!(files.concat(), chunks.concat());
            prop_assert!(files.iter().all(|f| f.len() as u64 <= max_bytes));
            let mut base = 0;
            for segment in segments(dir.path(), "t").unwrap() {
                prop_assert_eq!(segment.base, base);
                base += segment.size;
            }
        }
    }

    #[test]
    fn files_end_with_lines_and_bases_survive_the_purge() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), "t", 3, 1000).unwrap();
        let mut all = Vec::new();
        for n in 0..2000 {
            let line = format!("line {n}\n");
            feed(&mut writer, line.as_bytes());
            all.extend_from_slice(line.as_bytes());
        }
        let kept = segments(dir.path(), "t").unwrap();
        assert_eq!(kept.len(), 3);
        for (segment, content) in kept.iter().zip(contents(dir.path(), "t")) {
            assert_eq!(content, &all[segment.base as usize..][..content.len()], "file {}", segment.number);
            assert_eq!(content.last(), Some(&b'\n'));
        }
        let last = kept.last().unwrap();
        assert_eq!(last.base + last.size, all.len() as u64);
    }

    #[test]
    fn a_stream_that_begins_in_the_middle_keeps_its_offsets_over_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::begin(dir.path(), "t", 5000, 10, 100).unwrap();
        let data: Vec<u8> = (0..250).map(|n| b'a' + n % 26).collect();
        feed(&mut writer, &data);
        let kept = segments(dir.path(), "t").unwrap();
        assert_eq!(kept.first().map(|s| s.base), Some(5000));
        assert_eq!(kept.last().map(|s| s.base + s.size), Some(5250));
        assert_eq!(contents(dir.path(), "t").concat(), data);
        // A later writer continues there.
        let mut writer = Writer::open(dir.path(), "t", 10, 100).unwrap();
        feed(&mut writer, b"end");
        assert_eq!(segments(dir.path(), "t").unwrap().last().map(|s| s.base + s.size), Some(5253));
    }

    #[test]
    fn links_of_tasks_are_not_followed_while_files_rotate() {
        let place = tempfile::tempdir().unwrap();
        let (dir, target) = (place.path().join("logs"), place.path().join("target"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&target, "the host's").unwrap();
        let link = |name: &str| std::os::unix::fs::symlink(&target, dir.join(name)).unwrap();
        let mut writer = Writer::open(&dir, "t", 2, 10).unwrap();
        for name in ["t.1", ".t.index", "..t.index.new", "t.9"] {
            link(name);
        }
        feed(&mut writer, b"0123456789ab");
        assert_eq!(
            segments(&dir, "t").unwrap(),
            [Segment { number: 0, base: 0, size: 10 }, Segment { number: 1, base: 10, size: 2 }]
        );
        assert_eq!(contents(&dir, "t").concat(), b"0123456789ab");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "the host's");
    }

    #[test]
    fn names_of_other_streams_are_not_confused() {
        let dir = tempfile::tempdir().unwrap();
        for other in ["web.stdout.x", "web.stdout.1.gz", "web.stdoutt.4", "web2.stdout.9", ".web.stdout.fifo"] {
            std::fs::write(dir.path().join(other), "x").unwrap();
        }
        let mut writer = Writer::open(dir.path(), "web.stdout", 1, 10).unwrap();
        feed(&mut writer, b"0123456789ab");
        assert_eq!(segments(dir.path(), "web.stdout").unwrap(), [Segment { number: 1, base: 10, size: 2 }]);
    }
}
