//! Why work found no place, in words: the rules that nodes did not meet, the room that they lack, and what is wrong
//! with the drivers.

use std::{collections::BTreeMap, sync::Arc};

use api::call;
use model::{AllocMetric, DriverInfo, EvalStatus, Evaluation};
use serde::Deserialize;

use crate::conn::Conn;

/// How the scheduler names a missing driver among the rules.
const MISSING: &str = "missing drivers: ";

/// Groups that found no room, with the account of it.
pub(crate) type FailedGroups = BTreeMap<Arc<str>, AllocMetric>;

/// What of a node explains a missing driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Node {
    name: String,
    status: String,
    drivers: BTreeMap<String, DriverInfo>,
}

/// Each group's reasons as lines. Nodes are asked for only when a driver is missing.
pub(crate) async fn explained<'a, K: AsRef<str> + 'a>(
    conn: &Conn,
    failed: impl IntoIterator<Item = (K, &'a AllocMetric)>,
) -> Vec<String> {
    let failed: Vec<_> = failed.into_iter().collect();
    let asks = failed.iter().any(|(_, m)| m.constraint_filtered.keys().any(|rule| rule.starts_with(MISSING)));
    // Best effort: without the nodes the rule itself is shown.
    let nodes: Vec<Node> = if asks { conn.ask(call::nodes().reading()).await.unwrap_or_default() } else { Vec::new() };
    failed.iter().flat_map(|(group, metric)| lines(group.as_ref(), metric, &nodes)).collect()
}

/// Why work of a job waits for room now. The evaluation that waits need not say it: then the last one that found none
/// does.
pub(crate) fn waiting(evals: &[Evaluation]) -> Option<&FailedGroups> {
    let blocked = evals.iter().find(|e| e.status == EvalStatus::Blocked)?;
    let latest = || evals.iter().filter(|e| !e.failed_groups.is_empty()).max_by_key(|e| e.modify_index);
    Some(&blocked).filter(|e| !e.failed_groups.is_empty()).copied().or_else(latest).map(|e| &e.failed_groups)
}

fn count(n: usize) -> String {
    format!("{n} node{}", if n == 1 { "" } else { "s" })
}

/// What is wrong with a driver on the nodes that are ready, one line for each reason.
fn driver_lines(driver: &str, nodes: &[Node]) -> Vec<String> {
    let mut unhealthy: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut absent = Vec::new();
    for node in nodes.iter().filter(|n| n.status == "ready") {
        match node.drivers.get(driver) {
            Some(d) if d.healthy => {}
            Some(d) if d.detected || !d.health_description.is_empty() => {
                unhealthy.entry(d.health_description.as_str()).or_default().push(&node.name);
            }
            _ => absent.push(node.name.as_str()),
        }
    }
    let mut lines: Vec<String> = unhealthy
        .iter()
        .map(|(why, on)| {
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            format!("  * {driver} unhealthy on {}{why}", count(on.len()))
        })
        .collect();
    if !absent.is_empty() {
        lines.push(format!("  * No driver {driver} on {}", count(absent.len())));
    }
    lines
}

/// Why a group found no room.
fn lines(group: &str, m: &AllocMetric, nodes: &[Node]) -> Vec<String> {
    let failures = m.coalesced_failures + 1;
    let mut lines = vec![format!(
        "Task Group {group:?} (failed to place {failures} allocation{}):",
        if m.coalesced_failures == 0 { "" } else { "s" }
    )];
    if m.nodes_evaluated == 0 && m.nodes_in_pool == 0 {
        lines.push("  * No nodes were eligible for evaluation".into());
    }
    for (dc, n) in &m.nodes_available {
        if *n == 0 {
            lines.push(format!("  * No nodes are available in datacenter {dc:?}"));
        }
    }
    for (class, n) in &m.class_filtered {
        lines.push(format!("  * Class {class:?}: {n} nodes excluded by filter"));
    }
    for (rule, n) in &m.constraint_filtered {
        let explained: Vec<String> = rule
            .strip_prefix(MISSING)
            .map(|drivers| drivers.split(", ").flat_map(|d| driver_lines(d, nodes)).collect())
            .unwrap_or_default();
        if explained.is_empty() {
            lines.push(format!("  * Constraint {rule:?}: {n} nodes excluded by filter"));
        } else {
            lines.extend(explained);
        }
    }
    if m.nodes_exhausted > 0 {
        lines.push(format!("  * Resources exhausted on {} nodes", m.nodes_exhausted));
    }
    for (class, n) in &m.class_exhausted {
        lines.push(format!("  * Class {class:?} exhausted on {n} nodes"));
    }
    for (what, n) in &m.dimension_exhausted {
        lines.push(format!("  * Dimension {what:?} exhausted on {n} nodes"));
    }
    lines.extend(m.quota_exhausted.iter().map(|limit| format!("  * Quota limit hit {limit:?}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_rule_and_resource() {
        let metric = AllocMetric {
            nodes_evaluated: 3,
            nodes_in_pool: 3,
            constraint_filtered: [("${attr.kernel.name} = windows".to_owned(), 2)].into(),
            nodes_exhausted: 1,
            dimension_exhausted: [("memory".to_owned(), 1)].into(),
            quota_exhausted: vec!["job_max_count".to_owned()],
            coalesced_failures: 4,
            ..AllocMetric::default()
        };
        assert_eq!(
            lines("web", &metric, &[]),
            [
                "Task Group \"web\" (failed to place 5 allocations):",
                "  * Constraint \"${attr.kernel.name} = windows\": 2 nodes excluded by filter",
                "  * Resources exhausted on 1 nodes",
                "  * Dimension \"memory\" exhausted on 1 nodes",
                "  * Quota limit hit \"job_max_count\"",
            ]
        );
        assert_eq!(lines("web", &AllocMetric::default(), &[])[1], "  * No nodes were eligible for evaluation");
    }

    fn node(driver: Option<(bool, &str)>) -> Node {
        let info = |(healthy, why): (bool, &str)| DriverInfo {
            detected: true,
            healthy,
            health_description: why.into(),
            ..DriverInfo::default()
        };
        let drivers = driver.map(|d| ("remote_exec".to_owned(), info(d))).into_iter().collect();
        Node { name: "n".into(), status: "ready".into(), drivers }
    }

    #[test]
    fn what_waits_for_room_says_why() {
        let eval = |status, index, groups: &[&str]| Evaluation {
            status,
            modify_index: index,
            failed_groups: groups.iter().map(|g| (Arc::from(*g), AllocMetric::default())).collect(),
            ..Evaluation::default()
        };
        let names = |evals: &[Evaluation]| {
            waiting(evals).map(|g| g.keys().map(ToString::to_string).collect::<Vec<_>>().join(","))
        };
        let told = eval(EvalStatus::Complete, 5, &["a"]);
        assert_eq!(
            names(&[eval(EvalStatus::Blocked, 6, &[]), told.clone(), eval(EvalStatus::Complete, 3, &["b"])]).as_deref(),
            Some("a")
        );
        assert_eq!(names(&[eval(EvalStatus::Blocked, 6, &["c"]), told.clone()]).as_deref(), Some("c"));
        assert_eq!(names(&[told]), None, "nothing waits any more");
    }

    #[test]
    fn a_missing_driver_is_explained_by_its_nodes() {
        let metric = AllocMetric {
            nodes_evaluated: 4,
            nodes_in_pool: 4,
            constraint_filtered: [("missing drivers: remote_exec".to_owned(), 3)].into(),
            ..AllocMetric::default()
        };
        let away = "no ssh server answers at 127.0.0.1:32222";
        let nodes = [node(Some((false, away))), node(Some((false, away))), node(None), node(Some((true, "Healthy")))];
        assert_eq!(
            lines("g", &metric, &nodes)[1..],
            [
                "  * remote_exec unhealthy on 2 nodes: no ssh server answers at 127.0.0.1:32222",
                "  * No driver remote_exec on 1 node"
            ]
        );
        // Nothing is known of the nodes: the rule is what there is to say.
        assert_eq!(
            lines("g", &metric, &[])[1],
            "  * Constraint \"missing drivers: remote_exec\": 3 nodes excluded by filter"
        );
    }
}
