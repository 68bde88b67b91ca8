//! Input variables and locals: declared in the file, set by defaults, the environment, variable files and
//! the command line – later ones win.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hcl_lang::ast::{Expr, ExprKind, ObjectKey, Part, RelativeStep, StepKind};
use hcl_lang::body::{self, Block, Body, Schema};
use hcl_lang::eval::{Budget, Context, Expression, Undefined};
use hcl_lang::functions::{FunctionSet, NoHost};
use hcl_lang::{Diagnostic, Source, Span, Type, Value, convert, did_you_mean, parse_expr, type_from_expr};

use crate::input::{ParseInput, VarFile};

/// Environment variables with this prefix set variables.
const ENV_PREFIX: &str = "NOMAD_VAR_";

struct Variable {
    /// Where it is declared.
    source: Source,
    span: Span,
    ty: Option<Type>,
    validations: Vec<Validation>,
    /// The last one wins.
    value: Option<Assignment>,
}

struct Assignment {
    /// `default`, `env`, `varfile` or `cmd`.
    from: &'static str,
    value: Value,
    source: Source,
    span: Span,
}

struct Validation {
    condition: Expression,
    message: String,
    source: Source,
    span: Span,
}

/// Reads declarations and values. What is wrong goes to `diagnostics`; the result is complete only when no
/// error is among them.
pub(crate) fn inputs(
    declarations: &[Block],
    input: &ParseInput<'_>,
    budget: &Budget,
    diagnostics: &mut Vec<Diagnostic>,
) -> BTreeMap<String, Value> {
    let constant = Context::constant(budget.clone());
    let mut variables: BTreeMap<String, Variable> = BTreeMap::new();
    for block in declarations {
        match block.name.as_str() {
            "variable" => declare(block, &constant, &mut variables, diagnostics),
            "variables" => declare_many(block, &constant, &mut variables, diagnostics),
            _ => {}
        }
    }
    from_env(&input.env, &constant, &mut variables, diagnostics);
    for file in &input.var_files {
        from_file(file, input.strict, &constant, &mut variables, diagnostics);
    }
    from_arguments(&input.variables, input.strict, &constant, &mut variables, diagnostics);

    let mut values = BTreeMap::new();
    for (name, variable) in variables {
        let Some(assignment) = &variable.value else {
            diagnostics.push(
                Diagnostic::error("Unset variable", format!("the variable {name:?} has no default and was not set"))
                    .at(&variable.source, variable.span)
                    .hint(format!(
                        "set it with -var {name}=…, a variable file or {ENV_PREFIX}{name}, or give it a default"
                    )),
            );
            continue;
        };
        for validation in &variable.validations {
            validate(&name, assignment, validation, budget, diagnostics);
        }
        values.insert(name, assignment.value.clone());
    }
    values
}

fn duplicate(name: &str, source: &Source, span: Span, first: &Variable) -> Diagnostic {
    let line = first.source.position(first.span.start).0;
    Diagnostic::error("Variable declared twice", format!("there is already a variable {name:?}"))
        .at(source, span)
        .hint(format!("the first one is on line {line}"))
}

fn declare_many(
    block: &Block,
    constant: &Context,
    variables: &mut BTreeMap<String, Variable>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    for attribute in block.body.just_attributes(diagnostics) {
        if let Some(first) = variables.get(&attribute.name) {
            diagnostics.push(duplicate(&attribute.name, block.body.source(), attribute.name_span, first));
            continue;
        }
        match attribute.expression.evaluate(constant) {
            Ok(value) => {
                let source = attribute.expression.source.clone();
                variables.insert(
                    attribute.name.clone(),
                    Variable {
                        source: source.clone(),
                        span: attribute.name_span,
                        ty: Some(value.ty()),
                        validations: Vec::new(),
                        value: Some(Assignment {
                            from: "default",
                            value,
                            source,
                            span: attribute.expression.expr.span,
                        }),
                    },
                );
            }
            Err(e) => diagnostics.push(e),
        }
    }
}

fn declare(
    block: &Block,
    constant: &Context,
    variables: &mut BTreeMap<String, Variable>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let source = block.body.source().clone();
    let Some((name, label_span)) = block.labels.first() else {
        return;
    };
    if let Some(first) = variables.get(name) {
        diagnostics.push(duplicate(name, &source, *label_span, first));
        return;
    }
    if !is_identifier(name) {
        diagnostics.push(
            Diagnostic::error("Invalid variable name", format!("{name:?} is not a name"))
                .at(&source, *label_span)
                .hint("a name starts with a letter or underscore and holds letters, digits, _ and -"),
        );
    }
    let schema = Schema { attributes: vec!["description", "default", "type"], blocks: vec![("validation", &[])] };
    let content = block.body.content(&schema, None, diagnostics);
    if let Some(description) = content.attribute("description")
        && let Err(e) = description.expression.evaluate_as(constant, &Type::String)
    {
        diagnostics.push(e);
    }
    let ty = match content.attribute("type") {
        Some(attribute) => match type_of(&attribute.expression) {
            Ok(ty) => Some(ty),
            Err(e) => {
                diagnostics.push(e);
                return;
            }
        },
        None => None,
    };
    let mut variable = Variable { source: source.clone(), span: *label_span, ty, validations: Vec::new(), value: None };
    if let Some(default) = content.attribute("default") {
        match assign("default", &default.expression, variable.ty.as_ref(), constant, name) {
            Ok(assignment) => {
                if variable.ty.is_none() {
                    variable.ty = Some(assignment.value.ty());
                }
                variable.value = Some(assignment);
            }
            Err(e) => {
                diagnostics.push(e);
                return;
            }
        }
    }
    for validation in &content.blocks {
        if let Some(validation) = read_validation(name, validation, constant, diagnostics) {
            variable.validations.push(validation);
        }
    }
    variables.insert(name.clone(), variable);
}

/// JSON files write a type as a string.
fn type_of(expression: &Expression) -> Result<Type, Diagnostic> {
    if let ExprKind::Literal(Value::String(text)) = &expression.expr.kind {
        let source = Source::new("type", text.as_str());
        return parse_expr(&source)
            .and_then(|expr| type_from_expr(&expr, &source))
            .map_err(|e| expression.diagnostic(&e.summary, e.detail));
    }
    type_from_expr(&expression.expr, &expression.source)
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
        && chars.all(|c| c.is_alphanumeric() || c == '_' || c == '-')
}

fn assign(
    from: &'static str,
    expression: &Expression,
    ty: Option<&Type>,
    constant: &Context,
    name: &str,
) -> Result<Assignment, Diagnostic> {
    let value = expression.evaluate(constant)?;
    let value = match ty {
        Some(ty) => convert(&value, ty).map_err(|e| {
            expression
                .diagnostic("Unsuitable value for variable", format!("{name}: {e}, this is {}", value.kind()))
                .hint(format!("the variable is declared as {ty}"))
        })?,
        None => value,
    };
    Ok(Assignment { from, value, source: expression.source.clone(), span: expression.expr.span })
}

/// A value given as plain text. For strings, numbers and undeclared types it is the text itself, for other
/// types an expression.
fn assign_text(
    from: &'static str,
    origin: &str,
    text: &str,
    variable: &Variable,
    constant: &Context,
    name: &str,
) -> Result<Assignment, Diagnostic> {
    let source = Source::new(format!("<value for var.{name} from {origin}>"), text);
    let expr = match variable.ty {
        None | Some(Type::String | Type::Number) => {
            Expr { span: Span::new(0, text.len()), kind: ExprKind::Literal(Value::String(text.to_owned())) }
        }
        Some(_) => parse_expr(&source)?,
    };
    assign(from, &Expression::new(Arc::new(expr), source), variable.ty.as_ref(), constant, name)
}

fn from_env(
    env: &[(String, String)],
    constant: &Context,
    variables: &mut BTreeMap<String, Variable>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    for (key, text) in env {
        // The environment is shared: what is not declared here is meant for others.
        let Some(name) = key.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        let Some(variable) = variables.get_mut(name) else {
            continue;
        };
        match assign_text("env", "env", text, variable, constant, name) {
            Ok(assignment) => variable.value = Some(assignment),
            Err(e) => diagnostics.push(e),
        }
    }
}

fn undeclared(strict: bool, name: &str, variables: &BTreeMap<String, Variable>) -> Diagnostic {
    let detail = format!("{name:?} was set, but the job file declares no variable of that name");
    let diagnostic = if strict {
        Diagnostic::error("Undeclared variable", detail)
    } else {
        Diagnostic::warning("Undeclared variable", detail)
    };
    did_you_mean(diagnostic, name, variables.keys().map(String::as_str))
}

fn from_file(
    file: &VarFile,
    strict: bool,
    constant: &Context,
    variables: &mut BTreeMap<String, Variable>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let source = Source::new(&file.path, &file.text);
    let body = match body::parse_file(&source) {
        Ok(body) => body,
        Err(e) => {
            diagnostics.push(e);
            return;
        }
    };
    if !body.is_json()
        && let Some((_, span)) = body.names().into_iter().find(|(name, _)| *name == "variable")
        && source.slice(span) == "variable"
        && !source.text()[span.end..].trim_start().starts_with('=')
    {
        diagnostics.push(
            Diagnostic::error(
                "Declaration in a variable file",
                "a variable file sets variables, it does not declare them",
            )
            .at(&source, span)
            .hint("write name = value here, and put the variable block into the job file"),
        );
        return;
    }
    for attribute in body.just_attributes(diagnostics) {
        let name = &attribute.name;
        let Some(variable) = variables.get_mut(name) else {
            diagnostics.push(undeclared(strict, name, variables).at(&source, attribute.name_span));
            continue;
        };
        match assign("varfile", &attribute.expression, variable.ty.as_ref(), constant, name) {
            Ok(assignment) => variable.value = Some(assignment),
            Err(e) => diagnostics.push(e),
        }
    }
}

fn from_arguments(
    arguments: &[(String, String)],
    strict: bool,
    constant: &Context,
    variables: &mut BTreeMap<String, Variable>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    for (name, text) in arguments {
        let Some(variable) = variables.get_mut(name) else {
            diagnostics.push(undeclared(strict, name, variables));
            continue;
        };
        match assign_text("cmd", "arguments", text, variable, constant, name) {
            Ok(assignment) => variable.value = Some(assignment),
            Err(e) => diagnostics.push(e),
        }
    }
}

fn read_validation(
    name: &str,
    block: &Block,
    constant: &Context,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Validation> {
    let schema = Schema { attributes: vec!["condition", "error_message"], blocks: Vec::new() };
    let source = block.body.source();
    let content = block.body.content(&schema, None, diagnostics);
    let mut need = |what: &str| {
        diagnostics.push(
            Diagnostic::error("Missing attribute", format!("a validation needs {what}"))
                .at(source, block.name_span)
                .hint("write condition = … and error_message = \"…\""),
        );
    };
    let condition = content.attribute("condition").cloned();
    let message = content.attribute("error_message").cloned();
    if condition.is_none() {
        need("condition");
    }
    if message.is_none() {
        need("error_message");
    }
    let (condition, message) = (condition?, message?);

    let mut roots = Vec::new();
    references(&condition.expression.expr, &mut BTreeSet::new(), &mut roots);
    let mut itself = false;
    for (root, attribute, span) in roots {
        if root == "var" && attribute.as_deref() == Some(name) {
            itself = true;
        } else {
            diagnostics.push(
                Diagnostic::error(
                    "Foreign reference",
                    format!("the condition of {name:?} may refer to var.{name} only"),
                )
                .at(source, span),
            );
        }
    }
    if !itself {
        diagnostics.push(
            condition
                .expression
                .diagnostic("Condition without its variable", format!("the condition must refer to var.{name}")),
        );
    }
    let text = match message.expression.evaluate_as(constant, &Type::String) {
        Ok(Value::String(text)) => text,
        Ok(_) => String::new(),
        Err(e) => {
            diagnostics.push(e);
            return None;
        }
    };
    let first_ok = text.chars().next().is_some_and(|c| !c.is_alphabetic() || c.is_uppercase());
    if !first_ok || !text.ends_with(['.', '?', '!']) {
        diagnostics.push(
            message
                .expression
                .diagnostic("Invalid error message", "the message must be a whole sentence")
                .hint("begin it with a capital letter and end it with a full stop or question mark"),
        );
    }
    Some(Validation { condition: condition.expression, message: text, source: source.clone(), span: block.name_span })
}

fn validate(
    name: &str,
    assignment: &Assignment,
    validation: &Validation,
    budget: &Budget,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let own = Value::Object([(name.to_owned(), assignment.value.clone())].into());
    let context = Context {
        variables: [("var".to_owned(), own)].into(),
        functions: FunctionSet::job(Arc::new(NoHost)),
        undefined: Undefined::Error,
        budget: budget.clone(),
    };
    let result = match validation.condition.evaluate(&context) {
        Ok(result) => result,
        Err(e) => {
            diagnostics.push(e);
            return;
        }
    };
    match convert(&result, &Type::Bool) {
        Ok(Value::Bool(true)) => {}
        Ok(Value::Bool(false)) => {
            let line = validation.source.position(validation.span.start).0;
            diagnostics.push(
                Diagnostic::error(
                    format!("Invalid value for {} variable", assignment.from),
                    validation.message.clone(),
                )
                .at(&assignment.source, assignment.span)
                .hint(format!("the rule is on line {line} of {}", validation.source.name())),
            );
        }
        _ => diagnostics.push(validation.condition.diagnostic(
            "Condition is not a bool",
            format!("the condition must be true or false, this is {}", result.kind()),
        )),
    }
}

/// A reference: its root, the attribute asked of it, its place.
type Reference = (String, Option<String>, Span);

/// All references of an expression to names it does not define itself.
fn references(expr: &Expr, bound: &mut BTreeSet<String>, out: &mut Vec<Reference>) {
    match &expr.kind {
        ExprKind::Literal(_) => {}
        ExprKind::Template(parts) => part_references(parts, bound, out),
        ExprKind::Wrap(e) | ExprKind::Paren(e) | ExprKind::Unary(_, e) | ExprKind::GetAttr(e, ..) => {
            references(e, bound, out);
        }
        ExprKind::Tuple(items) => items.iter().for_each(|e| references(e, bound, out)),
        ExprKind::Object(items) => {
            for (key, value) in items {
                if let ObjectKey::Expr(key) = key {
                    references(key, bound, out);
                }
                references(value, bound, out);
            }
        }
        ExprKind::Traversal { root, steps, .. } => {
            if !bound.contains(root) {
                let attribute = match steps.first().map(|s| &s.kind) {
                    Some(StepKind::Attr(name)) => Some(name.clone()),
                    Some(StepKind::Index(Value::String(name))) => Some(name.clone()),
                    _ => None,
                };
                out.push((root.clone(), attribute, expr.span));
            }
        }
        ExprKind::Index(a, b) | ExprKind::Binary(a, _, b) => {
            references(a, bound, out);
            references(b, bound, out);
        }
        ExprKind::Splat { source, each } => {
            references(source, bound, out);
            for step in each {
                if let RelativeStep::Index(e) = step {
                    references(e, bound, out);
                }
            }
        }
        ExprKind::Call { name, args, .. } => {
            // The second argument of convert is a type, not a reference.
            let values = if name == "convert" { 1 } else { args.len() };
            args.iter().take(values).for_each(|e| references(e, bound, out));
        }
        ExprKind::Conditional(a, b, c) => [a, b, c].into_iter().for_each(|e| references(e, bound, out)),
        ExprKind::For(f) => {
            references(&f.collection, bound, out);
            with_bound(bound, f.key_var.as_ref(), &f.value_var, |bound| {
                for e in [f.key.as_ref(), Some(&f.value), f.condition.as_ref()].into_iter().flatten() {
                    references(e, bound, out);
                }
            });
        }
    }
}

fn part_references(parts: &[Part], bound: &mut BTreeSet<String>, out: &mut Vec<Reference>) {
    for part in parts {
        match part {
            Part::Literal(_) => {}
            Part::Interpolation(e) => references(e, bound, out),
            Part::If { condition, then, otherwise } => {
                references(condition, bound, out);
                part_references(then, bound, out);
                part_references(otherwise, bound, out);
            }
            Part::For { key_var, value_var, collection, body } => {
                references(collection, bound, out);
                with_bound(bound, key_var.as_ref(), value_var, |bound| part_references(body, bound, out));
            }
        }
    }
}

fn with_bound(
    bound: &mut BTreeSet<String>,
    key: Option<&String>,
    value: &String,
    run: impl FnOnce(&mut BTreeSet<String>),
) {
    let added: Vec<String> =
        key.into_iter().chain([value]).filter(|name| bound.insert((*name).clone())).cloned().collect();
    run(bound);
    for name in added {
        bound.remove(&name);
    }
}

/// A local that is not evaluated yet.
struct Local {
    expression: Expression,
    /// The locals that it names.
    needs: BTreeSet<String>,
    /// It asks for others by keys that are only known when it is evaluated, or for all of them.
    computed: bool,
}

/// Evaluates locals, which may use each other in any order.
pub(crate) fn locals(blocks: &[Block], context: &mut Context, diagnostics: &mut Vec<Diagnostic>) {
    let mut pending: BTreeMap<String, Local> = BTreeMap::new();
    for block in blocks.iter().filter(|b| b.name == "locals") {
        for attribute in block.body.just_attributes(diagnostics) {
            if pending.contains_key(&attribute.name) {
                diagnostics.push(
                    Diagnostic::error("Local given twice", format!("there is already a local {:?}", attribute.name))
                        .at(block.body.source(), attribute.name_span),
                );
                continue;
            }
            let mut found = Vec::new();
            references(&attribute.expression.expr, &mut BTreeSet::new(), &mut found);
            let others = found.into_iter().filter(|(root, ..)| root == "local").map(|(_, name, _)| name);
            let (named, computed): (Vec<_>, Vec<_>) = others.partition(Option::is_some);
            let needs = named.into_iter().flatten().collect();
            let local = Local { expression: attribute.expression, needs, computed: !computed.is_empty() };
            pending.insert(attribute.name, local);
        }
    }
    // Each round evaluates those whose needs are met; a round without any means a circle. What others with computed
    // keys need shows only when they are evaluated: they come last, and again while one of them succeeds.
    context.variables.insert("local".into(), Value::Object(BTreeMap::new()));
    while !pending.is_empty() {
        let ready: Vec<String> = pending
            .iter()
            .filter(|(_, local)| !local.needs.iter().any(|need| pending.contains_key(need)))
            .map(|(name, _)| name.clone())
            .collect();
        let known = |name: &&String| pending.get(*name).is_some_and(|local| !local.computed);
        let first: Vec<String> = ready.iter().filter(known).cloned().collect();
        let ready = if first.is_empty() { ready } else { first };
        if ready.is_empty() {
            let names: Vec<&str> = pending.keys().map(String::as_str).take(8).collect();
            if let Some(local) = pending.values().next() {
                diagnostics.push(
                    local.expression.diagnostic(
                        "Locals in a circle",
                        format!("these locals need each other: {}", names.join(", ")),
                    ),
                );
            }
            break;
        }
        let (mut progress, mut failed) = (false, Vec::new());
        for name in ready {
            let Some(local) = pending.remove(&name) else {
                continue;
            };
            match local.expression.evaluate(context) {
                Ok(value) => {
                    progress = true;
                    // In place: copying all of them each time would be quadratic.
                    if let Some(Value::Object(values)) = context.variables.get_mut("local") {
                        values.insert(name, value);
                    }
                }
                Err(e) if local.computed => failed.push((name, local, e)),
                Err(e) => diagnostics.push(e),
            }
        }
        for (name, local, e) in failed {
            if progress {
                pending.insert(name, local);
            } else {
                diagnostics.push(e);
            }
        }
    }
}

/// The body of the file's only job, with its name.
pub(crate) fn the_job<'b>(blocks: &'b [Block], file: &Body, diagnostics: &mut Vec<Diagnostic>) -> Option<&'b Block> {
    let mut jobs = blocks.iter().filter(|b| b.name == "job");
    let first = jobs.next();
    match (first, jobs.next()) {
        // A job without its label is already reported.
        (None, _) if file.names().iter().any(|(name, _)| *name == "job") => {}
        (None, _) => diagnostics.push(
            Diagnostic::error("Missing job", format!("{} holds no job block", file.source().name()))
                .hint("write job \"name\" { … }"),
        ),
        (Some(first), Some(second)) => {
            let line = file.source().position(first.name_span.start).0;
            diagnostics.push(
                Diagnostic::error("Second job", "a file holds one job")
                    .at(file.source(), second.name_span)
                    .hint(format!("the first one is on line {line}; put each in a file of its own")),
            );
        }
        _ => {}
    }
    first
}
