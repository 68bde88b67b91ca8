//! JSON as Go's encoding/json writes it.

use crate::{print::Out, value::Value};

/// `html` = `<`, `>` and `&` as escapes.
pub(crate) fn json(out: &mut Out, value: &Value, indent: Option<&str>, html: bool) -> Result<(), String> {
    write(out, value, indent, html, 0)
}

fn line(out: &mut Out, indent: Option<&str>, depth: usize) -> Result<(), String> {
    let Some(indent) = indent else { return Ok(()) };
    out.push("\n")?;
    (0..depth).try_for_each(|_| out.push(indent))
}

fn write(out: &mut Out, value: &Value, indent: Option<&str>, html: bool, depth: usize) -> Result<(), String> {
    match value {
        Value::Nil => out.push("null"),
        Value::Bool(b) => out.push(b.to_string()),
        Value::Int(i) => out.push(i.to_string()),
        Value::Uint(u) => out.push(u.to_string()),
        Value::Float(f) => out.push(number(*f)?),
        Value::Str(text) => string(out, text, html),
        Value::List(list) => {
            out.push("[")?;
            for (n, item) in list.items.iter().enumerate() {
                if n > 0 {
                    out.push(",")?;
                }
                line(out, indent, depth + 1)?;
                write(out, item, indent, html, depth + 1)?;
            }
            if !list.items.is_empty() {
                line(out, indent, depth)?;
            }
            out.push("]")
        }
        Value::Map(map) => {
            out.push("{")?;
            for (n, (key, item)) in map.entries.iter().enumerate() {
                if n > 0 {
                    out.push(",")?;
                }
                line(out, indent, depth + 1)?;
                string(out, key, html)?;
                out.push(if indent.is_some() { ": " } else { ":" })?;
                write(out, item, indent, html, depth + 1)?;
            }
            if !map.entries.is_empty() {
                line(out, indent, depth)?;
            }
            out.push("}")
        }
        Value::Loop(..) | Value::Scratch(_) => Err(super::not_data(value, "JSON")),
    }
}

/// A float as JSON: with an exponent only when it is very small or very large.
fn number(f: f64) -> Result<String, String> {
    if !f.is_finite() {
        return Err(format!("JSON has no number {f}"));
    }
    let magnitude = f.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let text = format!("{f:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return Ok(match exponent.strip_prefix('-') {
            Some(digits) => format!("{mantissa}e-{digits}"),
            None => format!("{mantissa}e+{exponent}"),
        });
    }
    Ok(format!("{f}"))
}

fn string(out: &mut Out, text: &[u8], html: bool) -> Result<(), String> {
    out.push("\"")?;
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' => out.push("\\\"")?,
            '\\' => out.push("\\\\")?,
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\u{8}' => out.push("\\b")?,
            '\u{c}' => out.push("\\f")?,
            '<' | '>' | '&' if html => out.push(format!("\\u{:04x}", u32::from(c)))?,
            '\u{2028}' | '\u{2029}' => out.push(format!("\\u{:04x}", u32::from(c)))?,
            c if c < ' ' => out.push(format!("\\u{:04x}", u32::from(c)))?,
            c => out.push(c.encode_utf8(&mut [0; 4]))?,
        }
    }
    out.push("\"")
}
