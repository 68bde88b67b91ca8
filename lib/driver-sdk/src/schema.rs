//! Configuration schemas: keys, types, defaults and descriptions.
//!
//! Most drivers derive the schema from the type that it decodes into, see [`crate::DriverConfig`]. This module has its
//! parts, for schemas that are unknown at compile time.
//!
//! ```
//! use driver_sdk::schema::{block, block_list, list, map_attr, number, object, string};
//! let spec = object([
//!     ("command", string().required()),
//!     ("args", list("string")),
//!     ("retries", number().default("3")),
//!     ("labels", map_attr()),
//!     ("auth", block(object([("username", string()), ("password", string())]))),
//!     ("mount", block_list(object([("source", string().required())]))),
//! ]);
//! ```

use std::collections::BTreeMap;

use driver_proto::hclspec as wire;
use wire::spec::Block as Kind;

/// A configuration schema: the wire form for hosts, and the descriptions beside it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spec {
    wire: wire::Spec,
    descriptions: BTreeMap<String, String>,
}

impl Spec {
    /// A schema from its wire form and its descriptions by dotted key.
    pub fn from_parts(wire: wire::Spec, descriptions: BTreeMap<String, String>) -> Self {
        Self { wire, descriptions }
    }

    /// The inverse of [`Spec::from_parts`].
    pub fn into_parts(self) -> (wire::Spec, BTreeMap<String, String>) {
        (self.wire, self.descriptions)
    }

    /// The wire form of the schema.
    pub fn wire(&self) -> &wire::Spec {
        &self.wire
    }

    /// Removes these keys of the outermost object, for a driver that does not offer every key of its type.
    #[must_use]
    pub fn without(mut self, keys: &[&str]) -> Self {
        if let Some(Kind::Object(object)) = &mut self.wire.block {
            object.attributes.retain(|key, _| !keys.contains(&key.as_str()));
        }
        self.descriptions.retain(|key, _| !keys.contains(&key.split('.').next().unwrap_or(key)));
        self
    }

    /// Dotted key (`auth.username`) → its meaning. Keys without a description are missing.
    pub fn descriptions(&self) -> &BTreeMap<String, String> {
        &self.descriptions
    }
}

/// A part of a schema; [`object`] gives it its key.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    kind: FieldKind,
    default: Option<String>,
    description: String,
}

#[derive(Debug, Clone, PartialEq)]
enum FieldKind {
    Attr { ty: String, required: bool },
    Block { nested: Spec, required: bool },
    BlockAttrs { ty: String, required: bool },
    BlockList { nested: Spec, min: u64, max: u64, set: bool },
    BlockMap { nested: Spec, labels: Vec<String> },
}

impl Field {
    fn new(kind: FieldKind) -> Self {
        Self { kind, default: None, description: String::new() }
    }

    /// Requires the value; for a list of blocks at least one.
    #[must_use]
    pub fn required(mut self) -> Self {
        match &mut self.kind {
            FieldKind::Attr { required, .. }
            | FieldKind::Block { required, .. }
            | FieldKind::BlockAttrs { required, .. } => {
                *required = true;
            }
            FieldKind::BlockList { min, .. } => *min = (*min).max(1),
            // The wire form of labelled blocks cannot express it.
            FieldKind::BlockMap { .. } => {}
        }
        self
    }

    /// The default as expression text: `"3"`, `"\"tcp\""`, `"[]"`. Nothing converts it, so write it in the field's own
    /// type. An absent list of blocks is empty, never null, so a default has no effect on it.
    #[must_use]
    pub fn default(mut self, expression: impl Into<String>) -> Self {
        self.default = Some(expression.into());
        self
    }

    /// Limits of a list of blocks; `max_items` 0 = none.
    #[must_use]
    pub fn items(mut self, min_items: u64, max_items: u64) -> Self {
        if let FieldKind::BlockList { min, max, .. } = &mut self.kind {
            (*min, *max) = (min_items, max_items);
        }
        self
    }

    /// Adds a description for people.
    #[must_use]
    pub fn describe(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// [`Field::required`], if `required`.
    #[doc(hidden)]
    #[must_use]
    pub fn required_if(self, required: bool) -> Self {
        if required { self.required() } else { self }
    }

    /// [`Field::items`] for a type that is a list of blocks.
    #[doc(hidden)]
    #[must_use]
    pub fn items_of<T: crate::derive::FieldType<Kind = crate::derive::Blocks>>(self, min: u64, max: u64) -> Self {
        self.items(min, max)
    }

    /// The type expression of an attribute; `None` for blocks.
    pub(crate) fn attr_type(&self) -> Option<&str> {
        match &self.kind {
            FieldKind::Attr { ty, .. } => Some(ty),
            _ => None,
        }
    }

    /// Adds its descriptions below its name.
    fn describe_into(&mut self, name: &str, all: &mut BTreeMap<String, String>) {
        if !self.description.is_empty() {
            all.insert(name.to_owned(), std::mem::take(&mut self.description));
        }
        if let FieldKind::Block { nested, .. }
        | FieldKind::BlockList { nested, .. }
        | FieldKind::BlockMap { nested, .. } = &mut self.kind
        {
            all.extend(
                std::mem::take(&mut nested.descriptions).into_iter().map(|(key, text)| (format!("{name}.{key}"), text)),
            );
        }
    }

    fn named(self, name: &str) -> wire::Spec {
        let name = name.to_owned();
        let kind = match self.kind {
            FieldKind::Attr { ty, required } => Kind::Attr(wire::Attr { name, r#type: ty, required }),
            FieldKind::Block { nested, required } => {
                Kind::BlockValue(Box::new(wire::Block { name, required, nested: Some(Box::new(nested.wire)) }))
            }
            FieldKind::BlockAttrs { ty, required } => Kind::BlockAttrs(wire::BlockAttrs { name, r#type: ty, required }),
            FieldKind::BlockList { nested, min, max, set: false } => Kind::BlockList(Box::new(wire::BlockList {
                name,
                min_items: min,
                max_items: max,
                nested: Some(Box::new(nested.wire)),
            })),
            FieldKind::BlockList { nested, min, max, set: true } => Kind::BlockSet(Box::new(wire::BlockSet {
                name,
                min_items: min,
                max_items: max,
                nested: Some(Box::new(nested.wire)),
            })),
            FieldKind::BlockMap { nested, labels } => {
                Kind::BlockMap(Box::new(wire::BlockMap { name, labels, nested: Some(Box::new(nested.wire)) }))
            }
        };
        let primary = wire::Spec { block: Some(kind) };
        match self.default {
            None => primary,
            Some(value) => wire::Spec {
                block: Some(Kind::Default(Box::new(wire::Default {
                    primary: Some(Box::new(primary)),
                    default: Some(Box::new(wire::Spec { block: Some(Kind::Literal(wire::Literal { value })) })),
                }))),
            },
        }
    }
}

/// An object with the given fields.
pub fn object<K: AsRef<str>>(fields: impl IntoIterator<Item = (K, Field)>) -> Spec {
    let mut descriptions = BTreeMap::new();
    let mut attributes = BTreeMap::new();
    for (name, mut field) in fields {
        let name = name.as_ref();
        field.describe_into(name, &mut descriptions);
        attributes.insert(name.to_owned(), field.named(name));
    }
    Spec { wire: wire::Spec { block: Some(Kind::Object(wire::Object { attributes })) }, descriptions }
}

/// An attribute with a type expression: `string`, `list(map(string))`…
pub fn attr(ty: impl Into<String>) -> Field {
    Field::new(FieldKind::Attr { ty: ty.into(), required: false })
}

/// A string.
pub fn string() -> Field {
    attr("string")
}

/// A number.
pub fn number() -> Field {
    attr("number")
}

/// A boolean.
pub fn bool() -> Field {
    attr("bool")
}

/// A list of one element type.
pub fn list(element: &str) -> Field {
    attr(format!("list({element})"))
}

/// Free keys with string values, `name = { a = "b" }` or repeated blocks `name { a = "b" }`. The wire form is a list of
/// maps: decode it with [`crate::config::merged_map`].
pub fn map_attr() -> Field {
    attr("list(map(string))")
}

/// At most one nested block.
pub fn block(nested: Spec) -> Field {
    Field::new(FieldKind::Block { nested, required: false })
}

/// One nested block with free keys of one type.
pub fn block_attrs(ty: &str) -> Field {
    Field::new(FieldKind::BlockAttrs { ty: ty.to_owned(), required: false })
}

/// Repeated nested blocks, in order.
pub fn block_list(nested: Spec) -> Field {
    Field::new(FieldKind::BlockList { nested, min: 0, max: 0, set: false })
}

/// Repeated nested blocks without duplicates.
pub fn block_set(nested: Spec) -> Field {
    Field::new(FieldKind::BlockList { nested, min: 0, max: 0, set: true })
}

/// Repeated nested blocks with labels, as nested maps.
pub fn block_map<L: Into<String>>(labels: impl IntoIterator<Item = L>, nested: Spec) -> Field {
    let labels = labels.into_iter().map(Into::into).collect();
    Field::new(FieldKind::BlockMap { nested, labels })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(spec: &wire::Spec, name: &str) -> Kind {
        match &spec.block {
            Some(Kind::Object(object)) => object.attributes[name].block.clone().expect("a kind"),
            other => panic!("not an object: {other:?}"),
        }
    }

    #[test]
    fn keys_are_left_out_with_all_that_is_below_them() {
        let inner = || object([("d", bool().describe("deep"))]);
        let all = object([
            ("a", string().describe("first")),
            ("cd", block(inner())),
            ("c", block(inner()).describe("a block")),
        ]);
        assert_eq!(all.without(&["c", "absent"]), object([("a", string().describe("first")), ("cd", block(inner()))]));
    }

    #[test]
    fn fields_carry_their_key_because_hosts_imply_none_below_defaults() {
        let spec = object([
            ("a", string().required().describe("the first")),
            ("b", number().default("3")),
            ("c", block_list(object([("d", bool().describe("deep"))])).required().items(1, 4)),
            ("e", block_map(["type", "name"], object([("f", list("string"))]))),
            ("g", block_attrs("string")),
            ("h", block_set(object([("i", attr("any"))]))),
        ]);
        let said: Vec<(&str, &str)> =
            spec.descriptions().iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        assert_eq!(said, [("a", "the first"), ("c.d", "deep")]);
        let spec = spec.wire().clone();
        let attr = |name: &str, ty: &str, required| wire::Attr { name: name.into(), r#type: ty.into(), required };
        assert_eq!(field(&spec, "a"), Kind::Attr(attr("a", "string", true)));
        match field(&spec, "b") {
            Kind::Default(default) => {
                let primary = default.primary.and_then(|spec| spec.block);
                assert_eq!(primary, Some(Kind::Attr(attr("b", "number", false))));
                let literal = default.default.and_then(|spec| spec.block);
                assert_eq!(literal, Some(Kind::Literal(wire::Literal { value: "3".into() })));
            }
            other => panic!("{other:?}"),
        }
        match field(&spec, "c") {
            Kind::BlockList(list) => {
                assert_eq!((list.name.as_str(), list.min_items, list.max_items), ("c", 1, 4));
                assert_eq!(field(&list.nested.expect("nested"), "d"), Kind::Attr(attr("d", "bool", false)));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(field(&spec, "e"), Kind::BlockMap(map) if map.name == "e" && map.labels == ["type", "name"]));
        assert!(matches!(field(&spec, "g"), Kind::BlockAttrs(attrs) if attrs.name == "g" && !attrs.required));
        assert!(matches!(field(&spec, "h"), Kind::BlockSet(set) if set.name == "h"));
    }
}
