//! What can become of a check.

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

impl Stop {
    /// The reason alone.
    pub(crate) fn into_text(self) -> String {
        let (Self::Failed(why) | Self::NotApplicable(why)) = self;
        why
    }
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
            return Err($crate::outcome::Stop::Failed(format!($($seen)+)));
        }
    };
}
pub(crate) use hold;
