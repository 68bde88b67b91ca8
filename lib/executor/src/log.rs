//! Reads the rotated files `<name>.N` by absolute offset, over rotation and purge.
//!
//! The writer keeps `.<name>.index` beside the files (see [`crate::rotate`]). It records the absolute offset at which
//! each file begins, so an offset means the same byte as long as that is kept.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::log_dir::LogDir;
use crate::rotate::{self, Segment};

/// Bytes of one stream, from one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Absolute offset of the first byte.
    pub offset: u64,
    /// The bytes; empty at the present end of the stream.
    pub data: Vec<u8>,
    /// Name of their file.
    pub file: String,
}

/// One stream: the files `<name>.0`, `<name>.1`, … in `dir`.
#[derive(Clone, Debug)]
pub struct RotatedLog {
    dir: PathBuf,
    name: String,
}

impl RotatedLog {
    /// The stream `name` (such as `web.stdout`) in `dir`; nothing is opened yet.
    pub fn new(dir: impl Into<PathBuf>, name: impl Into<String>) -> RotatedLog {
        RotatedLog { dir: dir.into(), name: name.into() }
    }

    /// The directory of the files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Base name of the files.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Present files, oldest first.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn segments(&self) -> io::Result<Vec<Segment>> {
        rotate::segments(&self.dir, &self.name)
    }

    /// Absolute offset of the oldest byte kept.
    ///
    /// # Errors
    /// As [`RotatedLog::segments`].
    pub fn start(&self) -> io::Result<u64> {
        Ok(self.segments()?.first().map_or(0, |s| s.base))
    }

    /// Absolute offset after the newest byte.
    ///
    /// # Errors
    /// As [`RotatedLog::segments`].
    pub fn end(&self) -> io::Result<u64> {
        Ok(self.segments()?.last().map_or(0, |s| s.base + s.size))
    }

    /// Up to `max` bytes from `offset`, or from the oldest byte kept if rotation has dropped that one. An empty chunk
    /// means the present end.
    ///
    /// # Errors
    /// When the directory or a file cannot be read. A file that rotation removes meanwhile is no error.
    pub fn read(&self, offset: u64, max: usize) -> io::Result<Chunk> {
        loop {
            let dir = LogDir::open(&self.dir)?;
            let segments = rotate::segments_in(&dir, &self.name)?;
            let Some(newest) = segments.last() else {
                return Ok(Chunk { offset, data: Vec::new(), file: format!("{}.0", self.name) });
            };
            let found = segments.iter().find(|s| offset < s.base + s.size).unwrap_or(newest);
            let at = offset.max(found.base);
            let file = format!("{}.{}", self.name, found.number);
            if at >= found.base + found.size {
                return Ok(Chunk { offset, data: Vec::new(), file });
            }
            let mut data = vec![0; max.min((found.base + found.size - at) as usize)];
            let read = dir.read(&file).and_then(|f| f.read_at(&mut data, at - found.base));
            match read {
                Ok(n) => {
                    data.truncate(n);
                    return Ok(Chunk { offset: at, data, file });
                }
                // Purged between listing and opening: the next round finds the present oldest one.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            }
        }
    }
}
