//! What `drover alloc status` says of one allocation.

use std::{collections::BTreeSet, process::ExitCode};

use anyhow::Result;
use api::{
    call,
    shapes::{AllocDetail, AllocResourceUsage, ResourceUsage},
};
use model::{Allocation, Task, TaskState, metrics::AllocMetric};

use super::{Shape, device_stats, rolling, stats};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
    when,
};

/// What of an allocation is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    /// Only one line for each task.
    pub(crate) short: bool,
    /// Also all that is measured.
    pub(crate) stats: bool,
}

/// Shows an allocation; the id is complete.
pub(crate) async fn show(conn: &Conn, shape: &Shape, id: &str, parts: Parts) -> Result<ExitCode> {
    if shape.format.wanted() {
        return conn.show(&shape.format, call::alloc(id)).await;
    }
    let a = conn.ask(call::alloc(id)).await?;
    let now = when::now_ns();
    let time = |ns| if shape.verbose { when::stamp(ns) } else { when::ago(ns, now) };
    if parts.short {
        output::pairs(&[
            ("ID", a.id.to_string()),
            ("Name", a.name.to_string()),
            ("Created", time(a.create_time)),
            ("Modified", time(a.modify_time)),
        ]);
        output::heading("Tasks");
        in_short(&a).print();
        return Ok(ExitCode::SUCCESS);
    }
    output::pairs(&facts(&a, shape, time));
    if !a.resources.shared.ports.is_empty() {
        addresses(&a);
    }
    let causes = super::cause::of_alloc(conn, &a).await;
    if !causes.is_empty() {
        output::heading("What Went Wrong");
        for text in causes {
            output::line(&text);
        }
    }
    if !a.client_terminal() {
        super::alloc_checks::summary(conn, a.id).await;
    }
    for task in &a.extra.remote_tasks {
        output::heading(&format!("Task {:?} is Remote", &*task.slot.task));
        output::pairs(&super::remote::summary(task, shape));
    }
    // Its node may be away, or may not know it any more.
    let used = match a.client_terminal() {
        false => conn.ask(call::alloc_stats(a.id)).await.unwrap_or_default(),
        true => AllocResourceUsage::default(),
    };
    for (name, state) in in_order(&a) {
        let used = used.tasks.get(name).and_then(|task| task.resource_usage.as_ref());
        show_task(&a, name, state, used);
        if parts.stats {
            measured(used);
        }
        show_events(state);
    }
    if shape.verbose
        && let Some(metrics) = &a.metrics
        && !metrics.score_meta_data.is_empty()
    {
        output::heading("Placement Metrics");
        scores(metrics).print();
    }
    Ok(ExitCode::SUCCESS)
}

fn facts(a: &Allocation, shape: &Shape, time: impl Fn(i64) -> String) -> Vec<(&'static str, String)> {
    let health = match a.healthy() {
        Some(true) => "healthy",
        Some(false) => "unhealthy",
        None => "unset",
    };
    let mut rows = vec![
        ("ID", a.id.to_string()),
        ("Eval ID", shape.id(a.eval_id)),
        ("Name", a.name.to_string()),
        ("Node ID", shape.id(a.node_id)),
        ("Node Name", a.node_name.to_string()),
        ("Job ID", a.job_id.to_string()),
        ("Job Version", a.job_version.to_string()),
        ("Client Status", lower(&a.client_status)),
        ("Client Description", a.client_description.to_string()),
        ("Desired Status", lower(&a.desired_status)),
        ("Desired Description", a.desired_description.to_string()),
        ("Created", time(a.create_time)),
        ("Modified", time(a.modify_time)),
    ];
    if !a.deployment_id.is_nil() {
        rows.extend([("Deployment ID", shape.id(a.deployment_id)), ("Deployment Health", health.to_owned())]);
    }
    if let Some(text) = rolling::of_alloc(a) {
        rows.push(("Rolling Restart", text.to_owned()));
    }
    if !a.next_allocation.is_nil() {
        rows.push(("Replacement Alloc ID", shape.id(a.next_allocation)));
    }
    if let Some(metrics) = a.metrics.as_ref().filter(|_| shape.verbose) {
        rows.extend([
            ("Evaluated Nodes", metrics.nodes_evaluated.to_string()),
            ("Filtered Nodes", metrics.nodes_filtered.to_string()),
            ("Exhausted Nodes", metrics.nodes_exhausted.to_string()),
            ("Allocation Time", model::GoDuration(metrics.allocation_time).to_string()),
            ("Failures", metrics.coalesced_failures.to_string()),
        ]);
    }
    rows
}

fn addresses(a: &AllocDetail) {
    let networks = || a.extra.job.iter().flat_map(|job| &job.task_groups).filter(|g| *g.name == *a.task_group);
    let mode = networks().flat_map(|g| &g.networks).map(|n| n.mode.as_str()).find(|mode| !mode.is_empty());
    let mut fixed = networks().flat_map(|g| &g.networks).flat_map(|n| &n.reserved_ports);
    output::heading(&format!("Allocation Addresses (mode = {:?}):", mode.unwrap_or("host")));
    let mut table = Table::new(["Label", "Dynamic", "Address"]);
    for p in &a.resources.shared.ports {
        let to = if p.to > 0 { format!(" -> {}", p.to) } else { String::new() };
        let dynamic = if fixed.any(|port| port.label == p.label) { "no" } else { "yes" };
        table.row([format!("*{}", p.label), dynamic.to_owned(), format!("{}:{}{to}", p.host_ip, p.value)]);
    }
    table.print();
}

/// The task of the job, if the allocation has its job.
fn task<'a>(a: &'a AllocDetail, name: &str) -> Option<&'a Task> {
    let groups = a.extra.job.iter().flat_map(|job| &job.task_groups).filter(|g| *g.name == *a.task_group);
    groups.flat_map(|g| &g.tasks).find(|task| *task.name == *name)
}

/// When a task runs beside the main ones, in words; empty = it is a main one.
fn lifecycle(a: &AllocDetail, name: &str) -> String {
    let lifecycle = task(a, name).and_then(|task| task.lifecycle.as_ref());
    let Some(lifecycle) = lifecycle.filter(|lifecycle| !lifecycle.hook.is_empty()) else { return String::new() };
    format!("{}{}", lifecycle.hook, if lifecycle.sidecar { " sidecar" } else { "" })
}

/// The tasks as they are shown: those that prepare or follow, sidecars, and the main ones at last.
fn in_order(a: &AllocDetail) -> Vec<(&str, &TaskState)> {
    let mut tasks: Vec<(&str, &TaskState)> = a.task_states.iter().map(|(name, state)| (&**name, state)).collect();
    tasks.sort_by_cached_key(|(name, _)| {
        let lifecycle = lifecycle(a, name);
        (lifecycle.is_empty(), lifecycle.ends_with(" sidecar"), (*name).to_owned())
    });
    tasks
}

fn in_short(a: &AllocDetail) -> Table {
    let mut table = Table::new(["Name", "State", "Last Event", "Time", "Lifecycle"]);
    for (name, state) in in_order(a) {
        let (kind, time) = state.events.last().map_or(("", 0), |event| (&*event.kind, event.time));
        let lifecycle = lifecycle(a, name);
        let lifecycle = if lifecycle.is_empty() { "main".to_owned() } else { lifecycle };
        table.row([name.to_owned(), lower(&state.state), kind.to_owned(), when::stamp(time), lifecycle]);
    }
    table
}

/// A time of a task; it may not have come.
fn time(text: &str) -> String {
    match when::whole(text) {
        unset if unset.is_empty() => "N/A".to_owned(),
        time => time,
    }
}

fn show_task(a: &AllocDetail, name: &str, state: &TaskState, used: Option<&ResourceUsage>) {
    let lifecycle = lifecycle(a, name);
    let lifecycle = if lifecycle.is_empty() { lifecycle } else { format!(" ({lifecycle})") };
    output::heading(&format!("Task {name:?}{lifecycle} is \"{}\"", lower(&state.state)));
    if let Some(given) = a.resources.tasks.get(name) {
        output::line(if given.remote { "Task Resources, at its provider:" } else { "Task Resources:" });
        let ticks = used.and_then(|used| used.cpu_stats.as_ref()).map(|cpu| format!("{:.0}/", cpu.total_ticks.floor()));
        let memory = used.and_then(|used| used.memory_stats.as_ref()).map(stats::memory_in_use);
        let memory = memory.map(|bytes| format!("{}/", output::size(bytes)));
        let mut table = Table::new(["CPU", "Memory", "Disk", "Addresses"]);
        table.row([
            format!("{}{} MHz", ticks.unwrap_or_default(), given.cpu.cpu_shares),
            format!("{}{}", memory.unwrap_or_default(), output::mib(given.memory.memory_mb)),
            output::mib(a.resources.shared.disk_mb),
            " ".to_owned(),
        ]);
        table.print();
    }
    let devices = used.map_or(&[] as &[_], |used| &used.device_stats);
    if !devices.is_empty() {
        output::heading("Device Stats");
        device_stats::summaries(devices).iter().for_each(|text| output::line(text));
    }
}

/// Prints all that is measured of a task.
fn measured(used: Option<&ResourceUsage>) {
    let tables = used.map(stats::of_task).unwrap_or_default();
    if tables.is_empty() {
        output::line("\nNothing of it is measured now");
    }
    for (title, table) in tables {
        output::heading(title);
        table.print();
    }
    let devices = used.map_or(&[] as &[_], |used| &used.device_stats);
    if !devices.is_empty() {
        output::heading("Device Stats");
        device_stats::print(devices);
    }
}

fn show_events(state: &TaskState) {
    output::line("");
    output::line("Task Events:");
    output::pairs(&[
        ("Started At", time(&state.started_at.to_string())),
        ("Finished At", time(&state.finished_at.to_string())),
        ("Total Restarts", state.restarts.to_string()),
        ("Last Restart", time(&state.last_restart.to_string())),
    ]);
    if !state.restart_charges.is_none() {
        output::line("");
        output::line("Restart Attempts Spent:");
        let mut table = Table::new(["Time", "Cause"]);
        for charge in state.restart_charges.iter().rev() {
            table.row([when::stamp(charge.time), charge.cause.to_string()]);
        }
        table.print();
    }
    output::line("");
    output::line("Recent Events:");
    let mut table = Table::new(["Time", "Type", "Description"]);
    for e in state.events.iter().rev() {
        table.row([when::stamp(e.time), e.kind.clone(), e.display_message.clone()]);
    }
    table.print();
}

/// How the best nodes scored, a column for each part of the score.
fn scores(metrics: &AllocMetric) -> Table {
    let parts: BTreeSet<&str> =
        metrics.score_meta_data.iter().flat_map(|node| node.scores.keys()).map(|part| &**part).collect();
    let header = parts.iter().copied();
    let mut table = Table::new(["Node"].into_iter().chain(header).chain(["final score"]));
    for node in &metrics.score_meta_data {
        let of = |part: &&str| node.scores.get(*part).copied().unwrap_or_default();
        let parts = parts.iter().map(of).chain([node.norm_score]).map(significant);
        table.row([node.node_id.to_string()].into_iter().chain(parts));
    }
    table
}

/// A number with three significant digits.
pub(crate) fn significant(number: f64) -> String {
    #[allow(clippy::cast_possible_truncation, reason = "the exponent of a float is small")]
    let digits = if number == 0.0 { 0 } else { (2 - number.abs().log10().floor() as i32).clamp(0, 12) };
    let text = format!("{number:.*}", usize::try_from(digits).unwrap_or(0));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn alloc() -> AllocDetail {
        let task = |name: &str, lifecycle: serde_json::Value| json!({"Name": name, "Lifecycle": lifecycle});
        let state = |kind: &str| json!({"State": "running", "Events": [{"Type": kind, "Time": 1_000_000_000}]});
        api::go_json::from_value(json!({
            "TaskGroup": "g",
            "Job": {"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [
                task("a-main", json!(null)),
                task("b-side", json!({"Hook": "prestart", "Sidecar": true})),
                task("c-after", json!({"Hook": "poststop"})),
                task("d-before", json!({"Hook": "prestart"})),
            ]}]},
            "TaskStates": {"a-main": state("Started"), "b-side": state("Started"), "c-after": state("Received"),
                "d-before": state("Terminated")},
        }))
        .expect("an allocation")
    }

    #[test]
    fn main_tasks_come_last_and_each_has_its_line() {
        assert_eq!(
            in_short(&alloc()).render(),
            [
                "Name      State    Last Event  Time                  Lifecycle",
                "c-after   running  Received    1970-01-01T00:00:01Z  poststop",
                "d-before  running  Terminated  1970-01-01T00:00:01Z  prestart",
                "b-side    running  Started     1970-01-01T00:00:01Z  prestart sidecar",
                "a-main    running  Started     1970-01-01T00:00:01Z  main",
            ]
        );
    }

    #[test]
    fn each_part_of_a_score_has_a_column() {
        let metrics: AllocMetric = api::go_json::from_value(json!({"ScoreMetaData": [
            {"NodeID": "00000000-0000-0000-0000-000000000001", "Scores": {"binpack": 0.013_86}, "NormScore": 0.013_86},
            {"NodeID": "00000000-0000-0000-0000-000000000002", "Scores": {"job-anti-affinity": -0.5}, "NormScore": 1.0}
        ]}))
        .expect("metrics");
        let rows = scores(&metrics).render();
        assert!(rows[0].ends_with("binpack  job-anti-affinity  final score"), "{rows:?}");
        assert!(rows[1].ends_with("0.0139   0                  0.0139"), "{rows:?}");
        assert!(rows[2].ends_with("0        -0.5               1"), "{rows:?}");
    }
}
