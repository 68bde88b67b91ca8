//! A Go driver under Drover: Nomad's own raw_exec, served as an external plugin by a small main of ours, from the Go
//! module registry.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::{
    cluster::{Agent, program},
    job::Job,
};
use crate::{
    local::{BOUND, until},
    packages, peer,
    process::Run,
};

/// Nomad's own plugin client drives our mock driver: every check that it prints must hold.
pub(crate) fn our_driver_under_go() -> Result<()> {
    packages::need_go()?;
    let host = peer::GO_HOST.cached()?;
    Run::new(host, [program().into_os_string(), "driver".into(), "mock".into()]).run()
}

/// Nomad's raw_exec as a plugin program.
pub(super) fn plugin() -> Result<PathBuf> {
    packages::need_go()?;
    peer::GO_RAW_EXEC.cached()
}

/// The check.
pub(crate) fn raw_exec() -> Result<()> {
    let plugin = plugin()?;
    let mut agent = Agent::start(
        "go",
        &[("go_raw_exec", &plugin)],
        "plugin \"go_raw_exec\" {\n  config {\n    enabled = true\n  }\n}",
    )?;
    story(&mut agent).with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()))
}

fn story(agent: &mut Agent) -> Result<()> {
    // The file in plugin_dir serves the same driver name as the built-in plugin, which leaves when the other one is up.
    let built_in = || agent.pids(|command| command.ends_with("driver raw_exec"));
    until("a healthy Go driver", BOUND, || {
        Ok((agent.healthy(&["raw_exec"])? == 1 && built_in().is_empty()).then_some(()))
    })?;

    // Exit codes and logs of a batch job.
    agent.submit(
        &Job::script("ends", "batch", "raw_exec", "echo to-stdout; echo to-stderr >&2; exit 7").once().body(),
    )?;
    let ended = until("the end of the batch job", BOUND, || agent.alloc("ends", "failed"))?;
    let events = agent.events(&ended)?;
    ensure!(
        events.iter().any(|e| e["Type"] == "Terminated" && e["ExitCode"] == 7),
        "no Terminated event with exit code 7: {events:?}"
    );
    for (stream, wanted) in [("stdout", "to-stdout\n"), ("stderr", "to-stderr\n")] {
        let text = until("the log", BOUND, || Ok(Some(agent.output(&ended, stream)?).filter(|text| !text.is_empty())))?;
        ensure!(text == wanted, "{stream} reads {text:?}");
    }

    // A service outlives the driver process and the agent.
    agent.submit(&Job::script("stays", "service", "raw_exec", "echo started; exec sleep 98765").once().body())?;
    let id = until("the running service", BOUND, || agent.alloc("stays", "running"))?;
    let workload = until("the workload", BOUND, || Ok(workloads(agent).first().copied()))?;
    ensure!(
        agent.processes().values().any(|c| c.contains("go_raw_exec executor ")),
        "the workload is not held by the Go driver's executor"
    );
    agent.kill_plugin("plugins/go_raw_exec")?;
    responds(agent, &id, workload, "kill -9 of the plugin")?;
    agent.crash_and_restart()?;
    responds(agent, &id, workload, "kill -9 of the agent")?;

    agent.delete("/v1/job/stays")?;
    until("the end of the service", BOUND, || agent.alloc("stays", "complete"))?;
    until("no workload left", BOUND, || Ok(workloads(agent).is_empty().then_some(())))?;
    until("no executor left", BOUND, || Ok(agent.processes().values().all(|c| !c.contains(" executor ")).then_some(())))
}

/// The node can ask the driver about the task, and it is still the same process.
fn responds(agent: &Agent, alloc: &str, workload: u32, after: &str) -> Result<()> {
    until(&format!("an answer about the task after {after}"), BOUND, || agent.stats(alloc))?;
    let now = workloads(agent);
    ensure!(now == [workload], "after {after} the workload was {workload}, now there are {now:?}");
    Ok(())
}

fn workloads(agent: &Agent) -> Vec<u32> {
    agent.pids(|command| command.starts_with("sleep 98765"))
}
