//! The walk of `docs/guides/writing-a-driver.md`: a project from the template is built outside this workspace, loaded,
//! and runs a job that outlives it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::cluster::{Agent, program};
use crate::local::{BOUND, target_dir, until};
use crate::process::Run;
use crate::{template, workspace};

const NAME: &str = "hello-driver";

/// The check.
pub(crate) fn check() -> Result<()> {
    let dir = target_dir().join("interop/driver-template");
    drop(fs::remove_dir_all(&dir));
    template::instantiate(NAME, &dir)?;
    // With the versions of the workspace: newer ones that the registry may have by now say nothing of the template.
    fs::copy(workspace::root().join("Cargo.lock"), dir.join("Cargo.lock"))?;
    // In the manifest, below the variables of the environment, as in the workspace.
    let manifest = dir.join("Cargo.toml");
    let workspace = fs::read_to_string(workspace::root().join("Cargo.toml"))?;
    fs::write(&manifest, format!("{}\n{}", fs::read_to_string(&manifest)?, profile_of(&workspace)?))?;
    // Where most of the dependencies are built already.
    let words = [
        OsString::from("build"),
        "--manifest-path".into(),
        manifest.into(),
        "--target-dir".into(),
        target_dir().into(),
    ];
    // From the root: there lies the file that names the compiler.
    Run::new("cargo", words).dir(workspace::root()).run_patiently()?;
    let plugin = target_dir().join("debug").join(NAME);
    let schema = Run::new(program(), [OsString::from("driver"), "schema".into(), plugin.clone().into()]).output()?;
    ensure!(
        schema.contains("| `script` | string | yes |  | The script. |"),
        "`drover driver schema` prints:\n{schema}"
    );

    let block = fs::read_to_string(dir.join("agent.hcl"))?;
    let agent = Agent::start("driver-template", &[(NAME, &plugin)], &block)?;
    story(&agent, &dir.join("job.nomad.hcl"))
        .with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()))?;
    Ok(())
}

/// The profile of this workspace's builds: Cargo uses nothing again that was built with another one.
fn profile_of(manifest: &str) -> Result<&str> {
    let from = manifest.find("[profile.dev]").context("the workspace has no profile dev")?;
    let to = manifest.find("[profile.release]").filter(|to| *to > from).context("no profile release follows")?;
    Ok(&manifest[from..to])
}

fn story(agent: &Agent, job: &Path) -> Result<()> {
    agent.until_healthy(&["hello_driver"], 1)?;
    let address = format!("-address={}", agent.address());
    Run::new(program(), [OsString::from("job"), "run".into(), "-detach".into(), address.into(), job.into()]).run()?;
    let alloc = until("the running task", BOUND, || agent.alloc(NAME, "running"))?;
    let log = || agent.text(&format!("/v1/client/fs/logs/{alloc}?task=hello&type=stdout&plain=true"));
    until("its log", BOUND, || Ok(log()?.starts_with("hello from hello, process ").then_some(())))?;
    agent.kill_plugin(&format!("plugins/{NAME}"))?;
    let length = log()?.len();
    until("more of the log", BOUND, || Ok((log()?.len() > length).then_some(())))?;
    ensure!(log()?.matches("hello from").count() == 1, "the task was started again:\n{}", log()?);
    agent.delete(&format!("/v1/job/{NAME}"))?;
    until("the end of the task", BOUND, || {
        Ok((agent.get(&format!("/v1/allocation/{alloc}"))?["ClientStatus"] == "complete").then_some(()))
    })
}
