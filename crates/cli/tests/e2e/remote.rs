//! Remote tasks with real processes: what a restored history has forgotten is found, and nothing is created or ended
//! without an order.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::agent::{Agent, until};

fn job(id: &str, seconds: u32) -> Value {
    json!({"Job": {
        "ID": id, "Type": "service",
        "TaskGroups": [{
            "Name": "g",
            "Update": {"MaxParallel": 0},
            "Tasks": [{"Name": "t", "Driver": "remote_exec",
                "Config": {"command": "/bin/sleep", "args": [seconds.to_string()]},
                "Resources": {"CPU": 20, "MemoryMB": 16}}]
        }]
    }})
}

fn instances(agent: &Agent, mark: &str) -> Vec<i32> {
    agent.processes().into_iter().filter(|(_, c)| c.starts_with(mark)).map(|(p, _)| p).collect()
}

/// Copies a directory.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").map_while(Result::ok) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// What a sweep finds; None when it could not ask, as right after a start, when no node may have a session yet.
fn unbound(agent: &Agent) -> Option<Vec<Value>> {
    let swept = agent.cli(&["remote", "sweep", "-json"]);
    let sweeps: Value = serde_json::from_slice(&swept.stdout).expect("JSON");
    let unbound =
        sweeps.as_array().expect("a list").iter().flat_map(|s| s["Unbound"].as_array().cloned().unwrap_or_default());
    swept.status.success().then(|| unbound.collect())
}

#[test]
fn a26_servers_restored_from_an_old_snapshot_recover_what_their_node_knows() {
    let mut agent = Agent::start("");
    let (data, snapshot) = (agent.dir().join("data/server"), agent.dir().join("snapshot"));
    agent.kill();
    copy(&data, &snapshot);
    agent.launch();
    agent.put("/v1/jobs", &job("kept", 32003));
    let kept = until("the instance", || Some(instances(&agent, "/bin/sleep 32003")).filter(|i| i.len() == 1));
    agent.alloc("kept", "running");
    agent.kill();
    fs::remove_dir_all(&data).expect("the state");
    copy(&snapshot, &data);
    agent.launch();

    let recovery = || agent.get("/v1/operator/recovery").expect("an answer");
    // The end by order below waits for nobody, and a node that was started anew knows a remote task by its provider.
    until("the node and the provider to tell what they have", || {
        let (recovery, len) = (recovery(), |list: &Value| list.as_array().map_or(0, Vec::len));
        if (len(&recovery["Answered"]), len(&recovery["Unswept"])) == (1, 0) { Ok(()) } else { Err(recovery) }
    });
    let (status, text) = agent.http("GET", "/v1/agent/health?type=server", "").expect("an answer");
    assert!(status == 500 && text.contains("recover"), "{status} {text}");
    let (status, text) = agent.http("PUT", "/v1/jobs", &job("new", 32004).to_string()).expect("an answer");
    assert!(status == 503 && text.contains("from the past"), "{status} {text}");
    let shown = agent.cli_ok(&["operator", "recover", "-status"]);
    assert!(shown.contains("Recovering") && shown.contains("yes") && shown.contains("has acted on index"), "{shown}");
    agent.cli_ok(&["operator", "recover", "-yes"]);
    agent.alloc("kept", "running");
    until("its management", || {
        agent.get("/v1/remote/task/default/kept.g[0]/t").filter(|r| r["Observed"]["State"] == "Running")
    });
    assert_eq!(instances(&agent, "/bin/sleep 32003"), kept, "the same process, and no other");
    agent.cli_ok(&["job", "stop", "-detach", "kept"]);
    until("the stop", || instances(&agent, "/bin/sleep 32003").is_empty().then_some(()));
}

#[test]
fn a26_servers_restored_from_an_old_snapshot_create_nothing_twice_and_end_nothing_without_an_order() {
    let mut agent = Agent::start("");
    let (data, snapshot) = (agent.dir().join("data/server"), agent.dir().join("snapshot"));
    agent.kill();
    copy(&data, &snapshot);
    agent.launch();
    agent.put("/v1/jobs", &job("kept", 32001));
    agent.put("/v1/jobs", &job("ended", 32002));
    let (kept, ended) = (
        until("the one instance", || Some(instances(&agent, "/bin/sleep 32001")).filter(|i| i.len() == 1)),
        until("the other instance", || Some(instances(&agent, "/bin/sleep 32002")).filter(|i| i.len() == 1)),
    );
    agent.alloc("kept", "running");
    agent.alloc("ended", "running");
    agent.kill();
    fs::remove_dir_all(&data).expect("the state");
    copy(&snapshot, &data);
    // Its node has lost its memory as well: one that remembers has the servers recover, see below.
    for file in ["node.sqlite", "node.sqlite-wal"] {
        let _ = fs::remove_file(agent.dir().join("data/client").join(file));
    }
    agent.launch();

    let found = until("the sweep to find both", || unbound(&agent).filter(|u| u.len() == 2));
    let key = |slot: &str| {
        let of =
            found.iter().find(|i| i["Slot"].as_str() == Some(slot)).unwrap_or_else(|| panic!("{slot} in {found:?}"));
        of["Key"].as_str().expect("a key").to_owned()
    };
    assert!(agent.cli_ok(&["remote", "list", "-unbound"]).contains("default/kept.g[0]/t"));
    // The job comes again: its slot may have this instance, so that none is created beside it.
    agent.put("/v1/jobs", &job("kept", 32001));
    until("its allocation", || (!agent.allocs("kept").is_empty()).then_some(()));
    assert_eq!(unbound(&agent).expect("a sweep").len(), 2, "another look, after the allocation was seen");
    assert_eq!(instances(&agent, "/bin/sleep 32001"), kept);
    agent.cli_ok(&["remote", "adopt", &key("default/kept.g[0]/t")]);
    agent.alloc("kept", "running");
    assert_eq!(instances(&agent, "/bin/sleep 32001"), kept, "the same process, managed again");

    let refused = agent.cli(&["remote", "adopt", &key("default/ended.g[0]/t")]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no job wants slot"), "{refused:?}");
    assert!(agent.cli_ok(&["remote", "sweep", "-stop", "-dry-run"]).contains("Would stop"));
    assert_eq!(instances(&agent, "/bin/sleep 32002"), ended, "nothing is stopped by a dry run");
    agent.cli_ok(&["remote", "stop", &key("default/ended.g[0]/t")]);
    until("the stop", || instances(&agent, "/bin/sleep 32002").is_empty().then_some(()));
    until("an end of its record", || (!agent.cli_ok(&["remote", "list"]).contains("default/ended")).then_some(()));
    assert!(unbound(&agent).expect("a sweep").is_empty());
    assert_eq!(instances(&agent, "/bin/sleep 32001"), kept);
}
