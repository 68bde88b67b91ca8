//! Parameterized jobs, from the command line to the task's file.

use std::fs;

use serde_json::json;

use crate::agent::{Agent, example, until};

#[test]
fn a_dispatch_runs_with_its_payload_here_and_in_a_runtime() {
    let agent = Agent::start("");
    let text = agent.cli_ok(&["job", "run", &example("parameterized.nomad.hcl").display().to_string()]);
    assert!(text.contains("start it with: drover job dispatch parameterized"), "{text}");
    let dir = tempfile::tempdir().expect("temp dir");
    let words = dir.path().join("words");
    fs::write(&words, "hello").expect("file");
    let words = words.display().to_string();
    let dispatch = |more: &[&str]| {
        let mut args = vec!["job", "dispatch", "-meta", "to=world"];
        args.extend(more);
        agent.cli(&args)
    };
    let made = dispatch(&["-idempotency-token", "once", "-id-prefix-template", "mine", "parameterized", &words]);
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(
        made.status.success() && text.contains("Evaluation ID"),
        "{text}\n{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let child = text
        .lines()
        .find_map(|l| l.split_once("parameterized/dispatch-mine-"))
        .expect("the child's id")
        .1
        .trim()
        .to_owned();
    let child = format!("parameterized/dispatch-mine-{child}");
    let jobs = agent.get("/v1/jobs?prefix=parameterized/").expect("jobs");
    assert_eq!(
        (jobs[0]["ID"].as_str(), jobs[0]["ParentID"].as_str()),
        (Some(child.as_str()), Some("parameterized")),
        "{jobs}"
    );
    let of_child = || {
        let all = agent.get("/v1/allocations")?;
        all.as_array()?.iter().find(|a| a["JobID"] == child.as_str() && a["ClientStatus"] == "complete").cloned()
    };
    let alloc = until("the dispatched task's end", of_child);
    until("what it says", || (agent.logs(&alloc, "say") == "calm hello world\n").then_some(()));
    // The same token is the same job.
    let again = dispatch(&["-idempotency-token", "once", "-id-prefix-template", "mine", "parameterized", &words]);
    assert!(String::from_utf8_lossy(&again.stdout).contains(&child), "{again:?}");
    assert_eq!(agent.get("/v1/jobs?prefix=parameterized/").expect("jobs").as_array().map(Vec::len), Some(1));
    let refused = dispatch(&["parameterized"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("requires a payload"), "{text}");
    until("the child to be counted", || {
        agent.cli_ok(&["job", "status", "parameterized"]).contains("0        0        1").then_some(())
    });

    // In a runtime elsewhere the payload comes with the create.
    let far = json!({"Job": {
        "ID": "far", "Type": "batch", "ParameterizedJob": {"Payload": "optional"},
        "TaskGroups": [{"Name": "g", "Tasks": [{
            "Name": "t", "Driver": "remote_exec", "DispatchPayload": {"File": "in/words"},
            "Config": {"command": "/bin/sh", "args": ["-c", "cat local/in/words; echo; exec \
                sleep 600"]}, "Resources": {"CPU": 20, "MemoryMB": 16}
        }]}]
    }});
    agent.put("/v1/jobs", &far);
    agent.cli_ok(&["job", "dispatch", "-detach", "far", &words]);
    let of_far = |status: &str| {
        let all = agent.get("/v1/allocations")?;
        let is = |a: &&serde_json::Value| {
            a["JobID"].as_str().is_some_and(|j| j.starts_with("far/dispatch-")) && a["ClientStatus"] == status
        };
        all.as_array()?.iter().find(is).cloned()
    };
    let remote = until("the remote task", || of_far("running"));
    until("what it says", || (agent.logs(&remote, "t") == "hello\n").then_some(()));
    agent.cli_ok(&["job", "stop", "-detach", remote["JobID"].as_str().expect("an id")]);
    until("its end", || of_far("complete"));
}
