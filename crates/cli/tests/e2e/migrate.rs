//! The data of an allocation comes along to another node.

use serde_json::{Value, json};

use crate::agent::{Agent, until};

const SERVER: &str = "server {\n  enabled = true\n  min_heartbeat_ttl = \"1500ms\"\n  heartbeat_grace \
    = \"200ms\"\n}\nclient {\n  enabled = true\n}";

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Messages of the task's events.
fn told(alloc: &Value) -> String {
    let events = alloc["TaskStates"]["t"]["Events"].as_array().cloned().unwrap_or_default();
    events.iter().map(|e| text(&e["DisplayMessage"]) + "\n").collect()
}

#[test]
fn data_moves_with_its_allocation_and_its_loss_is_told() {
    let server = Agent::of_roles(SERVER, "name = \"server\"");
    let node = |name: &str| {
        Agent::start_node(&server, &format!("name = {name:?}\nclient {{\n  meta {{\n    keeps = \"data\"\n  }}\n}}\n"))
    };
    let mut nodes = [node("one"), node("two")];
    until("both nodes", || {
        let all = server.get("/v1/nodes")?;
        let ready = all
            .as_array()?
            .iter()
            .filter(|n| n["Status"] == "ready" && n["Drivers"]["raw_exec"]["Healthy"] == true)
            .count();
        (ready == 3).then_some(())
    });
    let script = "cat $NOMAD_ALLOC_DIR/data/was $NOMAD_TASK_DIR/was; echo shared >> $NOMAD_ALLOC_DIR/data/was; \
                  echo own >> $NOMAD_TASK_DIR/was; echo ready; exec sleep 600";
    server.put(
        "/v1/jobs",
        &json!({"Job": {"ID": "moves", "Type": "service",
            "Constraints": [{"LTarget": "${meta.keeps}", "RTarget": "data", "Operand": "="}],
            "TaskGroups": [{
                "Name": "g", "EphemeralDisk": {"Sticky": true, "Migrate": true, "SizeMB": 101},
                "Update": {"MaxParallel": 0},
                "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", script]},
                    "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1}, "Resources": {"CPU": 20, "MemoryMB": 16}}]
            }]
        }}),
    );
    let runs = |not: &[String]| {
        until("an allocation that runs", || {
            let all = server.allocs("moves");
            all.into_iter().find(|a| a["ClientStatus"] == "running" && !not.contains(&text(&a["ID"])))
        })
    };
    let says = |alloc: &Value, expected: &str| {
        until(expected, || (server.logs(alloc, "t") == expected).then_some(()));
    };
    let first = runs(&[]);
    says(&first, "ready\n");
    server.cli_ok(&["node", "drain", "-enable", "-yes", "-detach", &text(&first["NodeID"])]);
    let second = runs(&[text(&first["ID"])]);
    assert_ne!(second["NodeID"], first["NodeID"]);
    says(&second, "shared\nown\nready\n");
    assert!(told(&second).contains("has been copied from its node"), "{}", told(&second));

    // A node that is lost gives nothing away: people read it, and the task begins anew.
    until("the drain to end", || {
        let node = server.get(&format!("/v1/node/{}", text(&first["NodeID"])))?;
        node["DrainStrategy"].is_null().then_some(())
    });
    server.cli_ok(&["node", "eligibility", "-enable", &text(&first["NodeID"])]);
    let name = text(&second["NodeName"]);
    nodes[usize::from(name == "two")].kill();
    let third = runs(&[text(&first["ID"]), text(&second["ID"])]);
    says(&third, "ready\n");
    assert!(told(&third).contains("could not be had, the disk is empty: its node is lost"), "{}", told(&third));
    server.cli_ok(&["job", "stop", "-detach", "moves"]);
    until("the end", || {
        server.allocs("moves").iter().any(|a| a["ID"] == third["ID"] && a["ClientStatus"] == "complete").then_some(())
    });
}
