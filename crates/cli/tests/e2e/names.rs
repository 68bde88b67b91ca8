//! Names where identifiers are taken, both streams of a log, signals by their short names, and errors that people
//! understand.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::agent::{Agent, drover, until};

fn job(id: &str, groups: &[(&str, u32)], config: &Value) -> Value {
    let groups: Vec<Value> = groups
        .iter()
        .map(|(name, count)| {
            json!({"Name": name, "Count": count,
                   "Tasks": [{"Name": "t", "Driver": "mock", "Config": config,
                       "Resources": {"CPU": 20, "MemoryMB": 16}}]})
        })
        .collect();
    json!({"Job": {"ID": id, "Type": "service", "TaskGroups": groups}})
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The error of a command that must fail: exit code 1, nothing on standard output, no words of the transport.
fn refused(agent: &Agent, args: &[&str]) -> String {
    let out = agent.cli(args);
    let error = text(&out.stderr);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(1), String::new()), "{args:?}: {error}");
    assert!(
        !error.contains("Unexpected response code") && !error.contains("error occurred") && !error.contains("()"),
        "{args:?}: {error}"
    );
    error
}

#[test]
fn names_do_where_ids_are_taken() {
    let agent = Agent::start("name = \"here\"\nplugin \"mock\" {}\n");
    let says = json!({"run_for": "1h", "stdout_string": "to out\n", "stderr_string": "to err\n"});
    agent.put("/v1/jobs", &job("one", &[("g", 1)], &says));
    agent.put("/v1/jobs", &job("pair", &[("left", 1), ("right", 1)], &says));
    let one = agent.alloc("one", "running");
    let id = one["ID"].as_str().expect("an id").to_owned();
    let short = &id[..8];
    until("both of the pair", || {
        (agent.allocs("pair").iter().filter(|a| a["ClientStatus"] == "running").count() == 2).then_some(())
    });

    // A job with one allocation is that allocation, for everything; so is the allocation's own name.
    until("output", || agent.cli_ok(&["logs", "one"]).contains("to out").then_some(()));
    until("the other output", || (agent.cli_ok(&["logs", "-stderr", "one"]) == "to err\n").then_some(()));
    assert_eq!(agent.cli_ok(&["logs", "-task", "t", "one", "nobody"]), "to out\n", "-task wins over the operand");
    assert_eq!(agent.cli_ok(&["alloc", "logs", "-tail", "-n", "1", "one.g[0]"]), "to out\n");
    assert!(agent.cli_ok(&["alloc-status", "one"]).contains(&id));
    assert!(agent.cli_ok(&["fs", "one"]).contains("alloc/"));
    assert_eq!(agent.cli_ok(&["fs", "-n", "1", "one", "alloc/logs/t.stdout.0"]), "to out\n");
    assert_eq!(agent.cli_ok(&["fs", "-c", "4", "-H", "one", "alloc/logs/t.stdout.0"]), "out\n");
    assert!(agent.cli(&["exec", "one", "anything"]).status.success());
    assert!(agent.cli_ok(&["alloc", "restart", "-task", "t", "one"]).contains(short));
    until("the restart", || agent.cli_ok(&["alloc", "status", short]).contains("Total Restarts = 1").then_some(()));
    agent.alloc("one", "running");
    assert!(
        until("the signal", || {
            let out = agent.cli(&["alloc", "signal", "-s", "hup", "one"]);
            out.status.success().then(|| text(&out.stdout))
        })
        .contains("SIGHUP sent")
    );

    // Of several running ones the newest is read, and said so; nothing is done to one that only may be meant.
    let out = agent.cli(&["logs", "pair"]);
    assert!(out.status.success() && text(&out.stderr).contains("job pair has 2 running allocations"), "{out:?}");
    let out = agent.cli(&["logs", "-group", "left", "pair"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    assert!(refused(&agent, &["logs", "-group", "up", "pair"]).contains("left, right"));
    let error = refused(&agent, &["alloc", "stop", "-detach", "pair"]);
    assert!(
        error.contains("choose one by id") && error.contains("pair.left[0]") && error.contains("pair.right[0]"),
        "{error}"
    );

    // Nodes.
    assert!(agent.cli_ok(&["node", "status", "here"]).contains("raw_exec"));
    assert!(agent.cli_ok(&["status", "here"]).contains("raw_exec"));
    agent.cli_ok(&["node", "eligibility", "-disable", "here"]);
    agent.cli_ok(&["node", "eligibility", "-enable", "here"]);
    assert!(refused(&agent, &["node", "status", "hare"]).contains("did you mean \"here\""));

    // Lists, and what is used.
    let node = agent.get("/v1/nodes").and_then(|n| n[0]["ID"].as_str().map(str::to_owned)).expect("an id");
    assert_eq!(agent.cli_ok(&["node", "status", "-quiet", "-verbose"]).trim(), node);
    assert!(agent.cli_ok(&["node", "status", "-os"]).contains(" OS "));
    assert!(agent.cli_ok(&["node", "status", "-filter", "Name == \"nobody\""]).contains("No node fits"));
    let stats = agent.cli_ok(&["node", "status", "-stats", "here"]);
    assert!(
        ["CPU Stats", "Memory Stats", "Disk Stats", "Idle", "Inodes Percent"].iter().all(|t| stats.contains(t)),
        "{stats}"
    );
    let stats = until("a sample of the task", || {
        // Shown without one while the driver takes its time.
        Some(agent.cli_ok(&["alloc", "status", "-stats", "one"])).filter(|text| text.contains("Memory Stats"))
    });
    assert!(!stats.contains("\"ResourceUsage\""), "{stats}");

    // What is not there.
    assert!(refused(&agent, &["deployment", "status", "xyzzy"]).contains("no job of that name has one"));
    assert!(refused(&agent, &["alloc", "status", &id[..1]]).contains("at least two digits"));
    assert!(refused(&agent, &["node", "eligibility", "here"]).contains("give -enable or -disable"));
    assert!(refused(&agent, &["logs", "onne"]).contains("did you mean job \"one\""));
    assert!(refused(&agent, &["logs", "-job", "xyzzy"]).contains("no job has this name"));
    assert!(refused(&agent, &["fs", "one", "alloc/nothing"]).contains("has no file \"alloc/nothing\""));
    assert!(refused(&agent, &["alloc", "signal", "-s", "TREM", "one"]).contains("did you mean TERM"));
    refused(&agent, &["alloc", "restart", "-task", "nobody", "one"]);
    refused(&agent, &["logs", "one", "nobody"]);
    refused(&agent, &["status", "xyzzy"]);
    refused(&agent, &["job", "status", "a//b"]);
}

#[test]
fn a_failed_allocation_says_why() {
    let agent = Agent::start("");
    let config = json!({"command": "/bin/sh", "args": ["-c", "echo cannot open database >&2; kill -SEGV $$"]});
    let group = json!({"Name": "g", "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
            "ReschedulePolicy": {"Attempts": 0, "Unlimited": false},
        "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": config, "Resources": {"CPU": 20, "MemoryMB": 16}}]});
    agent.put("/v1/jobs", &json!({"Job": {"ID": "bad", "Type": "batch", "TaskGroups": [group]}}));
    agent.alloc("bad", "failed");
    let shown = agent.cli_ok(&["alloc", "status", "bad"]);
    let wrong = shown.split("What Went Wrong\n").nth(1).expect("the cause");
    assert!(wrong.starts_with("task \"t\": killed by SIGSEGV\n  stderr: cannot open database\n"), "{shown}");
}

#[test]
fn a_follower_hears_both_streams() {
    let agent = Agent::start("plugin \"mock\" {}\n");
    let config = json!({"run_for": "400ms", "exit_code": 0, "stdout_string": "to out\n", "stderr_string": "to err\n"});
    let mut job = job("short", &[("g", 1)], &config);
    job["Job"]["Type"] = json!("batch");
    agent.put("/v1/jobs", &job);
    let started = |a: &Value| a["TaskStates"]["t"]["StartedAt"].as_str().is_some_and(|t| !t.starts_with("0001"));
    until("a started task", || agent.allocs("short").into_iter().find(started));
    let out = agent.cli(&["logs", "-f", "short"]);
    assert_eq!(
        (out.status.code(), text(&out.stdout), text(&out.stderr)),
        (Some(0), "to out\n".into(), "to err\n".into())
    );
    let out = agent.cli(&["logs", "-f", "-stderr", "short"]);
    assert_eq!((out.status.code(), text(&out.stdout), text(&out.stderr)), (Some(0), "to err\n".into(), String::new()));
    let out = agent.cli(&["logs", "-stdout", "-stderr", "short"]);
    assert_eq!((text(&out.stdout), text(&out.stderr)), ("to out\n".into(), "to err\n".into()));
    // Nothing runs any more: what ran last is read, and entered by nobody.
    assert!(refused(&agent, &["exec", "short", "anything"]).contains("has no running allocation"));
}

#[test]
fn an_agent_that_does_not_answer_is_told_from_a_wrong_answer() {
    let run = |address: &str| -> Output {
        Command::new(drover()).args(["ps", "-address", address]).env_remove("NOMAD_ADDR").output().expect("drover")
    };
    let out = run("http://127.0.0.1:1");
    assert_eq!(out.status.code(), Some(1));
    let error = text(&out.stderr);
    assert!(
        error.starts_with("no agent answers at http://127.0.0.1:1\n") && error.contains("drover agent -dev"),
        "{error}"
    );
    let error = text(&run("unix:///nonexistent/socket").stderr);
    assert!(error.starts_with("no agent answers at unix:///nonexistent/socket\n"), "{error}");
}

#[test]
fn a_remote_task_is_restarted_through_its_allocation_wherever_that_is_asked_and_by_its_jobs_name() {
    let server = Agent::start("name = \"one\"\n");
    let node = Agent::start_node(&server, "name = \"two\"\n");
    let sleep = |id: &str, driver: &str| {
        json!({"Name": id, "Driver": driver, "Config": {"command": "/bin/sleep", "args": ["32100"]},
        "Resources": {"CPU": 20, "MemoryMB": 16}})
    };
    let tasks = [sleep("far", "remote_exec"), sleep("near", "raw_exec")];
    server.put(
        "/v1/jobs",
        &json!({"Job": {"ID": "mixed", "Type": "service",
            "Constraints": [{"LTarget": "${node.unique.name}", "RTarget": "two", "Operand": "="}],
            "TaskGroups": [{"Name": "g", "Update": {"MaxParallel": 0}, "Tasks": tasks}]}}),
    );
    let alloc = server.alloc("mixed", "running");
    let id = alloc["ID"].as_str().expect("an id").to_owned();
    let instance = || {
        let records = server.get("/v1/remote/tasks").and_then(|v| v.as_array().cloned()).unwrap_or_default();
        let record = records.into_iter().find(|r| r["Observed"]["State"] == "Running")?;
        record["IncarnationID"].as_str().map(str::to_owned)
    };
    let near =
        || server.get(&format!("/v1/allocation/{id}")).and_then(|a| a["TaskStates"]["near"]["Restarts"].as_u64());
    let mut before = until("the remote task", instance);
    let restarted = |before: &str| until("another instance", || instance().filter(|i| i != before));

    // Only what runs is started again, and an allocation is running as soon as one of its tasks is.
    let near_runs = || {
        until("the local task to run", || {
            let state = server.get(&format!("/v1/allocation/{id}"))?["TaskStates"]["near"]["State"].clone();
            (state == "running").then_some(())
        });
    };
    for (n, agent) in [&server, &node].into_iter().enumerate() {
        near_runs();
        let said = agent.cli_ok(&["alloc", "restart", "mixed"]);
        assert!(said.contains("default/mixed.g[0]/far") && said.contains("task near"), "{said}");
        before = restarted(&before);
        until("the restart of the local task", || (near() == Some(n as u64 + 1)).then_some(()));
    }
    agent_words(&node.cli_ok(&["alloc", "restart", "-task", "far", "mixed"]));
    before = restarted(&before);
    agent_words(&server.cli_ok(&["remote", "restart", "mixed"]));
    before = restarted(&before);
    // As other clients ask: a server orders both, a node says that it cannot.
    near_runs();
    server.put(&format!("/v1/client/allocation/{id}/restart"), &json!({}));
    restarted(&before);
    until("the restart of the local task", || (near() == Some(3)).then_some(()));
    let (status, body) = node.http("PUT", &format!("/v1/client/allocation/{id}/restart"), "{}").expect("an answer");
    assert!(status >= 400 && body.contains("far lives in a remote runtime"), "{status} {body}");
}

fn agent_words(text: &str) {
    assert!(text.contains("default/mixed.g[0]/far is being stopped; a new one follows"), "{text}");
}
