//! `drover node pool list|info|nodes|jobs`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::{ApiArgs, Page, Shape};
use crate::{
    conn::{Conn, encode},
    output::{self, Table},
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the pools
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a pool
    Info {
        #[command(flatten)]
        api: ApiArgs,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
        /// The pool
        pool: String,
    },
    /// List the nodes of a pool
    Nodes {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        shape: Shape,
        /// The pool
        pool: String,
    },
    /// List the jobs that are placed in a pool
    Jobs {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
        /// The pool
        pool: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, page, json } => {
            rows(&api.conn()?, &page, "/v1/node/pools", json, &[("Name", "Name"), ("Description", "Description")], "No node pools", false)
                .await
        }
        Command::Info { api, json, pool } => {
            let conn = api.conn()?;
            let path = format!("/v1/node/pool/{}", encode(&pool));
            if json {
                return conn.print(&path).await;
            }
            let pool: Value = conn.get(&path).await?;
            output::pairs(&[("Name", super::cell(&pool["Name"])), ("Description", super::cell(&pool["Description"]))]);
            output::heading("Metadata");
            super::print_map(&pool["Meta"], "No metadata");
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
            let path = format!("/v1/node/pool/{}/nodes", encode(&pool));
            rows(&api.conn()?, &page, &path, shape.json, &columns, "No nodes in this pool", !shape.verbose).await
        }
        Command::Jobs { api, page, json, pool } => {
            let columns = [("ID", "ID"), ("Type", "Type"), ("Priority", "Priority"), ("Status", "Status")];
            let path = format!("/v1/node/pool/{}/jobs?namespace=*", encode(&pool));
            rows(&api.conn()?, &page, &path, json, &columns, "No jobs in this pool", false).await
        }
    }
}

/// A page of a list: headers and the fields under them. `short` cuts the first column to the length of a short id.
pub(crate) async fn rows(
    conn: &Conn,
    page: &Page,
    path: &str,
    json: bool,
    columns: &[(&str, &str)],
    nothing: &str,
    short: bool,
) -> Result<ExitCode> {
    let (items, next): (Vec<Value>, String) = page.of(conn, path).await?;
    if json {
        output::json(&items)?;
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
