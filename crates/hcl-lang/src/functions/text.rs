//! Text. Lengths and offsets count what readers see as characters (grapheme clusters).

use regex::Regex;
use unicode_segmentation::UnicodeSegmentation;

use super::signature::{Args, Outcome, fail, fail_arg};
use crate::number::Number;
use crate::value::Value;

/// Largest indentation.
const INDENT_MAX: i64 = 1024;

fn string(text: impl Into<String>) -> Outcome {
    Ok(Value::String(text.into()))
}

pub(super) fn chomp(a: &Args<'_>) -> Outcome {
    string(a.text(0).trim_end_matches(['\r', '\n']))
}

pub(super) fn indent(a: &Args<'_>) -> Outcome {
    let spaces = a.int(0)?;
    if !(0..=INDENT_MAX).contains(&spaces) {
        return fail_arg(0, format!("indentation must be from 0 to {INDENT_MAX}"));
    }
    let pad = format!("\n{}", " ".repeat(spaces as usize));
    let lines = a.text(1).bytes().filter(|b| *b == b'\n').count();
    a.charge(lines * pad.len())?;
    string(a.text(1).replace('\n', &pad))
}

pub(super) fn join(a: &Args<'_>) -> Outcome {
    if a.len() < 2 {
        return fail("at least one list is required");
    }
    let mut parts = Vec::new();
    for i in 1..a.len() {
        for (position, item) in a.items(i)?.iter().enumerate() {
            match item {
                Value::String(s) => parts.push(s.as_str()),
                _ => {
                    return fail_arg(i, format!("element {position} is null; only strings can be joined"));
                }
            }
        }
    }
    a.charge(parts.len() * a.text(0).len() + parts.iter().map(|p| p.len()).sum::<usize>())?;
    string(parts.join(a.text(0)))
}

pub(super) fn lower(a: &Args<'_>) -> Outcome {
    string(a.text(0).to_lowercase())
}

pub(super) fn upper(a: &Args<'_>) -> Outcome {
    string(a.text(0).to_uppercase())
}

pub(super) fn regex_replace(a: &Args<'_>) -> Outcome {
    let regex = match Regex::new(a.text(1)) {
        Ok(regex) => regex,
        Err(e) => return fail_arg(1, format!("not a regular expression: {e}")),
    };
    let matches = regex.find_iter(a.text(0)).count();
    // A replacement may name the whole match several times.
    let names = a.text(2).matches('$').count();
    a.charge(matches.saturating_mul(a.text(2).len()))?;
    a.charge(names.saturating_mul(a.text(0).len()))?;
    string(regex.replace_all(a.text(0), a.text(2)))
}

pub(super) fn replace(a: &Args<'_>) -> Outcome {
    let (text, from, to) = (a.text(0), a.text(1), a.text(2));
    let count = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() };
    a.charge(count.saturating_mul(to.len()))?;
    string(text.replace(from, to))
}

pub(super) fn reverse(a: &Args<'_>) -> Outcome {
    string(a.text(0).graphemes(true).rev().collect::<String>())
}

pub(super) fn split(a: &Args<'_>) -> Outcome {
    let (separator, text) = (a.text(0), a.text(1));
    a.charge(48 * text.len())?;
    if separator.is_empty() {
        // Every character by itself, as the reference does.
        return Ok(Value::strings(text.chars().map(String::from)));
    }
    Ok(Value::strings(text.split(separator)))
}

pub(super) fn strlen(a: &Args<'_>) -> Outcome {
    Ok(Value::Number(Number::from(a.text(0).graphemes(true).count())))
}

pub(super) fn substr(a: &Args<'_>) -> Outcome {
    let text = a.text(0);
    let (mut offset, length) = (a.int(1)?, a.int(2)?);
    if length == 0 {
        return string("");
    }
    if offset < 0 {
        let total = text.graphemes(true).count() as i64;
        offset = offset.saturating_add(total).max(0);
    }
    let rest = text.graphemes(true).skip(offset as usize);
    if length < 0 {
        return string(rest.collect::<String>());
    }
    string(rest.take(length as usize).collect::<String>())
}

pub(super) fn title(a: &Args<'_>) -> Outcome {
    let mut out = String::with_capacity(a.text(0).len());
    let mut after_separator = true;
    for c in a.text(0).chars() {
        if after_separator {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
        after_separator = if c.is_ascii() { !(c.is_ascii_alphanumeric() || c == '_') } else { c.is_whitespace() };
    }
    string(out)
}

pub(super) fn trim(a: &Args<'_>) -> Outcome {
    let set: Vec<char> = a.text(1).chars().collect();
    string(a.text(0).trim_matches(set.as_slice()))
}

pub(super) fn trimprefix(a: &Args<'_>) -> Outcome {
    string(a.text(0).strip_prefix(a.text(1)).unwrap_or(a.text(0)))
}

pub(super) fn trimsuffix(a: &Args<'_>) -> Outcome {
    string(a.text(0).strip_suffix(a.text(1)).unwrap_or(a.text(0)))
}

pub(super) fn trimspace(a: &Args<'_>) -> Outcome {
    string(a.text(0).trim())
}
