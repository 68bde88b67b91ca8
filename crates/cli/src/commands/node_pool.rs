//! `drover node pool apply|delete|init|list|info|nodes|jobs`.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use api::{
    call::{self, Call},
    shapes::NodePool,
};
use serde_json::Value;

use super::{
    ApiArgs, Format, Page, Shape,
    spec_file::{self, Fields, Kind},
};
use crate::{
    conn::Conn,
    output::{self, Table},
};

/// What a `node_pool` block of a file may say; its label is the name.
const FIELDS: Fields = &[
    ("description", "Description", Kind::Text),
    ("node_identity_ttl", "NodeIdentityTTL", Kind::Duration),
    ("meta", "Meta", Kind::Map),
    (
        "scheduler_config",
        "SchedulerConfiguration",
        Kind::Block(&[
            ("scheduler_algorithm", "SchedulerAlgorithm", Kind::Text),
            ("memory_oversubscription_enabled", "MemoryOversubscriptionEnabled", Kind::Bool),
        ]),
    ),
];

const EXAMPLE_HCL: &str = r#"node_pool "example" {
  description = "Nodes with a GPU"

  # How long an identity of a node is valid.
  node_identity_ttl = "24h"

  meta {
    owner = "platform"
  }

  # Overrides the settings of the cluster.
  scheduler_config {
    scheduler_algorithm             = "spread"
    memory_oversubscription_enabled = false
  }
}
"#;

const EXAMPLE_JSON: &str = r#"{
  "Name": "example",
  "Description": "Nodes with a GPU",
  "NodeIdentityTTL": "24h",
  "Meta": {
    "owner": "platform"
  },
  "SchedulerConfiguration": {
    "SchedulerAlgorithm": "spread",
    "MemoryOversubscriptionEnabled": false
  }
}
"#;

/// Language of an example.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Language {
    Hcl,
    Json,
}

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create or change a node pool
    ///
    /// The file replaces the whole node pool. `drover node pool init` writes an example.
    Apply {
        #[command(flatten)]
        api: ApiArgs,
        /// The file holds the API's JSON instead of HCL
        #[arg(long)]
        json: bool,
        /// The file; `-` reads standard input
        file: String,
    },
    /// Delete a node pool that nothing uses
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// Name of the node pool
        pool: String,
    },
    /// Write an example of a node pool's file
    Init {
        /// Language of the example
        #[arg(long, default_value = "hcl")]
        out: Language,
        /// Print nothing
        #[arg(long)]
        quiet: bool,
        /// The new file (default: `pool.nomad.hcl` or `pool.nomad.json`)
        file: Option<String>,
    },
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
        Command::Apply { api, json, file } => {
            let pool = match json {
                true => spec_file::read(&file, true, FIELDS)?,
                false => spec_file::labelled(&file, "node_pool", FIELDS)?,
            };
            let name = pool["Name"].as_str().context("the file names no node pool: add Name")?.to_owned();
            api.conn()?.tell(call::node_pools_put(&NodePool::default()).carrying(&pool)).await?;
            output::line(&format!("Successfully applied node pool {name:?}!"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Delete { api, pool } => {
            api.conn()?.tell(call::node_pool_delete(&pool)).await?;
            output::line(&format!("Successfully deleted node pool {pool:?}!"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Init { out, quiet, file } => {
            let (default, text) = match out {
                Language::Hcl => ("pool.nomad.hcl", EXAMPLE_HCL),
                Language::Json => ("pool.nomad.json", EXAMPLE_JSON),
            };
            let path = file.unwrap_or_else(|| default.to_owned());
            spec_file::write_new(&path, text)?;
            if !quiet {
                output::line(&format!("Example node pool specification written to {path}"));
            }
            Ok(ExitCode::SUCCESS)
        }
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
            let ttl = match pool.node_identity_ttl.nanos() {
                0 => "24h0m0s".to_owned(),
                _ => pool.node_identity_ttl.to_string(),
            };
            output::pairs(&[("Name", pool.name), ("Description", pool.description), ("Node Identity TTL", ttl)]);
            output::heading("Metadata");
            super::print_map(&pool.meta, "No metadata");
            output::heading("Scheduler Configuration");
            scheduling(pool.scheduler_configuration.as_ref());
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
            let (conn, jobs) = (api.conn()?, call::node_pool_jobs(pool));
            if format.wanted() {
                Page::rest(&page.show(&conn, &format, jobs).await?);
                return Ok(ExitCode::SUCCESS);
            }
            let (jobs, next) = page.of(&conn, jobs).await?;
            match jobs.is_empty() {
                true => output::line("No jobs in this pool"),
                false => super::job::table(&conn, &jobs).print(),
            }
            Page::rest(&next);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What a pool has of its own of the scheduler's settings.
fn scheduling(config: Option<&Value>) {
    let Some(config) = config else { return output::line("No scheduler configuration") };
    let texts = [
        ("Scheduler Algorithm", "SchedulerAlgorithm"),
        ("Memory Oversubscription Enabled", "MemoryOversubscriptionEnabled"),
    ];
    let rows = texts.map(|(title, field)| (title, super::cell(&config[field])));
    output::pairs(&rows.into_iter().filter(|(_, text)| !text.is_empty()).collect::<Vec<_>>());
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
