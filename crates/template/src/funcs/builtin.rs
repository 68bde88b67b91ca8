//! Functions of Go's text/template itself.

use super::call::{Call, Failure, Function, MANY, Returned, f};
use crate::{
    print::{self, printable},
    value::Value,
};

pub(super) const TABLE: &[Function] = &[
    // These two are evaluated by the machine, which stops at the first argument that decides.
    f("and", 1, MANY, |c| Ok(c.arg(0).clone())),
    f("or", 1, MANY, |c| Ok(c.arg(0).clone())),
    f("not", 1, 1, |c| Ok(Value::Bool(!c.arg(0).is_true()))),
    f("eq", 1, MANY, |c| equal(c).map(Value::Bool)),
    f("ne", 2, 2, |c| equal(c).map(|e| Value::Bool(!e))),
    f("lt", 2, 2, |c| less(c).map(Value::Bool)),
    f("le", 2, 2, |c| Ok(Value::Bool(less(c)? || equal(c)?))),
    f("gt", 2, 2, |c| Ok(Value::Bool(!(less(c)? || equal(c)?)))),
    f("ge", 2, 2, |c| Ok(Value::Bool(!less(c)?))),
    f("len", 1, 1, length),
    f("index", 1, MANY, index),
    f("slice", 1, 4, slice),
    f("print", 0, MANY, |c| {
        let mut out = c.out();
        print::sprint(&mut out, c.args)?;
        c.finished(out)
    }),
    f("println", 0, MANY, |c| {
        let mut out = c.out();
        print::sprintln(&mut out, c.args)?;
        c.finished(out)
    }),
    f("printf", 1, MANY, |c| {
        let mut out = c.out();
        print::sprintf(&mut out, c.bytes(0)?, &c.args[1..])?;
        c.finished(out)
    }),
    f("html", 0, MANY, |c| escaped(c, html)),
    f("js", 0, MANY, |c| escaped(c, js)),
    f("urlquery", 0, MANY, |c| escaped(c, url_query)),
];

fn equal(c: &mut Call<'_, '_>) -> Result<bool, Failure> {
    let first = c.arg(0);
    if c.args.len() < 2 {
        return Err("there is nothing to compare with".into());
    }
    for other in &c.args[1..] {
        let same = match (first.basic(), other.basic()) {
            (Some(a), Some(b)) if print::comparable(a, b) => match (first, other) {
                (Value::Bool(a), Value::Bool(b)) => a == b,
                (Value::Float(a), Value::Float(b)) => a == b,
                (Value::Str(a), Value::Str(b)) => {
                    c.work(a.len())?;
                    a == b
                }
                _ => print::order(first, other) == Some(std::cmp::Ordering::Equal),
            },
            (None, None) => match (first, other) {
                (Value::Nil, Value::Nil) => true,
                (Value::Nil, _) | (_, Value::Nil) => false,
                _ => {
                    return Err(format!(
                        "values of type {} and {} cannot be compared",
                        first.type_name(),
                        other.type_name()
                    )
                    .into());
                }
            },
            _ if matches!(first, Value::Nil) || matches!(other, Value::Nil) => false,
            _ => return Err(incompatible(first, other)),
        };
        if same {
            return Ok(true);
        }
    }
    Ok(false)
}

fn incompatible(a: &Value, b: &Value) -> Failure {
    format!("values of type {} and {} cannot be compared; convert one of them", a.type_name(), b.type_name()).into()
}

fn less(c: &mut Call<'_, '_>) -> Result<bool, Failure> {
    let (a, b) = (c.arg(0), c.arg(1));
    if let (Value::Float(a), Value::Float(b)) = (a, b) {
        return Ok(a < b);
    }
    print::order(a, b).map(|o| o == std::cmp::Ordering::Less).ok_or_else(|| incompatible(a, b))
}

fn length(c: &mut Call<'_, '_>) -> Returned {
    let count = match c.arg(0) {
        Value::Str(text) => text.len(),
        Value::List(list) => list.items.len(),
        Value::Map(map) => map.entries.len(),
        _ => return Err(c.wrong(0, "a string, a list or a map")),
    };
    Ok(Value::Int(i64::try_from(count).unwrap_or(i64::MAX)))
}

fn position(c: &Call<'_, '_>, n: usize, most: usize) -> Result<usize, Failure> {
    let position = match c.arg(n) {
        Value::Int(i) => usize::try_from(*i).ok(),
        Value::Uint(u) => usize::try_from(*u).ok(),
        _ => return Err(c.wrong(n, "a whole number")),
    };
    position
        .filter(|p| *p <= most)
        .ok_or_else(|| format!("the index in argument {} is out of range, there are {most}", n + 1).into())
}

fn index(c: &mut Call<'_, '_>) -> Returned {
    let mut value = c.arg(0).clone();
    if matches!(value, Value::Nil) {
        return Err("there is nothing to look into".into());
    }
    for n in 1..c.args.len() {
        value = match &value {
            Value::Map(map) => match map.entries.get(c.bytes(n)?) {
                Some(found) => found.clone(),
                None if map.of_strings => Value::text(""),
                None => Value::Nil,
            },
            Value::List(list) => {
                let place = position(c, n, list.items.len())?;
                list.items
                    .get(place)
                    .cloned()
                    .ok_or_else(|| format!("the index {place} is out of range, there are {}", list.items.len()))?
            }
            Value::Str(text) => {
                let place = position(c, n, text.len())?;
                let byte = text
                    .get(place)
                    .ok_or_else(|| format!("the index {place} is out of range, there are {}", text.len()))?;
                Value::Int(i64::from(*byte))
            }
            Value::Nil => return Err("there is nothing to look into".into()),
            other => return Err(format!("a value of type {} has no elements", other.type_name()).into()),
        };
    }
    Ok(value)
}

fn slice(c: &mut Call<'_, '_>) -> Returned {
    let length = match c.arg(0) {
        Value::Str(text) if c.args.len() <= 3 => text.len(),
        Value::Str(_) => return Err("a string is cut with two indexes at most".into()),
        Value::List(list) => list.items.len(),
        _ => return Err(c.wrong(0, "a string or a list")),
    };
    let mut bounds = [0, length, length];
    for n in 1..c.args.len() {
        bounds[n - 1] = position(c, n, length)?;
    }
    let [start, end, most] = bounds;
    if start > end || end > most {
        return Err(format!("the indexes {start} and {end} are in the wrong order").into());
    }
    match c.arg(0) {
        Value::Str(text) => c.made(&text[start..end]),
        Value::List(list) => {
            c.allocate((end - start) * 16)?;
            Ok(Value::list(list.items[start..end].to_vec())?)
        }
        _ => Err(c.wrong(0, "a string or a list")),
    }
}

fn escaped(c: &mut Call<'_, '_>, escape: fn(&str) -> String) -> Returned {
    let mut out = c.out();
    print::sprint(&mut out, c.args)?;
    let text = out.finish();
    // An escape makes six bytes of one at most.
    c.allocate(text.len().saturating_mul(6))?;
    c.made(escape(&String::from_utf8_lossy(&text)))
}

pub(super) fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\0' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            '<' | '>' | '&' | '=' => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c if c < ' ' => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c if c.is_ascii() || printable(c) => out.push(c),
            c => out.push_str(&format!("\\u{:04X}", u32::from(c))),
        }
    }
    out
}

pub(super) fn url_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
