//! `drover node status|audit|drain|eligibility|drivers`, and the way to its other verbs.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{
    call,
    shapes::{AuditFinding, AuditKind, AuditStatus, NodeEligibilityRequest, NodeListStub, PluginReload, ReloadOutcome},
};
use model::Node;

use super::{
    ApiArgs, Page, Shape,
    pages::{Also, node_page},
    resolve,
};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Compare a node's processes and files with its records
    Audit(Audit),
    /// Show settings of this agent's node
    Config(super::node_meta::Config),
    /// Start or stop a drain of a node
    Drain(super::node_drain::Args),
    /// Work with the driver plugins of a node
    #[command(subcommand)]
    Drivers(Drivers),
    /// Make a node eligible for scheduling or ineligible
    Eligibility(EligibilityArgs),
    /// Work with the identities of nodes
    #[command(subcommand)]
    Identity(super::node_identity::Identity),
    /// Introduce new nodes to the servers
    #[command(subcommand)]
    Intro(super::node_identity::Intro),
    /// Work with the metadata of nodes
    #[command(subcommand)]
    Meta(super::node_meta::Meta),
    /// Work with node pools
    #[command(subcommand)]
    Pool(super::node_pool::Command),
    /// List nodes, or show one
    Status(Status),
}

/// Arguments of `node audit`.
#[derive(Debug, clap::Args)]
pub(crate) struct Audit {
    #[command(flatten)]
    api: ApiArgs,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    /// End everything that no record claims
    #[arg(long)]
    sweep: bool,
    /// Also list claimed items
    #[arg(short, long)]
    verbose: bool,
    /// Node by name or id prefix; default: the node of this agent
    #[arg(value_name = "NODE")]
    id: Option<String>,
}

/// Verbs of `node drivers`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Drivers {
    /// Reload changed plugin files; tasks keep running
    Reload(Reload),
}

/// Arguments of `node drivers reload`.
#[derive(Debug, clap::Args)]
pub(crate) struct Reload {
    #[command(flatten)]
    api: ApiArgs,
    /// Reload only this driver or plugin, even if it has not changed
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    /// Node by name or id prefix; default: the node of this agent
    #[arg(value_name = "NODE")]
    id: Option<String>,
}

/// Arguments of `node eligibility`.
#[derive(Debug, clap::Args)]
pub(crate) struct EligibilityArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// Make the node eligible
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Make the node ineligible
    #[arg(long)]
    disable: bool,
    /// Use the node of this agent
    #[arg(long = "self")]
    this: bool,
    /// Node by name or id prefix
    #[arg(value_name = "NODE")]
    id: Option<String>,
}

/// Arguments of `node status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    pub(super) shape: Shape,
    /// Use the node of this agent
    #[arg(long = "self")]
    this: bool,
    /// Leave out events, resources and attributes
    #[arg(long)]
    pub(super) short: bool,
    /// Include the resource usage of the host
    #[arg(long)]
    pub(super) stats: bool,
    /// Add a column with the number of allocations
    #[arg(long)]
    allocs: bool,
    /// Show what becomes of the node's allocations if it is lost
    #[arg(long, conflicts_with_all = ["short", "stats", "quiet"])]
    if_lost: bool,
    /// Add a column with the operating system
    #[arg(long)]
    os: bool,
    #[command(flatten)]
    also: Also,
    /// Print only node ids
    #[arg(short, long, conflicts_with_all = ["json", "allocs", "os"])]
    quiet: bool,
    #[command(flatten)]
    page: Page,
    /// Node by name or id prefix
    #[arg(value_name = "NODE")]
    id: Option<String>,
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Audit(args) => audit(args).await,
        Command::Config(args) => super::node_meta::config(args).await,
        Command::Identity(command) => super::node_identity::run(command).await,
        Command::Intro(command) => super::node_identity::introduce(command).await,
        Command::Meta(command) => super::node_meta::run(command).await,
        Command::Pool(command) => super::node_pool::run(command).await,
        Command::Drain(args) => super::node_drain::run(args).await,
        Command::Drivers(Drivers::Reload(args)) => reload(args).await,
        Command::Eligibility(args) => eligibility(args).await,
        Command::Status(args) => status(args).await,
    }
}

async fn reload(args: Reload) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let node = resolve::node_id(&conn, args.id.as_deref()).await?;
    let done = conn.ask(call::drivers_reload().with_some("node_id", node).with_some("driver", args.driver)).await?;
    if args.json {
        output::json(&serde_json::to_value(&done)?)?;
    } else {
        let mut table = Table::new(["Plugin", "Outcome", "Message"]);
        for (name, plugin) in &done.plugins {
            table.row([name.clone(), lower(&plugin.outcome), one_line(&plugin.description, true)]);
        }
        table.print();
    }
    let bad = |p: &PluginReload| matches!(p.outcome, ReloadOutcome::Kept | ReloadOutcome::Failed);
    Ok(if done.plugins.values().any(bad) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Exit code 1 says that the books do not balance.
async fn audit(args: Audit) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let call = if args.sweep { call::node_sweep() } else { call::node_audit() };
    let audit = conn.ask(call.with_some("node_id", resolve::node_id(&conn, args.id.as_deref()).await?)).await?;
    let code = if audit.balanced { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        output::json(&serde_json::to_value(&audit)?)?;
        return Ok(code);
    }
    let mut counts = Table::new(["Kind", "Claimed", "Pending", "Unclaimed", "Missing", "Ended by sweeps"]);
    for kind in AuditKind::ALL {
        let of = |status| audit.findings.iter().filter(|f| f.kind == kind && f.status == status).count().to_string();
        let ended = audit.ended.get(&kind).copied().unwrap_or(0).to_string();
        let [claimed, pending, unclaimed, missing] =
            [AuditStatus::Claimed, AuditStatus::Pending, AuditStatus::Unclaimed, AuditStatus::Missing].map(of);
        counts.row([kind.name().to_owned(), claimed, pending, unclaimed, missing, ended]);
    }
    counts.print();
    let listed = |f: &&AuditFinding| args.verbose || f.status != AuditStatus::Claimed;
    if audit.findings.iter().any(|f| listed(&f)) {
        output::heading("Findings");
        let mut table = Table::new(["Status", "Kind", "Allocation", "Task", "Reason", "What"]);
        for f in audit.findings.iter().filter(listed) {
            let alloc = if f.alloc_id.is_nil() { "-".to_owned() } else { f.alloc_id.short().to_string() };
            table.row([
                f.status.name().to_owned(),
                f.kind.name().to_owned(),
                alloc,
                f.task.clone(),
                f.reason.clone(),
                f.what.clone(),
            ]);
        }
        table.print();
    }
    if !audit.swept.is_empty() {
        output::heading("Swept");
        let mut table = Table::new(["Kind", "Outcome", "What"]);
        for s in &audit.swept {
            let outcome = if s.error.is_empty() { "ended".to_owned() } else { s.error.clone() };
            table.row([s.kind.name().to_owned(), outcome, s.what.clone()]);
        }
        table.print();
    }
    output::line(if audit.balanced { "The books balance." } else { "The books do not balance." });
    Ok(code)
}

async fn eligibility(args: EligibilityArgs) -> Result<ExitCode> {
    if !args.enable && !args.disable {
        bail!("give -enable or -disable");
    }
    let conn = args.api.conn()?;
    let node = resolve::node_or_own(&conn, args.id.as_deref(), args.this).await?;
    let wanted = if args.enable { "eligible" } else { "ineligible" };
    let request = NodeEligibilityRequest { node_id: node.id.to_string(), eligibility: wanted.to_owned() };
    conn.ask(call::node_eligibility(node.id, &request)).await?;
    output::line(&format!("Node {} ({}) is {wanted}", node.id.short(), node.name));
    Ok(ExitCode::SUCCESS)
}

async fn status(args: Status) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    if args.id.is_some() || args.this {
        let node = resolve::node_or_own(&conn, args.id.as_deref(), args.this).await?;
        args.also.open(&conn, &node_page(&node.id.to_string())).await;
        if args.if_lost {
            return if_lost(&conn, &node, &args).await;
        }
        if args.shape.format.wanted() {
            return conn.show(&args.shape.format, call::node(node.id)).await;
        }
        return super::node_show::show(&conn, &node, &args).await;
    }
    args.also.open(&conn, "clients").await;
    let nodes = call::nodes().with_some("os", args.os.then_some(true));
    if args.shape.format.wanted() {
        Page::rest(&args.page.show(&conn, &args.shape.format, nodes).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let (nodes, next) = args.page.of::<NodeListStub>(&conn, nodes.reading()).await?;
    if args.quiet {
        for n in &nodes {
            output::line(&args.shape.id(n.id));
        }
        Page::rest(&next);
        return Ok(ExitCode::SUCCESS);
    }
    if nodes.is_empty() {
        output::line(if args.page.filter.is_some() { "No node fits the filter" } else { "No nodes registered" });
        return Ok(ExitCode::SUCCESS);
    }
    let mut header = vec!["ID", "Node Pool", "DC", "Name", "Class"];
    if args.os {
        header.push("OS");
    }
    if args.shape.verbose {
        header.extend(["Address", "Version"]);
    }
    header.extend(["Drain", "Eligibility", "Status"]);
    if args.allocs {
        header.push("Running Allocs");
    }
    let mut table = Table::new(header);
    for n in &nodes {
        let mut row = vec![
            args.shape.id(n.id),
            n.node_pool.clone(),
            n.datacenter.clone(),
            n.name.to_string(),
            n.node_class.clone(),
        ];
        if args.os {
            row.push(n.attributes.get("os.name").map(ToString::to_string).unwrap_or_default());
        }
        if args.shape.verbose {
            row.extend([n.address.clone(), n.version.clone()]);
        }
        row.extend([n.drain.to_string(), lower(&n.scheduling_eligibility), lower(&n.status)]);
        if args.allocs {
            let allocs = conn.ask(call::node_allocations(n.id)).await?;
            row.push(allocs.iter().filter(|a| a.client_status == model::ClientStatus::Running).count().to_string());
        }
        table.row(row);
    }
    table.print();
    Page::rest(&next);
    Ok(ExitCode::SUCCESS)
}

async fn if_lost(conn: &Conn, node: &Node, args: &Status) -> Result<ExitCode> {
    let call = call::node_preview(node.id).with("event", "lost");
    if args.shape.format.wanted() {
        return conn.show(&args.shape.format, call).await;
    }
    let preview = conn.ask(call).await?;
    let after = preview.after;
    output::line(&format!("If {} ({}) is not heard from for {after}:", node.id.short(), node.name));
    super::node_preview::show(conn, &preview).await;
    Ok(ExitCode::SUCCESS)
}

/// A driver's message in a row of a table: what a plugin has written before its end may have many lines.
pub(crate) fn one_line(text: &str, verbose: bool) -> String {
    const MOST: usize = 200;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST) {
        Some((end, _)) if !verbose => format!("{}… (-verbose shows all of it)", &line[..end]),
        _ => line,
    }
}

impl Command {
    /// `node status ID`, for `drover status`.
    pub(crate) fn for_status(api: ApiArgs, shape: Shape, id: String) -> Self {
        Self::Status(Status {
            also: Also::default(),
            api,
            shape,
            this: false,
            short: false,
            stats: false,
            allocs: false,
            if_lost: false,
            os: false,
            quiet: false,
            page: Page::default(),
            id: Some(id),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn messages_fit_into_a_row() {
        assert_eq!(one_line("a\n  b\tc\n", false), "a b c");
        let long = "é".repeat(300);
        assert!(one_line(&long, false).ends_with("é… (-verbose shows all of it)"));
        assert_eq!(one_line(&long, true), long);
    }
}
