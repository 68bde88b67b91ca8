//! Text: cases, cuts, replacements, encodings and digests.

use base64::{Engine, prelude::*};
use md5::Md5;
use sha2::{Digest, Sha256};
use unicode_segmentation::UnicodeSegmentation;

use super::call::{Call, Failure, Function, MANY, Returned, f};
use crate::{go_time, value::Value};

/// How much more a byte costs that a regular expression goes over.
pub(super) const REGEX_WORK: usize = 256;

pub(super) const TABLE: &[Function] = &[
    f("toLower", 1, 1, |c| changed(c, lower)),
    f("toUpper", 1, 1, |c| changed(c, upper)),
    f("toTitle", 1, 1, |c| changed(c, title)),
    f("trimSpace", 1, 1, |c| c.made(c.text(0)?.trim())),
    f("trim", 2, 2, |c| {
        let (set, text) = (c.text(0)?, c.text(1)?);
        c.work(set.len().saturating_mul(text.len()))?;
        c.made(text.trim_matches(|x| set.contains(x)))
    }),
    f("trimPrefix", 2, 2, |c| {
        let (prefix, text) = (c.bytes(0)?, c.bytes(1)?);
        c.made(text.strip_prefix(prefix).unwrap_or(text))
    }),
    f("trimSuffix", 2, 2, |c| {
        let (suffix, text) = (c.bytes(0)?, c.bytes(1)?);
        c.made(text.strip_suffix(suffix).unwrap_or(text))
    }),
    f("replaceAll", 3, 3, |c| replace(c, c.text(0)?, c.text(1)?, c.text(2)?)),
    f("regexMatch", 2, 2, |c| {
        let (pattern, text) = (c.text(0)?, c.text(1)?);
        c.work(text.len().saturating_mul(REGEX_WORK))?;
        Ok(Value::Bool(c.regex(pattern)?.is_match(text)))
    }),
    f("regexReplaceAll", 3, 3, regex_replace),
    f("split", 2, 2, |c| {
        let (separator, text) = (c.text(0)?, c.text(1)?);
        if text.is_empty() { Ok(Value::list(Vec::new())?) } else { split(c, separator, text) }
    }),
    f("splitToMap", 3, 3, |c| {
        let (pairs, equals, text) = (c.text(0)?, c.text(1)?, c.text(2)?.trim());
        c.allocate(text.len().saturating_mul(4))?;
        let parts: Vec<&str> = if pairs.is_empty() {
            text.split("").filter(|p| !p.is_empty()).collect()
        } else {
            text.split(pairs).collect()
        };
        let entries =
            parts.iter().filter_map(|p| p.split_once(equals)).map(|(k, v)| (k.as_bytes().into(), Value::text(v)));
        Ok(Value::string_map(entries.collect()))
    }),
    f("join", 2, 2, |c| {
        let (separator, list) = (c.bytes(0)?, c.list(1)?);
        let mut out = c.out();
        for (n, item) in list.items.iter().enumerate() {
            let Value::Str(text) = item else {
                return Err(format!("element {n} of the list is not a string but {}", item.type_name()).into());
            };
            if n > 0 {
                out.push(separator)?;
            }
            out.push(text)?;
        }
        c.finished(out)
    }),
    f("indent", 2, 2, |c| {
        let spaces = usize::try_from(c.int(0)?).map_err(|_| "the indentation cannot be negative")?;
        indented(c, spaces, c.bytes(1)?)
    }),
    f("base64Encode", 1, 1, |c| {
        c.allocate(c.bytes(0)?.len())?;
        c.made(BASE64_STANDARD.encode(c.bytes(0)?))
    }),
    f("base64Decode", 1, 1, |c| decoded(c, &BASE64_STANDARD)),
    f("base64URLEncode", 1, 1, |c| {
        c.allocate(c.bytes(0)?.len())?;
        c.made(BASE64_URL_SAFE.encode(c.bytes(0)?))
    }),
    f("base64URLDecode", 1, 1, |c| decoded(c, &BASE64_URL_SAFE)),
    f("md5sum", 1, 1, |c| {
        c.allocate(c.bytes(0)?.len())?;
        c.made(hex(&Md5::digest(c.bytes(0)?)))
    }),
    f("sha256Hex", 1, 1, |c| {
        c.allocate(c.bytes(0)?.len())?;
        c.made(hex(&Sha256::digest(c.bytes(0)?)))
    }),
    f("hmacSHA256Hex", 2, 2, |c| {
        c.allocate(c.bytes(0)?.len() + c.bytes(1)?.len())?;
        c.made(hex(&hmac(c.bytes(1)?, c.bytes(0)?)))
    }),
    f("timestamp", 0, 1, |c| {
        let now = c.machine.means().settings.now_ns;
        match c.args.len() {
            0 => c.made(go_time::format(now, "2006-01-02T15:04:05Z07:00")),
            _ if c.text(0)? == "unix" => c.made(now.div_euclid(1_000_000_000).to_string()),
            _ => {
                c.allocate(c.text(0)?.len().saturating_mul(10))?;
                c.made(go_time::format(now, c.text(0)?))
            }
        }
    }),
    f("env", 1, 1, |c| {
        let value = c.variable()?.flatten().unwrap_or_default();
        c.made(value)
    }),
    f("mustEnv", 1, 1, |c| {
        let value = match c.variable()? {
            Some(None) => return Err(format!("the task has no environment variable {:?}", c.text(0)?).into()),
            found => found.flatten().unwrap_or_default(),
        };
        c.made(value)
    }),
    f("envOrDefault", 2, 2, |c| {
        let value = match c.variable()?.flatten() {
            Some(value) => value,
            None => c.text(1)?.to_owned(),
        };
        c.made(value)
    }),
    f("file", 1, 1, |c| {
        let path = c.text(0)?;
        let found = c.source().file(path);
        let content = c.known(found, || format!("file({path})"))?.unwrap_or_default();
        c.made(content)
    }),
    f("executeTemplate", 1, 2, |c| {
        let name = c.text(0)?;
        let data = c.arg(1).clone();
        let value = c.machine.nested(name, data).map_err(|fault| {
            // No position of its own: the template was not found.
            if fault.at == 0 { Failure::Message(fault.message) } else { Failure::Elsewhere(fault) }
        })?;
        if let Value::Str(text) = &value {
            c.allocate(text.len())?;
        }
        Ok(value)
    }),
    f("scratch", 0, MANY, |c| {
        if c.args.is_empty() {
            Ok(Value::Scratch(c.machine.means().scratch.clone()))
        } else {
            Err("it takes no argument".into())
        }
    }),
];

fn changed(c: &mut Call<'_, '_>, change: fn(&str) -> String) -> Returned {
    // Some letters become longer.
    c.allocate(c.bytes(0)?.len().saturating_mul(3))?;
    c.made(change(c.text(0)?))
}

/// Letter by letter, as Go: what would become two letters stays.
pub(super) fn upper(text: &str) -> String {
    let one = |c: char| {
        let mut upper = c.to_uppercase();
        if upper.len() == 1 { upper.next().unwrap_or(c) } else { c }
    };
    text.chars().map(one).collect()
}

/// Letter by letter, as Go.
pub(super) fn lower(text: &str) -> String {
    text.chars().map(|c| c.to_lowercase().next().unwrap_or(c)).collect()
}

pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_word_bounds() {
        let mut chars = word.chars();
        if let Some(first) = chars.next() {
            out.extend(first.to_uppercase());
            out.push_str(chars.as_str());
        }
    }
    out
}

pub(super) fn replace(c: &mut Call<'_, '_>, from: &str, to: &str, text: &str) -> Returned {
    let count = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() };
    c.allocate(text.len().saturating_add(count.saturating_mul(to.len())))?;
    Ok(Value::text(text.replace(from, to)))
}

fn regex_replace(c: &mut Call<'_, '_>) -> Returned {
    let (pattern, replacement, text) = (c.text(0)?, c.text(1)?, c.text(2)?);
    c.work(text.len().saturating_mul(REGEX_WORK))?;
    let regex = c.regex(pattern)?;
    let mut out = c.out();
    let mut last = 0;
    for found in regex.captures_iter(text) {
        let Some(whole) = found.get(0) else { continue };
        out.push(&text[last..whole.start()])?;
        expand(&mut out, replacement, &found)?;
        last = whole.end();
    }
    out.push(&text[last..])?;
    c.finished(out)
}

/// `$1`, `$name` and `${name}` by Go's rules: a name is as long as letters go, and an unknown one is empty.
fn expand(out: &mut crate::print::Out, replacement: &str, found: &regex::Captures<'_>) -> Result<(), String> {
    let mut rest = replacement;
    while let Some(dollar) = rest.find('$') {
        out.push(&rest[..dollar])?;
        let after = &rest[dollar + 1..];
        if let Some(more) = after.strip_prefix('$') {
            out.push("$")?;
            rest = more;
            continue;
        }
        let (name, more) = match after.strip_prefix('{') {
            Some(braced) => match braced.split_once('}') {
                Some((name, more)) => (name, more),
                None => ("", after),
            },
            None => {
                let end = after.find(|c: char| !(c == '_' || c.is_alphanumeric())).unwrap_or(after.len());
                after.split_at(end)
            }
        };
        let valid = !name.is_empty() && name.chars().all(|c| c == '_' || c.is_alphanumeric());
        if !valid {
            out.push("$")?;
            rest = after;
            continue;
        }
        let group = match name.parse::<usize>() {
            Ok(n) => found.get(n),
            Err(_) => found.name(name),
        };
        out.push(group.map_or("", |g| g.as_str()))?;
        rest = more;
    }
    out.push(rest)
}

pub(super) fn split(c: &mut Call<'_, '_>, separator: &str, text: &str) -> Returned {
    if separator.is_empty() {
        c.allocate(text.len().saturating_mul(32))?;
        return Ok(Value::strings(text.chars().map(|x| x.to_string())));
    }
    let count = text.matches(separator).count() + 1;
    c.allocate(text.len().saturating_add(count.saturating_mul(32)))?;
    Ok(Value::strings(text.split(separator)))
}

pub(super) fn indented(c: &mut Call<'_, '_>, spaces: usize, text: &[u8]) -> Returned {
    let mut out = c.out();
    for line in text.split_inclusive(|b| *b == b'\n') {
        if line != b"\n" {
            out.repeat(b' ', spaces)?;
        }
        out.push(line)?;
    }
    c.finished(out)
}

fn decoded(c: &mut Call<'_, '_>, engine: &impl Engine) -> Returned {
    // As Go: line ends are not part of the data.
    let input: Vec<u8> = c.bytes(0)?.iter().copied().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
    c.allocate(input.len())?;
    let bytes = engine.decode(input).map_err(|e| format!("this is not base64: {e}"))?;
    c.made(bytes)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|b| b ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|b| b ^ 0x5c)).chain_update(inner).finalize().to_vec()
}
