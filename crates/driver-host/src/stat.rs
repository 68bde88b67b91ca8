//! What the kernel tells of a process, and by what one is known again.

use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// What no other process with the same number has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Birth {
    /// Start time in clock ticks since boot.
    start_ticks: u64,
    /// Device and inode of the program; 0 where it may not be asked.
    program: (u64, u64),
}

impl Birth {
    /// `None` when there is no such process, or only its remains. May block, with the file system that its program lies on.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = Stat::of(pid)?;
        let program = std::fs::metadata(format!("/proc/{pid}/exe"));
        let program = program.map(|meta| (meta.dev(), meta.ino())).unwrap_or_default();
        Some(Self { start_ticks: stat.start_ticks, program })
    }
}

/// What the kernel tells of a process without asking it or a file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) pid: u32,
    /// Its parent.
    pub(crate) parent: u32,
    /// Its process group.
    pub(crate) group: u32,
    start_ticks: u64,
}

impl Stat {
    /// `None` when there is no such process, or only its remains.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in the second field may hold anything, so fields count from its end.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        if *fields.first()? == "Z" {
            return None;
        }
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            start_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    /// The birth of this very process, which may have ended, and its number been given away, since it was looked at.
    pub(crate) fn birth(&self) -> Option<Birth> {
        Birth::of(self.pid).filter(|birth| birth.start_ticks == self.start_ticks)
    }
}

/// Changes with every boot of the machine.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}
