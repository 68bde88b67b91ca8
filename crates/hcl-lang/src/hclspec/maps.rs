//! Maps and lists of maps. A job file cannot tell the two apart: `labels { a = "1" }`, written once or several times,
//! and `labels = { a = "1" }` reach a driver as a list of maps, while jobs in JSON may hold a plain object. A driver
//! asks for either; both ways of writing serve both.

use std::collections::BTreeMap;

use crate::types::Type;
use crate::value::Value;

/// The value in the form that `ty` asks for, at any depth: a list of maps becomes one map, in which later keys win; one
/// map becomes a list of one. Everything else stays as it is, also what does not fit.
pub(super) fn as_asked(value: Value, ty: &Type) -> Value {
    match (value, ty) {
        (Value::Tuple(items) | Value::List(_, items), Type::Map(element))
            if items.iter().all(|item| entries(item).is_some()) =>
        {
            let merged = items.into_iter().filter_map(into_entries).flatten();
            Value::Object(merged.map(|(key, item)| (key, as_asked(item, element))).collect())
        }
        (Value::Map(_, entries) | Value::Object(entries), Type::Map(element)) => {
            Value::Object(entries.into_iter().map(|(key, item)| (key, as_asked(item, element))).collect())
        }
        (one @ (Value::Map(..) | Value::Object(_)), Type::List(element)) if matches!(**element, Type::Map(_)) => {
            Value::Tuple(vec![as_asked(one, element)])
        }
        (Value::Tuple(items), Type::List(element)) => {
            Value::Tuple(items.into_iter().map(|item| as_asked(item, element)).collect())
        }
        (Value::Object(entries), Type::Object(types)) => Value::Object(
            entries
                .into_iter()
                .map(|(key, item)| match types.get(&key) {
                    Some(ty) => {
                        let item = as_asked(item, ty);
                        (key, item)
                    }
                    None => (key, item),
                })
                .collect(),
        ),
        (value, _) => value,
    }
}

fn entries(value: &Value) -> Option<&BTreeMap<String, Value>> {
    match value {
        Value::Map(_, entries) | Value::Object(entries) => Some(entries),
        _ => None,
    }
}

fn into_entries(value: Value) -> Option<BTreeMap<String, Value>> {
    match value {
        Value::Map(_, entries) | Value::Object(entries) => Some(entries),
        _ => None,
    }
}
