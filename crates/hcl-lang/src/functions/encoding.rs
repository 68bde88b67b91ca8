//! Other notations: base64, JSON, YAML, CSV, URLs.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::signature::{Args, Outcome, fail_arg};
use crate::json;
use crate::number::Number;
use crate::source::Source;
use crate::types::Type;
use crate::value::Value;

pub(super) fn base64encode(a: &Args<'_>) -> Outcome {
    Ok(Value::String(STANDARD.encode(a.text(0))))
}

pub(super) fn base64decode(a: &Args<'_>) -> Outcome {
    let text: String = a.text(0).chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let bytes = match STANDARD.decode(text) {
        Ok(bytes) => bytes,
        Err(e) => return fail_arg(0, format!("not base64: {e}")),
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Value::String(text)),
        Err(_) => fail_arg(0, "the decoded bytes are not UTF-8 text"),
    }
}

pub(super) fn jsonencode(a: &Args<'_>) -> Outcome {
    Ok(Value::String(json::encode(a.value(0))))
}

pub(super) fn jsondecode(a: &Args<'_>) -> Outcome {
    a.charge(a.text(0).len().saturating_mul(64))?;
    match json::parse(&Source::new("argument", a.text(0))) {
        Ok(node) => Ok(node.to_value()),
        Err(e) => fail_arg(0, format!("not JSON: {e}")),
    }
}

pub(super) fn urlencode(a: &Args<'_>) -> Outcome {
    let mut out = String::new();
    for byte in a.text(0).bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            b' ' => out.push('+'),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    Ok(Value::String(out))
}

pub(super) fn csvdecode(a: &Args<'_>) -> Outcome {
    a.charge(a.text(0).len().saturating_mul(96))?;
    let mut rows = match csv_rows(a.text(0)) {
        Ok(rows) => rows.into_iter(),
        Err(e) => return fail_arg(0, e),
    };
    let Some((_, header)) = rows.next() else {
        return fail_arg(0, "the header line is missing");
    };
    let mut seen = BTreeSet::new();
    for name in &header {
        if !seen.insert(name) {
            return fail_arg(0, format!("the column {name:?} occurs twice"));
        }
    }
    let ty = Type::Object(header.iter().map(|name| (name.clone(), Type::String)).collect());
    let mut out = Vec::new();
    for (line, row) in rows {
        if row.len() != header.len() {
            return fail_arg(0, format!("line {line} has {} fields, the header has {}", row.len(), header.len()));
        }
        out.push(Value::Object(header.iter().cloned().zip(row.into_iter().map(Value::String)).collect()));
    }
    Ok(Value::List(ty, out))
}

/// Rows with the line each begins on; empty lines are skipped.
fn csv_rows(text: &str) -> Result<Vec<(usize, Vec<String>)>, String> {
    let mut rows = Vec::new();
    let mut row: Vec<String> = Vec::new();
    let mut field = String::new();
    let mut quoted = false;
    let mut was_quoted = false;
    let mut line = 1;
    let mut row_line = 1;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if quoted {
            match c {
                '"' if chars.peek() == Some(&'"') => {
                    chars.next();
                    field.push('"');
                }
                '"' => quoted = false,
                c => {
                    line += usize::from(c == '\n');
                    field.push(c);
                }
            }
            continue;
        }
        match c {
            '\r' if chars.peek() == Some(&'\n') => {}
            '\n' => {
                line += 1;
                if !(row.is_empty() && field.is_empty() && !was_quoted) {
                    row.push(std::mem::take(&mut field));
                    rows.push((row_line, std::mem::take(&mut row)));
                }
                was_quoted = false;
                row_line = line;
            }
            ',' => {
                row.push(std::mem::take(&mut field));
                was_quoted = false;
            }
            '"' if field.is_empty() && !was_quoted => {
                quoted = true;
                was_quoted = true;
            }
            '"' => {
                return Err(format!("line {line}: a quote inside a field that is not quoted"));
            }
            _ if was_quoted => return Err(format!("line {line}: text after a closing quote")),
            c => field.push(c),
        }
    }
    if quoted {
        return Err(format!("line {row_line}: a quote is never closed"));
    }
    if !(row.is_empty() && field.is_empty() && !was_quoted) {
        row.push(field);
        rows.push((row_line, row));
    }
    Ok(rows)
}

pub(super) fn yamldecode(a: &Args<'_>) -> Outcome {
    let text = a.text(0);
    a.charge(text.len().saturating_mul(64))?;
    // Aliases that multiply without end are refused by the decoder itself.
    let decoded = yaml_serde::from_str::<yaml_serde::Value>(text).and_then(|mut value| {
        value.apply_merge()?;
        Ok(value)
    });
    match decoded {
        Ok(value) => match yaml_value(&value, 0) {
            Ok(value) => Ok(value),
            Err(e) => fail_arg(0, e),
        },
        Err(e) => fail_arg(0, format!("not YAML: {e}")),
    }
}

fn yaml_value(value: &yaml_serde::Value, depth: usize) -> Result<Value, String> {
    use yaml_serde::Value as Y;
    if depth > 100 {
        return Err("more than 100 levels of nesting".into());
    }
    Ok(match value {
        Y::Null => Value::NULL,
        Y::Bool(b) => Value::Bool(*b),
        Y::Number(n) => match Number::parse(&n.to_string()) {
            Some(n) => Value::Number(n),
            None => return Err(format!("the number {n} is out of range")),
        },
        Y::String(s) => Value::String(s.clone()),
        Y::Sequence(items) => {
            Value::Tuple(items.iter().map(|item| yaml_value(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        Y::Mapping(entries) => {
            let mut out = BTreeMap::new();
            for (key, item) in entries {
                let key = match yaml_value(key, depth + 1)? {
                    Value::String(s) => s,
                    Value::Number(n) => n.to_string(),
                    Value::Bool(b) => b.to_string(),
                    other => return Err(format!("a key must be a text, this is {}", other.kind())),
                };
                out.insert(key, yaml_value(item, depth + 1)?);
            }
            Value::Object(out)
        }
        Y::Tagged(tagged) => return Err(format!("the tag {} is not supported", tagged.tag)),
    })
}

pub(super) fn yamlencode(a: &Args<'_>) -> Outcome {
    let mut out = String::new();
    yaml_block(a.value(0), 0, &mut out);
    Ok(Value::String(out))
}

/// Every text and key in double quotes, collections as indented blocks: the reference's style.
fn yaml_block(value: &Value, indent: usize, out: &mut String) {
    match (value.elements(), value.entries()) {
        (Some(items), _) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    push_indent(indent, out);
                }
                out.push_str("- ");
                yaml_block(item, indent + 2, out);
            }
        }
        (_, Some(entries)) if !entries.is_empty() => {
            for (i, (key, item)) in entries.iter().enumerate() {
                if i > 0 {
                    push_indent(indent, out);
                }
                out.push_str(&yaml_quote(key));
                out.push(':');
                let items = item.elements().is_some_and(|v| !v.is_empty());
                let entries = item.entries().is_some_and(|v| !v.is_empty());
                if items {
                    out.push('\n');
                    push_indent(indent, out);
                    yaml_block(item, indent, out);
                } else if entries {
                    out.push('\n');
                    push_indent(indent + 2, out);
                    yaml_block(item, indent + 2, out);
                } else {
                    out.push(' ');
                    yaml_block(item, indent, out);
                }
            }
        }
        (Some(_), _) => out.push_str("[]\n"),
        (_, Some(_)) => out.push_str("{}\n"),
        _ => {
            match value {
                Value::String(s) if s.contains('\n') => {
                    yaml_literal(s, indent, out);
                    return;
                }
                Value::String(s) => out.push_str(&yaml_quote(s)),
                Value::Number(n) => out.push_str(&n.to_string()),
                Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
                _ => out.push_str("null"),
            }
            out.push('\n');
        }
    }
}

fn push_indent(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Text of several lines as a literal block where that is exact, else quoted.
fn yaml_literal(text: &str, indent: usize, out: &mut String) {
    let body = text.trim_end_matches('\n');
    let ends = text.len() - body.len();
    let exact = ends <= 1
        && !body.is_empty()
        && !text.starts_with([' ', '\n'])
        && !body.lines().any(|l| l.ends_with(' '))
        && !text.chars().any(|c| c.is_control() && c != '\n');
    if !exact {
        out.push_str(&yaml_quote(text));
        out.push('\n');
        return;
    }
    out.push_str(if ends == 1 { "|\n" } else { "|-\n" });
    for line in body.split('\n') {
        if !line.is_empty() {
            push_indent(indent.max(2), out);
            out.push_str(line);
        }
        out.push('\n');
    }
}

fn yaml_quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
