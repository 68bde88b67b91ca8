//! How a scenario went.

use super::{lists, tree::Difference};

/// How one scenario went.
pub(super) struct Played {
    pub(super) name: String,
    pub(super) seconds: f64,
    pub(super) outcome: Result<Vec<Difference>, String>,
}

impl Played {
    /// Broken, or with a difference that is not on the list.
    pub(super) fn is_wrong(&self) -> bool {
        self.outcome.as_ref().map_or(true, |found| found.iter().any(|d| lists::explain(&self.name, found, d).is_none()))
    }
}
