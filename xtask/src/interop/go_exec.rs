//! A local driver as people write them with the stock packages, whose workloads say nothing of their task: executors,
//! plugin, agent and helpers are killed. Counted in `/proc` by a mark in the environment of each workload: never two
//! copies of one, and none is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    api::{events_of, text},
    cluster::Agent,
    job::Job,
};
use crate::{
    local::{BOUND, kill, until},
    packages, peer,
    watch::Watch,
};

/// Names the workloads: this and the number of the allocation.
const MARK: &str = "DROVER_GO_EXEC_MARK";
/// Tasks that things happen to, and others of the same plugin.
const TASKS: usize = 10;
const BESIDE: usize = 3;
/// How often the plugin is killed.
const PLUGIN_KILLS: usize = 20;

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    let plugin = peer::GO_EXEC_DRIVER.cached()?;
    let mut agent = Agent::start("go-exec", &[("go_exec", &plugin)], "plugin \"go_exec\" {}")?;
    let watch = Watch::begin(Duration::from_millis(25), look);
    let result = story(&mut agent).and_then(|()| none_doubled(watch.end()?));
    // What a failed run has left says nothing of its directory, so that nobody else finds it.
    for pid in workloads().into_values().flatten() {
        kill(pid)?;
    }
    result.with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()))
}

/// The workloads of this run by their names.
fn workloads() -> BTreeMap<String, BTreeSet<u32>> {
    let mine = format!("{MARK}={}-", std::process::id());
    let mut found: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for pid in crate::local::pids() {
        // All of them have become this program; there are thousands of others on some machines.
        if fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name == b"sleep\n") {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environment.split(|b| *b == 0).filter_map(|v| std::str::from_utf8(v).ok());
            if let Some(name) = variables.find_map(|v| v.strip_prefix(&mine)) {
                found.entry(name.to_owned()).or_default().insert(pid);
            }
        }
    }
    found
}

/// How often it was looked, and second copies of workloads.
type Copies = (u64, Vec<String>);

fn look((looks, doubled): &mut Copies) {
    // Who was seen first may have ended before the other began: all are looked at again.
    let alive = |pid: &&u32| fs::read(format!("/proc/{pid}/environ")).is_ok_and(|text| !text.is_empty());
    let twice = |pids: &BTreeSet<u32>| pids.iter().filter(alive).count() > 1;
    doubled.extend(
        workloads().into_iter().filter(|(_, pids)| twice(pids)).map(|(name, pids)| format!("{name}: {pids:?}")),
    );
    *looks += 1;
}

fn none_doubled((looks, doubled): Copies) -> Result<()> {
    eprintln!("    {looks} looks, {} second copies", doubled.len());
    ensure!(doubled.is_empty(), "second copies of workloads: {}", doubled.join(", "));
    Ok(())
}

fn job(id: &str, count: usize) -> Value {
    let script = format!("export {MARK}={}-{id}-${{NOMAD_ALLOC_INDEX}}; exec sleep 98765", std::process::id());
    let restarts = json!({"Attempts": 50, "Mode": "delay", "Interval": 600_000_000_000_i64, "Delay": 50_000_000});
    let small = json!({"MaxFiles": 1, "MaxFileSizeMB": 10});
    let task = json!({"KillTimeout": 1_000_000_000, "LogConfig": small, "Resources": {"CPU": 20, "MemoryMB": 16}});
    let job = Job::new(id, "service", "go_exec", json!({ "script": script })).count(count).undeployed();
    job.group(json!({"RestartPolicy": restarts, "EphemeralDisk": {"SizeMB": 30}})).task(task).body()
}

/// The workload of each task, once there is one of each.
fn all_run(expected: usize) -> Result<BTreeMap<String, u32>> {
    until(&format!("{expected} workloads, one of each"), BOUND, || {
        let found = workloads();
        let one_each = found.len() == expected && found.values().all(|pids| pids.len() == 1);
        Ok(one_each.then(|| {
            found.into_iter().flat_map(|(name, pids)| pids.into_iter().map(move |pid| (name.clone(), pid))).collect()
        }))
    })
}

/// The executor that holds a workload.
fn executor_of(workload: u32) -> Result<u32> {
    let stat = fs::read_to_string(format!("/proc/{workload}/stat"))?;
    let parent =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)).and_then(|p| p.parse().ok());
    let parent: u32 = parent.with_context(|| format!("no parent in {stat:?}"))?;
    let line = fs::read_to_string(format!("/proc/{parent}/cmdline"))?;
    ensure!(line.contains("\0executor\0"), "the workload {workload} is not held by an executor, but by {line:?}");
    Ok(parent)
}

fn plugins(agent: &Agent) -> Vec<u32> {
    agent.pids(|command| command.ends_with("plugins/go_exec"))
}

/// What the tasks have to tell that was restarted most often.
fn events(agent: &Agent) -> Result<String> {
    let states = agent.list("/v1/allocations")?.into_iter().map(|mut alloc| alloc["TaskStates"]["t"].take());
    let most = states.max_by_key(|s| s["Restarts"].as_u64()).unwrap_or_default();
    Ok(events_of(&most)
        .iter()
        .map(|e| format!("{}: {}", e["Type"], e["DisplayMessage"]))
        .collect::<Vec<_>>()
        .join("\n"))
}

/// Waits until all tasks are started, as their node says it, and so many were restarted. A workload is there before its
/// start is confirmed, and a start that is cut off then is made again with another process.
fn started(agent: &Agent, restarts: u64) -> Result<()> {
    until(&format!("the starts of all tasks after {restarts} restarts"), BOUND, || {
        let allocs = agent.list("/v1/allocations")?;
        let states: Vec<&Value> = allocs.iter().map(|alloc| &alloc["TaskStates"]["t"]).collect();
        let all_run = states.len() == TASKS + BESIDE && states.iter().all(|state| state["State"] == "running");
        let charged: u64 = states.iter().filter_map(|state| state["Restarts"].as_u64()).sum();
        Ok((all_run && charged == restarts).then_some(()))
    })
}

/// Workloads of which another process runs now.
fn changed<'a>(before: &'a BTreeMap<String, u32>, now: &BTreeMap<String, u32>) -> Vec<&'a str> {
    before.iter().filter(|(name, pid)| now.get(*name) != Some(pid)).map(|(name, _)| name.as_str()).collect()
}

fn story(agent: &mut Agent) -> Result<()> {
    agent.until_healthy(&["go_exec"], 1)?;
    agent.put("/v1/jobs", &job("victims", TASKS))?;
    agent.put("/v1/jobs", &job("beside", BESIDE))?;
    // One whose executor is killed before its start is confirmed is started again without a restart.
    started(agent, 0)?;
    let mut before = all_run(TASKS + BESIDE)?;

    // The workload of a killed executor ends before its successor begins; nobody else notices.
    for index in 0..5_u64 {
        let name = format!("victims-{index}");
        let former = before[&name];
        kill(executor_of(former)?)?;
        until(&format!("another workload of {name}"), BOUND, || {
            Ok(workloads().get(&name).is_some_and(|pids| pids.len() == 1 && !pids.contains(&former)).then_some(()))
        })?;
        let now = all_run(TASKS + BESIDE)?;
        ensure!(
            changed(&before, &now) == [&name],
            "the executor of {name} was killed, changed have {:?}",
            changed(&before, &now)
        );
        started(agent, index + 1)?;
        before = now;
    }

    // Nothing happens to anybody when the plugin dies.
    for _ in 0..PLUGIN_KILLS {
        let first = until("the plugin", BOUND, || Ok(plugins(agent).first().copied()))?;
        kill(first)?;
        until("the end of the plugin", BOUND, || Ok((!plugins(agent).contains(&first)).then_some(())))?;
        // An operator does not wait for the pause between two processes, and the agent has to have seen the end of the
        // first one.
        until("another plugin", BOUND, || {
            agent.put("/v1/client/drivers/reload", &json!({}))?;
            Ok((!plugins(agent).is_empty()).then_some(()))
        })?;
    }
    agent.until_healthy(&["go_exec"], 1)?;
    let now = all_run(TASKS + BESIDE)?;
    ensure!(
        now == before,
        "the plugin was killed {PLUGIN_KILLS} times, changed have {:?}: {}",
        changed(&before, &now),
        events(agent)?
    );
    known(agent, &now)?;

    // Agent, plugin and log collectors die at once, and the executors of some tasks with them.
    let doomed: Vec<String> = (5..8).map(|index| format!("victims-{index}")).collect();
    let mut helpers = until("a log collector for each task, and no other", BOUND, || {
        let found = agent.pids(|command| command.contains(" collect "));
        ensure!(found.len() == TASKS + BESIDE, "there are {}", found.len());
        Ok(Some(found))
    })?;
    helpers.extend(plugins(agent));
    for name in &doomed {
        helpers.push(executor_of(before[name])?);
    }
    agent.crash()?;
    for pid in helpers {
        kill(pid)?;
    }
    agent.restart()?;
    until("other workloads of those whose executors were killed", BOUND, || {
        let found = workloads();
        Ok(doomed.iter().all(|name| found.get(name).is_some_and(|pids| !pids.contains(&before[name]))).then_some(()))
    })?;
    let now = all_run(TASKS + BESIDE)?;
    ensure!(
        changed(&before, &now) == doomed,
        "the executors of {doomed:?} were killed, changed have {:?}",
        changed(&before, &now)
    );
    agent.until_healthy(&["go_exec"], 1)?;
    known(agent, &now)?;

    // A purge leaves nothing of its job and everything of the other.
    agent.delete("/v1/job/victims?purge=true")?;
    until("the end of the purged workloads", BOUND, || {
        Ok(workloads().keys().all(|name| !name.starts_with("victims")).then_some(()))
    })?;
    let left = all_run(BESIDE)?;
    ensure!(
        left.iter().all(|(name, pid)| now[name] == *pid),
        "after the purge of another job there are {left:?}, before it {now:?}"
    );
    agent.delete("/v1/job/beside?purge=true")?;
    until("the end of all workloads", BOUND, || Ok(workloads().is_empty().then_some(())))?;
    let executors = |c: &String| c.contains(" executor ") || c.contains(" collect ");
    until("the end of all executors", BOUND, || Ok((!agent.processes().values().any(executors)).then_some(())))?;
    balanced(agent).map(drop)
}

/// The driver can be asked about each task, and the books name each workload as its task's.
fn known(agent: &Agent, running: &BTreeMap<String, u32>) -> Result<()> {
    let audit = balanced(agent)?;
    let findings = audit["Findings"].as_array().cloned().unwrap_or_default();
    for (name, pid) in running {
        let line = findings
            .iter()
            .find(|f| f["Kind"] == "process" && f["What"].as_str().is_some_and(|w| w.starts_with(&format!("{pid} "))));
        let line = line.with_context(|| format!("the books do not name the workload {pid} of {name}"))?;
        ensure!(
            line["Status"] == "claimed" && line["Task"] == "t",
            "the workload {pid} of {name} stands in the books as {line}"
        );
    }
    // A workload is there before its start is confirmed and the servers are told.
    let ids = until(&format!("{} running allocations", running.len()), BOUND, || {
        let allocs = agent.list("/v1/allocations")?;
        let ids: Vec<String> =
            allocs.iter().filter(|a| a["ClientStatus"] == "running").map(|a| text(&a["ID"])).collect();
        Ok((ids.len() == running.len()).then_some(ids))
    })?;
    for id in ids {
        until("an answer of the driver about a task", BOUND, || agent.stats(&id))?;
    }
    Ok(())
}

fn balanced(agent: &Agent) -> Result<Value> {
    until("books that balance", BOUND, || {
        let audit = agent.get("/v1/client/audit")?;
        if audit["Balanced"] == true { Ok(Some(audit)) } else { bail!("{}", wrong(&audit)) }
    })
}

fn wrong(audit: &Value) -> String {
    let lines = audit["Findings"].as_array().into_iter().flatten().filter(|f| f["Status"] != "claimed");
    lines.map(|f| format!("{} {}: {}", f["Status"], f["What"], f["Reason"])).collect::<Vec<_>>().join("; ")
}
