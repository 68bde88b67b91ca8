//! The formats of the state that servers share, and which of them a release reads.
//!
//! A format is all that one server writes and another one reads: the keys of a store, the rows of a batch and what they
//! hold. Servers agree on one by themselves (`store::formats`), so a release that adds a format also writes the one
//! before. Its number goes up only with a change that a reader of the former one must not ignore: a new table, a new
//! encoding, a new meaning of a field. A new field that an older release may drop without harm needs none.
//!
//! A row stays in the format that it was written in until it changes. So a release reads the rows of every format up to
//! the one in use.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of a format.
///
/// 1: tables and rows as [`crate::Table`] and the codec of this crate have them; allocations with tags up to 33.
///
/// 2: root keys that sign with RS256 and encrypt ([`model::signing`]), and the tables for which
/// [`crate::Table::since`] says so.
///
/// 3: limits of namespaces, which a reader of format 2 would not keep to, and allocations that were displaced or for
/// which others were (tag 34).
///
/// 4: dynamic host volumes, and jobs with `max_run_duration`, devices, secrets or such volumes. A reader of format 3
/// would drop what allocations and remote tasks say of them: it would give a device twice, end nothing, and place tasks
/// where nobody reads their secrets.
///
/// 5: the batches of one transaction in one record, and snapshots, compressed in etcd. SQLite has nothing new.
pub type Format = u32;

/// The formats that this release reads. It writes each of them.
pub const FORMATS: Versions = Versions { lowest: 1, highest: 5 };

/// The format from which on the state may hold variables and keys that encrypt them.
pub const VARIABLES: Format = 2;

/// The format from which on namespaces may have limits: a leader that reads no higher one would ignore them.
pub const LIMITS: Format = 3;

/// The format from which on allocations may displace others.
pub const PREEMPTION: Format = 3;

/// The format from which on jobs may ask for devices.
pub const DEVICES: Format = 4;

/// The format from which on there are dynamic host volumes.
pub const VOLUMES: Format = 4;

/// The format from which on tasks may have secrets.
pub const SECRETS: Format = 4;

/// The format from which on jobs may have `max_run_duration`.
pub const MAX_RUN: Format = 4;

/// The format from which on what servers share in etcd is compressed.
pub const PACKED: Format = 5;

/// The versions of something that a server knows: all from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The lowest.
    pub lowest: u32,
    /// The highest.
    pub highest: u32,
}

/// Version 1 alone: that is known to servers that say nothing of it.
impl Default for Versions {
    fn default() -> Self {
        Self { lowest: 1, highest: 1 }
    }
}

impl Versions {
    /// Whether that version is one of them.
    #[must_use]
    pub fn has(self, version: u32) -> bool {
        (self.lowest..=self.highest).contains(&version)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lowest == self.highest {
            write!(f, "{}", self.lowest)
        } else {
            write!(f, "{} to {}", self.lowest, self.highest)
        }
    }
}
