//! What people see who ask for help or mistype, through the binary.

use std::process::{Command, Output};

use crate::agent::drover;

fn run(args: &[&str]) -> Output {
    // Nobody answers at that address.
    Command::new(drover())
        .args(args)
        .env("DROVER_ADDR", "http://127.0.0.1:1")
        .env_remove("NOMAD_ADDR")
        .output()
        .expect("drover")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_is_data_and_a_mistyped_command_is_told_from_it() {
    for args in [
        &["help"][..],
        &["-h"],
        &["-help"],
        &["--help"],
        &["help", "logs"],
        &["alloc", "logs", "-h"],
        &["help", "node", "drain"],
    ] {
        let out = run(args);
        let shown = text(&out.stdout);
        assert_eq!((out.status.code(), out.stderr.len()), (Some(0), 0), "{args:?}");
        assert!(shown.contains("Examples:\n  drover ") && shown.contains("Usage: drover"), "{args:?}: {shown}");
    }
    let (by_name, by_flag) = (run(&["help", "logs"]), run(&["alloc", "logs", "-h"]));
    assert!(
        text(&by_name.stdout).contains("Connection options:") && text(&by_flag.stdout).contains("Connection options:")
    );
    // A group without a verb, and nothing at all: help, and an exit code that says that nothing was done, as with
    // Nomad's CLI.
    for (args, code) in [(&["job"][..], 1), (&["node", "drivers"], 1), (&[], 127)] {
        let out = run(args);
        assert_eq!(out.status.code(), Some(code), "{args:?}");
        assert!(text(&[out.stdout, out.stderr].concat()).contains("Commands:"), "{args:?}");
    }
    for (args, code, parts) in [
        (&["members"][..], 127, &["drover has no command \"members\"", "drover server members"][..]),
        (&["job", "drain"], 1, &["`drover job` has no command \"drain\"", "drover node drain", "drover help job"]),
        (&["volume", "detach"], 1, &["`drover volume` has no command \"detach\"", "no CSI volumes"]),
        (&["jbo"], 127, &["Did you mean:\n  drover job"]),
        (&["job", "status", "-bogus"], 1, &["--bogus"]),
        (&["alloc", "logs"], 1, &["required"]),
    ] {
        let out = run(args);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(code), 0), "{args:?}");
        for part in parts {
            assert!(text(&out.stderr).contains(part), "{args:?}: {part:?} in {}", text(&out.stderr));
        }
    }
}

#[test]
fn the_version_has_a_form_for_machines() {
    let out = run(&["version", "-json"]);
    let version: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    for form in ["version", "-v", "-version", "--version"] {
        assert_eq!(
            format!("Drover v{}\n", version["Version"].as_str().expect("text")),
            text(&run(&[form]).stdout),
            "{form}"
        );
    }
}
