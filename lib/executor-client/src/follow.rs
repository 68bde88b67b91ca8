//! Follows rotated files as they grow.

use std::io;

use executor::log::{Chunk, RotatedLog};

use crate::watch::Watch;

/// A reader that waits at the end of a stream; see [`Follow::new`].
pub struct Follow {
    log: RotatedLog,
    offset: u64,
    watch: Watch,
}

impl Follow {
    /// Reads `log` from `offset` and continues as it grows, woken by the kernel.
    ///
    /// # Errors
    /// When the directory of the files cannot be watched.
    pub fn new(log: RotatedLog, offset: u64) -> io::Result<Follow> {
        let watch = Watch::new(log.dir(), log.name())?;
        Ok(Follow { log, offset, watch })
    }

    /// Bytes available now; `None` at the present end.
    ///
    /// # Errors
    /// When a file cannot be read; the offset stays where it was.
    pub fn available(&mut self, max: usize) -> io::Result<Option<Chunk>> {
        let chunk = self.log.read(self.offset, max)?;
        if chunk.data.is_empty() {
            return Ok(None);
        }
        self.offset = chunk.offset + chunk.data.len() as u64;
        Ok(Some(chunk))
    }

    /// Waits for the next bytes. Cancel safe: it consumes nothing before it returns.
    ///
    /// # Errors
    /// As [`Follow::available`].
    pub async fn next(&mut self, max: usize) -> io::Result<Chunk> {
        loop {
            if let Some(chunk) = self.available(max)? {
                return Ok(chunk);
            }
            self.watch.changed().await;
        }
    }

    /// Absolute offset after the last byte returned.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}
