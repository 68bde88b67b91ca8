//! Sets.

use super::signature::{Args, CallError, Outcome, fail};
use crate::convert::convert;
use crate::types::{Type, unify};
use crate::value::Value;

/// All arguments with one element type.
fn sets(a: &Args<'_>) -> Result<(Type, Vec<Vec<Value>>), CallError> {
    if a.len() == 0 {
        return fail("at least one set is required");
    }
    let types: Vec<Type> = a
        .values
        .iter()
        .filter_map(|v| match v {
            Value::Set(ty, items) if !items.is_empty() => Some(ty.clone()),
            _ => None,
        })
        .collect();
    let Some(ty) = unify(&types) else {
        return fail("all sets must have one element type");
    };
    let mut out = Vec::new();
    for i in 0..a.len() {
        let mut items = Vec::new();
        for item in a.items(i)? {
            match convert(item, &ty) {
                Ok(item) => items.push(item),
                Err(e) => return fail(e.to_string()),
            }
        }
        out.push(items);
    }
    Ok((ty, out))
}

pub(super) fn union(a: &Args<'_>) -> Outcome {
    let (ty, sets) = sets(a)?;
    Ok(Value::set(ty, sets.into_iter().flatten().collect()))
}

pub(super) fn intersection(a: &Args<'_>) -> Outcome {
    let (ty, mut sets) = sets(a)?;
    for set in &mut sets {
        set.sort();
    }
    let mut sets = sets.into_iter();
    let first = sets.next().unwrap_or_default();
    let rest: Vec<_> = sets.collect();
    let common = first.into_iter().filter(|item| rest.iter().all(|set| set.binary_search(item).is_ok())).collect();
    Ok(Value::set(ty, common))
}

/// Every combination, one element of each: a set of tuples, or a list when only lists came in.
pub(super) fn product(a: &Args<'_>) -> Outcome {
    if a.len() < 2 {
        return fail("at least two sets are required");
    }
    let mut total: usize = 1;
    for i in 0..a.len() {
        total = total.saturating_mul(a.items(i)?.len());
    }
    a.charge(total.saturating_mul(a.len()).saturating_mul(64))?;
    let mut rows: Vec<Vec<Value>> = vec![Vec::new()];
    for i in 0..a.len() {
        let items = a.items(i)?;
        let mut next = Vec::with_capacity(rows.len() * items.len());
        for row in &rows {
            for item in items {
                let mut row = row.clone();
                row.push(item.clone());
                next.push(row);
            }
        }
        rows = next;
    }
    let rows: Vec<Value> = rows.into_iter().map(Value::Tuple).collect();
    let types: Vec<Type> = rows.iter().map(Value::ty).collect();
    let ty = unify(&types).unwrap_or(Type::Any);
    let any_set = a.values.iter().any(|v| matches!(v, Value::Set(..)));
    Ok(if any_set { Value::set(ty, rows) } else { Value::List(ty, rows) })
}
