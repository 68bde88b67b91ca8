//! What a check is.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::lab::Lab;
use crate::outcome::Outcome;

/// One thing that hosts rely on.
#[derive(Clone, Copy)]
pub struct Check {
    /// `group/name`
    pub id: &'static str,
    /// Where the rule comes from: the number in the protocol's conformance checklist, or `remote` for our extension.
    pub section: &'static str,
    /// What is checked, as a statement that should hold.
    pub title: &'static str,
    /// What it means for users when it does not hold.
    pub meaning: &'static str,
    pub(crate) run: fn(Arc<Lab>) -> Running,
}

pub(crate) type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

impl Check {
    /// What stands before the slash.
    pub fn group(&self) -> &'static str {
        self.id.split('/').next().unwrap_or(self.id)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Rows of a table of checks: id, section, title, meaning, function.
macro_rules! table {
    ($($id:literal, $section:literal, $title:literal, $meaning:literal, $run:ident;)+) => {
        pub(super) const CHECKS: &[$crate::check::Check] = &[$(
            $crate::check::Check {
                id: $id,
                section: $section,
                title: $title,
                meaning: $meaning,
                run: |lab| Box::pin(async move { $run(&lab).await }),
            },
        )+];
    };
}
pub(crate) use table;
