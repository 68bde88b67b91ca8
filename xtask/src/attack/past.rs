//! Servers whose directory is empty or old, and nodes whose directory is a copy or gone: nothing that runs is killed,
//! doubled or lost sight of.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kit::{
    self, Agent, Attack, BOUND, Dir, cli, copy, job, node, pids, running, runtime, said, server, stays, text,
};
use crate::{
    local::{self, until},
    process::Run,
    watch::Watch,
};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "older-server-remote",
        does: "restores a copy from before an instance was replaced and management moved three times; then \
            stops the job",
        holds: "never two instances of a slot, none is ended without an order, and the stop ends all of them",
        run: older_server_remote,
    },
    Attack {
        name: "emptied-server-with-id",
        does: "empties the server's directory, gives it the cluster's id, and registers a job of remote tasks again",
        holds: "the instances are found, and there is one for each slot",
        run: emptied_with_id,
    },
    Attack {
        name: "emptied-server",
        does: "kills the server and starts it on an empty directory; then on the old one again",
        holds: "the node refuses the strange cluster by name and keeps its tasks, and goes on with the old one",
        run: emptied,
    },
    Attack {
        name: "older-server",
        does: "restores a copy from before a job was registered",
        holds: "its tasks run on, and the job is known again when the recovery is over",
        run: older,
    },
    Attack {
        name: "copied-node",
        does: "starts a second agent on a copy of a node's directory",
        holds: "it is refused while the first is heard; the first one's session lives on",
        run: copied_node,
    },
    Attack {
        name: "emptied-node",
        does: "deletes a node's directory under running tasks, kills its agent, and starts it again",
        holds: "local leftovers are ended and replaced; remote tasks run on",
        run: emptied_node,
    },
];

/// A server whose leases last so long, for attacks in which a node that is silent for a moment must not be lost.
fn server_of_lease(name: &str, seconds: u32) -> Result<Agent> {
    let lease = format!("server {{\n  min_heartbeat_ttl = \"{seconds}s\"\n  heartbeat_grace = \"1s\"\n}}\n");
    let agent = Agent::start_as(&format!("attack-{name}"), kit::Role::Server, &[], &lease)?;
    kit::answers(&agent)?;
    Ok(agent)
}

/// How many sessions a server has opened, over all its starts.
fn sessions(server: &Agent) -> usize {
    server.log().matches("session opened").count()
}

fn server_dir(server: &Agent) -> PathBuf {
    server.dir().join("data/server")
}

fn remote_job(id: &str, count: u32, seconds: &str) -> Value {
    job(id, "remote_exec", count, "/bin/sleep", &[seconds])
}

/// Waits until the servers have begun to recover, and know what to do again.
fn recovered(server: &Agent) -> Result<()> {
    let recovering = || Ok::<_, anyhow::Error>(server.get("/v1/operator/recovery")?["Recovering"] == true);
    // It may be over between two looks.
    let over = || server.log().contains("the recovery is over");
    until("the beginning of the recovery", BOUND, || Ok((recovering()? || over()).then_some(())))
        .and_then(|()| until("the end of the recovery", BOUND, || Ok((!recovering()?).then_some(()))))
        .with_context(|| format!("the server's log ends with:\n{}", server.log_tail()))
}

/// The slots of a job, each with what is known of it.
fn records(server: &Agent, job: &str) -> Result<Vec<Value>> {
    let all = server.list("/v1/remote/tasks")?;
    let of = format!("default/{job}.");
    Ok(all.iter().filter(|r| text(&r["SlotName"]).starts_with(&of)).cloned().collect())
}

fn all_observed(server: &Agent, job: &str, count: usize) -> Result<()> {
    until(&format!("{count} remote tasks of {job}, managed and seen running"), BOUND, || {
        let records = records(server, job)?;
        let fine = |r: &&Value| {
            r["Observed"]["State"] == "Running" && !text(&r["ManagerName"]).is_empty() && r["Successor"].is_null()
        };
        Ok((records.iter().filter(fine).count() == count).then_some(()))
    })
    .with_context(|| {
        format!(
            "{:#}\nthe server's log ends with:\n{}",
            server.get("/v1/remote/tasks").unwrap_or_default(),
            server.log_tail()
        )
    })
}

/// The most processes of a directory with this command line that live at once.
fn most_at_once(dir: &Path, line: &'static str) -> Watch<usize> {
    let dir = dir.to_owned();
    Watch::begin(Duration::from_millis(50), move |most| *most = pids(&dir, line).len().max(*most))
}

fn older_server_remote() -> Result<String> {
    const LINE: &str = "/bin/sleep 71101";
    const SLOTS: usize = 2;
    let dir = Dir::for_all("older");
    let mut server = server("older-remote", "")?;
    let nodes = [node(&server, "older-a", &runtime(dir.path()))?, node(&server, "older-b", &runtime(dir.path()))?];
    for node in &nodes {
        kit::ready(&server, node, "remote_exec")?;
    }
    server.put("/v1/jobs", &remote_job("far", 2, "71101"))?;
    all_observed(&server, "far", SLOTS)?;
    server.stop()?;
    copy(&server_dir(&server), &dir.at("backup"))?;
    server.restart()?;
    kit::answers(&server)?;
    all_observed(&server, "far", SLOTS)?;

    // An instance is replaced, and management moves to and fro.
    let first: BTreeSet<u32> = pids(dir.path(), LINE).into_iter().collect();
    let restarted = cli(&server, &["remote", "restart", "default/far.g[0]/t"])?;
    ensure!(restarted.status.success(), "remote restart: {}", said(&restarted));
    until("another instance", BOUND, || {
        let now: BTreeSet<u32> = pids(dir.path(), LINE).into_iter().collect();
        Ok((now.len() == SLOTS && now != first).then_some(()))
    })?;
    all_observed(&server, "far", SLOTS)?;
    for round in 0..3 {
        let (from, to) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        let id = |agent: &Agent| server.node_id(agent.name());
        server.put(
            &format!("/v1/node/{}/drain", id(from)?),
            &json!({"DrainSpec": {"Deadline": 600_000_000_000_i64}, "MarkEligible": false}),
        )?;
        until("the other manager", BOUND, || {
            let records = records(&server, "far")?;
            let moved = |r: &Value| {
                r["ManagerName"] == to.name() && r["Observed"]["State"] == "Running" && r["Successor"].is_null()
            };
            Ok((records.len() == SLOTS && records.iter().all(moved)).then_some(()))
        })
        .with_context(|| format!("{:#}", server.get("/v1/remote/tasks").unwrap_or_default()))?;
        server.put(&format!("/v1/node/{}/drain", id(from)?), &json!({"DrainSpec": null, "MarkEligible": true}))?;
    }
    let before: BTreeSet<u32> = pids(dir.path(), LINE).into_iter().collect();
    ensure!(before.len() == SLOTS, "instances before the restore: {before:?}");
    let watch = most_at_once(dir.path(), LINE);

    server.crash()?;
    fs::remove_dir_all(server_dir(&server))?;
    copy(&dir.at("backup"), &server_dir(&server))?;
    server.restart()?;
    kit::answers(&server)?;
    recovered(&server)?;
    all_observed(&server, "far", SLOTS)?;
    stays("the same instances", Duration::from_secs(2), || {
        Ok(pids(dir.path(), LINE).into_iter().collect::<BTreeSet<_>>() == before)
    })?;
    let most = watch.end()?;
    ensure!(most == SLOTS, "{most} instances of {SLOTS} slots lived at once");

    server.delete("/v1/job/far")?;
    until("the end of all instances", BOUND, || Ok(pids(dir.path(), LINE).is_empty().then_some(()))).with_context(
        || {
            format!(
                "{:#}\nthe server's log ends with:\n{}",
                server.get("/v1/remote/tasks").unwrap_or_default(),
                server.log_tail()
            )
        },
    )?;
    Ok(String::new())
}

fn emptied_with_id() -> Result<String> {
    const LINE: &str = "/bin/sleep 71102";
    let dir = Dir::for_all("with-id");
    let mut server = server("with-id", "")?;
    let node = node(&server, "with-id-node", &runtime(dir.path()))?;
    kit::ready(&server, &node, "remote_exec")?;
    server.put("/v1/jobs", &remote_job("far", 2, "71102"))?;
    all_observed(&server, "far", 2)?;
    let before: BTreeSet<u32> = pids(dir.path(), LINE).into_iter().collect();
    let id = text(&server.get("/v1/operator/recovery")?["ClusterID"]);
    ensure!(!id.is_empty(), "the cluster does not tell its id");
    let watch = most_at_once(dir.path(), LINE);
    server.crash()?;
    // The secret that nodes show is no part of the state.
    fs::remove_dir_all(server_dir(&server))?;
    let file = server.dir().join("agent.hcl");
    let config = fs::read_to_string(&file)?;
    fs::write(&file, format!("{config}\nserver {{\n  cluster_id = {id:?}\n}}\n"))?;
    server.restart()?;
    kit::answers(&server)?;
    until("the node to tell what it has", BOUND, || {
        Ok(server.get("/v1/operator/recovery")?["Answered"].as_array().is_some_and(|a| a.len() == 1).then_some(()))
    })
    .with_context(|| format!("the server's log ends with:\n{}", server.log_tail()))?;
    let ended = cli(&server, &["operator", "recover", "-yes"])?;
    ensure!(ended.status.success(), "operator recover: {}", said(&ended));
    let again = kit::ask(&server, "PUT", "/v1/jobs", &[], remote_job("far", 2, "71102").to_string().as_bytes())?;
    ensure!(again.status == 200, "registering it again: {}", again.short());
    all_observed(&server, "far", 2)?;
    let now: BTreeSet<u32> = pids(dir.path(), LINE).into_iter().collect();
    ensure!(now == before, "the instances were {before:?} and are {now:?}");
    let most = watch.end()?;
    ensure!(most == 2, "{most} instances of 2 slots lived at once");
    Ok(String::new())
}

fn emptied() -> Result<String> {
    const LINE: &str = "/bin/sleep 71103";
    // The servers that come back wait for the node for 13 s.
    let mut server = server_of_lease("emptied", 6)?;
    let node = node(&server, "emptied-node", "")?;
    server.put("/v1/jobs", &job("near", "raw_exec", 2, "/bin/sleep", &["71103"]))?;
    running(&server, "near", 2)?;
    let before: BTreeSet<u32> = pids(node.dir(), LINE).into_iter().collect();
    let same = || Ok(pids(node.dir(), LINE).into_iter().collect::<BTreeSet<u32>>() == before);
    server.crash()?;
    let kept = server.dir().join("kept");
    fs::rename(server_dir(&server), &kept)?;
    server.restart()?;
    kit::answers(&server)?;
    until("the node's refusal", BOUND, || Ok(node.log().contains("belongs to cluster").then_some(())))?;
    stays("its tasks", Duration::from_secs(3), same)?;
    let health = kit::ask(&node, "GET", "/v1/agent/health?type=client", &[], b"")?;
    ensure!(health.body.contains("cluster"), "the node's health says nothing of it: {}", health.short());
    server.crash()?;
    fs::remove_dir_all(server_dir(&server))?;
    fs::rename(&kept, server_dir(&server))?;
    let opened = sessions(&server);
    server.restart()?;
    kit::answers(&server)?;
    // What the server says of the node before that is what it has read.
    until("the node's session after its refusals", BOUND, || Ok((sessions(&server) > opened).then_some(())))
        .with_context(|| format!("the node's log ends with:\n{}", node.log_tail()))?;
    kit::ready(&server, &node, "raw_exec")?;
    running(&server, "near", 2)?;
    ensure!(same()?, "the tasks were replaced");
    Ok(String::new())
}

fn older() -> Result<String> {
    const LINE: &str = "/bin/sleep 71104";
    let mut server = server("older", "")?;
    let node = node(&server, "older-node", "")?;
    server.stop()?;
    let backup = server.dir().join("backup");
    copy(&server_dir(&server), &backup)?;
    server.restart()?;
    kit::answers(&server)?;
    kit::ready(&server, &node, "raw_exec")?;
    server.put("/v1/jobs", &job("near", "raw_exec", 2, "/bin/sleep", &["71104"]))?;
    running(&server, "near", 2)?;
    let before: BTreeSet<u32> = pids(node.dir(), LINE).into_iter().collect();
    let same = || Ok(pids(node.dir(), LINE).into_iter().collect::<BTreeSet<u32>>() == before);
    server.crash()?;
    fs::remove_dir_all(server_dir(&server))?;
    fs::rename(&backup, server_dir(&server))?;
    server.restart()?;
    kit::answers(&server)?;
    recovered(&server)?;
    running(&server, "near", 2)?;
    stays("its tasks", Duration::from_secs(1), same)?;
    server.delete("/v1/job/near")?;
    until("their end by an order", BOUND, || Ok(pids(node.dir(), LINE).is_empty().then_some(())))?;
    Ok(String::new())
}

fn copied_node() -> Result<String> {
    const LINE: &str = "/bin/sleep 71105";
    // Of which the first agent keeps one session, also on a machine that stands still for some seconds.
    let server = server_of_lease("copied", 15)?;
    let first = node(&server, "copied-node", "")?;
    server.put("/v1/jobs", &job("near", "raw_exec", 1, "/bin/sleep", &["71105"]))?;
    running(&server, "near", 1)?;
    let before = pids(first.dir(), LINE);
    let opened = sessions(&server);
    let place = first.dir().join("data");
    let second = Agent::start_configured(&kit::program(), "attack-copied-again", |[http, rpc, _], dir| {
        let data = dir.join("data");
        let _ = copy(&place, &data);
        // The lock is the first one's.
        let _ = fs::remove_file(data.join("agent.lock"));
        format!(
            "name = \"attack-copied-again\"\ndata_dir = {data:?}\nports {{\n  http = {http}\n  rpc = \
                {rpc}\n}}\nclient {{\n  enabled = \
            true\n  servers = \
             [\"127.0.0.1:{}\"]\n}}\nplugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n",
            server.rpc_port()
        )
    })?;
    until("the refusal of the second", BOUND, || {
        Ok(second.log().contains("another agent with the id of node").then_some(()))
    })
    .with_context(|| format!("the second's log ends with:\n{}", second.log_tail()))?;
    stays("the first one's task", Duration::from_secs(4), || Ok(pids(first.dir(), LINE) == before))?;
    let more = sessions(&server) - opened;
    ensure!(more <= 1, "{more} sessions were opened while two agents fought");
    Ok(String::new())
}

fn emptied_node() -> Result<String> {
    const NEAR: &str = "/bin/sleep 71106";
    const FAR: &str = "/bin/sleep 71107";
    let dir = Dir::for_all("emptied-node");
    let server = server("gone", "")?;
    let mut node = node(&server, "gone-node", &runtime(dir.path()))?;
    kit::ready(&server, &node, "remote_exec")?;
    server.put("/v1/jobs", &job("near", "raw_exec", 2, "/bin/sleep", &["71106"]))?;
    server.put("/v1/jobs", &remote_job("far", 1, "71107"))?;
    running(&server, "near", 2)?;
    all_observed(&server, "far", 1)?;
    let (near, far) = (pids(node.dir(), NEAR), pids(dir.path(), FAR));
    // What is mounted in it stays; that is no reason to stop.
    Run::new("rm", ["-rf".as_ref(), node.dir().join("data").as_os_str()]).succeeds();
    ensure!(!node.dir().join("data/client/node.sqlite").exists(), "the node's records are still there");
    node.crash()?;
    node.restart()?;
    until("new local tasks alone", BOUND, || {
        let now = pids(node.dir(), NEAR);
        Ok((now.len() == 2 && now.iter().all(|pid| !near.contains(pid))).then_some(()))
    })
    .with_context(|| {
        format!("{:?}; the node's log ends with:\n{}", local::processes_of(node.dir()), node.log_tail())
    })?;
    all_observed(&server, "far", 1)?;
    ensure!(pids(dir.path(), FAR) == far, "the remote task was touched");
    Ok(String::new())
}
