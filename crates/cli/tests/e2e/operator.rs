//! Metadata of nodes, pools, namespaces, the settings of the scheduler, and the API as it is.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::agent::{Agent, drover, until};

#[test]
fn what_operators_look_at_and_set() {
    let agent = Agent::start("name = \"here\"\n");
    assert_eq!(agent.cli_ok(&["node", "config", "-servers"]).trim(), agent.rpc());

    agent.cli_ok(&["node", "meta", "apply", "-node-id", "here", "rack=r2", "zone=a"]);
    agent.cli_ok(&["node", "meta", "apply", "-unset", "zone"]);
    let meta = agent.cli_ok(&["node", "meta", "read", "-node-id", "here"]);
    assert!(meta.contains("Dynamic Meta\nrack = r2") && !meta.contains("zone = a"), "{meta}");
    let meta: Value = serde_json::from_str(&agent.cli_ok(&["node", "meta", "read", "-json"])).expect("JSON");
    assert_eq!(meta["Meta"]["rack"], "r2");
    until("the node to have it", || agent.cli_ok(&["node", "status", "-verbose", "here"]).contains("rack = r2").then_some(()));
    assert_eq!(agent.cli(&["node", "meta", "apply"]).status.code(), Some(1));

    let pools = agent.cli_ok(&["node", "pool", "list"]);
    assert!(pools.starts_with("Name     Description\nall ") && pools.contains("default"), "{pools}");
    let page = agent.cli(&["node", "pool", "list", "-per-page", "1"]);
    assert!(String::from_utf8_lossy(&page.stderr).contains("-page-token default"), "{page:?}");
    assert!(agent.cli_ok(&["node", "pool", "info", "default"]).contains("Name        = default"));
    assert!(agent.cli_ok(&["node", "pool", "nodes", "default"]).contains("here"));
    assert!(agent.cli_ok(&["node", "pool", "jobs", "default"]).contains("No jobs"));
    assert!(agent.cli_ok(&["namespace", "list"]).contains("default"));
    assert!(agent.cli_ok(&["namespace", "status", "default"]).contains("Enabled Drivers        = *"));
    let namespace: Value = serde_json::from_str(&agent.cli_ok(&["namespace", "inspect", "default"])).expect("JSON");
    assert_eq!(namespace["Name"], "default");

    assert!(agent.cli_ok(&["operator", "scheduler", "get-config"]).contains("Scheduler Algorithm           = binpack"));
    agent.cli_ok(&["operator", "scheduler", "set-config", "-scheduler-algorithm", "spread"]);
    assert!(agent.cli_ok(&["operator", "scheduler", "get-config"]).contains("Scheduler Algorithm           = spread"));
    let stale = agent.cli(&["operator", "scheduler", "set-config", "-check-index", "1", "-scheduler-algorithm", "binpack"]);
    assert_eq!(stale.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stale.stderr).contains("have changed since"), "{stale:?}");
    agent.cli_ok(&["system", "reconcile", "summaries"]);
    assert!(agent.cli_ok(&["server", "members", "-detailed"]).contains("role=nomad"));

    assert_eq!(agent.cli_ok(&["operator", "api", "/v1/status/leader"]).trim(), format!("{:?}", agent.rpc()));
    assert_eq!(agent.cli_ok(&["operator", "api", "-filter", "Name == \"nobody\"", "nodes"]).trim(), "[]");
    let mut child = Command::new(drover())
        .args(["operator", "api", "-X", "POST", "/v1/search"])
        .env("DROVER_ADDR", agent.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("drover");
    child.stdin.take().expect("stdin").write_all(b"{\"Prefix\": \"\", \"Context\": \"nodes\"}").expect("written");
    let found: Value = serde_json::from_slice(&child.wait_with_output().expect("output").stdout).expect("JSON");
    assert_eq!(found["Matches"]["nodes"].as_array().map(Vec::len), Some(1), "{found}");
}
