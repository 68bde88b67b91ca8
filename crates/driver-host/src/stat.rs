//! The kernel's facts about a process, and its identity.

use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// Distinguishes a process from all others with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Birth {
    /// Start time in clock ticks since boot.
    start_ticks: u64,
    /// Device and inode of the program; 0 where reading is forbidden.
    program: (u64, u64),
}

impl Birth {
    /// `None` when there is no such process, or only a zombie. May block on the file system of its program.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = Stat::of(pid)?;
        let program = std::fs::metadata(format!("/proc/{pid}/exe"));
        let program = program.map(|meta| (meta.dev(), meta.ino())).unwrap_or_default();
        Some(Self { start_ticks: stat.start_ticks, program })
    }
}

/// The kernel's facts about a process, read without blocking.
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
    /// `None` when there is no such process, or only a zombie.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in the second field may hold any character, so fields count from its end.
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

    /// The birth of this very process; `None` if it has ended since, even if its number was reused.
    pub(crate) fn birth(&self) -> Option<Birth> {
        Birth::of(self.pid).filter(|birth| birth.start_ticks == self.start_ticks)
    }
}

/// Changes at every boot of the machine.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}
