//! Text to values and back: numbers, JSON, YAML, TOML.

use super::call::{Call, Failure, Function, Returned, f};
use crate::{encode, value::Value};

pub(super) const TABLE: &[Function] = &[
    f("parseBool", 1, 1, |c| {
        Ok(Value::Bool(match c.text(0)? {
            "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            other => return Err(format!("{other:?} is neither true nor false").into()),
        }))
    }),
    f("parseInt", 1, 1, |c| match c.text(0)? {
        "" => Ok(Value::Int(0)),
        text => text.parse().map(Value::Int).map_err(|_| format!("{text:?} is not a whole number").into()),
    }),
    f("parseUint", 1, 1, |c| match c.text(0)? {
        "" => Ok(Value::Uint(0)),
        text if text.starts_with('+') => Err(format!("{text:?} is not a number without a sign").into()),
        text => text.parse().map(Value::Uint).map_err(|_| format!("{text:?} is not a number without a sign").into()),
    }),
    f("parseFloat", 1, 1, |c| match c.text(0)? {
        "" => Ok(Value::Float(0.0)),
        text => {
            let value: Option<f64> = text.parse().ok();
            // Go refuses what is too large for a number; infinity has to be asked for.
            let asked = text.to_ascii_lowercase().contains("inf");
            let value = value.filter(|v| !v.is_infinite() || asked);
            value.map(Value::Float).ok_or_else(|| format!("{text:?} is not a number").into())
        }
    }),
    f("parseJSON", 1, 1, parse_json),
    f("parseYAML", 1, 1, parse_yaml),
    f("toJSON", 1, 1, |c| to_json(c, None, true)),
    f("toJSONPretty", 1, 1, |c| to_json(c, Some("  "), true)),
    f("toUnescapedJSON", 1, 1, |c| to_json(c, None, false)),
    f("toUnescapedJSONPretty", 1, 1, |c| to_json(c, Some("  "), false)),
    f("toYAML", 1, 1, |c| {
        let mut out = c.out();
        encode::yaml(&mut out, c.arg(0))?;
        trimmed(c, out)
    }),
    f("toTOML", 1, 1, |c| {
        let mut out = c.out();
        encode::toml(&mut out, c.arg(0))?;
        trimmed(c, out)
    }),
];

fn trimmed(c: &mut Call<'_, '_>, out: crate::print::Out) -> Returned {
    let bytes = out.finish();
    c.made(bytes.trim_ascii())
}

pub(super) fn to_json(c: &mut Call<'_, '_>, indent: Option<&str>, html: bool) -> Returned {
    let mut out = c.out();
    encode::json(&mut out, c.arg(0), indent, html)?;
    trimmed(c, out)
}

pub(super) fn parse_json(c: &mut Call<'_, '_>) -> Returned {
    let text = c.bytes(0)?;
    if text.is_empty() {
        return Ok(Value::map(std::collections::BTreeMap::new())?);
    }
    // A value costs more than its text.
    c.allocate(text.len().saturating_mul(16))?;
    let json: serde_json::Value = serde_json::from_slice(text).map_err(|e| format!("this is not JSON: {e}"))?;
    Ok(from_json(json)?)
}

fn from_json(json: serde_json::Value) -> Result<Value, String> {
    match json {
        serde_json::Value::Null => Ok(Value::Nil),
        serde_json::Value::Bool(b) => Ok(Value::Bool(b)),
        // Go reads every number of JSON as a float.
        serde_json::Value::Number(n) => {
            n.as_f64().map(Value::Float).ok_or_else(|| format!("the number {n} is too large"))
        }
        serde_json::Value::String(s) => Ok(Value::text(s)),
        serde_json::Value::Array(items) => Value::list(items.into_iter().map(from_json).collect::<Result<_, _>>()?),
        serde_json::Value::Object(entries) => {
            let entries = entries.into_iter().map(|(k, v)| Ok((k.into_bytes().into(), from_json(v)?)));
            Value::map(entries.collect::<Result<_, String>>()?)
        }
    }
}

fn parse_yaml(c: &mut Call<'_, '_>) -> Returned {
    let text = c.text(0)?;
    if text.is_empty() {
        return Ok(Value::map(std::collections::BTreeMap::new())?);
    }
    c.allocate(text.len().saturating_mul(16))?;
    let yaml: yaml_serde::Value = yaml_serde::from_str(text).map_err(|e| format!("this is not YAML: {e}"))?;
    from_yaml(c, yaml)
}

fn from_yaml(c: &mut Call<'_, '_>, yaml: yaml_serde::Value) -> Returned {
    // Anchors make much of little text.
    c.allocate(64)?;
    Ok(match yaml {
        yaml_serde::Value::Null => Value::Nil,
        yaml_serde::Value::Bool(b) => Value::Bool(b),
        yaml_serde::Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(i), _, _) => Value::Int(i),
            (_, Some(u), _) => Value::Uint(u),
            (_, _, Some(f)) => Value::Float(f),
            _ => return Err(format!("the number {n} is too large").into()),
        },
        yaml_serde::Value::String(s) => c.made(s)?,
        yaml_serde::Value::Sequence(items) => {
            let items: Result<Vec<Value>, Failure> = items.into_iter().map(|v| from_yaml(c, v)).collect();
            Value::list(items?)?
        }
        yaml_serde::Value::Mapping(entries) => {
            let mut map = std::collections::BTreeMap::new();
            for (key, value) in entries {
                let yaml_serde::Value::String(key) = key else {
                    return Err(format!("a mapping has the key {key:?}; only text can be a key here").into());
                };
                map.insert(key.into_bytes().into(), from_yaml(c, value)?);
            }
            Value::map(map)?
        }
        yaml_serde::Value::Tagged(tagged) => return Err(format!("the YAML tag {} is not supported", tagged.tag).into()),
    })
}
