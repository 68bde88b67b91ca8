//! What many stories begin and end with.

use std::path::Path;

use anyhow::Result;

use super::super::{
    cluster::{self, Agent, Role},
    job::Job,
};
use crate::local::{self, BOUND, until};

/// A job that does nothing for long.
pub(super) fn sleeps(id: &str) -> Job {
    Job::command(id, "service", "raw_exec", "/bin/sleep", &["71015"]).undeployed()
}

/// An agent with everything, whose node is ready.
pub(super) fn started(name: &str) -> Result<Agent> {
    let agent = Agent::start(name, &[], "")?;
    agent.until_healthy(&["raw_exec"], 1)?;
    Ok(agent)
}

/// The id of the job's running allocation.
pub(super) fn running(agent: &Agent, job: &str) -> Result<String> {
    until(&format!("a running allocation of {job}"), BOUND, || agent.alloc(job, "running"))
}

/// Ends the job and waits for the end of its tasks.
pub(super) fn end(agent: &Agent, job: &str) -> Result<()> {
    agent.delete(&format!("/v1/job/{job}"))?;
    until("the end of its tasks", BOUND, || Ok(agent.alloc(job, "running")?.is_none().then_some(())))
}

/// Tells a story of instances that live below a directory of their own. None of them outlives it.
pub(super) fn in_runtime(name: &str, story: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("drover-web-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let told = story(&dir);
    local::end_all(&dir)?;
    local::remove(&dir);
    told
}

/// A server, and two nodes that manage instances below that directory.
pub(super) fn two_managers(names: [&str; 2], dir: &Path) -> Result<(Agent, Vec<Agent>)> {
    let plugin =
        format!("plugin \"remote_exec\" {{\n  config {{\n    transport = \"local\"\n    root = {dir:?}\n  }}\n}}\n");
    let server = Agent::start_as(&format!("{}-server", names[0]), Role::Server, &[], cluster::SHORT_LEASE)?;
    let nodes = names.into_iter().map(|name| Agent::start_as(name, Role::Node(&server), &[], &plugin));
    let nodes = nodes.collect::<Result<Vec<_>>>()?;
    server.until_healthy(&["remote_exec"], 2)?;
    Ok((server, nodes))
}
