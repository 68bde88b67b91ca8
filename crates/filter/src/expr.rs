//! An expression as it was read, and what can be wrong with it.

/// Longest expression that is read; deeper or longer ones are refused before they cost anything.
pub const MAX_LENGTH: usize = 8 * 1024;
/// Deepest nesting of parentheses, `not` and `any`/`all`.
pub const MAX_DEPTH: usize = 64;

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

#[derive(Clone, Debug)]
pub(crate) enum Expr {
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Match { selector: Selector, operator: Operator },
    Each { all: bool, selector: Selector, names: Names, body: Box<Expr> },
}

/// The path to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) parts: Vec<String>,
    /// As it was written.
    pub(crate) text: String,
}

impl Selector {
    pub(crate) fn pointer(&self) -> String {
        self.parts.iter().fold(String::new(), |mut text, part| {
            text.push('/');
            text.push_str(&part.replace('~', "~0").replace('/', "~1"));
            text
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Operator {
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
pub(crate) struct Names {
    pub(crate) single: Option<String>,
    pub(crate) index: Option<String>,
    pub(crate) value: Option<String>,
}
