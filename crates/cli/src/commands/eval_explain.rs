//! `drover eval explain`: what an evaluation has decided, and why: which node won against which, who had to leave, who
//! found no room and what that waits for.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::{Context as _, Result};
use api::{call, shapes::AllocDetail};
use model::{EvalStatus, Evaluation, NodeId, metrics::NodeScore};
use serde_json::json;

use super::{ApiArgs, Format, alloc_show::significant, eval, id_prefix, placement, which_job::home};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
    when,
};

/// Placements that are explained; alike ones share an account.
const SHOWN: usize = 20;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    format: Format,
    /// Evaluation id or its prefix, or the name of a job: its newest evaluation
    #[arg(value_name = "EVAL|JOB")]
    id: String,
}

/// Explains it.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let found = match id_prefix(&args.id) {
        Ok(_) => eval::find(&conn, &args.id).await?,
        Err(_) => newest(&conn, &args.id).await?,
    };
    let allocs = conn.ask(call::eval_allocations(found.id)).await?;
    let touched = allocs.len();
    let mut details = Vec::new();
    for alloc in allocs.iter().take(SHOWN) {
        details.push(conn.ask(call::alloc(alloc.id)).await?);
    }
    if args.format.wanted() {
        args.format.print(&json!({"Evaluation": found, "Allocations": details}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in head(&found, when::now_ns()) {
        output::line(&line);
    }
    let mut names: BTreeMap<NodeId, String> = BTreeMap::new();
    for next in details.iter().filter_map(next_best) {
        if !names.contains_key(&next.node_id)
            && let Ok(node) = conn.ask(call::node(next.node_id)).await
        {
            names.insert(next.node_id, node.name.to_string());
        }
    }
    let (goes, stays): (Vec<_>, Vec<_>) = details.iter().partition(|a| a.server_terminal());
    if !stays.is_empty() {
        output::heading("Placed or changed");
        placed(&stays, &names).print();
    }
    if !goes.is_empty() {
        output::heading("Stopped since");
        let mut table = Table::new(["Alloc ID", "Name", "Why"]);
        for a in goes {
            table.row([a.id.short().to_string(), a.name.to_string(), a.desired_description.to_string()]);
        }
        table.print();
    }
    if touched > SHOWN {
        output::line(&format!("… and {} more", touched - SHOWN));
    }
    if !found.failed_groups.is_empty() {
        output::heading("Without a place");
        for line in placement::explained(&conn, &found.failed_groups).await {
            output::line(&line);
        }
    }
    for line in waits(&found) {
        output::line(&line);
    }
    Ok(ExitCode::SUCCESS)
}

/// The newest evaluation of a job.
async fn newest(conn: &Conn, job: &str) -> Result<Evaluation> {
    let all = home(conn, job).await?.ask(call::job_evaluations(job)).await?;
    let newest = all.into_iter().max_by_key(|e| e.create_index);
    newest.with_context(|| format!("no evaluation of a job {job:?}; `drover eval list` lists those that there are"))
}

/// What it is about.
fn head(e: &Evaluation, now: i64) -> Vec<String> {
    let described = match e.status_description.as_str() {
        "" => String::new(),
        text => format!(" ({text})"),
    };
    let about = match e.node_id.is_nil() {
        true => String::new(),
        false => format!(", because of node {}", e.node_id.short()),
    };
    vec![
        format!("Evaluation {} of job {:?}: {}{described}", e.id.short(), e.job_id.as_str(), lower(&e.status)),
        format!("    {}{about}, priority {}, {}", lower(&e.trigger), e.priority, when::ago(e.create_time, now)),
    ]
}

/// The best of the nodes that were not chosen.
fn next_best(a: &AllocDetail) -> Option<&NodeScore> {
    a.metrics.as_ref()?.score_meta_data.iter().find(|score| score.node_id != a.node_id)
}

/// The nodes that were chosen, each with its score and the next best.
fn placed(allocs: &[&AllocDetail], names: &BTreeMap<NodeId, String>) -> Table {
    let name = |id: &NodeId| names.get(id).cloned().unwrap_or_else(|| id.short().to_string());
    let mut table = Table::new(["Alloc ID", "Name", "Node", "Score", "Parts", "Next Best", "Displaces"]);
    for a in allocs {
        let scores = a.metrics.iter().flat_map(|m| &m.score_meta_data).collect::<Vec<&NodeScore>>();
        let own = scores.iter().find(|score| score.node_id == a.node_id);
        let parts = |score: &&&NodeScore| {
            let parts = score.scores.iter().map(|(part, value)| format!("{part} {}", significant(*value)));
            parts.collect::<Vec<_>>().join(", ")
        };
        let displaces = match a.preempted().len() {
            0 => String::new(),
            n => n.to_string(),
        };
        table.row([
            a.id.short().to_string(),
            a.name.to_string(),
            a.node_name.to_string(),
            own.map(|score| significant(score.norm_score)).unwrap_or_default(),
            own.as_ref().map(parts).unwrap_or_default(),
            next_best(a)
                .map(|score| format!("{} ({})", name(&score.node_id), significant(score.norm_score)))
                .unwrap_or_default(),
            displaces,
        ]);
    }
    table
}

/// What is left of it, and what it waits for.
fn waits(e: &Evaluation) -> Vec<String> {
    let mut lines = Vec::new();
    if !e.blocked_eval.is_nil() {
        lines.push(format!(
            "\nWhat has found no place waits in evaluation {}, until a node could take it.",
            e.blocked_eval.short()
        ));
    }
    if e.status == EvalStatus::Blocked {
        let able: Vec<&str> = e.class_eligibility.iter().filter(|(_, able)| **able).map(|(c, _)| c.as_str()).collect();
        lines.push(match (e.limit_reached.as_str(), e.escaped_computed_class, able.len()) {
            (namespace, ..) if !namespace.is_empty() => {
                format!("\nIt waits for room within the limits of namespace {namespace:?}.")
            }
            (_, true, _) => "\nIt waits for any change of the nodes.".to_owned(),
            (_, _, 0) => "\nIt waits for a node of another class: none of those that there are may run it.".to_owned(),
            (.., 1) => "\nIt waits for room on nodes of 1 class, or for a node of a new one.".to_owned(),
            (.., n) => format!("\nIt waits for room on nodes of {n} classes, or for a node of a new one."),
        });
    }
    if !e.next_eval.is_nil() {
        lines.push(format!("\nIt goes on as evaluation {}.", e.next_eval.short()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use api::go_json::from_value;

    use super::*;

    const NODE: &str = "11111111-0000-0000-0000-000000000000";
    const OTHER: &str = "22222222-0000-0000-0000-000000000000";

    #[test]
    fn the_chosen_node_stands_beside_the_next_best() {
        let score = |node: &str, norm: f64| json!({"NodeID": node, "Scores": {"binpack": norm}, "NormScore": norm});
        let alloc: AllocDetail = from_value(json!({
            "ID": "aaaaaaaa-0000-0000-0000-000000000000", "Name": "web.g[0]", "NodeID": NODE, "NodeName": "n1",
            "Preemption": {"PreemptedAllocations": [OTHER]},
            "Metrics": {"ScoreMetaData": [score(NODE, 0.75), score(OTHER, 0.5)]},
        }))
        .expect("an allocation");
        let names = [(OTHER.parse().expect("an id"), "n2".to_owned())].into();
        assert_eq!(
            placed(&[&alloc], &names).render()[1],
            "aaaaaaaa  web.g[0]  n1    0.75   binpack 0.75  n2 (0.5)   1"
        );
    }

    #[test]
    fn what_it_waits_for_is_told() {
        let of = |fields: serde_json::Value| waits(&from_value(fields).expect("an evaluation")).join("");
        assert_eq!(of(json!({"Status": "complete"})), "");
        assert!(of(json!({"Status": "complete", "BlockedEval": NODE})).contains("waits in evaluation 11111111"));
        assert!(of(json!({"Status": "blocked", "EscapedComputedClass": true})).contains("any change of the nodes"));
        assert!(of(json!({"Status": "blocked", "ClassEligibility": {"a": true, "b": false}})).contains("of 1 class,"));
        assert!(of(json!({"Status": "blocked", "ClassEligibility": {"b": false}})).contains("none of those"));
    }
}
