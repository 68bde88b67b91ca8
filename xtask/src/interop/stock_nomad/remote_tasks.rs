//! Tasks of remote_exec, as a plain driver: for a stock agent it is one whose tasks happen to live elsewhere; releases
//! before 1.10 know remote tasks and hand them over by the driver's handle and the signal `DETACH`.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    super::api::text,
    stock::{Stock, script, until},
};
use crate::local::kill;

const TALKER: &str =
    "echo started; echo error >&2; i=0; while true; do sleep 0.1; i=$((i + 1)); echo line $i; done # 77050";

pub(super) fn on_one_node(stock: &mut Stock) -> Result<()> {
    let alloc = stock.run_until(&script("far", "service", "remote_exec", TALKER), "running")?;
    stock.log(&alloc, "stdout", "the first line", |t| t.starts_with("started\n"))?;
    stock.log(&alloc, "stderr", "the line", |t| t == "error\n")?;
    let pid = stock.workload("77050")?;
    ensure!(fs::read_dir(stock.remote_root().join("instances"))?.count() == 1, "one instance in the runtime");
    let goes_on = |stock: &Stock, after: &str| -> Result<()> {
        stock.ready()?;
        stock
            .stats(&alloc, |t| t["ResourceUsage"]["MemoryStats"]["RSS"].as_u64() > Some(0))
            .with_context(|| format!("after {after}"))?;
        ensure!(stock.workloads("77050") == [pid], "after {after} it is another process");
        let lines = stock.log(&alloc, "stdout", "a line", |t| !t.is_empty())?.lines().count();
        stock
            .log(&alloc, "stdout", "another line", |t| t.lines().count() > lines)
            .with_context(|| format!("after {after}"))?;
        Ok(())
    };
    goes_on(stock, "the start")?;
    stock.kill_plugin("remote_exec")?;
    goes_on(stock, "kill -9 of the plugin")?;
    stock.agent.crash_and_restart()?;
    goes_on(stock, "kill -9 of the agent")?;
    stock.agent.stop()?;
    stock.agent.restart()?;
    goes_on(stock, "an orderly restart of the agent")?;
    stock.stop("far")?;
    stock.no_workload("77050")?;
    let ended = stock.run_until(&script("far-ends", "batch", "remote_exec", "echo bye; exit 11"), "failed")?;
    stock.event(&ended, "the exit code", |e| e["Type"] == "Terminated" && e["ExitCode"] == 11)?;
    stock.log(&ended, "stdout", "the line", |t| t == "bye\n").map(drop)
}

pub(super) fn handed_over(stock: &mut Stock) -> Result<()> {
    if !stock.release.remote_tasks {
        eprintln!("    this release has no remote tasks any more (removed in 1.10): nothing to hand over");
        return Ok(());
    }
    let first = stock.node_id("nomad-1.9")?;
    let mut second_agent = stock.second_node()?;
    let second = stock.node_id("nomad-1.9-second")?;
    until("the driver on the second node", || {
        let node = stock.agent.get(&format!("/v1/node/{second}"))?;
        Ok((node["Drivers"]["remote_exec"]["Healthy"] == true).then_some(()))
    })?;
    eligible(stock, &second, false)?;
    let mut far = script("moves", "service", "remote_exec", TALKER);
    far["Job"]["TaskGroups"][0]["Migrate"] = json!({"MaxParallel": 1, "HealthCheck": "task_states",
            "MinHealthyTime": 1_000_000, "HealthyDeadline": 60_000_000_000_i64});
    let on_first = stock.run_until(&far, "running")?;
    let pid = stock.workload("77050")?;
    eligible(stock, &second, true)?;

    stock.agent.put(
        &format!("/v1/node/{first}/drain"),
        &json!({"DrainSpec": {"Deadline": 60_000_000_000_i64}, "MarkEligible": false}),
    )?;
    let on_second = running_on(stock, "moves", &second)?;
    until("the end of the drained allocation", || {
        Ok((stock.agent.get(&format!("/v1/allocation/{on_first}"))?["ClientStatus"] == "complete").then_some(()))
    })?;
    one_instance(stock, pid, "the drain")?;
    let lines = stock
        .log(&on_second, "stdout", "a line on the second node", |t| t.starts_with("line") || t.contains("\nline"))?;
    ensure!(!lines.contains("started"), "the second node shows what came after the hand-over");

    // The second node is lost with its plugin; the first one takes over; the second one comes back and lets go.
    eligible(stock, &first, true)?;
    let plugin = stock.plugin(&second_agent, "remote_exec").context("no plugin on the second node")?;
    second_agent.crash()?;
    kill(plugin)?;
    let back = running_on(stock, "moves", &first)?;
    one_instance(stock, pid, "the loss of the node")?;
    stock.log(&back, "stdout", "a line on the first node", |t| t.contains("line"))?;
    second_agent.restart()?;
    until("the lost allocation let go on its node", || {
        let status = stock.agent.get(&format!("/v1/allocation/{on_second}"))?["ClientStatus"].take();
        Ok(matches!(status.as_str(), Some("complete" | "lost" | "failed")).then_some(()))
    })?;
    stock.node_id("nomad-1.9-second")?;
    one_instance(stock, pid, "the return of the lost node")?;
    stock.stop("moves")?;
    stock.no_workload("77050")?;
    second_agent.stop()
}

fn eligible(stock: &Stock, node: &str, yes: bool) -> Result<()> {
    let wanted = if yes { "eligible" } else { "ineligible" };
    stock.agent.put(&format!("/v1/node/{node}/eligibility"), &json!({"NodeID": node, "Eligibility": wanted}))?;
    Ok(())
}

fn running_on(stock: &mut Stock, job: &str, node: &str) -> Result<String> {
    until(&format!("{job} running on the other node"), || {
        let here = |a: &&Value| a["NodeID"] == node && a["ClientStatus"] == "running";
        Ok(stock.agent.allocs(job)?.iter().find(here).map(|a| text(&a["ID"])))
    })
}

fn one_instance(stock: &Stock, pid: u32, after: &str) -> Result<()> {
    let now = stock.workloads("77050");
    ensure!(now == [pid], "after {after} the instance was process {pid}, now there are {now:?}");
    Ok(())
}
