//! Variables of the cluster, as consul-template's `dependency/nomad_var_structs.go` shows them to templates.

use std::{collections::BTreeMap, rc::Rc};

use super::{
    call::{Call, Function, Returned, f},
    services::record,
};
use crate::{
    go_time,
    source::Lookup,
    value::{Methods, Value},
    variables::{Variable, VariableMeta, parse_query},
};

pub(super) const TABLE: &[Function] = &[
    f("nomadVar", 1, 1, items),
    f("nomadVarExists", 1, 1, exists),
    f("nomadVarList", 0, 1, |c| list(c, true)),
    f("nomadVarListSafe", 0, 1, |c| list(c, false)),
];

/// As Go prints a time.
const TIME: &str = "2006-01-02 15:04:05.999999999 -0700 MST";

/// `nomadVar PATH`: waits until the variable exists.
fn items(c: &mut Call<'_, '_>) -> Returned {
    let asked = c.text(0)?;
    if asked.is_empty() {
        return Ok(Value::Nil);
    }
    let query = parse_query(asked, false)?;
    let found = match c.source().variable(&query) {
        Lookup::Known(Some(variable)) => Lookup::Known(variable),
        Lookup::Known(None) | Lookup::Missing => Lookup::Missing,
        Lookup::Refused(why) => Lookup::Refused(why),
    };
    match c.known(found, || format!("nomadVar({asked})"))? {
        Some(variable) => shown(c, variable),
        None => Ok(Value::Nil),
    }
}

/// `nomadVarExists PATH`.
fn exists(c: &mut Call<'_, '_>) -> Returned {
    let asked = c.text(0)?;
    if asked.is_empty() {
        return Ok(Value::Bool(false));
    }
    let query = parse_query(asked, false)?;
    let found = c.source().variable(&query);
    let found = c.known(found, || format!("nomadVarExists({asked})"))?;
    Ok(Value::Bool(found.flatten().is_some()))
}

/// `nomadVarList`, or `nomadVarList PREFIX`. `empty`: none are an answer as well.
fn list(c: &mut Call<'_, '_>, empty: bool) -> Returned {
    let asked = if c.args.is_empty() { "" } else { c.text(0)? };
    let query = parse_query(asked, true)?;
    let found = match c.source().variables(&query) {
        Lookup::Known(none) if none.is_empty() && !empty => Lookup::Missing,
        other => other,
    };
    let name = if empty { "nomadVarList" } else { "nomadVarListSafe" };
    let rows = c.known(found, || format!("{name}({asked})"))?.unwrap_or_default();
    c.work(rows.len().saturating_mul(1024))?;
    let rows = rows.into_iter().map(|row| metadata(c, &row)).collect::<Result<_, _>>()?;
    Ok(Value::list(rows)?)
}

fn fields(meta: &VariableMeta) -> [(&'static str, Value); 6] {
    [
        ("Namespace", Value::text(&meta.namespace)),
        ("Path", Value::text(&meta.path)),
        ("CreateIndex", Value::Uint(meta.create_index)),
        ("ModifyIndex", Value::Uint(meta.modify_index)),
        ("CreateTime", Value::text(go_time::format(meta.create_time, TIME))),
        ("ModifyTime", Value::text(go_time::format(meta.modify_time, TIME))),
    ]
}

/// Metadata print as the path.
fn metadata(c: &mut Call<'_, '_>, meta: &VariableMeta) -> Returned {
    let text = Some(Rc::from(meta.path.as_bytes()));
    Ok(record(c, fields(meta))?.with_methods(Methods { text, ..Methods::default() }))
}

/// The items; what they belong to is reached through methods.
fn shown(c: &mut Call<'_, '_>, variable: Variable) -> Returned {
    let bytes: usize = variable.items.iter().map(|(key, value)| key.len() + value.len() + 96).sum();
    // Items, keys, values, and both again as tuples and in the parent.
    c.allocate(bytes.saturating_mul(4))?;
    let Variable { meta, items } = variable;
    let of = metadata(c, &meta)?;
    let pairs: Vec<(Value, Value)> = items.iter().map(|(key, value)| (Value::text(key), Value::text(value))).collect();
    let tuples = pairs.iter().map(|(key, value)| record(c, [("K", key.clone()), ("V", value.clone())]));
    let tuples = Value::list(tuples.collect::<Result<_, _>>()?)?;
    let entries: BTreeMap<Rc<[u8]>, Value> =
        items.iter().zip(&pairs).map(|((key, _), (_, value))| (Rc::from(key.as_bytes()), value.clone())).collect();
    let (keys, values): (Vec<Value>, Vec<Value>) = pairs.into_iter().unzip();
    let (keys, values) = (Value::list(keys)?, Value::list(values)?);
    let plain = Value::string_map(entries.clone());
    let methods = |of: [(&'static str, Value); 4]| Methods { of: of.into(), text: None };
    let mut parent: Vec<(&'static str, Value)> = fields(&meta).into();
    parent.push(("Items", plain));
    let parent = parent.into_iter().map(|(name, value)| (Rc::from(name.as_bytes()), value)).collect();
    let parent =
        Value::record(parent)?.with_methods(Methods { of: [("Metadata", of.clone())].into(), ..Methods::default() });
    let (keys, values) = (("Keys", keys), ("Values", values));
    let items = Value::string_map(entries);
    let mut all = methods([keys, values, ("Tuples", tuples), ("Metadata", of)]);
    all.of.insert("Parent", parent);
    Ok(items.with_methods(all))
}
