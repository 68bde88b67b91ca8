//! Applying a filter to a row.

use crate::datum::Datum;
use crate::expr::{EvalError, Expr, Names, Operator, Selector};

/// The variables of the enclosing `any`/`all`, innermost last.
type Scope<'a> = Vec<(String, Datum)>;

pub(super) fn eval(expr: &Expr, row: &Datum) -> Result<bool, EvalError> {
    in_scope(expr, row, &mut Scope::new())
}

fn in_scope(expr: &Expr, row: &Datum, scope: &mut Scope<'_>) -> Result<bool, EvalError> {
    match expr {
        Expr::And(a, b) => Ok(in_scope(a, row, scope)? && in_scope(b, row, scope)?),
        Expr::Or(a, b) => Ok(in_scope(a, row, scope)? || in_scope(b, row, scope)?),
        Expr::Not(a) => Ok(!in_scope(a, row, scope)?),
        Expr::Match { selector, operator } => match find(selector, row, scope)? {
            Some(value) => test(selector, operator, value),
            None => Ok(matches!(
                operator,
                Operator::NotEqual(_) | Operator::NotIn(_) | Operator::NotMatches(_) | Operator::IsEmpty
            )),
        },
        Expr::Each { all, selector, names, body } => each(*all, selector, names, body, row, scope),
    }
}

fn each(
    all: bool,
    selector: &Selector,
    names: &Names,
    body: &Expr,
    row: &Datum,
    scope: &mut Scope<'_>,
) -> Result<bool, EvalError> {
    let pairs: Vec<(Datum, Datum, bool)> = match find(selector, row, scope)? {
        None | Some(Datum::Null) => Vec::new(),
        Some(Datum::List(list)) => {
            list.iter().enumerate().map(|(i, v)| (Datum::Unsigned(i as u64), v.clone(), false)).collect()
        }
        Some(Datum::Map(map)) => map.iter().map(|(k, v)| (Datum::Text(k.clone()), v.clone(), true)).collect(),
        Some(other) => {
            let operation = if all { "all" } else { "any" };
            return Err(EvalError::Operation { operation, kind: other.kind(), selector: selector.text.clone() });
        }
    };
    for (key, value, keyed) in pairs {
        let depth = scope.len();
        if let Some(name) = &names.single {
            // Of a map the single name stands for the key.
            scope.push((name.clone(), if keyed { key.clone() } else { value.clone() }));
        }
        if let Some(name) = &names.index {
            scope.push((name.clone(), key));
        }
        if let Some(name) = &names.value {
            scope.push((name.clone(), value));
        }
        let result = in_scope(body, row, scope);
        scope.truncate(depth);
        if result? != all {
            return Ok(!all);
        }
    }
    Ok(all)
}

/// The value at the selector; None when a map has no such key.
fn find<'d>(selector: &Selector, row: &'d Datum, scope: &'d Scope<'_>) -> Result<Option<&'d Datum>, EvalError> {
    let mut current = row;
    let mut parts = selector.parts.iter().enumerate().peekable();
    if let Some((_, first)) = parts.peek()
        && let Some((_, bound)) = scope.iter().rev().find(|(name, _)| name == *first)
    {
        current = bound;
        parts.next();
    }
    while let Some((i, part)) = parts.next() {
        let missing = |why: String| EvalError::NotFound { pointer: selector.pointer(), part: i, why };
        current = match current {
            Datum::Struct(fields) => match fields.iter().find(|(name, _)| name == part) {
                Some((_, value)) => value,
                None => {
                    return Err(missing(format!("couldn't find key: struct field with name {part:?}")));
                }
            },
            Datum::Map(map) => match map.iter().find(|(name, _)| name == part) {
                Some((_, value)) => value,
                None if parts.peek().is_none() => return Ok(None),
                None => return Err(missing(format!("couldn't find key {part:?}"))),
            },
            // An absent object or map: nothing is in it.
            Datum::Null => return Ok(None),
            Datum::List(list) => match part.parse::<usize>() {
                Ok(n) if n < list.len() => &list[n],
                Ok(n) => {
                    return Err(missing(format!("index {n} is out of range (length = {})", list.len())));
                }
                Err(_) => return Err(missing(format!("{part:?} is not the index of a list"))),
            },
            other => return Err(missing(format!("{part:?} was asked of a {}", other.kind()))),
        };
    }
    Ok(Some(current))
}

fn test(selector: &Selector, operator: &Operator, value: &Datum) -> Result<bool, EvalError> {
    let operation = |operation| EvalError::Operation { operation, kind: value.kind(), selector: selector.text.clone() };
    match operator {
        Operator::Equal(literal) => equal(selector, value, literal),
        Operator::NotEqual(literal) => equal(selector, value, literal).map(|e| !e),
        Operator::In(literal) => member(selector, value, literal),
        Operator::NotIn(literal) => member(selector, value, literal).map(|m| !m),
        Operator::IsEmpty => value.is_empty().ok_or_else(|| operation("is empty/is not empty")),
        Operator::IsNotEmpty => value.is_empty().map(|e| !e).ok_or_else(|| operation("is empty/is not empty")),
        Operator::Matches(pattern) => {
            value.text().map(|t| pattern.is_match(t)).ok_or_else(|| operation("matches/not matches"))
        }
        Operator::NotMatches(pattern) => {
            value.text().map(|t| !pattern.is_match(t)).ok_or_else(|| operation("matches/not matches"))
        }
    }
}

fn equal(selector: &Selector, value: &Datum, literal: &str) -> Result<bool, EvalError> {
    let bad =
        || EvalError::Coercion { literal: literal.to_owned(), selector: selector.text.clone(), kind: value.kind() };
    Ok(match value {
        Datum::Text(text) => text == literal,
        Datum::Bool(b) => *b == parse_bool(literal).ok_or_else(bad)?,
        Datum::Signed(n) => *n == literal.parse::<i64>().map_err(|_| bad())?,
        Datum::Unsigned(n) => *n == literal.parse::<u64>().map_err(|_| bad())?,
        #[allow(clippy::float_cmp, reason = "the filter asks for equality")]
        Datum::Float(n) => *n == literal.parse::<f64>().map_err(|_| bad())?,
        Datum::Null => literal.is_empty(),
        Datum::List(_) | Datum::Map(_) | Datum::Struct(_) => {
            return Err(EvalError::Operation {
                operation: "==/!=",
                kind: value.kind(),
                selector: selector.text.clone(),
            });
        }
    })
}

fn member(selector: &Selector, value: &Datum, literal: &str) -> Result<bool, EvalError> {
    match value {
        Datum::Text(text) => Ok(text.contains(literal)),
        Datum::Map(map) => Ok(map.iter().any(|(key, _)| key == literal)),
        Datum::Null => Ok(false),
        Datum::List(list) => {
            for item in list {
                if equal(selector, item, literal)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => {
            Err(EvalError::Operation { operation: "in/contains", kind: other.kind(), selector: selector.text.clone() })
        }
    }
}

/// What Go takes for a boolean.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
