//! Erases places from trees, so that two of them can be compared.

use crate::ast::*;
use crate::source::Span;

/// Sets every place to nothing. The kept text of a reference in quotes stays, elsewhere its spaces go.
pub(crate) fn erase_places(expr: &mut Expr) {
    expr.span = Span::default();
    match &mut expr.kind {
        ExprKind::Literal(_) => {}
        ExprKind::Template(parts) => erase_parts(parts),
        ExprKind::Wrap(e) | ExprKind::Paren(e) | ExprKind::Unary(_, e) => erase_places(e),
        ExprKind::GetAttr(e, _, span) => {
            *span = Span::default();
            erase_places(e);
        }
        ExprKind::Tuple(items) => items.iter_mut().for_each(erase_places),
        ExprKind::Object(items) => {
            for (key, value) in items {
                match key {
                    ObjectKey::Name(_, span) => *span = Span::default(),
                    ObjectKey::Expr(e) => erase_places(e),
                }
                erase_places(value);
            }
        }
        ExprKind::Traversal { root_span, steps, verbatim, .. } => {
            *root_span = Span::default();
            for step in steps {
                step.span = Span::default();
            }
            verbatim.retain(|c| !c.is_whitespace());
        }
        ExprKind::Index(a, b) | ExprKind::Binary(a, _, b) => {
            erase_places(a);
            erase_places(b);
        }
        ExprKind::Splat { source, each } => {
            erase_places(source);
            for step in each {
                match step {
                    RelativeStep::Attr(_, span) => *span = Span::default(),
                    RelativeStep::Index(e) => erase_places(e),
                }
            }
        }
        ExprKind::Call { name_span, args, .. } => {
            *name_span = Span::default();
            args.iter_mut().for_each(erase_places);
        }
        ExprKind::Conditional(a, b, c) => [a, b, c].into_iter().for_each(|e| erase_places(e)),
        ExprKind::For(f) => {
            erase_places(&mut f.collection);
            erase_places(&mut f.value);
            f.key.iter_mut().for_each(erase_places);
            f.condition.iter_mut().for_each(erase_places);
        }
    }
}

fn erase_parts(parts: &mut [Part]) {
    for part in parts {
        match part {
            Part::Literal(_) => {}
            Part::Interpolation(e) => erase_places(e),
            Part::If { condition, then, otherwise } => {
                erase_places(condition);
                erase_parts(then);
                erase_parts(otherwise);
            }
            Part::For { collection, body, .. } => {
                erase_places(collection);
                erase_parts(body);
            }
        }
    }
}
