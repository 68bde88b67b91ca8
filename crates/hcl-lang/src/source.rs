//! Named source texts and positions inside them.

use std::fmt;
use std::sync::Arc;

/// A text with the name it is shown under in diagnostics.
///
/// Cheap to clone: every diagnostic carries its source, so that rendering needs nothing else.
#[derive(Clone, PartialEq, Eq)]
pub struct Source(Arc<SourceInner>);

#[derive(PartialEq, Eq)]
struct SourceInner {
    name: String,
    text: String,
}

impl Source {
    /// Wraps `text`; a leading byte order mark is dropped, because no position may point at it.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.starts_with('\u{feff}') {
            text.drain(..'\u{feff}'.len_utf8());
        }
        Self(Arc::new(SourceInner { name: name.into(), text }))
    }

    /// The name shown in diagnostics, usually a path.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The text of `span`, empty when the span does not fall on character boundaries of this text.
    pub fn slice(&self, span: Span) -> &str {
        self.0.text.get(span.start..span.end).unwrap_or("")
    }

    /// One-based line and column (in characters) of a byte offset.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let text = &self.0.text;
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &text[..offset];
        let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        (line, before[start..].chars().count() + 1)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.0.name).finish()
    }
}

/// A byte range in a [`Source`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// A span from `start` up to but not including `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end: end.max(start) }
    }

    /// The smallest span that covers both.
    pub fn to(self, other: Span) -> Span {
        Span::new(self.start.min(other.start), self.end.max(other.end))
    }
}

impl From<std::ops::Range<usize>> for Span {
    fn from(range: std::ops::Range<usize>) -> Self {
        Span::new(range.start, range.end)
    }
}

/// A span together with the text it points into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// The text.
    pub source: Source,
    /// The place in it.
    pub span: Span,
}

impl Location {
    /// One-based line of the first character.
    pub fn line(&self) -> usize {
        self.source.position(self.span.start).0
    }

    /// One-based column, in characters, of the first character.
    pub fn column(&self) -> usize {
        self.source.position(self.span.start).1
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column) = self.source.position(self.span.start);
        write!(f, "{}:{line}:{column}", self.source.name())
    }
}
