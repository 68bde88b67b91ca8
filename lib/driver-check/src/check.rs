//! What a check is, and what can become of one.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::lab::Lab;

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

/// What became of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It held.
    Passed,
    /// It did not hold, and what was seen.
    Failed(String),
    /// The plugin does not offer what it is about, or the suite was not told how to make use of it.
    NotApplicable(String),
}

/// Why a check ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    Failed(String),
    NotApplicable(String),
}

/// How a check ends.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// It does not hold.
pub(crate) fn failed<T>(seen: impl Into<String>) -> Outcome<T> {
    Err(Stop::Failed(seen.into()))
}

/// It cannot be asked of this plugin.
pub(crate) fn not_applicable<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Stop::NotApplicable(why.into()))
}

/// Ends the check with what was seen unless the condition holds.
macro_rules! hold {
    ($condition:expr, $($seen:tt)+) => {
        // Not negated: a comparison with something that is no number must not hold.
        if $condition {
        } else {
            return Err($crate::check::Stop::Failed(format!($($seen)+)));
        }
    };
}
pub(crate) use hold;

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
