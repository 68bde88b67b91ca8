//! What a driver finds when it looks at its runtime for `drover driver doctor`.

/// What a finding means for tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// Tasks run; something of what the driver offers is not there.
    Warning,
    /// Tasks cannot run.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What, in a word or two (`clock`, `rights: create pods`).
    pub what: String,
    /// What it means.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it; empty for [`Verdict::Pass`].
    pub remedy: String,
}

impl Finding {
    /// It is as it should be.
    pub fn pass(what: impl Into<String>, found: impl ToString) -> Self {
        Self { what: what.into(), verdict: Verdict::Pass, found: found.to_string(), remedy: String::new() }
    }

    /// Tasks run without something.
    pub fn warning(what: impl Into<String>, found: impl ToString, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Warning, found: found.to_string(), remedy: remedy.into() }
    }

    /// Tasks cannot run.
    pub fn fail(what: impl Into<String>, found: impl ToString, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Fail, found: found.to_string(), remedy: remedy.into() }
    }
}
