//! Secrets of Vault, as consul-template's `dependency/vault_common.go` shows them to templates.

use std::{collections::BTreeMap, rc::Rc};

use super::{
    call::{Call, Function, MANY, Returned, f},
    services::record,
};
use crate::{
    secrets::SecretQuery,
    source::Lookup,
    value::{Methods, Value},
};

pub(super) const TABLE: &[Function] = &[f("secret", 1, MANY, secret), f("secrets", 1, 1, names)];

/// The functions of this file: a task without a `vault` block cannot call them.
pub(crate) const NAMES: [&str; 2] = ["secret", "secrets"];

/// `secret PATH`, or with what is written to get it: `secret PATH "name=value" …`. Waits until it exists.
fn secret(c: &mut Call<'_, '_>) -> Returned {
    let path = path(c.text(0)?)?;
    let mut data = BTreeMap::new();
    for text in c.texts(1)? {
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or("what is written has the form name=value")?;
        data.insert(name.to_owned(), value.to_owned());
    }
    let query = SecretQuery { path: path.to_owned(), data };
    let found = match c.source().secret(&query) {
        Lookup::Known(Some(secret)) => Lookup::Known(secret),
        Lookup::Known(None) | Lookup::Missing => Lookup::Missing,
        Lookup::Refused(why) => Lookup::Refused(why),
    };
    let Some(secret) = c.known(found, || format!("secret({path})"))? else { return Ok(Value::Nil) };
    let text = serde_json::to_string(&secret.data).map_or(0, |text| text.len());
    // A value costs more than its text.
    c.allocate(text.saturating_mul(16))?;
    let members = secret.data.iter().map(|(name, value)| Ok((Rc::from(name.as_bytes()), Value::of_document(value)?)));
    let data = Value::map(members.collect::<Result<_, String>>()?)?;
    let seconds = i64::try_from(secret.lease_seconds).unwrap_or(i64::MAX);
    let fields = [
        ("LeaseID", Value::text(&secret.lease_id)),
        ("LeaseDuration", Value::Int(seconds)),
        ("Renewable", Value::Bool(secret.renewable)),
        ("Warnings", Value::strings(&secret.warnings)),
        ("Data", data),
    ];
    // It is printed as nothing that could hold a secret by accident.
    let text = Some(Rc::from(&b"<secret>"[..]));
    Ok(record(c, fields)?.with_methods(Methods { text, ..Methods::default() }))
}

/// `secrets PATH`: the names below it; none are an answer as well.
fn names(c: &mut Call<'_, '_>) -> Returned {
    let path = path(c.text(0)?)?;
    let found = c.source().secret_names(path);
    let names = c.known(found, || format!("secrets({path})"))?.unwrap_or_default();
    c.allocate(names.iter().map(|name| 48 + name.len()).sum())?;
    Ok(Value::strings(names))
}

fn path(text: &str) -> Result<&str, String> {
    let path = text.trim().trim_matches('/');
    match path.is_empty() {
        true => Err(format!("{text:?} is no path of a secret")),
        false => Ok(path),
    }
}
