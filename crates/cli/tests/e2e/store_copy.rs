//! `drover operator store copy`: a cluster moves from SQLite to etcd and back, whatever interrupts it.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use etcd_fake::{FakeEtcd, Fault};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{Guard, free_port};

use crate::{
    agent::{Agent, drover, printed, signal, until},
    servers::{KEY, leader, ready, server},
};

/// A server and node, with its own store or with etcd.
fn config(dir: &Path, rpc: u16, etcd: Option<&str>) -> String {
    let store = etcd.map(|endpoint| format!("store = \"etcd\"\n  endpoints = [{endpoint:?}]\n  encrypt = {KEY:?}\n"));
    format!(
        "name = \"here\"\ndata_dir = {:?}\nports {{\n  http = 0\n  rpc = {rpc}\n}}\nserver {{\n  enabled = true\n  {}\n\
         }}\nclient {{\n  enabled = true\n}}\nplugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n",
        dir.join("data"),
        store.unwrap_or_default()
    )
}

/// The command with these further words, for the etcd of a configuration.
fn copy(config: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(drover());
    command.args(["operator", "store", "copy", "-config"]).arg(config).args(more).stdin(Stdio::null());
    command
}

fn run(config: &Path, more: &[&str]) -> Output {
    copy(config, more).output().expect("drover")
}

/// What it says when it copies.
#[track_caller]
pub(crate) fn copied(config: &Path, more: &[&str]) -> String {
    let output = run(config, more);
    assert!(output.status.success(), "{}", printed(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// It copies nothing, and says all of this.
#[track_caller]
fn refused(config: &Path, more: &[&str], parts: &[&str]) {
    let output = run(config, more);
    let said = printed(&output);
    assert!(!output.status.success() && parts.iter().all(|part| said.contains(part)), "{parts:?} in {said}");
}

pub(crate) fn stop(agent: &mut Agent) {
    signal(agent.pid(), Signal::TERM);
    agent.ended();
}

/// Ids of the signing keys.
fn keys(agent: &Agent) -> Vec<Value> {
    let found = agent.get("/.well-known/jwks.json").expect("signing keys");
    found["keys"].as_array().expect("a list").iter().map(|key| key["kid"].clone()).collect()
}

#[test]
fn a_cluster_moves_to_etcd_and_back_with_its_keys_and_tasks() {
    let (etcd, rpc) = (FakeEtcd::start(), free_port());
    let mut agent = Agent::of_file(|dir| config(dir, rpc, None), &[]);
    ready(&agent, "here");
    let task = json!({"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["1000"]}});
    let group = json!({"Name": "g", "Count": 1, "Tasks": [task]});
    let job = json!({"ID": "kept", "Name": "kept", "Type": "service", "Datacenters": ["*"], "TaskGroups": [group]});
    let registered = agent.put("/v1/jobs", &json!({ "Job": job }));
    let alloc = agent.alloc("kept", "running");
    agent.put("/v1/operator/keyring/rotate", &json!({}));
    let signing = keys(&agent);
    assert_eq!(signing.len(), 2);
    let pid =
        |agent: &Agent| agent.processes().into_iter().find(|(_, line)| line.starts_with("/bin/sleep")).map(|p| p.0);
    let process = until("the task", || pid(&agent));
    let same = |agent: &Agent| {
        until("a leader", || leader(agent));
        ready(agent, "here");
        let kept = agent.get("/v1/job/kept").expect("the job");
        assert_eq!(kept["JobModifyIndex"], registered["JobModifyIndex"]);
        assert_eq!((agent.alloc("kept", "running")["ID"].clone(), pid(agent)), (alloc["ID"].clone(), Some(process)));
        assert_eq!(keys(agent), signing);
        assert!(agent.put("/v1/job/kept/evaluate", &json!({"JobID": "kept"}))["Index"].is_u64(), "it decides");
        let recovery = agent.get("/v1/operator/recovery").expect("whether it recovers");
        assert_eq!(recovery["Recovering"], false, "{recovery}");
        recovery["ClusterID"].as_str().expect("an id").to_owned()
    };

    let shared = agent.dir().join("shared.hcl");
    fs::write(&shared, config(agent.dir(), rpc, Some(&etcd.endpoint()))).expect("written");
    refused(&shared, &["-to", "etcd"], &["is used by another agent", &agent.pid().to_string()]);
    stop(&mut agent);
    let told = copied(&shared, &["-to", "etcd"]);
    let own = agent.dir().join("agent.hcl");
    refused(&own, &["-to", "etcd"], &["server.store"]);
    fs::copy(&shared, &own).expect("configured");
    assert!(agent.spawn(), "{}", agent.log());
    let cluster = same(&agent);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(lines[0].starts_with(&format!("Copied cluster {cluster} at index ")), "{told}");
    assert!(lines[1].contains("2 signing keys"), "{told}");

    // A server leads on the target, and its state is a state.
    let elsewhere = agent.dir().join("elsewhere");
    let elsewhere = ["-to", "sqlite", "-data-dir", elsewhere.to_str().expect("text")];
    refused(&own, &elsewhere, &["etcd", "is used by the server here"]);
    stop(&mut agent);
    refused(&own, &["-to", "etcd"], &["has a state already", &cluster, "server.prefix"]);
    let server_dir = agent.dir().join("data/server");
    refused(&own, &["-to", "sqlite"], &["has a state already", &cluster, "move"]);
    fs::rename(&server_dir, agent.dir().join("aside")).expect("moved");
    assert!(copied(&own, &["-to", "sqlite"]).contains(&format!("Copied cluster {cluster} at index ")));
    fs::write(&own, config(agent.dir(), rpc, None)).expect("configured");
    assert!(agent.spawn(), "{}", agent.log());
    assert_eq!(same(&agent), cluster);
    agent.cli_ok(&["job", "stop", "-purge", "kept"]);
    until("the end of the task", || pid(&agent).is_none().then_some(()));
}

/// The guide: servers that share an etcd get another `server.encrypt` by way of a copy, and nothing is lost.
#[test]
fn a_cluster_gets_another_key_by_way_of_sqlite_and_another_prefix() {
    let (etcd, rpc) = (FakeEtcd::start(), free_port());
    let mut agent = Agent::of_file(|dir| config(dir, rpc, Some(&etcd.endpoint())), &[]);
    ready(&agent, "here");
    let task = json!({"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["1000"]}});
    let group = json!({"Name": "g", "Count": 1, "Tasks": [task]});
    let job = json!({"ID": "kept", "Name": "kept", "Type": "service", "Datacenters": ["*"], "TaskGroups": [group]});
    let registered = agent.put("/v1/jobs", &json!({ "Job": job }));
    let alloc = agent.alloc("kept", "running");
    agent.put("/v1/operator/keyring/rotate", &json!({}));
    let signing = keys(&agent);
    stop(&mut agent);

    let (own, between) = (agent.dir().join("agent.hcl"), agent.dir().join("between"));
    let between = between.to_str().expect("text").to_owned();
    let text = fs::read_to_string(&own).expect("the configuration");
    let text = text.replace(KEY, "YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODk=");
    let text = text.replace("  encrypt = ", "  prefix = \"again\"\n  encrypt = ");
    let other = agent.dir().join("other.hcl");
    fs::write(&other, &text).expect("written");
    refused(&other, &["-to", "sqlite", "-data-dir", &between], &["has no state"]);
    copied(&own, &["-to", "sqlite", "-data-dir", &between]);
    fs::write(&own, &text).expect("configured");
    copied(&own, &["-to", "etcd", "-data-dir", &between]);
    fs::remove_dir_all(&between).expect("there");
    let mark = agent.dir().join("data/server/etcd");
    if mark.is_dir() { fs::remove_dir_all(&mark) } else { fs::remove_file(&mark) }.expect("there");

    assert!(agent.spawn(), "{}", agent.log());
    until("a leader", || leader(&agent));
    ready(&agent, "here");
    let kept = agent.get("/v1/job/kept").expect("the job");
    assert_eq!(kept["JobModifyIndex"], registered["JobModifyIndex"]);
    assert_eq!(agent.alloc("kept", "running")["ID"], alloc["ID"]);
    assert_eq!(keys(&agent), signing);
    let recovery = agent.get("/v1/operator/recovery").expect("whether it recovers");
    assert_eq!(recovery["Recovering"], false, "{recovery}");
    agent.cli_ok(&["job", "stop", "-purge", "kept"]);
    until("the end of the task", || {
        agent.processes().into_values().all(|line| !line.starts_with("/bin/sleep")).then_some(())
    });
}

#[test]
fn servers_do_not_start_on_what_an_interrupted_copy_left_and_another_copy_replaces_it() {
    let (etcd, rpc) = (FakeEtcd::start(), free_port());
    let mut agent = Agent::of_file(|dir| config(dir, rpc, None), &[]);
    until("a leader", || leader(&agent));
    let signing = keys(&agent);
    stop(&mut agent);
    let shared = agent.dir().join("shared.hcl");
    fs::write(&shared, config(agent.dir(), rpc, Some(&etcd.endpoint()))).expect("written");

    // etcd answers nothing when the state is to be written.
    etcd.fail(Fault::LoseRequest, 10_000, "/log/");
    let begun =
        Guard(copy(&shared, &["-to", "etcd"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs"));
    let filling = || etcd.keys("drover/filling").first().map(drop);
    until("a copy at work", || filling().filter(|()| etcd.faults_left() < 10_000));
    refused(&shared, &["-to", "etcd"], &["is used by"]);
    drop(begun);
    etcd.mend();
    let mut other = server(&etcd, "other", KEY);
    until("its refusal", || other.log().contains("is being filled").then_some(()));
    // Longer than the traces of the one that was killed last, also after them.
    let told = until("another copy", || {
        let output = run(&shared, &["-to", "etcd"]);
        // From the end of a whole copy on it may lead.
        if output.status.success() {
            return Some(printed(&output));
        }
        assert!(leader(&other).is_none(), "no server leads on half a copy");
        None
    });
    assert!(told.contains("1 signing keys") && filling().is_none(), "{told}");
    until("the server that waited to lead", || leader(&other));
    assert_eq!(keys(&other), signing, "on what was copied");
    stop(&mut other);

    // The other way nothing is there until all of it is.
    let target = agent.dir().join("target");
    let back = ["-to", "sqlite", "-data-dir", target.to_str().expect("text")];
    etcd.delay(Duration::from_millis(300));
    let begun = Guard(copy(&shared, &back).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs"));
    until("a copy at work", || etcd.keys("drover/fence").first().map(drop));
    drop(begun);
    etcd.delay(Duration::ZERO);
    assert!(!target.join("server/state.db").exists());
    until("another copy", || run(&shared, &back).status.success().then_some(()));
    assert!(target.join("server/state.db").exists() && !target.join("server/restoring").exists());
    fs::write(agent.dir().join("agent.hcl"), config(agent.dir(), rpc, None).replace("/data\"", "/target\""))
        .expect("configured");
    assert!(agent.spawn(), "{}", agent.log());
    until("a leader", || leader(&agent));
    assert_eq!(keys(&agent), signing);
}
