//! Type expressions.

use std::collections::BTreeMap;

use crate::ast::{Expr, ExprKind, ObjectKey};
use crate::diag::Diagnostic;
use crate::source::Source;
use crate::types::Type;
use crate::value::Value;

/// Reads a type expression such as `map(list(string))`.
///
/// # Errors
/// When the expression is no type, with the place of what is wrong.
pub fn type_from_expr(expr: &Expr, source: &Source) -> Result<Type, Diagnostic> {
    let fail = |expr: &Expr, detail: String| {
        Err(Diagnostic::error("Invalid type", detail)
            .at(source, expr.span)
            .hint("write any, bool, number, string, list(T), set(T), map(T), tuple([T, …]) or object({name = T, …})"))
    };
    match &expr.kind {
        ExprKind::Paren(inner) => type_from_expr(inner, source),
        ExprKind::Traversal { root, steps, .. } if steps.is_empty() => match root.as_str() {
            "any" => Ok(Type::Any),
            "bool" => Ok(Type::Bool),
            "number" => Ok(Type::Number),
            "string" => Ok(Type::String),
            "list" | "set" | "map" | "tuple" | "object" => {
                fail(expr, format!("{root} needs the type of what it holds in parentheses"))
            }
            other => fail(expr, format!("there is no type named {other:?}")),
        },
        ExprKind::Call { name, args, .. } => {
            let [arg] = args.as_slice() else {
                return fail(expr, format!("{name}(…) takes exactly one argument"));
            };
            match name.as_str() {
                "list" => Ok(Type::list(type_from_expr(arg, source)?)),
                "set" => Ok(Type::set(type_from_expr(arg, source)?)),
                "map" => Ok(Type::map(type_from_expr(arg, source)?)),
                "tuple" => match &arg.kind {
                    ExprKind::Tuple(items) => Ok(Type::Tuple(
                        items.iter().map(|item| type_from_expr(item, source)).collect::<Result<_, _>>()?,
                    )),
                    _ => fail(arg, "tuple(…) takes a list of types in brackets".into()),
                },
                "object" => match &arg.kind {
                    ExprKind::Object(items) => {
                        let mut attributes = BTreeMap::new();
                        for (key, value) in items {
                            let name = match key {
                                ObjectKey::Name(name, _) => name.clone(),
                                ObjectKey::Expr(Expr { kind: ExprKind::Literal(Value::String(s)), .. }) => s.clone(),
                                ObjectKey::Expr(other) => {
                                    return fail(other, "attribute names must be plain".into());
                                }
                            };
                            attributes.insert(name, type_from_expr(value, source)?);
                        }
                        Ok(Type::Object(attributes))
                    }
                    _ => fail(arg, "object(…) takes a map of names to types in braces".into()),
                },
                "optional" => fail(expr, "optional(…) is not supported in job files".into()),
                other => fail(expr, format!("there is no type named {other:?}")),
            }
        }
        _ => fail(expr, "a type must be written as a keyword or a call".into()),
    }
}
