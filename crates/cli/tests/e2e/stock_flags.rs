//! Flags that scripts for Nomad give, and what becomes of them here.

use std::{
    fs,
    process::{Command, Output},
};

use serde_json::Value;

use crate::agent::{Agent, drover, example, printed};

/// Runs a command with these variables.
fn with(agent: &Agent, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(drover());
    command.args(args).env("DROVER_ADDR", agent.address()).env_remove("NO_COLOR").envs(variables.iter().copied());
    command.output().expect("drover")
}

#[test]
fn pages_open_beside_what_is_shown() {
    let agent = Agent::start("");
    let dir = tempfile::tempdir().expect("temp dir");
    let (browser, opened) = (dir.path().join("xdg-open"), dir.path().join("opened"));
    testkit::program(&browser, &format!("#!/bin/sh\necho \"$1\" >> {}\n", opened.display()));
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap_or_default());
    let file = example("hello.nomad.hcl").display().to_string();
    agent.cli_ok(&["var", "put", "nomad/jobs/hello", "a=b"]);
    agent.cli_ok(&["job", "run", &file]);
    let alloc = agent.alloc("hello", "running");
    let id = |of: &str| alloc[of].as_str().expect("an id").to_owned();
    let (alloc_id, node, eval) = (id("ID"), id("NodeID"), id("EvalID"));
    let job = "jobs/hello%40default".to_owned();
    let (of_alloc, of_node) = (format!("allocations/{alloc_id}"), format!("clients/{node}"));
    for (args, page) in [
        (&["job", "status", "-ui", "hello"][..], job.clone()),
        (&["job", "status", "-ui"], "jobs".to_owned()),
        (&["job", "run", "-ui", "-detach", &file], job),
        (&["alloc", "status", "-ui", &alloc_id], of_alloc.clone()),
        (&["status", "-ui", &alloc_id], of_alloc),
        (&["node", "status", "-ui", &node], of_node),
        (&["node", "status", "-ui"], "clients".to_owned()),
        (&["eval", "status", "-ui", &eval], format!("evaluations?currentEval={eval}")),
        (&["eval", "list", "-ui"], "evaluations".to_owned()),
        (&["server", "members", "-ui"], "servers".to_owned()),
        (&["var", "get", "-ui", "nomad/jobs/hello"], "variables/var/nomad%2Fjobs%2Fhello%40default".to_owned()),
        (&["var", "list", "-ui"], "variables".to_owned()),
    ] {
        fs::write(&opened, "").expect("a file");
        let out = with(&agent, &[("PATH", &path)], args);
        assert!(out.status.success() && !out.stdout.is_empty(), "{args:?}: {}", printed(&out));
        let url = fs::read_to_string(&opened).expect("a file");
        assert_eq!(url.trim_end(), format!("{}/ui/{page}", agent.address()), "{args:?}");
    }
    // Whoever reads is told where the page is, as the environment says; scripts are not.
    for (hints, told) in [("1", true), ("0", false), ("", false)] {
        let out = with(&agent, &[("NOMAD_CLI_SHOW_HINTS", hints)], &["job", "status", "hello"]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let url = format!("==> View this in the Web UI: {}/ui/jobs/hello%40default", agent.address());
        assert_eq!(said.contains(&url), told, "{hints:?}: {said}");
    }
    // On a terminal the agent decides.
    let shows = |agent: &Agent| {
        let config = agent.get("/v1/agent/self").expect("itself")["config"]["UI"]["ShowCLIHints"].clone();
        (agent.get("/v1/agent/features").expect("features")["CLIHints"].clone(), config)
    };
    assert_eq!(shows(&agent), (true.into(), true.into()));
    let quiet = Agent::start("ui {\n  show_cli_hints = false\n}\n");
    assert_eq!(shows(&quiet), (false.into(), false.into()));
    // Nobody opens it: the command does what it does, and says where the page is.
    let out = with(&agent, &[("PATH", "/nowhere")], &["job", "status", "-ui", "hello"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("/ui/jobs/hello%40default"), "{said}");
}

#[test]
fn colours_come_when_they_are_forced() {
    let agent = Agent::start("");
    let coloured = |variables: &[(&str, &str)], args: &[&str]| {
        let out = with(&agent, variables, args);
        assert!(out.status.success(), "{}", printed(&out));
        out.stdout.contains(&0x1b)
    };
    let force = ("NOMAD_CLI_FORCE_COLOR", "1");
    assert!(!coloured(&[], &["node", "status"]), "it is no terminal");
    assert!(coloured(&[], &["node", "status", "-force-color"]));
    assert!(
        coloured(&[force], &["node", "status"]) && coloured(&[("DROVER_CLI_FORCE_COLOR", "1")], &["node", "status"])
    );
    assert!(!coloured(&[force, ("NOMAD_CLI_NO_COLOR", "1")], &["node", "status"]));
    assert!(!coloured(&[force], &["node", "status", "-no-color"]));
    let out = with(&agent, &[], &["node", "status", "-force-color", "-no-color"]);
    assert_eq!(out.status.code(), Some(1), "{}", printed(&out));
}

#[test]
fn answers_are_shaped_and_what_is_refused_has_its_reason() {
    let agent = Agent::start("");
    let dir = tempfile::tempdir().expect("temp dir");
    let file = example("hello.nomad.hcl").display().to_string();
    let out = agent.cli(&["job", "plan", "-t", "{{.Diff.ID}}", "-policy-override", &file]);
    assert_eq!((out.status.code(), &*out.stdout), (Some(1), &b"hello\n"[..]), "{}", printed(&out));
    assert_eq!(agent.cli_ok(&["node", "meta", "read", "-t", "{{len .Dynamic}}"]), "0\n");

    agent.cli_ok(&["job", "run", "-preserve-resources", &file]);
    agent.alloc("hello", "running");
    let snapshot = dir.path().join("s.snap").display().to_string();
    agent.cli_ok(&["operator", "snapshot", "save", &snapshot]);
    for (filter, jobs, nodes) in [("Status == \"ready\"", 0, 1), ("ID == hello", 1, 0)] {
        let text = agent.cli_ok(&["operator", "snapshot", "state", "-filter", filter, &snapshot]);
        let state: Value = serde_json::from_str(&text).expect("JSON");
        let count = |table: &str| state[table].as_array().map_or(0, Vec::len);
        assert_eq!((count("Jobs"), count("Nodes")), (jobs, nodes), "{filter}");
    }
    let out = agent.cli(&["operator", "snapshot", "state", "-filter", "ID ==", &snapshot]);
    assert!(out.status.code() == Some(1) && printed(&out).contains("-filter"), "{}", printed(&out));

    let volume = dir.path().join("v.json").display().to_string();
    agent.cli_ok(&["volume", "init", "-json", &volume]);
    agent.cli_ok(&["volume", "create", &volume]);
    assert!(agent.cli_ok(&["volume", "status"]).contains("data"));

    for (args, why) in [
        (&["job", "run", "-consul-token", "x", &file][..], "There is no Consul integration"),
        (&["job", "run", "-vault-token=x", &file], "workload identity"),
        (&["operator", "snapshot", "save", "-redact", &snapshot], "drover operator snapshot state"),
        (&["operator", "snapshot", "restore", "-address", "x", &snapshot], "No agent is asked"),
        (&["check", "-min-servers", "1"], "drover operator autopilot health"),
        (&["node", "config", "-update-servers", "a"], "client.servers"),
    ] {
        let out = agent.cli(args);
        assert!(out.status.code() == Some(1) && printed(&out).contains(why), "{args:?}: {}", printed(&out));
    }
}

#[test]
fn whoever_does_not_want_to_wait_for_a_lock_fails() {
    let agent = Agent::start("");
    let dir = tempfile::tempdir().expect("temp dir");
    let held = dir.path().join("held");
    let script = format!("touch {}; exec sleep 600", held.display());
    let mut holder = Command::new(drover())
        .args(["var", "lock", "locks/one", &script])
        .env("DROVER_ADDR", agent.address())
        .spawn()
        .expect("drover");
    crate::agent::until("the lock is held", || held.exists().then_some(()));
    let out = agent.cli(&["var", "lock", "-early-return", "-backoff", "2s", "locks/one", "true"]);
    let said = printed(&out);
    crate::agent::signal(i32::try_from(holder.id()).expect("a pid"), rustix::process::Signal::TERM);
    holder.wait().expect("its end");
    assert!(out.status.code() == Some(1) && said.contains("somebody else holds the lock"), "{said}");
}
