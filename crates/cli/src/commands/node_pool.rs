//! `drover node pool list|info|nodes|jobs`.

use std::process::ExitCode;

use anyhow::Result;
use api::call::{self, Call};
use serde_json::Value;

use super::{ApiArgs, Format, Page, Shape};
use crate::{
    conn::Conn,
    output::{self, Table},
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the node pools
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        format: Format,
    },
    /// Show a node pool
    Info {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Name of the node pool
        pool: String,
    },
    /// List the nodes of a node pool
    Nodes {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        shape: Shape,
        /// Name of the node pool
        pool: String,
    },
    /// List the jobs of a node pool
    Jobs {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        format: Format,
        /// Name of the node pool
        pool: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, page, format } => {
            rows(
                &api.conn()?,
                &page,
                call::node_pools(),
                &format,
                &[("Name", "Name"), ("Description", "Description")],
                "No node pools",
                false,
            )
            .await
        }
        Command::Info { api, format, pool } => {
            let conn = api.conn()?;
            if format.wanted() {
                return conn.show(&format, call::node_pool(pool)).await;
            }
            let pool = conn.ask(call::node_pool(pool)).await?;
            output::pairs(&[("Name", pool.name), ("Description", pool.description)]);
            output::heading("Metadata");
            super::print_map(&pool.meta, "No metadata");
            Ok(ExitCode::SUCCESS)
        }
        Command::Nodes { api, page, shape, pool } => {
            let columns = [
                ("ID", "ID"),
                ("DC", "Datacenter"),
                ("Name", "Name"),
                ("Class", "NodeClass"),
                ("Drain", "Drain"),
                ("Eligibility", "SchedulingEligibility"),
                ("Status", "Status"),
            ];
            rows(
                &api.conn()?,
                &page,
                call::node_pool_nodes(pool),
                &shape.format,
                &columns,
                "No nodes in this pool",
                !shape.verbose,
            )
            .await
        }
        Command::Jobs { api, page, format, pool } => {
            let columns = [("ID", "ID"), ("Type", "Type"), ("Priority", "Priority"), ("Status", "Status")];
            rows(
                &api.conn()?,
                &page,
                call::node_pool_jobs(pool).in_namespace("*"),
                &format,
                &columns,
                "No jobs in this pool",
                false,
            )
            .await
        }
    }
}

/// A page of a list: headers and the fields under them. `short` cuts the first column to the length of a short id.
pub(crate) async fn rows<T>(
    conn: &Conn,
    page: &Page,
    list: Call<Vec<T>>,
    format: &Format,
    columns: &[(&str, &str)],
    nothing: &str,
    short: bool,
) -> Result<ExitCode> {
    let (items, next) = page.of::<Value>(conn, list.reading()).await?;
    if format.wanted() {
        format.print(&items)?;
    } else if items.is_empty() {
        output::line(nothing);
    } else {
        let mut table = Table::new(columns.iter().map(|(header, _)| *header));
        for item in &items {
            table.row(columns.iter().enumerate().map(|(i, (_, field))| {
                let text = super::cell(&item[*field]);
                if i == 0 && short { text.chars().take(8).collect() } else { text }
            }));
        }
        table.print();
    }
    Page::rest(&next);
    Ok(ExitCode::SUCCESS)
}
