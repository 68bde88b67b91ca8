//! What is wrong with a job, and what is worth a word, in the layout that API clients print.

use std::fmt;

/// Longest text of one mistake.
const MAX_TEXT: usize = 2_000;

/// A text that may repeat what somebody has sent, however long that is: its beginning and its end.
fn bounded(text: String) -> String {
    let length = text.chars().count();
    if length <= MAX_TEXT {
        return text;
    }
    let (start, end): (String, String) =
        (text.chars().take(MAX_TEXT / 4).collect(), text.chars().skip(length - MAX_TEXT / 4).collect());
    format!("{start}… ({} characters are left out) …{end}", length - MAX_TEXT / 2)
}

/// One mistake, or the mistakes of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A mistake.
    Text(String),
    /// The mistakes of a part: `Task group web validation failed: …`.
    In {
        /// Everything before the colon.
        prefix: String,
        /// Description of the mistake.
        errors: ValidationErrors,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::In { prefix, errors } => write!(f, "{prefix}: {errors}"),
        }
    }
}

/// Why a job is refused. Displayed as `N error(s) occurred:` and one line for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationErrors(pub Vec<Problem>);

impl std::error::Error for ValidationErrors {}

impl fmt::Display for ValidationErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => write!(f, "1 error occurred:\n\t* {one}\n\n"),
            many => {
                write!(f, "{} errors occurred:", many.len())?;
                for problem in many {
                    write!(f, "\n\t* {problem}")?;
                }
                f.write_str("\n\n")
            }
        }
    }
}

impl ValidationErrors {
    pub(super) fn text(&mut self, text: impl Into<String>) {
        self.0.push(Problem::Text(bounded(text.into())));
    }
    pub(super) fn when(&mut self, wrong: bool, text: impl FnOnce() -> String) {
        if wrong {
            self.text(text());
        }
    }
    pub(super) fn part(&mut self, prefix: impl Into<String>, errors: Self) {
        if !errors.0.is_empty() {
            self.0.push(Problem::In { prefix: bounded(prefix.into()), errors });
        }
    }
    pub(super) fn refusals(&mut self, texts: Vec<String>) {
        self.0.extend(texts.into_iter().map(bounded).map(Problem::Text));
    }
    /// Every mistake on a line of its own, with the parts that it is in before it.
    #[must_use]
    pub fn flat(&self) -> Vec<String> {
        self.0
            .iter()
            .flat_map(|p| match p {
                Problem::Text(text) => vec![text.clone()],
                Problem::In { prefix, errors } => errors.flat().into_iter().map(|e| format!("{prefix}: {e}")).collect(),
            })
            .collect()
    }
}

/// What is accepted but worth a word. Displayed as the `Warnings` text of the API; empty when there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings(pub Vec<String>);

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        writeln!(f, "{} warning(s):", self.0.len())?;
        self.0.iter().try_for_each(|w| write!(f, "\n* {w}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_fits_stays_as_it_is() {
        assert_eq!(bounded("ü".repeat(MAX_TEXT)), "ü".repeat(MAX_TEXT));
    }
}
