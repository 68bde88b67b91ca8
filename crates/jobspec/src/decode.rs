//! Bodies → the API's JSON, by the tables of [`model::schema`].

use std::collections::BTreeMap;

use hcl_lang::ast::ExprKind;
use hcl_lang::body::{Attribute, Block, Body, Schema};
use hcl_lang::eval::Context;
use hcl_lang::{Diagnostic, Span, Type, Value, convert, parse_duration};
use model::schema::{Block as BlockTable, Field, Kind, Shape};
use serde_json::{Map, Value as Json, json};

use crate::finish::{Place, finish};
use crate::places::Places;

/// Reads bodies; collects what is wrong.
pub(crate) struct Decoder<'a> {
    pub(crate) context: &'a Context,
    pub(crate) diagnostics: Vec<Diagnostic>,
    pub(crate) places: Places,
}

const LABEL: &[&str] = &["name"];

impl Decoder<'_> {
    /// Reads one block by its table.
    pub(crate) fn block(
        &mut self,
        spec: &BlockTable,
        label: Option<&str>,
        body: &Body,
        name_span: Span,
    ) -> Map<String, Json> {
        let mut schema = Schema { attributes: spec.attributes().map(|(a, _)| a.hcl).collect(), blocks: Vec::new() };
        for nested in spec.blocks() {
            let labels: &[&str] = match nested.shape {
                Shape::One(s) | Shape::Many(s) | Shape::ByLabel(s) if s.label().is_some() => LABEL,
                Shape::Texts | Shape::TextLists | Shape::Free => {
                    schema.attributes.push(nested.hcl);
                    &[]
                }
                _ => &[],
            };
            schema.blocks.push((nested.hcl, labels));
        }
        let content = body.content(&schema, Some(self.context), &mut self.diagnostics);

        let mut fields = Map::new();
        if let (Some(field), Some(label)) = (spec.label(), label) {
            fields.insert(field.json.to_owned(), json!(label));
        }
        for (attribute, kind) in spec.attributes() {
            match content.attribute(attribute.hcl) {
                Some(found) => {
                    if let Some(value) = self.attribute(found, kind) {
                        fields.insert(attribute.json.to_owned(), value);
                    }
                }
                None if attribute.required => self.diagnostics.push(
                    Diagnostic::error("Missing attribute", format!("{} is required here", attribute.hcl))
                        .at(body.source(), name_span)
                        .hint(format!("write {} = …", attribute.hcl)),
                ),
                None => {}
            }
        }
        for nested in spec.blocks() {
            let blocks: Vec<&Block> = content.blocks.iter().filter(|b| b.name == nested.hcl).collect();
            self.nested(nested, content.attribute(nested.hcl), &blocks, &mut fields);
        }
        finish(spec, &mut fields, &mut Place { body, span: name_span, diagnostics: &mut self.diagnostics });
        fields
    }

    fn inner(&mut self, spec: &BlockTable, block: &Block) -> Json {
        let label = block.labels.first().map(|(label, _)| label.as_str());
        self.places.enter(block);
        let fields = self.block(spec, label, &block.body, block.name_span);
        self.places.leave();
        Json::Object(fields)
    }

    fn twice(&mut self, name: &str, span: Span, body: &Body, first: usize) {
        self.diagnostics.push(
            Diagnostic::error("Block given twice", format!("only one {name} is allowed here"))
                .at(body.source(), span)
                .hint(format!("the first one is on line {first}; merge them into one")),
        );
    }

    fn only<'b>(&mut self, blocks: &[&'b Block]) -> Option<&'b Block> {
        let first = blocks.first()?;
        if let Some(second) = blocks.get(1) {
            let line = first.body.source().position(first.name_span.start).0;
            self.twice(&second.name, second.name_span, &second.body, line);
        }
        Some(first)
    }

    fn nested(
        &mut self,
        nested: &Field,
        attribute: Option<&Attribute>,
        blocks: &[&Block],
        fields: &mut Map<String, Json>,
    ) {
        let value = match nested.shape {
            Shape::One(spec) => self.only(blocks).map(|block| self.inner(spec, block)),
            Shape::Many(spec) => {
                (!blocks.is_empty()).then(|| Json::Array(blocks.iter().map(|block| self.inner(spec, block)).collect()))
            }
            Shape::ByLabel(spec) => (!blocks.is_empty()).then(|| {
                let mut out = Map::new();
                for block in blocks {
                    let label = block.labels.first().map_or("", |(label, _)| label.as_str());
                    if out.contains_key(label) {
                        self.diagnostics.push(
                            Diagnostic::error(
                                "Block given twice",
                                format!("there is already a {} named {label:?}", block.name),
                            )
                            .at(block.body.source(), block.name_span),
                        );
                    }
                    let inner = self.inner(spec, block);
                    out.insert(label.to_owned(), inner);
                }
                Json::Object(out)
            }),
            // Attributes are no blocks.
            Shape::Value(_) => None,
            Shape::Texts | Shape::TextLists | Shape::Free => {
                let block = self.only(blocks);
                if let (Some(attribute), Some(block)) = (attribute, block) {
                    let line = attribute.expression.source.position(attribute.name_span.start).0;
                    self.twice(nested.hcl, block.name_span, &block.body, line);
                }
                if matches!(nested.shape, Shape::Free) {
                    self.places.free(nested.json, attribute, block);
                }
                match (attribute, block, nested.shape) {
                    (None, None, _) => None,
                    (_, Some(block), Shape::Free) => {
                        let mut fields = self.free(&block.body);
                        // Null at the top is as good as not written; further down it is a value.
                        fields.retain(|_, value| !value.is_null());
                        Some(Json::Object(fields))
                    }
                    (Some(attribute), _, Shape::Free) => self.free_attribute(attribute),
                    (_, Some(block), shape) => Some(self.named_block(&block.body, shape)),
                    (Some(attribute), _, shape) => self.named_attribute(attribute, shape),
                }
            }
        };
        if let Some(value) = value {
            fields.insert(nested.json.to_owned(), value);
        }
    }

    /// Evaluates and converts; null counts as not written.
    fn value(&mut self, attribute: &Attribute, ty: &Type) -> Option<Value> {
        let value = match attribute.expression.evaluate(self.context) {
            Ok(value) => value,
            Err(e) => {
                self.diagnostics.push(e);
                return None;
            }
        };
        if value.is_null() {
            return None;
        }
        match convert(&value, ty) {
            Ok(value) => Some(value),
            Err(e) => {
                let mut diagnostic = attribute
                    .expression
                    .diagnostic("Unsuitable value", format!("{}: {e}, this is {}", attribute.name, value.kind()));
                if matches!(ty, Type::List(_)) && !matches!(value, Value::Tuple(_)) {
                    diagnostic = diagnostic.hint(format!("write {} = [ … ]", attribute.name));
                }
                self.diagnostics.push(diagnostic);
                None
            }
        }
    }

    fn wrong(&mut self, attribute: &Attribute, detail: String) -> Option<Json> {
        self.diagnostics
            .push(attribute.expression.diagnostic("Unsuitable value", format!("{}: {detail}", attribute.name)));
        None
    }

    fn attribute(&mut self, attribute: &Attribute, kind: Kind) -> Option<Json> {
        match kind {
            Kind::Text => self.value(attribute, &Type::String).map(|v| v.to_json()),
            Kind::Bool => self.value(attribute, &Type::Bool).map(|v| v.to_json()),
            Kind::Int(least, most) => match self.value(attribute, &Type::Number)? {
                Value::Number(n) => match n.as_i64() {
                    Some(int) if (least..=most).contains(&int) => Some(json!(int)),
                    _ if !n.is_integral() => self.wrong(attribute, format!("a whole number is required, this is {n}")),
                    _ => self.wrong(attribute, format!("{n} is out of range, it must be from {least} to {most}")),
                },
                _ => None,
            },
            Kind::Duration => match self.value(attribute, &Type::Any)? {
                Value::String(text) => match parse_duration(&text) {
                    Ok(nanos) => Some(json!(nanos)),
                    Err(e) => self.wrong(attribute, e.to_string()),
                },
                Value::Number(n) => match n.as_i64() {
                    Some(nanos) => Some(json!(nanos)),
                    None => self.wrong(attribute, format!("{n} is not a whole number of nanoseconds")),
                },
                other => {
                    self.wrong(attribute, format!("a duration such as \"30s\" is required, this is {}", other.kind()))
                }
            },
            Kind::Texts => {
                let value = self.value(attribute, &Type::list(Type::String))?;
                self.no_nulls(attribute, &value)?;
                Some(value.to_json())
            }
            Kind::Ports => {
                let value = self.value(attribute, &Type::list(Type::Number))?;
                let ports: Option<Vec<u16>> = value
                    .elements()
                    .unwrap_or_default()
                    .iter()
                    .map(|item| match item {
                        Value::Number(n) => n.as_u64().and_then(|n| u16::try_from(n).ok()),
                        _ => None,
                    })
                    .collect();
                match ports {
                    Some(ports) => Some(json!(ports)),
                    None => self.wrong(attribute, "port numbers from 0 to 65535 are required".into()),
                }
            }
        }
    }

    fn no_nulls(&mut self, attribute: &Attribute, value: &Value) -> Option<()> {
        let position = value.elements().and_then(|items| items.iter().position(Value::is_null));
        if let Some(i) = position {
            self.wrong(attribute, format!("element {i} is null"));
            return None;
        }
        Some(())
    }

    fn named_type(shape: Shape) -> Type {
        match shape {
            Shape::TextLists => Type::list(Type::String),
            _ => Type::String,
        }
    }

    /// A block with names of one's own.
    fn named_block(&mut self, body: &Body, shape: Shape) -> Json {
        let mut out = Map::new();
        let attributes = body.just_attributes(&mut self.diagnostics);
        for attribute in &attributes {
            match self.value(attribute, &Self::named_type(shape)) {
                Some(value) => {
                    out.insert(attribute.name.clone(), value.to_json());
                }
                None => {
                    // An error is already noted, unless it was a plain null.
                    if matches!(attribute.expression.expr.kind, ExprKind::Literal(Value::Null(_))) {
                        self.wrong(attribute, "null is not a text".into());
                    }
                }
            }
        }
        Json::Object(out)
    }

    /// The same as an attribute: `env = { … }`.
    fn named_attribute(&mut self, attribute: &Attribute, shape: Shape) -> Option<Json> {
        let value = self.value(attribute, &Type::Any)?;
        let value = single(value);
        match convert(&value, &Type::map(Self::named_type(shape))) {
            Ok(value) => match value.entries().and_then(|e| e.iter().find(|(_, v)| v.is_null())) {
                Some((key, _)) => self.wrong(attribute, format!("the value of {key:?} is null")),
                None => Some(value.to_json()),
            },
            Err(e) => self.wrong(attribute, format!("{e}, this is {}", value.kind())),
        }
    }

    /// A body without a schema. A block becomes a list of maps, one for each time it is written; so does
    /// an object written as a value, because drivers cannot tell the two apart.
    fn free(&mut self, body: &Body) -> Map<String, Json> {
        let mut out = Map::new();
        let content = body.free_content(self.context, &mut self.diagnostics);
        for attribute in &content.attributes {
            if let Some(value) = self.free_value(attribute, !body.is_json()) {
                out.insert(attribute.name.clone(), value);
            }
        }
        let mut groups: BTreeMap<&str, Vec<&Block>> = BTreeMap::new();
        for block in &content.blocks {
            groups.entry(&block.name).or_default().push(block);
        }
        for (name, blocks) in groups {
            if let (Some(attribute), Some(block)) = (content.attribute(name), blocks.first()) {
                let line = body.source().position(attribute.name_span.start).0;
                self.twice(name, block.name_span, &block.body, line);
            }
            let items = blocks
                .into_iter()
                .map(|block| {
                    let inner = Json::Object(self.free(&block.body));
                    block.labels.iter().rev().fold(inner, |inner, (label, _)| json!({ label: [inner] }))
                })
                .collect();
            out.insert(name.to_owned(), Json::Array(items));
        }
        out
    }

    fn free_value(&mut self, attribute: &Attribute, wrap: bool) -> Option<Json> {
        match attribute.expression.evaluate(self.context) {
            Ok(value) => {
                let literal = matches!(attribute.expression.expr.kind, ExprKind::Object(_));
                let json = value.to_json();
                Some(if wrap && literal { json!([json]) } else { json })
            }
            Err(e) => {
                self.diagnostics.push(e);
                None
            }
        }
    }

    /// `config = { … }`: the entries of the object, with objects among them wrapped like blocks.
    fn free_attribute(&mut self, attribute: &Attribute) -> Option<Json> {
        let value = self.value(attribute, &Type::Any)?;
        let value = single(value);
        let Some(entries) = value.entries() else {
            return self.wrong(attribute, format!("a map is required, this is {}", value.kind()));
        };
        let is_json = attribute.expression.source.text().trim_start().starts_with('{');
        let literal: BTreeMap<&str, bool> = match &attribute.expression.expr.kind {
            ExprKind::Object(items) if !is_json => items
                .iter()
                .filter_map(|(key, item)| match key {
                    hcl_lang::ast::ObjectKey::Name(name, _) => {
                        Some((name.as_str(), matches!(item.kind, ExprKind::Object(_))))
                    }
                    hcl_lang::ast::ObjectKey::Expr(_) => None,
                })
                .collect(),
            _ => BTreeMap::new(),
        };
        Some(Json::Object(
            entries
                .iter()
                .map(|(key, item)| {
                    let json = item.to_json();
                    let wrap = literal.get(key.as_str()).copied().unwrap_or(false);
                    (key.clone(), if wrap { json!([json]) } else { json })
                })
                .collect(),
        ))
    }
}

/// JSON files may put a single object in a list.
fn single(value: Value) -> Value {
    match value {
        Value::Tuple(mut items) if items.len() == 1 && items[0].entries().is_some() => {
            items.pop().unwrap_or(Value::NULL)
        }
        other => other,
    }
}
