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
//! fields (an unknown field is an error) and maps (an absent key is an answer). Selectors of binding rules are in the
//! same language.

mod datum;
mod eval;
mod expr;
mod parse;

pub use datum::Datum;
pub use eval::parse_bool;
pub use expr::{EvalError, MAX_DEPTH, MAX_LENGTH, SyntaxError};

use expr::Expr;

/// A filter, ready to be applied to rows.
#[derive(Clone, Debug)]
pub struct Filter {
    root: Expr,
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

#[cfg(test)]
mod tests;
