//! `drover deployment list|status|promote|fail|pause|resume`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{
    call,
    shapes::{DeploymentPauseRequest, DeploymentPromoteRequest, DeploymentUpdateResponse},
};
use model::{Deployment, DeploymentId, GoDuration};

use super::{
    ApiArgs, Page, Shape, find_by_prefix, id_prefix,
    pages::{Also, deployments_page},
    promotion,
    which_job::home,
};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
    when,
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
        #[command(flatten)]
        page: Page,
    },
    /// Show one deployment
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Follow it to its end
        #[arg(long)]
        monitor: bool,
        /// Without effect, see `absent`
        #[arg(long, value_name = "DURATION", hide = true)]
        wait: Option<GoDuration>,
        #[command(flatten)]
        also: Also,
        /// Deployment id or its prefix, or the name of its job; default: list all
        id: Option<String>,
    },
    /// Promote the canaries of a deployment and roll out their version
    Promote {
        #[command(flatten)]
        change: Change,
        /// Promote only this group; repeatable
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
    },
    /// Fail a deployment; with `auto_revert` its job returns to the last stable version
    Fail(Change),
    /// Pause a deployment
    Pause(Change),
    /// Resume a paused deployment
    Resume(Change),
}

/// What each verb takes that changes a deployment.
#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    #[command(flatten)]
    api: ApiArgs,
    /// Return at once instead of following the result
    #[arg(long)]
    detach: bool,
    /// Print identifiers in full
    #[arg(long)]
    verbose: bool,
    /// Deployment id or its prefix, or the name of its job
    id: String,
}

impl Change {
    fn shape(&self) -> Shape {
        Shape { verbose: self.verbose, ..Shape::default() }
    }
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, shape, page } => list(&api.conn()?, &shape, &page).await,
        Command::Status { api, shape, id: None, also, .. } => {
            let conn = api.conn()?;
            // There is no page of all deployments.
            also.open(&conn, "jobs").await;
            list(&conn, &shape, &Page::default()).await
        }
        Command::Status { api, shape, id: Some(id), monitor, also, .. } => {
            let conn = api.conn()?;
            let found = find(&conn, &id).await?;
            also.open(&conn, &deployments_page(&found)).await;
            if monitor {
                return super::monitor::follow_deployment(&conn, found.id, &shape).await;
            }
            show_one(&conn, found.id, &shape).await
        }
        Command::Promote { change, group } => {
            let conn = change.api.conn()?;
            let id = find(&conn, &change.id).await?.id;
            promoted(&conn, id, group, change.detach, &change.shape()).await
        }
        Command::Fail(change) => {
            let conn = change.api.conn()?;
            let (id, shape) = (find(&conn, &change.id).await?.id, change.shape());
            let answer = conn.ask(call::deployment_fail(id)).await?;
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
    let request = DeploymentPauseRequest { deployment_id: id.to_string(), pause: hold };
    let answer = conn.ask(call::deployment_pause(id, &request)).await?;
    output::line(&format!("Deployment {} {}", shape.id(id), if hold { "is paused" } else { "goes on" }));
    if hold { Ok(ExitCode::SUCCESS) } else { followed(&conn, &answer, change.detach, &shape).await }
}

/// Follows what came of a change.
pub(crate) async fn followed(
    conn: &Conn,
    answer: &DeploymentUpdateResponse,
    detach: bool,
    shape: &Shape,
) -> Result<ExitCode> {
    if answer.eval_id.is_nil() {
        return Ok(ExitCode::SUCCESS);
    }
    if detach {
        output::line(&format!("Evaluation ID: {}", answer.eval_id));
        return Ok(ExitCode::SUCCESS);
    }
    super::monitor::follow(conn, answer.eval_id, shape).await
}

/// The deployment that begins with a prefix, or the latest one of the job of that name.
pub(crate) async fn find(conn: &Conn, prefix: &str) -> Result<Deployment> {
    if id_prefix(prefix).is_err() {
        let latest = home(conn, prefix).await?.ask(call::job_deployment(prefix)).await?;
        let Some(latest) = latest else {
            bail!(
                "no deployment id starts with {prefix:?}, and no job of that name has one\n`drover deployment list` \
                    lists the deployments."
            )
        };
        return Ok(latest);
    }
    // In full: what people are to do is give more of an id.
    let shape = Shape { verbose: true, ..Shape::default() };
    find_by_prefix(
        conn,
        call::deployments(),
        prefix,
        "deployment",
        |d: &Deployment| d.id.to_string(),
        |all| rows(all, &shape),
    )
    .await
}

async fn list(conn: &Conn, shape: &Shape, page: &Page) -> Result<ExitCode> {
    // The newest first.
    let deployments = call::deployments().with("reverse", true);
    let next = if shape.format.wanted() {
        page.show(conn, &shape.format, deployments).await?
    } else {
        let (all, next) = page.of(conn, deployments).await?;
        table(all, shape);
        next
    };
    Page::rest(&next);
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
    let several = all.iter().any(|d| Some(&d.namespace) != all.first().map(|first| &first.namespace));
    let namespace: &[&str] = if several { &["Namespace"] } else { &[] };
    let mut table = Table::new([&["ID"], namespace, &["Job ID", "Job Version", "Status", "Description"]].concat());
    for d in &all {
        let namespace = several.then(|| d.namespace.to_string());
        let ids = [Some(shape.id(d.id)), namespace, Some(d.job_id.to_string())].into_iter().flatten();
        table.row(ids.chain([d.job_version.to_string(), lower(&d.status), d.status_description.clone()]));
    }
    table
}

/// Prints the deployment of that id.
pub(crate) async fn show_one(conn: &Conn, id: impl std::fmt::Display, shape: &Shape) -> Result<ExitCode> {
    if shape.format.wanted() {
        return conn.show(&shape.format, call::deployment(id)).await;
    }
    show(&conn.ask(call::deployment(id)).await?, shape);
    Ok(ExitCode::SUCCESS)
}

/// Prints the latest deployment of a job below the job.
pub(crate) fn show_latest(d: &Deployment, shape: &Shape) {
    output::pairs(&[
        ("ID", shape.id(d.id)),
        ("Status", lower(&d.status)),
        ("Description", d.status_description.clone()),
    ]);
    groups(d, shape);
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
    groups(d, shape);
}

/// The columns of the groups of a deployment: those that say something of one of them.
fn group_table(d: &Deployment) -> Table {
    let reverts = d.groups.values().any(|g| g.auto_revert);
    let canaries = d.groups.values().any(|g| g.desired_canaries > 0);
    let deadline = d.groups.values().any(|g| g.progress_deadline.nanos() != 0);
    let columns = [
        ("Task Group", true),
        ("Auto Revert", reverts),
        ("Promoted", canaries),
        ("Desired", true),
        ("Canaries", canaries),
        ("Placed", true),
        ("Healthy", true),
        ("Unhealthy", true),
        ("Progress Deadline", deadline),
    ];
    let mut table = Table::new(columns.iter().filter(|(_, shown)| *shown).map(|(name, _)| *name));
    for (name, g) in &d.groups {
        let has = |text: String| if g.desired_canaries > 0 { text } else { "N/A".to_owned() };
        let cells = [
            name.to_string(),
            g.auto_revert.to_string(),
            has(g.promoted.to_string()),
            g.desired_total.to_string(),
            has(g.desired_canaries.to_string()),
            g.placed_allocs.to_string(),
            g.healthy_allocs.to_string(),
            g.unhealthy_allocs.to_string(),
            if g.require_progress_by.is_empty() { "N/A".to_owned() } else { when::whole(&g.require_progress_by) },
        ];
        table.row(cells.into_iter().zip(columns).filter(|(_, (_, shown))| *shown).map(|(cell, _)| cell));
    }
    table
}

fn groups(d: &Deployment, shape: &Shape) {
    output::heading("Deployed");
    group_table(d).print();
    match promotion::promotion(d) {
        promotion::Promotion::None => {}
        promotion::Promotion::Later => {
            output::line("\nThe canaries are not healthy yet. Once they are, the rest waits for their promotion.");
        }
        promotion::Promotion::Awaited => {
            output::line("\nThe canaries are healthy; the rest waits for their promotion.");
            output::line(&format!("next: {}", promotion::promote_command(d.id, shape)));
        }
    }
}

/// Promotes the canaries of a deployment, in all its groups when none is named.
pub(crate) async fn promoted(
    conn: &Conn,
    id: DeploymentId,
    groups: Vec<String>,
    detach: bool,
    shape: &Shape,
) -> Result<ExitCode> {
    let request = DeploymentPromoteRequest { deployment_id: id.to_string(), all: groups.is_empty(), groups };
    let answer = conn.ask(call::deployment_promote(id, &request)).await?;
    followed(conn, &answer, detach, shape).await
}
