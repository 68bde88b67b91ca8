//! What a template block must hold, whatever its text says; the text is checked where templates are known.

use std::path::{Component, Path};

use crate::{go_duration::GoDuration, task::Template};

/// What happens when a template has changed.
pub mod change_mode {
    /// Nothing.
    pub const NOOP: &str = "noop";
    /// The task is restarted.
    pub const RESTART: &str = "restart";
    /// The task gets a signal.
    pub const SIGNAL: &str = "signal";
    /// A command is run in the task.
    pub const SCRIPT: &str = "script";
    /// All of them.
    pub const ALL: [&str; 4] = [NOOP, RESTART, SCRIPT, SIGNAL];
}

/// Does a relative path stay below where it begins? Names in `${…}` are found out on the node, which looks again.
fn stays_below(path: &str) -> bool {
    if path.starts_with("${") {
        return true;
    }
    let mut depth = 0_i32;
    for part in Path::new(path).components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth -= 1,
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
        if depth < 0 {
            return false;
        }
    }
    depth > 0
}

/// The mode of the file, as a node sets it. One that a job writes never runs with its owner's rights, who may be root:
/// such bits are left out, as stock Nomad does. `0644` where the text is no mode.
#[must_use]
pub fn mode(perms: &str) -> u32 {
    u32::from_str_radix(perms, 8).map_or(0o644, |mode| mode & 0o777)
}

/// What is accepted and may surprise.
pub(crate) fn warnings(t: &Template) -> Option<String> {
    let perms = t.perms.as_deref().unwrap_or_default();
    let asked = u32::from_str_radix(perms, 8).ok().filter(|asked| asked & !0o777 != 0)?;
    let destination = t.destination.as_deref().unwrap_or_default();
    Some(format!(
        "Template {destination:?} has perms {perms:?}, of which the last nine bits count: its mode is {:04o}",
        asked & 0o777
    ))
}

/// Everything that is wrong with a canonical template.
pub(crate) fn mistakes(t: &Template) -> Vec<String> {
    let mut wrong = Vec::new();
    let text = |o: &Option<String>| o.clone().unwrap_or_default();
    let (source, data, destination, mode) =
        (text(&t.source), text(&t.data), text(&t.destination), text(&t.change_mode));
    if source.is_empty() == data.is_empty() {
        wrong.push("Must specify either a source path or an embedded template".to_owned());
    }
    if destination.is_empty() {
        wrong.push("Must specify a destination for the template".to_owned());
    } else if !stays_below(&destination) {
        wrong.push(format!("Template destination {destination:?} must be a file below the task's directory"));
    }
    if !source.is_empty() && !Path::new(&source).is_absolute() && !stays_below(&source) {
        wrong.push(format!("Template source {source:?} must be a file below the task's directory"));
    }
    match mode.as_str() {
        change_mode::SIGNAL if text(&t.change_signal).is_empty() => {
            wrong.push("Must specify signal value when change mode is signal".to_owned());
        }
        change_mode::SIGNAL if t.env == Some(true) => {
            wrong.push("cannot use signals with env var templates".to_owned())
        }
        change_mode::SCRIPT => {
            if t.change_script.as_ref().is_none_or(|s| s.command.as_deref().unwrap_or_default().is_empty()) {
                wrong.push("Must specify change_script with a command when change mode is script".to_owned());
            }
            if t.change_script.as_ref().and_then(|s| s.timeout).is_some_and(|t| t <= GoDuration::ZERO) {
                wrong.push("The timeout of change_script must be above 0".to_owned());
            }
        }
        change_mode::NOOP | change_mode::RESTART | change_mode::SIGNAL => {}
        other => {
            wrong.push(format!("Invalid change mode given: {other:?}. Must be one of: {}", change_mode::ALL.join(", ")))
        }
    }
    if t.rolling == Some(true) && mode != change_mode::RESTART {
        wrong.push(format!(
            "rolling paces the restarts of change_mode \"restart\", and has no meaning with {mode:?}: leave one out"
        ));
    }
    if t.splay.is_some_and(|s| s < GoDuration::ZERO) {
        wrong.push("Must specify positive splay value".to_owned());
    }
    let perms = text(&t.perms);
    if u32::from_str_radix(&perms, 8).ok().filter(|mode| *mode <= 0o7777).is_none() {
        wrong.push(format!("Failed to parse perms {perms:?} as octal"));
    }
    for (what, id) in [("uid", t.uid), ("gid", t.gid)] {
        if id.is_some_and(|id| id < -1 || id > i64::from(u32::MAX) - 1) {
            wrong.push(format!("{what} must be the number of a user or group, or -1 for the agent's own"));
        }
    }
    if let Some(wait) = &t.wait {
        let (min, max) = (wait.min.unwrap_or_default(), wait.max.unwrap_or_default());
        if min < GoDuration::ZERO || max < min {
            wrong.push(format!("wait min {min} must not be greater than max {max}"));
        }
    }
    let (left, right) = (text(&t.left_delimiter), text(&t.right_delimiter));
    if [&left, &right].iter().any(|d| d.len() > 32 || d.contains(char::is_whitespace)) {
        wrong.push("Delimiters must be short and without spaces".to_owned());
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_are_checked_field_by_field() {
        let good = json!({"EmbeddedTmpl": "x", "DestPath": "local/x", "ChangeMode": "restart", "Perms": "0644"});
        for (changes, part) in [
            (json!({}), None),
            (json!({"DestPath": "${NOMAD_SECRETS_DIR}/x", "Uid": -1, "Gid": 0}), None),
            (json!({"EmbeddedTmpl": "", "SourcePath": "local/t"}), None),
            (json!({"ChangeMode": "signal", "ChangeSignal": "SIGHUP"}), None),
            (json!({"ChangeMode": "script", "ChangeScript": {"Command": "/bin/x"}}), None),
            (json!({"Wait": {"Min": 5, "Max": 9}}), None),
            (json!({"Rolling": true}), None),
            (json!({"Rolling": true, "ChangeMode": "noop"}), Some("rolling paces the restarts")),
            (json!({"EmbeddedTmpl": ""}), Some("either a source")),
            (json!({"SourcePath": "x"}), Some("either a source")),
            (json!({"EmbeddedTmpl": "", "SourcePath": "../t"}), Some("source \"../t\"")),
            (json!({"DestPath": ""}), Some("a destination")),
            (json!({"DestPath": "../x"}), Some("below the task's directory")),
            (json!({"DestPath": "local/../../x"}), Some("below the task's directory")),
            (json!({"DestPath": "/"}), Some("below the task's directory")),
            (json!({"ChangeMode": "reload"}), Some("Invalid change mode")),
            (json!({"ChangeMode": "signal"}), Some("signal value")),
            (json!({"ChangeMode": "signal", "ChangeSignal": "SIGHUP", "Envvars": true}), Some("env var templates")),
            (json!({"ChangeMode": "script"}), Some("change_script")),
            (json!({"ChangeMode": "script", "ChangeScript": {"Command": "x", "Timeout": 0}}), Some("timeout")),
            (json!({"Splay": -1}), Some("splay")),
            (json!({"Perms": "rw"}), Some("octal")),
            (json!({"Perms": "17777"}), Some("octal")),
            (json!({"Uid": -2}), Some("uid")),
            (json!({"Wait": {"Min": 9, "Max": 5}}), Some("wait min")),
            (json!({"LeftDelim": "{ {"}), Some("Delimiters")),
        ] {
            let mut block = good.clone();
            for (key, value) in changes.as_object().expect("object") {
                block[key] = value.clone();
            }
            let template: Template = serde_json::from_value(block).expect("a template");
            let found = mistakes(&template);
            match part {
                None => assert!(found.is_empty(), "{changes}: {found:?}"),
                Some(part) => assert!(found.iter().any(|m| m.contains(part)), "{changes}: {found:?}"),
            }
        }
    }

    #[test]
    fn no_file_of_a_job_runs_with_its_owners_rights() {
        for (perms, bits) in [("0644", 0o644), ("4755", 0o755), ("2775", 0o775), ("1777", 0o777), ("x", 0o644)] {
            assert_eq!(mode(perms), bits, "{perms}");
            let template = Template { perms: Some(perms.into()), ..Template::default() };
            let told = warnings(&template).is_some_and(|told| told.contains(&format!("mode is {bits:04o}")));
            assert_eq!(told, perms.len() == 4 && !perms.starts_with('0'), "{perms}");
        }
    }
}
