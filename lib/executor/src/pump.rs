//! Moves output from a pipe or FIFO into rotated files.
//!
//! At most one buffer of it is in memory at any time: when the disk refuses, the pipe fills up and the workload waits.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};

use crate::rotate::Writer;

/// Size of the buffer that all pumps share, in bytes. Output that fills it counts as bulk and continues by splice.
pub(crate) const BUFFER: usize = 8 * 1024;
/// Most bytes of one round, so that requests are answered during a flood.
const ROUND: u64 = 1 << 20;
/// Pipe size of a bulk stream: fewer, larger moves.
const BULK_PIPE: usize = 512 << 10;
/// Pause of a flooding stream once its pipe is empty. A wake-up, read and write for every line would cost more than the
/// output itself. New output has room in the pipe meanwhile.
const REST: Duration = Duration::from_micros(200);
/// Pause before another attempt after the disk refused.
const RETRY: Duration = Duration::from_millis(250);

/// One stream.
pub(crate) struct Pump {
    source: OwnedFd,
    /// Path to reopen the source when its last writer has gone: collectors outlive the writers.
    fifo: Option<PathBuf>,
    writer: Writer,
    /// Bytes taken from the pipe that the disk has refused.
    held: Vec<u8>,
    retry_at: Option<Instant>,
    /// End of its pause.
    rest_until: Option<Instant>,
    /// When it last had data.
    moved_at: Option<Instant>,
    can_splice: bool,
    /// `Some` while it floods.
    side: Option<Side>,
    enlarged: bool,
    /// The pipe is large enough for a bulk stream during a pause.
    roomy: bool,
    finished: bool,
}

impl Pump {
    pub(crate) fn new(source: OwnedFd, fifo: Option<PathBuf>, writer: Writer) -> Pump {
        Pump {
            source,
            fifo,
            writer,
            held: Vec::new(),
            retry_at: None,
            rest_until: None,
            moved_at: None,
            can_splice: true,
            side: None,
            enlarged: false,
            roomy: false,
            finished: false,
        }
    }

    /// The descriptor to poll for input; `None` before [`Pump::again_at`] and after the end.
    pub(crate) fn poll_fd(&self) -> Option<&OwnedFd> {
        (!self.finished && self.again_at().is_none()).then_some(&self.source)
    }

    /// When to run it again regardless of its source: the disk has refused, or the emptied stream pauses.
    pub(crate) fn again_at(&self) -> Option<Instant> {
        self.retry_at.or(self.rest_until)
    }

    /// Whether all writers are gone and everything is in the files.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Number of bytes that could not be stored.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.held.len() + self.side.as_ref().map_or(0, |side| side.holds)) as u64
    }

    /// Moves available data, up to a bound. `last` = the writers were told to go: an end is final.
    pub(crate) fn run(&mut self, buffer: &mut [u8; BUFFER], now: Instant, last: bool) {
        if self.finished {
            return;
        }
        if !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            self.store(&held, now);
            if !self.held.is_empty() {
                return;
            }
        }
        self.retry_at = None;
        if !self.empty_side(buffer, now) {
            return;
        }
        if self.rest_until.is_some_and(|until| now < until) && !last {
            return;
        }
        self.rest_until = None;
        let taken = self.take(buffer, now, last);
        let before = if taken.moved > 0 { self.moved_at.replace(now) } else { None };
        if taken.emptied {
            let floods = before.is_some_and(|before| now.duration_since(before) < 2 * REST);
            if floods && self.roomy && !last {
                self.rest_until = Some(now + REST);
            }
            if !floods {
                self.side = None;
            }
        }
    }

    /// Moves available data, up to a bound.
    fn take(&mut self, buffer: &mut [u8; BUFFER], now: Instant, last: bool) -> Taken {
        let mut taken = Taken::default();
        while taken.moved < ROUND {
            match rustix::io::read(&self.source, &mut *buffer) {
                Ok(0) => {
                    self.ended(last);
                    break;
                }
                Ok(n) => {
                    self.store(&buffer[..n], now);
                    taken.moved += n as u64;
                    if !self.held.is_empty() {
                        break;
                    }
                    if n < buffer.len() {
                        taken.emptied = true;
                        break;
                    }
                    if !std::mem::replace(&mut self.enlarged, true) {
                        // If the user's share of pipe memory is used up, it stays as it is.
                        self.roomy = fcntl_setpipe_size(&self.source, BULK_PIPE).is_ok();
                    }
                    match self.bulk(buffer, now, last) {
                        Some(more) => {
                            taken.moved += more.moved;
                            if more.emptied {
                                taken.emptied = true;
                                break;
                            }
                        }
                        None => break,
                    }
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    // A FIFO without a writer reports "end" on a read, so this is an open one without data.
                    taken.emptied = true;
                    break;
                }
                Err(_) => {
                    self.finished = true;
                    break;
                }
            }
        }
        taken
    }

    fn ended(&mut self, last: bool) {
        match &self.fifo {
            Some(path) if !last => {
                // Opens the new end before the old one closes. A writer that comes in between finds a reader, and its
                // data is kept. A FIFO that is gone cannot get another writer.
                match open_fifo(path) {
                    Ok(source) => self.source = source,
                    Err(_) => self.finished = true,
                }
            }
            _ => self.finished = true,
        }
    }

    fn store(&mut self, mut data: &[u8], now: Instant) {
        while !data.is_empty() {
            match self.writer.write(data) {
                Ok(n) => data = &data[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.held = data.to_vec();
                    self.retry_at = Some(now + RETRY);
                    return;
                }
            }
        }
    }

    /// Splices pages up to the next possible cut. `None`: the disk does not take them now.
    fn bulk(&mut self, buffer: &mut [u8; BUFFER], now: Instant, last: bool) -> Option<Taken> {
        let mut taken = Taken::default();
        while self.can_splice && !taken.emptied && taken.moved < ROUND {
            let room = self.writer.unseen_room().min(ROUND - taken.moved);
            if room < BUFFER as u64 {
                break;
            }
            if self.side.is_none() {
                self.side = Side::new().ok();
            }
            let Some(side) = &mut self.side else { break };
            match splice(
                &self.source,
                None,
                &side.input,
                None,
                room as usize,
                SpliceFlags::NONBLOCK | SpliceFlags::MOVE,
            ) {
                Ok(n) if n > 0 => {
                    side.holds = n;
                    taken.moved += n as u64;
                    // Leaves newer data, unless this is the last round: chasing an active writer gives ever smaller
                    // pieces. A pipe with room left is empty now: its pages are more than half full on average.
                    taken.emptied = !last && n < (room as usize).min(side.room / 2);
                    if !self.empty_side(buffer, now) {
                        return None;
                    }
                }
                // The read of the source will report the error.
                _ => break,
            }
        }
        Some(taken)
    }

    /// Moves the content of the side pipe to the file. False: the disk does not take it now.
    fn empty_side(&mut self, buffer: &mut [u8; BUFFER], now: Instant) -> bool {
        while let Some(side) = self.side.as_mut().filter(|side| side.holds > 0) {
            if self.can_splice {
                match splice(&side.output, None, self.writer.file(), None, side.holds, SpliceFlags::MOVE) {
                    Ok(n) if n > 0 => {
                        side.holds -= n;
                        self.writer.spliced(n as u64);
                    }
                    Err(Errno::INTR) => {}
                    // This file system does not support splice; reading and writing works everywhere.
                    Err(Errno::INVAL | Errno::NOSYS) => self.can_splice = false,
                    Ok(_) | Err(_) => {
                        self.retry_at = Some(now + RETRY);
                        return false;
                    }
                }
                continue;
            }
            match rustix::io::read(&side.output, &mut *buffer) {
                Ok(n) if n > 0 => {
                    side.holds -= n;
                    self.store(&buffer[..n], now);
                    if !self.held.is_empty() {
                        return false;
                    }
                }
                Err(Errno::INTR) => {}
                // Unexpected: our own pipe should yield its content.
                Ok(_) | Err(_) => side.holds = 0,
            }
        }
        true
    }
}

/// A pipe of our own between a flooding stream's pipe and the file. A pipe is locked while its pages are written to a
/// file, and its writer waits. Between two pipes pages move at once, so the workload continues during the write.
struct Side {
    input: OwnedFd,
    output: OwnedFd,
    /// Bytes in it; all of them fit into the present file.
    holds: usize,
    /// Its capacity in bytes if all its pages were full.
    room: usize,
}

impl Side {
    fn new() -> rustix::io::Result<Side> {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
        // A small one also works, in more steps.
        let _ = fcntl_setpipe_size(&input, BULK_PIPE);
        let room = fcntl_getpipe_size(&input)?;
        Ok(Side { input, output, holds: 0, room })
    }
}

/// The result of a round.
#[derive(Default)]
struct Taken {
    /// Bytes moved.
    moved: u64,
    /// No more data, or only data that came in the meantime.
    emptied: bool,
}

/// Opens a FIFO for reading without waiting for a writer.
pub(crate) fn open_fifo(path: &PathBuf) -> io::Result<OwnedFd> {
    // A task may have replaced it.
    let fifo =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fifo)?.st_mode);
    if kind == FileType::Fifo { Ok(fifo) } else { Err(io::Error::other(format!("it is no fifo but {kind:?}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stream {
        dir: tempfile::TempDir,
        input: OwnedFd,
        pump: Pump,
        buffer: [u8; BUFFER],
        given: usize,
    }

    impl Stream {
        fn new() -> Stream {
            let dir = tempfile::tempdir().unwrap();
            let (source, input) =
                rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC).unwrap();
            let pump = Pump::new(source, None, Writer::open(dir.path(), "t", 10, 1 << 20).unwrap());
            Stream { dir, input, pump, buffer: [0; BUFFER], given: 0 }
        }

        fn give(&mut self, bytes: usize) {
            assert_eq!(rustix::io::write(&self.input, &vec![b'x'; bytes]), Ok(bytes));
            self.given += bytes;
        }

        fn run(&mut self, now: Instant, last: bool) {
            self.pump.run(&mut self.buffer, now, last);
        }

        /// Number of bytes that are not in the file yet.
        fn missing(&self) -> usize {
            self.given - std::fs::metadata(self.dir.path().join("t.0")).unwrap().len() as usize
        }
    }

    #[test]
    fn a_flood_is_taken_in_gulps_and_a_line_at_once() {
        let (mut stream, begin) = (Stream::new(), Instant::now());
        stream.give(100);
        stream.run(begin, false);
        stream.give(100);
        stream.run(begin + REST / 2, false);
        assert_eq!((stream.missing(), stream.pump.again_at()), (0, None), "small pipes are emptied at once");
        stream.give(2 * BUFFER);
        stream.run(begin + REST, false);
        assert_eq!(stream.missing(), 0);
        assert_eq!(stream.pump.again_at(), Some(begin + 2 * REST));
        assert!(stream.pump.poll_fd().is_none());
        stream.give(10_000);
        stream.run(begin + REST + REST / 2, false);
        assert_eq!(stream.missing(), 10_000, "it rests");
        stream.run(begin + 2 * REST, false);
        assert_eq!(stream.missing(), 0);
        // Nothing came during the pause: the next line is written at once.
        assert!(stream.pump.side.is_some());
        stream.run(begin + 3 * REST, false);
        assert!(stream.pump.poll_fd().is_some());
        assert!(stream.pump.side.is_none(), "what the flood needed goes with it");
        stream.give(10);
        stream.run(begin + 10 * REST, false);
        assert_eq!((stream.missing(), stream.pump.again_at()), (0, None));
    }

    #[test]
    fn the_end_of_the_workload_ends_the_rest() {
        let (mut stream, begin) = (Stream::new(), Instant::now());
        stream.give(2 * BUFFER);
        stream.run(begin, false);
        stream.give(2 * BUFFER);
        stream.run(begin, false);
        assert!(stream.pump.again_at().is_some());
        stream.give(10);
        stream.run(begin, true);
        assert_eq!(stream.missing(), 0);
    }

    #[test]
    fn a_small_side_pipe_takes_all_in_more_steps() {
        let (mut stream, now) = (Stream::new(), Instant::now());
        let size = fcntl_setpipe_size(&stream.input, BULK_PIPE).unwrap();
        let side = Side::new().unwrap();
        let room = fcntl_setpipe_size(&side.input, 16 << 10).unwrap();
        stream.pump.side = Some(Side { room, ..side });
        stream.give(size / 2);
        stream.run(now, false);
        assert_eq!(stream.missing(), 0);
    }

    #[test]
    fn a_file_that_takes_no_pages_gets_bytes_in_their_order() {
        let (mut stream, now) = (Stream::new(), Instant::now());
        let side = Side::new().unwrap();
        assert_eq!(rustix::io::write(&side.input, &[b'a'; 20_000]), Ok(20_000));
        stream.pump.side = Some(Side { holds: 20_000, ..side });
        stream.pump.can_splice = false;
        assert_eq!(stream.pump.held_bytes(), 20_000);
        stream.give(10);
        stream.run(now, false);
        let stored = std::fs::read(stream.dir.path().join("t.0")).unwrap();
        assert_eq!((stored.len(), &stored[19_999..]), (20_010, &b"axxxxxxxxxx"[..]));
        assert_eq!(stream.pump.held_bytes(), 0);
    }
}
