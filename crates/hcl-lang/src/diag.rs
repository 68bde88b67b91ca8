//! What is wrong, where, and what to do about it – and the one function that shows it to people.

use std::fmt;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use crate::source::{Location, Source, Span};

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Severity {
    /// The input is used all the same.
    Warning,
    /// The input is refused.
    Error,
}

/// One finding about an input text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// A few words, the same for every finding of its kind.
    pub summary: String,
    /// What exactly is wrong here.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Where it is, when it is anywhere.
    pub location: Option<Location>,
}

impl Diagnostic {
    /// An error without a place.
    pub fn error(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { severity: Severity::Error, summary: summary.into(), detail: detail.into(), hint: None, location: None }
    }

    /// A warning without a place.
    pub fn warning(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(summary, detail) }
    }

    /// Points the finding at a place.
    #[must_use]
    pub fn at(mut self, source: &Source, span: Span) -> Self {
        self.location = Some(Location { source: source.clone(), span });
        self
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Whether the input is refused because of this.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The one-line form: `file:line:column: summary: detail`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        write!(f, "{}", self.summary)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        if let Some(hint) = &self.hint {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

/// Most findings reported about one input.
pub const FINDINGS_MAX: usize = 50;

/// Drops repetitions (a mistake in a `dynamic` block is found once per block made), and all but the first
/// [`FINDINGS_MAX`]: nobody reads more, and showing each takes time.
pub fn tidy(diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut seen = std::collections::BTreeSet::new();
    let mut kept = Vec::new();
    let mut further = 0;
    for diagnostic in diagnostics {
        let span = diagnostic.location.as_ref().map(|l| (l.span.start, l.span.end));
        if !seen.insert((diagnostic.summary.clone(), diagnostic.detail.clone(), span)) {
            continue;
        }
        if kept.len() < FINDINGS_MAX {
            kept.push(diagnostic);
        } else {
            further += 1;
        }
    }
    if further > 0 {
        let worst = kept.iter().map(|d| d.severity).max().unwrap_or(Severity::Warning);
        kept.push(Diagnostic {
            severity: worst,
            ..Diagnostic::error("Further findings", format!("{further} more are not shown"))
        });
    }
    kept
}

/// Shows findings with file, line, column, the line itself and the hint.
///
/// `colour` adds terminal escapes; whether the terminal wants them is the caller's knowledge.
pub fn render(diagnostics: &[Diagnostic], colour: bool) -> String {
    let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
    let mut out = String::new();
    for diagnostic in diagnostics {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&render_one(diagnostic, &renderer));
        out.push('\n');
    }
    out
}

fn render_one(diagnostic: &Diagnostic, renderer: &Renderer) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(clean(&diagnostic.summary));
    let hint = diagnostic.hint.as_ref().map(|hint| Level::HELP.message(clean(hint)));
    match &diagnostic.location {
        Some(location) => {
            // Only the lines around the place are handed over: the renderer walks all it is given.
            let (text, first_line, span) = excerpt(location);
            let snippet = Snippet::source(text)
                .line_start(first_line)
                .path(location.source.name().to_owned())
                .annotation(AnnotationKind::Primary.span(span).label(clean(&diagnostic.detail)));
            let mut group = title.element(snippet);
            if let Some(hint) = hint {
                group = group.element(hint);
            }
            renderer.render(&[group])
        }
        None => {
            let mut group = title.element(Level::NOTE.message(clean(&diagnostic.detail)));
            if let Some(hint) = hint {
                group = group.element(hint);
            }
            renderer.render(&[group])
        }
    }
}

/// Terminal control characters of the input must not reach the terminal through a message.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// The lines a span touches (at most a handful), the number of the first, the span in them.
fn excerpt(location: &Location) -> (String, usize, std::ops::Range<usize>) {
    const LINES: usize = 6;
    const LINE_BYTES: usize = 400;
    let text = location.source.text();
    let mut start = location.span.start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = location.span.end.clamp(start, text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
    let first_line = text[..start].bytes().filter(|b| *b == b'\n').count() + 1;

    // A minified one-line JSON file is cut around the place, otherwise it would fill the screen.
    let mut from = line_start.max(start.saturating_sub(LINE_BYTES / 2));
    while !text.is_char_boundary(from) {
        from -= 1;
    }
    let mut to = start;
    for (count, line) in text[start..].split_inclusive('\n').enumerate() {
        if count >= LINES || (count > 0 && to >= end) || to - start >= LINE_BYTES {
            break;
        }
        let mut take = line.len().min(LINE_BYTES);
        while !line.is_char_boundary(take) {
            take -= 1;
        }
        to += take;
        if take < line.len() {
            break;
        }
    }
    let piece = text[from..to].trim_end_matches(['\n', '\r']);
    let begin = (start - from).min(piece.len());
    let finish = (end - from).min(piece.len()).max(begin);
    (clean_excerpt(piece), first_line, begin..finish)
}

/// Keeps byte offsets: every control character becomes one byte that is harmless.
fn clean_excerpt(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_ascii_control() => '?',
            c => c,
        })
        .collect()
}
