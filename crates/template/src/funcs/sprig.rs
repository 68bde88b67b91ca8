//! The part of the sprig functions that templates of configuration files use; consul-template puts `sprig_` before
//! their names.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::Digest;

use super::{
    call::{Call, Failure, Function, MANY, Returned, f},
    collections, parse, text,
};
use crate::{print, value::Value};

pub(super) const TABLE: &[Function] = &[
    f("sprig_default", 1, 2, |c| Ok(if c.arg(1).is_true() { c.arg(1).clone() } else { c.arg(0).clone() })),
    f("sprig_empty", 1, 1, |c| Ok(Value::Bool(!c.arg(0).is_true()))),
    f("sprig_coalesce", 0, MANY, |c| Ok(c.args.iter().find(|v| v.is_true()).cloned().unwrap_or(Value::Nil))),
    f("sprig_ternary", 3, 3, |c| match c.arg(2) {
        Value::Bool(choice) => Ok(c.arg(usize::from(!choice)).clone()),
        _ => Err(c.wrong(2, "true or false")),
    }),
    f("sprig_fail", 1, 1, |c| Err(c.text(0)?.into())),
    // Text.
    f("sprig_upper", 1, 1, |c| grown(c, 0, text::upper)),
    f("sprig_lower", 1, 1, |c| grown(c, 0, text::lower)),
    f("sprig_trim", 1, 1, |c| c.made(c.text(0)?.trim())),
    f("sprig_trimAll", 2, 2, |c| {
        let (set, text) = (c.text(0)?, c.text(1)?);
        c.work(set.len().saturating_mul(text.len()))?;
        c.made(text.trim_matches(|x| set.contains(x)))
    }),
    f("sprig_trimPrefix", 2, 2, |c| c.made(c.text(1)?.strip_prefix(c.text(0)?).unwrap_or(c.text(1)?))),
    f("sprig_trimSuffix", 2, 2, |c| c.made(c.text(1)?.strip_suffix(c.text(0)?).unwrap_or(c.text(1)?))),
    f("sprig_nospace", 1, 1, |c| grown(c, 0, |t| t.chars().filter(|x| !x.is_whitespace()).collect())),
    f("sprig_contains", 2, 2, |c| {
        c.work(c.text(1)?.len())?;
        Ok(Value::Bool(c.text(1)?.contains(c.text(0)?)))
    }),
    f("sprig_hasPrefix", 2, 2, |c| Ok(Value::Bool(c.bytes(1)?.starts_with(c.bytes(0)?)))),
    f("sprig_hasSuffix", 2, 2, |c| Ok(Value::Bool(c.bytes(1)?.ends_with(c.bytes(0)?)))),
    f("sprig_replace", 3, 3, |c| text::replace(c, c.text(0)?, c.text(1)?, c.text(2)?)),
    f("sprig_repeat", 2, 2, |c| {
        let count = usize::try_from(c.int(0)?).map_err(|_| "the count cannot be negative")?;
        let text = c.bytes(1)?;
        c.allocate(text.len().saturating_mul(count))?;
        Ok(Value::text(text.repeat(count)))
    }),
    f("sprig_trunc", 2, 2, |c| {
        let (count, text) = (c.int(0)?, c.bytes(1)?);
        let size = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
        c.made(match (count < 0, size < text.len()) {
            (_, false) => text,
            (true, _) => &text[text.len() - size..],
            (false, _) => &text[..size],
        })
    }),
    f("sprig_indent", 2, 2, |c| pad(c, "")),
    f("sprig_nindent", 2, 2, |c| pad(c, "\n")),
    f("sprig_quote", 0, MANY, |c| quoted(c, |t| print::quote(t.as_bytes(), false))),
    f("sprig_squote", 0, MANY, |c| quoted(c, |t| format!("'{t}'"))),
    f("sprig_toString", 1, 1, |c| {
        let text = shown(c, c.arg(0))?;
        c.made(text)
    }),
    f("sprig_join", 2, 2, |c| {
        let separator = c.text(0)?;
        let Value::List(list) = c.arg(1) else {
            let text = shown(c, c.arg(1))?;
            return c.made(text);
        };
        let mut out = c.out();
        for (n, item) in list.items.iter().filter(|v| !matches!(v, Value::Nil)).enumerate() {
            if n > 0 {
                out.push(separator)?;
            }
            print::plain(&mut out, item)?;
        }
        c.finished(out)
    }),
    f("sprig_splitList", 2, 2, |c| text::split(c, c.text(0)?, c.text(1)?)),
    f("sprig_regexMatch", 2, 2, |c| {
        c.work(c.text(1)?.len().saturating_mul(text::REGEX_WORK))?;
        Ok(Value::Bool(c.regex(c.text(0)?)?.is_match(c.text(1)?)))
    }),
    f("sprig_b64enc", 1, 1, |c| c.made(BASE64_STANDARD.encode(c.bytes(0)?))),
    f("sprig_b64dec", 1, 1, |c| {
        let bytes = BASE64_STANDARD.decode(c.bytes(0)?).map_err(|e| format!("this is not base64: {e}"))?;
        c.made(bytes)
    }),
    f("sprig_sha1sum", 1, 1, |c| {
        c.allocate(c.bytes(0)?.len())?;
        c.made(text::hex(&sha1::Sha1::digest(c.bytes(0)?)))
    }),
    f("sprig_sha256sum", 1, 1, |c| {
        c.allocate(c.bytes(0)?.len())?;
        c.made(text::hex(&sha2::Sha256::digest(c.bytes(0)?)))
    }),
    f("sprig_toJson", 1, 1, |c| parse::to_json(c, None, true)),
    f("sprig_toPrettyJson", 1, 1, |c| parse::to_json(c, Some("  "), true)),
    f("sprig_fromJson", 1, 1, parse::parse_json),
    // Lists.
    f("sprig_list", 0, MANY, |c| made_list(c, c.args.to_vec())),
    f("sprig_first", 1, 1, |c| Ok(c.list(0)?.items.first().cloned().unwrap_or(Value::Nil))),
    f("sprig_last", 1, 1, |c| Ok(c.list(0)?.items.last().cloned().unwrap_or(Value::Nil))),
    f("sprig_rest", 1, 1, |c| made_list(c, c.list(0)?.items.iter().skip(1).cloned().collect())),
    f("sprig_initial", 1, 1, |c| {
        let items = &c.list(0)?.items;
        made_list(c, items[..items.len().saturating_sub(1)].to_vec())
    }),
    f("sprig_append", 2, 2, |c| {
        c.allocate(c.list(0)?.items.len() * 16)?;
        made_list(c, c.list(0)?.items.iter().chain([c.arg(1)]).cloned().collect())
    }),
    f("sprig_prepend", 2, 2, |c| {
        c.allocate(c.list(0)?.items.len() * 16)?;
        made_list(c, [c.arg(1)].into_iter().chain(&c.list(0)?.items).cloned().collect())
    }),
    f("sprig_concat", 0, MANY, |c| {
        let mut items = Vec::new();
        for n in 0..c.args.len() {
            c.allocate(c.list(n)?.items.len() * 16)?;
            items.extend(c.list(n)?.items.iter().cloned());
        }
        made_list(c, items)
    }),
    f("sprig_reverse", 1, 1, |c| made_list(c, c.list(0)?.items.iter().rev().cloned().collect())),
    f("sprig_has", 2, 2, |c| collections::holds(c, c.arg(1), c.arg(0)).map(Value::Bool)),
    f("sprig_sortAlpha", 1, 1, |c| {
        let mut items = Vec::new();
        for item in &c.list(0)?.items {
            let text = shown(c, item)?;
            c.allocate(text.len() + 16)?;
            items.push(text);
        }
        items.sort();
        Ok(Value::strings(items))
    }),
    f("sprig_until", 1, 1, |c| {
        let count = c.int(0)?;
        let size = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
        c.allocate(size.saturating_mul(16))?;
        made_list(c, (0..count.abs()).map(|n| Value::Int(n * count.signum())).collect())
    }),
    // Maps.
    f("sprig_dict", 0, MANY, |c| {
        let mut entries = BTreeMap::new();
        for pair in c.args.chunks(2) {
            let key = shown(c, &pair[0])?;
            c.allocate(64 + key.len())?;
            entries.insert(key.into_bytes().into(), pair.get(1).cloned().unwrap_or_else(|| Value::text("")));
        }
        Ok(Value::map(entries)?)
    }),
    f("sprig_get", 2, 2, |c| Ok(c.map(0)?.entries.get(c.bytes(1)?).cloned().unwrap_or_else(|| Value::text("")))),
    f("sprig_hasKey", 2, 2, |c| Ok(Value::Bool(c.map(0)?.entries.contains_key(c.bytes(1)?)))),
    f("sprig_pick", 1, MANY, |c| chosen(c, true)),
    f("sprig_omit", 1, MANY, |c| chosen(c, false)),
    f("sprig_keys", 1, 1, |c| {
        c.allocate(c.map(0)?.entries.len() * 16)?;
        made_list(c, c.map(0)?.entries.keys().map(|k| Value::Str(k.clone())).collect())
    }),
    f("sprig_values", 1, 1, |c| {
        c.allocate(c.map(0)?.entries.len() * 16)?;
        made_list(c, c.map(0)?.entries.values().cloned().collect())
    }),
    // Numbers.
    f("sprig_int", 1, 1, |c| Ok(Value::Int(whole(c, 0)?))),
    f("sprig_atoi", 1, 1, |c| Ok(Value::Int(c.text(0)?.parse().unwrap_or(0)))),
    f("sprig_add1", 1, 1, |c| Ok(Value::Int(whole(c, 0)?.wrapping_add(1)))),
    f("sprig_add", 0, MANY, |c| folded(c, |a, b| Some(a.wrapping_add(b)), Some(0))),
    f("sprig_sub", 2, 2, |c| folded(c, |a, b| Some(a.wrapping_sub(b)), None)),
    f("sprig_mul", 1, MANY, |c| folded(c, |a, b| Some(a.wrapping_mul(b)), None)),
    f("sprig_div", 2, 2, |c| folded(c, i64::checked_div, None)),
    f("sprig_mod", 2, 2, |c| folded(c, i64::checked_rem, None)),
    f("sprig_max", 1, MANY, |c| folded(c, |a, b| Some(a.max(b)), None)),
    f("sprig_min", 1, MANY, |c| folded(c, |a, b| Some(a.min(b)), None)),
];

fn grown(c: &mut Call<'_, '_>, n: usize, change: fn(&str) -> String) -> Returned {
    c.allocate(c.bytes(n)?.len().saturating_mul(3))?;
    c.made(change(c.text(n)?))
}

/// Every line with so many spaces before it, empty ones too.
fn pad(c: &mut Call<'_, '_>, before: &str) -> Returned {
    let spaces = usize::try_from(c.int(0)?).map_err(|_| "the indentation cannot be negative")?;
    let mut out = c.out();
    out.push(before)?;
    for (n, line) in c.bytes(1)?.split(|b| *b == b'\n').enumerate() {
        if n > 0 {
            out.push("\n")?;
        }
        out.repeat(b' ', spaces)?;
        out.push(line)?;
    }
    c.finished(out)
}

fn shown(c: &mut Call<'_, '_>, value: &Value) -> Result<String, Failure> {
    let mut out = c.out();
    print::plain(&mut out, value)?;
    Ok(String::from_utf8_lossy(&out.finish()).into_owned())
}

fn quoted(c: &mut Call<'_, '_>, quote: fn(&str) -> String) -> Returned {
    let mut out = c.out();
    for (n, value) in c.args.iter().filter(|v| !matches!(v, Value::Nil)).enumerate() {
        if n > 0 {
            out.push(" ")?;
        }
        let text = shown(c, value)?;
        c.allocate(text.len().saturating_mul(4))?;
        out.push(quote(&text))?;
    }
    c.finished(out)
}

fn made_list(c: &mut Call<'_, '_>, items: Vec<Value>) -> Returned {
    c.allocate(items.len() * 16)?;
    Ok(Value::list(items)?)
}

fn chosen(c: &mut Call<'_, '_>, keep: bool) -> Returned {
    let names = c.texts(1)?;
    let map = c.map(0)?;
    c.allocate(map.entries.len() * 64)?;
    c.work(map.entries.len().saturating_mul(names.len()).saturating_mul(64))?;
    let entries = map.entries.iter().filter(|(k, _)| names.iter().any(|n| n.as_bytes() == &***k) == keep);
    Ok(Value::map(entries.map(|(k, v)| (k.clone(), v.clone())).collect())?)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "sprig casts like this")]
fn whole(c: &Call<'_, '_>, n: usize) -> Result<i64, Failure> {
    Ok(match c.arg(n) {
        Value::Nil => 0,
        Value::Bool(b) => i64::from(*b),
        Value::Int(i) => *i,
        Value::Uint(u) => *u as i64,
        Value::Float(f) => *f as i64,
        Value::Str(_) => c.text(n)?.parse().unwrap_or(0),
        _ => return Err(c.wrong(n, "a number")),
    })
}

fn folded(c: &mut Call<'_, '_>, work: fn(i64, i64) -> Option<i64>, start: Option<i64>) -> Returned {
    let mut result = start;
    for n in 0..c.args.len() {
        let value = whole(c, n)?;
        result = Some(match result {
            None => value,
            Some(so_far) => work(so_far, value).ok_or("division by zero")?,
        });
    }
    Ok(Value::Int(result.unwrap_or(0)))
}
