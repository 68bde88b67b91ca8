//! Allocations as rows.

use model::Allocation;

use super::Shape;
use crate::{
    output::{Table, lower},
    when,
};

/// A table of allocations, newest first, with the columns of Nomad's command line, and names behind them.
pub(crate) fn table(allocs: &[Allocation], shape: &Shape) -> Table {
    of(allocs, shape, true)
}

/// The same of one node.
pub(crate) fn of_node(allocs: &[Allocation], shape: &Shape) -> Table {
    of(allocs, shape, false)
}

fn of(allocs: &[Allocation], shape: &Shape, named: bool) -> Table {
    let mut sorted: Vec<&Allocation> = allocs.iter().collect();
    sorted.sort_by_key(|a| std::cmp::Reverse(a.create_index));
    let common = ["Task Group", "Version", "Desired", "Status", "Created", "Modified", "Name"];
    let node_name: &[&str] = if named && !shape.verbose { &["Node Name"] } else { &[] };
    let ids: &[&str] = match (shape.verbose, named) {
        (false, _) => &["ID", "Node ID"],
        (true, true) => &["ID", "Eval ID", "Node ID", "Node Name"],
        (true, false) => &["ID", "Eval ID", "Node ID"],
    };
    let mut table = Table::new(ids.iter().chain(&common).chain(node_name).copied());
    let now = when::now_ns();
    let time = |ns| if shape.verbose { when::stamp(ns) } else { when::ago(ns, now) };
    for a in sorted {
        let ids = match (shape.verbose, named) {
            (false, _) => vec![shape.id(a.id), shape.id(a.node_id)],
            (true, true) => {
                vec![shape.id(a.id), shape.id(a.eval_id), shape.id(a.node_id), a.node_name.to_string()]
            }
            (true, false) => vec![shape.id(a.id), shape.id(a.eval_id), shape.id(a.node_id)],
        };
        let common = [
            a.task_group.to_string(),
            a.job_version.to_string(),
            lower(&a.desired_status),
            lower(&a.client_status),
            time(a.create_time),
            time(a.modify_time),
            a.name.to_string(),
        ];
        let node_name = node_name.iter().map(|_| a.node_name.to_string());
        table.row(ids.into_iter().chain(common).chain(node_name));
    }
    table
}
