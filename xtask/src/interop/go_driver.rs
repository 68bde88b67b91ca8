//! A Go driver under Drover: Nomad's own raw_exec, served as an external plugin by a small main of ours, from the Go
//! module registry.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    cluster::{Agent, program},
    job::Job,
};
use crate::{
    local::{BOUND, until},
    packages, peer,
    process::Run,
};

/// Nomad's own plugin client drives our mock driver and our mock device plugin: every check that it prints must hold.
pub(crate) fn ours_under_go() -> Result<()> {
    packages::need_go()?;
    let host = peer::GO_HOST.cached()?;
    Run::new(&host, [program().into_os_string(), "driver".into(), "mock".into()]).run()?;
    our_devices_under_go(&host)
}

fn our_devices_under_go(host: &Path) -> Result<()> {
    let dir = testkit::Dir::new("devices");
    let group = dir.path().join("nvidia/gpu/T4");
    std::fs::create_dir_all(&group)?;
    std::fs::write(group.join("gpu-0"), "")?;
    std::fs::write(group.join(".attributes"), "memory = 16 GiB\n")?;
    let plugin = [program().into_os_string(), "driver".into(), "mock_device".into()];
    let args = ["-device".into(), dir.path().as_os_str().to_owned()].into_iter().chain(plugin);
    Run::new(host, args).run()
}

/// Nomad's example of a device plugin: the files of a directory are given to tasks, each to one, through kill -9 of the
/// plugin and of the agent.
pub(super) fn device() -> Result<()> {
    let plugin = plugin()?;
    let dir = testkit::Dir::new("devices");
    for name in ["one", "two"] {
        std::fs::write(dir.path().join(name), name)?;
    }
    let configuration = format!(
        "plugin \"go_device\" {{\n  args = [\"device\"]\n  config {{\n    dir = {:?}\n    \
         list_period = \"200ms\"\n  }}\n}}",
        dir.path()
    );
    let mut agent = Agent::start("go-device", &[("go_device", &plugin)], &configuration)?;
    let told = devices_of_go(&mut agent, dir.path());
    told.with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()))
}

fn devices_of_go(agent: &mut Agent, dir: &Path) -> Result<()> {
    let healthy = |agent: &Agent| -> Result<usize> {
        let node = agent.get("/v1/nodes")?[0]["ID"].as_str().unwrap_or_default().to_owned();
        let node = agent.get(&format!("/v1/node/{node}"))?;
        let groups = node["NodeResources"]["Devices"].as_array().cloned().unwrap_or_default();
        let all = groups.iter().flat_map(|g| g["Instances"].as_array().cloned().unwrap_or_default());
        Ok(all.filter(|i| i["Healthy"] == true).count())
    };
    until("two files as devices", BOUND, || Ok((healthy(agent)? == 2).then_some(())))?;
    let asks = |id: &str, name: &str| {
        let resources = json!({"CPU": 20, "MemoryMB": 32, "Devices": [{"Name": name, "Count": 1}]});
        let script = "cat /tmp/task-mounts/*; exec sleep 98765";
        Job::script(id, "service", "exec", script).undeployed().task(json!({"Resources": resources})).body()
    };
    let mut given = Vec::new();
    for (job, name) in [("first", "file"), ("second", "nomad/file/mock")] {
        agent.submit(&asks(job, name))?;
        let id = until("the task with a device", BOUND, || agent.alloc(job, "running"))?;
        let alloc = agent.get(&format!("/v1/allocation/{id}"))?;
        let ids = alloc["AllocatedResources"]["Tasks"]["t"]["Devices"][0]["DeviceIDs"].clone();
        let file = ids[0].as_str().context("a device")?.to_owned();
        let mounted = until("what the task reads of it", BOUND, || {
            Ok(Some(agent.output(&id, "stdout")?).filter(|text| !text.is_empty()))
        })?;
        ensure!(mounted == file, "{job} has {file} and reads {mounted}");
        given.push(file);
    }
    given.sort();
    ensure!(given == ["one", "two"], "{given:?}");
    let before = executors(agent);
    agent.kill_plugin("plugins/go_device device")?;
    until("two devices after kill -9 of the plugin", BOUND, || Ok((healthy(agent)? == 2).then_some(())))?;
    agent.crash_and_restart()?;
    until("two devices after kill -9 of the agent", BOUND, || Ok((healthy(agent)? == 2).then_some(())))?;
    ensure!(executors(agent) == before && !before.is_empty(), "{before:?} are {:?}", executors(agent));
    // A third waits, until a further file is there.
    agent.submit(&asks("third", "file"))?;
    until("an evaluation that waits", BOUND, || {
        let evals = agent.get("/v1/job/third/evaluations")?;
        Ok(evals.as_array().into_iter().flatten().any(|e| e["Status"] == "blocked").then_some(()))
    })?;
    std::fs::write(dir.join("three"), "three")?;
    until("the third task", BOUND, || agent.alloc("third", "running"))?;
    for job in ["first", "second", "third"] {
        agent.delete(&format!("/v1/job/{job}"))?;
    }
    until("no executor left", BOUND, || Ok(executors(agent).is_empty().then_some(())))
}

/// Isolated workloads see nothing of the agent's directory; what holds them does.
fn executors(agent: &Agent) -> Vec<u32> {
    let other = |command: &str| command.contains(" serve-host ") || command.contains(" keep ");
    agent.pids(|command| command.contains("drover-executor") && !other(command))
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
