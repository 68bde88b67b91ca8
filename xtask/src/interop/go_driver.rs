//! A Go driver under Drover: Nomad's own raw_exec, served as an external plugin by a small main of ours, from the Go module registry.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    Verdict,
    cluster::{Agent, program},
};
use crate::{
    local::{kill, until},
    packages, peer,
    process::Run,
};

const BOUND: Duration = Duration::from_secs(60);

/// The reason why nothing of Go can be built here, if so.
pub(super) fn no_go() -> Option<Verdict> {
    packages::go().err().map(|why| Verdict::Skipped(format!("{why:#}")))
}

/// Nomad's own plugin client drives our mock driver: every check that it prints must hold.
pub(crate) fn our_driver_under_go() -> Result<Verdict> {
    if let Some(skipped) = no_go() {
        return Ok(skipped);
    }
    let host = peer::GO_HOST.cached()?;
    Run::new(host, [program().into_os_string(), "driver".into(), "mock".into()]).run()?;
    Ok(Verdict::Passed)
}

/// Nomad's raw_exec as a plugin program, or why there is none.
pub(super) fn plugin() -> Result<Result<PathBuf, Verdict>> {
    match no_go() {
        Some(skipped) => Ok(Err(skipped)),
        None => peer::GO_RAW_EXEC.cached().map(Ok),
    }
}

/// The check.
pub(crate) fn raw_exec() -> Result<Verdict> {
    let plugin = match plugin()? {
        Ok(plugin) => plugin,
        Err(skipped) => return Ok(skipped),
    };
    let mut agent = Agent::start("go", &[("go_raw_exec", &plugin)], "plugin \"go_raw_exec\" {\n  config {\n    enabled = true\n  }\n}")?;
    let result = story(&mut agent).with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()));
    result.map(|()| Verdict::Passed)
}

fn story(agent: &mut Agent) -> Result<()> {
    // The file in plugin_dir serves the same driver name as the built-in plugin, which leaves when the other one is up.
    let built_in = |agent: &Agent| -> Vec<u32> {
        agent.processes().into_iter().filter(|(_, c)| c.trim_end().ends_with("driver raw_exec")).map(|(p, _)| p).collect()
    };
    until("a healthy Go driver", BOUND, || {
        let nodes = agent.get("/v1/nodes")?;
        Ok((nodes[0]["Drivers"]["raw_exec"]["Healthy"] == true && built_in(agent).is_empty()).then_some(()))
    })?;

    // Exit codes and logs of a batch job.
    agent.put("/v1/jobs", &job("ends", "batch", "echo to-stdout; echo to-stderr >&2; exit 7"))?;
    let ended = until("the end of the batch job", BOUND, || alloc(agent, "ends", "failed"))?;
    let detail = agent.get(&format!("/v1/allocation/{ended}"))?;
    let events = detail["TaskStates"]["t"]["Events"].as_array().cloned().unwrap_or_default();
    ensure!(events.iter().any(|e| e["Type"] == "Terminated" && e["ExitCode"] == 7), "no Terminated event with exit code 7: {events:?}");
    for (stream, wanted) in [("stdout", "to-stdout\n"), ("stderr", "to-stderr\n")] {
        let text = until("the log", BOUND, || {
            let text = agent.text(&format!("/v1/client/fs/logs/{ended}?task=t&type={stream}&plain=true"))?;
            Ok((!text.is_empty()).then_some(text))
        })?;
        ensure!(text == wanted, "{stream} reads {text:?}");
    }

    // A service outlives the driver process and the agent.
    agent.put("/v1/jobs", &job("stays", "service", "echo started; exec sleep 98765"))?;
    let id = until("the running service", BOUND, || alloc(agent, "stays", "running"))?;
    let workload = until("the workload", BOUND, || Ok(workloads(agent).first().copied()))?;
    ensure!(
        agent.processes().values().any(|c| c.contains("go_raw_exec executor ")),
        "the workload is not held by the Go driver's executor"
    );
    let plugins = |agent: &Agent| -> Vec<u32> {
        agent.processes().into_iter().filter(|(_, c)| c.trim_end().ends_with("plugins/go_raw_exec")).map(|(p, _)| p).collect()
    };
    let first = plugins(agent);
    ensure!(first.len() == 1, "one plugin process expected, there are {first:?}");
    kill(first[0])?;
    until("a new plugin process", BOUND, || Ok(plugins(agent).iter().any(|p| !first.contains(p)).then_some(())))?;
    responds(agent, &id, workload, "kill -9 of the plugin")?;
    agent.crash_and_restart()?;
    responds(agent, &id, workload, "kill -9 of the agent")?;

    agent.delete("/v1/job/stays")?;
    until("the end of the service", BOUND, || alloc(agent, "stays", "complete"))?;
    until("no workload left", BOUND, || Ok(workloads(agent).is_empty().then_some(())))?;
    until("no executor left", BOUND, || Ok(agent.processes().values().all(|c| !c.contains(" executor ")).then_some(())))?;
    Ok(())
}

/// The node can ask the driver about the task, and it is still the same process.
fn responds(agent: &Agent, alloc: &str, workload: u32, after: &str) -> Result<()> {
    until(&format!("an answer about the task after {after}"), BOUND, || {
        let stats = agent.get(&format!("/v1/client/allocation/{alloc}/stats"))?;
        Ok((!stats["Tasks"]["t"].is_null()).then_some(()))
    })?;
    let now = workloads(agent);
    ensure!(now == [workload], "after {after} the workload was {workload}, now there are {now:?}");
    Ok(())
}

fn workloads(agent: &Agent) -> Vec<u32> {
    agent.processes().into_iter().filter(|(_, c)| c.starts_with("sleep 98765")).map(|(p, _)| p).collect()
}

fn alloc(agent: &Agent, job: &str, status: &str) -> Result<Option<String>> {
    let allocs = agent.get(&format!("/v1/job/{job}/allocations"))?;
    let found = allocs.as_array().into_iter().flatten().find(|a| a["ClientStatus"] == status);
    Ok(found.and_then(|a| a["ID"].as_str().map(str::to_owned)))
}

fn job(id: &str, kind: &str, script: &str) -> serde_json::Value {
    json!({"Job": {
        "ID": id, "Name": id, "Type": kind, "Datacenters": ["*"],
        "TaskGroups": [{
            "Name": "g", "Count": 1,
            "RestartPolicy": {"Attempts": 0, "Mode": "fail", "Interval": 60_000_000_000_i64, "Delay": 1_000_000_000},
            "ReschedulePolicy": {"Attempts": 0, "Unlimited": false},
            "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", script]},
                       "Resources": {"CPU": 20, "MemoryMB": 32}}]
        }]
    }})
}
