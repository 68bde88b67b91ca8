//! Evaluation: tree + variables + functions → value.
//!
//! Work is bounded: every step and every byte copied is charged to a budget that one file shares, so
//! that no input takes unbounded time or memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::*;
pub use crate::budget::{BUDGET, Budget, OverBudget};
use crate::convert::convert;
use crate::diag::Diagnostic;
use crate::functions::{Args, Body, Function, FunctionSet};
use crate::operators;
use crate::source::{Source, Span};
use crate::suggest::did_you_mean;
use crate::type_expr::type_from_expr;
use crate::types::{Type, unify};
use crate::value::Value;

const STEP_COST: u64 = 48;
/// Deepest recursion of the evaluator, whatever the parser lets through.
const DEPTH_MAX: usize = 400;

/// Summary of the finding that a reference names nothing.
pub(crate) const UNKNOWN_VARIABLE: &str = "Unknown variable";

/// What happens when a name is not defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undefined {
    /// It is an error.
    Error,
    /// The reference stays text, in `${}`: it is resolved where the task runs.
    KeepText,
    /// No variables at all are allowed here, and no functions.
    Constant,
}

/// What an expression may refer to.
#[derive(Clone, Debug)]
pub struct Context {
    /// Variables by name.
    pub variables: BTreeMap<String, Value>,
    /// Functions by name.
    pub functions: FunctionSet,
    /// What happens when a name is not defined.
    pub undefined: Undefined,
    /// What may be spent.
    pub budget: Budget,
}

impl Context {
    /// The same without anything to refer to.
    pub(crate) fn without_variables(self) -> Self {
        Context { variables: BTreeMap::new(), ..self }
    }

    /// For places where only constants may stand.
    pub fn constant(budget: Budget) -> Self {
        Context { variables: BTreeMap::new(), functions: FunctionSet::none(), undefined: Undefined::Constant, budget }
    }
}

/// Variables of enclosing `for` expressions and `dynamic` blocks, innermost first.
#[derive(Clone, Default, Debug)]
pub struct Scope(Option<Arc<Frame>>);

#[derive(Debug)]
struct Frame {
    name: String,
    value: Value,
    outer: Scope,
}

impl Scope {
    /// This scope with one more variable.
    #[must_use]
    pub fn with(&self, name: impl Into<String>, value: Value) -> Scope {
        Scope(Some(Arc::new(Frame { name: name.into(), value, outer: self.clone() })))
    }

    fn get(&self, name: &str) -> Option<&Value> {
        let mut scope = self;
        while let Some(frame) = &scope.0 {
            if frame.name == name {
                return Some(&frame.value);
            }
            scope = &frame.outer;
        }
        None
    }

    fn names(&self) -> Vec<&str> {
        let mut out = Vec::new();
        let mut scope = self;
        while let Some(frame) = &scope.0 {
            out.push(frame.name.as_str());
            scope = &frame.outer;
        }
        out
    }
}

/// An expression ready to be evaluated: with its text, and the variables of the blocks around it.
#[derive(Clone, Debug)]
pub struct Expression {
    /// The tree.
    pub expr: Arc<Expr>,
    /// The text it was read from.
    pub source: Source,
    /// Variables of enclosing `dynamic` blocks.
    pub scope: Scope,
}

impl Expression {
    /// An expression outside of any `dynamic` block.
    pub fn new(expr: Arc<Expr>, source: Source) -> Self {
        Self { expr, source, scope: Scope::default() }
    }

    /// Evaluates it.
    ///
    /// # Errors
    /// The first fault, with its place: an unknown name, a wrong type, a failed function, too much work or depth.
    pub fn evaluate(&self, context: &Context) -> Result<Value, Diagnostic> {
        let evaluator = Evaluator { context, source: &self.source };
        let value = evaluator.eval(&self.expr, &self.scope, 0)?;
        if !value.depth_within(crate::value::VALUE_DEPTH_MAX) {
            return Err(Diagnostic::error("Value nested too deeply", "this value has more levels than are allowed")
                .at(&self.source, self.expr.span));
        }
        Ok(value)
    }

    /// Evaluates it and converts the result.
    ///
    /// # Errors
    /// As [`Expression::evaluate`], and when the value does not convert.
    pub fn evaluate_as(&self, context: &Context, ty: &Type) -> Result<Value, Diagnostic> {
        let value = self.evaluate(context)?;
        convert(&value, ty).map_err(|e| self.diagnostic("Unsuitable value", e.to_string()))
    }

    /// An error about this expression.
    pub fn diagnostic(&self, summary: &str, detail: impl Into<String>) -> Diagnostic {
        Diagnostic::error(summary, detail).at(&self.source, self.expr.span)
    }
}

/// Evaluates trees of one source.
pub(crate) struct Evaluator<'a> {
    pub(crate) context: &'a Context,
    pub(crate) source: &'a Source,
}

type Eval<T = Value> = Result<T, Diagnostic>;

impl Evaluator<'_> {
    pub(crate) fn fail<T>(&self, span: Span, summary: &str, detail: impl Into<String>) -> Eval<T> {
        Err(Diagnostic::error(summary, detail).at(self.source, span))
    }

    fn charge(&self, span: Span, amount: u64) -> Eval<()> {
        self.context
            .budget
            .charge(amount)
            .map_err(|e| Diagnostic::error("Too much to evaluate", e.to_string()).at(self.source, span))
    }

    pub(crate) fn eval(&self, expr: &Expr, scope: &Scope, depth: usize) -> Eval {
        self.charge(expr.span, STEP_COST)?;
        if depth > DEPTH_MAX {
            return self.fail(
                expr.span,
                "Expression nested too deeply",
                "this expression has more levels than are allowed",
            );
        }
        let depth = depth + 1;
        match &expr.kind {
            ExprKind::Literal(value) => {
                self.charge(expr.span, value.weight())?;
                Ok(value.clone())
            }
            ExprKind::Template(parts) => {
                let mut out = String::new();
                self.template(parts, scope, depth, &mut out)?;
                Ok(Value::String(out))
            }
            ExprKind::Wrap(inner) | ExprKind::Paren(inner) => self.eval(inner, scope, depth),
            ExprKind::Tuple(items) => {
                Ok(Value::Tuple(items.iter().map(|item| self.eval(item, scope, depth)).collect::<Eval<_>>()?))
            }
            ExprKind::Object(items) => self.object(items, scope, depth),
            ExprKind::Traversal { .. } => {
                let value = self.traversal(expr, scope)?;
                self.charge(expr.span, value.weight())?;
                Ok(value.into_owned())
            }
            ExprKind::GetAttr(source, name, span) => {
                let value = self.eval(source, scope, depth)?;
                self.get_attr(Cow::Owned(value), name, *span).map(Cow::into_owned)
            }
            ExprKind::Index(source, key) => {
                let value = self.eval(source, scope, depth)?;
                let key_value = self.eval(key, scope, depth)?;
                self.index(Cow::Owned(value), &key_value, key.span).map(Cow::into_owned)
            }
            ExprKind::Splat { source, each } => self.splat(source, each, scope, depth),
            ExprKind::Call { name, name_span, args, expand } => call(
                self,
                &CallSite { name, name_span: *name_span, span: expr.span, args, expand: *expand },
                scope,
                depth,
            ),
            ExprKind::Conditional(condition, then, otherwise) => {
                self.conditional(expr.span, condition, then, otherwise, scope, depth)
            }
            ExprKind::Unary(op, operand) => {
                let value = self.eval(operand, scope, depth)?;
                operators::unary(*op, &value)
                    .map_err(|e| Diagnostic::error("Invalid operand", e).at(self.source, operand.span))
            }
            ExprKind::Binary(left, op, right) => {
                let a = self.eval(left, scope, depth)?;
                let b = self.eval(right, scope, depth)?;
                operators::binary(&a, *op, &b).map_err(|(side, detail)| {
                    let span = match side {
                        operators::Side::Left => left.span,
                        operators::Side::Right => right.span,
                        operators::Side::Both => expr.span,
                    };
                    Diagnostic::error("Invalid operand", detail).at(self.source, span)
                })
            }
            ExprKind::For(f) => self.for_expr(expr.span, f, scope, depth),
        }
    }

    fn object(&self, items: &[(ObjectKey, Expr)], scope: &Scope, depth: usize) -> Eval {
        let mut out = BTreeMap::new();
        for (key, value) in items {
            let key = match key {
                ObjectKey::Name(name, _) => name.clone(),
                ObjectKey::Expr(expr) => {
                    let value = self.eval(expr, scope, depth)?;
                    self.key_text(&value, expr.span)?
                }
            };
            out.insert(key, self.eval(value, scope, depth)?);
        }
        Ok(Value::Object(out))
    }

    fn key_text(&self, value: &Value, span: Span) -> Eval<String> {
        if value.is_null() {
            return self.fail(span, "Null as key", "a key must not be null");
        }
        match convert(value, &Type::String) {
            Ok(Value::String(s)) => Ok(s),
            _ => self.fail(span, "Unsuitable key", format!("a key must be a string, this is {}", value.kind())),
        }
    }

    fn template(&self, parts: &[Part], scope: &Scope, depth: usize, out: &mut String) -> Eval<()> {
        for part in parts {
            match part {
                Part::Literal(text) => {
                    self.charge(Span::default(), text.len() as u64)?;
                    out.push_str(text);
                }
                Part::Interpolation(expr) => {
                    let value = self.eval(expr, scope, depth)?;
                    if value.is_null() {
                        return self.fail(expr.span, "Null in a template", "the expression is null, which has no text");
                    }
                    match convert(&value, &Type::String) {
                        Ok(Value::String(text)) => {
                            self.charge(expr.span, text.len() as u64)?;
                            out.push_str(&text);
                        }
                        _ => {
                            return Err(Diagnostic::error(
                                "Not a text",
                                format!("a {} cannot be part of a text", value.kind()),
                            )
                            .at(self.source, expr.span)
                            .hint("use jsonencode(…) or join(…) to make a text of it"));
                        }
                    }
                }
                Part::If { condition, then, otherwise } => {
                    let value = self.eval(condition, scope, depth)?;
                    let yes = self.bool(&value, condition.span, "condition")?;
                    let parts = if yes { then } else { otherwise };
                    self.template(parts, scope, depth + 1, out)?;
                }
                Part::For { key_var, value_var, collection, body } => {
                    let value = self.eval(collection, scope, depth)?;
                    for (key, item) in self.iterate(value, collection.span)? {
                        let mut inner = scope.clone();
                        if let Some(name) = key_var {
                            inner = inner.with(name.clone(), key);
                        }
                        inner = inner.with(value_var.clone(), item);
                        self.charge(collection.span, STEP_COST)?;
                        self.template(body, &inner, depth + 1, out)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn bool(&self, value: &Value, span: Span, what: &str) -> Eval<bool> {
        if value.is_null() {
            return self.fail(span, "Null condition", format!("the {what} is null, it must be true or false"));
        }
        match convert(value, &Type::Bool) {
            Ok(Value::Bool(b)) => Ok(b),
            Ok(_) | Err(_) => self.fail(
                span,
                "Condition is not a bool",
                format!("the {what} must be true or false, this is {}", value.kind()),
            ),
        }
    }

    /// Keys and values in the order of iteration.
    fn iterate(&self, value: Value, span: Span) -> Eval<Vec<(Value, Value)>> {
        match value {
            Value::Null(_) => self.fail(span, "Nothing to iterate", "this is null, not a collection"),
            Value::List(_, items) | Value::Tuple(items) => {
                Ok(items.into_iter().enumerate().map(|(i, item)| (Value::Number(i.into()), item)).collect())
            }
            Value::Set(_, items) => Ok(items.into_iter().map(|item| (item.clone(), item)).collect()),
            Value::Map(_, entries) | Value::Object(entries) => {
                Ok(entries.into_iter().map(|(key, item)| (Value::String(key), item)).collect())
            }
            other => self.fail(span, "Nothing to iterate", format!("a {} is not a collection", other.kind())),
        }
    }

    fn for_expr(&self, span: Span, f: &ForExpr, scope: &Scope, depth: usize) -> Eval {
        let collection = self.eval(&f.collection, scope, depth)?;
        let mut list = Vec::new();
        let mut object: BTreeMap<String, Value> = BTreeMap::new();
        let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (key, item) in self.iterate(collection, f.collection.span)? {
            self.charge(span, STEP_COST)?;
            let mut inner = scope.clone();
            if let Some(name) = &f.key_var {
                inner = inner.with(name.clone(), key);
            }
            inner = inner.with(f.value_var.clone(), item);
            if let Some(condition) = &f.condition {
                let value = self.eval(condition, &inner, depth)?;
                if !self.bool(&value, condition.span, "filter")? {
                    continue;
                }
            }
            let Some(key_expr) = &f.key else {
                list.push(self.eval(&f.value, &inner, depth)?);
                continue;
            };
            let key = self.eval(key_expr, &inner, depth)?;
            let key = self.key_text(&key, key_expr.span)?;
            let value = self.eval(&f.value, &inner, depth)?;
            if f.group {
                groups.entry(key).or_default().push(value);
            } else if object.insert(key.clone(), value).is_some() {
                return Err(Diagnostic::error("Key made twice", format!("two elements have the key {key:?}"))
                    .at(self.source, key_expr.span)
                    .hint("write ... after the value to collect values of equal keys in a list"));
            }
        }
        if f.key.is_none() {
            return Ok(Value::Tuple(list));
        }
        for (key, values) in groups {
            object.insert(key, Value::Tuple(values));
        }
        Ok(Value::Object(object))
    }

    fn conditional(
        &self,
        span: Span,
        condition: &Expr,
        then: &Expr,
        otherwise: &Expr,
        scope: &Scope,
        depth: usize,
    ) -> Eval {
        // Both branches are evaluated, because the type of the result depends on both; an error
        // counts only in the branch that is taken.
        let value = self.eval(condition, scope, depth)?;
        let yes = self.bool(&value, condition.span, "condition")?;
        let (taken, other) = if yes { (then, otherwise) } else { (otherwise, then) };
        let result = self.eval(taken, scope, depth)?;
        let Ok(other_value) = self.eval(other, scope, depth) else {
            return Ok(result);
        };
        let (a, b) = (result.ty(), other_value.ty());
        if a == b || b == Type::Any {
            return Ok(result);
        }
        let Some(ty) = unify([&a, &b]) else {
            return self.fail(
                span,
                "Results of different types",
                format!(
                    "both results of a condition must have one type; here they are {} and {}",
                    result.kind(),
                    other_value.kind()
                ),
            );
        };
        convert(&result, &ty).or_else(|e| self.fail(taken.span, "Results of different types", e.to_string()))
    }

    /// Follows a reference without copying more than its result.
    fn traversal<'v>(&'v self, expr: &Expr, scope: &'v Scope) -> Eval<Cow<'v, Value>> {
        let ExprKind::Traversal { root, root_span, steps, verbatim } = &expr.kind else {
            return self.fail(expr.span, "Invalid reference", "not a reference");
        };
        let value = scope.get(root).or_else(|| self.context.variables.get(root));
        let Some(value) = value else {
            return match self.context.undefined {
                Undefined::KeepText => Ok(Cow::Owned(Value::String(verbatim.clone()))),
                Undefined::Constant => Err(Diagnostic::error(
                    "Variables not allowed",
                    format!("{root} is a reference, only constants may stand here"),
                )
                .at(self.source, *root_span)
                .hint(format!("if it is meant as text, put it in quotes: {root:?}"))),
                Undefined::Error => {
                    let mut names = scope.names();
                    names.extend(self.context.variables.keys().map(String::as_str));
                    let diagnostic =
                        Diagnostic::error(UNKNOWN_VARIABLE, format!("there is no variable named {root:?}"))
                            .at(self.source, *root_span);
                    Err(did_you_mean(diagnostic, root, names))
                }
            };
        };
        let mut current = Cow::Borrowed(value);
        for step in steps {
            current = match &step.kind {
                StepKind::Attr(name) => self.get_attr(current, name, step.span)?,
                StepKind::Index(key) => self.index(current, key, step.span)?,
            };
        }
        Ok(current)
    }

    pub(crate) fn get_attr<'v>(&self, value: Cow<'v, Value>, name: &str, span: Span) -> Eval<Cow<'v, Value>> {
        let missing = |entries: &BTreeMap<String, Value>, what: &str| {
            let diagnostic =
                Diagnostic::error("Unknown attribute", format!("this {what} has no attribute named {name:?}"))
                    .at(self.source, span);
            Err(did_you_mean(diagnostic, name, entries.keys().map(String::as_str)))
        };
        match value {
            Cow::Borrowed(Value::Object(entries)) => match entries.get(name) {
                Some(found) => Ok(Cow::Borrowed(found)),
                None => missing(entries, "object"),
            },
            Cow::Borrowed(Value::Map(_, entries)) => match entries.get(name) {
                Some(found) => Ok(Cow::Borrowed(found)),
                None => missing(entries, "map"),
            },
            Cow::Owned(Value::Object(mut entries) | Value::Map(_, mut entries)) => match entries.remove(name) {
                Some(found) => Ok(Cow::Owned(found)),
                None => missing(&entries, "object"),
            },
            other if other.is_null() => {
                self.fail(span, "Attribute of null", format!("this is null, it has no attribute {name:?}"))
            }
            other if other.elements().is_some() => Err(Diagnostic::error(
                "Attribute of a list",
                format!("a {} has elements, no attribute {name:?}", other.kind()),
            )
            .at(self.source, span)
            .hint(format!("write [*].{name} for the attribute of every element, [0].{name} for the first"))),
            other => self.fail(span, "Unknown attribute", format!("a {} has no attributes", other.kind())),
        }
    }

    pub(crate) fn index<'v>(&self, value: Cow<'v, Value>, key: &Value, span: Span) -> Eval<Cow<'v, Value>> {
        if value.is_null() {
            return self.fail(span, "Index into null", "this is null, it has no elements");
        }
        if key.is_null() {
            return self.fail(span, "Null as index", "the index is null");
        }
        match value.as_ref() {
            Value::List(..) | Value::Tuple(_) => {
                let items = value.elements().unwrap_or_default();
                let Ok(Value::Number(number)) = convert(key, &Type::Number) else {
                    return self.fail(
                        span,
                        "Invalid index",
                        format!("the index of a {} must be a number", value.kind()),
                    );
                };
                let position = number.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n < items.len());
                let Some(position) = position else {
                    return self.fail(
                        span,
                        "Index out of range",
                        format!("there are {} elements, counted from 0; {number} is none", items.len()),
                    );
                };
                Ok(match value {
                    Cow::Borrowed(v) => match v.elements().and_then(|v| v.get(position)) {
                        Some(found) => Cow::Borrowed(found),
                        None => Cow::Owned(Value::NULL),
                    },
                    Cow::Owned(Value::List(_, mut items) | Value::Tuple(mut items)) => {
                        Cow::Owned(items.swap_remove(position))
                    }
                    Cow::Owned(_) => Cow::Owned(Value::NULL),
                })
            }
            Value::Map(..) | Value::Object(_) => {
                let key = self.key_text(key, span)?;
                let entries_have = value.entries().is_some_and(|e| e.contains_key(&key));
                if !entries_have {
                    let diagnostic = Diagnostic::error(
                        "Unknown key",
                        format!("this {} has no element with the key {key:?}", value.kind()),
                    )
                    .at(self.source, span);
                    let names: Vec<&str> =
                        value.entries().map(|e| e.keys().map(String::as_str).collect()).unwrap_or_default();
                    return Err(did_you_mean(diagnostic, &key, names));
                }
                self.get_attr(value, &key, span)
            }
            Value::Set(..) => {
                Err(Diagnostic::error("Index into a set", "elements of a set have no order and no index")
                    .at(self.source, span)
                    .hint("make it a list first, for example with sort(…)"))
            }
            other => self.fail(span, "Invalid index", format!("a {} has no elements", other.kind())),
        }
    }

    fn splat(&self, source: &Expr, each: &[RelativeStep], scope: &Scope, depth: usize) -> Eval {
        let value = self.eval(source, scope, depth)?;
        let items = match value {
            Value::Null(_) => return Ok(Value::Tuple(Vec::new())),
            Value::List(_, items) | Value::Set(_, items) | Value::Tuple(items) => items,
            single => vec![single],
        };
        let mut out = Vec::with_capacity(items.len());
        for item in items {
            self.charge(source.span, STEP_COST)?;
            let mut current = Cow::Owned(item);
            for step in each {
                current = match step {
                    RelativeStep::Attr(name, span) => self.get_attr(current, name, *span)?,
                    RelativeStep::Index(key) => {
                        let key_value = self.eval(key, scope, depth)?;
                        self.index(current, &key_value, key.span)?
                    }
                };
            }
            out.push(current.into_owned());
        }
        Ok(Value::Tuple(out))
    }
}

/// A call as it is written.
struct CallSite<'a> {
    name: &'a str,
    name_span: Span,
    span: Span,
    args: &'a [Expr],
    expand: bool,
}

/// Evaluates a call.
fn call(evaluator: &Evaluator<'_>, site: &CallSite<'_>, scope: &Scope, depth: usize) -> Result<Value, Diagnostic> {
    let set = &evaluator.context.functions;
    let Some(function) = set.get(site.name) else {
        if set.names().next().is_none() {
            return evaluator.fail(
                site.name_span,
                "Functions not allowed",
                format!("{}(…) is a call, only constants may stand here", site.name),
            );
        }
        let diagnostic = Diagnostic::error("Unknown function", format!("there is no function named {:?}", site.name))
            .at(evaluator.source, site.name_span);
        return Err(did_you_mean(diagnostic, site.name, set.names()));
    };
    let lazy_args = |wanted: Option<usize>| {
        if site.expand || wanted.is_some_and(|n| n != site.args.len()) || site.args.is_empty() {
            return evaluator.fail::<()>(
                site.span,
                "Wrong number of arguments",
                match wanted {
                    Some(n) => format!("{} takes {n}, written out", site.name),
                    None => format!("{} takes at least one, written out", site.name),
                },
            );
        }
        Ok(())
    };
    let run = match &function.body {
        Body::Try => {
            lazy_args(None)?;
            let mut failures = Vec::new();
            for arg in site.args {
                match evaluator.eval(arg, scope, depth) {
                    Ok(value) => return Ok(value),
                    Err(e) => failures.push(e.to_string()),
                }
            }
            failures.truncate(5);
            return evaluator.fail(
                site.span,
                "Nothing to fall back on",
                format!("every argument of try failed:\n{}", failures.join("\n")),
            );
        }
        Body::Can => {
            lazy_args(Some(1))?;
            return Ok(Value::Bool(evaluator.eval(&site.args[0], scope, depth).is_ok()));
        }
        Body::Convert => {
            lazy_args(Some(2))?;
            let ty = type_from_expr(&site.args[1], evaluator.source)?;
            let value = evaluator.eval(&site.args[0], scope, depth)?;
            return convert(&value, &ty)
                .or_else(|e| evaluator.fail(site.args[0].span, "Unsuitable value", e.to_string()));
        }
        Body::Refused(reason) => {
            return evaluator.fail(
                site.name_span,
                "Function refused",
                format!("{} is not available: {reason}", site.name),
            );
        }
        Body::Files(_) if !set.host.files_allowed() => {
            return Err(Diagnostic::error("Function refused", format!("{}: filesystem function disabled", site.name))
                .at(evaluator.source, site.name_span)
                .hint("parse the file where its neighbours are, with the command line"));
        }
        Body::Run(run) | Body::Files(run) => run,
    };
    let (values, spans) = arguments(evaluator, site, function, scope, depth)?;
    let args = Args { values, host: set.host.as_ref(), budget: &evaluator.context.budget };
    let result = run(&args).and_then(|value| {
        args.charge(value.weight() as usize)?;
        Ok(value)
    });
    result.map_err(|e| {
        let span = e.argument.and_then(|i| spans.get(i)).copied().unwrap_or(site.span);
        Diagnostic::error("Call failed", format!("{}: {}", site.name, e.detail)).at(evaluator.source, span)
    })
}

fn arguments(
    evaluator: &Evaluator<'_>,
    site: &CallSite<'_>,
    function: &Function,
    scope: &Scope,
    depth: usize,
) -> Result<(Vec<Value>, Vec<Span>), Diagnostic> {
    let mut values = Vec::with_capacity(site.args.len());
    let mut spans = Vec::with_capacity(site.args.len());
    for (i, arg) in site.args.iter().enumerate() {
        let value = evaluator.eval(arg, scope, depth)?;
        if site.expand && i + 1 == site.args.len() {
            let Some(items) = value.elements() else {
                return evaluator.fail(
                    arg.span,
                    "Cannot expand",
                    format!("only a list can be expanded with ..., this is {}", value.kind()),
                );
            };
            spans.extend(items.iter().map(|_| arg.span));
            values.extend(items.iter().cloned());
        } else {
            values.push(value);
            spans.push(arg.span);
        }
    }
    let least = function.params.len();
    if values.len() < least || (values.len() > least && function.rest.is_none()) {
        let names: Vec<&str> = function.params.iter().map(|p| p.name).collect();
        let rest =
            function.rest.map_or(String::new(), |p| format!("{}{}...", if least > 0 { ", " } else { "" }, p.name));
        return evaluator.fail(
            site.span,
            "Wrong number of arguments",
            format!("{}({}{rest}) was called with {}", site.name, names.join(", "), values.len()),
        );
    }
    for (i, value) in values.iter_mut().enumerate() {
        let Some(param) = function.params.get(i).copied().or(function.rest) else {
            continue;
        };
        if value.is_null() && !param.null {
            return evaluator.fail(
                spans[i],
                "Unsuitable argument",
                format!("{}: {} must not be null", site.name, param.name),
            );
        }
        *value = convert(value, &param.kind.ty()).or_else(|e| {
            evaluator.fail(spans[i], "Unsuitable argument", format!("{}: {}: {e}", site.name, param.name))
        })?;
    }
    Ok((values, spans))
}
