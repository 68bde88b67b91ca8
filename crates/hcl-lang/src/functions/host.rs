//! The little that functions need from outside: files and randomness. Everything else is pure.

use std::fmt;
use std::path::{Path, PathBuf};

/// What functions may ask of the machine they run on.
pub trait Host: Send + Sync + fmt::Debug {
    /// Whether functions that touch files may run.
    fn files_allowed(&self) -> bool;
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or may not be, as a sentence without the path.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;
    /// Whether a regular file is there.
    ///
    /// # Errors
    /// As [`Host::read`], and when something else is there.
    fn exists(&self, path: &str) -> Result<bool, String>;
    /// Regular files below `path`, as paths relative to it.
    ///
    /// # Errors
    /// As [`Host::read`].
    fn list(&self, path: &str) -> Result<Vec<String>, String>;
    /// An absolute form of `path`.
    ///
    /// # Errors
    /// As [`Host::read`].
    fn absolute(&self, path: &str) -> Result<String, String>;
    /// The user's home directory.
    ///
    /// # Errors
    /// When there is none, or it may not be told.
    fn home(&self) -> Result<String, String>;
    /// Random bytes, for ids and salts.
    fn random(&self) -> [u8; 16];
}

/// A host without files and randomness: for places where no function needs either.
#[derive(Debug, Clone, Copy)]
pub struct NoHost;

const DISABLED: &str = "filesystem function disabled";

impl Host for NoHost {
    fn files_allowed(&self) -> bool {
        false
    }
    fn read(&self, _: &str) -> Result<Vec<u8>, String> {
        Err(DISABLED.into())
    }
    fn exists(&self, _: &str) -> Result<bool, String> {
        Err(DISABLED.into())
    }
    fn list(&self, _: &str) -> Result<Vec<String>, String> {
        Err(DISABLED.into())
    }
    fn absolute(&self, _: &str) -> Result<String, String> {
        Err(DISABLED.into())
    }
    fn home(&self) -> Result<String, String> {
        Err(DISABLED.into())
    }
    fn random(&self) -> [u8; 16] {
        [0; 16]
    }
}

/// The machine itself: relative paths start at the directory of the job file.
#[derive(Debug, Clone)]
pub struct DiskHost {
    /// Where relative paths start.
    pub base_dir: PathBuf,
    /// Whether files may be touched; without, only randomness is served.
    pub allow_files: bool,
}

/// Largest file a function reads.
const FILE_MAX: u64 = 16 << 20;
/// Most files a listing yields, and most directories it walks.
const LIST_MAX: usize = 20_000;

impl DiskHost {
    fn resolve(&self, path: &str) -> PathBuf {
        let path = match (path.strip_prefix("~/"), self.home()) {
            (Some(rest), Ok(home)) => PathBuf::from(home).join(rest),
            _ => PathBuf::from(path),
        };
        self.base_dir.join(path)
    }
}

impl Host for DiskHost {
    fn files_allowed(&self) -> bool {
        self.allow_files
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one door to files; callers choose it")]
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let full = self.resolve(path);
        let meta = std::fs::metadata(&full).map_err(|e| format!("cannot read {path:?}: {e}"))?;
        if !meta.is_file() {
            return Err(format!("cannot read {path:?}: not a regular file"));
        }
        if meta.len() > FILE_MAX {
            return Err(format!("cannot read {path:?}: larger than {FILE_MAX} bytes"));
        }
        std::fs::read(&full).map_err(|e| format!("cannot read {path:?}: {e}"))
    }

    fn exists(&self, path: &str) -> Result<bool, String> {
        match std::fs::metadata(self.resolve(path)) {
            Ok(meta) if meta.is_file() => Ok(true),
            Ok(_) => Err(format!("{path:?} is not a regular file")),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(format!("cannot look at {path:?}: {e}")),
        }
    }

    fn list(&self, path: &str) -> Result<Vec<String>, String> {
        let root = self.resolve(path);
        let mut out = Vec::new();
        let mut pending = vec![root.clone()];
        let mut walked = 0;
        while let Some(dir) = pending.pop() {
            walked += 1;
            let entries = match std::fs::read_dir(&dir) {
                Ok(entries) => entries,
                // A pattern over a missing directory matches nothing.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(format!("cannot list {}: {e}", dir.display())),
            };
            for entry in entries {
                let entry = entry.map_err(|e| format!("cannot list {}: {e}", dir.display()))?;
                let kind = entry.file_type().map_err(|e| format!("cannot look at {}: {e}", entry.path().display()))?;
                if kind.is_dir() {
                    pending.push(entry.path());
                } else if entry.path().is_file()
                    && let Ok(relative) = entry.path().strip_prefix(&root)
                    && let Some(text) = relative.to_str()
                {
                    out.push(text.replace(std::path::MAIN_SEPARATOR, "/"));
                }
            }
            if out.len() > LIST_MAX || walked > LIST_MAX {
                return Err(format!("{path:?} holds more than {LIST_MAX} files"));
            }
        }
        out.sort();
        Ok(out)
    }

    fn absolute(&self, path: &str) -> Result<String, String> {
        // As in the reference, the current directory counts here, not that of the job file.
        let full = std::path::absolute(Path::new(path)).map_err(|e| format!("cannot make {path:?} absolute: {e}"))?;
        Ok(full.to_string_lossy().into_owned())
    }

    fn home(&self) -> Result<String, String> {
        std::env::var("HOME").map_err(|_| "the home directory is not known: HOME is not set".to_owned())
    }

    #[expect(clippy::disallowed_methods, reason = "callers choose this host for its randomness")]
    fn random(&self) -> [u8; 16] {
        *uuid::Uuid::new_v4().as_bytes()
    }
}
