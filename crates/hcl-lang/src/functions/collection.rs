//! Lists and maps.

use std::collections::{BTreeMap, BTreeSet};

use super::signature::{Args, CallError, Outcome, fail, fail_arg};
use crate::convert::convert;
use crate::number::Number;
use crate::types::{Type, unify};
use crate::value::{Value, position};

fn entries<'a>(a: &'a Args<'_>, i: usize) -> Result<&'a BTreeMap<String, Value>, CallError> {
    match a.value(i).entries() {
        Some(entries) => Ok(entries),
        None => fail_arg(i, format!("a map is required, this is {}", a.value(i).kind())),
    }
}

/// A list when all elements have one type, a tuple otherwise: keeps the kind of `like`.
fn like(like: &Value, items: Vec<Value>) -> Value {
    match like {
        Value::List(ty, _) | Value::Set(ty, _) => Value::List(ty.clone(), items),
        _ => Value::Tuple(items),
    }
}

pub(super) fn chunklist(a: &Args<'_>) -> Outcome {
    let items = a.items(0)?;
    let size = a.int(1)?;
    if size < 0 {
        return fail_arg(1, "the size must not be negative");
    }
    let size = if size == 0 { items.len().max(1) } else { size as usize };
    Ok(Value::Tuple(items.chunks(size).map(|chunk| like(a.value(0), chunk.to_vec())).collect()))
}

pub(super) fn coalesce(a: &Args<'_>) -> Outcome {
    let types: Vec<Type> = a.values.iter().map(Value::ty).collect();
    let Some(ty) = unify(&types) else {
        return fail("all arguments must have the same type");
    };
    match a.values.iter().find(|v| !v.is_null()) {
        Some(value) => convert(value, &ty).or_else(|e| fail(e.to_string())),
        None => fail("no argument is other than null"),
    }
}

pub(super) fn coalescelist(a: &Args<'_>) -> Outcome {
    for i in 0..a.len() {
        if !a.value(i).is_null() && !a.items(i)?.is_empty() {
            return Ok(a.value(i).clone());
        }
    }
    fail("no argument is other than null or empty")
}

pub(super) fn compact(a: &Args<'_>) -> Outcome {
    Ok(Value::List(
        Type::String,
        a.items(0)?.iter().filter(|v| v.as_str().is_some_and(|s| !s.is_empty())).cloned().collect(),
    ))
}

pub(super) fn concat(a: &Args<'_>) -> Outcome {
    let mut items = Vec::new();
    let mut types = BTreeSet::new();
    for i in 0..a.len() {
        items.extend(a.items(i)?.iter().cloned());
        types.insert(match a.value(i) {
            Value::List(ty, _) => Some(ty.clone()),
            _ => None,
        });
    }
    let first = types.pop_first();
    Ok(match (first, types.is_empty()) {
        (Some(Some(ty)), true) => Value::List(ty, items),
        _ => Value::Tuple(items),
    })
}

pub(super) fn contains(a: &Args<'_>) -> Outcome {
    Ok(Value::Bool(a.items(0)?.contains(a.value(1))))
}

pub(super) fn distinct(a: &Args<'_>) -> Outcome {
    let mut seen = BTreeSet::new();
    let list = match convert(a.value(0), &Type::list(Type::Any)) {
        Ok(list) => list,
        Err(e) => return fail_arg(0, e.to_string()),
    };
    let items = list.elements().unwrap_or_default();
    let mut out = Vec::new();
    for item in items {
        if seen.insert(item) {
            out.push(item.clone());
        }
    }
    Ok(like(&list, out))
}

pub(super) fn element(a: &Args<'_>) -> Outcome {
    let items = a.items(0)?;
    let index = a.int(1)?;
    if items.is_empty() {
        return fail_arg(0, "an empty list has no elements");
    }
    if index < 0 {
        return fail_arg(1, "the index must not be negative");
    }
    Ok(items[(index as usize) % items.len()].clone())
}

pub(super) fn flatten(a: &Args<'_>) -> Outcome {
    fn walk(items: &[Value], out: &mut Vec<Value>) {
        for item in items {
            match item.elements() {
                Some(inner) => walk(inner, out),
                None => out.push(item.clone()),
            }
        }
    }
    let mut out = Vec::new();
    walk(a.items(0)?, &mut out);
    Ok(Value::Tuple(out))
}

/// The element at a key, if there is one.
fn at(collection: &Value, key: &Value) -> Result<Option<Value>, CallError> {
    if let Some(entries) = collection.entries() {
        return match convert(key, &Type::String) {
            Ok(Value::String(key)) => Ok(entries.get(&key).cloned()),
            _ => fail_arg(1, "the key of a map must be a string"),
        };
    }
    if let (Some(items), false) = (collection.elements(), matches!(collection, Value::Set(..))) {
        return match convert(key, &Type::Number) {
            Ok(Value::Number(n)) => Ok(n.as_u64().and_then(|n| items.get(usize::try_from(n).ok()?)).cloned()),
            _ => fail_arg(1, "the key of a list must be a number"),
        };
    }
    fail_arg(0, format!("a list or map is required, this is {}", collection.kind()))
}

pub(super) fn hasindex(a: &Args<'_>) -> Outcome {
    Ok(Value::Bool(at(a.value(0), a.value(1))?.is_some()))
}

pub(super) fn index(a: &Args<'_>) -> Outcome {
    match at(a.value(0), a.value(1))? {
        Some(value) => Ok(value),
        None => fail_arg(1, "there is no element with this key"),
    }
}

pub(super) fn keys(a: &Args<'_>) -> Outcome {
    Ok(Value::strings(entries(a, 0)?.keys().cloned()))
}

pub(super) fn length(a: &Args<'_>) -> Outcome {
    let value = a.value(0);
    let count = match (value.elements(), value.entries()) {
        (Some(items), _) => items.len(),
        (_, Some(entries)) => entries.len(),
        _ => {
            return fail_arg(
                0,
                format!("a list, set, map, tuple or object is required, this is {}; for text use strlen", value.kind()),
            );
        }
    };
    Ok(Value::Number(Number::from(count)))
}

pub(super) fn lookup(a: &Args<'_>) -> Outcome {
    let found = entries(a, 0)?.get(a.text(1));
    match (found, a.value(0)) {
        (Some(value), _) => Ok(value.clone()),
        (None, Value::Map(ty, _)) => convert(a.value(2), ty)
            .or_else(|_| fail_arg(2, format!("the default must be of the map's element type, {ty}"))),
        (None, _) => Ok(a.value(2).clone()),
    }
}

pub(super) fn merge(a: &Args<'_>) -> Outcome {
    let mut out = BTreeMap::new();
    let mut types = BTreeSet::new();
    for i in 0..a.len() {
        if a.value(i).is_null() {
            continue;
        }
        for (key, value) in entries(a, i)? {
            out.insert(key.clone(), value.clone());
        }
        types.insert(match a.value(i) {
            Value::Map(ty, _) => Some(ty.clone()),
            _ => None,
        });
    }
    let first = types.pop_first();
    Ok(match (first, types.is_empty()) {
        (Some(Some(ty)), true) => Value::Map(ty, out),
        _ => Value::Object(out),
    })
}

pub(super) fn slice(a: &Args<'_>) -> Outcome {
    let items = a.items(0)?;
    let (start, end) = (a.int(1)?, a.int(2)?);
    if start < 0 || start as usize > items.len() {
        return fail_arg(1, format!("the start must be from 0 to {}", items.len()));
    }
    if end < start || end as usize > items.len() {
        return fail_arg(2, format!("the end must be from {start} to {}", items.len()));
    }
    Ok(like(a.value(0), items[start as usize..end as usize].to_vec()))
}

pub(super) fn sort(a: &Args<'_>) -> Outcome {
    let mut items = a.items(0)?.to_vec();
    if let Some(i) = items.iter().position(Value::is_null) {
        return fail_arg(0, format!("element {i} is null"));
    }
    items.sort();
    Ok(Value::List(Type::String, items))
}

pub(super) fn values(a: &Args<'_>) -> Outcome {
    let values: Vec<Value> = entries(a, 0)?.values().cloned().collect();
    Ok(match a.value(0) {
        Value::Map(ty, _) => Value::List(ty.clone(), values),
        _ => Value::Tuple(values),
    })
}

pub(super) fn zipmap(a: &Args<'_>) -> Outcome {
    let (keys, values) = (a.items(0)?, a.items(1)?);
    if keys.len() != values.len() {
        return fail(format!("as many keys as values are required, these are {} and {}", keys.len(), values.len()));
    }
    let mut out = BTreeMap::new();
    for (i, (key, value)) in keys.iter().zip(values).enumerate() {
        let Some(key) = key.as_str() else {
            return fail_arg(0, format!("key {:?} is null", position(i)));
        };
        out.insert(key.to_owned(), value.clone());
    }
    Ok(match a.value(1) {
        Value::List(ty, _) => Value::Map(ty.clone(), out),
        _ => Value::Object(out),
    })
}
