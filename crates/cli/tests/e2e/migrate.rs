//! The data of an allocation comes along to another node.

use std::path::Path;

use serde_json::{Value, json};
use testkit::free_port;

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

/// A server and two nodes whose cluster has ACLs.
struct Controlled {
    server: Agent,
    nodes: Vec<Agent>,
    manager: String,
}

impl Controlled {
    /// With nodes that are down after this time of silence.
    fn start(lease: &str) -> Self {
        let rpc = free_port();
        let part = |rest: String| move |dir: &Path| format!("data_dir = {:?}\n{rest}\n", dir.join("data"));
        let lease = format!("min_heartbeat_ttl = {lease:?}\n  heartbeat_grace = \"200ms\"");
        let of_server = format!(
            "ports {{\n  http = 0\n  rpc = {rpc}\n}}\nserver {{\n  enabled = true\n  {lease}\n}}\nacl {{\n  enabled = \
             true\n}}"
        );
        let server = Agent::of_file(part(of_server), &[]);
        let manager = text(&server.put("/v1/acl/bootstrap", &json!({}))["SecretID"]);
        let of_node = |name: &str| {
            format!(
                "name = {name:?}\nports {{\n  http = 0\n  rpc = 0\n}}\nclient {{\n  enabled = true\n  servers = \
                 [\"127.0.0.1:{rpc}\"]\n}}\nplugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}"
            )
        };
        let nodes = ["one", "two"].map(|name| Agent::of_file(part(of_node(name)), &[])).into();
        let cluster = Self { server, nodes, manager };
        until("both nodes", || {
            let all = cluster.get("/v1/nodes")?;
            let fit = |n: &&Value| n["Status"] == "ready" && n["Drivers"]["raw_exec"]["Healthy"] == true;
            (all.as_array()?.iter().filter(fit).count() == 2).then_some(())
        });
        cluster
    }

    /// Status and body of an answer of the server to its manager.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("x-nomad-token", &*self.manager)];
        let answer = self.server.ask(method, path, &headers, &body).expect("an answer");
        (answer.status, answer.body)
    }

    fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.ask("GET", path, &Value::Null);
        (status == 200).then(|| serde_json::from_str(&body).ok()).flatten()
    }

    fn put(&self, path: &str, body: &Value) {
        let (status, text) = self.ask("PUT", path, body);
        assert_eq!(status, 200, "PUT {path}: {text}");
    }

    /// The allocation of a job that runs on another node than this one.
    fn runs(&self, job: &str, not_on: &Value) -> Value {
        until("an allocation that runs", || {
            let all = self.get(&format!("/v1/job/{job}/allocations"))?;
            all.as_array()?.iter().find(|a| a["ClientStatus"] == "running" && a["NodeID"] != *not_on).cloned()
        })
    }

    fn says(&self, alloc: &Value, expected: &str) {
        let path = format!("/v1/client/fs/logs/{}?task=t&type=stdout&plain=true", text(&alloc["ID"]));
        until(expected, || (self.ask("GET", &path, &Value::Null).1 == expected).then_some(()));
    }
}

fn mover(script: &str) -> Value {
    json!({"Job": {"ID": "moves", "Type": "service", "TaskGroups": [{
        "Name": "g", "EphemeralDisk": {"Sticky": true, "Migrate": true, "SizeMB": 101},
        "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", script]},
            "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1}, "Resources": {"CPU": 20, "MemoryMB": 16}}]
    }]}})
}

#[test]
fn data_moves_where_access_is_controlled() {
    let cluster = Controlled::start("10s");
    cluster.put(
        "/v1/jobs",
        &mover(
            "cat $NOMAD_ALLOC_DIR/data/was; echo was >> $NOMAD_ALLOC_DIR/data/was; \
        echo ready; exec sleep 600",
        ),
    );
    let first = cluster.runs("moves", &Value::Null);
    cluster.says(&first, "ready\n");
    let spec = json!({"DrainSpec": {"Deadline": 600_000_000_000_i64, "IgnoreSystemJobs": false}});
    cluster.put(&format!("/v1/node/{}/drain", text(&first["NodeID"])), &spec);
    let second = cluster.runs("moves", &first["NodeID"]);
    cluster.says(&second, "was\nready\n");
    assert!(told(&second).contains("has been copied from its node"), "{}", told(&second));
    assert_eq!(cluster.ask("DELETE", "/v1/job/moves?purge=true", &Value::Null).0, 200);
    until("the end", || cluster.nodes.iter().all(|node| node.executors().is_empty()).then_some(()));
}

#[test]
fn data_that_a_node_has_no_more_is_not_found() {
    let mut cluster = Controlled::start("1500ms");
    cluster.put("/v1/jobs", &mover("echo was > $NOMAD_ALLOC_DIR/data/was; exec sleep 600"));
    let alloc = cluster.runs("moves", &Value::Null);
    let archive = format!("/v1/client/allocation/{}/snapshot", text(&alloc["ID"]));
    assert_eq!(cluster.ask("DELETE", "/v1/job/moves", &Value::Null).0, 200);
    until("the archive", || (cluster.ask("GET", &archive, &Value::Null).0 == 200).then_some(()));
    let collect = format!("/v1/client/allocation/{}/gc", text(&alloc["ID"]));
    assert_eq!(cluster.ask("GET", &collect, &Value::Null).0, 200);
    until("the answer that it is gone", || (cluster.ask("GET", &archive, &Value::Null).0 == 404).then_some(()));
    let node = usize::from(alloc["NodeName"] == "two");
    cluster.nodes[node].kill();
    let down = "which is down";
    until("the node to be down", || cluster.ask("GET", &archive, &Value::Null).1.contains(down).then_some(()));
    assert_eq!(cluster.ask("GET", &archive, &Value::Null).0, 404);
}
