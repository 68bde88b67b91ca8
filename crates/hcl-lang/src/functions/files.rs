//! Files and paths. Only [`super::Host`] touches the disk.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::signature::{Args, Outcome, fail_arg};
use crate::types::Type;
use crate::value::Value;

fn text(result: Result<String, String>) -> Outcome {
    match result {
        Ok(text) => Ok(Value::String(text)),
        Err(e) => fail_arg(0, e),
    }
}

pub(super) fn abspath(a: &Args<'_>) -> Outcome {
    text(a.host.absolute(a.text(0)))
}

/// The last element of a path, by the rules of Go's path package.
pub(super) fn basename(a: &Args<'_>) -> Outcome {
    let path = a.text(0);
    let trimmed = path.trim_end_matches('/');
    Ok(Value::from(if path.is_empty() {
        "."
    } else if trimmed.is_empty() {
        "/"
    } else {
        trimmed.rsplit('/').next().unwrap_or(trimmed)
    }))
}

/// All but the last element of a path, cleaned.
pub(super) fn dirname(a: &Args<'_>) -> Outcome {
    let path = a.text(0);
    let dir = path.rfind('/').map_or("", |i| &path[..=i]);
    Ok(Value::String(clean(dir)))
}

/// The shortest name of the same path: no `.`, no doubled slashes, `..` taken back where possible.
fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.last() {
                Some(&last) if last != ".." => {
                    parts.pop();
                }
                _ if rooted => {}
                _ => parts.push(".."),
            },
            other => parts.push(other),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".into(),
        (false, false) => joined,
    }
}

fn read(a: &Args<'_>) -> Result<Vec<u8>, super::signature::CallError> {
    match a.host.read(a.text(0)) {
        Ok(bytes) => {
            a.charge(bytes.len())?;
            Ok(bytes)
        }
        Err(e) => fail_arg(0, e),
    }
}

pub(super) fn file(a: &Args<'_>) -> Outcome {
    match String::from_utf8(read(a)?) {
        Ok(text) => Ok(Value::String(text)),
        Err(_) => fail_arg(0, format!("{:?} is not UTF-8 text; use filebase64 for other content", a.text(0))),
    }
}

pub(super) fn filebase64(a: &Args<'_>) -> Outcome {
    Ok(Value::String(STANDARD.encode(read(a)?)))
}

pub(super) fn fileexists(a: &Args<'_>) -> Outcome {
    match a.host.exists(a.text(0)) {
        Ok(exists) => Ok(Value::Bool(exists)),
        Err(e) => fail_arg(0, e),
    }
}

pub(super) fn fileset(a: &Args<'_>) -> Outcome {
    let glob = globset::GlobBuilder::new(a.text(1)).literal_separator(true).build();
    let matcher = match glob {
        Ok(glob) => glob.compile_matcher(),
        Err(e) => return fail_arg(1, format!("not a pattern: {e}")),
    };
    match a.host.list(a.text(0)) {
        Ok(files) => Ok(Value::set(
            Type::String,
            files.into_iter().filter(|file| matcher.is_match(file)).map(Value::String).collect(),
        )),
        Err(e) => fail_arg(0, e),
    }
}

pub(super) fn pathexpand(a: &Args<'_>) -> Outcome {
    let path = a.text(0);
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            text(a.host.home().map(|home| format!("{home}{rest}")))
        }
        Some(_) => fail_arg(0, "cannot expand the home directory of another user"),
        None => text(Ok(path.to_owned())),
    }
}
