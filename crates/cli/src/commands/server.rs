//! `drover server members`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::{ApiArgs, Shape};
use crate::output::{self, Table};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the servers
    Members {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    let Command::Members { api, shape } = command;
    let conn = api.conn()?;
    let members: Value = conn.get("/v1/agent/members").await?;
    if shape.json {
        output::json(&members)?;
        return Ok(ExitCode::SUCCESS);
    }
    let leader: String = conn.get("/v1/status/leader").await?;
    let mut table = Table::new(["Name", "Address", "Port", "Status", "Leader", "Build", "Datacenter", "Region"]);
    for m in members["Members"].as_array().into_iter().flatten() {
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        let tags = &m["Tags"];
        // The tag holds the RPC port; the member's own port is for gossip, which there is none of.
        let is_leader = leader == format!("{}:{}", text(&m["Addr"]), text(&tags["port"]));
        table.row([
            text(&m["Name"]),
            text(&m["Addr"]),
            text(&m["Port"]),
            text(&m["Status"]),
            is_leader.to_string(),
            text(&tags["build"]),
            text(&tags["dc"]),
            text(&tags["region"]),
        ]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}
