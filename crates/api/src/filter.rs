//! The `filter=` language of list queries (go-bexpr): `Status == "running" and "web" in Tags`.
//!
//! ```text
//! expression = and { "or" and }            and = not { "and" not }            not = "not" not | "(" expression ")" |
//! term term       = ("any"|"all") selector "as" name [, name] "{" expression "}"
//!            | selector (== | != | [not] contains | [not] matches) value
//!            | selector "is" ["not"] "empty"
//!            | value ["not"] "in" selector
//! selector   = Name { .Name | ["key"] } | "/json/pointer"          value = "text" | `text` | number | bare word
//! ```
//!
//! Rows are looked at in their serialised form ([`Datum`]), which keeps the difference between objects with fixed
//! fields (an unknown field is an error) and maps (an absent key is an answer).

mod datum;
mod eval;
mod parse;

pub use datum::Datum;

/// Longest expression that is read; deeper or longer ones are refused before they cost anything.
pub const MAX_LENGTH: usize = 8 * 1024;
/// Deepest nesting of parentheses, `not` and `any`/`all`.
pub const MAX_DEPTH: usize = 64;

/// A filter, ready to be applied to rows.
#[derive(Clone, Debug)]
pub struct Filter {
    root: Expr,
}

/// Why a text is not a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// The text breaks the grammar.
    #[error("1:{} ({offset}): {expected}", offset + 1)]
    At {
        /// Byte offset.
        offset: usize,
        /// What stands there and what was expected.
        expected: String,
    },
    /// A `matches` has a right side that is not a regular expression.
    #[error("failed to compile regular expression {pattern:?}: {why}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What the expression parser says.
        why: String,
    },
    /// The text is longer than [`MAX_LENGTH`].
    #[error("the filter has {0} bytes, at most {MAX_LENGTH} are read")]
    TooLong(usize),
}

/// Why a filter could not be applied to a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The row has no such field.
    #[error("error finding value in datum: {pointer} at part {part}: {why}")]
    NotFound {
        /// The selector as a pointer, `/Foo/Bar`.
        pointer: String,
        /// Position of the part that was not found.
        part: usize,
        /// What is missing.
        why: String,
    },
    /// The operator has no meaning for the field.
    #[error("Cannot perform {operation} operations on type {kind} for selector: {selector:?}")]
    Operation {
        /// Operator.
        operation: &'static str,
        /// Type of the field.
        kind: &'static str,
        /// The selector.
        selector: String,
    },
    /// The literal does not fit the field.
    #[error("error coercing match value {literal:?} to the type of {selector:?}, {kind}")]
    Coercion {
        /// The literal.
        literal: String,
        /// The selector.
        selector: String,
        /// Type of the field.
        kind: &'static str,
    },
    /// The row itself could not be looked at.
    #[error("the row has no serialised form: {0}")]
    Row(String),
}

impl Filter {
    /// Reads a filter.
    ///
    /// # Errors
    /// When the text breaks the grammar.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        if text.len() > MAX_LENGTH {
            return Err(SyntaxError::TooLong(text.len()));
        }
        parse::parse(text).map(|root| Self { root })
    }

    /// Does the row match?
    ///
    /// # Errors
    /// When the filter names a field that the row does not have, or compares what cannot be compared.
    pub fn matches<T: serde::Serialize + ?Sized>(&self, row: &T) -> Result<bool, EvalError> {
        let datum = Datum::of(row).map_err(|e| EvalError::Row(e.to_string()))?;
        self.matches_datum(&datum)
    }

    /// As [`Self::matches`], for a row in serialised form.
    ///
    /// # Errors
    /// As [`Self::matches`].
    pub fn matches_datum(&self, datum: &Datum) -> Result<bool, EvalError> {
        eval::eval(&self.root, datum)
    }
}

#[derive(Clone, Debug)]
enum Expr {
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Match { selector: Selector, operator: Operator },
    Each { all: bool, selector: Selector, names: Names, body: Box<Expr> },
}

/// The path to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Selector {
    parts: Vec<String>,
    /// As it was written.
    text: String,
}

impl Selector {
    fn pointer(&self) -> String {
        self.parts.iter().fold(String::new(), |mut text, part| {
            text.push('/');
            text.push_str(&part.replace('~', "~0").replace('/', "~1"));
            text
        })
    }
}

#[derive(Clone, Debug)]
enum Operator {
    Equal(String),
    NotEqual(String),
    /// `value in selector`, also written `selector contains value`.
    In(String),
    NotIn(String),
    IsEmpty,
    IsNotEmpty,
    Matches(regex::Regex),
    NotMatches(regex::Regex),
}

/// What the variables of `any`/`all` are called. Of a map the single name is the key, of a list the element.
#[derive(Clone, Debug, Default)]
struct Names {
    single: Option<String>,
    index: Option<String>,
    value: Option<String>,
}

#[cfg(test)]
mod tests;
