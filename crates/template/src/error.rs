//! What people are told of a template that cannot be read or rendered: where it is, and the line itself.

use std::fmt;

/// A mistake in a template, or in what it does with its data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// Name of the template.
    pub template: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line itself, cut when it is long.
    pub text: String,
    /// What is wrong, and what to do where there is something.
    pub message: String,
}

/// Longest part of a line that is shown.
const SHOWN: usize = 120;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { template, line, column, text, message } = self;
        write!(f, "template {template} line {line} column {column}: {message}")?;
        if text.trim().is_empty() { Ok(()) } else { write!(f, " (in: {})", text.trim()) }
    }
}

/// A mistake at an offset of the text, before the text is at hand.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }

    /// With the place as people count it.
    pub(crate) fn located(self, template: &str, source: &str) -> Error {
        let mut at = self.at.min(source.len());
        while !source.is_char_boundary(at) {
            at -= 1;
        }
        let before = &source[..at];
        let start = before.rfind('\n').map_or(0, |n| n + 1);
        let line_text = source[start..].lines().next().unwrap_or_default();
        let column = before[start..].chars().count() + 1;
        // A part of a long line that holds the place.
        let skip = column.saturating_sub(SHOWN);
        let text = line_text.chars().skip(skip).take(SHOWN).collect();
        Error {
            template: template.to_owned(),
            line: before.matches('\n').count() + 1,
            column,
            text,
            message: self.message,
        }
    }
}
