//! Builders of configuration schemas.
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

use driver_proto::hclspec as wire;
use wire::spec::Block as Kind;

pub use wire::Spec;

/// A part of a schema that is named by its key in [`object`].
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    kind: FieldKind,
    default: Option<String>,
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
        Self { kind, default: None }
    }

    /// The value must be given (a list of blocks: at least once).
    #[must_use]
    pub fn required(mut self) -> Self {
        match &mut self.kind {
            FieldKind::Attr { required, .. } | FieldKind::Block { required, .. } | FieldKind::BlockAttrs { required, .. } => {
                *required = true;
            }
            FieldKind::BlockList { min, .. } => *min = (*min).max(1),
            // Labelled blocks have no such notion on the wire.
            FieldKind::BlockMap { .. } => {}
        }
        self
    }

    /// The value where none is given, as expression text: `"3"`, `"\"tcp\""`, `"[]"`. It is not converted, so write it in
    /// the field's own type. Lists of blocks are empty when absent, never null, so a default has no effect on them.
    #[must_use]
    pub fn default(mut self, expression: impl Into<String>) -> Self {
        self.default = Some(expression.into());
        self
    }

    /// Limits of a list of blocks; `max` 0 = none.
    #[must_use]
    pub fn items(mut self, min_items: u64, max_items: u64) -> Self {
        if let FieldKind::BlockList { min, max, .. } = &mut self.kind {
            (*min, *max) = (min_items, max_items);
        }
        self
    }

    fn named(self, name: &str) -> Spec {
        let name = name.to_owned();
        let kind = match self.kind {
            FieldKind::Attr { ty, required } => Kind::Attr(wire::Attr { name, r#type: ty, required }),
            FieldKind::Block { nested, required } => {
                Kind::BlockValue(Box::new(wire::Block { name, required, nested: Some(Box::new(nested)) }))
            }
            FieldKind::BlockAttrs { ty, required } => Kind::BlockAttrs(wire::BlockAttrs { name, r#type: ty, required }),
            FieldKind::BlockList { nested, min, max, set: false } => {
                Kind::BlockList(Box::new(wire::BlockList { name, min_items: min, max_items: max, nested: Some(Box::new(nested)) }))
            }
            FieldKind::BlockList { nested, min, max, set: true } => {
                Kind::BlockSet(Box::new(wire::BlockSet { name, min_items: min, max_items: max, nested: Some(Box::new(nested)) }))
            }
            FieldKind::BlockMap { nested, labels } => {
                Kind::BlockMap(Box::new(wire::BlockMap { name, labels, nested: Some(Box::new(nested)) }))
            }
        };
        let primary = Spec { block: Some(kind) };
        match self.default {
            None => primary,
            Some(value) => Spec {
                block: Some(Kind::Default(Box::new(wire::Default {
                    primary: Some(Box::new(primary)),
                    default: Some(Box::new(Spec { block: Some(Kind::Literal(wire::Literal { value })) })),
                }))),
            },
        }
    }
}

/// An object with the given fields.
pub fn object<K: AsRef<str>>(fields: impl IntoIterator<Item = (K, Field)>) -> Spec {
    let attributes = fields.into_iter().map(|(name, field)| (name.as_ref().to_owned(), field.named(name.as_ref()))).collect();
    Spec { block: Some(Kind::Object(wire::Object { attributes })) }
}

/// An attribute of a type given as expression: `string`, `list(map(string))`…
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

/// A truth value.
pub fn bool() -> Field {
    attr("bool")
}

/// A list of one element type.
pub fn list(element: &str) -> Field {
    attr(format!("list({element})"))
}

/// Free keys with string values, `name = { a = "b" }` or repeated blocks `name { a = "b" }`. Arrives as a list of maps:
/// decode it with [`crate::config::merged_map`].
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

    fn field(spec: &Spec, name: &str) -> Kind {
        match &spec.block {
            Some(Kind::Object(object)) => object.attributes[name].block.clone().expect("a kind"),
            other => panic!("not an object: {other:?}"),
        }
    }

    #[test]
    fn fields_carry_their_key_because_hosts_imply_none_below_defaults() {
        let spec = object([
            ("a", string().required()),
            ("b", number().default("3")),
            ("c", block_list(object([("d", bool())])).required().items(1, 4)),
            ("e", block_map(["type", "name"], object([("f", list("string"))]))),
            ("g", block_attrs("string")),
            ("h", block_set(object([("i", attr("any"))]))),
        ]);
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
