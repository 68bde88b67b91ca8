//! `drover deployment list|status|promote|fail|pause|resume`.

use std::process::ExitCode;

use anyhow::Result;
use api::shapes::DeploymentUpdateResponse;
use model::Deployment;

use super::{ApiArgs, Shape, eval::lower, find_by_prefix};
use crate::{
    conn::Conn,
    output::{self, Table},
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List deployments
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show one deployment
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Follow it until it has ended
        #[arg(long)]
        monitor: bool,
        /// The deployment; without one, all are listed
        id: Option<String>,
    },
    /// Roll the version out whose canaries are healthy
    Promote {
        #[command(flatten)]
        change: Change,
        /// Only these groups; may be given several times
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
    },
    /// Give a deployment up; its job returns to its last stable version if it says so
    Fail(Change),
    /// Place nothing more for now
    Pause(Change),
    /// Go on with what was paused
    Resume(Change),
}

/// What each verb takes that changes a deployment.
#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    #[command(flatten)]
    api: ApiArgs,
    /// Do not follow what comes of it
    #[arg(long)]
    detach: bool,
    /// Print identifiers in full
    #[arg(long)]
    verbose: bool,
    /// The deployment
    id: String,
}

impl Change {
    fn shape(&self) -> Shape {
        Shape { json: false, verbose: self.verbose }
    }
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, shape } | Command::Status { api, shape, id: None, .. } => list(&api.conn()?, &shape).await,
        Command::Status { api, shape, id: Some(id), monitor } => {
            let conn = api.conn()?;
            let found = find(&conn, &id).await?;
            if monitor {
                return super::monitor::follow_deployment(&conn, found.id, &shape).await;
            }
            let path = format!("/v1/deployment/{}", found.id);
            if shape.json {
                return conn.print(&path).await;
            }
            show(&conn.get::<Deployment>(&path).await?, &shape);
            Ok(ExitCode::SUCCESS)
        }
        Command::Promote { change, group } => {
            let conn = change.api.conn()?;
            let id = find(&conn, &change.id).await?.id;
            super::job::promoted(&conn, id, group, change.detach, &change.shape()).await
        }
        Command::Fail(change) => {
            let conn = change.api.conn()?;
            let (id, shape) = (find(&conn, &change.id).await?.id, change.shape());
            let answer: DeploymentUpdateResponse = conn.put(&format!("/v1/deployment/fail/{id}"), &serde_json::json!({})).await?;
            output::line(&format!("Deployment {} is failed", shape.id(id)));
            if let Some(version) = answer.reverted_job_version {
                output::line(&format!("Its job returns to version {version}"));
            }
            // That it ends as failed is what was asked for.
            followed(&conn, &answer, change.detach, &shape).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Pause(change) => pause(&change, true).await,
        Command::Resume(change) => pause(&change, false).await,
    }
}

/// Holds a deployment, or lets it go on.
async fn pause(change: &Change, hold: bool) -> Result<ExitCode> {
    let conn = change.api.conn()?;
    let (id, shape) = (find(&conn, &change.id).await?.id, change.shape());
    let body = serde_json::json!({"DeploymentID": id.to_string(), "Pause": hold});
    let answer: DeploymentUpdateResponse = conn.put(&format!("/v1/deployment/pause/{id}"), &body).await?;
    output::line(&format!("Deployment {} {}", shape.id(id), if hold { "is paused" } else { "goes on" }));
    if hold { Ok(ExitCode::SUCCESS) } else { followed(&conn, &answer, change.detach, &shape).await }
}

/// Follows what came of a change.
pub(crate) async fn followed(conn: &Conn, answer: &DeploymentUpdateResponse, detach: bool, shape: &Shape) -> Result<ExitCode> {
    if answer.eval_id.is_nil() {
        return Ok(ExitCode::SUCCESS);
    }
    if detach {
        output::line(&format!("Evaluation ID: {}", answer.eval_id));
        return Ok(ExitCode::SUCCESS);
    }
    super::monitor::follow(conn, answer.eval_id, shape).await
}

/// The deployment that begins with a prefix.
pub(crate) async fn find(conn: &Conn, prefix: &str) -> Result<Deployment> {
    // In full: what people are to do is give more of an id.
    let shape = Shape { verbose: true, ..Shape::default() };
    find_by_prefix(conn, "/v1/deployments", prefix, "deployment", |d: &Deployment| d.id.to_string(), |all| rows(all, &shape)).await
}

async fn list(conn: &Conn, shape: &Shape) -> Result<ExitCode> {
    if shape.json {
        return conn.print("/v1/deployments").await;
    }
    let all: Vec<Deployment> = conn.get("/v1/deployments").await?;
    table(all, shape);
    Ok(ExitCode::SUCCESS)
}

/// Prints deployments, the newest first.
pub(crate) fn table(all: Vec<Deployment>, shape: &Shape) {
    let table = rows(all, shape);
    if table.is_empty() { output::line("No deployments found") } else { table.print() }
}

/// Deployments as rows, the newest first.
fn rows(mut all: Vec<Deployment>, shape: &Shape) -> Table {
    all.sort_by_key(|d| std::cmp::Reverse((d.create_index, d.id)));
    let mut table = Table::new(["ID", "Namespace", "Job ID", "Job Version", "Status", "Description"]);
    for d in &all {
        table.row([
            shape.id(d.id),
            d.namespace.to_string(),
            d.job_id.to_string(),
            d.job_version.to_string(),
            lower(&d.status),
            d.status_description.clone(),
        ]);
    }
    table
}

/// What a deployment's canaries wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promotion {
    /// Nothing: there are none, they are promoted, or they will be without anybody's help.
    None,
    /// Their own health; then for somebody.
    Later,
    /// Somebody who promotes them.
    Awaited,
}

/// Whether somebody has to promote the canaries.
pub(crate) fn promotion(d: &Deployment) -> Promotion {
    if !d.status.active() {
        return Promotion::None;
    }
    // All groups are promoted together, so the slowest decides.
    let mut all = Promotion::None;
    for g in d.groups.values().filter(|g| g.desired_canaries > 0 && !g.promoted && !g.auto_promote) {
        if g.healthy_allocs < g.desired_canaries {
            return Promotion::Later;
        }
        all = Promotion::Awaited;
    }
    all
}

/// The command that promotes a deployment's canaries.
pub(crate) fn promote_command(id: model::DeploymentId, shape: &Shape) -> String {
    format!("drover deployment promote {}", shape.id(id))
}

/// Prints a deployment with its groups.
pub(crate) fn show(d: &Deployment, shape: &Shape) {
    output::pairs(&[
        ("ID", shape.id(d.id)),
        ("Job ID", d.job_id.to_string()),
        ("Job Version", d.job_version.to_string()),
        ("Status", lower(&d.status)),
        ("Description", d.status_description.clone()),
    ]);
    output::heading("Deployed");
    let mut table = Table::new(["Task Group", "Promoted", "Desired", "Canaries", "Placed", "Healthy", "Unhealthy", "Progress Deadline"]);
    for (name, g) in &d.groups {
        table.row([
            name.to_string(),
            if g.desired_canaries > 0 { g.promoted.to_string() } else { "N/A".to_owned() },
            g.desired_total.to_string(),
            g.desired_canaries.to_string(),
            g.placed_allocs.to_string(),
            g.healthy_allocs.to_string(),
            g.unhealthy_allocs.to_string(),
            if g.require_progress_by.is_empty() { "N/A".to_owned() } else { g.require_progress_by.clone() },
        ]);
    }
    table.print();
    match promotion(d) {
        Promotion::None => {}
        Promotion::Later => {
            output::line("\nThe canaries are not healthy yet. Once they are, the rest waits for their promotion.");
        }
        Promotion::Awaited => {
            output::line("\nThe canaries are healthy; the rest waits for their promotion.");
            output::line(&format!("next: {}", promote_command(d.id, shape)));
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{DeploymentGroup, DeploymentStatus};

    use super::*;

    #[test]
    fn promotion_is_awaited_once_all_canaries_are_healthy() {
        let group = |canaries, healthy, promoted, auto| DeploymentGroup {
            desired_canaries: canaries,
            healthy_allocs: healthy,
            promoted,
            auto_promote: auto,
            ..DeploymentGroup::default()
        };
        for (groups, wanted) in [
            (vec![group(0, 0, false, false)], Promotion::None),
            (vec![group(1, 0, false, false)], Promotion::Later),
            (vec![group(1, 1, false, false)], Promotion::Awaited),
            (vec![group(1, 1, true, false)], Promotion::None),
            (vec![group(1, 1, false, true)], Promotion::None),
            (vec![group(1, 1, false, false), group(2, 1, false, false)], Promotion::Later),
            (vec![group(1, 1, false, false), group(0, 3, false, false)], Promotion::Awaited),
        ] {
            let groups = groups.into_iter().enumerate().map(|(i, g)| (i.to_string().into(), g)).collect();
            let d = Deployment { groups, ..Deployment::default() };
            assert_eq!(promotion(&d), wanted, "{d:?}");
            let ended = Deployment { status: DeploymentStatus::Failed, ..d };
            assert_eq!(promotion(&ended), Promotion::None);
        }
    }
}
