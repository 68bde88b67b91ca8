//! Where the configurations of tasks are written, for findings that come after parsing.

use hcl_lang::ast::{Expr, ExprKind, ObjectKey};
use hcl_lang::body::{Attribute, Block, Body};
use hcl_lang::eval::{Budget, Context};
use hcl_lang::hclspec::{Finding, Step};
use hcl_lang::{Diagnostic, Source, Span, Value};

/// A task's place, and that of its configuration.
#[derive(Clone, Debug)]
pub(crate) struct TaskPlace {
    /// Empty for a task that is not in a group: its group has its name.
    group: String,
    task: String,
    source: Source,
    /// Of the block, when nothing better is known.
    span: Span,
    config: Option<Written>,
}

#[derive(Clone, Debug)]
enum Written {
    Block(Block),
    Attribute(Attribute),
}

/// Collects places while a job is read.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The blocks around, with their labels.
    around: Vec<(String, String)>,
    pub(crate) tasks: Vec<TaskPlace>,
}

impl Places {
    /// A block begins.
    pub(crate) fn enter(&mut self, block: &Block) {
        let label = block.labels.first().map_or_else(String::new, |(label, _)| label.clone());
        if block.name == "task" {
            let group = self
                .around
                .iter()
                .rev()
                .find(|(name, _)| name == "group")
                .map_or_else(String::new, |(_, label)| label.clone());
            let place = TaskPlace {
                group,
                task: label.clone(),
                source: block.body.source().clone(),
                span: block.name_span,
                config: None,
            };
            self.tasks.push(place);
        }
        self.around.push((block.name.clone(), label));
    }

    /// The block ends.
    pub(crate) fn leave(&mut self) {
        self.around.pop();
    }

    /// A body without a schema was read; it is a task's configuration if it stands in a task.
    pub(crate) fn free(&mut self, json: &str, attribute: Option<&Attribute>, block: Option<&Block>) {
        if json != "Config" || self.around.last().is_none_or(|(name, _)| name != "task") {
            return;
        }
        if let Some(task) = self.tasks.last_mut() {
            task.config = block.cloned().map(Written::Block).or_else(|| attribute.cloned().map(Written::Attribute));
        }
    }
}

impl TaskPlace {
    pub(crate) fn is(&self, group: &str, task: &str) -> bool {
        self.task == task && (self.group == group || (self.group.is_empty() && group == task))
    }

    /// The finding at its place in the job file.
    pub(crate) fn point(&self, finding: &Finding) -> Diagnostic {
        let span = match &self.config {
            None => self.span,
            Some(Written::Block(block)) => {
                in_body(&block.body, &finding.path, finding.of_name).unwrap_or(block.name_span)
            }
            Some(Written::Attribute(attribute)) => match finding.path.as_slice() {
                [] => attribute.name_span,
                path => in_expr(&attribute.expression.expr, path, finding.of_name).unwrap_or(attribute.name_span),
            },
        };
        Diagnostic { location: None, ..finding.diagnostic.clone() }.at(&self.source, span)
    }
}

/// The place of a member; None for the body itself, or when it is not written there (a `dynamic` block has made it).
fn in_body(body: &Body, path: &[Step], of_name: bool) -> Option<Span> {
    let (Step::Key(name), rest) = path.split_first()? else { return None };
    // What is wrong with the body was told when it was read.
    let content = body.free_content(&Context::constant(Budget::default()), &mut Vec::new());
    if let Some(attribute) = content.attribute(name) {
        let whole = if of_name && rest.is_empty() { attribute.name_span } else { attribute.expression.expr.span };
        return Some(in_expr(&attribute.expression.expr, rest, of_name).unwrap_or(whole));
    }
    let blocks: Vec<&Block> = content.blocks.iter().filter(|block| block.name == *name).collect();
    let (index, mut rest) = match rest.split_first() {
        Some((Step::Index(index), rest)) => (*index, rest),
        _ => (0, rest),
    };
    let block = blocks.get(index)?;
    // A label is an object around the block, in a list of one.
    for _ in &block.labels {
        match rest {
            [Step::Key(_), Step::Index(_), inner @ ..] => rest = inner,
            _ => return Some(block.name_span),
        }
    }
    Some(in_body(&block.body, rest, of_name).unwrap_or(block.name_span))
}

/// The place of a part of an expression; None for the expression itself.
fn in_expr(expr: &Expr, path: &[Step], of_name: bool) -> Option<Span> {
    let (step, rest) = path.split_first()?;
    match (&expr.kind, step) {
        (ExprKind::Tuple(items), Step::Index(index)) => {
            let item = items.get(*index)?;
            Some(in_expr(item, rest, of_name).unwrap_or(item.span))
        }
        // An object that is written as a value reaches drivers as a list of one.
        (ExprKind::Object(_), Step::Index(0)) => in_expr(expr, rest, of_name),
        (ExprKind::Object(members), Step::Key(name)) => members.iter().find_map(|(key, value)| {
            let (text, span) = match key {
                ObjectKey::Name(text, span) => (text, *span),
                ObjectKey::Expr(Expr { kind: ExprKind::Literal(Value::String(text)), span }) => (text, *span),
                ObjectKey::Expr(_) => return None,
            };
            let whole = if of_name && rest.is_empty() { span } else { value.span };
            (text == name).then(|| in_expr(value, rest, of_name).unwrap_or(whole))
        }),
        _ => None,
    }
}
