//! `drover server members`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::ApiArgs;
use crate::output::{self, Table};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the servers
    Members {
        #[command(flatten)]
        api: ApiArgs,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
        /// Also the version of the protocol, and all tags
        #[arg(long, alias = "verbose")]
        detailed: bool,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    let Command::Members { api, json, detailed } = command;
    let conn = api.conn()?;
    let members: Value = conn.get("/v1/agent/members").await?;
    if json {
        output::json(&members)?;
        return Ok(ExitCode::SUCCESS);
    }
    let leader: String = conn.get("/v1/status/leader").await?;
    let mut header = vec!["Name", "Address", "Port", "Status", "Leader"];
    header.extend(detailed.then_some("Protocol"));
    header.extend(["Raft Version", "Build", "Datacenter", "Region"]);
    header.extend(detailed.then_some("Tags"));
    let mut table = Table::new(header);
    for m in members["Members"].as_array().into_iter().flatten() {
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        let tags = &m["Tags"];
        // The tag holds the RPC port; the member's own port is for gossip, which there is none of.
        let is_leader = leader == format!("{}:{}", text(&m["Addr"]), text(&tags["port"]));
        let mut row = vec![text(&m["Name"]), text(&m["Addr"]), text(&m["Port"]), text(&m["Status"]), is_leader.to_string()];
        row.extend(detailed.then(|| text(&m["ProtocolCur"])));
        row.extend([text(&tags["raft_vsn"]), text(&tags["build"]), text(&tags["dc"]), text(&tags["region"])]);
        row.extend(detailed.then(|| {
            let all: Vec<String> = tags.as_object().into_iter().flatten().map(|(k, v)| format!("{k}={}", text(v))).collect();
            all.join(",")
        }));
        table.row(row);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}
