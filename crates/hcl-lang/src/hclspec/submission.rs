//! A configuration before a node is chosen: the same decoder, with what only the node can resolve left open.

use std::fmt;

use serde_json::Value as Json;

use super::{Checked, node_context};
use crate::body::json_expr;
use crate::diag::Diagnostic;
use crate::eval::{Context, Expression};
use crate::json::{JsonKind, JsonNode};
use crate::source::{Source, Span};
use crate::vars::Vars;

/// One step into a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The member of that name.
    Key(String),
    /// The element at that place.
    Index(usize),
}

/// What no node would take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where in the configuration; empty for the whole of it.
    pub path: Vec<Step>,
    /// It is about the name of the last step, not about what stands behind it.
    pub of_name: bool,
    /// What is wrong, and what to do about it. Its place, if it has one, is in a text that nobody has written.
    pub diagnostic: Diagnostic,
}

impl Finding {
    /// The path as people write it: `config.ports[0]`.
    pub fn place(&self) -> String {
        let mut place = "config".to_owned();
        for step in &self.path {
            match step {
                Step::Key(name) => place.push_str(&format!(".{name}")),
                Step::Index(index) => place.push_str(&format!("[{index}]")),
            }
        }
        place
    }
}

/// `config.ports[0]: Unsuitable value: … (…)`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place(), Diagnostic { location: None, ..self.diagnostic.clone() })
    }
}

/// Checks a task's `config` against the schemas that a driver has on different nodes, newest version first. What one of
/// them takes is taken. When all refuse it the findings that they share are told, or those of the first when each has a
/// reason of its own. Without schemas nothing is found.
pub fn check_submission<'a>(schemas: impl IntoIterator<Item = &'a Checked>, config: &Json) -> Vec<Finding> {
    let mut shared: Option<Vec<Finding>> = None;
    let mut newest = Vec::new();
    for schema in schemas {
        let found = schema.findings(config);
        if found.is_empty() {
            return Vec::new();
        }
        match &mut shared {
            None => {
                newest.clone_from(&found);
                shared = Some(found);
            }
            Some(shared) => shared.retain(|one| {
                found.iter().any(|other| one.path == other.path && one.diagnostic.summary == other.diagnostic.summary)
            }),
        }
    }
    shared.filter(|shared| !shared.is_empty()).unwrap_or(newest)
}

impl Checked {
    /// What a node would refuse, whatever its variables are.
    fn findings(&self, config: &Json) -> Vec<Finding> {
        // References are evaluated once to see whether they can be; this has a budget of its own, as the node's
        // decoding has.
        let known = open(config, &node_context(&Vars::default()).without_variables());
        let Err(diagnostics) = self.decode(&known, &Vars::default()) else { return Vec::new() };
        // The decoder has made the same text of it.
        let text = serde_json::to_string_pretty(&known).unwrap_or_default();
        let root = crate::json::parse(&Source::new("config", text)).ok();
        let placed = |diagnostic: Diagnostic| {
            let mut path = Vec::new();
            let of_name = match (&root, &diagnostic.location) {
                (Some(root), Some(location)) => descend(root, location.span, &mut path),
                _ => false,
            };
            Finding { path, of_name, diagnostic }
        };
        diagnostics.into_iter().map(placed).collect()
    }
}

/// The configuration with null for every text that refers to something: null has every type.
fn open(config: &Json, context: &Context) -> Json {
    match config {
        Json::String(text) if refers(text, context) => Json::Null,
        Json::Array(items) => Json::Array(items.iter().map(|item| open(item, context)).collect()),
        Json::Object(members) => {
            Json::Object(members.iter().map(|(key, value)| (key.clone(), open(value, context))).collect())
        }
        other => other.clone(),
    }
}

/// Whether a text refers to something that is known where the task runs only.
fn refers(text: &str, context: &Context) -> bool {
    if !text.contains("${") && !text.contains("%{") {
        return false;
    }
    let source = Source::new("config", text);
    let node = JsonNode { span: Span::new(0, text.len()), kind: JsonKind::String(text.to_owned()) };
    // What cannot be read is told by the decoder.
    let Ok(expr) = json_expr(&node, &source) else { return false };
    let value = Expression::new(expr.into(), source).evaluate(context);
    value.is_err_and(|error| error.summary == crate::eval::UNKNOWN_VARIABLE)
}

/// The path to what is written at a place; true when that is the name of a member.
fn descend(node: &JsonNode, span: Span, path: &mut Vec<Step>) -> bool {
    let within = |outer: Span| outer.start <= span.start && span.end <= outer.end;
    if node.span == span {
        return false;
    }
    match &node.kind {
        JsonKind::Object(members) => {
            let Some(member) = members.iter().find(|member| within(member.key_span) || within(member.value.span))
            else {
                return false;
            };
            path.push(Step::Key(member.key.clone()));
            within(member.key_span) || descend(&member.value, span, path)
        }
        JsonKind::Array(items) => {
            let Some(index) = items.iter().position(|item| within(item.span)) else { return false };
            path.push(Step::Index(index));
            descend(&items[index], span, path)
        }
        _ => false,
    }
}
