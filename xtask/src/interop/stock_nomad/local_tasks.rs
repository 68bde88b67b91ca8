//! Tasks of raw_exec: from start to stop.

use std::fs;

use anyhow::{Result, bail, ensure};
use serde_json::json;

use super::stock::{Stock, script, until};

/// The plugin in `plugin_dir` takes the place of the agent's own driver of that name, because its version is not lower.
pub(super) fn loads(stock: &mut Stock) -> Result<()> {
    stock.ready()?;
    let nodes = stock.agent.get("/v1/nodes")?;
    let ours = &nodes[0]["Drivers"]["raw_exec"];
    ensure!(ours["Attributes"]["driver.raw_exec.cgroups"].is_string(), "raw_exec is not ours: {ours}");
    for file in ["raw_exec", "mock", "remote_exec"] {
        ensure!(stock.plugin(&stock.agent, file).is_some(), "no process serves {file}");
    }
    Ok(())
}

pub(super) fn ends(stock: &mut Stock) -> Result<()> {
    let alloc = stock
        .run_until(&script("ends", "batch", "raw_exec", "echo to-stdout; echo to-stderr >&2; env; exit 7"), "failed")?;
    stock.event(&alloc, "exit code 7", |e| e["Type"] == "Terminated" && e["ExitCode"] == 7)?;
    let out = stock.log(&alloc, "stdout", "the environment", |t| t.contains("NOMAD_TASK_NAME=t\n"))?;
    ensure!(out.starts_with("to-stdout\n"), "stdout reads {out:?}");
    let leaked = out.lines().find(|l| l.starts_with("NOMAD_PLUGIN_MAGIC_COOKIE") || l.starts_with("PLUGIN_"));
    ensure!(leaked.is_none(), "the workload's environment has {leaked:?}");
    stock.log(&alloc, "stderr", "the line", |t| t == "to-stderr\n")?;
    let fine = stock.run_until(&script("fine", "batch", "raw_exec", "exit 0"), "complete")?;
    stock.event(&fine, "exit code 0", |e| e["Type"] == "Terminated" && e["ExitCode"] == 0)?;
    Ok(())
}

pub(super) fn serves(stock: &mut Stock) -> Result<()> {
    let text = "trap 'echo got-usr1' USR1; echo started; while true; do sleep 0.1; done # 77000";
    let alloc = stock.run_until(&script("serves", "service", "raw_exec", text), "running")?;
    stock.log(&alloc, "stdout", "the first line", |t| t == "started\n")?;
    stock.agent.put(&format!("/v1/client/allocation/{alloc}/signal"), &json!({"Task": "t", "Signal": "SIGUSR1"}))?;
    stock.log(&alloc, "stdout", "the answer to the signal", |t| t == "started\ngot-usr1\n")?;
    let (status, text) = stock
        .agent
        .put_text(&format!("/v1/client/allocation/{alloc}/signal"), &json!({"Task": "t", "Signal": "SIGNONE"}))?;
    ensure!(status == 500 && text.contains("SIGNONE"), "an unknown signal is refused by name: {status} {text}");
    let pid = stock.workload("77000")?;
    let sample = stock.stats(&alloc, |task| {
        let memory = &task["ResourceUsage"]["MemoryStats"];
        memory["RSS"].as_u64() > Some(0) && task["ResourceUsage"]["CpuStats"]["TotalTicks"].as_f64() > Some(0.0)
    })?;
    ensure!(sample["Timestamp"].as_i64() > Some(0), "the sample has no time: {sample}");
    ensure!(!sample["Pids"][pid.to_string()].is_null(), "the sample names process {pid}: {sample}");
    stock.stop("serves")?;
    stock.no_workload("77000")
}

pub(super) fn stops(stock: &mut Stock) -> Result<()> {
    // One child ignores all signals, one has left the session.
    let text = "trap 'echo got-term; exit 3' TERM; (trap '' TERM INT; exec sleep 77001) & setsid sleep 77002 & echo \
        ready; \
                while true; do sleep 0.1; done";
    let mut job = script("stops", "service", "raw_exec", text);
    job["Job"]["TaskGroups"][0]["Tasks"][0]["KillSignal"] = json!("SIGTERM");
    let alloc = stock.run_until(&job, "running")?;
    stock.log(&alloc, "stdout", "the first line", |t| t == "ready\n")?;
    stock.workload("sleep 77001")?;
    stock.workload("sleep 77002")?;
    stock.stop("stops")?;
    stock.log(&alloc, "stdout", "the answer to the job's signal", |t| t == "ready\ngot-term\n")?;
    stock.event(&alloc, "the exit code of the handler", |e| e["Type"] == "Terminated" && e["ExitCode"] == 3)?;
    let left = [stock.workloads("sleep 77001"), stock.workloads("sleep 77002")].concat();
    ensure!(left.is_empty(), "the task has ended but {left:?} live on");
    Ok(())
}

pub(super) fn restarts_in_place(stock: &mut Stock) -> Result<()> {
    let mut job = script("again", "batch", "raw_exec", "echo run; exit 9");
    job["Job"]["TaskGroups"][0]["RestartPolicy"] =
        json!({"Attempts": 2, "Mode": "fail", "Interval": 600_000_000_000_i64, "Delay": 100_000_000});
    let alloc = stock.run_until(&job, "failed")?;
    stock.log(&alloc, "stdout", "three lines", |t| t == "run\nrun\nrun\n")?;
    let state = stock.task_state(&alloc)?;
    ensure!(state["Restarts"] == 2, "restarts: {}", state["Restarts"]);

    // By order of an operator.
    let alloc = stock.run_until(&script("ordered", "service", "raw_exec", "echo run; exec sleep 77003"), "running")?;
    let before = stock.workload("sleep 77003")?;
    stock.agent.put(&format!("/v1/client/allocation/{alloc}/restart"), &json!({"TaskName": "t"}))?;
    until("another process", || match stock.workloads("sleep 77003").as_slice() {
        [one] if *one != before => Ok(Some(())),
        other => bail!("there are {other:?}"),
    })?;
    stock.log(&alloc, "stdout", "a second line", |t| t == "run\nrun\n")?;
    stock.stop("ordered")?;
    // Each start has had a directory of its own, gone with it.
    let private = stock.agent.dir().join("data/alloc").join(&alloc).join("t/private/executor");
    let left = fs::read_dir(private).map(|d| d.count()).unwrap_or_default();
    ensure!(left == 0, "{left} directories of executors are left");
    Ok(())
}
