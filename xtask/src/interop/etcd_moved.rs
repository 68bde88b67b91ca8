//! A server and node with running tasks moves from SQLite to a real etcd of three members, which is then replaced by an
//! older copy of itself, and back to SQLite. The tasks run on, each in its process.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    cluster::{Agent, drover},
    etcd::{self, EtcdMember, etcdctl},
    job::Job,
};
use crate::local::{BOUND, until};

/// Tasks by their jobs, and what tells their processes apart.
const BEFORE: (&str, &str) = ("before", "71201");
const AFTER: (&str, &str) = ("after", "71202");

pub(super) fn check(dir: &Path) -> Result<()> {
    let mut members = EtcdMember::cluster(dir, "moved", 3, &[], "http")?;
    let mut agent = Agent::start("interop-etcd-moved", &[], "")?;
    let result = moves(&mut agent, &mut members, dir);
    result.with_context(|| format!("the agent's log ends with:\n{}", agent.log_tail()))
}

fn moves(agent: &mut Agent, members: &mut [EtcdMember], dir: &Path) -> Result<()> {
    let (own, server_dir) = (agent.dir().join("agent.hcl"), agent.dir().join("data/server"));
    let of_sqlite = fs::read_to_string(&own)?;
    let of_etcd = format!("{of_sqlite}{}", etcd::shared_by(members));
    let first = registered(agent, BEFORE)?;

    agent.stop()?;
    fs::write(&own, &of_etcd)?;
    copy(agent, &own, "etcd")?;
    agent.restart()?;
    goes_on(agent, BEFORE, &first)?;
    println!("etcd: a server and node moved there from SQLite: its task runs on");

    // What is registered after the snapshot is missing in what etcd is replaced by.
    let snapshot = dir.join("moved.snapshot").display().to_string();
    etcdctl(&["--endpoints", &members[0].url, "snapshot", "save", &snapshot])?;
    let second = registered(agent, AFTER)?;
    let index = newest(agent)?;
    for member in &mut *members {
        member.stop()?;
    }
    for member in &mut *members {
        member.set_back(&snapshot)?;
    }
    until("the end of the recovery", BOUND, || {
        // A server that leads when a batch is refused ends.
        if !agent.is_alive()? {
            agent.restart()?;
        }
        let over = agent.log().contains("the recovery is over");
        Ok((over && agent.get("/v1/operator/recovery").is_ok_and(|told| told["Recovering"] == false)).then_some(()))
    })?;
    goes_on(agent, BEFORE, &first)?;
    goes_on(agent, AFTER, &second)?;
    let now = newest(agent)?;
    ensure!(now > index, "the index was {index}, and is {now}");
    println!("etcd: three members were set back under a server and node: both tasks run on, the index is {now}");

    agent.stop()?;
    // It holds the state from before the move.
    fs::rename(&server_dir, agent.dir().join("aside"))?;
    copy(agent, &own, "sqlite")?;
    fs::write(&own, &of_sqlite)?;
    agent.restart()?;
    for (job, process) in [(BEFORE, &first), (AFTER, &second)] {
        goes_on(agent, job, process)?;
        agent.delete(&format!("/v1/job/{}?purge=true", job.0))?;
        until("the end of the task", BOUND, || Ok(tasks(agent, job.1).is_empty().then_some(())))?;
    }
    Ok(())
}

fn copy(agent: &Agent, config: &Path, to: &str) -> Result<()> {
    let config = config.display().to_string();
    let said = drover(&agent.address(), &["operator", "store", "copy", "-config", &config, "-to", to])?;
    ensure!(said.contains("Copied cluster "), "{said}");
    Ok(())
}

/// Processes of the task that sleeps so long.
fn tasks(agent: &Agent, seconds: &str) -> Vec<u32> {
    let line = format!("/bin/sleep {seconds}");
    agent.processes().into_iter().filter(|(_, of)| *of == line).map(|(pid, _)| pid).collect()
}

/// Its process, once the job runs.
fn registered(agent: &Agent, (job, seconds): (&str, &str)) -> Result<Vec<u32>> {
    let body = Job::command(job, "service", "raw_exec", "/bin/sleep", &[seconds]).undeployed().body();
    until("the registration", BOUND, || Ok(agent.put("/v1/jobs", &body).ok()))?;
    until("a running task", BOUND, || Ok(running(agent, job).ok().filter(|count| *count == 1)))?;
    let found = tasks(agent, seconds);
    ensure!(found.len() == 1, "{found:?}");
    Ok(found)
}

fn running(agent: &Agent, job: &str) -> Result<usize> {
    let allocations = agent.get(&format!("/v1/job/{job}/allocations"))?;
    let allocations = allocations.as_array().context("a list")?;
    Ok(allocations.iter().filter(|of| of["ClientStatus"] == "running" && of["DesiredStatus"] == "run").count())
}

/// The task runs in the same process, and servers that decide anew leave it there.
fn goes_on(agent: &Agent, (job, seconds): (&str, &str), process: &[u32]) -> Result<()> {
    until("a decision about the job", BOUND, || {
        let body = json!({ "JobID": job });
        Ok(agent.put(&format!("/v1/job/{job}/evaluate"), &body).ok())
    })?;
    until("the job to be as it was", BOUND, || {
        let evaluations = agent.get(&format!("/v1/job/{job}/evaluations"))?;
        let pending = evaluations.as_array().context("a list")?.iter().any(|of| of["Status"] == "pending");
        Ok((!pending && running(agent, job)? == 1).then_some(()))
    })?;
    let now = tasks(agent, seconds);
    ensure!(now == process, "the task of {job} was {process:?}, and is {now:?}");
    Ok(())
}

/// The index of a write that happens now.
fn newest(agent: &Agent) -> Result<u64> {
    let answer = agent.put(&format!("/v1/job/{}/evaluate", BEFORE.0), &json!({ "JobID": BEFORE.0 }))?;
    answer["Index"].as_u64().with_context(|| format!("no index in {answer}"))
}
