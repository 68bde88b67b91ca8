//! Containers and the cores that a task has for itself: whoever has none is kept off them, whether it runs before,
//! comes later, was bound by its own options, or outlived the agent; afterwards it has all of them again.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{cluster::Agent, docker_jobs::job, dockerd::Daemon};
use crate::local::{BOUND, until};

/// Cores by number.
type Cores = BTreeSet<u16>;

/// `0-2,5` as the kernel writes it.
fn cores(list: &str) -> Result<Cores> {
    let mut all = Cores::new();
    for part in list.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        all.extend(from.parse::<u16>()?..=to.parse()?);
    }
    Ok(all)
}

/// Where every process of an allocation's container may run; None unless they agree.
fn of_container(daemon: &Daemon, alloc: &str) -> Result<Option<Cores>> {
    let all = daemon.containers(false)?;
    let (id, _) = all
        .iter()
        .find(|(_, name)| name.ends_with(alloc))
        .with_context(|| format!("no container of {alloc} in {all:?}"))?;
    let mut found = BTreeSet::new();
    for pid in daemon.docker(&["top", id, "-eo", "pid"])?.lines().skip(1).map(str::trim) {
        // It may have ended.
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let list =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).context("no list of cores")?;
        found.insert(cores(list)?);
    }
    Ok(if found.len() == 1 { found.pop_first() } else { None })
}

fn expect(daemon: &Daemon, alloc: &str, what: &str, wanted: &Cores) -> Result<()> {
    until(&format!("{what} on the cores {wanted:?}"), BOUND, || {
        let found = of_container(daemon, alloc)?;
        ensure!(found.as_ref() == Some(wanted), "it is on {found:?}");
        Ok(Some(()))
    })
}

/// Starts a container with a process besides its first.
fn start(agent: &Agent, id: &str, more: &[(&str, &str)], owned: Option<u32>) -> Result<String> {
    let mut config = json!({"command": "/bin/sh", "args": ["-c", "sleep 1000 & exec sleep 1000"]});
    for (name, value) in more {
        config[name] = (*value).into();
    }
    let mut job = job(id, "service", config);
    let task = &mut job["Job"]["TaskGroups"][0]["Tasks"][0];
    task["KillTimeout"] = 100_000_000_i64.into();
    if let Some(count) = owned {
        task["Resources"] = json!({"Cores": count, "MemoryMB": 32});
    }
    agent.submit(&job)?;
    until(&format!("container {id}"), BOUND, || agent.alloc(id, "running"))
}

/// The check, with an engine and a driver that are up.
pub(super) fn check(agent: &mut Agent, daemon: &Daemon) -> Result<()> {
    let all = cores(
        fs::read_to_string("/proc/self/status")?
            .lines()
            .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
            .context("no cores")?,
    )?;
    if all.len() < 2 {
        eprintln!(
            "interop docker: containers are not tested against reserved cores: this machine has one core, two \
                are needed"
        );
        return Ok(());
    }
    let before = start(agent, "before", &[], None)?;
    expect(daemon, &before, "a container while nobody has cores", &all)?;
    let owner = start(agent, "owner", &[], Some(1))?;
    let own = until("a core of its own", BOUND, || Ok(of_container(daemon, &owner)?.filter(|own| own.len() == 1)))?;
    let shared: Cores = all.difference(&own).copied().collect();
    expect(daemon, &before, "a container that was there before", &shared)?;
    let after = start(agent, "after", &[], None)?;
    expect(daemon, &after, "a container that comes later", &shared)?;
    let wish = own.first().context("no core")?.to_string();
    let bound = start(agent, "bound", &[("cpuset_cpus", &wish)], None)?;
    expect(daemon, &bound, "a container whose own options name the core", &shared)?;
    // What is started in a container later is in its cgroup as well.
    let (code, said, _) = agent.exec(&after, &["/bin/sh", "-c", "busybox grep Cpus_allowed_list /proc/self/status"])?;
    let inside = said.split_once(':').map(|(_, list)| cores(list)).transpose()?;
    ensure!(code == 0 && inside.as_ref() == Some(&shared), "a command in the container runs on {said:?}");

    agent.crash_and_restart()?;
    until("the agent's own word", BOUND, || {
        Ok(agent.get("/v1/client/audit")?["Balanced"].as_bool().filter(|balanced| *balanced))
    })?;
    let restarted = start(agent, "restarted", &[], None)?;
    expect(daemon, &restarted, "a container of the next agent", &shared)?;
    expect(daemon, &before, "a container that outlived the agent", &shared)?;

    agent.delete("/v1/job/owner?purge=true")?;
    for (alloc, what) in [(&before, "the first"), (&after, "the later"), (&restarted, "the last")] {
        expect(daemon, alloc, &format!("{what} container when the core has come back"), &all)?;
    }
    expect(daemon, &bound, "the container whose options name the core, when that has come back", &own)?;
    for id in ["before", "after", "bound", "restarted"] {
        agent.delete(&format!("/v1/job/{id}?purge=true"))?;
    }
    daemon.until_empty()
}
