//! What checks of remote drivers ask a server of Drover with one remote task, job `far`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster::Agent;

/// Nodes that are ready and whose driver is healthy.
pub(super) fn healthy(server: &Agent, driver: &str) -> Result<usize> {
    let nodes = server.get("/v1/nodes")?;
    Ok(nodes.as_array().into_iter().flatten().filter(|n| n["Status"] == "ready" && n["Drivers"][driver]["Healthy"] == true).count())
}

/// The record of the remote task; null when there is none.
pub(super) fn record(server: &Agent) -> Result<Value> {
    Ok(server.get("/v1/remote/tasks")?.get(0).cloned().unwrap_or_default())
}

/// The record, once its instance runs.
pub(super) fn running(server: &Agent) -> Result<Option<Value>> {
    let record = record(server)?;
    Ok((record["Observed"]["State"] == "Running").then_some(record))
}

/// Name of the node that manages the instance.
pub(super) fn manager(server: &Agent) -> Result<String> {
    let record = record(server)?;
    let name = record["ManagerName"].as_str().unwrap_or_default();
    ensure!(!name.is_empty(), "the instance has no manager: {record}");
    Ok(name.to_owned())
}

/// Drains a node, or ends that and makes it eligible again.
pub(super) fn drain(server: &Agent, name: &str, spec: Value) -> Result<()> {
    let nodes = server.get("/v1/nodes")?;
    let id = nodes.as_array().into_iter().flatten().find(|n| n["Name"] == name).and_then(|n| n["ID"].as_str().map(str::to_owned));
    let id = id.with_context(|| format!("no node is called {name}"))?;
    server.put(&format!("/v1/node/{id}/drain"), &json!({"DrainSpec": spec, "MarkEligible": spec.is_null()}))?;
    Ok(())
}

/// The allocation that is wanted and runs.
pub(super) fn allocation(server: &Agent) -> Result<String> {
    let allocs = server.get("/v1/job/far/allocations")?;
    let found = allocs.as_array().into_iter().flatten().find(|a| a["ClientStatus"] == "running" && a["DesiredStatus"] == "run");
    found.and_then(|a| a["ID"].as_str().map(str::to_owned)).context("no running allocation")
}
