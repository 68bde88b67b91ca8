//! What checks of remote drivers ask a server of Drover with one remote task, job `far`.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    cluster::{Agent, program},
    docker_jobs::{none_lost_or_doubled, numbers},
};
use crate::{
    local::{BOUND, kill, until},
    process::Run,
};

/// How long a check waits for what a runtime does in its own time: on a busy machine it begins and ends jobs late.
pub(super) const RUNTIME: Duration = Duration::from_secs(180);

/// The record of the remote task; null when there is none.
pub(super) fn record(server: &Agent) -> Result<Value> {
    Ok(server.records()?.into_iter().next().unwrap_or_default())
}

/// The record, once its instance runs.
pub(super) fn running(server: &Agent) -> Result<Option<Value>> {
    let record = record(server)?;
    Ok((record["Observed"]["State"] == "Running").then_some(record))
}

/// Name of the node that manages the instance. There is none for a moment when a manager has lost its lease.
pub(super) fn manager(server: &Agent) -> Result<String> {
    until("a manager of the instance", BOUND, || {
        let record = record(server)?;
        let name = record["ManagerName"].as_str().unwrap_or_default();
        ensure!(!name.is_empty(), "the instance has no manager: {record}");
        Ok(Some(name.to_owned()))
    })
}

/// Waits until another node than this one manages the instance.
pub(super) fn until_moved(server: &Agent, from: &str, after: &str) -> Result<()> {
    until(&format!("another manager after {after}"), BOUND, || Ok(manager(server)?.ne(from).then_some(())))
}

/// The allocation that is wanted and runs; it may be told a moment after its instance's record.
pub(super) fn allocation(server: &Agent) -> Result<String> {
    until("a running allocation", BOUND, || server.serving("far"))
}

/// How managers refuse an order while they have no lease.
const NO_LEASE: &str = "this node may not act on the instance now";

/// The answer to an order for an instance. A machine that stands still for longer than a short lease costs a manager
/// that lease for a moment: an order that is refused for this reason alone, as `said` tells of it, is given again.
fn until_allowed<T>(mut order: impl FnMut() -> Result<T>, said: impl Fn(&T) -> &str) -> Result<T> {
    until("a manager that has its lease", BOUND, || {
        let answer = order();
        let refused = answer.as_ref().is_ok_and(|answer| said(answer).contains(NO_LEASE));
        Ok((!refused).then_some(answer))
    })?
}

/// `alloc exec` in an instance, by a manager that has its lease: exit code, standard output, standard error.
pub(super) fn exec(server: &Agent, alloc: &str, command: &[&str]) -> Result<(i32, String, String)> {
    until_allowed(|| server.exec(alloc, command), |said| &said.2)
}

/// Sends a signal to the task `t` of an instance, by a manager that has its lease.
pub(super) fn signal(server: &Agent, alloc: &str, signal: &str) -> Result<()> {
    let (path, body) = (format!("/v1/client/allocation/{alloc}/signal"), json!({"Task": "t", "Signal": signal}));
    let (status, text) = until_allowed(|| server.put_text(&path, &body), |said| &said.1)?;
    ensure!(status == 200, "{signal} was refused: {status} {text}");
    Ok(())
}

/// The instance counts on, and its log has every line once.
pub(super) fn counts(server: &Agent, alloc: &str) -> Result<()> {
    let read = || Ok(numbers(&server.output(alloc, "stdout")?).last().copied());
    let before = until("lines of the instance", BOUND, read)?;
    until("further lines of the instance", BOUND, || Ok(read()?.filter(|n| *n > before + 5)))?;
    none_lost_or_doubled(&server.output(alloc, "stdout")?)
}

/// The same, by the allocation that there is after an event.
pub(super) fn counts_after(server: &Agent, after: &str) -> Result<()> {
    allocation(server).and_then(|alloc| counts(server, &alloc)).with_context(|| format!("after {after}"))
}

/// The record says that nobody knows how the instance is.
pub(super) fn until_unknown(server: &Agent, why: &str) -> Result<()> {
    until(&format!("an instance that is unknown: {why}"), BOUND, || {
        Ok((record(server)?["Observed"]["State"] == "Unknown").then_some(()))
    })
}

/// Drains the manager, kills the plugin of the next one, and that one with everything that belongs to it, with SIGKILL;
/// two nodes reach the runtime. `same` looks after each whether the instance is the same.
pub(super) fn managers_go(
    server: &Agent,
    nodes: &mut Vec<Agent>,
    driver: &str,
    same: impl Fn(&str) -> Result<()>,
) -> Result<()> {
    let first = manager(server)?;
    server.drain(&first, json!({"Deadline": 60_000_000_000_i64}))?;
    until_moved(server, &first, "the drain")?;
    same("the drain")?;
    server.drain(&first, Value::Null)?;
    let next = manager(server)?;
    let at = nodes.iter().position(|n| n.name() == next).context("no agent of ours is the manager")?;
    let plugins = nodes[at].pids(|command| command.contains(&format!("plugins/{driver}")));
    ensure!(!plugins.is_empty(), "{next} runs no plugin {driver}");
    plugins.into_iter().try_for_each(kill)?;
    same("kill -9 of the plugin")?;
    drop(nodes.remove(at));
    until_moved(server, &next, "kill -9")?;
    same("kill -9 of its node")
}

/// `drover demo` with a runtime that is there: each event leaves the instance as it is.
pub(super) fn demo(runtime: &str, config: &Path, more: &[&str]) -> Result<()> {
    let config = config.display().to_string();
    let args = ["demo", "-with", runtime, "-config", &config].into_iter().chain(more.iter().copied());
    let told = Run::new(program(), args).output()?;
    for event in ["drain", "kill -9 of the manager", "no node, then a new one", "kill -9 of the driver plugin"] {
        let held = told.lines().any(|line| line.starts_with(event) && line.contains(" yes "));
        ensure!(held, "{event:?} did not hold: {told}");
    }
    Ok(())
}

/// The batch job `id` has ended like this, and its record goes with it.
pub(super) fn has_ended(server: &Agent, id: &str, status: &str, code: i32, said: &str) -> Result<()> {
    let events = until(&format!("{id}: an allocation that is {status}"), RUNTIME, || {
        server.alloc(id, status)?.map(|alloc| server.events(&alloc)).transpose()
    })?;
    let told = events.into_iter().find(|e| e["Type"] == "Terminated").unwrap_or_default();
    ensure!(told["ExitCode"] == code, "{id}: the exit code is {code}, the event says {told}");
    ensure!(told.to_string().contains(said), "{id}: the event does not say {said:?}: {told}");
    server.delete(&format!("/v1/job/{id}"))?;
    server.until_no_record()
}
