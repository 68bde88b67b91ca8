//! Moves output from a pipe or fifo into rotated files.
//!
//! At most one buffer of it is ever in memory: while the disk does not take it, the pipe fills up and the workload waits.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

use crate::rotate::Writer;

/// Size of the buffer that all pumps share. Output that fills it is on its way in bulk and goes on by splice.
pub(crate) const BUFFER: usize = 8 * 1024;
/// How much one round moves at most, so that requests are answered while a workload floods.
const ROUND: u64 = 1 << 20;
/// Room in the pipe of a stream that comes in bulk: fewer, larger moves.
const BULK_PIPE: usize = 1 << 20;
/// When to try again after the disk refused.
const RETRY: Duration = Duration::from_millis(250);

/// One stream.
pub(crate) struct Pump {
    source: OwnedFd,
    /// Where to open the source again when its last writer has gone: collectors outlive the writers.
    fifo: Option<PathBuf>,
    writer: Writer,
    /// Bytes that have left the pipe and that the disk has refused.
    held: Vec<u8>,
    retry_at: Option<Instant>,
    can_splice: bool,
    enlarged: bool,
    finished: bool,
}

impl Pump {
    pub(crate) fn new(source: OwnedFd, fifo: Option<PathBuf>, writer: Writer) -> Pump {
        Pump { source, fifo, writer, held: Vec::new(), retry_at: None, can_splice: true, enlarged: false, finished: false }
    }

    /// What to poll for input; nothing while the disk is to be retried or after the end.
    pub(crate) fn poll_fd(&self) -> Option<&OwnedFd> {
        (!self.finished && self.retry_at.is_none()).then_some(&self.source)
    }

    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// All writers are gone and everything is in the files.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Bytes that could not be stored.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.len() as u64
    }

    /// Moves what is there, up to a bound. `last` = the writers have been told to go: an end is final.
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
        let mut moved = 0;
        while moved < ROUND {
            match rustix::io::read(&self.source, &mut *buffer) {
                Ok(0) => return self.ended(last),
                Ok(n) => {
                    self.store(&buffer[..n], now);
                    moved += n as u64;
                    if !self.held.is_empty() || n < buffer.len() {
                        return;
                    }
                    if !std::mem::replace(&mut self.enlarged, true) {
                        // Where the user's share of pipe memory is used up it stays as it is.
                        let _ = rustix::pipe::fcntl_setpipe_size(&self.source, BULK_PIPE);
                    }
                    match self.bulk(ROUND) {
                        Ok(n) => moved += n,
                        Err(_) => {
                            // The bytes are still in the pipe.
                            self.retry_at = Some(now + RETRY);
                            return;
                        }
                    }
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    // A fifo without any writer says "end" on a read, so this is an open one with nothing in it.
                    return;
                }
                Err(_) => {
                    self.finished = true;
                    return;
                }
            }
        }
    }

    fn ended(&mut self, last: bool) {
        match &self.fifo {
            Some(path) if !last => {
                // The new end is opened before the old one closes, so that a writer that comes in between finds a reader
                // and what it writes is kept. A fifo that is gone cannot get another writer.
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

    /// Moves pages without looking at them, as far as no cut has to be found.
    fn bulk(&mut self, limit: u64) -> io::Result<u64> {
        let mut moved = 0;
        while self.can_splice && moved < limit {
            let room = self.writer.unseen_room().min(limit - moved);
            if room < BUFFER as u64 {
                break;
            }
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            match splice(&self.source, None, self.writer.file(), None, room as usize, flags) {
                Ok(0) => break,
                Ok(n) => {
                    self.writer.spliced(n as u64);
                    moved += n as u64;
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                // This file system takes no pages; reading and writing works everywhere.
                Err(Errno::INVAL | Errno::NOSYS) => self.can_splice = false,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(moved)
    }
}

/// Opens a fifo for reading without waiting for a writer.
pub(crate) fn open_fifo(path: &PathBuf) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}
