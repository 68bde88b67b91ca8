//! Conversions between types, by the reference's rules: a number or bool becomes a string and back
//! when it reads as one, a tuple becomes a list or set, an object a map; a single value never
//! becomes a list.

use std::collections::BTreeMap;
use std::fmt;

use crate::number::Number;
use crate::types::{Type, unify};
use crate::value::Value;

/// Why a value does not convert.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConvertError {
    /// Steps from the value given to the part that is wrong, outermost first.
    pub path: Vec<String>,
    /// What is needed there.
    pub message: String,
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path.concat())?;
        }
        f.write_str(&self.message)
    }
}

impl ConvertError {
    fn new(message: impl Into<String>) -> Self {
        Self { path: Vec::new(), message: message.into() }
    }

    fn under(mut self, step: String) -> Self {
        self.path.insert(0, step);
        self
    }
}

/// Converts `value` to `ty`.
///
/// # Errors
/// The first part of the value that does not convert, with its path.
pub fn convert(value: &Value, ty: &Type) -> Result<Value, ConvertError> {
    if matches!(ty, Type::Any) {
        return Ok(value.clone());
    }
    match (value, ty) {
        (Value::Null(_), _) => Ok(Value::Null(ty.clone())),
        (Value::Bool(_), Type::Bool) | (Value::Number(_), Type::Number) | (Value::String(_), Type::String) => {
            Ok(value.clone())
        }
        (Value::Bool(b), Type::String) => Ok(Value::String(b.to_string())),
        (Value::Number(n), Type::String) => Ok(Value::String(n.to_string())),
        (Value::String(s), Type::Number) => {
            Number::parse(s).map(Value::Number).ok_or_else(|| ConvertError::new("a number is required"))
        }
        (Value::String(s), Type::Bool) => match s.as_str() {
            "true" | "1" => Ok(Value::Bool(true)),
            "false" | "0" => Ok(Value::Bool(false)),
            _ if s.eq_ignore_ascii_case("true") || s.eq_ignore_ascii_case("false") => Err(ConvertError::new(format!(
                "a bool is required; to convert from string, use lowercase {:?}",
                s.to_lowercase()
            ))),
            _ => Err(ConvertError::new("a bool is required")),
        },
        (Value::List(_, items) | Value::Set(_, items) | Value::Tuple(items), Type::List(element)) => {
            let (element, items) = convert_items(items, element)?;
            Ok(Value::List(element, items))
        }
        (Value::List(_, items) | Value::Set(_, items) | Value::Tuple(items), Type::Set(element)) => {
            let (element, items) = convert_items(items, element)?;
            Ok(Value::set(element, items))
        }
        (Value::Tuple(items) | Value::List(_, items), Type::Tuple(types)) => {
            if items.len() != types.len() {
                return Err(ConvertError::new(format!(
                    "a tuple of {} elements is required, this has {}",
                    types.len(),
                    items.len()
                )));
            }
            let items = items
                .iter()
                .zip(types)
                .enumerate()
                .map(|(i, (item, ty))| convert(item, ty).map_err(|e| e.under(format!("[{i}]"))))
                .collect::<Result<_, _>>()?;
            Ok(Value::Tuple(items))
        }
        (Value::Map(_, entries) | Value::Object(entries), Type::Map(element)) => {
            let element = element_type(element, entries.values(), "map")?;
            let entries = entries
                .iter()
                .map(|(key, item)| {
                    convert(item, &element).map(|item| (key.clone(), item)).map_err(|e| e.under(format!("[{key:?}]")))
                })
                .collect::<Result<_, _>>()?;
            Ok(Value::Map(element, entries))
        }
        (Value::Map(_, entries) | Value::Object(entries), Type::Object(types)) => {
            let mut out = BTreeMap::new();
            let missing: Vec<String> =
                types.keys().filter(|key| !entries.contains_key(*key)).map(|key| format!("{key:?}")).collect();
            if !missing.is_empty() {
                let (noun, verb) = if missing.len() == 1 { ("attribute", "is") } else { ("attributes", "are") };
                return Err(ConvertError::new(format!("{noun} {} {verb} required", missing.join(", "))));
            }
            for (key, ty) in types {
                if let Some(item) = entries.get(key) {
                    let item = convert(item, ty).map_err(|e| e.under(format!(".{key}")))?;
                    out.insert(key.clone(), item);
                }
            }
            Ok(Value::Object(out))
        }
        _ => Err(ConvertError::new(match ty {
            Type::Bool => "bool required".to_owned(),
            Type::Number => "number required".to_owned(),
            other => format!("{other} required"),
        })),
    }
}

fn convert_items(items: &[Value], element: &Type) -> Result<(Type, Vec<Value>), ConvertError> {
    let element = element_type(element, items.iter(), "list")?;
    let items = items
        .iter()
        .enumerate()
        .map(|(i, item)| convert(item, &element).map_err(|e| e.under(format!("[{i}]"))))
        .collect::<Result<_, _>>()?;
    Ok((element, items))
}

/// An element type of `any` means: one type for all, to be found.
fn element_type<'a>(element: &Type, items: impl Iterator<Item = &'a Value>, what: &str) -> Result<Type, ConvertError> {
    if !matches!(element, Type::Any) {
        return Ok(element.clone());
    }
    let types: Vec<Type> = items.map(Value::ty).collect();
    unify(&types).ok_or_else(|| ConvertError::new(format!("all {what} elements must have the same type")))
}
