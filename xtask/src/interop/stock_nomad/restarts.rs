//! What survives the end of plugins and agents.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::stock::{Stock, script, until};

pub(super) fn keeps_processes(stock: &mut Stock) -> Result<()> {
    let text = "trap 'echo got-usr1' USR1; i=0; while true; do sleep 0.1; i=$((i + 1)); echo line $i; done # 77020";
    let alloc = stock.run_until(&script("keeps", "service", "raw_exec", text), "running")?;
    let workload = stock.workload("77020")?;
    let same = |stock: &Stock, after: &str| -> Result<()> {
        stock.ready()?;
        stock.stats(&alloc, |_| true).with_context(|| format!("after {after}"))?;
        let state = stock.task_state(&alloc)?;
        ensure!(state["State"] == "running" && state["Restarts"] == 0, "after {after} the task is {state}");
        let now = stock.workloads("77020");
        ensure!(now == [workload], "after {after} the workload was {workload}, now there are {now:?}");
        // The log goes on: a line that was not there.
        let lines = stock.log(&alloc, "stdout", "a line", |t| !t.is_empty())?.lines().count();
        stock
            .log(&alloc, "stdout", "another line", |t| t.lines().count() > lines)
            .with_context(|| format!("after {after}"))?;
        Ok(())
    };
    same(stock, "the start")?;
    stock.kill_plugin("raw_exec")?;
    same(stock, "kill -9 of the plugin")?;

    let plugin = stock.plugin(&stock.agent, "raw_exec");
    stock.agent.crash_and_restart()?;
    same(stock, "kill -9 of the agent")?;
    ensure!(stock.plugin(&stock.agent, "raw_exec") == plugin, "the agent has found the plugin process again");

    stock.agent.stop()?;
    // Of a plugin that it has found again the agent is no parent: the process may be on its way out still.
    until("the end of the plugin with the agent's orderly end", || {
        Ok(stock.plugin(&stock.agent, "raw_exec").is_none().then_some(()))
    })?;
    stock.agent.restart()?;
    same(stock, "an orderly restart of the agent")?;

    // The plugin dies while nobody looks.
    stock.agent.crash()?;
    for file in ["raw_exec", "mock", "remote_exec"] {
        crate::local::kill(stock.plugin(&stock.agent, file).context("the plugin survives its agent")?)?;
    }
    stock.note_killed_plugins(3);
    stock.agent.restart()?;
    same(stock, "kill -9 of agent and plugins")?;
    stock.stop("keeps")?;
    stock.no_workload("77020")
}

pub(super) fn ended_meanwhile(stock: &mut Stock) -> Result<()> {
    let runs = stock.agent.dir().join("runs");
    let go = stock.agent.dir().join("go");
    let text = format!(
        "echo run >> {}; while [ ! -e {} ]; do sleep 0.05; done; exit 13 # 77030",
        runs.display(),
        go.display()
    );
    let alloc = stock.run_until(&script("meanwhile", "batch", "raw_exec", &text), "running")?;
    until("the first line", || Ok(runs.exists().then_some(())))?;
    stock.agent.crash()?;
    fs::write(&go, "")?;
    stock.no_workload("77030")?;
    stock.agent.restart()?;
    stock.alloc("meanwhile", "failed")?;
    stock.event(&alloc, "the exit code", |e| e["Type"] == "Terminated" && e["ExitCode"] == 13)?;
    let text = fs::read_to_string(&runs)?;
    ensure!(text == "run\n", "it ran again: {text:?}");
    // An allocation that is over stays over.
    stock.agent.crash_and_restart()?;
    stock.ready()?;
    let text = fs::read_to_string(&runs)?;
    ensure!(text == "run\n" && stock.task_state(&alloc)?["State"] == "dead", "it ran again: {text:?}");
    Ok(())
}
