//! The walk of `docs/writing-a-driver.md`: a project from the template is built outside this workspace, loaded, and runs a job that
//! outlives it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::cluster::{Agent, program};
use crate::local::{kill, target_dir, until};
use crate::process::Run;
use crate::template;

const BOUND: Duration = Duration::from_secs(60);
const NAME: &str = "hello-driver";

/// The check.
pub(crate) fn check() -> Result<Verdict> {
    let dir = target_dir().join("interop/driver-template");
    drop(fs::remove_dir_all(&dir));
    template::instantiate(NAME, &dir)?;
    // Where the dependencies are built already.
    Run::new("cargo", [OsString::from("build"), "--target-dir".into(), target_dir().into()]).dir(&dir).run()?;
    let plugin = target_dir().join("debug").join(NAME);
    let schema = Run::new(program(), [OsString::from("driver"), "schema".into(), plugin.clone().into()]).output()?;
    ensure!(schema.contains("| `script` | string | yes |  | The script. |"), "`drover driver schema` prints:\n{schema}");

    let block = fs::read_to_string(dir.join("agent.hcl"))?;
    let agent = Agent::start("driver-template", &[(NAME, &plugin)], &block)?;
    story(&agent, &dir.join("job.nomad.hcl")).with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()))?;
    Ok(Verdict::Passed)
}

fn story(agent: &Agent, job: &Path) -> Result<()> {
    until("a healthy driver", BOUND, || Ok((agent.get("/v1/nodes")?[0]["Drivers"]["hello_driver"]["Healthy"] == true).then_some(())))?;
    let address = format!("-address={}", agent.address());
    Run::new(program(), [OsString::from("job"), "run".into(), "-detach".into(), address.into(), job.into()]).run()?;
    let alloc = until("the running task", BOUND, || {
        let allocs = agent.get(&format!("/v1/job/{NAME}/allocations"))?;
        let running = allocs.as_array().into_iter().flatten().find(|alloc| alloc["ClientStatus"] == "running");
        Ok(running.and_then(|alloc| alloc["ID"].as_str().map(str::to_owned)))
    })?;
    let log = || agent.text(&format!("/v1/client/fs/logs/{alloc}?task=hello&type=stdout&plain=true"));
    until("its log", BOUND, || Ok(log()?.starts_with("hello from hello, process ").then_some(())))?;
    let plugins = || -> Vec<u32> {
        let ours = agent.processes().into_iter().filter(|(_, command)| command.trim_end().ends_with(&format!("plugins/{NAME}")));
        ours.map(|(pid, _)| pid).collect()
    };
    let first = plugins();
    ensure!(first.len() == 1, "one plugin process expected, there are {first:?}");
    kill(first[0])?;
    until("a new plugin process", BOUND, || Ok(plugins().iter().any(|pid| !first.contains(pid)).then_some(())))?;
    let length = log()?.len();
    until("more of the log", BOUND, || Ok((log()?.len() > length).then_some(())))?;
    ensure!(log()?.matches("hello from").count() == 1, "the task was started again:\n{}", log()?);
    agent.delete(&format!("/v1/job/{NAME}"))?;
    until("the end of the task", BOUND, || Ok((agent.get(&format!("/v1/allocation/{alloc}"))?["ClientStatus"] == "complete").then_some(())))
}
