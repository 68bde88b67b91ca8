//! A server that stands still, as in a snapshot of its machine, and goes on: nothing that runs is touched for it.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::{
    agent::{signal, until},
    fleet::{Fleet, mock_job},
};

#[test]
fn a_server_that_stood_still_takes_no_healthy_task_for_lost() {
    let fleet = Fleet::with(&["a", "b"], "");
    fleet.server.put(
        "/v1/jobs",
        &json!({"Job": {
            "ID": "here", "Type": "service",
            "Constraints": [{"LTarget": "${node.class}", "RTarget": "manager", "Operand": "="}],
            "TaskGroups": [{
                "Name": "g", "Count": 2, "Update": {"MaxParallel": 0},
                "Tasks": [{
                    "Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["31071"]},
                    "Resources": {"CPU": 20, "MemoryMB": 16}
                }]
            }]
        }}),
    );
    fleet.server.put("/v1/jobs", &mock_job("far", 1));
    let slot = "default/far.g[0]/t";
    let before = fleet.managed(slot, &[]);
    let pids = || {
        let all = fleet.nodes.values().flat_map(|node| node.processes());
        all.filter(|(_, line)| line.starts_with("/bin/sleep 31071"))
            .map(|(pid, _)| pid)
            .collect::<std::collections::BTreeSet<_>>()
    };
    until("both tasks", || {
        (pids().len() == 2 && fleet.server.allocs("here").iter().all(|a| a["ClientStatus"] == "running")).then_some(())
    });
    let (running, evals) = (pids(), evaluations(&fleet));

    // More than twice the lease and its grace.
    signal(fleet.server.pid(), Signal::STOP);
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(100));
    }
    signal(fleet.server.pid(), Signal::CONT);

    until("the server to say that it stood still", || {
        let health = fleet.server.get("/v1/agent/health")?;
        health["server"]["notes"]
            .as_array()?
            .iter()
            .any(|note| note.as_str().is_some_and(|n| n.contains("stood still")))
            .then_some(())
    });
    // The log is written a moment after it is known.
    until("the log to say it, too", || fleet.server.log().contains("the server stood still for").then_some(()));
    // For as long as it would have taken to lose them.
    let again = Instant::now();
    while again.elapsed() < Duration::from_secs(3) {
        assert_eq!(pids(), running, "the same processes");
        std::thread::sleep(Duration::from_millis(100));
    }
    until("every node", || {
        fleet.server.get("/v1/nodes")?.as_array()?.iter().all(|n| n["Status"] == "ready").then_some(())
    });
    let after = fleet.managed(slot, &[]);
    for part in ["Epoch", "IncarnationID", "ManagerName"] {
        assert_eq!(after[part], before[part], "{part} of the remote task");
    }
    assert_eq!(evaluations(&fleet), evals, "nothing had to be decided again");
    fleet.at_most_one();
}

/// Evaluations because of nodes.
fn evaluations(fleet: &Fleet) -> usize {
    let all = fleet.server.get("/v1/evaluations").expect("evaluations");
    all.as_array().expect("a list").iter().filter(|e| e["TriggeredBy"] == "node-update").count()
}
