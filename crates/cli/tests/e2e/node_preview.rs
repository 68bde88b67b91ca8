//! What a drain or the loss of a node would do, told before: and then it is done.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    agent::until,
    fleet::{Fleet, mock_job, text},
};

fn local(id: &str, attribute: &str, value: &str) -> Value {
    json!({"Job": {
        "ID": id, "Type": "service",
        "Constraints": [{"LTarget": attribute, "RTarget": value, "Operand": "="}],
        "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "raw_exec",
            "Config": {"command": "/bin/sleep", "args": ["600"]}, "Resources": {"CPU": 20, "MemoryMB": 16}}]}]
    }})
}

/// The fate of each job's allocations on the node, and the node that takes over.
fn foretold(fleet: &Fleet, node: &str, event: &str) -> BTreeMap<String, (String, String)> {
    let preview = fleet.server.get(&format!("/v1/node/{node}/preview?event={event}")).expect("a preview");
    let rows = preview["Allocs"].as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| (text(&row["JobID"]), (text(&row["Fate"]), text(&row["NextNodeName"])))).collect()
}

#[test]
fn a_drain_does_what_its_preview_says() {
    let mut fleet = Fleet::with(&["a"], "");
    fleet.server.put("/v1/jobs", &mock_job("far", 1));
    fleet.server.put("/v1/jobs", &local("near", "${node.class}", "manager"));
    fleet.server.put("/v1/jobs", &local("pinned", "${node.unique.name}", "a"));
    let slot = "default/far.g[0]/t";
    let first = fleet.managed(slot, &[]);
    for id in ["near", "pinned"] {
        fleet.server.alloc(id, "running");
    }
    let node = text(&first["Manager"]["NodeID"]);
    let fates = |all: &[(&str, &str, &str)]| -> BTreeMap<String, (String, String)> {
        all.iter().map(|(job, fate, next)| ((*job).to_owned(), ((*fate).to_owned(), (*next).to_owned()))).collect()
    };
    let alone = fates(&[("far", "unmanaged", ""), ("near", "waits", ""), ("pinned", "waits", "")]);
    for event in ["drain", "lost"] {
        assert_eq!(foretold(&fleet, &node, event), alone, "{event}, without another node");
    }
    fleet.join("b", "");
    let with_b = fates(&[("far", "handed over", "b"), ("near", "moved", "b"), ("pinned", "waits", "")]);
    for event in ["drain", "lost"] {
        assert_eq!(foretold(&fleet, &node, event), with_b, "{event}, with another node");
    }
    let shown = fleet.server.cli_ok(&["node", "drain", "-preview", "a"]);
    assert!(shown.contains("handed over, its remote tasks go on") && shown.contains("interrupted, waits"), "{shown}");
    let shown = fleet.server.cli_ok(&["node", "status", "-if-lost", "a"]);
    assert!(shown.contains("is not heard from for 1.7s") && shown.contains("excluded by filter"), "{shown}");
    let (status, why) = fleet.server.http("GET", &format!("/v1/node/{node}/preview?event=x"), "").expect("an answer");
    assert!(status == 400 && why.contains("use drain or lost"), "{why}");
    // Nothing of it has happened.
    let before = fleet.record(slot).expect("the record");
    assert_eq!((&before["Epoch"], &before["ManagerName"]), (&first["Epoch"], &json!("a")));

    fleet.server.cli_ok(&["node", "drain", "-enable", "-yes", "-detach", "-deadline", "3s", "a"]);
    let after = fleet.managed(slot, &["a"]);
    assert_eq!((&after["ManagerName"], &after["IncarnationID"]), (&json!("b"), &first["IncarnationID"]));
    let on = |id: &str, name: &str| {
        let runs = |a: &&Value| a["ClientStatus"] == "running" && a["NodeName"] == name;
        fleet.server.allocs(id).iter().find(runs).cloned()
    };
    until("the local task on the other node", || on("near", "b"));
    until("the pinned task to be over", || on("pinned", "a").is_none().then_some(()));
    assert!(on("pinned", "b").is_none());
    // The record's history names the nodes.
    let history = after["History"].as_array().expect("a history").clone();
    let kinds: Vec<&str> = history.iter().filter_map(|event| event["Kind"].as_str()).collect();
    let moved = history.iter().find(|event| event["Kind"] == "handover").unwrap_or_else(|| panic!("{history:#?}"));
    assert_eq!((&moved["From"], &moved["To"]), (&json!(node), &after["Manager"]["NodeID"]), "{kinds:?}");
    assert_eq!(kinds.first(), Some(&"began"), "{kinds:?}");
    fleet.made(1, 0);
}
