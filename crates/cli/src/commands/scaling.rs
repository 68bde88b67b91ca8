//! `drover scaling policy …`: what an autoscaler is told to do.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use api::{
    call,
    shapes::{ScalingPolicyDetail, ScalingPolicyStub},
};

use super::{ApiArgs, Page, Shape, find_by_prefix};
use crate::{
    conn::Conn,
    output::{self, Table},
};

/// Verbs of `scaling`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show scaling policies
    #[command(subcommand)]
    Policy(Policy),
}

/// Verbs of `scaling policy`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Policy {
    /// Show one policy
    Info {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// The policy's id or its prefix
        id: String,
    },
    /// List policies
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        page: Page,
        /// Only policies of this job
        #[arg(long)]
        job: Option<String>,
        /// Only policies of this type: horizontal
        #[arg(long = "type", value_name = "TYPE")]
        kind: Option<String>,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    let Command::Policy(verb) = command;
    match verb {
        Policy::List { api, shape, page, job, kind } => {
            let call = call::scaling_policies().with_some("job", job).with_some("type", kind);
            let conn = api.conn()?;
            if shape.format.wanted() {
                Page::rest(&page.show(&conn, &shape.format, call).await?);
                return Ok(ExitCode::SUCCESS);
            }
            let (policies, next) = page.of(&conn, call).await?;
            if policies.is_empty() {
                output::line("No policies found");
            } else {
                table(&policies, &shape).print();
            }
            Page::rest(&next);
            Ok(ExitCode::SUCCESS)
        }
        Policy::Info { api, shape, id } => info(&api.conn()?, &shape, &id).await,
    }
}

fn table(policies: &[ScalingPolicyStub], shape: &Shape) -> Table {
    let mut table = Table::new(["ID", "Enabled", "Type", "Target"]);
    for policy in policies {
        table.row([shape.id(&policy.id), policy.enabled.to_string(), policy.kind.clone(), target(&policy.target)]);
    }
    table
}

/// What a policy is about: the names that it has.
fn target(target: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = target.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    pairs.join(",")
}

async fn info(conn: &Conn, shape: &Shape, id: &str) -> Result<ExitCode> {
    let full = Shape { verbose: true, ..Shape::default() };
    let stub = find_by_prefix(
        conn,
        call::scaling_policies(),
        id,
        "scaling policy",
        |policy: &ScalingPolicyStub| policy.id.clone(),
        |found| table(&found, &full),
    )
    .await?;
    let call = call::scaling_policy(&stub.id);
    if shape.format.wanted() {
        return conn.show(&shape.format, call).await;
    }
    let policy: ScalingPolicyDetail = conn.ask(call).await?;
    output::pairs(&[
        ("ID", policy.id.clone()),
        ("Enabled", policy.enabled.to_string()),
        ("Type", policy.kind.clone()),
        ("Target", target(&policy.target)),
        ("Min", policy.min.to_string()),
        ("Max", policy.max.to_string()),
    ]);
    if let Some(own) = &policy.policy {
        output::line("\nPolicy:");
        output::json(own)?;
    }
    Ok(ExitCode::SUCCESS)
}
