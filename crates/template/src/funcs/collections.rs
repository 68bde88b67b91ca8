//! Lists and maps: membership, loops, merges.

use std::{collections::BTreeMap, rc::Rc};

use super::call::{Call, Failure, Function, Returned, f};
use crate::value::Value;

pub(super) const TABLE: &[Function] = &[
    f("in", 2, 2, |c| {
        let (list, value) = (c.arg(0), c.arg(1));
        holds(c, list, value).map(Value::Bool)
    }),
    f("contains", 2, 2, |c| {
        let (value, list) = (c.arg(0), c.arg(1));
        holds(c, list, value).map(Value::Bool)
    }),
    f("containsAll", 2, 2, |c| some(c, true, true)),
    f("containsAny", 2, 2, |c| some(c, false, false)),
    f("containsNone", 2, 2, |c| some(c, true, false)),
    f("containsNotAll", 2, 2, |c| some(c, false, true)),
    f("loop", 1, 2, |c| {
        let bound = |n: usize| match c.arg(n) {
            Value::Int(i) => Ok(*i),
            Value::Uint(u) => Ok(i64::try_from(*u).unwrap_or(i64::MAX)),
            Value::Str(_) => match c.text(n)? {
                "" => Ok(0),
                text => text.parse().map_err(|_| Failure::from(format!("{text:?} is not a whole number"))),
            },
            _ => Err(c.wrong(n, "a whole number or a string that holds one")),
        };
        Ok(if c.args.len() == 1 { Value::Loop(0, bound(0)?) } else { Value::Loop(bound(0)?, bound(1)?) })
    }),
    f("explodeMap", 1, 1, |c| {
        let mut tree = Tree::default();
        for (key, value) in &c.map(0)?.entries {
            c.allocate(128 + key.len())?;
            tree.put(key, value, 0)?;
        }
        Ok(tree.value()?)
    }),
    f("mergeMap", 2, 2, |c| merge(c, c.arg(0), c.arg(1), false)),
    f("mergeMapWithOverride", 2, 2, |c| merge(c, c.arg(0), c.arg(1), true)),
];

/// Is the value in the list, or a text in a text? Values of different kinds are different.
pub(super) fn holds(c: &mut Call<'_, '_>, list: &Value, value: &Value) -> Result<bool, Failure> {
    match (list, value) {
        (Value::List(list), value) => {
            c.work(list.items.len().saturating_mul(64))?;
            if let Value::Str(text) = value {
                c.work(list.items.len().saturating_mul(text.len()))?;
            }
            Ok(list.items.iter().any(|item| match (item, value) {
                (Value::Int(a), Value::Int(b)) => a == b,
                (Value::Uint(a), Value::Uint(b)) => a == b,
                (Value::Float(a), Value::Float(b)) => a == b,
                (Value::Str(a), Value::Str(b)) => a == b,
                _ => false,
            }))
        }
        (Value::Str(text), Value::Str(part)) => {
            c.work(text.len().saturating_add(part.len()))?;
            match (std::str::from_utf8(text), std::str::from_utf8(part)) {
                (Ok(text), Ok(part)) => Ok(text.contains(part)),
                _ => Err("text is looked for in UTF-8 text only".into()),
            }
        }
        _ => Ok(false),
    }
}

fn some(c: &mut Call<'_, '_>, result: bool, invert: bool) -> Returned {
    let wanted = c.list(0)?.clone();
    let list = c.arg(1);
    for value in &wanted.items {
        if holds(c, list, value)? != invert {
            return Ok(Value::Bool(!result));
        }
    }
    Ok(Value::Bool(result))
}

/// Keys with slashes as maps in maps.
#[derive(Default)]
struct Tree(BTreeMap<Rc<[u8]>, Branch>);

enum Branch {
    Leaf(Value),
    Inner(Tree),
}

impl Tree {
    fn put(&mut self, key: &[u8], value: &Value, depth: u16) -> Result<(), String> {
        if depth > crate::value::MAX_DEPTH {
            return Err("a key has too many parts".into());
        }
        let Some(slash) = key.iter().position(|b| *b == b'/') else {
            if !key.is_empty() {
                self.0.insert(key.into(), Branch::Leaf(value.clone()));
            }
            return Ok(());
        };
        let (top, rest) = (&key[..slash], &key[slash + 1..]);
        match self.0.entry(top.into()).or_insert_with(|| Branch::Inner(Self::default())) {
            Branch::Inner(tree) => tree.put(rest, value, depth + 1),
            Branch::Leaf(Value::Map(_)) => {
                Err(format!("{:?} is a map already and cannot take further keys", String::from_utf8_lossy(top)))
            }
            Branch::Leaf(_) => {
                Err(format!("{:?} has a value already and cannot be a map", String::from_utf8_lossy(top)))
            }
        }
    }

    fn value(self) -> Result<Value, String> {
        let entries = self.0.into_iter().map(|(key, branch)| {
            Ok((
                key,
                match branch {
                    Branch::Leaf(value) => value,
                    Branch::Inner(tree) => tree.value()?,
                },
            ))
        });
        Value::map(entries.collect::<Result<_, String>>()?)
    }
}

pub(super) fn merge(c: &mut Call<'_, '_>, into: &Value, from: &Value, over: bool) -> Returned {
    let (Value::Map(into), Value::Map(from)) = (into, from) else { return Err("both arguments must be maps".into()) };
    let mut merged = into.entries.clone();
    c.allocate((merged.len() + from.entries.len()).saturating_mul(64))?;
    for (key, value) in &from.entries {
        let new = match merged.get(key) {
            Some(old @ Value::Map(_)) if matches!(value, Value::Map(_)) => merge(c, old, value, over)?,
            // Empty values are filled; with override they do not replace anything.
            Some(old) if old.is_true() && !(over && value.is_true()) => continue,
            _ => value.clone(),
        };
        merged.insert(key.clone(), new);
    }
    Ok(Value::map(merged)?)
}
