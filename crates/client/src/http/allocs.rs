//! Stats, signals, restarts and collection of allocations; stats and metadata of the node.

use std::collections::BTreeMap;

use axum::{
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};
use model::remote::slot_of;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{Query, find, json as answer, text};
use crate::{device_stats, error::RequestError, handle::ClientHandle, stats};

pub(super) async fn stats(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
) -> Result<Response, RequestError> {
    let (_, loop_handle) = find(&handle, &alloc)?;
    let view = loop_handle.view.borrow().clone();
    let wanted = query.get("task");
    if !wanted.is_empty() && !view.update.task_states.contains_key(wanted) {
        return Err(RequestError::unknown_task(wanted));
    }
    let inner = &handle.inner;
    let asked = view.update.task_states.keys().filter(|t| wanted.is_empty() || ***t == *wanted).map(|task| {
        let (view, handle) = (view.clone(), handle.clone());
        async move {
            if view.remote.contains(task) {
                let instance = handle.inner.remote.instance(slot_of(&view.alloc, task)).await?;
                return Some((task.to_string(), handle.inner.remote.stats(&instance).await?));
            }
            Some((task.to_string(), stats::of_local(&handle, &view, task).await?))
        }
    });
    let samples: Vec<_> = futures::future::join_all(asked).await.into_iter().flatten().collect();
    let mut total = stats::usage_json(&stats::sum(samples.iter().map(|(_, s)| s)));
    let mut tasks: Map<String, Value> = samples.iter().map(|(name, s)| (name.clone(), stats::task_json(s))).collect();
    let resources = &view.alloc.resources.tasks;
    if resources.values().any(|task| !task.devices.is_empty()) {
        let groups = device_stats::measured(&inner.drivers).await;
        let mut all = Vec::new();
        for (name, task) in &mut tasks {
            let own = resources.get(&**name).map(|task| device_stats::of(&groups, &task.devices)).unwrap_or_default();
            let own = device_stats::to_json(&own);
            all.extend(own.clone());
            task["ResourceUsage"]["DeviceStats"] = own.into();
        }
        total["DeviceStats"] = all.into();
    }
    Ok(answer(&json!({ "ResourceUsage": total, "Tasks": tasks, "Timestamp": host::clock::now_ns() }), query.pretty()))
}

/// The newest results of the checks, by id.
pub(super) async fn checks(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
) -> Result<Response, RequestError> {
    let (_, loop_handle) = find(&handle, &alloc)?;
    let view = loop_handle.view.borrow().clone();
    let results: BTreeMap<&str, &model::CheckResult> = view.checks.iter().map(|c| (&*c.id, c)).collect();
    Ok(answer(&results, query.pretty()))
}

/// Go ignores the case of keys and reads null as absent.
fn body<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, RequestError> {
    api::go_json::from_slice(bytes).map_err(|e| RequestError::Invalid(format!("Failed to decode body: {e}")))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct SignalBody {
    signal: String,
    task: String,
}

pub(super) async fn signal(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    bytes: Bytes,
) -> Result<Response, RequestError> {
    let (id, _) = find(&handle, &alloc)?;
    let asked: SignalBody = body(&bytes)?;
    let task = Some(asked.task.as_str()).filter(|t| !t.is_empty());
    let signal = if asked.signal.is_empty() { "SIGKILL" } else { &asked.signal };
    handle.signal(id, task, signal).await?;
    Ok(answer(&json!({ "Index": 0 }), false))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct RestartBody {
    task_name: String,
    all_tasks: bool,
}

pub(super) async fn restart(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
    query: Query,
    bytes: Bytes,
) -> Result<Response, RequestError> {
    let (id, loop_handle) = find(&handle, &alloc)?;
    let asked: RestartBody = if bytes.is_empty() { RestartBody::default() } else { body(&bytes)? };
    let task = Some(asked.task_name.as_str()).filter(|t| !t.is_empty());
    if task.is_some() && asked.all_tasks {
        return Err(RequestError::Invalid("Cannot specify a task name with all tasks set".into()));
    }
    let remote = loop_handle.view.borrow().remote.clone();
    // A server that passes the request on has ordered those already.
    if task.is_none() && !remote.is_empty() && !query.flag("local")? {
        let names: Vec<&str> = remote.iter().map(|t| &**t).collect();
        return Err(RequestError::Invalid(format!(
            "of this allocation {} lives in a remote runtime, where the servers order the restart: ask a server, or \
                use `remote restart`; other \
             tasks are restarted by name",
            names.join(", ")
        )));
    }
    handle.restart(id, task, asked.all_tasks).await?;
    Ok(answer(&json!({ "Index": 0 }), false))
}

pub(super) async fn gc(
    State(handle): State<ClientHandle>,
    Path(alloc): Path<String>,
) -> Result<Response, RequestError> {
    let (id, _) = find(&handle, &alloc)?;
    handle.collect(Some(id)).await?;
    Ok(text(StatusCode::OK, ""))
}

pub(super) async fn gc_all(State(handle): State<ClientHandle>) -> Result<Response, RequestError> {
    handle.collect(None).await?;
    Ok(text(StatusCode::OK, ""))
}

pub(super) async fn pause() -> Response {
    text(StatusCode::INTERNAL_SERVER_ERROR, "Enterprise only")
}

pub(super) async fn host_stats(State(handle): State<ClientHandle>, query: Query) -> Result<Response, RequestError> {
    let at = handle.clone();
    let sampled = blocking::spawn(move || host::stats::host(&at.config().alloc_dir, at.inner.cpu.core_mhz())).await;
    let mut sampled = sampled.map_err(|e| RequestError::Failed(e.to_string()))?;
    sampled["DeviceStats"] = device_stats::to_json(&device_stats::measured(&handle.inner.drivers).await).into();
    Ok(answer(&sampled, query.pretty()))
}

pub(super) async fn metadata(State(handle): State<ClientHandle>, query: Query) -> Response {
    answer(&handle.metadata().await, query.pretty())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct MetadataBody {
    meta: BTreeMap<String, Option<String>>,
}

pub(super) async fn change_metadata(
    State(handle): State<ClientHandle>,
    bytes: Bytes,
) -> Result<Response, RequestError> {
    // Keys of the map are free text, which stays as it is; null means removal here.
    let asked: MetadataBody = body(&bytes)?;
    if asked.meta.is_empty() {
        return Err(RequestError::Invalid("missing required Meta object".into()));
    }
    Ok(answer(&handle.change_metadata(asked.meta).await?, false))
}
