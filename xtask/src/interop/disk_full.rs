//! A full disk: the agent's data directory is a small tmpfs that is filled and emptied again. Writes are refused with the reason, nothing is corrupted,
//! what ran runs on.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::{Verdict, cluster::Agent};
use crate::{local::until, packages, process::Run};

const BOUND: Duration = Duration::from_secs(60);

/// A mounted tmpfs; unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let options = ["-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs"];
        Run::new("mount", options.iter().map(std::ffi::OsStr::new).chain([dir.as_os_str()])).run()?;
        Ok(Self(dir.to_owned()))
    }
    /// Takes all room that is left.
    fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("ballast");
        let mut file = File::create(&path)?;
        for block in [1 << 16, 1 << 12, 1] {
            while file.write(&vec![0_u8; block]).is_ok_and(|n| n == block) {}
        }
        Ok(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily: the last processes of the check may still be on their way out.
        drop(Run::new("umount", ["-l".as_ref(), self.0.as_os_str()]).run());
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// The check.
pub(crate) fn check() -> Result<Verdict> {
    if !packages::is_root() {
        return Ok(Verdict::Skipped("mounting a small file system needs root".into()));
    }
    let dir = std::env::temp_dir().join(format!("drover-interop-small-{}", std::process::id()));
    let small = Small::mount(&dir).context("could not mount a tmpfs")?;
    // Only the servers' and the node's records live on the small disk: the executor's file alone would fill a good part of it.
    let more = format!("server {{\n  data_dir = {:?}\n}}\nclient {{\n  state_dir = {:?}\n}}", small.0.join("server"), small.0.join("node"));
    let mut agent = Agent::start("full", &[], &more)?;
    let result = story(&mut agent, &small).with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()));
    drop(agent);
    result.map(|()| Verdict::Passed)
}

fn job(id: &str) -> serde_json::Value {
    json!({"Job": {"ID": id, "Type": "service", "TaskGroups": [{"Name": "g", "Update": {"MaxParallel": 0}, "Tasks": [{
        "Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["54321"]}, "Resources": {"CPU": 10, "MemoryMB": 10}
    }]}]}})
}

fn running(agent: &Agent, id: &str) -> Result<Option<()>> {
    let allocs = agent.get(&format!("/v1/job/{id}/allocations"))?;
    Ok(allocs.as_array().into_iter().flatten().any(|a| a["ClientStatus"] == "running").then_some(()))
}

fn workloads(agent: &Agent) -> Vec<u32> {
    agent.processes().into_iter().filter(|(_, c)| c.starts_with("/bin/sleep 54321")).map(|(p, _)| p).collect()
}

fn story(agent: &mut Agent, small: &Small) -> Result<()> {
    until("a ready node", BOUND, || {
        let nodes = agent.get("/v1/nodes")?;
        Ok((nodes[0]["Status"] == "ready" && nodes[0]["Drivers"]["raw_exec"]["Healthy"] == true).then_some(()))
    })?;
    agent.put("/v1/jobs", &job("before"))?;
    until("the first job", BOUND, || running(agent, "before"))?;
    let workload = workloads(agent);
    ensure!(workload.len() == 1, "one workload expected: {workload:?}");

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
    until("the job after", BOUND, || running(agent, "after"))?;
    agent.crash_and_restart()?;
    for id in accepted.iter().map(String::as_str).chain(["before", "after"]) {
        until(&format!("job {id} after the restart"), BOUND, || Ok(agent.get(&format!("/v1/job/{id}")).is_ok().then_some(())))?;
    }
    ensure!(workloads(agent).contains(&workload[0]), "the first workload is the same process");
    Ok(())
}
