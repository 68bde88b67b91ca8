//! Configuration schemas of drivers: schema + the job's `config {}` + variables → a validated value, and
//! its exact bytes on the wire.
//!
//! [`Spec`] mirrors the schema message drivers send, without depending on it. [`decode`] checks a body
//! against it; [`to_msgpack`] writes the result.

mod document;
mod maps;
mod msgpack;
mod submission;

use std::collections::BTreeMap;

pub use document::NoSchema;
pub use msgpack::to_msgpack;
pub use submission::{Finding, Step, check_submission};

use crate::body::{self, Attribute, Block, Body, Content, Schema};
use crate::convert::convert;
use crate::diag::{Diagnostic, tidy};
use crate::eval::{Budget, Context, Expression, Scope, Undefined};
use crate::functions::FunctionSet;
use crate::parse::parse_expr;
use crate::source::Source;
use crate::type_expr::type_from_expr;
use crate::types::{Type, unify};
use crate::value::Value;
use crate::vars::Vars;

/// A schema, as a driver states it. An empty `name` takes the key of the object around it.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// An object with one attribute per key, each from the same body.
    Object(BTreeMap<String, Spec>),
    /// A tuple with one element per schema, each from the same body.
    Array(Vec<Spec>),
    /// One attribute.
    Attr {
        /// Name in the body.
        name: String,
        /// Type expression, such as `list(string)`.
        ty: String,
        /// Whether it must be there.
        required: bool,
    },
    /// One block.
    Block {
        /// Type of block.
        name: String,
        /// Whether it must be there.
        required: bool,
        /// Schema of its inside.
        nested: Option<Box<Spec>>,
    },
    /// One block whose attributes become a map.
    BlockAttrs {
        /// Type of block.
        name: String,
        /// Type expression of the elements.
        ty: String,
        /// Whether it must be there.
        required: bool,
    },
    /// Blocks of one type, in order.
    BlockList {
        /// Type of block.
        name: String,
        /// Fewest.
        min: u64,
        /// Most; 0 for no limit.
        max: u64,
        /// Schema of each.
        nested: Option<Box<Spec>>,
    },
    /// Blocks of one type without order and duplicates.
    BlockSet {
        /// Type of block.
        name: String,
        /// Fewest.
        min: u64,
        /// Most; 0 for no limit.
        max: u64,
        /// Schema of each.
        nested: Option<Box<Spec>>,
    },
    /// Labelled blocks as nested maps.
    BlockMap {
        /// Type of block.
        name: String,
        /// Names of the labels.
        labels: Vec<String>,
        /// Schema of each.
        nested: Option<Box<Spec>>,
    },
    /// A constant: an expression.
    Literal(String),
    /// The first, or the second when that is null.
    Default {
        /// What is tried.
        primary: Option<Box<Spec>>,
        /// What is used instead of null.
        default: Option<Box<Spec>>,
    },
}

/// A schema with its type expressions and constants understood.
#[derive(Clone, Debug)]
pub struct Checked(Node);

#[derive(Clone, Debug)]
enum Node {
    Object(BTreeMap<String, Node>),
    Array(Vec<Node>),
    Attr(String, Type, bool),
    Block(String, bool, Box<Node>),
    BlockAttrs(String, Type, bool),
    BlockList(String, u64, u64, Box<Node>),
    BlockSet(String, u64, u64, Box<Node>),
    BlockMap(String, Vec<String>, Box<Node>),
    Literal(Value),
    Default(Box<Node>, Box<Node>),
}

/// Deepest schema accepted.
const DEPTH_MAX: usize = 32;

impl Spec {
    /// Checks the schema itself: drivers make mistakes too.
    ///
    /// # Errors
    /// Every fault of the schema.
    pub fn check(&self) -> Result<Checked, Vec<Diagnostic>> {
        let mut diagnostics = Vec::new();
        let node = check(self, "", "schema", 0, &mut diagnostics);
        match node {
            Some(node) if diagnostics.is_empty() => Ok(Checked(node)),
            _ => Err(diagnostics),
        }
    }
}

fn check(spec: &Spec, implied: &str, path: &str, depth: usize, diagnostics: &mut Vec<Diagnostic>) -> Option<Node> {
    let fail = |diagnostics: &mut Vec<Diagnostic>, detail: String| {
        diagnostics.push(
            Diagnostic::error("Invalid driver schema", format!("{path}: {detail}"))
                .hint("this is an error of the driver, not of the job"),
        );
        None
    };
    if depth > DEPTH_MAX {
        return fail(diagnostics, format!("more than {DEPTH_MAX} levels"));
    }
    let named = |name: &str, diagnostics: &mut Vec<Diagnostic>| -> Option<String> {
        match (name, implied) {
            ("", "") => fail(diagnostics, "a name is missing".into()).map(|_: Node| String::new()),
            ("", implied) => Some(implied.to_owned()),
            (name, _) => Some(name.to_owned()),
        }
    };
    let typed = |ty: &str, diagnostics: &mut Vec<Diagnostic>| -> Option<Type> {
        let source = Source::new(format!("type of {path}"), ty);
        match parse_expr(&source).and_then(|expr| type_from_expr(&expr, &source)) {
            Ok(ty) => Some(ty),
            Err(e) => {
                fail(diagnostics, format!("the type {ty:?} is not understood: {e}"));
                None
            }
        }
    };
    let nest = |nested: &Option<Box<Spec>>, name: &str, diagnostics: &mut Vec<Diagnostic>| match nested {
        Some(nested) => check(nested, "", &format!("{path}.{name}"), depth + 1, diagnostics).map(Box::new),
        None => {
            fail(diagnostics, format!("the block {name} has no inner schema"));
            None
        }
    };
    Some(match spec {
        Spec::Object(attributes) => {
            let mut out = BTreeMap::new();
            for (key, child) in attributes {
                let node = check(child, key, &format!("{path}.{key}"), depth + 1, diagnostics);
                out.extend(node.map(|node| (key.clone(), node)));
            }
            Node::Object(out)
        }
        Spec::Array(items) => Node::Array(
            items
                .iter()
                .enumerate()
                .filter_map(|(i, child)| check(child, "", &format!("{path}[{i}]"), depth + 1, diagnostics))
                .collect(),
        ),
        Spec::Attr { name, ty, required } => Node::Attr(named(name, diagnostics)?, typed(ty, diagnostics)?, *required),
        Spec::Block { name, required, nested } => {
            let name = named(name, diagnostics)?;
            let nested = nest(nested, &name, diagnostics)?;
            Node::Block(name, *required, nested)
        }
        Spec::BlockAttrs { name, ty, required } => {
            Node::BlockAttrs(named(name, diagnostics)?, typed(ty, diagnostics)?, *required)
        }
        Spec::BlockList { name, min, max, nested } => {
            let name = named(name, diagnostics)?;
            let nested = nest(nested, &name, diagnostics)?;
            Node::BlockList(name, *min, *max, nested)
        }
        Spec::BlockSet { name, min, max, nested } => {
            let name = named(name, diagnostics)?;
            let nested = nest(nested, &name, diagnostics)?;
            Node::BlockSet(name, *min, *max, nested)
        }
        Spec::BlockMap { name, labels, nested } => {
            let name = named(name, diagnostics)?;
            let nested = nest(nested, &name, diagnostics)?;
            if labels.is_empty() {
                return fail(diagnostics, format!("the blocks {name} need the names of their labels"));
            }
            if implied_type(&nested).has_any() {
                return fail(diagnostics, format!("the labelled blocks {name} may not hold attributes of type any"));
            }
            Node::BlockMap(name, labels.clone(), nested)
        }
        Spec::Literal(text) => {
            let source = Source::new(format!("literal of {path}"), text.as_str());
            let context = Context { functions: FunctionSet::driver(), ..Context::constant(Budget::default()) };
            let value =
                parse_expr(&source).and_then(|expr| Expression::new(expr.into(), source.clone()).evaluate(&context));
            match value {
                Ok(value) => Node::Literal(value),
                Err(e) => {
                    return fail(diagnostics, format!("the constant {text:?} is not understood: {e}"));
                }
            }
        }
        Spec::Default { primary, default } => {
            let (Some(primary), Some(default)) = (primary, default) else {
                return fail(diagnostics, "a default needs two schemas".into());
            };
            // No name is implied below a default.
            let primary = check(primary, "", &format!("{path}.primary"), depth + 1, diagnostics);
            let default = check(default, "", &format!("{path}.default"), depth + 1, diagnostics);
            Node::Default(Box::new(primary?), Box::new(default?))
        }
    })
}

/// The type that decoding yields.
fn implied_type(node: &Node) -> Type {
    match node {
        Node::Object(attributes) => {
            Type::Object(attributes.iter().map(|(key, child)| (key.clone(), implied_type(child))).collect())
        }
        Node::Array(items) => Type::Tuple(items.iter().map(implied_type).collect()),
        Node::Attr(_, ty, _) => ty.clone(),
        Node::Block(_, _, nested) => implied_type(nested),
        Node::BlockAttrs(_, ty, _) => Type::map(ty.clone()),
        Node::BlockList(_, _, _, nested) => Type::list(implied_type(nested)),
        Node::BlockSet(_, _, _, nested) => Type::set(implied_type(nested)),
        Node::BlockMap(_, labels, nested) => labels.iter().fold(implied_type(nested), |ty, _| Type::map(ty)),
        Node::Literal(value) => value.ty(),
        Node::Default(primary, _) => implied_type(primary),
    }
}

/// What expressions in a `config` may refer to and call.
fn node_context(vars: &Vars) -> Context {
    Context {
        variables: vars.to_variables(),
        functions: FunctionSet::driver(),
        undefined: Undefined::Error,
        budget: Budget::default(),
    }
}

/// Validates `config` by `spec`. Strings in it are templates over `vars`.
///
/// # Errors
/// Every fault of the schema, or every fault of the configuration with its place.
pub fn decode(spec: &Spec, config: &serde_json::Value, vars: &Vars) -> Result<Value, Vec<Diagnostic>> {
    spec.check()?.decode(config, vars)
}

impl Checked {
    /// Validates `config`. Strings in it are templates over `vars`.
    ///
    /// # Errors
    /// Every fault of the configuration, with its place.
    pub fn decode(&self, config: &serde_json::Value, vars: &Vars) -> Result<Value, Vec<Diagnostic>> {
        // The configuration was taken apart long ago; errors point into a text of what is left of it.
        let text = serde_json::to_string_pretty(config)
            .map_err(|e| vec![Diagnostic::error("Unreadable configuration", e.to_string())])?;
        let source = Source::new("config", text);
        let context = node_context(vars);
        let node = crate::json::parse(&source).map_err(|e| vec![e])?;
        let node = match node.kind {
            // No configuration at all is an empty one.
            crate::json::JsonKind::Null => {
                crate::json::JsonNode { kind: crate::json::JsonKind::Object(Vec::new()), ..node }
            }
            _ => node,
        };
        let body = body::json_body(&node, &source, Scope::default()).map_err(|e| vec![e])?;
        let mut decoder = Decoder { context: &context, diagnostics: Vec::new() };
        let value = decoder.body(&self.0, &body);
        if decoder.diagnostics.is_empty() { Ok(value) } else { Err(tidy(decoder.diagnostics)) }
    }
}

struct Decoder<'a> {
    context: &'a Context,
    diagnostics: Vec<Diagnostic>,
}

impl Decoder<'_> {
    fn body(&mut self, node: &Node, body: &Body) -> Value {
        let mut attributes = Vec::new();
        let mut blocks: Vec<(&str, Vec<&str>)> = Vec::new();
        collect(node, &mut attributes, &mut blocks);
        let schema =
            Schema { attributes, blocks: blocks.iter().map(|(name, labels)| (*name, labels.as_slice())).collect() };
        let content = body.content(&schema, None, &mut self.diagnostics);
        self.node(node, body, &content)
    }

    fn missing(&mut self, body: &Body, what: &str, name: &str) {
        self.diagnostics.push(
            Diagnostic::error("Missing", format!("the {what} {name:?} is required here"))
                .at(body.source(), body.span()),
        );
    }

    fn attribute(&mut self, attribute: &Attribute, ty: &Type) -> Value {
        let result = attribute.expression.evaluate(self.context).and_then(|value| {
            convert(&maps::as_asked(value, ty), ty)
                .map_err(|e| attribute.expression.diagnostic("Unsuitable value", format!("{}: {e}", attribute.name)))
        });
        match result {
            Ok(value) => value,
            Err(e) => {
                self.diagnostics.push(e);
                Value::Null(ty.clone())
            }
        }
    }

    fn node(&mut self, node: &Node, body: &Body, content: &Content) -> Value {
        match node {
            Node::Object(attributes) => Value::Object(
                attributes.iter().map(|(key, child)| (key.clone(), self.node(child, body, content))).collect(),
            ),
            Node::Array(items) => Value::Tuple(items.iter().map(|child| self.node(child, body, content)).collect()),
            Node::Attr(name, ty, required) => match content.attribute(name) {
                Some(attribute) => self.attribute(attribute, ty),
                None => {
                    if *required {
                        self.missing(body, "attribute", name);
                    }
                    Value::Null(ty.clone())
                }
            },
            Node::Block(name, required, nested) => match self.single(name, *required, body, content) {
                Some(block) => self.body(nested, &block.body),
                None => Value::Null(implied_type(nested)),
            },
            Node::BlockAttrs(name, ty, required) => match self.single(name, *required, body, content) {
                Some(block) => {
                    let attributes = block.body.just_attributes(&mut self.diagnostics);
                    let mut out = BTreeMap::new();
                    for attribute in &attributes {
                        out.insert(attribute.name.clone(), self.attribute(attribute, ty));
                    }
                    let element = match ty {
                        Type::Any => unify(&out.values().map(Value::ty).collect::<Vec<_>>()).unwrap_or(Type::Any),
                        ty => ty.clone(),
                    };
                    Value::Map(element, out)
                }
                None => Value::Null(Type::map(ty.clone())),
            },
            Node::BlockList(name, min, max, nested) => {
                let (ty, items) = self.many(name, *min, *max, nested, body, content);
                Value::List(ty, items)
            }
            Node::BlockSet(name, min, max, nested) => {
                let (ty, items) = self.many(name, *min, *max, nested, body, content);
                Value::set(ty, items)
            }
            Node::BlockMap(name, labels, nested) => {
                let blocks: Vec<&Block> = content.blocks.iter().filter(|b| b.name == *name).collect();
                self.labelled(&blocks, 0, labels.len(), nested)
            }
            Node::Literal(value) => value.clone(),
            Node::Default(primary, default) => match self.node(primary, body, content) {
                Value::Null(_) => self.node(default, body, content),
                value => value,
            },
        }
    }

    fn single<'c>(&mut self, name: &str, required: bool, body: &Body, content: &'c Content) -> Option<&'c Block> {
        let mut blocks = content.blocks.iter().filter(|b| b.name == name);
        let first = blocks.next();
        if first.is_none() && required {
            self.missing(body, "block", name);
        }
        if let Some(second) = blocks.next() {
            self.diagnostics.push(
                Diagnostic::error("Block given twice", format!("only one {name} block is allowed here"))
                    .at(body.source(), second.name_span),
            );
        }
        first
    }

    fn many(
        &mut self,
        name: &str,
        min: u64,
        max: u64,
        nested: &Node,
        body: &Body,
        content: &Content,
    ) -> (Type, Vec<Value>) {
        let blocks: Vec<&Block> = content.blocks.iter().filter(|b| b.name == name).collect();
        let count = blocks.len() as u64;
        if count < min || (max > 0 && count > max) {
            let limit = if count < min { format!("at least {min}") } else { format!("at most {max}") };
            self.diagnostics.push(
                Diagnostic::error(
                    "Wrong number of blocks",
                    format!("{limit} {name} blocks are required, there are {count}"),
                )
                .at(body.source(), body.span()),
            );
        }
        let items: Vec<Value> = blocks.iter().map(|block| self.body(nested, &block.body)).collect();
        if items.is_empty() {
            return (implied_type(nested), items);
        }
        let types: Vec<Type> = items.iter().map(Value::ty).collect();
        let Some(ty) = unify(&types) else {
            self.diagnostics.push(
                Diagnostic::error(
                    "Blocks of different types",
                    format!("all {name} blocks must have attributes of the same types"),
                )
                .at(body.source(), blocks[0].name_span),
            );
            return (Type::Any, items);
        };
        let items = items.iter().map(|item| convert(item, &ty).unwrap_or_else(|_| item.clone())).collect();
        (ty, items)
    }

    fn labelled(&mut self, blocks: &[&Block], level: usize, levels: usize, nested: &Node) -> Value {
        let element = (level + 1..levels).fold(implied_type(nested), |ty, _| Type::map(ty));
        let mut groups: BTreeMap<&str, Vec<&Block>> = BTreeMap::new();
        for block in blocks {
            let label = block.labels.get(level).map_or("", |(label, _)| label.as_str());
            groups.entry(label).or_default().push(block);
        }
        let mut out = BTreeMap::new();
        for (label, members) in groups {
            let value = if level + 1 < levels {
                self.labelled(&members, level + 1, levels, nested)
            } else {
                if let Some(second) = members.get(1) {
                    self.diagnostics.push(
                        Diagnostic::error(
                            "Block given twice",
                            format!("there is already a {} block labelled {label:?}", second.name),
                        )
                        .at(second.body.source(), second.name_span),
                    );
                }
                self.body(nested, &members[0].body)
            };
            out.insert(label.to_owned(), value);
        }
        Value::Map(element, out)
    }
}

/// What a schema looks for in its body.
fn collect<'n>(node: &'n Node, attributes: &mut Vec<&'n str>, blocks: &mut Vec<(&'n str, Vec<&'n str>)>) {
    match node {
        Node::Object(children) => children.values().for_each(|c| collect(c, attributes, blocks)),
        Node::Array(children) => children.iter().for_each(|c| collect(c, attributes, blocks)),
        Node::Attr(name, ..) => attributes.push(name),
        Node::Block(name, ..) | Node::BlockAttrs(name, ..) | Node::BlockList(name, ..) | Node::BlockSet(name, ..) => {
            blocks.push((name, Vec::new()))
        }
        Node::BlockMap(name, labels, _) => {
            blocks.push((name, labels.iter().map(String::as_str).collect()));
        }
        Node::Literal(_) => {}
        Node::Default(primary, default) => {
            collect(primary, attributes, blocks);
            collect(default, attributes, blocks);
        }
    }
}
