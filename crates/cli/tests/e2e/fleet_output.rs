//! The output of remote tasks that have ended, read by whoever asks any agent: through the death of the node that
//! managed the end, and until the allocation is collected.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    agent::until,
    fleet::{Fleet, text},
};

const SLOT: &str = "default/ends.g[0]/t";

/// A batch task that says something and fails, once.
fn ending() -> Value {
    let config = json!({
        "run_for": "300ms", "exit_code": 3, "kill_after": "10ms",
        "stdout_string": "one line of many\n", "stdout_repeat": 5, "stdout_repeat_duration": "20ms",
        "stderr_string": "oops\n"
    });
    json!({"Job": {
        "ID": "ends", "Type": "batch",
        "Constraints": [{"LTarget": "${node.class}", "RTarget": "manager", "Operand": "="}],
        "TaskGroups": [{
            "Name": "g", "Count": 1,
            "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
            "ReschedulePolicy": {"Attempts": 0, "Unlimited": false},
            "Tasks": [{"Name": "t", "Driver": "mock_remote", "Config": config,
                "Resources": {"CPU": 20, "MemoryMB": 16}}]
        }]
    }})
}

/// The task has ended and everybody knows, but its output cannot be had yet. Its manager and its allocation.
fn ended_without_output(fleet: &Fleet) -> (String, String) {
    fleet.provider.fault(None, &json!({"lose": ["logs"]})).expect("writes");
    fleet.server.put("/v1/jobs", &ending());
    let record = until("the end to be counted", || fleet.record(SLOT).filter(|r| r["Verdict"]["Kind"] == "Failed"));
    let alloc = text(&record["AllocID"]);
    until("the allocation to have failed", || {
        fleet.server.get(&format!("/v1/allocation/{alloc}")).filter(|a| a["ClientStatus"] == "failed")
    });
    until("an attempt to fetch the output", || (fleet.count("logs") > 0).then_some(()));
    assert_eq!(fleet.count("acknowledge"), 0, "the provider keeps it for as long as it was not fetched");
    let record = fleet.record(SLOT).expect("a record");
    assert_eq!(text(&record["Manager"]["AllocID"]), alloc, "its node goes on with it");
    (text(&record["ManagerName"]), alloc)
}

fn all_is_read(fleet: &Fleet, alloc: &str, when: &str) {
    let logs = |args: &[&str]| fleet.server.cli_ok(&[&["alloc", "logs"], args, &[alloc]].concat());
    let whole = "one line of many\n".repeat(6);
    assert!(whole.starts_with(&logs(&[])) && logs(&[]).lines().count() >= 5, "{when}: {}", logs(&[]));
    assert_eq!(logs(&["-f"]), logs(&[]), "{when}: a follower is told all and ends");
    assert_eq!(logs(&["-stderr"]), "oops\n", "{when}");
    assert_eq!(logs(&["-tail", "-n", "1"]), "one line of many\n", "{when}");
    let file = fleet.server.cli_ok(&["alloc", "fs", alloc, "alloc/logs/t.stdout.0"]);
    assert_eq!(file, logs(&[]), "{when}: the files are there");
}

#[test]
fn the_output_of_an_ended_task_outlives_kills_of_its_node_before_and_after_it_was_fetched() {
    let mut fleet = Fleet::with(&["a", "b"], "");
    let (manager, alloc) = ended_without_output(&fleet);

    // Killed before it has fetched anything. The other node could let the provider forget it, and does not.
    fleet.kill(&manager);
    until("it to be managed by nobody", || fleet.record(SLOT).filter(|r| r["Manager"].is_null()));
    fleet.provider.fault(None, &json!({})).expect("writes");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(fleet.count("acknowledge"), 0);
    fleet.nodes.get_mut(&manager).expect("a node").launch();
    until("it to be forgotten by the provider", || fleet.record(SLOT).filter(|r| r["Forgotten"] == true));
    assert_eq!(fleet.count("acknowledge"), 1);
    assert_eq!((fleet.count("ensure"), fleet.count("stop")), (1, 0));
    all_is_read(&fleet, &alloc, "fetched by the node that came back");

    // And once more, with nothing at the provider.
    fleet.kill(&manager);
    fleet.nodes.get_mut(&manager).expect("a node").launch();
    until("the node to answer", || fleet.server.cli(&["alloc", "logs", &alloc]).status.success().then_some(()));
    all_is_read(&fleet, &alloc, "after another kill");

    // Until the allocation is collected: then nothing is left anywhere.
    fleet.server.cli_ok(&["job", "stop", "-purge", "-detach", "-yes", "ends"]);
    until("the end of the record", || fleet.record(SLOT).is_none().then_some(()));
    until("the allocation to be collected", || {
        // What an evaluation of the job still holds is collected once that has ended.
        fleet.server.cli_ok(&["system", "gc"]);
        fleet.server.get(&format!("/v1/allocation/{alloc}")).is_none().then_some(())
    });
    let swept = fleet.server.cli_ok(&["remote", "sweep"]);
    assert!(swept.contains("no orphaned instances"), "{swept}");
}

#[test]
fn what_an_ended_task_left_goes_with_its_job_although_its_node_never_comes_back() {
    let mut fleet = Fleet::with(&["a", "b"], "");
    let (manager, _) = ended_without_output(&fleet);
    fleet.kill(&manager);
    until("it to be managed by nobody", || fleet.record(SLOT).filter(|r| r["Manager"].is_null()));
    assert_eq!(fleet.count("acknowledge"), 0);
    fleet.server.cli_ok(&["job", "stop", "-purge", "-detach", "-yes", "ends"]);
    until("the end of the record", || fleet.record(SLOT).is_none().then_some(()));
    assert_eq!(fleet.count("acknowledge"), 1, "the other node has let the provider forget it, without the output");
    let calls = fleet.provider.calls().expect("reads");
    assert!(calls.iter().filter(|c| c.call == "acknowledge").all(|c| c.caller != manager));
}
