//! Services of the cluster.

use std::{collections::BTreeMap, rc::Rc};

use super::call::{Call, Failure, Function, Returned, f};
use crate::{
    services::{ServicePlace, parse_query},
    value::Value,
};

pub(super) const TABLE: &[Function] = &[f("nomadService", 1, 3, places), f("nomadServices", 0, 1, names)];

/// `nomadService NAME` or `nomadService COUNT KEY NAME`.
fn places(c: &mut Call<'_, '_>) -> Returned {
    let asked = c.text(c.args.len() - 1)?;
    let (mut query, tag) = parse_query(asked)?;
    match c.args.len() {
        1 => {}
        3 => {
            let count = u32::try_from(c.int(0)?).ok().filter(|n| *n > 0);
            query.choose =
                Some((count.ok_or_else(|| c.wrong(0, "a number of places above 0"))?, c.text(1)?.to_owned()));
        }
        _ => return Err("it takes the name of a service, or a number, a key and the name".into()),
    }
    let found = c.source().service(&query);
    let places = c.known(found, || format!("nomadService({asked})"))?.unwrap_or_default();
    c.work(places.len().saturating_mul(1024))?;
    let fits = |p: &ServicePlace| tag.as_ref().is_none_or(|tag| p.tags.contains(tag));
    let rows = places.into_iter().filter(fits).map(|p| {
        let text = |v: String| Value::text(v);
        record(
            c,
            [
                ("ID", text(p.id)),
                ("Name", text(p.name)),
                ("Node", text(p.node)),
                ("Address", text(p.address)),
                ("Port", Value::Int(p.port)),
                ("Datacenter", text(p.datacenter)),
                ("Tags", sorted(p.tags)),
                ("JobID", text(p.job)),
                ("AllocID", text(p.alloc)),
            ],
        )
    });
    Ok(Value::list(rows.collect::<Result<_, Failure>>()?)?)
}

/// `nomadServices`, or of a region: `nomadServices "@REGION"`.
fn names(c: &mut Call<'_, '_>) -> Returned {
    let asked = if c.args.is_empty() { "" } else { c.text(0)? };
    let region = match asked.strip_prefix('@') {
        Some(region) if !region.is_empty() => Some(region),
        None if asked.is_empty() => None,
        _ => return Err(format!("{asked:?} is not of the form @REGION").into()),
    };
    let found = c.source().service_names(region);
    let names = c.known(found, || format!("nomadServices({asked})"))?.unwrap_or_default();
    let rows = names.into_iter().map(|s| record(c, [("Name", Value::text(s.name)), ("Tags", sorted(s.tags))]));
    Ok(Value::list(rows.collect::<Result<_, Failure>>()?)?)
}

fn sorted(mut tags: Vec<String>) -> Value {
    tags.sort_unstable();
    Value::strings(tags)
}

/// A thing with these fields.
pub(super) fn record<const N: usize>(c: &mut Call<'_, '_>, fields: [(&'static str, Value); N]) -> Returned {
    let size = |v: &Value| match v {
        Value::Str(text) => text.len(),
        Value::List(list) => list.items.len() * 32,
        _ => 0,
    };
    c.allocate(fields.iter().map(|(name, value)| 48 + name.len() + size(value)).sum())?;
    let entries: BTreeMap<Rc<[u8]>, Value> =
        fields.into_iter().map(|(name, value)| (Rc::from(name.as_bytes()), value)).collect();
    Ok(Value::record(entries)?)
}
