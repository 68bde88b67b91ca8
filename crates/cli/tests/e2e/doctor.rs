//! `drover driver doctor` with real plugin processes.

use std::process::{Command, Output};

use crate::agent::drover;
use serde_json::Value;

fn doctor(args: &[&str]) -> (Option<i32>, Vec<(String, String, String)>) {
    let Output { status, stdout, stderr } =
        Command::new(drover()).args(["driver", "doctor", "-json"]).args(args).output().expect("runs");
    let found: Value = serde_json::from_slice(&stdout).unwrap_or_else(|why| {
        panic!("{why}: {}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
    });
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = found.as_array().expect("a list").iter();
    (status.code(), rows.map(|row| (text(&row["What"]), text(&row["Verdict"]), text(&row["Found"]))).collect())
}

#[test]
fn a_driver_that_has_what_it_needs_passes_with_an_agents_configuration() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("agent.hcl");
    let agent = "data_dir = \"/nowhere\"\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n";
    std::fs::write(&file, agent).expect("written");
    let (code, found) = doctor(&["-config", &file.display().to_string(), "raw_exec"]);
    assert_eq!(code, Some(0), "{found:?}");
    let whats: Vec<&str> = found.iter().map(|(what, ..)| what.as_str()).collect();
    assert_eq!(whats, ["plugin", "configuration", "health"], "{found:?}");
    assert!(found.iter().all(|(_, verdict, _)| verdict == "pass"), "{found:?}");
}

#[test]
fn what_is_wrong_is_told_and_the_exit_code_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("body.hcl");
    std::fs::write(&file, "no_such_key = 1\n").expect("written");
    let (code, found) = doctor(&["-config", &file.display().to_string(), "raw_exec"]);
    assert_eq!(code, Some(1), "{found:?}");
    let (_, verdict, told) = found.iter().find(|(what, ..)| what == "configuration").expect("a row");
    assert!(verdict == "fail" && told.contains("no_such_key"), "{told}");
    // A driver that nobody has configured says what it lacks.
    let (code, found) = doctor(&["remote_exec"]);
    assert_eq!(code, Some(1), "{found:?}");
    assert!(found.iter().any(|(what, verdict, _)| what == "health" && verdict == "fail"), "{found:?}");
}
