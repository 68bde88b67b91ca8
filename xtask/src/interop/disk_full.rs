//! A full disk: the agent's data directory is a small tmpfs that is filled and emptied again. Writes are refused with
//! the reason, nothing is corrupted, what ran runs on.

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::{cluster::Agent, job::Job};
use crate::{
    local::{BOUND, until},
    packages,
    small_disk::SmallDisk,
};

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_root("mounting a small file system needs root")?;
    let dir = std::env::temp_dir().join(format!("drover-interop-small-{}", std::process::id()));
    let small = SmallDisk::mount(&dir, 24).context("could not mount a tmpfs")?;
    // Only the servers' and the node's records live on the small disk: the executor's file alone would fill a good part
    // of it.
    let more = format!(
        "server {{\n  data_dir = {:?}\n}}\nclient {{\n  state_dir = {:?}\n}}",
        small.at("server"),
        small.at("node")
    );
    let mut agent = Agent::start("full", &[], &more)?;
    let result =
        story(&mut agent, &small).with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()));
    drop(agent);
    result
}

fn job(id: &str) -> serde_json::Value {
    let job = Job::command(id, "service", "raw_exec", "/bin/sleep", &["54321"]).undeployed();
    job.task(json!({"Resources": {"CPU": 10, "MemoryMB": 10}})).body()
}

fn workloads(agent: &Agent) -> Vec<u32> {
    agent.pids(|command| command.starts_with("/bin/sleep 54321"))
}

fn story(agent: &mut Agent, small: &SmallDisk) -> Result<()> {
    agent.until_healthy(&["raw_exec"], 1)?;
    agent.put("/v1/jobs", &job("before"))?;
    until("the first job", BOUND, || agent.alloc("before", "running"))?;
    let workload = until("one workload", BOUND, || Ok(Some(workloads(agent)).filter(|all| all.len() == 1)))?;

    let ballast = small.fill()?;
    // A write may still fit into pages that the store holds already: it is tried until one does not.
    let mut accepted = Vec::new();
    let refused = (0..2_000).find_map(|n| {
        let id = format!("full-{n}");
        let (status, text) = agent.put_text("/v1/jobs", &job(&id)).ok()?;
        if status == 200 {
            accepted.push(id);
            return None;
        }
        Some((status, text))
    });
    let Some((status, text)) = refused else { bail!("a full disk refused nothing") };
    ensure!(status == 500 && text.to_lowercase().contains("full"), "the refusal says why: {status} {text}");
    ensure!(agent.get("/v1/jobs").is_ok(), "reads go on");
    ensure!(workloads(agent).contains(&workload[0]), "what ran runs on");

    std::fs::remove_file(ballast)?;
    until("a write after room was made", BOUND, || Ok(agent.put("/v1/jobs", &job("after")).is_ok().then_some(())))?;
    until("the job after", BOUND, || agent.alloc("after", "running"))?;
    agent.crash_and_restart()?;
    for id in accepted.iter().map(String::as_str).chain(["before", "after"]) {
        until(&format!("job {id} after the restart"), BOUND, || {
            Ok(agent.get(&format!("/v1/job/{id}")).is_ok().then_some(()))
        })?;
    }
    ensure!(workloads(agent).contains(&workload[0]), "the first workload is the same process");
    Ok(())
}
