//! How a template is rendered, and what that may cost.

/// How a template is rendered.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A key that a map does not have is an error instead of `<no value>`.
    pub error_on_missing_key: bool,
    /// The time that `timestamp` tells, in ns since 1970.
    pub now_ns: i64,
    /// What a render may use.
    pub limits: Limits,
}

/// What a render may use before it is broken off.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the result.
    pub output: usize,
    /// Bytes of all strings, lists and maps that are made on the way.
    pub allocated: usize,
    /// Evaluated actions, operands and rounds of loops; functions count by the size of what they work on.
    pub steps: usize,
    /// Templates, blocks and parentheses within each other.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { output: 16 << 20, allocated: 256 << 20, steps: 5_000_000, depth: 200 }
    }
}

/// How a text is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Syntax {
    /// Left delimiter; empty = `{{`.
    pub left: String,
    /// Right delimiter; empty = `}}`.
    pub right: String,
    /// Functions that may not be called.
    pub denied: Vec<String>,
    /// The task has no `vault` block, and so no token to read secrets with.
    pub without_vault: bool,
}
