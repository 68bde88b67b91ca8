//! Services and checks from the outside: the registry, its commands, and what keeps or takes an entry.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use crate::agent::{Agent, example, until};

fn places(agent: &Agent, service: &str) -> Vec<Value> {
    agent.get(&format!("/v1/service/{service}")).and_then(|v| v.as_array().cloned()).unwrap_or_default()
}

#[test]
fn a_service_appears_is_checked_restarted_and_goes_before_the_kill() {
    let mut agent = Agent::start("");
    agent.cli_ok(&["job", "run", &example("services.nomad.hcl").display().to_string()]);
    let both = places(&agent, "greeter");
    assert_eq!(both.len(), 2);
    assert!(both[0]["Port"].as_i64().is_some_and(|p| p > 0) && both[0]["Tags"][0] == "blue", "{both:?}");
    assert!(both[0]["Tags"][1].as_str().is_some_and(|t| t.starts_with("on-") && !t.contains('$')), "{both:?}");
    let list = agent.cli_ok(&["service", "list"]);
    assert!(list.contains("greeter") && list.contains("blue,on-"), "{list}");

    let alloc = both[0]["AllocID"].as_str().expect("an id").to_owned();
    let text = agent.cli_ok(&["alloc", "checks", &alloc]);
    assert!(text.contains("Status of 1 Nomad Service Checks") && text.contains("Status     = success"), "{text}");
    let text = agent.cli_ok(&["alloc", "status", &alloc]);
    assert!(text.contains("Nomad Service Checks") && text.contains("healthiness"), "{text}");

    // The agent is killed and comes back: nobody notices. The entries are the very same ones.
    let indexes =
        |agent: &Agent| -> Vec<Value> { places(agent, "greeter").iter().map(|p| p["ModifyIndex"].clone()).collect() };
    let before = indexes(&agent);
    agent.kill();
    agent.launch();
    until("the allocation on its node again", || {
        let checks = agent.get(&format!("/v1/client/allocation/{alloc}/checks"))?;
        checks.as_object()?.values().all(|c| c["Status"] == "success").then_some(())
    });
    assert_eq!(indexes(&agent), before);
    let listed = agent.get(&format!("/v1/allocation/{alloc}/checks")).expect("the servers' path for the same");
    assert!(listed.as_object().is_some_and(|checks| !checks.is_empty()), "{listed}");

    // It stops being ready: the check says so, and restarts the task, which makes itself ready again.
    fs::remove_file(find_ready(&agent, &alloc)).expect("the file");
    let restarted = until("a restart by the check", || {
        let state = agent.get(&format!("/v1/allocation/{alloc}"))?["TaskStates"]["greet"].clone();
        (state["Restarts"] == 1 && state["State"] == "running").then_some(state)
    });
    let why = restarted["Events"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|e| e["Type"] == "Restart Signaled")
        .expect("the reason");
    assert!(
        why["DisplayMessage"].as_str().is_some_and(|t| t.contains("check \"ready\" of service \"greeter\"")),
        "{why}"
    );
    until("two places again", || (places(&agent, "greeter").len() == 2).then_some(()));

    // The stop takes the entry away first, the task after the delay.
    agent.cli_ok(&["job", "stop", "-detach", "services"]);
    until("no place", || {
        // Asked for in this order: the task runs at least until its place is seen for the last time.
        let task = agent.get(&format!("/v1/allocation/{alloc}"))?["TaskStates"]["greet"]["State"].clone();
        let gone = places(&agent, "greeter").is_empty();
        assert!(gone || task == "running", "a place of a task that is {task}");
        gone.then_some(())
    });
    let out = agent.cli(&["service", "info", "greeter"]);
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("no instance of service \"greeter\""),
        "{out:?}"
    );
    until("the end of the job", || {
        agent.allocs("services").iter().all(|a| a["ClientStatus"] == "complete").then_some(())
    });
}

/// The file that the example's task makes, wherever the agent keeps allocations.
fn find_ready(agent: &Agent, alloc: &str) -> std::path::PathBuf {
    let mut todo = vec![agent.dir().to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().map_while(Result::ok) {
            let path = entry.path();
            if path.ends_with("local/ready") && path.display().to_string().contains(alloc) {
                return path;
            }
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                todo.push(path);
            }
        }
    }
    panic!("no file of allocation {alloc}");
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A drain moves the management of a remote task to another node: whoever follows its service never sees it without a
/// place.
#[test]
fn a_remote_service_has_a_place_all_through_a_drain() {
    let agent = Agent::start("");
    agent.put(
        "/v1/jobs",
        &json!({"Job": {
            "ID": "far", "Type": "service",
            "TaskGroups": [{
                "Name": "g",
                "Update": {"MaxParallel": 0},
                "Services": [{"Name": "far", "Provider": "nomad", "PortLabel": "9000", "Address": "far.example"}],
                "Tasks": [{"Name": "t", "Driver": "remote_exec", "Config": {"command": "/bin/sleep", "args": ["32101"]},
                    "Resources": {"CPU": 20, "MemoryMB": 16}}]
            }]
        }}),
    );
    let first = until("its place", || places(&agent, "far").pop());
    assert_eq!((&first["Address"], &first["Port"]), (&json!("far.example"), &json!(9000)));
    let other = Agent::start_manager(&agent, &agent.dir().join("runtime"), "");
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        // Also when this thread fails, the other one must not follow the service for ever.
        let end = EndOnDrop(&over);
        let watcher = threads.spawn(|| {
            let (mut index, mut answers) = (first["ModifyIndex"].as_u64().expect("an index"), 0);
            while !over.load(Ordering::Relaxed) {
                // Answers come with each change of the service.
                let (status, body) =
                    agent.http("GET", &format!("/v1/service/far?index={index}&wait=1s"), "").expect("an answer");
                let list: Vec<Value> = serde_json::from_str(&body).expect("JSON");
                assert_eq!(status, 200);
                assert_eq!(list.len(), 1, "always one place: {list:?}");
                index = list[0]["ModifyIndex"].as_u64().expect("an index").max(index);
                answers += 1;
            }
            answers
        });
        let node = first["NodeID"].as_str().expect("an id");
        agent.put(&format!("/v1/node/{node}/drain"), &json!({"DrainSpec": {"Deadline": 600_000_000_000_i64}}));
        let moved = until("the place under the next manager", || {
            places(&agent, "far").into_iter().find(|p| p["NodeID"] != first["NodeID"])
        });
        assert_ne!(moved["AllocID"], first["AllocID"]);
        until("the end of the drain", || {
            (agent.get(&format!("/v1/node/{node}"))?["DrainStrategy"].is_null()).then_some(())
        });
        drop(end);
        assert!(watcher.join().expect("one place at every answer") > 0);
    });
    agent.cli_ok(&["job", "stop", "far"]);
    until("no place after the stop", || places(&agent, "far").is_empty().then_some(()));
    drop(other);
}
