//! Follows an evaluation, and the deployment that it belongs to, live: until the work is healthy, or it is clear why not.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use model::{AllocId, AllocMetric, Allocation, Deployment, DeploymentId, DeploymentStatus, EvalId, EvalStatus, Evaluation, TaskRunState};

use super::{Shape, eval::lower};
use crate::{conn::Conn, output, when};

/// Exit code when something was submitted but not everything found a place (as Nomad's CLI does).
const INCOMPLETE: u8 = 2;

fn say(text: &str) {
    let now = when::stamp(when::now_ns());
    output::line(&format!("    {}: {text}", now.get(11..19).unwrap_or(&now)));
}

/// Follows an evaluation to its end, then its deployment.
pub(crate) async fn follow(conn: &Conn, id: EvalId, shape: &Shape) -> Result<ExitCode> {
    let mut id = id;
    let mut code = ExitCode::SUCCESS;
    loop {
        output::line(&format!("==> Following evaluation {}", shape.id(id)));
        let eval = follow_eval(conn, id, shape).await?;
        if !eval.failed_groups.is_empty() {
            code = ExitCode::from(INCOMPLETE);
            output::line(&format!(
                "==> Evaluation {} finished with status \"{}\" but failed to place all allocations:",
                shape.id(id),
                lower(&eval.status)
            ));
            for (group, metric) in &eval.failed_groups {
                for text in placement_failure(group, metric) {
                    output::line(&format!("    {text}"));
                }
            }
            if !eval.blocked_eval.is_nil() {
                output::line(&format!("    Evaluation {} waits for room to place the rest", shape.id(eval.blocked_eval)));
            }
        } else if eval.status == EvalStatus::Canceled && !eval.next_eval.is_nil() {
            output::line(&format!("==> Evaluation {} was superseded by a newer one of the job", shape.id(id)));
        } else {
            output::line(&format!("==> Evaluation {} finished with status \"{}\"", shape.id(id), lower(&eval.status)));
        }
        if eval.status == EvalStatus::Failed {
            output::line(&format!("    {}", eval.status_description));
            return Ok(ExitCode::FAILURE);
        }
        // A rolling update without a deployment goes on in the next evaluation; one that waits for a time is left to itself.
        if !eval.next_eval.is_nil() && eval.deployment_id.is_nil() {
            let next: Evaluation = conn.get(&format!("/v1/evaluation/{}", eval.next_eval)).await?;
            if next.wait_until == 0 {
                id = next.id;
                continue;
            }
        }
        if eval.deployment_id.is_nil() {
            return Ok(code);
        }
        let deployed = follow_deployment(conn, eval.deployment_id, shape).await?;
        return Ok(if deployed == ExitCode::SUCCESS { code } else { deployed });
    }
}

async fn follow_eval(conn: &Conn, id: EvalId, shape: &Shape) -> Result<Evaluation> {
    let path = format!("/v1/evaluation/{id}");
    let mut index = 0;
    let mut placed: BTreeMap<AllocId, String> = BTreeMap::new();
    let mut announced = false;
    loop {
        let (eval, next): (Evaluation, u64) = conn.get_at(&path, index).await?;
        index = next;
        if !announced {
            say(&format!("Evaluation triggered by {}, job {:?}", lower(&eval.trigger), eval.job_id));
            announced = true;
        }
        let allocs: Vec<Allocation> = conn.get(&format!("/v1/evaluation/{id}/allocations")).await?;
        report_allocs(&allocs, &mut placed, shape);
        if eval.status.terminal() || eval.status == EvalStatus::Blocked {
            if !eval.deployment_id.is_nil() {
                say(&format!("Evaluation within deployment {}", shape.id(eval.deployment_id)));
            }
            return Ok(eval);
        }
    }
}

fn report_allocs(allocs: &[Allocation], known: &mut BTreeMap<AllocId, String>, shape: &Shape) {
    for a in allocs {
        let state = format!("{} {}", lower(&a.desired_status), lower(&a.client_status));
        let new = match known.insert(a.id, state.clone()) {
            None if a.desired_status == model::DesiredStatus::Run => {
                say(&format!("Allocation {} ({}) placed on node {} ({})", shape.id(a.id), a.name, shape.id(a.node_id), a.node_name));
                true
            }
            None => true,
            Some(old) => old != state,
        };
        if new && a.client_status != model::ClientStatus::Pending {
            say(&format!("Allocation {} ({}) is {}{}", shape.id(a.id), a.name, lower(&a.client_status), why_failed(a)));
        }
    }
}

/// The last thing that went wrong in an allocation's tasks.
fn why_failed(a: &Allocation) -> String {
    let failing = a.task_states.iter().filter(|(_, t)| t.failed || (t.state == TaskRunState::Pending && t.restarts > 0));
    let texts: Vec<String> = failing
        .filter_map(|(name, t)| {
            let event = t.events.iter().rev().find(|e| e.fails_task || !e.driver_error.is_empty() || e.kind == "Terminated")?;
            Some(format!("task {name}: {}", if event.display_message.is_empty() { &event.kind } else { &event.display_message }))
        })
        .collect();
    if texts.is_empty() { String::new() } else { format!(" ({})", texts.join("; ")) }
}

/// Follows a deployment to its end.
pub(crate) async fn follow_deployment(conn: &Conn, id: DeploymentId, shape: &Shape) -> Result<ExitCode> {
    output::line(&format!("==> Following deployment {}", shape.id(id)));
    let path = format!("/v1/deployment/{id}");
    let mut index = 0;
    let mut shown = String::new();
    let mut known: BTreeMap<AllocId, String> = BTreeMap::new();
    loop {
        let (d, next): (Deployment, u64) = conn.get_at(&path, index).await?;
        index = next;
        let groups: Vec<String> = d
            .groups
            .iter()
            .map(|(n, g)| {
                format!(
                    "{n}: {} placed, {} healthy, {} unhealthy of {}",
                    g.placed_allocs, g.healthy_allocs, g.unhealthy_allocs, g.desired_total
                )
            })
            .collect();
        let text = groups.join("; ");
        if text != shown {
            say(&text);
            shown = text;
        }
        let allocs: Vec<Allocation> = conn.get(&format!("/v1/deployment/allocations/{id}")).await?;
        report_allocs(&allocs, &mut known, shape);
        if !d.status.active() {
            output::line(&format!("==> Deployment {} is {}: {}", shape.id(id), lower(&d.status), d.status_description));
            return Ok(if d.status == DeploymentStatus::Successful { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if d.status == DeploymentStatus::Paused {
            output::line(&format!("==> Deployment {} is paused", shape.id(id)));
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Why a group found no room, as lines.
pub(crate) fn placement_failure(group: &str, m: &AllocMetric) -> Vec<String> {
    let mut lines = vec![format!(
        "Task Group {group:?} (failed to place {} allocation{}):",
        m.coalesced_failures + 1,
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
        lines.push(format!("  * Constraint {rule:?}: {n} nodes excluded by filter"));
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
    lines
}

#[cfg(test)]
mod tests {
    use model::AllocMetric;

    use super::placement_failure;

    #[test]
    fn failures_name_rule_and_resource() {
        let metric = AllocMetric {
            nodes_evaluated: 3,
            nodes_in_pool: 3,
            constraint_filtered: [("${attr.kernel.name} = windows".to_owned(), 2)].into(),
            nodes_exhausted: 1,
            dimension_exhausted: [("memory".to_owned(), 1)].into(),
            coalesced_failures: 4,
            ..AllocMetric::default()
        };
        assert_eq!(
            placement_failure("web", &metric),
            [
                "Task Group \"web\" (failed to place 5 allocations):",
                "  * Constraint \"${attr.kernel.name} = windows\": 2 nodes excluded by filter",
                "  * Resources exhausted on 1 nodes",
                "  * Dimension \"memory\" exhausted on 1 nodes",
            ]
        );
        assert_eq!(placement_failure("web", &AllocMetric::default())[1], "  * No nodes were eligible for evaluation");
    }
}
