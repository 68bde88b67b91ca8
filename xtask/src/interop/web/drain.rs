//! What the page says that a drain would do is what it does.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{
    super::job::Job,
    kit::{in_runtime, running, sleeps, two_managers},
    page::Page,
};
use crate::local::{self, BOUND, until};

pub(super) fn drain(page: &mut Page) -> Result<()> {
    in_runtime("drain", |dir| drained(page, dir))
}

fn drained(page: &mut Page, dir: &Path) -> Result<()> {
    let (server, nodes) = two_managers(["web-drain-a", "web-drain-b"], dir)?;
    server.submit(&Job::command("far", "service", "remote_exec", "/bin/sleep", &["71035"]).undeployed().body())?;
    running(&server, "far")?;
    let pids = || local::processes_of(dir).into_iter().filter(|(_, line)| line == "/bin/sleep 71035").count();
    let record = server.records()?.into_iter().next().context("a record")?;
    let node = record["Manager"]["NodeID"].as_str().context("a node")?.to_owned();
    let manager = record["ManagerName"].as_str().context("a manager")?;
    let other = nodes.iter().map(|node| node.name()).find(|name| *name != manager).context("another node")?;
    // A task of the node itself, on the same one.
    let here = json!([{"LTarget": "${node.unique.name}", "RTarget": manager, "Operand": "=", "Weight": 100}]);
    server.submit(&sleeps("near").group(json!({"Affinities": here})).body())?;
    let first = running(&server, "near")?;
    ensure!(server.get(&format!("/v1/allocation/{first}"))?["NodeName"] == manager, "it is beside the other");

    page.open(&format!("{}/ui/clients/{node}", server.address()))?;
    page.click("If it is drained")?;
    let row = |name: &str, fate: &str| {
        let texts =
            "[...document.querySelectorAll('tbody tr')].map((row) => row.innerText.replace(/\\s+/g, ' ').trim())";
        format!("{texts}.some((text) => text === '{name} {fate} {other}')")
    };
    page.until("what is told of the remote task", &row("far.g[0]", "handed over, its remote tasks go on"))?;
    page.until("what is told of the other", &row("near.g[0]", "interrupted, starts again"))?;
    page.click("Drain")?;
    page.shows("allocations move to other nodes within an hour.")?;
    page.click("Drain")?;
    page.shows("draining")?;
    until("the next manager", BOUND, || {
        Ok(server.records()?.first().is_some_and(|record| record["ManagerName"] == other).then_some(()))
    })?;
    until("the task of the node on the other one", BOUND, || {
        let now = server.alloc("near", "running")?.filter(|alloc| *alloc != first);
        let Some(now) = now else { return Ok(None) };
        Ok((server.get(&format!("/v1/allocation/{now}"))?["NodeName"] == other).then_some(()))
    })?;
    ensure!(pids() == 1, "the instance goes on: {}", pids());
    for job in ["far", "near"] {
        server.delete(&format!("/v1/job/{job}"))?;
    }
    until("the end of the instance", BOUND, || Ok((pids() == 0).then_some(())))?;
    until("the end of the other", BOUND, || Ok(server.alloc("near", "running")?.is_none().then_some(())))
}
