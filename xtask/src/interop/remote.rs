//! What checks of remote drivers ask a server of Drover with one remote task, job `far`.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::Agent;
use crate::local::{BOUND, until};

/// The record of the remote task; null when there is none.
pub(super) fn record(server: &Agent) -> Result<Value> {
    Ok(server.records()?.into_iter().next().unwrap_or_default())
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

/// Waits until another node than this one manages the instance.
pub(super) fn until_moved(server: &Agent, from: &str, after: &str) -> Result<()> {
    until(&format!("another manager after {after}"), BOUND, || Ok(manager(server)?.ne(from).then_some(())))
}

/// The allocation that is wanted and runs.
pub(super) fn allocation(server: &Agent) -> Result<String> {
    server.serving("far")?.context("no running allocation")
}
