//! What a drain, or the loss of a node, would do to its allocations, for people.

use api::shapes::{NodePreview, PreviewedAlloc};

use super::placement;
use crate::{
    conn::Conn,
    output::{self, Table},
};

/// Prints it: one row for each allocation, then why some find no place.
pub(super) async fn show(conn: &Conn, preview: &NodePreview) {
    if preview.allocs.is_empty() {
        output::line("No allocation is affected: the node has none");
        return;
    }
    let mut table = Table::new(["Alloc ID", "Job ID", "Task Group", "What becomes of it", "Next Node"]);
    for alloc in &preview.allocs {
        let next = if alloc.next_node_id.is_nil() { "-" } else { &alloc.next_node_name };
        table.row([
            alloc.id.short().to_string(),
            alloc.job_id.to_string(),
            alloc.task_group.clone(),
            fate(alloc).to_owned(),
            next.to_owned(),
        ]);
    }
    table.print();
    let failed = preview.allocs.iter().filter_map(|alloc| Some((alloc.task_group.as_str(), alloc.failure.as_ref()?)));
    let mut told = Vec::new();
    for line in placement::explained(conn, failed).await {
        if !told.contains(&line) {
            output::line(&line);
            told.push(line);
        }
    }
}

fn fate(alloc: &PreviewedAlloc) -> &'static str {
    match alloc.fate.as_str() {
        "handed over" => "handed over, its remote tasks go on",
        "unmanaged" => "no manager for now, its remote tasks go on",
        "moved" => "interrupted, starts again",
        "waits" => "interrupted, waits for room",
        "ends" => "ends",
        "stays" => "stays",
        _ => "unknown to this release; see -json of /v1/node/:id/preview",
    }
}
