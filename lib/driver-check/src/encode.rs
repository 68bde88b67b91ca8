//! A configuration as JSON under a schema → the bytes that a plugin gets, without a configuration language: no
//! templates, no functions, defaults only where they are JSON. Enough for a driver's own tests; `drover driver check`
//! brings the agent's own decoder instead.

use driver_proto::hclspec::Spec;
use driver_proto::hclspec::spec::Block as Kind;
use rmpv::Value as Pack;
use serde_json::{Map, Value};

/// How deep schemas and values may be.
const DEPTH_MAX: usize = 64;

/// Encodes a configuration under its schema; absent options become nil.
///
/// # Errors
/// When the configuration does not fit the schema; the text names the place.
pub fn encode_json(schema: &Spec, config: &Value) -> Result<Vec<u8>, String> {
    let Value::Object(body) = config else {
        return Err(format!("the configuration is no object but {config}"));
    };
    let mut known = Vec::new();
    let value = apply(schema, "", body, &mut known, 0)?;
    refuse_unknown(body, &known)?;
    Ok(pack(&value))
}

/// The bytes of a value.
pub(crate) fn pack(value: &Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    drop(rmpv::encode::write_value(&mut bytes, value));
    bytes
}

fn refuse_unknown(body: &Map<String, Value>, known: &[String]) -> Result<(), String> {
    match body.keys().find(|key| !known.contains(key)) {
        Some(key) => Err(format!("{key:?} is not in the schema; there are {}", known.join(", "))),
        None => Ok(()),
    }
}

fn nested<'a>(spec: &'a Option<Box<Spec>>, name: &str) -> Result<&'a Spec, String> {
    spec.as_deref().ok_or_else(|| format!("the schema of block {name:?} has no inside"))
}

fn apply(
    spec: &Spec,
    key: &str,
    body: &Map<String, Value>,
    known: &mut Vec<String>,
    depth: usize,
) -> Result<Pack, String> {
    if depth > DEPTH_MAX {
        return Err(format!("the schema is nested deeper than {DEPTH_MAX}"));
    }
    let mut take = |name: &str| {
        let name = if name.is_empty() { key } else { name };
        known.push(name.to_owned());
        (name.to_owned(), body.get(name).filter(|value| !value.is_null()))
    };
    let missing = |name: &str, required: bool| match required {
        true => Err(format!("{name:?} is required")),
        false => Ok(Pack::Nil),
    };
    match spec.block.as_ref().ok_or("the schema has an empty node")? {
        Kind::Object(object) => {
            let field = |(name, spec): (&String, &Spec)| {
                Ok((Pack::from(name.as_str()), apply(spec, name, body, known, depth + 1)?))
            };
            object.attributes.iter().map(field).collect::<Result<Vec<_>, String>>().map(Pack::Map)
        }
        Kind::Array(array) => array
            .values
            .iter()
            .map(|spec| apply(spec, key, body, known, depth + 1))
            .collect::<Result<Vec<_>, _>>()
            .map(Pack::Array),
        Kind::Attr(attr) => match take(&attr.name) {
            (name, None) => missing(&name, attr.required),
            (_, Some(value)) => convert(value, depth + 1),
        },
        Kind::BlockValue(block) => match take(&block.name) {
            (name, None) => missing(&name, block.required),
            (name, Some(value)) => inside(nested(&block.nested, &name)?, &name, value, depth),
        },
        Kind::BlockAttrs(block) => match take(&block.name) {
            (name, None) => missing(&name, block.required),
            (_, Some(value)) => convert(value, depth + 1),
        },
        Kind::BlockList(list) => blocks(take(&list.name), &list.nested, (list.min_items, list.max_items), depth),
        Kind::BlockSet(set) => blocks(take(&set.name), &set.nested, (set.min_items, set.max_items), depth),
        Kind::BlockMap(map) => match take(&map.name) {
            (_, None) => Ok(Pack::Map(Vec::new())),
            (name, Some(_)) => Err(format!("labelled blocks such as {name:?} need the agent's own decoder")),
        },
        Kind::Literal(literal) => literal_value(&literal.value),
        Kind::Default(default) => {
            let primary = apply(nested(&default.primary, key)?, key, body, known, depth + 1)?;
            match primary {
                Pack::Nil => apply(nested(&default.default, key)?, key, body, known, depth + 1),
                given => Ok(given),
            }
        }
    }
}

fn literal_value(text: &str) -> Result<Pack, String> {
    let value = serde_json::from_str(text)
        .map_err(|error| format!("the default {text} is not JSON ({error}); it needs the agent's own decoder"))?;
    convert(&value, 0)
}

fn inside(spec: &Spec, name: &str, value: &Value, depth: usize) -> Result<Pack, String> {
    let Value::Object(body) = value else {
        return Err(format!("{name:?} is a block, not {value}"));
    };
    let mut known = Vec::new();
    let packed = apply(spec, "", body, &mut known, depth + 1)?;
    refuse_unknown(body, &known)?;
    Ok(packed)
}

fn blocks(
    (name, value): (String, Option<&Value>),
    spec: &Option<Box<Spec>>,
    (min, max): (u64, u64),
    depth: usize,
) -> Result<Pack, String> {
    let items: Vec<&Value> = match value {
        None => Vec::new(),
        Some(Value::Array(items)) => items.iter().collect(),
        Some(one) => vec![one],
    };
    let count = items.len() as u64;
    if count < min || (max > 0 && count > max) {
        return Err(format!("{count} blocks {name:?} are given, allowed are {min} to {max}"));
    }
    let spec = nested(spec, &name)?;
    items.into_iter().map(|item| inside(spec, &name, item, depth)).collect::<Result<Vec<_>, _>>().map(Pack::Array)
}

/// Numbers as a host writes them: integers in their smallest form, fractions that a float cannot hold exactly as
/// decimal strings.
fn convert(value: &Value, depth: usize) -> Result<Pack, String> {
    if depth > DEPTH_MAX {
        return Err(format!("the configuration is nested deeper than {DEPTH_MAX}"));
    }
    Ok(match value {
        Value::Null => Pack::Nil,
        Value::Bool(b) => Pack::Boolean(*b),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(integer), _) => Pack::from(integer),
            (None, Some(float)) if (float * 1024.0).fract() == 0.0 => Pack::F64(float),
            (None, _) => Pack::from(n.to_string()),
        },
        Value::String(s) => Pack::from(s.as_str()),
        Value::Array(items) => {
            Pack::Array(items.iter().map(|item| convert(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| Ok((Pack::from(name.as_str()), convert(value, depth + 1)?));
            Pack::Map(fields.iter().map(field).collect::<Result<_, String>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use driver_proto::hclspec::{Attr, Block, BlockList, Default as WireDefault, Literal, Object};
    use serde_json::json;

    use super::*;

    fn node(kind: Kind) -> Spec {
        Spec { block: Some(kind) }
    }

    fn attr(required: bool) -> Spec {
        node(Kind::Attr(Attr { name: String::new(), r#type: "any".into(), required }))
    }

    fn object(fields: Vec<(&str, Spec)>) -> Spec {
        node(Kind::Object(Object {
            attributes: fields.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect(),
        }))
    }

    fn schema() -> Spec {
        let literal = node(Kind::Literal(Literal { value: "3".into() }));
        let default = WireDefault { primary: Some(Box::new(attr(false))), default: Some(Box::new(literal)) };
        let block =
            Block { name: "auth".into(), required: false, nested: Some(Box::new(object(vec![("user", attr(true))]))) };
        let list = BlockList {
            name: "mount".into(),
            min_items: 0,
            max_items: 1,
            nested: Some(Box::new(object(vec![("to", attr(false))]))),
        };
        object(vec![
            ("command", attr(true)),
            ("n", node(Kind::Default(Box::new(default)))),
            ("auth", node(Kind::BlockValue(Box::new(block)))),
            ("mount", node(Kind::BlockList(Box::new(list)))),
            ("x", attr(false)),
        ])
    }

    fn decoded(config: &Value) -> String {
        let bytes = encode_json(&schema(), config).expect("fits");
        rmpv::decode::read_value(&mut bytes.as_slice()).expect("msgpack").to_string()
    }

    #[test]
    fn every_field_is_there_in_order_with_nil_or_its_default() {
        assert_eq!(
            decoded(&json!({"command": "a"})),
            r#"{"auth": nil, "command": "a", "mount": [], "n": 3, "x": nil}"#
        );
        let full = json!({"command": "a", "n": 0.1, "auth": {"user": "u"}, "mount": {"to": 0.5}, "x": [1, -1, true]});
        let wanted =
            r#"{"auth": {"user": "u"}, "command": "a", "mount": [{"to": 0.5}], "n": "0.1", "x": [1, -1, true]}"#;
        assert_eq!(decoded(&full), wanted);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let cases = [
            (json!({}), "\"command\" is required"),
            (json!({"command": 1, "colour": 2}), "colour"),
            (json!({"command": 1, "auth": {}}), "\"user\" is required"),
            (json!({"command": 1, "auth": {"user": 1, "pass": 2}}), "pass"),
            (json!({"command": 1, "mount": [{}, {}]}), "2 blocks"),
            (json!([]), "no object"),
        ];
        for (config, wanted) in cases {
            let error = encode_json(&schema(), &config).expect_err("does not fit");
            assert!(error.contains(wanted), "{config}: {error}");
        }
        assert!(encode_json(&Spec { block: None }, &json!({})).expect_err("broken").contains("empty node"));
    }
}
