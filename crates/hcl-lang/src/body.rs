//! Bodies: what a file or block holds, in native or JSON syntax, with `dynamic` blocks expanded.
//!
//! A JSON body has no shape of its own: whether a member is an attribute or a block, and how many
//! labels it has, is known only from the schema that reads it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ast::{Expr, ExprKind, NativeBlock, NativeBody, ObjectKey};
use crate::convert::convert;
use crate::diag::Diagnostic;
use crate::eval::{Context, Expression, Scope};
use crate::json::{JsonKind, JsonMember, JsonNode};
use crate::parse;
use crate::source::{Source, Span};
use crate::suggest::did_you_mean;
use crate::types::Type;
use crate::value::Value;

/// Most blocks that `dynamic` makes in one body.
const DYNAMIC_MAX: usize = 10_000;

/// What may stand in a body.
#[derive(Debug, Clone, Default)]
pub struct Schema<'a> {
    /// Names of attributes.
    pub attributes: Vec<&'a str>,
    /// Types of blocks with the names of their labels.
    pub blocks: Vec<(&'a str, &'a [&'a str])>,
}

/// A file or the inside of a block.
#[derive(Clone, Debug)]
pub struct Body {
    source: Source,
    scope: Scope,
    span: Span,
    inner: Inner,
}

#[derive(Clone, Debug)]
enum Inner {
    Native(Arc<NativeBody>),
    /// Objects whose members together are the body.
    Json(Vec<Arc<Vec<JsonMember>>>),
}

/// `name = expr`.
#[derive(Clone, Debug)]
pub struct Attribute {
    /// Name.
    pub name: String,
    /// Place of the name.
    pub name_span: Span,
    /// Value.
    pub expression: Expression,
}

/// `type "label" { … }`.
#[derive(Clone, Debug)]
pub struct Block {
    /// Type.
    pub name: String,
    /// Place of the type.
    pub name_span: Span,
    /// Labels with their places.
    pub labels: Vec<(String, Span)>,
    /// What is in it.
    pub body: Body,
}

/// What a body holds, by a schema.
#[derive(Debug, Default)]
pub struct Content {
    /// Attributes, in order.
    pub attributes: Vec<Attribute>,
    /// Blocks, in order.
    pub blocks: Vec<Block>,
}

impl Content {
    /// The attribute of that name.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|a| a.name == name)
    }
}

/// Parses a file: JSON when it begins with a brace, native syntax otherwise.
///
/// # Errors
/// The first fault of the syntax, with its place.
pub fn parse_file(source: &Source) -> Result<Body, Diagnostic> {
    if source.text().trim_start().starts_with('{') {
        if source.text().len() > parse::JSON_SOURCE_MAX {
            return Err(Diagnostic::error(
                "File too large",
                format!("{} has more than {} bytes", source.name(), parse::JSON_SOURCE_MAX),
            ));
        }
        let node = crate::json::parse(source)?;
        return json_body(&node, source, Scope::default());
    }
    let body = parse::parse_body(source)?;
    Ok(Body { source: source.clone(), scope: Scope::default(), span: body.span, inner: Inner::Native(Arc::new(body)) })
}

/// A body from a JSON value: an object, or an array of objects.
///
/// # Errors
/// When the value is neither, with its place.
pub fn json_body(node: &JsonNode, source: &Source, scope: Scope) -> Result<Body, Diagnostic> {
    let mut objects = Vec::new();
    match &node.kind {
        JsonKind::Object(members) => objects.push(Arc::new(members.clone())),
        JsonKind::Array(items) => {
            for item in items {
                match &item.kind {
                    JsonKind::Object(members) => objects.push(Arc::new(members.clone())),
                    _ => {
                        return Err(Diagnostic::error(
                            "Not an object",
                            format!("an object is expected here, this is {}", item.kind_name()),
                        )
                        .at(source, item.span));
                    }
                }
            }
        }
        _ => {
            return Err(Diagnostic::error(
                "Not an object",
                format!("an object is expected here, this is {}", node.kind_name()),
            )
            .at(source, node.span));
        }
    }
    Ok(Body { source: source.clone(), scope, span: node.span, inner: Inner::Json(objects) })
}

impl Body {
    /// The text it was read from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Where it is written.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Whether it is in JSON syntax.
    pub fn is_json(&self) -> bool {
        matches!(self.inner, Inner::Json(_))
    }

    /// The names of all members, whatever they are.
    pub fn names(&self) -> Vec<(&str, Span)> {
        match &self.inner {
            Inner::Native(body) => body
                .attributes
                .iter()
                .map(|a| (a.name.as_str(), a.name_span))
                .chain(body.blocks.iter().map(|b| (b.name.as_str(), b.name_span)))
                .collect(),
            Inner::Json(objects) => {
                objects.iter().flat_map(|members| members.iter()).map(|m| (m.key.as_str(), m.key_span)).collect()
            }
        }
    }

    fn native_block(&self, block: &NativeBlock, scope: &Scope) -> Block {
        Block {
            name: block.name.clone(),
            name_span: block.name_span,
            labels: block.labels.clone(),
            body: Body {
                source: self.source.clone(),
                scope: scope.clone(),
                span: block.body.span,
                inner: Inner::Native(block.body.clone()),
            },
        }
    }

    /// Reads the body by a schema. `dynamic` blocks are expanded with `context`; without one they are
    /// blocks like others. Everything that is wrong is reported, not only the first.
    pub fn content(
        &self,
        schema: &Schema<'_>,
        context: Option<&Context>,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Content {
        match &self.inner {
            Inner::Native(body) => self.native_content(body, schema, context, diagnostics),
            Inner::Json(objects) => self.json_content(objects, schema, context, diagnostics),
        }
    }

    fn native_content(
        &self,
        body: &NativeBody,
        schema: &Schema<'_>,
        context: Option<&Context>,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Content {
        let mut content = Content::default();
        for attribute in &body.attributes {
            if !schema.attributes.contains(&attribute.name.as_str()) {
                diagnostics.push(self.unknown(&attribute.name, attribute.name_span, schema, true));
                continue;
            }
            content.attributes.push(Attribute {
                name: attribute.name.clone(),
                name_span: attribute.name_span,
                expression: Expression {
                    expr: attribute.expr.clone(),
                    source: self.source.clone(),
                    scope: self.scope.clone(),
                },
            });
        }
        for block in &body.blocks {
            if block.name == "dynamic"
                && let Some(context) = context
            {
                if let Err(e) = self.expand(block, schema, context, &mut content.blocks) {
                    diagnostics.push(e);
                }
                continue;
            }
            let Some((_, labels)) = schema.blocks.iter().find(|(name, _)| *name == block.name) else {
                diagnostics.push(self.unknown(&block.name, block.name_span, schema, false));
                continue;
            };
            if let Err(e) = self.check_labels(block, labels) {
                diagnostics.push(e);
                continue;
            }
            content.blocks.push(self.native_block(block, &self.scope));
        }
        content
    }

    fn check_labels(&self, block: &NativeBlock, labels: &[&str]) -> Result<(), Diagnostic> {
        if block.labels.len() == labels.len() {
            return Ok(());
        }
        let form: String =
            std::iter::once(block.name.clone()).chain(labels.iter().map(|l| format!(" \"{l}\""))).collect();
        let (span, detail) = match block.labels.get(labels.len()) {
            Some((_, span)) if labels.is_empty() => (*span, format!("{} takes no label", block.name)),
            Some((_, span)) => (*span, format!("{} takes {} label only", block.name, labels.len())),
            None => (block.name_span, format!("{} needs a label: its {}", block.name, labels[block.labels.len()])),
        };
        Err(Diagnostic::error("Wrong number of labels", detail)
            .at(&self.source, span)
            .hint(format!("write {form} {{ … }}")))
    }

    fn unknown(&self, name: &str, span: Span, schema: &Schema<'_>, attribute: bool) -> Diagnostic {
        let is_block = schema.blocks.iter().any(|(block, _)| *block == name);
        let is_attribute = schema.attributes.contains(&name);
        if attribute && is_block {
            return Diagnostic::error("Block expected", format!("{name} is a block here, not an attribute"))
                .at(&self.source, span)
                .hint(format!("write {name} {{ … }} without the ="));
        }
        if !attribute && is_attribute {
            return Diagnostic::error("Attribute expected", format!("{name} is an attribute here, not a block"))
                .at(&self.source, span)
                .hint(format!("write {name} = …"));
        }
        let what = if attribute { "attribute" } else { "block" };
        let diagnostic = Diagnostic::error(format!("Unknown {what}"), format!("{name:?} is not expected here"))
            .at(&self.source, span);
        let names = schema.attributes.iter().copied().chain(schema.blocks.iter().map(|(name, _)| *name));
        did_you_mean(diagnostic, name, names)
    }

    /// `dynamic "type" { for_each iterator labels content {} }` → blocks.
    fn expand(
        &self,
        block: &NativeBlock,
        schema: &Schema<'_>,
        context: &Context,
        out: &mut Vec<Block>,
    ) -> Result<(), Diagnostic> {
        let fail = |span: Span, detail: String| -> Result<(), Diagnostic> {
            Err(Diagnostic::error("Invalid dynamic block", detail)
                .at(&self.source, span)
                .hint("write dynamic \"TYPE\" { for_each = …, content { … } }"))
        };
        let [(name, name_span)] = block.labels.as_slice() else {
            return fail(block.name_span, "dynamic needs one label: the type of block to make".into());
        };
        let Some((_, label_names)) = schema.blocks.iter().find(|(block, _)| block == name) else {
            return Err(self.unknown(name, *name_span, schema, false));
        };
        let spec = self.dynamic_spec(block)?;
        let iterator = match spec.iterator {
            None => name.clone(),
            Some(expr) => match &expr.kind {
                ExprKind::Traversal { root, steps, .. } if steps.is_empty() => root.clone(),
                ExprKind::Literal(Value::String(text)) => text.clone(),
                _ => return fail(expr.span, "iterator must be a plain name".into()),
            },
        };
        let label_exprs: &[Expr] = match spec.labels {
            None => &[],
            Some(expr) => match &expr.kind {
                ExprKind::Tuple(items) => items,
                _ => return fail(expr.span, "labels must be written as a list".into()),
            },
        };
        if label_exprs.len() != label_names.len() {
            return fail(
                spec.labels.map_or(block.name_span, |l| l.span),
                format!("{name} takes {} labels, {} are given", label_names.len(), label_exprs.len()),
            );
        }
        let handle = |expr: &Expr, scope: &Scope| Expression {
            expr: Arc::new(expr.clone()),
            source: self.source.clone(),
            scope: scope.clone(),
        };
        let each = handle(spec.for_each, &self.scope).evaluate(context)?;
        let items: Vec<(Value, Value)> = match each {
            Value::List(_, items) | Value::Tuple(items) => {
                items.into_iter().enumerate().map(|(i, item)| (crate::value::position(i), item)).collect()
            }
            Value::Set(_, items) => items.into_iter().map(|i| (i.clone(), i)).collect(),
            Value::Map(_, entries) | Value::Object(entries) => {
                entries.into_iter().map(|(key, item)| (Value::String(key), item)).collect()
            }
            other => {
                return fail(
                    spec.for_each.span,
                    format!("for_each must be a list, set or map, this is {}", other.kind()),
                );
            }
        };
        if out.len() + items.len() > DYNAMIC_MAX {
            return fail(spec.for_each.span, format!("this makes more than {DYNAMIC_MAX} blocks"));
        }
        for (key, value) in items {
            let current = Value::Object([("key".to_owned(), key), ("value".to_owned(), value)].into());
            context.budget.charge(current.weight()).map_err(|e| {
                Diagnostic::error("Too much to evaluate", e.to_string()).at(&self.source, block.name_span)
            })?;
            let scope = self.scope.with(iterator.clone(), current);
            let mut labels = Vec::new();
            for expr in label_exprs {
                let value = handle(expr, &scope).evaluate(context)?;
                match convert(&value, &Type::String) {
                    Ok(Value::String(text)) => labels.push((text, expr.span)),
                    _ => {
                        return fail(expr.span, format!("a label must be a string, this is {}", value.kind()));
                    }
                }
            }
            out.push(Block {
                name: name.clone(),
                name_span: *name_span,
                labels,
                body: Body {
                    source: self.source.clone(),
                    scope,
                    span: spec.content.body.span,
                    inner: Inner::Native(spec.content.body.clone()),
                },
            });
        }
        Ok(())
    }

    fn dynamic_spec<'b>(&self, block: &'b NativeBlock) -> Result<DynamicSpec<'b>, Diagnostic> {
        let fail = |span: Span, detail: String| {
            Err(Diagnostic::error("Invalid dynamic block", detail)
                .at(&self.source, span)
                .hint("write dynamic \"TYPE\" { for_each = …, content { … } }"))
        };
        let mut for_each = None;
        let mut iterator = None;
        let mut labels = None;
        for attribute in &block.body.attributes {
            match attribute.name.as_str() {
                "for_each" => for_each = Some(attribute.expr.as_ref()),
                "iterator" => iterator = Some(attribute.expr.as_ref()),
                "labels" => labels = Some(attribute.expr.as_ref()),
                other => {
                    return fail(
                        attribute.name_span,
                        format!("{other:?} is not expected here, only for_each, iterator and labels"),
                    );
                }
            }
        }
        let Some(for_each) = for_each else {
            return fail(block.name_span, "for_each is missing".into());
        };
        let [content] = block.body.blocks.as_slice() else {
            return fail(block.name_span, "exactly one content block is needed".into());
        };
        if content.name != "content" || !content.labels.is_empty() {
            return fail(content.name_span, "the only block here is content, without a label".into());
        }
        Ok(DynamicSpec { for_each, iterator, labels, content })
    }

    fn json_content(
        &self,
        objects: &[Arc<Vec<JsonMember>>],
        schema: &Schema<'_>,
        context: Option<&Context>,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Content {
        let mut content = Content::default();
        for member in objects.iter().flat_map(|members| members.iter()) {
            let name = member.key.as_str();
            if name == "//" {
                continue;
            }
            if schema.attributes.contains(&name) {
                if content.attribute(name).is_some() {
                    diagnostics.push(
                        Diagnostic::error("Set twice", format!("{name} is already set"))
                            .at(&self.source, member.key_span)
                            .hint("remove one of them"),
                    );
                    continue;
                }
                match self.json_attribute(member) {
                    Ok(attribute) => content.attributes.push(attribute),
                    Err(e) => diagnostics.push(e),
                }
            } else if let Some((_, labels)) = schema.blocks.iter().find(|(block, _)| *block == name) {
                let mut path = Vec::new();
                self.json_blocks(member, &member.value, labels, &mut path, &mut content.blocks, diagnostics);
            } else if name == "dynamic" && context.is_some() {
                diagnostics.push(
                    Diagnostic::error("Dynamic blocks in JSON", "dynamic blocks are not supported in JSON files")
                        .at(&self.source, member.key_span)
                        .hint("write the blocks out, or use native syntax"),
                );
            } else {
                let d = self.unknown(name, member.key_span, schema, true);
                diagnostics.push(d);
            }
        }
        content
    }

    fn json_attribute(&self, member: &JsonMember) -> Result<Attribute, Diagnostic> {
        Ok(Attribute {
            name: member.key.clone(),
            name_span: member.key_span,
            expression: Expression {
                expr: Arc::new(json_expr(&member.value, &self.source)?),
                source: self.source.clone(),
                scope: self.scope.clone(),
            },
        })
    }

    fn json_blocks(
        &self,
        member: &JsonMember,
        node: &JsonNode,
        labels_left: &[&str],
        labels: &mut Vec<(String, Span)>,
        out: &mut Vec<Block>,
        diagnostics: &mut Vec<Diagnostic>,
    ) {
        let Some((label, rest)) = labels_left.split_first() else {
            let bodies: Vec<&JsonNode> = match &node.kind {
                JsonKind::Null => Vec::new(),
                JsonKind::Array(items) => items.iter().collect(),
                _ => vec![node],
            };
            for body in bodies {
                match json_body(body, &self.source, self.scope.clone()) {
                    Ok(body) => out.push(Block {
                        name: member.key.clone(),
                        name_span: member.key_span,
                        labels: labels.clone(),
                        body,
                    }),
                    Err(e) => diagnostics.push(e),
                }
            }
            return;
        };
        let objects: Vec<&JsonNode> = match &node.kind {
            JsonKind::Null => return,
            JsonKind::Array(items) => items.iter().collect(),
            _ => vec![node],
        };
        for object in objects {
            let JsonKind::Object(members) = &object.kind else {
                diagnostics.push(
                    Diagnostic::error(
                        "Not an object",
                        format!(
                            "{} needs an object whose keys are its {label}, this is {}",
                            member.key,
                            object.kind_name()
                        ),
                    )
                    .at(&self.source, object.span),
                );
                continue;
            };
            for inner in members {
                if inner.key == "//" {
                    continue;
                }
                labels.push((inner.key.clone(), inner.key_span));
                self.json_blocks(member, &inner.value, rest, labels, out, diagnostics);
                labels.pop();
            }
        }
    }

    /// All members as attributes; a block is an error.
    pub fn just_attributes(&self, diagnostics: &mut Vec<Diagnostic>) -> Vec<Attribute> {
        match &self.inner {
            Inner::Native(body) => {
                for block in &body.blocks {
                    diagnostics.push(
                        Diagnostic::error("Unexpected block", format!("{:?}: blocks are not allowed here", block.name))
                            .at(&self.source, block.name_span)
                            .hint(format!("to set a value write {} = …", block.name)),
                    );
                }
                body.attributes
                    .iter()
                    .map(|a| Attribute {
                        name: a.name.clone(),
                        name_span: a.name_span,
                        expression: Expression {
                            expr: a.expr.clone(),
                            source: self.source.clone(),
                            scope: self.scope.clone(),
                        },
                    })
                    .collect()
            }
            Inner::Json(objects) => {
                let mut out: Vec<Attribute> = Vec::new();
                let mut seen = BTreeSet::new();
                for member in objects.iter().flat_map(|members| members.iter()) {
                    if member.key == "//" {
                        continue;
                    }
                    if !seen.insert(member.key.as_str()) {
                        diagnostics.push(
                            Diagnostic::error("Set twice", format!("{} is already set", member.key))
                                .at(&self.source, member.key_span)
                                .hint("remove one of them"),
                        );
                        continue;
                    }
                    match self.json_attribute(member) {
                        Ok(attribute) => out.push(attribute),
                        Err(e) => diagnostics.push(e),
                    }
                }
                out
            }
        }
    }

    /// Members of a body without a schema: attributes, and blocks with whatever labels they have.
    /// `dynamic` blocks are expanded to the type of their label, without labels.
    pub fn free_content(&self, context: &Context, diagnostics: &mut Vec<Diagnostic>) -> Content {
        let Inner::Native(body) = &self.inner else {
            return Content { attributes: self.just_attributes(diagnostics), blocks: Vec::new() };
        };
        let mut content = Content::default();
        for block in &body.blocks {
            if block.name != "dynamic" {
                content.blocks.push(self.native_block(block, &self.scope));
                continue;
            }
            let name = block.labels.first().map_or("", |(name, _)| name.as_str());
            let schema = Schema { attributes: Vec::new(), blocks: vec![(name, &[])] };
            if let Err(e) = self.expand(block, &schema, context, &mut content.blocks) {
                diagnostics.push(e);
            }
        }
        content.attributes = Body {
            inner: Inner::Native(Arc::new(NativeBody { attributes: body.attributes.clone(), ..NativeBody::default() })),
            ..self.clone()
        }
        .just_attributes(diagnostics);
        content
    }
}

struct DynamicSpec<'a> {
    for_each: &'a Expr,
    iterator: Option<&'a Expr>,
    labels: Option<&'a Expr>,
    content: &'a NativeBlock,
}

/// A JSON value as an expression: every string is a template, keys too.
///
/// # Errors
/// The first template in it that cannot be parsed.
pub fn json_expr(node: &JsonNode, source: &Source) -> Result<Expr, Diagnostic> {
    let kind = match &node.kind {
        JsonKind::Null => ExprKind::Literal(Value::NULL),
        JsonKind::Bool(b) => ExprKind::Literal(Value::Bool(*b)),
        JsonKind::Number(n) => ExprKind::Literal(Value::Number(n.clone())),
        JsonKind::String(text) => return parse::parse_template_at(text, source, node.span),
        JsonKind::Array(items) => {
            ExprKind::Tuple(items.iter().map(|item| json_expr(item, source)).collect::<Result<_, _>>()?)
        }
        JsonKind::Object(members) => {
            let mut out: Vec<(ObjectKey, Expr)> = Vec::new();
            let mut seen = BTreeSet::new();
            for member in members {
                if !seen.insert(member.key.as_str()) {
                    return Err(Diagnostic::error("Set twice", format!("{:?} is already set", member.key))
                        .at(source, member.key_span)
                        .hint("remove one of them"));
                }
                let key = parse::parse_template_at(&member.key, source, member.key_span)?;
                out.push((ObjectKey::Expr(key), json_expr(&member.value, source)?));
            }
            ExprKind::Object(out)
        }
    };
    Ok(Expr { span: node.span, kind })
}
