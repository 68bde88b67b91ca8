//! How the suite makes a driver's tasks do what a check needs.

use std::collections::BTreeMap;

use driver_proto::hclspec::Spec;
use driver_proto::hclspec::spec::Block as Kind;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::outcome::{Outcome, Stop};

/// Stands for the length of a task that ends later.
const SECONDS: &str = "@SECONDS@";
/// The code with which tasks end that end by themselves.
pub const EXIT_CODE: i32 = 7;
/// How many lines a task prints.
const LINES: usize = 200;

/// Configurations of tasks by what the tasks do.
///
/// A driver that runs commands needs `script` only: `"@SCRIPT@"` in it becomes a shell script, from which all other
/// roles follow. For others each role is given by itself; `"@TEXT@"` becomes the text to be printed. Checks whose role
/// is missing are not applicable.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskKit {
    /// Runs the shell script `"@SCRIPT@"`.
    pub script: Option<Value>,
    /// Runs until it is stopped.
    pub runs: Option<Value>,
    /// Ends at once with exit code 7.
    pub exits: Option<Value>,
    /// Ends with exit code 7 after `"@SECONDS@"` seconds; without this placeholder after about one.
    pub exits_later: Option<Value>,
    /// Prints `"@TEXT@"` on both streams.
    pub prints: Option<Value>,
    /// Cannot be started.
    pub fails: Option<Value>,
    /// Ends neither by SIGTERM nor by SIGINT.
    pub stubborn: Option<Value>,
    /// The plugin's own configuration, where it needs one.
    pub plugin: Option<Value>,
}

/// A kit that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KitError {
    /// Not the shape of a kit.
    #[error(
        "the tasks to check with cannot be read: {0}; expected are blocks such as script, runs, exits, prints, fails, \
            stubborn"
    )]
    Shape(#[from] serde_json::Error),
    /// No such preset.
    #[error("there is no preset {0:?}; there are {known}", known = TaskKit::PRESETS.join(", "))]
    NoPreset(String),
    /// A script role without a place for the script.
    #[error("the role \"script\" holds no string \"@SCRIPT@\", so no script would be run")]
    NoScript,
}

/// What a task is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work<'a> {
    Runs,
    Exits,
    ExitsLater,
    Prints,
    Fails,
    Stubborn,
    Script(&'a str),
}

impl TaskKit {
    /// Names for [`TaskKit::preset`].
    pub const PRESETS: [&'static str; 6] = ["command", "docker", "docker_remote", "mock", "mock_remote", "remote_exec"];

    /// A kit as a person writes it.
    ///
    /// # Errors
    /// When the value has not the fields of a kit, or its `script` no place for the script.
    pub fn from_json(value: Value) -> Result<Self, KitError> {
        let kit: TaskKit = serde_json::from_value(value)?;
        match &kit.script {
            Some(script) if !holds(script, "@SCRIPT@") => Err(KitError::NoScript),
            _ => Ok(kit),
        }
    }

    /// A kit by name.
    ///
    /// # Errors
    /// When there is no kit of that name.
    pub fn preset(name: &str) -> Result<Self, KitError> {
        let command = || json!({"command": "/bin/sh", "args": ["-c", "@SCRIPT@"]});
        Ok(match name {
            "command" => TaskKit {
                script: Some(command()),
                fails: Some(json!({"command": "/nonexistent/program-of-a-check"})),
                ..TaskKit::default()
            },
            "remote_exec" => TaskKit { plugin: Some(json!({"root": "@DIR@/runtime"})), ..TaskKit::preset("command")? },
            // With a tag: without one engines ask the registry each time.
            "docker" | "docker_remote" => TaskKit {
                script: Some(json!({"image": "busybox:1", "command": "/bin/sh", "args": ["-c", "@SCRIPT@"]})),
                fails: Some(json!({"image": "busybox:1", "command": "/nonexistent/program-of-a-check"})),
                ..TaskKit::default()
            },
            "mock" => TaskKit {
                runs: Some(json!({"run_for": "1h"})),
                exits: Some(json!({"run_for": "5ms", "exit_code": EXIT_CODE})),
                exits_later: Some(json!({"run_for": "@SECONDS@s", "exit_code": EXIT_CODE})),
                prints: Some(json!({"run_for": "500ms", "stdout_string": "@TEXT@", "stderr_string": "@TEXT@"})),
                fails: Some(json!({"start_error": "a start error that the suite asked for"})),
                stubborn: Some(json!({"run_for": "1h", "kill_after": "1h"})),
                ..TaskKit::default()
            },
            "mock_remote" => TaskKit { plugin: Some(json!({"dir": "@DIR@/provider"})), ..TaskKit::preset("mock")? },
            other => return Err(KitError::NoPreset(other.to_owned())),
        })
    }

    /// The kit for a driver, as far as its name or schema tells.
    pub fn preset_for(driver: &str, task_schema: Option<&Spec>) -> Option<Self> {
        if let Ok(kit) = TaskKit::preset(driver) {
            return Some(kit);
        }
        let Some(Kind::Object(object)) = task_schema?.block.as_ref() else {
            return None;
        };
        let has = |name: &str| object.attributes.contains_key(name);
        (has("command") && has("args") && !has("image")).then(|| TaskKit::preset("command").ok()).flatten()
    }

    /// The configuration of a task that runs until it is stopped.
    ///
    /// # Errors
    /// Says which role is missing.
    pub fn running(&self) -> Result<Value, String> {
        self.config(Work::Runs).map_err(Stop::into_text)
    }

    /// The configuration of a task that ends by itself after so many seconds, with exit code [`EXIT_CODE`].
    ///
    /// # Errors
    /// Says which role is missing, or that the given one has a length of its own.
    pub fn ending_after(&self, seconds: u32) -> Result<Value, String> {
        match &self.exits_later {
            Some(config) if holds(config, SECONDS) => Ok(replaced(config, SECONDS, &seconds.to_string())),
            Some(_) => Err(format!("the task role exits_later has no place for its length: \"{SECONDS}\"")),
            None => self.config(Work::Script(&format!("sleep {seconds}; exit {EXIT_CODE}"))).map_err(Stop::into_text),
        }
    }

    /// What a task's standard output and error must hold in the role that prints.
    pub(crate) fn text() -> String {
        (1..=LINES).map(|n| format!("line {n}\n")).collect()
    }

    /// The configuration of a task that does this.
    pub(crate) fn config(&self, work: Work<'_>) -> Outcome<Value> {
        let own = match work {
            Work::Runs => &self.runs,
            Work::Exits => &self.exits,
            Work::ExitsLater => &self.exits_later,
            Work::Prints => &self.prints,
            Work::Fails => &self.fails,
            Work::Stubborn => &self.stubborn,
            Work::Script(_) => &None,
        };
        if let Some(config) = own {
            return Ok(replaced(&replaced(config, "@TEXT@", &TaskKit::text()), SECONDS, "1"));
        }
        let missing = |role: &str| {
            Stop::NotApplicable(format!("the suite was not told how to make a task that {role} (task role)"))
        };
        let script = match work {
            Work::Runs => "exec sleep 3600".to_owned(),
            Work::Exits => format!("exit {EXIT_CODE}"),
            Work::ExitsLater => format!("sleep 1; exit {EXIT_CODE}"),
            Work::Prints => {
                format!(
                    "i=1; while [ $i -le {LINES} ]; do echo \"line $i\"; echo \"line $i\" >&2; i=$((i+1)); done; \
                        sleep 0.2"
                )
            }
            Work::Stubborn => "trap '' INT TERM; while :; do sleep 1; done".to_owned(),
            Work::Fails => return Err(missing("cannot be started")),
            Work::Script(text) => text.to_owned(),
        };
        let role = match work {
            Work::Runs => "runs until it is stopped",
            Work::Exits | Work::ExitsLater => "ends by itself with exit code 7",
            Work::Prints => "prints lines",
            Work::Stubborn => "does not end by a signal that can be caught",
            Work::Fails | Work::Script(_) => "runs a shell script",
        };
        let template = self.script.as_ref().ok_or_else(|| missing(role))?;
        Ok(replaced(template, "@SCRIPT@", &script))
    }
}

fn holds(value: &Value, text: &str) -> bool {
    match value {
        Value::String(s) => s.contains(text),
        Value::Array(items) => items.iter().any(|item| holds(item, text)),
        Value::Object(fields) => fields.values().any(|field| holds(field, text)),
        _ => false,
    }
}

/// A copy with a placeholder replaced in every string.
pub(crate) fn replaced(value: &Value, placeholder: &str, text: &str) -> Value {
    match value {
        Value::String(s) => Value::String(s.replace(placeholder, text)),
        Value::Array(items) => items.iter().map(|item| replaced(item, placeholder, text)).collect(),
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> =
                fields.iter().map(|(name, field)| (name.clone(), replaced(field, placeholder, text))).collect();
            fields.into_iter().collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_enough_for_all_roles_but_failing() {
        let kit = TaskKit::from_json(json!({"script": {"command": "sh", "args": ["-c", "@SCRIPT@"]}})).expect("a kit");
        assert_eq!(kit.config(Work::Exits), Ok(json!({"command": "sh", "args": ["-c", "exit 7"]})));
        for work in [Work::Runs, Work::ExitsLater, Work::Prints, Work::Stubborn, Work::Script("true")] {
            assert!(kit.config(work).is_ok(), "{work:?}");
        }
        assert!(matches!(kit.config(Work::Fails), Err(Stop::NotApplicable(_))));
    }

    #[test]
    fn roles_by_themselves_need_no_script() {
        let kit = TaskKit::preset("mock").expect("known");
        let prints = kit.config(Work::Prints).expect("given");
        assert_eq!(prints["stdout_string"], TaskKit::text());
        assert!(matches!(kit.config(Work::Script("true")), Err(Stop::NotApplicable(_))));
    }

    #[test]
    fn tasks_end_after_as_long_as_they_are_told() {
        let mock = TaskKit::preset("mock").expect("known");
        assert_eq!(mock.config(Work::ExitsLater).expect("given")["run_for"], "1s");
        assert_eq!(mock.ending_after(6).expect("given")["run_for"], "6s");
        let script = TaskKit::preset("command").expect("known");
        assert_eq!(script.ending_after(6).expect("given")["args"][1], "sleep 6; exit 7");
        let fixed = TaskKit::from_json(json!({"exits_later": {"for": "1s"}})).expect("a kit");
        assert!(fixed.ending_after(6).expect_err("no place").contains("@SECONDS@"));
        assert!(TaskKit::default().ending_after(6).expect_err("nothing").contains("shell script"));
    }

    #[test]
    fn kits_that_cannot_work_are_refused_with_the_reason() {
        assert!(matches!(TaskKit::from_json(json!({"script": {"command": "sh"}})), Err(KitError::NoScript)));
        assert!(TaskKit::from_json(json!({"walks": {}})).expect_err("unknown").to_string().contains("walks"));
        assert!(TaskKit::preset("cobol").expect_err("unknown").to_string().contains("mock"));
    }
}
