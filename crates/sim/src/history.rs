//! What has happened: one line for each thing that anything of the simulation did to anything else, and what broke.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
};

use sha2::{Digest as _, Sha256};

use crate::machine::Machine;

/// The history of one simulation.
#[derive(Debug)]
pub(crate) struct History {
    machine: Arc<Machine>,
    lines: Mutex<Vec<String>>,
    violation: Mutex<Option<String>>,
}

impl History {
    pub(crate) fn new(machine: Arc<Machine>) -> Arc<Self> {
        Arc::new(Self { machine, lines: Mutex::default(), violation: Mutex::default() })
    }

    /// Adds a line.
    pub(crate) fn note(&self, what: impl AsRef<str>) {
        let at = self.machine.now();
        let line = format!("{:>5}.{:06} {}", at.as_secs(), at.subsec_micros(), what.as_ref());
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Something is as it must never be; the first counts.
    pub(crate) fn violated(&self, what: impl AsRef<str>) {
        self.note(format!("VIOLATION {}", what.as_ref()));
        let at = self.machine.now().as_secs();
        let mut violation = self.violation.lock().unwrap_or_else(PoisonError::into_inner);
        violation.get_or_insert_with(|| format!("after {at} s: {}", what.as_ref()));
    }

    /// The first violation.
    pub(crate) fn violation(&self) -> Option<String> {
        self.violation.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All lines, and a digest of them: equal digests mean equal histories.
    pub(crate) fn told(&self) -> (Vec<String>, String) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let digest = Sha256::digest(lines.join("\n").as_bytes());
        let digest = digest[..8].iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        (lines, digest)
    }
}
