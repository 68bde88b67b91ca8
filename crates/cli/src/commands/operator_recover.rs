//! `drover operator recover`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{
    call,
    shapes::{RecoveryNode, RecoveryView},
};

use super::{ApiArgs, confirm};
use crate::{conn::Conn, output, when};

/// Arguments of `operator recover`.
#[derive(Debug, clap::Args)]
pub(crate) struct Recover {
    #[command(flatten)]
    api: ApiArgs,
    /// Show whether the servers recover, and what they wait for
    #[arg(long)]
    status: bool,
    /// Do not wait for this node; count it as down
    #[arg(long, value_name = "NODE", conflicts_with = "status")]
    excuse: Option<String>,
    /// Do not ask
    #[arg(short = 'y', long)]
    yes: bool,
    /// Print the status as JSON
    #[arg(long, requires = "status")]
    json: bool,
}

/// Runs the verb.
pub(crate) async fn run(args: Recover) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    if args.json {
        return conn.print(call::recovery()).await;
    }
    let view = conn.ask(call::recovery()).await?;
    if args.status {
        show(&view);
        return Ok(ExitCode::SUCCESS);
    }
    if !view.recovering {
        bail!("the servers are not recovering: there is nothing to end");
    }
    if let Some(node) = &args.excuse {
        return excuse(&conn, &view, node).await;
    }
    show(&view);
    if !args.yes
        && !confirm("End the recovery? Nodes that have not answered may run tasks that then start a second time.")?
    {
        bail!("not confirmed; the recovery goes on");
    }
    conn.tell(call::recovery_end()).await?;
    output::line("The recovery is over.");
    Ok(ExitCode::SUCCESS)
}

async fn excuse(conn: &Conn, view: &RecoveryView, node: &str) -> Result<ExitCode> {
    let named = |n: &&RecoveryNode| n.name == node || n.id.to_string().starts_with(node);
    let found: Vec<&RecoveryNode> = view.waiting_for.iter().filter(named).collect();
    let [node] = found[..] else {
        bail!(
            "{node:?} matches {} of the missing nodes, not one; `drover operator recover -status` lists them",
            found.len()
        );
    };
    conn.tell(call::recovery_excuse(node.id)).await?;
    output::line(&format!(
        "Node {} ({}) counts as down; the recovery no longer waits for it.",
        node.id.short(),
        node.name
    ));
    Ok(ExitCode::SUCCESS)
}

fn show(view: &RecoveryView) {
    output::pairs(&[
        ("Cluster", view.cluster_id.to_string()),
        ("Generation", view.generation.to_string()),
        ("Recovering", if view.recovering { "yes".to_owned() } else { "no".to_owned() }),
    ]);
    if !view.recovering {
        return;
    }
    let names = |nodes: &[RecoveryNode]| {
        let names: Vec<String> = nodes.iter().map(|node| format!("{} ({})", node.id.short(), node.name)).collect();
        if names.is_empty() { "-".to_owned() } else { names.join(", ") }
    };
    let texts = |texts: &[String]| if texts.is_empty() { "-".to_owned() } else { texts.join(", ") };
    output::pairs(&[
        ("Since", when::ago(view.since, when::now_ns())),
        ("Cause", view.cause.clone()),
        ("Answered", names(&view.answered)),
        ("Not Answered", names(&view.waiting_for)),
        ("Not Swept", texts(&view.unswept)),
        ("Unbound", texts(&view.unbound)),
        ("Waits For", view.waits_for.clone()),
    ]);
}
