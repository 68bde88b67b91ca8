//! The methods of a scratch.

use crate::{
    means::Means,
    value::{Scratch, Value},
};

/// A method of a scratch.
pub(crate) fn method(means: &mut Means<'_>, scratch: &Scratch, name: &str, args: Vec<Value>) -> Result<Value, String> {
    let count = match name {
        "Key" | "Get" | "MapValues" => 1,
        "Set" | "SetX" => 2,
        "MapSet" | "MapSetX" => 3,
        _ => {
            return Err(format!(
                "a scratch has no method {name}; there are Key, Get, Set, SetX, MapSet, MapSetX and MapValues"
            ));
        }
    };
    if args.len() != count {
        return Err(format!("scratch.{name} takes {count} argument(s), {} given", args.len()));
    }
    let text = |n: usize| match args.get(n) {
        Some(Value::Str(text)) => Ok(text.clone()),
        _ => Err(format!("scratch.{name}: argument {} must be a string", n + 1)),
    };
    let key = text(0)?;
    let mut values = scratch.0.borrow_mut();
    means.allocate(64 + key.len())?;
    match name {
        "Key" => Ok(Value::Bool(values.contains_key(&key))),
        "Get" => Ok(values.get(&key).cloned().unwrap_or(Value::Nil)),
        "Set" | "SetX" => {
            if name == "Set" || !values.contains_key(&key) {
                values.insert(key, args[1].clone());
            }
            Ok(Value::text(""))
        }
        "MapValues" => match values.get(&key) {
            None => Ok(Value::Nil),
            Some(Value::Map(map)) => {
                means.allocate(map.entries.len() * 16)?;
                Value::list(map.entries.values().cloned().collect())
            }
            Some(_) => Err(format!("scratch.MapValues: {:?} is not a map", String::from_utf8_lossy(&key))),
        },
        _ => {
            let mut entries = match values.get(&key) {
                None => std::collections::BTreeMap::new(),
                Some(Value::Map(map)) => map.entries.clone(),
                Some(_) => return Err(format!("scratch.{name}: {:?} is not a map", String::from_utf8_lossy(&key))),
            };
            means.allocate(entries.len() * 32)?;
            let inner = text(1)?;
            if name == "MapSet" || !entries.contains_key(&inner) {
                entries.insert(inner, args[2].clone());
            }
            values.insert(key, Value::map(entries)?);
            Ok(Value::text(""))
        }
    }
}
