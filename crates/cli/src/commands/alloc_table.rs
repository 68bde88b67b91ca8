//! Allocations as rows.

use model::Allocation;

use super::Shape;
use crate::{
    output::{Table, lower},
    when,
};

/// A table of allocations, newest first.
pub(crate) fn table(allocs: &[Allocation], shape: &Shape) -> Table {
    let mut sorted: Vec<&Allocation> = allocs.iter().collect();
    sorted.sort_by_key(|a| std::cmp::Reverse(a.create_index));
    let mut table =
        Table::new(["ID", "Node", "Job", "Task Group", "Index", "Version", "Desired", "Status", "Created", "Modified"]);
    let now = when::now_ns();
    for a in sorted {
        table.row([
            shape.id(a.id),
            if a.node_name.is_empty() { shape.id(a.node_id) } else { a.node_name.to_string() },
            a.job_id.to_string(),
            a.task_group.to_string(),
            a.index().to_string(),
            a.job_version.to_string(),
            lower(&a.desired_status),
            lower(&a.client_status),
            when::ago(a.create_time, now),
            when::ago(a.modify_time, now),
        ]);
    }
    table
}
